"""How good a model is on a data set: scores over the whole split, and by the shape of the trees."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import numpy as np
import torch

from treefold.analysis.prediction import LabelCheck
from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, TreefoldError, nearest
from treefold.training.examples import Examples, answers_of, by_nodes
from treefold.training.saving import SavedModel
from treefold.training.task import Array, Floats, task_of
from treefold.trees.batch import Ints
from treefold.trees.drawing import html_box, html_table

# Axes:  n examples · N nodes · r judged trees, pairs or nodes · K classes
ALL: Final = "all"
_SHOWN_CLASSES: Final = 20  # in the confusion matrix of a notebook
_BATCH_NODES: Final = 20_000  # smaller than the batches of `answers_of`, so that each run is one batch


@final
@dataclass(frozen=True)
class Group:
    """Predictions for trees of one shape: how many, and their accuracy or, for numbers, mean absolute error."""

    count: int
    score: float


@final
@dataclass(frozen=True)
class Evaluation:
    """How good a model is on a split. All trees, pairs or nodes (by the ``task``) with a known label are judged.

    - ``loss``: the mean of the losses, as in training, which standardises numbers;
    - ``scores``: ``accuracy`` and ``macro_f1``; for numbers ``r2``, ``mae``, ``rmse``, ``pearson`` and ``mse``, in the units of
      the data;
    - ``groups``: by ``depth``, ``size`` and ``arity`` (most children of a node) of the tree; of pairs by ``inner_nodes`` of
      the tree that has more;
    - ``confusion`` (K, K): how often the class of the row was predicted as the class of the column; empty for numbers.
    """

    task: str
    split: str
    count: int
    unlabelled: int
    loss: float
    scores: Mapping[str, float]
    groups: Mapping[str, Mapping[str, Group]]
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()

    @property
    def score(self) -> float:
        """The score by which models are compared, the first of the scores: accuracy, or R² for numbers."""
        return next(iter(self.scores.values()))

    def _repr_html_(self) -> str:  # in notebooks
        of = f"{self.split}, {self.count:,}" + (f" ({self.unlabelled:,} without a label)" if self.unlabelled else "")
        rows = [("split", of), ("loss", f"{self.loss:.4f}"), *((n, f"{score:.4f}") for n, score in self.scores.items())]
        parts = [html_table(rows)]
        if 0 < len(self.classes) <= _SHOWN_CLASSES:
            counts = [(name, *row) for name, row in zip(self.classes, self.confusion, strict=True)]
            parts.append(html_table(counts, ("class, predicted as", *self.classes)))
        for shape, groups in self.groups.items():
            lines = [(name, f"{group.count:,}", f"{group.score:.4f}") for name, group in groups.items()]
            table = html_table(lines, (shape.replace("_", " "), "count", task_of(self.task).group_score_name))
            parts.append(f"<details><summary>by {shape.replace('_', ' ')}</summary>{table}</details>")
        return html_box(*parts)

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        facts = {**asdict(self), "classes": list(self.classes), "confusion": [list(row) for row in self.confusion]}
        scores = facts.pop("scores")
        return {**{name: facts.pop(name) for name in ("task", "split", "count", "unlabelled")}, **scores, **facts}


def evaluate(
    saved: SavedModel,
    data: Dataset,
    split: str | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    check: LabelCheck | None = None,
) -> Evaluation:
    """Evaluate a model on a split of a data set, or on ``"all"`` examples; None is the test split if there is one.

    Classes and labels are matched by name. ``progress`` is called with the number of examples done. ``check`` counts labels that
    the model does not know, or makes them errors.
    """
    task = saved.task
    data.forest.verify()
    split, numbers = split_of(data, split)
    examples = examples_of(saved, data, numbers)
    known = examples.known(numbers)
    if check is not None and len(known):
        trees = examples.trees_of(known)
        try:
            check.add(data.forest, trees)
        except TreefoldError as problem:
            raise _in_data_set(problem, trees) from None
    truth, predictions, losses = _predictions(saved, examples, known, progress or (lambda done: None))
    shapes, total = _shapes(examples, known), len(numbers)
    if task.per_node:
        judged, total = task.is_known(truth), len(truth)
        truth, predictions, losses = truth[judged], predictions[judged], losses[judged]
        shapes = {name: keys[judged] for name, keys in shapes.items()}
    if not len(truth):
        raise ConfigurationError(
            f"evaluation expects examples with a known label in {split!r}, got none of {len(numbers)}; "
            f"choose another split, or convert the data with labels."
        )
    report = task.report(truth, predictions, len(saved.classes))
    return Evaluation(
        task=task.name,
        split=split,
        count=len(truth),
        unlabelled=total - len(truth),
        loss=float(losses.mean()),
        scores=report.scores,
        groups=_grouped(shapes, report.values),
        classes=saved.classes,
        confusion=report.confusion,
    )


def split_of(data: Dataset, split: str | None) -> tuple[str, Ints]:
    """Return the name and the numbers of a split; None is the test split if there is one, else all examples.

    >>> from treefold import Forest
    >>> split_of(Dataset(Forest(["a", "b"]), np.array([0, 0]), ("yes",), {}), None)
    ('all', array([0, 1]))
    """
    if split is None:
        split = "test" if len(data.splits.get("test", ())) else ALL
    if split == ALL:
        return ALL, np.arange(len(data))
    if split not in data.splits:
        known = [*data.splits, ALL]
        raise ConfigurationError(
            f"expected a split of the data set, {', '.join(map(repr, known))}, got {split!r}{nearest(split, known)}."
        )
    return split, np.asarray(data.splits[split])


def examples_of(saved: SavedModel, data: Dataset, numbers: Ints) -> Examples:
    """Take the data set's examples, with the classes of the model."""
    examples = Examples.of(data, saved.task)
    if not saved.task.has_classes:
        return examples
    codes = {name: code for code, name in enumerate(saved.classes)}
    chosen = examples.target(numbers).numpy()
    for code in np.unique(chosen[chosen >= 0]).tolist():
        name = data.classes[code]
        if name not in codes:
            raise ConfigurationError(
                f"expected the model's {len(codes)} classes, got {name!r} in the data set"
                f"{nearest(name, codes)}; rename it, or train with it."
            )
    table = np.array([*(codes.get(name, -1) for name in data.classes), -1])
    return Examples(data.forest, table[np.asarray(examples.targets, np.int64)], saved.task)


def _predictions(
    saved: SavedModel, examples: Examples, numbers: Ints, progress: Callable[[int], None]
) -> tuple[Array, Array, Floats]:
    """Return the truth, the prediction and the loss of each example or node, (r,) each."""
    found: list[tuple[Array, Array, Floats]] = []
    done, task = 0, examples.task
    for run in by_nodes(numbers, examples.sizes(numbers), _BATCH_NODES):
        try:
            outputs = answers_of(saved.model, examples, run).double()
        except TreefoldError as problem:
            raise _in_data_set(problem, examples.trees_of(run)) from None
        truth = examples.target(run)
        flat = truth.numpy() if task.has_classes else truth[:, 0].numpy()
        standard = torch.from_numpy(saved.units.standardise(truth.numpy()))
        predictions = saved.units.restore(task.predictions(outputs))
        found.append((flat, predictions, task.losses(outputs, standard).numpy()))
        done += len(run)
        progress(done)
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    truths, answers, losses = map(np.concatenate, zip(*found, strict=True))
    return truths, answers, losses


def _in_data_set(problem: TreefoldError, trees: Ints) -> TreefoldError:
    """Replace the number of a tree in its batch, if an error names one, by its number in the data set."""

    def name(match: re.Match[str]) -> str:
        return f"tree {trees[int(match[1])]} of the data set"

    return type(problem)(re.sub(r"^tree (\d+) of the batch", name, str(problem)))


def _shapes(examples: Examples, numbers: Ints) -> dict[str, Ints]:
    """Return the shapes by which examples are grouped: depth, size and arity of the tree of each example or node, (r,)."""
    task, forest = examples.task, examples.forest[examples.trees_of(numbers)]
    if not len(forest):
        return {}
    starts = forest.offsets[:-1]
    inside = forest.parents >= 0
    rows = (np.repeat(starts, forest.sizes) + forest.parents)[inside]
    children = np.bincount(rows, minlength=forest.node_count)
    if task.trees > 1:
        inner_nodes = np.add.reduceat(children > 0, starts, dtype=np.int64)
        return {"inner_nodes": inner_nodes.reshape(task.trees, -1).max(0)}
    shapes = {
        "depth": np.maximum.reduceat(forest.depths, starts),
        "size": forest.sizes,
        "arity": np.maximum.reduceat(children, starts),
    }
    counts = examples.row_counts(numbers)
    return {name: np.repeat(keys, counts) for name, keys in shapes.items()}


def _grouped(shapes: dict[str, Ints], values: Floats) -> dict[str, dict[str, Group]]:
    """Average values over examples of one shape; sizes are put into bins of doubling width."""
    result: dict[str, dict[str, Group]] = {}
    for shape, keys in shapes.items():
        keys = np.floor(np.log2(keys)).astype(np.int64) if shape == "size" else keys
        found, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
        means = np.bincount(places, weights=values) / counts
        names = [_bin_name(key) if shape == "size" else str(key) for key in found.tolist()]
        rows = zip(names, counts.tolist(), means.tolist(), strict=True)
        result[shape] = {name: Group(count, mean) for name, count, mean in rows}
    return result


def _bin_name(power: int) -> str:
    return "1" if power == 0 else f"{2**power}–{2 ** (power + 1) - 1}"
