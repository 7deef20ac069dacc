"""The base of all estimators: their arguments, training, and prediction."""

import contextlib
import dataclasses
import functools
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, ParamSpec, Self, final

import numpy as np
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]
from torch import Tensor

from treefold.analysis.explaining import Explanation, explain
from treefold.errors import (
    ArgumentError,
    ConfigurationError,
    ShapeError,
    TrainingError,
    TreeError,
    TreefoldError,
    nearest,
    require_positive,
)
from treefold.estimators.inputs import forest_of, unknown_label
from treefold.estimators.targets import hold_out
from treefold.kernels.threads import threads
from treefold.nn.model import TreeModel
from treefold.nn.randomness import seeded
from treefold.training.build import build_model, facts_of
from treefold.training.examples import Examples, answers_of
from treefold.training.plugins import registered
from treefold.training.recipe import Recipe, choose
from treefold.training.saving import SavedModel
from treefold.training.settings import ModelSettings, RunSettings, TrainingSettings
from treefold.training.task import Array, Floats, Units, task_of
from treefold.training.trainer import Progress, Silent, State, Trainer, load_optimiser_tensors, optimiser_tensors
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree
from treefold.trees.vocabulary import UNKNOWN, require_policy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Axes:  n examples · K classes or outputs
_MODEL = (
    "cell",
    "aggregator",
    "state_size",
    "rank",
    "bound",
    "block_size",
    "start",
    "shared",
    "arity",
    "per_label",
    "labels",
    "label_size",
    "direction",
    "siblings",
    "readout",
    "wide",
    "min_count",
    "max_labels",
    "label_dropout",
    "edge_labels",
    "embeddings",
    "embeddings_frozen",
    "activation",
    "cell_hidden",
    "hidden",
    "dropout",
    "comparison",
    "levels",
)
_TRAINING = (
    "optimiser",
    "learning_rate",
    "schedule",
    "epochs",
    "batch_size",
    "patience",
    "keep",
    "l2",
    "weight_decay",
    "clip",
)
_NO_UNITS: Final = Units()
_Arguments = ParamSpec("_Arguments")


def _with_nearest_names(
    init: Callable[Concatenate[Any, _Arguments], None],
) -> Callable[Concatenate[Any, _Arguments], None]:
    """Let the error about a misspelt argument name the nearest one; the signature, which scikit-learn reads, stays."""
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: Any, /, *args: _Arguments.args, **arguments: _Arguments.kwargs) -> None:
        _require_arguments(type(self).__name__, arguments, known)
        init(self, *args, **arguments)

    return checked


def _require_arguments(owner: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ArgumentError(f"{owner} expects arguments that it has, got {name!r}{nearest(name, known)}.")


class TreeEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of all estimators, with their arguments. Those that are None are chosen from the trees, by the recipe that
    `treefold train` uses as well (`treefold.training.recipe`); ``reasons_`` says why. The word "none" switches a setting off:
    ``patience="none"``, ``clip="none"``. ``recipe`` is "paper", a name that ``treefold recipes`` lists, or a TOML file: its
    settings are taken for arguments that are None.

    Model: ``cell`` ("lstm", "gru", "rnn"), ``aggregator`` (a form, or a sum such as "complex+sum"), ``state_size``, ``rank`` (not
    used by forms without one), ``bound`` ("disc" of "complex", "unit" of "canonical"), ``block_size`` and ``start`` ("balanced",
    "product") of "blockwise", ``activation`` and ``cell_hidden`` (a hidden layer) of "rnn", ``shared``, ``arity``, ``per_label``
    (a cell for each operator), ``labels`` ("onehot", "thermometer", "embedding", "ngrams", "numeric"),
    ``label_size``, ``direction`` ("up", "down", "both"), ``hidden`` layers of the head, ``dropout``, for pairs ``comparison``
    ("tensor", "distance", "blockwise") and ``levels`` (of `TreePairRegressor`): see `ModelSettings`. Also:

    - ``siblings``: a node sees its last child and its previous sibling, so that the order of any number of children counts.
    - ``readout``: what the head reads: the state of the "root", or the "mean", "max", "sum" or "attention" over all nodes, or
      several joined by +, as in "root+mean".
    - ``wide``: adds a linear part that counts labels and pairs of labels.
    - ``min_count``: labels that fewer training trees have count as ``<unk>``.
    - ``max_labels``: the largest number of labels with a vector, those found in the most trees; others count as ``<unk>``.
    - ``label_dropout``: the probability with which, in training, a label counts as ``<unk>``.
    - ``edge_labels``: ``nsubj:dog`` is the label ``dog`` at an edge ``nsubj`` to its parent.
    - ``embeddings``: a file of word vectors, with which the labels start.
    - ``embeddings_frozen``: keeps these vectors as they are in the file.

    Training: ``optimiser`` ("adamw", "adadelta"), ``learning_rate``, ``schedule`` ("cosine", "constant"), ``epochs``,
    ``batch_size``, ``l2``, ``weight_decay``, ``clip``: see `TrainingSettings`. A ``validation_fraction`` of the trees is held
    out, if these are ten or more; ``fit(…, validation_data=(X, y))`` takes other trees instead. With ``keep="best"``, the
    weights of the best epoch are kept, and training stops if ``patience`` epochs in a row were no better; with
    ``keep="last"``, those of the last. ``class_weight`` is None, "balanced" or a dict. ``callbacks`` are functions, called
    after each epoch with the estimator, which can predict by then, and the metrics of the epoch, a dict; training ends early
    if one returns True. They are not saved.

    ``unknown`` says how to treat labels that the model does not know: with "unk" they have the vector of ``<unk>``, with "error"
    they raise; so do children that the model has no slot for, which "unk" ignores with a warning. If operators have their own
    cells, an inner node with an unknown label counts as a leaf. ``unknown_labels_`` has the unknown labels of the last
    prediction, or of ``validation_data`` after ``fit``, with their numbers of nodes. ``warm_start`` continues from the weights
    of the last ``fit``, with labels and classes that the model knows. ``random_state`` is as in scikit-learn. ``n_threads`` is
    the number of torch's threads while the estimator works (None: as torch is set); small tensors gain nothing from more than
    one. ``verbose`` prints a line for each epoch to standard error.

    After ``fit``: ``saved_`` (model, settings, labels), ``history_`` (metrics of each epoch), ``n_iter_`` (number of epochs),
    ``reasons_`` (why the settings are as they are).

    The class attribute ``task`` is a name of `TASKS`. A subclass can name a user's own task, with its own head.
    """

    task: ClassVar[str] = "tree"
    saved_: SavedModel
    history_: list[dict[str, Any]]
    n_iter_: int
    unknown_labels_: Counter[str]
    _moments: dict[str, dict[str, Tensor]]  # of the optimiser after partial_fit, by its name

    @_with_nearest_names
    def __init__(
        self,
        *,
        cell: str | None = None,
        aggregator: str | None = None,
        state_size: int | None = None,
        rank: int | None = None,
        shared: bool | None = None,
        arity: int | None = None,
        per_label: bool | None = None,
        labels: str | None = None,
        label_size: int | None = None,
        direction: str | None = None,
        siblings: bool | None = None,
        readout: str | None = None,
        wide: bool | None = None,
        min_count: int | None = None,
        max_labels: int | None = None,
        label_dropout: float | None = None,
        edge_labels: bool | None = None,
        embeddings: str | None = None,
        embeddings_frozen: bool | None = None,
        hidden: Sequence[int] | None = None,
        dropout: float | None = None,
        optimiser: str | None = None,
        learning_rate: float | None = None,
        schedule: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        patience: int | str | None = None,
        keep: str | None = None,
        l2: float | None = None,
        weight_decay: float | None = None,
        clip: float | str | None = None,
        validation_fraction: float = 0.1,
        class_weight: Any = None,
        unknown: str = "unk",
        random_state: Any = None,
        warm_start: bool = False,
        n_threads: int | None = 1,
        verbose: bool = False,
        comparison: str | None = None,
        levels: int | None = None,
        block_size: int | None = None,
        start: str | None = None,
        bound: str | None = None,
        activation: str | None = None,
        cell_hidden: int | None = None,
        callbacks: Sequence[Callable[[Any, dict[str, Any]], Any]] | None = None,
        recipe: str | None = None,
    ) -> None:
        self.cell = cell
        self.aggregator = aggregator
        self.state_size = state_size
        self.rank = rank
        self.shared = shared
        self.arity = arity
        self.per_label = per_label
        self.labels = labels
        self.label_size = label_size
        self.direction = direction
        self.siblings = siblings
        self.readout = readout
        self.wide = wide
        self.min_count = min_count
        self.max_labels = max_labels
        self.label_dropout = label_dropout
        self.edge_labels = edge_labels
        self.embeddings = embeddings
        self.embeddings_frozen = embeddings_frozen
        self.hidden = hidden
        self.dropout = dropout
        self.optimiser = optimiser
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.epochs = epochs
        self.batch_size = batch_size
        self.patience = patience
        self.keep = keep
        self.l2 = l2
        self.weight_decay = weight_decay
        self.clip = clip
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.unknown = unknown
        self.random_state = random_state
        self.warm_start = warm_start
        self.n_threads = n_threads
        self.verbose = verbose
        self.comparison = comparison
        self.levels = levels
        self.block_size = block_size
        self.start = start
        self.bound = bound
        self.activation = activation
        self.cell_hidden = cell_hidden
        self.callbacks = callbacks
        self.recipe = recipe

    def set_params(self, **params: Any) -> Self:
        """Set arguments; the error about a misspelt one names the nearest."""
        _require_arguments(self._name, params, self._get_param_names())
        super().set_params(**params)
        return self

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted estimator into a directory, which `treefold.load` reads; nothing is pickled."""
        from treefold.estimators.persistence import NAME, estimator_file  # which imports the estimators

        check_is_fitted(self, "saved_")
        self.saved_.save(folder, {NAME: estimator_file(self)})

    def explain(self, tree: Any, *, top: int = 5, occlude: bool = True) -> Explanation:
        """Explain the answer about a tree, or a pair ``(left, right)``: what the model answers about every subtree.

        With ``occlude``, every subtree, or those nearest to the root if there are more than 200, is left out to see how much the
        answer needs it; the ``top`` ones are listed. The `Explanation` is a drawing in notebooks; it has ``draw()``,
        ``to_svg(path)``, ``to_html(path)``, ``nodes`` and ``to_frame()``.
        """
        check_is_fitted(self, "saved_")
        if isinstance(tree, Forest) or (isinstance(tree, list) and tree and isinstance(tree[0], Tree)):
            raise TreeError(
                f"{self._name}.explain expects {'a pair (left, right)' if task_of(self.task).trees == 2 else 'one tree'}, got a "
                f"{type(tree).__name__} of {len(tree)} trees; explain one at a time."
            )
        forest = self._forest([tree], fitting=False)
        with self._threads():
            model = self._model_for(forest)
            if model is not self.saved_.model:
                raise ConfigurationError(
                    f"{self._name}.explain expects a model with answers, got one that returns vectors; use TreeClassifier or "
                    f"TreeRegressor."
                )
            classes = self.classes_.tolist() if hasattr(self, "classes_") else None
            unknown = tuple(sorted(self.unknown_labels_))
            return explain(self.saved_, tuple(forest), top=top, occlude=occlude, classes=classes, unknown=unknown)

    def plot_history(self) -> "list[Axes]":
        """Plot the loss and the score of each epoch with matplotlib; return the axes.

        Dotted lines show where a stage of a curriculum begins.
        """
        check_is_fitted(self, "saved_")
        if not self.history_:
            raise ConfigurationError(
                f"{self._name}.plot_history expects epochs in history_, got none: the weights are random, or those of a run, "
                f"whose directory has metrics.jsonl; call fit."
            )
        from treefold.estimators.display import plot

        return plot(self.history_, self.saved_.task.score_name)

    def _repr_html_inner(self) -> str:  # of scikit-learn, which shows the arguments
        return str(super()._repr_html_inner()) + self._fitted_html()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] += self._fitted_html()
        return bundle

    def _fitted_html(self) -> str:
        """Return what was chosen, why, and how good it is."""
        if not hasattr(self, "saved_"):
            return ""
        from treefold.estimators.display import summary

        return summary(self.saved_, getattr(self, "history_", []))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = True
        tags.input_tags.string = True
        return tags

    @property
    def reasons_(self) -> tuple[str, ...]:
        """Why the settings are as they are."""
        check_is_fitted(self, "saved_")
        return self.saved_.reasons

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _forest(self, X: Any, *, fitting: bool) -> Forest:
        """Make a forest of the trees in X; subclasses may treat `fit` and `predict` differently."""
        return forest_of(X, self._name)

    def _validation(self, data: Any, examples: Examples, targets: Callable[[Any, Forest], Array]) -> Examples | None:
        """Return the examples of ``validation_data``; ``targets`` turns their y into targets like those of the training."""
        if data is None:
            return None
        if not isinstance(data, (tuple, list)) or len(data) != 2:
            got = f"{len(data)} entries" if isinstance(data, (tuple, list)) else type(data).__name__
            raise ShapeError(f"{self._name} expects validation_data to be a tuple (X, y), got {got}.")
        try:
            forest = self._forest(data[0], fitting=False)
            found = targets(data[1], forest)
            if found.shape[1:] != examples.targets.shape[1:]:
                columns = " and ".join(str(each.shape[1]) for each in (examples.targets, found))
                raise ShapeError(f"expected a y with as many columns as that of the training, got {columns}.")
        except TreefoldError as problem:
            problem.args = (f"validation_data: {problem}",)
            raise
        return Examples(forest, found, examples.task)

    def _train(
        self,
        examples: Examples,
        *,
        classes: Array | None = None,
        units: Units = _NO_UNITS,
        validation: Examples | None = None,
        epochs: int | None = None,
        **fitted: Any,
    ) -> Self:
        """Make a model, or take the last one for a warm start, and train it.

        A number of ``epochs`` is that of `partial_fit`, which trains on with all examples. The estimator has the attributes
        ``fitted`` as soon as training starts; if it fails, the estimator is as before.
        """
        if not isinstance(self.validation_fraction, Real) or not 0 <= self.validation_fraction < 1:
            raise ConfigurationError(
                f"{self._name} expects validation_fraction to be at least 0 and below 1, got {self.validation_fraction!r}."
            )
        _require_callbacks(self.callbacks, self._name)
        seed, before = self._seed(), dict(self.__dict__)
        done = self.n_iter_ if epochs is not None and hasattr(self, "saved_") else 0
        restore: Callable[[], None] | None = None
        try:
            with self._threads():
                with seeded(seed + done) as random:
                    saved = self._start(examples, classes, units, seed, epochs)
                if "saved_" in before and saved.model is before["saved_"].model:  # a warm start
                    restore = _restorer(saved.model)
                self.__dict__.update(fitted, saved_=saved)
                numbers = np.arange(len(examples))
                train = numbers if examples.weights is None else numbers[examples.weights > 0]
                if validation is not None:
                    self._model_for(validation.forest)
                    held_out = len(examples) + np.arange(len(validation))
                    examples = _joined(examples, validation)
                else:
                    strata = None if classes is None or examples.task.per_node else examples.targets.astype(np.int64)
                    train, held_out = hold_out(train, strata, self.validation_fraction if epochs is None else 0, seed)
                linear, training = saved.model.wide, saved.settings.training
                wide = saved.settings.model.wide and epochs is None
                trainer = Trainer(saved.model, examples, train, held_out, training, wide=wide, random=random)
                if done:
                    trainer.state = State(epoch=done, best_epoch=done, history=list(self.history_))
                    load_optimiser_tensors(trainer.optimiser, getattr(self, "_moments", {}).get(training.optimiser, {}))
                result = trainer.run(_Printer(self._name) if self._flag("verbose") else Silent(), self._after)
                self._moments = {}
                if epochs is not None:
                    saved.model.wide = linear
                    self._moments = {training.optimiser: optimiser_tensors(trainer.optimiser)}
                trainer.flat.release()
        except BaseException:
            self.__dict__ = before
            if restore is not None:
                restore()
            raise
        self.history_, self.n_iter_ = result.history, result.epochs
        return self

    def _after(self, trainer: Trainer) -> None:
        """Call the callbacks if an epoch is done, and stop if one of them asks for it."""
        if trainer.state.batch:
            return
        self.history_, self.n_iter_ = list(trainer.state.history), trainer.state.epoch
        answers = [callback(self, dict(self.history_[-1])) for callback in self.callbacks or ()]
        trainer.stopped = any(_plain(answer) is True for answer in answers)

    def _start(
        self, examples: Examples, classes: Array | None, units: Units, seed: int, epochs: int | None = None
    ) -> SavedModel:
        """Return the model to train, a fresh one or that of the last fit, with its settings; ``epochs`` as in `_train`."""
        task, forest = examples.task, examples.forest
        names = () if classes is None else tuple(map(str, classes.tolist()))
        outputs = examples.targets.shape[1] if examples.targets.ndim > 1 else max(len(names), 1)
        values = {"task": task.name, "model": self._model_settings(), "training": self._training_settings(seed)}
        given = RunSettings.of(values | self._given(("recipe",)), self._name)
        self.unknown_labels_ = Counter()
        if hasattr(self, "saved_") and (self._flag("warm_start") or epochs is not None):
            self._check_warm_start(examples, outputs, names, "warm_start=True" if epochs is None else "partial_fit")
            saved, done = self.saved_, self.n_iter_
            training = choose(given, facts_of(forest), len(examples)).settings.training if epochs is None else None
        else:
            recipe = _without_rank(choose(given, facts_of(forest), len(examples)))
            model = build_model(recipe.settings.model, recipe.labels, task, outputs)
            reasons = recipe.reasons
            if epochs is not None and recipe.settings.model.wide:
                reasons += ("partial_fit trains the network alone: fit adds the linear part",)
            saved = SavedModel(model, recipe.settings, recipe.labels, names, outputs, units, reasons)
            training, done = saved.settings.training, 0
        if epochs is not None:  # the end is not known, so the rate cannot fall towards it
            further = {"epochs": done + epochs, "schedule": "constant", "warmup": 0.0}
            further |= {"curriculum": None, "state_noise_end": None, "selection": 0.0}
            changes = given.training.model_dump(exclude_unset=True) | further
            training = saved.settings.training.model_copy(update=changes)
        return dataclasses.replace(saved, settings=saved.settings.model_copy(update={"training": training}))

    def _check_warm_start(self, examples: Examples, outputs: int, class_names: tuple[str, ...], how: str) -> None:
        saved, known = self.saved_, self.saved_.settings.model
        owner = f"{self._name} with {how}"
        remedy = "call fit to start again" if how == "partial_fit" else "set warm_start=False to start again"
        if (examples.task.name, outputs, class_names) != (saved.settings.task, saved.outputs, saved.classes):
            raise TrainingError(
                f"{owner} expects a y with the classes or columns of the last fit, got different ones; {remedy}."
            )
        others = saved.model.encoder.unknown_labels(examples.forest)
        if others and UNKNOWN not in saved.labels.names:
            raise TrainingError(
                f"{owner} expects labels that the model knows, got {min(others)!r}; {remedy}, with "
                f"label_dropout=0.05 if the model is to have a vector for unknown labels."
            )
        given = self._model_settings()
        for name in given.model_fields_set - (set() if _has_rank(known) else {"rank"}):
            value = getattr(given, name)
            if value != getattr(known, name):
                raise ConfigurationError(
                    f"{owner} expects the model of the last fit, {name}={getattr(known, name)!r}, got {value!r}; {remedy}."
                )

    def _outputs(self, X: Any) -> tuple[Forest, Floats]:
        """Return the forest of the trees in X, and the model's outputs for it."""
        check_is_fitted(self, "saved_")
        forest = self._forest(X, fitting=False)
        examples = Examples(forest, np.zeros(0), self.task)
        with self._threads():
            outputs = answers_of(self._model_for(forest), examples, np.arange(len(examples)))
        return forest, outputs.double().numpy()

    def _model_for(self, forest: Forest) -> TreeModel:
        """Return the model; remember the labels of a forest that it does not know, or raise if ``unknown`` is "error"."""
        require_policy(self._name, "unknown", self.unknown)
        forest.verify()
        encoder = self.saved_.model.encoder
        encoder.cut = self.unknown == "unk"
        self.unknown_labels_ = encoder.unknown_labels(forest)
        if self.unknown_labels_ and self.unknown == "error":
            label, pairs = next(iter(self.unknown_labels_)), task_of(self.task).trees == 2
            raise unknown_label(forest, label, encoder.vocabulary, self._name, pairs=pairs)
        return self.saved_.model

    def _model_settings(self) -> ModelSettings:
        return ModelSettings.of(self._given(_MODEL), self._name)

    def _training_settings(self, seed: int) -> TrainingSettings:
        values = self._given(_TRAINING) | {"seed": seed, "threads": _plain(self.n_threads)}
        return TrainingSettings.of(values, self._name)

    def _given(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the arguments that are not None."""
        values = {name: _plain(getattr(self, name)) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def _flag(self, name: str) -> bool:
        """Return an argument that is true or false."""
        value = _plain(getattr(self, name))
        if not isinstance(value, (bool, Integral)):
            raise ConfigurationError(f"{self._name} expects {name} to be True or False, got {shortened(value)}.")
        return bool(value)

    def _seed(self) -> int:
        """Draw the seed of a fit from ``random_state``."""
        try:
            return int(check_random_state(self.random_state).randint(2**31 - 1))
        except ValueError as problem:
            raise ConfigurationError(
                f"{self._name} expects random_state to be None, a whole number from 0 to 2**32 - 1 or a RandomState: {problem}"
            ) from None

    def _threads(self) -> contextlib.AbstractContextManager[None]:
        require_policy(self._name, "unknown", self.unknown)
        if self.n_threads is not None:
            require_positive(self._name, n_threads=self.n_threads)
        return threads(self.n_threads)


@final
class _Printer:
    """Writes a line for each epoch to standard error."""

    def __init__(self, name: str) -> None:
        self.name = name

    def batch(self, progress: Progress) -> None:
        """Do nothing."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Write the line."""
        names = ("loss", "accuracy", "validation_loss", "validation_score")
        parts = [f"{name.replace('_', ' ')} {metrics[name]:.4f}" for name in names if name in metrics]
        sys.stderr.write(f"{self.name}: epoch {metrics['epoch']}  {'  '.join(parts)}\n")


def _joined(examples: Examples, validation: Examples) -> Examples:
    """Put examples of validation behind those of training."""
    weights = None
    if examples.weights is not None:
        weights = np.concatenate([examples.weights, np.ones(len(validation))])
    forest = Forest.concatenate([examples.forest, validation.forest])
    targets = np.concatenate([examples.targets, validation.targets])
    return Examples(forest, targets, examples.task, weights, examples.class_weights)


def _restorer(model: TreeModel) -> Callable[[], None]:
    """Keep the weights of a model; return what gives them back, each in a storage of its own."""
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    linear, was_training = model.wide, model.training

    def restore() -> None:
        model.wide = linear
        model.train(was_training)
        for name, tensor in model.state_dict(keep_vars=True).items():
            tensor.data, tensor.grad = kept[name], None

    return restore


def _has_rank(settings: ModelSettings) -> bool:
    return bool(registered("aggregator", str(settings.aggregator)).has_rank)


def _without_rank(recipe: Recipe) -> Recipe:
    """Leave out a rank that the form does not have, so that grids can combine ranks with all forms."""
    model = recipe.settings.model
    if model.rank is None or _has_rank(model):
        return recipe
    settings = recipe.settings.model_copy(update={"model": model.model_copy(update={"rank": None})})
    reason = f"the form {model.aggregator!r} has no rank: rank={model.rank} is not used"
    return recipe._replace(settings=settings, reasons=(*recipe.reasons, reason))


def _require_callbacks(callbacks: Any, owner: str) -> None:
    if callbacks is not None and not (isinstance(callbacks, (list, tuple)) and all(map(callable, callbacks))):
        raise ConfigurationError(
            f"{owner} expects callbacks to be a list of functions of the estimator and the metrics of an epoch, got "
            f"{callbacks!r}; write [{'function' if callable(callbacks) else 'lambda model, metrics: …'}]."
        )


def _plain(value: Any) -> Any:
    """Turn numbers of numpy, which grids contain, into plain ones."""
    return value.item() if isinstance(value, np.generic) else value
