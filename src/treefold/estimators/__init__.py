"""Estimators in the manner of scikit-learn, over sequences of trees."""

from treefold.estimators.base import TreeEstimator
from treefold.estimators.embedder import TreeEmbedder
from treefold.estimators.loading import ESTIMATORS, load
from treefold.estimators.supervised import NodeClassifier, TreeClassifier, TreePairClassifier, TreeRegressor

__all__ = [
    "ESTIMATORS",
    "NodeClassifier",
    "TreeClassifier",
    "TreeEmbedder",
    "TreeEstimator",
    "TreePairClassifier",
    "TreeRegressor",
    "load",
]
