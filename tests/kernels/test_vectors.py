"""Eight numbers at once against numpy."""

from typing import Any

import numpy as np
import pytest

from treefold.kernels.compile import entry_point
from treefold.kernels.records import Matrix, Vector
from treefold.kernels.vectors import LANES, add_product, add_scaled, entry, last_of, load, nothing, store, sum_of


@entry_point
def _scaled(table: Matrix, factor_at: int, place: int, target: int) -> None:
    total = add_scaled(load(table, target), entry(table, factor_at), load(table, place))
    store(table, target, total)


@entry_point
def _dot(one: Vector, other: Vector, count: int) -> Any:
    return sum_of(add_product(nothing(one), last_of(load(one, int(np.int64(0))), count), load(other, int(np.int64(0)))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_vector_is_eight_entries_of_the_array_counted_from_its_first(dtype: type[np.floating[Any]]) -> None:
    table = np.random.default_rng(0).normal(size=(3, 11)).astype(dtype)
    flat = table.ravel().copy()
    flat[20 : 20 + LANES] += flat[2] * flat[9 : 9 + LANES]  # across the ends of rows
    _scaled(table, 2, 9, 20)
    np.testing.assert_allclose(table.ravel(), flat, rtol=1e-6)


@pytest.mark.parametrize("count", range(LANES + 1))
def test_the_last_of_a_vector_are_kept_and_nan_before_them_is_not(count: int) -> None:
    one, other = np.random.default_rng(1).normal(size=(2, LANES))
    expected = one[LANES - count :] @ other[LANES - count :]
    one[: LANES - count] = np.nan
    np.testing.assert_allclose(_dot(one, other, count), expected, rtol=1e-12, atol=1e-12)
