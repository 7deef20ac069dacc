"""The positional mean: two matrices, mixed by the position of a child among its siblings."""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from treefold.kernels.compile import inlined, kernel
from treefold.kernels.fold import child_image, is_present, operator_of, present_children
from treefold.kernels.layout import FormKernel
from treefold.kernels.records import Gradients, Matrix, Plan, States, Weights
from treefold.nn.aggregators.base import present, present_count
from treefold.nn.aggregators.mean import Normalised
from treefold.nn.aggregators.sum import affine_backward, linear_tensor, take_linear, write_affine

# Axes:  N nodes of one level · L child slots · C state size · K output size · M label size


@final
class Positional(Normalised):
    r"""Mean of the children, weighted by relative position: one matrix for the first child, one for the last, mixed in between.

    .. math:: f(x, h_1, \dots, h_L) = W x + \frac1n \sum_j \big((1 - p_j) A h_j + p_j B h_j\big) + b

    Here n is the number of children that are present, those whose state is not zero, and :math:`p_j` goes in equal steps from 0
    at the first of them to 1 at the last; an only child has 1/2. Always shared: any number of children is taken, and their order
    matters, as in tree-based convolution (Mou et al. 2016). 2·C·K + M·K + K parameters. For n children the form is a sum, whose
    tensor is ``to_dense(n)``.

    >>> Positional(state_size=8, out_size=6, arity=3)(torch.zeros(5, 79, 8)).shape
    torch.Size([5, 6])
    """

    equation: ClassVar[str] = "f = W x + (1/n) Σ_j ((1 - p_j) A h_j + p_j B h_j) + b"
    matrices: ClassVar[tuple[str, ...]] = ("first_weights", "last_weights")
    first_weights: nn.Parameter
    last_weights: nn.Parameter

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Multiply two weighted means of the children that are present."""
        here, count = present(children), present_count(children)
        position = torch.where(count > 1, (here.cumsum(1) - 1) / (count - 1).clamp_min(1), 0.5)  # (N, L)
        shares = torch.stack([1 - position, position], 1) * (here / count).unsqueeze(1)  # (N, 2, L)
        first, last = torch.bmm(shares, children).unbind(1)  # (N, C) each
        result = torch.addmm(self.affine(label), first, self.first_weights)
        return torch.addmm(result, last, self.last_weights)

    def dense(self, arity: int) -> Tensor:
        """Write out the sum of so many children."""
        slots = [one * self.first_weights + other * self.last_weights for one, other in self._shares(arity)]
        return linear_tensor(slots, self.label_weights, self.bias)

    def decompose(self, tensor: Tensor) -> None:
        """Keep the entries that multiply one input at most, and mix them by least squares: the nearest in the Frobenius norm."""
        slots = take_linear(tensor, self.label_weights, self.bias)
        mixed = torch.tensor(self._shares(len(slots)), dtype=torch.float64)  # (L, 2)
        matrices = (torch.linalg.pinv(mixed) @ slots.double().flatten(1)).unflatten(1, slots.shape[1:])  # (2, C, K)
        self.first_weights.copy_(matrices[0])
        self.last_weights.copy_(matrices[1])

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count 2·L·C for the means, 2·C·K for the children and M·K for the label."""
        arity = self.arity if arity is None else arity
        return 2 * arity * self.state_size + self.out_size * (2 * self.state_size + (self.label_size or 0))

    def kernel(self) -> FormKernel:
        """Mix the two images of each child, and add that of the label."""
        size = self.out_size
        return FormKernel(
            positional_forward, positional_backward, images=2 * size, label_images=size, core=size, can_be_part=True
        )

    @staticmethod
    def _shares(count: int) -> list[tuple[float, float]]:
        """Return the weights of A and B for each of so many children."""
        positions = [rank / (count - 1) if count > 1 else 0.5 for rank in range(count)]
        return [((1 - position) / count, position / count) for position in positions]


# The images of a child are A h and B h, (2C,), for each gate.


@inlined
def position_of(rank: int, count: int) -> float:
    """Return the position of the child with this rank, counted from zero, among so many."""
    return rank / (count - 1) if count > 1 else 0.5


@kernel
def positional_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Add up the bias, the label's image and the mean of the children's, mixed by position, (G·C,)."""
    operator = operator_of(weights, plan, group)
    size, real = operator.out_size, weights.values.dtype.type
    for unit in range(start, stop):
        line = out[unit]
        write_affine(weights, plan, states, unit, operator, line)
        count, rank = present_children(weights, plan, states, unit), 0
        for child in range(plan.children[unit], plan.children[unit + 1]):
            if is_present(weights, plan, states, child):
                position = position_of(rank, count)
                first, last = real((1 - position) / count), real(position / count)
                rank += 1
                for gate in range(weights.tables.cells[0].gates):
                    image = child_image(plan, operator, child, states.projected)[2 * gate * size :]
                    for k in range(size):
                        line[gate * size + k] += first * image[k] + last * image[size + k]


@kernel
def positional_backward(
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
    """Give the gradient to the bias, and its shares to both images of each child that is present."""
    operator = operator_of(weights, plan, group)
    size, real = operator.out_size, weights.values.dtype.type
    for unit in range(start, stop):
        line = delta[unit]
        affine_backward(weights, plan, gradients, unit, operator, line)
        count, rank = present_children(weights, plan, states, unit), 0
        for child in range(plan.children[unit], plan.children[unit + 1]):
            if is_present(weights, plan, states, child):
                position = position_of(rank, count)
                first, last = real((1 - position) / count), real(position / count)
                rank += 1
                for gate in range(weights.tables.cells[0].gates):
                    image = child_image(plan, operator, child, gradients.projected)[2 * gate * size :]
                    for k in range(size):
                        image[k] += first * line[gate * size + k]
                        image[size + k] += last * line[gate * size + k]
