"""Whole models without autograd: each part of a batch goes up, through the head and, in training, back, on its own thread."""

from typing import NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from treefold.batch import Batch
from treefold.cells import Cell
from treefold.flat import FlatParameters, in_charge_of
from treefold.kernels.calls import backward, forward
from treefold.kernels.compiled import planner
from treefold.kernels.dispatch import (
    Call,
    announced,
    each_part,
    forward_for_once,
    known_layout,
    part_calls,
    parts_of,
    weights_now,
)
from treefold.kernels.scores import Scores
from treefold.kernels.tables import WIDTH, Floats, Ints, Weights

# Axes:  N nodes · B trees · n trees of a part · K classes


class Measured(NamedTuple):
    """The mean loss of a batch, and how many of its answers are right."""

    loss: float
    right: int


class Translation(Protocol):
    """Says for each node of a batch its operator and its label row, and which label vectors these are rows of."""

    def __call__(self, batch: Batch) -> tuple[Ints, Ints, Tensor] | None:
        """Return None where that cannot be, or is not worth it."""


@final
class FusedGradients:
    """Adds gradients of the mean cross-entropy of batches, one after the other, while `FlatParameters` are in charge.

    What does not depend on the batch is looked at once: meanwhile no part of the model may be replaced or listened to.
    """

    def __init__(
        self, cell: Cell, scores: Scores, translation: Translation, home: FlatParameters, *, share: bool
    ) -> None:
        assert scores.layout is not None
        self._layout, self._scores, self._translation, self._share = known_layout(cell), scores, translation, share
        self._home, self._place, self._head_place = home, home.place_of(self._layout), home.place_of(scores.layout)
        values, self._gradient = home.values.detach().numpy(), home.gradient.numpy()
        self._cell = Weights(values[self._place], *self._layout.tables)
        self._head = Weights(values[self._head_place], *scores.layout.tables)
        self._classes: int = scores.layout.sets[-1][WIDTH]

    @classmethod
    def of(cls, cell: Cell, scores: Scores, translation: Translation, *, share: bool) -> "FusedGradients | None":
        """Look at a model whose cell `why_not` has nothing against; None where not all of its parameters stand in one tensor."""
        layout, head = known_layout(cell), scores.layout
        home = None if head is None or not scores.suits(layout) else in_charge_of(head.parameters[0])
        if head is None or home is None or home.place_of(layout) is None or home.place_of(head) is None:
            return None
        return cls(cell, scores, translation, home, share=share)

    def add(self, batch: Batch, classes: Ints) -> Measured | None:
        """Add the gradients for the classes of a batch's trees, or pairs; None where it has to be done otherwise."""
        scores, trees = self._scores, len(batch)
        if not self._home.is_in_charge or not scores.pays(trees) or (scores.trees > 1 and parts_of(trees) > 1):
            return None
        if classes.min() < 0 or classes.max() >= self._classes or trees != scores.trees * len(classes):
            return None  # torch says what is wrong
        found = self._translation(batch)
        if found is None or found[2].requires_grad:
            return None
        weights, on_top, place, head_place = self._cell, self._head, self._place, self._head_place
        calls = part_calls(self._layout, batch, *found, weights, share=self._share)
        labels: Floats = calls[0].labels
        # The first part adds to the gradient itself; the others' are added in their order: the sum is the same every time.
        whole = [self._gradient, *(np.zeros_like(self._gradient) for _ in calls[1:])]

        def run(part: int) -> tuple[float, int]:
            call, d_values = calls[part], whole[part]
            plan, states = forward_for_once(call, kept=True)
            trees = _trees_of(batch, call)
            own, roots = classes[trees], plan.unit_of[batch.roots[trees] - call.first]
            kept, out = scores.forward(on_top, states.memory, roots)
            loss, right = cross_entropy(out, own, len(classes))
            d_memory = np.zeros_like(states.memory)
            scores.backward(on_top, states.memory, roots, kept, out, d_memory, d_values[head_place])
            backward(weights, plan, states, labels, d_memory, d_values[place], np.zeros_like(labels))
            return loss, right

        measured = announced("training", (forward, backward), weights, lambda: each_part(run, len(calls)))
        for other in whole[1:]:
            self._gradient += other
        losses, right = zip(*measured, strict=True)
        return Measured(sum(losses) / len(classes), sum(right))


def fused_answers(
    cell: Cell, batch: Batch, operators: Ints, rows: Ints, vectors: Tensor, scores: Scores, *, share: bool
) -> Tensor | None:
    """Return the scores at the roots, (B, K), without gradients; None where several threads do not pay, or cannot be."""
    layout, head = known_layout(cell), scores.layout
    if head is None or not scores.suits(layout):
        return None
    weights = weights_now(layout, settled=not cell.training)
    on_top = weights_now(head, settled=not head.entries[0].module.training)
    calls = part_calls(layout, batch, operators, rows, vectors, weights, share=share)
    if len(calls) == 1 or weights.values.dtype != on_top.values.dtype:
        return None

    def run(part: int) -> Floats:
        call = calls[part]
        plan, states = forward_for_once(call, kept=False)
        roots = plan.unit_of[batch.roots[_trees_of(batch, call)] - call.first]
        return scores.forward(on_top, states.memory, roots)[1]

    parts = announced("the forward pass", (forward,), weights, lambda: each_part(run, len(calls)))
    return torch.from_numpy(np.concatenate(parts))


def _trees_of(batch: Batch, call: Call) -> slice:
    """Return which trees of a batch a part of it is."""
    first, last = np.searchsorted(batch.roots, [call.first, call.first + len(call.parents)]).tolist()
    return slice(first, last)


@planner
def cross_entropy(scores: Floats, classes: Ints, total: int) -> tuple[float, int]:
    """Return the sum of the losses and the number of right answers; put the gradient of the sum over total into the scores."""
    loss, right = 0.0, 0
    for e in range(len(scores)):
        line = scores[e]
        best = 0
        for k in range(len(line)):
            best = k if line[k] > line[best] else best
        highest = line[best]
        of_class = line[classes[e]] - highest
        mass = line[0] - line[0]
        for k in range(len(line)):
            line[k] = np.exp(line[k] - highest)
            mass += line[k]
        loss += np.log(mass) - of_class
        right += best == classes[e]
        for k in range(len(line)):
            line[k] /= mass * total
        line[classes[e]] -= scores.dtype.type(1) / total
    return loss, right
