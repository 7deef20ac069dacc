"""The two passes over one part of a batch: forward from the leaves up, backward from the roots down.

A pass goes through the steps of the plan. A step is a run of units, which a form aggregates and a cell turns into memories, or a
run of edges, which take the linear images of children. Forms and cells are called by their addresses in the tables.
"""

from typing import Any

import numpy as np

from treefold.kernels.affine import affine, affine_inputs_backward, affine_weights_backward
from treefold.kernels.compile import allocating, call, entry_point, inlined, kernel, matrix, refer
from treefold.kernels.records import BLOCK, Gradients, Matrix, Plan, States, Vector, Weights

# Axes:  U units · C state size · S memory size · G gates · R rank · X label vectors · M label size


@allocating
def make_states(weights: Weights, plan: Plan, is_kept: bool, workspace: Vector) -> States:
    """Allocate the states: the memories always, the rest in the workspace if it is large enough.

    ``is_kept`` says whether a backward pass follows. Without one, all blocks of units use the same place for what they carry.
    """
    tables, units, dtype = weights.tables, len(plan.row_of), weights.values.dtype
    cell = tables.cells[0]
    carried = plan.carry_of[units]
    if not is_kept:
        widest = 0
        for index in range(len(plan.groups)):
            widest = max(widest, plan.groups[index].carry)
        carried = min(carried, BLOCK * widest)
    children, edges, labels = len(plan.child_unit), len(plan.edge_unit), len(plan.label_row)
    gates, images, inner = tables.gate_width, tables.image_width, tables.inner_width
    rows = (units, units, children, edges, edges, labels, units, units, 1, 1, 1)
    widths = (
        gates,
        cell.unit_cache,
        cell.child_cache,
        cell.edge_cache,
        images,
        tables.label_width,
        inner,
        tables.part_width,
        carried,
        plan.restricted_size,
        plan.scratch_size,
    )
    at = np.zeros(len(rows) + 1, np.int64)
    for index in range(len(rows)):  # each begins on a cache line
        at[index + 1] = at[index] + (rows[index] * widths[index] + 15) // 16 * 16
    if len(workspace) < at[-1]:
        workspace = np.empty(at[-1], dtype)
    return States(
        np.empty((units, tables.memory_size), dtype),
        matrix(workspace, at[0], units, gates),
        matrix(workspace, at[1], units, cell.unit_cache),
        matrix(workspace, at[2], children, cell.child_cache),
        matrix(workspace, at[3], edges, cell.edge_cache),
        matrix(workspace, at[4], edges, images),
        matrix(workspace, at[5], labels, tables.label_width),
        matrix(workspace, at[6], units, inner),
        matrix(workspace, at[7], units, tables.part_width),
        workspace[at[8] : at[8] + carried],
        workspace[at[9] : at[9] + plan.restricted_size],
        workspace[at[10] : at[10] + plan.scratch_size],
    )


@kernel
def add_noise(memory: Matrix, noise: Matrix, start: int, stop: int) -> None:
    """Add noise (U, C) to the states of some units, and keep the states without it in its place; none if there are no rows."""
    for unit in range(start, min(stop, len(noise))):
        for k in range(noise.shape[1]):
            clean = memory[unit, k]
            memory[unit, k] += noise[unit, k]
            noise[unit, k] = clean


@kernel
def exchange(memory: Matrix, kept: Matrix, start: int, stop: int) -> None:
    """Exchange the states of some units with those that `add_noise` kept."""
    for unit in range(start, min(stop, len(kept))):
        for k in range(kept.shape[1]):
            memory[unit, k], kept[unit, k] = kept[unit, k], memory[unit, k]


@entry_point
def fold_forward(
    weights: Weights, plan: Plan, labels: Matrix, noise: Matrix, is_kept: bool, workspace: Vector
) -> States:
    """Compute the memories of all units of a plan, ``States.memory``, for label vectors (X, M).

    ``noise`` (U, C) is added to the states that parents and heads see; (0, C) for none. It is replaced by the states without it,
    which the backward pass needs.
    """
    states, tables, zero = make_states(weights, plan, is_kept, workspace), weights.tables, int(np.int64(0))
    size, cell = tables.state_size, tables.cells[0]
    w, p, s = refer(weights), refer(plan), refer(states)  # as forms and cells take them
    for index in range(len(plan.groups)):
        address = tables.operators[plan.groups[index].operator].prepare
        if address:
            call(address, (w, p, s, index))
    for index in range(len(plan.label_runs)):
        run = plan.label_runs[index]
        operator = tables.operators[run.key]
        columns = matrix(weights.values, operator.label_start, operator.label_size + 1, operator.label_width)
        affine(states.label, zero, run.start, run.stop, labels, zero, plan.label_row, columns)
    for index in range(len(plan.steps)):
        step = plan.steps[index]
        start, stop, key = step.start, step.stop, step.key
        if step.is_edges:
            slot = tables.slots[key]
            if cell.edges_forward:
                call(cell.edges_forward, (w, p, s, start, stop, key))
            elif slot.width:
                columns = matrix(weights.values, slot.start, size + 1, slot.width)
                affine(states.projected, zero, start, stop, states.memory, zero, plan.edge_unit, columns)
            continue
        number = part = plan.groups[key].operator
        while True:  # all parts of a sum of forms
            operator = tables.operators[part]
            whole = states.gates if part == number else states.part
            out = whole if operator.output < 0 else states.inner
            call(operator.forward, (w, p, s, labels, start, stop, key if part == number else -part, out))
            if operator.output >= 0:
                rank, width = operator.rank, operator.out_size
                for gate in range(cell.gates):
                    columns = matrix(weights.values, operator.output + gate * (rank + 1) * width, rank + 1, width)
                    inner = operator.inner + gate * rank
                    affine(whole, gate * width, start, stop, states.inner, inner, plan.identity, columns)
            if part != number:
                for unit in range(start, stop):
                    for k in range(cell.gates * operator.out_size):
                        states.gates[unit, k] += states.part[unit, k]
            part = operator.next_part
            if part == 0:
                break
        call(cell.forward, (w, p, s, start, stop, number))
        add_noise(states.memory, noise, start, stop)
    return states


@entry_point
def fold_backward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Matrix,
    noise: Matrix,
    d_memory: Matrix,
    d_values: Vector,
    d_vectors: Matrix,
) -> None:
    """Add the gradients of the weights and of the label vectors for those of the memories, which it uses up.

    ``noise`` is what the forward pass left in its place.
    """
    gradients = Gradients(
        d_memory,
        np.empty_like(states.gates),
        np.zeros_like(states.edges),
        np.zeros_like(states.projected),
        np.zeros_like(states.label),
        np.zeros_like(states.inner),
        np.empty_like(states.carry),
        np.zeros_like(states.restricted),
        d_values,
        d_vectors,
    )
    tables, zero = weights.tables, int(np.int64(0))
    size, cell = tables.state_size, tables.cells[0]
    w, p, s, g = refer(weights), refer(plan), refer(states), refer(gradients)  # as forms and cells take them
    for index in range(len(plan.steps) - 1, -1, -1):
        step = plan.steps[index]
        start, stop, key = step.start, step.stop, step.key
        if step.is_edges:
            slot = tables.slots[key]
            if cell.edges_backward:
                call(cell.edges_backward, (w, p, s, g, start, stop, key))
            elif slot.width:
                columns = matrix(weights.values, slot.start, size + 1, slot.width)
                affine_inputs_backward(
                    gradients.projected, zero, start, stop, gradients.memory, zero, plan.edge_unit, columns
                )
            continue
        number = part = plan.groups[key].operator
        exchange(states.memory, noise, start, stop)  # the cell needs its own results,
        call(cell.backward, (w, p, s, g, start, stop, number))
        exchange(states.memory, noise, start, stop)  # and the weights what the parents saw
        while True:
            operator, delta = tables.operators[part], gradients.gates
            if operator.output >= 0:
                rank, width, delta = operator.rank, operator.out_size, gradients.inner
                for gate in range(cell.gates):
                    columns = matrix(weights.values, operator.output + gate * (rank + 1) * width, rank + 1, width)
                    inner = operator.inner + gate * rank
                    affine_inputs_backward(
                        gradients.gates, gate * width, start, stop, delta, inner, plan.identity, columns
                    )
            call(operator.backward, (w, p, s, labels, g, start, stop, key if part == number else -part, delta))
            part = operator.next_part
            if part == 0:
                break
    # The gradients of all matrices, each for the rows of all steps together, so that it is read and written once.
    for index in range(len(plan.slot_runs)):
        run = plan.slot_runs[index]
        slot, edges = tables.slots[run.key], plan.by_slot[run.start : run.stop]
        if cell.edges_weights:
            call(cell.edges_weights, (w, p, s, g, edges, run.key))
        elif slot.width:
            d_columns = matrix(d_values, slot.start, size + 1, slot.width)
            affine_weights_backward(gradients.projected, zero, edges, states.memory, zero, plan.edge_unit, d_columns)
    for index in range(len(plan.group_runs)):
        run = plan.group_runs[index]
        members, part = plan.by_group[run.start : run.stop], plan.groups[run.key].operator
        while True:
            operator = tables.operators[part]
            if operator.output >= 0:
                rank, width = operator.rank, operator.out_size
                for gate in range(cell.gates):
                    d_columns = matrix(d_values, operator.output + gate * (rank + 1) * width, rank + 1, width)
                    inner = operator.inner + gate * rank
                    affine_weights_backward(
                        gradients.gates, gate * width, members, states.inner, inner, plan.identity, d_columns
                    )
            if operator.weights:
                call(operator.weights, (w, p, s, labels, g, members, run.key))
            part = operator.next_part
            if part == 0:
                break
    for index in range(len(plan.groups)):
        address = tables.operators[plan.groups[index].operator].finish
        if address:
            call(address, (w, p, g, index))
    for index in range(len(plan.label_runs)):
        run = plan.label_runs[index]
        operator = tables.operators[run.key]
        columns = matrix(weights.values, operator.label_start, operator.label_size + 1, operator.label_width)
        d_columns = matrix(d_values, operator.label_start, operator.label_size + 1, operator.label_width)
        rows = plan.identity[run.start : run.stop]
        affine_weights_backward(gradients.label, zero, rows, labels, zero, plan.label_row, d_columns)
        affine_inputs_backward(gradients.label, zero, run.start, run.stop, d_vectors, zero, plan.label_row, columns)


# For the kernels of forms: their operator, and a unit's children, as their images, their states, or the gradients of either.


@inlined
def operator_of(weights: Weights, plan: Plan, group: int) -> Any:
    """Return the operator of a group; the further parts of a sum of forms have minus their row in place of a group."""
    return weights.tables.operators[plan.groups[group].operator if group >= 0 else -group]


@inlined
def child_input(weights: Weights, plan: Plan, states: States | Gradients, child: int) -> Vector:
    """Return the state of a child as its parent sees it: scaled by the child's gate, if the cell has gates that come first."""
    if weights.tables.cells[0].edge_cache:
        scaled: Vector = states.edges[plan.child_edge[child]]
        return scaled
    state: Vector = states.memory[plan.child_unit[child]]
    return state


@kernel
def is_present(weights: Weights, plan: Plan, states: States, child: int) -> bool:
    """Say whether a child is there for its parent, which sees the zero state as an absent child."""
    state = child_input(weights, plan, states, child)
    for k in range(weights.tables.state_size):  # noqa: SIM110 (numba compiles no generators)
        if state[k] != 0:
            return True
    return False


@kernel
def present_children(weights: Weights, plan: Plan, states: States, unit: int) -> int:
    """Count the children of a unit that are there, at least one, as a divisor."""
    count = 0
    for child in range(plan.children[unit], plan.children[unit + 1]):
        count += is_present(weights, plan, states, child)
    return max(count, 1)


@inlined
def place_count(plan: Plan, unit: int, operator: Any) -> int:
    """Return how many places the children of a unit have: all slots of an operator, or one for each child if they are shared."""
    return int(plan.children[unit + 1] - plan.children[unit] if operator.shared else operator.arity)


@inlined
def is_at(plan: Plan, unit: int, operator: Any, place: int, child: int) -> bool:
    """Say whether a child, one of the list ``plan.child_unit``, is the child of a unit in this place."""
    own = plan.children[unit] <= child < plan.children[unit + 1]
    return bool(own and (operator.shared or plan.child_slot[child] == place))


@inlined
def child_image(plan: Plan, operator: Any, child: int, projected: Matrix) -> Vector:
    """Return the image of a child, or its gradient."""
    image: Vector = projected[plan.child_edge[child], operator.column :]
    return image


@inlined
def label_image(plan: Plan, operator: Any, unit: int, label: Matrix) -> Vector:
    """Return the image of a unit's label, or its gradient."""
    image: Vector = label[plan.label_of[unit], operator.label_column :]
    return image


@inlined
def width_of(weights: Weights, operator: Any) -> int:
    """Return how many numbers the aggregators of all gates return."""
    return int(weights.tables.cells[0].gates * operator.out_size)


@inlined
def image_of(
    weights: Weights, plan: Plan, operator: Any, place: int, child: int, projected: Matrix, values: Vector
) -> Vector:
    """Return the image of a child, or the bias of its slot if it is absent, child -1; or the gradient of either."""
    if child >= 0:
        return child_image(plan, operator, child, projected)
    slot = weights.tables.slots[operator.first_slot + place]
    start = slot.start + weights.tables.state_size * slot.width + operator.column
    return values[start : start + slot.width]
