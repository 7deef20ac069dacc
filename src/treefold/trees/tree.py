"""Trees: immutable values with ordered child slots, read from and written as s-expressions.

Nothing here recurses: a chain of a million nodes is a valid tree.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from reprlib import repr as shortened
from typing import Final, Self, final

from treefold.errors import ParseError, TreeError
from treefold.trees.notation import (
    ABSENT,
    TOKEN,
    Label,
    as_vector,
    bad_token,
    read_head,
    read_label,
    unfinished,
    written,
)

__all__ = ["ABSENT", "Label", "Tree"]

_LARGE: Final = 10_000
_LARGEST: Final = 2**31 - 1


@final
class Tree:
    """A node with a label and ordered children; a child is a tree, or ``None`` where the slot is empty (⊥).

    A value: it cannot be changed, equal trees are equal and hash alike. ``size``, ``depth`` and ``arity`` are those of the
    whole tree and cost nothing, since every node keeps its own.

    >>> tree = Tree("MIN", [Tree("2"), None, Tree("MAX", [Tree("1"), Tree("3")])])
    >>> print(tree)
    (MIN 2 _ (MAX 1 3))
    >>> tree == Tree.parse("(MIN 2 _ (MAX 1 3))"), tree.size, tree.depth, tree.arity
    (True, 5, 2, 3)
    """

    __slots__ = ("_arity", "_children", "_depth", "_hash", "_label", "_size")
    _label: Label
    _children: "tuple[Tree | None, ...]"
    _size: int
    _depth: int
    _arity: int
    _hash: int

    def __init__(self, label: str | Sequence[float], children: "Iterable[Tree | None]" = ()) -> None:
        if not isinstance(label, str):
            label = as_vector(label)
        children = _as_children(label, children)
        size, depth, arity = 1, 0, len(children)
        for slot, child in enumerate(children):
            if child is None:
                continue
            if not isinstance(child, Tree):
                raise TreeError(
                    f"child {slot} of node {label!r}: expected a Tree, or None for an absent child, "
                    f"got {type(child).__name__} {shortened(child)}; wrap a leaf as Tree({shortened(child)})."
                )
            size += child._size
            if child._depth >= depth:
                depth = child._depth + 1
            if child._arity > arity:
                arity = child._arity
        self._label = label
        self._children = children
        self._size = size
        self._depth = depth
        self._arity = arity
        self._hash = hash((label, children))  # does not recurse: children keep theirs

    @property
    def label(self) -> Label:
        """The label of the root: text, or a tuple of numbers."""
        return self._label

    @property
    def children(self) -> "tuple[Tree | None, ...]":
        """The child slots of the root, ``None`` where absent."""
        return self._children

    @property
    def size(self) -> int:
        """The number of nodes; absent children are none."""
        return self._size

    @property
    def depth(self) -> int:
        """The number of edges on the longest way from the root to a leaf; 0 for a single node."""
        return self._depth

    @property
    def arity(self) -> int:
        """The greatest number of child slots of any node."""
        return self._arity

    @property
    def is_leaf(self) -> bool:
        """Whether no child is present."""
        return self._size == 1

    def preorder(self) -> "Iterator[Tree]":
        """Walk all nodes, each before its children, from left to right.

        >>> [node.label for node in Tree.parse("(a (b c) _ d)").preorder()]
        ['a', 'b', 'c', 'd']
        """
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(child for child in reversed(node._children) if child is not None)

    def postorder(self) -> "Iterator[Tree]":
        """Walk all nodes, each after its children, from left to right: the order of a fold.

        >>> [node.label for node in Tree.parse("(a (b c) _ d)").postorder()]
        ['c', 'b', 'd', 'a']
        """
        self._refuse_beyond_memory("walked")
        # Root-right-left, reversed, is left-right-root.
        reverse, stack = [], [self]
        while stack:
            node = stack.pop()
            reverse.append(node)
            stack.extend(child for child in node._children if child is not None)
        return reversed(reverse)

    def map(self, function: Callable[[Label], str | Sequence[float]]) -> "Tree":
        """Return the tree of the same shape with ``function`` applied to every label.

        >>> print(Tree.parse("(a b _ c)").map(str.upper))
        (A B _ C)
        """
        done: list[Tree] = []
        for node in self.postorder():
            present = len(node._children) - node._children.count(None)
            mapped = iter(done[len(done) - present :])
            children = [None if child is None else next(mapped) for child in node._children]
            del done[len(done) - present :]
            done.append(Tree(function(node._label), children))
        return done[0]

    @classmethod
    def parse(cls, text: str) -> Self:
        r"""Read an s-expression: ``label`` is a leaf, ``(label child …)`` an inner node, ``_`` an absent child.

        Labels with blanks, brackets, quotes, or that are ``_`` or empty stand in double quotes with backslash escapes; a
        vector of numbers stands in square brackets.

        >>> Tree.parse('(add "two words" _ [0.5 -1])').children[2].label
        (0.5, -1.0)
        >>> Tree.parse("(MIN 1 (MAX 2")
        Traceback (most recent call last):
        ...
        treefold.errors.ParseError: line 1, column 14: expected ')' to close '(MAX' of column 8, got the end of the text...
        """
        if not isinstance(text, str):
            raise TreeError(
                f"Tree.parse expects text, got {type(text).__name__}; decode bytes, or build the tree with Tree(label, children)."
            )
        open_nodes: list[tuple[Label, list[Tree | None], int]] = []
        root: Tree | None = None
        position = 0
        while True:
            match = TOKEN.match(text, position)
            if match is None:
                raise bad_token(text, position)
            start, position = match.start(match.lastindex or 0), match.end()
            bracket, quoted, vector, bare, end = match.groups()
            if root is not None and end is None:
                problem = (
                    f"expected the end of the text after a whole tree, got {text[start]!r}; give one tree at a time"
                )
                raise ParseError(problem, text=text, position=start)
            if bracket == "(":
                label, position = read_head(text, position)
                open_nodes.append((label, [], start))
                continue
            node: Tree | None
            if bracket == ")":
                if not open_nodes:
                    raise ParseError(
                        "expected a tree, got ')' that closes nothing; remove it", text=text, position=start
                    )
                label, children, _ = open_nodes.pop()
                node = cls(label, children)
            elif end is not None:
                if root is not None:
                    return root
                if open_nodes:
                    raise unfinished(text, open_nodes[-1][0], open_nodes[-1][2])
                raise ParseError(
                    "expected a tree, got an empty text; write a label or (label …)", text=text, position=0
                )
            elif bare == ABSENT:
                if not open_nodes:
                    raise ParseError(
                        'expected a tree, got the absent child _ alone; write "_" in quotes if it is a label',
                        text=text,
                        position=start,
                    )
                node = None
            else:
                node = cls(read_label(text, start, quoted, vector, bare))
            if open_nodes:
                open_nodes[-1][1].append(node)
            else:
                root = node  # never None: an absent child outside brackets was refused above

    def __str__(self) -> str:
        self._refuse_beyond_memory("written")
        return "".join(self._pieces())

    def _pieces(self) -> Iterator[str]:
        """Yield the s-expression in pieces, so that a reader may stop early."""
        stack: list[Tree | str | None] = [self]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                yield item
            elif item is None:
                yield ABSENT
            elif not item._children:
                yield written(item._label)
            else:
                yield f"({written(item._label)}"
                stack.append(")")
                for child in reversed(item._children):
                    stack.append(child)
                    stack.append(" ")

    def __repr__(self) -> str:
        pieces, length = [], 0
        for piece in self._pieces():
            pieces.append(piece)
            length += len(piece)
            if length > 200:
                return f"<Tree of {self._size} nodes, depth {self._depth}: {''.join(pieces)[:200]}…>"
        return f"Tree.parse({''.join(pieces)!r})"

    def _refuse_beyond_memory(self, done: str) -> None:
        if self._size > _LARGEST:
            raise TreeError(
                f"a tree of {self._size} nodes cannot be {done} node by node, at most {_LARGEST} can; "
                f"it shares subtrees that unfold without end."
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        stack: list[tuple[Tree | None, Tree | None]] = [(self, other)]
        # Of large trees, pairs already compared are remembered: their subtrees may be shared a thousandfold.
        compared: set[tuple[int, int]] | None = set() if self._size > _LARGE else None
        while stack:
            left, right = stack.pop()
            if left is right:
                continue
            if compared is not None:
                if (id(left), id(right)) in compared:
                    continue
                compared.add((id(left), id(right)))
            if left is None or right is None or left._hash != right._hash or left._label != right._label:
                return False
            if len(left._children) != len(right._children):
                return False
            stack.extend(zip(left._children, right._children, strict=True))
        return True

    def __hash__(self) -> int:
        return self._hash

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        self._refuse_beyond_memory("pickled")
        # Flat lists, since pickle recurses through nested objects. An absent child has width -1.
        labels: list[Label] = []
        widths: list[int] = []
        stack: list[Tree | None] = [self]
        while stack:
            node = stack.pop()
            labels.append("" if node is None else node._label)
            widths.append(-1 if node is None else len(node._children))
            if node is not None:
                stack.extend(node._children)
        return _from_reverse_postorder, (labels, widths)

    def draw(self, *, max_nodes: int = 100, max_depth: int = 20, notes: Sequence[str] | None = None) -> str:
        """Draw the tree for a terminal, one node a line; what lies beyond the limits is counted, not drawn.

        ``notes`` are written behind the labels, one for each node in pre-order.

        >>> print(Tree.parse("(MIN 2 _ (MAX 1 3))").draw())
        MIN
        ├── 2
        ├── ⊥
        └── MAX
            ├── 1
            └── 3
        """
        if notes is not None and len(notes) != self._size:
            raise TreeError(
                f"draw expects a note for each of the {self._size} nodes in pre-order, got {len(notes)}; pad with ''."
            )
        lines: list[str] = []
        drawn = drawn_at = 0  # nodes drawn; the pre-order index of the next node
        stack: list[tuple[Tree | None, str, str]] = [(self, "", "")]
        while stack:
            node, lead, indent = stack.pop()
            if node is None:
                lines.append(f"{lead}⊥")
                continue
            if drawn >= max_nodes:
                rest = self._size - drawn_at  # the nodes that follow in pre-order are exactly those still to draw
                lines.append(f"{lead}… {rest} more" + (" nodes" if rest > 1 else " node"))
                break
            if len(indent) > 4 * max_depth:
                lines.append(f"{lead}… {node._size} more" + (" nodes" if node._size > 1 else " node"))
                drawn_at += node._size
                continue
            note = notes[drawn_at] if notes is not None else ""
            lines.append(f"{lead}{_printable(written(node._label))}{'  ' + note if note else ''}")
            drawn += 1
            drawn_at += 1
            last = len(node._children) - 1
            for slot in range(last, -1, -1):
                branch, below = ("└── ", "    ") if slot == last else ("├── ", "│   ")
                stack.append((node._children[slot], indent + branch, indent + below))
        return "\n".join(lines)


def _as_children(label: object, children: object) -> "tuple[Tree | None, ...]":
    if isinstance(children, (Tree, str)) or not isinstance(children, Iterable):
        raise TreeError(
            f"node {shortened(label)}: expected a list of children, got {type(children).__name__} {shortened(children)}; "
            f"write Tree({shortened(label)}, [child, …])."
        )
    return tuple(children)


def _printable(text: str) -> str:
    """Show characters that would move the cursor or break the line as escapes."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _from_reverse_postorder(labels: list[Label], widths: list[int]) -> Tree:
    """Rebuild a pickled tree: the nodes in reverse post-order, absent children included."""
    done: list[Tree | None] = []
    for label, width in zip(reversed(labels), reversed(widths), strict=True):
        if width < 0:
            done.append(None)
            continue
        children = done[len(done) - width :] if width else []
        del done[len(done) - width :]
        done.append(Tree(label, children))
    (root,) = done
    assert root is not None
    return root
