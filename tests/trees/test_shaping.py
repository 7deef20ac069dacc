import gc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treefold.errors import ConfigurationError, TreeError
from treefold.trees.shaping import binarise, group, limit_arity, unbinarise
from treefold.trees.tree import Tree

LABELS = st.text(st.sampled_from("ab_"), max_size=3) | st.lists(st.floats(-9, 9), min_size=1, max_size=2)
TREES = st.recursive(
    st.builds(Tree, LABELS),
    lambda inner: st.builds(Tree, LABELS, st.lists(st.none() | inner, max_size=9)),
    max_leaves=40,
)


@given(tree=TREES)
def test_unbinarise_is_the_inverse_of_binarise(tree: Tree) -> None:
    assert unbinarise(binarise(tree)) == tree


@given(tree=TREES)
def test_a_binarised_tree_has_two_slots_everywhere_and_a_node_for_each_slot(tree: Tree) -> None:
    binary = binarise(tree)
    assert {len(node.children) for node in binary.preorder()} == {2}
    assert binary.size == 1 + sum(len(node.children) for node in tree.preorder())


@pytest.mark.parametrize(
    ("tree", "binary"),
    [
        ("a", "(a _ _)"),
        ("(a b)", "(a (b _ _) _)"),
        ("(a (b c d) e)", "(a (b (c _ (d _ _)) (e _ _)) _)"),
        ("(a _)", '(a ("_" _ _) _)'),
        ('(a "_" "__" b_)', "(a (__ _ (___ _ (b_ _ _))) _)"),
    ],
)
def test_binarise_keeps_first_child_and_next_sibling(tree: str, binary: str) -> None:
    assert str(binarise(Tree.parse(tree))) == binary


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ("(a b)", "a binarised node expects 2 slots, child and sibling, got 0 at 'b'"),
        ("(a _ (b _ _))", "a binarised tree expects no sibling at its root, got one"),
        ('(a ("_" (b _ _) _) _)', "an absent child '_' expects no children, got some"),
        ('("_" _ _)', "an absent child '_' expects a parent, got none"),
    ],
)
def test_unbinarise_refuses_what_binarise_did_not_make(tree: str, problem: str) -> None:
    with pytest.raises(TreeError, match=problem):
        unbinarise(Tree.parse(tree))


@given(tree=TREES, max_arity=st.integers(2, 4))
def test_grouped_trees_are_narrow_and_the_same_without_their_groups(tree: Tree, max_arity: int) -> None:
    grouped = group(tree, max_arity, label="group")
    assert grouped.arity <= max_arity

    def ungrouped(node: Tree) -> Tree:
        children: list[Tree | None] = []
        for child in node.children:
            if child is not None and child.label == "group":
                children += ungrouped(child).children
            else:
                children.append(None if child is None else ungrouped(child))
        return Tree(node.label, children)

    assert ungrouped(grouped) == tree


@given(width=st.integers(2, 200), max_arity=st.integers(2, 5))
def test_groups_are_balanced(width: int, max_arity: int) -> None:
    tree = group(Tree("a", [Tree(str(number)) for number in range(width)]), max_arity)
    depths = []
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        depths += [] if node.children else [depth]
        stack += [(child, depth + 1) for child in node.children if child is not None]
    assert max(depths) - min(depths) <= 1
    assert max_arity ** (max(depths) - 1) < width <= max_arity ** max(depths)


def test_groups_of_seven_by_three() -> None:
    assert str(group(Tree.parse("(a 1 2 _ 4 5 6 (b 7))"), 3, label="g")) == "(a (g 1 2 _) (g 4 5) (g 6 (b 7)))"


def test_limit_arity_follows_its_policy() -> None:
    tree = Tree.parse("(a (b 1 2 3) 4)")
    assert limit_arity(tree, 3) == tree
    assert limit_arity(tree, 2, "group") == group(tree, 2)
    assert limit_arity(tree, 5, "binarise") == binarise(tree)
    with pytest.raises(TreeError) as caught:
        limit_arity(tree, 2, "error")
    assert str(caught.value) == (
        "node 'b' has 3 children, but max_arity=2; raise `max_arity`, or choose policy 'binarise' or 'group'."
    )


@pytest.mark.parametrize(
    ("max_arity", "policy", "problem"),
    [
        (0, "error", "limit_arity expects max_arity to be an integer >= 1, got 0; choose a positive max_arity."),
        (1, "binarise", "binarise gives every node 2 slots, but max_arity=1; raise `max_arity` to 2."),
        (1, "group", "group expects max_arity >= 2 for a tree of arity 2, got 1; raise `max_arity`."),
        (
            2,
            "grup",
            "limit_arity expects policy to be one of 'binarise', 'group', 'error', got 'grup' (nearest known: 'group').",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(max_arity: int, policy: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        limit_arity(Tree.parse("(a b c)"), max_arity, policy)
    assert str(caught.value) == problem


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Pause the search for cycles, which would take most of the time of a test with millions of nodes."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_chain_of_a_million_nodes_above_a_hundred_thousand_children_is_shaped() -> None:
    tree = Tree("a", [Tree("b")] * 100_000)
    for _ in range(1_000_000):
        tree = Tree("a", (tree,))
    assert unbinarise(binarise(tree)) == tree
    grouped = group(tree, 3)
    assert (grouped.arity, tree.depth) == (3, 1_000_001)
    assert 1_000_000 + 10 < grouped.depth <= 1_000_000 + 11  # 3 ** 10 < 100_000 <= 3 ** 11
