"""Squashed sums: features that count the children, and tell which side is the larger."""

from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor, nn

from treefold.kernels.affine import tanh
from treefold.kernels.compile import inlined, kernel
from treefold.kernels.fold import child_image, is_present, label_image, operator_of
from treefold.kernels.layout import FormKernel, GatePlaces
from treefold.kernels.records import Gradients, Groups, Ints, Matrix, Plan, States, Tables, Vector, Weights
from treefold.nn.aggregators.base import Aggregator, balance_output, no_tensor, present

# Axes:  N nodes of one level · L child slots · C state size · K output size · R rank · M label size
_SAMPLE: Final = 2000


@final
class Squashed(Aggregator):
    r"""Squashed sums of what each child votes for.

    .. math:: f(x, h_1, \dots, h_L) = Q \tanh\Big(W x + g \circ \sum_j \mathrm{clamp}(V \bar h_j, -1, 1) + b\Big)

    A vote is between -1 and 1, so that the sign of the sum says what most children are, for any number of them: a median, or a
    majority. It is not multi-affine, so it has no tensor. Always shared. (C+1)·R + 2·R + R·K parameters (and M·R for a label).

    >>> Squashed(state_size=8, out_size=6, arity=3, rank=4)(torch.zeros(5, 79, 8)).shape
    torch.Size([5, 6])
    """

    any_arity: ClassVar[bool] = True
    always_shared: ClassVar[bool] = True
    multi_affine: ClassVar[bool] = False
    has_free_output: ClassVar[bool] = True
    equation: ClassVar[str] = "f = Q tanh(W x + g ∘ Σ_j clamp(V h̄_j, -1, 1) + b)"

    def build(self) -> None:
        """Make V (C+1, R), g and b (R,), W (M, R) and Q (R, K)."""
        self.votes = nn.Parameter(torch.empty(self.state_size + 1, self.rank))
        self.gain = nn.Parameter(torch.empty(self.rank))
        self.bias = nn.Parameter(torch.empty(self.rank))
        self.label_weights = nn.Parameter(torch.empty(self.label_size, self.rank)) if self.label_size else None
        self.output = nn.Parameter(torch.empty(self.rank, self.out_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Add up the votes of the children that are present."""
        return self._features(children, label) @ self.output

    def _features(self, children: Tensor, label: Tensor | None) -> Tensor:  # -> (N, R)
        votes = (children @ self.votes[:-1] + self.votes[-1]).clamp(-1, 1) * present(children).unsqueeze(2)
        inner = self.gain * votes.sum(1) + self.bias
        if self.label_weights is not None and label is not None:
            inner = torch.addmm(inner, label, self.label_weights)
        return inner.tanh()

    def dense(self, arity: int) -> Tensor:
        """Refuse: there is no tensor."""
        raise no_tensor("Squashed")

    def decompose(self, tensor: Tensor) -> None:
        """Refuse: there is no tensor."""
        raise no_tensor("Squashed")

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count the votes of ``arity`` children, the gain, the label and the linear map."""
        arity = self.arity if arity is None else arity
        return self.rank * (arity * self.state_size + 1 + (self.label_size or 0) + self.out_size)

    def reset_balanced(self) -> None:
        """Draw votes that are rarely clamped and thresholds between them; a sample of inputs gives the moments for the output."""
        self.votes[:-1].normal_(std=self.state_size**-0.5)
        self.votes[-1].normal_(std=0.5)
        self.gain.fill_(1)
        self.bias.normal_()
        if self.label_weights is not None and self.label_size is not None:
            self.label_weights.normal_(std=self.label_size**-0.5)
        like = self.output
        children = torch.randn(_SAMPLE, self.arity, self.state_size).to(like)
        label = None if self.label_size is None else torch.randn(_SAMPLE, self.label_size).to(like)
        features = self._features(children, label)
        balance_output(self.output, features.mean(0), features.T @ features / _SAMPLE)

    def kaiming_fans(self) -> dict[str, int]:
        """Return the input size of each matrix; the gain has one term, the bias starts at zero."""
        return {
            "votes": self.state_size + 1,
            "gain": 1,
            "bias": 0,
            "label_weights": self.label_size or 0,
            "output": self.rank,
        }

    def kernel(self) -> FormKernel:
        """Add up the images of the children within bounds, and that of the label."""
        return FormKernel(
            squashed_forward,
            squashed_backward,
            plan=squashed_plan,
            images=self.rank,
            label_images=self.rank,
            core=2 * self.rank,
            has_output=True,
            can_be_part=True,
        )

    def lay_out(self, places: GatePlaces) -> None:
        """V in the slots, W at the label, g and b in the core, Q in the output."""
        places.slots("votes")
        places.label("label_weights")
        places.core("gain")
        places.core("bias", offset=self.rank)
        places.output("output")


@kernel
def squashed_plan(tables: Tables, groups: Groups, index: int, core_rows: Ints, longest: int) -> None:
    """Reserve room for the sum of the votes."""
    groups[index].scratch = tables.cells[0].gates * tables.operators[groups[index].operator].rank


@inlined
def add_votes(weights: Weights, plan: Plan, states: States, unit: int, operator: Any, votes: Vector) -> None:
    """Write the sums of the votes of a unit's children, (G·R,)."""
    one = votes.dtype.type(1)
    for r in range(len(votes)):
        votes[r] = 0
    for child in range(plan.children[unit], plan.children[unit + 1]):
        if is_present(weights, plan, states, child):
            image = child_image(plan, operator, child, states.projected)
            for r in range(len(votes)):
                vote = one if image[r] > one else image[r]  # comparisons that leave NaN as it is
                votes[r] += -one if vote < -one else vote


@kernel
def squashed_forward(
    weights: Weights, plan: Plan, states: States, labels: Matrix, start: int, stop: int, group: int, out: Matrix
) -> None:
    """Write the squashed sums, (G·R,)."""
    operator, gates = operator_of(weights, plan, group), weights.tables.cells[0].gates
    rank = operator.rank
    votes = states.scratch[: gates * rank]
    for unit in range(start, stop):
        add_votes(weights, plan, states, unit, operator, votes)
        line = out[unit, operator.inner : operator.inner + gates * rank]
        for gate in range(gates):
            gain = weights.values[operator.core + 2 * gate * rank :]
            for r in range(rank):
                line[gate * rank + r] = gain[r] * votes[gate * rank + r] + gain[rank + r]
        if operator.label_size > 0:
            image = label_image(plan, operator, unit, states.label)
            for r in range(gates * rank):
                line[r] += image[r]
        tanh(line)


@kernel
def squashed_backward(
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
    """Give the gradient to the gain, the bias, the label's image, and to each child's unless it is clamped."""
    operator, gates = operator_of(weights, plan, group), weights.tables.cells[0].gates
    rank, one = operator.rank, weights.values.dtype.type(1)
    width = gates * rank
    votes = states.scratch[:width]
    for unit in range(start, stop):
        line, result = delta[unit, operator.inner :], states.inner[unit, operator.inner :]
        for r in range(width):
            line[r] *= one - result[r] * result[r]
        if operator.label_size > 0:
            d_label = label_image(plan, operator, unit, gradients.label)
            for r in range(width):
                d_label[r] += line[r]
        add_votes(weights, plan, states, unit, operator, votes)
        for gate in range(gates):
            begin = operator.core + 2 * gate * rank
            gain, d_gain = weights.values[begin:], gradients.values[begin:]
            for r in range(rank):
                d_gain[r] += line[gate * rank + r] * votes[gate * rank + r]
                d_gain[rank + r] += line[gate * rank + r]
                line[gate * rank + r] *= gain[r]
        for child in range(plan.children[unit], plan.children[unit + 1]):
            if is_present(weights, plan, states, child):
                image = child_image(plan, operator, child, states.projected)
                d_image = child_image(plan, operator, child, gradients.projected)
                for r in range(width):
                    if -one <= image[r] <= one:
                        d_image[r] += line[r]
