"""A running service with small models of formulas, for the tests of the explorer."""

import functools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI

from tests import runs
from treefold.analysis.explaining import probabilities
from treefold.data.dataset import Dataset
from treefold.service.app import create_app
from treefold.service.models import Served, open_models
from treefold.service.workers import listen
from treefold.training import train
from treefold.training.settings import RunSettings
from treefold.trees.drawing import shade
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

TRAINING = "still being trained; this is its model as of epoch 3"


@functools.cache
def formulas() -> Dataset:
    """All formulas of depth two over two truth values, with their value as class; the fifth of them is for tests."""
    values = {"t": True, "f": False}
    for _ in range(2):
        known = list(values.items())
        for left, one in known:
            for right, other in known:
                values[f"(and {left} {right})"] = one and other
                values[f"(or {left} {right})"] = one or other
    numbers = np.arange(len(values))
    splits = {"train": numbers[numbers % 5 > 0], "test": numbers[numbers % 5 == 0]}
    return Dataset.from_labels(list(values), ["yes" if true else "no" for true in values.values()], splits)


@functools.cache
def models() -> dict[str, Served]:
    """A model that has learnt the formulas, one that has not, and one of pairs."""
    place = runs.lrt().folder.parent
    for name, epochs in (("good", 40), ("hasty", 1)):
        settings = {
            "recipe": "paper",
            "model": {"state_size": 6},
            "training": {"epochs": epochs, "optimiser": "adamw", "learning_rate": 0.03, "batch_size": 16},
        }
        train(formulas(), place / name, RunSettings.of(settings))
    found = open_models([place / "good", place / "hasty", place / "lrt"])
    return {**found, "hasty": replace(found["hasty"], note=TRAINING)}


def data() -> dict[str, Dataset]:
    return {"good": formulas(), "hasty": formulas()}


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Serve on a free port of this machine; yield the address."""
    place = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, ws="none", log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        yield f"http://127.0.0.1:{place.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(20)
        place.close()


@contextmanager
def explorer(**options: Any) -> Iterator[str]:
    with running(create_app(models(), data=data(), **options)) as address:
        yield address


def ask(address: str, path: str, body: Any = None) -> Any:
    """Return the JSON of an answer; of a refusal, with its status."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return {"status": refusal.code, **json.load(refusal)}


def chances(name: str, tree: Tree) -> "np.ndarray[Any, Any]":
    """Return the probabilities of the classes for each subtree, in post-order, each computed as a tree of its own."""
    return probabilities(models()[name].saved, Forest(tree.postorder())).numpy()


def predicted(name: str, tree: Tree) -> list[str]:
    """Return the answer about each subtree, in post-order."""
    return [models()[name].classes[code] for code in chances(name, tree).argmax(1)]


def colours(name: str, tree: Tree) -> list[str]:
    """Return the colours that the nodes should have: that of the class, the paler the less sure."""
    rows = chances(name, tree)
    least = 1 / rows.shape[1]
    return [shade(int(row.argmax()), (row.max() - least) / (1 - least)) for row in rows]


def first_differences(tree: Tree) -> list[int]:
    """Return the nodes at which both models of formulas disagree although they agree about all children."""
    good, hasty = predicted("good", tree), predicted("hasty", tree)
    numbers = {id(node): number for number, node in enumerate(tree.postorder())}
    found = []
    for number, node in enumerate(tree.postorder()):
        below = [numbers[id(child)] for child in node.children if child is not None]
        if good[number] != hasty[number] and all(good[child] == hasty[child] for child in below):
            found.append(number)
    return found


def disputed() -> Tree:
    """Return a formula about which the models disagree, although they agree about its parts."""
    return next(tree for tree in formulas().forest if first_differences(tree) == [tree.size - 1])


PAGE = Path(__file__).parents[2] / "src" / "treefold" / "service" / "page"
