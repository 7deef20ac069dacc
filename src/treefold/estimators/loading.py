"""From a directory back to an estimator."""

import os
from typing import Any, Final

import numpy as np

from treefold.errors import ModelFileError
from treefold.estimators.base import TreeEstimator
from treefold.estimators.embedder import TreeEmbedder
from treefold.estimators.files import NAME, read_estimator
from treefold.estimators.supervised import NodeClassifier, TreeClassifier, TreePairClassifier, TreeRegressor
from treefold.training.saving import SavedModel, load_model

ESTIMATORS: Final[dict[str, type[TreeEstimator]]] = {
    "TreeClassifier": TreeClassifier,
    "TreePairClassifier": TreePairClassifier,
    "NodeClassifier": NodeClassifier,
    "TreeRegressor": TreeRegressor,
    "TreeEmbedder": TreeEmbedder,
}
TASKS: Final = {
    "tree": "TreeClassifier",
    "pair": "TreePairClassifier",
    "node": "NodeClassifier",
    "regression": "TreeRegressor",
}


def load(folder: str | os.PathLike[str]) -> Any:
    """Return the fitted estimator that was saved in a directory, or one with the best model of a run.

    The estimator of a run has the classes of the data set, as text. Fitted anew, it would have the run's settings as far as
    estimators have them.

    >>> import tempfile
    >>> trees, y = ["(f a b)", "(f b a)", "(f a a)", "(f b b)"], [10, 20, 20, 10]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     TreeClassifier(state_size=8, epochs=60, random_state=0).fit(trees, y).save(folder)
    ...     load(folder).predict(["(f b a)"])
    array([20])
    """
    saved = load_model(folder)
    facts = read_estimator(folder, ESTIMATORS)
    if facts is None:
        facts = _of_run(saved)
    cls = ESTIMATORS[facts["class"]]
    known = cls().get_params(deep=False)
    unknown = set(facts["parameters"]) - set(known)
    if unknown:
        raise ModelFileError(
            f"{os.fspath(folder)}/{NAME}: expected arguments of {cls.__name__}, got {sorted(unknown)[0]!r}; "
            f"load it with the treefold that wrote it."
        )
    estimator = cls(**facts["parameters"])
    estimator.saved_, estimator.history_, estimator.n_iter_ = saved, facts["history"], len(facts["history"])
    fits = saved.settings.task in (cls._task, "regression") if cls is TreeEmbedder else saved.settings.task == cls._task
    if cls is TreeRegressor:
        fits = fits and facts.keys() >= {"mean", "scale"} and facts["mean"].size == saved.outputs
    elif cls is not TreeEmbedder:
        fits = fits and "classes" in facts and len(facts["classes"]) == saved.outputs
    if not fits:
        raise ModelFileError(f"{os.fspath(folder)}: expected a model that fits {NAME}, got another; it was mixed up.")
    for name in ("classes", "mean", "scale"):
        if name in facts:
            setattr(estimator, f"{name}_", facts[name])
    return estimator


def _of_run(saved: SavedModel) -> dict[str, Any]:
    """Return what the file of an estimator would say of a run."""
    settings = saved.settings
    values = {**settings.model.model_dump(), **settings.training.model_dump()}
    arguments = {name: values[name] for name in TreeClassifier().get_params(deep=False) if name in values}
    arguments |= {"random_state": settings.training.seed, "n_threads": settings.training.threads}
    facts = {"class": TASKS[settings.task], "parameters": arguments, "history": []}
    if settings.task == "regression":
        ones = np.ones(saved.outputs) if saved.outputs > 1 else np.ones(())
        return {**facts, "mean": 0 * ones, "scale": ones}
    return {**facts, "classes": np.array(saved.classes)}
