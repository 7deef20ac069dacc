"""Element-wise forms: coordinate k of the result sees coordinate k of each child and nothing else."""

import itertools
import math
from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError
from treefold.kernels.affine import copy
from treefold.kernels.compile import inlined, kernel, matrix
from treefold.kernels.fold import child_input, is_at, place_count
from treefold.kernels.layout import FormKernel, GatePlaces
from treefold.kernels.records import Gradients, Groups, Ints, Matrix, Plan, States, Tables, Vector, Weights
from treefold.nn.aggregators.base import Aggregator, require_entries

# Axes:  N nodes of one level · L child slots · C state size, which is the output size · M label size · S subsets of the slots
_STARTS: Final = 6
_STEPS: Final = 300


class _ElementWise(Aggregator):
    """What the element-wise forms share: the label enters as W x, and no coordinates are mixed."""

    has_rank: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    label_weights: nn.Parameter | None

    def build_label(self) -> None:
        """Make W (M, C), and refuse sizes that differ."""
        if self.out_size != self.state_size:
            raise ConfigurationError(
                f"{type(self).__name__} expects out_size = state_size, got {self.out_size} and {self.state_size}: "
                f"it does not mix coordinates; choose another form, or equal sizes."
            )
        self.label_weights = nn.Parameter(torch.empty(self.label_size, self.out_size)) if self.label_size else None

    def with_label(self, result: Tensor, label: Tensor | None) -> Tensor:
        """Add W x."""
        return result if label is None or self.label_weights is None else torch.addmm(result, label, self.label_weights)

    def written_out(self, coefficients: Tensor, arity: int) -> Tensor:  # (S, C) -> (M+1,) (C+1, …, C+1, C)
        """Return the dense tensor of the coefficients of all subsets, in the order of `_subsets`."""
        size = self.state_size
        label = () if self.label_size is None else (self.label_size + 1,)
        tensor = coefficients.new_zeros(*label, *[size + 1] * arity, size)
        for places, row in zip(self._places(arity), coefficients, strict=True):
            tensor[places] = row
        if self.label_weights is not None:
            tensor[(slice(0, self.label_size), *[size] * arity)] = self.label_weights
        return tensor

    def read_off(self, tensor: Tensor) -> Tensor:  # (M+1,) (C+1, …, C+1, C) -> (S, C)
        """Take W from a dense tensor, and return the entries which this form can have: the nearest one in the Frobenius norm."""
        if self.label_weights is not None:
            self.label_weights.copy_(tensor[(slice(0, self.label_size), *[self.state_size] * self.arity)])
        return torch.stack([tensor[places] for places in self._places(self.arity)])

    def _places(self, arity: int) -> list[tuple[Any, ...]]:
        """Index the entries of the dense tensor that belong to each subset of the slots."""
        size, own = self.state_size, torch.arange(self.state_size)
        label = [] if self.label_size is None else [self.label_size]
        return [(*label, *(own if each else size for each in subset), own) for subset in _subsets(arity)]

    def scale_to_variance_one(self, variance: Tensor, *parameters: Tensor) -> None:
        """Draw W, then scale it and the other parameters so that each output has variance one."""
        if self.label_weights is not None and self.label_size is not None:
            self.label_weights.normal_(std=(self.mode_count * self.label_size) ** -0.5)
            variance = variance + self.label_weights.square().sum(0)
        for parameter in (*parameters, *([] if self.label_weights is None else [self.label_weights])):
            parameter.div_(variance.sqrt())


def _subsets(arity: int) -> list[tuple[int, ...]]:
    """Return all subsets of the slots, as a zero or one for each; the first slot changes slowest.

    >>> _subsets(2)
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    return list(itertools.product([0, 1], repeat=arity))


@final
class Hadamard(_ElementWise):
    r"""Element-wise multi-affine aggregation: a coefficient for every product of the children's k-th entries.

    .. math:: f(x, h_1, \dots, h_L)(k) = (W x)(k) + \sum_{S \subseteq \{1 \dots L\}} a_S(k) \prod_{j \in S} h_j(k)

    2^L·C parameters (and M·C for a label) and as many multiply-adds: exponential in L, linear in the state size. ``shared`` has
    one coefficient for each size of S, (L+1)·C parameters, and does not see the order of the children.

    >>> Hadamard(state_size=8, arity=3)(torch.zeros(5, 3, 8)).shape
    torch.Size([5, 8])
    """

    undecayed: ClassVar[tuple[str, ...]] = ("coefficients",)
    equation: ClassVar[str] = "f(k) = (W x)(k) + Σ_S a_S(k) Π_{j∈S} h_j(k)"

    def build(self) -> None:
        """Make a (2^L, C), or (L+1, C) if it is shared, and W (M, C)."""
        self.build_label()
        require_entries(type(self).__name__, 2 ** (0 if self.shared else self.arity) * self.state_size)
        rows = self.arity + 1 if self.shared else 2**self.arity
        self.coefficients = nn.Parameter(torch.empty(rows, self.state_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Contract one child after the other: each halves the coefficients, or makes them one less if they are shared."""
        rows = self.coefficients.unsqueeze(0)  # (1 or N, S, C)
        for state in children.unbind(1):
            without, with_child = (rows[:, :-1], rows[:, 1:]) if self.shared else rows.chunk(2, dim=1)
            rows = without + with_child * state.unsqueeze(1)
        return self.with_label(rows[:, 0].expand(len(children), -1), label)

    def dense(self, arity: int) -> Tensor:
        """Write the coefficients out, zero in every entry that would mix coordinates."""
        rows = self.coefficients
        return self.written_out(
            torch.stack([rows[sum(each)] for each in _subsets(arity)]) if self.shared else rows, arity
        )

    def decompose(self, tensor: Tensor) -> None:
        """Keep the entries that do not mix coordinates, the mean of those of one size if they are shared."""
        found = self.read_off(tensor)
        if self.shared:
            sizes = torch.tensor([sum(each) for each in _subsets(self.arity)])
            found = torch.stack([found[sizes == size].mean(0) for size in range(self.arity + 1)])
        self.coefficients.copy_(found)

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count those of all rows that the children leave, and M·C for the label."""
        rows = self.arity * (self.arity + 1) // 2 if self.shared else 2**self.arity - 1
        return self.state_size * (rows + (self.label_size or 0))

    def reset_balanced(self) -> None:
        """Weigh the orders of interaction alike, the constant term zero, then scale each output to variance one."""
        sizes = range(self.arity + 1) if self.shared else [sum(each) for each in _subsets(self.arity)]
        orders = torch.tensor([float(size) for size in sizes]).to(self.coefficients)
        self.coefficients.normal_().mul_((self.mode_count ** (-orders / 2)).unsqueeze(1))
        self.coefficients[0] = 0
        counts = [math.comb(self.arity, size) if self.shared else 1 for size in sizes]
        terms = torch.tensor([float(count) for count in counts]).to(self.coefficients)
        self.scale_to_variance_one((self.coefficients.square() * terms.unsqueeze(1)).sum(0), self.coefficients)

    def kaiming_fans(self) -> dict[str, int]:
        """Return the number of terms which each output sums."""
        return {"coefficients": 2**self.arity, "label_weights": self.label_size or 0}

    def kernel(self) -> FormKernel:
        """Contract the coefficients with the children's states; the label has an image."""
        return FormKernel(
            hadamard_forward,
            hadamard_backward,
            plan=hadamard_plan,
            label_images=self.state_size,
            core=self.coefficients.numel(),
        )

    def lay_out(self, places: GatePlaces) -> None:
        """The coefficients in the core, W at the label."""
        places.core("coefficients")
        places.label("label_weights")


@final
class HadamardProduct(_ElementWise):
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

    def kernel(self) -> FormKernel:
        """Multiply the factors of the children's states; the label has an image."""
        return FormKernel(
            product_forward,
            product_backward,
            plan=product_plan,
            label_images=self.state_size,
            core=(len(self.factors.view(-1, self.state_size)) + 2) * self.state_size,
        )

    def lay_out(self, places: GatePlaces) -> None:
        """γ, δ and β in the core, W at the label."""
        for row, name in enumerate(("scale", "bias", "factors")):
            places.core(name, offset=row * self.state_size)
        places.label("label_weights")

    def _monomials(self, arity: int, factors: Tensor | None = None) -> Tensor:
        """Return the product of β over each subset of the slots, (S, C)."""
        factors = self.factors if factors is None else factors
        slots = [factors] * arity if self.shared else list(factors)
        one = torch.ones_like(factors[..., :] if self.shared else factors[0])
        rows = one.unsqueeze(0)
        for slot in reversed(slots):  # the first slot changes slowest
            rows = torch.cat([rows, rows * slot])
        return rows


# The kernels. A coefficient row is C numbers; the gates have cores one after the other. Coefficients that the first children have
# contracted are levels, one after the other in the working space, with their gradients after them.


@kernel
def first_rows(operator: Any) -> int:
    """Return how many rows of coefficients there are before any child."""
    return int(operator.arity + 1 if operator.shared else 1 << operator.arity)


@kernel
def hadamard_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """Reserve room for the coefficients of all levels and their gradients."""
    operator = tables.operators[groups[index].operator]
    rows = first_rows(operator)
    total = rows * (rows + 1) // 2 if operator.shared else 2 * rows
    groups[index].scratch = 2 * total * tables.state_size


@inlined
def contract_levels(
    weights: Weights, plan: Plan, states: States, levels: Matrix, unit: int, operator: Any, gate: int
) -> int:
    """Contract the coefficients with the children of a unit, level after level; return the row of the result."""
    size, rows, at = weights.tables.state_size, first_rows(operator), 0
    start = operator.core + gate * operator.core_size
    for row in range(rows):
        copy(weights.values[start + row * size : start + (row + 1) * size], levels[row])
    child = plan.children[unit]
    for place in range(place_count(plan, unit, operator)):
        left = rows - 1 if operator.shared else rows // 2
        apart, found = 1 if operator.shared else left, is_at(plan, unit, operator, place, child)
        for row in range(left):
            target, source = levels[at + rows + row], levels[at + row]
            copy(source, target)
            if found:
                state, more = child_input(weights, plan, states, child), levels[at + row + apart]
                for k in range(size):
                    target[k] += more[k] * state[k]
        child += found
        at, rows = at + rows, left
    return at


@kernel
def hadamard_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Contract the coefficients of each gate, and add the image of the label: (G·C,)."""
    operator, size = weights.tables.operators[plan.groups[group].operator], weights.tables.state_size
    levels = matrix(states.scratch, 0, len(states.scratch) // size, size)
    for unit in range(start, stop):
        for gate in range(weights.tables.cells[0].gates):
            last = contract_levels(weights, plan, states, levels, unit, operator, gate)
            copy(levels[last], out[unit, gate * size : (gate + 1) * size])
        if operator.label_size > 0:
            add_label(weights, states.label[plan.label_of[unit]], out[unit])


@kernel
def add_label(weights: Weights, image: Vector, line: Vector) -> None:
    """Add the image of a label for all gates, or the gradient of the other."""
    for k in range(weights.tables.cells[0].gates * weights.tables.state_size):
        line[k] += image[k]


@kernel
def hadamard_backward(
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
    operator, size = weights.tables.operators[plan.groups[group].operator], weights.tables.state_size
    first = first_rows(operator)
    total = first * (first + 1) // 2 if operator.shared else 2 * first
    levels, d_levels = matrix(states.scratch, 0, total, size), matrix(states.scratch, total * size, total, size)
    for unit in range(start, stop):
        for gate in range(weights.tables.cells[0].gates):
            last = contract_levels(weights, plan, states, levels, unit, operator, gate)
            copy(delta[unit, gate * size : (gate + 1) * size], d_levels[last])
            places = place_count(plan, unit, operator)
            left = first - places if operator.shared else first >> places
            for row in range(1, left):  # coefficients that no child of the unit reaches
                for k in range(size):
                    d_levels[last + row, k] = 0
            at, child = last, plan.children[unit + 1] - 1
            for place in range(places - 1, -1, -1):
                rows = left + 1 if operator.shared else 2 * left
                apart, found = 1 if operator.shared else left, is_at(plan, unit, operator, place, child)
                at -= rows
                for row in range(rows):
                    for k in range(size):
                        d_levels[at + row, k] = 0
                for row in range(left):
                    d_target, d_source = d_levels[at + rows + row], d_levels[at + row]
                    for k in range(size):
                        d_source[k] += d_target[k]
                    if found:
                        state, d_state = (
                            child_input(weights, plan, states, child),
                            child_input(weights, plan, gradients, child),
                        )
                        more, d_more = levels[at + row + apart], d_levels[at + row + apart]
                        for k in range(size):
                            d_more[k] += d_target[k] * state[k]
                            d_state[k] += d_target[k] * more[k]
                child -= found
                left = rows
            begin = operator.core + gate * operator.core_size
            for row in range(first):
                for k in range(size):
                    gradients.values[begin + row * size + k] += d_levels[row, k]
        if operator.label_size > 0:
            add_label(weights, delta[unit], gradients.label[plan.label_of[unit]])


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
    operator, size = weights.tables.operators[plan.groups[group].operator], weights.tables.state_size
    products = matrix(states.scratch, 0, len(states.scratch) // size, size)
    for unit in range(start, stop):
        for gate in range(weights.tables.cells[0].gates):
            count = partial_products(weights, plan, states, products, unit, operator, gate)
            bias, line = operator.core + gate * operator.core_size + size, out[unit, gate * size : (gate + 1) * size]
            for k in range(size):
                line[k] = products[count, k] + weights.values[bias + k]
        if operator.label_size > 0:
            add_label(weights, states.label[plan.label_of[unit]], out[unit])


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
    operator, size = weights.tables.operators[plan.groups[group].operator], weights.tables.state_size
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
            add_label(weights, delta[unit], gradients.label[plan.label_of[unit]])
