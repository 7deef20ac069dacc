"""Affine maps of several rows by large matrices: blocks of sums that stay in registers, lines of weights that stay near.

A block is four rows by three vectors: twelve sums, for which seven vectors are read. Rows that are missing at the end are the
last one again, which stores the same twice. Outputs that fill no vector are the end of one that reaches back into the others,
for which it has zeros.
"""

from typing import Final

from treefold.kernels.compiled import inlined, inner
from treefold.kernels.tables import Floats, Ints
from treefold.kernels.vectors import (
    LANES,
    Vector,
    add_product,
    add_scaled,
    entry,
    last_of,
    load,
    nothing,
    store,
    sum_of,
)

# Axes:  e rows · i inputs · p outputs; other letters are places in arrays, counted from their first entry
_NEAR: Final = 4096
"""Weights that stay in the nearest cache while all rows go through them."""
_LEAST: Final = 2048
"""Weights below which plain loops are as fast."""


@inner
def blocks_pay(rows: int, size: int, width: int) -> bool:
    """Say whether blocks are faster than plain loops."""
    return rows >= 2 and width >= 3 * LANES and size * width >= _LEAST


@inlined
def store_three(array: Floats, place: int, a: Vector, b: Vector, c: Vector) -> None:
    """Store three vectors behind each other."""
    store(array, place, a)
    store(array, place + LANES, b)
    store(array, place + 2 * LANES, c)


@inlined
def store_four(
    array: Floats, p0: int, p1: int, p2: int, p3: int, a0: Vector, a1: Vector, a2: Vector, a3: Vector
) -> None:
    """Store four vectors of four rows."""
    store(array, p0, a0)
    store(array, p1, a1)
    store(array, p2, a2)
    store(array, p3, a3)


@inlined
def add_sums(line: Floats, place: int, count: int, a: Vector, b: Vector, c: Vector) -> None:
    """Add the sums of the first vectors of three to entries of a line."""
    line[place] += sum_of(a)
    if count > 1:
        line[place + 1] += sum_of(b)
    if count > 2:
        line[place + 2] += sum_of(c)


@inner
def add_affine(
    out: Floats, out_column: int, start: int, stop: int, inputs: Floats, in_column: int, rows: Ints, weights: Floats
) -> None:
    """Add ``inputs[rows[e]] @ weights[:-1]`` to ``out[e]`` for e from start to stop; at least two of them."""
    size, width = weights.shape[0] - 1, weights.shape[1]
    apart, in_apart, chunk = out.shape[1], inputs.shape[1], max(LANES, _NEAR // width)
    for first in range(0, size, chunk):
        last = min(first + chunk, size)
        for begin in range(start, stop, 4):
            e1, e2, e3 = min(begin + 1, stop - 1), min(begin + 2, stop - 1), min(begin + 3, stop - 1)
            y0, y1 = begin * apart + out_column, e1 * apart + out_column
            y2, y3 = e2 * apart + out_column, e3 * apart + out_column
            x0, x1 = entry(rows, begin) * in_apart + in_column, entry(rows, e1) * in_apart + in_column
            x2, x3 = entry(rows, e2) * in_apart + in_column, entry(rows, e3) * in_apart + in_column
            p = 0
            while p + 3 * LANES <= width:
                q, r = p + LANES, p + 2 * LANES
                a0, b0, c0 = load(out, y0 + p), load(out, y0 + q), load(out, y0 + r)
                a1, b1, c1 = load(out, y1 + p), load(out, y1 + q), load(out, y1 + r)
                a2, b2, c2 = load(out, y2 + p), load(out, y2 + q), load(out, y2 + r)
                a3, b3, c3 = load(out, y3 + p), load(out, y3 + q), load(out, y3 + r)
                for i in range(first, last):
                    line = i * width
                    u, v, w = load(weights, line + p), load(weights, line + q), load(weights, line + r)
                    x = entry(inputs, x0 + i)
                    a0, b0, c0 = add_scaled(a0, x, u), add_scaled(b0, x, v), add_scaled(c0, x, w)
                    x = entry(inputs, x1 + i)
                    a1, b1, c1 = add_scaled(a1, x, u), add_scaled(b1, x, v), add_scaled(c1, x, w)
                    x = entry(inputs, x2 + i)
                    a2, b2, c2 = add_scaled(a2, x, u), add_scaled(b2, x, v), add_scaled(c2, x, w)
                    x = entry(inputs, x3 + i)
                    a3, b3, c3 = add_scaled(a3, x, u), add_scaled(b3, x, v), add_scaled(c3, x, w)
                store_three(out, y0 + p, a0, b0, c0)
                store_three(out, y1 + p, a1, b1, c1)
                store_three(out, y2 + p, a2, b2, c2)
                store_three(out, y3 + p, a3, b3, c3)
                p += 3 * LANES
            while p < width:
                place, new = min(p, width - LANES), min(LANES, width - p)
                a0, a1 = load(out, y0 + place), load(out, y1 + place)
                a2, a3 = load(out, y2 + place), load(out, y3 + place)
                for i in range(first, last):
                    u = last_of(load(weights, i * width + place), new)
                    a0, a1 = add_scaled(a0, entry(inputs, x0 + i), u), add_scaled(a1, entry(inputs, x1 + i), u)
                    a2, a3 = add_scaled(a2, entry(inputs, x2 + i), u), add_scaled(a3, entry(inputs, x3 + i), u)
                store_four(out, y0 + place, y1 + place, y2 + place, y3 + place, a0, a1, a2, a3)
                p += LANES


@inner
def add_weights_gradient(
    delta: Floats, out_column: int, chosen: Ints, inputs: Floats, in_column: int, rows: Ints, d_weights: Floats
) -> None:
    """Add the gradient of ``weights[:-1]`` of `add_affine` for the outputs' gradients ``delta[e]``, e of all that are chosen."""
    size, width = d_weights.shape[0] - 1, d_weights.shape[1]
    count, apart, in_apart = len(chosen), delta.shape[1], inputs.shape[1]
    for begin in range(0, size, 4):
        i1, i2, i3 = min(begin + 1, size - 1), min(begin + 2, size - 1), min(begin + 3, size - 1)
        g0, g1, g2, g3 = begin * width, i1 * width, i2 * width, i3 * width
        x0, x1, x2, x3 = in_column + begin, in_column + i1, in_column + i2, in_column + i3
        p = 0
        while p + 3 * LANES <= width:
            q, r = p + LANES, p + 2 * LANES
            a0, b0, c0 = load(d_weights, g0 + p), load(d_weights, g0 + q), load(d_weights, g0 + r)
            a1, b1, c1 = load(d_weights, g1 + p), load(d_weights, g1 + q), load(d_weights, g1 + r)
            a2, b2, c2 = load(d_weights, g2 + p), load(d_weights, g2 + q), load(d_weights, g2 + r)
            a3, b3, c3 = load(d_weights, g3 + p), load(d_weights, g3 + q), load(d_weights, g3 + r)
            for index in range(count):
                e = entry(chosen, index)
                line, row = e * apart + out_column, entry(rows, e) * in_apart
                u, v, w = load(delta, line + p), load(delta, line + q), load(delta, line + r)
                x = entry(inputs, row + x0)
                a0, b0, c0 = add_scaled(a0, x, u), add_scaled(b0, x, v), add_scaled(c0, x, w)
                x = entry(inputs, row + x1)
                a1, b1, c1 = add_scaled(a1, x, u), add_scaled(b1, x, v), add_scaled(c1, x, w)
                x = entry(inputs, row + x2)
                a2, b2, c2 = add_scaled(a2, x, u), add_scaled(b2, x, v), add_scaled(c2, x, w)
                x = entry(inputs, row + x3)
                a3, b3, c3 = add_scaled(a3, x, u), add_scaled(b3, x, v), add_scaled(c3, x, w)
            store_three(d_weights, g0 + p, a0, b0, c0)
            store_three(d_weights, g1 + p, a1, b1, c1)
            store_three(d_weights, g2 + p, a2, b2, c2)
            store_three(d_weights, g3 + p, a3, b3, c3)
            p += 3 * LANES
        while p < width:
            place, new = min(p, width - LANES), min(LANES, width - p)
            a0, a1 = load(d_weights, g0 + place), load(d_weights, g1 + place)
            a2, a3 = load(d_weights, g2 + place), load(d_weights, g3 + place)
            for index in range(count):
                e = entry(chosen, index)
                u, x = last_of(load(delta, e * apart + out_column + place), new), entry(rows, e) * in_apart
                a0, a1 = add_scaled(a0, entry(inputs, x + x0), u), add_scaled(a1, entry(inputs, x + x1), u)
                a2, a3 = add_scaled(a2, entry(inputs, x + x2), u), add_scaled(a3, entry(inputs, x + x3), u)
            store_four(d_weights, g0 + place, g1 + place, g2 + place, g3 + place, a0, a1, a2, a3)
            p += LANES


@inner
def add_inputs_gradient(
    delta: Floats, out_column: int, start: int, stop: int, d_inputs: Floats, in_column: int, rows: Ints, weights: Floats
) -> None:
    """Add the gradients of the inputs of `add_affine` for the outputs' gradients ``delta``; at least two rows."""
    size, width = weights.shape[0] - 1, weights.shape[1]
    apart, chunk, zeros = delta.shape[1], max(LANES, _NEAR // width), nothing(weights)
    for first in range(0, size, chunk):
        last = min(first + chunk, size)
        for begin in range(start, stop, 4):
            e1, e2, e3 = min(begin + 1, stop - 1), min(begin + 2, stop - 1), min(begin + 3, stop - 1)
            d0, d1 = begin * apart + out_column, e1 * apart + out_column
            d2, d3 = e2 * apart + out_column, e3 * apart + out_column
            for i in range(first, last, 3):
                w0, w1, w2 = i * width, min(i + 1, last - 1) * width, min(i + 2, last - 1) * width
                a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = c0 = c1 = c2 = c3 = zeros
                p = 0
                while p + LANES <= width:
                    u, v, w = load(weights, w0 + p), load(weights, w1 + p), load(weights, w2 + p)
                    d = load(delta, d0 + p)
                    a0, b0, c0 = add_product(a0, d, u), add_product(b0, d, v), add_product(c0, d, w)
                    d = load(delta, d1 + p)
                    a1, b1, c1 = add_product(a1, d, u), add_product(b1, d, v), add_product(c1, d, w)
                    d = load(delta, d2 + p)
                    a2, b2, c2 = add_product(a2, d, u), add_product(b2, d, v), add_product(c2, d, w)
                    d = load(delta, d3 + p)
                    a3, b3, c3 = add_product(a3, d, u), add_product(b3, d, v), add_product(c3, d, w)
                    p += LANES
                if p < width:  # a vector that reaches back, without what it shares with the one before
                    end, new = width - LANES, width - p
                    u, v, w = load(weights, w0 + end), load(weights, w1 + end), load(weights, w2 + end)
                    d = last_of(load(delta, d0 + end), new)
                    a0, b0, c0 = add_product(a0, d, u), add_product(b0, d, v), add_product(c0, d, w)
                    d = last_of(load(delta, d1 + end), new)
                    a1, b1, c1 = add_product(a1, d, u), add_product(b1, d, v), add_product(c1, d, w)
                    d = last_of(load(delta, d2 + end), new)
                    a2, b2, c2 = add_product(a2, d, u), add_product(b2, d, v), add_product(c2, d, w)
                    d = last_of(load(delta, d3 + end), new)
                    a3, b3, c3 = add_product(a3, d, u), add_product(b3, d, v), add_product(c3, d, w)
                lines, k = min(3, last - i), in_column + i
                add_sums(d_inputs[rows[begin]], k, lines, a0, b0, c0)
                if begin + 1 < stop:
                    add_sums(d_inputs[rows[e1]], k, lines, a1, b1, c1)
                if begin + 2 < stop:
                    add_sums(d_inputs[rows[e2]], k, lines, a2, b2, c2)
                if begin + 3 < stop:
                    add_sums(d_inputs[rows[e3]], k, lines, a3, b3, c3)
