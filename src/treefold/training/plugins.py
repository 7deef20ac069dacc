"""Parts that settings name (aggregators, cells, tasks), and how users add their own.

Users add a part to a registry, which is a dict: ``AGGREGATORS["mine"] = Mine``. In Python, import the module that does this; on
the command line, give it as ``--plugin FILE``.
"""

import importlib
import importlib.util
import os
import sys
import zlib
from pathlib import Path
from typing import Any, Final

from treefold.errors import ConfigurationError, nearest

# The module and the name of each registry. It is imported when a part is looked up, so that settings need no torch.
_REGISTRIES: Final = {
    "aggregator": ("treefold.nn.aggregators", "AGGREGATORS"),
    "cell": ("treefold.nn.cells", "CELLS"),
    "task": ("treefold.training.task", "TASKS"),
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
    module, variable = _REGISTRIES[kind]
    registry: dict[str, Any] = getattr(importlib.import_module(module), variable)
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
    except KeyboardInterrupt:
        raise
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
    except BaseException:
        del sys.modules[module]
        raise
