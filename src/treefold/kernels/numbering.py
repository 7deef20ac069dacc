"""Lists of places that a layout needs: rows of a copy, and the multisets of symmetric cores."""

import functools

import numpy as np

from treefold.kernels.tables import Ints
from treefold.nn.math.symmetric import symmetric_index


def in_rows(runs: list[list[int]]) -> Ints:
    """Join runs (which, where in it, where to, how many) that follow each other at equal distances: how many, how far apart.

    >>> in_rows([[0, 0, 10, 2], [0, 2, 15, 2], [0, 4, 20, 2], [1, 0, 25, 2]]).tolist()
    [[0, 0, 10, 2, 3, 5], [1, 0, 25, 2, 1, 0]]
    """
    rows: list[list[int]] = []
    for which, start, target, count in sorted(runs):
        if rows:
            last = rows[-1]
            step = target - (last[2] + (last[4] - 1) * last[5])
            follows = (which, start, count) == (last[0], last[1] + last[3] * last[4], last[3])
            if follows and (last[4] == 1 or step == last[5]):
                last[4:] = [last[4] + 1, step]
                continue
        rows.append([which, start, target, count, 1, 0])
    return np.array(rows, np.int64).reshape(-1, 6)


@functools.lru_cache(maxsize=64)
def multiset_tables(rank: int, arity: int) -> tuple[Ints, Ints, Ints]:
    """Return for k = 0 … arity the multisets of k coordinates out of rank + 1: how many, their terms, and padded to arity.

    >>> multiset_tables(1, 2)[0].tolist()  # one, two and three multisets; their terms; their rows when padded
    [[1, 0, 0, 0], [2, 0, 2, 1], [3, 2, 6, 3]]
    """
    index = symmetric_index(rank, arity)
    powers = (rank + 1) ** np.arange(arity - 1, -1, -1)
    codes = index.multisets.numpy() @ powers
    coordinates = np.arange(rank + 1)
    sets = [np.zeros((1, 0), np.int64), coordinates[:, None], *(step[1].numpy() for step in index.steps)]
    growth = [np.zeros((0, 3), np.int64), np.stack([coordinates, np.zeros_like(coordinates), coordinates], axis=1)]
    for rest, multisets, counts in index.steps:
        alpha, place = np.nonzero(counts.numpy())
        growth.append(np.stack([alpha, rest.numpy()[alpha, place], multisets.numpy()[alpha, place]], axis=1))
    orders, terms, rows = [], 0, 0
    padded = []
    for multisets_k, terms_k in zip(sets, growth, strict=True):
        full = np.pad(multisets_k, ((0, 0), (0, arity - multisets_k.shape[1])), constant_values=rank)
        orders.append([len(multisets_k), terms, terms + len(terms_k), rows])
        padded.append(np.searchsorted(codes, full @ powers))
        terms += len(terms_k)
        rows += len(multisets_k)
    return np.array(orders, np.int64), np.concatenate(growth), np.concatenate(padded).astype(np.int64)
