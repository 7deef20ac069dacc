"""Forms that mix coordinates within blocks only: a full tensor in each block, and the product entry by entry."""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, require_choice, require_positive
from treefold.kernels.affine import clear, copy
from treefold.kernels.compile import inlined, kernel, matrix
from treefold.kernels.fold import child_input, label_image, operator_of
from treefold.kernels.layout import FormKernel, GatePlaces, multiset_tables
from treefold.kernels.records import Gradients, Groups, Ints, Matrix, Plan, States, Tables, Vector, Weights
from treefold.nn.aggregators.base import Aggregator, require_entries
from treefold.nn.math.symmetric import SymmetricIndex, symmetric_index

# Axes:  N nodes of one level · L child slots · C state size, which is the output size · k block size · B = C / k blocks
#        M label size · S rows of coefficients: a digit for each slot, 0 without the child, d with entry d - 1 of its block
_STARTS: Final = 6
_STEPS: Final = 300


class _Blocks(Aggregator):
    """What these forms share: the label enters as W x, and no coordinates of different blocks are mixed."""

    has_rank: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    block_size: int = 1
    label_weights: nn.Parameter | None

    def build_label(self) -> None:
        """Make W (M, C), and refuse sizes that differ."""
        if self.out_size != self.state_size:
            raise ConfigurationError(
                f"{type(self).__name__} expects out_size = state_size, got {self.out_size} and {self.state_size}: "
                f"it does not mix coordinates of different blocks; choose another form, or equal sizes."
            )
        self.label_weights = nn.Parameter(torch.empty(self.label_size, self.out_size)) if self.label_size else None

    def with_label(self, result: Tensor, label: Tensor | None) -> Tensor:
        """Add W x."""
        return result if label is None or self.label_weights is None else torch.addmm(result, label, self.label_weights)

    def written_out(self, coefficients: Tensor, arity: int) -> Tensor:  # (S, C) -> (M+1,) (C+1, …, C+1, C)
        """Return the dense tensor of the coefficients of all combinations of digits, in the order of `_digits`."""
        size = self.state_size
        label = () if self.label_size is None else (self.label_size + 1,)
        tensor = coefficients.new_zeros(*label, *[size + 1] * arity, size)
        tensor[self._places(arity)] = coefficients
        if self.label_weights is not None:
            tensor[(slice(0, self.label_size), *[size] * arity)] = self.label_weights
        return tensor

    def read_off(self, tensor: Tensor) -> Tensor:  # (M+1,) (C+1, …, C+1, C) -> (S, C)
        """Take W from a dense tensor, and return the entries which this form can have: the nearest one in the Frobenius norm."""
        if self.label_weights is not None:
            self.label_weights.copy_(tensor[(slice(0, self.label_size), *[self.state_size] * self.arity)])
        return tensor[self._places(self.arity)]

    def _places(self, arity: int) -> tuple[Any, ...]:
        """Index the entries of the dense tensor that belong to the coefficients, (S, C)."""
        own = torch.arange(self.state_size)
        first = own - own % self.block_size  # of the block
        digits = _digits(self.block_size, arity).unsqueeze(2)  # (S, L, 1)
        slots = torch.where(digits == 0, self.state_size, first + digits - 1)  # (S, L, C)
        label = [] if self.label_size is None else [self.label_size]
        return (*label, *slots.unbind(1), own)

    def scale_to_variance_one(self, variance: Tensor, *parameters: Tensor) -> None:
        """Draw W, then scale it and the other parameters so that each output has variance one."""
        self.draw_label_weights()
        if self.label_weights is not None:
            variance = variance + self.label_weights.square().sum(0)
        for parameter in (*parameters, *([] if self.label_weights is None else [self.label_weights])):
            parameter.div_(variance.sqrt())

    def draw_label_weights(self) -> None:
        """Draw W, if there is one, with the share of one mode."""
        if self.label_weights is not None and self.label_size is not None:
            self.label_weights.normal_(std=(self.mode_count * self.label_size) ** -0.5)


def _digits(block_size: int, arity: int) -> Tensor:  # -> (S, L)
    """Return all combinations of a digit for each slot; the first slot changes slowest.

    >>> _digits(1, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return torch.cartesian_prod(*[torch.arange(block_size + 1)] * arity).view(-1, arity)


@functools.lru_cache(maxsize=64)
def _larger(block_size: int, arity: int) -> list[Tensor]:
    """Return, for multisets of 0 … arity - 1 digits, the row of each with one digit more: (S, k+1) for each number of digits.

    >>> [table.tolist() for table in _larger(1, 2)]
    [[[0, 1]], [[0, 1], [1, 2]]]
    """
    orders, terms, _ = multiset_tables(block_size, arity)
    tables = []
    for smaller, larger in itertools.pairwise(orders):
        table = np.empty((smaller["multisets"], block_size + 1), np.int64)
        row, rest, digit = terms[larger["first_term"] : larger["last_term"]].T
        table[rest, digit] = row
        tables.append(torch.from_numpy(table))
    return tables


@final
class Blockwise(_Blocks):
    r"""A full tensor within each block of k = ``block_size`` coordinates, nothing between blocks.

    .. math:: f(x, h_1, \dots, h_L)(i) = (W x)(i) + \sum_{d_1 \dots d_L} a_{d_1 \dots d_L}(i)\, \prod_j h_j^i(d_j)

    Here :math:`h_j^i(0) = 1`, and :math:`h_j^i(1) \dots h_j^i(k)` are the entries of :math:`h_j` in the block of i. With k = 1,
    the default, the form works entry by entry; with k = C it is `Full`. (k+1)^L·C parameters (and M·C for a label) and as many
    multiply-adds: exponential in L, linear in the state size. ``shared`` makes the tensors symmetric: one coefficient for each
    multiset of digits, in the order of `itertools.combinations_with_replacement`.

    ``start="product"`` starts near the product of all children, entry by entry (with one child, at random slopes and a bias of
    a half), instead of by the initialisation. Logic on truth values between 0 and 1 is learnt well from there.

    >>> Blockwise(state_size=8, arity=3, block_size=2)(torch.zeros(5, 3, 8)).shape
    torch.Size([5, 8])
    """

    undecayed: ClassVar[tuple[str, ...]] = ("coefficients",)
    options: ClassVar[Mapping[str, Any]] = {"block_size": 1, "start": "balanced"}
    equation: ClassVar[str] = "f(i) = (W x)(i) + Σ a(d_1 … d_L, i) Π_j h_j(d_j), d_j in the block of i, or none"

    start: str

    def build(self) -> None:
        """Make a (S, C) and W (M, C)."""
        name, size = type(self).__name__, self.block_size
        self.build_label()
        require_positive(name, block_size=size)
        require_choice(name, "start", self.start, ["balanced", "product"])
        if self.start == "product" and self.initialisation != "balanced":
            raise ConfigurationError(
                f"{name} expects start='product' or initialisation={self.initialisation!r}, got both; leave one out."
            )
        if self.state_size % size:
            divisors = [each for each in range(1, self.state_size + 1) if self.state_size % each == 0]
            raise ConfigurationError(
                f"{name} expects a block_size that divides state_size={self.state_size}, got {size}; "
                f"choose one of {', '.join(map(str, divisors))}, or another state_size."
            )
        rows = math.comb(size + self.arity, self.arity) if self.shared else (size + 1) ** self.arity
        require_entries(name, rows * (self.arity if self.shared else 1) * self.state_size)
        self.coefficients = nn.Parameter(torch.empty(rows, self.state_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Contract one child after the other: each takes a digit from the coefficients."""
        rows = self.coefficients.unsqueeze(0)  # (1 or N, S, C)
        if self.block_size == 1:
            for state in children.unbind(1):
                without, with_child = (rows[:, :-1], rows[:, 1:]) if self.shared else rows.chunk(2, dim=1)
                rows = without + with_child * state.unsqueeze(1)
            return self.with_label(rows[:, 0].expand(len(children), -1), label)
        blocks = self.state_size // self.block_size
        rows = rows.view(1, -1, blocks, self.block_size)  # (1 or N, S, B, k)
        for place, state in enumerate(children.unbind(1)):
            with_digit = self._with_digit(rows, self.arity - place - 1)
            by_block = state.reshape(len(state), blocks, self.block_size)
            rows = rows[:, : with_digit.shape[1]] + torch.einsum("nsdbk,nbd->nsbk", with_digit, by_block)
        return self.with_label(rows[:, 0].flatten(1).expand(len(children), -1), label)

    def _with_digit(self, rows: Tensor, digits: int) -> Tensor:  # (N, S, B, k) -> (N, S', k, B, k)
        """Return the rows with each digit of the first slot but 0, for all combinations of so many other digits."""
        if not self.shared:
            by_digit = rows.reshape(len(rows), self.block_size + 1, (self.block_size + 1) ** digits, *rows.shape[2:])
            return by_digit[:, 1:].transpose(1, 2)
        return rows[:, _larger(self.block_size, self.arity)[digits][:, 1:].to(rows.device)]

    def dense(self, arity: int) -> Tensor:
        """Write the coefficients out, zero in every entry that would mix coordinates of different blocks."""
        rows = self._index.expand(self.coefficients).flatten(0, -2) if self.shared else self.coefficients
        return self.written_out(rows, arity)

    def decompose(self, tensor: Tensor) -> None:
        """Keep the entries within blocks, the mean over the orders of a multiset if they are shared."""
        found = self.read_off(tensor)
        self.coefficients.copy_(self._index.pack(found) if self.shared else found)

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count those of all rows that the children leave, and M·C for the label."""
        size = self.block_size
        rows = [math.comb(size + left, left) if self.shared else (size + 1) ** left for left in range(self.arity)]
        return self.state_size * (size * sum(rows) + (self.label_size or 0))

    def reset_balanced(self) -> None:
        """Weigh the orders of interaction alike, the constant term zero, then scale each output to variance one."""
        if self.start == "product":
            self._reset_to_product()
            return
        digits = self._index.multisets if self.shared else _digits(self.block_size, self.arity)
        orders = (digits > 0).sum(1).to(self.coefficients)
        weights = (self.mode_count * self.block_size) ** (-orders / 2)
        self.coefficients.normal_().mul_(weights.unsqueeze(1))
        self.coefficients[0] = 0
        squares = self.coefficients.square()
        if self.shared:
            squares = squares * self._index.arrangements.to(squares).unsqueeze(1)
        self.scale_to_variance_one(squares.sum(0), self.coefficients)

    def _reset_to_product(self) -> None:
        size = self.block_size
        self.draw_label_weights()
        if self.arity == 1:
            self.coefficients.normal_(std=min(0.5, size**-0.5))
            self.coefficients[0] = 0.5
            return
        digits = self._index.multisets if self.shared else _digits(size, self.arity)
        own = torch.arange(self.state_size) % size + 1  # the digit of each column
        is_product = (digits.unsqueeze(2) == own).all(1)  # (S, C)
        self.coefficients.normal_(std=min(0.1, 0.4 / size)).add_(is_product.to(self.coefficients))
        self.coefficients[0] = 0

    def kaiming_fans(self) -> dict[str, int]:
        """Return the number of terms which each output sums."""
        return {"coefficients": (self.block_size + 1) ** self.arity, "label_weights": self.label_size or 0}

    def kernel(self) -> FormKernel:
        """Contract the coefficients with the children's states; the label has an image."""
        return FormKernel(
            blocks_forward,
            blocks_backward,
            plan=blocks_plan,
            label_images=self.state_size,
            core=self.coefficients.numel(),
            rank=self.block_size,
            has_orders=self.shared,
            can_be_part=True,
        )

    def lay_out(self, places: GatePlaces) -> None:
        """The coefficients in the core, W at the label."""
        places.core("coefficients")
        places.label("label_weights")

    @property
    def _index(self) -> SymmetricIndex:
        return symmetric_index(self.block_size, self.arity)


@final
class HadamardProduct(_Blocks):
    r"""Element-wise product of affine maps of the children: one factor for each child.

    .. math:: f(x, h_1, \dots, h_L)(k) = (W x)(k) + \gamma(k) \prod_j \big(1 + \beta_j(k)\, h_j(k)\big) + \delta(k)

    (L+2)·C parameters (and M·C for a label), as many multiply-adds. ``shared`` has one β for all slots: an absent child is the
    factor one, and any number of children is taken, in any order.

    >>> HadamardProduct(state_size=8, arity=3)(torch.zeros(5, 3, 8)).shape
    torch.Size([5, 8])
    """

    any_arity: ClassVar[bool] = True
    undecayed: ClassVar[tuple[str, ...]] = ("factors",)
    equation: ClassVar[str] = "f(k) = (W x)(k) + γ(k) Π_j (1 + β_j(k) h_j(k)) + δ(k)"

    def build(self) -> None:
        """Make β (L, C), or (C,) if it is shared, γ and δ (C,), and W (M, C)."""
        self.build_label()
        slots = () if self.shared else (self.arity,)
        self.factors = nn.Parameter(torch.empty(*slots, self.state_size))
        self.scale = nn.Parameter(torch.empty(self.state_size))
        self.bias = nn.Parameter(torch.empty(self.state_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Multiply the factors of all children."""
        return self.with_label(self.scale * (1 + self.factors * children).prod(1) + self.bias, label)

    def dense(self, arity: int) -> Tensor:
        """Multiply out."""
        rows = self.scale * self._monomials(arity)
        return self.written_out(torch.cat([rows[:1] + self.bias, rows[1:]]), arity)

    def decompose(self, tensor: Tensor) -> None:
        """Fit β by L-BFGS on the squared error, with the best γ for it; the best of several starts for each coordinate."""
        target = self.read_off(tensor).double()[1:]  # the constant term is free
        best = target.new_full((self.state_size,), math.inf)
        generator = torch.Generator().manual_seed(0)
        for _ in range(_STARTS):
            factors = torch.randn(self.factors.shape, generator=generator, dtype=torch.float64).requires_grad_()
            optimiser = torch.optim.LBFGS(
                [factors], max_iter=_STEPS, tolerance_grad=1e-14, tolerance_change=1e-18, line_search_fn="strong_wolfe"
            )

            def fitted(factors: Tensor = factors) -> tuple[Tensor, Tensor]:
                rows = self._monomials(self.arity, factors)[1:]
                scale = (rows * target).sum(0) / rows.square().sum(0).clamp_min(1e-30)
                return scale, (scale * rows - target).square().sum(0)

            def error(optimiser: Any = optimiser, fitted: Any = fitted) -> Tensor:
                optimiser.zero_grad()
                loss: Tensor = fitted()[1].sum()
                torch.autograd.backward(loss)
                return loss

            with torch.enable_grad():
                optimiser.step(error)  # type: ignore[no-untyped-call]
            scale, errors = fitted()
            better = (errors < best).detach()
            best = torch.where(better, errors.detach(), best)
            self.factors.copy_(torch.where(better, factors.detach(), self.factors))
            self.scale.copy_(torch.where(better, scale.detach(), self.scale))
        self.bias.copy_(self.read_off(tensor)[0] - self.scale)

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count a factor and a product for each of ``arity`` children, and M·C for the label."""
        return self.state_size * (2 * (self.arity if arity is None else arity) + 1 + (self.label_size or 0))

    def reset_balanced(self) -> None:
        """Start every factor near one, the constant term zero, then scale each output to variance one."""
        self.factors.normal_(std=self.mode_count**-0.5)
        squares = (1 + self.factors.square()).log()
        variance = (squares * self.arity if self.shared else squares.sum(0)).expm1()
        self.scale.fill_(1).mul_(torch.randint(0, 2, self.scale.shape).to(self.scale) * 2 - 1)
        self.scale_to_variance_one(variance, self.scale)
        self.bias.copy_(-self.scale)

    def kaiming_fans(self) -> dict[str, int]:
        """Return one term for each factor and for γ; δ starts at zero."""
        return {"factors": 1, "scale": 1, "bias": 0, "label_weights": self.label_size or 0}

    def scaling(self) -> list[Tensor]:
        """Return γ, δ and W."""
        return [self.scale, self.bias, *([] if self.label_weights is None else [self.label_weights])]

    def kernel(self) -> FormKernel:
        """Multiply the factors of the children's states; the label has an image."""
        return FormKernel(
            product_forward,
            product_backward,
            plan=product_plan,
            label_images=self.state_size,
            core=(len(self.factors.view(-1, self.state_size)) + 2) * self.state_size,
            can_be_part=True,
        )

    def lay_out(self, places: GatePlaces) -> None:
        """γ, δ and β in the core, W at the label."""
        for row, name in enumerate(("scale", "bias", "factors")):
            places.core(name, offset=row * self.state_size)
        places.label("label_weights")

    def _monomials(self, arity: int, factors: Tensor | None = None) -> Tensor:
        """Return the product of β over the slots with a child, for all combinations of digits, (S, C)."""
        factors = self.factors if factors is None else factors
        slots = [factors] * arity if self.shared else list(factors)
        one = torch.ones_like(factors[..., :] if self.shared else factors[0])
        rows = one.unsqueeze(0)
        for slot in reversed(slots):  # the first slot changes slowest
            rows = torch.cat([rows, rows * slot])
        return rows


# The kernels. The children of a unit are contracted one after the other; each leaves a level of rows, C numbers each. The levels
# are in the working space, one after the other, then their gradients, then the factors of all children: row d of a child
# has in each place of a block the entry d of that block. With k = 1, that is the child's state itself.
#
# A term of a level is (row before, row after, digit): the row after sums the rows before, each times the factor of its digit.
# Absent children leave the digit 0. A shared form needs the multisets of as many digits as there are children, which come first;
# otherwise rows with other digits of absent children are skipped. With k = 1, each row after has two rows before.


@kernel
def level_rows(tables: Tables, operator: Any, digits: int) -> int:
    """Return how many rows of so many digits there are."""
    if operator.shared:
        return int(tables.orders[operator.first_order + digits].multisets)
    return int((operator.rank + 1) ** digits)


@kernel
def all_levels(tables: Tables, operator: Any) -> int:
    """Return the most rows that all levels together have."""
    rows = 0
    for digits in range(operator.arity):
        rows += level_rows(tables, operator, digits)
    return rows


@kernel
def blocks_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """Reserve room for all levels and their gradients, and for the factors of all children and the gradients of one."""
    operator = tables.operators[groups[index].operator]
    factors = 0 if operator.rank == 1 else (operator.arity + 1) * operator.rank
    groups[index].scratch = (2 * all_levels(tables, operator) + factors) * tables.state_size


@kernel
def level_of(weights: Weights, plan: Plan, operator: Any, unit: int, child: int) -> tuple[int, int, int, int, int]:
    """Return the terms and the rows of the level that a child leaves, and where the rows before it are.

    Those of digit d are ``(d * apart + row) * step``; if multisets are of more than one kind of digit, the terms say it.
    """
    stop = plan.children[unit + 1]
    if operator.shared:
        order = weights.tables.orders[operator.first_order + stop - child]
        rows = level_rows(weights.tables, operator, stop - child - 1)
        return int(order.first_term), int(order.last_term), rows, 1, 1
    mode, last = operator.rank + 1, plan.child_slot[stop - 1]
    rows = mode ** (last - plan.child_slot[child + 1] + 1) if child + 1 < stop else 1
    step = mode ** (operator.arity - 1 - last) if child == plan.children[unit] else 1
    return 0, int(mode * rows), int(rows), int(mode ** (last - plan.child_slot[child])), int(step)


@inlined
def term_of(weights: Weights, operator: Any, term: int, rows: int, apart: int, step: int) -> tuple[int, int, int]:
    """Return a term: the row before, the row after, the digit."""
    if operator.shared:
        terms = weights.tables.terms
        return terms[term, 0], terms[term, 1], terms[term, 2]
    digit = term // rows
    row = term - digit * rows
    return (digit * apart + row) * step, row, digit


@kernel
def spread(weights: Weights, plan: Plan, states: States, unit: int, size: int, factors: Matrix) -> None:
    """Write the factors of all children of a unit."""
    at = 0
    for child in range(plan.children[unit], plan.children[unit + 1]):
        state = child_input(weights, plan, states, child)
        for digit in range(size):
            line = factors[at + digit]
            for first in range(0, weights.tables.state_size, size):
                for k in range(first, first + size):
                    line[k] = state[first + digit]
        at += size


@kernel
def gather_factors(d_factors: Matrix, size: int, d_state: Vector) -> None:
    """Add the gradients of a child's factors to that of its state."""
    for digit in range(size):
        line = d_factors[digit]
        for first in range(0, len(line), size):
            total = line[first]
            for k in range(first + 1, first + size):
                total += line[k]
            d_state[first + digit] += total


@kernel
def add(source: Vector, target: Vector) -> None:
    """Add a vector to another."""
    for k in range(len(source)):
        target[k] += source[k]


@kernel
def add_products(source: Vector, factor: Vector, target: Vector) -> None:
    """Add the products of two vectors to a third."""
    for k in range(len(source)):
        target[k] += source[k] * factor[k]


@kernel
def add_gradients(delta: Vector, source: Vector, factor: Vector, d_source: Vector, d_factor: Vector) -> None:
    """Add the gradients of both factors of `add_products`."""
    for k in range(len(delta)):
        d_source[k] += delta[k] * factor[k]
        d_factor[k] += delta[k] * source[k]


@kernel
def combine(without: Vector, with_child: Vector, state: Vector, target: Vector) -> None:
    """Set a row after two rows, with blocks of one."""
    for k in range(len(target)):
        target[k] = without[k] + with_child[k] * state[k]


@kernel
def combine_backward(
    delta: Vector, with_child: Vector, state: Vector, d_without: Vector, d_with_child: Vector, d_state: Vector
) -> None:
    """Add the gradients of `combine`."""
    for k in range(len(delta)):
        d_without[k] += delta[k]
        d_with_child[k] += delta[k] * state[k]
        d_state[k] += delta[k] * with_child[k]


@inlined
def contract_children(
    weights: Weights, plan: Plan, states: States, factors: Matrix, unit: int, stop: int, operator: Any, gate: int
) -> int:
    """Contract the coefficients with the children of a unit up to ``stop``; return where the levels end."""
    size, place = weights.tables.state_size, 0
    rows_before = operator.core_size // size
    source = matrix(weights.values, operator.core + gate * operator.core_size, rows_before, size)
    for child in range(plan.children[unit], stop):
        first, last, rows, apart, step = level_of(weights, plan, operator, unit, child)
        target = matrix(states.scratch, place, rows, size)
        if operator.rank == 1:
            state = child_input(weights, plan, states, child)
            for row in range(rows):
                combine(source[row * step], source[(apart + row) * step], state, target[row])
        else:
            own = (child - plan.children[unit]) * operator.rank - 1
            for term in range(first, last):
                before, after, digit = term_of(weights, operator, term, rows, apart, step)
                if digit == 0:  # the first term of its row
                    copy(source[before], target[after])
                else:
                    add_products(source[before], factors[own + digit], target[after])
        source = target
        place += rows * size
    return place


@kernel
def blocks_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Contract the coefficients of each gate, and add the image of the label: (G·C,)."""
    operator, size = operator_of(weights, plan, group), weights.tables.state_size
    levels = 2 * all_levels(weights.tables, operator) * size
    factors = matrix(states.scratch, levels, operator.arity * operator.rank, size)
    for unit in range(start, stop):
        if operator.rank > 1:
            spread(weights, plan, states, unit, operator.rank, factors)
        for gate in range(weights.tables.cells[0].gates):
            end = contract_children(weights, plan, states, factors, unit, plan.children[unit + 1], operator, gate)
            line, core = out[unit, gate * size : (gate + 1) * size], operator.core + gate * operator.core_size
            if end:
                copy(states.scratch[end - size : end], line)
            else:
                copy(weights.values[core : core + size], line)
        if operator.label_size > 0:
            add_label(weights, label_image(plan, operator, unit, states.label), out[unit])


@kernel
def add_label(weights: Weights, image: Vector, line: Vector) -> None:
    """Add the image of a label for all gates, or the gradient of the other."""
    for k in range(weights.tables.cells[0].gates * weights.tables.state_size):
        line[k] += image[k]


@kernel
def blocks_backward(
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
    """Give the gradients to the coefficients, the children and the label, level after level."""
    operator, size, zero = (
        operator_of(weights, plan, group),
        weights.tables.state_size,
        start - start,
    )
    levels, block = all_levels(weights.tables, operator) * size, operator.rank
    factors = matrix(states.scratch, 2 * levels, operator.arity * block, size)
    d_factors = matrix(states.scratch, 2 * levels + operator.arity * block * size, block, size)
    for unit in range(start, stop):
        if block > 1:
            spread(weights, plan, states, unit, block, factors)
        begin, last = plan.children[unit], plan.children[unit + 1] - 1
        for gate in range(weights.tables.cells[0].gates):
            core, rows_before = operator.core + gate * operator.core_size, operator.core_size // size
            place = contract_children(weights, plan, states, factors, unit, last, operator, gate)
            d_target = matrix(delta[unit], gate * size, 1, size)
            for child in range(last, begin - 1, -1):
                first_term, last_term, rows, apart, step = level_of(weights, plan, operator, unit, child)
                source = matrix(weights.values, core, rows_before, size)
                d_source = matrix(gradients.values, core, rows_before, size)
                if child > begin:
                    rows_below = level_of(weights, plan, operator, unit, child - 1)[2]
                    place -= rows_below * size
                    source = matrix(states.scratch, place, rows_below, size)
                    d_source = matrix(states.scratch, levels + place, rows_below, size)
                    clear(d_source, zero, rows_below, size)
                d_state = child_input(weights, plan, gradients, child)
                if block == 1:
                    state = child_input(weights, plan, states, child)
                    for row in range(rows):
                        low, high = row * step, (apart + row) * step
                        combine_backward(d_target[row], source[high], state, d_source[low], d_source[high], d_state)
                else:
                    own = (child - begin) * block - 1
                    clear(d_factors, zero, block, size)
                    for term in range(first_term, last_term):
                        before, after, digit = term_of(weights, operator, term, rows, apart, step)
                        if digit == 0:
                            add(d_target[after], d_source[before])
                        else:
                            factor, d_factor = factors[own + digit], d_factors[digit - 1]
                            add_gradients(d_target[after], source[before], factor, d_source[before], d_factor)
                    gather_factors(d_factors, block, d_state)
                d_target = d_source
            if last < begin:
                add(d_target[0], gradients.values[core : core + size])
        if operator.label_size > 0:
            add_label(weights, delta[unit], label_image(plan, operator, unit, gradients.label))


@kernel
def product_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """Reserve room for the products of the first factors, and for one line more."""
    operator = tables.operators[groups[index].operator]
    groups[index].scratch = (max(longest, operator.arity) + 3) * tables.state_size


@inlined
def partial_products(
    weights: Weights, plan: Plan, states: States, products: Matrix, unit: int, operator: Any, gate: int
) -> int:
    """Write the products of the first 0, 1, 2 … factors into ``products``; return the number of children."""
    size, begin = weights.tables.state_size, operator.core + gate * operator.core_size
    for k in range(size):
        products[0, k] = weights.values[begin + k]
    first = plan.children[unit]
    for child in range(first, plan.children[unit + 1]):
        slot = 2 + (0 if operator.shared else plan.child_slot[child])
        beta = weights.values[begin + slot * size : begin + (slot + 1) * size]
        state, before, after = (
            child_input(weights, plan, states, child),
            products[child - first],
            products[child - first + 1],
        )
        for k in range(size):
            after[k] = before[k] * (1 + beta[k] * state[k])
    return int(plan.children[unit + 1] - first)


@kernel
def product_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Multiply the factors of each gate, and add δ and the image of the label: (G·C,)."""
    operator, size = operator_of(weights, plan, group), weights.tables.state_size
    products = matrix(states.scratch, 0, len(states.scratch) // size, size)
    for unit in range(start, stop):
        for gate in range(weights.tables.cells[0].gates):
            count = partial_products(weights, plan, states, products, unit, operator, gate)
            bias, line = operator.core + gate * operator.core_size + size, out[unit, gate * size : (gate + 1) * size]
            for k in range(size):
                line[k] = products[count, k] + weights.values[bias + k]
        if operator.label_size > 0:
            add_label(weights, label_image(plan, operator, unit, states.label), out[unit])


@kernel
def product_backward(
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
    """Give each factor the gradient times the product of the others: those before it are stored, those after it collected."""
    operator, size = operator_of(weights, plan, group), weights.tables.state_size
    products = matrix(states.scratch, 0, len(states.scratch) // size, size)
    after = products[len(products) - 1]
    for unit in range(start, stop):
        for gate in range(weights.tables.cells[0].gates):
            count = partial_products(weights, plan, states, products, unit, operator, gate)
            begin = operator.core + gate * operator.core_size
            copy(delta[unit, gate * size : (gate + 1) * size], after)
            for k in range(size):
                gradients.values[begin + size + k] += after[k]
            for place in range(count - 1, -1, -1):
                child, before = plan.children[unit] + place, products[place]
                slot = begin + (2 + (0 if operator.shared else plan.child_slot[child])) * size
                state, d_state = child_input(weights, plan, states, child), child_input(weights, plan, gradients, child)
                for k in range(size):
                    d_factor, beta = after[k] * before[k], weights.values[slot + k]
                    gradients.values[slot + k] += d_factor * state[k]
                    d_state[k] += d_factor * beta
                    after[k] *= 1 + beta * state[k]
            for k in range(size):
                gradients.values[begin + k] += after[k]
        if operator.label_size > 0:
            add_label(weights, delta[unit], label_image(plan, operator, unit, gradients.label))
