"""Simple models that count labels: a task that they solve needs no recursion."""

import warnings
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from sklearn.preprocessing import MaxAbsScaler  # type: ignore[import-untyped]

from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, nearest
from treefold.nn.wide import occurrences
from treefold.trees.batch import Ints

# Axes:  n examples · F features
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

    >>> from treefold import Forest
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
    for name, kind in [("bag of nodes", "label"), ("bag of parent-child pairs", "child")]:
        features = _counts(data, np.concatenate([train, test]), kind)
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


def _counts(data: Dataset, numbers: Ints, kind: str) -> Any:
    """Count the features of examples: a sparse matrix (n, F); left and right trees of pairs have separate columns."""
    found = occurrences(data.forest, data.trees_of(numbers), [kind], sides=2 if data.pairs else 1)
    columns = np.unique(found.keys, return_inverse=True)[1].reshape(-1)
    return csr_matrix((np.ones(len(columns)), (found.examples, columns)))  # entries at equal places are added


def _accuracy(features: Any, classes: Ints, test_features: Any, test_classes: Ints) -> float:
    if len(np.unique(classes)) == 1:  # there is nothing to separate
        return float((test_classes == classes[0]).mean())
    scaler = MaxAbsScaler().fit(features)  # keeps zeros, and needs fewer steps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # good enough for a baseline
        model = LogisticRegression(C=10.0, max_iter=_STEPS).fit(scaler.transform(features), classes)
    return float((model.predict(scaler.transform(test_features)) == test_classes).mean())
