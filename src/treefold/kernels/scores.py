"""The heads of classifiers as kernels: what they make of the roots' memories, and the way back, without autograd."""

import abc
from typing import Final, final

from torch import nn

from treefold.kernels.comparisons import comparison_backward, comparison_forward, comparison_layout
from treefold.kernels.layout import Layout
from treefold.kernels.perceptrons import layers_layout, perceptron_backward, perceptron_forward
from treefold.kernels.tables import PART, Floats, Ints, Weights

# Axes:  U units · S memory size · n roots · m trees or pairs · K classes
_MOST: Final = 25_000_000
"""Multiply-adds of all pairs above which the matrix products of torch are faster than its calls are slow."""


class Scores(abc.ABC):
    """A head whose parameters stand as its layout says: `forward` is what it computes, `backward` adds all its gradients."""

    trees: int
    """How many trees a row of scores is for; where it is more than one, they cannot be shared out among threads."""
    layout: Layout | None
    """None where the head has something that the kernels do not know."""

    @property
    @abc.abstractmethod
    def in_size(self) -> int:
        """The size of the states that are scored."""

    def suits(self, cell: Layout) -> bool:
        """Say whether the states are those of a cell; else torch says what is wrong."""
        return self.layout is not None and self.in_size == cell.state_size

    def pays(self, trees: int) -> bool:
        """Say whether the kernels are faster than torch for so many trees."""
        return True

    @abc.abstractmethod
    def forward(self, weights: Weights, memory: Floats, roots: Ints) -> tuple[list[Floats], Floats]:
        """Return what `backward` needs, and the scores (m, K), for memories (U, S) and the units of roots (n,)."""

    @abc.abstractmethod
    def backward(
        self,
        weights: Weights,
        memory: Floats,
        roots: Ints,
        kept: list[Floats],
        d_scores: Floats,
        d_memory: Floats,
        d_values: Floats,
    ) -> None:
        """Add the gradients of the memories and of the weights for those of the scores."""


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

    def forward(self, weights: Weights, memory: Floats, roots: Ints) -> tuple[list[Floats], Floats]:
        """Run the layers."""
        hidden, scores = perceptron_forward(weights.values, weights.sets, memory, roots)
        return [hidden], scores

    def backward(
        self,
        weights: Weights,
        memory: Floats,
        roots: Ints,
        kept: list[Floats],
        d_scores: Floats,
        d_memory: Floats,
        d_values: Floats,
    ) -> None:
        """Run the layers back."""
        perceptron_backward(weights.values, weights.sets, memory, roots, kept[0], d_scores, d_memory, d_values)


@final
class PairScores(Scores):
    """A tensor that compares two roots, leaky ReLU, a linear layer; the roots are those of left trees, then of right ones."""

    trees = 2

    def __init__(self, head: nn.Module) -> None:
        self.layout = comparison_layout(head)

    def pays(self, trees: int) -> bool:
        """Say whether the kernels are faster: not for many pairs with a large tensor."""
        return self.layout is not None and trees // 2 * self.layout.size <= _MOST

    @property
    def in_size(self) -> int:
        """The entries of a root that the tensor takes, but for the one that is always one."""
        return 0 if self.layout is None else self.layout.state_size

    def forward(self, weights: Weights, memory: Floats, roots: Ints) -> tuple[list[Floats], Floats]:
        """Compare."""
        products, compared, scores = comparison_forward(weights.values, weights.sets, weights.state_size, memory, roots)
        return [products, compared], scores

    def backward(
        self,
        weights: Weights,
        memory: Floats,
        roots: Ints,
        kept: list[Floats],
        d_scores: Floats,
        d_memory: Floats,
        d_values: Floats,
    ) -> None:
        """Go back through the comparison."""
        tables = weights.values, weights.sets, weights.state_size
        comparison_backward(*tables, memory, roots, kept[0], kept[1], d_scores, d_memory, d_values)
