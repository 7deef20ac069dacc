"""The linear part of a model: it counts labels, parents with their children, and neighbouring siblings.

A feature is known by a key of 64 bits, made from the texts of its labels. So no list of labels is stored, a label that was not
seen in training matches nothing, and two features hardly ever share a key: among a million, with a chance of 3e-8.
"""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, require_choice, require_positive
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree
from treefold.trees.vocabulary import Vocabulary

# Axes:  B examples · N nodes · n occurrences, or entries that are not zero · F features · K classes or outputs
Hashes = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]

KINDS: Final = ("label", "child", "sibling")
"""The kinds of features: a node's label; with that of its parent, or of none at the root; with that of its previous sibling."""
_CHUNK: Final = 2**20  # nodes whose features are counted at a time
_NO_PARENT: Final = np.uint64(0)
_MULTIPLIERS: Final = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xBF58476D1CE4E5B9], np.uint64)
_FINISH: Final = np.uint64(0x94D049BB133111EB)


def label_hashes(vocabulary: Vocabulary) -> Hashes:
    """Return a hash of each label's text; the last one stands for all vector labels.

    >>> label_hashes(Vocabulary("ab"))[1] == label_hashes(Vocabulary("b"))[0]
    np.True_
    """
    texts = (name.encode("utf-8", "surrogatepass") for name in vocabulary)
    digests = [hashlib.blake2b(text, digest_size=8).digest() for text in texts]
    digests.append(hashlib.blake2b(digest_size=8, person=b"vector").digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


class Occurrences(NamedTuple):
    """The features of some trees, one entry for each time that they occur, (n,).

    ``examples`` are places among the examples, ``keys`` tell the features apart. ``nodes`` are rows of the forest, ``others``
    those of the parent or of the previous sibling, -1 where there is none. ``kinds`` are places in `KINDS`.
    """

    examples: Ints
    keys: Ints
    nodes: Ints
    others: Ints
    kinds: Ints


def occurrences(
    forest: Forest, trees: Ints, kinds: Sequence[str] = KINDS, *, sides: int = 1, hashes: Hashes | None = None
) -> Occurrences:
    """Return the features of the chosen trees, each as often as it occurs.

    An example has one or two ``sides``: of pairs, ``trees`` are all left ones, then all right ones, whose features differ.
    Absent children do not count: the children before and after one are neighbours.

    >>> found = occurrences(Forest(["(f a _ a)", "a"]), np.arange(2), ["label", "sibling"])
    >>> found.examples.tolist(), len(set(found.keys.tolist()))
    ([0, 0, 0, 1, 0], 3)
    """
    for kind in kinds:
        require_choice("the linear part", "kinds", kind, KINDS)
    hashes = label_hashes(forest.vocabulary) if hashes is None else hashes
    rows, sizes = forest.node_rows(trees), forest.sizes[trees]
    starts = np.cumsum(sizes) - sizes
    side, example = np.divmod(np.arange(len(trees)), max(len(trees) // sides, 1))
    trees_of, own = np.repeat(np.arange(len(trees)), sizes), hashes[np.maximum(forest.labels[rows], -1)]
    parents = np.where(forest.parents[rows] < 0, -1, np.repeat(starts, sizes) + forest.parents[rows])
    found = []
    for number in sorted(KINDS.index(kind) for kind in kinds):
        nodes, others = np.arange(len(rows)), parents
        if KINDS[number] == "label":
            others = np.full(len(rows), -1)
        elif KINDS[number] == "sibling":
            # In post-order, children stand from left to right, so that a stable sort by parent makes them neighbours.
            order = np.argsort(parents, kind="stable")
            above = parents[order]
            later = np.flatnonzero((above[1:] == above[:-1]) & (above[1:] >= 0)) + 1
            nodes, others = order[later], order[later - 1]
        place = trees_of[nodes]
        beside = np.where(others < 0, _NO_PARENT, own[others])
        keys = _mixed((number + len(KINDS) * side[place]).astype(np.uint64), beside, own[nodes])
        kind_numbers = np.full(len(nodes), number)
        found.append((example[place], keys, rows[nodes], np.where(others < 0, -1, rows[others]), kind_numbers))
    return Occurrences(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _mixed(kinds: Hashes, first: Hashes, second: Hashes) -> Ints:
    """Mix three numbers to one, so that its bits depend on all of theirs; products are taken modulo 2^64."""
    mixed = kinds * _MULTIPLIERS[0] + first * _MULTIPLIERS[1] + second * _MULTIPLIERS[2]
    for shift in (np.uint64(32), np.uint64(29)):
        mixed ^= mixed >> shift
        mixed *= _FINISH
    keys: Ints = (mixed ^ (mixed >> np.uint64(32))).view(np.int64)
    return keys


def in_chunks(forest: Forest, trees: Ints, sides: int = 1) -> Iterator[tuple[int, Ints]]:
    """Split examples into chunks of about a million nodes: yield the place of each chunk's first example, and its trees.

    >>> [(start, trees.tolist()) for start, trees in in_chunks(Forest(["a", "b", "c", "d"]), np.arange(4), sides=2)]
    [(0, [0, 1, 2, 3])]
    """
    by_side = trees.reshape(sides, -1)
    ends = np.cumsum(forest.sizes[by_side].sum(0))
    starts = np.flatnonzero(np.diff(ends // _CHUNK, prepend=-1))
    for start, end in pairwise([*starts.tolist(), len(ends)]):
        yield start, by_side[:, start:end].reshape(-1)


class Entries(NamedTuple):
    """The entries of a sparse matrix (B, F) that are not zero, row by row, (n,)."""

    rows: Ints
    columns: Ints
    values: Floats


def feature_counts(
    forest: Forest, trees: Ints, keys: Ints, kinds: Sequence[str], *, sides: int = 1, hashes: Hashes | None = None
) -> Entries:
    """Count the features with the given keys, which are sorted, in each example; other features are left out.

    >>> forest = Forest(["(f a a)", "b"])
    >>> keys = np.unique(occurrences(forest, np.array([0]), ["label"]).keys)
    >>> counts = feature_counts(forest, np.arange(2), keys, ["label"])
    >>> counts.rows.tolist(), sorted(counts.values.tolist())
    ([0, 0], [1.0, 2.0])
    """
    hashes = label_hashes(forest.vocabulary) if hashes is None else hashes
    parts = [Entries(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))]
    for start, chunk in in_chunks(forest, trees, sides) if len(keys) else []:
        found = occurrences(forest, chunk, kinds, sides=sides, hashes=hashes)
        columns = np.minimum(np.searchsorted(keys, found.keys), len(keys) - 1)
        known = keys[columns] == found.keys
        entries, counts = np.unique(found.examples[known] * len(keys) + columns[known], return_counts=True)
        rows, columns = np.divmod(entries, len(keys))
        parts.append(Entries(rows + start, columns, counts.astype(np.float32)))
    return Entries(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def feature_values(counts: Entries, scale: Floats) -> Entries:
    r"""Return the values of features that were counted: their logarithms, scaled, with rows of length one.

    .. math:: x_{ij} = \frac{s_j \log(1 + n_{ij})}{\sqrt{\sum_k s_k^2 \log^2(1 + n_{ik})}}

    >>> counts = Entries(np.array([0, 0]), np.array([0, 1]), np.array([1, 1], np.float32))
    >>> feature_values(counts, np.array([3, 4], np.float32)).values.tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    values = np.log1p(counts.values) * scale[counts.columns]
    lengths = np.sqrt(np.bincount(counts.rows, np.square(values.astype(np.float64))))
    lengths = np.maximum(lengths, np.finfo(np.float32).tiny)
    return counts._replace(values=(values / lengths[counts.rows]).astype(np.float32))


def weighted_sums(table: Tensor, columns: Tensor, starts: Tensor, values: Tensor) -> Tensor:
    """Multiply a sparse matrix (B, F) by a dense one (F, K); row b has the entries from ``starts[b]`` on.

    >>> weighted_sums(torch.eye(2), torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([3.0, 4.0]))
    tensor([[3., 4.],
            [0., 0.]])
    """
    return nn.functional.embedding_bag(columns, table, starts, mode="sum", per_sample_weights=values)


@final
class Wide(nn.Module):
    r"""A linear model of the features of a tree, or of a pair of trees.

    .. math:: y = \sum_j x_j w_j + b

    where :math:`x_j` are the `feature_values` of the feature with the key ``keys[j]``. A model's answer is ``mix[0]`` times the
    network's outputs plus ``mix[1]`` times these. `treefold.training.wide.fit_wide` makes one; made from its sizes alone it is
    empty, for `load_state_dict`. Its tensors are buffers: gradients do not reach them.

    >>> wide = Wide(features=0, outputs=3)
    >>> wide.scores(Forest(["(f a)", "b"]), np.arange(2)).shape
    torch.Size([2, 3])
    """

    keys: Tensor  # (F,), sorted
    scale: Tensor  # (F,)
    weights: Tensor  # (F, K)
    bias: Tensor  # (K,)
    mix: Tensor  # (2,)
    has_kind: Tensor  # (3,), for each of `KINDS`

    def __init__(self, features: int, outputs: int, kinds: Sequence[str] = KINDS, *, sides: int = 1) -> None:
        super().__init__()
        require_positive("Wide", outputs=outputs, sides=sides)
        for kind in kinds:
            require_choice("Wide", "kinds", kind, KINDS)
        self.sides = sides
        self.register_buffer("keys", torch.zeros(features, dtype=torch.int64))
        self.register_buffer("scale", torch.zeros(features))
        self.register_buffer("weights", torch.zeros(features, outputs))
        self.register_buffer("bias", torch.zeros(outputs))
        self.register_buffer("mix", torch.ones(2) / 2)
        self.register_buffer("has_kind", torch.tensor([kind in kinds for kind in KINDS]))
        self._hashes: tuple[Vocabulary, Hashes] | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of features that are counted."""
        return tuple(kind for kind, is_counted in zip(KINDS, self.has_kind.tolist(), strict=True) if is_counted)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is known of the last forest."""
        return {**self.__dict__, "_hashes": None}

    def forward(self, outputs: Tensor, forest: Forest, trees: Ints) -> Tensor:
        """Return the answer: the network's outputs (B, K), mixed with the scores."""
        return self.mix[0] * outputs + self.mix[1] * self.scores(forest, trees).to(outputs)

    @torch.no_grad()
    def scores(self, forest: Forest, trees: Ints) -> Tensor:
        """Return the outputs of the linear part for some trees of a forest, (B, K); of pairs, all left ones come first."""
        entries = self.values(forest, trees)
        starts = np.searchsorted(entries.rows, np.arange(len(trees) // self.sides))
        columns, ends, values = (
            torch.from_numpy(each).to(self.bias.device) for each in (entries.columns, starts, entries.values)
        )
        return self.bias + weighted_sums(self.weights, columns, ends, values.to(self.weights))

    def values(self, forest: Forest, trees: Ints) -> Entries:
        """Return the values of the features, as the entries of a sparse matrix (B, F)."""
        keys, scale = self.keys.cpu().numpy(), self.scale.float().cpu().numpy()
        hashes = self._hashes_of(forest.vocabulary)
        return feature_values(feature_counts(forest, trees, keys, self.kinds, sides=self.sides, hashes=hashes), scale)

    def contributions(self, example: Tree | Forest, output: int) -> list[tuple[str, float]]:
        """Return how much each feature of a tree, or of a forest of the two trees of a pair, adds to an output, greatest first.

        With the bias they add up to the score; features that training has not seen are left out. ``a > b`` is a node ``b``
        with the parent ``a``, ``a, b`` with the previous sibling ``a``.

        >>> forest = Forest(["(f a b)"])
        >>> wide = Wide(features=2, outputs=1, kinds=["label"])
        >>> wide.keys[:] = torch.from_numpy(np.unique(occurrences(forest, np.array([0]), ["label"]).keys)[:2])
        >>> len(wide.contributions(forest[0], 0))
        2
        """
        forest = Forest([example]) if isinstance(example, Tree) else example
        if len(forest) != self.sides:
            raise ConfigurationError(
                f"contributions are those of one example, of {self.sides} trees, got {len(forest)} trees; choose one of them."
            )
        if not -len(self.bias) <= output < len(self.bias):
            raise ConfigurationError(f"expected the number of one of {len(self.bias)} outputs, got {output}.")
        trees = np.arange(self.sides)
        found = occurrences(forest, trees, self.kinds, sides=self.sides, hashes=self._hashes_of(forest.vocabulary))
        keys, first = np.unique(found.keys, return_index=True)
        entries = self.values(forest, trees)
        places = first[np.searchsorted(keys, self.keys.cpu().numpy()[entries.columns])].tolist()
        shares = (entries.values * self.weights[entries.columns, output].double().cpu().numpy()).tolist()
        texts = [self._text(forest, found, place) for place in places]
        return sorted(zip(texts, shares, strict=True), key=lambda pair: -pair[1])

    def _text(self, forest: Forest, found: Occurrences, place: int) -> str:
        """Name the feature that occurs at a place."""
        node, other = int(found.nodes[place]), int(found.others[place])
        label, kind = _name(forest, node), KINDS[found.kinds[place]]
        if kind == "child":
            label = f"{_name(forest, other)} > {label}" if other >= 0 else f"{label} at the root"
        elif kind == "sibling":
            label = f"{_name(forest, other)}, {label}"
        return label if self.sides == 1 else f"{'left' if node < forest.offsets[1] else 'right'}: {label}"

    def _hashes_of(self, vocabulary: Vocabulary) -> Hashes:
        if self._hashes is None or self._hashes[0] is not vocabulary:
            self._hashes = (vocabulary, label_hashes(vocabulary))
        return self._hashes[1]


def _name(forest: Forest, row: int) -> str:
    code = int(forest.labels[row])
    return forest.vocabulary[code] if code >= 0 else "(vector)"
