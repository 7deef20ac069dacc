"""The nodes of some trees of a forest in one pass, as training asks for them at every step."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from treefold.kernels.compiled import planner
from treefold.kernels.tables import Ints
from treefold.trees.batch import Batch
from treefold.trees.forest import Forest

Codes = npt.NDArray[np.int32]
# Axes:  T trees of the forest · B trees that are chosen · N their nodes


class Alphabet(NamedTuple):
    """What the labels of a forest are to an encoder: operators, or rows of a table of vectors."""

    codes: Ints  # of each label: an operator, a row counted from the number of operators, -1 where it is unknown
    operators: int
    allowed: Ints  # how many child slots each operator has, and the others behind
    vectors: Tensor


def gathered(forest: Forest, trees: Ints) -> Batch | None:
    """Return what `Forest.batch` returns, sooner; None where it has more to do or to say: vectors, numbers of no tree.

    >>> batch = gathered(Forest(["(f a)", "b"]), np.array([1, 0]))
    >>> batch.labels.tolist(), batch.parents.tolist(), batch.roots.tolist()
    ([1, 0, 2], [-1, 2, -1], [0, 2])
    >>> gathered(Forest(["b"]), np.array([1])) is None
    True
    """
    if len(forest.vectors) or not len(trees) or trees.dtype != np.int64:
        return None
    right, labels, parents, slots, roots = gather(trees, *columns_of(forest))
    return Batch(forest.vocabulary, labels, forest.vectors, parents, slots, roots) if right else None


def columns_of(forest: Forest) -> tuple[Ints, Codes, Codes, Codes]:
    """Return what `gather` takes: a memory map costs numba a closer look at each call; as an array it does not."""
    return np.asarray(forest.offsets), np.asarray(forest.labels), np.asarray(forest.parents), np.asarray(forest.slots)


def node_ends(forest: Forest, trees: Ints) -> Ints:
    """Return how many nodes some trees have up to the end of each, (B,); anything where there is no such tree.

    >>> node_ends(Forest(["(f a)", "b"]), np.array([1, 0, 0])).tolist()
    [1, 3, 5]
    """
    offsets = np.asarray(forest.offsets)
    return np.cumsum(offsets.take(trees + 1, mode="clip") - offsets.take(trees, mode="clip"))


@planner
def gather(
    trees: Ints, offsets: Ints, labels: Codes, parents: Codes, slots: Codes
) -> tuple[bool, Ints, Ints, Ints, Ints]:
    """Return whether there are all these trees; their labels (N,), parents within the batch (N,), slots (N,), roots (B,)."""
    right, nodes = True, 0
    for tree in trees:
        right = right and 0 <= tree < len(offsets) - 1
        # Large files are opened without a look at all of them: nothing may be read beyond the nodes.
        right = right and 0 <= offsets[tree] < offsets[tree + 1] <= len(labels)
        nodes += offsets[tree + 1] - offsets[tree] if right else 0
    nodes = nodes if right else 0
    own_labels, own_parents, own_slots = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    roots, first = np.empty(len(trees), np.int64), 0
    for index in range(len(trees) if right else 0):
        start = offsets[trees[index]]
        size = offsets[trees[index] + 1] - start
        for node in range(size):
            own_labels[first + node] = labels[start + node]
            own_parents[first + node] = first + parents[start + node]
            own_slots[first + node] = slots[start + node]
        first += size
        roots[index] = first - 1
        own_parents[first - 1] = -1
    return right, own_labels, own_parents, own_slots, roots


@planner
def translate(
    labels: Ints, codes: Ints, operators: int, parents: Ints, slots: Ints, allowed: Ints
) -> tuple[Ints, Ints, bool]:
    """Return each node's operator, its label row (-1 without), and whether all labels are known and all children allowed.

    What an `Alphabet` says.
    """
    kinds, rows, right = np.empty(len(labels), np.int64), np.empty(len(labels), np.int64), True
    for node in range(len(labels)):
        code = codes[labels[node]]
        right &= code >= 0
        kinds[node], rows[node] = min(code, operators), max(code - operators, -1)
    for node in range(len(labels)):
        right &= parents[node] < 0 or slots[node] < allowed[kinds[parents[node]]]
    return kinds, rows, right


@planner
def gather_translated(
    trees: Ints,
    offsets: Ints,
    labels: Codes,
    parents: Codes,
    slots: Codes,
    codes: Ints,
    operators: int,
    allowed: Ints,
) -> tuple[bool, Ints, Ints, Ints, Ints, Ints]:
    """Return whether there are such trees and all is right with them; parents, slots, operators, label rows (N,), roots (B,)."""
    there, own_labels, own_parents, own_slots, roots = gather(trees, offsets, labels, parents, slots)
    kinds, rows, right = translate(own_labels, codes, operators, own_parents, own_slots, allowed)
    return there and right, own_parents, own_slots, kinds, rows, roots
