"""Inputs of estimators: from sequences of trees, other objects or pairs to a forest; and labels that were not in training."""

from collections.abc import Iterable
from typing import Any, final

import numpy as np
from torch import Tensor

from treefold.data.objects import as_tree, kind_of
from treefold.errors import TreeError, VocabularyError, nearest
from treefold.nn.cells import Cell, PerLabel
from treefold.nn.encoder import TreeEncoder
from treefold.nn.labels import LabelEncoder
from treefold.nn.model import TreeModel
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree
from treefold.trees.vocabulary import Vocabulary

# Axes:  N nodes · L child slots · S memory size · M label size
_REMEDY = "give a list of Tree or of s-expressions, or a Forest"


def forest_of(X: Any, owner: str) -> Forest:
    """Make a forest of a sequence of trees, of anything that `as_tree` takes, of a column, or of a forest.

    >>> forest_of(np.array(["(f a)", "b"]), "TreeClassifier")
    <Forest of 2 trees, 3 nodes, 3 text labels>
    >>> list(forest_of([["f", "a"], {"label": "b"}, "(f a)"], "TreeClassifier"))
    [Tree.parse('(f a)'), Tree.parse('b'), Tree.parse('(f a)')]
    """
    if isinstance(X, Forest):
        return _not_empty(X, owner)
    return _not_empty(Forest(_trees(_entries(X, owner, "trees", 1), "tree", 1)), owner)


def forest_of_pairs(X: Any, owner: str) -> Forest:
    """Make a forest of pairs of trees, of a frame with two columns, or of two forests: the trees of pair p are 2p and 2p + 1.

    >>> list(forest_of_pairs([("(f a)", "b"), ("c", ["d"])], "TreePairClassifier"))[1]
    Tree.parse('b')
    """
    if isinstance(X, tuple) and len(X) == 2 and all(isinstance(side, Forest) for side in X):
        count, other = map(len, X)
        if count != other:
            raise TreeError(f"{owner} expects two forests of the same length, got {count} and {other} trees.")
        return _not_empty(Forest.concatenate(X)[np.arange(2 * count).reshape(2, -1).T.reshape(-1)], owner)
    sides: list[Any] = []
    for number, pair in enumerate(_entries(X, owner, "pairs of trees", 2)):
        is_tree = isinstance(pair, (Tree, str, dict)) or kind_of(pair) is not None
        if is_tree or not isinstance(pair, Iterable) or len(both := list(pair)) != 2:
            raise TreeError(f"pair {number}: expected two trees, got {pair!r}; write each pair as (left, right).")
        sides += both
    return _not_empty(Forest(_trees(sides, "pair", 2)), owner)


def _trees(entries: list[Any], what: str, each: int) -> Iterable[Tree | str]:
    """Yield trees, and s-expressions as they are; of the entries, ``each`` are one example."""
    for number, entry in enumerate(entries):
        if isinstance(entry, Tree) or (isinstance(entry, str) and not entry.rstrip().endswith(";")):
            yield entry  # which `Forest` parses
            continue
        try:
            yield as_tree(entry)
        except TreeError as problem:
            problem.args = (f"{what} {number // each}: {problem}",)
            raise


def _entries(X: Any, owner: str, what: str, most_axes: int) -> list[Any]:
    if hasattr(X, "iloc") and hasattr(X, "columns"):  # a frame of pandas
        if X.shape[1] != most_axes:
            raise TreeError(
                f"{owner} expects a sequence of {what}, got a frame with {X.shape[1]} columns; "
                f"choose {'one' if most_axes == 1 else 'two'} of them, frame[[…]]."
            )
        columns = [list(X.iloc[:, place]) for place in range(most_axes)]
        return columns[0] if most_axes == 1 else list(zip(*columns, strict=True))
    if hasattr(X, "to_data_list"):  # a batch of PyG
        return list(X.to_data_list())
    kind = "tree" if isinstance(X, Tree) else "text" if isinstance(X, str) else kind_of(X)
    if kind is not None:
        name = kind if kind in ("tree", "text") else "it"
        raise TreeError(f"{owner} expects a sequence of {what}, got a single {kind}; write [{name}].")
    if hasattr(X, "toarray"):
        raise TreeError(f"{owner} expects a sequence of {what}, got a sparse matrix; {_REMEDY}.")
    if isinstance(X, np.ndarray) and (X.dtype.kind not in "OU" or not 1 <= X.ndim <= most_axes):
        raise TreeError(
            f"{owner} expects a sequence of {what}, got an array of {X.dtype} with shape {X.shape}; {_REMEDY}."
        )
    if isinstance(X, (bytes, dict, set)) or not isinstance(X, Iterable):
        raise TreeError(f"{owner} expects a sequence of {what}, got {type(X).__name__}; {_REMEDY}.")
    return list(X)


def _not_empty(forest: Forest, owner: str) -> Forest:
    if not len(forest):
        raise TreeError(f"{owner} expects at least one tree, got none.")
    return forest


def unknown_labels(forest: Forest, known: Vocabulary) -> tuple[str, ...]:
    """Return the labels in a forest that are not among the known ones.

    >>> unknown_labels(Forest(["(f a)", "b"])[:1], Vocabulary(["f"]))
    ('a',)
    """
    forest.verify()
    missing = forest.vocabulary.codes_in(known) < 0
    if not missing.any():
        return ()
    used = np.unique(forest.labels[forest.labels >= 0])  # the vocabulary may have labels that no node has
    return tuple(forest.vocabulary[code] for code in used[missing[used]].tolist())


def unknown_label(forest: Forest, label: str, known: Vocabulary, owner: str, *, pairs: bool) -> VocabularyError:
    """Return the error about a label that was not in training."""
    row = int(np.flatnonzero(forest.labels == list(forest.vocabulary).index(label))[0])
    tree = int(np.searchsorted(forest.offsets, row, side="right")) - 1
    place = f"pair {tree // 2}" if pairs else f"tree {tree}"
    return VocabularyError(
        f"{place}: expected one of the {len(known)} labels of the training trees, got {label!r}{nearest(label, known)}; "
        f"correct it, train with trees that have it, or ignore it with {owner}(unknown='zero')."
    )


@final
class ZeroForUnknown(LabelEncoder):
    """A label encoder with further labels, whose vector is zero.

    >>> import torch
    >>> from treefold import OneHot
    >>> ZeroForUnknown(OneHot(["a", "b"]), ["c"])(torch.tensor([2, 1]), torch.zeros(0, 0))
    tensor([[0., 0.],
            [0., 1.]])
    """

    def __init__(self, labels: LabelEncoder, others: Iterable[str]) -> None:
        super().__init__()
        self.labels = labels
        self.names = Vocabulary([*labels.names, *others])
        self.size = labels.size

    def forward(self, codes: Tensor, vectors: Tensor) -> Tensor:
        """Return the label vectors (N, M)."""
        known = codes < len(self.labels.names)  # vector labels have negative codes
        rows: Tensor = self.labels(codes[known], vectors)
        return rows.new_zeros(len(codes), self.size).index_put((known,), rows)


@final
class IgnoreChildren(Cell):
    """Applies the cell of a leaf to nodes with any number of children, which it ignores."""

    def __init__(self, leaf: Cell) -> None:
        super().__init__()
        self.leaf = leaf
        self.state_size, self.memory_size, self.label_size = leaf.state_size, leaf.memory_size, leaf.label_size
        self.arity, self.takes_any_number = 0, True

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return the memories of leaves."""
        memory: Tensor = self.leaf(label, children[:, :0])
        return memory


def accept_unknown_labels(model: TreeModel, others: Iterable[str]) -> TreeModel:
    """Return a model with the same weights that accepts further labels.

    Their label vector is zero. If operators have their own cells, an inner node with another label counts as a leaf:
    its children are ignored.
    """
    encoder = model.encoder
    assert encoder.labels is not None
    cells = [_accept_any_label(cell) for cell in encoder.cells.values() if isinstance(cell, Cell)]
    made = TreeEncoder(
        cells[0],
        ZeroForUnknown(encoder.labels, others),
        direction=encoder.direction,
        down_cell=cells[1] if len(cells) > 1 else None,
    )
    return TreeModel(made, model.head, model.readout).train(model.training)


def _accept_any_label(cell: Cell) -> Cell:
    leaf = cell.cell_of(len(cell.operators)) if isinstance(cell, PerLabel) else None
    if (
        not isinstance(cell, PerLabel) or leaf is None or leaf.arity
    ):  # a leaf's cell with child slots sees children already
        return cell
    return PerLabel({name: cell.cell_of(place) for place, name in enumerate(cell.operators)}, leaf=IgnoreChildren(leaf))
