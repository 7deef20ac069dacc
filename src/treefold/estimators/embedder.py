"""The estimator that turns trees into vectors."""

from typing import Any, Self, final

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.multiclass import type_of_target  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]
from torch import Tensor

from treefold.estimators.base import TreeEstimator
from treefold.estimators.supervised import standard
from treefold.estimators.targets import Floats, as_class_weights, as_classes, as_numbers, as_weights
from treefold.nn.encoder import Encoding
from treefold.nn.heads import Head
from treefold.nn.model import TreeModel
from treefold.training.examples import Examples
from treefold.trees.forest import Forest


@final
class Roots(Head):
    """The states of the roots as they are."""

    def __init__(self, in_size: int) -> None:
        super().__init__()
        self.in_size = in_size

    def forward(self, encoding: Encoding) -> Tensor:
        """Return the states (B, C)."""
        return encoding.roots


class TreeEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TreeEstimator):  # type: ignore[misc]
    """Turns a tree into the state of its root, a vector of ``state_size`` (twice that with ``direction="both"``).

    With ``y`` the states are learned: as those of a `TreeRegressor` where ``y`` has numbers with fractions, else as those of a
    `TreeClassifier`. Without ``y`` nothing is learned: the weights are random, as in a reservoir, and only their scale is
    chosen with care. Equal trees then still have equal vectors, and a linear model on top can do well.

    >>> embedder = TreeEmbedder(state_size=5, random_state=0).fit(["(f a b)", "(f b a)", "a"])
    >>> embedder.transform(["(f a (f b b))"]).shape, embedder.get_feature_names_out()[:2].tolist()
    ((1, 5), ['treeembedder0', 'treeembedder1'])
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn states that tell the classes or numbers ``y``, or draw random weights without it."""
        forest = self._forest(X, fitting=True)
        weights = as_weights(sample_weight, len(forest), self._name)
        if y is None:
            return self._draw(forest)
        if str(type_of_target(y)).startswith("continuous"):
            numbers = as_numbers(y, len(forest), self._name)
            mean, scale = standard(numbers)
            targets = ((numbers - mean) / scale).reshape(len(forest), -1)
            return self._train(Examples(forest, targets, "regression", weights), targets.shape[1], ())
        classes, codes = as_classes(y, len(forest), self._name)
        class_weights = as_class_weights(self.class_weight, classes, codes, self._name)
        examples = Examples(forest, codes, "tree", weights, class_weights)
        return self._train(examples, len(classes), tuple(map(str, classes.tolist())), codes)

    def transform(self, X: Any) -> Floats:
        """Return the states of the roots, one row for each tree."""
        return self._outputs(X)[1]

    def _draw(self, forest: Forest) -> Self:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        examples = Examples(forest, np.zeros(len(forest), np.int64), "tree")
        with self._seeded(seed):
            saved = self._start(examples, 1, (), seed)
        saved.model.eval()
        self.saved_, self.history_, self.n_iter_ = saved, [], 0
        return self

    def _model_for(self, forest: Forest) -> TreeModel:
        encoder = super()._model_for(forest).encoder
        return TreeModel(encoder, Roots(encoder.out_size))

    @property
    def _n_features_out(self) -> int:
        check_is_fitted(self, "saved_")
        return self.saved_.model.encoder.out_size
