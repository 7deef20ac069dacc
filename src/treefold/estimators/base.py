"""The base of all estimators: their arguments, training, and prediction."""

import contextlib
import math
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
from treefold.training.build import build_model, facts_of, resolve
from treefold.training.examples import Examples, outputs_of
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
    "direction",
    "hidden",
    "dropout",
)
_TRAINING = ("optimiser", "learning_rate", "schedule", "epochs", "batch_size", "patience", "l2", "weight_decay", "clip")
_EPOCHS, _MOST_EPOCHS, _STEPS = 40, 200, 800  # few trees need more epochs for as many steps
_RATES = {"adamw": 0.005}


class TreeEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of all estimators, with their arguments.

    Model: ``cell`` ("lstm", "rnn"), ``aggregator``, ``state_size``, ``rank``, ``shared``, ``arity``, ``per_label`` (a cell for
    each operator), ``labels`` ("onehot", "thermometer", "embedding", "numeric"), ``direction`` ("up", "down", "both"),
    ``hidden`` layers of the head, ``dropout``: see `ModelSettings`. Those that are None are chosen from the trees.

    Training: ``optimiser`` ("adamw", "adadelta"), ``learning_rate`` (None: 0.005 for adamw), ``schedule`` ("cosine",
    "constant"), ``epochs`` (None: 40, up to 200 for few trees), ``batch_size``, ``l2``, ``weight_decay``, ``clip``: see
    `TrainingSettings`. A ``validation_fraction`` of the trees is held out, if these are ten or more; the weights of the best
    epoch are kept, and training stops if ``patience`` epochs in a row were no better (None: never).
    ``class_weight`` is None, "balanced" or a dict.

    ``unknown`` says how to treat labels that no training tree had: with "unk" they have the vector of ``<unk>``, with "error"
    they raise. If operators have their own cells, an inner node with an unknown label counts as a leaf. ``unknown_labels_``
    has the unknown labels of the last prediction, with their numbers of nodes. ``warm_start`` continues from
    the weights of the last ``fit``, with labels and classes that the model knows. ``random_state`` is as in scikit-learn.
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
        cell: str = "lstm",
        aggregator: str | None = None,
        state_size: int = 20,
        rank: int | None = None,
        shared: bool | None = None,
        arity: int | None = None,
        per_label: bool | None = None,
        labels: str | None = None,
        direction: str = "up",
        hidden: Sequence[int] = (20, 20),
        dropout: float = 0.0,
        optimiser: str = "adamw",
        learning_rate: float | None = None,
        schedule: str = "cosine",
        epochs: int | None = None,
        batch_size: int = 50,
        patience: int | None = 20,
        l2: float = 0.0,
        weight_decay: float = 1e-4,
        clip: float | None = 1.0,
        validation_fraction: float = 0.1,
        class_weight: Any = None,
        unknown: str = "unk",
        random_state: Any = None,
        warm_start: bool = False,
        n_threads: int | None = 1,
        verbose: bool = False,
    ) -> None:
        self.cell = cell
        self.aggregator = aggregator
        self.state_size = state_size
        self.rank = rank
        self.shared = shared
        self.arity = arity
        self.per_label = per_label
        self.labels = labels
        self.direction = direction
        self.hidden = hidden
        self.dropout = dropout
        self.optimiser = optimiser
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.epochs = epochs
        self.batch_size = batch_size
        self.patience = patience
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
            trainer = Trainer(saved.model, examples, train, held_out, saved.settings.training)
            result = trainer.run(_Printer(self._name) if self.verbose else Silent())
            trainer.flat.release()
        self.saved_, self.history_, self.n_iter_ = saved, result.history, result.epochs
        return self

    def _start(self, examples: Examples, outputs: int, class_names: tuple[str, ...], seed: int) -> SavedModel:
        """Return the model to train, a fresh one or that of the last fit, with its settings."""
        training = self._training_settings(seed, len(examples))
        self.unknown_labels_ = Counter()
        if self.warm_start and hasattr(self, "saved_"):
            self._check_warm_start(examples, outputs, class_names)
            settings = self.saved_.settings.model_copy(update={"training": training})
            return SavedModel(self.saved_.model, settings, self.saved_.labels, class_names, self.saved_.outputs)
        chosen, labels = resolve(self._model_settings(), facts_of(examples.forest))
        settings = RunSettings(task=examples.task.name, model=chosen, training=training)
        model = build_model(chosen, labels, examples.task, outputs)
        return SavedModel(model, settings, labels, class_names, outputs)

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
        for name, value in self._model_settings():
            if value is not None and name in _MODEL and value != getattr(saved.settings.model, name):
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
        self.unknown_labels_ = encoder.unknown_labels(forest)
        if self.unknown_labels_ and self.unknown == "error":
            label, pairs = next(iter(self.unknown_labels_)), task_of(self.task).trees == 2
            raise unknown_label(forest, label, encoder.vocabulary, self._name, pairs=pairs)
        return self.saved_.model

    def _model_settings(self) -> ModelSettings:
        return ModelSettings.of({name: _plain(getattr(self, name)) for name in _MODEL}, self._name)

    def _training_settings(self, seed: int, count: int) -> TrainingSettings:
        values = {name: _plain(getattr(self, name)) for name in _TRAINING}
        values |= {"seed": seed, "threads": _plain(self.n_threads)}
        if values["learning_rate"] is None:
            values["learning_rate"] = _RATES.get(values["optimiser"])
        if values["epochs"] is not None:
            return TrainingSettings.of(values, self._name)
        settings = TrainingSettings.of({**values, "epochs": _EPOCHS}, self._name)
        steps = math.ceil(count / settings.batch_size)
        epochs = max(_EPOCHS, min(_MOST_EPOCHS, math.ceil(_STEPS / steps)))
        return settings.model_copy(update={"epochs": epochs})

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
