"""`treefold sweep`: the runs of a grid, side by side, each once."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from treefold.cli.console import Plugins, err, out
from treefold.errors import ConfigurationError, nearest
from treefold.kernels.threads import core_count
from treefold.sweeps.events import Died, Engine, Event, Failed, Finished, Progressed, Started
from treefold.sweeps.grid import Configuration, Grid, read_grid
from treefold.sweeps.local import Local
from treefold.sweeps.planning import MULTIPLY_ADDS_A_SECOND, Run, estimated_seconds, open_data, plan
from treefold.sweeps.results import DAMAGED, RESULTS, Results
from treefold.sweeps.running import only_sweep
from treefold.sweeps.sweeping import Ending, to_do
from treefold.sweeps.sweeping import sweep as run_sweep
from treefold.sweeps.tally import Tally, duration

_SECONDS_BETWEEN_LINES = 20


def sweep(
    grid: Annotated[
        Path, typer.Argument(help="A grid, a TOML file; docs/experiments.md says how.", show_default=False)
    ],
    out_folder: Annotated[Path, typer.Option("--out", help="The folder for results and runs.", show_default=False)],
    data: Annotated[Path | None, typer.Option(help="A data set, instead of what the grid says.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; else one for each core.", show_default=False)
    ] = None,
    on: Annotated[Literal["local", "ray"], typer.Option(help="Where runs are done.")] = "local",
    address: Annotated[str | None, typer.Option(help="A ray cluster; else one is started here.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs and what they cost; do nothing.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this kind, or this configuration: 'Hosvd c=20 r=3'; may be repeated.")
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Train all configurations of a grid, and write a line of results for each run.

    What is done already is not done again: a sweep that was interrupted, or killed, goes on where it was when it is started
    again, and ends with the same results. Results of another machine count as done when they are put into `results.jsonl`.

    Example: `treefold sweep experiments/smoke.toml --out sweeps/smoke --workers 2`
    """
    if address is not None and on != "ray":
        raise ConfigurationError(f"--address expects --on ray, got --on {on}; leave one of them out.")
    chosen = read_grid(grid)
    names = _chosen(chosen.configurations(str(grid)), only or [])
    if dry_run:
        examples, _ = open_data(chosen.data, data, grid.parent, out_folder, keep=False)
        runs = [run for run in plan(chosen, examples, str(grid)) if run.name in names]
        _show_plan(chosen, runs, Results.read(out_folder / RESULTS), workers or core_count())
        return
    with only_sweep(out_folder):
        engine = _engine(on, workers or core_count(), address)
        results = Results.read(out_folder / RESULTS)
        if results.damaged:
            results.set_damage_aside()
            err.print(f"warning: the last line of {RESULTS} was cut; it is set aside in {DAMAGED}.", style="yellow")
        examples, folder = open_data(chosen.data, data, grid.parent, out_folder)
        runs = [run for run in plan(chosen, examples, str(grid)) if run.name in names]
        todo = to_do(runs, results, chosen.budget)
        err.print(
            f"{chosen.name}: {len(runs)} runs, {len(runs) - len(todo)} done before, {len(todo)} to do", markup=False
        )
        count = min(workers or core_count(), max(len(todo), 1))
        try:
            with _Display(Tally(runs, results, todo, count)) as display:
                ending = run_sweep(runs, results, folder, out_folder, engine, chosen.budget, display)
        except KeyboardInterrupt:
            err.print("the sweep is not at its end: start it again, and it goes on where it was.")
            raise
    _show_ending(ending, out_folder)
    if ending.failed:
        raise typer.Exit(1)


def _engine(on: str, workers: int, address: str | None) -> Engine:
    if on == "local":
        return Local(workers)
    from treefold.sweeps.on_ray import Ray

    return Ray(workers, address)


def _chosen(configurations: Sequence[Configuration], only: Sequence[str]) -> set[str]:
    """Return the names of the configurations that are asked for, by their kinds or their titles; all without a word."""
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
    todo = {run.key for run in to_do(runs, results, grid.budget)}
    finished = list(results.results.values())
    seconds = {run.key: estimated_seconds(run, finished, runs) for run in runs}
    title = Text(f"{grid.name}: {len(runs)} runs, {len(runs) - len(todo)} of them done")
    table = Table(title=title, box=None)
    table.add_column("configuration", no_wrap=True)
    for head in ("seeds", "done", "parameters of an aggregation", "in all", "multiply-adds a run", "time a run"):
        table.add_column(head, justify="right")
    for name in dict.fromkeys(run.name for run in runs):
        same = [run for run in runs if run.name == name]
        table.add_row(
            Text(same[0].configuration),
            ",".join(str(run.seed) for run in same),
            str(sum(run.key not in todo for run in same)),
            f"{same[0].aggregation_parameters:,}",
            f"{same[0].parameters:,}",
            f"{same[0].multiply_adds * same[0].settings.training.epochs:.1e}",
            duration(seconds[same[0].key]),
        )
    out.print(table)
    total = sum(seconds[key] for key in todo)
    known = any(run.key in results.results for run in runs)
    basis = "by finished runs" if known else f"all epochs, at {MULTIPLY_ADDS_A_SECOND:.0e} multiply-adds a second"
    out.print(
        f"to do: {len(todo)} runs, {duration(total)} of one worker, {duration(total / workers)} of {workers} ({basis})"
    )


def _show_ending(ending: Ending, folder: Path) -> None:
    stopped = sum(result.stopped is not None for result in ending.finished)
    out.print(
        f"{len(ending.finished)} runs finished{f', {stopped} of them by the budget' if stopped else ''}, "
        f"{len(ending.failed)} failed{f'; results: {folder / RESULTS}' if (folder / RESULTS).exists() else ''}",
        markup=False,
    )
    if ending.unstarted:
        out.print(f"{len(ending.unstarted)} runs were not begun: the budget's total_hours are over")
    for failure in ending.failed:
        err.print(f"failed: {failure.run.title}: {failure.message}", markup=False, style="red")


class _Display:
    """Shows a sweep: a live table in a terminal, lines elsewhere."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._live: Live | None = None
        self._last = time.monotonic()

    def __enter__(self) -> "_Display":
        if err.is_terminal:
            self._live = Live(console=err, get_renderable=self._table, refresh_per_second=2, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Show what happened."""
        self._tally.note(event)
        title = event.run.title
        if isinstance(event, Finished):
            err.print(f"done    {title}: {_scores(event)}", markup=False)
        elif isinstance(event, Failed):
            err.print(f"failed  {title}: {event.message}", markup=False, style="red")
        elif isinstance(event, Died):
            err.print(
                f"again   {title}: its process died; it goes on from its checkpoint", markup=False, style="yellow"
            )
        elif self._live is not None:
            return
        elif isinstance(event, Started):
            err.print(f"begun   {title} (process {event.process})", markup=False)
        elif isinstance(event, Progressed) and time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            score = "" if event.validation is None else f", validation {event.validation:.4f}"
            err.print(f"at work {title}: epoch {event.epoch}{score}; {self._summary()}", markup=False)

    def _summary(self) -> str:
        at = self._tally
        waiting = len(at.left) - len(at.running)
        return (
            f"{at.before + at.done} done, {len(at.running)} running, {waiting} waiting, {len(at.failed)} failed; "
            f"about {duration(at.seconds_left())} left"
        )

    def _table(self) -> Table:
        table = Table(title=self._summary(), box=None, title_justify="left")
        for name in ("running", "epoch", "best validation", "for"):
            table.add_column(name, justify="left" if name == "running" else "right")
        for each in list(self._tally.running.values()):
            best = "" if each.best is None else f"{each.best:.4f}"
            table.add_row(
                Text(each.run.title), f"{each.epochs_done:.1f}", best, duration(time.monotonic() - each.since)
            )
        return table


def _scores(event: Finished) -> str:
    result = event.result
    parts = [f"{name} {result[name]:.4f}" for name in ("validation", "test") if result[name] is not None]
    parts += [f"{result['epochs']} epochs", duration(result["seconds"])]
    parts += [f"stopped by {result['stopped']['limit']}"] if "stopped" in result else []
    return ", ".join(parts)
