"""The full tensor: every product of inputs has a weight of its own."""

import math
from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor, nn

from treefold.kernels.affine import affine, affine_inputs_backward, affine_weights_backward, clear, copy
from treefold.kernels.compile import inlined, kernel, matrix
from treefold.kernels.fold import child_input
from treefold.kernels.layout import FormKernel, GatePlaces
from treefold.kernels.records import (
    BLOCK,
    BY_COUNT,
    BY_SLOTS,
    Gradients,
    Groups,
    Ints,
    Matrix,
    Plan,
    States,
    Tables,
    Vector,
    Weights,
)
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
        """Make T ((M+1,) C+1, …, C+1, K), or ((M+1,) S, K) if it is symmetric."""
        label = () if self.label_size is None else (self.label_size + 1,)
        distinct = math.comb(self.state_size + self.arity, self.arity)
        entries = distinct * self.arity if self.shared else (self.state_size + 1) ** self.arity
        require_entries(type(self).__name__, entries * math.prod(label) * self.out_size)
        slots = (len(self._index),) if self.shared else (self.state_size + 1,) * self.arity
        self.tensor = nn.Parameter(torch.empty(*label, *slots, self.out_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Contract in two halves of the modes; if the tensor is symmetric, on the features of the multisets."""
        if not self.shared:
            return multi_affine(self.tensor, [*([] if label is None else [label]), *children.unbind(1)])
        # The features are the larger half; they come first in the contraction, the label second.
        tensor = self.tensor if label is None else self.tensor.transpose(0, 1)  # (S, (M+1,) K)
        return contract_halves(tensor, self._index.features(children), None if label is None else homogenise(label))

    def dense(self, arity: int) -> Tensor:
        """Return T, written out if it is symmetric."""
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
        """Count those of the contraction, and of the features if the tensor is symmetric."""
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

    def kernel(self, *, images: int = 0) -> FormKernel:
        """Contract the tensor with the children; with the images of children instead, if a form on top of it has some."""
        if self.shared:
            return FormKernel(
                symmetric_forward,
                symmetric_backward,
                plan=symmetric_plan,
                prepare=restrict_core,
                finish=spread_core,
                grouping=BY_COUNT,
                images=images,
                label_images=images,
                core=self.tensor.numel(),
                has_output=images > 0,
                has_orders=True,
            )
        return FormKernel(
            dense_forward,
            dense_backward,
            weights=dense_weights,
            plan=dense_plan,
            prepare=restrict_core,
            finish=spread_core,
            grouping=BY_SLOTS,
            images=images,
            label_images=images,
            core=self.tensor.numel(),
            has_output=images > 0,
        )

    def lay_out(self, places: GatePlaces) -> None:
        """Put T into the core.

        The mode of the last slot is the slowest, so that the part that counts without the last children is one piece.
        """
        if self.shared:
            places.core("tensor", module=self)
            return
        strides = [math.prod(self.tensor.shape[place + 1 :]) for place in range(self.tensor.dim())]
        slots = slice(-self.arity - 1, -1)
        places.core("tensor", module=self, strides=(*strides[: -self.arity - 1], *strides[slots][::-1], 1))

    @property
    def _sizes(self) -> list[int]:
        return [*([] if self.label_size is None else [self.label_size]), *[self.state_size] * self.arity]

    @property
    def _index(self) -> SymmetricIndex:
        return symmetric_index(self.state_size, self.arity)


# The kernels, for `Tucker` too. With K = R for the core of a Tucker form:
#
#   z(k) = Σ_j r(j) Σ_i l(i) T(i, j, k)
#
# with the outer products l and r of the left and the right half of the homogeneous inputs. The vector of an absent child is
# [0; 1], so that only the last entry of its mode counts: the core without the other entries is a smaller one, with a mode less.
# If the last children are absent, it is a piece of the core. Otherwise it is copied once for all units of a batch with children
# in the same slots.
#
# A shared form has a symmetric core:
#
#   z(k) = Σ_α T(α, k) P_s(α),   P_k(α) = Σ_{i ∈ distinct(α)} P_{k-1}(α \\ i) h̄_k(i)
#
# With s children present, α runs over multisets of s coordinates: the absent children add L − s homogeneous coordinates to each.
# Units and gates of a block are lanes of one vector, so that the irregular sums over multisets still run on vector units.
#
# Axes:  I entries of the left half · J of the right · K output size · G gates · lanes: gate · BLOCK units

_LARGE: Final = 4096
"""Entries of a core from which reading it takes longer than finding units that share the reading."""


@kernel
def label_entries(operator: Any) -> int:
    """Return the entries of the label's mode, the homogeneous one included; 1 without a label."""
    if operator.label_size == 0:
        return 1
    return int((operator.rank if operator.projects else operator.label_size) + 1)


@kernel
def dense_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """Split the modes of a group's core into halves; list the rows that count, unless they are one piece."""
    group = groups[index]
    operator = tables.operators[group.operator]
    rank, mode, present, gates = operator.rank, operator.rank + 1, group.present, tables.cells[0].gates
    labels = label_entries(operator)
    group.row_count = labels * mode**present
    # The right half has a mode more until it fills vector units. Of two modes it has one in any case: outer products are
    # shorter, and there is less to sum across vectors.
    left, right, taken = group.row_count, 1, 0
    while taken < present and (right * rank < 32 or (taken == 0 and present > 1)):
        right *= mode
        left //= mode
        taken += 1
    group.left, group.right, group.carry = left, right, gates * right * rank
    group.large = group.row_count * rank if group.row_count * rank >= _LARGE else 0
    dimension = max(rank, labels - 1)
    group.scratch = 2 * (present + 1) * dimension + BLOCK * (2 * left + 2 * right + right * rank)
    if present == operator.arity:
        return
    if group.mask == (1 << present) - 1 and operator.label_size == 0:
        group.offset = (mode**operator.arity - mode**present) * rank
        return
    group.listed, group.restricted_size = group.row_count, group.row_count * gates * rank
    if len(core_rows) == 0:
        return
    # Mode after mode, the last slot first; an absent child leaves the last entry of its mode only.
    first, filled = group.first_row, 1
    core_rows[first] = 0
    for place in range(operator.arity, -1, -1):
        stride = mode**place
        if place < operator.arity and not (group.mask >> place) & 1:
            for entry in range(filled):
                core_rows[first + entry] += (mode - 1) * stride
            continue
        size = mode if place < operator.arity else labels
        for entry in range(filled - 1, -1, -1):
            base = core_rows[first + entry]
            for step in range(size):
                core_rows[first + entry * size + step] = base + step * stride
        filled *= size


@kernel
def symmetric_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """List the rows of a group's core that count if children are absent."""
    group = groups[index]
    operator = tables.operators[group.operator]
    rank, present, lanes = operator.rank, group.present, BLOCK * tables.cells[0].gates
    labels, features = label_entries(operator), 0
    order = tables.orders[operator.first_order + present]
    for k in range(present + 1):
        features += tables.orders[operator.first_order + k].multisets
    group.row_count = labels * order.multisets
    dimension = max(rank, labels - 1)
    group.scratch = 2 * (present + 1) * dimension + lanes * (
        2 * features + 2 * present * (rank + 1) + 2 * labels + rank
    )
    if present == operator.arity:
        return
    group.listed = group.row_count
    group.restricted_size = group.row_count * tables.cells[0].gates * rank
    if len(core_rows) == 0:
        return
    total, row = tables.orders[operator.first_order + operator.arity].multisets, group.first_row
    for entry in range(labels):
        for multiset in range(order.multisets):
            core_rows[row] = entry * total + tables.padded[order.first_row + multiset]
            row += 1


@kernel
def restrict_core(weights: Weights, plan: Plan, states: States, index: int) -> None:
    """Copy the rows of the core that count for a group of units."""
    group = plan.groups[index]
    if group.first_row < 0:
        return
    operator = weights.tables.operators[group.operator]
    rank, count = operator.rank, group.row_count
    for gate in range(weights.tables.cells[0].gates):
        source, target = operator.core + gate * operator.core_size, group.restricted + gate * count * rank
        # Row after row in the inner loop: rows are far apart, and this way many are on their way from memory at once.
        for k in range(rank):
            for entry in range(count):
                row = source + plan.core_rows[group.first_row + entry] * rank
                states.restricted[target + entry * rank + k] = weights.values[row + k]


@kernel
def spread_core(weights: Weights, plan: Plan, gradients: Gradients, index: int) -> None:
    """Add the gradient of a restricted core to that of the core."""
    group = plan.groups[index]
    if group.first_row < 0:
        return
    operator = weights.tables.operators[group.operator]
    rank, count = operator.rank, group.row_count
    for gate in range(weights.tables.cells[0].gates):
        target, source = operator.core + gate * operator.core_size, group.restricted + gate * count * rank
        for k in range(rank):
            for entry in range(count):
                row = target + plan.core_rows[group.first_row + entry] * rank
                gradients.values[row + k] += gradients.restricted[source + entry * rank + k]


@inlined
def core_of(weights: Weights, group: Any, values: Vector, restricted: Vector, gate: int) -> Vector:
    """Return a gate's core for a group of units, or its gradient, as a flat array."""
    operator = weights.tables.operators[group.operator]
    size = group.row_count * operator.rank
    if group.first_row < 0:
        start = operator.core + gate * operator.core_size + group.offset
        return values[start : start + size]
    start = group.restricted + gate * size
    return restricted[start : start + size]


@kernel
def gather_inputs(
    weights: Weights, plan: Plan, states: States, labels: Matrix, vectors: Matrix, unit: int, operator: Any, gate: int
) -> int:
    """Copy the inputs of a unit's core into vectors, the label first, then the last child; return how many there are."""
    rank, modes = operator.rank, 0
    if operator.label_size > 0:
        if operator.projects:
            copy(states.label[plan.label_of[unit], gate * rank : (gate + 1) * rank], vectors[0])
        else:
            copy(labels[plan.row_of[unit]], vectors[0])
        modes = 1
    for child in range(plan.children[unit + 1] - 1, plan.children[unit] - 1, -1):
        if operator.projects:
            copy(states.projected[plan.child_edge[child], gate * rank : (gate + 1) * rank], vectors[modes])
        else:
            copy(child_input(weights, plan, states, child)[:rank], vectors[modes])
        modes += 1
    return modes


@kernel
def scatter_inputs(
    weights: Weights, plan: Plan, gradients: Gradients, d_vectors: Matrix, unit: int, operator: Any, gate: int
) -> None:
    """Add the gradients of the inputs of a unit's core to the gradients of their sources."""
    rank, modes = operator.rank, 0
    if operator.label_size > 0:
        for i in range(label_entries(operator) - 1):
            if operator.projects:
                gradients.label[plan.label_of[unit], gate * rank + i] += d_vectors[0, i]
            else:
                gradients.vectors[plan.row_of[unit], i] += d_vectors[0, i]
        modes = 1
    for child in range(plan.children[unit + 1] - 1, plan.children[unit] - 1, -1):
        if operator.projects:
            target = gradients.projected[plan.child_edge[child], gate * rank : (gate + 1) * rank]
        else:
            target = child_input(weights, plan, gradients, child)[:rank]
        for i in range(rank):
            target[i] += d_vectors[modes, i]
        modes += 1


@kernel
def outer(vectors: Matrix, first_size: int, size: int, first: int, last: int, result: Vector) -> None:
    """Write the outer product of the homogeneous vectors first to last, the last mode fastest, into a flat result.

    Vector 0 has ``first_size`` entries, the others ``size``. The product grows from its end: the entries for the last entry of a
    mode, which is one, are those of the modes after it.
    """
    start = 1
    for mode in range(first, last):
        start *= (size if mode else first_size) + 1
    start -= 1
    filled = 1
    result[start] = 1
    for mode in range(last - 1, first - 1, -1):
        entries, vector, inner = size if mode else first_size, vectors[mode], result[start : start + filled]
        start -= entries * filled
        for i in range(entries):
            value, block = vector[i], result[start + i * filled : start + (i + 1) * filled]
            for entry in range(filled):
                block[entry] = value * inner[entry]
        filled *= entries + 1


@kernel
def outer_backward(
    vectors: Matrix,
    first_size: int,
    size: int,
    first: int,
    last: int,
    result: Vector,
    d_result: Vector,
    d_vectors: Matrix,
) -> None:
    """Turn the gradient of an outer product into those of its vectors; uses up ``d_result``."""
    filled, start = 1, 0
    for mode in range(first, last):
        filled *= (size if mode else first_size) + 1
    for mode in range(first, last):
        entries, vector, d_vector = size if mode else first_size, vectors[mode], d_vectors[mode]
        filled //= entries + 1
        tail = start + entries * filled
        inner, d_inner = result[tail : tail + filled], d_result[tail : tail + filled]
        for i in range(entries):
            value, block = vector[i], d_result[start + i * filled : start + (i + 1) * filled]
            total = vector.dtype.type(0)
            for entry in range(filled):
                total += inner[entry] * block[entry]
                d_inner[entry] += value * block[entry]
            d_vector[i] = total
        start = tail


@kernel
def left_modes(operator: Any, group: Any, modes: int) -> int:
    """Return how many of the modes belong to the left half."""
    entries = group.right
    while entries > 1:
        entries //= operator.rank + 1
        modes -= 1
    return modes


@inlined
def dense_scratch(states: States, operator: Any, group: Any) -> tuple[Matrix, ...]:
    """Return the working space: input vectors, the left and the right half of a block, the gradients of all three, a carry."""
    scratch, dimension = states.scratch, max(operator.rank, label_entries(operator) - 1)
    modes, at = group.present + 1, 2 * (group.present + 1) * dimension
    left, right, width = group.left, group.right, group.right * operator.rank
    return (
        matrix(scratch, 0, modes, dimension),
        matrix(scratch, at, BLOCK, left),
        matrix(scratch, at + 2 * BLOCK * left, BLOCK, right),
        matrix(scratch, modes * dimension, modes, dimension),
        matrix(scratch, at + BLOCK * left, BLOCK, left),
        matrix(scratch, at + 2 * BLOCK * left + BLOCK * right, BLOCK, right),
        matrix(scratch, at + 2 * BLOCK * (left + right), BLOCK, width),
    )


@kernel
def dense_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, index: int, out: Matrix
) -> None:
    """Contract the cores of a group's units from start to stop: ``out[unit]`` are K entries for each gate."""
    group, gates, zero = plan.groups[index], weights.tables.cells[0].gates, start - start
    operator = weights.tables.operators[group.operator]
    rank, width, first_size = operator.rank, group.right * operator.rank, label_entries(operator) - 1
    first_size = first_size if first_size else rank
    vectors, left, right, _, _, _, _ = dense_scratch(states, operator, group)
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        # Without a backward pass, many blocks have the same place.
        begin = min(plan.carry_of[first], len(states.carry) - count * gates * width)
        carry = matrix(states.carry, begin, count, gates * width)
        for gate in range(gates):
            if gate == 0 or operator.projects:
                for b in range(count):
                    modes = gather_inputs(weights, plan, states, labels, vectors, first + b, operator, gate)
                    middle = left_modes(operator, group, modes)
                    outer(vectors, first_size, rank, zero, middle, left[b])
                    outer(vectors, first_size, rank, middle, modes, right[b])
            core = matrix(core_of(weights, group, weights.values, states.restricted, gate), 0, group.left, width)
            affine(carry, gate * width, zero, count, left, zero, plan.identity, core)
            for b in range(count):
                line, target = carry[b], out[first + b, gate * rank : (gate + 1) * rank]
                for k in range(rank):
                    target[k] = 0
                for j in range(group.right):
                    factor, base = right[b, j], gate * width + j * rank
                    for k in range(rank):
                        target[k] += factor * line[base + k]


@kernel
def dense_backward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Matrix,
    gradients: Gradients,
    start: int,
    stop: int,
    index: int,
    delta: Matrix,
) -> None:
    """Add the gradients of the inputs of `dense_forward` for those of its outputs, ``delta``; keep those of the carries."""
    group, gates, zero = plan.groups[index], weights.tables.cells[0].gates, start - start
    operator = weights.tables.operators[group.operator]
    rank, width, first_size = operator.rank, group.right * operator.rank, label_entries(operator) - 1
    first_size = first_size if first_size else rank
    vectors, left, right, d_vectors, d_left, d_right, _ = dense_scratch(states, operator, group)
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        carry = matrix(states.carry, plan.carry_of[first], count, gates * width)
        d_carry = matrix(gradients.carry, plan.carry_of[first], count, gates * width)
        for gate in range(gates):
            for b in range(count):
                modes = gather_inputs(weights, plan, states, labels, vectors, first + b, operator, gate)
                middle = left_modes(operator, group, modes)
                outer(vectors, first_size, rank, zero, middle, left[b])
                outer(vectors, first_size, rank, middle, modes, right[b])
                line, source = carry[b], delta[first + b, gate * rank : (gate + 1) * rank]
                d_line, d_half = d_carry[b], d_left[b]
                for j in range(group.right):
                    factor, base, total = right[b, j], gate * width + j * rank, delta.dtype.type(0)
                    for k in range(rank):
                        total += line[base + k] * source[k]
                        d_line[base + k] = factor * source[k]
                    d_right[b, j] = total
                for i in range(group.left):
                    d_half[i] = 0
            core = matrix(core_of(weights, group, weights.values, states.restricted, gate), 0, group.left, width)
            affine_inputs_backward(d_carry, gate * width, zero, count, d_left, zero, plan.identity, core)
            for b in range(count):
                modes = gather_inputs(weights, plan, states, labels, vectors, first + b, operator, gate)
                middle = left_modes(operator, group, modes)
                outer_backward(vectors, first_size, rank, zero, middle, left[b], d_left[b], d_vectors)
                outer_backward(vectors, first_size, rank, middle, modes, right[b], d_right[b], d_vectors)
                scatter_inputs(weights, plan, gradients, d_vectors, first + b, operator, gate)


@kernel
def dense_weights(
    weights: Weights, plan: Plan, states: States, labels: Matrix, gradients: Gradients, members: Ints, index: int
) -> None:
    """Add the gradient of a group's core, for all its units together: it is read and written once for a block."""
    group, gates, zero = plan.groups[index], weights.tables.cells[0].gates, index - index
    operator = weights.tables.operators[group.operator]
    rank, width, first_size = operator.rank, group.right * operator.rank, label_entries(operator) - 1
    first_size = first_size if first_size else rank
    vectors, left, _, _, _, _, d_carry = dense_scratch(states, operator, group)
    for first in range(0, len(members), BLOCK):
        count = min(BLOCK, len(members) - first)
        for gate in range(gates):
            for b in range(count):
                unit = members[first + b]
                if gate == 0 or operator.projects:
                    modes = gather_inputs(weights, plan, states, labels, vectors, unit, operator, gate)
                    outer(vectors, first_size, rank, zero, left_modes(operator, group, modes), left[b])
                begin = plan.carry_of[unit] + gate * width
                copy(gradients.carry[begin : begin + width], d_carry[b])
            d_core = matrix(core_of(weights, group, gradients.values, gradients.restricted, gate), 0, group.left, width)
            affine_weights_backward(d_carry, zero, plan.identity[:count], left, zero, plan.identity, d_core)


@inlined
def lane_scratch(weights: Weights, states: States, operator: Any, group: Any) -> tuple[Matrix, ...]:
    """Return the working space of a block: features, inputs, labels, their gradients, sums; input vectors and their gradients."""
    scratch, entries, lanes = states.scratch, label_entries(operator), BLOCK * weights.tables.cells[0].gates
    dimension, modes, features = max(operator.rank, entries - 1), group.present + 1, 0
    for k in range(group.present + 1):
        features += weights.tables.orders[operator.first_order + k].multisets
    inputs, at = group.present * (operator.rank + 1), 2 * modes * dimension
    return (
        matrix(scratch, at, features, lanes),
        matrix(scratch, at + lanes * 2 * features, inputs, lanes),
        matrix(scratch, at + lanes * 2 * (features + inputs), entries, lanes),
        matrix(scratch, at + lanes * features, features, lanes),
        matrix(scratch, at + lanes * (2 * features + inputs), inputs, lanes),
        matrix(scratch, at + lanes * (2 * (features + inputs) + entries), entries, lanes),
        matrix(scratch, at + lanes * 2 * (features + inputs + entries), operator.rank, lanes),
        matrix(scratch, 0, modes, dimension),
        matrix(scratch, modes * dimension, modes, dimension),
    )


@inlined
def load_lanes(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Matrix,
    first: int,
    count: int,
    group: Any,
    inputs: Matrix,
    label_lanes: Matrix,
    vectors: Matrix,
) -> int:
    """Lay the inputs of a block's cores out in lanes; return the number of lanes."""
    operator = weights.tables.operators[group.operator]
    rank, entries, has_label = operator.rank, label_entries(operator), 1 if operator.label_size > 0 else 0
    gates = weights.tables.cells[0].gates if operator.projects else 1
    for gate in range(gates):
        for b in range(count):
            lane = gate * count + b
            gather_inputs(weights, plan, states, labels, vectors, first + b, operator, gate)
            for i in range(entries - 1):
                label_lanes[i, lane] = vectors[0, i]
            label_lanes[entries - 1, lane] = 1
            for child in range(group.present):
                for i in range(rank):
                    inputs[child * (rank + 1) + i, lane] = vectors[child + has_label, i]
                inputs[child * (rank + 1) + rank, lane] = 1
    return int(gates * count)


@inlined
def features_forward(weights: Weights, group: Any, lanes: int, features: Matrix, inputs: Matrix) -> int:
    """Compute the features of all orders up to the number of children; return the first row of the last."""
    operator, tables = weights.tables.operators[group.operator], weights.tables
    for lane in range(lanes):
        features[0, lane] = 1
    before, now = 0, 1
    for child in range(group.present):
        order = tables.orders[operator.first_order + child + 1]
        clear(features, now, now + order.multisets, lanes)
        for term in range(order.first_term, order.last_term):
            alpha, rest, coordinate = tables.terms[term, 0], tables.terms[term, 1], tables.terms[term, 2]
            target, source = features[now + alpha], features[before + rest]
            factor = inputs[child * (operator.rank + 1) + coordinate]
            for lane in range(lanes):
                target[lane] += source[lane] * factor[lane]
        before, now = now, now + order.multisets
    return before


@inlined
def features_backward(
    weights: Weights,
    group: Any,
    lanes: int,
    last: int,
    features: Matrix,
    inputs: Matrix,
    d_features: Matrix,
    d_inputs: Matrix,
) -> None:
    """Turn the gradients of the last features into those of the inputs."""
    operator, tables = weights.tables.operators[group.operator], weights.tables
    mode = operator.rank + 1
    clear(d_features, last - last, last, lanes)
    clear(d_inputs, last - last, group.present * mode, lanes)
    now = last
    for child in range(group.present - 1, -1, -1):
        order = tables.orders[operator.first_order + child + 1]
        before = now - tables.orders[operator.first_order + child].multisets
        for term in range(order.first_term, order.last_term):
            alpha, rest, coordinate = tables.terms[term, 0], tables.terms[term, 1], tables.terms[term, 2]
            delta, source = d_features[now + alpha], features[before + rest]
            d_source, d_factor = d_features[before + rest], d_inputs[child * mode + coordinate]
            factor = inputs[child * mode + coordinate]
            for lane in range(lanes):
                d_source[lane] += delta[lane] * factor[lane]
                d_factor[lane] += delta[lane] * source[lane]
        now = before


@kernel
def symmetric_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, index: int, out: Matrix
) -> None:
    """Contract the symmetric cores of a group's units from start to stop: ``out[unit]`` are K entries for each gate."""
    group, gates, zero = plan.groups[index], weights.tables.cells[0].gates, start - start
    operator = weights.tables.operators[group.operator]
    rank, multisets = operator.rank, weights.tables.orders[operator.first_order + group.present].multisets
    features, inputs, label_lanes, _, _, _, sums, vectors, _ = lane_scratch(weights, states, operator, group)
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        lanes = load_lanes(weights, plan, states, labels, first, count, group, inputs, label_lanes, vectors)
        last = features_forward(weights, group, lanes, features, inputs)
        clear(sums, zero, rank, gates * count)
        for gate in range(gates):
            core = core_of(weights, group, weights.values, states.restricted, gate)
            lane = gate * count if operator.projects else 0
            for entry in range(len(label_lanes)):
                label = label_lanes[entry, lane : lane + count]
                for alpha in range(multisets):
                    feature = features[last + alpha, lane : lane + count]
                    base = (entry * multisets + alpha) * rank
                    for k in range(rank):
                        weight = core[base + k]
                        total = sums[k, gate * count : (gate + 1) * count]
                        for b in range(count):
                            total[b] += weight * (feature[b] * label[b])
            for b in range(count):
                for k in range(rank):
                    out[first + b, gate * rank + k] = sums[k, gate * count + b]


@kernel
def symmetric_backward(
    weights: Weights,
    plan: Plan,
    states: States,
    labels: Matrix,
    gradients: Gradients,
    start: int,
    stop: int,
    index: int,
    delta: Matrix,
) -> None:
    """Add the gradients of `symmetric_forward` for those of its outputs, ``delta``."""
    group, gates, zero = plan.groups[index], weights.tables.cells[0].gates, start - start
    operator = weights.tables.operators[group.operator]
    rank, multisets = operator.rank, weights.tables.orders[operator.first_order + group.present].multisets
    features, inputs, label_lanes, d_features, d_inputs, d_labels, sums, vectors, d_vectors = lane_scratch(
        weights, states, operator, group
    )
    has_label = 1 if operator.label_size > 0 else 0
    for first in range(start, stop, BLOCK):
        count = min(BLOCK, stop - first)
        lanes = load_lanes(weights, plan, states, labels, first, count, group, inputs, label_lanes, vectors)
        last = features_forward(weights, group, lanes, features, inputs)
        clear(d_features, last, last + multisets, lanes)
        clear(d_labels, zero, len(d_labels), lanes)
        for gate in range(gates):
            core = core_of(weights, group, weights.values, states.restricted, gate)
            d_core = core_of(weights, group, gradients.values, gradients.restricted, gate)
            lane = gate * count if operator.projects else 0
            for b in range(count):
                for k in range(rank):
                    sums[k, b] = delta[first + b, gate * rank + k]
            for entry in range(len(label_lanes)):
                label, d_label = label_lanes[entry, lane : lane + count], d_labels[entry, lane : lane + count]
                for alpha in range(multisets):
                    feature = features[last + alpha, lane : lane + count]
                    d_feature = d_features[last + alpha, lane : lane + count]
                    base = (entry * multisets + alpha) * rank
                    for k in range(rank):
                        weight, total, d_sum = core[base + k], delta.dtype.type(0), sums[k]
                        for b in range(count):
                            total += d_sum[b] * (feature[b] * label[b])
                            d_feature[b] += weight * d_sum[b] * label[b]
                            d_label[b] += weight * d_sum[b] * feature[b]
                        d_core[base + k] += total
        features_backward(weights, group, lanes, last, features, inputs, d_features, d_inputs)
        for gate in range(gates if operator.projects else 1):
            for b in range(count):
                lane = gate * count + b
                for i in range(len(d_labels) - 1):
                    d_vectors[0, i] = d_labels[i, lane]
                for child in range(group.present):
                    for i in range(rank):
                        d_vectors[child + has_label, i] = d_inputs[child * (rank + 1) + i, lane]
                scatter_inputs(weights, plan, gradients, d_vectors, first + b, operator, gate)
