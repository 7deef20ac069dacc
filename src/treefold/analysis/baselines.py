"""Simple models that count labels: a task that they solve needs no recursion."""

import warnings
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_matrix, hstack  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from sklearn.preprocessing import MaxAbsScaler  # type: ignore[import-untyped]

from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, nearest
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest

# Axes:  n examples · T trees · N nodes · F features
MOST_EXAMPLES: Final = 20_000
"""The most training examples that are used, so that it takes seconds."""
_STEPS: Final = 300


def baselines(
    data: Dataset,
    train_split: str = "train",
    test_split: str = "test",
    seed: int = 0,
    *,
    most_examples: int = MOST_EXAMPLES,
) -> dict[str, float]:
    """Return the accuracy of each baseline on the test split (``"all"``: on all examples) after training on the train split.

    - ``majority class``: the most frequent class of the train split;
    - ``bag of nodes``: logistic regression on the counts of labels in a tree;
    - ``bag of parent-child pairs``: logistic regression on the counts of parent and child labels; the root has no parent.

    In pairs of trees, labels are counted separately for the left and the right tree. A train split of more than
    ``most_examples`` is sampled with the seed.

    >>> trees = Forest(["(f a)", "(f b)", "(g a)", "(g b)"] * 4)
    >>> both = {"train": np.arange(8), "test": np.arange(8, 16)}
    >>> baselines(Dataset(trees, np.array([0, 1, 0, 1] * 4), ("a", "b"), both))
    {'majority class': 0.5, 'bag of nodes': 1.0, 'bag of parent-child pairs': 1.0}
    """
    train, test = (_labelled(data, split) for split in (train_split, test_split))
    if len(train) > most_examples:
        train = np.sort(np.random.default_rng(seed).choice(train, most_examples, replace=False))
    seen, asked = data.targets[train], data.targets[test]
    result = {"majority class": float((asked == np.bincount(seen).argmax()).mean())}
    for name, codes in [("bag of nodes", _node_codes), ("bag of parent-child pairs", _edge_codes)]:
        features = _counts(data, np.concatenate([train, test]), codes(data.forest))
        result[name] = _accuracy(features[: len(train)], seen, features[len(train) :], asked)
    return result


def _labelled(data: Dataset, split: str) -> Ints:
    known = ["all", *data.splits]
    if split not in known:
        raise ConfigurationError(
            f"baselines expect a data set with the split {split!r}, got {list(data.splits) or 'none'}"
            f"{nearest(split, known)}; make one with `treefold data convert --split 0.8,0.1,0.1`."
        )
    numbers = np.arange(len(data)) if split == "all" else np.asarray(data.splits[split])
    numbers = numbers[data.targets[numbers] >= 0]
    if not len(numbers):
        raise ConfigurationError(
            f"baselines expect examples with a label in {split!r}, got none; choose another split."
        )
    return numbers


def _node_codes(forest: Forest) -> Ints:
    """Return the label of each node, (N,); all vector labels count as one."""
    forest.verify()
    return np.where(forest.labels < 0, len(forest.vocabulary), forest.labels).astype(np.int64)


def _edge_codes(forest: Forest) -> Ints:
    """Return a code for each node's label together with its parent's, (N,)."""
    labels = _node_codes(forest)
    base = len(forest.vocabulary) + 2  # the labels, the vectors, and no parent
    rows = np.repeat(forest.offsets[:-1], forest.sizes) + forest.parents
    above = np.where(forest.parents < 0, base - 1, labels[np.maximum(rows, 0)])
    return above * base + labels


def _counts(data: Dataset, numbers: Ints, codes: Ints) -> Any:
    """Count the codes of examples: a sparse matrix (n, F); left and right trees of pairs have separate columns."""
    sides = np.split(data.trees_of(numbers), 2 if data.pairs else 1)
    return hstack([_bag(data.forest, trees, codes) for trees in sides], format="csr")


def _bag(forest: Forest, trees: Ints, codes: Ints) -> Any:
    rows = np.repeat(np.arange(len(trees)), forest.sizes[trees])
    found, columns = np.unique(codes[forest.node_rows(trees)], return_inverse=True)
    ones = np.ones(len(rows), np.float64)
    return csr_matrix(
        (ones, (rows, columns.reshape(-1))), shape=(len(trees), len(found))
    )  # entries at equal places are added


def _accuracy(features: Any, classes: Ints, test_features: Any, test_classes: Ints) -> float:
    if len(np.unique(classes)) == 1:  # there is nothing to separate
        return float((test_classes == classes[0]).mean())
    scaler = MaxAbsScaler().fit(features)  # keeps zeros, and needs fewer steps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # good enough for a baseline
        model = LogisticRegression(C=10.0, max_iter=_STEPS).fit(scaler.transform(features), classes)
    return float((model.predict(scaler.transform(test_features)) == test_classes).mean())
