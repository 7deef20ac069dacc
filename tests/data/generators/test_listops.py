import hashlib
import itertools
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treefold import Forest, Tree
from treefold.data.generators.listops import (
    OPERATORS,
    ListOpsSettings,
    generate,
    node_values,
    read_listops,
    split,
    value,
)
from treefold.errors import ConfigurationError, ReadError, TreeError

SAMPLE = Path(__file__).parents[3].parent / "shared" / "data" / "listops" / "sample_d20s.tsv"
needs_sample = pytest.mark.skipif(not SAMPLE.exists(), reason=f"the ListOps sample is not at {SAMPLE}: reader untested")


# --- oracles: Python's own evaluation and the plainest recursion ---

PYTHON: dict[str, Callable[..., int]] = {
    "MIN": lambda *values: min(values),
    "MAX": lambda *values: max(values),
    "MED": lambda *values: int(statistics.median(values)),
    "SM": lambda *values: sum(values) % 10,
}


def python_value(expression: str) -> int:
    """Rewrite ``( ( [SM 6 ) … ] )`` as ``SM(6, …)`` and let Python evaluate it."""
    calls = re.sub(r"\[(\w+)", r"\1(", re.sub(r"[()]", "", expression)).replace("]", "),")
    return int(eval(re.sub(r"(\d)", r"\1,", calls).strip().rstrip(","), dict(PYTHON)))


def recursive_value(tree: Tree) -> int:
    if not tree.children:
        return int(str(tree.label))
    return PYTHON[str(tree.label)](*(recursive_value(child) for child in tree.children if child is not None))


def plain(tree: Tree) -> str:
    if not tree.children:
        return str(tree.label)
    return f"[{tree.label} {' '.join(plain(child) for child in tree.children if child is not None)} ]"


def binarised(tree: Tree) -> str:
    if not tree.children:
        return str(tree.label)
    text = f"[{tree.label}"
    for child in tree.children:
        if child is not None:
            text = f"( {text} {binarised(child)} )"
    return f"( {text} ] )"


def without_absent(tree: Tree) -> Tree:
    return Tree(tree.label, [without_absent(child) for child in tree.children if child is not None])


digits = st.sampled_from("0123456789").map(Tree)
trees = st.recursive(
    digits,
    lambda inner: st.builds(Tree, st.sampled_from(list(OPERATORS)), st.lists(inner, min_size=1, max_size=5)),
    max_leaves=30,
)
trees_with_absent = st.recursive(
    digits,
    lambda inner: st.builds(
        lambda label, first, rest: Tree(label, [None, first, *rest]),
        st.sampled_from(list(OPERATORS)),
        inner,
        st.lists(st.none() | inner, max_size=4),
    ),
    max_leaves=20,
)


# --- values ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7),
        ("(MIN 4 2 9)", 2),
        ("(MAX 4 2 9)", 9),
        ("(MED 9 1 4)", 4),
        ("(MED 1 2)", 1),  # 1.5, truncated
        ("(MED 8 0 5 2)", 3),  # (2 + 5) / 2, truncated
        ("(MED 9 9 8 9)", 9),
        ("(SM 9 9 9 9 9)", 5),
        ("(SM 5 5)", 0),
        ("(MIN _ 4 _ 2 _)", 2),
        ("(SM (MAX 2 9) (MED 3 6 (MIN 8 7)) 4)", 9),  # 9 + 6 + 4
        ("(MED (SM 6 5 9 0) 3 (MAX 1 (MIN 5 2)) 8)", 2),  # of 0 3 2 8
    ],
)
def test_trees_evaluated_by_hand_have_their_value(text: str, expected: int) -> None:
    assert value(Tree.parse(text)) == expected


@given(trees | trees_with_absent)
def test_the_value_equals_that_of_the_plainest_recursion(tree: Tree) -> None:
    assert value(tree) == recursive_value(tree)


@given(st.lists(trees_with_absent, min_size=1, max_size=4))
def test_node_values_stand_in_the_order_of_the_nodes_of_a_forest(some: list[Tree]) -> None:
    forest = Forest(some)
    values = [number for tree in some for number in node_values(tree)]
    is_leaf = forest.widths == 0
    leaf_labels = [int(forest.vocabulary[code]) for code in forest.labels[is_leaf]]
    assert len(values) == forest.node_count
    assert np.array(values)[is_leaf].tolist() == leaf_labels
    assert [values[end - 1] for end in forest.offsets[1:]] == [recursive_value(tree) for tree in some]
    assert node_values(some[0]) == [recursive_value(node) for node in some[0].postorder()]


def test_a_chain_of_a_hundred_thousand_operators_is_evaluated() -> None:
    tree = Tree("3")
    for _ in range(100_000):
        tree = Tree("SM", [tree, Tree("1")])
    assert value(tree) == 3


LABELS = "ListOps expects the labels 0–9, MIN, MAX, MED, SM"


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (Tree("MXA", [Tree("1")]), f"{LABELS}, got 'MXA' (nearest known: 'MAX'); correct it."),
        (Tree("10"), f"{LABELS}, got '10'; correct it."),
        (Tree([0.5]), f"{LABELS}, got (0.5,); correct it."),
        (Tree("MIN"), "the operator MIN expects at least one operand, got none; give it one, or a digit."),
        (Tree("SM", [None]), "the operator SM expects at least one operand, got none; give it one, or a digit."),
        (Tree("4", [Tree("1")]), "the digit 4 expects no operands, got 1; make it a leaf, or an operator."),
    ],
)
def test_a_tree_that_is_no_listops_says_so(tree: Tree, message: str) -> None:
    with pytest.raises(TreeError) as problem:
        value(Tree("MAX", [Tree("1"), tree]))
    assert str(problem.value) == message


# --- reading ---


@needs_sample
def test_every_line_of_the_original_sample_is_read_with_its_value() -> None:
    lines = SAMPLE.read_text().splitlines()
    read = list(read_listops(SAMPLE))
    assert len(read) == len(lines) == 300
    for line, (tree, result) in zip(lines, read, strict=True):
        given_value, expression = line.split("\t")
        assert result == int(given_value) == python_value(expression) == recursive_value(tree)
        assert binarised(tree) == expression


@needs_sample
def test_random_placement_of_the_sample_spreads_the_same_operands_over_five_slots() -> None:
    left = [tree for tree, _ in read_listops(SAMPLE)]
    spread = [tree for tree, _ in read_listops(SAMPLE, placement="random", seed=3)]
    assert [without_absent(tree) for tree in spread] == left
    assert {len(node.children) for tree in spread for node in tree.preorder()} == {0, 5}
    assert spread == [tree for tree, _ in read_listops(SAMPLE, placement="random", seed=3)]
    assert spread != [tree for tree, _ in read_listops(SAMPLE, placement="random", seed=4)]


@given(trees)
def test_both_forms_of_an_expression_give_the_tree_back(tree: Tree) -> None:
    result = recursive_value(tree)
    lines = [f"{result}\t{binarised(tree)}", "", f"{result}\t{plain(tree)}\r\n"]
    assert list(read_listops(lines)) == [(tree, result)] * 2


@given(trees.filter(lambda tree: tree.size > 1), st.data())
def test_a_missing_token_is_always_an_error_with_line_and_column(tree: Tree, data: st.DataObject) -> None:
    tokens = binarised(tree).split()
    del tokens[data.draw(st.integers(0, len(tokens) - 1))]
    with pytest.raises(ReadError) as problem:
        list(read_listops([f"{recursive_value(tree)}\t{' '.join(tokens)}"]))
    assert problem.value.line == 1
    assert problem.value.column is not None


@given(st.text() | st.text("0123[]()MINSAX \t"))
def test_any_text_is_read_or_gives_a_read_error(text: str) -> None:
    bad: list[ReadError] = []
    lines = text.split("\n")
    read = list(read_listops(lines, on_bad=bad.append))
    assert len(read) + len(bad) == sum(1 for line in lines if line.strip())


@pytest.mark.parametrize(
    ("line", "column", "problem"),
    [
        ("[SM 6 5 ]", 1, "expected a digit and a tab, got '[SM 6 5 ]'; a line is value<TAB>expression"),
        ("12\t[SM 6 6 ]", 1, "expected a digit and a tab, got '12\\t[SM 6 6 ]'; a line is value<TAB>expression"),
        ("1\t", 3, "expected a tree, got the end of the line; complete it"),
        ("1\t[SM 6 5", 10, "expected ']' to close '[SM', got the end of the line; complete it"),
        ("1\t[SM 6 x ]", 9, "expected a digit, ']' or an operator, got 'x'"),
        ("6\t[MAXX 6 ]", 3, "expected a digit, ']' or an operator, got '[MAXX' (nearest known: '[MAX')"),
        ("1\t[SM ]", 7, "expected an operand of SM, got ']'; give it one"),
        ("1\t1 ]", 5, "expected the end of the line, got ']'; one tree a line"),
        ("1\t]", 3, "expected an operator or a digit, got ']' that closes nothing; remove it"),
        ("1\t( ( ( [SM 6 ) 5 ] )", 19, "expected ')', got ']'; correct the round brackets"),
        ("1\t( ( ( [SM 6 ) 5 ) ]", 22, "expected ')', got the end; correct the round brackets"),
        ("1\t( ( ( [SM 6 ) 5 ) ] ) )", 25, "expected the end of the line, got ')'; correct the round brackets"),
        ("2\t[SM 6 5 ]", 1, "expected 1, the value of the expression, got 2; correct one of them"),
    ],
)
def test_a_malformed_line_says_where_and_what(line: str, column: int, problem: str) -> None:
    with pytest.raises(ReadError) as raised:
        list(read_listops(["3\t3", line]))
    assert str(raised.value) == f"lines, line 2, column {column}: {problem}"


def test_bad_lines_go_to_on_bad_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_bytes(b"3\t3\n4\t[SM 1 ]\n5\t\xff\n\n6\t6")
    bad: list[ReadError] = []
    assert list(read_listops(path, on_bad=bad.append)) == [(Tree("3"), 3), (Tree("6"), 6)]
    assert [(error.source, error.line, error.column) for error in bad] == [(str(path), 2, 1), (str(path), 3, 3)]
    assert (
        bad[1].problem
        == "expected UTF-8, got the byte 0xff; convert the file, for example with `iconv -f LATIN1 -t UTF-8`"
    )


def test_too_many_operands_for_the_random_slots_are_an_error_of_the_line() -> None:
    line = "3\t[SM 1 1 1 ]"
    with pytest.raises(ReadError, match="SM: expected at most 2 operands to place, got 3; raise max_operands"):
        list(read_listops([line], placement="random", max_operands=2))
    assert len(list(read_listops([line], max_operands=2))) == 1


def test_a_missing_file_is_a_read_error(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="expected a file that can be read, got 'No such file or directory'"):
        list(read_listops(tmp_path / "none.tsv"))


# --- generating ---


def test_a_hundred_thousand_generated_trees_have_the_statistics_of_the_originals() -> None:
    values = np.zeros(10, dtype=np.int64)

    def counted() -> Iterator[Tree]:
        for number, tree in enumerate(generate(100_000, seed=0)):
            if number % 3 == 0:  # saves time: the standard error of a share is 0.2 points
                values[value(tree)] += 1
            yield tree

    forest = Forest(counted())
    operators = int((forest.widths > 0).sum())
    depths = np.maximum.reduceat(forest.depths, forest.offsets[:-1])
    assert len(forest) == 100_000
    assert operators / 1e5 == pytest.approx(9.21, rel=0.03)
    assert (forest.node_count - operators) / 1e5 == pytest.approx(24.42, rel=0.03)
    assert depths.mean() == pytest.approx(4.53, rel=0.02)
    assert depths.max() == 19
    assert (forest.sizes == 1).sum() == 10  # a set holds each digit once

    arities = np.bincount(forest.widths)
    originals = np.array([21731, 22815, 23584, 24013])
    assert arities[1] == 0
    assert len(arities) == 6
    np.testing.assert_allclose(arities[2:] / operators, originals / originals.sum(), atol=0.01)
    originals = np.array([1127, 1038, 967, 978, 991, 969, 895, 930, 964, 1141])
    np.testing.assert_allclose(values / values.sum(), originals / originals.sum(), atol=0.01)
    kinds = np.bincount(forest.labels)[[forest.vocabulary.code(label) for label in OPERATORS]]
    np.testing.assert_allclose(kinds / operators, 0.25, atol=0.005)


def test_the_same_seed_gives_the_same_trees_in_every_process() -> None:
    text = "\n".join(str(tree) for tree in generate(2000, seed=7))
    # Fixed, since hash() differs from one process to the next.
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == "969a8e81dc359c85"
    assert text != "\n".join(str(tree) for tree in generate(2000, seed=8))


def test_a_longer_run_begins_with_the_shorter_one_and_all_trees_differ() -> None:
    long = list(generate(3000, seed=1))
    assert list(generate(1000, seed=1)) == long[:1000]
    assert len(set(long)) == 3000


def test_generated_trees_keep_to_their_settings() -> None:
    settings = ListOpsSettings(
        max_depth=4, value_probability=0.4, min_operands=3, max_operands=4, operators=("MAX", "SM"), max_nodes=30
    )
    some = list(generate(2000, seed=2, settings=settings))
    nodes = [node for tree in some for node in tree.preorder()]
    assert {node.label for node in nodes if node.children} == {"MAX", "SM"}
    assert {len(node.children) for node in nodes} == {0, 3, 4}
    assert max(tree.size for tree in some) == 30
    assert max(tree.depth for tree in some) == 3  # the root has depth 1, and depth 4 is always a digit


def test_random_placement_gives_the_same_expressions_with_evenly_spread_operands() -> None:
    left = list(generate(3000, seed=4))
    spread = list(generate(3000, seed=4, settings=ListOpsSettings(placement="random")))
    assert [without_absent(tree) for tree in spread] == left
    pairs = [node for tree in spread for node in tree.preorder() if len(node.children) - node.children.count(None) == 2]
    places = [tuple(slot for slot in range(5) if node.children[slot] is not None) for node in pairs]
    shares = [places.count(place) / len(places) for place in itertools.combinations(range(5), 2)]
    assert shares == pytest.approx([0.1] * 10, abs=0.015)  # some 6,000 nodes: four standard deviations


def test_progress_is_told_every_thousand_trees_and_at_the_end() -> None:
    told: list[int] = []
    assert len(list(generate(2500, seed=0, progress=told.append))) == 2500
    assert told == [1000, 2000, 2500]


def test_all_trees_that_there_are_can_be_had_but_not_one_more() -> None:
    settings = ListOpsSettings(max_depth=2, min_operands=1, max_operands=2, operators=("MIN",))
    assert len(set(generate(120, settings=settings))) == 10 + 10 + 100
    with pytest.raises(ConfigurationError) as problem:
        list(generate(121, settings=settings))
    assert str(problem.value) == (
        "listops.generate expects settings with 121 distinct trees, got 120 and then no new one in 100000 draws "
        "(100000 repeats, 0 above max_nodes=None); ask for fewer trees, or raise max_depth, max_operands or max_nodes."
    )


def test_a_node_budget_that_no_tree_meets_is_an_error_and_no_endless_loop() -> None:
    settings = ListOpsSettings(value_probability=0.0, max_nodes=2)
    with pytest.raises(ConfigurationError, match=r"got 0 and then .* 100000 above max_nodes=2"):
        next(generate(1, settings=settings))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_depth": 0}, "expects max_depth to be an integer >= 1, got 0"),
        ({"min_operands": 4, "max_operands": 3}, "expects min_operands <= max_operands, got 4 and 3"),
        ({"value_probability": 1.5}, "expects value_probability from 0 to 1, got 1.5"),
        ({"value_probability": "0.5"}, "expects value_probability from 0 to 1, got '0.5'"),
        ({"operators": ()}, "expects distinct operators, at least one, got ()"),
        ({"operators": ("MIN", "MIN")}, "expects distinct operators, at least one, got ('MIN', 'MIN')"),
        ({"operators": ("MINN",)}, "got 'MINN' (nearest known: 'MIN')"),
        ({"max_nodes": 0}, "expects max_nodes to be an integer >= 1, got 0"),
        (
            {"placement": "lefft"},
            "expects placement to be one of 'left', 'random', got 'lefft' (nearest known: 'left')",
        ),
        ({"value_probability": 0.2}, "got settings whose mean is above 1000000 nodes; set max_nodes"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        ListOpsSettings(**changes)


def test_a_bad_size_or_seed_is_refused_before_the_first_tree() -> None:
    with pytest.raises(ConfigurationError, match=r"listops\.generate expects size to be an integer >= 1, got 0"):
        generate(0)
    with pytest.raises(ConfigurationError, match=r"listops\.generate expects seed to be an integer >= 0, got -1"):
        generate(1, seed=-1)


# --- splitting ---


@given(st.integers(1, 500), st.integers(0, 9))
def test_a_split_has_every_tree_once(n: int, seed: int) -> None:
    parts = split(n, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(n))


def test_the_split_has_the_sizes_of_the_paper_and_follows_the_seed() -> None:
    parts = split(100_000, seed=1)
    assert [len(part) for part in parts] == [81_900, 8_100, 10_000]
    assert all((part == again).all() for part, again in zip(parts, split(100_000, seed=1), strict=True))
    assert (parts.test != split(100_000, seed=2).test).any()
    assert abs(parts.test.mean() - 50_000) < 1500  # five standard deviations of a mean of 10,000 even draws
