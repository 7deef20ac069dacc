"""Rows with trees in columns: JSON lines, CSV, TSV and parquet.

A row holds one tree, or a pair of them, as s-expressions, and maybe a label.
"""

import csv
import json
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treefold.data.readers.stream import (
    Faults,
    OnBad,
    Record,
    Source,
    lines_of,
    opened,
    optional_package,
)
from treefold.errors import ParseError, ReadError, nearest
from treefold.files import has_half_character
from treefold.trees.tree import Tree

_DEFAULT_LABEL = "label"
_FIELD_LIMIT = 2**31 - 1  # the largest C long of all platforms
_LIMIT_LOCK = threading.Lock()
_BATCH_ROWS = 1024  # a row can hold a tree of a million nodes


class _Number(str):
    """A JSON number as it is written in the file; not accepted as text."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns with the trees and the label of a row.

    The label may be missing if its column has the default name, but not if another name was asked for.

    >>> columns = Columns(tree="tree", left="left", right="right", label="class")
    >>> record = columns.record({"tree": "(a b)", "class": True}, source="a.jsonl", line=4)
    >>> print(record.trees[0], record.label)
    (a b) true
    >>> columns.record({"Tree": "(a b)", "class": "x"}, source="a.jsonl", line=4)
    Traceback (most recent call last):
    ...
    treefold.errors.ReadError: a.jsonl, line 4: expected 'tree', or 'left' and 'right', got 'Tree', 'class' (nearest
    known: 'Tree'); name them as the file does
    """

    tree: str
    left: str
    right: str
    label: str

    def record(self, row: Mapping[str, object], *, source: str, line: int) -> Record:
        """Turn a row into its record."""
        names = self.trees_in(row.keys(), source=source, line=line)
        trees = tuple(_parsed(name, row[name], source, line) for name in names)
        return Record(trees, _label_text(row.get(self.label), source, line), source, line)

    def trees_in(self, names: Collection[str], *, source: str, line: int | None) -> tuple[str, ...]:
        """Return the names of the tree columns; raise if a column is missing."""
        pair = (self.left, self.right)
        chosen = (self.tree,) if self.tree in names or not any(name in names for name in pair) else pair
        missing = [name for name in chosen if name not in names]
        if missing:
            expected = (
                f"{self.tree!r}, or {self.left!r} and {self.right!r}" if chosen == (self.tree,) else repr(missing[0])
            )
        elif self.label not in names and self.label != _DEFAULT_LABEL:
            missing, expected = [self.label], repr(self.label)
        else:
            return chosen
        got = ", ".join(repr(name) for name in list(names)[:20]) or "none"
        raise ReadError(
            f"expected {expected}, got {got}{nearest(missing[0], names)}; name them as the file does",
            source=source,
            line=line,
        )


def records_jsonl(
    source: Source,
    *,
    tree_key: str = "tree",
    left_key: str = "left",
    right_key: str = "right",
    label_key: str = _DEFAULT_LABEL,
    on_bad: OnBad | None = None,
) -> Iterator[Record]:
    """Turn lines ``{"tree": "(a b)", "label": …}`` or ``{"left": …, "right": …, "label": …}`` into records."""
    faults = Faults(source, on_bad)
    columns = Columns(tree_key, left_key, right_key, label_key)

    def records() -> Iterator[Record]:
        for number, text, problem in lines_of(source):
            if not text.strip():
                continue
            try:
                if problem:
                    raise problem
                record = columns.record(_json_object(text, faults, number), source=faults.source, line=number)
            except ReadError as error:
                faults.report(error)
            else:
                yield record

    return faults.unless_empty(records())


def records_csv(
    source: Source,
    *,
    tree_column: str = "tree",
    left_column: str = "left",
    right_column: str = "right",
    label_column: str = _DEFAULT_LABEL,
    on_bad: OnBad | None = None,
) -> Iterator[Record]:
    """Turn the rows of a comma-separated file with a header into records; an empty label means no label."""
    return _delimited(source, ",", Columns(tree_column, left_column, right_column, label_column), on_bad)


def records_tsv(
    source: Source,
    *,
    tree_column: str = "tree",
    left_column: str = "left",
    right_column: str = "right",
    label_column: str = _DEFAULT_LABEL,
    on_bad: OnBad | None = None,
) -> Iterator[Record]:
    """Turn the rows of a tab-separated file with a header into records; an empty label means no label."""
    return _delimited(source, "\t", Columns(tree_column, left_column, right_column, label_column), on_bad)


def records_parquet(
    source: Source,
    *,
    tree_column: str = "tree",
    left_column: str = "left",
    right_column: str = "right",
    label_column: str = _DEFAULT_LABEL,
    on_bad: OnBad | None = None,
) -> Iterator[Record]:
    """Turn the rows of a parquet file into records, some at a time; ``line`` is the row, from 1."""
    parquet = optional_package("pyarrow.parquet", extra="parquet")
    faults = Faults(source, on_bad)
    columns = Columns(tree_column, left_column, right_column, label_column)

    def records() -> Iterator[Record]:
        for number, row in enumerate(_parquet_rows(parquet, faults, columns), 1):
            try:
                record = columns.record(_values(row, faults, number), source=faults.source, line=number)
            except ReadError as error:
                faults.report(error)
            else:
                yield record

    return faults.unless_empty(records())


def _delimited(source: Source, delimiter: str, columns: Columns, on_bad: OnBad | None) -> Iterator[Record]:
    faults = Faults(source, on_bad)

    def records() -> Iterator[Record]:
        header: list[str] = []
        for line, row in _delimited_rows(faults, delimiter):
            if not header:
                header = row
                columns.trees_in(header, source=faults.source, line=line)  # raised: no row could be read
                continue
            try:
                if len(row) != len(header):
                    raise faults.error(
                        f"expected {len(header)} fields as in the header, got {len(row)}; "
                        f"put a field that holds {delimiter!r} in double quotes",
                        line,
                    )
                fields: dict[str, object] = dict(zip(header, row, strict=True))
                record = columns.record(
                    {**fields, columns.label: fields.get(columns.label) or None}, source=faults.source, line=line
                )
            except ReadError as error:
                faults.report(error)
            else:
                yield record

    return faults.unless_empty(records())


def _delimited_rows(faults: Faults, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the number of its first line; blank lines are skipped."""
    wrong_bytes: list[ReadError] = []

    def texts() -> Iterator[str]:
        for line in lines_of(faults.source):
            if line.problem:
                wrong_bytes.append(line.problem)
            yield line.text

    # Strict: a quote that is never closed is an error, not a field with the rest of the file.
    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        # The limit applies to the whole process, so it is raised for this row only.
        with _LIMIT_LOCK:
            limit = csv.field_size_limit(_FIELD_LIMIT)
            try:
                row, wrong = next(reader, None), None
            except csv.Error as problem:
                row, wrong = None, problem
            finally:
                csv.field_size_limit(limit)
        if wrong is not None:
            faults.report(faults.error(f"expected a row, got {wrong}; double the quotes inside a quoted field", line))
            continue
        if wrong_bytes:
            faults.report(wrong_bytes[0])
            wrong_bytes.clear()
        elif row is None:
            return
        elif row:
            yield line, row


def _parquet_rows(parquet: Any, faults: Faults, columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield the rows as scalars of pyarrow, which decode on demand."""
    import pyarrow  # type: ignore[import-untyped]

    with opened(faults.source) as bytes_of_file:
        if not bytes_of_file.seek(0, os.SEEK_END):
            return
        try:
            with parquet.ParquetFile(bytes_of_file) as file:
                there = file.schema_arrow.names
                names = columns.trees_in(there, source=faults.source, line=None)  # raised: no row could be read
                wanted = [*names, *(name for name in there if name == columns.label)]
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                    for values in zip(*batch.columns, strict=True):
                        yield dict(zip(batch.schema.names, values, strict=True))
        except ReadError:
            raise
        except (OSError, ValueError, pyarrow.ArrowException) as problem:
            reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            faults.report(
                faults.error(f"expected a parquet file, got one that cannot be read ({reason}); write it again")
            )


def _values(row: dict[str, Any], faults: Faults, number: int) -> dict[str, object]:
    try:
        return {name: scalar.as_py() for name, scalar in row.items()}
    except UnicodeDecodeError as problem:
        raise faults.error(f"expected UTF-8, got {problem.reason}; write the file again", number) from None
    except Exception as problem:  # pyarrow has a dozen kinds: of dates beyond Python's, or places outside a dictionary
        raise faults.error(
            f"expected values that Python can hold, got {problem}; write labels as text", number
        ) from None


def _json_object(text: str, faults: Faults, number: int) -> dict[str, object]:
    got: object
    try:
        got = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except json.JSONDecodeError as problem:
        raise faults.error(
            f"expected a JSON object, got {problem.msg[0].lower()}{problem.msg[1:]}; write one object a line",
            number,
            problem.colno,
        ) from None
    except RecursionError:
        raise faults.error(
            "expected a flat JSON object, got one nested too deeply; trees are text here", number
        ) from None
    if not isinstance(got, dict):
        raise faults.error(f"expected a JSON object, got {_kind(got)}; write one object a line", number)
    return got


def _parsed(name: str, value: object, source: str, line: int) -> Tree:
    if not isinstance(value, str) or isinstance(value, _Number):
        raise ReadError(
            f'{name!r}: expected an s-expression as text, got {_kind(value)}; write the tree as "(label child …)"',
            source=source,
            line=line,
        )
    if has_half_character(value):
        raise ReadError(
            f"{name!r}: expected whole characters, got half of a \\ud8… pair; correct the escapes",
            source=source,
            line=line,
        )
    try:
        return Tree.parse(value)
    except ParseError as problem:
        raise ReadError(
            f"{name!r}, character {problem.position + 1}: {problem.problem}", source=source, line=line
        ) from None


def _label_text(value: object, source: str, line: int) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict, tuple, bytes)) or (isinstance(value, str) and has_half_character(value)):
        raise ReadError(
            f"expected a label that is text, a number or a truth value, got {_kind(value)}; write one label a row",
            source=source,
            line=line,
        )
    return None if value is None else str(value)


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null", str: "text"}
    return kinds.get(type(value), "bytes" if isinstance(value, bytes) else "a number")
