"""The data sets of the tasks, made or read: trees, values, classes and splits in one `Dataset`."""

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.data.dataset import Dataset
from treefold.data.generators import glycans, listops, lrt, metamath
from treefold.data.generators._common import OnBad, Progress, Split
from treefold.errors import ReadError
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

Paths = Sequence[str | os.PathLike[str]]
DIGITS = tuple(str(digit) for digit in range(10))


def make_listops(
    size: int = 100_000,
    seed: int = 0,
    settings: listops.ListOpsSettings | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Generate ListOps: digits as classes, the value of every subtree as node labels, the paper's split.

    >>> data = make_listops(100, seed=0)
    >>> {name: len(part) for name, part in data.splits.items()}
    {'train': 82, 'validation': 8, 'test': 10}
    """
    settings = settings or listops.ListOpsSettings()
    trees = listops.generate(size, seed, settings, progress)
    made = {"task": "listops", "size": size, "seed": seed, "settings": asdict(settings)}
    return _listops(trees, made, listops.split(size, seed))


def read_listops(
    paths: Paths, *, placement: listops.Placement = "left", seed: int = 0, on_bad: OnBad | None = None
) -> Dataset:
    """Read ListOps files of the original format; all of it is the test set."""
    trees = (
        tree
        for path in paths
        for tree, _ in _not_empty(listops.read_listops(path, placement=placement, seed=seed, on_bad=on_bad), path)
    )
    made = {"task": "listops", "from": _names(paths), "placement": placement, "seed": seed}
    return _listops(trees, made, None)


def _listops(trees: Iterable[Tree], made: dict[str, Any], split: Split | None) -> Dataset:
    values = array("b")

    def noted() -> Iterator[Tree]:
        for tree in trees:
            values.extend(listops.node_values(tree))
            yield tree

    forest = Forest(noted())
    node_targets = np.array(values, dtype=np.int64)
    return Dataset(
        forest=forest,
        targets=node_targets[forest.offsets[1:] - 1],
        classes=DIGITS,
        splits=_splits(split, len(forest)),
        node_targets=node_targets,
        made=made,
    )


def make_lrt(draws: int = 500_000, seed: int = 0, progress: Progress | None = None) -> Dataset:
    """Generate LRT as the original data were: pairs of sentences, seven relations as classes, split by bins.

    >>> data = make_lrt(200, seed=0)
    >>> data.pairs, data.classes
    (True, ('=', '<', '>', '^', '|', 'v', '#'))
    """
    pairs = lrt.generate(
        draws, seed, progress, keep_larger=True
    )  # as in the original files, whose last bin is 12 and more
    return _lrt(pairs, {"task": "lrt", "draws": draws}, seed, 0.15)


def read_lrt(
    paths: Paths, *, seed: int = 0, test_share: float = 0.15, check: bool = True, on_bad: OnBad | None = None
) -> Dataset:
    """Read LRT files of the original format, and split them by bins as `lrt.split` says.

    With ``check``, a line whose relation is not that of its sentences is malformed.
    """
    pairs = (pair for path in paths for pair in _not_empty(lrt.read_lrt(path, on_bad, check=check), path))
    return _lrt(pairs, {"task": "lrt", "from": _names(paths)}, seed, test_share)


def _lrt(pairs: Iterable[lrt.Pair], made: dict[str, Any], seed: int, test_share: float) -> Dataset:
    relations, operators = array("b"), array("b")
    codes = {name: code for code, name in enumerate(lrt.RELATIONS)}

    def noted() -> Iterator[Tree]:
        for pair in pairs:
            relations.append(codes[pair.relation])
            operators.append(pair.operators)
            yield pair.left
            yield pair.right

    forest = Forest(noted())
    return Dataset(
        forest=forest,
        targets=np.array(relations, dtype=np.int64),
        classes=lrt.RELATIONS,
        splits=lrt.split(np.array(operators, dtype=np.int64), seed, test_share=test_share)._asdict(),
        pairs=True,
        made={**made, "seed": seed, "test_share": test_share},
    )


def make_glycans(
    path: str | None = None,
    *,
    rank: glycans.Rank = "Kingdom",
    seed: int = 0,
    linkage: glycans.Linkage = "label",
    on_bad: OnBad | None = None,
) -> Dataset:
    """Load the glycans of the package glycowork with one organism class each, split by publication."""
    records = glycans.load_glycans(path, rank=rank, linkage=linkage, on_bad=on_bad)
    records = [record for record in records if len(record.labels) == 1]
    parts = glycans.split_by_publication(records, seed)
    return _classified(
        [record.tree for record in records],
        [record.labels[0] for record in records],
        {"train": parts.train, "validation": parts.validation, "test": parts.test},
        {"task": "glycans", "rank": rank, "linkage": linkage, "seed": seed, "split": str(parts)},
    )


def make_metamath(
    path: str | None = None, *, seed: int = 0, limit: int | None = None, progress: Progress | None = None
) -> Dataset:
    """Load the statements of set.mm for the task "were two arguments swapped?", split by contiguous blocks."""
    trees, labels = metamath.swap_task(metamath.load_metamath(path, limit, progress), seed)
    parts = Split(*metamath.split_by_block(len(trees)))
    return _classified(trees, labels, parts._asdict(), {"task": "metamath", "seed": seed, "limit": limit})


def _classified(
    trees: Sequence[Tree], labels: Sequence[str], splits: dict[str, npt.NDArray[np.int64]], made: dict[str, Any]
) -> Dataset:
    classes = tuple(sorted(set(labels)))
    codes = {name: code for code, name in enumerate(classes)}
    targets = np.array([codes[label] for label in labels], dtype=np.int64)
    return Dataset(Forest(trees), targets, classes, splits, made=made)


def _splits(split: Split | None, count: int) -> dict[str, npt.NDArray[np.int64]]:
    return split._asdict() if split is not None else {"test": np.arange(count, dtype=np.int64)}


def _names(paths: Paths) -> list[str]:
    # The names alone: where a file lay on one machine says nothing on another.
    return [Path(path).name for path in paths]


def _not_empty(items: Iterator[Any], path: str | os.PathLike[str]) -> Iterator[Any]:
    empty = True
    for item in items:
        empty = False
        yield item
    if empty:
        raise ReadError("expected at least one line that can be read, got none; check how it was written", source=path)
