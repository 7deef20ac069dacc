"""`python -m benchmarks`: how fast treefold is on this machine; `python -m benchmarks compare`: against another checkout."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import compare as comparing
from benchmarks.measuring import DEFAULT_BATCH, ROOT, Options, Values, machine
from benchmarks.roofline import draw, require_matplotlib
from benchmarks.suites import DEFAULT, SUITES, Report, chosen_cases, jobs_of, require_options
from benchmarks.suites import run as run_suites
from treefold.errors import ConfigurationError, FileError, TreefoldError, require_choice
from treefold.files import atomic_file

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_NAMES: Final = ", ".join(f"`{name}`" for name in SUITES)
_DRAWN: Final = "roofline"


Quick = Annotated[bool, typer.Option("--quick", help="Small data and few repetitions: a first impression in a minute.")]
Cases = Annotated[
    list[str] | None, typer.Option("--case", help="Only cases whose name contains this; may be repeated.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write all results to this file.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds of measurement; the best one counts.")]
Batch = Annotated[int, typer.Option(help="Trees or pairs of a training step.")]
Threads = Annotated[int, typer.Option(help="Threads to compute with.")]


def bench(
    what: Annotated[
        list[str] | None, typer.Argument(help=f"Suites: {_NAMES}; else {', '.join(DEFAULT)}.", show_default=False)
    ] = None,
    quick: Quick = False,
    cases: Cases = None,
    json_file: JsonFile = None,
    figure: Annotated[Path | None, typer.Option(help="Draw the suite `roofline` to this PNG file.")] = None,
    threads: Threads = 1,
    rounds: Rounds = None,
    batch: Batch = DEFAULT_BATCH,
) -> None:
    """Measure speed and memory on this machine, the fused kernels against plain torch.

    The alternatives take turns; each piece of work counts with its best round. With one thread, times are processor times, which
    other processes disturb less. `pip install 'treefold[bench]'` adds another package to compare with.

    `python -m benchmarks compare OLD_CHECKOUT` compares with another checkout; it has its own `--help`.

    Example: `python -m benchmarks step --case tucker --quick`
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
    _write_json(json_file, report.to_json())  # before anything is printed, which can fail
    if figure is not None:
        with atomic_file(figure) as file:
            file.write(draw(report.suites[_DRAWN]))
    show(report)


def compare(
    old: Annotated[Path, typer.Argument(help="Another checkout of the repository, a folder with src/treefold.")],
    what: Annotated[
        list[str] | None, typer.Argument(help=f"Suites: {', '.join(comparing.SUITES)}; else all.", show_default=False)
    ] = None,
    quick: Quick = False,
    cases: Cases = None,
    json_file: JsonFile = None,
    threads: Threads = 1,
    rounds: Rounds = None,
    batch: Batch = DEFAULT_BATCH,
    backend: Annotated[str, typer.Option(help="The backend of both: `fused`, `torch` or `auto`.")] = "fused",
) -> None:
    """Compare this checkout with another one, alternately in one run: time old / new of each case, and peak memory.

    Example: `git worktree add ../old 336b28c; python -m benchmarks compare ../old step --json compared.json`
    """
    names = list(dict.fromkeys(what or comparing.SUITES))
    options = Options(quick=quick, rounds=rounds, threads=threads, batch=batch)
    for name in names:
        require_choice("compare", "suite", name, comparing.SUITES)
    require_choice("compare", "backend", backend, ("fused", "torch", "auto"))
    require_options(options)
    _check_place(json_file)
    jobs = [(name, case) for name in names for case in comparing.cases_of(name, options)]
    jobs = [jobs[place] for place in chosen_cases([case for _, case in jobs], names, cases or [])]
    found = comparing.compare(old, jobs, options, backend=backend, begins=_Progress().begins)
    result = {
        "machine": machine(),
        "options": {**asdict(options), "backend": backend},
        "commits": {"new": comparing.commit_of(ROOT), "old": comparing.commit_of(old)},
        "suites": found,
        **comparing.summary(found),
    }
    _write_json(json_file, result)
    for suite, rows in found.items():
        _show_rows(suite, tuple(next(iter(rows.values()))), rows)
    out.print(
        f"least ratio old / new: {result['least_ratio']:.3g} ({result['least_ratio_case']}); peak memory: "
        f"new {result['new_peak_megabytes']:,.0f} MB, old {result['old_peak_megabytes']:,.0f} MB",
        markup=False,
    )


class _Progress:
    """Prints on standard error which case is measured."""

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
    """Print a table of cases with the same values; a number of threads that all share goes into the title."""
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
        for name in shown:  # in a narrow terminal names are broken, and numbers stay whole
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
    """Keep four digits; fewer are repeatable."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _check_place(path: Path | None) -> None:
    """Raise before minutes of work if the file could not be written after it."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise FileError(f"{path}: expected a folder that exists, got no {path.parent}; make it, or choose another.")
    if path.is_dir():
        raise FileError(f"{path}: expected the name of a file, got a folder; choose another name.")


def _write_json(path: Path | None, value: Any) -> None:
    if path is not None:
        with atomic_file(path) as file:
            file.write((json.dumps(_rounded(value), indent=1, ensure_ascii=False) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors are printed as one line."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    comparison = arguments[:1] == ["compare"]
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
    app.command()(compare if comparison else bench)
    program = "python -m benchmarks" + (" compare" if comparison else "")
    try:
        app(arguments[comparison:], prog_name=program)
    except TreefoldError as problem:
        err.print(f"error: {problem}", markup=False, emoji=False, style="red")
        sys.exit(2)


if __name__ == "__main__":
    main()
