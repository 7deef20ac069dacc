"""The heads of classifiers as kernels: what they make of the roots' memories, and the way back, without autograd."""

import abc
from typing import Final, final

import numpy as np
from torch import nn

from treefold.kernels.comparisons import comparison_backward, comparison_forward, comparison_layout
from treefold.kernels.compiled import planner
from treefold.kernels.layout import Layout
from treefold.kernels.parts import parts_of
from treefold.kernels.perceptrons import layers_layout, perceptron_backward, perceptron_forward
from treefold.kernels.tables import PART, Floats, Ints, Weights

# Axes:  U units · S memory size · n roots · m trees or pairs · K classes
_MOST: Final = 25_000_000
"""Multiply-adds of all pairs above which the matrix products of torch are faster than its calls are slow."""


class Scores(abc.ABC):
    """A head whose parameters stand as its layout says: `forward` is what it computes, `gradients` what it learns from."""

    trees: int
    """How many trees a row of scores is for."""
    layout: Layout | None
    """None where the head has something that the kernels do not know."""

    @property
    @abc.abstractmethod
    def in_size(self) -> int:
        """The size of the states that are scored."""

    def suits(self, cell: Layout) -> bool:
        """Say whether the states are those of a cell; else torch says what is wrong."""
        return self.layout is not None and self.in_size == cell.state_size

    def can_share_out(self, trees: int) -> bool:
        """Say whether the kernels can share so many trees out among threads, and are faster than torch."""
        return True

    @abc.abstractmethod
    def forward(self, weights: Weights, memory: Floats, roots: Ints) -> Floats:
        """Return the scores (m, K) for memories (U, S) and the units of roots (n,)."""

    @abc.abstractmethod
    def gradients(
        self, weights: Weights, memory: Floats, roots: Ints, classes: Ints, total: int, d_values: Floats
    ) -> tuple[float, int, Floats]:
        """Return the sum of the cross-entropies, the number of right answers, and the gradient of the memories (U, S).

        That of the weights is added to ``d_values``; both are those of the sum over ``total``.
        """


@final
class TreeScores(Scores):
    """Linear layers with ReLU between, one row of scores for each root."""

    trees = 1

    def __init__(self, layers: nn.Sequential) -> None:
        self.layout = layers_layout(layers)

    @property
    def in_size(self) -> int:
        """The inputs of the first layer."""
        return 0 if self.layout is None else self.layout.sets[0][PART]

    def forward(self, weights: Weights, memory: Floats, roots: Ints) -> Floats:
        """Run the layers."""
        return perceptron_forward(weights.values, weights.sets, memory, roots)[1]

    def gradients(
        self, weights: Weights, memory: Floats, roots: Ints, classes: Ints, total: int, d_values: Floats
    ) -> tuple[float, int, Floats]:
        """Run the layers, and back."""
        return perceptron_gradients(weights.values, weights.sets, memory, roots, classes, total, d_values)


@final
class PairScores(Scores):
    """A tensor that compares two roots, leaky ReLU, a linear layer; the roots are those of left trees, then of right ones."""

    trees = 2

    def __init__(self, head: nn.Module) -> None:
        self.layout = comparison_layout(head)

    def can_share_out(self, trees: int) -> bool:
        """Say no where left and right trees would be on different threads, or many pairs meet a large tensor."""
        return parts_of(trees) == 1 and self.layout is not None and trees // 2 * self.layout.size <= _MOST

    @property
    def in_size(self) -> int:
        """The entries of a root that the tensor takes, but for the one that is always one."""
        return 0 if self.layout is None else self.layout.state_size

    def forward(self, weights: Weights, memory: Floats, roots: Ints) -> Floats:
        """Compare."""
        return comparison_forward(weights.values, weights.sets, weights.state_size, memory, roots)[2]

    def gradients(
        self, weights: Weights, memory: Floats, roots: Ints, classes: Ints, total: int, d_values: Floats
    ) -> tuple[float, int, Floats]:
        """Compare, and go back."""
        tables = weights.values, weights.sets, weights.state_size
        return comparison_gradients(*tables, memory, roots, classes, total, d_values)


@planner
def perceptron_gradients(
    values: Floats, layers: Ints, memory: Floats, roots: Ints, classes: Ints, total: int, d_values: Floats
) -> tuple[float, int, Floats]:
    """Do what `TreeScores.gradients` does, in one call."""
    hidden, scores = perceptron_forward(values, layers, memory, roots)
    loss, right = cross_entropy(scores, classes, total)
    d_memory = np.zeros_like(memory)
    perceptron_backward(values, layers, memory, roots, hidden, scores, d_memory, d_values)
    return loss, right, d_memory


@planner
def comparison_gradients(
    values: Floats,
    layers: Ints,
    state_size: int,
    memory: Floats,
    roots: Ints,
    classes: Ints,
    total: int,
    d_values: Floats,
) -> tuple[float, int, Floats]:
    """Do what `PairScores.gradients` does, in one call."""
    carried, compared, scores = comparison_forward(values, layers, state_size, memory, roots)
    loss, right = cross_entropy(scores, classes, total)
    d_memory = np.zeros_like(memory)
    comparison_backward(values, layers, state_size, memory, roots, carried, compared, scores, d_memory, d_values)
    return loss, right, d_memory


@planner
def cross_entropy(scores: Floats, classes: Ints, total: int) -> tuple[float, int]:
    """Return the sum of the losses and the number of right answers; put the gradient of the sum over total into the scores."""
    loss, right = 0.0, 0
    for e in range(len(scores)):
        line = scores[e]
        best = 0
        for k in range(len(line)):
            best = k if line[k] > line[best] else best
        highest = line[best]
        of_class = line[classes[e]] - highest
        mass = line[0] - line[0]
        for k in range(len(line)):
            line[k] = np.exp(line[k] - highest)
            mass += line[k]
        loss += np.log(mass) - of_class
        right += best == classes[e]
        for k in range(len(line)):
            line[k] /= mass * total
        line[classes[e]] -= scores.dtype.type(1) / total
    return loss, right
