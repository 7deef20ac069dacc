"""The heads of classifiers as kernels: what they make of the roots' memories, and the way back, without autograd."""

import abc
from typing import Final, final

from torch import nn

from treefold.kernels.comparisons import comparison_backward, comparison_forward, comparison_layout
from treefold.kernels.layout import Layout
from treefold.kernels.perceptrons import layers_layout, perceptron_backward, perceptron_forward
from treefold.kernels.tables import Floats, Ints, Weights

# Axes:  U units · S memory size · n roots · m trees or pairs · K classes
_MOST: Final = (
    25_000_000  # products of a batch from which the matrix products of torch are faster than its calls are slow
)


class Scores(abc.ABC):
    """A head whose parameters stand as its layout says: `forward` is what it computes, `backward` adds all its gradients."""

    takes_runs: bool
    """Whether a run of a batch's trees can be scored without the others."""
    layout: Layout | None
    """None where the head has something that the kernels do not know, or where torch is faster."""

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

    takes_runs = True

    def __init__(self, layers: nn.Sequential) -> None:
        self.layout = layers_layout(layers)

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

    takes_runs = False

    def __init__(self, head: nn.Module, pairs: int) -> None:
        layout = comparison_layout(head)
        self.layout = layout if layout is not None and pairs * layout.size <= _MOST else None

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
