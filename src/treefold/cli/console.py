"""How the command line talks: progress on standard error, errors in one line, results on standard output."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from treefold.errors import ReadError
from treefold.training.plugins import load_plugin

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

_SECONDS_BETWEEN_LINES = 10


def _load(names: list[str] | None) -> list[str] | None:
    for name in names or []:
        load_plugin(name)
    return names


# Loaded before the other options are read, so that a command needs the argument alone.
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="A Python file, or a module, with your own aggregators, cells or tasks; may be repeated.",
        callback=_load,
        is_eager=True,
    ),
]


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show how far a long piece of work is: a bar in a terminal, a line now and then elsewhere."""
    if err.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    last = time.monotonic()

    def line(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            err.print(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    yield line


class Skipped:
    """Collects what is left out as bad, and says so.

    >>> skipped = Skipped()
    >>> skipped(ReadError("expected a tree, got ')'", source="a.txt", line=2))
    >>> len(skipped.problems)
    1
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, error: ReadError) -> None:
        """Note what was left out."""
        self.problems.append(str(error))

    def files(self) -> dict[str, str]:
        """Return the list as a file of the data set; none when nothing was left out."""
        return {"skipped.txt": "\n".join(self.problems) + "\n"} if self.problems else {}

    def report(self, shown: int = 10) -> None:
        """Print how many were left out, and the first of them."""
        if not self.problems:
            return
        err.print(
            f"left out {len(self.problems):,} that could not be read; all are listed in skipped.txt:", style="yellow"
        )
        for problem in self.problems[:shown]:
            err.print(f"  {problem}", markup=False)
        if len(self.problems) > shown:
            err.print(f"  … and {len(self.problems) - shown:,} more")
