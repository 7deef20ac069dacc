"""Whole models without autograd: each part of a batch goes up, through the head and, in training, back, on its own thread."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treefold.batch import Batch
from treefold.cells import Cell
from treefold.flat import in_charge_of
from treefold.kernels.calls import backward, forward
from treefold.kernels.compiled import planner
from treefold.kernels.dispatch import (
    Call,
    announced,
    each_part,
    forward_for_once,
    known_layout,
    part_calls,
    weights_now,
)
from treefold.kernels.scores import Scores
from treefold.kernels.tables import WIDTH, Floats, Ints, Weights

# Axes:  N nodes · B trees · n trees of a part · K classes


class Measured(NamedTuple):
    """The mean loss of a batch, and how many of its answers are right."""

    loss: float
    right: int


def fused_gradients(
    cell: Cell,
    batch: Batch,
    operators: Ints,
    rows: Ints,
    vectors: Tensor,
    scores: Scores,
    classes: Ints,
    *,
    share: bool,
) -> Measured | None:
    """Add the gradients of the mean cross-entropy of the scores, where all parameters stand in one tensor.

    ``operators``, ``rows`` and ``vectors`` as in `fold_up_fused`, ``classes`` of trees or pairs. None where it has to be done
    otherwise.
    """
    layout, head = known_layout(cell), scores.layout
    if head is None or not scores.suits(layout) or vectors.requires_grad:
        return None
    if classes.min() < 0 or classes.max() >= head.sets[-1][WIDTH] or len(batch) != scores.trees * len(classes):
        return None  # torch says what is wrong
    home = in_charge_of(head.parameters[0])
    if home is None:
        return None
    place, head_place = home.place_of(layout), home.place_of(head)
    if place is None or head_place is None:
        return None
    values, gradient = home.values.detach().numpy(), home.gradient.numpy()
    weights, on_top = Weights(values[place], *layout.tables), Weights(values[head_place], *head.tables)
    calls = part_calls(layout, batch, operators, rows, vectors, weights, share=share)
    labels: Floats = calls[0].labels
    # The first part adds to the gradient itself; the others' are added in their order, so that the sum is the same every time.
    whole = [gradient, *(np.zeros_like(gradient) for _ in calls[1:])]

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
        gradient += other
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
