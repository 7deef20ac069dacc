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
    force: Annotated[
        bool, typer.Option("--force", help="Replace the report in this folder, but nothing else.")
    ] = False,
    plugins: Plugins = None,
) -> None:
    """Write a report on sweeps: the best configuration, tables, figures, and what to try next.

    Writes report.html (one page that needs no other file), report.md, report.tex, each figure as PNG and SVG, and best.toml
    with the settings of the best configuration. Results of several sweeps are reported together. A sweep need not be finished.

    Example: `treefold report sweeps/mine sweeps/other --out report`
    """
    from treefold.sweeps.report import write_report

    show(*write_report(sweeps, out_folder, force=force))


def show(document: "Document", files: Sequence[Path]) -> None:
    """Print the main facts of a report and its files."""
    say(", ".join(f"{name}: {value}" for name, value in document.facts))
    say(document.conclusion)
    for remark in document.remarks:
        say(remark)
    if document.steps:
        say("What to try next:")
    for step in document.steps:
        say(f"- {step}")
    best = "".join(f", {found.file}" for found in document.bests)
    say(
        f"{files[0].parent}: report.html, report.md, report.tex{best}, and {len(document.figures)} figures as PNG and SVG"
    )
