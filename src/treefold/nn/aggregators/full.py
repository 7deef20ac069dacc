"""The full tensor: every product of inputs has a weight of its own."""

import math
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from treefold.nn.aggregators.base import Aggregator, order_weights, require_entries
from treefold.nn.math.functional import contract_halves, halves_cost, homogenise, multi_affine, multi_affine_cost
from treefold.nn.math.symmetric import SymmetricIndex, symmetric_index

# Axes:  N nodes of one level · L child slots · C state size · K output size · M label size · S multisets of L coordinates


@final
class Full(Aggregator):
    r"""The multi-affine map itself, as a tensor over all its modes.

    .. math:: f(x, h_1, \dots, h_L)(k) = \sum_{i, j_1 \dots j_L} T(i, j_1, \dots, j_L, k)\,
              \bar x(i)\, \bar h_1(j_1) \cdots \bar h_L(j_L)

    (M+1)·(C+1)^L·K parameters and about as many multiply-adds a node: exponential in L. ``shared`` makes T symmetric in the
    slots and stores its C(C+L, L) distinct entries for each output (and label entry) only.

    >>> Full(state_size=4, out_size=6, arity=3)(torch.zeros(5, 3, 4)).shape
    torch.Size([5, 6])
    """

    has_rank: ClassVar[bool] = False
    equation: ClassVar[str] = "f(k) = Σ T(i, j_1 … j_L, k) x̄(i) h̄_1(j_1) … h̄_L(j_L)"

    def build(self) -> None:
        """Make T ((M+1,) C+1, …, C+1, K), or ((M+1,) S, K) where it is symmetric."""
        label = () if self.label_size is None else (self.label_size + 1,)
        distinct = math.comb(self.state_size + self.arity, self.arity)
        entries = distinct * self.arity if self.shared else (self.state_size + 1) ** self.arity
        require_entries(type(self).__name__, entries * math.prod(label) * self.out_size)
        slots = (len(self._index),) if self.shared else (self.state_size + 1,) * self.arity
        self.tensor = nn.Parameter(torch.empty(*label, *slots, self.out_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Contract in two halves of the modes; where the tensor is symmetric, on the features of the multisets."""
        if not self.shared:
            return multi_affine(self.tensor, [*([] if label is None else [label]), *children.unbind(1)])
        # The features are the larger half; they come first in the contraction, the label second.
        tensor = self.tensor if label is None else self.tensor.transpose(0, 1)  # (S, (M+1,) K)
        return contract_halves(tensor, self._index.features(children), None if label is None else homogenise(label))

    def dense(self, arity: int) -> Tensor:
        """Return T, written out where it is symmetric."""
        if not self.shared:
            return self.tensor.clone()
        if self.label_size is None:
            return self._index.expand(self.tensor)
        return torch.stack([self._index.expand(packed) for packed in self.tensor])

    def decompose(self, tensor: Tensor) -> None:
        """Take the tensor as it is; ``shared`` takes the nearest symmetric one, the mean over permutations of the slots."""
        if self.shared and self.label_size is None:
            tensor = self._index.pack(tensor)
        elif self.shared:
            tensor = torch.stack([self._index.pack(part) for part in tensor])
        self.tensor.copy_(tensor)

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count those of the contraction, and of the features where the tensor is symmetric."""
        if self.shared:
            return self._index.cost + halves_cost(len(self._index), (self.label_size or 0) + 1, self.out_size)
        return multi_affine_cost(self._sizes, self.out_size)

    def reset_balanced(self) -> None:
        """Weigh the orders of interaction alike, the constant term zero, then scale each output to variance one."""
        weights = order_weights(self._sizes, self.tensor)
        if self.shared:
            places = self._index.multisets @ (self.state_size + 1) ** torch.arange(self.arity - 1, -1, -1)
            weights = weights.flatten(-self.arity)[..., places]
        self.tensor.normal_().mul_(weights.unsqueeze(-1))
        self.tensor.div_(self.second_moment().diagonal().sqrt())

    def second_moment(self) -> Tensor:
        """Return E[f fᵀ], (K, K), for children and labels of independent standard entries.

        The products of homogeneous entries are then orthonormal; an entry of a symmetric tensor stands for all its
        arrangements.
        """
        flat = self.tensor.reshape(-1, self.out_size)
        if not self.shared:
            return flat.T @ flat
        arrangements = self._index.arrangements.to(flat).repeat((self.label_size or 0) + 1)
        return flat.T @ (flat * arrangements[:, None])

    def kaiming_fans(self) -> dict[str, int]:
        """Return the number of terms which each output sums."""
        return {"tensor": math.prod(size + 1 for size in self._sizes)}

    @property
    def _sizes(self) -> list[int]:
        return [*([] if self.label_size is None else [self.label_size]), *[self.state_size] * self.arity]

    @property
    def _index(self) -> SymmetricIndex:
        return symmetric_index(self.state_size, self.arity)
