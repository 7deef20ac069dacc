"""Readers: files of many formats become trees, one record at a time.

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

from treefold.data.readers.brackets import read_penn, read_sexpr, records_penn, records_sexpr
from treefold.data.readers.dependencies import read_conllu, records_conllu
from treefold.data.readers.documents import read_json, records_json
from treefold.data.readers.grammars import LANGUAGES, read_code, records_code
from treefold.data.readers.markup import read_html, read_xml, records_html, records_xml
from treefold.data.readers.programs import read_python, records_python
from treefold.data.readers.records import OnBad, Record, Source
from treefold.data.readers.tables import (
    read_csv,
    read_jsonl,
    read_parquet,
    read_tsv,
    records_csv,
    records_jsonl,
    records_parquet,
    records_tsv,
)
from treefold.errors import ConfigurationError

READERS: dict[str, Callable[..., Iterator[Record]]] = {
    "sexpr": records_sexpr,
    "penn": records_penn,
    "json": records_json,
    "jsonl": records_jsonl,
    "xml": records_xml,
    "html": records_html,
    "python": records_python,
    "code": records_code,
    "conllu": records_conllu,
    "csv": records_csv,
    "tsv": records_tsv,
    "parquet": records_parquet,
}
"""Every format by its name on the command line."""

SUFFIXES: dict[str, str] = {
    ".sexpr": "sexpr",
    ".txt": "sexpr",
    ".mrg": "penn",
    ".penn": "penn",
    ".ptb": "penn",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".xml": "xml",
    ".svg": "xml",
    ".html": "html",
    ".htm": "html",
    **{suffix: "code" for grammar in LANGUAGES.values() for suffix in grammar.suffixes},
    ".py": "python",  # needs no extra
    ".pyi": "python",
    ".conllu": "conllu",
    ".conll": "conllu",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
"""The format that a suffix suggests."""


def format_of(source: Source) -> str:
    """Turn the suffix of a path into the name of its format.

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
    "read_html",
    "read_json",
    "read_jsonl",
    "read_parquet",
    "read_penn",
    "read_python",
    "read_sexpr",
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
    "records_tsv",
    "records_xml",
]
