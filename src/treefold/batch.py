"""The schedule of a set of trees: which nodes can be computed together, and where their children stand.

Nodes are scheduled by depth, deepest first. All children of the nodes at depth d then stand at depth d+1, so that a level
needs the states of one other level only: a chain costs time and memory linear in its nodes. The children of a level are padded
to its widest node.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from treefold.vocabulary import Vocabulary

# Axes:  N nodes of the batch · B trees · n nodes of one level · W child slots in use on one level
Ints = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth, as a slice of the schedule.

    ``children`` (n, W) are rows of the level below, counted from 1; row 0 is the absent child (⊥). ``parents`` (n,) are
    rows of the level above, counted from 1, and ``slots`` (n,) say which child of it the node is; at the roots both are 0.
    """

    nodes: slice
    children: Ints
    parents: Ints
    slots: Ints


@final
@dataclass(frozen=True, slots=True)
class Batch:
    """The nodes of B trees in schedule order: by depth, deepest first; equal labels of a level stand together.

    - ``labels`` (N,): codes as in `Forest`, and ``vectors`` (V, M), the table of the batch's vector labels;
    - ``level_sizes``: the number of nodes at each depth, deepest first; ``levels()`` walks them;
    - ``places`` (N,): for each node in the forest's order (tree after tree, post-order), its place in the schedule;
    - ``roots`` (B,): the places of the roots;
    - ``slots_used`` (N,): how many child slots a node needs, up to its last present child.

    >>> from treefold import Forest
    >>> batch = Forest(["(MIN 2 _ (MAX 1 3))", "7"]).batch()
    >>> [batch.vocabulary[code] for code in batch.labels], batch.roots.tolist()
    (['1', '3', '2', 'MAX', '7', 'MIN'], [5, 4])
    >>> [level.children.tolist() for level in batch.levels()]
    [[[], []], [[0, 0], [1, 2]], [[0, 0, 0], [1, 0, 2]]]
    """

    vocabulary: Vocabulary
    labels: Ints
    vectors: npt.NDArray[np.float64]
    level_sizes: Ints
    level_widths: Ints
    places: Ints
    roots: Ints
    flat_children: Ints
    parents: Ints
    slots: Ints
    slots_used: Ints

    @property
    def node_count(self) -> int:
        """The number of nodes, N."""
        return len(self.labels)

    @property
    def width(self) -> int:
        """The greatest number of child slots in use; absent children behind the last present one do not count."""
        return int(self.level_widths.max())

    def __len__(self) -> int:
        return len(self.roots)

    def tree_of(self, place: int) -> int:
        """Return which tree of the batch the node at a place of the schedule belongs to."""
        in_forest = int(np.flatnonzero(self.places == place)[0])
        return int(np.searchsorted(np.flatnonzero(np.isin(self.places, self.roots)), in_forest))

    def levels(self) -> Iterator[Level]:
        """Walk the levels, deepest first."""
        start = child_start = 0
        for size, width in zip(self.level_sizes.tolist(), self.level_widths.tolist(), strict=True):
            nodes = slice(start, start + size)
            children = self.flat_children[child_start : child_start + size * width].reshape(size, width)
            yield Level(nodes, children, self.parents[nodes], self.slots[nodes])
            start += size
            child_start += size * width


def schedule(
    *,
    labels: npt.NDArray[Any],
    parents: npt.NDArray[Any],
    slots: npt.NDArray[Any],
    depths: npt.NDArray[Any],
    sizes: Ints,
    vectors: npt.NDArray[np.float64],
    vocabulary: Vocabulary,
) -> Batch:
    """Schedule the nodes of trees that are laid out as in a forest, one after the other, ``sizes`` (B,) nodes each."""
    count = len(labels)
    ends = np.cumsum(sizes)
    depths = depths.astype(np.int64)
    deepest = int(depths.max())
    order = np.lexsort((labels, -depths))
    places = np.empty(count, np.int64)
    places[order] = np.arange(count)

    level_sizes = np.bincount(depths, minlength=deepest + 1)[::-1]
    level_starts = np.cumsum(level_sizes) - level_sizes
    levels = deepest - depths[order]
    slots = slots[order].astype(np.int64)
    # The roots, and only they, are at depth 0: they are the last level, the other nodes are the first `inner` ones.
    inner = count - len(sizes)
    parent_rows = np.zeros(count, np.int64)
    in_forest = (parents + np.repeat(ends - sizes, sizes))[order[:inner]]
    parent_rows[:inner] = places[in_forest] - level_starts[levels[:inner] + 1] + 1
    slots[inner:] = 0

    level_widths = np.zeros(deepest + 1, np.int64)
    if inner:
        level_widths[1:] = np.maximum.reduceat(slots[:inner], level_starts[:-1]) + 1
    block_sizes = level_sizes * level_widths
    block_starts = np.cumsum(block_sizes) - block_sizes
    flat_children = np.zeros(int(block_sizes.sum()), np.int64)
    above = levels[:inner] + 1
    slot_of_parent = block_starts[above] + (parent_rows[:inner] - 1) * level_widths[above] + slots[:inner]
    flat_children[slot_of_parent] = np.arange(1, inner + 1) - level_starts[levels[:inner]]
    slots_used = np.zeros(count, np.int64)
    np.maximum.at(slots_used, parent_rows[:inner] - 1 + level_starts[above], slots[:inner] + 1)

    return Batch(
        vocabulary=vocabulary,
        labels=labels[order].astype(np.int64),
        vectors=vectors,
        level_sizes=level_sizes,
        level_widths=level_widths,
        places=places,
        roots=places[ends - 1],
        flat_children=flat_children,
        parents=parent_rows,
        slots=slots,
        slots_used=slots_used,
    )
