"""Estimators for trees with the interface of scikit-learn.

- base: arguments, training and prediction of all estimators
- supervised: `TreeClassifier`, `TreePairClassifier`, `NodeClassifier`, `TreeRegressor`, `TreePairRegressor`,
  `TreeEmbedder`
- inputs, targets: checks of X and y
- display: what notebooks show of a fitted estimator
- persistence: `load`, and the registry `ESTIMATORS`
"""

from treefold.estimators.base import TreeEstimator
from treefold.estimators.persistence import ESTIMATORS, load
from treefold.estimators.supervised import (
    NodeClassifier,
    TreeClassifier,
    TreeEmbedder,
    TreePairClassifier,
    TreePairRegressor,
    TreeRegressor,
)

__all__ = [
    "ESTIMATORS",
    "NodeClassifier",
    "TreeClassifier",
    "TreeEmbedder",
    "TreeEstimator",
    "TreePairClassifier",
    "TreePairRegressor",
    "TreeRegressor",
    "load",
]
