"""The canonical (CP) form: a sum of products, one factor for each input."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from treefold.kernels.affine import copy
from treefold.kernels.compile import inlined, kernel, matrix
from treefold.kernels.fold import image_of, is_at, place_count
from treefold.kernels.layout import FormKernel, GatePlaces
from treefold.kernels.records import Gradients, Groups, Ints, Matrix, Plan, States, Tables, Weights
from treefold.nn.aggregators.base import Aggregator, balance_output
from treefold.nn.math.decompositions import canonical_als, fit_tied, khatri_rao
from treefold.nn.math.functional import homogenise

# Axes:  N nodes of one level · L child slots · C state size · K output size · R rank · M label size


@final
class Canonical(Aggregator):
    r"""Canonical aggregation: the elementwise product of an affine map of every input, then a linear map.

    .. math:: f(x, h_1, \dots, h_L) = Q \left(W \bar x \circ U_1 \bar h_1 \circ \dots \circ U_L \bar h_L\right)

    L·(C+1)·R + R·K parameters (and (M+1)·R for a label), as many multiply-adds: linear in L and in the state size. ``shared``
    has one U for all slots, with a bias of one, :math:`1 + U h_j`: an absent child is the factor one, and any number of
    children is taken, in any order.

    >>> Canonical(state_size=8, out_size=6, arity=3, rank=4)(torch.zeros(5, 3, 8)).shape
    torch.Size([5, 6])
    """

    any_arity: ClassVar[bool] = True
    equation: ClassVar[str] = "f = Q (W x̄ ∘ U_1 h̄_1 ∘ … ∘ U_L h̄_L)"

    def build(self) -> None:
        """Make U (L, C+1, R), or (C, R) if it is shared and its bias is one, W (M+1, R) and Q (R, K)."""
        shape = (self.state_size, self.rank) if self.shared else (self.arity, self.state_size + 1, self.rank)
        self.slot_factors = nn.Parameter(torch.empty(shape))
        self.label_factor = nn.Parameter(torch.empty(self.label_size + 1, self.rank)) if self.label_size else None
        self.output = nn.Parameter(torch.empty(self.rank, self.out_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Multiply the factors of all inputs."""
        if self.shared:
            product = (children @ self.slot_factors + 1).prod(1)  # (N, R)
        else:
            bias, weights = self.slot_factors[:, -1:], self.slot_factors[:, :-1]
            product = torch.baddbmm(bias, children.transpose(0, 1), weights).prod(0)
        if self.label_factor is not None and label is not None:
            product = product * (homogenise(label) @ self.label_factor)
        return product @ self.output

    def dense(self, arity: int) -> Tensor:
        """Sum the outer products of the factors."""
        return self.basis(arity) @ self.output

    def basis(self, arity: int) -> Tensor:
        """Return the tensor before the output matrix, (M+1,) (C+1, …, C+1, R)."""
        factors = self._slot_matrices(arity)
        if self.label_factor is not None:
            factors.insert(0, self.label_factor)
        return khatri_rao(factors).reshape(*[len(factor) for factor in factors], self.rank)

    def decompose(self, tensor: Tensor) -> None:
        """Fit by alternating least squares; the shared form, whose factors are tied, by L-BFGS on the squared error."""
        if self.shared:
            fit_tied(self, tensor)
            return
        *factors, output = canonical_als(tensor, self.rank)
        if self.label_factor is not None:
            self.label_factor.copy_(factors.pop(0))
        self.slot_factors.copy_(torch.stack(factors))
        self.output.copy_(output.T)

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count the factors of ``arity`` children, their products and the linear map."""
        arity = self.arity if arity is None else arity
        label = 0 if self.label_size is None else self.label_size + 1
        return self.rank * (arity * self.state_size + arity - 1 + label + self.out_size)

    def reset_balanced(self) -> None:
        """Start every factor near one, so that the product of many neither vanishes nor explodes."""
        self.slot_factors.normal_(std=(self.mode_count * self.state_size) ** -0.5)
        if not self.shared:
            self.slot_factors[:, -1] = 1
        factors = self._slot_matrices(self.arity)
        if self.label_factor is not None and self.label_size is not None:
            self.label_factor.normal_(std=(self.mode_count * self.label_size) ** -0.5)
            self.label_factor[-1] = 1
            factors.append(self.label_factor)
        # The inputs are independent, so the moments of the product are the products of the moments.
        mean = torch.stack([factor[-1] for factor in factors]).prod(0)
        moment = torch.stack([factor.T @ factor for factor in factors]).prod(0)
        balance_output(self.output, mean, moment)

    def kaiming_fans(self) -> dict[str, int]:
        """Return the input size of each matrix, the homogeneous coordinate counted if it is a parameter."""
        return {
            "slot_factors": self.state_size + (not self.shared),
            "label_factor": (self.label_size or 0) + 1,
            "output": self.rank,
        }

    def kernel(self) -> FormKernel:
        """Multiply the images of the children and of the label."""
        return FormKernel(
            canonical_forward,
            canonical_backward,
            plan=canonical_plan,
            images=self.rank,
            label_images=self.rank,
            has_output=True,
        )

    def lay_out(self, places: GatePlaces) -> None:
        """U in the slots, W at the label, Q in the output; the bias of a shared slot is one."""
        places.slots("slot_factors")
        places.label("label_factor")
        places.output("output")
        if self.shared:
            places.slot_bias_is_one()

    def _slot_matrices(self, arity: int) -> list[Tensor]:
        """Return the factor of each slot with its homogeneous row, (C+1, R)."""
        if not self.shared:
            return list(self.slot_factors)
        return [torch.cat([self.slot_factors, self.slot_factors.new_ones(1, self.rank)])] * arity


@kernel
def canonical_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """Reserve room for the products of the first factors, and for one line more."""
    group = groups[index]
    operator = tables.operators[group.operator]
    group.scratch = (max(longest, operator.arity) + 3) * tables.cells[0].gates * operator.rank


@inlined
def first_products(weights: Weights, plan: Plan, states: States, products: Matrix, unit: int, operator: Any) -> int:
    """Write the products of the first 0, 1, 2 … factors into ``products`` (factors+1, G·R); return the number of factors."""
    width, factors = products.shape[1], 0
    for r in range(width):
        products[0, r] = 1
    if operator.label_size > 0:
        copy(states.label[plan.label_of[unit], :width], products[1])
        factors = 1
    child = plan.children[unit]
    for place in range(place_count(plan, unit, operator)):
        found = child if is_at(plan, unit, operator, place, child) else -1
        image = image_of(weights, plan, operator, place, found, states.projected, weights.values)
        before, after = products[factors], products[factors + 1]
        for r in range(width):
            after[r] = before[r] * image[r]
        child += found >= 0
        factors += 1
    return factors


@kernel
def canonical_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Multiply the images, (G·R,)."""
    operator = weights.tables.operators[plan.groups[group].operator]
    width = weights.tables.cells[0].gates * operator.rank
    products = matrix(states.scratch, 0, len(states.scratch) // width, width)
    for unit in range(start, stop):
        factors = first_products(weights, plan, states, products, unit, operator)
        copy(products[factors], out[unit])


@kernel
def canonical_backward(
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
    """Give each image the gradient times the product of the others: those before it are stored, those after it collected."""
    operator = weights.tables.operators[plan.groups[group].operator]
    width = weights.tables.cells[0].gates * operator.rank
    products = matrix(states.scratch, 0, len(states.scratch) // width, width)
    after = products[len(products) - 1]
    for unit in range(start, stop):
        factors = first_products(weights, plan, states, products, unit, operator)
        copy(delta[unit, :width], after)
        child = plan.children[unit + 1] - 1
        for place in range(place_count(plan, unit, operator) - 1, -1, -1):
            found = child if is_at(plan, unit, operator, place, child) else -1
            image = image_of(weights, plan, operator, place, found, states.projected, weights.values)
            d_image = image_of(weights, plan, operator, place, found, gradients.projected, gradients.values)
            factors -= 1
            before = products[factors]
            for r in range(width):
                d_image[r] += after[r] * before[r]
                after[r] *= image[r]
            child -= found >= 0
        if operator.label_size > 0:
            d_image = gradients.label[plan.label_of[unit]]
            for r in range(width):
                d_image[r] += after[r]
