"""Whole models without autograd: each part of a batch goes up, through the head and, in training, back, on its own thread."""

from typing import NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from treefold.kernels.calls import backward, forward
from treefold.kernels.dispatch import NO_ROOM, Call, announced, forward_for_once, known_layout, weights_now
from treefold.kernels.gathering import Alphabet, columns_of, gather_translated, node_ends
from treefold.kernels.layout import Layout
from treefold.kernels.parts import each_part, ends_of_parts, parts_of
from treefold.kernels.scores import Scores
from treefold.kernels.tables import WIDTH, Floats, Ints, Plan, States, Weights
from treefold.nn.cells import Cell
from treefold.nn.flat import FlatParameters, in_charge_of
from treefold.trees.forest import Forest

# Axes:  n trees · m trees or pairs · K classes


class Measured(NamedTuple):
    """The mean loss of a batch, and how many of its answers are right."""

    loss: float
    right: int


class Translation(Protocol):
    """Says what the labels of a forest are to an encoder."""

    def __call__(self, forest: Forest, trees: int, nodes: int) -> Alphabet | None:
        """Return None where that cannot be said, or the kernels are not worth it for a batch of so many trees and nodes."""


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

    def add(self, forest: Forest, trees: Ints, classes: Ints) -> Measured | None:
        """Add the gradients for the classes of a forest's trees, or pairs; None where it has to be done otherwise."""
        scores, count = self._scores, len(trees)
        if not self._home.is_in_charge or not scores.can_share_out(count):
            return None
        if classes.min() < 0 or classes.max() >= self._classes or count != scores.trees * len(classes):
            return None  # torch says what is wrong
        found = Nodes.of(forest, trees, self._translation)
        if found is None or found.alphabet.vectors.requires_grad:
            return None
        weights, parts = self._cell, len(found.parts)

        def run(part: int) -> tuple[Floats, float, int] | None:
            folded = found.fold(part, self._layout, weights, share=self._share, kept=True)
            if folded is None:
                return None
            plan, states, roots = folded
            d_values = self._gradient if parts == 1 else np.zeros_like(self._gradient)
            own, memory = classes[found.parts[part]], states.memory
            loss, right, d_memory = scores.gradients(
                self._head, memory, roots, own, len(classes), d_values[self._head_place]
            )
            d_labels = np.zeros_like(found.labels)
            backward(weights, plan, states, found.labels, d_memory, d_values[self._place], d_labels)
            return d_values, loss, right

        measured = announced("training", (forward, backward), weights, lambda: each_part(run, parts))
        done = [each for each in measured if each is not None]
        if len(done) < parts:
            return None
        for d_values, *_ in done if parts > 1 else []:  # in their order: the sum is the same every time
            self._gradient += d_values
        return Measured(sum(loss for _, loss, _ in done) / len(classes), sum(right for *_, right in done))


@final
class FusedAnswers:
    """Gives the scores of trees, or pairs, without gradients, for as long as the model and its weights stay as they are."""

    def __init__(self, cell: Cell, scores: Scores, head: Layout, translation: Translation, *, share: bool) -> None:
        self._layout, self._scores, self._translation, self._share = known_layout(cell), scores, translation, share
        self._cell = weights_now(self._layout, settled=not cell.training)
        self._head = weights_now(head, settled=not head.entries[0].module.training)

    @classmethod
    def of(cls, cell: Cell, scores: Scores, translation: Translation, *, share: bool) -> "FusedAnswers | None":
        """Look at a model whose cell `why_not` has nothing against; None where its head is not for the kernels."""
        if scores.layout is None or not scores.suits(known_layout(cell)):
            return None
        found = cls(cell, scores, scores.layout, translation, share=share)
        return found if found._cell.values.dtype == found._head.values.dtype else None

    def __call__(self, forest: Forest, trees: Ints) -> Tensor | None:
        """Return the scores (m, K); None where it has to be done otherwise."""
        scores = self._scores
        if not scores.can_share_out(len(trees)) or len(trees) % scores.trees:
            return None
        found = Nodes.of(forest, trees, self._translation)
        if found is None:
            return None

        def run(part: int) -> Floats | None:
            folded = found.fold(part, self._layout, self._cell, share=self._share, kept=False)
            return None if folded is None else scores.forward(self._head, folded[1].memory, folded[2])

        parts = announced("the forward pass", (forward,), self._cell, lambda: each_part(run, len(found.parts)))
        done = [each for each in parts if each is not None]
        return torch.from_numpy(np.concatenate(done)) if len(done) == len(parts) else None


@final
class Nodes:
    """Trees of a forest, to be gathered in parts: each on its own thread, since what is done before is done by one alone.

    Calls are few, because at each of them threads wait for each other.
    """

    def __init__(self, forest: Forest, trees: Ints, alphabet: Alphabet, parts: list[slice]) -> None:
        self.alphabet, self.parts = alphabet, parts
        self.labels: Floats = alphabet.vectors.detach().contiguous().numpy()
        self._trees, self._columns = trees, columns_of(forest)

    @classmethod
    def of(cls, forest: Forest, trees: Ints, translation: Translation) -> "Nodes | None":
        """Share trees out; None where the kernels do not know their labels, or are not worth it."""
        if len(forest.vectors) or not len(trees) or trees.dtype != np.int64:
            return None
        nodes, parts = node_ends(forest, trees), parts_of(len(trees))
        alphabet = translation(forest, len(trees), int(nodes[-1]))
        if alphabet is None:
            return None
        ends = [0, *ends_of_parts(nodes, parts)]
        return cls(forest, trees, alphabet, list(map(slice, ends, ends[1:])))

    def fold(
        self, part: int, layout: Layout, weights: Weights, *, share: bool, kept: bool
    ) -> tuple[Plan, States, Ints] | None:
        """Return the states of a part, and the units of its roots; None where something is wrong with the trees."""
        fine, *sides, roots = gather_translated(self._trees[self.parts[part]], *self._columns, *self.alphabet[:3])
        if not fine:
            return None
        parents, slots, operators, rows = sides
        room = NO_ROOM[weights.values.dtype.itemsize]
        call = Call(weights, layout.widths, parents, slots, 0, operators, rows, self.labels, share, kept, room)
        plan, states = forward_for_once(call, kept=kept)
        return plan, states, plan.unit_of[roots]
