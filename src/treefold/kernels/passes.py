r"""The whole pass over one part of a batch, forward and backward, in one compiled call each.

.. math::
    i, o = \sigma(f(\dots)),\quad u = \tanh(f(\dots)),\quad f_j = \sigma(W^f x + U^f_j h_j + b^f_j),\quad
    c = i \circ u + \sum_j f_j \circ c_j,\quad h = o \circ \tanh(c)
"""

import numpy as np

from treefold.kernels.chains import (
    canonical_backward,
    canonical_forward,
    sum_backward,
    sum_forward,
    train_backward,
    train_forward,
)
from treefold.kernels.compiled import inlined, inner
from treefold.kernels.cores import dense_backward, dense_forward, dense_weights_backward, restrict_cores, spread_cores
from treefold.kernels.linear import (
    activate,
    affine,
    affine_inputs_backward,
    affine_weights_backward,
    sigmoid,
    slope,
    tanh,
)
from treefold.kernels.scratch import Scratch
from treefold.kernels.symmetric import symmetric_backward, symmetric_forward
from treefold.kernels.tables import (
    ACTIVATION,
    CANONICAL,
    FIRST_SET,
    FORM,
    FROM,
    FULL,
    IS_EDGES,
    KEY,
    LABEL,
    LABEL_PART,
    LABEL_WEIGHTS,
    LABEL_WIDTH,
    OPERATOR,
    OUTPUT,
    PART,
    RANK,
    SHARED,
    SIGMOID,
    START,
    SUM,
    TO,
    TRAIN,
    WIDTH,
    Floats,
    Gradients,
    Ints,
    Plan,
    States,
    Weights,
)

# Axes:  U units · C state size · S memory size · G gates · R rank


@inlined
def matrix_of(values: Floats, start: int, rows: int, width: int) -> Floats:
    """Return a matrix of the flat weights, or of their gradients."""
    return values[start : start + rows * width].reshape(rows, width)


@inlined
def aggregate_forward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Floats,
    scratch: Scratch,
    start: int,
    stop: int,
    group: Ints,
) -> None:
    """Compute ``states.gates`` before the activations, for the units of a group from start to stop."""
    operator = weights.operators[group[OPERATOR]]
    form, rank, size = operator[FORM], operator[RANK], weights.state_size
    if form >= FULL:
        out = states.gates if form == FULL else states.inner
        if operator[SHARED]:
            symmetric_forward(weights, plan, states, labels, scratch, start, stop, group, out)
        else:
            dense_forward(weights, plan, states, labels, scratch, start, stop, group, out)
    else:
        for unit in range(start, stop):
            if form == SUM:
                sum_forward(weights, plan, states, unit, operator)
            elif form == CANONICAL:
                canonical_forward(weights, plan, states, scratch, unit, operator)
            elif form == TRAIN:
                train_forward(weights, plan, states, scratch, unit, operator)
    if form in (SUM, FULL):
        return
    for gate in range(weights.gates):
        begin = operator[OUTPUT] + gate * (rank + 1) * size
        matrix = weights.values[begin : begin + (rank + 1) * size].reshape(rank + 1, size)
        affine(states.gates, gate * size, start, stop, states.inner, gate * rank, scratch.rows, matrix)


@inlined
def aggregate_backward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Floats,
    scratch: Scratch,
    start: int,
    stop: int,
    group: Ints,
    gradients: Gradients,
) -> None:
    """Add the gradients of `aggregate_forward` for ``gradients.delta``."""
    operator = weights.operators[group[OPERATOR]]
    form, rank, size = operator[FORM], operator[RANK], weights.state_size
    delta = gradients.delta
    if form not in (SUM, FULL):
        for gate in range(weights.gates):
            matrix = matrix_of(weights.values, operator[OUTPUT] + gate * (rank + 1) * size, rank + 1, size)
            affine_inputs_backward(delta, gate * size, start, stop, gradients.inner, gate * rank, scratch.rows, matrix)
        delta = gradients.inner
    if form >= FULL:
        if operator[SHARED]:
            symmetric_backward(weights, plan, states, labels, scratch, start, stop, group, delta, gradients)
        else:
            dense_backward(weights, plan, states, labels, scratch, start, stop, group, delta, gradients)
        return
    for unit in range(start, stop):
        if form == SUM:
            sum_backward(weights, plan, unit, operator, gradients)
        elif form == CANONICAL:
            canonical_backward(weights, plan, states, scratch, unit, operator, gradients)
        elif form == TRAIN:
            train_backward(weights, plan, states, scratch, unit, operator, gradients)


@inner
def lstm_forward(weights: Weights, plan: Plan, states: States, unit: int, operator: Ints) -> None:
    """Turn the pre-activations of a unit into [h; c]."""
    size = weights.state_size
    gates, memory = states.gates[unit], states.memory[unit]
    sigmoid(gates[: 2 * size])
    activate(gates[2 * size : 3 * size], operator[ACTIVATION])
    h, c, squashed = memory[:size], memory[size : 2 * size], gates[3 * size : 4 * size]
    i, o, u = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size]
    for k in range(size):
        c[k] = i[k] * u[k]
    for t in range(plan.children[unit], plan.children[unit + 1]):
        which = operator[FIRST_SET] + (0 if operator[SHARED] else plan.child_slot[t])
        column = weights.sets[which, PART]
        image, f = states.projected[plan.child_edge[t], column : column + size], states.forget[t]
        child = states.memory[plan.child_unit[t], size : 2 * size]
        for k in range(size):
            f[k] = image[k]
        if operator[LABEL] > 0:
            column = operator[LABEL_PART]
            image = states.label[plan.label_of[unit], column : column + size]
            for k in range(size):
                f[k] += image[k]
        sigmoid(f)
        for k in range(size):
            c[k] += f[k] * child[k]
    for k in range(size):
        squashed[k] = c[k]
    tanh(squashed)
    for k in range(size):
        h[k] = o[k] * squashed[k]


@inner
def lstm_backward(
    weights: Weights, plan: Plan, states: States, unit: int, operator: Ints, gradients: Gradients
) -> None:
    """Turn the gradient of [h; c] into that of the pre-activations, of the forget gates' images and of the children's c."""
    size, one = weights.state_size, weights.values.dtype.type(1)
    gates, delta = states.gates[unit], gradients.delta[unit]
    i, o, u, squashed = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size], gates[3 * size : 4 * size]
    d_i, d_o, d_u = delta[:size], delta[size : 2 * size], delta[2 * size : 3 * size]
    d_h, d_c = gradients.memory[unit, :size], gradients.memory[unit, size : 2 * size]
    for k in range(size):
        d_c[k] += d_h[k] * o[k] * (one - squashed[k] * squashed[k])
        d_o[k] = d_h[k] * squashed[k]
        d_i[k] = d_c[k] * u[k]
        d_u[k] = d_c[k] * i[k]
    slope(gates[: 2 * size], SIGMOID, delta[: 2 * size])
    slope(u, operator[ACTIVATION], d_u)
    for t in range(plan.children[unit], plan.children[unit + 1]):
        which = operator[FIRST_SET] + (0 if operator[SHARED] else plan.child_slot[t])
        column = weights.sets[which, PART]
        d_image, f = gradients.projected[plan.child_edge[t], column : column + size], states.forget[t]
        child = states.memory[plan.child_unit[t], size : 2 * size]
        d_child = gradients.memory[plan.child_unit[t], size : 2 * size]
        for k in range(size):
            d_image[k] += d_c[k] * child[k] * f[k] * (one - f[k])
            d_child[k] += d_c[k] * f[k]
        if operator[LABEL] > 0:
            column = operator[LABEL_PART]
            d_label = gradients.label[plan.label_of[unit], column : column + size]
            for k in range(size):
                d_label[k] += d_c[k] * child[k] * f[k] * (one - f[k])


@inner
def weights_backward(
    weights: Weights, plan: Plan, states: States, labels: Floats, scratch: Scratch, gradients: Gradients
) -> None:
    """Add the gradients of all matrices, each for the rows of all heights together, so that it is read and written once."""
    size, zero, d_values = weights.state_size, int(np.int64(0)), gradients.values
    for run in range(len(plan.set_runs)):
        chosen, edges = weights.sets[plan.set_runs[run, 2]], plan.by_set[plan.set_runs[run, 0] : plan.set_runs[run, 1]]
        d_matrix = matrix_of(d_values, chosen[START], size + 1, chosen[WIDTH])
        affine_weights_backward(gradients.projected, zero, edges, states.memory, zero, plan.edge_unit, d_matrix)
    for run in range(len(plan.group_runs)):
        group, members = (
            plan.groups[plan.group_runs[run, 2]],
            plan.by_group[plan.group_runs[run, 0] : plan.group_runs[run, 1]],
        )
        operator = weights.operators[group[OPERATOR]]
        form, rank = operator[FORM], operator[RANK]
        if form not in (SUM, FULL):
            for gate in range(weights.gates):
                d_matrix = matrix_of(d_values, operator[OUTPUT] + gate * (rank + 1) * size, rank + 1, size)
                affine_weights_backward(
                    gradients.delta, gate * size, members, states.inner, gate * rank, scratch.rows, d_matrix
                )
        if form >= FULL and not operator[SHARED]:
            dense_weights_backward(weights, plan, states, labels, scratch, members, group, gradients)
    for run in range(len(plan.label_runs)):
        operator = weights.operators[plan.label_runs[run, 2]]
        d_matrix = matrix_of(d_values, operator[LABEL_WEIGHTS], operator[LABEL] + 1, operator[LABEL_WIDTH])
        rows = scratch.rows[plan.label_runs[run, 0] : plan.label_runs[run, 1]]
        affine_weights_backward(gradients.label, zero, rows, labels, zero, plan.label_row, d_matrix)


@inlined
def fold_forward(weights: Weights, plan: Plan, states: States, labels: Floats, scratch: Scratch) -> None:
    """Compute the memories of all units of a part, ``states.memory``."""
    size, zero = weights.state_size, int(np.int64(0))
    restrict_cores(weights, plan, states.restricted)
    for run in range(len(plan.label_runs)):
        operator = weights.operators[plan.label_runs[run, 2]]
        matrix = matrix_of(weights.values, operator[LABEL_WEIGHTS], operator[LABEL] + 1, operator[LABEL_WIDTH])
        affine(
            states.label, zero, plan.label_runs[run, 0], plan.label_runs[run, 1], labels, zero, plan.label_row, matrix
        )
    for index in range(len(plan.steps)):
        step = plan.steps[index]
        if step[IS_EDGES]:
            chosen = weights.sets[step[KEY]]
            matrix = matrix_of(weights.values, chosen[START], size + 1, chosen[WIDTH])
            affine(states.projected, zero, step[FROM], step[TO], states.memory, zero, plan.edge_unit, matrix)
            continue
        group = plan.groups[step[KEY]]
        operator = weights.operators[group[OPERATOR]]
        aggregate_forward(weights, plan, states, labels, scratch, step[FROM], step[TO], group)
        for unit in range(step[FROM], step[TO]):
            if weights.gates == 1:
                h = states.memory[unit]
                for k in range(size):
                    h[k] = states.gates[unit, k]
                activate(h, operator[ACTIVATION])
            else:
                lstm_forward(weights, plan, states, unit, operator)


@inlined
def fold_backward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Floats,
    scratch: Scratch,
    gradients: Gradients,
) -> None:
    """Add the gradients of the weights and the labels for those of the units' memories, ``gradients.memory``."""
    size, zero = weights.state_size, int(np.int64(0))
    for index in range(len(plan.steps) - 1, -1, -1):
        step = plan.steps[index]
        if step[IS_EDGES]:
            matrix = matrix_of(weights.values, weights.sets[step[KEY], START], size + 1, weights.sets[step[KEY], WIDTH])
            affine_inputs_backward(
                gradients.projected, zero, step[FROM], step[TO], gradients.memory, zero, plan.edge_unit, matrix
            )
            continue
        group = plan.groups[step[KEY]]
        operator = weights.operators[group[OPERATOR]]
        for unit in range(step[FROM], step[TO]):
            if weights.gates == 1:
                delta = gradients.delta[unit]
                for k in range(size):
                    delta[k] = gradients.memory[unit, k]
                slope(states.memory[unit], operator[ACTIVATION], delta)
            else:
                lstm_backward(weights, plan, states, unit, operator, gradients)
        aggregate_backward(weights, plan, states, labels, scratch, step[FROM], step[TO], group, gradients)
    weights_backward(weights, plan, states, labels, scratch, gradients)
    spread_cores(weights, plan, gradients)
    for run in range(len(plan.label_runs)):
        first, last = plan.label_runs[run, 0], plan.label_runs[run, 1]
        operator = weights.operators[plan.label_runs[run, 2]]
        matrix = matrix_of(weights.values, operator[LABEL_WEIGHTS], operator[LABEL] + 1, operator[LABEL_WIDTH])
        affine_inputs_backward(gradients.label, zero, first, last, gradients.vectors, zero, plan.label_row, matrix)
