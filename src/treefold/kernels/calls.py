"""The calls from Python: a part of a batch is planned and folded in one, and folded back in another."""

import numpy as np

from treefold.kernels.compiled import allocating, planner
from treefold.kernels.passes import fold_backward, fold_forward
from treefold.kernels.plan import make_plan
from treefold.kernels.scratch import BLOCK, WIDEST_CARRY, make_scratch
from treefold.kernels.tables import (
    CORE_RANK,
    IMAGE_WIDTH,
    LABEL_IMAGE_WIDTH,
    Floats,
    Gradients,
    Ints,
    Plan,
    States,
    Tables,
    Weights,
)

# Axes:  N nodes of the part · U units · S memory size · X label vectors · M label size


@allocating
def make_states(weights: Weights, plan: Plan, widths: Ints, kept: bool, room: Floats) -> States:
    """Make what the forward pass computes: the memories anew, the rest in the room where there is enough of it.

    What is carried is much, and only the backward pass looks at it again: where it is not kept, all blocks use the same place.
    """
    size, units, kind = weights.state_size, len(plan.row_of), weights.values.dtype
    more = 1 if weights.gates > 1 else 0  # the Tree-LSTM keeps tanh(c), and c behind h
    rows = (units, len(plan.child_unit) * more, len(plan.edge_unit), len(plan.label_row), units)
    columns = (
        (weights.gates + more) * size,
        size,
        widths[IMAGE_WIDTH],
        widths[LABEL_IMAGE_WIDTH],
        weights.gates * widths[CORE_RANK],
    )
    carried = plan.carry_of[-1]
    if not kept:
        carried = min(carried, BLOCK * weights.gates * plan.scratch_sizes[WIDEST_CARRY])
    ends = np.zeros(len(rows) + 3, np.int64)
    for index in range(len(rows)):  # each begins on a line of its own
        ends[index + 1] = ends[index] + (rows[index] * columns[index] + 15) // 16 * 16
    ends[-2] = ends[-3] + (carried + 15) // 16 * 16
    ends[-1] = ends[-2] + plan.restricted_size
    if len(room) < ends[-1]:
        room = np.empty(ends[-1], kind)
    return States(
        np.empty((units, (1 + more) * size), kind),
        room[ends[0] : ends[0] + rows[0] * columns[0]].reshape(rows[0], columns[0]),
        room[ends[1] : ends[1] + rows[1] * columns[1]].reshape(rows[1], columns[1]),
        room[ends[2] : ends[2] + rows[2] * columns[2]].reshape(rows[2], columns[2]),
        room[ends[3] : ends[3] + rows[3] * columns[3]].reshape(rows[3], columns[3]),
        room[ends[4] : ends[4] + rows[4] * columns[4]].reshape(rows[4], columns[4]),
        room[ends[5] : ends[5] + carried],
        room[ends[6] : ends[6] + plan.restricted_size],
    )


@planner
def forward(
    weights: Weights,
    widths: Ints,
    parents: Ints,
    slots: Ints,
    first: int,
    operator: Ints,
    row: Ints,
    labels: Floats,
    share: bool,
    kept: bool,
    room: Floats,
) -> tuple[Plan, States]:
    """Plan whole trees, as `make_plan` does, and compute their states, in the room as far as they fit.

    ``kept`` says whether a backward pass follows.
    """
    tables = Tables(
        weights.gates,
        weights.state_size,
        weights.operators,
        weights.sets,
        weights.orders,
        weights.terms,
        weights.padded,
    )
    plan = make_plan(parents, slots, first, operator, row, tables, share)
    states = make_states(weights, plan, widths, kept, room)
    fold_forward(weights, plan, states, labels, make_scratch(weights.gates, plan.scratch_sizes, weights.values))
    return plan, states


@planner
def backward(
    weights: Weights, plan: Plan, states: States, labels: Floats, d_memory: Floats, d_values: Floats, d_vectors: Floats
) -> None:
    """Add the gradients of the weights and of the label vectors for those of the memories."""
    gradients = Gradients(
        d_memory.copy(),  # it is added to
        np.empty((len(states.gates), weights.gates * weights.state_size), states.gates.dtype),
        np.zeros_like(states.projected),
        np.zeros_like(states.label),
        np.zeros_like(states.inner),
        np.empty_like(states.carry),
        np.zeros_like(states.restricted),
        d_values,
        d_vectors,
    )
    scratch = make_scratch(weights.gates, plan.scratch_sizes, weights.values)
    fold_backward(weights, plan, states, labels, scratch, gradients)
