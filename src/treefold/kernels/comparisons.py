r"""The comparison of pairs of roots, as the head of `PairClassifier` has it, in one call.

.. math::
    z = \phi\Big(\sum_{ij} \bar l_i \bar r_j\, T(i, j)\Big), \qquad y = V z + b, \qquad \phi(x) = \max(x, 0) + 0.01 \min(x, 0)
"""

import weakref
from typing import Final

import numpy as np
from torch import nn

from treefold.aggregators import Full
from treefold.flat import Arrangement
from treefold.kernels.compiled import planner
from treefold.kernels.cores import outer, outer_backward
from treefold.kernels.layout import Entry, Layout
from treefold.kernels.linear import affine, affine_inputs_backward, affine_weights_backward, copy
from treefold.kernels.perceptrons import add_linear, is_heard, matrix_at, still_fits
from treefold.kernels.tables import Floats, Ints

# Axes:  P pairs · U units · S memory size · C state size · Q = (C+1)² products of entries · H compared entries · K classes
LEAK: Final = 0.01


@planner
def comparison_forward(
    values: Floats, layers: Ints, state_size: int, memory: Floats, roots: Ints
) -> tuple[Floats, Floats, Floats]:
    """Return the products (P, Q), the compared entries (P, H) and the scores (P, K) of roots (2P,), the left ones first."""
    tensor, scores, zero = matrix_at(values, layers, 0), matrix_at(values, layers, 1), int(np.int64(0))
    pairs, kind = len(roots) // 2, memory.dtype
    products = np.empty((pairs, tensor.shape[0]), kind)
    compared, out = np.empty((pairs, tensor.shape[1]), kind), np.empty((pairs, scores.shape[1]), kind)
    own, vectors, sizes = np.arange(pairs), np.empty((2, state_size), kind), np.full(2, state_size)
    for pair in range(pairs):
        copy(memory[roots[pair], :state_size], vectors[0])
        copy(memory[roots[pairs + pair], :state_size], vectors[1])
        outer(vectors, sizes, zero, len(sizes), products[pair])
    affine(compared, zero, zero, pairs, products, zero, own, tensor)  # the last product is one
    for pair in range(pairs):
        line = compared[pair]
        for h in range(len(line)):
            line[h] = line[h] if line[h] > 0 else kind.type(LEAK) * line[h]
    affine(out, zero, zero, pairs, compared, zero, own, scores)
    return products, compared, out


@planner
def comparison_backward(
    values: Floats,
    layers: Ints,
    state_size: int,
    memory: Floats,
    roots: Ints,
    products: Floats,
    compared: Floats,
    d_out: Floats,
    d_memory: Floats,
    d_values: Floats,
) -> None:
    """Add the gradients of the memories and of the weights for those of the scores."""
    tensor, scores, zero = matrix_at(values, layers, 0), matrix_at(values, layers, 1), int(np.int64(0))
    pairs, kind = len(products), memory.dtype
    d_compared, d_products = np.zeros_like(compared), np.zeros_like(products)
    own, vectors, sizes = np.arange(pairs), np.empty((2, state_size), kind), np.full(2, state_size)
    d_vectors = np.empty_like(vectors)
    affine_weights_backward(d_out, zero, own, compared, zero, own, matrix_at(d_values, layers, 1))
    affine_inputs_backward(d_out, zero, zero, pairs, d_compared, zero, own, scores)
    for pair in range(pairs):
        line, delta = compared[pair], d_compared[pair]
        for h in range(len(line)):
            delta[h] = delta[h] if line[h] > 0 else kind.type(LEAK) * delta[h]
    affine_weights_backward(d_compared, zero, own, products, zero, own, matrix_at(d_values, layers, 0))
    affine_inputs_backward(d_compared, zero, zero, pairs, d_products, zero, own, tensor)
    for pair in range(pairs):
        left, right = roots[pair], roots[pairs + pair]
        copy(memory[left, :state_size], vectors[0])
        copy(memory[right, :state_size], vectors[1])
        outer_backward(vectors, sizes, zero, len(sizes), products[pair], d_products[pair], d_vectors)
        for i in range(state_size):
            d_memory[left, i] += d_vectors[0, i]
            d_memory[right, i] += d_vectors[1, i]


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
