"""The answers of a saved model for records of trees; an error in one record is reported with its place."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch

from treefold.analysis.explaining import probabilities
from treefold.data.readers.stream import OnBad, Record
from treefold.errors import ConfigurationError, ReadError, TreefoldError, VocabularyError, nearest
from treefold.training.saving import SavedModel
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree
from treefold.trees.vocabulary import UNKNOWN, require_policy

Trees = tuple[Tree, ...]
Answer = TypeVar("Answer")
_WHERE: Final = re.compile(r"^tree \d+ of the batch: ")


@final
class LabelCheck:
    """Counts the labels that a model does not know; with ``unknown="error"``, the first one is an error.

    So is then a node with more children than the model has slots for; else these children are ignored, with a warning.
    """

    def __init__(self, saved: SavedModel, unknown: str = "unk") -> None:
        require_policy("--unknown", "the policy", unknown)
        self.encoder, self.unknown = saved.model.encoder, unknown
        self.encoder.cut = unknown == "unk"
        self.labels: Counter[str] = Counter()
        self.nodes = 0

    def add(self, forest: Forest, trees: Ints | None = None) -> None:
        """Count the labels of all trees of a forest, or of some."""
        if self.encoder.known(forest.vocabulary).all():  # no need to copy the trees
            self.nodes += int((forest.sizes if trees is None else forest.sizes[trees]).sum())
            return
        forest = forest if trees is None else forest[trees]
        found = self.encoder.unknown_labels(forest)
        if found and self.unknown == "error":
            place = int(np.isin(forest.labels, [forest.vocabulary.code(label) for label in found]).argmax())
            label, known = forest.vocabulary[int(forest.labels[place])], self.encoder.vocabulary
            expected = f"one of the {len(known)} labels that the model knows" if len(known) else "a vector as label"
            raise VocabularyError(
                f"tree {int(np.searchsorted(forest.offsets, place, side='right')) - 1} of the batch: expected {expected}, got "
                f"{label!r}{nearest(label, known)}; correct it, or let it count as {UNKNOWN} with --unknown unk"
            )
        self.labels += found
        self.nodes += forest.node_count

    def note(self) -> str | None:
        """Return a line about the unknown labels, if there were any."""
        if not self.labels:
            return None
        count, nodes = len(self.labels), self.labels.total()
        one = count == 1
        labels, counts = ("label", "it counts") if one else ("labels", "they count")
        return f"note: the model does not know {count:,} {labels} ({nodes:,} of {self.nodes:,} nodes); {counts} as {UNKNOWN}"


def answered(
    records: Iterable[Record],
    compute: Callable[[list[Trees]], Sequence[Answer]],
    check: "LabelCheck",
    on_bad: OnBad | None,
) -> Iterator[tuple[Record, Answer]]:
    """Compute the answers for several records together, and yield each record with its answer.

    A bad record is passed to ``on_bad``. Without ``on_bad`` its error is raised, after the records before it were yielded.
    """
    ready: list[tuple[Record, Trees]] = []
    stop: ReadError | None = None
    for record in records:
        try:
            check.add(Forest(record.trees))
            ready.append((record, record.trees))
        except TreefoldError as problem:
            error = ReadError(_WHERE.sub("", str(problem)), source=record.source, line=record.line)
            if on_bad is None:
                stop = error
                break
            on_bad(error)
    yield from _computed(ready, compute, on_bad)
    if stop is not None:
        raise stop


def answers(saved: SavedModel, examples: list[Trees], forest: Forest | None = None) -> list[dict[str, Any]]:
    """Return for each example the prediction and, for classes, the probabilities; lists in post-order for nodes.

    ``forest`` has the trees of all examples, if there is one already.
    """
    require_task_fits(saved, examples)
    forest = Forest(tree for trees in examples for tree in trees) if forest is None else forest
    rows = probabilities(saved, forest)
    task, classes = saved.task, saved.classes
    if not task.has_classes:
        return [{"prediction": row if len(row) > 1 else row[0]} for row in rows.tolist()]
    best, codes = rows.max(1)
    names = [classes[code] for code in codes.tolist()]
    if not task.per_node:
        rounded = [[round(number, 6) for number in row] for row in rows.tolist()]
        return [
            {"prediction": name, "probabilities": dict(zip(classes, row, strict=True))}
            for name, row in zip(names, rounded, strict=True)
        ]
    bounds = zip(forest.offsets[:-1].tolist(), forest.offsets[1:].tolist(), strict=True)
    chances = [round(number, 6) for number in best.tolist()]
    return [{"prediction": names[start:end], "probability": chances[start:end]} for start, end in bounds]


def root_states(saved: SavedModel, examples: list[Trees]) -> list[npt.NDArray[np.float32]]:
    """Return the root states of each example's trees, (1 or 2, C) each."""
    with torch.no_grad():
        states = saved.model.encoder(Forest(tree for trees in examples for tree in trees).batch()).roots.numpy()
    return np.split(states, np.cumsum([len(trees) for trees in examples])[:-1])


def require_task_fits(saved: SavedModel, examples: list[Trees]) -> None:
    """Raise unless the examples are pairs for a model of pairs, and single trees for other models."""
    pairs = saved.task.trees == 2
    for trees in examples:
        if pairs and len(trees) != 2:
            raise ConfigurationError(
                'expected a pair, as the model judges pairs, got one tree; write {"left": "…", "right": "…"}, an object a line'
            )
        if not pairs and len(trees) != 1:
            raise ConfigurationError(
                'expected one tree, as the model judges single trees, got a pair; write {"tree": "…"}, an object a line'
            )


def _computed(
    ready: list[tuple[Record, Trees]], compute: Callable[[list[Trees]], Sequence[Answer]], on_bad: OnBad | None
) -> Iterator[tuple[Record, Answer]]:
    if not ready:
        return
    try:
        results = compute([trees for _, trees in ready])
    except TreefoldError as problem:
        if len(ready) > 1:  # one by one, to find the bad record
            for one in ready:
                yield from _computed([one], compute, on_bad)
            return
        record = ready[0][0]
        error = ReadError(_WHERE.sub("", str(problem)), source=record.source, line=record.line)
        if on_bad is None:
            raise error from None
        on_bad(error)
        return
    yield from zip((record for record, _ in ready), results, strict=True)
