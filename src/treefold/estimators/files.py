"""What an estimator is besides its model: one more file in the directory of the model, ``estimator.json``."""

import json
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from treefold.errors import ModelFileError
from treefold.training.saving import write_text

NAME: Final = "estimator.json"
VERSION: Final = 1
_CLASS_KINDS: Final = "UOibuf"


def write_estimator(folder: str | os.PathLike[str], estimator: Any) -> None:
    """Write what `treefold.load` needs; a RandomState is written as None, since it cannot be continued elsewhere."""
    facts: dict[str, Any] = {
        "format": "treefold estimator",
        "version": VERSION,
        "class": type(estimator).__name__,
        "parameters": {name: _packed(value) for name, value in estimator.get_params(deep=False).items()},
        "history": estimator.history_,
    }
    if hasattr(estimator, "classes_"):
        facts["classes"] = {"dtype": estimator.classes_.dtype.str, "values": estimator.classes_.tolist()}
    if hasattr(estimator, "mean_"):
        facts["mean"], facts["scale"] = estimator.mean_.tolist(), estimator.scale_.tolist()
    write_text(Path(folder) / NAME, json.dumps(facts, indent=1) + "\n")


def read_estimator(folder: str | os.PathLike[str], known: dict[str, Any]) -> dict[str, Any] | None:
    """Read the file; None where there is none, as in the directory of a run."""
    path = Path(folder) / NAME
    if not path.exists():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ModelFileError(f"{path}: expected a JSON file, got {problem}; the estimator is damaged.") from None
    if not isinstance(facts, dict) or facts.get("format") != "treefold estimator" or facts.get("version") != VERSION:
        got = f"version {facts.get('version')!r}" if isinstance(facts, dict) else type(facts).__name__
        raise ModelFileError(
            f"{path}: expected a treefold estimator of version {VERSION}, got {got}; load it with the treefold that wrote it."
        )
    try:
        if facts["class"] not in known:
            raise ModelFileError(f"{path}: expected one of the estimators {', '.join(known)}, got {facts['class']!r}.")
        facts["history"] = list(facts["history"])
        facts["parameters"] = {name: _unpacked(value) for name, value in facts["parameters"].items()}
        if "classes" in facts:
            dtype = np.dtype(facts["classes"]["dtype"])
            if dtype.kind not in _CLASS_KINDS:
                raise TypeError(f"classes of {dtype}")
            facts["classes"] = np.array(facts["classes"]["values"], dtype=dtype)
        for name in ("mean", "scale"):
            if name in facts:
                facts[name] = np.array(facts[name], dtype=np.float64)
    except (KeyError, TypeError, AttributeError) as problem:
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
