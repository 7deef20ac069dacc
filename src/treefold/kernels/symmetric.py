r"""The symmetric core of shared `Full` and `Tucker`, on the features of the present children.

.. math:: z(k) = \sum_\alpha T(\alpha, k)\, P_s(\alpha), \qquad
          P_k(\alpha) = \sum_{i \in \mathrm{distinct}(\alpha)} P_{k-1}(\alpha \setminus i)\; \bar h_k(i)

With s children present, α runs over multisets of s coordinates: the absent ones add L − s homogeneous coordinates to each.
Units and gates of a block are lanes of one vector, so that the irregular sums over multisets still run on vector units.
"""

import numpy as np

from treefold.kernels.compiled import inlined, inner
from treefold.kernels.cores import core_of, gather_inputs, scatter_inputs
from treefold.kernels.linear import clear
from treefold.kernels.scratch import BLOCK, Scratch
from treefold.kernels.tables import (
    FIRST_TERM,
    FORM,
    FULL,
    LABEL,
    LAST_TERM,
    MULTISETS,
    OPERATOR,
    PRESENT,
    RANK,
    SYMMETRIC,
    Floats,
    Gradients,
    Ints,
    Plan,
    States,
    Weights,
)

# Axes:  lanes: gate · BLOCK units (units alone for `Full`, whose gates see the same inputs) · K output size


@inlined
def load_lanes(
    weights: Weights, plan: Plan, states: States, labels: Floats, scratch: Scratch, first: int, count: int, group: Ints
) -> int:
    """Lay the inputs of a block's cores out in lanes; return the number of lanes."""
    operator = weights.operators[group[OPERATOR]]
    rank, has_label = operator[RANK], operator[LABEL] > 0
    gates = 1 if operator[FORM] == FULL else weights.gates
    for gate in range(gates):
        for b in range(count):
            lane = gate * count + b
            gather_inputs(weights, plan, states, labels, scratch, first + b, operator, gate)
            if has_label:
                size = scratch.sizes[0]
                for i in range(size):
                    scratch.labels[i, lane] = scratch.vectors[0, i]
                scratch.labels[size, lane] = 1
            else:
                scratch.labels[0, lane] = 1
            for child in range(group[PRESENT]):
                for i in range(rank):
                    scratch.inputs[child, i, lane] = scratch.vectors[child + has_label, i]
                scratch.inputs[child, rank, lane] = 1
    return int(gates * count)


@inlined
def features_forward(weights: Weights, scratch: Scratch, group: Ints, lanes: int) -> int:
    """Compute the features of all orders up to the children's number; return where those of the last start."""
    operator = weights.operators[group[OPERATOR]]
    for lane in range(lanes):
        scratch.features[0, lane] = 1
    before, now = 0, 1
    for child in range(group[PRESENT]):
        order = weights.orders[operator[SYMMETRIC] + child + 1]
        clear(scratch.features, now, now + order[MULTISETS], lanes)
        for term in range(order[FIRST_TERM], order[LAST_TERM]):
            alpha, rest, coordinate = weights.terms[term, 0], weights.terms[term, 1], weights.terms[term, 2]
            target, source = scratch.features[now + alpha], scratch.features[before + rest]
            factor = scratch.inputs[child, coordinate]
            for lane in range(lanes):
                target[lane] += source[lane] * factor[lane]
        before, now = now, now + order[MULTISETS]
    return before


@inlined
def features_backward(weights: Weights, scratch: Scratch, group: Ints, lanes: int, last: int) -> None:
    """Turn the gradients of the last features into those of the inputs."""
    operator = weights.operators[group[OPERATOR]]
    zero = int(np.int64(0))
    clear(scratch.d_features, zero, last, lanes)
    for child in range(group[PRESENT]):
        clear(scratch.d_inputs[child], zero, operator[RANK] + 1, lanes)
    now = last
    for child in range(group[PRESENT] - 1, -1, -1):
        order = weights.orders[operator[SYMMETRIC] + child + 1]
        before = now - weights.orders[operator[SYMMETRIC] + child, MULTISETS]
        for term in range(order[FIRST_TERM], order[LAST_TERM]):
            alpha, rest, coordinate = weights.terms[term, 0], weights.terms[term, 1], weights.terms[term, 2]
            delta, source = scratch.d_features[now + alpha], scratch.features[before + rest]
            d_source, d_factor = scratch.d_features[before + rest], scratch.d_inputs[child, coordinate]
            factor = scratch.inputs[child, coordinate]
            for lane in range(lanes):
                d_source[lane] += delta[lane] * factor[lane]
                d_factor[lane] += delta[lane] * source[lane]
        now = before


@inner
def symmetric_forward(
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
    """Contract the symmetric cores of a group's units from start to stop: ``out[unit]`` are K entries for each gate."""
    operator = weights.operators[group[OPERATOR]]
    rank, multisets = operator[RANK], weights.orders[operator[SYMMETRIC] + group[PRESENT], MULTISETS]
    zero = int(np.int64(0))
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        lanes = load_lanes(weights, plan, states, labels, scratch, first, count, group)
        last = features_forward(weights, scratch, group, lanes)
        entries = scratch.sizes[0] + 1 if operator[LABEL] > 0 else 1
        clear(scratch.sums, zero, rank, weights.gates * count)
        for gate in range(weights.gates):
            core = core_of(weights, group, weights.values, states.restricted, gate)
            lane = gate * count if lanes > count or weights.gates == 1 else 0
            for entry in range(entries):
                label = scratch.labels[entry, lane : lane + count]
                for alpha in range(multisets):
                    feature = scratch.features[last + alpha, lane : lane + count]
                    base = (entry * multisets + alpha) * rank
                    for k in range(rank):
                        weight = core[base + k]
                        total = scratch.sums[k, gate * count : (gate + 1) * count]
                        for b in range(count):
                            total[b] += weight * (feature[b] * label[b])
            for b in range(count):
                for k in range(rank):
                    out[first + b, gate * rank + k] = scratch.sums[k, gate * count + b]


@inner
def symmetric_backward(
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
    """Add the gradients of `symmetric_forward` for those of its outputs, ``delta``."""
    operator = weights.operators[group[OPERATOR]]
    rank, multisets = operator[RANK], weights.orders[operator[SYMMETRIC] + group[PRESENT], MULTISETS]
    zero = int(np.int64(0))
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        lanes = load_lanes(weights, plan, states, labels, scratch, first, count, group)
        last = features_forward(weights, scratch, group, lanes)
        entries = scratch.sizes[0] + 1 if operator[LABEL] > 0 else 1
        clear(scratch.d_features, last, last + multisets, lanes)
        clear(scratch.d_labels, zero, entries, lanes)
        for gate in range(weights.gates):
            core = core_of(weights, group, weights.values, states.restricted, gate)
            d_core = core_of(weights, group, gradients.values, gradients.restricted, gate)
            lane = gate * count if lanes > count or weights.gates == 1 else 0
            for b in range(count):
                for k in range(rank):
                    scratch.sums[k, b] = delta[first + b, gate * rank + k]
            for entry in range(entries):
                label, d_label = (
                    scratch.labels[entry, lane : lane + count],
                    scratch.d_labels[entry, lane : lane + count],
                )
                for alpha in range(multisets):
                    feature = scratch.features[last + alpha, lane : lane + count]
                    d_feature = scratch.d_features[last + alpha, lane : lane + count]
                    base = (entry * multisets + alpha) * rank
                    for k in range(rank):
                        weight, total, d_sum = core[base + k], delta.dtype.type(0), scratch.sums[k]
                        for b in range(count):
                            total += d_sum[b] * (feature[b] * label[b])
                            d_feature[b] += weight * d_sum[b] * label[b]
                            d_label[b] += weight * d_sum[b] * feature[b]
                        d_core[base + k] += total
        features_backward(weights, scratch, group, lanes, last)
        store_lanes(weights, plan, states, labels, gradients, scratch, first, count, group)


@inlined
def store_lanes(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Floats,
    gradients: Gradients,
    scratch: Scratch,
    first: int,
    count: int,
    group: Ints,
) -> None:
    """Add the gradients in lanes to where the inputs came from."""
    operator = weights.operators[group[OPERATOR]]
    rank, has_label = operator[RANK], operator[LABEL] > 0
    for gate in range(1 if operator[FORM] == FULL else weights.gates):
        for b in range(count):
            lane = gate * count + b
            gather_inputs(weights, plan, states, labels, scratch, first + b, operator, gate)
            if has_label:
                for i in range(scratch.sizes[0]):
                    scratch.d_vectors[0, i] = scratch.d_labels[i, lane]
            for child in range(group[PRESENT]):
                for i in range(rank):
                    scratch.d_vectors[child + has_label, i] = scratch.d_inputs[child, i, lane]
            scatter_inputs(plan, gradients, scratch, first + b, operator, gate)
