"""Saved estimators: the files of the model, and ``estimator.json`` with the estimator's arguments and fitted attributes."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final

import numpy as np

from treefold.errors import ConfigurationError, ModelFileError
from treefold.estimators.base import TreeEstimator
from treefold.estimators.supervised import (
    NodeClassifier,
    TreeClassifier,
    TreeEmbedder,
    TreePairClassifier,
    TreePairRegressor,
    TreeRegressor,
)
from treefold.files import read_json
from treefold.training.saving import SavedModel, load_model
from treefold.training.task import Units

# An estimator of your own belongs here, too, if it is to be loaded.
ESTIMATORS: dict[str, type[TreeEstimator]] = {
    "TreeClassifier": TreeClassifier,
    "TreePairClassifier": TreePairClassifier,
    "NodeClassifier": NodeClassifier,
    "TreeRegressor": TreeRegressor,
    "TreePairRegressor": TreePairRegressor,
    "TreeEmbedder": TreeEmbedder,
}
NAME: Final = "estimator.json"
VERSION: Final = 1
_CLASS_KINDS: Final = "UOibuf"


def load(folder: str | os.PathLike[str]) -> Any:
    """Return the fitted estimator that was saved in a directory, or one with the best model of a run.

    The estimator of a run has the classes of the data set, as text. If it is fitted again, it uses the settings of the run
    that are arguments of estimators.

    >>> import tempfile
    >>> trees, y = ["(f a b)", "(f b a)", "(f a a)", "(f b b)"], [10, 20, 20, 10]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     TreeClassifier(state_size=8, epochs=60, random_state=0).fit(trees, y).save(folder)
    ...     load(folder).predict(["(f b a)"])
    array([20])
    """
    saved, path = load_model(folder), Path(folder) / NAME
    facts = _read(path) if path.exists() else _of_run(saved)
    if "mean" in facts:  # of an older version, which did not save units with the model
        saved = replace(saved, units=Units(*(tuple(facts[name].reshape(-1).tolist()) for name in ("mean", "scale"))))
    cls = ESTIMATORS[facts["class"]]
    unknown = set(facts["parameters"]) - set(cls().get_params(deep=False))
    if unknown:
        raise ModelFileError(
            f"{path}: expected arguments of {cls.__name__}, got {sorted(unknown)[0]!r}; load it with the treefold that wrote it."
        )
    estimator = cls(**facts["parameters"])
    estimator.saved_, estimator.history_, estimator.n_iter_ = saved, facts["history"], len(facts["history"])
    estimator.unknown_labels_ = Counter()
    if not _fits(cls, saved, facts):
        raise ModelFileError(
            f"{path}: expected the estimator of the model in this directory, got {cls.__name__} with "
            f"different outputs; the files are not of one estimator."
        )
    if "classes" in facts:
        estimator.classes_ = facts["classes"]
    return estimator


def _fits(cls: type[TreeEstimator], saved: SavedModel, facts: dict[str, Any]) -> bool:
    """Say whether a model is one of this class of estimators."""
    if issubclass(cls, TreeEmbedder):
        return saved.settings.task in (cls.task, TreeRegressor.task)
    if saved.settings.task != cls.task:
        return False
    if saved.task.has_classes:
        return "classes" in facts and len(facts["classes"]) == saved.outputs
    return len(saved.units.scale) == saved.outputs


def _of_run(saved: SavedModel) -> dict[str, Any]:
    """Return the facts about a run that ``estimator.json`` would have."""
    settings = saved.settings
    name = next((name for name, cls in ESTIMATORS.items() if cls.task == settings.task), None)
    if name is None:
        raise ModelFileError(
            f"no estimator has the task {settings.task!r}; add one to treefold.estimators.ESTIMATORS, "
            f"or use treefold.training.saving.load_model."
        )
    values = {**settings.model.model_dump(), **settings.training.model_dump()}
    arguments = {name: values[name] for name in TreeClassifier().get_params(deep=False) if name in values}
    arguments |= {"random_state": settings.training.seed, "n_threads": settings.training.threads}
    facts = {"class": name, "parameters": arguments, "history": []}
    if saved.task.has_classes:
        return {**facts, "classes": np.array(saved.classes)}
    return facts if saved.units.scale else {**facts, "mean": np.zeros(saved.outputs), "scale": np.ones(saved.outputs)}


def estimator_file(estimator: Any) -> bytes:
    """Return the content of an estimator's file. A RandomState and callbacks become None: they cannot go on elsewhere."""
    arguments = {**estimator.get_params(deep=False), "callbacks": None}
    facts: dict[str, Any] = {
        "format": "treefold estimator",
        "version": VERSION,
        "class": type(estimator).__name__,
        "parameters": {name: _packed(value) for name, value in arguments.items()},
        "history": estimator.history_,
    }
    if hasattr(estimator, "classes_"):
        facts["classes"] = {"dtype": estimator.classes_.dtype.str, "values": estimator.classes_.tolist()}
    try:
        return (json.dumps(facts, indent=1) + "\n").encode()
    except (TypeError, ValueError) as problem:
        raise ConfigurationError(
            f"{type(estimator).__name__} expects arguments that can be saved, numbers, texts, lists and dicts, got {problem}; "
            f"set others."
        ) from None


def _read(path: Path) -> dict[str, Any]:
    facts = read_json(path, ModelFileError, "the estimator is damaged")
    if facts.get("format") != "treefold estimator" or facts.get("version") != VERSION:
        raise ModelFileError(
            f"{path}: expected a treefold estimator of version {VERSION}, got version {shortened(facts.get('version'))}; load it "
            f"with the treefold that wrote it."
        )
    try:
        if facts["class"] not in ESTIMATORS:
            known = ", ".join(ESTIMATORS)
            raise ModelFileError(f"{path}: expected one of the estimators {known}, got {facts['class']!r}.")
        facts["history"] = list(facts["history"])
        facts["parameters"] = {name: _unpacked(value) for name, value in facts["parameters"].items()}
        if facts["parameters"].get("unknown") == "zero":  # its name in older versions
            facts["parameters"]["unknown"] = "unk"
        if "classes" in facts:
            dtype = np.dtype(facts["classes"]["dtype"])
            if dtype.kind not in _CLASS_KINDS:
                raise TypeError(f"classes of {dtype}")
            facts["classes"] = np.array(facts["classes"]["values"], dtype=dtype)
            if facts["classes"].ndim != 1:
                raise TypeError(f"classes of the shape {facts['classes'].shape}")
        if "mean" in facts:
            facts |= {name: np.array(facts[name], dtype=np.float64) for name in ("mean", "scale")}
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as problem:
        if isinstance(problem, ModelFileError):
            raise
        raise ModelFileError(f"{path}: expected a whole file, got {problem}; the estimator is damaged.") from None
    return facts


def _packed(value: Any) -> Any:
    """Turn an argument into JSON that keeps its type: tuples, and dicts with keys that are not text."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return {"tuple": [_packed(entry) for entry in value]}
    if isinstance(value, (list, np.ndarray)):
        return [_packed(entry) for entry in value]
    if isinstance(value, dict):
        return {"dict": [[_packed(key), _packed(entry)] for key, entry in value.items()]}
    return None if isinstance(value, np.random.RandomState) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(entry) for entry in value]
    if isinstance(value, dict) and "tuple" in value:
        return tuple(_unpacked(entry) for entry in value["tuple"])
    if isinstance(value, dict):
        return {_unpacked(key): _unpacked(entry) for key, entry in value["dict"]}
    return value
