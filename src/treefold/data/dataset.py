"""Data sets: trees with classes and splits, saved as a directory that records how it was made."""

import hashlib
import itertools
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from reprlib import repr as shortened
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from treefold.errors import ConfigurationError, ForestFileError, ShapeError
from treefold.files import FolderKind, as_path, atomic_folder, has_half_character, read_json
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest, chosen_numbers, read_columns, write_columns
from treefold.trees.tree import Tree

# Axes:  n examples · N nodes
VERSION: Final = 1
SPLITS: Final = ("train", "validation", "test")
FACTS: Final = "dataset.json"
DATASET: Final = FolderKind(
    "a data set",
    FACTS,
    '"treefold dataset"',
    (FACTS, "trees.forest", "examples.columns", "vocabulary.json", "skipped.txt"),
)
_CHUNK: Final = 1_000_000  # rows of which a checksum is taken at a time


@final
@dataclass(frozen=True)
class Dataset:
    """Examples with classes and splits; an example is one tree, or two (a pair), and belongs to at most one split.

    - ``forest``: example e has tree e; of pairs, the trees 2e and 2e + 1;
    - ``targets`` (n,): the index of the example's class in ``classes``, -1 if it has none; numbers are classes, too, by their
      names (``"4.5"``), and `numbers` returns them;
    - ``splits``: the numbers of the examples of ``train``, ``validation`` and ``test``;
    - ``node_targets`` (N,): the class of every subtree, in the order of the forest's nodes, or None;
    - ``made``: how the data set was made, for `dataset.json`;
    - ``task``: the task that the data set is meant for, ``tree``, ``pair``, ``node`` or ``regression``; None if nobody said.

    >>> data = Dataset(Forest(["(f a)", "b"]), np.array([1, 0]), ("no", "yes"), {"train": np.array([0, 1])})
    >>> len(data), data.trees_of([1]).tolist()
    (2, [1])
    """

    forest: Forest
    targets: Ints
    classes: tuple[str, ...]
    splits: Mapping[str, Ints]
    pairs: bool = False
    node_targets: Ints | None = None
    made: Mapping[str, Any] = field(default_factory=dict)
    task: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.splits, Mapping):
            raise ConfigurationError(
                f"expected splits with names and numbers, got {shortened(self.splits)}; give a dict."
            )
        for name, part in self.splits.items():
            # an empty array may be of floats, because np.array([]) is
            if not isinstance(part, np.ndarray) or part.ndim != 1 or (part.size and part.dtype.kind not in "iu"):
                raise ShapeError(f"the split {name!r} expects an array of whole numbers, got {shortened(part)}.")
        expected = len(self.forest) // (2 if self.pairs else 1)
        if len(self.targets) != expected:
            raise ShapeError(
                f"a data set of {len(self.forest)} trees expects {expected} labels, one for each "
                f"{'pair' if self.pairs else 'tree'}, got {len(self.targets)}."
            )
        if self.node_targets is not None and len(self.node_targets) != self.forest.node_count:
            raise ShapeError(
                f"node labels are one for each of {self.forest.node_count} nodes, got {len(self.node_targets)}."
            )
        for targets in (self.targets, self.node_targets):
            if targets is not None and len(targets) and not -1 <= targets.min() <= targets.max() < len(self.classes):
                raise ShapeError(
                    f"expected labels from 0 to {len(self.classes) - 1}, the numbers of the classes, or -1 for no class; "
                    f"got labels from {targets.min()} to {targets.max()}."
                )
        texts = json.dumps([self.classes, list(self.splits), self.made, self.task], ensure_ascii=False, default=str)
        if has_half_character(texts):  # `open` would refuse it
            raise ConfigurationError(
                "expected classes, splits, `made` and `task` of whole characters, got text with half of a surrogate pair; "
                "remove it."
            )
        if any(name.endswith("\0") for name in self.classes):  # numpy would drop it, and classes would become one
            raise ConfigurationError("expected classes without a NUL at the end, got one; remove it.")
        for name, part in self.splits.items():
            if len(part) and not 0 <= part.min() <= part.max() < expected:
                raise ShapeError(f"the split {name!r} has numbers outside the {expected} examples.")

    @classmethod
    def from_labels(
        cls,
        trees: Iterable[Tree | str],
        labels: Sequence[str | float],
        splits: Mapping[str, Ints],
        made: Mapping[str, Any] | None = None,
        *,
        pairs: bool = False,
        task: str | None = None,
    ) -> "Dataset":
        """Make a data set from trees and the names of their classes, or their numbers.

        Of ``pairs`` the trees are left, right, left, right, … and there is a label for each pair.

        >>> Dataset.from_labels(["(f a)", "b"], ["yes", "no"], {"train": np.array([0, 1])}).targets
        array([1, 0])
        >>> Dataset.from_labels(["(f a)", "b"], [4.5], {}, pairs=True, task="regression").numbers()
        array([4.5])
        """
        names = [label if isinstance(label, str) else repr(float(label)) for label in labels]
        classes = tuple(sorted(set(names)))
        codes = {name: code for code, name in enumerate(classes)}
        targets = np.array([codes[name] for name in names], dtype=np.int64)
        return cls(Forest(trees), targets, classes, splits, pairs=pairs, made=made or {}, task=task)

    def __len__(self) -> int:
        return len(self.targets)

    def trees_of(self, examples: Sequence[int] | Ints) -> Ints:
        """Return the numbers of the trees of some examples, for `Forest.batch`; of pairs, first the left ones, then the right."""
        chosen = chosen_numbers(examples, len(self), "examples")
        return np.concatenate([2 * chosen, 2 * chosen + 1]) if self.pairs else chosen

    def numbers(self) -> npt.NDArray[np.float64]:
        """Return the targets as numbers (n,), NaN where there is none; raise if the name of a class is not a finite number.

        >>> Dataset(Forest(["a", "b", "c"]), np.array([1, -1, 0]), ("-1", "2.5"), {}).numbers()
        array([ 2.5,  nan, -1. ])
        """
        for name in self.classes:
            if number_of(name) is None:
                raise ConfigurationError(
                    f"expected labels that are numbers, got {name!r}; choose a task of classes, or correct the label."
                )
        return np.array([*map(float, self.classes), np.nan])[self.targets]

    def keys(self) -> list[bytes]:
        """Return a key for each example; equal examples have equal keys."""
        keys = tree_keys(self.forest)
        return [left + right for left, right in zip(keys[::2], keys[1::2], strict=True)] if self.pairs else keys

    def fingerprint(self) -> dict[str, int]:
        """Return counts and a checksum of all data that training and evaluation use.

        >>> forest, splits = Forest(["a", "b"]), {"train": np.array([0, 1])}
        >>> one, other = (Dataset(forest, np.array(targets), ("no", "yes"), splits) for targets in ([0, 1], [1, 0]))
        >>> one.fingerprint() == other.fingerprint()
        False
        """
        forest = self.forest
        facts = {**self.summary(), "classes": self.classes, "labels": list(forest.vocabulary)}
        arrays: list[npt.NDArray[Any]] = [forest.offsets, forest.labels, forest.parents, forest.slots, forest.widths]
        arrays += [forest.vectors, self.targets, *(self.splits[name] for name in sorted(self.splits))]
        arrays += [] if self.node_targets is None else [self.node_targets]
        checksum = zlib.crc32(json.dumps(facts, sort_keys=True).encode())
        for array in arrays:
            kind = (
                np.int64 if array.dtype.kind == "i" else np.float64
            )  # the same for narrower types, in memory and on disk
            for start in range(0, len(array), _CHUNK):
                checksum = zlib.crc32(array[start : start + _CHUNK].astype(kind).tobytes(), checksum)
        return {"examples": len(self), "nodes": forest.node_count, "crc32": checksum}

    def summary(self) -> dict[str, Any]:
        """Return the content of `dataset.json`."""
        return {
            "format": "treefold dataset",
            "version": VERSION,
            "examples": len(self),
            "pairs": self.pairs,
            "trees": len(self.forest),
            "nodes": self.forest.node_count,
            "arity": self.forest.arity,
            "depth": self.forest.depth,
            "node_labels": self.node_targets is not None,
            "splits": {name: len(part) for name, part in self.splits.items()},
            "made": dict(self.made),
            **({} if self.task is None else {"task": self.task}),  # left out, so that old fingerprints stay the same
        }

    def save(
        self, folder: str | os.PathLike[str], *, force: bool = False, texts: Mapping[str, str] | None = None
    ) -> None:
        """Write the data set as a directory, atomically; ``texts`` are the contents of further files by their names."""
        with atomic_folder(folder, DATASET if force else None) as place:
            self.forest.save(place / "trees.forest")
            columns: dict[str, npt.NDArray[Any]] = {"targets": self.targets.astype(np.int32)}
            columns |= {f"split {name}": part.astype(np.int64) for name, part in self.splits.items()}
            if self.node_targets is not None:
                columns["node_targets"] = self.node_targets.astype(np.int32)
            write_columns(place / "examples.columns", {"kind": "examples"}, columns)
            vocabulary = {"labels": list(self.forest.vocabulary), "classes": list(self.classes)}
            (place / "vocabulary.json").write_text(json.dumps(vocabulary, indent=1) + "\n", encoding="utf-8")
            (place / FACTS).write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")
            for name, text in (texts or {}).items():
                (place / name).write_text(text, encoding="utf-8", errors="backslashreplace")

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool | None = None) -> "Dataset":
        """Open a saved data set; trees stay on disk until they are used. ``verify`` is that of `Forest.open`."""
        folder = as_path(folder)
        if not (folder / FACTS).is_file():
            raise ForestFileError(
                f"{folder}: expected a data set, a directory with dataset.json, got "
                f"{'a directory without it' if folder.is_dir() else 'no such directory'}; "
                f"make one with `treefold data convert` or `treefold data listops`."
            )
        facts = read_json(folder / FACTS, ForestFileError, "make the data set again")
        if facts.get("format") != "treefold dataset" or facts.get("version") != VERSION:
            raise ForestFileError(
                f"{folder}: expected a treefold dataset of version {VERSION}, got {facts.get('format')!r} of version "
                f"{facts.get('version')!r}; open it with the version of treefold that wrote it, or make it again."
            )
        forest = Forest.open(folder / "trees.forest", verify=verify)
        _, columns = read_columns(folder / "examples.columns", kind="examples", verify=True)  # all of it is read anyway
        vocabulary = read_json(folder / "vocabulary.json", ForestFileError, "make the data set again")
        prefix = "split "
        try:
            _require_kinds(facts, vocabulary.get("classes"), columns)
            return cls(
                forest=forest,
                targets=columns["targets"].astype(np.int64),
                classes=tuple(vocabulary["classes"]),
                splits={name.removeprefix(prefix): part for name, part in columns.items() if name.startswith(prefix)},
                pairs=bool(facts["pairs"]),
                node_targets=columns.get("node_targets"),
                made=facts["made"],
                task=facts.get("task"),
            )
        except (KeyError, TypeError, ShapeError) as problem:
            raise ForestFileError(
                f"{folder}: expected files that fit together, got {problem}; make it again."
            ) from None


def number_of(label: str) -> float | None:
    """Return the finite number that a label writes, or None.

    >>> number_of("-1.5e3"), number_of("n/a"), number_of("nan")
    (-1500.0, None, None)
    """
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _require_kinds(facts: Mapping[str, Any], classes: Any, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise unless the values of the files of a data set have the types that `Dataset` needs."""
    for name, column in columns.items():
        if column.ndim != 1 or column.dtype.kind != "i":
            raise ShapeError(f"a column {name!r} of {column.dtype} with shape {column.shape}")
    if (
        not isinstance(classes, list)
        or not all(isinstance(name, str) for name in classes)
        or len({*classes}) < len(classes)
    ):
        raise ShapeError(f"classes that are not a list of distinct texts: {shortened(classes)}")
    if not isinstance(facts["made"], dict) or not isinstance(facts.get("task"), str | None):
        raise ShapeError(f"a {FACTS} that does not say how it was made, or for which task")


def tree_keys(forest: Forest) -> list[bytes]:
    """Return a 16-byte key for each tree; two trees of one forest have equal keys if and only if they are equal.

    >>> keys = tree_keys(Forest(["(f a)", "(f b)", "(f a)"]))
    >>> keys[0] == keys[2] != keys[1]
    True
    """
    forest.verify()
    table = np.stack([forest.labels, forest.parents, forest.slots, forest.widths], axis=1)
    vector = table[:, 0] < 0  # equal vectors may be different rows: take the first of them
    if vector.any():
        _, first = np.unique(forest.vectors[-1 - table[vector, 0]], axis=0, return_inverse=True)
        table[vector, 0] = -1 - first.reshape(-1)
    data = table.tobytes()
    width = table.shape[1] * table.itemsize
    bounds = (forest.offsets * width).tolist()
    return [hashlib.blake2b(data[start:end], digest_size=16).digest() for start, end in itertools.pairwise(bounds)]
