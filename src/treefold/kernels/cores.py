r"""The dense core of `Full` and `Tucker`, restricted to the slots that have a child.

.. math:: z(k) = \sum_{j} r(j) \sum_{i} l(i)\, T(i, j, k)

with the outer products l and r of the left and the right half of the homogeneous inputs. An absent child's vector is [0; 1],
so that only the last entry of its mode counts: the core without the other entries is a smaller one, with a mode less. The last
slot's mode is the slowest, so that the smaller core is a piece of the core where the last children are absent. Otherwise it is
copied together once for all units of a batch that have children in the same slots.
"""

import numpy as np

from treefold.kernels.compiled import inlined, inner
from treefold.kernels.linear import affine, affine_inputs_backward, affine_weights_backward, copy
from treefold.kernels.scratch import BLOCK, Scratch
from treefold.kernels.tables import (
    CORE,
    CORE_SIZE,
    FORM,
    FULL,
    LABEL,
    LEFT,
    OPERATOR,
    RANK,
    RESTRICTED,
    RIGHT,
    ROW_COUNT,
    ROWS,
    Floats,
    Gradients,
    Ints,
    Plan,
    States,
    Weights,
)

# Axes:  I entries of the left half · J of the right · K output size, which is the core's rank · G gates


@inlined
def restrict_cores(weights: Weights, plan: Plan, restricted: Floats) -> None:
    """Copy the rows of each core that count for each group of units."""
    for index in range(len(plan.groups)):
        group = plan.groups[index]
        if group[ROWS] < 0:
            continue
        operator = weights.operators[group[OPERATOR]]
        rank, count = operator[RANK], group[ROW_COUNT]
        for gate in range(weights.gates):
            source, target = operator[CORE] + gate * operator[CORE_SIZE], group[RESTRICTED] + gate * count * rank
            # Row after row in the inner loop: the rows are far apart, and this way many are on their way from memory at once.
            for k in range(rank):
                for entry in range(count):
                    row = source + plan.core_rows[group[ROWS] + entry] * rank
                    restricted[target + entry * rank + k] = weights.values[row + k]


@inlined
def spread_cores(weights: Weights, plan: Plan, gradients: Gradients) -> None:
    """Add the gradients of the restricted cores to those of the cores."""
    for index in range(len(plan.groups)):
        group = plan.groups[index]
        if group[ROWS] < 0:
            continue
        operator = weights.operators[group[OPERATOR]]
        rank, count = operator[RANK], group[ROW_COUNT]
        for gate in range(weights.gates):
            target, source = operator[CORE] + gate * operator[CORE_SIZE], group[RESTRICTED] + gate * count * rank
            for k in range(rank):
                for entry in range(count):
                    row = target + plan.core_rows[group[ROWS] + entry] * rank
                    gradients.values[row + k] += gradients.restricted[source + entry * rank + k]


@inlined
def core_of(weights: Weights, group: Ints, values: Floats, restricted: Floats, gate: int) -> Floats:
    """Return a gate's core for a group of units, or its gradient, as a flat array."""
    operator = weights.operators[group[OPERATOR]]
    size = group[ROW_COUNT] * operator[RANK]
    if group[ROWS] < 0:
        start = operator[CORE] + gate * operator[CORE_SIZE] + group[RESTRICTED]
        return values[start : start + size]
    start = group[RESTRICTED] + gate * size
    return restricted[start : start + size]


@inner
def gather_inputs(
    weights: Weights, plan: Plan, states: States, labels: Floats, scratch: Scratch, unit: int, operator: Ints, gate: int
) -> int:
    """Copy the inputs of a unit's core into scratch, the label first, then the last child; return how many there are."""
    rank, modes = operator[RANK], 0
    if operator[LABEL] > 0:
        scratch.sizes[0] = operator[LABEL] if operator[FORM] == FULL else rank
        for i in range(scratch.sizes[0]):
            if operator[FORM] == FULL:
                scratch.vectors[0, i] = labels[plan.row_of[unit], i]
            else:
                scratch.vectors[0, i] = states.label[plan.label_of[unit], gate * rank + i]
        modes = 1
    for t in range(plan.children[unit + 1] - 1, plan.children[unit] - 1, -1):
        scratch.sizes[modes] = rank
        if operator[FORM] == FULL:
            copy(states.memory[plan.child_unit[t], :rank], scratch.vectors[modes])
        else:
            copy(states.projected[plan.child_edge[t], gate * rank : (gate + 1) * rank], scratch.vectors[modes])
        modes += 1
    return modes


@inner
def scatter_inputs(plan: Plan, gradients: Gradients, scratch: Scratch, unit: int, operator: Ints, gate: int) -> None:
    """Add the gradients of the inputs of a unit's core to where the inputs came from."""
    rank, modes = operator[RANK], 0
    if operator[LABEL] > 0:
        for i in range(scratch.sizes[0]):
            if operator[FORM] == FULL:
                gradients.vectors[plan.row_of[unit], i] += scratch.d_vectors[0, i]
            else:
                gradients.label[plan.label_of[unit], gate * rank + i] += scratch.d_vectors[0, i]
        modes = 1
    for t in range(plan.children[unit + 1] - 1, plan.children[unit] - 1, -1):
        for i in range(rank):
            if operator[FORM] == FULL:
                gradients.memory[plan.child_unit[t], i] += scratch.d_vectors[modes, i]
            else:
                gradients.projected[plan.child_edge[t], gate * rank + i] += scratch.d_vectors[modes, i]
        modes += 1


@inner
def outer(vectors: Floats, sizes: Ints, first: int, last: int, result: Floats) -> None:
    """Write the outer product of the homogeneous vectors first to last, the last mode fastest, into a flat result.

    It grows from its end: the entries for the last entry of a mode, which is one, are those of the modes behind it.
    """
    start = 1
    for mode in range(first, last):
        start *= sizes[mode] + 1
    start -= 1
    filled = 1
    result[start] = 1
    for mode in range(last - 1, first - 1, -1):
        vector, behind = vectors[mode], result[start : start + filled]
        start -= sizes[mode] * filled
        for i in range(sizes[mode]):
            value, block = vector[i], result[start + i * filled : start + (i + 1) * filled]
            for entry in range(filled):
                block[entry] = value * behind[entry]
        filled *= sizes[mode] + 1


@inner
def outer_backward(
    vectors: Floats, sizes: Ints, first: int, last: int, result: Floats, d_result: Floats, d_vectors: Floats
) -> None:
    """Turn the gradient of an outer product into those of its vectors; uses up ``d_result``."""
    filled, start = 1, 0
    for mode in range(first, last):
        filled *= sizes[mode] + 1
    for mode in range(first, last):
        vector, d_vector = vectors[mode], d_vectors[mode]
        filled //= sizes[mode] + 1
        tail = start + sizes[mode] * filled
        behind, d_behind = result[tail : tail + filled], d_result[tail : tail + filled]
        for i in range(sizes[mode]):
            value, block = vector[i], d_result[start + i * filled : start + (i + 1) * filled]
            total = vector.dtype.type(0)
            for entry in range(filled):
                total += behind[entry] * block[entry]
                d_behind[entry] += value * block[entry]
            d_vector[i] = total
        start = tail


@inner
def left_modes(operator: Ints, group: Ints, modes: int) -> int:
    """Return how many of the modes belong to the left half."""
    entries = group[RIGHT]
    while entries > 1:
        entries //= operator[RANK] + 1
        modes -= 1
    return modes


@inner
def dense_forward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Floats,
    scratch: Scratch,
    start: int,
    stop: int,
    group: Ints,
    out: Floats,
) -> None:
    """Contract the cores of a group's units from start to stop: ``out[unit]`` are K entries for each gate."""
    operator = weights.operators[group[OPERATOR]]
    rank, width, zero = operator[RANK], group[RIGHT] * operator[RANK], int(np.int64(0))
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        size = count * weights.gates * width
        begin = min(plan.carry_of[first], len(states.carry) - size)  # the same for many where it is not kept
        carry = states.carry[begin : begin + size].reshape(count, weights.gates * width)
        for gate in range(weights.gates):
            if gate == 0 or operator[FORM] != FULL:
                for b in range(count):
                    modes = gather_inputs(weights, plan, states, labels, scratch, first + b, operator, gate)
                    middle = left_modes(operator, group, modes)
                    outer(scratch.vectors, scratch.sizes, zero, middle, scratch.left[b])
                    outer(scratch.vectors, scratch.sizes, middle, modes, scratch.right[b])
            core = core_of(weights, group, weights.values, states.restricted, gate).reshape(group[LEFT], width)
            affine(carry, gate * width, zero, count, scratch.left, zero, scratch.rows, core)
            for b in range(count):
                line, target = carry[b], out[first + b, gate * rank : (gate + 1) * rank]
                for k in range(rank):
                    target[k] = 0
                for j in range(group[RIGHT]):
                    factor, base = scratch.right[b, j], gate * width + j * rank
                    for k in range(rank):
                        target[k] += factor * line[base + k]


@inner
def dense_backward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Floats,
    scratch: Scratch,
    start: int,
    stop: int,
    group: Ints,
    delta: Floats,
    gradients: Gradients,
) -> None:
    """Add the gradients of the inputs of `dense_forward` for those of its outputs, ``delta``; keep those of the carries."""
    operator = weights.operators[group[OPERATOR]]
    rank, width, zero = operator[RANK], group[RIGHT] * operator[RANK], int(np.int64(0))
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        begin, end = plan.carry_of[first], plan.carry_of[first + count]
        carry = states.carry[begin:end].reshape(count, weights.gates * width)
        d_carry = gradients.carry[begin:end].reshape(count, weights.gates * width)
        for gate in range(weights.gates):
            for b in range(count):
                modes = gather_inputs(weights, plan, states, labels, scratch, first + b, operator, gate)
                middle = left_modes(operator, group, modes)
                outer(scratch.vectors, scratch.sizes, zero, middle, scratch.left[b])
                outer(scratch.vectors, scratch.sizes, middle, modes, scratch.right[b])
                line, source = carry[b], delta[first + b, gate * rank : (gate + 1) * rank]
                d_line, d_left = d_carry[b], scratch.d_left[b]
                for j in range(group[RIGHT]):
                    factor, base, total = scratch.right[b, j], gate * width + j * rank, delta.dtype.type(0)
                    for k in range(rank):
                        total += line[base + k] * source[k]
                        d_line[base + k] = factor * source[k]
                    scratch.d_right[b, j] = total
                for i in range(group[LEFT]):
                    d_left[i] = 0
            core = core_of(weights, group, weights.values, states.restricted, gate).reshape(group[LEFT], width)
            affine_inputs_backward(d_carry, gate * width, zero, count, scratch.d_left, zero, scratch.rows, core)
            for b in range(count):
                modes = gather_inputs(weights, plan, states, labels, scratch, first + b, operator, gate)
                middle = left_modes(operator, group, modes)
                vectors, sizes, d_vectors = scratch.vectors, scratch.sizes, scratch.d_vectors
                outer_backward(vectors, sizes, zero, middle, scratch.left[b], scratch.d_left[b], d_vectors)
                outer_backward(vectors, sizes, middle, modes, scratch.right[b], scratch.d_right[b], d_vectors)
                scatter_inputs(plan, gradients, scratch, first + b, operator, gate)


@inner
def dense_weights_backward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Floats,
    scratch: Scratch,
    members: Ints,
    group: Ints,
    gradients: Gradients,
) -> None:
    """Add the gradient of a group's core, for its units of all heights together: it is read and written once for a block."""
    operator = weights.operators[group[OPERATOR]]
    width, zero = group[RIGHT] * operator[RANK], int(np.int64(0))
    for first in range(0, len(members), BLOCK):
        count = min(BLOCK, len(members) - first)
        for gate in range(weights.gates):
            for b in range(count):
                unit = members[first + b]
                if gate == 0 or operator[FORM] != FULL:
                    modes = gather_inputs(weights, plan, states, labels, scratch, unit, operator, gate)
                    middle = left_modes(operator, group, modes)
                    outer(scratch.vectors, scratch.sizes, zero, middle, scratch.left[b])
                begin = plan.carry_of[unit] + gate * width
                copy(gradients.carry[begin : begin + width], scratch.d_carry[b])
            d_core = core_of(weights, group, gradients.values, gradients.restricted, gate).reshape(group[LEFT], width)
            affine_weights_backward(
                scratch.d_carry, zero, scratch.rows[:count], scratch.left, zero, scratch.rows, d_core
            )
