"""The outer products of the dense core's halves against numpy, and their gradients."""

import functools

import numpy as np
import pytest
from treefold.kernels.compiled import planner
from treefold.kernels.cores import outer, outer_backward
from treefold.kernels.tables import Floats, Ints


@planner
def _there_and_back(
    vectors: Floats, sizes: Ints, first: int, last: int, result: Floats, d_result: Floats, d_vectors: Floats
) -> None:
    outer(vectors, sizes, first, last, result)
    outer_backward(vectors, sizes, first, last, result, d_result, d_vectors)


def _product(*vectors: Floats) -> Floats:
    """The outer product of [v; 1], the last mode fastest."""
    return functools.reduce(lambda whole, vector: np.kron(whole, np.append(vector, 1)), vectors, np.ones(1))


@pytest.mark.parametrize("sizes", [[], [1], [7], [2, 3], [3, 3, 3], [5, 1, 4, 2], [7, 7, 7, 7]])
def test_an_outer_product_is_that_of_numpy_and_so_is_its_gradient(sizes: list[int]) -> None:
    random = np.random.default_rng(0)
    first, count = 1, len(sizes)  # a mode before and one behind are not touched
    vectors = random.normal(size=(count + 2, 8))
    all_sizes = np.array([2, *sizes, 2])
    used = [vectors[first + mode, :size] for mode, size in enumerate(sizes)]
    expected = _product(*used)
    result, d_result = np.full((2, len(expected) + 3), 9.0)
    d_result[: len(expected)] = delta = random.normal(size=len(expected))
    d_vectors = np.full_like(vectors, 9.0)

    _there_and_back(vectors, all_sizes, first, first + count, result, d_result, d_vectors)

    np.testing.assert_allclose(result[: len(expected)], expected, rtol=1e-12)
    np.testing.assert_array_equal(result[len(expected) :], 9.0)
    for mode, size in enumerate(sizes):
        # The product is affine in each vector: the gradient of an entry is what the entry makes of the product when it is one.
        for i in range(size):
            slope = _product(*used[:mode], np.eye(size)[i], *used[mode + 1 :]) - _product(
                *used[:mode], np.zeros(size), *used[mode + 1 :]
            )
            np.testing.assert_allclose(d_vectors[first + mode, i], slope @ delta, rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(d_vectors[first + mode, size:], 9.0)
    np.testing.assert_array_equal(d_vectors[[0, -1]], 9.0)
