import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from examples import metamath
from examples.metamath import Statement, load_metamath, parse_metamath, split_by_block, swap_task
from hypothesis import given, settings
from hypothesis import strategies as st

from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, ReadError
from treefold.trees.tree import Tree

HEADER = """
$( A little of set.mm; a comment may hold $[ an include $] and $. a full stop. $)
$c ( ) -> -. = e. A. |-> wff class setvar |- $.
$v ph ps x y A B F $.
wph $f wff ph $.  wps $f wff ps $.
wn $a wff -. ph $.
wi $a wff ( ph -> ps ) $.
vx $f setvar x $.  vy $f setvar y $.  cA $f class A $.  cB $f class B $.  cF $f class F $.
cv $a class x $.
wal $a wff A. x ph $.
wceq $a wff A = B $.
wcel $a wff A e. B $.
wral $a wff A. x e. A ph $.
wbr $a wff A F B $.
co $a class ( A F B ) $.
cmpt $a class ( x e. A |-> B ) $.
"""
# The patterns of the axioms above, a typecode where a variable stands.
PATTERNS = {
    "wn": ["-.", "wff"],
    "wi": ["(", "wff", "->", "wff", ")"],
    "cv": ["setvar"],
    "wal": ["A.", "setvar", "wff"],
    "wceq": ["class", "=", "class"],
    "wcel": ["class", "e.", "class"],
    "wral": ["A.", "setvar", "e.", "class", "wff"],
    "wbr": ["class", "class", "class"],
    "co": ["(", "class", "class", "class", ")"],
    "cmpt": ["(", "setvar", "e.", "class", "|->", "class", ")"],
}
TYPES = {"w": "wff", "c": "class"}
VARIABLES = {"wff": ["ph", "ps"], "class": ["A", "B", "F"], "setvar": ["x", "y"]}
TYPECODES = {name: TYPES[name[0]] for name in PATTERNS} | {v: t for t, names in VARIABLES.items() for v in names}


def parse_one(formula: str, **options: str) -> Tree:
    (statement,) = parse_metamath(f"{HEADER} it $a |- {formula} $.", **options)  # type: ignore[arg-type]
    return statement.tree


def printed(tree: Tree, patterns: dict[str, list[str]]) -> str:
    """Write a syntax tree as symbols: the oracle of the parser."""
    words: list[str] = []
    stack: list[Tree | str | None] = [tree]
    while stack:
        item = stack.pop()
        if not isinstance(item, Tree):
            words.append(str(item))
        elif not (pattern := patterns.get(str(item.label))):
            words.append(str(item.label))
        else:
            children = list(item.children)
            stack.extend(children.pop() if symbol in VARIABLES else symbol for symbol in reversed(pattern))
    return " ".join(words)


@pytest.mark.parametrize(
    ("formula", "tree"),
    [
        ("ph", "ph"),
        ("( ph -> ( ps -> ph ) )", "(wi ph (wi ps ph))"),
        ("A. x -. ph", "(wal x (wn ph))"),
        ("A. x e. A ph", "(wral x A ph)"),
        ("A. x x e. A", "(wal x (wcel (cv x) A))"),
        ("A. x e. A x = B", "(wral x A (wceq (cv x) B))"),
        ("( x e. A -> ph )", "(wi (wcel (cv x) A) ph)"),
        ("( x e. A |-> B ) = F", "(wceq (cmpt x A B) F)"),
        ("( x F y ) = x", "(wceq (co (cv x) F (cv y)) (cv x))"),
        ("A F B", "(wbr A F B)"),
        ("x x ( A F B )", "(wbr (cv x) (cv x) (co A F B))"),
    ],
)
def test_a_formula_is_the_tree_of_its_syntax_axioms(formula: str, tree: str) -> None:
    assert str(parse_one(formula)) == tree


def test_leaves_can_be_typecodes() -> None:
    assert str(parse_one("A. x e. A ph", variables="typecode")) == "(wral setvar class wff)"


def test_axioms_and_theorems_are_read_and_hypotheses_proofs_and_derived_syntax_are_not() -> None:
    text = f"""{HEADER}
    ${{ min $e |- ph $. maj $e |- ( ph -> ps ) $.  $d x A $.
       ax-mp $a |- ps $. $}}
    weq $p wff x = y $= vx cv vy cv wceq $.
    th $p |- $( within $) x = y $= ( weq $( a comment $. in a proof $) ) ABC $.
    """
    assert [(s.name, str(s.tree), s.text) for s in parse_metamath(text)] == [
        ("ax-mp", "ps", "|- ps"),
        ("th", "(wceq (cv x) (cv y))", "|- x = y"),
    ]


def test_a_left_recursive_grammar_is_read() -> None:
    text = """$v a b $. ta $f wff a $. tb $f wff b $. wo $a wff a + b ; $. wp $a wff a ! $.
    it $a |- a ! ! + b ; ! $."""
    (statement,) = parse_metamath(text)
    assert str(statement.tree) == "(wp (wo (wp (wp a)) b))"


def test_a_formula_of_depth_ten_thousand_is_read() -> None:
    assert parse_one("-. " * 10_000 + "ph").depth == 10_000
    assert parse_one("( ph -> " * 10_000 + "ph" + " )" * 10_000).depth == 10_000


def formulas() -> st.SearchStrategy[Tree]:
    classes = st.deferred(lambda: class_trees)
    setvars = st.sampled_from(VARIABLES["setvar"]).map(Tree)
    formula = st.deferred(lambda: formula_trees)

    def node(label: str, *children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        return st.tuples(*children).map(lambda parts: Tree(label, parts))

    class_trees = (
        st.sampled_from(VARIABLES["class"]).map(Tree)
        | node("cv", setvars)
        | node("co", classes, classes, classes)
        | node("cmpt", setvars, classes, classes)
    )
    formula_trees = (
        st.sampled_from(VARIABLES["wff"]).map(Tree)
        | node("wn", formula)
        | node("wi", formula, formula)
        | node("wal", setvars, formula)
        | node("wceq", classes, classes)
        | node("wbr", classes, classes, classes)
        | node("wral", setvars, classes, formula)
    )
    return formula_trees


@settings(deadline=None)
@given(formulas())
def test_a_printed_formula_is_read_back(tree: Tree) -> None:
    assert parse_one(printed(tree, PATTERNS)) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$[ other.mm $]", "text, line 1: expected a single file, got an include $[; join the files first"),
        ("\n$( never closed", "text, line 2: expected $) to close the comment $(, got none; add $)"),
        ("a $p |- x $= ABC", "text, line 1: expected $. to close the proof $=, got none; add $."),
        ("${ $c a $.", "text, line 1: expected $} to close the scope ${, got the end of the file; add $}"),
        ("$}", "text, line 1: expected a statement, got '$}'; remove it"),
        ("a b $a |- x $.", "text, line 1: expected $f, $e, $a or $p after the label 'a', got 'b'; remove one"),
        ("a $a |- x", "text, line 1: expected $. to close 'a $a', got the end of the file; add $."),
        ("a $a |- x b $a |- y $.", "text, line 1: expected $. to close $a, got '$a'; add $."),
        ("$a |- x $.", "text, line 1: expected `label $a typecode symbols $.`, got no label before $a; complete it"),
        ("a $a $.", "text, line 1: expected `label $a typecode symbols $.`, got 'a $a $.'; complete it"),
        ("a $f wff $.", "text, line 1: a: expected one variable after the typecode 'wff', got ''; write `$f wff x $.`"),
        (
            "w $a wff $.",
            "text, line 1: w: expected symbols after the typecode 'wff', got none; empty syntax is not supported",
        ),
        (
            "$v p $. w $a wff - p $.",
            "text, line 1: w: expected a typecode for the variable 'p', got none; declare it with $f",
        ),
        (
            "${ a $f wff p $. $} b $f class p $.",
            "text, line 1: b: expected the typecode 'wff' for 'p' as before, got 'class'; rename the variable in one of the "
            "scopes",
        ),
        (
            f"{HEADER}\nbad $p |- ( ph -> -> ps ) $= ? $.",
            "text, line 18: bad: expected a wff by the syntax axioms declared before, got '->' as symbol 4, after '( ph ->'; "
            "check the formula, or declare its syntax",
        ),
        (
            f"{HEADER}\nbad $p |- ( ph -> ps $= ? $.",
            "text, line 18: bad: expected a whole wff, got the end after '( ph -> ps'; complete it",
        ),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ReadError) as caught:
        list(parse_metamath(text))
    assert str(caught.value) == message


def test_limit_and_progress_and_path(tmp_path: Path) -> None:
    file = tmp_path / "many.mm"
    file.write_text(HEADER + "".join(f"th{number} $a |- ph $.\n" for number in range(2500)), encoding="utf-8")
    assert [statement.name for statement in load_metamath(file, limit=2)] == ["th0", "th1"]
    assert list(load_metamath(file, limit=0)) == []
    told: list[int] = []
    assert len(list(load_metamath(file, progress=told.append))) == 2500
    assert told == [1000, 2000]
    with pytest.raises(ConfigurationError, match="expects limit >= 0, got -1; leave it out"):
        load_metamath(file, limit=-1)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ReadError, match=r"expected text, got .*; Metamath files are ASCII"):
        load_metamath(file)


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(metamath, "STANDARD_PATH", tmp_path / "set.mm")
    with pytest.raises(
        ConfigurationError, match=r"got no file at .*; install it with `apt-get install metamath-databases`"
    ):
        load_metamath()


def test_an_unknown_choice_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="variables to be one of 'name', 'typecode', got 'types'"):
        parse_metamath("", variables="types")  # type: ignore[arg-type]


def statement(tree: Tree) -> Statement:
    return Statement("th", tree, "", TYPECODES)


def all_swaps(tree: Tree) -> Iterator[Tree]:
    """All trees that differ from the given one by one swap of children of one typecode: the plainest recursion."""
    for left, right in combinations(range(len(tree.children)), 2):
        children = list(tree.children)
        first, second = children[left], children[right]
        assert first is not None and second is not None
        if TYPECODES[str(first.label)] == TYPECODES[str(second.label)] and first != second:
            children[left], children[right] = second, first
            yield Tree(tree.label, children)
    for slot, child in enumerate(tree.children):
        assert child is not None
        for swapped in all_swaps(child):
            yield Tree(tree.label, [*tree.children[:slot], swapped, *tree.children[slot + 1 :]])


@settings(deadline=None, max_examples=50)
@given(st.lists(formulas(), max_size=12), st.integers(0, 10))
def test_half_of_the_trees_differ_by_one_swap_and_none_occurs_twice(trees: list[Tree], seed: int) -> None:
    found, labels = swap_task(map(statement, trees), seed)
    assert labels.count("swapped") == len(labels) // 2
    assert len(set(found)) == len(found)
    for tree, label in zip(found, labels, strict=True):
        assert (label == "original") == (tree in trees)
        if label == "swapped":
            assert any(tree in all_swaps(original) for original in trees)
    assert (found, labels) == swap_task(map(statement, trees), seed)


def test_every_possible_swap_is_drawn_and_no_other() -> None:
    tree = Tree.parse("(wi (wral x A ph) (wi (wbr A B F) (wceq B B)))")
    filler = Tree.parse("(wi ph ps)")
    drawn = set()
    for seed in range(300):
        found, labels = swap_task([statement(tree), statement(filler)], seed)
        drawn.update(found[:1] if labels[0] == "swapped" else [])
    assert drawn == set(all_swaps(tree))
    assert len(drawn) == 5


def test_a_swap_that_is_another_statement_is_avoided() -> None:
    trees = [
        Tree.parse("(wi ph ps)"),
        Tree.parse("(wi ps ph)"),
        Tree.parse("(wn (wi ph ps))"),
        Tree.parse("(wceq A B)"),
    ]
    for seed in range(20):
        found, _ = swap_task(map(statement, trees), seed)
        assert len(found) == 2  # the first two could only become each other


def test_the_task_of_a_seed_is_the_same_everywhere() -> None:
    trees = [Tree.parse(f"(wbr {a} {b} (co A {a} {b}))") for a in "AB" for b in "BF"]
    found, labels = swap_task(map(statement, trees), seed=7)
    assert labels == ["original", "swapped", "original", "swapped"]
    assert [str(tree) for tree in found] == [
        "(wbr A B (co A A B))",
        "(wbr A F (co F A A))",
        "(wbr B B (co A B B))",
        "(wbr B F (co B A F))",
    ]


@given(st.integers(0, 200), st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)))
def test_blocks_are_contiguous_and_of_the_wanted_size(n: int, weights: tuple[int, int, int]) -> None:
    train, validation, test = (weight / sum(weights) for weight in weights)
    blocks = split_by_block(n, (train, validation, test))
    assert np.concatenate(blocks).tolist() == list(range(n))
    for block, fraction in zip(blocks, (train, validation, test), strict=True):
        assert abs(len(block) - fraction * n) <= 1 + 1e-6


def test_blocks_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expects n >= 0, got -1"):
        split_by_block(-1)
    with pytest.raises(ConfigurationError, match=r"add up to 1, got \(0.5, 0.5, 0.5\)"):
        split_by_block(10, (0.5, 0.5, 0.5))


@pytest.mark.skipif(
    not metamath.STANDARD_PATH.is_file(), reason="SET.MM IS NOT TESTED: run `apt-get install metamath-databases`"
)
def test_all_of_set_mm_is_read_and_printed_back() -> None:
    text = metamath.STANDARD_PATH.read_text(encoding="utf-8")
    plain = re.sub(r"\$\(\s.*?\s\$\)|\$=[^$]*", " ", text, flags=re.DOTALL)
    types = {variable: typecode for typecode, variable in re.findall(r"\$f\s+(\S+)\s+(\S+)\s+\$\.", plain)}
    patterns = {
        label: [types.get(symbol, symbol) for symbol in pattern.split()]
        for label, pattern in re.findall(r"(\S+)\s+\$a\s+(?:wff|class)\s+([^$]*?)\s+\$\.", plain)
    }
    statements = list(load_metamath())
    assert len(statements) == len(re.findall(r"\$[ap]\s+\|-\s", plain))
    assert len(statements) > 39_000
    assert all(one.text == f"|- {printed(one.tree, patterns)}" for one in statements)
    trees, labels = swap_task(statements, seed=0)
    assert labels.count("swapped") == labels.count("original") == len(trees) // 2
    assert len(trees) > 34_000
    assert not {tree for tree, label in zip(trees, labels, strict=True) if label == "swapped"} & {
        s.tree for s in statements
    }


def test_the_program_makes_a_data_set_and_refuses_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "small.mm", tmp_path / "data"
    axioms = [f"ax-{number} $a |- ( {'-. ' * number}ph -> ps ) $." for number in range(20)]
    file.write_text(HEADER + "\n".join(axioms))
    assert metamath.main([str(file), "--out", str(out), "--limit", "10", "--seed", "3"]) == 0
    data = Dataset.open(out)
    assert data.classes == ("original", "swapped") and data.made == {"task": "metamath", "seed": 3, "limit": 10}
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 8, "validation": 1, "test": 1}
    assert metamath.main([str(file), "--out", str(out)]) == 2
    assert "expected a name that is free" in capsys.readouterr().err
    assert metamath.main([str(tmp_path / "absent"), "--out", str(tmp_path / "other")]) == 2
    assert "expects a Metamath file, got no file" in capsys.readouterr().err


def test_the_program_runs_as_a_file() -> None:
    run = [sys.executable, str(Path(metamath.__file__)), "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--limit" in done.stdout and done.stderr == ""
