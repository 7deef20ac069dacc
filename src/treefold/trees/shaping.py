"""Rewriting of trees with wide nodes, so that no node has more than a given number of children."""

from collections.abc import Sequence
from itertools import pairwise

from treefold.errors import ConfigurationError, TreeError, require_choice, require_positive
from treefold.trees.tree import ABSENT, Label, Tree

POLICIES = ("binarise", "group", "error")


def limit_arity(tree: Tree, max_arity: int, policy: str = "error") -> Tree:
    """Rewrite a tree so that its nodes have at most ``max_arity`` child slots.

    The policy is ``"binarise"`` or ``"group"``, see the functions of these names, or ``"error"``, which raises if a node is
    too wide. ``"binarise"`` rewrites every tree, wide or not, so that a slot means the same in all trees.

    >>> print(limit_arity(Tree.parse("(a b c d)"), 2, "group"))
    (a (… b c) d)
    >>> limit_arity(Tree.parse("(MAX 1 2 3)"), 2)
    Traceback (most recent call last):
    ...
    treefold.errors.TreeError: node 'MAX' has 3 children, but max_arity=2; raise `max_arity`, or choose policy 'binarise'
    or 'group'.
    """
    require_choice("limit_arity", "policy", policy, POLICIES)
    if policy == "group":
        return group(tree, max_arity)
    require_positive("limit_arity", max_arity=max_arity)
    if policy == "binarise":
        if max_arity < 2:
            raise ConfigurationError(
                f"binarise gives every node 2 slots, but max_arity={max_arity}; raise `max_arity` to 2."
            )
        return binarise(tree)
    if tree.arity > max_arity:
        wide = next(node for node in tree.preorder() if len(node.children) > max_arity)
        raise TreeError(
            f"node {wide.label!r} has {len(wide.children)} children, but max_arity={max_arity}; "
            f"raise `max_arity`, or choose policy 'binarise' or 'group'."
        )
    return tree


def binarise(tree: Tree) -> Tree:
    """Rewrite a tree in left-child/right-sibling form: the two slots of a node are its first child and its next sibling.

    An absent child becomes a node ``_``. A label that consists of underscores gets one more, so that `unbinarise` can tell
    them apart.

    >>> print(binarise(Tree.parse("(a b _ c)")))
    (a (b _ ("_" _ (c _ _))) _)
    """
    # List the child slots in pre-order, each with whether a sibling follows. Walked from the end, a node finds its rewritten
    # first child on the stack, and below it its next sibling.
    slots: list[tuple[Tree | None, bool]] = []
    stack: list[tuple[Tree | None, bool]] = [(tree, False)]
    while stack:
        node, has_next = stack.pop()
        slots.append((node, has_next))
        if node is not None and node.children:
            stack.append((node.children[-1], False))
            stack += [(child, True) for child in node.children[-2::-1]]
    done: list[Tree] = []
    for node, has_next in reversed(slots):
        child = done.pop() if node is not None and node.children else None
        sibling = done.pop() if has_next else None
        done.append(Tree(ABSENT if node is None else _escaped(node.label), (child, sibling)))
    return done[0]


def unbinarise(tree: Tree) -> Tree:
    """Invert `binarise`: ``unbinarise(binarise(tree)) == tree``.

    >>> print(unbinarise(Tree.parse('(a (b _ ("_" _ (c _ _))) _)')))
    (a b _ c)
    """
    if len(tree.children) == 2 and tree.children[1] is not None:
        raise TreeError("a binarised tree expects no sibling at its root, got one; give the whole tree to unbinarise.")
    # Walk backwards, as in binarise; siblings are collected from right to left.
    done: list[list[Tree | None]] = []
    for node in reversed(list(tree.preorder())):
        if len(node.children) != 2:
            raise TreeError(
                f"a binarised node expects 2 slots, child and sibling, got {len(node.children)} at {node.label!r}; "
                f"give unbinarise the result of binarise."
            )
        children = done.pop() if node.children[0] is not None else []
        siblings = done.pop() if node.children[1] is not None else []
        if node.label == ABSENT:
            if children or node is tree:
                expected = "no children, got some" if children else "a parent, got none"
                raise TreeError(f"an absent child '_' expects {expected}; give unbinarise the result of binarise.")
            siblings.append(None)
        else:
            siblings.append(Tree(_unescaped(node.label), reversed(children)))
        done.append(siblings)
    root = done[0][0]
    assert root is not None
    return root


def group(tree: Tree, max_arity: int, label: str = "…") -> Tree:
    """Put the children of too wide nodes below new nodes named ``label``, balanced and in their order.

    >>> print(group(Tree.parse("(sum 1 2 3 4 5 6 7)"), max_arity=3))
    (sum (… 1 2 3) (… 4 5) (… 6 7))
    """
    require_positive("group", max_arity=max_arity)
    if tree.arity <= max_arity:
        return tree
    if max_arity < 2:
        raise ConfigurationError(
            f"group expects max_arity >= 2 for a tree of arity {tree.arity}, got {max_arity}; raise `max_arity`."
        )
    order, stack = [], [tree]  # subtrees without a wide node stay whole
    while stack:
        node = stack.pop()
        order.append(node)
        if node.arity > max_arity:
            stack.extend(child for child in node.children if child is not None)
    done: list[Tree] = []
    for node in reversed(order):
        if node.arity <= max_arity:
            done.append(node)
            continue
        present = len(node.children) - node.children.count(None)
        grouped = iter(done[len(done) - present :])
        children = [None if child is None else next(grouped) for child in node.children]
        del done[len(done) - present :]
        done.append(Tree(node.label, children if len(children) <= max_arity else _balanced(children, max_arity, label)))
    return done[0]


def _balanced(children: Sequence[Tree | None], max_arity: int, label: str) -> list[Tree | None]:
    """Distribute the children over at most ``max_arity`` nodes, in nearly equal parts on every level."""
    ranges = []  # every range before its parts, right before left: reversed, that is post-order
    stack = [(0, len(children))]
    while stack:
        start, end = stack.pop()
        ranges.append((start, end))
        if end - start > 1:
            width = min(end - start, max_arity)
            cuts = [end - (end - start) * part // width for part in range(width, -1, -1)]
            stack += pairwise(cuts)
    done: list[Tree | None] = []
    for start, end in reversed(ranges[1:]):
        if end - start == 1:
            done.append(children[start])
            continue
        width = min(end - start, max_arity)
        parts = done[len(done) - width :]
        del done[len(done) - width :]
        done.append(Tree(label, parts))
    return done


def _escaped(label: Label) -> Label:
    return f"{label}{ABSENT}" if _is_underscores(label) else label


def _unescaped(label: Label) -> Label:
    return label[: -len(ABSENT)] if _is_underscores(label) else label


def _is_underscores(label: Label) -> bool:
    return isinstance(label, str) and bool(label) and not label.strip(ABSENT)
