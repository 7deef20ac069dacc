import csv
import json
from pathlib import Path
from typing import Any

import pytest

from treefold.data.readers import read_csv, read_jsonl, read_parquet, read_tsv, records_csv, records_jsonl, records_tsv
from treefold.data.readers.stream import Faults, Record
from treefold.data.readers.tabular import _values, records_parquet
from treefold.errors import ReadError

PYARROW = "NOT TESTED: parquet needs treefold[parquet]"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def shown(records: Any) -> list[tuple[list[str], str | None, int | None]]:
    return [([str(tree) for tree in record.trees], record.label, record.line) for record in records]


def messages(path: Path, told: list[ReadError]) -> list[str]:
    return [str(error).removeprefix(f"{path}, ") for error in told]


def test_json_lines_hold_trees_or_pairs_with_labels_of_every_scalar_kind(tmp_path: Path) -> None:
    lines = [
        '{"tree": "(a b)", "label": "x"}',
        "",
        '{"tree": "a", "label": 1.50}',
        '{"tree": "a", "label": true, "more": [1]}',
        '{"tree": "a", "label": null}',
        '{"tree": "a"}',
        '{"left": "(a b)", "right": "c", "label": 0}',
    ]
    path = write(tmp_path, "a.jsonl", "\n".join(lines))
    assert shown(records_jsonl(path)) == [
        (["(a b)"], "x", 1),
        (["a"], "1.50", 3),
        (["a"], "true", 4),
        (["a"], None, 5),
        (["a"], None, 6),
        (["(a b)", "c"], "0", 7),
    ]
    assert [str(tree) for tree in read_jsonl(path)] == ["(a b)", "a", "a", "a", "a", "(a b)", "c"]


def test_json_lines_have_the_keys_that_are_told(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"one": "a", "two": "b", "class": 3, "tree": "t"}')
    assert shown(records_jsonl(path, tree_key="one", label_key="class")) == [(["a"], "3", 1)]
    keys: dict[str, Any] = {"tree_key": "none", "left_key": "one", "right_key": "two"}
    assert shown(records_jsonl(path, **keys)) == [(["a", "b"], None, 1)]


def test_each_malformed_json_line_is_reported_and_skipped(tmp_path: Path) -> None:
    lines = {
        '{"tree": "a"}': "",
        '{"tree": "(a (b"}': "line 2: 'tree', character 6: expected ')' to close '(b' of column 4, got the end of the text",
        '{"tree": 5}': "line 3: 'tree': expected an s-expression as text, got a number; write the tree as \"(label child …)\"",
        '{"tree": ["a"]}': "line 4: 'tree': expected an s-expression as text, got a list; write the tree as \"(label child …)\"",
        '{"Tree": "a"}': "line 5: expected 'tree', or 'left' and 'right', got 'Tree' (nearest known: 'Tree'); "
        "name them as the file does",
        '{"left": "a", "rigth": "b"}': "line 6: expected 'right', got 'left', 'rigth' (nearest known: 'rigth'); "
        "name them as the file does",
        "{}": "line 7: expected 'tree', or 'left' and 'right', got none; name them as the file does",
        "[1]": "line 8: expected a JSON object, got a list; write one object a line",
        "(a b)": "line 9, column 1: expected a JSON object, got expecting value; write one object a line",
        "[" * 100_000: "line 10: expected a flat JSON object, got one nested too deeply; trees are text here",
        '{"tree": "a", "label": [1]}': "line 11: expected a label that is text, a number or a truth value, got a list; "
        "write one label a row",
        '{"tree": "\\ud800"}': "line 12: 'tree': expected whole characters, got half of a \\ud8… pair; correct the escapes",
        '{"tree": "b"}': "",
    }
    path = write(tmp_path, "a.jsonl", "\n".join(lines))
    told: list[ReadError] = []
    assert shown(records_jsonl(path, on_bad=told.append)) == [(["a"], None, 1), (["b"], None, 13)]
    assert messages(path, told) == [message for message in lines.values() if message]
    with pytest.raises(ReadError, match="line 2: 'tree', character 6"):
        list(records_jsonl(path))


def test_a_label_that_was_asked_for_by_name_may_not_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"tree": "a", "class": 1}')
    with pytest.raises(ReadError, match=r"expected 'clas', got 'tree', 'class' \(nearest known: 'class'\)"):
        list(records_jsonl(path, label_key="clas"))


@pytest.mark.parametrize(
    ("records", "read", "delimiter"), [(records_csv, read_csv, ","), (records_tsv, read_tsv, "\t")]
)
def test_delimited_rows_are_what_the_standard_writer_wrote(
    records: Any, read: Any, delimiter: str, tmp_path: Path
) -> None:
    rows = [
        ["(a b)", "1", "x"],
        ['(a "two, words")', "2", ""],
        ['(a "l1\nl2"\n\t b)', "3", "y z"],
        ["[1, 2]", "4", '"'],
    ]
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([["tree", "id", "label"], *rows])
    assert shown(records(path)) == [
        (["(a b)"], "x", 2),
        (['(a "two, words")'], None, 3),
        (['(a "l1\\nl2" b)'], "y z", 4),
        (["[1.0 2.0]"], '"', 7),
    ]
    assert [str(tree) for tree in read(path)] == [tree for (tree,), _, _ in shown(records(path))]


def test_csv_rows_hold_pairs_under_the_names_that_are_told(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "a,b,same\n(x y),z,yes\n")
    (record,) = records_csv(path, left_column="a", right_column="b", label_column="same")
    assert shown([record]) == [(["(x y)", "z"], "yes", 2)]


def test_each_malformed_csv_row_is_reported_and_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'tree,label\na,1\n(b,2\n(c,d),3\n\n"e"f,4\ng\n,5\nh,6\n"i,7\nj,8\n')
    told: list[ReadError] = []
    assert shown(records_csv(path, on_bad=told.append)) == [(["a"], "1", 2), (["h"], "6", 9)]
    assert messages(path, told) == [
        "line 3: 'tree', character 3: expected ')' to close '(b' of column 1, got the end of the text",
        "line 4: expected 2 fields as in the header, got 3; put a field that holds ',' in double quotes",
        "line 6: expected a row, got ',' expected after '\"'; double the quotes inside a quoted field",
        "line 7: expected 2 fields as in the header, got 1; put a field that holds ',' in double quotes",
        "line 8: 'tree', character 1: expected a tree, got an empty text; write a label or (label …)",
        "line 10: expected a row, got unexpected end of data; double the quotes inside a quoted field",
    ]


def test_a_csv_without_the_column_is_an_error_even_with_on_bad(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "trees,label\na,1\n")
    told: list[ReadError] = []
    with pytest.raises(ReadError) as caught:
        list(records_csv(path, on_bad=told.append))
    assert str(caught.value) == (
        f"{path}, line 1: expected 'tree', or 'left' and 'right', got 'trees', 'label' (nearest known: 'trees'); "
        f"name them as the file does"
    )
    assert told == []


def test_a_csv_of_a_header_alone_is_empty(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="got an empty file"):
        list(records_csv(write(tmp_path, "a.csv", "tree,label\n")))


def test_a_field_may_be_large_and_the_limit_of_the_process_stays(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    path = write(tmp_path, "a.csv", "tree\n" + "(a " * 100_000 + "b" + ")" * 100_000 + "\n")
    (tree,) = read_csv(path)
    assert tree.depth == 100_000
    assert csv.field_size_limit() == limit


def parquet_file(folder: Path, **columns: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason=PYARROW)
    parquet = pytest.importorskip("pyarrow.parquet", reason=PYARROW)
    path = folder / "a.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_parquet_rows_hold_trees_or_pairs_with_labels(tmp_path: Path) -> None:
    path = parquet_file(tmp_path, tree=["(a b)", "c", "d"], label=[True, None, False], more=[[1], [2], [3]])
    assert shown(records_parquet(path)) == [(["(a b)"], "true", 1), (["c"], None, 2), (["d"], "false", 3)]
    assert [str(tree) for tree in read_parquet(path)] == ["(a b)", "c", "d"]
    path = parquet_file(tmp_path, a=["x"], b=["y"], n=[7])
    assert shown(records_parquet(path, left_column="a", right_column="b", label_column="n")) == [(["x", "y"], "7", 1)]


def test_parquet_rows_beyond_one_batch_keep_their_numbers(tmp_path: Path) -> None:
    path = parquet_file(tmp_path, tree=[f"(a {number})" for number in range(1, 3001)])
    assert [(str(record.trees[0]), record.line) for record in records_parquet(path)] == [
        (f"(a {number})", number) for number in range(1, 3001)
    ]


def test_each_malformed_parquet_row_is_reported_and_skipped(tmp_path: Path) -> None:
    path = parquet_file(tmp_path, tree=["a", None, "(b", "c"], label=[[1], [], [], None])
    told: list[ReadError] = []
    assert shown(records_parquet(path, on_bad=told.append)) == [(["c"], None, 4)]
    assert messages(path, told) == [
        "line 1: expected a label that is text, a number or a truth value, got a list; write one label a row",
        "line 2: 'tree': expected an s-expression as text, got null; write the tree as \"(label child …)\"",
        "line 3: 'tree', character 3: expected ')' to close '(b' of column 1, got the end of the text",
    ]


def test_what_is_no_parquet_file_or_a_broken_one_is_an_error(tmp_path: Path) -> None:
    path = parquet_file(tmp_path, tree=["a" * 500])
    data = path.read_bytes()
    for broken in (b"tree\n(a b)\n", data[: len(data) // 2], data[:4] + b"\0" * 300 + data[304:]):
        path.write_bytes(broken)
        with pytest.raises(
            ReadError, match=r"expected a parquet file, got one that cannot be read \(.*\); write it again"
        ):
            list(records_parquet(path))
        told: list[ReadError] = []
        assert list(records_parquet(path, on_bad=told.append)) == []
        assert len(told) == 1


def test_a_parquet_value_that_python_cannot_hold_is_an_error_of_its_row(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason=PYARROW)
    path = parquet_file(tmp_path, tree=["a", "b"], label=pyarrow.array([0, 2**30], pyarrow.date32()))
    told: list[ReadError] = []
    assert shown(records_parquet(path, on_bad=told.append)) == [(["a"], "1970-01-01", 1)]
    (message,) = messages(path, told)
    assert message.startswith("line 2: expected values that Python can hold, got ")
    outside = pyarrow.DictionaryArray.from_arrays(pyarrow.array([111], pyarrow.int8()), ["a", "b"], safe=False)
    with pytest.raises(ReadError, match="line 1: expected values that Python can hold, got index with value of 111"):
        _values({"tree": outside[0]}, Faults(path, None), 1)


@pytest.mark.parametrize("name", ["ArrowMemoryError", "ArrowNotImplementedError", "ArrowKeyError", "ArrowInvalid"])
def test_whatever_pyarrow_raises_about_a_file_is_an_error_of_the_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = pytest.importorskip("pyarrow.lib", reason=PYARROW)

    def damaged(*_: object, **__: object) -> None:
        raise getattr(lib, name)("malloc of size 8593112960 failed")

    path = parquet_file(tmp_path, tree=["a"])
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", damaged)
    with pytest.raises(ReadError, match=r"expected a parquet file, got one that cannot be read .*malloc of size"):
        list(records_parquet(path))


def test_parquet_without_the_column_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    path = parquet_file(tmp_path, trees=["a"])
    with pytest.raises(
        ReadError, match=r"expected 'tree', or 'left' and 'right', got 'trees' \(nearest known: 'trees'\)"
    ):
        list(records_parquet(path))


def test_the_same_rows_give_the_same_records_in_all_formats(tmp_path: Path) -> None:
    rows = [{"left": "(a b)", "right": "c", "label": "x"}, {"left": "d", "right": "(e _ f)", "label": "y"}]
    jsonl = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    comma = write(tmp_path, "a.csv", "left,right,label\n" + "\n".join(",".join(row.values()) for row in rows))
    tab = write(tmp_path, "a.tsv", "left\tright\tlabel\n" + "\n".join("\t".join(row.values()) for row in rows))
    columns = {name: [row[name] for row in rows] for name in rows[0]}

    def content(records: list[Record]) -> list[Any]:
        return [(record.trees, record.label) for record in records]

    expected = content(list(records_jsonl(jsonl)))
    assert content(list(records_csv(comma))) == expected
    assert content(list(records_tsv(tab))) == expected
    assert content(list(records_parquet(parquet_file(tmp_path, **columns)))) == expected
