"""The Tree-GRU."""

from typing import Any, final

from torch import Tensor

from treefold.errors import require_choice
from treefold.kernels.affine import (
    activate,
    affine,
    affine_inputs_backward,
    affine_weights_backward,
    sigmoid,
    slope,
)
from treefold.kernels.compile import kernel, matrix
from treefold.kernels.fold import present_children
from treefold.kernels.layout import CellKernel, CellLayout
from treefold.kernels.records import SIGMOID, Gradients, Ints, Plan, States, Weights
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
# The cache of an edge is the gated child, then its gate, (2C,); that of a unit is the sum or mean of its gated children, (C,).


@kernel
def edges_forward(weights: Weights, plan: Plan, states: States, start: int, stop: int, slot: int) -> None:
    """Compute the gates of children, the gated children and their images."""
    size, row, zero = weights.tables.state_size, weights.tables.slots[slot], start - start
    operator = weights.tables.operators[row.operator]
    gate = matrix(weights.values, row.gate_start, size + 1, size)
    affine(states.edges, size, start, stop, states.memory, zero, plan.edge_unit, gate)
    for edge in range(start, stop):
        gated, r, h = states.edges[edge, :size], states.edges[edge, size:], states.memory[plan.edge_unit[edge]]
        if operator.label_size > 0:
            image = states.label[plan.edge_label[edge], operator.label_part : operator.label_part + size]
            for k in range(size):
                r[k] += image[k]
        sigmoid(r)
        for k in range(size):
            gated[k] = r[k] * h[k]
    if row.width:
        columns = matrix(weights.values, row.start, size + 1, row.width)
        affine(states.projected, zero, start, stop, states.edges, zero, plan.identity, columns)


@kernel
def edges_backward(
    weights: Weights, plan: Plan, states: States, gradients: Gradients, start: int, stop: int, slot: int
) -> None:
    """Turn the gradients of images and of gated children into those of the gates and of the children."""
    size, row, zero, one = (
        weights.tables.state_size,
        weights.tables.slots[slot],
        start - start,
        weights.values.dtype.type(1),
    )
    operator = weights.tables.operators[row.operator]
    if row.width:
        columns = matrix(weights.values, row.start, size + 1, row.width)
        affine_inputs_backward(gradients.projected, zero, start, stop, gradients.edges, zero, plan.identity, columns)
    for edge in range(start, stop):
        r, h = states.edges[edge, size:], states.memory[plan.edge_unit[edge]]
        d_gated, d_r = gradients.edges[edge, :size], gradients.edges[edge, size:]
        d_h = gradients.memory[plan.edge_unit[edge]]
        for k in range(size):
            d_r[k] = d_gated[k] * h[k] * r[k] * (one - r[k])
            d_h[k] += d_gated[k] * r[k]
        if operator.label_size > 0:
            d_image = gradients.label[plan.edge_label[edge], operator.label_part : operator.label_part + size]
            for k in range(size):
                d_image[k] += d_r[k]
    gate = matrix(weights.values, row.gate_start, size + 1, size)
    affine_inputs_backward(gradients.edges, size, start, stop, gradients.memory, zero, plan.edge_unit, gate)


@kernel
def edges_weights(weights: Weights, plan: Plan, states: States, gradients: Gradients, edges: Ints, slot: int) -> None:
    """Add the gradients of the matrices of images and of gates."""
    size, row, zero = weights.tables.state_size, weights.tables.slots[slot], slot - slot
    if row.width:
        d_columns = matrix(gradients.values, row.start, size + 1, row.width)
        affine_weights_backward(gradients.projected, zero, edges, states.edges, zero, plan.identity, d_columns)
    d_gate = matrix(gradients.values, row.gate_start, size + 1, size)
    affine_weights_backward(gradients.edges, size, edges, states.memory, zero, plan.edge_unit, d_gate)


@kernel
def gru_forward(weights: Weights, plan: Plan, states: States, start: int, stop: int, operator: int) -> None:
    """Turn the pre-activations of units into h; keep the sum or mean of the gated children."""
    size, one, row = weights.tables.state_size, weights.values.dtype.type(1), weights.tables.operators[operator]
    for unit in range(start, stop):
        z, u, total = states.gates[unit, :size], states.gates[unit, size:], states.units[unit]
        sigmoid(z)
        activate(u, row.activation)
        for k in range(size):
            total[k] = 0
        for child in range(plan.children[unit], plan.children[unit + 1]):
            gated = states.edges[plan.child_edge[child]]
            for k in range(size):
                total[k] += gated[k]
        if row.normalises:
            share = weights.values.dtype.type(1 / present_children(weights, plan, states, unit))
            for k in range(size):
                total[k] *= share
        h = states.memory[unit]
        for k in range(size):
            h[k] = z[k] * u[k] + (one - z[k]) * total[k]


@kernel
def gru_backward(
    weights: Weights, plan: Plan, states: States, gradients: Gradients, start: int, stop: int, operator: int
) -> None:
    """Turn the gradients of h into those of the pre-activations and of the gated children."""
    size, one, row = weights.tables.state_size, weights.values.dtype.type(1), weights.tables.operators[operator]
    for unit in range(start, stop):
        z, u, total = states.gates[unit, :size], states.gates[unit, size:], states.units[unit]
        d_h, d_z, d_u = gradients.memory[unit], gradients.gates[unit, :size], gradients.gates[unit, size:]
        for k in range(size):
            d_z[k] = d_h[k] * (u[k] - total[k])
            d_u[k] = d_h[k] * z[k]
        slope(z, SIGMOID, d_z)
        slope(u, row.activation, d_u)
        share = one
        if row.normalises:
            share = weights.values.dtype.type(1 / present_children(weights, plan, states, unit))
        for child in range(plan.children[unit], plan.children[unit + 1]):
            d_gated = gradients.edges[plan.child_edge[child]]
            for k in range(size):
                d_gated[k] += share * d_h[k] * (one - z[k])


_KERNEL = CellKernel(
    gru_forward,
    gru_backward,
    edges_forward=edges_forward,
    edges_backward=edges_backward,
    edges_weights=edges_weights,
    gates=2,
    unit_cache=1,
    edge_cache=2,
)


@final
class TreeGRU(InnerCell):
    r"""The Tree-GRU: gates on the children before aggregation, an update gate and a candidate.

    .. math::
        r_j = \sigma(W^r x + U^r_j h_j + b^r_j),\quad g_j = r_j \circ h_j, \\
        z = \sigma(f^Z(x, g_1 \dots g_L)),\quad u = \tanh(f^U(x, g_1 \dots g_L)),\quad
        h = z \circ u + (1 - z) \circ \sum_j g_j

    The gate of a child sees the label and that child alone, like the forget gate of the Tree-LSTM, and like it opens with a bias
    of one. An absent child adds nothing. With an aggregator that normalises (`Mean`, `Positional`, `Max`), the sum over the n
    children whose :math:`g_j` is not zero is divided by n, so that h stays bounded for any number of children.

    >>> import torch
    >>> cell = TreeGRU("tucker", state_size=4, arity=2, rank=3)
    >>> cell(None, torch.zeros(5, 2, 4)).shape
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
        update: Activation = "tanh",
        initialisation: Initialisation = "balanced",
        **options: Any,
    ) -> None:
        super().__init__()
        require_choice("TreeGRU", "update", update, ACTIVATIONS)
        pattern = make_aggregator(aggregator, state_size, arity, rank, label_size, shared, initialisation, **options)
        take_sizes(self, pattern)
        self.memory_size = self.state_size
        self.update = self.activation = update
        self.update_gate = pattern
        self.candidate = fresh_copy(pattern)
        self.child_gates = ChildGates(pattern)

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return h (N, C)."""
        gated = self.child_gates(children, label) * children  # (N, L, C)
        z = self.update_gate(gated, label).sigmoid()
        u = ACTIVATIONS[self.update](self.candidate(gated, label))
        total = gated.sum(1)  # (N, C)
        if self.update_gate.normalises:
            total = total / present_count(gated)
        h: Tensor = z * u + (1 - z) * total
        return h

    def gates(self) -> list[Aggregator]:
        """Return the aggregators of z and u."""
        return [self.update_gate, self.candidate]

    def lay_out(self, layout: CellLayout) -> None:
        """Add z and u; the gates of the children come first."""
        layout.add_cell(self.gates(), self.update, self.child_gates, gates_come_first=True)


@final
class LeafGRU(LeafCell):
    r"""The base case of the Tree-GRU for leaves: the gates z and u of the label alone, :math:`h = z \circ u`.

    >>> import torch
    >>> LeafGRU(label_size=3, state_size=4)(torch.zeros(5, 3), torch.zeros(5, 0, 4)).shape
    torch.Size([5, 4])
    """

    kernel = _KERNEL
    gate_count = 2

    def __init__(
        self,
        *,
        label_size: int,
        state_size: int,
        update: Activation = "tanh",
        initialisation: Initialisation = "balanced",
    ) -> None:
        super().__init__(label_size, state_size, state_size, update, initialisation)

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return h (N, C)."""
        z, u = self.affine(label).chunk(2, dim=1)
        h: Tensor = z.sigmoid() * ACTIVATIONS[self.activation](u)
        return h
