"""Examples to learn from: trees with targets, dealt into batches; and a model's outputs for them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, TrainingError
from treefold.kernels.gather import gather_batch
from treefold.kernels.threads import reserve_threads_for_kernels
from treefold.nn.engine import FusedEngine
from treefold.nn.model import TreeModel
from treefold.training.distributed import ALONE, Workers
from treefold.training.settings import TrainingSettings
from treefold.training.task import Task, Units, task_of
from treefold.trees.batch import Batch, Ints
from treefold.trees.forest import Forest

# Axes:  n examples · B examples of a batch · r rows of outputs · K classes or outputs
_EVALUATION_NUMBERS = 2_000_000  # entries of the states in one batch without gradients, roughly


@final
class Examples:
    """Trees with the targets of a task: classes (n,) of trees or pairs, of all nodes (N,), or numbers (n, K).

    Unknown targets (a class of -1) take no part. ``weights`` (n,) and ``class_weights`` (K,) scale the loss.

    >>> examples = Examples(Forest(["(f a)", "b"]), np.array([1, 0]), "tree")
    >>> examples.target(np.array([1])).tolist()
    [0]
    """

    def __init__(
        self,
        forest: Forest,
        targets: npt.NDArray[np.generic],
        task: Task | str,
        weights: npt.NDArray[np.float64] | None = None,
        class_weights: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.forest, self.targets, self.task = forest, targets, task_of(task)
        self.weights, self.class_weights = weights, class_weights

    @classmethod
    def of(cls, data: Dataset, task: Task | str, units: Units | None = None) -> "Examples":
        """Take the examples of a data set; numbers are standardised to the units of a model if these are given."""
        task = task_of(task)
        task.require(data)
        return cls(data.forest, (units or Units()).standardise(task.targets(data)), task)

    def __len__(self) -> int:
        return len(self.forest) // self.task.trees

    def trees_of(self, numbers: Ints) -> Ints:
        """Return the trees of examples, as a batch has them: the left trees of pairs, then the right ones."""
        return self.task.trees_of(numbers)

    def batch(self, numbers: Ints) -> Batch:
        """Return the batch of some examples."""
        return gather_batch(self.forest, self.trees_of(numbers))

    def target(self, numbers: Ints) -> Tensor:
        """Return the targets of some examples, one for each row of outputs."""
        rows = self.forest.node_rows(numbers) if self.task.per_node else numbers
        chosen = np.ascontiguousarray(self.targets[rows])
        return torch.from_numpy(chosen.astype(np.int64) if chosen.dtype.kind in "iu" else chosen)  # files have int32

    def plain_classes(self, numbers: Ints) -> Ints | None:
        """Return the classes of trees or pairs whose loss is the plain mean of cross-entropies, else None."""
        return np.ascontiguousarray(self.targets[numbers], np.int64) if self._is_plain else None

    def sizes(self, numbers: Ints) -> Ints:
        """Return the number of nodes of examples."""
        return self.task.sizes(self.forest, numbers)

    def inner_counts(self, numbers: Ints) -> Ints:
        """Return the number of nodes with children of examples; of a pair, that of the larger tree.

        >>> Examples(Forest(["(f (g a))", "(f a b)"]), np.array([1, 0]), "tree").inner_counts(np.arange(2)).tolist()
        [2, 1]
        """
        forest = self.forest
        counts = np.add.reduceat(forest.child_counts > 0, forest.offsets[:-1], dtype=np.int64)
        return np.asarray(counts[self.trees_of(numbers)].reshape(-1, len(numbers)).max(0))

    def row_counts(self, numbers: Ints) -> Ints:
        """Return the number of rows of outputs of each example."""
        return self.sizes(numbers) if self.task.per_node else np.ones(len(numbers), np.int64)

    def known(self, numbers: Ints) -> Ints:
        """Return those of the numbers whose target is known; of nodes, some may be unknown."""
        return numbers if self.task.per_node else numbers[self.task.is_known(self.targets[numbers])]

    def loss(self, outputs: Tensor, numbers: Ints) -> Tensor:
        """Return the mean loss of a batch."""
        target = self.target(numbers).to(outputs.device)
        if self._is_plain:
            return nn.functional.cross_entropy(outputs, target)
        class_weights = None if self.class_weights is None else torch.from_numpy(self.class_weights).to(outputs)
        losses = self.task.losses(outputs, target, class_weights)
        if self.weights is not None:
            weights = np.repeat(self.weights[numbers], self.row_counts(numbers))
            losses = losses * torch.from_numpy(weights).to(outputs)
        return losses.sum() / max(self.target_count(target), 1)

    def target_count(self, target: Tensor) -> int:
        """Count the known among the targets of a batch; only those of nodes can be unknown."""
        return int((target >= 0).sum()) if self.task.per_node else len(target)

    @property
    def _is_plain(self) -> bool:
        task = self.task
        return task.is_plain and self.weights is None and self.class_weights is None


def epoch_batches(examples: Examples, numbers: Ints, settings: TrainingSettings, epoch: int) -> list[Ints]:
    """Deal examples into the batches of an epoch, in an order that depends on the seed and the epoch alone.

    Batches have ``batch_size`` examples, or at most ``batch_nodes`` nodes if that is set. ``bucketed`` puts examples of
    similar size together and shuffles the batches.
    """
    rng = np.random.default_rng([settings.seed, epoch])
    order = rng.permutation(numbers)
    if settings.bucketed:
        order = order[np.argsort(examples.sizes(order), kind="stable")]
    if settings.batch_nodes is None:
        batches = [order[start : start + settings.batch_size] for start in range(0, len(order), settings.batch_size)]
    else:
        batches = list(by_nodes(order, examples.sizes(order), settings.batch_nodes))
    if settings.bucketed:
        batches = [batches[index] for index in rng.permutation(len(batches))]
    return batches


class Stage(NamedTuple):
    """A stage of a curriculum: its examples, its first step, and the step after its last."""

    pool: Ints
    start: int
    end: int


@final
class Curriculum:
    """The batches of a training by the ``curriculum`` of its settings, small trees first.

    The training has as many steps as without it. Each stage takes its share of them, and passes through its shuffled pool again
    and again, in orders that depend on the seed, the stage and the number of the pass alone.

    >>> examples = Examples(Forest(["a", "(f a)", "(f (f a))"]), np.array([0, 1, 0]), "tree")
    >>> settings = TrainingSettings(curriculum=[[1, 0.5], ["none", 0.5]], batch_size=2, epochs=2)
    >>> curriculum = Curriculum(examples, np.arange(3), settings)
    >>> [sorted(batch.tolist()) for batch in curriculum.batches(0)], curriculum.stage_of(2)
    ([[0, 1], [0, 1]], 1)
    """

    def __init__(self, examples: Examples, numbers: Ints, settings: TrainingSettings) -> None:
        assert settings.curriculum is not None
        self.seed, self.batch_size = settings.seed, settings.batch_size
        self.steps = math.ceil(len(numbers) / settings.batch_size)  # of an epoch
        counts = examples.inner_counts(numbers)
        self.stages: list[Stage] = []
        total, done, start = settings.epochs * self.steps, 0.0, 0
        for place, (limit, share) in enumerate(settings.curriculum, 1):
            pool = numbers if limit is None else numbers[counts <= limit]
            if not len(pool):
                raise ConfigurationError(
                    f"curriculum expects trees of at most {limit} inner nodes for its stage {place}, got none: "
                    f"the smallest has {counts.min()}; raise the limit."
                )
            done += share
            end = total if place == len(settings.curriculum) else round(total * done)
            self.stages.append(Stage(pool, start, end))
            start = end

    @property
    def epochs_before_last_stage(self) -> int:
        """The number of epochs until the last stage has begun."""
        return math.ceil(self.stages[-1].start / self.steps)

    def stage_of(self, step: int) -> int:
        """Return the number of a step's stage, from 0."""
        return next((place for place, stage in enumerate(self.stages) if step < stage.end), len(self.stages) - 1)

    def batches(self, epoch: int) -> list[Ints]:
        """Return the batches of an epoch."""
        first, size = epoch * self.steps, self.batch_size
        found = []
        for place, stage in enumerate(self.stages):
            per_pass = math.ceil(len(stage.pool) / size)
            order, current = stage.pool, -1
            for step in range(max(first, stage.start), min(first + self.steps, stage.end)):
                turn, batch = divmod(step - stage.start, per_pass)
                if turn != current:
                    order = np.random.default_rng([self.seed, place, turn]).permutation(stage.pool)
                    current = turn
                found.append(order[batch * size : (batch + 1) * size])
        return found


def by_nodes(order: Ints, sizes: Ints, budget: int) -> Iterator[Ints]:
    """Cut an order into runs of at most ``budget`` nodes, each of at least one example.

    >>> [run.tolist() for run in by_nodes(np.arange(4), np.array([3, 3, 9, 1]), 6)]
    [[0, 1], [2], [3]]
    """
    ends, start = np.cumsum(sizes), 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, before + budget, side="right")), start + 1)
        yield order[start:end]
        start = end


@contextmanager
def evaluating(model: TreeModel) -> Iterator[None]:
    """Set a model to evaluation without gradients; afterwards, each of its modules is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def outputs_of(model: TreeModel, examples: Examples, numbers: Ints) -> Tensor:
    """Return a model's outputs for examples, in their order, computed in large batches without gradients."""
    is_fused = isinstance(model.engine(), FusedEngine)
    with evaluating(model), reserve_threads_for_kernels() if is_fused else nullcontext():
        # More trees in a batch share more subtrees, but large states take memory.
        nodes = min(max(_EVALUATION_NUMBERS // model.encoder.out_size, 20_000), 100_000)
        runs = by_nodes(numbers, examples.sizes(numbers), nodes)
        predict = model.predictor()
        return torch.cat([predict(examples.forest, examples.trees_of(run)) for run in runs])


def answers_of(model: TreeModel, examples: Examples, numbers: Ints) -> Tensor:
    """Return a trained model's outputs as `outputs_of` does; raise if they are NaN or infinite, since they then mean nothing."""
    outputs = outputs_of(model, examples, numbers)
    if not bool(outputs.isfinite().all()):
        broken = [name for name, value in model.state_dict().items() if not bool(value.isfinite().all())]
        cause = f"the weights {broken[0]!r} are" if broken else "states became"
        raise TrainingError(
            f"a model expects finite weights and labels, but {cause} NaN or infinite; load a saved copy, or train again with "
            f"a smaller learning_rate."
        )
    return outputs


@final
@dataclass(frozen=True)
class Score:
    """How good a model is on some examples: the mean loss, and the task's score (accuracy, or R² for numbers)."""

    loss: float
    score: float

    @classmethod
    def of(cls, model: TreeModel, examples: Examples, numbers: Ints, workers: Workers = ALONE) -> "Score":
        """Measure a model on examples; if there are several processes, each computes its share."""
        if len(numbers) < workers.count:
            outputs = outputs_of(model, examples, numbers)
        else:
            rows = examples.row_counts(numbers)
            before = int(rows[: workers.first_of(len(numbers))].sum())
            own = outputs_of(model, examples, workers.share(numbers))
            outputs = workers.joined_rows(own, before, int(rows.sum()))
        outputs = outputs.double()
        return cls(float(examples.loss(outputs, numbers)), examples.task.score(outputs, examples.target(numbers)))
