"""How the commands print: results on standard output, progress, warnings and errors on standard error."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from rich.console import Console

from treefold.errors import ReadError

# Without markup and emoji codes: labels and file names may look like them.
out: Final = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
err: Final = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

WIDTH: Final = 80
_SECONDS_BETWEEN_LINES: Final = 10
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # all but tab and line feed; half characters


def say(text: str = "", *, to: Console = out, style: str | None = None) -> None:
    r"""Print text that may hold anything, such as labels and file names.

    Control characters, which could change the terminal, are printed as escapes.

    >>> say("[red] :smile: \x1b[2J")
    [red] :smile: \x1b[2J
    """
    to.print(visible(text), style=style)


def visible(text: str) -> str:
    r"""Return text that may hold anything with its control characters, and halves of characters, as escapes.

    >>> visible("a\x1b[2J")
    'a\\x1b[2J'
    """
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def _load_plugins(names: list[str] | None) -> list[str] | None:
    if names:
        from treefold.training.plugins import load_plugin

        for name in names:
            load_plugin(name)
    return names


# Loaded before the other options are read: a command only declares the option.
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="A Python file or module with your own aggregators, cells, tasks or readers; may be repeated.",
        callback=_load_plugins,
        is_eager=True,
    ),
]


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show the progress of long work: a bar in a terminal, otherwise a line every ten seconds."""
    if err.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task(visible(what), total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    last = time.monotonic()

    def line(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"{what}: {done:,}" + (f" of {total:,}" if total else ""), to=err)

    yield line


class _LogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage(), to=err)


def show_log() -> None:
    """Print the warnings of the library, for example that kernels are being compiled."""
    logger = logging.getLogger("treefold")
    if not any(isinstance(handler, _LogHandler) for handler in logger.handlers):
        logger.addHandler(_LogHandler(logging.WARNING))


class Skipped:
    """The records that were left out because they could not be read.

    >>> skipped = Skipped()
    >>> skipped(ReadError("expected a tree, got ')'", source="a.txt", line=2))
    >>> skipped.files()
    {'skipped.txt': "a.txt, line 2: expected a tree, got ')'\\n"}
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, error: ReadError) -> None:
        """Add a record by its error."""
        self.problems.append(str(error))

    def files(self) -> dict[str, str]:
        """Return the list as a file of the data set; no file if nothing was left out."""
        return {"skipped.txt": "\n".join(self.problems) + "\n"} if self.problems else {}

    def report(self, shown: int = 10) -> None:
        """Print how many records were left out, and the first of them."""
        if not self.problems:
            return
        count = len(self.problems)
        say(f"left out {count:,} that could not be read; all are listed in skipped.txt:", to=err, style="yellow")
        for problem in self.problems[:shown]:
            say(f"  {problem}", to=err)
        if count > shown:
            say(f"  … and {count - shown:,} more", to=err)
