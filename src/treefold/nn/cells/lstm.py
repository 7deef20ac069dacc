"""The Tree-LSTM."""

from typing import Any, final

import torch
from torch import Tensor

from treefold.errors import ShapeError, require_choice
from treefold.kernels.affine import activate, copy, sigmoid, slope, tanh
from treefold.kernels.compile import kernel
from treefold.kernels.fold import present_children
from treefold.kernels.layout import CellKernel, CellLayout
from treefold.kernels.records import SIGMOID, Gradients, Plan, States, Weights
from treefold.nn.aggregators import Aggregator, Initialisation
from treefold.nn.aggregators.base import present_count
from treefold.nn.cells.base import (
    ACTIVATIONS,
    Activation,
    ChildGates,
    InnerCell,
    LeafCell,
    fresh_copy,
    make_aggregator,
    take_sizes,
)

# Axes:  N nodes of one level · L child slots · C state size · M label size


@kernel
def lstm_forward(weights: Weights, plan: Plan, states: States, start: int, stop: int, operator: int) -> None:
    """Turn the pre-activations of units into [h; c]; keep tanh(c) for each unit and the forget gate of each child."""
    size, row = weights.tables.state_size, weights.tables.operators[operator]
    for unit in range(start, stop):
        gates, memory, squashed = states.gates[unit], states.memory[unit], states.units[unit]
        sigmoid(gates[: 2 * size])
        activate(gates[2 * size :], row.activation)
        h, c = memory[:size], memory[size:]
        i, o, u = gates[:size], gates[size : 2 * size], gates[2 * size :]
        share = weights.values.dtype.type(1)
        if row.normalises:
            share = weights.values.dtype.type(1 / present_children(weights, plan, states, unit))
        for k in range(size):
            c[k] = i[k] * u[k]
        for t in range(plan.children[unit], plan.children[unit + 1]):
            slot = weights.tables.slots[row.first_slot + (0 if row.shared else plan.child_slot[t])]
            image, f = states.projected[plan.child_edge[t], slot.part : slot.part + size], states.children[t]
            child = states.memory[plan.child_unit[t], size:]
            copy(image, f)
            if row.label_size > 0:
                image = states.label[plan.label_of[unit], row.label_part : row.label_part + size]
                for k in range(size):
                    f[k] += image[k]
            sigmoid(f)
            for k in range(size):
                c[k] += share * f[k] * child[k]
        copy(c, squashed)
        tanh(squashed)
        for k in range(size):
            h[k] = o[k] * squashed[k]


@kernel
def lstm_backward(
    weights: Weights, plan: Plan, states: States, gradients: Gradients, start: int, stop: int, operator: int
) -> None:
    """Turn the gradients of [h; c] into those of the pre-activations, of the forget gates' images and of the children's c."""
    size, one, row = weights.tables.state_size, weights.values.dtype.type(1), weights.tables.operators[operator]
    for unit in range(start, stop):
        gates, delta, squashed = states.gates[unit], gradients.gates[unit], states.units[unit]
        i, o, u = gates[:size], gates[size : 2 * size], gates[2 * size :]
        d_i, d_o, d_u = delta[:size], delta[size : 2 * size], delta[2 * size :]
        d_h, d_c = gradients.memory[unit, :size], gradients.memory[unit, size:]
        for k in range(size):
            d_c[k] += d_h[k] * o[k] * (one - squashed[k] * squashed[k])
            d_o[k] = d_h[k] * squashed[k]
            d_i[k] = d_c[k] * u[k]
            d_u[k] = d_c[k] * i[k]
        slope(gates[: 2 * size], SIGMOID, delta[: 2 * size])
        slope(u, row.activation, d_u)
        if row.normalises:  # from here on, the gradient of the mean
            share = weights.values.dtype.type(1 / present_children(weights, plan, states, unit))
            for k in range(size):
                d_c[k] *= share
        for t in range(plan.children[unit], plan.children[unit + 1]):
            slot = weights.tables.slots[row.first_slot + (0 if row.shared else plan.child_slot[t])]
            d_image = gradients.projected[plan.child_edge[t], slot.part : slot.part + size]
            child, d_child = states.memory[plan.child_unit[t], size:], gradients.memory[plan.child_unit[t], size:]
            f = states.children[t]
            for k in range(size):
                d_image[k] += d_c[k] * child[k] * f[k] * (one - f[k])
                d_child[k] += d_c[k] * f[k]
            if row.label_size > 0:
                d_label = gradients.label[plan.label_of[unit], row.label_part : row.label_part + size]
                for k in range(size):
                    d_label[k] += d_c[k] * child[k] * f[k] * (one - f[k])


_KERNEL = CellKernel(lstm_forward, lstm_backward, gates=3, unit_cache=1, child_cache=1)


@final
class TreeLSTM(InnerCell):
    r"""The Tree-LSTM of the paper; Sum-, Full- or Hosvd-LSTM as the aggregator is `Sum`, `Full` or `Tucker`.

    .. math::
        i = \sigma(f^I(x, h_1 \dots h_L)),\quad o = \sigma(f^O(x, h_1 \dots h_L)),\quad u = \tanh(f^U(x, h_1 \dots h_L)), \\
        f_j = \sigma(W^f x + U^f_j h_j + b^f_j),\quad c = i \circ u + \sum_j f_j \circ c_j,\quad h = o \circ \tanh(c)

    With an aggregator that normalises (`Mean`, `Positional`, `Max`), the sum over the n children that are present is divided by
    n, so that c stays bounded for any number of children: :math:`c = i \circ u + \frac1n \sum_j f_j \circ c_j`.

    The paper writes σ for u: ``update="sigmoid"``. The memory is [h; c]. Balanced initialisation opens the forget gates
    with a bias of one.

    >>> cell = TreeLSTM("tucker", state_size=4, arity=2, rank=3)
    >>> cell(None, torch.zeros(5, 2, 8)).shape
    torch.Size([5, 8])
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
        update: Activation = "tanh",
        initialisation: Initialisation = "balanced",
        **options: Any,
    ) -> None:
        super().__init__()
        require_choice("TreeLSTM", "update", update, ACTIVATIONS)
        pattern = make_aggregator(aggregator, state_size, arity, rank, label_size, shared, initialisation, **options)
        take_sizes(self, pattern)
        self.memory_size = 2 * self.state_size
        self.update = update
        self.input_gate = pattern
        self.output_gate = fresh_copy(pattern)
        self.update_value = fresh_copy(pattern)
        self.forget_gates = ChildGates(pattern)

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return [h; c] (N, 2C)."""
        if children.dim() != 3 or children.shape[2] != self.memory_size:
            raise ShapeError(
                f"TreeLSTM expects the memories [h; c] of children, (N, L, {self.memory_size}), got {tuple(children.shape)}."
            )
        h, c = torch.split(children, self.state_size, dim=2)  # (N, L, C) each
        i = self.input_gate(h, label).sigmoid()
        o = self.output_gate(h, label).sigmoid()
        u = ACTIVATIONS[self.update](self.update_value(h, label))
        kept = (self.forget_gates(h, label) * c).sum(1)  # (N, C)
        if self.input_gate.normalises:
            kept = kept / present_count(h)
        c = i * u + kept
        return torch.cat([o * c.tanh(), c], dim=1)

    @property
    def activation(self) -> str:  # type: ignore[override]
        """The activation of u."""
        return self.update

    def gates(self) -> list[Aggregator]:
        """Return the aggregators of i, o and u."""
        return [self.input_gate, self.output_gate, self.update_value]

    def lay_out(self, layout: CellLayout) -> None:
        """Add i, o and u; the forget gates follow the images of the children."""
        layout.add_cell(self.gates(), self.update, self.forget_gates)


@final
class LeafLSTM(LeafCell):
    r"""The base case of the Tree-LSTM for leaves: the gates i, o and u of the label alone, :math:`c = i \circ u`.

    >>> LeafLSTM(label_size=3, state_size=4)(torch.zeros(5, 3), torch.zeros(5, 0, 8)).shape
    torch.Size([5, 8])
    """

    kernel = _KERNEL
    gate_count = 3

    def __init__(
        self,
        *,
        label_size: int,
        state_size: int,
        update: Activation = "tanh",
        initialisation: Initialisation = "balanced",
    ) -> None:
        require_choice("LeafLSTM", "update", update, ACTIVATIONS)
        super().__init__(label_size, state_size, 2 * state_size, update, initialisation)
        self.update = update

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return [h; c] (N, 2C)."""
        i, o, u = self.affine(label).chunk(3, dim=1)
        c = i.sigmoid() * ACTIVATIONS[self.update](u)
        return torch.cat([o.sigmoid() * c.tanh(), c], dim=1)
