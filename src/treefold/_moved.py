"""Old module names: importing one gives the module at its new place, with a `DeprecationWarning`."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

MOVED: Final = {
    "treefold.aggregators": "treefold.nn.aggregators",
    "treefold.baselines": "treefold.analysis.baselines",
    "treefold.batch": "treefold.trees.batch",
    "treefold.building": "treefold.training.build",
    "treefold.cells": "treefold.nn.cells",
    "treefold.dataset": "treefold.data.dataset",
    "treefold.datasets": "treefold.data.generators",
    "treefold.datasets.build": "treefold.data.generators",
    "treefold.datasets.convert": "treefold.data.convert",
    "treefold.decompositions": "treefold.nn.math.decompositions",
    "treefold.encoder": "treefold.nn.encoder",
    "treefold.evaluation": "treefold.analysis.evaluation",
    "treefold.experiments": "treefold.sweeps",
    "treefold.explaining": "treefold.analysis.explaining",
    "treefold.forest": "treefold.trees.forest",
    "treefold.functional": "treefold.nn.math.functional",
    "treefold.labels": "treefold.nn.labels",
    "treefold.models": "treefold.nn",
    "treefold.nn.aggregators.hadamard": "treefold.nn.aggregators.blockwise",
    "treefold.readers": "treefold.data.readers",
    "treefold.reporting": "treefold.sweeps.report",
    "treefold.saving": "treefold.training.saving",
    "treefold.settings": "treefold.training.settings",
    "treefold.shaping": "treefold.trees.shaping",
    "treefold.symmetric": "treefold.nn.math.symmetric",
    "treefold.tree": "treefold.trees.tree",
    "treefold.vocabulary": "treefold.trees.vocabulary",
}
"""The new names of modules by their old names; submodules of a moved package moved along with it."""

RENAMED_FORMS: Final = {"hadamard": "blockwise"}
"""The new names of aggregators by their old names."""

RENAMED_CLASSES: Final = {"Hadamard": "treefold.nn.aggregators"}
"""The modules that know old names of classes, and warn."""


def new_name(name: str) -> str | None:
    """Return the new name of a module that moved, None for all other modules.

    >>> new_name("treefold.datasets.convert"), new_name("treefold.datasets.lrt"), new_name("treefold.errors")
    ('treefold.data.convert', 'treefold.data.generators.lrt', None)
    """
    if not name.startswith("treefold."):
        return None
    package, submodule = ".".join(name.split(".")[:2]), name.split(".")[2:]
    found = MOVED.get(name)
    return found if found or package not in MOVED else ".".join([MOVED[package], *submodule])


class _Redirect:
    """Finds moved modules, and loads the module of the new name in place of the old one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = new_name(name)
        if new is None:
            return None
        warnings.warn(f"{name} has moved; import {new} instead.", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # has a loader's methods

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(new_name(spec.name)))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has given the module the spec of the old name.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Make the old names importable; does nothing the second time."""
    if not any(isinstance(finder, _Redirect) for finder in sys.meta_path):
        # First, because a moved package has the new package's path, from which the old submodule would be loaded a second time.
        sys.meta_path.insert(0, _Redirect())
