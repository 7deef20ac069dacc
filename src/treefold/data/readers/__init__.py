"""Readers: files of many formats become trees, one record at a time.

`brackets` reads s-expressions, Penn brackets and brackets with classes (SST), `json` documents, `tabular` rows of JSON lines,
CSV, TSV and parquet, `markup` XML and HTML, `code` programs, `conllu` dependency trees, also from aligned files; `stream` has the
parts that they share. To add a format, write a function that yields a `Record` for each tree of a file, and add it to `_FORMATS`
below.

>>> import pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "trees.jsonl")
...     _ = path.write_text('{"tree": "(MIN 1 2)", "label": 1}')
...     [record] = READERS[format_of(path)](path)
>>> print(record.trees[0], record.label)
(MIN 1 2) 1
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from treefold.data.readers.brackets import records_penn, records_sexpr, records_sst
from treefold.data.readers.code import LANGUAGES, records_code, records_python
from treefold.data.readers.conllu import read_dependencies, records_conllu
from treefold.data.readers.json import records_json
from treefold.data.readers.markup import records_html, records_xml
from treefold.data.readers.stream import OnBad, Record, Source, trees_only
from treefold.data.readers.tabular import records_csv, records_jsonl, records_parquet, records_tsv
from treefold.errors import ConfigurationError

_CODE: Final = tuple(suffix for grammar in LANGUAGES.values() for suffix in grammar.suffixes)
_FORMATS: Final[list[tuple[str, Callable[..., Iterator[Record]], tuple[str, ...]]]] = [
    ("sexpr", records_sexpr, (".sexpr", ".txt")),
    ("penn", records_penn, (".mrg", ".penn", ".ptb")),
    ("sst", records_sst, (".sst",)),
    ("json", records_json, (".json",)),
    ("jsonl", records_jsonl, (".jsonl", ".ndjson")),
    ("xml", records_xml, (".xml", ".svg")),
    ("html", records_html, (".html", ".htm")),
    ("python", records_python, (".py", ".pyi")),
    ("code", records_code, tuple(suffix for suffix in _CODE if suffix not in (".py", ".pyi"))),
    ("conllu", records_conllu, (".conllu", ".conll")),
    ("csv", records_csv, (".csv",)),
    ("tsv", records_tsv, (".tsv",)),
    ("parquet", records_parquet, (".parquet",)),
]

READERS: Final = {name: reader for name, reader, _ in _FORMATS}
"""The readers by the names of their formats, as on the command line."""

SUFFIXES: Final = {suffix: name for name, _, suffixes in _FORMATS for suffix in suffixes}
"""The formats by the suffixes of their files."""

read_code = trees_only(records_code)
read_conllu = trees_only(records_conllu)
read_csv = trees_only(records_csv)
read_html = trees_only(records_html)
read_json = trees_only(records_json)
read_jsonl = trees_only(records_jsonl)
read_parquet = trees_only(records_parquet)
read_penn = trees_only(records_penn)
read_python = trees_only(records_python)
read_sexpr = trees_only(records_sexpr)
read_sst = trees_only(records_sst)
read_tsv = trees_only(records_tsv)
read_xml = trees_only(records_xml)


def format_of(source: Source) -> str:
    """Return the format that the suffix of a path suggests.

    >>> format_of("wsj_0001.MRG")
    'penn'
    >>> format_of("trees.xyz")
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: trees.xyz: expected a suffix that suggests the format, got '.xyz'; name the format: ...
    """
    suffix = Path(source).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigurationError(
            f"{source}: expected a suffix that suggests the format, got {suffix!r}; name the format: {', '.join(READERS)}."
        )
    return SUFFIXES[suffix]


__all__ = [
    "READERS",
    "SUFFIXES",
    "OnBad",
    "Record",
    "Source",
    "format_of",
    "read_code",
    "read_conllu",
    "read_csv",
    "read_dependencies",
    "read_html",
    "read_json",
    "read_jsonl",
    "read_parquet",
    "read_penn",
    "read_python",
    "read_sexpr",
    "read_sst",
    "read_tsv",
    "read_xml",
    "records_code",
    "records_conllu",
    "records_csv",
    "records_html",
    "records_json",
    "records_jsonl",
    "records_parquet",
    "records_penn",
    "records_python",
    "records_sexpr",
    "records_sst",
    "records_tsv",
    "records_xml",
]
