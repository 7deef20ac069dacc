import csv
import importlib.util
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from examples import glycans
from examples.glycans import GlycanRecord, load_glycans, parse_glycan, split_by_publication
from hypothesis import given, settings
from hypothesis import strategies as st

from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, ParseError, ReadError
from treefold.trees.tree import Tree

COLUMNS = ("glycan", "Species", "Kingdom", "Domain", "ref")
LEWIS_X = "Neu5Ac(a2-3)Gal(b1-4)[Fuc(a1-3)]GlcNAc(b1-2)Man"
ROWS = [
    (LEWIS_X, "Homo_sapiens", "Animalia", "Eukarya", "https://example.org/2/"),
    ("Glc", "undetermined", "Bacteria", "Bacteria", "gwb"),
    (LEWIS_X, "Mus_musculus", "Metazoa", "Eukaryota", "https://example.org/1"),
    (LEWIS_X, "undetermined", "Riboviria", "Virus", ""),
    ("{Fuc(a1-3)}Gal(b1-4)Glc", "Bos_taurus", "Animalia", "Eukarya", "10.1000/abc"),
]


def write_table(file: Path, rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8-sig", newline="") as lines:
        csv.writer(lines).writerows([columns, *rows])
    return file


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("Glc", "Glc"),
        ("Gal(b1-4)Glc-ol", '(Glc-ol "Gal(b1-4)")'),
        (LEWIS_X, '(Man ("GlcNAc(b1-2)" ("Gal(b1-4)" "Neu5Ac(a2-3)") "Fuc(a1-3)"))'),
        ("[GlcA(b1-3)]GalA(a1-2)Rha", '(Rha ("GalA(a1-2)" "GlcA(b1-3)"))'),
        ("A(a1-2)[B(b1-3)][C(?1-?)]D", '(D "A(a1-2)" "B(b1-3)" "C(?1-?)")'),
        ("A(a1-2)[B(b1-3)[C(a1-4)]D(a1-3/6)]E", '(E "A(a1-2)" ("D(a1-3/6)" "B(b1-3)" "C(a1-4)"))'),
        ("GlcN(b1-6)2,7-Anhydro-Kdo", '("2,7-Anhydro-Kdo" "GlcN(b1-6)")'),
        (
            "{X(a1-2)[Y(a1-3)]Z(a2-3)}{V(a2-6)}A(b1-4)B",
            '(B "A(b1-4)" ({} ("Z(a2-3)" "X(a1-2)" "Y(a1-3)")) ({} "V(a2-6)"))',
        ),
    ],
)
def test_a_glycan_is_the_tree_that_hangs_on_its_reducing_end(text: str, tree: str) -> None:
    assert parse_glycan(text) == Tree.parse(tree)


def test_the_linkage_is_part_of_the_label_or_a_node_or_dropped() -> None:
    text = "{Fuc(a1-6)}Neu5Ac(a2-3)Gal(b1-4)Glc"
    assert str(parse_glycan(text, linkage="node")) == "(Glc (b1-4 (Gal (a2-3 Neu5Ac))) ({} (a1-6 Fuc)))"
    assert str(parse_glycan(text, linkage="drop")) == "(Glc (Gal Neu5Ac) ({} Fuc))"
    with pytest.raises(ConfigurationError, match="linkage to be one of 'label', 'node', 'drop', got 'nodes'"):
        parse_glycan(text, linkage="nodes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "expected a last residue without linkage, the reducing end, got the end"),
        ("Gal(b1-4)", 10, "expected a last residue without linkage, the reducing end, got the end"),
        ("Gal[Fuc(a1-3)]Glc", 4, r"expected a linkage such as (b1-4) after a residue that is not the last, got '['"),
        ("Gal(b1-4Glc", 4, "expected a linkage such as (b1-4) after a residue that is not the last, got '('"),
        ("(b1-4)Glc", 1, "expected a residue or a bracket, got '('"),
        ("Gal(b1-4) Glc", 10, "expected a residue or a bracket, got ' '"),
        ("Gal(b1-4)]Glc", 10, "expected a residue, got ']'; balance the brackets"),
        ("[Gal(b1-4)}Glc", 11, "expected ']', got '}'; balance the brackets"),
        ("[Gal(b1-4)Glc", 14, "expected ']' to close '[' of column 1, got the end; balance the brackets"),
        ("{Gal(b1-4)", 11, "expected '}' to close '{' of column 1, got the end; balance the brackets"),
        ("[]Glc", 2, "expected a residue with its linkage before ']', got '['"),
        ("[[Gal(b1-4)]]Glc", 13, "expected a residue with its linkage before ']', got ']'"),
        ("[Gal(b1-4)[Fuc(a1-3)]]Glc", 22, "expected a residue with its linkage before ']', got ']'"),
        ("Gal(b1-4){Fuc(a1-3)}Glc", 10, "expected floating parts first, got '{' later; move it to the front"),
        ("{{Fuc(a1-3)}}Glc", 2, "expected floating parts first, got '{' later; move it to the front"),
    ],
)
def test_a_malformed_glycan_is_refused_at_its_place(text: str, column: int, problem: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_glycan(text)
    assert caught.value.column == column
    assert caught.value.problem.startswith(problem)


def test_a_floating_part_can_be_refused() -> None:
    with pytest.raises(ParseError, match="got a floating part; take it with floating='attach'"):
        parse_glycan("{Fuc(a1-3)}Glc", floating="refuse")


def test_a_chain_of_a_hundred_thousand_residues_is_read() -> None:
    assert parse_glycan("Glc(a1-4)" * 100_000 + "Glc").depth == 100_000
    assert parse_glycan("[" * 50_000 + "Gal(b1-3)" + "]Glc(a1-4)" * 50_000 + "Glc").depth == 50_001


residues = st.builds(
    "{}({})".format, st.sampled_from(["Gal", "D-Fuc", "2,7-Anhydro-Kdo"]), st.sampled_from(["b1-4", "?1-?"])
)
linked = st.recursive(
    residues.map(Tree),
    lambda children: st.builds(Tree, residues, st.lists(children, min_size=1, max_size=3)),
    max_leaves=20,
)
trees = st.builds(Tree, st.sampled_from(["Glc", "GlcNAc-ol"]), st.lists(linked, max_size=3))


def printed(tree: Tree, *, bare_first: bool) -> str:
    """Write a tree as a glycan; the first branch with or without brackets."""
    branches = [printed(child, bare_first=bare_first) for child in tree.children if child is not None]
    bare = branches[0] if branches and bare_first else ""
    return bare + "".join(f"[{branch}]" for branch in branches[bare_first:]) + str(tree.label)


@settings(deadline=None)
@given(trees, st.booleans())
def test_a_printed_glycan_is_read_back(tree: Tree, bare_first: bool) -> None:
    text = printed(tree, bare_first=bare_first)
    assert parse_glycan(text) == tree
    assert parse_glycan(text, linkage="drop") == tree.map(lambda label: str(label).split("(")[0])
    assert parse_glycan(text, linkage="node").size == 2 * tree.size - 1


def test_a_glycan_gathers_the_organisms_and_publications_of_all_its_rows(tmp_path: Path) -> None:
    file = write_table(tmp_path / "any.csv", ROWS)
    assert load_glycans(file) == [
        GlycanRecord(
            parse_glycan(LEWIS_X),
            LEWIS_X,
            ("Animalia", "Riboviria"),
            ("https://example.org/1", "https://example.org/2/"),
        ),
        GlycanRecord(Tree("Glc"), "Glc", ("Bacteria",), ()),
        GlycanRecord(Tree.parse('(Glc "Gal(b1-4)" ({} "Fuc(a1-3)"))'), ROWS[4][0], ("Animalia",), ("10.1000/abc",)),
    ]
    assert [record.labels for record in load_glycans(file, "Species")] == [
        ("Homo_sapiens", "Mus_musculus"),
        (),
        ("Bos_taurus",),
    ]
    assert load_glycans(file, rank="Domain")[0].labels == ("Eukarya", "Virus")


def test_what_cannot_be_read_is_left_out_told_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad_row = ("Gal(b1-4)]Glc", "a", "b", "c", "")
    file = write_table(tmp_path / "any.csv", [*ROWS, bad_row, bad_row])
    told: list[ReadError] = []
    with caplog.at_level(logging.WARNING):
        records = load_glycans(file, floating="refuse", on_bad=told.append)
    assert [record.text for record in records] == [LEWIS_X, "Glc"]
    assert [str(error) for error in told] == [
        f"{file}, line 6: glycan '{ROWS[4][0]}': expected residues with a known place, got a floating part; "
        f"take it with floating='attach'",
        f"{file}, line 7: glycan 'Gal(b1-4)]Glc': expected a residue, got ']'; balance the brackets",
    ]
    assert f"left out 2 of 4 glycans, the first is {ROWS[4][0]}" in caplog.text


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "any.csv"
    with pytest.raises(ReadError, match=r"expected a column 'Kingdom', got .*; give a table of species"):
        load_glycans(write_table(file, [], columns=("glycan", "ref")))
    with pytest.raises(ReadError, match="line 3: expected as many cells as columns, got fewer; correct the row"):
        load_glycans(write_table(file, [ROWS[0], ROWS[1][:3]]))
    file.write_bytes(b"glycan,Kingdom,ref\n\xff,a,b\n")
    with pytest.raises(ReadError, match="expected a csv table in UTF-8, got"):
        load_glycans(file)
    with pytest.raises(ConfigurationError, match=r"rank to be one of .* got 'Kingdon' .nearest known: 'Kingdom'."):
        load_glycans(file, rank="Kingdon")  # type: ignore[arg-type]


def test_the_newest_table_of_the_package_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "stand_in_for_glycowork"
    write_table(package / "data" / "v9_df_species.csv", ROWS)
    write_table(package / "data" / "v12_df_species.csv", ROWS[:2])
    (package / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(glycans, "PACKAGE", package.name)
    assert len(load_glycans()) == len(load_glycans(package)) == 2
    assert package.name not in sys.modules


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"got nothing at .*; unpack or install glycowork"):
        load_glycans(tmp_path)
    monkeypatch.setattr(glycans, "PACKAGE", "no_such_package")
    with pytest.raises(
        ConfigurationError, match="got none installed; install it with `pip install --no-deps no_such_p"
    ):
        load_glycans()


def record(text: str, *publications: str) -> GlycanRecord:
    return GlycanRecord(parse_glycan(text), text, (), tuple(f"https://example.org/{name}" for name in publications))


texts = st.sampled_from(["Glc", "Gal", "A(a1-2)[B(a1-3)]C", "B(a1-3)[A(a1-2)]C", "A(a1-2)C", "B(a1-3)C", "C", "D", "E"])
record_lists = st.lists(
    st.builds(lambda text, names: record(text, *names), texts, st.sets(st.sampled_from("pqrstuvw"), max_size=3))
)


@settings(deadline=None)
@given(record_lists, st.integers(0, 5), st.booleans())
def test_no_publication_and_no_glycan_is_in_two_parts(records: list[GlycanRecord], seed: int, cut: bool) -> None:
    split = split_by_publication(records, seed, (0.5, 0.25, 0.25), cut=cut)
    parts = (split.train, split.validation, split.test)
    assert sorted(np.concatenate([*parts, split.dropped]).tolist()) == list(range(len(records)))
    assert cut or not len(split.dropped)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        for left in parts[first]:
            for right in parts[second]:
                assert not set(records[left].references) & set(records[right].references)
                assert sorted(records[left].text) != sorted(records[right].text)  # enough for the texts above
    again = split_by_publication(records, seed, (0.5, 0.25, 0.25), cut=cut)
    assert all(
        np.array_equal(getattr(split, name), getattr(again, name))
        for name in ("train", "validation", "test", "dropped")
    )


def test_separate_publications_fill_the_parts_to_their_fractions() -> None:
    records = [record(f"X{number}", f"p{number // 5}") for number in range(1000)]
    split = split_by_publication(records, seed=3)
    for part, wanted in ((split.train, 800), (split.validation, 100), (split.test, 100)):
        assert abs(len(part) - wanted) <= 10
    assert (split.components, split.largest, split.unpublished, len(split.dropped)) == (200, 5, 0, 0)
    assert split_by_publication(records, seed=4).test.tolist() != split.test.tolist()


def test_a_giant_component_is_cut_at_the_glycans_that_join_it_or_stays_whole_in_training() -> None:
    # Two hundred publications of five glycans; a well-known glycan joins each to the next.
    records = [record(f"X{number}", f"p{number // 5}") for number in range(1000)]
    records += [record(f"Known{number}", f"p{number}", f"p{number + 1}") for number in range(199)]
    cut = split_by_publication(records, seed=0)
    assert (cut.components, cut.largest) == (1, 1199)
    assert 0 < len(cut.dropped) < 100 and all(index >= 1000 for index in cut.dropped)
    assert min(len(cut.validation), len(cut.test)) > 80
    whole = split_by_publication(records, seed=0, cut=False)
    assert len(whole.train) == 1199


def test_unpublished_records_are_for_training_and_spellings_of_an_address_are_one_publication() -> None:
    records = [GlycanRecord(Tree(f"X{number}"), "", (), ()) for number in range(10)]
    spellings = ("https://example.org/1", "http://www.example.org/1/")
    records += [GlycanRecord(Tree(f"Y{number}"), "", (), (spelling,)) for number, spelling in enumerate(spellings)]
    split = split_by_publication(records, seed=0, fractions=(0.5, 0.25, 0.25))
    assert split.train.tolist()[:10] == list(range(10))
    assert (split.components, split.largest, split.unpublished) == (1, 2, 10)


def test_a_split_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="split_by_publication expects three fractions >= 0"):
        split_by_publication([], seed=0, fractions=(1.0, 0.5, -0.5))


def test_the_split_of_a_seed_is_the_same_everywhere() -> None:
    records = [record(f"X{number}", f"p{number // 2}") for number in range(12)]
    split = split_by_publication(records, seed=1, fractions=(0.5, 0.25, 0.25))
    assert [part.tolist() for part in (split.validation, split.test)] == [[4, 5, 8, 9], [2, 3, 10, 11]]


@pytest.mark.skipif(
    importlib.util.find_spec("glycowork") is None,
    reason="THE GLYCANS OF GLYCOWORK ARE NOT TESTED: run `pip install --no-deps glycowork`",
)
def test_the_glycans_of_the_package_are_read_and_split() -> None:
    bad: list[ReadError] = []
    records = load_glycans(on_bad=bad.append)
    assert "glycowork" not in sys.modules
    assert len(records) > 23_000
    assert len(bad) <= 10  # three with an unbalanced bracket, in release 1.11
    assert {"Animalia", "Bacteria", "Plantae", "Fungi"} <= {label for record in records for label in record.labels}
    for cut in (True, False):
        split = split_by_publication(records, seed=0, cut=cut)
        parts = [
            {name for index in part for name in records[index].references}
            for part in (split.train, split.validation, split.test)
        ]
        assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
        assert len(split.dropped) < 0.06 * len(records)
        assert min(len(split.validation), len(split.test)) > 0.07 * len(records)


def test_the_program_makes_a_data_set_and_refuses_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_table(tmp_path / "v1_df_species.csv", [*ROWS, ("Gal(b1-4", "x", "Plantae", "Eukarya", "gwb")])
    out = tmp_path / "data"
    assert glycans.main([str(file), "--out", str(out), "--rank", "Domain", "--linkage", "drop"]) == 0
    data = Dataset.open(out)
    assert data.classes == ("Bacteria", "Eukarya") and [str(tree) for tree in data.forest] == [
        "Glc",
        "(Glc Gal ({} Fuc))",
    ]
    assert data.made["rank"] == "Domain" and "Gal(b1-4" in (out / "skipped.txt").read_text()
    assert "left out 1 that could not be read" in capsys.readouterr().err
    assert glycans.main([str(file), "--out", str(out)]) == 2
    assert "expected a name that is free" in capsys.readouterr().err
    assert glycans.main([str(tmp_path / "absent"), "--out", str(tmp_path / "other")]) == 2
    assert "expects a csv file or the folder of glycowork" in capsys.readouterr().err
    assert glycans.main([str(file), "--out", str(out), "--force"]) == 0


def test_the_program_runs_as_a_file() -> None:
    run = [sys.executable, str(Path(glycans.__file__)), "--help"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--rank" in done.stdout and done.stderr == ""
