"""What only a process of its own shows: the memory of a training, and the first use of the kernels."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from treefold.bench.cases import CASES, HEADLINE, examples_of, model_of
from treefold.bench.growth import forward_backward
from treefold.bench.machine import peak_growth
from treefold.bench.options import Job, Options, Values
from treefold.bench.ways import FUSED, with_settings
from treefold.data.generators import make_listops
from treefold.errors import TrainingError

_CHILD: Final = "treefold.bench.child"
_BATCHES: Final = (256, 512, 1024, 2048, 4096)


def memory(options: Options) -> dict[str, Job]:
    """The peak of memory of a training, and the memory that a batch takes for each node."""
    jobs: dict[str, Job] = {options.title("training"): functools.partial(_training, options)}
    for size in _BATCHES[: options.size(full=5, quick=2)]:
        jobs[f"state, batch {size}"] = functools.partial(_state, options, size)
    return jobs


def compilation(options: Options) -> dict[str, Job]:
    """The first training step in a new environment, where nothing is compiled yet, and that of a second process."""
    return {"first use": _first_use}


def _training(options: Options) -> Values:
    trees = options.size(full=80_000, quick=500)
    # Of 100 trees 82 are for training.
    data = make_listops(round(trees / 0.82))
    with tempfile.TemporaryDirectory() as folder:
        data.save(Path(folder) / "data")
        trained = len(data.splits["train"])
        del data
        found = in_child("train", Path(folder) / "data", Path(folder) / "run", options.threads)
    return {
        "trees": trained,
        "peak_gigabytes": found["peak_bytes"] / 1e9,
        "before_gigabytes": found["before_bytes"] / 1e9,
        "seconds": found["seconds"],
        "threads": options.threads,
    }


def _state(options: Options, size: int) -> Values:
    examples = examples_of("listops", options.size(full=5000, quick=300))
    encoder = with_settings(model_of(CASES[HEADLINE]), FUSED).encoder
    forest = examples.forest[np.arange(size) % len(examples)]
    forward_backward(encoder, forest)
    grown = peak_growth(functools.partial(forward_backward, encoder, forest))
    return {
        "nodes": forest.node_count,
        "peak_megabytes": None if grown is None else grown / 1e6,
        "bytes_per_node": None if grown is None else grown / forest.node_count,
        "threads": options.threads,
    }


def _first_use() -> Values:
    with tempfile.TemporaryDirectory() as folder:
        first = in_child("compile", NUMBA_CACHE_DIR=folder)
        kept = _files(folder)
        second = in_child("compile", NUMBA_CACHE_DIR=folder)
        return {
            "first_seconds": first["seconds"],
            "second_seconds": second["seconds"],
            "announced": first["warnings"],
            "announced_again": second["warnings"],
            "kept_files": len(kept),
            "compiled_again": _files(folder) != kept,
        }


def _files(folder: str) -> dict[str, int]:
    """Return the files of compiled code, and when each was written."""
    return {str(path): path.stat().st_mtime_ns for path in Path(folder).rglob("*.nbc")}


def in_child(*arguments: object, **environment: str) -> dict[str, Any]:
    """Run a job of `treefold.bench.child` in a fresh process, and return what it found."""
    command = [sys.executable, "-m", _CHILD, *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise TrainingError(f"the benchmark expects its process to end well, got exit code {done.returncode}: {said}.")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
