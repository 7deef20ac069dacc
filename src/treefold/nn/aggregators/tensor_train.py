"""The tensor train: a chain of small matrices, one for each child, from left to right."""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from treefold.nn.aggregators.base import Aggregator, balance_output
from treefold.nn.aggregators.tied import fit_tied
from treefold.nn.math.decompositions import tensor_train_svd
from treefold.nn.math.functional import homogenise

# Axes:  N nodes of one level · L child slots · C state size · K output size · R rank (bond) · M label size


@final
class TensorTrain(Aggregator):
    r"""Tensor-train aggregation: every child turns a carried vector of size ``rank`` into the next one.

    .. math:: f(x, h_1, \dots, h_L) = a(\bar x)^\top A_1(\bar h_1) \cdots A_L(\bar h_L)\, Q, \qquad
              A_j(\bar h) = \sum_i \bar h(i) A_{ji} \in \mathbb{R}^{R \times R}

    Without a label, the first child alone makes the first carried vector. About L·(C+1)·R² parameters and multiply-adds:
    linear in L and in the state size. ``shared`` has one core for all slots, :math:`I + \sum_i h(i) A_i`, and a learned
    start: an absent child is the identity, any number of children is taken, and their order matters.

    >>> TensorTrain(state_size=8, out_size=6, arity=3, rank=4)(torch.zeros(5, 3, 8)).shape
    torch.Size([5, 6])
    """

    any_arity: ClassVar[bool] = True
    equation: ClassVar[str] = "f = a(x̄) A_1(h̄_1) … A_L(h̄_L) Q, a chain of R×R matrices"

    def build(self) -> None:
        """Make the start (M+1, R), (C+1, R) or (R,), the cores (slots, C+1, R, R) or (C, R, R), and Q (R, K)."""
        self._label_starts = self.label_size is not None
        self._child_starts = not self.shared and not self._label_starts
        rows = (self.label_size or 0) + 1 if self._label_starts else self.state_size + 1
        self.start = nn.Parameter(torch.empty(self.rank) if self._free_start else torch.empty(rows, self.rank))
        size = self.state_size + (not self.shared)
        slots = () if self.shared else (self.arity - self._child_starts,)
        self.cores = nn.Parameter(torch.empty(*slots, size, self.rank, self.rank))
        self.output = nn.Parameter(torch.empty(self.rank, self.out_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Carry a vector through the chain."""
        states = children.unbind(1)
        if self._free_start:
            carry = self.start.expand(len(children), -1)  # (N, R)
        elif label is not None:
            carry = homogenise(label) @ self.start
        else:
            carry = homogenise(states[0]) @ self.start
            states = states[1:]
        if self.shared:
            weights = self.cores.flatten(1)  # (C, R·R)
            for state in states:
                matrix = (state @ weights).view(-1, self.rank, self.rank)
                carry = carry + torch.bmm(carry.unsqueeze(1), matrix).squeeze(1)
        else:
            for state, core in zip(states, self.cores.flatten(2), strict=True):
                matrix = torch.addmm(core[-1], state, core[:-1]).view(-1, self.rank, self.rank)
                carry = torch.bmm(carry.unsqueeze(1), matrix).squeeze(1)
        return carry @ self.output

    def dense(self, arity: int) -> Tensor:
        """Multiply the chain out."""
        return self.basis(arity) @ self.output

    def basis(self, arity: int) -> Tensor:
        """Return the tensor before the output matrix, (M+1,) (C+1, …, C+1, R)."""
        tensor: Tensor = self.start
        for core in self._homogeneous_cores(arity):
            tensor = torch.tensordot(tensor, core.transpose(0, 1), dims=1)
        return tensor

    def decompose(self, tensor: Tensor) -> None:
        """Split by the TT-SVD; the shared form, whose cores are tied, is fitted by L-BFGS on the squared error."""
        if self.shared:
            fit_tied(self, tensor)
            return
        first, *cores, last = tensor_train_svd(tensor, self.rank)
        for parameter in self.parameters():
            parameter.zero_()  # bonds may be smaller than the rank: the rest stays zero
        self.start[:, : first.shape[2]] = first[0]
        for slot, core in enumerate(cores):
            self.cores[slot, :, : core.shape[0], : core.shape[2]] = core.transpose(0, 1)
        self.output[: last.shape[0]] = last[..., 0]

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count the start, for each other child its matrix and the step through it, and the output."""
        arity = (self.arity if arity is None else arity) - self._child_starts
        start = 0 if self._free_start else self.start.shape[0]
        return self.rank * (start + arity * (self.state_size + 1) * self.rank + self.out_size)

    def reset_balanced(self) -> None:
        """Start every core near the identity, so that the product of many neither vanishes nor explodes."""
        self.cores.normal_(std=(self.mode_count * self.state_size * self.rank) ** -0.5)
        if not self.shared:
            self.cores[:, -1] = torch.eye(self.rank)
        self.start.normal_(std=self.rank**-0.5)
        mean = self.start if self._free_start else self.start[-1]
        if not self._free_start:
            self.start[:-1] *= (self.mode_count * (len(self.start) - 1)) ** -0.5
        moment = torch.outer(mean, mean) if self._free_start else self.start.T @ self.start
        for core in self._homogeneous_cores(self.arity):
            moment = torch.einsum("iab,ac,icd->bd", core, moment, core)
            mean = mean @ core[-1]
        balance_output(self.output, mean, moment)

    def kaiming_fans(self) -> dict[str, int]:
        """Return the number of terms which each entry of the next carried vector sums."""
        return {
            "start": self.start.shape[0] if not self._free_start else 1,
            "cores": self.cores.shape[-3] * self.rank,
            "output": self.rank,
        }

    @property
    def _free_start(self) -> bool:
        return not self._label_starts and not self._child_starts

    def _homogeneous_cores(self, arity: int) -> list[Tensor]:
        """Return the core of each child that has one, (C+1, R, R)."""
        if not self.shared:
            return list(self.cores)
        identity = torch.eye(self.rank).to(self.cores).unsqueeze(0)
        return [torch.cat([self.cores, identity])] * arity
