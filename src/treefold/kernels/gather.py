"""The nodes of some trees of a forest in one pass, as every training step needs them."""

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from treefold.kernels.compile import entry_point
from treefold.kernels.records import Codes, Ints, Offsets
from treefold.trees.batch import Batch
from treefold.trees.forest import Forest

# Axes:  B trees that are chosen · N their nodes


class Alphabet(NamedTuple):
    """The meaning of a forest's labels for an encoder: operators, or rows of a table of vectors."""

    codes: Ints  # of each label: an operator, or a row counted from the number of operators; -1 if it is unknown
    operators: int
    allowed: Ints  # how many child slots each operator has, and last the other labels
    vectors: Tensor


def gather_batch(forest: Forest, trees: Ints) -> Batch:
    """Return ``forest.batch(trees)``, faster for text labels.

    >>> batch = gather_batch(Forest(["(f a)", "b"]), np.array([1, 0]))
    >>> batch.labels.tolist(), batch.parents.tolist(), batch.roots.tolist()
    ([1, 0, 2], [-1, 2, -1], [0, 2])
    """
    if not len(forest.vectors) and len(trees) and trees.dtype == np.int64:
        is_sound, labels, parents, slots, roots = gather(trees, *columns_of(forest))
        if is_sound:
            return Batch(forest.vocabulary, labels, forest.vectors, parents, slots, roots)
    return forest.batch(trees)  # which says what is wrong with them


def columns_of(forest: Forest) -> tuple[Offsets, Codes, Codes, Codes, Codes, int]:
    """Return the arguments of `gather`, as plain arrays: numba takes longer to recognise a memory map, at every call.

    All are read-only, as memory maps are: numba would compile `gather` for arrays that can be written as well.
    """
    columns: list[Any] = [forest.offsets, forest.labels, forest.parents, forest.slots, forest.widths]
    columns = [np.asarray(column).view() for column in columns]
    for column in columns:
        column.flags.writeable = False
    offsets, labels, parents, slots, widths = columns
    return offsets, labels, parents, slots, widths, len(forest.vocabulary)


def node_ends(forest: Forest, trees: Ints) -> Ints:
    """Return how many nodes some trees have up to the end of each, (B,); any numbers if there is no such tree.

    >>> node_ends(Forest(["(f a)", "b"]), np.array([1, 0, 0])).tolist()
    [1, 3, 5]
    """
    offsets = np.asarray(forest.offsets)
    return np.cumsum(offsets.take(trees + 1, mode="clip") - offsets.take(trees, mode="clip"))


@entry_point
def gather(
    trees: Ints, offsets: Offsets, labels: Codes, parents: Codes, slots: Codes, widths: Codes, label_count: int
) -> tuple[bool, Ints, Ints, Ints, Ints]:
    """Return whether the trees exist and are sound; their labels (N,), parents in the batch (N,), slots (N,), roots (B,).

    Large files are opened without reading all of their data, so a value may be damaged. Values outside their range would make
    the kernels read and write outside their arrays.
    """
    sound, nodes = True, 0
    for tree in trees:
        sound = sound and 0 <= tree < len(offsets) - 1
        sound = sound and 0 <= offsets[tree] < offsets[tree + 1] <= len(labels)
        nodes += offsets[tree + 1] - offsets[tree] if sound else 0
    nodes = nodes if sound else 0
    own_labels, own_parents, own_slots = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    next_slots = np.zeros(nodes, np.int64)  # of each node, the first slot after its last child so far
    roots, first = np.empty(len(trees), np.int64), 0
    for index in range(len(trees) if sound else 0):
        start = offsets[trees[index]]
        last = offsets[trees[index] + 1] - start - 1
        for node in range(last):
            label, parent, slot = labels[start + node], parents[start + node], slots[start + node]
            sound &= 0 <= label < label_count
            if node < parent <= last:
                sound &= next_slots[first + parent] <= slot < widths[start + parent]
                next_slots[first + parent] = slot + 1
            else:
                sound = False
            own_labels[first + node] = label
            own_parents[first + node] = first + parent
            own_slots[first + node] = slot
        sound &= 0 <= labels[start + last] < label_count and parents[start + last] == -1
        own_labels[first + last] = labels[start + last]
        own_parents[first + last] = -1
        own_slots[first + last] = 0
        first += last + 1
        roots[index] = first - 1
    return sound, own_labels, own_parents, own_slots, roots


@entry_point
def translate(
    labels: Ints, codes: Ints, operators: int, parents: Ints, slots: Ints, allowed: Ints
) -> tuple[Ints, Ints, bool]:
    """Return each node's operator, its label row (-1 without), and whether all labels are known and all children allowed.

    ``codes``, ``operators`` and ``allowed`` are those of an `Alphabet`.
    """
    kinds, rows, right = np.empty(len(labels), np.int64), np.empty(len(labels), np.int64), True
    for node in range(len(labels)):
        code = codes[labels[node]]
        right &= code >= 0
        kinds[node], rows[node] = min(code, operators), max(code - operators, -1)
    for node in range(len(labels)):
        right &= parents[node] < 0 or slots[node] < allowed[kinds[parents[node]]]
    return kinds, rows, right


@entry_point
def gather_translated(
    trees: Ints,
    offsets: Offsets,
    labels: Codes,
    parents: Codes,
    slots: Codes,
    widths: Codes,
    label_count: int,
    codes: Ints,
    operators: int,
    allowed: Ints,
) -> tuple[bool, Ints, Ints, Ints, Ints, Ints]:
    """Gather and translate in one call: whether all is well; parents, slots, operators, label rows (N,), roots (B,)."""
    sound, own_labels, own_parents, own_slots, roots = gather(
        trees, offsets, labels, parents, slots, widths, label_count
    )
    if not sound:
        return False, own_parents, own_slots, own_labels, own_labels, roots
    kinds, rows, known = translate(own_labels, codes, operators, own_parents, own_slots, allowed)
    return known, own_parents, own_slots, kinds, rows, roots
