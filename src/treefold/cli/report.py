"""`treefold report`: the results of sweeps as tables and figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treefold.cli.console import Plugins, say

if TYPE_CHECKING:
    from treefold.sweeps.report import Document


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
    from treefold.sweeps.report import write_report

    show(*write_report(sweeps, out_folder))


def show(document: "Document", files: Sequence[Path]) -> None:
    """Print the main facts of a report and its files."""
    say(", ".join(f"{name}: {value}" for name, value in document.facts))
    say(document.conclusion)
    for remark in document.remarks:
        say(remark)
    say(f"{files[0].parent}: report.html, report.md, report.tex, and {len(document.figures)} figures as PNG and SVG")
