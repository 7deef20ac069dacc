r"""The comparison of pairs of roots, as the head of `PairClassifier` has it, in one call.

.. math::
    z = \phi\Big(\sum_{ij} \bar l_i \bar r_j\, T(i, j)\Big), \qquad y = V z + b, \qquad \phi(x) = \max(x, 0) + 0.01 \min(x, 0)
"""

import weakref
from typing import Final

import numpy as np
from torch import nn

from treefold.kernels.compiled import inlined, planner
from treefold.kernels.layout import Entry, Layout
from treefold.kernels.linear import affine, affine_inputs_backward, affine_weights_backward, copy
from treefold.kernels.perceptrons import add_linear, is_heard, matrix_at, still_fits
from treefold.kernels.tables import START, WIDTH, Floats, Ints
from treefold.nn.aggregators import Full
from treefold.nn.flat import Arrangement

# Axes:  P pairs · U units · S memory size · C state size · H compared entries · Q = (C+1) H carried ones · K classes
LEAK: Final = 0.01


@planner
def comparison_forward(
    values: Floats, layers: Ints, state_size: int, memory: Floats, roots: Ints
) -> tuple[Floats, Floats, Floats]:
    """Return the tensor contracted with the left roots (P, Q), the compared entries (P, H) and the scores (P, K).

    ``roots`` (2P,) are units, the left ones first.
    """
    scores, zero, kind = matrix_at(values, layers, 1), int(np.int64(0)), memory.dtype
    pairs, entries = len(roots) // 2, layers[0, WIDTH]
    carried = np.empty((pairs, (state_size + 1) * entries), kind)
    compared, out = np.empty((pairs, entries), kind), np.empty((pairs, scores.shape[1]), kind)
    affine(carried, zero, zero, pairs, memory, zero, roots, tensor_at(values, layers, state_size))
    for pair in range(pairs):
        right, line = memory[roots[pairs + pair]], compared[pair]
        copy(carried[pair, state_size * entries :], line)  # the last entry of a homogeneous vector is one
        for j in range(state_size):
            block = carried[pair, j * entries : (j + 1) * entries]
            for h in range(entries):
                line[h] += right[j] * block[h]
        for h in range(entries):
            line[h] = line[h] if line[h] > 0 else kind.type(LEAK) * line[h]
    affine(out, zero, zero, pairs, compared, zero, np.arange(pairs), scores)
    return carried, compared, out


@planner
def comparison_backward(
    values: Floats,
    layers: Ints,
    state_size: int,
    memory: Floats,
    roots: Ints,
    carried: Floats,
    compared: Floats,
    d_out: Floats,
    d_memory: Floats,
    d_values: Floats,
) -> None:
    """Add the gradients of the memories and of the weights for those of the scores; uses up what was carried."""
    scores, zero, kind = matrix_at(values, layers, 1), int(np.int64(0)), memory.dtype
    pairs, entries = compared.shape
    d_compared, own = np.zeros_like(compared), np.arange(pairs)
    affine_weights_backward(d_out, zero, own, compared, zero, own, matrix_at(d_values, layers, 1))
    affine_inputs_backward(d_out, zero, zero, pairs, d_compared, zero, own, scores)
    for pair in range(pairs):
        right, line, delta = memory[roots[pairs + pair]], compared[pair], d_compared[pair]
        for h in range(entries):
            delta[h] = delta[h] if line[h] > 0 else kind.type(LEAK) * delta[h]
        for j in range(state_size):
            block, total = carried[pair, j * entries : (j + 1) * entries], kind.type(0)
            for h in range(entries):
                total += block[h] * delta[h]
                block[h] = right[j] * delta[h]
            d_memory[roots[pairs + pair], j] += total
        copy(delta, carried[pair, state_size * entries :])
    d_tensor = tensor_at(d_values, layers, state_size)
    affine_weights_backward(carried, zero, own, memory, zero, roots, d_tensor)
    affine_inputs_backward(carried, zero, zero, pairs, d_memory, zero, roots, tensor_at(values, layers, state_size))


@inlined
def tensor_at(values: Floats, layers: Ints, state_size: int) -> Floats:
    """Return the tensor, or its gradient, as the matrix (C+1, Q) that the left roots go through."""
    start, width = layers[0, START], (state_size + 1) * layers[0, WIDTH]
    return values[start : start + (state_size + 1) * width].reshape(state_size + 1, width)


def comparison_arrangement(head: nn.Module) -> Arrangement | None:
    """Say how the parameters should stand in one tensor, so that the kernels read them there."""
    layout = comparison_layout(head)
    if layout is None or not all(parameter.requires_grad for parameter in layout.parameters):
        return None
    return layout.arrangement()


_layouts: "weakref.WeakKeyDictionary[nn.Module, Layout]" = weakref.WeakKeyDictionary()


def comparison_layout(head: nn.Module) -> Layout | None:
    """Lay out a head's ``comparison``, a tensor (C+1, C+1, H), and its ``scores`` behind it, once while they are the same.

    None where there is something else, or something listens.
    """
    comparison, scores = head.comparison, head.scores
    if type(comparison) is not Full or type(scores) is not nn.Linear or is_heard(comparison) or is_heard(scores):
        return None
    tensor = comparison._parameters.get("tensor")
    if tensor is None or tensor.dim() != 3 or scores.bias is None:
        return None
    known = _layouts.get(head)
    same = known is not None and known.entries[0].module is comparison and known.entries[-1].module is scores
    if known is None or not same or not still_fits(known):
        side, _, entries = tensor.shape
        known = _layouts[head] = Layout(gates=0, state_size=side - 1)
        start = known.take(tensor.numel())
        known.sets.append([start, entries, side * side - 1])
        known.entries.append(Entry(comparison, "tensor", start, (side, side, entries), (side * entries, entries, 1)))
        add_linear(known, scores)
        known.finish()
    return known
