"""The recursive neuron: one aggregator, then an activation."""

from typing import Any, final

from torch import Tensor

from treefold.errors import require_choice
from treefold.kernels.affine import activate, copy, slope
from treefold.kernels.compile import kernel
from treefold.kernels.layout import CellKernel, CellLayout
from treefold.kernels.records import Gradients, Plan, States, Weights
from treefold.nn.aggregators import Aggregator, Initialisation
from treefold.nn.cells.base import ACTIVATIONS, Activation, InnerCell, LeafCell, make_aggregator, take_sizes

# Axes:  N nodes of one level · L child slots · C state size · M label size


@kernel
def rnn_forward(weights: Weights, plan: Plan, states: States, start: int, stop: int, operator: int) -> None:
    """Turn the pre-activations of units into h."""
    for unit in range(start, stop):
        copy(states.gates[unit], states.memory[unit])
        activate(states.memory[unit], weights.tables.operators[operator].activation)


@kernel
def rnn_backward(
    weights: Weights, plan: Plan, states: States, gradients: Gradients, start: int, stop: int, operator: int
) -> None:
    """Turn the gradient of h into that of the pre-activations."""
    for unit in range(start, stop):
        copy(gradients.memory[unit], gradients.gates[unit])
        slope(states.memory[unit], weights.tables.operators[operator].activation, gradients.gates[unit])


_KERNEL = CellKernel(rnn_forward, rnn_backward)


@final
class TreeRNN(InnerCell):
    r"""The recursive neuron: :math:`h_v = \sigma(f(x_v, h_{v1}, \dots, h_{vL}))` with an aggregator f.

    ``aggregator`` is a name of `AGGREGATORS` with its sizes and the options of its form, or an aggregator object.

    >>> import torch
    >>> cell = TreeRNN("sum", state_size=4, arity=2, label_size=3)
    >>> cell(torch.zeros(5, 3), torch.zeros(5, 2, 4)).shape
    torch.Size([5, 4])
    """

    kernel = _KERNEL

    def __init__(
        self,
        aggregator: str | Aggregator,
        *,
        state_size: int | None = None,
        arity: int | None = None,
        rank: int | None = None,
        label_size: int | None = None,
        shared: bool = False,
        activation: Activation = "tanh",
        initialisation: Initialisation = "balanced",
        **options: Any,
    ) -> None:
        super().__init__()
        require_choice("TreeRNN", "activation", activation, ACTIVATIONS)
        pattern = make_aggregator(aggregator, state_size, arity, rank, label_size, shared, initialisation, **options)
        take_sizes(self, pattern)
        self.memory_size = self.state_size
        self.activation = activation
        self.transition = pattern

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return h (N, C)."""
        return ACTIVATIONS[self.activation](self.transition(children, label))

    def gates(self) -> list[Aggregator]:
        """Return f."""
        return [self.transition]

    def lay_out(self, layout: CellLayout) -> None:
        """Add f."""
        layout.add_cell(self.gates(), self.activation)


@final
class LeafRNN(LeafCell):
    r"""The base case of the recursion for leaves that have a label vector and nothing else: :math:`h = \sigma(W x + b)`.

    >>> import torch
    >>> LeafRNN(label_size=3, state_size=4)(torch.zeros(5, 3), torch.zeros(5, 0, 4)).shape
    torch.Size([5, 4])
    """

    kernel = _KERNEL
    gate_count = 1

    def __init__(
        self,
        *,
        label_size: int,
        state_size: int,
        activation: Activation = "tanh",
        initialisation: Initialisation = "balanced",
    ) -> None:
        super().__init__(label_size, state_size, state_size, activation, initialisation)

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return h (N, C)."""
        return ACTIVATIONS[self.activation](self.affine(label))
