"""The nodes of some trees of a forest in one pass, as training asks for them at every step."""

from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.batch import Batch
from treefold.forest import Forest
from treefold.kernels.compiled import planner
from treefold.kernels.tables import Ints

Codes = npt.NDArray[np.int32]
# Axes:  T trees of the forest · B trees that are chosen · N their nodes


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
    # A memory map costs numba a closer look at each call; as an array it does not.
    columns: list[npt.NDArray[Any]] = [
        np.asarray(each) for each in (forest.offsets, forest.labels, forest.parents, forest.slots)
    ]
    right, labels, parents, slots, roots = gather(trees, *columns)
    return Batch(forest.vocabulary, labels, forest.vectors, parents, slots, roots) if right else None


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
