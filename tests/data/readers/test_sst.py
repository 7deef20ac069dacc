from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treefold.data.readers import read_sst, records_sst
from treefold.data.readers.brackets import PHRASE, sst_tree
from treefold.errors import ParseError, ReadError
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

SST = Path(__file__).parents[3].parent / "shared" / "data" / "sst"
Node = tuple[str, "str | list[Node]"]
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters="()"), min_size=1, max_size=5)
NODES = st.recursive(
    st.tuples(st.sampled_from("01234"), WORDS),
    lambda inner: st.tuples(st.sampled_from("01234"), st.lists(inner, min_size=1, max_size=3)),
)


def written(node: Node) -> str:
    label, content = node
    return f"({label} {content if isinstance(content, str) else ' '.join(map(written, content))})"


def plainest(node: Node) -> tuple[Tree, list[str]]:
    """Build the tree and the classes of its nodes, children first, by recursion."""
    label, content = node
    if isinstance(content, str):
        return Tree(content), [label]
    parts = [plainest(child) for child in content]
    return Tree(PHRASE, [tree for tree, _ in parts]), [name for _, names in parts for name in names] + [label]


@given(node=NODES)
def test_brackets_become_the_tree_of_their_words_and_the_classes_of_all_nodes(node: Node) -> None:
    tree, classes = sst_tree(written(node))
    assert (tree, list(classes)) == plainest(node)
    assert Tree.parse(str(tree)) == tree


@given(st.text(st.sampled_from("() ab"), max_size=12))
def test_any_text_is_a_tree_with_a_class_for_each_node_or_an_error_with_its_place(text: str) -> None:
    try:
        tree, classes = sst_tree(text)
    except ParseError as problem:
        assert "expected" in problem.problem and problem.position <= len(text)
    else:
        assert tree.size == len(classes) == text.count("(") == text.count(")")


def test_blanks_between_brackets_and_a_no_break_space_in_a_word() -> None:
    tree, classes = sst_tree(" ( 3\t(2  8\xa01\\\\/2 ) (1 -LRB-) ) ")
    assert [node.label for node in tree.preorder()] == [PHRASE, "8\xa01\\\\/2", "-LRB-"]
    assert classes == ("2", "1", "3")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("(3 (2 a) (2 b)", "column 15: expected ')' to close the tree, got the end of the line; close its brackets"),
        ("(3 (2 a)) (2 b))", "column 10: expected the end of the line after a whole tree, got more; write one a line"),
        ("(2 a))", "column 6: expected the end of the line after a whole tree, got more; write one a line"),
        (")", "column 1: expected a tree, got ')' that closes nothing; remove it"),
        ("a", "column 1: expected '(' to begin a tree, got 'a'; write a word as (class word)"),
        ("((2 a) (2 b))", "column 2: expected a class after '(', got '('; write (class word) or (class tree …)"),
        ("(3 (2 a) ())", "column 11: expected a class after '(', got ')'; write (class word) or (class tree …)"),
        ("(3 (2 a) (b))", "column 12: expected a word or trees after the class 'b', got ')'; write (class word)"),
        ("(3 (2 a) b)", "column 10: expected '(' or ')', got 'b'; write a word as (class word)"),
        ("(3 a b)", "column 6: expected ')' after the word 'a', got 'b'; write each word as (class word)"),
        ("(3 a (2 b))", "column 6: expected ')' after the word 'a', got '('; write each word as (class word)"),
        ("(3", "column 3: expected a word or trees after the class '3', got the end of the line; write (class word)"),
    ],
)
def test_malformed_brackets_are_an_error_with_line_and_column(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "a.sst"
    path.write_text(f"(1 a)\n\n{text}\n(2 b)\n")
    with pytest.raises(ReadError) as caught:
        list(read_sst(path))
    assert str(caught.value) == f"{path}, line 3, {error}"
    told: list[ReadError] = []
    records = list(records_sst(path, on_bad=told.append))
    assert [(str(record.trees[0]), record.label, record.line) for record in records] == [("a", "1", 1), ("b", "2", 4)]
    assert len(told) == 1


def test_a_hundred_thousand_levels_are_read() -> None:
    depth = 100_000
    tree, classes = sst_tree("(1 " * depth + "(0 w)" + ")" * depth)
    assert (tree.size, tree.depth, classes[0], classes[-1]) == (depth + 1, depth, "0", "1")


def test_the_treebank_has_its_published_sizes_and_the_words_and_classes_that_its_text_has() -> None:
    if not SST.exists():
        pytest.skip(f"NOT TESTED: the original files are not at {SST}")
    found = {}
    for name in ("train", "dev", "test"):
        text = (SST / f"{name}.txt").read_text(encoding="utf-8")
        records = list(records_sst(SST / f"{name}.txt"))
        forest = Forest(record.trees[0] for record in records)
        codes = [str(label) for label in forest.vocabulary]
        leaves = [codes[code] for code in forest.labels[forest.widths == 0]]
        # What stands between brackets, without a parser: words follow a class, in the order of the sentence.
        assert leaves == [part.split(" ", 1)[1] for part in text.replace(")", "(").split("(") if part.strip(" \n")[1:]]
        classes = Counter(label for record in records for label in record.node_labels)
        assert classes == Counter(part[0] for part in text.split("(")[1:])
        assert [record.label for record in records] == [line[1] for line in text.splitlines()]
        assert forest.arity == 2 and set(forest.widths.tolist()) == {0, 2}
        found[name] = (len(records), sum(record.label != "2" for record in records), forest.node_count)
    assert found["train"] == (8544, 6920, 318_582)
    assert found["dev"][:2] == (1101, 872) and found["test"][:2] == (2210, 1821)
