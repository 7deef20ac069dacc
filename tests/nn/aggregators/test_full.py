"""The outer products of the dense core's halves against numpy, and their gradients."""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from treefold.kernels.compile import entry_point
from treefold.kernels.records import Matrix, Vector
from treefold.nn.aggregators.full import outer, outer_backward


@entry_point
def _there_and_back(
    vectors: Matrix,
    first_size: int,
    size: int,
    first: int,
    last: int,
    result: Vector,
    d_result: Vector,
    d_vectors: Matrix,
) -> None:
    outer(vectors, first_size, size, first, last, result)
    outer_backward(vectors, first_size, size, first, last, result, d_result, d_vectors)


def _product(*vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The outer product of [v; 1], the last mode fastest."""
    return functools.reduce(lambda whole, vector: np.kron(whole, np.append(vector, 1)), vectors, np.ones(1))


@pytest.mark.parametrize(
    ("first_size", "size", "first", "last"),
    [
        (2, 3, 0, 0),  # no mode at all
        (1, 2, 0, 1),
        (7, 2, 0, 1),
        (3, 1, 1, 2),  # the first mode belongs to the other half
        (3, 7, 1, 2),
        (2, 3, 0, 2),
        (3, 3, 0, 3),
        (5, 1, 0, 4),
        (2, 4, 1, 4),
        (7, 7, 0, 4),
        (7, 7, 1, 5),
    ],
)
def test_an_outer_product_is_that_of_numpy_and_so_is_its_gradient(
    first_size: int, size: int, first: int, last: int
) -> None:
    random = np.random.default_rng(0)
    sizes = [size if mode else first_size for mode in range(first, last)]
    vectors = random.normal(size=(last + 1, 8))  # a vector more than there are modes
    used = [vectors[first + mode, :entries] for mode, entries in enumerate(sizes)]
    expected = _product(*used)
    result, d_result = np.full((2, len(expected) + 3), 9.0)
    d_result[: len(expected)] = delta = random.normal(size=len(expected))
    d_vectors = np.full_like(vectors, 9.0)

    _there_and_back(vectors, first_size, size, first, last, result, d_result, d_vectors)

    np.testing.assert_allclose(result[: len(expected)], expected, rtol=1e-12)
    np.testing.assert_array_equal(result[len(expected) :], 9.0)
    for mode, entries in enumerate(sizes):
        # The product is affine in each vector: the gradient of an entry is what the entry makes of the product when it is one.
        for i in range(entries):
            slope = _product(*used[:mode], np.eye(entries)[i], *used[mode + 1 :]) - _product(
                *used[:mode], np.zeros(entries), *used[mode + 1 :]
            )
            np.testing.assert_allclose(d_vectors[first + mode, i], slope @ delta, rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(d_vectors[first + mode, entries:], 9.0)
    np.testing.assert_array_equal(d_vectors[:first], 9.0)
    np.testing.assert_array_equal(d_vectors[last:], 9.0)
