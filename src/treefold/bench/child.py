"""`python -m treefold.bench.child JOB …`: jobs that are measured in a process of their own; what was found is printed as JSON."""

import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from treefold.bench.cases import CASES, HEADLINE, examples_of, model_of
from treefold.bench.machine import peak_resident
from treefold.bench.ways import FUSED, training, with_settings
from treefold.data.dataset import Dataset
from treefold.training import train
from treefold.training.settings import RunSettings


def trained(data: str, folder: str, threads: str) -> dict[str, Any]:
    """Train for an epoch as `treefold train` does; return seconds, and bytes before and at the peak."""
    before = peak_resident()
    settings = {
        "model": {"aggregator": "tucker", "state_size": 20, "rank": 3},
        "training": {"epochs": 1, "threads": int(threads)},
    }
    start = time.perf_counter()
    train(Dataset.open(Path(data)), Path(folder), RunSettings.of(settings))
    return {"seconds": time.perf_counter() - start, "before_bytes": before, "peak_bytes": peak_resident()}


def first_steps() -> dict[str, Any]:
    """Train for two steps; return the seconds, and the warnings that came meanwhile."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("treefold").addHandler(handler)
    torch.set_num_threads(1)
    model, examples = with_settings(model_of(CASES[HEADLINE]), FUSED), examples_of("listops", 50)
    start = time.perf_counter()
    training(model, examples, batch=25, steps=1)(time.perf_counter)
    return {"seconds": time.perf_counter() - start, "warnings": warnings}


JOBS: Final[dict[str, Callable[..., dict[str, Any]]]] = {"train": trained, "compile": first_steps}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
