"""Affine maps of many rows, and activations: the loops that take the time, written for vector units."""

import math
from typing import Final

import numpy as np

from treefold.kernels.blocks import add_affine, add_inputs_gradient, add_weights_gradient, blocks_pay
from treefold.kernels.compiled import inner
from treefold.kernels.tables import TANH, Floats, Ints

# Axes:  e rows · i inputs · p outputs

_WIDE: Final = 256
"""Outputs above which lines of weights are read one at a time: several at once are slow where they come from far memory."""


@inner
def copy(source: Floats, target: Floats) -> None:
    """Copy a vector over the beginning of another."""
    for i in range(len(source)):
        target[i] = source[i]


@inner
def clear(matrix: Floats, start: int, stop: int, width: int) -> None:
    """Set the first entries of some rows of a matrix to zero."""
    for row in range(start, stop):
        line = matrix[row]
        for i in range(width):
            line[i] = 0


@inner
def affine(
    out: Floats, out_column: int, start: int, stop: int, inputs: Floats, in_column: int, rows: Ints, weights: Floats
) -> None:
    """Set ``out[e] = inputs[rows[e]] @ weights[:-1] + weights[-1]`` for e from start to stop."""
    size, width = weights.shape[0] - 1, weights.shape[1]
    bias = weights[size]
    if blocks_pay(stop - start, size, width):
        for e in range(start, stop):
            copy(bias, out[e, out_column : out_column + width])
        add_affine(out, out_column, start, stop, inputs, in_column, rows, weights)
        return
    e = start
    # Two rows and four inputs at once: the weights are read once for two rows, the rows written once for four inputs.
    while e + 2 <= stop:
        x, y = inputs[rows[e], in_column : in_column + size], out[e, out_column : out_column + width]
        s, t = inputs[rows[e + 1], in_column : in_column + size], out[e + 1, out_column : out_column + width]
        for p in range(width):
            y[p] = t[p] = bias[p]
        i = 0
        while i + 4 <= size:
            a0, a1, a2, a3 = x[i], x[i + 1], x[i + 2], x[i + 3]
            b0, b1, b2, b3 = s[i], s[i + 1], s[i + 2], s[i + 3]
            w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            for p in range(width):
                y[p] += a0 * w0[p] + a1 * w1[p] + a2 * w2[p] + a3 * w3[p]
                t[p] += b0 * w0[p] + b1 * w1[p] + b2 * w2[p] + b3 * w3[p]
            i += 4
        while i < size:
            a0, b0, w0 = x[i], s[i], weights[i]
            for p in range(width):
                y[p] += a0 * w0[p]
                t[p] += b0 * w0[p]
            i += 1
        e += 2
    if e < stop:
        x, y = inputs[rows[e], in_column : in_column + size], out[e, out_column : out_column + width]
        for p in range(width):
            y[p] = bias[p]
        i = 0
        while i + 4 <= size:
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


@inner
def affine_inputs_backward(
    delta: Floats, out_column: int, start: int, stop: int, d_inputs: Floats, in_column: int, rows: Ints, weights: Floats
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
    e = start
    # Two rows and four inputs at once: the sums are short, and eight of them keep the vector units busy.
    while e + 2 <= stop:
        d, f = delta[e, out_column : out_column + width], delta[e + 1, out_column : out_column + width]
        x, y = d_inputs[rows[e], in_column : in_column + size], d_inputs[rows[e + 1], in_column : in_column + size]
        i = 0
        while i + 4 <= size:
            w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = zero
            for p in range(width):
                s0 += w0[p] * d[p]
                s1 += w1[p] * d[p]
                s2 += w2[p] * d[p]
                s3 += w3[p] * d[p]
                t0 += w0[p] * f[p]
                t1 += w1[p] * f[p]
                t2 += w2[p] * f[p]
                t3 += w3[p] * f[p]
            x[i] += s0
            x[i + 1] += s1
            x[i + 2] += s2
            x[i + 3] += s3
            y[i] += t0
            y[i + 1] += t1
            y[i + 2] += t2
            y[i + 3] += t3
            i += 4
        while i < size:
            w0 = weights[i]
            s0 = t0 = zero
            for p in range(width):
                s0 += w0[p] * d[p]
                t0 += w0[p] * f[p]
            x[i] += s0
            y[i] += t0
            i += 1
        e += 2
    if e < stop:
        d, x = delta[e, out_column : out_column + width], d_inputs[rows[e], in_column : in_column + size]
        i = 0
        while i + 4 <= size:
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


@inner
def wide_inputs_backward(
    delta: Floats, out_column: int, start: int, stop: int, d_inputs: Floats, in_column: int, rows: Ints, weights: Floats
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


@inner
def affine_weights_backward(
    delta: Floats, out_column: int, chosen: Ints, inputs: Floats, in_column: int, rows: Ints, d_weights: Floats
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
        i = 0
        while i + 2 <= size:
            g, h, k = d_weights[i], d_weights[i + 1], in_column + i
            a0, a1, a2, a3 = x0[k], x1[k], x2[k], x3[k]
            b0, b1, b2, b3 = x0[k + 1], x1[k + 1], x2[k + 1], x3[k + 1]
            for p in range(width):
                g[p] += a0 * d0[p] + a1 * d1[p] + a2 * d2[p] + a3 * d3[p]
                h[p] += b0 * d0[p] + b1 * d1[p] + b2 * d2[p] + b3 * d3[p]
            i += 2
        if i < size:
            g, k = d_weights[i], in_column + i
            a0, a1, a2, a3 = x0[k], x1[k], x2[k], x3[k]
            for p in range(width):
                g[p] += a0 * d0[p] + a1 * d1[p] + a2 * d2[p] + a3 * d3[p]
        g = d_weights[size]
        for p in range(width):
            g[p] += d0[p] + d1[p] + d2[p] + d3[p]
        index += 4
    while index + 2 <= len(chosen):
        e0, e1 = chosen[index], chosen[index + 1]
        d0, d1 = delta[e0, out_column : out_column + width], delta[e1, out_column : out_column + width]
        x0, x1 = inputs[rows[e0]], inputs[rows[e1]]
        for i in range(size):
            g, k = d_weights[i], in_column + i
            a0, a1 = x0[k], x1[k]
            for p in range(width):
                g[p] += a0 * d0[p] + a1 * d1[p]
        g = d_weights[size]
        for p in range(width):
            g[p] += d0[p] + d1[p]
        index += 2
    if index < len(chosen):
        d0, x0 = delta[chosen[index], out_column : out_column + width], inputs[rows[chosen[index]]]
        for i in range(size):
            g, a0 = d_weights[i], x0[in_column + i]
            for p in range(width):
                g[p] += a0 * d0[p]
        g = d_weights[size]
        for p in range(width):
            g[p] += d0[p]


@inner
def tanh(x: Floats) -> None:
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


@inner
def sigmoid(x: Floats) -> None:
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


@inner
def activate(x: Floats, activation: int) -> None:
    """Replace x by tanh(x) or σ(x)."""
    if activation == TANH:
        tanh(x)
    else:
        sigmoid(x)


@inner
def slope(y: Floats, activation: int, delta: Floats) -> None:
    """Multiply delta by the derivative of the activation at the output y."""
    one = y.dtype.type(1)
    if activation == TANH:
        for i in range(len(y)):
            delta[i] *= one - y[i] * y[i]
    else:
        for i in range(len(y)):
            delta[i] *= y[i] * (one - y[i])
