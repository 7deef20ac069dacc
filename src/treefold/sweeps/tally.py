"""How far a sweep is, and how long it will take: what a display shows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from treefold.sweeps.events import Died, Event, Failed, Finished, Progressed, Started, Unstarted
from treefold.sweeps.planning import Run, estimated_seconds
from treefold.sweeps.results import Results


@final
@dataclass
class Running:
    """A run under way: where it is, the best score on validation so far, and when it was taken up."""

    run: Run
    since: float
    epoch: int = 0
    part: float = 0.0
    best: float | None = None
    first: float | None = None  # epochs that were done when it was taken up

    @property
    def epochs_done(self) -> float:
        """Epochs done, with the part of the one under way."""
        return max(0.0, self.epoch - 1 + self.part)


@final
class Tally:
    """Keeps count of the runs of a sweep."""

    def __init__(self, runs: Sequence[Run], results: Results, todo: Sequence[Run], workers: int) -> None:
        self._runs, self._results, self._workers = runs, results, workers
        self.left = {run.key: run for run in todo}
        self.before = len(runs) - len(todo)
        self.running: dict[str, Running] = {}
        self.done = 0
        self.failed: list[Failed] = []
        self.deaths = 0

    def note(self, event: Event) -> None:
        """Take note of an event."""
        key = event.run.key
        if isinstance(event, Started):
            self.running[key] = Running(event.run, time.monotonic())
        elif isinstance(event, Progressed):
            under_way = self.running.setdefault(key, Running(event.run, time.monotonic()))
            under_way.epoch, under_way.part = event.epoch, event.part
            under_way.first = under_way.epochs_done if under_way.first is None else under_way.first
            if event.validation is not None:
                best = event.validation if under_way.best is None else under_way.best
                under_way.best = max(event.validation, best)
        elif isinstance(event, Died):
            self.running.pop(key, None)
            self.deaths += 1
        elif isinstance(event, (Finished, Failed, Unstarted)):
            self.running.pop(key, None)
            self.left.pop(key, None)
            self.done += isinstance(event, Finished)
            self.failed += [event] if isinstance(event, Failed) else []

    def seconds_left(self) -> float:
        """Return the estimated time to the end: by finished runs, the epochs of those under way, and costs."""
        finished = list(self._results.results.values())
        each = [self._left(run, estimated_seconds(run, finished, self._runs)) for run in list(self.left.values())]
        return max(sum(each) / max(self._workers, 1), max(each, default=0.0))

    def _left(self, run: Run, whole: float) -> float:
        under_way = self.running.get(run.key)
        here = 0.0 if under_way is None else under_way.epochs_done - (under_way.first or 0.0)
        if under_way is None or here <= 0:
            return whole
        pace = (time.monotonic() - under_way.since) / here
        return max(0.0, run.settings.training.epochs - under_way.epochs_done) * pace


def duration(seconds: float) -> str:
    """Say a time in words.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
