"""The maximum of the children's images, entry by entry."""

from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from treefold.kernels.affine import copy
from treefold.kernels.compile import inlined, kernel
from treefold.kernels.fold import child_image, is_present, operator_of, width_of
from treefold.kernels.layout import FormKernel
from treefold.kernels.records import Gradients, Groups, Ints, Matrix, Plan, States, Tables, Vector, Weights
from treefold.nn.aggregators.base import no_tensor, present
from treefold.nn.aggregators.mean import Normalised
from treefold.nn.aggregators.sum import affine_backward, write_affine

# Axes:  N nodes of one level · L child slots · C state size · K output size · M label size


@final
class Max(Normalised):
    r"""Maximum of the children's images, entry by entry.

    .. math:: f(x, h_1, \dots, h_L) = W x + \max_j U h_j + b

    The maximum is over the children that are present, those whose state is not zero; without any, there is no such term. Always
    shared: any number of children is taken, in any order. C·K + M·K + K parameters. It is not multi-affine, so it has no dense
    tensor.

    >>> Max(state_size=8, out_size=6, arity=3)(torch.zeros(5, 79, 8)).shape
    torch.Size([5, 6])
    """

    multi_affine: ClassVar[bool] = False
    equation: ClassVar[str] = "f = W x + max_j U h_j + b"
    slot_weights: nn.Parameter

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Multiply all children, and keep the greatest of those that are present."""
        result = self.affine(label).expand(len(children), -1)
        if not children.shape[1]:
            return result
        here = present(children)
        images = (children @ self.slot_weights).masked_fill(~here.unsqueeze(2), -torch.inf)  # (N, L, K)
        greatest = images.max(1).values  # of equal ones, the first has the gradient
        return result + torch.where(here.any(1, keepdim=True), greatest, 0)

    def dense(self, arity: int) -> Tensor:
        """Refuse: there is no tensor."""
        raise no_tensor("Max")

    def decompose(self, tensor: Tensor) -> None:
        """Refuse: there is no tensor."""
        raise no_tensor("Max")

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count L·C·K for the children and M·K for the label."""
        arity = self.arity if arity is None else arity
        return self.out_size * (arity * self.state_size + (self.label_size or 0))

    def kernel(self) -> FormKernel:
        """Take the maximum of the images of the children, and add that of the label."""
        size = self.out_size
        return FormKernel(
            max_forward, max_backward, plan=max_plan, images=size, label_images=size, core=size, can_be_part=True
        )


@kernel
def max_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """Reserve room for the greatest images."""
    groups[index].scratch = tables.cells[0].gates * tables.operators[groups[index].operator].out_size


@inlined
def write_greatest(weights: Weights, plan: Plan, states: States, unit: int, operator: Any, greatest: Vector) -> None:
    """Write the greatest image of the children that are present, zero without any."""
    found = False
    for child in range(plan.children[unit], plan.children[unit + 1]):
        if is_present(weights, plan, states, child):
            image = child_image(plan, operator, child, states.projected)
            if found:
                for k in range(len(greatest)):
                    if image[k] > greatest[k] or image[k] != image[k]:  # what is not a number stays one
                        greatest[k] = image[k]
            else:
                copy(image[: len(greatest)], greatest)
            found = True
    if not found:
        for k in range(len(greatest)):
            greatest[k] = 0


@kernel
def max_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Add up the bias, the label's image and the greatest of the children's, (G·C,)."""
    operator = operator_of(weights, plan, group)
    greatest = states.scratch[: width_of(weights, operator)]
    for unit in range(start, stop):
        line = out[unit]
        write_affine(weights, plan, states, unit, operator, line)
        write_greatest(weights, plan, states, unit, operator, greatest)
        for k in range(len(greatest)):
            line[k] += greatest[k]


@kernel
def max_backward(
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
    """Give the gradient to the bias, and each entry to the first child that has the greatest."""
    operator, taken = operator_of(weights, plan, group), weights.values.dtype.type(np.inf)
    greatest = states.scratch[: width_of(weights, operator)]
    for unit in range(start, stop):
        line = delta[unit]
        affine_backward(weights, plan, gradients, unit, operator, line)
        write_greatest(weights, plan, states, unit, operator, greatest)
        for child in range(plan.children[unit], plan.children[unit + 1]):
            if is_present(weights, plan, states, child):
                image = child_image(plan, operator, child, states.projected)
                d_image = child_image(plan, operator, child, gradients.projected)
                for k in range(len(greatest)):
                    if image[k] == greatest[k]:
                        d_image[k] += line[k]
                        greatest[k] = taken
