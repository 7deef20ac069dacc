from pathlib import Path
from typing import Any

import pytest

from treefold import Tree
from treefold.data.convert import Conversion, convert, split_distinct
from treefold.errors import ConfigurationError, ReadError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_folders_are_walked_by_suffix_and_give_the_labels(tmp_path: Path) -> None:
    write(tmp_path / "good" / "a.py", "x = 1\n")
    write(tmp_path / "good" / "b.py", "y = x + 2\n")
    write(tmp_path / "bad" / "c.py", "def f(): pass\n")
    write(tmp_path / "bad" / "notes.md", "not code")
    write(tmp_path / ".hidden" / "d.py", "z = 1\n")
    data = convert([tmp_path], Conversion(format="python", labels="folder"))
    assert data.classes == ("bad", "good") and data.targets.tolist() == [0, 1, 1]
    assert all(tree.label == "Module" for tree in data.forest)


def test_records_carry_their_labels_and_may_be_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "left,right,label\n(f a),b,x\n(f b),a,\n")
    data = convert([path])
    assert data.pairs and data.classes == ("x",) and data.targets.tolist() == [0, -1]
    assert list(data.forest) == [Tree.parse("(f a)"), Tree("b"), Tree.parse("(f b)"), Tree("a")]


def test_a_parallel_file_gives_the_labels_and_must_have_the_right_length(tmp_path: Path) -> None:
    trees = write(tmp_path / "t.sexpr", "(f a)\nb\n(g c)\n")
    labels = write(tmp_path / "l.txt", "no\nyes\nno\n")
    data = convert([trees], Conversion(label_file=labels))
    assert [data.classes[target] for target in data.targets] == ["no", "yes", "no"]
    write(labels, "no\nyes\n")
    with pytest.raises(
        ReadError, match=r"l.txt: expected a label for each of 3 records, got 2 lines; write one label per line"
    ):
        convert([trees], Conversion(label_file=labels))


def test_bad_records_stop_the_conversion_or_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"tree": "(f a)"}\n{"tree": "(f a"}\n{"tree": "b"}\n')
    with pytest.raises(ReadError, match=r"t.jsonl, line 2: 'tree', character 5: expected '\)'"):
        convert([path])
    problems: list[ReadError] = []
    data = convert([path], on_bad=problems.append)
    assert list(data.forest) == [Tree.parse("(f a)"), Tree("b")] and len(problems) == 1
    labels = write(tmp_path / "l.txt", "x\ny\n")
    with pytest.raises(ReadError, match="line 2"):  # leaving one out would shift the labels
        convert([path], Conversion(label_file=labels), on_bad=problems.append)


def test_wide_nodes_are_refused_left_out_grouped_or_binarised(tmp_path: Path) -> None:
    path = write(tmp_path / "t.sexpr", "(f a b c)\n(g a)\n")
    with pytest.raises(
        ReadError, match=r"t.sexpr, line 1: node 'f' has 3 children, but max_arity=2; raise `max_arity`"
    ):
        convert([path], Conversion(max_arity=2))
    assert len(convert([path], Conversion(max_arity=2), on_bad=lambda problem: None).forest) == 1
    for policy in ("group", "binarise"):
        assert convert([path], Conversion(max_arity=2, wide=policy)).forest.arity == 2


def test_options_reach_the_reader(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y\n(f a),1\n")
    data = convert([path], Conversion(options={"tree_column": "x", "label_column": "y"}))
    assert data.classes == ("1",)
    with pytest.raises(
        ConfigurationError, match=r"the format 'csv' has the options .* got 'tree_colum' \(nearest known: 'tree_column'"
    ):
        convert([path], Conversion(options={"tree_colum": "x"}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "xmll"}, r"convert expects format to be one of .* got 'xmll' \(nearest known: 'xml'\)"),
        ({"labels": "column"}, "convert expects labels to be one of 'record', 'folder', 'none', got 'column'"),
        ({"fractions": (0.5, 0.1, 0.1)}, "convert expects"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Conversion(**settings)


def test_files_that_hold_nothing_useful_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"expected files that end in .*, got none; name the files themselves"):
        convert([tmp_path])
    with pytest.raises(ReadError, match="expected at least one tree, got"):
        convert([write(tmp_path / "e.sexpr", "")])
    mixed = [write(tmp_path / "a.csv", "tree\na\n"), write(tmp_path / "b.csv", "left,right\na,b\n")]
    with pytest.raises(ReadError, match="expected all records to have one tree, or all to be pairs, got both"):
        convert(mixed)


def test_equal_examples_go_to_one_split_and_shares_hold() -> None:
    keys = [bytes([number % 50]) for number in range(1000)]
    parts = split_distinct(keys, (0.8, 0.1, 0.1), seed=0)
    sets = [{keys[index] for index in part} for part in parts.values()]
    assert not (sets[0] & sets[1] or sets[0] & sets[2] or sets[1] & sets[2])
    assert [len(part) for part in parts.values()] == [800, 100, 100]
    again = split_distinct(keys, (0.8, 0.1, 0.1), seed=0)
    assert all((parts[name] == again[name]).all() for name in parts)
