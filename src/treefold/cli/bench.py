"""`treefold bench`: how fast it is on this machine."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from treefold.bench import DEFAULT, SUITES, Options, Report
from treefold.bench import run as run_suites
from treefold.bench.options import DEFAULT_BATCH, Values
from treefold.bench.roofline import draw, require_matplotlib
from treefold.bench.suites import jobs_of
from treefold.cli.console import err, out
from treefold.errors import ConfigurationError, FileError
from treefold.files import atomic_file

_NAMES: Final = ", ".join(f"`{name}`" for name in SUITES)
_DRAWN: Final = "roofline"


def bench(
    what: Annotated[
        list[str] | None, typer.Argument(help=f"Suites: {_NAMES}; else {', '.join(DEFAULT)}.", show_default=False)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small data and few repetitions: a first impression in a minute.")
    ] = False,
    cases: Annotated[
        list[str] | None, typer.Option("--case", help="Only cases whose name contains this; may be repeated.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the suite `roofline` to this PNG file.")] = None,
    threads: Annotated[int, typer.Option(help="Threads to compute with.")] = 1,
    rounds: Annotated[int | None, typer.Option(help="How often the ways take turns; the best counts.")] = None,
    batch: Annotated[int, typer.Option(help="Trees or pairs of a training step.")] = DEFAULT_BATCH,
) -> None:
    """Measure speed and memory on this machine, the fused kernels against plain torch.

    Ways are measured in turn; of each piece of work the least time of several rounds counts. With one thread, times are those
    which the processor spent on it, so that other processes disturb less. `pip install 'treefold[bench]'` adds another package
    to compare with.

    Example: `treefold bench step --case tucker --quick`
    """
    names = what or list(DEFAULT)
    options = Options(quick=quick, rounds=rounds, threads=threads, batch=batch)
    jobs = jobs_of(names, options, cases or [])
    for path in (json_file, figure):
        _check_place(path)
    if figure is not None:
        if _DRAWN not in names:
            raise ConfigurationError(f"--figure expects the suite {_DRAWN!r}, got {', '.join(names)}; name it as well.")
        if not any(suite == _DRAWN for suite, *_ in jobs):
            raise ConfigurationError(
                f"--figure expects cases of the suite {_DRAWN!r}, got none of it by --case {', '.join(cases or [])}; "
                f"choose other words, or leave --figure out."
            )
        require_matplotlib()
    report = run_suites(names, options, words=cases or [], listener=_Progress())
    if json_file is not None:  # before anything is printed, which can fail
        with atomic_file(json_file) as file:
            file.write((json.dumps(_rounded(report.to_json()), indent=1, ensure_ascii=False) + "\n").encode())
    if figure is not None:
        with atomic_file(figure) as file:
            file.write(draw(report.suites[_DRAWN]))
    show(report)


class _Progress:
    """Says on standard error what is measured."""

    def begins(self, suite: str, case: str, done: int, total: int) -> None:
        err.print(f"{done + 1} of {total}  {suite}: {case}", markup=False, style="dim")

    def skipped(self, suite: str, case: str, why: str) -> None:
        err.print(f"left out {suite}: {case}: {why}", markup=False, style="yellow")


def show(report: Report) -> None:
    """Print a table for each suite, then the figures with a bound, then the machine."""
    for suite, rows in report.suites.items():
        tables: dict[tuple[str, ...], dict[str, Values]] = {}
        for case, values in rows.items():
            tables.setdefault(tuple(values), {})[case] = values
        for columns, alike in tables.items():
            _show_rows(suite, columns, alike)
    found = report.to_json()
    if found["figures"]:
        title = "what must hold" + (" (quick: a first impression, on small data)" if report.options.quick else "")
        table = Table("figure", "value", "bound", "", title=title, title_justify="left", box=None, pad_edge=False)
        for name, figure in found["figures"].items():
            side = "at least" if "at least" in figure else "at most"
            table.add_row(name, f"{figure['value']:.3g}", f"{side} {figure[side]:g}", "✓" if figure["holds"] else "✗")
        out.print(table)
        out.print()
    facts = report.machine
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)
    out.print(f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}; {versions}", markup=False)


def _show_rows(suite: str, columns: tuple[str, ...], rows: dict[str, Values]) -> None:
    """Print cases that have the same values; what is the same number of threads for all stands above them."""
    counts = {values.get("threads") for values in rows.values()}
    (count,) = counts if len(counts) == 1 else (None,)
    title = f"{suite}, {count} thread{'s' if count > 1 else ''}" if isinstance(count, int) else suite
    shown = [name for name in columns if name != "threads" or count is None]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    if len(rows) == 1:  # one case may have many values
        ((case, values),) = rows.items()
        table.add_column(case, no_wrap=True)
        table.add_column()
        for name in shown:
            table.add_row(_heading(name), _text(name, values))
    else:
        table.add_column("case")
        for name in shown:  # where the terminal is narrow, names are broken, and numbers stay whole
            widest = max(len(_text(name, values)) for values in rows.values())
            table.add_column(_heading(name), justify="right", min_width=widest)
        for case, values in rows.items():
            table.add_row(case, *(_text(name, values) for name in shown))
    out.print(table)
    out.print()


def _heading(name: str) -> str:
    return name.replace("_per_second", "/s").replace("_", " ")


def _text(name: str, values: Values) -> str:
    value = values.get(name)
    if value is None:
        return ""
    if isinstance(value, float):
        share = name.endswith("_share")
        return f"{100 * value:.1f} %" if share else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "nothing"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _rounded(value: Any) -> Any:
    """Keep four digits, of which fewer are repeatable."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _check_place(path: Path | None) -> None:
    """Raise before minutes of work where a file could not be written after it."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise FileError(f"{path}: expected a folder that exists, got no {path.parent}; make it, or choose another.")
    if path.is_dir():
        raise FileError(f"{path}: expected the name of a file, got a folder; choose another name.")
