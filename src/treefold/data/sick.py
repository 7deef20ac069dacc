"""SICK (Marelli et al. 2014): the relatedness and the entailment of two sentences, as pairs of dependency trees."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import numpy as np

from treefold.data.dataset import Dataset, number_of
from treefold.data.readers.conllu import read_dependencies
from treefold.data.readers.stream import Source, lines_of
from treefold.errors import ReadError, require_choice
from treefold.trees.tree import Tree

_FOLDERS: Final = {"train": "dep_train", "validation": "dep_dev", "test": "dep_test"}
_TABLES: Final = {"train": "SICK_train.txt", "validation": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
_JUDGEMENT: Final = "entailment_judgment"


def load_sick(
    folder: Source,
    target: Literal["relatedness", "entailment"] = "relatedness",
    *,
    relations: bool = False,
    head: bool = False,
) -> Dataset:
    """Read SICK, as Tai et al. (2015) parsed it, as a data set of pairs: 4,500 train, 500 validation, 4,927 test.

    The folder has ``dep_train``, ``dep_dev`` and ``dep_test`` with the files ``{a,b}.{toks,parents,rels}``, ``sim.txt`` and
    ``id.txt``, one sentence a line, and for ``entailment`` the tables ``SICK_….txt``. `read_dependencies` explains
    ``relations`` and ``head``. Relatedness is a number from 1 to 5, for regression; entailment has three classes.

    >>> load_sick("no/such/folder")
    Traceback (most recent call last):
    ...
    treefold.errors.ReadError: no/such/folder/dep_train/a.toks: expected a file that can be read, got ...
    """
    require_choice("load_sick", "target", target, ["relatedness", "entailment"])
    root = Path(folder)
    trees: list[Tree] = []
    labels: list[str] = []
    splits = {}
    for split, name in _FOLDERS.items():
        place, start = root / name, len(labels)
        pairs = list(_pairs(place, relations, head))
        labels += _scores(place) if target == "relatedness" else _judgements(place, root / _TABLES[split])
        if len(labels) - start != len(pairs):
            raise ReadError(
                f"expected a label for each of {len(pairs)} pairs, got {len(labels) - start}; align the files",
                source=place,
            )
        trees += itertools.chain.from_iterable(pairs)
        splits[split] = np.arange(start, len(labels))
    made = {"task": "sick", "target": target, "relations": relations, "head": head}
    task = "regression" if target == "relatedness" else "pair"
    return Dataset.from_labels(trees, labels, splits, made, pairs=True, task=task)


def _pairs(place: Path, relations: bool, head: bool) -> Iterator[tuple[Tree, Tree]]:
    suffixes = ("toks", "parents", "rels") if relations else ("toks", "parents")
    sides = (read_dependencies(*(place / f"{side}.{suffix}" for suffix in suffixes), head=head) for side in "ab")
    for number, (left, right) in enumerate(itertools.zip_longest(*sides), 1):
        if left is None or right is None:
            short = place / ("a.toks" if left is None else "b.toks")
            raise ReadError(
                f"expected as many lines as the other side, got {number - 1}; align the files", source=short
            )
        yield left, right


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for line in lines_of(path):
        if line.problem:
            raise line.problem
        yield line.number, line.text.rstrip("\n")


def _scores(place: Path) -> Iterator[str]:
    path = place / "sim.txt"
    for number, text in _lines(path):
        if number_of(text) is None:
            raise ReadError(f"expected a number, the relatedness, got {text!r}; correct it", source=path, line=number)
        yield text.strip()


def _judgements(place: Path, table: Path) -> Iterator[str]:
    """Yield the classes of the pairs whose numbers are in ``id.txt``, which the table has by number."""
    rows = ((number, text.split("\t")) for number, text in _lines(table))
    _, header = next(rows, (1, [""]))
    for name in ("pair_ID", _JUDGEMENT):
        if name not in header:
            raise ReadError(
                f"expected a column {name!r}, got {', '.join(header)!r}; take the original table", source=table, line=1
            )
    known: dict[str, str] = {}
    for number, row in rows:
        if len(row) != len(header):
            raise ReadError(
                f"expected {len(header)} fields, got {len(row)}; correct the row", source=table, line=number
            )
        known[row[header.index("pair_ID")]] = row[header.index(_JUDGEMENT)]
    for number, text in _lines(place / "id.txt"):
        if text.strip() not in known:
            raise ReadError(
                f"expected the number of a pair of {table.name}, got {text!r}; take the files of one release",
                source=place / "id.txt",
                line=number,
            )
        yield known[text.strip()]
