"""Parts that settings name (aggregators, cells, tasks), and how users add their own.

Users add a part to a registry, which is a dict: ``AGGREGATORS["mine"] = Mine``. In Python, import the module that does this; on
the command line, give it as ``--plugin FILE``.
"""

import importlib
import importlib.util
import inspect
import os
import sys
import zlib
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final

from treefold.errors import ConfigurationError, TreefoldError, nearest

# The module and the name of each registry, and what it expects. The module is imported at the first look-up: settings need no
# torch.
_REGISTRIES: Final = {
    "aggregator": ("treefold.nn.aggregators", "AGGREGATORS", "a subclass of Aggregator without abstract methods"),
    "cell": ("treefold.nn.cells", "CELLS", "a pair of subclasses of Cell without abstract methods"),
    "task": ("treefold.training.task", "TASKS", "an object of a subclass of Task, with a name"),
    "reader": ("treefold.data.readers", "READERS", "a function that yields records"),
    "suffix": ("treefold.data.readers", "SUFFIXES", "the name of a reader"),
}
_VARIABLE: Final = "TREEFOLD_PLUGINS"


def registered(kind: str, name: str) -> Any:
    """Return a part by its kind and name.

    >>> registered("aggregator", "tuker")
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: unknown aggregator 'tuker' (nearest known: 'tucker'), expected 'sum', ...
    """
    if kind == "aggregator" and "+" in name:
        for part in name.split("+"):
            registered(kind, part)
        return importlib.import_module("treefold.nn.aggregators").form_named(name)
    registry = _registry(kind)
    if name not in registry:
        for plugin in filter(None, os.environ.get(_VARIABLE, "").split(os.pathsep)):
            load_plugin(plugin)
    if name not in registry:
        known = ", ".join(map(repr, registry))
        raise ConfigurationError(
            f"unknown {kind} {name!r}{nearest(name, registry)}, expected {known}; if it is your own, pass --plugin FILE "
            f"(or import it before load)."
        )
    return registry[name]


def _registry(kind: str) -> dict[str, Any]:
    """Return a registry; raise if it holds what is no part, because anybody can write to it."""
    module, variable, expected = _REGISTRIES[kind]
    registry: dict[str, Any] = getattr(importlib.import_module(module), variable)
    if not registry:
        raise ConfigurationError(f"{variable} expects at least one part, got none; add parts, and remove none.")
    for name, part in registry.items():
        if not isinstance(name, str):
            raise ConfigurationError(f"{variable} expects text as names, got {shortened(name)}; write it in quotes.")
        if not _is_part(kind, part):
            raise ConfigurationError(f"{variable}[{name!r}] expects {expected}, got {shortened(part)}; correct it.")
    return registry


def _is_part(kind: str, part: Any) -> bool:
    def is_class(given: Any, base: str) -> bool:
        return (
            isinstance(given, type)
            and issubclass(given, getattr(sys.modules[_REGISTRIES[kind][0]], base))
            and not inspect.isabstract(given)
        )

    if kind == "aggregator":
        return is_class(part, "Aggregator")
    if kind == "cell":
        return isinstance(part, (tuple, list)) and len(part) == 2 and all(is_class(each, "Cell") for each in part)
    if kind == "task":
        return is_class(type(part), "Task") and isinstance(getattr(part, "name", None), str)
    return callable(part) if kind == "reader" else isinstance(part, str) and part in _registry("reader")


def _require_parts() -> None:
    """Check the registries that are imported; a plugin that writes to one imports it."""
    for kind, (module, *_) in _REGISTRIES.items():
        if module in sys.modules:
            _registry(kind)


def load_plugin(name: str) -> None:
    """Run a Python file, or import a module by its name, that puts parts into registries; each is loaded once.

    Processes that are started later, such as the workers of a sweep, load it too: its name is added to the environment
    variable ``TREEFOLD_PLUGINS``.
    """
    is_file = name.endswith(".py") or os.sep in name
    try:
        if is_file:
            path = Path(name).resolve(strict=True)
            if not path.is_file():  # to open a pipe can wait for ever
                raise ValueError("it is a folder, pipe or device")
            name = str(path)
            _run_file(name)
        else:
            importlib.import_module(name)
            _require_parts()
    except KeyboardInterrupt:
        raise
    except TreefoldError as problem:
        raise ConfigurationError(f"the plugin {name!r} cannot be loaded: {problem}") from problem
    except BaseException as problem:  # also SystemExit: a command would end with its code, and nothing done
        raise ConfigurationError(
            f"the plugin {name!r} cannot be loaded: {type(problem).__name__}: {problem}; "
            f"give a Python file, or a module that can be imported."
        ) from problem
    known = list(filter(None, os.environ.get(_VARIABLE, "").split(os.pathsep)))
    if name not in known:
        os.environ[_VARIABLE] = os.pathsep.join([*known, name])


def _run_file(path: str) -> None:
    module = f"treefold_plugin_{zlib.crc32(path.encode()):08x}"  # the same in every process, so that pickles find it
    if module in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(module, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is not Python")
    sys.modules[module] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[module])
        _require_parts()
    except BaseException:
        del sys.modules[module]
        raise
