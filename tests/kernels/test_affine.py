"""The affine loops against numpy, for every number of rows and inputs that a loop leaves over, and for narrow, wide and
large maps."""

import itertools

import numpy as np
import pytest

from treefold.kernels.affine import affine, affine_inputs_backward, affine_weights_backward
from treefold.kernels.compile import entry_point
from treefold.kernels.records import Ints, Matrix

COLUMN = 2  # where inputs and outputs begin in their lines


@entry_point
def _all_three(
    out: Matrix, inputs: Matrix, d_inputs: Matrix, rows: Ints, chosen: Ints, weights: Matrix, d_weights: Matrix
) -> None:
    start, column = int(np.int64(0)), int(np.int64(COLUMN))
    affine_inputs_backward(out, column, start, len(rows), d_inputs, column, rows, weights)
    affine_weights_backward(out, column, chosen, inputs, column, rows, d_weights)
    affine(out, column, start, len(rows), inputs, column, rows, weights)


@pytest.mark.parametrize(
    ("size", "width"),
    [*itertools.product([1, 4, 7], [1, 7, 56, 300]), (90, 24), (91, 29), (85, 56), (9, 300), (24, 260)],
)
@pytest.mark.parametrize("count", range(10))
def test_all_three_are_the_products_of_matrices(count: int, size: int, width: int) -> None:
    random = np.random.default_rng(count)
    rows, chosen = random.permutation(11)[:count], random.permutation(count)
    weights, d_weights = random.normal(size=(2, size + 1, width))
    inputs, d_inputs = random.normal(size=(2, 11, size + COLUMN))
    delta = random.normal(size=(count, width + COLUMN))
    out, d_inputs_after, d_weights_after = delta.copy(), d_inputs.copy(), d_weights.copy()

    _all_three(out, inputs, d_inputs_after, rows, chosen, weights, d_weights_after)

    homogeneous = np.column_stack([inputs[rows, COLUMN:], np.ones(count)])
    d_inputs[rows, COLUMN:] += delta[:, COLUMN:] @ weights[:-1].T
    np.testing.assert_allclose(out[:, COLUMN:], homogeneous @ weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(out[:, :COLUMN], delta[:, :COLUMN])
    np.testing.assert_allclose(d_inputs_after, d_inputs, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(d_weights_after, d_weights + homogeneous.T @ delta[:, COLUMN:], rtol=1e-12, atol=1e-12)
