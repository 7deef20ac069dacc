"""Affine maps of many rows, and activations: the loops that take the time, written for vector units.

`affine`, `affine_inputs_backward` and `affine_weights_backward` are a linear layer and its gradients, on rows that are chosen by
their numbers. Small matrices go through plain loops. For large ones, blocks of four rows by three vectors keep twelve sums in
registers, for which seven vectors are read. If rows are missing at the end of a block, the last row takes their place and is
stored twice. Outputs that do not fill a vector are the end of a vector that overlaps the one before, with zeros in the overlap.
"""

import math
from typing import Final

import numpy as np

from treefold.kernels.compile import inlined, kernel
from treefold.kernels.records import CLAMP, SHARP, TANH, Ints, Matrix, Vector
from treefold.kernels.vectors import LANES, Lanes, add_product, add_scaled, entry, last_of, load, nothing, store, sum_of

# Axes:  e rows · i inputs · p outputs; other letters are places in arrays, counted from their first entry
_CACHED: Final = 4096
"""Weights that stay in the first-level cache while all rows go through them."""
_FEWEST: Final = 2048
"""Weights below which plain loops are as fast as blocks."""
_WIDE: Final = 256
"""Outputs above which lines of weights are read one at a time: several at once are slow if they come from main memory."""


@kernel
def copy(source: Vector, target: Vector) -> None:
    """Copy a vector over the beginning of another."""
    for i in range(len(source)):
        target[i] = source[i]


@kernel
def clear(matrix: Matrix, start: int, stop: int, width: int) -> None:
    """Set the first entries of some rows of a matrix to zero."""
    for row in range(start, stop):
        line = matrix[row]
        for i in range(width):
            line[i] = 0


@kernel
def affine(
    out: Matrix, out_column: int, start: int, stop: int, inputs: Matrix, in_column: int, rows: Ints, weights: Matrix
) -> None:
    """Set ``out[e] = inputs[rows[e]] @ weights[:-1] + weights[-1]`` for e from start to stop."""
    size, width = weights.shape[0] - 1, weights.shape[1]
    bias = weights[size]
    if blocks_pay(stop - start, size, width):
        for e in range(start, stop):
            copy(bias, out[e, out_column : out_column + width])
        add_affine(out, out_column, start, stop, inputs, in_column, rows, weights)
        return
    for e in range(start, stop):
        x, y = inputs[rows[e], in_column : in_column + size], out[e, out_column : out_column + width]
        copy(bias, y)
        i = 0
        while i + 4 <= size:  # four inputs at once, so that the outputs are read and written once for all of them
            a0, a1, a2, a3 = x[i], x[i + 1], x[i + 2], x[i + 3]
            w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            for p in range(width):
                y[p] += a0 * w0[p] + a1 * w1[p] + a2 * w2[p] + a3 * w3[p]
            i += 4
        while i < size:
            a0, w0 = x[i], weights[i]
            for p in range(width):
                y[p] += a0 * w0[p]
            i += 1


@kernel
def affine_inputs_backward(
    delta: Matrix, out_column: int, start: int, stop: int, d_inputs: Matrix, in_column: int, rows: Ints, weights: Matrix
) -> None:
    """Add the gradients of the inputs of `affine` for the outputs' gradients ``delta``."""
    if blocks_pay(stop - start, weights.shape[0] - 1, weights.shape[1]):
        add_inputs_gradient(delta, out_column, start, stop, d_inputs, in_column, rows, weights)
        return
    if weights.shape[1] > _WIDE:
        wide_inputs_backward(delta, out_column, start, stop, d_inputs, in_column, rows, weights)
        return
    size, width = weights.shape[0] - 1, weights.shape[1]
    zero = weights.dtype.type(0)
    for e in range(start, stop):
        d, x = delta[e, out_column : out_column + width], d_inputs[rows[e], in_column : in_column + size]
        i = 0
        while i + 4 <= size:  # four sums at once: each is short, and four of them keep the vector units busy
            w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            s0 = s1 = s2 = s3 = zero
            for p in range(width):
                s0 += w0[p] * d[p]
                s1 += w1[p] * d[p]
                s2 += w2[p] * d[p]
                s3 += w3[p] * d[p]
            x[i] += s0
            x[i + 1] += s1
            x[i + 2] += s2
            x[i + 3] += s3
            i += 4
        while i < size:
            w0, s0 = weights[i], zero
            for p in range(width):
                s0 += w0[p] * d[p]
            x[i] += s0
            i += 1


@kernel
def wide_inputs_backward(
    delta: Matrix, out_column: int, start: int, stop: int, d_inputs: Matrix, in_column: int, rows: Ints, weights: Matrix
) -> None:
    """Do what `affine_inputs_backward` does for long sums: the weights are read one line after the other."""
    size, width = weights.shape[0] - 1, weights.shape[1]
    for e in range(start, stop):
        d, x = delta[e, out_column : out_column + width], d_inputs[rows[e], in_column : in_column + size]
        for i in range(size):
            w, s = weights[i], weights.dtype.type(0)
            for p in range(width):
                s += w[p] * d[p]
            x[i] += s


@kernel
def affine_weights_backward(
    delta: Matrix, out_column: int, chosen: Ints, inputs: Matrix, in_column: int, rows: Ints, d_weights: Matrix
) -> None:
    """Add the gradient of the weights of `affine` for the outputs' gradients ``delta[e]``, e of all that are chosen."""
    size, width = d_weights.shape[0] - 1, d_weights.shape[1]
    if blocks_pay(len(chosen), size, width):
        add_weights_gradient(delta, out_column, chosen, inputs, in_column, rows, d_weights)
        g = d_weights[size]
        for index in range(len(chosen)):
            d0 = delta[chosen[index], out_column : out_column + width]
            for p in range(width):
                g[p] += d0[p]
        return
    index = 0
    # Four rows at once, so that the gradient is read and written once for all of them.
    while index + 4 <= len(chosen):
        e0, e1, e2, e3 = chosen[index], chosen[index + 1], chosen[index + 2], chosen[index + 3]
        d0, d1 = delta[e0, out_column : out_column + width], delta[e1, out_column : out_column + width]
        d2, d3 = delta[e2, out_column : out_column + width], delta[e3, out_column : out_column + width]
        x0, x1, x2, x3 = inputs[rows[e0]], inputs[rows[e1]], inputs[rows[e2]], inputs[rows[e3]]
        for i in range(size):
            g, k = d_weights[i], in_column + i
            a0, a1, a2, a3 = x0[k], x1[k], x2[k], x3[k]
            for p in range(width):
                g[p] += a0 * d0[p] + a1 * d1[p] + a2 * d2[p] + a3 * d3[p]
        g = d_weights[size]
        for p in range(width):
            g[p] += d0[p] + d1[p] + d2[p] + d3[p]
        index += 4
    while index < len(chosen):
        d0, x0 = delta[chosen[index], out_column : out_column + width], inputs[rows[chosen[index]]]
        for i in range(size):
            g, a0 = d_weights[i], x0[in_column + i]
            for p in range(width):
                g[p] += a0 * d0[p]
        g = d_weights[size]
        for p in range(width):
            g[p] += d0[p]
        index += 1


@kernel
def tanh(x: Vector) -> None:
    """Replace x by tanh(x): by a ratio of polynomials in single precision, which vectorises, exactly in double."""
    if x.itemsize == 8:
        for i in range(len(x)):
            x[i] = math.tanh(x[i])
        return
    # The approximation of Eigen's `ptanh`: x P(x²) / Q(x²) on [-7.9, 7.9], where tanh is one but for rounding.
    bound = np.float32(7.90531110763549805)
    p1, p3, p5 = np.float32(4.89352455891786e-03), np.float32(6.37261928875436e-04), np.float32(1.48572235717979e-05)
    p7, p9 = np.float32(5.12229709037114e-08), np.float32(-8.60467152213735e-11)
    p11, p13 = np.float32(2.00018790482477e-13), np.float32(-2.76076847742355e-16)
    q0, q2 = np.float32(4.89352518554385e-03), np.float32(2.26843463243900e-03)
    q4, q6 = np.float32(1.18534705686654e-04), np.float32(1.19825839466702e-06)
    for i in range(len(x)):
        v = x[i]
        v = bound if v > bound else v  # comparisons that leave NaN as it is
        v = -bound if v < -bound else v
        s = v * v
        above = v * (p1 + s * (p3 + s * (p5 + s * (p7 + s * (p9 + s * (p11 + s * p13))))))
        x[i] = above / (q0 + s * (q2 + s * (q4 + s * q6)))


@kernel
def sigmoid(x: Vector) -> None:
    """Replace x by σ(x) = (1 + tanh(x/2)) / 2; exactly in double precision."""
    one = x.dtype.type(1)
    if x.itemsize == 8:
        for i in range(len(x)):
            x[i] = one / (one + math.exp(-x[i]))
        return
    half = x.dtype.type(0.5)
    for i in range(len(x)):
        x[i] *= half
    tanh(x)
    for i in range(len(x)):
        x[i] = half + half * x[i]


@kernel
def activate(x: Vector, activation: int) -> None:
    """Replace x by tanh(x), σ(x), σ(4x - 2), or x clamped to [0, 1]."""
    zero, one, two, four = x.dtype.type(0), x.dtype.type(1), x.dtype.type(2), x.dtype.type(4)
    if activation == TANH:
        tanh(x)
    elif activation == CLAMP:
        for i in range(len(x)):
            v = one if x[i] > one else x[i]  # comparisons that leave NaN as it is
            x[i] = zero if v < zero else v
    else:
        if activation == SHARP:
            for i in range(len(x)):
                x[i] = four * x[i] - two
        sigmoid(x)


@kernel
def slope(y: Vector, activation: int, delta: Vector) -> None:
    """Multiply delta by the derivative of the activation at the output y."""
    zero, one = y.dtype.type(0), y.dtype.type(1)
    if activation == TANH:
        for i in range(len(y)):
            delta[i] *= one - y[i] * y[i]
    elif activation == CLAMP:
        for i in range(len(y)):
            delta[i] = delta[i] if zero < y[i] < one else zero
    else:
        factor = y.dtype.type(4) if activation == SHARP else one
        for i in range(len(y)):
            delta[i] *= factor * y[i] * (one - y[i])


@kernel
def blocks_pay(rows: int, size: int, width: int) -> bool:
    """Say whether blocks are faster than plain loops."""
    return rows >= 2 and width >= 3 * LANES and size * width >= _FEWEST


@inlined
def store_three(array: Vector, place: int, a: Lanes, b: Lanes, c: Lanes) -> None:
    """Store three vectors behind each other."""
    store(array, place, a)
    store(array, place + LANES, b)
    store(array, place + 2 * LANES, c)


@inlined
def store_four(array: Vector, p0: int, p1: int, p2: int, p3: int, a0: Lanes, a1: Lanes, a2: Lanes, a3: Lanes) -> None:
    """Store four vectors of four rows."""
    store(array, p0, a0)
    store(array, p1, a1)
    store(array, p2, a2)
    store(array, p3, a3)


@inlined
def add_sums(line: Vector, place: int, count: int, a: Lanes, b: Lanes, c: Lanes) -> None:
    """Add the sums of the first vectors of three to entries of a line."""
    line[place] += sum_of(a)
    if count > 1:
        line[place + 1] += sum_of(b)
    if count > 2:
        line[place + 2] += sum_of(c)


@kernel
def add_affine(
    out: Matrix, out_column: int, start: int, stop: int, inputs: Matrix, in_column: int, rows: Ints, weights: Matrix
) -> None:
    """Add ``inputs[rows[e]] @ weights[:-1]`` to ``out[e]`` for e from start to stop; at least two of them."""
    size, width = weights.shape[0] - 1, weights.shape[1]
    apart, in_apart, chunk = out.shape[1], inputs.shape[1], max(LANES, _CACHED // width)
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


@kernel
def add_weights_gradient(
    delta: Matrix, out_column: int, chosen: Ints, inputs: Matrix, in_column: int, rows: Ints, d_weights: Matrix
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


@kernel
def add_inputs_gradient(
    delta: Matrix, out_column: int, start: int, stop: int, d_inputs: Matrix, in_column: int, rows: Ints, weights: Matrix
) -> None:
    """Add the gradients of the inputs of `add_affine` for the outputs' gradients ``delta``; at least two rows."""
    size, width = weights.shape[0] - 1, weights.shape[1]
    apart, chunk, zeros = delta.shape[1], max(LANES, _CACHED // width), nothing(weights)
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
