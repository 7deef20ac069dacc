"""The suites `growth` (how time and memory grow with trees and model) and `shapes` (trees of extreme shape)."""

import functools
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import torch

from benchmarks.cases import CASES, HEADLINE, examples_of, forward_backward, model_of
from benchmarks.measuring import Job, Options, Values, in_pieces, peak_growth
from treefold import Forest, OneHot, Tree, TreeEncoder, TreeLSTM

LABELS: Final = tuple("abcdefgh")


class Sizes(NamedTuple):
    """A model, and a forest of ``trees`` spines of ``depth`` edges whose inner nodes have ``arity`` children."""

    trees: int = 16
    depth: int = 16
    arity: int = 3
    state_size: int = 20
    rank: int | None = None
    aggregator: str = "sum"

    def forest(self) -> Forest:
        """Make the forest; the labels of the leaves are random, so that few subtrees are equal.

        >>> forest = Sizes(trees=2, depth=3, arity=4).forest()
        >>> len(forest), forest.depth, forest.arity, forest.node_count
        (2, 3, 4, 26)
        """
        rng = np.random.default_rng(0)
        return Forest(spine(self.depth, self.arity, rng) for _ in range(self.trees))

    def encoder(self) -> TreeEncoder:
        """Make the encoder; for more than ten children with a shared aggregator."""
        torch.manual_seed(0)
        cell = TreeLSTM(
            self.aggregator,
            state_size=self.state_size,
            arity=self.arity,
            rank=self.rank,
            label_size=len(LABELS),
            shared=self.arity > 10,
        )
        return TreeEncoder(cell, OneHot(LABELS))


AXES: Final[dict[str, list[Sizes]]] = {
    "nodes": [Sizes(trees=trees) for trees in (4, 16, 64, 256, 1024)],
    "depth": [Sizes(trees=4096 // depth, depth=depth) for depth in (4, 16, 64, 256, 1024)],
    "arity": [Sizes(arity=arity, depth=48 // arity) for arity in (2, 3, 4, 6, 8)],
    "state_size": [Sizes(state_size=size) for size in (10, 20, 40, 80, 160)],
    "rank": [Sizes(rank=rank, aggregator="tucker") for rank in (2, 3, 5, 8, 12)],
}


def spine(depth: int, arity: int, rng: np.random.Generator) -> Tree:
    """Return a tree whose inner nodes continue in their first child; the other children are leaves."""
    labels = iter(rng.integers(0, len(LABELS), (depth + 1) * arity).tolist())
    tree = Tree(LABELS[next(labels)])
    for _ in range(depth):
        tree = Tree("a", [tree, *(Tree(LABELS[next(labels)]) for _ in range(arity - 1))])
    return tree


def growth(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `growth`: time and memory per node as one size grows and the others stay."""
    steps = options.size(full=5, quick=2)
    return {
        f"{axis} {_value(sizes, axis)}": functools.partial(_growth, sizes, options)
        for axis, line in AXES.items()
        for sizes in line[:steps]
    }


def _value(sizes: Sizes, axis: str) -> int:
    value = sizes.trees * (sizes.depth * sizes.arity + 1) if axis == "nodes" else getattr(sizes, axis)
    assert isinstance(value, int)
    return value


def _growth(sizes: Sizes, options: Options) -> Values:
    forest, encoder = sizes.forest(), sizes.encoder()

    def work(piece: int = 0) -> None:
        forward_backward(encoder, forest)

    seconds = options.measure({"step": in_pieces(work, options.size(full=10, quick=2))})["step"]
    memory = peak_growth(work)
    return {
        "nodes": forest.node_count,
        "microseconds_per_node": 1e6 * seconds / forest.node_count,
        "peak_megabytes": None if memory is None else memory / 1e6,
        "bytes_per_node": None if memory is None else memory / forest.node_count,
        "threads": options.threads,
    }


def shapes(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `shapes`: extreme shapes, forward and backward in one batch."""
    many = options.size(full=1_000_000, quick=10_000)
    makers: dict[str, Callable[[], tuple[TreeEncoder, Forest]]] = {
        "chain": lambda: (Sizes(arity=1, state_size=8).encoder(), Forest([chain(many)])),
        "wide": lambda: (Sizes(arity=11, state_size=8).encoder(), Forest([wide(many)])),
        "one-node trees": lambda: (Sizes(state_size=8).encoder(), one_node_trees(many)),
        "arity 200": lambda: (
            Sizes(arity=200, state_size=20).encoder(),
            Sizes(trees=max(1, many // 100_000), depth=25, arity=200).forest(),
        ),
        "large batch": lambda: (model_of(CASES[HEADLINE]).encoder, _large_batch(options)),
    }
    return {name: functools.partial(_shape, make, options) for name, make in makers.items()}


def chain(nodes: int) -> Tree:
    """Return a chain: a tree whose inner nodes have one child.

    >>> chain(4).depth
    3
    """
    tree = Tree(LABELS[0])
    for place in range(1, nodes):
        tree = Tree(LABELS[place % len(LABELS)], [tree])
    return tree


def wide(nodes: int) -> Tree:
    """Return a tree in which all other nodes are children of the root.

    >>> wide(4)
    Tree.parse('(a a b c)')
    """
    leaves = [Tree(label) for label in LABELS]
    return Tree(LABELS[0], [leaves[place % len(leaves)] for place in range(nodes - 1)])


def one_node_trees(count: int) -> Forest:
    """Return a forest of single nodes.

    >>> one_node_trees(12).depth, len(one_node_trees(12))
    (0, 12)
    """
    return Forest(LABELS)[np.arange(count) % len(LABELS)]


def _large_batch(options: Options) -> Forest:
    examples = examples_of("listops", options.size(full=10_000, quick=300))
    return examples.forest[np.arange(options.size(full=100_000, quick=1_000)) % len(examples)]


def _shape(make: Callable[[], tuple[TreeEncoder, Forest]], options: Options) -> Values:
    small = Sizes(trees=1, depth=1)
    forward_backward(small.encoder(), small.forest())  # loads the kernels
    encoder, forest = make()
    start = time.perf_counter()
    forward_backward(encoder, forest)
    seconds = time.perf_counter() - start
    found = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
    return {
        "trees": len(forest),
        "nodes": forest.node_count,
        "depth": forest.depth,
        "arity": forest.arity,
        "seconds": seconds,
        "finite": all(bool(gradient.isfinite().all()) for gradient in found) and bool(found),
        "threads": options.threads,
    }
