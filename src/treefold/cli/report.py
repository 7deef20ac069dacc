"""`treefold report`: the results of sweeps as tables and figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from treefold.cli.console import Plugins, out
from treefold.sweeps.report import Document, write_report


def report(
    sweeps: Annotated[
        list[Path],
        typer.Argument(metavar="DIR…", help="Folders of sweeps, as `treefold sweep` writes them.", show_default=False),
    ],
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the report; default: `report` in the first DIR.")
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Write a report on sweeps: tables with means over seeds, and figures.

    Writes report.html (one page that needs no other file), report.md, report.tex, and each figure as PNG and SVG. Results of
    several sweeps are reported together. A sweep need not be finished.

    Example: `treefold report sweeps/mine sweeps/other --out report`
    """
    show(*write_report(sweeps, out_folder))


def show(document: Document, files: Sequence[Path]) -> None:
    """Print the main facts of a report and its files."""
    out.print(", ".join(f"{name}: {value}" for name, value in document.facts), markup=False)
    out.print(document.conclusion, markup=False)
    for remark in document.remarks:
        out.print(remark, markup=False)
    out.print(
        f"{files[0].parent}: report.html, report.md, report.tex, and {len(document.figures)} figures as PNG and SVG",
        markup=False,
    )
