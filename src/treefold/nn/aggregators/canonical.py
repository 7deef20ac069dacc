"""The canonical (CP) form: a sum of products, one factor for each input, over the real or the complex numbers."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, require_choice
from treefold.kernels.affine import copy
from treefold.kernels.compile import inlined, kernel, matrix
from treefold.kernels.fold import image_of, is_at, label_image, operator_of, place_count
from treefold.kernels.layout import FormKernel, GatePlaces
from treefold.kernels.records import Gradients, Groups, Ints, Matrix, Plan, States, Tables, Vector, Weights
from treefold.nn.aggregators.base import Aggregator, balance_output
from treefold.nn.math.decompositions import canonical_als, fit_tied, khatri_rao
from treefold.nn.math.functional import homogenise

# Axes:  N nodes of one level · L child slots · C state size · K output size · R rank · M label size
#        P = R, or 2R over the complex numbers: all real parts, then all imaginary ones
_BOUNDS: Final = {"real": "unit", "complex": "disc"}


class Canonical(Aggregator):
    r"""Canonical aggregation: the elementwise product of an affine map of every input, then a linear map.

    .. math:: f(x, h_1, \dots, h_L) = Q \left(W \bar x \circ U_1 \bar h_1 \circ \dots \circ U_L \bar h_L\right)

    L·(C+1)·R + R·K parameters (and (M+1)·R for a label), as many multiply-adds: linear in L and in the state size. ``shared``
    has one U for all slots, with a bias of one, :math:`1 + U h_j`: an absent child is the factor one, and any number of
    children is taken, in any order.

    ``field="complex"`` takes complex U, W and Q, and the real part of the result: twice the parameters, four times the
    multiplications of factors. It is a real multi-affine map of the states. Products of complex numbers turn, so that a sum
    modulo m needs one factor.

    ``bound`` keeps every factor z in a set that products do not leave, for trees of any size: ``"disc"``, ``z / max(1, |z|)``,
    over the complex numbers, and ``"unit"``, z clamped to [0, 1], over the real ones. The map is multi-affine, with `to_dense` as
    its tensor, for inputs whose factors are all within the bound, and for no others.

    >>> Canonical(state_size=8, out_size=6, arity=3, rank=4)(torch.zeros(5, 3, 8)).shape
    torch.Size([5, 6])
    >>> Canonical(state_size=8, arity=3, rank=4, shared=True, field="complex", bound="disc").parameter_count
    128
    """

    any_arity: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Any]] = {"field": "real", "bound": None}
    has_free_output: ClassVar[bool] = True
    equation: ClassVar[str] = "f = Q (W x̄ ∘ U_1 h̄_1 ∘ … ∘ U_L h̄_L)"
    field: Literal["real", "complex"]
    bound: Literal["unit", "disc"] | None

    def build(self) -> None:
        """Make U (L, C+1, P), or (C, P) if it is shared and its bias is one, W (M+1, P) and Q (P, K)."""
        name = type(self).__name__
        require_choice(name, "field", self.field, _BOUNDS)
        if self.bound not in (None, _BOUNDS[self.field]):
            raise ConfigurationError(
                f"{name} expects bound to be {_BOUNDS[self.field]!r} or None over the {self.field} numbers, got {self.bound!r}; "
                f"'disc' is for field='complex', 'unit' for field='real'."
            )
        width = self._width
        shape = (self.state_size, width) if self.shared else (self.arity, self.state_size + 1, width)
        self.slot_factors = nn.Parameter(torch.empty(shape))
        self.label_factor = nn.Parameter(torch.empty(self.label_size + 1, width)) if self.label_size else None
        self.output = nn.Parameter(torch.empty(width, self.out_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Multiply the factors of all inputs."""
        if self.shared:
            factors = children @ self.slot_factors + self._one()  # (N, L, P)
        else:
            bias, weights = self.slot_factors[:, -1:], self.slot_factors[:, :-1]
            factors = torch.baddbmm(bias, children.transpose(0, 1), weights).transpose(0, 1)
        product = self._numbers(factors).prod(1)  # (N, R)
        if self.label_factor is not None and label is not None:
            product = product * self._numbers(homogenise(label) @ self.label_factor)
        return self._parts(product) @ self.output

    def dense(self, arity: int) -> Tensor:
        """Sum the outer products of the factors."""
        return self.basis(arity) @ self.output

    def basis(self, arity: int) -> Tensor:
        """Return the tensor before the output matrix, (M+1,) (C+1, …, C+1, P)."""
        factors = self._slot_matrices(arity)
        if self.label_factor is not None:
            factors.insert(0, self._unbounded(self.label_factor))
        return self._parts(khatri_rao(factors)).reshape(*[len(factor) for factor in factors], self._width)

    def decompose(self, tensor: Tensor) -> None:
        """Fit by alternating least squares; tied and complex factors by L-BFGS on the squared error."""
        if self.shared or self.field == "complex":
            fit_tied(self, tensor)
            return
        *factors, output = canonical_als(tensor, self.rank)
        if self.label_factor is not None:
            self.label_factor.copy_(factors.pop(0))
        self.slot_factors.copy_(torch.stack(factors))
        self.output.copy_(output.T)

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count the factors of ``arity`` children, their products and the linear map; a complex product is four real ones."""
        arity = self.arity if arity is None else arity
        label = 0 if self.label_size is None else self.label_size + 1
        products = (arity - 1 + (label > 0)) * self.rank * (4 if self.field == "complex" else 1)
        return products + self._width * (arity * self.state_size + max(label - 1, 0) + self.out_size)

    def reset_balanced(self) -> None:
        """Start every factor near one, so that the product of many neither vanishes nor explodes."""
        self.slot_factors.normal_(std=(self.mode_count * self.state_size) ** -0.5)
        if not self.shared:
            self.slot_factors[:, -1] = self._one()
        factors = self._slot_matrices(self.arity)
        if self.label_factor is not None and self.label_size is not None:
            self.label_factor.normal_(std=(self.mode_count * self.label_size) ** -0.5)
            self.label_factor[-1] = self._one()
            factors.append(self._unbounded(self.label_factor))
        # The inputs are independent, so the moments of the product are the products of the moments.
        mean = torch.stack([factor[-1] for factor in factors]).prod(0)
        moment = torch.stack([factor.T @ factor for factor in factors]).prod(0)  # of z z'
        if self.field == "complex":
            other = torch.stack([factor.T @ factor.conj() for factor in factors]).prod(
                0
            )  # of z times the conjugate of z'
            mixed = (moment.imag - other.imag) / 2  # of the real part of z and the imaginary one of z'
            top = torch.cat([(other.real + moment.real) / 2, mixed], 1)
            moment = torch.cat([top, torch.cat([mixed.T, (other.real - moment.real) / 2], 1)])
        balance_output(self.output, self._parts(mean), moment)

    def kaiming_fans(self) -> dict[str, int]:
        """Return the input size of each matrix, the homogeneous coordinate counted if it is a parameter."""
        return {
            "slot_factors": self.state_size + (not self.shared),
            "label_factor": (self.label_size or 0) + 1,
            "output": self._width,
        }

    def kernel(self) -> FormKernel:
        """Multiply the images of the children and of the label."""
        functions = (complex_forward, complex_backward) if self.field == "complex" else (real_forward, real_backward)
        return FormKernel(
            *functions,
            plan=canonical_plan,
            images=self._width,
            label_images=self._width,
            rank=self._width,
            has_output=True,
            bound=int(self.bound is not None),
            can_be_part=True,
        )

    def lay_out(self, places: GatePlaces) -> None:
        """U in the slots, W at the label, Q in the output; the bias of a shared slot is one."""
        places.slots("slot_factors")
        places.label("label_factor")
        places.output("output")
        if self.shared:
            places.slot_bias_is_one(self.rank)

    @property
    def _width(self) -> int:
        return self.rank * (2 if self.field == "complex" else 1)

    def _one(self) -> Tensor:
        """Return the number one R times, (P,)."""
        one = torch.zeros(self._width, dtype=self.output.dtype, device=self.output.device)
        one[: self.rank] = 1
        return one

    def _unbounded(self, parts: Tensor) -> Tensor:  # (…, P) -> (…, R)
        """Return numbers of the field."""
        return torch.complex(*parts.chunk(2, -1)) if self.field == "complex" else parts

    def _numbers(self, parts: Tensor) -> Tensor:  # (…, P) -> (…, R)
        """Return numbers of the field within the bound."""
        if self.bound == "unit":
            return parts.clamp(0, 1)
        if self.bound == "disc":
            real, imaginary = parts.chunk(2, -1)
            square = real.square() + imaginary.square()
            scale = torch.where(square > 1, square, 1).rsqrt()  # on the circle, the gradient is that of the inside
            parts = torch.cat([real * scale, imaginary * scale], -1)
        return self._unbounded(parts)

    def _parts(self, numbers: Tensor) -> Tensor:  # (…, R) -> (…, P)
        """Return the real parts, followed by the imaginary parts if there are any."""
        return torch.cat([numbers.real, numbers.imag], -1) if numbers.is_complex() else numbers

    def _slot_matrices(self, arity: int) -> list[Tensor]:
        """Return the factor of each slot with its homogeneous row, (C+1, R)."""
        if not self.shared:
            return [self._unbounded(factor) for factor in self.slot_factors]
        return [self._unbounded(torch.cat([self.slot_factors, self._one().unsqueeze(0)]))] * arity


@final
class Complex(Canonical):
    """The canonical form over the complex numbers, `Canonical` with ``field="complex"``, under a name of its own.

    >>> Complex(state_size=8, arity=3, rank=4, shared=True).field
    'complex'
    """

    options: ClassVar[Mapping[str, Any]] = {"field": "complex", "bound": None}
    equation: ClassVar[str] = "f = Re Q (W x̄ ∘ U_1 h̄_1 ∘ … ∘ U_L h̄_L)"


@kernel
def canonical_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """Reserve room for the products of the first factors, and for three lines more."""
    group = groups[index]
    operator = tables.operators[group.operator]
    group.scratch = (max(longest, operator.arity) + 5) * tables.cells[0].gates * operator.rank


@inlined
def room_for_products(weights: Weights, states: States, operator: Any) -> Matrix:
    """Return the working space as lines of G·P numbers."""
    width = weights.tables.cells[0].gates * operator.rank
    lines: Matrix = matrix(states.scratch, 0, len(states.scratch) // width, width)
    return lines


@inlined
def write_unit(image: Vector, operator: Any, factor: Vector) -> None:
    """Write real factors: the image, within [0, 1] if it is bounded."""
    zero, one = image.dtype.type(0), image.dtype.type(1)
    for r in range(len(factor)):
        value = image[r]
        if operator.bound:
            value = one if value > one else value
            value = zero if value < zero else value
        factor[r] = value


@inlined
def write_disc(image: Vector, operator: Any, gates: int, factor: Vector) -> None:
    """Write complex factors: the image, within the unit disc if it is bounded."""
    rank, one = operator.rank // 2, image.dtype.type(1)
    if operator.bound == 0:
        copy(image[: len(factor)], factor)
        return
    for gate in range(gates):
        a, b = image[2 * gate * rank :], image[(2 * gate + 1) * rank :]
        x, y = factor[2 * gate * rank :], factor[(2 * gate + 1) * rank :]
        for r in range(rank):
            square = a[r] * a[r] + b[r] * b[r]
            scale = one / np.sqrt(square if square > one else one)
            x[r], y[r] = a[r] * scale, b[r] * scale


@kernel
def real_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Multiply the factors, (G·R,)."""
    operator = operator_of(weights, plan, group)
    products = room_for_products(weights, states, operator)
    width, factor = products.shape[1], products[len(products) - 1]
    for unit in range(start, stop):
        product, child = out[unit, operator.inner :], plan.children[unit]
        for r in range(width):
            product[r] = 1
        if operator.label_size > 0:
            write_unit(label_image(plan, operator, unit, states.label), operator, product[:width])
        for place in range(place_count(plan, unit, operator)):
            found = child if is_at(plan, unit, operator, place, child) else -1
            write_unit(
                image_of(weights, plan, operator, place, found, states.projected, weights.values), operator, factor
            )
            for r in range(width):
                product[r] *= factor[r]
            child += found >= 0


@kernel
def real_backward(
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
    operator = operator_of(weights, plan, group)
    products = room_for_products(weights, states, operator)
    width, zero, one = products.shape[1], weights.values.dtype.type(0), weights.values.dtype.type(1)
    factor, after = products[len(products) - 1], products[len(products) - 2]
    for unit in range(start, stop):
        child, factors = plan.children[unit], 0
        for r in range(width):
            products[0, r] = 1
        if operator.label_size > 0:
            write_unit(label_image(plan, operator, unit, states.label), operator, products[0])
        for place in range(place_count(plan, unit, operator)):
            found = child if is_at(plan, unit, operator, place, child) else -1
            write_unit(
                image_of(weights, plan, operator, place, found, states.projected, weights.values), operator, factor
            )
            for r in range(width):
                products[factors + 1, r] = products[factors, r] * factor[r]
            child += found >= 0
            factors += 1
        copy(delta[unit, operator.inner : operator.inner + width], after)
        child = plan.children[unit + 1] - 1
        for place in range(place_count(plan, unit, operator) - 1, -1, -1):
            found = child if is_at(plan, unit, operator, place, child) else -1
            image = image_of(weights, plan, operator, place, found, states.projected, weights.values)
            d_image = image_of(weights, plan, operator, place, found, gradients.projected, gradients.values)
            write_unit(image, operator, factor)
            factors -= 1
            before = products[factors]
            for r in range(width):
                if operator.bound == 0 or zero <= image[r] <= one:
                    d_image[r] += after[r] * before[r]
                after[r] *= factor[r]
            child -= found >= 0
        if operator.label_size > 0:
            image, d_image = (
                label_image(plan, operator, unit, states.label),
                label_image(plan, operator, unit, gradients.label),
            )
            for r in range(width):
                if operator.bound == 0 or zero <= image[r] <= one:
                    d_image[r] += after[r]


@inlined
def multiply(one: Vector, other: Vector, rank: int, gates: int, sign: int, result: Vector) -> None:
    """Write the products of complex numbers; with sign -1, those with the conjugates of the others."""
    turn = one.dtype.type(sign)
    for gate in range(gates):
        start, half = 2 * gate * rank, (2 * gate + 1) * rank
        a, b, c, d, x, y = one[start:], one[half:], other[start:], other[half:], result[start:], result[half:]
        for r in range(rank):
            real = a[r] * c[r] - turn * b[r] * d[r]
            y[r] = a[r] * turn * d[r] + b[r] * c[r]
            x[r] = real


@inlined
def add_disc_gradient(image: Vector, d_factor: Vector, operator: Any, gates: int, d_image: Vector) -> None:
    """Add the gradient of an image for that of its factors, through the bound."""
    rank, one = operator.rank // 2, image.dtype.type(1)
    for gate in range(gates):
        start, half = 2 * gate * rank, (2 * gate + 1) * rank
        a, b, x, y, u, v = (
            image[start:],
            image[half:],
            d_factor[start:],
            d_factor[half:],
            d_image[start:],
            d_image[half:],
        )
        for r in range(rank):
            square = a[r] * a[r] + b[r] * b[r]
            if operator.bound and square > one:  # what points outwards has no effect
                scale = one / np.sqrt(square)
                outwards = (a[r] * x[r] + b[r] * y[r]) / square
                u[r] += scale * (x[r] - outwards * a[r])
                v[r] += scale * (y[r] - outwards * b[r])
            else:
                u[r] += x[r]
                v[r] += y[r]


@kernel
def complex_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Multiply the factors, (G·2R,)."""
    operator, gates = operator_of(weights, plan, group), weights.tables.cells[0].gates
    products, rank = room_for_products(weights, states, operator), operator.rank // 2
    width, factor = products.shape[1], products[len(products) - 1]
    for unit in range(start, stop):
        product, child = out[unit, operator.inner : operator.inner + width], plan.children[unit]
        first_factor(plan, states, operator, unit, gates, product)
        for place in range(place_count(plan, unit, operator)):
            found = child if is_at(plan, unit, operator, place, child) else -1
            image = image_of(weights, plan, operator, place, found, states.projected, weights.values)
            write_disc(image, operator, gates, factor)
            multiply(product, factor, rank, gates, 1, product)
            child += found >= 0


@inlined
def first_factor(plan: Plan, states: States, operator: Any, unit: int, gates: int, product: Vector) -> None:
    """Write the factor of the label, or one."""
    rank = operator.rank // 2
    for r in range(len(product)):
        product[r] = 1 if r % operator.rank < rank else 0
    if operator.label_size > 0:
        write_disc(label_image(plan, operator, unit, states.label), operator, gates, product)


@kernel
def complex_backward(
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
    """Give each image the gradient times the conjugate of the product of the others, as `real_backward` does."""
    operator, gates = operator_of(weights, plan, group), weights.tables.cells[0].gates
    products, rank = room_for_products(weights, states, operator), operator.rank // 2
    width, last = products.shape[1], len(products) - 1
    factor, after, d_factor = products[last], products[last - 1], products[last - 2]
    for unit in range(start, stop):
        child, factors = plan.children[unit], 0
        first_factor(plan, states, operator, unit, gates, products[0])
        for place in range(place_count(plan, unit, operator)):
            found = child if is_at(plan, unit, operator, place, child) else -1
            image = image_of(weights, plan, operator, place, found, states.projected, weights.values)
            write_disc(image, operator, gates, factor)
            multiply(products[factors], factor, rank, gates, 1, products[factors + 1])
            child += found >= 0
            factors += 1
        copy(delta[unit, operator.inner : operator.inner + width], after)
        child = plan.children[unit + 1] - 1
        for place in range(place_count(plan, unit, operator) - 1, -1, -1):
            found = child if is_at(plan, unit, operator, place, child) else -1
            image = image_of(weights, plan, operator, place, found, states.projected, weights.values)
            d_image = image_of(weights, plan, operator, place, found, gradients.projected, gradients.values)
            factors -= 1
            multiply(after, products[factors], rank, gates, -1, d_factor)
            add_disc_gradient(image, d_factor, operator, gates, d_image)
            write_disc(image, operator, gates, factor)
            multiply(after, factor, rank, gates, -1, after)
            child -= found >= 0
        if operator.label_size > 0:
            image, d_image = (
                label_image(plan, operator, unit, states.label),
                label_image(plan, operator, unit, gradients.label),
            )
            add_disc_gradient(image, after, operator, gates, d_image)
