"""A sweep: all runs of a grid that are not done yet, through an engine, with every result on disk as it comes."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from treefold.files import atomic_file
from treefold.sweeps.events import Engine, Event, Failed, Finished, Unstarted
from treefold.sweeps.grid import Budget
from treefold.sweeps.planning import Run
from treefold.sweeps.results import Results, RunResult
from treefold.sweeps.running import Limits
from treefold.training.run import CHECKPOINT

RUNS = "runs"


@final
@dataclass
class Ending:
    """How a sweep ended."""

    finished: list[RunResult] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    unstarted: list[Run] = field(default_factory=list)


def to_do(runs: Sequence[Run], results: Results, budget: Budget) -> list[Run]:
    """Return the runs that are not done: without a result, or with one that a smaller budget cut short."""
    return [run for run in runs if (found := results.results.get(run.key)) is None or _may_go_on(found, budget)]


def sweep(
    runs: Sequence[Run],
    results: Results,
    data: Path,
    out: Path,
    engine: Engine,
    budget: Budget,
    tell: Callable[[Event], None],
) -> Ending:
    """Do the runs that are not done yet. Only here are results written.

    The caller holds the folder (`only_sweep`). However this ends, it goes on from there when it is called again.
    """
    hours = budget.total_hours
    limits = Limits(budget.minutes_per_run, None if hours is None else time.time() + 3600 * hours, hours)
    ending = Ending()
    _take_over_names(runs, results)
    todo = to_do(runs, results, budget)
    folder = out / RUNS
    folder.mkdir(parents=True, exist_ok=True)
    with closing(engine.events(todo, data, folder, limits)) as events:
        for event in events:
            if isinstance(event, Finished):
                _keep(event, folder / event.run.key)
                result = results.add(event.result)
                if result.stopped is None:  # else a larger budget goes on from the checkpoint
                    (folder / event.run.key / CHECKPOINT).unlink(missing_ok=True)
                (folder / f".{event.run.key}.lock").unlink(missing_ok=True)
                ending.finished.append(result)
            elif isinstance(event, Failed):
                ending.failed.append(event)
            elif isinstance(event, Unstarted):
                ending.unstarted.append(event.run)
            tell(event)
    return ending


def _take_over_names(runs: Sequence[Run], results: Results) -> None:
    """Give results that another grid asked for the names of this one, so that they stand with the others of their entry."""
    for run in runs:
        found = results.results.get(run.key)
        if found is not None and (found.grid, found.kind) != (run.grid, run.kind):
            results.add({**json.loads(results.lines[run.key]), "grid": run.grid, "kind": run.kind})


def _may_go_on(result: RunResult, budget: Budget) -> bool:
    if result.stopped is None:
        return False
    limit = budget.minutes_per_run if result.stopped.limit == "minutes_per_run" else budget.total_hours
    return limit is None or limit > result.stopped.value


def _keep(event: Finished, folder: Path) -> None:
    """Write the files of a run that was done elsewhere."""
    for name, content in (event.files or {}).items():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / name) as file:
            file.write(content)
