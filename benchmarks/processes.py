"""The suites `memory` and `compile`, which need a new process: the memory of a training run, and the first use of the kernels.

The new process runs this file: `python benchmarks/processes.py JOB …` prints the result as JSON.
"""

import functools
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import treefold
from benchmarks.cases import CASES, FUSED, HEADLINE, examples_of, forward_backward, model_of, training, with_settings
from benchmarks.library import Dataset, RunSettings, make_listops, train
from benchmarks.measuring import (
    Job,
    Options,
    Values,
    child_command,
    child_environment,
    peak_growth,
    peak_resident,
)
from treefold.errors import TrainingError

_BATCHES: Final = (256, 512, 1024, 2048, 4096)


def memory(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `memory`: the peak of a training run, and the memory of a batch for each node."""
    jobs: dict[str, Job] = {options.title("training"): functools.partial(_training, options)}
    for size in _BATCHES[: options.size(full=5, quick=2)]:
        jobs[f"state, batch {size}"] = functools.partial(_state, options, size)
    return jobs


def compilation(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `compile`: the first training step with an empty cache, and that of a second process.

    The first job is that of the headline case; then come those of the other forms.
    """
    others = ["sum 25", "full 5", "shared tucker 50 5", "canonical 100 50", "tensor-train 50 12"]
    cases = {"first use": HEADLINE} | {
        f"first use, {name}": f"listops {name}" for name in others[: options.size(full=5, quick=0)]
    }
    return {name: functools.partial(_first_use, case) for name, case in cases.items()}


def _training(options: Options) -> Values:
    trees = options.size(full=80_000, quick=500)
    data = make_listops(round(trees / 0.82))  # of 100 trees 82 are for training
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


def _first_use(case: str) -> Values:
    with tempfile.TemporaryDirectory() as folder:
        first = in_child("compile", case, TREEFOLD_CACHE_DIR=folder)
        kept = _files(folder)
        second = in_child("compile", case, TREEFOLD_CACHE_DIR=folder)
        return {
            "first_seconds": first["seconds"],
            "second_seconds": second["seconds"],
            "announced": [said.replace(folder, "CACHE") for said in first["warnings"]],
            "announced_again": [said.replace(folder, "CACHE") for said in second["warnings"]],
            "kept_files": len(kept),
            "compiled_again": _files(folder) != kept,
        }


def _files(folder: str) -> dict[str, int]:
    """Return the files of compiled code with the time of their last change."""
    return {str(path): path.stat().st_mtime_ns for path in Path(folder).rglob("*.nbc")}


def in_child(*arguments: object, **environment: str) -> dict[str, Any]:
    """Run one of the `JOBS` in a new process and return its result."""
    source = Path(treefold.__file__).parents[1]
    done = subprocess.run(
        child_command(Path(__file__), *arguments),
        env=child_environment(source, **environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TrainingError(f"the process of the benchmark failed with exit code {done.returncode}: {said}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def trained(data: str, folder: str, threads: str) -> dict[str, Any]:
    """Train for an epoch as `treefold train` does; return the seconds, and the bytes in use before and at the peak."""
    before = peak_resident()
    settings = {
        "recipe": "paper",
        "model": {"aggregator": "tucker", "state_size": 20, "rank": 3},
        "training": {"epochs": 1, "threads": int(threads)},
    }
    start = time.perf_counter()
    train(Dataset.open(Path(data)), Path(folder), RunSettings.of(settings))
    return {"seconds": time.perf_counter() - start, "before_bytes": before, "peak_bytes": peak_resident()}


def first_steps(case: str) -> dict[str, Any]:
    """Train the model of a case for two steps; return the seconds and the warnings of treefold."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("treefold").addHandler(handler)
    torch.set_num_threads(1)
    model, examples = with_settings(model_of(CASES[case]), FUSED), examples_of("listops", 50)
    start = time.perf_counter()
    training(model, examples, batch=25, steps=1)(time.perf_counter)
    return {"seconds": time.perf_counter() - start, "warnings": warnings}


JOBS: Final[dict[str, Callable[..., dict[str, Any]]]] = {"train": trained, "compile": first_steps}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
