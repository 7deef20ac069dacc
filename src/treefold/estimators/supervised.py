"""The estimators: of classes, numbers and states."""

from reprlib import repr as shortened
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from sklearn.base import (  # type: ignore[import-untyped]
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils.multiclass import type_of_target  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]
from torch import Tensor

from treefold.errors import ConfigurationError, ShapeError, TrainingError, require_positive
from treefold.estimators.base import TreeEstimator
from treefold.estimators.inputs import forest_of_pairs
from treefold.estimators.targets import (
    accuracy,
    as_class_weights,
    as_classes,
    as_node_classes,
    as_numbers,
    as_weights,
    class_values,
    codes_of,
    has_entries,
    node_labels,
)
from treefold.nn.heads import Head
from treefold.nn.model import TreeModel
from treefold.nn.randomness import seeded
from treefold.training.examples import Examples
from treefold.training.task import Array, Floats, Units, r_squared, task_of
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest

# Axes:  n examples · N nodes · K classes or outputs


class TreeClassifier(ClassifierMixin, TreeEstimator):  # type: ignore[misc]
    """Learns the class of a tree, from its root's state.

    ``X`` is a sequence of `Tree`, of s-expressions or of other objects that `treefold.as_tree` takes, or a `Forest`; ``y`` has a
    class for each tree, text or numbers. After ``fit``, ``classes_`` are the sorted classes. The arguments are those of
    `TreeEstimator`.

    >>> trees, y = ["(f a b)", "(f b a)", "(f a a)", "(f b b)"], ["ends b", "ends a", "ends a", "ends b"]
    >>> TreeClassifier(state_size=8, epochs=60, random_state=0).fit(trees, y).predict(["(f a b)", "(f b a)"]).tolist()
    ['ends b', 'ends a']
    """

    classes_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, validation_data: Any = None) -> Self:
        """Learn from trees and their classes; ``sample_weight`` (n,) scales the loss of each tree.

        ``validation_data`` is a tuple (X, y) of other trees and their classes, by which the best epoch is chosen. Without it, a
        ``validation_fraction`` of the trees is held out.
        """
        forest, task = self._forest(X, fitting=True), task_of(self.task)
        classes, codes = earlier_classes(self, *as_classes(y, len(forest) // task.trees, self._name, task.judged))
        examples = _class_examples(self, forest, classes, codes, sample_weight)
        validation = self._validation(validation_data, examples, lambda y, forest: _codes(self, y, forest, classes))
        return self._train(examples, classes=classes, validation=validation, classes_=classes)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, epochs: int = 1) -> Self:
        """Train on with further trees and their classes, from the weights as they are, at a constant rate.

        The first call, unless ``fit`` came before it, needs all ``classes``, and chooses settings and labels by its trees. In
        later ones, a new label counts as ``<unk>`` if the model has a vector for it, else it is an error. All trees are learnt
        from, ``epochs`` times; ``n_iter_`` and ``history_`` go on. A linear part (``wide``) stays as ``fit`` made it.

        >>> model, trees = TreeClassifier(state_size=8, random_state=0), ["(f a)", "(f b)"]
        >>> for _ in range(30):
        ...     model = model.partial_fit(trees, [1, 0], classes=[0, 1])
        >>> model.predict(trees), model.n_iter_
        (array([1, 0]), 30)
        """
        require_positive(self._name, epochs=epochs)
        forest = self._forest(X, fitting=not hasattr(self, "saved_"))
        known = _classes_for_partial_fit(self, classes)
        examples = _class_examples(self, forest, known, _codes(self, y, forest, known), sample_weight)
        return self._train(examples, classes=known, epochs=epochs, classes_=known)

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each tree, (n,)."""
        outputs = self._outputs(X)[1]
        return np.asarray(self.classes_[outputs.argmax(1)])

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class, (n, K), in the order of ``classes_``."""
        return softmax(self._outputs(X)[1])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; ``sample_weight`` (n,) is the weight of each tree."""
        predicted = self.predict(X)
        truth = class_values(y, len(predicted), self._name, task_of(self.task).judged)
        return accuracy(self.classes_, predicted, truth, as_weights(sample_weight, len(truth), self._name), self._name)


@final
class TreePairClassifier(TreeClassifier):
    """Learns the relation between two trees, from the states of their roots.

    ``X`` is a sequence of pairs ``(left, right)``, or a tuple of two forests; ``y`` has a class for each pair. The head has
    no ``hidden`` layers, but one layer that combines the two roots.

    >>> pairs, y = [("(f a)", "a"), ("b", "(f b)"), ("(f b)", "b"), ("a", "(f a)")], [1, 0, 1, 0]
    >>> TreePairClassifier(state_size=8, epochs=60, random_state=0).fit(pairs, y).predict(pairs)
    array([1, 0, 1, 0])
    """

    task: ClassVar[str] = "pair"

    def _forest(self, X: Any, *, fitting: bool) -> Forest:
        return forest_of_pairs(X, self._name)


@final
class NodeClassifier(TreeEstimator):
    """Learns the class of every node, from its state; with ``direction="both"`` a node sees the whole tree.

    ``y`` has a list of labels for each tree, one for each node in post-order, None for a node without a label. ``predict``
    returns such lists. After ``fit``, ``classes_`` are the sorted classes.

    >>> trees, y = ["(f a (f b))", "(f b)"], [["leaf", "leaf", "inner", "inner"], ["leaf", "inner"]]
    >>> NodeClassifier(state_size=8, epochs=50, random_state=0).fit(trees, y).predict(["(f b a)"])
    [['leaf', 'leaf', 'inner']]
    """

    task: ClassVar[str] = "node"
    classes_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, validation_data: Any = None) -> Self:
        """Learn from trees and the labels of their nodes; ``sample_weight`` (n,) scales the loss of each tree.

        ``validation_data`` is a tuple (X, y) of other trees and the labels of their nodes, as in `TreeClassifier.fit`.
        """
        forest = self._forest(X, fitting=True)
        classes, codes = earlier_classes(self, *as_node_classes(y, forest.sizes, self._name))
        examples = _class_examples(self, forest, classes, codes, sample_weight)
        validation = self._validation(
            validation_data,
            examples,
            lambda y, forest: codes_of(node_labels(y, forest.sizes, self._name), classes, self._name),
        )
        return self._train(examples, classes=classes, validation=validation, classes_=classes)

    def predict(self, X: Any) -> list[list[Any]]:
        """Return the most probable class of each node, a list in post-order for each tree."""
        forest, outputs = self._outputs(X)
        return [part.tolist() for part in _by_tree(self.classes_[outputs.argmax(1)], forest)]

    def predict_proba(self, X: Any) -> list[Floats]:
        """Return the probability of each class at each node, (nodes, K) in post-order for each tree."""
        forest, outputs = self._outputs(X)
        return _by_tree(softmax(outputs), forest)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy over all labelled nodes; ``sample_weight`` (n,) is the weight of each tree's nodes."""
        forest, outputs = self._outputs(X)
        labels = node_labels(y, forest.sizes, self._name)
        known = np.flatnonzero([label is not None for label in labels])
        if not len(known):
            raise TrainingError(f"{self._name} expects a label for some node in y, got None for all.")
        truth = class_values([labels[node] for node in known], len(known), self._name, "node")
        weights = as_weights(sample_weight, len(forest), self._name)
        weights = None if weights is None else np.repeat(weights, forest.sizes)[known]
        return accuracy(self.classes_, self.classes_[outputs.argmax(1)][known], truth, weights, self._name)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


class _Regressor(RegressorMixin, TreeEstimator):  # type: ignore[misc]
    """Learns numbers, which are standardised for training to the units of the model."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, validation_data: Any = None) -> Self:
        """Learn from trees or pairs and their numbers; ``sample_weight`` (n,) scales the loss of each.

        ``validation_data`` is a tuple (X, y) of other trees or pairs and their numbers, as in `TreeClassifier.fit`.
        """
        return self._learn(X, y, sample_weight, validation_data, None)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, epochs: int = 1) -> Self:
        """Train on with further trees or pairs and their numbers, as `TreeClassifier.partial_fit` does.

        The first call, unless ``fit`` came before it, chooses the units of the numbers.
        """
        require_positive(self._name, epochs=epochs)
        return self._learn(X, y, sample_weight, None, epochs)

    def _learn(self, X: Any, y: Any, sample_weight: Any, validation_data: Any, epochs: int | None) -> Self:
        if self.class_weight is not None:
            raise ConfigurationError(f"{self._name} expects class_weight=None, because numbers have no classes.")
        forest = self._forest(X, fitting=epochs is None or not hasattr(self, "saved_"))
        goes_on = self._flag("warm_start") or epochs is not None
        examples, units = _number_examples(
            self, forest, self._rows(y, forest), self.task, sample_weight, goes_on=goes_on
        )
        validation = self._validation(
            validation_data, examples, lambda y, forest: units.standardise(self._rows(y, forest))
        )
        return self._train(examples, units=units, validation=validation, epochs=epochs)

    def predict(self, X: Any) -> Floats:
        """Return the number of each tree or pair, (n,), or its numbers, (n, K), in the units of ``y``."""
        rows = task_of(self.task).probabilities(torch.from_numpy(self._outputs(X)[1])).numpy()
        numbers = self.saved_.units.restore(rows)
        return np.asarray(numbers if numbers.shape[1] > 1 else numbers[:, 0])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² of the predictions; if all numbers of ``y`` are equal, 1 if all predictions are right, else 0."""
        predictions = self.predict(X)
        truth = as_numbers(y, len(predictions), self._name, task_of(self.task).judged)
        if truth.shape != predictions.shape:
            raise ShapeError(
                f"{self._name} expects y to have the shape of its predictions, {predictions.shape}, got {truth.shape}."
            )
        weights = as_weights(sample_weight, len(truth), self._name)
        if (truth == truth[:1]).all():
            return r_squared(truth, predictions)
        from sklearn.metrics import r2_score  # type: ignore[import-untyped]  # slow to import

        return float(r2_score(truth, predictions, sample_weight=weights))

    def _rows(self, y: Any, forest: Forest) -> Floats:
        """Return the numbers of a y as rows (n, K)."""
        task = task_of(self.task)
        count = len(forest) // task.trees
        return as_numbers(y, count, self._name, task.judged).reshape(count, -1)


class TreeRegressor(_Regressor):
    """Learns a number, or several, of a tree, from its root's state.

    ``y`` is (n,) or (n, K). It is standardised for training, by ``mean_`` and ``scale_``; predictions have the units of ``y``.

    >>> trees, y = ["(f a)", "(f (f a))", "(f (f (f a)))", "a"], [110.0, 120.0, 130.0, 100.0]
    >>> TreeRegressor(state_size=8, epochs=60, random_state=0).fit(trees, y).predict(["(f (f a))"]).round(-1)
    array([120.])
    """

    task: ClassVar[str] = "regression"

    @property
    def mean_(self) -> Floats:
        """The mean of the training's numbers, () or (K,)."""
        return np.squeeze(np.array(self.saved_.units.offset))

    @property
    def scale_(self) -> Floats:
        """Their standard deviation, () or (K,)."""
        return np.squeeze(np.array(self.saved_.units.scale))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@final
class TreePairRegressor(_Regressor):
    """Learns a number of two trees, such as how similar they are, from the product and the distance of their roots' states.

    ``X`` is a sequence of pairs ``(left, right)``, or a tuple of two forests; ``y`` (n,) has a number for each pair. The model
    predicts a distribution over ``levels`` numbers, equally spaced from the least to the greatest of ``y``; after ``fit``
    these are ``levels_``. The head has no ``hidden`` layers. It does not tell left from right.

    >>> pairs, y = [("(f a)", "(f a)"), ("b", "a"), ("(f b)", "(f a)"), ("a", "a")], [5.0, 1.0, 2.0, 5.0]
    >>> model = TreePairRegressor(state_size=8, epochs=100, learning_rate=0.05, random_state=0).fit(pairs, y)
    >>> model.levels_, model.predict([("b", "a"), ("a", "a")]).round()
    (array([1., 2., 3., 4., 5.]), array([1., 5.]))
    """

    task: ClassVar[str] = "pair-regression"

    @property
    def levels_(self) -> Floats:
        """The numbers (K,) over which the model predicts a distribution."""
        return np.asarray(self.saved_.units.restore(np.arange(float(self.saved_.settings.model.levels))))

    def predict_levels(self, X: Any) -> Floats:
        """Return the probability of each of ``levels_``, (n, K); `predict` returns the mean of this distribution."""
        return softmax(self._outputs(X)[1])

    def _forest(self, X: Any, *, fitting: bool) -> Forest:
        return forest_of_pairs(X, self._name)

    def _rows(self, y: Any, forest: Forest) -> Floats:
        rows = super()._rows(y, forest)
        if rows.shape[1] > 1:
            raise ShapeError(f"{self._name} expects y to have one number for each pair, got the shape {rows.shape}.")
        return rows


@final
class _RootStates(Head):
    """Returns the states of the roots unchanged."""

    def __init__(self, in_size: int) -> None:
        super().__init__()
        self.in_size = in_size

    def forward(self, states: Tensor) -> Tensor:
        """Return the states (B, C)."""
        return states


class TreeEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, TreeEstimator):  # type: ignore[misc]
    """Turns a tree into the state of its root, a vector of ``state_size`` (twice that with ``direction="both"``).

    With ``y`` the states are learnt, as in a `TreeRegressor` if ``y`` has numbers with fractions, else as in a
    `TreeClassifier`. Without ``y`` the weights stay random and balanced in scale, as in a reservoir: equal trees still have
    equal vectors, and a linear model on top can do well.

    >>> embedder = TreeEmbedder(state_size=5, random_state=0).fit(["(f a b)", "(f b a)", "a"])
    >>> embedder.transform(["(f a (f b b))"]).shape, embedder.get_feature_names_out()[:2].tolist()
    ((1, 5), ['treeembedder0', 'treeembedder1'])
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, validation_data: Any = None) -> Self:
        """Learn states that predict the classes or numbers ``y``, or draw random weights without it.

        ``validation_data`` is a tuple (X, y) of other trees and their classes or numbers, as in `TreeClassifier.fit`.
        """
        forest = self._forest(X, fitting=True)
        if y is None:
            as_weights(sample_weight, len(forest), self._name)
            if validation_data is not None:
                raise TrainingError(f"{self._name} expects validation_data together with y, got y=None; leave it out.")
            return self._draw(forest)
        if _are_numbers(y):

            def rows(y: Any, forest: Forest) -> Floats:
                return as_numbers(y, len(forest), self._name).reshape(len(forest), -1)

            examples, units = _number_examples(
                self, forest, rows(y, forest), TreeRegressor.task, sample_weight, goes_on=self._flag("warm_start")
            )
            validation = self._validation(
                validation_data, examples, lambda y, forest: units.standardise(rows(y, forest))
            )
            return self._train(examples, units=units, validation=validation)
        classes, codes = as_classes(y, len(forest), self._name)
        examples = _class_examples(self, forest, classes, codes, sample_weight)
        validation = self._validation(validation_data, examples, lambda y, forest: _codes(self, y, forest, classes))
        return self._train(examples, classes=classes, validation=validation)

    def transform(self, X: Any) -> Floats:
        """Return the states of the roots, one row for each tree."""
        return self._outputs(X)[1]

    def _draw(self, forest: Forest) -> Self:
        seed = self._seed()
        examples = Examples(forest, np.zeros(len(forest), np.int64), self.task)
        with self._threads(), seeded(seed):
            saved = self._start(examples, None, Units(), seed)
        saved.model.eval()
        self.saved_, self.history_, self.n_iter_ = saved, [], 0
        return self

    def _model_for(self, forest: Forest) -> TreeModel:
        encoder = super()._model_for(forest).encoder
        return TreeModel(encoder, _RootStates(encoder.out_size))

    @property
    def _n_features_out(self) -> int:
        check_is_fitted(self, "saved_")
        return self.saved_.model.encoder.out_size


def _are_numbers(y: Any) -> bool:
    """Say whether the targets of an embedder are numbers, and not classes."""
    try:
        return str(type_of_target(y)).startswith("continuous")
    except (TypeError, ValueError):  # of no type: `as_classes` says why
        return False


def softmax(scores: Floats) -> Floats:
    """Turn scores (n, K) into probabilities.

    >>> softmax(np.zeros((1, 4)))
    array([[0.25, 0.25, 0.25, 0.25]])
    """
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def _class_examples(
    estimator: TreeEstimator, forest: Forest, classes: Array, codes: Ints, sample_weight: Any
) -> Examples:
    """Return the examples of a classifier, weighted."""
    name, task = estimator._name, task_of(estimator.task)
    weights = as_weights(sample_weight, len(forest) // task.trees, name)
    return Examples(forest, codes, task, weights, as_class_weights(estimator.class_weight, classes, codes, name))


def _number_examples(
    estimator: TreeEstimator, forest: Forest, numbers: Floats, task: str, sample_weight: Any, *, goes_on: bool
) -> tuple[Examples, Units]:
    """Return the examples of a regressor in the units of its model, and these: those of the last fit if it goes on."""
    goes_on = goes_on and hasattr(estimator, "saved_") and estimator.saved_.outputs == numbers.shape[1]
    units = estimator.saved_.units if goes_on else task_of(task).units(numbers, estimator._model_settings())
    weights = as_weights(sample_weight, len(numbers), estimator._name)
    return Examples(forest, units.standardise(numbers), task, weights), units


def _codes(estimator: TreeEstimator, y: Any, forest: Forest, classes: Array) -> Ints:
    """Return the index of the class of each tree or pair, (n,); all classes are known."""
    name, task = estimator._name, task_of(estimator.task)
    return codes_of(class_values(y, len(forest) // task.trees, name, task.judged).tolist(), classes, name)


def _classes_for_partial_fit(estimator: TreeClassifier, classes: Any) -> Array:
    """Return the classes of the earlier calls, or the given ones in the first call."""
    name, earlier = estimator._name, getattr(estimator, "classes_", None)
    if estimator.class_weight == "balanced":
        raise ConfigurationError(
            f"{name}.partial_fit expects class_weight to be None or a dict, got 'balanced', for which it would have to know all "
            f"of y; give the weights."
        )
    if classes is None:
        if earlier is None:
            raise TrainingError(
                f"{name}.partial_fit expects classes in its first call, got None; give all that y can have."
            )
        return np.asarray(earlier)
    if not has_entries(classes):
        raise TrainingError(f"{name}.partial_fit expects a list of all classes, got {shortened(classes)}.")
    given = as_classes(classes, len(classes), name, "class")[0]
    if earlier is not None and given.tolist() != earlier.tolist():
        raise TrainingError(
            f"{name}.partial_fit expects the classes of its first call, {earlier.tolist()}, got {given.tolist()}; leave them out."
        )
    return given if earlier is None else np.asarray(earlier)


def earlier_classes(estimator: Any, classes: Array, codes: Ints) -> tuple[Array, Ints]:
    """Return the classes of the last fit if a warm start continues it and it has all of these, else these."""
    earlier = getattr(estimator, "classes_", None)
    if not estimator._flag("warm_start") or earlier is None or earlier.dtype.kind != classes.dtype.kind:
        return classes, codes
    if not np.isin(classes, earlier).all():
        return classes, codes
    places = np.append(np.searchsorted(earlier, classes), -1)
    return earlier, places[codes].astype(np.int64)


def _by_tree(values: Array, forest: Forest) -> list[Array]:
    return np.split(values, forest.offsets[1:-1] - forest.offsets[0])
