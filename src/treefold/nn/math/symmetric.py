r"""Symmetric multi-affine maps: tensors that store their distinct entries only, and are evaluated on those.

A symmetric tensor of order L over D+1 coordinates has one entry for each multiset α of L coordinates, C(D+L, L) instead of
(D+1)^L. Its contraction is a sum over multisets of the entry and of a feature of the children,

.. math:: f(h_1, \dots, h_L) = \sum_\alpha T(\alpha)\, P_L(\alpha), \qquad
          P_k(\alpha) = \sum_{i \in \mathrm{distinct}(\alpha)} P_{k-1}(\alpha \setminus i)\; \bar h_k(i),

where :math:`P_k(\alpha)` sums over all ways to hand the coordinates of α to the first k children.
"""

import functools
import itertools
import math
from collections import Counter
from typing import final

import numpy as np
import torch
from torch import Tensor

from treefold.nn.math.functional import homogenise

# Axes:  N nodes · L child slots · D size of a child's vector · S multisets of L coordinates · K the rest


@final
class SymmetricIndex:
    """The multisets of ``order`` coordinates out of ``size`` + 1, and how they grow out of each other.

    >>> index = SymmetricIndex(size=2, order=2)
    >>> index.multisets.tolist()
    [[0, 0], [0, 1], [0, 2], [1, 1], [1, 2], [2, 2]]
    >>> index.arrangements.tolist()
    [1, 2, 2, 1, 2, 1]
    """

    def __init__(self, *, size: int, order: int) -> None:
        self.size, self.order = size, order
        coordinates = range(size + 1)
        smaller: dict[tuple[int, ...], int] = {(coordinate,): row for row, coordinate in enumerate(coordinates)}
        self.steps: list[
            tuple[Tensor, Tensor, Tensor]
        ] = []  # for k = 2 … L: (S_k, k) rest of α, coordinate, whether it counts
        for k in range(2, order + 1):
            multisets = list(itertools.combinations_with_replacement(coordinates, k))
            rest = [[smaller[alpha[:p] + alpha[p + 1 :]] for p in range(k)] for alpha in multisets]
            # Taking out equal coordinates gives the same term: it counts once, at the first of them.
            first = [[p == 0 or alpha[p] != alpha[p - 1] for p in range(k)] for alpha in multisets]
            self.steps.append((torch.tensor(rest), torch.tensor(multisets), torch.tensor(first)))
            smaller = {alpha: row for row, alpha in enumerate(multisets)}
        multisets = list(smaller)
        self.multisets = torch.tensor(multisets)  # (S, L), in lexicographic order: the last is all-homogeneous
        self.arrangements = torch.tensor(
            [math.factorial(order) // math.prod(map(math.factorial, Counter(alpha).values())) for alpha in multisets]
        )  # (S,)

    def __len__(self) -> int:
        return len(self.multisets)

    @property
    def cost(self) -> int:
        """The multiplications of `features` for one node; those with the homogeneous one are counted too."""
        return sum(int(first.sum()) for _, _, first in self.steps)

    def features(self, children: Tensor) -> Tensor:
        """Return P_L of the children: (N, L, D) -> (N, S); its last entry is one."""
        vectors = homogenise(children)
        result = vectors[:, 0]
        for slot, (rest, coordinate, first) in enumerate(self.steps, start=1):
            rest, coordinate, first = (table.to(children.device) for table in (rest, coordinate, first))
            result = (result[:, rest] * vectors[:, slot][:, coordinate] * first).sum(-1)
        return result

    @functools.cached_property
    def places(self) -> Tensor:
        """For each of the (D+1)^L entries of the dense tensor, the row of its multiset, ((D+1)^L,)."""
        powers = (self.size + 1) ** np.arange(self.order - 1, -1, -1)
        codes = self.multisets.numpy() @ powers  # ascending, as the multisets are in lexicographic order
        entries = np.sort(np.indices([self.size + 1] * self.order).reshape(self.order, -1), axis=0)
        return torch.from_numpy(np.searchsorted(codes, powers @ entries))

    def expand(self, packed: Tensor) -> Tensor:
        """Write out a symmetric tensor: (S, K) -> (D+1, …, D+1, K)."""
        return packed[self.places.to(packed.device)].reshape(*[self.size + 1] * self.order, packed.shape[-1])

    def pack(self, dense: Tensor) -> Tensor:
        """Return the distinct entries of the nearest symmetric tensor, the mean over all permutations of the slots."""
        flat = dense.reshape((self.size + 1) ** self.order, -1)
        total = flat.new_zeros(len(self), flat.shape[-1]).index_add(0, self.places.to(flat.device), flat)
        return total / self.arrangements.to(flat)[:, None]


@functools.lru_cache(maxsize=64)
def symmetric_index(size: int, order: int) -> SymmetricIndex:
    """Return the index of multisets, made once for each size and order."""
    return SymmetricIndex(size=size, order=order)
