"""Batches: the nodes of some trees, and the order in which they are computed.

Nodes are computed by depth, deepest first. All children of the nodes at depth d are at depth d+1, so a level needs the states
of one other level only, and a chain costs time and memory linear in its nodes. The children of a level are padded to its
widest node.
"""

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from treefold.trees.vocabulary import Vocabulary

# Axes:  N nodes of the batch · B trees · n nodes of one level · W child slots in use on one level
Ints = npt.NDArray[np.int64]
"""The type of row numbers, here and in all other rooms."""


@final
@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth, as a slice of the schedule.

    ``children`` (n, W) are rows of the level below, counted from 1; row 0 is the absent child (⊥). ``parents`` (n,) are rows
    of the level above, counted from 1, and ``slots`` (n,) the nodes' places among their siblings; both are 0 at the roots.
    """

    nodes: slice
    children: Ints
    parents: Ints
    slots: Ints


@final
@dataclass(frozen=True, slots=True)
class Schedule:
    """The nodes of a batch by depth, deepest first, and by label within a level.

    ``order`` (N,) lists the batch's nodes in that order, ``places`` (N,) is its inverse: the place of each node. ``level_sizes``
    are the numbers of nodes at each depth, deepest first.
    """

    order: Ints
    places: Ints
    level_sizes: Ints
    level_widths: Ints
    flat_children: Ints
    parents: Ints
    slots: Ints

    @property
    def width(self) -> int:
        """The greatest number of child slots in use; absent children after the last present one do not count."""
        return int(self.level_widths.max())

    def levels(self) -> Iterator[Level]:
        """Walk the levels, deepest first."""
        start = child_start = 0
        for size, width in zip(self.level_sizes.tolist(), self.level_widths.tolist(), strict=True):
            nodes = slice(start, start + size)
            children = self.flat_children[child_start : child_start + size * width].reshape(size, width)
            yield Level(nodes, children, self.parents[nodes], self.slots[nodes])
            start += size
            child_start += size * width


@final
@dataclass(frozen=True)
class Batch:
    """The nodes of B trees, tree after tree, each in post-order.

    - ``labels`` (N,): codes as in `Forest`; ``vectors`` (V, M): the batch's vector labels;
    - ``parents`` (N,): the row of the parent, -1 at the roots; ``slots`` (N,): the node's place among its siblings;
    - ``roots`` (B,): the rows of the roots;
    - ``schedule``: the order by levels, computed on first use.

    >>> from treefold import Forest
    >>> batch = Forest(["(MIN 2 _ (MAX 1 3))", "7"]).batch()
    >>> batch.parents.tolist(), batch.slots.tolist(), batch.roots.tolist()
    ([4, 3, 3, 4, -1, -1], [0, 0, 1, 2, 0, 0], [4, 5])
    >>> [batch.vocabulary[code] for code in batch.labels[batch.schedule.order]]
    ['1', '3', '2', 'MAX', '7', 'MIN']
    >>> [level.children.tolist() for level in batch.schedule.levels()]
    [[[], []], [[0, 0], [1, 2]], [[0, 0, 0], [1, 0, 2]]]
    """

    vocabulary: Vocabulary
    labels: Ints
    vectors: npt.NDArray[np.float64]
    parents: Ints
    slots: Ints
    roots: Ints

    @property
    def node_count(self) -> int:
        """The number of nodes, N."""
        return len(self.labels)

    def __len__(self) -> int:
        return len(self.roots)

    def tree_of(self, node: int) -> int:
        """Return the number, within the batch, of the tree that a node belongs to."""
        return int(np.searchsorted(self.roots, node))

    def by_siblings(self) -> "Batch":
        """Return the batch as a binary one: slot 0 of a node is its last child, slot 1 its previous sibling.

        Folded upwards, a node then sees its own subtree and those of its elder siblings, in order, whatever their number.

        >>> from treefold import Forest
        >>> linked = Forest(["(f a b c)"]).batch().by_siblings()
        >>> linked.parents.tolist(), linked.slots.tolist()
        ([1, 2, 3, -1], [1, 1, 0, 0])
        """
        parents, slots = link_siblings(self.parents)
        return dataclasses.replace(self, parents=parents, slots=slots)

    @functools.cached_property
    def schedule(self) -> Schedule:
        """The order by levels."""
        count, depths = self.node_count, _depths(self.parents)
        deepest = int(depths.max())
        order = np.lexsort((self.labels, -depths))
        places = np.empty(count, np.int64)
        places[order] = np.arange(count)

        level_sizes = np.bincount(depths, minlength=deepest + 1)[::-1]
        level_starts = np.cumsum(level_sizes) - level_sizes
        levels = deepest - depths[order]
        slots = self.slots[order]
        # Nodes without a parent are at depth 0: they are the last level, and the other nodes are the first `inner` ones.
        inner = int(np.count_nonzero(depths))
        parents = np.zeros(count, np.int64)
        parents[:inner] = places[self.parents[order[:inner]]] - level_starts[levels[:inner] + 1] + 1
        slots[inner:] = 0

        level_widths = np.zeros(deepest + 1, np.int64)
        if inner:
            level_widths[1:] = np.maximum.reduceat(slots[:inner], level_starts[:-1]) + 1
        block_sizes = level_sizes * level_widths
        block_starts = np.cumsum(block_sizes) - block_sizes
        flat_children = np.zeros(int(block_sizes.sum()), np.int64)
        above = levels[:inner] + 1
        slot_of_parent = block_starts[above] + (parents[:inner] - 1) * level_widths[above] + slots[:inner]
        flat_children[slot_of_parent] = np.arange(1, inner + 1) - level_starts[levels[:inner]]
        return Schedule(order, places, level_sizes, level_widths, flat_children, parents, slots)


def link_siblings(parents: Ints) -> tuple[Ints, Ints]:
    """Return the parents and slots of `Batch.by_siblings`: the next sibling in slot 1, or without one the parent in slot 0."""
    order = np.argsort(parents, kind="stable")  # siblings are neighbours, in their order, because post-order keeps it
    is_elder = (parents[order[:-1]] == parents[order[1:]]) & (parents[order[:-1]] >= 0)
    elder, younger = order[:-1][is_elder], order[1:][is_elder]
    linked, slots = parents.copy(), np.zeros(len(parents), np.int64)
    linked[elder], slots[elder] = younger, 1
    return linked, slots


def _depths(parents: Ints) -> Ints:
    """Return the number of edges from each node to its root; ``parents`` are the rows of the nodes' parents, -1 at the roots.

    >>> _depths(np.array([1, 3, 3, -1])).tolist()
    [2, 1, 1, 0]
    """
    depths, ancestors = (parents >= 0).astype(np.int64), parents.copy()
    while len(below := np.flatnonzero(ancestors >= 0)):  # each round doubles how far away the known ancestors are
        above = ancestors[below]
        depths[below] += depths[above]
        ancestors[below] = ancestors[above]
    return depths
