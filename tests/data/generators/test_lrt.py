import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treefold import Tree
from treefold.data.generators.lrt import (
    LARGEST_BIN,
    RELATIONS,
    VARIABLES,
    Pair,
    generate,
    read_lrt,
    relation,
    split,
    worlds,
)
from treefold.errors import ConfigurationError, ReadError, ShapeError, TreeError

ORIGINALS = Path(__file__).parents[3].parent / "shared" / "data" / "lrt"
FILES = [ORIGINALS / f"train{size}" for size in range(LARGEST_BIN + 1)]
needs_originals = pytest.mark.skipif(
    not FILES[0].exists(), reason=f"the LRT originals are not in {ORIGINALS}: 211,702 pairs unchecked"
)
BINS = [30, 2319, 12451, 23252, 30373, 34152, 32952, 26671, 18962, 12634, 8181, 4894, 4831]
COUNTS = {"=": 3947, "<": 23278, ">": 23248, "^": 3703, "|": 22550, "v": 22590, "#": 112386}


# --- oracles: Python's own evaluation in all 64 worlds, and sets of worlds ---

WORLDS = [dict(zip("abcdef", truth, strict=True)) for truth in itertools.product([False, True], repeat=6)]


def in_python(tree: Tree) -> str:
    operands = [in_python(child) for child in tree.children if child is not None]
    if not operands:
        return str(tree.label)
    return f"(not {operands[0]})" if tree.label == "not" else f"({operands[0]} {tree.label} {operands[1]})"


def true_worlds(tree: Tree) -> set[int]:
    """The worlds, numbered with a as the lowest bit, in which Python finds the sentence true."""
    code = compile(in_python(tree), "sentence", "eval")
    return {
        sum(1 << place for place, name in enumerate("abcdef") if world[name])
        for world in WORLDS
        if eval(code, {}, world)
    }


def relation_of_sets(left: set[int], right: set[int]) -> str:
    """The definitions of the paper, for sentences that are neither always true nor always false."""
    everything = set(range(64))
    holds = {
        "=": left == right,
        "<": left < right,
        ">": left > right,
        "^": not left & right and left | right == everything,
        "|": not left & right and left | right != everything,
        "v": bool(left & right) and left | right == everything,
    }
    found = [name for name, is_so in holds.items() if is_so]
    assert len(found) <= 1
    return found[0] if found else "#"


def as_original(tree: Tree) -> str:
    operands = [as_original(child) for child in tree.children if child is not None]
    if not operands:
        return str(tree.label)
    return f"( not {operands[0]} )" if tree.label == "not" else f"( {operands[0]} ( {tree.label} {operands[1]} ) )"


def operators(tree: Tree) -> int:
    return sum(1 for node in tree.preorder() if node.label in ("and", "or", "not"))


sentences = st.recursive(
    st.sampled_from(VARIABLES).map(Tree),
    lambda inner: st.one_of(
        st.builds(lambda operand: Tree("not", [operand]), inner),
        st.builds(lambda name, left, right: Tree(name, [left, right]), st.sampled_from(["and", "or"]), inner, inner),
    ),
    max_leaves=12,
)
contingent = sentences.filter(lambda tree: 0 < len(true_worlds(tree)) < 64)


# --- worlds and relations ---


@given(sentences)
def test_the_worlds_are_those_in_which_python_finds_the_sentence_true(tree: Tree) -> None:
    bits = worlds(tree)
    assert {world for world in range(64) if bits >> world & 1} == true_worlds(tree)
    assert 0 <= bits < 1 << 64


@given(contingent, contingent)
def test_the_relation_is_that_of_the_sets_of_worlds(left: Tree, right: Tree) -> None:
    assert relation(left, right) == relation_of_sets(true_worlds(left), true_worlds(right))


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("a", "(not (not a))", "="),
        ("(and a b)", "a", "<"),
        ("(or a b)", "a", ">"),
        ("(not a)", "a", "^"),
        ("(and a b)", "(not a)", "|"),
        ("(or a b)", "(not a)", "v"),
        ("a", "b", "#"),
        ("(not (and a b))", "(or (not a) (not b))", "="),
    ],
)
def test_relations_known_by_heart(left: str, right: str, expected: str) -> None:
    assert relation(Tree.parse(left), Tree.parse(right)) == expected


def test_a_sentence_with_a_hundred_thousand_negations_has_its_worlds() -> None:
    tree = Tree("c")
    for _ in range(100_001):
        tree = Tree("not", [tree])
    assert relation(tree, Tree("c")) == "^"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(not a b)", "the operator 'not' expects 1 operands, got 2; nest two-place operators."),
        ("(and a b c)", "the operator 'and' expects 2 operands, got 3; nest two-place operators."),
        ("or", "the operator 'or' expects 2 operands, got 0; nest two-place operators."),
        ("(a b)", "the variable a expects no operands, got 1; make it a leaf."),
        ("(not g)", "LRT expects the labels a, b, c, d, e, f, and, or, not, got 'g'; correct it."),
        (
            "(nott a)",
            "LRT expects the labels a, b, c, d, e, f, and, or, not, got 'nott' (nearest known: 'not'); correct it.",
        ),
        ("[1 2]", "LRT expects the labels a, b, c, d, e, f, and, or, not, got (1.0, 2.0); correct it."),
    ],
)
def test_a_tree_that_is_no_sentence_says_so(text: str, message: str) -> None:
    with pytest.raises(TreeError) as problem:
        worlds(Tree.parse(text))
    assert str(problem.value) == message


# --- reading ---


@needs_originals
def test_every_original_pair_has_the_relation_and_the_bin_of_its_file() -> None:
    relations: Counter[str] = Counter()
    larger = 0
    for size, file in enumerate(FILES):
        count = 0
        for pair in read_lrt(file, check=True):
            count += 1
            relations[pair.relation] += 1
            assert pair.operators == size
            if size == LARGEST_BIN:
                exact = max(operators(pair.left), operators(pair.right))
                assert 12 <= exact <= 19
                larger += exact > 12
        assert count == BINS[size]
    assert relations == COUNTS
    assert larger == 2211  # the last file holds 12 and more


@needs_originals
def test_the_trees_of_original_lines_are_written_as_the_same_lines_again() -> None:
    for file in FILES:
        lines = file.read_text().splitlines()[:200]
        assert [
            f"{pair.relation}\t{as_original(pair.left)}\t{as_original(pair.right)}" for pair in read_lrt(lines)
        ] == lines


@needs_originals
def test_python_agrees_with_the_originals_about_the_relation() -> None:
    for file in FILES:
        for pair in itertools.islice(read_lrt(file), 60):
            assert relation_of_sets(true_worlds(pair.left), true_worlds(pair.right)) == pair.relation


@given(contingent, contingent)
def test_a_pair_written_in_the_original_form_is_read_again(left: Tree, right: Tree) -> None:
    name = relation_of_sets(true_worlds(left), true_worlds(right))
    line = f"{name}\t{as_original(left)}\t{as_original(right)}\r\n"
    size = min(max(operators(left), operators(right)), 12)
    assert list(read_lrt([line], check=True)) == [Pair(left, right, name, size)]


@pytest.mark.parametrize(
    ("line", "column", "problem"),
    [
        ("#\ta", 4, "expected three columns, got 2; a line is relation<TAB>left<TAB>right"),
        ("#\ta\tb\tc", 7, "expected three columns, got 4; a line is relation<TAB>left<TAB>right"),
        ("~\ta\tb", 1, "expected a relation, one of = < > ^ | v #, got '~'"),
        ("#\ta\t", 5, "expected one sentence, got none"),
        ("#\ta\tb c", 8, "expected one sentence, got other parts; write ( x ( and y ) )"),
        ("#\tnot\tb", 6, "expected one sentence, got other parts; write ( x ( and y ) )"),
        ("#\t( and b )\tb", 12, "expected one sentence, got other parts; write ( x ( and y ) )"),
        ("#\t( not a\tb", 10, "expected ')', got the end of the sentence; close its brackets"),
        ("#\ta )\tb", 5, "expected a sentence, got ')' that closes nothing; remove it"),
        ("#\t( a and b )\tb", 13, "expected ( not x ), ( x ( and y ) ) or ( x ( or y ) ), got other parts before ')'"),
        (
            "#\t( a ( not b ) )\tb",
            17,
            "expected ( not x ), ( x ( and y ) ) or ( x ( or y ) ), got other parts before ')'",
        ),
        ("#\ta\t( nott b )", 7, "expected one of a b c d e f and or not ( ), got 'nott' (nearest known: 'not')"),
        ("<\ta\tb", 1, "expected '#', the relation of the sentences, got '<'; correct one of them"),
    ],
)
def test_a_malformed_line_says_where_and_what(line: str, column: int, problem: str) -> None:
    with pytest.raises(ReadError) as raised:
        list(read_lrt(["#\ta\tb", line], check=True))
    assert str(raised.value) == f"lines, line 2, column {column}: {problem}"


def test_the_relation_of_a_line_is_taken_as_it_is_without_check() -> None:
    assert [pair.relation for pair in read_lrt(["<\ta\tb"])] == ["<"]


def test_bad_lines_go_to_on_bad_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train0"
    path.write_bytes(b"#\ta\tb\n<\ta\tb\n#\t\xe9\ta\n=\tc\tc")
    bad: list[ReadError] = []
    assert [pair.relation for pair in read_lrt(path, bad.append, check=True)] == ["#", "="]
    assert [(error.source, error.line, error.column) for error in bad] == [(str(path), 2, 1), (str(path), 3, 3)]


@given(
    st.text() | st.text("ab()\t#= ") | st.lists(st.sampled_from(["#", "\t", "(", ")", "a", "not", "and"])).map(" ".join)
)
def test_any_text_is_read_or_gives_a_read_error(text: str) -> None:
    bad: list[ReadError] = []
    lines = text.split("\n")
    read = list(read_lrt(lines, bad.append, check=True))
    assert len(read) + len(bad) == sum(1 for line in lines if line.strip())


# --- generating ---


def shares(pairs: Iterable[Pair]) -> tuple[list[float], list[float], int]:
    bins: Counter[int] = Counter()
    relations: Counter[str] = Counter()
    for pair in pairs:
        bins[pair.operators] += 1
        relations[pair.relation] += 1
    total = bins.total()
    assert set(bins) == set(range(13))
    return [bins[size] / total for size in range(13)], [relations[name] / total for name in RELATIONS], total


@pytest.mark.parametrize(("keep_larger", "tolerance"), [(False, 0.015), (True, 0.005)])
def test_half_a_million_draws_have_the_shares_of_the_originals(keep_larger: bool, tolerance: float) -> None:
    bins, relations, total = shares(generate(500_000, seed=0, keep_larger=keep_larger))
    assert bins == pytest.approx([count / sum(BINS) for count in BINS], abs=tolerance)
    # Half a point is more than three standard errors of the difference, even for #.
    assert relations == pytest.approx([COUNTS[name] / sum(BINS) for name in RELATIONS], abs=0.005)
    assert total == pytest.approx(sum(BINS) / 0.85, rel=0.01)  # the original training files are 85 %


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return list(generate(6000, seed=1))


def test_generated_pairs_are_distinct_and_are_what_they_say(pairs: list[Pair]) -> None:
    assert len({(pair.left, pair.right) for pair in pairs}) == len(pairs)
    for pair in pairs:
        size = max(operators(pair.left), operators(pair.right))
        assert pair.operators == size <= 12
        assert (
            len({node.label for tree in (pair.left, pair.right) for node in tree.preorder() if not node.children}) <= 4
        )
        assert worlds(pair.left) not in (0, (1 << 64) - 1)
        assert worlds(pair.right) not in (0, (1 << 64) - 1)
    for pair in pairs[:1000]:
        assert pair.relation == relation_of_sets(true_worlds(pair.left), true_worlds(pair.right))


def test_larger_pairs_are_kept_in_the_last_bin_when_asked_for() -> None:
    larger = [pair for pair in generate(6000, seed=1, keep_larger=True) if operators(pair.left) > 12]
    assert larger
    assert {pair.operators for pair in larger} == {12}


def test_the_same_seed_gives_the_same_pairs_in_every_process(pairs: list[Pair]) -> None:
    text = "\n".join(f"{pair.left} {pair.relation} {pair.right}" for pair in pairs)
    # Fixed, since hash() differs from one process to the next.
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == "50e4d8698448ee87"
    assert list(generate(1000, seed=1)) == pairs[: len(list(generate(1000, seed=1)))]
    assert list(generate(1000, seed=2)) != list(generate(1000, seed=1))


def test_progress_is_told_every_thousand_draws_and_at_the_end() -> None:
    told: list[int] = []
    assert len(list(generate(2500, progress=told.append))) < 2500  # distinct pairs
    assert told == [1000, 2000, 2500]


def test_a_bad_number_of_draws_or_seed_is_refused_before_the_first_pair() -> None:
    with pytest.raises(ConfigurationError, match=r"lrt\.generate expects draws to be an integer >= 1, got 0"):
        generate(0)
    with pytest.raises(ConfigurationError, match=r"lrt\.generate expects seed to be an integer >= 0, got 1\.5"):
        generate(1, seed=1.5)  # type: ignore[arg-type]


# --- splitting ---


def test_training_has_small_pairs_only_and_validation_and_test_have_all_sizes() -> None:
    sizes = np.repeat(np.arange(13), 200)
    train, validation, test = split(sizes, seed=3)
    assert np.bincount(sizes[train]).tolist() == [153] * 5  # 200 less 30 less a tenth of 170
    assert np.bincount(sizes[validation]).tolist() == [17] * 13
    assert np.bincount(sizes[test]).tolist() == [30] * 13


def test_the_shares_and_the_bound_of_a_split_can_be_chosen_and_13_counts_as_12() -> None:
    train, validation, test = split([12, 13] * 50, train_operators=12, test_share=0.5, validation_share=0.0)
    assert [len(train), len(validation), len(test)] == [50, 0, 50]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 15), min_size=1, max_size=300), st.integers(0, 5))
def test_no_pair_is_in_two_parts_of_a_split(sizes: list[int], seed: int) -> None:
    parts = split(sizes, seed)
    chosen = np.concatenate(parts)
    assert len(np.unique(chosen)) == len(chosen)
    assert all((part == again).all() for part, again in zip(parts, split(sizes, seed), strict=True))


def test_no_generated_pair_of_validation_or_test_stands_in_train(pairs: list[Pair]) -> None:
    parts = split([pair.operators for pair in pairs])
    train, validation, test = ({(pairs[row].left, pairs[row].right) for row in part} for part in parts)
    assert train
    assert not train & validation
    assert not train & test
    assert not validation & test


def test_pairs_in_the_number_of_the_originals_train_as_many_as_in_the_paper() -> None:
    sizes = np.repeat(np.arange(13), BINS)
    train, validation, _ = split(sizes, test_share=0.0)
    assert len(train) + (sizes[validation] <= 4).sum() == 68_425


@pytest.mark.parametrize("bad", [[], [[1, 2]], [0.5], ["a"]])
def test_operators_that_are_no_flat_whole_numbers_are_refused(bad: list[int]) -> None:
    with pytest.raises(ShapeError, match=r"expects the operators of the pairs as a flat array of whole numbers"):
        split(bad)


def test_a_share_that_is_none_is_refused() -> None:
    message = "lrt.split expects 0 <= test_share < 1, got 1.0; the paper has 0.15 and 0.1."
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        split([1, 2], test_share=1.0)
