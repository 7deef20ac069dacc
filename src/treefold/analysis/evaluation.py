"""How good a model is on a data set: scores over the whole set, and by the shape of the trees."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, TreefoldError, VocabularyError, nearest
from treefold.training.examples import Examples, by_nodes, outputs_of
from treefold.training.saving import SavedModel
from treefold.training.settings import Task
from treefold.trees.forest import Forest

# Axes:  n examples · T trees · N nodes · K classes
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ALL: Final = "all"
_BATCH_NODES: Final = 20_000  # below the batches of `outputs_of`, so that each run is one batch


@final
@dataclass(frozen=True)
class Group:
    """Some of the judged answers: how many, and their accuracy or, for numbers, mean absolute error."""

    count: int
    score: float


@final
@dataclass(frozen=True)
class Evaluation:
    """What a model achieves on a split: trees, pairs or, for ``task="node"``, nodes with a known label are judged.

    - ``scores``: ``accuracy`` and ``macro_f1``; for numbers ``r2``, ``mae`` and ``rmse``;
    - ``groups``: by ``depth``, ``size`` and ``arity`` (most children of a node) of the tree; of pairs by ``inner_nodes``,
      those of the tree that has more;
    - ``confusion`` (K, K): how often the class of the row got the answer of the column; none for numbers.
    """

    task: Task
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
        """The score by which models are compared: accuracy, or the share of variance explained."""
        return self.scores["r2" if self.task == "regression" else "accuracy"]

    def to_json(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        facts = {**asdict(self), "classes": list(self.classes), "confusion": [list(row) for row in self.confusion]}
        scores = facts.pop("scores")
        return {**{name: facts.pop(name) for name in ("task", "split", "count", "unlabelled")}, **scores, **facts}


def evaluate(
    saved: SavedModel, data: Dataset, split: str | None = None, *, progress: Callable[[int], None] | None = None
) -> Evaluation:
    """Judge a model on a split of a data set, or on ``"all"`` examples; without a name, on the test split if there is one.

    Classes and labels are matched by name. ``progress`` is told how many examples are done.
    """
    task = saved.settings.task
    split, numbers = split_of(data, split)
    examples = _examples(saved, data, numbers)
    known = examples.known(numbers)
    _check_labels(saved, data.forest, data.trees_of(known))
    truth, answers, losses = _answers(saved, examples, known, progress or (lambda done: None))
    shapes = _shapes(data, known, task)
    if task == "node":
        judged = truth >= 0
        truth, answers, losses = truth[judged], answers[judged], losses[judged]
        shapes = {name: keys[judged] for name, keys in shapes.items()}
    if not len(truth):
        raise ConfigurationError(
            f"evaluation expects examples with a known label in {split!r}, got none of {len(numbers)}; "
            f"choose another split, or convert the data with labels."
        )
    common: dict[str, Any] = {
        "task": task,
        "split": split,
        "count": len(truth),
        "unlabelled": (len(judged) if task == "node" else len(numbers)) - len(truth),
        "loss": float(losses.mean()),
    }
    if task == "regression":
        error = answers - truth
        scores = {
            "r2": r_squared(truth, answers),
            "mae": float(np.abs(error).mean()),
            "rmse": float(np.sqrt(np.square(error).mean())),
        }
        return Evaluation(**common, scores=scores, groups=_grouped(shapes, np.abs(error)))
    matrix = confusion_matrix(truth, answers, len(saved.classes))
    right = truth == answers
    return Evaluation(
        **common,
        scores={"accuracy": float(right.mean()), "macro_f1": macro_f1(matrix)},
        groups=_grouped(shapes, right.astype(np.float64)),
        classes=saved.classes,
        confusion=tuple(tuple(row) for row in matrix.tolist()),
    )


def split_of(data: Dataset, split: str | None) -> tuple[str, Ints]:
    """Return the name and the numbers of a split; None is the test split where there is one, else all examples.

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


def confusion_matrix(truth: Ints, answers: Ints, classes: int) -> Ints:
    """Count how often each class (row) got each answer (column).

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return np.bincount(truth * classes + answers, minlength=classes**2).reshape(classes, classes)


def macro_f1(matrix: Ints) -> float:
    r"""Return the mean of the classes' F1 scores, of those classes that occur as truth or as answer.

    .. math:: F_1 = \frac{2\,\mathrm{right}}{\mathrm{true} + \mathrm{answered}}

    >>> macro_f1(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]]))
    0.6666666666666666
    """
    total = matrix.sum(0) + matrix.sum(1)
    return float((2 * matrix.diagonal()[total > 0] / total[total > 0]).mean())


def r_squared(truth: Floats, answers: Floats) -> float:
    r"""Return the share of variance explained, :math:`1 - \sum (y - \hat y)^2 / \sum (y - \bar y)^2`.

    Of numbers that are all the same it is one where all answers are right, and zero otherwise.

    >>> r_squared(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0]))
    0.5
    """
    variance, error = float(np.square(truth - truth.mean()).sum()), float(np.square(truth - answers).sum())
    return 1 - error / variance if variance else float(error == 0)


def _examples(saved: SavedModel, data: Dataset, numbers: Ints) -> Examples:
    """Take the data set's examples with the classes of the model."""
    task = saved.settings.task
    if (task == "pair") != data.pairs:
        kinds = ("pairs of trees", "single trees")
        raise ConfigurationError(
            f"the model expects {kinds[task != 'pair']}, got a data set of {kinds[not data.pairs]}; give it data of its task."
        )
    if task == "regression":
        return Examples.of(data, task)
    targets = data.targets
    if task == "node":
        if data.node_targets is None:
            raise ConfigurationError("the model expects a data set with a label for every node, got one without.")
        targets = data.node_targets
    chosen = targets[data.forest.node_rows(numbers)] if task == "node" else targets[numbers]
    codes = {name: code for code, name in enumerate(saved.classes)}
    for code in np.unique(chosen[chosen >= 0]).tolist():
        name = data.classes[code]
        if name not in codes:
            raise ConfigurationError(
                f"expected the model's {len(codes)} classes, got {name!r} in the data set"
                f"{nearest(name, codes)}; rename it, or train with it."
            )
    table = np.array([*(codes.get(name, -1) for name in data.classes), -1])
    return Examples(data.forest, table[targets], task)


def _check_labels(saved: SavedModel, forest: Forest, trees: Ints) -> None:
    """Raise where a chosen tree has a label that the model does not know, and name the tree."""
    known = saved.model.encoder.vocabulary
    own = np.append(forest.vocabulary.codes_in(known), 0)  # the last: vectors, which the model checks
    if own.min() >= 0:
        return
    rows = forest.node_rows(trees)
    unknown = rows[own[np.maximum(forest.labels[rows], -1)] < 0]
    if len(unknown):
        name = forest.vocabulary[int(forest.labels[unknown[0]])]
        tree = int(np.searchsorted(forest.offsets, unknown[0], side="right")) - 1
        raise VocabularyError(
            f"tree {tree} of the data set: expected one of the {len(known)} labels that the model knows, got {name!r}"
            f"{nearest(name, known)}; correct the label, or train with it."
        )


def _answers(
    saved: SavedModel, examples: Examples, numbers: Ints, progress: Callable[[int], None]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Floats]:
    """Return for each example, or node, the truth, the model's answer and the loss, (n,) each."""
    truths, answers, losses = [], [], []
    done = 0
    for run in by_nodes(numbers, examples.sizes(numbers), _BATCH_NODES):
        try:
            outputs = outputs_of(saved.model, examples, run).double()
        except TreefoldError as problem:
            raise _in_data_set(problem, examples.trees_of(run)) from None
        truth = examples.target(run)
        if examples.task == "regression":
            losses.append((outputs - truth).square().mean(1).numpy())
            truths.append(truth[:, 0].numpy())
            answers.append(outputs[:, 0].numpy())
        else:
            losses.append(nn.functional.cross_entropy(outputs, truth, ignore_index=-1, reduction="none").numpy())
            truths.append(truth.numpy())
            answers.append(torch.argmax(outputs, 1).numpy())
        done += len(run)
        progress(done)
    if not truths:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    return np.concatenate(truths), np.concatenate(answers), np.concatenate(losses)


def _in_data_set(problem: TreefoldError, trees: Ints) -> TreefoldError:
    """Say which tree of the data set an error is about, where it names one of the batch."""

    def name(match: re.Match[str]) -> str:
        return f"tree {trees[int(match[1])]} of the data set"

    return type(problem)(re.sub(r"^tree (\d+) of the batch", name, str(problem)))


def _shapes(data: Dataset, numbers: Ints, task: Task) -> dict[str, Ints]:
    """Return what examples are grouped by: for each example, or node, the depth, size and arity of its tree."""
    trees = np.stack([2 * numbers, 2 * numbers + 1], axis=1).reshape(-1) if data.pairs else numbers
    forest = data.forest[trees]
    if not len(forest):
        return {}
    starts = forest.offsets[:-1]
    inside = forest.parents >= 0
    rows = (np.repeat(starts, forest.sizes) + forest.parents)[inside]
    children = np.bincount(rows, minlength=forest.node_count)
    if data.pairs:
        return {"inner_nodes": np.add.reduceat(children > 0, starts, dtype=np.int64).reshape(-1, 2).max(1)}
    shapes = {
        "depth": np.maximum.reduceat(forest.depths, starts),
        "size": forest.sizes,
        "arity": np.maximum.reduceat(children, starts),
    }
    return {name: np.repeat(keys, forest.sizes) for name, keys in shapes.items()} if task == "node" else shapes


def _grouped(shapes: dict[str, Ints], values: Floats) -> dict[str, dict[str, Group]]:
    """Average values over examples of one shape; sizes are in bins of doubling width."""
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
