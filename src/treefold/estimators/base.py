"""The base of all estimators: their arguments, training, and prediction."""

import contextlib
import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from sklearn.base import BaseEstimator  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted  # type: ignore[import-untyped]

from treefold.errors import ConfigurationError, TrainingError, require_positive
from treefold.estimators.inputs import forest_of, unknown_label
from treefold.estimators.targets import hold_out
from treefold.kernels.threads import threads
from treefold.nn.model import TreeModel
from treefold.training.build import build_model, facts_of
from treefold.training.examples import Examples, outputs_of
from treefold.training.recipe import choose
from treefold.training.saving import SavedModel
from treefold.training.settings import ModelSettings, RunSettings, TrainingSettings
from treefold.training.task import Floats, task_of
from treefold.training.trainer import Progress, Silent, Trainer
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest
from treefold.trees.vocabulary import UNKNOWN, require_policy

# Axes:  n examples · K classes or outputs
_MODEL = (
    "cell",
    "aggregator",
    "state_size",
    "rank",
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
    "label_dropout",
    "edge_labels",
    "embeddings",
    "embeddings_frozen",
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


class TreeEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of all estimators, with their arguments. Those that are None are chosen from the trees, by the recipe that
    `treefold train` uses as well (`treefold.training.recipe`); ``reasons_`` says why. The word "none" switches a setting off:
    ``patience="none"``, ``clip="none"``.

    Model: ``cell`` ("lstm", "gru", "rnn"), ``aggregator``, ``state_size``, ``rank``, ``shared``, ``arity``, ``per_label`` (a cell
    for each operator), ``labels`` ("onehot", "thermometer", "embedding", "numeric"), ``label_size``, ``direction`` ("up", "down",
    "both"), ``siblings`` (states follow the order of siblings), ``readout`` ("root", "mean", "max", "sum", "attention", or
    several joined by +), ``hidden`` layers of the head, ``dropout``, for pairs ``comparison`` ("tensor", "distance") and
    ``levels`` (of `TreePairRegressor`): see `ModelSettings`.

    Training: ``optimiser`` ("adamw", "adadelta"), ``learning_rate``, ``schedule`` ("cosine", "constant"), ``epochs``,
    ``batch_size``, ``l2``, ``weight_decay``, ``clip``: see `TrainingSettings`. A ``validation_fraction`` of the trees is held
    out, if these are ten or more. With ``keep="best"``, the weights of the best epoch are kept, and training stops if
    ``patience`` epochs in a row were no better; with ``keep="last"``, those of the last. ``class_weight`` is None, "balanced" or
    a dict.

    ``unknown`` says how to treat labels that no training tree had: with "unk" they have the vector of ``<unk>``, with "error"
    they raise; so do children that the model has no slot for, which "unk" ignores with a warning. If operators have their own
    cells, an inner node with an unknown label counts as a leaf. ``unknown_labels_`` has the unknown labels of the last
    prediction, with their numbers of nodes. ``warm_start`` continues from the weights of the last ``fit``, with labels and
    classes that the model knows. ``random_state`` is as in scikit-learn.
    ``n_threads`` is the number of torch's threads while the estimator works (None: as torch is set); small tensors gain
    nothing from more than one. ``verbose`` prints a line for each epoch to standard error.

    After ``fit``: ``saved_`` (model, settings, labels), ``history_`` (metrics of each epoch), ``n_iter_`` (number of epochs).

    The class attribute ``task`` is a name of `TASKS`. A subclass can name a user's own task, with its own head.
    """

    task: ClassVar[str] = "tree"
    saved_: SavedModel
    history_: list[dict[str, Any]]
    n_iter_: int
    unknown_labels_: Counter[str]

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

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted estimator into a directory, which `treefold.load` reads; nothing is pickled."""
        from treefold.estimators.persistence import write_estimator  # which imports the estimators

        check_is_fitted(self, "saved_")
        self.saved_.save(folder)
        write_estimator(folder, self)

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

    def _train(
        self, examples: Examples, outputs: int, class_names: tuple[str, ...], classes: Ints | None = None
    ) -> Self:
        """Make a model, or take the last one for a warm start, and train it; validation is stratified by ``classes`` (n,)."""
        if not 0 <= self.validation_fraction < 1:
            raise ConfigurationError(
                f"{self._name} expects validation_fraction to be at least 0 and below 1, got {self.validation_fraction!r}."
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with self._seeded(seed):
            saved = self._start(examples, outputs, class_names, seed)
            weights = examples.weights
            numbers = np.arange(len(examples)) if weights is None else np.flatnonzero(weights > 0)
            train, held_out = hold_out(numbers, classes, self.validation_fraction, seed)
            wide = saved.settings.model.wide
            trainer = Trainer(saved.model, examples, train, held_out, saved.settings.training, wide=wide)
            result = trainer.run(_Printer(self._name) if self.verbose else Silent())
            trainer.flat.release()
        self.saved_, self.history_, self.n_iter_ = saved, result.history, result.epochs
        return self

    def _start(self, examples: Examples, outputs: int, class_names: tuple[str, ...], seed: int) -> SavedModel:
        """Return the model to train, a fresh one or that of the last fit, with its settings."""
        task = examples.task
        settings = RunSettings(task=task.name, model=self._model_settings(), training=self._training_settings(seed))
        self.unknown_labels_ = Counter()
        if self.warm_start and hasattr(self, "saved_"):
            self._check_warm_start(examples, outputs, class_names)
            training = choose(settings, facts_of(examples.forest), len(examples)).settings.training
            known = self.saved_.settings.model_copy(update={"training": training})
            return dataclasses.replace(self.saved_, settings=known, classes=class_names)
        recipe = choose(settings, facts_of(examples.forest), len(examples))
        model = build_model(recipe.settings.model, recipe.labels, task, outputs)
        return SavedModel(model, recipe.settings, recipe.labels, class_names, outputs, reasons=recipe.reasons)

    def _check_warm_start(self, examples: Examples, outputs: int, class_names: tuple[str, ...]) -> None:
        saved = self.saved_
        remedy = "set warm_start=False to start again"
        if (examples.task.name, outputs, class_names) != (saved.settings.task, saved.outputs, saved.classes):
            raise TrainingError(
                f"{self._name} with warm_start=True expects a y with the classes or columns of the last fit, got different "
                f"ones; {remedy}."
            )
        others = saved.model.encoder.unknown_labels(examples.forest)
        if others and UNKNOWN not in saved.labels.names:
            raise TrainingError(
                f"{self._name} with warm_start=True expects labels that the model knows, got {min(others)!r}; {remedy}."
            )
        given = self._model_settings()
        for name in given.model_fields_set:
            value = getattr(given, name)
            if value != getattr(saved.settings.model, name):
                raise ConfigurationError(
                    f"{self._name} with warm_start=True expects the model of the last fit, "
                    f"{name}={getattr(saved.settings.model, name)!r}, got {value!r}; {remedy}."
                )

    def _outputs(self, X: Any) -> tuple[Forest, Floats]:
        """Return the forest of the trees in X, and the model's outputs for it."""
        check_is_fitted(self, "saved_")
        forest = self._forest(X, fitting=False)
        examples = Examples(forest, np.zeros(0), self.task)
        with self._threads():
            outputs = outputs_of(self._model_for(forest), examples, np.arange(len(examples)))
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

    def _threads(self) -> contextlib.AbstractContextManager[None]:
        if self.n_threads is not None:
            require_positive(self._name, n_threads=self.n_threads)
        return threads(self.n_threads)

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """Draw random numbers from the seed, and restore the state of the caller's generator afterwards."""
        require_policy(self._name, "unknown", self.unknown)
        with self._threads(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield


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


def _plain(value: Any) -> Any:
    """Turn numbers of numpy, which grids contain, into plain ones."""
    return value.item() if isinstance(value, np.generic) else value
