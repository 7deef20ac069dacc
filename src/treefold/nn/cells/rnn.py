"""The recursive neuron: one aggregator, then an activation."""

from typing import Any, final

from torch import Tensor

from treefold.errors import require_choice, require_positive
from treefold.kernels.affine import (
    activate,
    affine,
    affine_inputs_backward,
    affine_weights_backward,
    clear,
    copy,
    slope,
    tanh,
)
from treefold.kernels.compile import kernel, matrix
from treefold.kernels.layout import CellKernel, CellLayout
from treefold.kernels.records import TANH, Gradients, Plan, States, Weights
from treefold.nn.aggregators import Aggregator, Initialisation
from treefold.nn.cells.base import ACTIVATIONS, Activation, Affine, InnerCell, LeafCell, make_aggregator, take_sizes

# Axes:  N nodes of one level · L child slots · C state size · M label size


@kernel
def rnn_forward(weights: Weights, plan: Plan, states: States, start: int, stop: int, operator: int) -> None:
    """Turn the pre-activations of units into h, through the hidden layer if there is one."""
    row, size, zero = weights.tables.operators[operator], weights.tables.state_size, start - start
    if row.hidden >= 0:
        for unit in range(start, stop):
            tanh(states.gates[unit, : row.out_size])
        columns = matrix(weights.values, row.hidden, row.out_size + 1, size)
        affine(states.memory, zero, start, stop, states.gates, zero, plan.identity, columns)
    for unit in range(start, stop):
        if row.hidden < 0:
            copy(states.gates[unit, :size], states.memory[unit])
        activate(states.memory[unit], row.activation)


@kernel
def rnn_backward(
    weights: Weights, plan: Plan, states: States, gradients: Gradients, start: int, stop: int, operator: int
) -> None:
    """Turn the gradient of h into that of the pre-activations, and add that of the hidden layer."""
    row, size, zero = weights.tables.operators[operator], weights.tables.state_size, start - start
    for unit in range(start, stop):
        slope(states.memory[unit], row.activation, gradients.memory[unit])
        if row.hidden < 0:
            copy(gradients.memory[unit], gradients.gates[unit])
    if row.hidden >= 0:
        width, units = row.out_size, plan.identity[start:stop]
        columns = matrix(weights.values, row.hidden, width + 1, size)
        d_columns = matrix(gradients.values, row.hidden, width + 1, size)
        clear(gradients.gates, start, stop, width)
        affine_inputs_backward(gradients.memory, zero, start, stop, gradients.gates, zero, plan.identity, columns)
        affine_weights_backward(gradients.memory, zero, units, states.gates, zero, plan.identity, d_columns)
        for unit in range(start, stop):
            slope(states.gates[unit, :width], TANH, gradients.gates[unit, :width])


_KERNEL = CellKernel(rnn_forward, rnn_backward)


@final
class TreeRNN(InnerCell):
    r"""The recursive neuron: :math:`h_v = \sigma(f(x_v, h_{v1}, \dots, h_{vL}))` with an aggregator f.

    ``aggregator`` is a name of `AGGREGATORS` with its sizes and options, or an aggregator object. ``hidden`` adds a layer of so
    many numbers after the aggregation, :math:`h_v = \sigma(Q_2 \tanh(f(\dots)) + b_2)`. ``activation`` is σ: tanh, sigmoid,
    sharp-sigmoid (:math:`1 / (1 + e^{2 - 4z})`), or clamp (to [0, 1]).

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
        hidden: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        require_choice("TreeRNN", "activation", activation, ACTIVATIONS)
        if hidden is not None:
            require_positive("TreeRNN", hidden=hidden)
        pattern = make_aggregator(
            aggregator, state_size, arity, rank, label_size, shared, initialisation, out_size=hidden, **options
        )
        take_sizes(self, pattern)
        self.memory_size = self.state_size
        self.activation = activation
        self.transition = pattern
        self.hidden = None if hidden is None else Affine(hidden, self.state_size, pattern.initialisation)

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return h (N, C)."""
        result = self.transition(children, label)
        return ACTIVATIONS[self.activation](result if self.hidden is None else self.hidden(result.tanh()))

    def unsupported_reason(self) -> str | None:
        """Say what the fused kernels expect and this cell is not."""
        if self.hidden is not None and not all(part.has_free_output for part in self.transition.summands):
            return f"a form with an output matrix for a hidden layer, got {type(self.transition).__name__}"
        return super().unsupported_reason()

    def gates(self) -> list[Aggregator]:
        """Return f."""
        return [self.transition]

    def lay_out(self, layout: CellLayout) -> None:
        """Add f."""
        layout.add_cell(self.gates(), self.activation, hidden=self.hidden)


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
