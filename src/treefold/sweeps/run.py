"""Train and evaluate one run of a sweep, and drive all runs of a sweep through an engine.

An engine (`local.Local`, `ray.Ray`) decides where runs are trained. Each of its workers calls `attempt`, and the engine
yields events. `sweep` writes a result for each `Finished` event.
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, final

import torch

from treefold.analysis.evaluation import Evaluation, evaluate
from treefold.data.dataset import Dataset
from treefold.data.generators.lrt import LARGEST_BIN
from treefold.errors import FileError, ModelFileError, TreefoldError
from treefold.files import atomic_file, make_folder, remove_folder, require_place
from treefold.kernels.threads import threads
from treefold.sweeps.grid import Budget
from treefold.sweeps.plan import Run
from treefold.sweeps.results import VERSION, Results, RunResult, curves_of, key_of
from treefold.training import Progress, resume, train
from treefold.training.run import CHECKPOINT, METRICS
from treefold.training.saving import CONFIG, MODEL, load_model
from treefold.training.settings import RunSettings, read_toml

RUNS: Final = "runs"
_DEPTHS_IN_A_BIN: Final = 2
_MOST_CLASSES: Final = 30  # of a confusion matrix in a line of results
_SECONDS_BETWEEN_REPORTS: Final = 1.0


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    run: Run


@final
@dataclass(frozen=True)
class Started(Event):
    """A process started or resumed the run."""

    process: int = 0


@final
@dataclass(frozen=True)
class Progressed(Event):
    """The run has done this ``part`` of an epoch; at its end, ``validation`` is the validation score."""

    epoch: int = 0
    part: float = 0.0
    validation: float | None = None


@final
@dataclass(frozen=True)
class Finished(Event):
    """The run ended with this result. ``files`` are those of its run directory if that is on another machine."""

    result: dict[str, Any]
    files: dict[str, bytes] | None = None


@final
@dataclass(frozen=True)
class Failed(Event):
    """The run ended with an error."""

    message: str


@final
@dataclass(frozen=True)
class Died(Event):
    """The process of the run died; the run will be resumed."""

    attempt: int


@final
@dataclass(frozen=True)
class Unstarted(Event):
    """The budget was used up before the run started."""


@final
@dataclass(frozen=True)
class Limits:
    """Time limits of a run: its own minutes, and a deadline (as `time.time`) for all runs, set by a budget of hours."""

    minutes: float | None = None
    deadline: float | None = None
    hours: float | None = None

    def exceeded(self, seconds: float) -> dict[str, Any] | None:
        """Return the limit that is exceeded after this many seconds of training, or None."""
        if self.minutes is not None and seconds >= 60 * self.minutes:
            return {"limit": "minutes_per_run", "value": self.minutes}
        if self.deadline is not None and time.time() >= self.deadline:
            return {"limit": "total_hours", "value": self.hours}
        return None


class Engine(Protocol):
    """Trains runs on this machine or elsewhere."""

    def events(self, runs: Sequence[Run], data: Path, folder: Path, limits: Limits) -> Generator[Event, None, None]:
        """Train the runs, each in a subfolder of ``folder``, and yield events."""


# One run


class _LimitExceeded(Exception):  # noqa: N818 - ends training without an error
    """Ends training; the run directory holds the best weights so far."""


@final
class _Reporter:
    """Reports every epoch, and ends training after the epoch in which a limit was exceeded."""

    def __init__(
        self,
        run: Run,
        on_progress: Callable[[Progressed], None],
        limits: Limits,
        seconds: float,
        should_stop: Callable[[], bool],
    ) -> None:
        self._run, self._on_progress, self._should_stop = run, on_progress, should_stop
        self._limits, self._seconds = limits, seconds
        self.stopped = limits.exceeded(seconds) if seconds else None
        self._last = time.monotonic()

    def batch(self, progress: Progress) -> None:
        """End training if the last epoch exceeded a limit; its weights and metrics are on disk by now."""
        if self.stopped:
            raise _LimitExceeded
        if self._should_stop():  # between two batches, so that the checkpoint is consistent
            raise KeyboardInterrupt
        if time.monotonic() - self._last > _SECONDS_BETWEEN_REPORTS:
            self._last = time.monotonic()
            self._on_progress(Progressed(self._run, progress.epoch, progress.batch / progress.batches))

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Report the end of an epoch."""
        self._seconds += metrics["seconds"]
        self.stopped = self._limits.exceeded(self._seconds)
        self._on_progress(Progressed(self._run, metrics["epoch"], 1.0, metrics.get("validation_score")))


def attempt(
    run: Run,
    data: Callable[[], Dataset],
    folder: Path,
    limits: Limits,
    on_progress: Callable[[Progressed], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> Finished | Failed | Unstarted:
    """Call `execute` and return its outcome as an event; any error of the run becomes `Failed`."""
    try:
        result = execute(run, data(), folder, limits, on_progress, should_stop)
    except BrokenPipeError:  # the main process has ended
        raise
    except TreefoldError as problem:
        return Failed(run, str(problem))
    except Exception as problem:  # the other runs of the sweep can still be trained
        return Failed(run, f"{type(problem).__name__}: {problem}")
    return Unstarted(run) if result is None else Finished(run, result)


def execute(
    run: Run,
    data: Dataset,
    folder: Path,
    limits: Limits,
    on_progress: Callable[[Progressed], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Train or resume a run in its folder and return its line of results; None if the deadline passed before it started.

    Once ``should_stop()`` is true, this writes a checkpoint and raises `KeyboardInterrupt`.
    """
    with _run_lock(folder.with_name(f".{folder.name}.lock")):
        resuming = (folder / CHECKPOINT).is_file()
        if not resuming and limits.deadline is not None and time.time() >= limits.deadline:
            return None
        spent = sum(line["seconds"] for line in _history(folder)) if resuming else 0.0
        reporter = _Reporter(run, on_progress, limits, spent, should_stop)
        try:
            if resuming:
                _require_same_settings(run, folder)
                resume(data, folder, reporter=reporter)
            else:
                remove_folder(folder, MODEL)  # left by a run that ended before its first checkpoint
                train(data, folder, run.settings, reporter=reporter)
            reporter.stopped = None
        except _LimitExceeded:
            pass
        with threads(run.settings.training.threads):
            return _result(run, data, folder, reporter.stopped)


def _require_same_settings(run: Run, folder: Path) -> None:
    found = RunSettings.of(read_toml(folder / CONFIG), str(folder / CONFIG))
    if key_of(found, run.data) != key_of(run.settings, run.data):
        raise ModelFileError(
            f"{folder}: expected a run of {run.title}, but config.toml has other settings; remove the folder to train the "
            f"run again."
        )


def _result(run: Run, data: Dataset, folder: Path, stopped: Mapping[str, Any] | None) -> dict[str, Any]:
    from treefold import __version__

    history = _history(folder)
    best = max(history, key=_epoch_order)
    split = next((name for name in ("test", "validation") if len(data.splits.get(name, ()))), None)
    evaluation = evaluate(load_model(folder), data, split) if split else None
    facts = {
        "version": VERSION,
        "key": run.key,
        "grid": run.grid,
        "kind": run.kind,
        "seed": run.seed,
        "settings": run.settings.model_dump(mode="json"),
        "data": run.data,
        "aggregation_parameters": run.aggregation_parameters,
        "counted": "all",
        "parameters": run.parameters,
        "epochs": len(history),
        "best_epoch": best["epoch"],
        "validation": best.get("validation_score"),
        "test": evaluation.score if evaluation is not None and split == "test" else None,
        "curves": curves_of(history),
        "groups": groups_of(evaluation) if evaluation is not None else {},
        **(_answers(evaluation) if evaluation is not None else {}),
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


def _answers(evaluation: Evaluation) -> dict[str, Any]:
    """Return all scores, and the confusion matrix if the classes are few."""
    facts = evaluation.to_json()
    few = 0 < len(evaluation.confusion) <= _MOST_CLASSES
    scores = {name: round(score, 6) for name, score in evaluation.scores.items()}
    return {"scores": scores, **({name: facts[name] for name in ("classes", "confusion")} if few else {})}


def _epoch_order(line: Mapping[str, Any]) -> tuple[float, float]:
    """Order epochs as training does: by score, then by loss; without validation, the last epoch is the best."""
    if "validation_score" in line:
        return line["validation_score"], -line["validation_loss"]
    return line["epoch"], 0.0


def groups_of(evaluation: Evaluation) -> dict[str, dict[str, list[int]]]:
    """Count right answers and answers by the shape of the trees; empty for regression.

    Bins of depth (edges from the root to the deepest leaf) hold two depths, bins of size double in width. Pairs are grouped
    by operators, the larger number of the two sides; the last bin is open, as in the original data.

    >>> from treefold.analysis.evaluation import Group
    >>> groups = {"depth": {"1": Group(4, 0.5), "2": Group(3, 1.0), "10": Group(1, 0.0)}, "size": {"2–3": Group(8, 0.625)}}
    >>> groups_of(Evaluation("tree", "test", 8, 0, 0.0, {"accuracy": 0.625}, groups))
    {'by_depth': {'1-2': [5, 7], '9-10': [0, 1]}, 'by_size': {'2-3': [5, 8]}}
    """
    if "accuracy" not in evaluation.scores:
        return {}
    names: dict[str, tuple[str, Callable[[str], str]]] = {
        "depth": ("by_depth", lambda key: _depth_bin(int(key))),
        "size": ("by_size", lambda key: key.replace("–", "-")),
        "inner_nodes": ("by_operators", lambda key: key if int(key) < LARGEST_BIN else f"{LARGEST_BIN}+"),
    }
    result: dict[str, dict[str, list[int]]] = {}
    for shape, (name, bin_of) in names.items():
        for key, group in evaluation.groups.get(shape, {}).items():
            counts = result.setdefault(name, {}).setdefault(bin_of(key), [0, 0])
            counts[0] += round(group.count * group.score)
            counts[1] += group.count
    return result


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
def _run_lock(path: Path) -> Iterator[None]:
    """Wait for any other process that trains this run, such as a worker of a sweep killed a moment ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# All runs of a sweep


@contextmanager
def sweep_lock(folder: Path) -> Iterator[None]:
    """Allow one sweep at a time in a folder; the lock is released when the process ends, even if it is killed."""
    require_place(folder)
    make_folder(folder)
    path = folder / "sweep.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise FileError(
                f"{folder}: a sweep is running in this folder (process {owner}); wait for its end, or choose another folder."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@final
@dataclass
class SweepOutcome:
    """The runs of a sweep that finished, failed, or did not start within the budget."""

    finished: list[RunResult] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    unstarted: list[Run] = field(default_factory=list)


def pending_runs(runs: Sequence[Run], results: Results, budget: Budget) -> list[Run]:
    """Return the runs without a result, and those that a smaller budget stopped early."""
    return [run for run in runs if (found := results.results.get(run.key)) is None or _may_resume(found, budget)]


def sweep(
    runs: Sequence[Run],
    results: Results,
    data: Path,
    out: Path,
    engine: Engine,
    budget: Budget,
    on_event: Callable[[Event], None],
) -> SweepOutcome:
    """Train the pending runs and write their results; an interrupted sweep continues when this is called again.

    The caller holds the `sweep_lock`. Nothing else writes results.
    """
    hours = budget.total_hours
    limits = Limits(budget.minutes_per_run, None if hours is None else time.time() + 3600 * hours, hours)
    outcome = SweepOutcome()
    _update_names(runs, results)
    folder = out / RUNS
    make_folder(folder)
    with closing(engine.events(pending_runs(runs, results, budget), data, folder, limits)) as events:
        for event in events:
            if isinstance(event, Finished):
                for name, content in (event.files or {}).items():
                    (folder / event.run.key).mkdir(exist_ok=True)
                    with atomic_file(folder / event.run.key / name) as file:
                        file.write(content)
                result = results.add(event.result)
                if result.stopped is None:  # else a larger budget resumes from the checkpoint
                    (folder / event.run.key / CHECKPOINT).unlink(missing_ok=True)
                (folder / f".{event.run.key}.lock").unlink(missing_ok=True)
                outcome.finished.append(result)
            elif isinstance(event, Failed):
                outcome.failed.append(event)
            elif isinstance(event, Unstarted):
                outcome.unstarted.append(event.run)
            on_event(event)
    return outcome


def _update_names(runs: Sequence[Run], results: Results) -> None:
    """Rename results that another grid produced, so that they appear under this grid's names."""
    for run in runs:
        found = results.results.get(run.key)
        if found is not None and (found.grid, found.kind) != (run.grid, run.kind):
            results.add({**json.loads(results.lines[run.key]), "grid": run.grid, "kind": run.kind})


def _may_resume(result: RunResult, budget: Budget) -> bool:
    if result.stopped is None:
        return False
    limit = budget.minutes_per_run if result.stopped.limit == "minutes_per_run" else budget.total_hours
    return limit is None or limit > result.stopped.value
