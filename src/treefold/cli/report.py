"""`treefold report`: the results of sweeps as tables and figures."""

from pathlib import Path
from typing import Annotated

import typer

from treefold.cli.console import Plugins, out
from treefold.sweeps.reporting import write_report


def report(
    sweeps: Annotated[
        list[Path],
        typer.Argument(metavar="DIR…", help="Folders of sweeps, as `treefold sweep` makes them.", show_default=False),
    ],
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the report; else `report` in the first DIR.")
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Write a report on sweeps: the paper's tables with ours beside, and figures.

    Writes report.html (one page that needs nothing else), report.md, report.tex, and each figure as PNG and SVG. Results of
    several sweeps are reported together; a sweep need not be finished.

    Example: `treefold report sweeps/listops sweeps/lrt --out report`
    """
    made, files = write_report(sweeps, out_folder)
    facts = ", ".join(f"{name}: {value}" for name, value in made.facts)
    out.print(facts, markup=False)
    out.print(made.verdict, markup=False)
    for remark in made.remarks:
        out.print(remark, markup=False)
    folder = files[0].parent
    out.print(
        f"{folder}: report.html, report.md, report.tex, and {len(made.figures)} figures as PNG and SVG", markup=False
    )
