"""Compilation of both passes at the same time, each on a core of its own: `python -m treefold.kernels.ahead float32` is one."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from treefold.kernels.calls import backward, forward
from treefold.kernels.compiled import compile_for
from treefold.kernels.tables import Floats, Ints, Plan, States, Weights

_TABLES: Final = {"operators", "sets", "orders", "terms", "steps", "groups", "label_runs", "set_runs", "group_runs"}
_FLAT: Final = {"values", "carry", "restricted"}


def compile_passes(dtype: "np.dtype[Any]") -> None:
    """Compile both passes for numbers of a type; what cannot be compiled elsewhere is left for its first use."""
    helper = None
    if (os.cpu_count() or 1) > 1 and sys.executable:
        with contextlib.suppress(OSError):
            helper = subprocess.Popen(
                # -P: without it, `-m` imports from the working directory, and a numpy.py there would be executed.
                [sys.executable, "-P", "-m", "treefold.kernels.ahead", str(dtype)],
                env={**os.environ, "PYTHONPATH": safe_import_path()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    flags, vectors, room = np.zeros(0, np.int64), np.zeros((0, 0), dtype), np.zeros(0, dtype)
    compile_for(forward, _example(Weights, dtype), *[flags] * 3, 0, *[flags] * 2, vectors, True, True, room)
    if helper is not None:
        helper.wait()


def safe_import_path() -> str:
    """Return `sys.path` as a ``PYTHONPATH`` for a child process, without relative entries and the working directory.

    The working directory stays only if treefold itself is imported from there.
    """
    own, here = Path(__file__).resolve().parents[2], Path.cwd()
    kept = [entry for entry in sys.path if Path(entry).is_absolute() and (Path(entry) != here or here == own)]
    return os.pathsep.join(kept)


def compile_backward(dtype: "np.dtype[Any]") -> None:
    """Compile the backward pass for numbers of a type."""
    values, vectors = np.zeros(0, dtype), np.zeros((0, 0), dtype)
    weights, plan, states = (_example(kind, dtype) for kind in (Weights, Plan, States))
    compile_for(backward, weights, plan, states, vectors, vectors, values, vectors)


def _example(kind: type[NamedTuple], dtype: "np.dtype[Any]") -> Any:
    """Make empty tables, of the types that real ones have."""
    found: list[Any] = []
    for name, annotation in kind.__annotations__.items():
        if annotation is int:
            found.append(0)
        elif annotation == Ints:
            found.append(np.zeros((0, 0) if name in _TABLES else 0, np.int64))
        else:
            assert annotation == Floats
            found.append(np.zeros(0 if name in _FLAT else (0, 0), dtype))
    return kind(*found)


if __name__ == "__main__":
    compile_backward(np.dtype(sys.argv[1]))
