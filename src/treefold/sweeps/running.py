"""One run of a sweep: trained or gone on with, evaluated, and made into a line of results. The same for every engine."""

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import torch

from treefold.analysis.evaluation import Evaluation, Group, evaluate
from treefold.data.dataset import Dataset
from treefold.data.generators.lrt import LARGEST_BIN
from treefold.errors import FileError, ModelFileError
from treefold.sweeps.planning import Run
from treefold.sweeps.results import VERSION, curves_of, key_of
from treefold.training import Progress, resume, train
from treefold.training.run import CHECKPOINT, METRICS
from treefold.training.saving import CONFIG, SavedModel, load_model
from treefold.training.settings import RunSettings, read_toml
from treefold.training.task import task_of

Tell = Callable[[dict[str, Any]], None]
_DEPTHS_IN_A_BIN: Final = 2
_SECONDS_BETWEEN_REPORTS: Final = 1.0


@final
@dataclass(frozen=True)
class Limits:
    """When a run has to stop after its epoch: minutes of its own, or a moment (`time.time`) for all, of so many hours."""

    minutes: float | None = None
    deadline: float | None = None
    hours: float | None = None

    def met(self, seconds: float) -> dict[str, Any] | None:
        """Return the limit that is met after so many seconds of training, or None."""
        if self.minutes is not None and seconds >= 60 * self.minutes:
            return {"limit": "minutes_per_run", "value": self.minutes}
        if self.deadline is not None and time.time() >= self.deadline:
            return {"limit": "total_hours", "value": self.hours}
        return None


class _LimitMet(Exception):  # noqa: N818 - an end, and no error
    """Training ends here; what it reached is in the run directory."""


@final
class _Reporter:
    """Tells of every epoch, and ends training after the one in which a limit was met."""

    def __init__(self, tell: Tell, limits: Limits, seconds: float, halted: Callable[[], bool]) -> None:
        self._tell, self._limits, self._seconds, self._halted = tell, limits, seconds, halted
        self.stopped = limits.met(seconds) if seconds else None
        self._told = time.monotonic()

    def batch(self, progress: Progress) -> None:
        """End training where the last epoch met a limit: here its weights and metrics are on disk."""
        if self.stopped:
            raise _LimitMet
        if self._halted():  # between two batches, so that the checkpoint which follows is of one moment
            raise KeyboardInterrupt
        if time.monotonic() - self._told > _SECONDS_BETWEEN_REPORTS:
            self._told = time.monotonic()
            self._tell({"epoch": progress.epoch, "part": progress.batch / progress.batches})

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Tell of the epoch."""
        self._seconds += metrics["seconds"]
        self.stopped = self._limits.met(self._seconds)
        self._tell({"epoch": metrics["epoch"], "part": 1.0, "validation": metrics.get("validation_score")})


def execute(
    run: Run, data: Dataset, folder: Path, limits: Limits, tell: Tell, halted: Callable[[], bool] = lambda: False
) -> dict[str, Any] | None:
    """Train in the folder, or go on there, and return the line of results; None where time was up before it began.

    Ends in `KeyboardInterrupt`, with a checkpoint, once ``halted`` says so.
    """
    with _alone(folder.with_name(f".{folder.name}.lock")):
        begun = (folder / CHECKPOINT).is_file()
        if not begun and limits.deadline is not None and time.time() >= limits.deadline:
            return None
        spent = sum(line["seconds"] for line in _history(folder)) if begun else 0.0
        reporter = _Reporter(tell, limits, spent, halted)
        try:
            if begun:
                _require_same(run, folder)
                resume(data, folder, reporter=reporter)
            else:
                shutil.rmtree(folder, ignore_errors=True)  # a run that ended before its first checkpoint
                train(data, folder, run.settings, reporter=reporter)
            reporter.stopped = None
        except _LimitMet:
            pass
        return _result(run, data, folder, reporter.stopped)


def _require_same(run: Run, folder: Path) -> None:
    """Raise where a folder holds a run of other settings than those it stands for."""
    found = RunSettings.of(read_toml(folder / CONFIG), str(folder / CONFIG))
    if key_of(found, run.data) != key_of(run.settings, run.data):
        raise ModelFileError(
            f"{folder}: expected a run of {run.title}, got one of other settings; remove the folder, and the run starts anew."
        )


def _result(run: Run, data: Dataset, folder: Path, stopped: Mapping[str, Any] | None) -> dict[str, Any]:
    from treefold import __version__

    history = _history(folder)
    saved = load_model(folder)
    best = max(history, key=_merit)
    judged = _judged(saved, data)
    facts = {
        "version": VERSION,
        "key": run.key,
        "grid": run.grid,
        "kind": run.kind,
        "seed": run.seed,
        "settings": run.settings.model_dump(mode="json"),
        "data": run.data,
        "aggregation_parameters": run.aggregation_parameters,
        "counted": run.counted,
        "parameters": run.parameters,
        "epochs": len(history),
        "best_epoch": best["epoch"],
        "validation": best.get("validation_score"),
        "test": judged.score if judged is not None and judged.split == "test" else None,
        "curves": curves_of(history),
        "groups": groups_of(judged) if judged is not None else {},
        "seconds": round(sum(line["seconds"] for line in history), 3),
        "processor_seconds": round(sum(line.get("processor_seconds", 0.0) for line in history), 3),
        "environment": {
            "treefold": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        },
    }
    return {**facts, "stopped": dict(stopped)} if stopped else facts


def _merit(line: Mapping[str, Any]) -> tuple[float, float]:
    """Order epochs as training does: by score, then by loss; without validation, the last is the best."""
    if "validation_score" in line:
        return line["validation_score"], -line["validation_loss"]
    return line["epoch"], 0.0


def _judged(saved: SavedModel, data: Dataset) -> Evaluation | None:
    """Judge a model on the test split, or on validation where there is none."""
    for split in ("test", "validation"):
        if len(data.splits.get(split, ())):
            return evaluate(saved, data, split)
    return None


def groups_of(evaluation: Evaluation) -> dict[str, dict[str, list[int]]]:
    """Return how many answers were right, of how many, by the shape of the trees; nothing for numbers.

    Depths (edges from the root to the deepest leaf) stand two in a bin, sizes in bins of doubling width. Pairs are grouped by
    operators, the larger number of both sides, the last bin open as in the original data.

    >>> groups = {"depth": {"1": Group(4, 0.5), "2": Group(3, 1.0), "10": Group(1, 0.0)}, "size": {"2–3": Group(8, 0.625)}}
    >>> groups_of(Evaluation("tree", "test", 8, 0, 0.0, {"accuracy": 0.625}, groups))
    {'by_depth': {'1-2': [5, 7], '9-10': [0, 1]}, 'by_size': {'2-3': [5, 8]}}
    """
    if not task_of(evaluation.task).has_classes:
        return {}
    names: dict[str, tuple[str, Callable[[str], str]]] = {
        "depth": ("by_depth", lambda key: _depth_bin(int(key))),
        "size": ("by_size", lambda key: key.replace("–", "-")),
        "inner_nodes": ("by_operators", lambda key: key if int(key) < LARGEST_BIN else f"{LARGEST_BIN}+"),
    }
    result: dict[str, dict[str, list[int]]] = {}
    for shape, (name, bin_of) in names.items():
        bins: dict[str, list[int]] = {}
        for key, group in evaluation.groups.get(shape, {}).items():
            counts = bins.setdefault(bin_of(key), [0, 0])
            counts[0] += _right(group)
            counts[1] += group.count
        if bins:
            result[name] = bins
    return result


def _right(group: Group) -> int:
    return round(group.count * group.score)


def _depth_bin(depth: int) -> str:
    if depth == 0:
        return "0"
    first = depth - (depth - 1) % _DEPTHS_IN_A_BIN
    return f"{first}-{first + _DEPTHS_IN_A_BIN - 1}"


def _history(folder: Path) -> list[dict[str, Any]]:
    path = folder / METRICS
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process is at the run, such as a worker whose sweep was killed a moment ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def only_sweep(folder: Path) -> Iterator[None]:
    """Hold a folder for one sweep at a time; the lock ends with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sweep.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise FileError(
                f"{folder}: expected a folder without a sweep under way, got one of process {owner}; wait for its end, "
                f"or choose another folder."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
