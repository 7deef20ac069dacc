"""Inputs of estimators: from sequences of trees, other objects or pairs to a forest; and labels that were not in training."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from treefold.data.objects import as_tree, kind_of
from treefold.errors import TreeError, VocabularyError, nearest
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree
from treefold.trees.vocabulary import UNKNOWN, Vocabulary

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
        is_tree = isinstance(pair, (Tree, str, dict, set, frozenset)) or kind_of(pair) is not None
        if is_tree or not isinstance(pair, Iterable) or getattr(pair, "ndim", 1) == 0 or len(both := list(pair)) != 2:
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
    if isinstance(X, (bytes, dict, set, frozenset)) or not isinstance(X, Iterable):
        raise TreeError(f"{owner} expects a sequence of {what}, got {type(X).__name__}; {_REMEDY}.")
    return list(X)


def _not_empty(forest: Forest, owner: str) -> Forest:
    if not len(forest):
        raise TreeError(f"{owner} expects at least one tree, got none.")
    return forest


def unknown_label(forest: Forest, label: str, known: Vocabulary, owner: str, *, pairs: bool) -> VocabularyError:
    """Return the error about a label that was not in training."""
    row = int((forest.labels == forest.vocabulary.code(label)).argmax())
    tree = int(np.searchsorted(forest.offsets, row, side="right")) - 1
    place = f"pair {tree // 2}" if pairs else f"tree {tree}"
    count = len(known) - (UNKNOWN in known)
    return VocabularyError(
        f"{place}: expected one of the {count} labels of the training trees, got {label!r}{nearest(label, known)}; "
        f"correct it, train with trees that have it, or let it count as {UNKNOWN} with {owner}(unknown='unk')."
    )
