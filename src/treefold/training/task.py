"""Tasks: classify trees, pairs or nodes, or predict numbers. A task has everything that depends on this choice."""

import abc
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, TrainingError
from treefold.nn.heads import Classifier, Head, NodeHead, PairClassifier, PairRegressor, Regressor
from treefold.training.plugins import registered
from treefold.training.settings import ModelSettings
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest

# Axes:  n examples · N nodes · r rows of outputs, one for each tree, pair or node · K classes or outputs
Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
LARGEST: Final = 1e100  # of the numbers to predict: sums of their squares must be finite


class Report(NamedTuple):
    """How good predictions are: scores, a value for each prediction (r,), and for classes the confusion matrix (K, K).

    Models are compared by the first of the scores. The values are averaged over groups of trees.
    """

    scores: dict[str, float]
    values: Floats
    confusion: tuple[tuple[int, ...], ...] = ()


class Units(NamedTuple):
    """The units of the numbers that a model predicts: a number of the data is offset + scale · (number of the model).

    Both have an entry for each of the K outputs. Without entries, as for classes, nothing changes.

    >>> units = Units(offset=(100.0,), scale=(10.0,))
    >>> units.standardise(np.array([[120.0], [95.0]])).tolist(), units.restore(np.array([2.0, -0.5])).tolist()
    ([[2.0], [-0.5]], [120.0, 95.0])
    """

    offset: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    def standardise(self, targets: Array) -> Array:
        """Turn targets of the data (n, K) into those that the model learns."""
        return (targets - np.array(self.offset)) / np.array(self.scale) if self.scale else targets

    def restore(self, numbers: Array) -> Array:
        """Turn numbers of the model, (n, K) or of its only output (n,), into those of the data."""
        return numbers * np.array(self.scale) + np.array(self.offset) if self.scale else numbers


class Task(abc.ABC):
    """What a model learns: its head, loss and score, and the trees and targets of an example.

    To add a task, write a subclass, for example of `TreeTask` with a different `head`, and put it into the registry under its
    name: ``TASKS["mine"] = Mine()``. Then ``task="mine"`` is a valid setting.
    """

    name: str
    trees: ClassVar[int] = 1
    """The number of trees of an example."""
    per_node: ClassVar[bool] = False
    """Whether there are a target and a row of outputs for each node, not for each example."""
    has_classes: ClassVar[bool] = True
    """Whether outputs are scores of classes; else they are numbers."""
    judged: ClassVar[str] = "tree"
    """What a row of outputs is about, in words."""
    score_name: ClassVar[str] = "accuracy"
    """The score by which models are compared, in words."""
    group_score_name: ClassVar[str] = "accuracy"
    """What is averaged over groups of trees, in words."""

    @abc.abstractmethod
    def head(self, settings: ModelSettings, in_size: int, outputs: int) -> Head:
        """Make the head of a model; ``outputs`` is the number of classes, or of numbers."""

    @abc.abstractmethod
    def targets(self, data: Dataset) -> Array:
        """Return the targets of a data set, one for each example or node."""

    @abc.abstractmethod
    def is_known(self, targets: Array) -> npt.NDArray[np.bool_]:
        """Say which targets are known (r,); the others take no part."""

    @abc.abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Return the loss of each row of outputs, (r, K) -> (r,)."""

    @abc.abstractmethod
    def count_right(self, outputs: Tensor, targets: Tensor) -> int:
        """Count the rows whose prediction is the target."""

    @abc.abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the score by which models are compared; larger is better."""

    @abc.abstractmethod
    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities of classes, or the predicted numbers, (r, K)."""

    @abc.abstractmethod
    def predictions(self, outputs: Tensor) -> Array:
        """Return the class, or the number, of each row of outputs, (r,)."""

    @abc.abstractmethod
    def report(self, truth: Array, predictions: Array, classes: int) -> Report:
        """Judge predictions (r,) by the truth (r,)."""

    @property
    def is_plain(self) -> bool:
        """Whether the loss is the mean of the cross-entropies of trees or pairs, which the kernels compute."""
        return type(self).losses is ClassTask.losses and not self.per_node

    def class_names(self, data: Dataset) -> tuple[str, ...]:
        """Return the names of a data set's classes; none for numbers."""
        return data.classes

    def outputs(self, data: Dataset) -> int:
        """Return how many outputs a model of a data set has."""
        return len(data.classes)

    def units(self, targets: Array, settings: ModelSettings) -> Units:
        """Return the units of a model's numbers, from the known targets (n, K) of the training; none for classes."""
        return Units()

    def require(self, data: Dataset) -> None:
        """Raise unless a data set has examples for this task."""
        if data.pairs != (self.trees == 2):
            kinds = {True: "pairs of trees", False: "single trees"}
            raise ConfigurationError(
                f"task {self.name!r} expects a data set of {kinds[not data.pairs]}, got one of {kinds[data.pairs]}; "
                f"choose the task that fits the data, or other data."
            )

    def trees_of(self, numbers: Ints) -> Ints:
        """Return the trees of examples, as a batch has them."""
        return numbers

    def sizes(self, forest: Forest, numbers: Ints) -> Ints:
        """Return the number of nodes of examples, (n,)."""
        return forest.sizes[numbers]

    def subtree_states(self, states: Tensor, sizes: list[int]) -> Tensor:
        """Return the states for which the head predicts about each subtree of an example.

        ``states`` (N, C) are those of all nodes of the example's trees, ``sizes`` the numbers of nodes of these trees.
        """
        return states


class ClassTask(Task):
    """A task whose targets are classes; -1 is an unknown class."""

    def targets(self, data: Dataset) -> Array:
        """Return the classes (n,)."""
        return data.targets

    def is_known(self, targets: Array) -> npt.NDArray[np.bool_]:
        """Say which classes are known."""
        return np.asarray(targets >= 0)

    def losses(self, outputs: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropies."""
        return nn.functional.cross_entropy(outputs, targets, weight=class_weights, ignore_index=-1, reduction="none")

    def count_right(self, outputs: Tensor, targets: Tensor) -> int:
        """Count the rows whose greatest output is that of the target."""
        # In numpy, whose calls cost less than torch's for so few numbers. No prediction is -1.
        right = outputs.detach().cpu().numpy().argmax(1) == targets.cpu().numpy()
        return int(np.count_nonzero(right))

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the accuracy."""
        return self.count_right(outputs, targets) / max(int((targets >= 0).sum()), 1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the softmax of the outputs."""
        return nn.functional.softmax(outputs, dim=1)

    def predictions(self, outputs: Tensor) -> Array:
        """Return the classes of the greatest outputs."""
        return outputs.argmax(1).numpy()

    def report(self, truth: Array, predictions: Array, classes: int) -> Report:
        """Return accuracy and macro-F1, which predictions are right, and the confusion matrix."""
        matrix, right = confusion_matrix(truth, predictions, classes), truth == predictions
        scores = {"accuracy": float(right.mean()), "macro_f1": macro_f1(matrix)}
        return Report(scores, right.astype(np.float64), tuple(tuple(row) for row in matrix.tolist()))


class TreeTask(ClassTask):
    """A class for each tree, from its root."""

    name = "tree"

    def head(self, settings: ModelSettings, in_size: int, outputs: int) -> Head:
        """Make a `Classifier`."""
        return Classifier(in_size=in_size, classes=outputs, hidden=settings.hidden, dropout=settings.dropout)


class _Pairs(Task):
    """A task about pairs of trees; pair p has the trees 2p (left) and 2p + 1 (right) of a forest."""

    trees, judged = 2, "pair"

    def trees_of(self, numbers: Ints) -> Ints:
        """Return all left trees, then all right ones."""
        return np.concatenate([2 * numbers, 2 * numbers + 1])

    def sizes(self, forest: Forest, numbers: Ints) -> Ints:
        """Return the number of nodes of both trees."""
        return np.asarray(forest.sizes[self.trees_of(numbers)].reshape(2, -1).sum(0))

    def subtree_states(self, states: Tensor, sizes: list[int]) -> Tensor:
        """Compare each subtree with the whole other tree: (N, C) -> (2N, C), the left states of all pairs, then the right."""
        left, right = torch.split(states, sizes)
        return torch.cat([left, left[-1:].expand_as(right), right[-1:].expand_as(left), right])


class PairTask(_Pairs, ClassTask):
    """A class for each pair of trees.

    >>> PairTask().trees_of(np.array([0, 3])).tolist()
    [0, 6, 1, 7]
    """

    name = "pair"

    def head(self, settings: ModelSettings, in_size: int, outputs: int) -> Head:
        """Make a `PairClassifier`."""
        return PairClassifier(
            in_size=in_size,
            classes=outputs,
            hidden_size=settings.comparison_size,
            dropout=settings.dropout,
            comparison=settings.comparison,
        )


class NodeTask(ClassTask):
    """A class for each node, from its state."""

    name, per_node, judged = "node", True, "node"

    def head(self, settings: ModelSettings, in_size: int, outputs: int) -> Head:
        """Make a `NodeHead`."""
        return NodeHead(in_size=in_size, classes=outputs, hidden=settings.hidden, dropout=settings.dropout)

    def targets(self, data: Dataset) -> Array:
        """Return the classes of all nodes (N,)."""
        assert data.node_targets is not None
        return data.node_targets

    def require(self, data: Dataset) -> None:
        """Raise unless the nodes of a data set have classes."""
        super().require(data)
        if data.node_targets is None:
            raise ConfigurationError("task 'node' expects a data set with a label for every node, got one without.")


class RegressionTask(Task):
    """A number, or several, for each tree; the names of a data set's classes are its numbers."""

    name, has_classes, score_name, group_score_name = "regression", False, "R²", "mean absolute error"

    def head(self, settings: ModelSettings, in_size: int, outputs: int) -> Head:
        """Make a `Regressor`."""
        return Regressor(in_size=in_size, outputs=outputs, hidden=settings.hidden, dropout=settings.dropout)

    def targets(self, data: Dataset) -> Array:
        """Return the numbers (n, 1); NaN if there is none."""
        return np.array([*(_number(name, self.name) for name in data.classes), np.nan])[data.targets][:, None]

    def class_names(self, data: Dataset) -> tuple[str, ...]:
        """Return none."""
        return ()

    def outputs(self, data: Dataset) -> int:
        """Return one."""
        return 1

    def units(self, targets: Array, settings: ModelSettings) -> Units:
        """Return means and standard deviations; the deviation of equal numbers counts as one."""
        deviation = targets.std(0)
        differ = (np.ptp(targets, 0) > 0) & (deviation > 0)
        return Units(tuple(targets.mean(0).tolist()), tuple(np.where(differ, deviation, 1.0).tolist()))

    def is_known(self, targets: Array) -> npt.NDArray[np.bool_]:
        """Say which rows are finite."""
        return np.asarray(np.isfinite(targets.astype(np.float64)).all(1))

    def losses(self, outputs: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Return the squared errors."""
        return (outputs - targets.to(outputs)).square().mean(1)

    def count_right(self, outputs: Tensor, targets: Tensor) -> int:
        """Return zero: numbers are not right or wrong."""
        return 0

    def score(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the share of variance explained."""
        return r_squared(targets.double().numpy(), self.probabilities(outputs.double()).numpy())

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the numbers."""
        return outputs

    def predictions(self, outputs: Tensor) -> Array:
        """Return the numbers (r,)."""
        return self.probabilities(outputs)[:, 0].numpy()

    def report(self, truth: Array, predictions: Array, classes: int) -> Report:
        """Return R², mean absolute, root mean squared and mean squared error, Pearson's correlation; the absolute errors."""
        error = predictions - truth
        scores = {
            "r2": r_squared(truth, predictions),
            "mae": float(np.abs(error).mean()),
            "rmse": float(np.sqrt(np.square(error).mean())),
            "pearson": pearson(truth, predictions),
            "mse": float(np.square(error).mean()),
        }
        return Report(scores, np.abs(error))


class PairRegressionTask(_Pairs, RegressionTask):
    """A number for each pair of trees, as a distribution over K levels, equally spaced from the least to the greatest number.

    The model's numbers are 0 … K-1, the outputs its scores of these levels. The prediction is the mean of the distribution.
    """

    name = "pair-regression"

    def head(self, settings: ModelSettings, in_size: int, outputs: int) -> Head:
        """Make a `PairRegressor`."""
        size = settings.comparison_size
        return PairRegressor(in_size=in_size, levels=settings.levels, hidden_size=size, dropout=settings.dropout)

    def units(self, targets: Array, settings: ModelSettings) -> Units:
        """Return the least number, and the distance between two levels."""
        least, greatest = float(targets.min()), float(targets.max())
        step = (greatest - least) / (settings.levels - 1)
        if not step > 0:
            got = f"{least:g} for all pairs" if len(targets) > 1 else "one sample"
            raise TrainingError(
                f"task {self.name!r} expects at least two different numbers, got {got}; there is nothing to learn; "
                f"check how they were made or split."
            )
        return Units((least,), (step,))

    def losses(self, outputs: Tensor, targets: Tensor, class_weights: Tensor | None = None) -> Tensor:
        """Return the Kullback–Leibler divergence of the predicted distribution from that of the target."""
        wanted = level_weights(targets[:, 0].to(outputs), outputs.shape[1])
        return nn.functional.kl_div(nn.functional.log_softmax(outputs, dim=1), wanted, reduction="none").sum(1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the means of the distributions (r, 1)."""
        levels = torch.arange(outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        return (nn.functional.softmax(outputs, dim=1) @ levels).unsqueeze(1)


TASKS: dict[str, Task] = {
    "tree": TreeTask(),
    "pair": PairTask(),
    "node": NodeTask(),
    "regression": RegressionTask(),
    "pair-regression": PairRegressionTask(),
}


def task_of(task: Task | str) -> Task:
    """Return a task by its name; a task is returned unchanged.

    >>> task_of("pair").trees
    2
    """
    if isinstance(task, Task):
        return task
    found: Task = registered("task", task)
    if found.name != task:  # files hold the name
        raise ConfigurationError(f"the task {task!r} of TASKS has the name {found.name!r}; set its `name` to {task!r}.")
    return found


def default_task(data: Dataset) -> str:
    """Return the name of the task for a data set if none is given: that of its conversion, or to classify trees or pairs."""
    if data.task is not None:
        return PairRegressionTask.name if data.pairs and data.task == RegressionTask.name else data.task
    return PairTask.name if data.pairs else TreeTask.name


def confusion_matrix(truth: Ints, predictions: Ints, classes: int) -> Ints:
    """Count how often each class (row) was predicted as each class (column).

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    return np.bincount(truth * classes + predictions, minlength=classes**2).reshape(classes, classes)


def macro_f1(matrix: Ints) -> float:
    r"""Return the mean F1 score of the classes that occur as truth or as prediction, from a confusion matrix.

    .. math:: F_1 = \frac{2\,\mathrm{right}}{\mathrm{true} + \mathrm{predicted}}

    >>> macro_f1(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]]))
    0.6666666666666666
    """
    total = matrix.sum(0) + matrix.sum(1)
    return float((2 * matrix.diagonal()[total > 0] / total[total > 0]).mean())


def r_squared(truth: Floats, predictions: Floats) -> float:
    r"""Return the share of variance explained, :math:`1 - \sum (y - \hat y)^2 / \sum (y - \bar y)^2`.

    If all numbers are equal, it is one if all predictions are right, else zero, as in scikit-learn.

    >>> r_squared(np.full(3, 0.1), np.full(3, 0.2)), r_squared(np.full(3, 0.1), np.full(3, 0.1))
    (0.0, 1.0)
    >>> r_squared(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0]))
    0.5
    """
    variance, error = float(np.square(truth - truth.mean(0)).sum()), float(np.square(truth - predictions).sum())
    is_constant = bool((truth == truth[:1]).all())  # the variance may be above zero, from rounding
    return float(error == 0) if is_constant else 1 - error / variance


def pearson(truth: Floats, predictions: Floats) -> float:
    r"""Return Pearson's correlation of numbers (r,) and their predictions; zero if either are all equal.

    >>> pearson(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 30.0])), pearson(np.array([1.0, 2.0]), np.array([0.1, 0.1]))
    (1.0, 0.0)
    """
    if np.ptp(truth) == 0 or np.ptp(predictions) == 0:
        return 0.0
    sides = [
        (side - side.mean()) / np.ptp(side) for side in (truth, predictions)
    ]  # squares of tiny numbers would vanish
    return float(np.clip(sides[0] @ sides[1] / np.sqrt((sides[0] @ sides[0]) * (sides[1] @ sides[1])), -1, 1))


def level_weights(numbers: Tensor, levels: int) -> Tensor:
    """Share each number (r,) between the two levels of 0 … K-1 next to it, linearly: (r, K). Beyond them, the last counts.

    >>> level_weights(torch.tensor([0.0, 1.25, 9.0]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.75, 0.25], [0.0, 0.0, 1.0]]
    """
    places = torch.arange(levels, dtype=numbers.dtype, device=numbers.device)
    return (1 - (numbers.clamp(0, levels - 1).unsqueeze(1) - places).abs()).clamp(min=0)


def _number(name: str, task: str) -> float:
    try:
        number = float(name)
    except ValueError:
        raise ConfigurationError(
            f"task {task!r} expects labels that are numbers, got {name!r}; choose another task."
        ) from None
    if LARGEST < abs(number) < np.inf:
        raise ConfigurationError(
            f"task {task!r} expects numbers of at most {LARGEST:g}, got {name}; divide all of them by the same number."
        )
    return number
