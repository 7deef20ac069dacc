"""`treefold sweep`: train the runs of a grid in parallel."""

from __future__ import annotations  # types that are slow to import are for the type checker only

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, final

import typer

from treefold.cli.console import Plugins, err, out, say, visible
from treefold.cli.report import show
from treefold.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from treefold.sweeps.grid import Configuration, Grid
    from treefold.sweeps.plan import Run
    from treefold.sweeps.results import Results
    from treefold.sweeps.run import Engine, Event, Finished, SweepOutcome

_SECONDS_BETWEEN_LINES: Final = 20


def sweep(
    grid: Annotated[Path, typer.Argument(help="A grid, a TOML file; see docs/experiments.md.", show_default=False)],
    out_folder: Annotated[Path, typer.Option("--out", help="The folder for results and runs.", show_default=False)],
    data: Annotated[Path | None, typer.Option(help="A data set, instead of the grid's.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one for each core.", show_default=False)
    ] = None,
    on: Annotated[Literal["local", "ray"], typer.Option(help="Where to train: processes here, or Ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="A Ray cluster; default: start one on this machine.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and their cost; train nothing.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this kind, or this configuration: 'Hosvd c=20 r=3'; may be repeated.")
    ] = None,
    with_report: Annotated[
        bool, typer.Option("--report", help="At the end, write a report to `report` in --out.")
    ] = False,
    plugins: Plugins = None,
) -> None:
    """Train all configurations of a grid, and write a line of results for each run.

    Finished runs are not repeated: a sweep that was interrupted or killed continues when you start it again, and ends with
    the same results. Results of another machine count as finished if you add them to `results.jsonl`.

    Example: `treefold sweep experiments/smoke.toml --out sweeps/smoke --workers 2`
    """
    from treefold.files import with_whole_characters
    from treefold.kernels.threads import core_count
    from treefold.sweeps import run as sweeps
    from treefold.sweeps.grid import read_grid
    from treefold.sweeps.plan import open_data, plan
    from treefold.sweeps.report import require_matplotlib, require_report_folder, write_report
    from treefold.sweeps.results import DAMAGED, RESULTS, Results, SweepFacts

    if address is not None and on != "ray":
        raise ConfigurationError(f"--address expects --on ray, got --on {on}; leave one of them out.")
    report_folder = out_folder / "report"
    if with_report:
        require_matplotlib()
        require_report_folder(report_folder, force=True)
    chosen = read_grid(grid)
    names = _chosen(chosen.configurations(str(grid)), only or [])
    if dry_run:
        examples, _ = open_data(chosen.data, data, grid.parent, out_folder, keep=False)
        runs = [run for run in plan(chosen, examples, str(grid)) if run.name in names]
        _show_plan(chosen, runs, Results.read(out_folder / RESULTS), workers or core_count())
        return
    if not with_report and find_spec("matplotlib") is None:
        say("note: a report of this sweep will need matplotlib; pip install 'treefold[plot]'", to=err, style="yellow")
    with sweeps.sweep_lock(out_folder):
        engine = _engine(on, workers or core_count(), address)
        results = Results.read(out_folder / RESULTS)
        if results.damaged:
            results.move_damaged_line()
            say(
                f"warning: the last line of {RESULTS} is incomplete; it was moved to {DAMAGED}.", to=err, style="yellow"
            )
        examples, folder = open_data(chosen.data, data, grid.parent, out_folder)
        planned = plan(chosen, examples, str(grid))
        facts = SweepFacts(
            grid=chosen.name,
            description=chosen.description,
            data=with_whole_characters(str(folder)),
            runs={run.key: run.title for run in planned},
        )
        facts.write(out_folder)
        runs = [run for run in planned if run.name in names]
        pending = sweeps.pending_runs(runs, results, chosen.budget)
        say(
            f"{chosen.name}: {len(runs)} runs, {len(runs) - len(pending)} finished before, {len(pending)} to do", to=err
        )
        count = min(workers or core_count(), max(len(pending), 1))
        try:
            with _Display(SweepProgress(runs, results, pending, count)) as display:
                outcome = sweeps.sweep(runs, results, folder, out_folder, engine, chosen.budget, display)
        except KeyboardInterrupt:
            say("the sweep is not finished; start it again to continue.", to=err)
            raise
        failed = {failure.run.key: with_whole_characters(failure.message) for failure in outcome.failed}
        facts.model_copy(update={"failed": failed}).write(out_folder)
    _show_outcome(outcome, out_folder)
    if with_report and results.results:
        show(*write_report([out_folder], report_folder, force=True))
    if outcome.failed:
        raise typer.Exit(1)


def _engine(on: str, workers: int, address: str | None) -> Engine:
    if on == "local":
        from treefold.sweeps.local import Local

        return Local(workers)
    from treefold.sweeps.ray import Ray

    return Ray(workers, address)


def _chosen(configurations: Sequence[Configuration], only: Sequence[str]) -> set[str]:
    """Return the names of the configurations with these kinds or titles; without any, all names."""
    known = list(dict.fromkeys(word for each in configurations for word in (each.kind, each.title)))
    for word in only:
        if word not in known:
            kinds = ", ".join(dict.fromkeys(repr(each.kind) for each in configurations))
            raise ConfigurationError(
                f"--only expects a kind of the grid, {kinds}, or a configuration like {known[1]!r}, got {word!r}"
                f"{nearest(word, known)}."
            )
    return {each.name for each in configurations if not only or each.kind in only or each.title in only}


def _show_plan(grid: Grid, runs: Sequence[Run], results: Results, workers: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from treefold.sweeps.plan import MULTIPLY_ADDS_A_SECOND, estimated_seconds
    from treefold.sweeps.run import pending_runs

    pending = {run.key for run in pending_runs(runs, results, grid.budget)}
    finished = list(results.results.values())
    seconds = {run.key: estimated_seconds(run, finished, runs) for run in runs}
    title = Text(visible(f"{grid.name}: {len(runs)} runs, {len(runs) - len(pending)} of them finished"))
    table = Table(title=title, box=None)
    table.add_column("configuration", no_wrap=True)
    for head in (
        "seeds",
        "finished",
        "parameters of an aggregator",
        "of the model",
        "multiply-adds a run",
        "time a run",
    ):
        table.add_column(head, justify="right")
    for name in dict.fromkeys(run.name for run in runs):
        same = [run for run in runs if run.name == name]
        table.add_row(
            Text(visible(same[0].configuration)),
            ",".join(str(run.seed) for run in same),
            str(sum(run.key not in pending for run in same)),
            f"{same[0].aggregation_parameters:,}",
            f"{same[0].parameters:,}",
            f"{same[0].multiply_adds * same[0].settings.training.epochs:.1e}",
            duration(seconds[same[0].key]),
        )
    out.print(table)
    total = sum(seconds[key] for key in pending)
    known = any(run.key in results.results for run in runs)
    basis = "from finished runs" if known else f"all epochs, at {MULTIPLY_ADDS_A_SECOND:.0e} multiply-adds a second"
    say(
        f"to do: {len(pending)} runs, {duration(total)} with one worker, {duration(total / workers)} with {workers} ({basis})"
    )


def _show_outcome(outcome: SweepOutcome, folder: Path) -> None:
    from treefold.sweeps.results import RESULTS

    stopped = sum(result.stopped is not None for result in outcome.finished)
    say(
        f"{len(outcome.finished)} runs finished{f', {stopped} of them stopped by the budget' if stopped else ''}, "
        f"{len(outcome.failed)} failed{f'; results: {folder / RESULTS}' if (folder / RESULTS).exists() else ''}"
    )
    if outcome.unstarted:
        say(f"{len(outcome.unstarted)} runs did not start: the budget's total_hours are used up")
    for failure in outcome.failed:
        say(f"failed: {failure.run.title}: {failure.message}", to=err, style="red")


@final
@dataclass
class _RunProgress:
    """How far a run is, its best validation score, and when it started or resumed here."""

    run: Run
    since: float
    epoch: int = 0
    part: float = 0.0
    best: float | None = None
    epochs_before: float | None = None  # done before the first report

    @property
    def epochs_done(self) -> float:
        """Epochs done, with the part of the current one."""
        return max(0.0, self.epoch - 1 + self.part)


@final
class SweepProgress:
    """Counts the runs of a sweep, and estimates the time to its end."""

    def __init__(self, runs: Sequence[Run], results: Results, pending: Sequence[Run], workers: int) -> None:
        self._runs, self._results, self._workers = runs, results, workers
        self.pending = {run.key: run for run in pending}
        self.finished = len(runs) - len(pending)
        self.running: dict[str, _RunProgress] = {}
        self.failed = 0

    def update(self, event: Event) -> None:
        """Take an event into account."""
        from treefold.sweeps.run import Died, Failed, Finished, Progressed, Started, Unstarted

        key = event.run.key
        if isinstance(event, Started):
            self.running[key] = _RunProgress(event.run, time.monotonic())
        elif isinstance(event, Progressed):
            run = self.running.setdefault(key, _RunProgress(event.run, time.monotonic()))
            run.epoch, run.part = event.epoch, event.part
            run.epochs_before = run.epochs_done if run.epochs_before is None else run.epochs_before
            if event.validation is not None:
                run.best = event.validation if run.best is None else max(event.validation, run.best)
        elif isinstance(event, (Died, Finished, Failed, Unstarted)):
            self.running.pop(key, None)
            if not isinstance(event, Died):
                self.pending.pop(key, None)
            self.finished += isinstance(event, Finished)
            self.failed += isinstance(event, Failed)

    def seconds_left(self) -> float:
        """Estimate the time to the end from finished runs, the pace of running ones, and costs."""
        from treefold.sweeps.plan import estimated_seconds

        finished = list(self._results.results.values())
        each = [self._left(run, estimated_seconds(run, finished, self._runs)) for run in list(self.pending.values())]
        return max(sum(each) / max(self._workers, 1), max(each, default=0.0))

    def _left(self, run: Run, whole: float) -> float:
        progress = self.running.get(run.key)
        epochs_here = 0.0 if progress is None else progress.epochs_done - (progress.epochs_before or 0.0)
        if progress is None or epochs_here <= 0:
            return whole
        seconds_an_epoch = (time.monotonic() - progress.since) / epochs_here
        return max(0.0, run.settings.training.epochs - progress.epochs_done) * seconds_an_epoch


def duration(seconds: float) -> str:
    """Write a duration for people.

    >>> duration(42), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class _Display:
    """Shows the progress of a sweep: a live table in a terminal, lines of text elsewhere."""

    def __init__(self, progress: SweepProgress) -> None:
        self._progress = progress
        self._live: Live | None = None
        self._last = time.monotonic()

    def __enter__(self) -> _Display:
        if err.is_terminal:
            from rich.live import Live

            self._live = Live(console=err, get_renderable=self._table, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        from treefold.sweeps.run import Died, Failed, Finished, Progressed, Started

        self._progress.update(event)
        title = event.run.title
        if isinstance(event, Finished):
            say(f"done    {title}: {_scores(event)}", to=err)
        elif isinstance(event, Failed):
            say(f"failed  {title}: {event.message}", to=err, style="red")
        elif isinstance(event, Died):
            say(f"resumed {title}: its process died; it continues from its checkpoint", to=err, style="yellow")
        elif self._live is not None:
            return
        elif isinstance(event, Started):
            say(f"started {title} (process {event.process})", to=err)
        elif isinstance(event, Progressed) and time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            score = "" if event.validation is None else f", validation {event.validation:.4f}"
            say(f"running {title}: epoch {event.epoch}{score}; {self._summary()}", to=err)

    def _summary(self) -> str:
        now = self._progress
        waiting = len(now.pending) - len(now.running)
        return (
            f"{now.finished} finished, {len(now.running)} running, {waiting} waiting, {now.failed} failed; "
            f"about {duration(now.seconds_left())} left"
        )

    def _table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self._summary(), box=None, title_justify="left")
        for name in ("running", "epoch", "best validation", "for"):
            table.add_column(name, justify="left" if name == "running" else "right")
        for each in list(self._progress.running.values()):
            best = "" if each.best is None else f"{each.best:.4f}"
            table.add_row(
                Text(visible(each.run.title)), f"{each.epochs_done:.1f}", best, duration(time.monotonic() - each.since)
            )
        return table


def _scores(event: Finished) -> str:
    result = event.result
    parts = [f"{name} {result[name]:.4f}" for name in ("validation", "test") if result[name] is not None]
    parts += [f"{result['epochs']} epochs", duration(result["seconds"])]
    parts += [f"stopped by {result['stopped']['limit']}"] if "stopped" in result else []
    return ", ".join(parts)
