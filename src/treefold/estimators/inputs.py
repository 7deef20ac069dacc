"""Inputs of estimators: from sequences of trees, texts or pairs to a forest; and labels that were not in training."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from treefold.errors import TreeError, VocabularyError, nearest
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree
from treefold.trees.vocabulary import UNKNOWN, Vocabulary

_REMEDY = "give a list of Tree or of s-expressions, or a Forest"


def forest_of(X: Any, owner: str) -> Forest:
    """Make a forest of trees, s-expressions, an array of them, or a forest.

    >>> forest_of(np.array(["(f a)", "b"]), "TreeClassifier")
    <Forest of 2 trees, 3 nodes, 3 text labels>
    """
    return _not_empty(X if isinstance(X, Forest) else Forest(_entries(X, owner, "trees", 1)), owner)


def forest_of_pairs(X: Any, owner: str) -> Forest:
    """Make a forest of pairs of trees, or of two forests: the trees of pair p are 2p and 2p + 1.

    >>> list(forest_of_pairs([("(f a)", "b"), ("c", "d")], "TreePairClassifier"))[1]
    Tree.parse('b')
    """
    if isinstance(X, tuple) and len(X) == 2 and all(isinstance(side, Forest) for side in X):
        count, other = map(len, X)
        if count != other:
            raise TreeError(f"{owner} expects two forests of the same length, got {count} and {other} trees.")
        return _not_empty(Forest.concatenate(X)[np.arange(2 * count).reshape(2, -1).T.reshape(-1)], owner)
    trees = []
    for number, pair in enumerate(_entries(X, owner, "pairs of trees", 2)):
        if isinstance(pair, (Tree, str)) or not isinstance(pair, Iterable) or len(sides := list(pair)) != 2:
            raise TreeError(f"pair {number}: expected two trees, got {pair!r}; write each pair as (left, right).")
        trees += sides
    return _not_empty(Forest(trees), owner)


def _entries(X: Any, owner: str, what: str, most_axes: int) -> list[Any]:
    if isinstance(X, (Tree, str)):
        kind = "tree" if isinstance(X, Tree) else "text"
        raise TreeError(f"{owner} expects a sequence of {what}, got a single {kind}; write [{kind}].")
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


def unknown_label(forest: Forest, label: str, known: Vocabulary, owner: str, *, pairs: bool) -> VocabularyError:
    """Return the error about a label that was not in training."""
    row = int((forest.labels == forest.vocabulary.code(label)).argmax())
    tree = int(np.searchsorted(forest.offsets, row, side="right")) - 1
    place = f"pair {tree // 2}" if pairs else f"tree {tree}"
    return VocabularyError(
        f"{place}: expected one of the {len(known)} labels of the training trees, got {label!r}{nearest(label, known)}; "
        f"correct it, train with trees that have it, or let it count as {UNKNOWN} with {owner}(unknown='unk')."
    )
