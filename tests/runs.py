"""Tiny runs, trained once in a process, for the tests of what is done with models."""

import atexit
import functools
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treefold.data.dataset import Dataset
from treefold.data.generators import make_listops, make_lrt
from treefold.data.generators.listops import ListOpsSettings
from treefold.training import train
from treefold.training.saving import SavedModel, load_model
from treefold.training.settings import RunSettings
from treefold.trees.forest import Forest

_PLACE = tempfile.TemporaryDirectory()
atexit.register(_PLACE.cleanup)


class Run(NamedTuple):
    folder: Path
    data: Dataset
    data_folder: Path
    saved: SavedModel


@functools.cache
def listops() -> Run:
    return _run("listops", make_listops(300, settings=ListOpsSettings(max_nodes=60)), "tree")


@functools.cache
def lrt() -> Run:
    return _run("lrt", make_lrt(400), "pair", comparison_size=6)


@functools.cache
def nodes() -> Run:
    return _run("nodes", make_listops(100, settings=ListOpsSettings(max_nodes=40)), "node")


@functools.cache
def numbers() -> Run:
    return _run("numbers", make_listops(100, settings=ListOpsSettings(max_nodes=40)), "regression")


@functools.cache
def similarities() -> Run:
    """A run of pairs with numbers: the share of labels that two trees have in common, in eighths, times 40, plus 100."""
    forest = make_lrt(200).forest[:240]
    bags = [{node.label for node in tree.preorder()} for tree in forest]
    shares = [len(one & other) / len(one | other) for one, other in zip(bags[::2], bags[1::2], strict=True)]
    targets = np.array([round(8 * share) for share in shares])
    splits = {"train": np.arange(80), "validation": np.arange(80, 100), "test": np.arange(100, 120)}
    data = Dataset(forest, targets, tuple(str(100 + 5.0 * eighths) for eighths in range(9)), splits, pairs=True)
    return _run("similarities", data, "pair-regression", comparison_size=6, levels=4)


@functools.cache
def full() -> Run:
    """A run of narrow trees whose tensors can be decomposed."""
    forest = Forest(["(and a (or b a))", "(or a b)", "(and (and a b) b)", "(or (and a a) b)"] * 5)
    splits = {"train": np.arange(16), "test": np.arange(16, 20)}
    data = Dataset(forest, np.array([0, 1, 0, 1] * 5), ("and", "or"), splits)
    return _run("full", data, "tree", aggregator="full")


def trained(folder: Path, forest: Forest, targets: "np.ndarray[Any, Any]", classes: tuple[str, ...]) -> Path:
    """Train a small model on trees of one's own."""
    data = Dataset(forest, targets, classes, {"train": np.arange(len(targets))})
    train(
        data, folder / "own", RunSettings.of({"recipe": "paper", "model": {"state_size": 3}, "training": {"epochs": 1}})
    )
    return folder / "own"


def _run(name: str, data: Dataset, task: str, **model: Any) -> Run:
    folder = Path(_PLACE.name)
    data.save(folder / f"{name}-data")
    settings = {
        "task": task,
        "recipe": "paper",
        "model": {"state_size": 4, **model},
        "training": {"epochs": 2, "optimiser": "adamw", "learning_rate": 0.02},
    }
    train(data, folder / name, RunSettings.of(settings))
    return Run(folder / name, data, folder / f"{name}-data", load_model(folder / name))
