"""The tensor train: a chain of small matrices, one for each child, from left to right."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from treefold.kernels.affine import copy
from treefold.kernels.compile import inlined, kernel, matrix
from treefold.kernels.fold import image_of, is_at, place_count
from treefold.kernels.layout import FormKernel, GatePlaces
from treefold.kernels.records import Gradients, Groups, Ints, Matrix, Plan, States, Tables, Weights
from treefold.nn.aggregators.base import Aggregator, balance_output
from treefold.nn.math.decompositions import fit_tied, tensor_train_svd
from treefold.nn.math.functional import homogenise

# Axes:  N nodes of one level · L child slots · C state size · K output size · R rank (bond) · M label size


@final
class TensorTrain(Aggregator):
    r"""Tensor-train aggregation: every child turns a carried vector of size ``rank`` into the next one.

    .. math:: f(x, h_1, \dots, h_L) = a(\bar x)^\top A_1(\bar h_1) \cdots A_L(\bar h_L)\, Q, \qquad
              A_j(\bar h) = \sum_i \bar h(i) A_{ji} \in \mathbb{R}^{R \times R}

    Without a label, the first child alone makes the first carried vector. About L·(C+1)·R² parameters and multiply-adds:
    linear in L and in the state size. ``shared`` has one core for all slots, :math:`I + \sum_i h(i) A_i`, and a learnt
    start: an absent child is the identity, any number of children is taken, and their order matters.

    >>> TensorTrain(state_size=8, out_size=6, arity=3, rank=4)(torch.zeros(5, 3, 8)).shape
    torch.Size([5, 6])
    """

    any_arity: ClassVar[bool] = True
    has_free_output: ClassVar[bool] = True
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

    def kernel(self) -> FormKernel:
        """Carry a vector through the images of the children, which are matrices; the label or the first child starts."""
        return FormKernel(
            train_forward,
            train_backward,
            plan=train_plan,
            images=self.rank * self.rank,
            first_images=self.rank if self._child_starts else None,
            label_images=self.rank,
            core=self.rank if self._free_start else 0,
            has_output=True,
        )

    def lay_out(self, places: GatePlaces) -> None:
        """The cores in the slots, the start in the first slot, at the label or in the core, Q in the output."""
        places.slots("cores", skip=int(self._child_starts))
        if self._child_starts:
            places.first_slot("start")
        elif self._label_starts:
            places.label("start")
        else:
            places.core("start")
        places.output("output")

    @property
    def _free_start(self) -> bool:
        return not self._label_starts and not self._child_starts

    def _homogeneous_cores(self, arity: int) -> list[Tensor]:
        """Return the core of each child that has one, (C+1, R, R)."""
        if not self.shared:
            return list(self.cores)
        identity = torch.eye(self.rank).to(self.cores).unsqueeze(0)
        return [torch.cat([self.cores, identity])] * arity


@kernel
def train_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """Reserve room for the carried vectors, and for one line more."""
    group = groups[index]
    operator = tables.operators[group.operator]
    group.scratch = (max(longest, operator.arity) + 3) * operator.rank


@inlined
def carried_vectors(
    weights: Weights, plan: Plan, states: States, carried: Matrix, unit: int, operator: Any, gate: int
) -> int:
    """Write the carried vectors into ``carried`` (steps+1, R); return the number of steps."""
    rank = operator.rank
    first, child = 0, plan.children[unit]
    if operator.label_size > 0:
        copy(states.label[plan.label_of[unit], gate * rank : (gate + 1) * rank], carried[0])
    elif operator.shared:
        start = operator.core + gate * operator.core_size
        copy(weights.values[start : start + rank], carried[0])
    else:
        found = child if is_at(plan, unit, operator, 0, child) else -1
        image = image_of(weights, plan, operator, 0, found, states.projected, weights.values)
        copy(image[gate * rank : (gate + 1) * rank], carried[0])
        first, child = 1, child + (found >= 0)
    steps = place_count(plan, unit, operator) - first
    for step in range(steps):
        found = child if is_at(plan, unit, operator, first + step, child) else -1
        image = image_of(weights, plan, operator, first + step, found, states.projected, weights.values)
        before, after = carried[step], carried[step + 1]
        for r in range(rank):
            after[r] = before[r] if operator.shared else 0
        for q in range(rank):
            factor, row = before[q], image[(gate * rank + q) * rank : (gate * rank + q + 1) * rank]
            for r in range(rank):
                after[r] += factor * row[r]
        child += found >= 0
    return int(steps)


@kernel
def train_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Carry a vector through the chain, for each gate: (G·R,)."""
    operator = weights.tables.operators[plan.groups[group].operator]
    rank = operator.rank
    carried = matrix(states.scratch, 0, len(states.scratch) // rank, rank)
    for unit in range(start, stop):
        for gate in range(weights.tables.cells[0].gates):
            steps = carried_vectors(weights, plan, states, carried, unit, operator, gate)
            copy(carried[steps], out[unit, gate * rank : (gate + 1) * rank])


@kernel
def train_backward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Matrix,
    gradients: Gradients,
    start: int,
    stop: int,
    group: int,
    delta: Matrix,
) -> None:
    """Carry the gradient back through the chain."""
    operator = weights.tables.operators[plan.groups[group].operator]
    rank = operator.rank
    carried = matrix(states.scratch, 0, len(states.scratch) // rank, rank)
    carry, first = carried[len(carried) - 1], 0 if operator.label_size > 0 or operator.shared else 1
    for unit in range(start, stop):
        for gate in range(weights.tables.cells[0].gates):
            steps = carried_vectors(weights, plan, states, carried, unit, operator, gate)
            child = plan.children[unit + 1] - 1
            copy(delta[unit, gate * rank : (gate + 1) * rank], carry)
            for step in range(steps - 1, -1, -1):
                found = child if is_at(plan, unit, operator, first + step, child) else -1
                image = image_of(weights, plan, operator, first + step, found, states.projected, weights.values)
                d_image = image_of(weights, plan, operator, first + step, found, gradients.projected, gradients.values)
                before, after = carried[step], carried[step + 1]
                for q in range(rank):
                    base = (gate * rank + q) * rank
                    row, d_row = image[base : base + rank], d_image[base : base + rank]
                    factor, total = before[q], carry[q] if operator.shared else carry.dtype.type(0)
                    for r in range(rank):
                        total += row[r] * carry[r]
                        d_row[r] += factor * carry[r]
                    after[q] = total  # this carried vector is not needed any more
                copy(after, carry)
                child -= found >= 0
            if operator.label_size > 0:
                d_start = gradients.label[plan.label_of[unit], gate * rank : (gate + 1) * rank]
            elif operator.shared:
                begin = operator.core + gate * operator.core_size
                d_start = gradients.values[begin : begin + rank]
            else:
                found = child if is_at(plan, unit, operator, 0, child) else -1
                d_image = image_of(weights, plan, operator, 0, found, gradients.projected, gradients.values)
                d_start = d_image[gate * rank : (gate + 1) * rank]
            for r in range(rank):
                d_start[r] += carry[r]
