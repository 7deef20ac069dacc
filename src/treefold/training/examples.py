"""Examples to learn from: trees or pairs with what is to be said of them."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from treefold.data.dataset import Dataset
from treefold.errors import TrainingError
from treefold.kernels.gather import gather_batch
from treefold.kernels.threads import reserve_threads_for_kernels
from treefold.nn.engine import FusedEngine
from treefold.nn.model import TreeModel
from treefold.training.distributed import ALONE, Workers
from treefold.training.settings import Task, TrainingSettings
from treefold.trees.batch import Batch
from treefold.trees.forest import Forest

# Axes:  n examples · B examples of a batch · N nodes of a batch · K classes or outputs
Ints = npt.NDArray[np.int64]
_EVALUATION_NUMBERS = 2_000_000  # of the states in one batch without gradients, about


@final
@dataclass(frozen=True)
class Examples:
    """Trees with targets: classes (n,) of trees or pairs, numbers (n, K), or for ``task="node"`` classes of all nodes.

    A class of -1 is unknown and takes no part. ``weights`` (n,) and ``class_weights`` (K,) scale the loss.

    >>> examples = Examples(Forest(["(f a)", "b"]), np.array([1, 0]), "tree")
    >>> examples.target(np.array([1])).tolist()
    [0]
    """

    forest: Forest
    targets: npt.NDArray[np.generic]
    task: Task
    weights: npt.NDArray[np.float64] | None = None
    class_weights: npt.NDArray[np.float64] | None = None

    @classmethod
    def of(cls, data: Dataset, task: Task) -> "Examples":
        """Take the examples of a data set."""
        if (task == "pair") != data.pairs:
            kind = "pairs" if data.pairs else "single trees"
            raise TrainingError(f"task={task!r} does not fit a data set of {kind}; leave `task` out to go by the data.")
        if task == "node":
            if data.node_targets is None:
                raise TrainingError("task='node' expects a data set with a label for every node, got none.")
            return cls(data.forest, data.node_targets, task)
        if task == "regression":
            numbers = [_number(name) for name in data.classes]
            return cls(data.forest, np.array([*numbers, np.nan])[data.targets][:, None], task)
        return cls(data.forest, data.targets, task)

    def __len__(self) -> int:
        return len(self.forest) // (2 if self.task == "pair" else 1)

    def trees_of(self, numbers: Ints) -> Ints:
        """Return the trees of examples; of pairs, all left ones, then all right ones."""
        return np.concatenate([2 * numbers, 2 * numbers + 1]) if self.task == "pair" else numbers

    def batch(self, numbers: Ints) -> Batch:
        """Return the schedule of some examples."""
        return gather_batch(self.forest, self.trees_of(numbers))

    def target(self, numbers: Ints) -> Tensor:
        """Return the targets of some examples, of all their nodes for ``task="node"``."""
        rows = self.forest.node_rows(numbers) if self.task == "node" else numbers
        return torch.from_numpy(np.ascontiguousarray(self.targets[rows]))

    def plain_classes(self, numbers: Ints) -> Ints | None:
        """Return the classes of trees or pairs whose loss is cross-entropy without weights; None for other losses and tasks."""
        if self.task not in ("tree", "pair") or self.weights is not None or self.class_weights is not None:
            return None
        return np.ascontiguousarray(self.targets[numbers], np.int64)

    def sizes(self, numbers: Ints) -> Ints:
        """Return the number of nodes of examples."""
        sizes = self.forest.sizes
        return sizes[2 * numbers] + sizes[2 * numbers + 1] if self.task == "pair" else sizes[numbers]

    def known(self, numbers: Ints) -> Ints:
        """Return those of the numbers whose target is known."""
        if self.task == "node":
            return numbers
        if self.task == "regression":
            return numbers[np.isfinite(self.targets[numbers].astype(np.float64)).all(1)]
        return numbers[self.targets[numbers].astype(np.int64) >= 0]

    def loss(self, outputs: Tensor, numbers: Ints) -> Tensor:
        """Return the mean loss of a batch: cross-entropy, or the squared error of numbers."""
        target = self.target(numbers).to(outputs.device)
        if self.task in ("tree", "pair") and self.weights is None and self.class_weights is None:
            return nn.functional.cross_entropy(outputs, target)
        if self.task == "regression":
            losses = (outputs - target.to(outputs)).square().mean(1)
        else:
            weight = None if self.class_weights is None else torch.from_numpy(self.class_weights).to(outputs)
            losses = nn.functional.cross_entropy(outputs, target, weight=weight, ignore_index=-1, reduction="none")
        if self.weights is not None:
            weights = torch.from_numpy(self.weights[numbers]).to(outputs)
            if self.task == "node":
                weights = weights.repeat_interleave(torch.from_numpy(self.sizes(numbers)).to(outputs.device))
            losses = losses * weights
        count = len(losses) if self.task != "node" else max(int((target >= 0).sum()), 1)
        return losses.sum() / count


def _number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        raise TrainingError(
            f"task='regression' expects labels that are numbers, got {name!r}; choose another task."
        ) from None


def deal(examples: Examples, numbers: Ints, settings: TrainingSettings, epoch: int) -> list[Ints]:
    """Deal examples into the batches of an epoch, in an order that depends on the seed and the epoch alone.

    By count, or by nodes where ``batch_nodes`` is set. ``bucketed`` puts examples of similar size together and shuffles the
    batches.
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


def by_nodes(order: Ints, sizes: Ints, budget: int) -> Iterator[Ints]:
    """Cut an order into runs of at most ``budget`` nodes, of one example at least.

    >>> [run.tolist() for run in by_nodes(np.arange(4), np.array([3, 3, 9, 1]), 6)]
    [[0, 1], [2], [3]]
    """
    ends, start = np.cumsum(sizes), 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, before + budget, side="right")), start + 1)
        yield order[start:end]
        start = end


def outputs_of(model: TreeModel, examples: Examples, numbers: Ints) -> Tensor:
    """Return the model's outputs for examples, in their order, computed in large batches without gradients."""
    was_training = model.training
    model.eval()
    with torch.no_grad(), reserve_threads_for_kernels() if isinstance(model.engine(), FusedEngine) else nullcontext():
        # The more trees at once, the more subtrees are equal; the larger the states, the sooner memory matters.
        nodes = min(max(_EVALUATION_NUMBERS // model.encoder.out_size, 20_000), 100_000)
        runs = by_nodes(numbers, examples.sizes(numbers), nodes)
        answers = model.predictor()
        outputs = [answers(examples.forest, examples.trees_of(run)) for run in runs]
    model.train(was_training)
    return torch.cat(outputs)


def _shared_outputs(model: TreeModel, examples: Examples, numbers: Ints, workers: Workers) -> Tensor:
    """Return what `outputs_of` returns; of several processes each computes its share."""
    if len(numbers) < workers.count:
        return outputs_of(model, examples, numbers)
    share = workers.share(numbers)
    rows = examples.sizes(numbers) if examples.task == "node" else np.ones(len(numbers), np.int64)
    before = int(rows[: workers.first_of(len(numbers))].sum())
    return workers.joined_rows(outputs_of(model, examples, share), before, int(rows.sum()))


@final
@dataclass(frozen=True)
class Score:
    """How good outputs are over a whole set: the mean loss, and accuracy or, for numbers, the share of variance explained."""

    loss: float
    score: float

    @classmethod
    def of(cls, model: TreeModel, examples: Examples, numbers: Ints, workers: Workers = ALONE) -> "Score":
        """Measure a model on examples; of several processes each computes its share."""
        outputs = _shared_outputs(model, examples, numbers, workers).double()
        target = examples.target(numbers)
        loss = float(examples.loss(outputs, numbers))
        if examples.task == "regression":
            variance = float((target - target.mean(0)).square().mean())
            error = float((outputs - target).square().mean())
            return cls(loss, 1 - error / variance if variance else 0.0)
        known = target >= 0
        right = (outputs.argmax(1) == target)[known]
        return cls(loss, float(right.double().mean()) if len(right) else 0.0)
