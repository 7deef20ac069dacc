import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import any_tree
from treefold import Tree
from treefold.errors import ParseError, ReadError, TreeError, TreefoldError
from treefold.trees.tree import Label


def plain_text(tree: Tree | None) -> tuple[object, ...] | None:
    """Return nested tuples, by recursion: the oracle for values."""
    return None if tree is None else (tree.label, *[plain_text(child) for child in tree.children])


def plain_preorder(tree: Tree) -> list[Label]:
    return [tree.label, *[label for child in tree.children if child for label in plain_preorder(child)]]


def plain_postorder(tree: Tree) -> list[Label]:
    return [*[label for child in tree.children if child for label in plain_postorder(child)], tree.label]


def plain_depth(tree: Tree) -> int:
    return max((1 + plain_depth(child) for child in tree.children if child), default=0)


@given(any_tree)
def test_text_and_pickle_give_back_an_equal_tree(tree: Tree) -> None:
    for again in (Tree.parse(str(tree)), pickle.loads(pickle.dumps(tree)), copy.copy(tree), copy.deepcopy(tree)):
        assert again == tree and hash(again) == hash(tree) and plain_text(again) == plain_text(tree)


@given(any_tree, any_tree)
def test_trees_are_equal_when_their_nested_values_are(left: Tree, right: Tree) -> None:
    assert (left == right) == (plain_text(left) == plain_text(right))


@given(any_tree)
def test_walks_and_measures_agree_with_plain_recursion(tree: Tree) -> None:
    assert [node.label for node in tree.preorder()] == plain_preorder(tree)
    assert [node.label for node in tree.postorder()] == plain_postorder(tree)
    assert tree.size == len(plain_preorder(tree))
    assert tree.depth == plain_depth(tree)
    assert tree.arity == max(len(node.children) for node in tree.preorder())
    assert tree.is_leaf == all(child is None for child in tree.children)


@given(any_tree)
def test_map_keeps_the_shape_and_changes_every_label(tree: Tree) -> None:
    mapped = tree.map(lambda label: f"<{label}>")
    assert [node.label for node in mapped.preorder()] == [f"<{label}>" for label in plain_preorder(tree)]
    assert [len(node.children) for node in mapped.preorder()] == [len(node.children) for node in tree.preorder()]
    assert tree.map(lambda label: label) == tree
    with pytest.raises(TreeError, match="map expects a function from label to label, got None"):
        tree.map(None)  # type: ignore[arg-type]


@given(any_tree)
def test_the_drawing_has_a_line_for_each_node_and_each_absent_child(tree: Tree) -> None:
    absent = sum(node.children.count(None) for node in tree.preorder())
    assert len(tree.draw(max_nodes=10_000, max_depth=10_000).split("\n")) == tree.size + absent


def test_a_chain_of_a_million_nodes_does_everything_a_tree_does() -> None:
    nodes = 1_000_000
    text = "(a " * (nodes - 1) + "b" + ")" * (nodes - 1)
    tree, other = Tree.parse(text), Tree.parse(text)
    assert (tree.size, tree.depth, tree.arity) == (nodes, nodes - 1, 1)
    assert str(tree) == text
    assert tree == other and hash(tree) == hash(other)
    assert tree != Tree.parse(text.replace("b", "c"))
    assert copy.deepcopy(tree) == tree
    assert pickle.loads(pickle.dumps(tree)) == tree
    assert sum(1 for _ in tree.preorder()) == sum(1 for _ in tree.postorder()) == nodes
    assert tree.map(lambda label: label) == tree
    assert "more nodes" in tree.draw() and len(repr(tree)) < 400


def test_a_node_may_have_a_hundred_thousand_children() -> None:
    wide = Tree("f", [Tree("a")] * 100_000)
    assert Tree.parse(str(wide)) == wide and wide.arity == 100_000


def test_a_tree_cannot_be_changed() -> None:
    tree = Tree.parse("(a b)")
    for name in ("label", "children", "size", "new"):
        with pytest.raises(AttributeError):
            setattr(tree, name, "x")


def test_a_leaf_and_a_node_with_only_absent_children_differ() -> None:
    assert Tree("a") != Tree("a", [None]) != Tree("a", [None, None])
    assert Tree.parse("(a _)") == Tree("a", [None])
    assert Tree("a") != "a"


def test_quotes_protect_labels_that_would_read_otherwise() -> None:
    labels = ["", "_", "two words", 'say "x"', "back\\slash", "(", "[1]", "line\nbreak", "tab\t", " ", "ünï⊥"]
    assert [Tree.parse(str(Tree("f", [Tree(label)]))).children[0] for label in labels] == [
        Tree(label) for label in labels
    ]
    assert str(Tree("two words")) == '"two words"'


def test_absent_children_stand_as_an_underscore() -> None:
    tree = Tree.parse("(MIN 2 _ (MAX 1 2 3))")
    assert tree.children[1] is None
    assert tree == Tree("MIN", [Tree("2"), None, Tree("MAX", [Tree("1"), Tree("2"), Tree("3")])])
    assert eval(repr(tree), {"Tree": Tree}) == tree


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_nodes": "x"}, "draw expects max_nodes to be an integer >= 1, got 'x'"),
        ({"max_depth": None}, "draw expects max_depth to be an integer >= 1, got None"),
        ({"max_depth": []}, "draw expects max_depth to be an integer >= 1"),
        ({"notes": 5}, "draw expects notes to be a list of texts, got 5"),
        ({"notes": [1, 2]}, r"draw expects notes to be a list of texts, got \[1, 2\]"),
        ({"notes": ["a"]}, "draw expects notes for each of the 2 nodes, in pre-order, got 1; pad with ''"),
    ],
)
def test_drawings_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TreefoldError, match=message):
        Tree.parse("(f a)").draw(**options)


def test_notes_are_drawn_behind_the_labels_and_hidden_nodes_are_counted() -> None:
    tree = Tree.parse("(f (g a b) c)")
    assert tree.draw(notes=["1", "", "3", "4", "5"]).split("\n") == [
        "f  1",
        "├── g",
        "│   ├── a  3",
        "│   └── b  4",
        "└── c  5",
    ]
    assert tree.draw(max_depth=1).split("\n")[1:] == [
        "├── g",
        "│   ├── … 1 more node",
        "│   └── … 1 more node",
        "└── c",
    ]
    assert tree.draw(max_nodes=1).split("\n") == ["f", "├── … 4 more nodes"]
    assert len(Tree("f", [Tree("a")] * 1000).draw(max_nodes=10).split("\n")) == 11
    assert Tree("\x1b[2J\n").draw() == '"\\x1b[2J\\n"'
    with pytest.raises(TreeError, match="draw expects notes for each of the 5 nodes, in pre-order, got 1; pad with ''"):
        tree.draw(notes=["only one"])


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected a tree, got an empty text; write a label or"),
        ("  \n ", 1, 1, "expected a tree, got an empty text"),
        ("(a (b", 1, 6, r"expected '\)' to close '\(b' of column 4, got the end of the text"),
        ("(a\n (b\n c", 3, 3, r"expected '\)' to close '\(b' of line 2, column 2, got the end"),
        ("(a b))", 1, 6, r"expected the end of the text after a whole tree, got '\)'; give one tree at a time"),
        (")", 1, 1, r"expected a tree, got '\)' that closes nothing; remove it"),
        ("a b", 1, 3, "expected the end of the text after a whole tree, got 'b'"),
        ("((a) b)", 1, 2, r"expected a label after '\(', got '\('"),
        ("()", 1, 2, r"expected a label after '\(', got '\)'"),
        ("(", 1, 2, r"expected a label after '\(', got the end of the text"),
        ("(_ a)", 1, 2, r"expected a label after '\(', got '_'"),
        ("_", 1, 1, "expected a tree, got the absent child _ alone"),
        ('(a "b)', 1, 4, "expected '\"' to close '\"', got the end of the text"),
        ("(a [1 2)", 1, 4, r"expected '\]' to close '\[', got the end of the text"),
        ("(a [1 x])", 1, 4, "could not convert string to float: 'x'; put a label that begins with"),
        ("(a [nan])", 1, 4, "a vector label expects finite numbers, got nan at index 0"),
        ("(a [])", 1, 4, "a vector label expects at least one number, got none"),
    ],
)
def test_bad_text_is_reported_with_its_position(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        Tree.parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


@given(st.text(alphabet='()"[]_ \\ab1.\n', max_size=20))
def test_any_text_is_a_tree_or_a_parse_error(text: str) -> None:
    try:
        tree = Tree.parse(text)
    except ParseError as problem:
        assert problem.position <= len(text)
    else:
        assert Tree.parse(str(tree)) == tree


def test_bad_children_and_labels_are_refused_in_words() -> None:
    with pytest.raises(
        TreeError, match=r"child 1 of node 'f': expected a Tree, or None for an absent child, got str 'b'; wrap"
    ):
        Tree("f", [Tree("a"), "b"])  # type: ignore[list-item]
    with pytest.raises(TreeError, match=r"a label is text or a vector of numbers, got int 3; write Tree\('3'\)"):
        Tree(3)  # type: ignore[arg-type]
    with pytest.raises(
        TreeError, match="a vector label expects finite numbers, got nan at index 1; replace it, or drop the tree"
    ):
        Tree([1.0, float("nan")])
    for label in (["x"], ["1"], [[1]], [10**400]):
        with pytest.raises(TreeError, match="a vector label expects numbers"):
            Tree(label)  # type: ignore[arg-type]
    no_labels: list[object] = [b"MIN", {1: 2}, {3, 1}]
    for no_label in no_labels:
        with pytest.raises(TreeError, match="a label is text or a vector of numbers, got"):
            Tree(no_label)  # type: ignore[arg-type]
    for children in (Tree("b"), "b", None, 5):
        with pytest.raises(
            TreeError, match=r"node 'a': expected a list of children, got .* write Tree\('a', \[child, …\]\)"
        ):
            Tree("a", children)  # type: ignore[arg-type]
    with pytest.raises(TreeError) as caught:
        Tree("a", [list(range(100_000))])  # type: ignore[list-item]
    assert len(str(caught.value)) < 300


def test_subtrees_shared_a_thousandfold_compare_and_are_refused_where_they_cannot_be_unfolded() -> None:
    left, right = Tree("a"), Tree("a")
    for _ in range(60):
        left, right = Tree("f", [left, left]), Tree("f", [right, right])
    assert left == right and hash(left) == hash(right) and left.size == 2**61 - 1
    for action in (str, pickle.dumps, lambda tree: list(tree.postorder())):
        with pytest.raises(TreeError, match=r"cannot be .* node by node, at most 2147483647 can"):
            action(left)
    assert "more nodes" in left.draw()


def test_errors_reach_another_process() -> None:
    with pytest.raises(ParseError) as caught:
        Tree.parse("(a")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and (again.line, again.column) == (1, 3)
    read = ReadError("expected x", source="f", line=1, column=2)
    assert str(pickle.loads(pickle.dumps(read))) == str(read)
    with pytest.raises(TreeError, match=r"Tree.parse expects text, got bytes; decode bytes"):
        Tree.parse(b"(a b)")  # type: ignore[arg-type]


def test_half_of_a_surrogate_pair_is_no_label() -> None:
    with pytest.raises(TreeError, match=r"expected a label of whole characters, got 'a\\ud800' with half"):
        Tree("a\ud800")
    assert Tree("\U0001f600").label == "\U0001f600"
