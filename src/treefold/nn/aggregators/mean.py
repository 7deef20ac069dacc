"""The mean of the children, and what all normalised forms share."""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from treefold.kernels.compile import kernel
from treefold.kernels.fold import child_image, is_present, operator_of, present_children, width_of
from treefold.kernels.layout import FormKernel, GatePlaces
from treefold.kernels.records import Gradients, Matrix, Plan, States, Weights
from treefold.nn.aggregators.base import Aggregator, present, present_count
from treefold.nn.aggregators.sum import affine_backward, linear_tensor, take_linear, write_affine

# Axes:  N nodes of one level · L child slots · C state size · K output size · M label size


class Normalised(Aggregator):
    """What normalised forms share: weights for all slots, W x + b, and a result that any number of children leaves bounded.

    They count the children that are present. A zero state is the absent child, so a child whose state is all zero does not count.
    """

    any_arity: ClassVar[bool] = True
    always_shared: ClassVar[bool] = True
    has_free_output: ClassVar[bool] = True
    normalises: ClassVar[bool] = True
    has_rank: ClassVar[bool] = False
    matrices: ClassVar[tuple[str, ...]] = ("slot_weights",)
    """The names of the matrices (C, K) that children are multiplied by."""

    def build(self) -> None:
        """Make the matrices of the children (C, K), W (M, K) and b (K,)."""
        for name in self.matrices:
            setattr(self, name, nn.Parameter(torch.empty(self.state_size, self.out_size)))
        self.label_weights = nn.Parameter(torch.empty(self.label_size, self.out_size)) if self.label_size else None
        self.bias = nn.Parameter(torch.empty(self.out_size))

    def affine(self, label: Tensor | None) -> Tensor:  # (N, M) -> (N, K), or (K,) without a label
        """Return W x + b."""
        if self.label_weights is None or label is None:
            return self.bias
        return torch.addmm(self.bias, label, self.label_weights)

    def reset_balanced(self) -> None:
        """Draw all entries alike, scaled so that a node with one child has outputs of variance one; the bias zero.

        More children do not change the scale: siblings are alike in practice, and the mean of like children is as large as one.
        If they are independent, the outputs are smaller.
        """
        self.bias.zero_()
        matrices = [self.get_parameter(name) for name in self.matrices]
        inputs = matrices if self.label_weights is None else [*matrices, self.label_weights]
        for each in inputs:
            each.normal_()
        moment = torch.stack(list(matrices)).mean(0).square().sum(0)
        if self.label_weights is not None:
            moment += self.label_weights.square().sum(0)
        for each in inputs:
            each.div_(moment.sqrt())

    def kaiming_fans(self) -> dict[str, int]:
        """Return the input size of each matrix; the bias starts at zero."""
        return {**dict.fromkeys(self.matrices, self.state_size), "label_weights": self.label_size or 0, "bias": 0}

    def lay_out(self, places: GatePlaces) -> None:
        """The matrices of the children in the slots, side by side, W at the label, b in the core."""
        for number, name in enumerate(self.matrices):
            places.slots(name, column=number * self.out_size)
        places.label("label_weights")
        places.core("bias")


@final
class Mean(Normalised):
    r"""Mean of the children, each multiplied by the same matrix.

    .. math:: f(x, h_1, \dots, h_L) = W x + \frac1n \sum_j U h_j + b

    Here n is the number of children that are present, those whose state is not zero; without any, there is no such term. Always
    shared: any number of children is taken, in any order. C·K + M·K + K parameters. For n children the form is a sum with U / n,
    whose tensor is ``to_dense(n)``.

    >>> Mean(state_size=8, out_size=6, arity=3)(torch.zeros(5, 79, 8)).shape
    torch.Size([5, 6])
    """

    equation: ClassVar[str] = "f = W x + (1/n) Σ_j U h_j + b"
    slot_weights: nn.Parameter

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Multiply the mean of the children that are present."""
        shares = present(children) / present_count(children)  # (N, L)
        mean = torch.bmm(shares.unsqueeze(1), children).squeeze(1)  # (N, C)
        return torch.addmm(self.affine(label), mean, self.slot_weights)

    def dense(self, arity: int) -> Tensor:
        """Write out the sum of so many children, each with U / n."""
        return linear_tensor([self.slot_weights / arity] * arity, self.label_weights, self.bias)

    def decompose(self, tensor: Tensor) -> None:
        """Keep the entries that multiply one input at most: the nearest mean in the Frobenius norm."""
        self.slot_weights.copy_(take_linear(tensor, self.label_weights, self.bias).sum(0))

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count L·C for the mean, C·K for the children and M·K for the label."""
        arity = self.arity if arity is None else arity
        return arity * self.state_size + self.out_size * (self.state_size + (self.label_size or 0))

    def kernel(self) -> FormKernel:
        """Take the mean of the images of the children, and add that of the label."""
        size = self.out_size
        return FormKernel(mean_forward, mean_backward, images=size, label_images=size, core=size, can_be_part=True)


@kernel
def mean_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Add up the bias, the label's image and the mean of the children's, (G·C,)."""
    operator = operator_of(weights, plan, group)
    width = width_of(weights, operator)
    for unit in range(start, stop):
        line = out[unit]
        write_affine(weights, plan, states, unit, operator, line)
        share = weights.values.dtype.type(1 / present_children(weights, plan, states, unit))
        for child in range(plan.children[unit], plan.children[unit + 1]):
            image = child_image(plan, operator, child, states.projected)  # zero if the child is absent
            for k in range(width):
                line[k] += share * image[k]


@kernel
def mean_backward(
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
    """Give the gradient to the bias, and its share to the image of each child that is present."""
    operator = operator_of(weights, plan, group)
    width = width_of(weights, operator)
    for unit in range(start, stop):
        line = delta[unit]
        affine_backward(weights, plan, gradients, unit, operator, line)
        share = weights.values.dtype.type(1 / present_children(weights, plan, states, unit))
        for child in range(plan.children[unit], plan.children[unit + 1]):
            if is_present(weights, plan, states, child):
                image = child_image(plan, operator, child, gradients.projected)
                for k in range(width):
                    image[k] += share * line[k]
