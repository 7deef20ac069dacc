from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treefold.data.readers import read_penn, read_sexpr, records_penn, records_sexpr
from treefold.data.readers.brackets import penn_tree
from treefold.errors import ParseError, ReadError
from treefold.trees.tree import Tree

LABELS = st.text(st.sampled_from('ab()[]"\\ \n\t_#;é'), max_size=5)
TREES = st.recursive(
    st.builds(Tree, LABELS | st.lists(st.floats(-9, 9), min_size=1, max_size=3)),
    lambda inner: st.builds(Tree, LABELS, st.lists(st.none() | inner, max_size=4)),
    max_leaves=12,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "trees.txt"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def read(folder: Path, text: str) -> tuple[list[str], list[str]]:
    """Return the trees, and the errors without the name of the file."""
    told: list[ReadError] = []
    path = write(folder, text)
    trees = [str(tree) for tree in read_sexpr(path, on_bad=told.append)]
    return trees, [str(error).removeprefix(f"{path}, ") for error in told]


def test_trees_stand_several_on_a_line_or_over_several_lines(tmp_path: Path) -> None:
    text = '(a b)(c)  (d\n  (e f)\n) (g)\nh\n"two words"\n[1 2]\n'
    records = list(records_sexpr(write(tmp_path, text)))
    assert [(str(record.trees[0]), record.line) for record in records] == [
        ("(a b)", 1),
        ("c", 1),
        ("(d (e f))", 1),
        ("g", 3),
        ("h", 4),
        ('"two words"', 5),
        ("[1.0 2.0]", 6),
    ]


def test_comments_and_blank_lines_are_skipped_between_trees_only(tmp_path: Path) -> None:
    assert read(tmp_path, "# one\n\n  ; two\n(a\n# b\n; c)\n#d\n") == (["(a # b ; c)"], [])


def test_brackets_in_quotes_and_vectors_do_not_count(tmp_path: Path) -> None:
    text = '(a ")" "\\")" [1\n2] "x\n(y")\n(b a[( c))\n'
    assert read(tmp_path, text) == (['(a ")" "\\")" [1.0 2.0] "x\\n(y")', "(b a[ c)"], [])


@given(trees=st.lists(TREES, min_size=1, max_size=4), gap=st.sampled_from(["\n", "\n\n# c\n"]))
def test_what_trees_write_is_read_back(trees: list[Tree], gap: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    # A label that begins with # or ; would be a comment, if it stood alone.
    trees = [Tree("root", [tree]) for tree in trees]
    path = write(tmp_path_factory.mktemp("trees"), gap.join(map(str, trees)))
    assert list(read_sexpr(path)) == trees


@given(tree=TREES, seed=st.randoms())
def test_a_tree_may_break_its_line_at_any_blank(
    tree: Tree, seed: Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = Tree("root", [tree, tree])
    text = "".join("\n" if piece == " " and seed.random() < 0.5 else piece for piece in tree._pieces())
    assert list(read_sexpr(write(tmp_path_factory.mktemp("trees"), text + "\n(z)"))) == [tree, Tree("z")]


@pytest.mark.parametrize(
    ("text", "trees", "errors"),
    [
        (
            "(a)\n  (b (\n    _ x))\n(c)",
            ["a", "c"],
            ["line 3, column 5: expected a label after '(', got '_'; write \"\" for an empty label"],
        ),
        (
            "(a) (b ()) (c)",
            ["a", "c"],
            ["line 1, column 9: expected a label after '(', got ')'; write \"\" for an empty label"],
        ),
        ("(a)) (b)\n(c)", ["a", "c"], ["line 1, column 4: expected a tree, got ')' that closes nothing; remove it"]),
        (
            "two words\n(c)",
            ["c"],
            [
                "line 1, column 1: expected brackets, or a label alone on its line, got 'two' among others; "
                "write (label child …), or put a label with blanks in quotes"
            ],
        ),
        (
            '"two\nwords"\n(c)',
            ["c"],
            [
                "line 1, column 1: expected '\"' to be closed in its line, got the end of the line; close it",
                "line 2, column 1: expected brackets, or a label alone on its line, got 'words' among others; "
                "write (label child …), or put a label with blanks in quotes",
            ],
        ),
        (
            "_\n(c)",
            ["c"],
            ['line 1, column 1: expected a tree, got the absent child _ alone; write "_" in quotes if it is a label'],
        ),
        (
            "(c)\n (a (b\n",
            ["c"],
            ["line 2, column 2: expected ')' to close this tree, got the end of the file; close it"],
        ),
        (
            '(c)\n(a "b\n',
            ["c"],
            ["line 2, column 1: expected '\"' to close a quoted label, got the end of the file; close it"],
        ),
        (
            "(c)\n(a [1\n",
            ["c"],
            ["line 2, column 1: expected ']' to close a vector, got the end of the file; close it"],
        ),
    ],
)
def test_a_malformed_tree_is_reported_where_it_stands_and_costs_no_other(
    text: str, trees: list[str], errors: list[str], tmp_path: Path
) -> None:
    assert read(tmp_path, text) == (trees, errors)
    with pytest.raises(ReadError) as caught:
        list(read_sexpr(tmp_path / "trees.txt"))
    assert str(caught.value) == f"{tmp_path / 'trees.txt'}, {errors[0]}"


def test_after_a_tree_that_is_never_closed_reading_goes_on_at_brackets_in_the_first_column(tmp_path: Path) -> None:
    trees, errors = read(tmp_path, "(a)\n(b (c)\n(d\n  e)\n(f\n(g)\n")
    assert trees == ["a", "(d e)", "g"]
    assert errors == [
        "line 2, column 1: expected ')' to close this tree, got the end of the file; close it",
        "line 5, column 1: expected ')' to close this tree, got the next tree in line 6; close it",
    ]


def test_many_trees_that_are_never_closed_take_linear_time(tmp_path: Path) -> None:
    trees, errors = read(tmp_path, "(a (b)\n" * 20_000)
    assert (len(trees), len(errors)) == (0, 20_000)


def test_bytes_that_are_not_utf8_cost_only_their_own_tree(tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    path.write_bytes(b"(a)\n(b\n \xe9)\n(c)\n")
    told: list[ReadError] = []
    assert [str(tree) for tree in read_sexpr(path, on_bad=told.append)] == ["a", "c"]
    assert [str(error) for error in told] == [
        f"{path}, line 3, column 2: expected UTF-8, got the byte 0xe9; "
        f"convert the file, for example with `iconv -f LATIN1 -t UTF-8`"
    ]


@pytest.mark.parametrize("reader", [read_sexpr, read_penn])
def test_a_hundred_thousand_levels_are_read(reader: Callable[[Path], Iterator[Tree]], tmp_path: Path) -> None:
    (tree,) = reader(write(tmp_path, "(a\n" * 100_000 + "b" + ")" * 100_000))
    assert (tree.size, tree.depth) == (100_001, 100_000)


def test_utf16_is_named_in_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    path.write_bytes("(a)".encode("utf-16"))
    with pytest.raises(ReadError, match=r"expected UTF-8, got the byte 0xff; convert the file, .* `iconv -f UTF-16"):
        list(read_sexpr(path))


def test_a_file_streams(tmp_path: Path) -> None:
    path = write(tmp_path, "(a)\n(b)\n)\n")
    records = records_sexpr(path)
    assert [str(next(records).trees[0]) for _ in range(2)] == ["a", "b"]  # the error of line 3 is still to come
    with pytest.raises(ReadError):
        next(records)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("( (S (NP (DT The) (NN cat)) (VP sat)) )", "(S (NP (DT The) (NN cat)) (VP sat))"),
        ("((S a))", "(S a)"),
        ("( (S a) (S b) )", "(ROOT (S a) (S b))"),
        ("(S (-LRB- -LRB-) (`` ``) ('' \"))", '(S (-LRB- -LRB-) (`` ``) (\'\' "\\""))'),
        ("(S (NP _) ([ [) (, ,))", '(S (NP "_") ("[" "[") (, ,))'),
        ("(3 (2 It) (4 works))", "(3 (2 It) (4 works))"),
        ("(X)", "X"),
    ],
)
def test_penn_brackets_become_trees(text: str, tree: str, tmp_path: Path) -> None:
    assert str(penn_tree(text)) == tree
    assert [str(read) for read in read_penn(write(tmp_path, f"{text}\n{text}"))] == [tree, tree]


def test_penn_trees_over_several_lines_keep_their_line(tmp_path: Path) -> None:
    text = "( (S\n    (NP x)\n    (VP y)) )\n\n( (S (NP z)) )\n"
    assert [(str(record.trees[0]), record.line) for record in records_penn(write(tmp_path, text))] == [
        ("(S (NP x) (VP y))", 1),
        ("(S (NP z))", 5),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("(S (NP ()))", "line 1, column 9: expected a label in brackets, got (); write (label word)"),
        ("word\n", "line 1, column 1: expected '(' to begin a tree, got 'word'; write (label word)"),
        ("(S x))", "line 1, column 6: expected a tree, got ')' that closes nothing; remove it"),
        ("(S (NP x)", "line 1, column 1: expected ')' to close this tree, got the end of the file; close it"),
    ],
)
def test_malformed_penn_brackets_are_errors(text: str, error: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ReadError) as caught:
        list(read_penn(path))
    assert str(caught.value) == f"{path}, {error}"


@pytest.mark.parametrize("text", ["", "(S (NP x)", "word", "(S x) (S y)"])
def test_penn_text_that_is_not_one_tree_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match=r"expected .*, got .*; "):
        penn_tree(text)
