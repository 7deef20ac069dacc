"""The weighted sum: every child, and the label, contributes on its own."""

from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from treefold.kernels.compile import inlined, kernel
from treefold.kernels.fold import child_image, label_image, operator_of, width_of
from treefold.kernels.layout import FormKernel, GatePlaces
from treefold.kernels.records import Gradients, Matrix, Plan, States, Vector, Weights
from treefold.nn.aggregators.base import Aggregator

# Axes:  N nodes of one level · L child slots · C state size · K output size · M label size


@final
class Sum(Aggregator):
    r"""Weighted sum of the children, the paper's :math:`f^+`: no terms in which inputs are multiplied together.

    .. math:: f(x, h_1, \dots, h_L) = W x + \sum_j U_j h_j + b

    K·M + L·C·K + K parameters: linear in L, quadratic in the state size. ``shared`` has one U for all slots and takes any
    number of children.

    >>> Sum(state_size=8, out_size=6, arity=3)(torch.zeros(5, 3, 8)).shape
    torch.Size([5, 6])
    """

    any_arity: ClassVar[bool] = True
    has_rank: ClassVar[bool] = False
    has_free_output: ClassVar[bool] = True
    equation: ClassVar[str] = "f = W x + Σ_j U_j h_j + b"

    def build(self) -> None:
        """Make U (L, C, K), or (C, K) if it is shared, W (M, K) and b (K,)."""
        slots = () if self.shared else (self.arity,)
        self.slot_weights = nn.Parameter(torch.empty(*slots, self.state_size, self.out_size))
        self.label_weights = nn.Parameter(torch.empty(self.label_size, self.out_size)) if self.label_size else None
        self.bias = nn.Parameter(torch.empty(self.out_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Add up what the label and each child contribute."""
        inputs = children.sum(1) if self.shared else children.flatten(1)  # (N, C) or (N, L·C)
        result = torch.addmm(self.bias, inputs, self.slot_weights.reshape(-1, self.out_size))
        if self.label_weights is not None and label is not None:
            result = torch.addmm(result, label, self.label_weights)
        return result

    def dense(self, arity: int) -> Tensor:
        """Write out the paper's T⁺: zero in every entry that would multiply two inputs."""
        slots = [self.slot_weights] * arity if self.shared else list(self.slot_weights)
        return linear_tensor(slots, self.label_weights, self.bias)

    def decompose(self, tensor: Tensor) -> None:
        """Keep the entries that multiply one input at most: the nearest sum in the Frobenius norm."""
        slots = take_linear(tensor, self.label_weights, self.bias)
        self.slot_weights.copy_(slots.mean(0) if self.shared else slots)

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count L·C·K for the slots, once C·K if they are shared, and M·K for the label."""
        return self.out_size * (self.slot_weights.numel() // self.out_size + (self.label_size or 0))

    def reset_balanced(self) -> None:
        """Give every input the same variance, scaled so that each output has variance one; the bias zero."""
        self.bias.zero_()
        self.slot_weights.normal_()
        moment = self.slot_weights.square().flatten(0, -2).sum(0) * (self.arity if self.shared else 1)
        if self.label_weights is not None:
            self.label_weights.normal_()
            moment += self.label_weights.square().sum(0)
            self.label_weights.div_(moment.sqrt())
        self.slot_weights.div_(moment.sqrt())

    def kaiming_fans(self) -> dict[str, int]:
        """Return the input size of each matrix; the bias starts at zero."""
        return {"slot_weights": self.state_size, "label_weights": self.label_size or 0, "bias": 0}

    def kernel(self) -> FormKernel:
        """Add up the images of the children and of the label."""
        return sum_kernel(self.out_size)

    def lay_out(self, places: GatePlaces) -> None:
        """U in the slots, W at the label, b in the core."""
        places.slots("slot_weights")
        places.label("label_weights")
        places.core("bias")


def linear_tensor(slots: Sequence[Tensor], label_weights: Tensor | None, bias: Tensor) -> Tensor:
    """Write out W x + Σ_j U_j h_j + b as a dense tensor: zero in every entry that would multiply two inputs."""
    matrices = [*([] if label_weights is None else [label_weights]), *slots]
    modes = [len(matrix) + 1 for matrix in matrices]
    tensor = bias.new_zeros(*modes, len(bias))
    tensor[tuple(size - 1 for size in modes)] = bias
    for mode, matrix in enumerate(matrices):
        tensor[_only(mode, modes)] = matrix
    return tensor


def take_linear(tensor: Tensor, label_weights: Tensor | None, bias: Tensor) -> Tensor:  # -> (L, C, K)
    """Copy W and b out of a dense tensor, and return the matrix of each slot: its entries that multiply one input at most."""
    modes = tensor.shape[:-1]
    linear = [tensor[_only(mode, modes)] for mode in range(len(modes))]
    bias.copy_(tensor[tuple(size - 1 for size in modes)])
    if label_weights is not None:
        label_weights.copy_(linear.pop(0))
    return torch.stack(linear)


def _only(mode: int, sizes: Sequence[int]) -> tuple[int | slice, ...]:
    """Index the entries that multiply the input of one mode and no other."""
    return tuple(slice(0, size - 1) if other == mode else size - 1 for other, size in enumerate(sizes))


def sum_kernel(size: int) -> FormKernel:
    """Return the kernel of a sum with so many outputs; leaves without children use it too."""
    return FormKernel(sum_forward, sum_backward, images=size, label_images=size, core=size, can_be_part=True)


@inlined
def write_affine(weights: Weights, plan: Plan, states: States, unit: int, operator: Any, line: Vector) -> None:
    """Write W x + b, (G·C,)."""
    width = width_of(weights, operator)
    bias = weights.values[operator.core : operator.core + width]
    for k in range(width):
        line[k] = bias[k]
    if operator.label_size > 0:
        image = label_image(plan, operator, unit, states.label)
        for k in range(width):
            line[k] += image[k]


@inlined
def affine_backward(weights: Weights, plan: Plan, gradients: Gradients, unit: int, operator: Any, line: Vector) -> None:
    """Give the gradient to b and to the label's image."""
    width = width_of(weights, operator)
    bias = gradients.values[operator.core : operator.core + width]
    for k in range(width):
        bias[k] += line[k]
    if operator.label_size > 0:
        image = label_image(plan, operator, unit, gradients.label)
        for k in range(width):
            image[k] += line[k]


@kernel
def sum_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Add up the bias and the images, (G·C,)."""
    operator = operator_of(weights, plan, group)
    width = width_of(weights, operator)
    for unit in range(start, stop):
        line = out[unit]
        write_affine(weights, plan, states, unit, operator, line)
        for t in range(plan.children[unit], plan.children[unit + 1]):
            image = child_image(plan, operator, t, states.projected)
            for k in range(width):
                line[k] += image[k]


@kernel
def sum_backward(
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
    """Give the gradient to the bias and to every image."""
    operator = operator_of(weights, plan, group)
    width = width_of(weights, operator)
    for unit in range(start, stop):
        line = delta[unit]
        affine_backward(weights, plan, gradients, unit, operator, line)
        for t in range(plan.children[unit], plan.children[unit + 1]):
            image = child_image(plan, operator, t, gradients.projected)
            for k in range(width):
                image[k] += line[k]
