"""The command line; `treefold --help` explains it.

Each group of commands has a module: `data`, `train`, `model` (evaluate, predict, embed, describe, compress), `serve`,
`sweep` and `report`; `console` prints. A command's module is imported when the command is called, and it imports torch,
numpy and the like inside its functions, so that `--help` and mistakes are answered at once.
"""

import atexit
import io
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from treefold.cli.console import WIDTH, err, out, say, show_log
from treefold.errors import ConfigurationError, TreefoldError
from treefold.trees.drawing import fitted

# Each command: its module and name in this package, and the first line of its help.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "data": ("data:app", "Make, convert and inspect data sets."),
    "train": ("train:train", "Train a model and write it to a run directory."),
    "evaluate": (
        "model:evaluate",
        "Evaluate a model on a data set: accuracy, macro-F1, confusion matrix, groups by tree shape.",
    ),
    "predict": ("model:predict", "Predict the classes or numbers of trees from a file or from standard input."),
    "embed": ("model:embed", "Write the root states of trees to a .npy or .csv file."),
    "describe": ("model:describe", "Show the parts of a model, their parameters and costs, and how training went."),
    "compress": ("model:compress", "Decompose the tensors of a trained model into a form with fewer parameters."),
    "serve": ("serve:serve", "Serve models: a page to explore them, and JSON for programs."),
    "recipes": ("train:recipes", "List the recipes that ship with the library, or print one of them."),
    "sweep": ("sweep:sweep", "Train all configurations of a grid, and write a line of results for each run."),
    "report": (
        "report:report",
        "Write a report on sweeps: the best configuration, tables, figures, and what to try next.",
    ),
}
_MARKUP: Final = "markdown"
_INTERRUPTED: Final = 130
_INTERRUPTED_MESSAGE: Final = "interrupted; no incomplete file was left."
_TRACEBACK: Final = "TREEFOLD_TRACEBACK"
_LONGEST_MESSAGE: Final = 200
_SOON: Final = 0.01  # seconds


class _LazyGroup(TyperGroup):
    """A group that lists placeholders of `COMMANDS`, and imports a command when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """Import a command or group of `COMMANDS`."""
    module, attribute = COMMANDS[name][0].split(":")
    found = getattr(import_module(f"treefold.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP, pretty_exceptions_enable=False)
        alone.command(name)(found)
        found = alone
    return typer.main.get_command(found)


app = typer.Typer(
    name="treefold",
    cls=_LazyGroup,
    help="Recursive neural networks on trees: make or convert data, train models, and use them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=_MARKUP,
    pretty_exceptions_enable=False,
)
for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench() -> None:
    """Moved: benchmarks are run with `python -m benchmarks` in a checkout of the repository."""
    raise ConfigurationError(
        "`treefold bench` is no longer part of the library; run `python -m benchmarks` in a checkout of the repository, with the "
        "same suites and options."
    )


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if version:
        from treefold import __version__

        typer.echo(f"treefold {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an error is printed in one line, with a non-zero exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # the terminal's encoding may lack some characters of tables
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # Schedulers send SIGTERM before they kill: it is handled like Ctrl-C, also where that is ignored (nohup, `&` in scripts).
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    show_log()
    if out.width < 1:  # COLUMNS=0: a terminal that does not know its width; rich would print nothing
        os.environ.pop("COLUMNS", None)  # for help, which has a console of its own
        out.width = err.width = WIDTH
    try:
        Path.cwd()
    except FileNotFoundError:  # libraries would end the process without a word that helps
        _fail("expected a working directory, got one that was removed; change to another one.", 2)
    with _signals_repeated(), _signals_noted() as was_signalled:
        _run(was_signalled)


def _run(was_signalled: Callable[[], bool]) -> None:
    try:
        app()
    except TreefoldError as problem:
        _fail(str(problem), 2)
    except OSError as problem:
        path = f"{problem.filename}: " if problem.filename else ""
        _fail(f"{path}{problem.strerror or problem}; no incomplete file was left.", 1)
    except KeyboardInterrupt:  # while a command is imported; typer handles it later
        _interrupted()
    except Exception as problem:
        if os.environ.get(_TRACEBACK):
            raise
        # A library may swallow a KeyboardInterrupt and fail later: torch does while it imports numpy.
        if was_signalled():
            _interrupted()
        _fail(_unexpected(problem), 1)
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:  # typer turns Ctrl-C into this exit code and prints nothing
            _interrupted()
        raise
    finally:
        atexit.register(_end_by_signals)  # the last one that is registered is the first one that is called


@contextmanager
def _signals_noted() -> Iterator[Callable[[], bool]]:
    """Yield what says whether a signal has come within the block."""
    reading, writing = socket.socketpair()
    with reading, writing:
        reading.setblocking(False)
        writing.setblocking(False)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)

        def has_come() -> bool:
            try:
                return bool(reading.recv(1))
            except BlockingIOError:
                return False

        try:
            yield has_come
        finally:
            signal.set_wakeup_fd(before)


@contextmanager
def _signals_repeated() -> Iterator[None]:
    """Repeat a signal that fell into a destructor or a callback: Python prints its KeyboardInterrupt there, and goes on."""
    before = sys.unraisablehook

    def repeat(problem: "sys.UnraisableHookArgs") -> None:
        if issubclass(problem.exc_type, KeyboardInterrupt):
            # When the destructor has ended; a signal of the system wakes what waits or sleeps.
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, _SOON)
        else:
            before(problem)

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before


def _end_by_signals() -> None:
    """Let signals end the process at once: its work is done, and what Python tidies up must not end in a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def _interrupted() -> None:
    say(_INTERRUPTED_MESSAGE, to=err)
    sys.exit(_INTERRUPTED)


def _fail(message: str, code: int) -> None:
    say(f"error: {message}", to=err, style="red")
    sys.exit(code)


def _unexpected(problem: Exception) -> str:
    """Describe an error that no code foresaw, in one line."""
    if isinstance(problem, MemoryError) or "can't allocate memory" in str(problem):
        return "not enough memory for these sizes; choose smaller sizes, or a smaller batch."
    first, *_ = str(problem).strip().splitlines() or [""]
    return (
        f"internal error ({type(problem).__name__}: {fitted(first, _LONGEST_MESSAGE)}); "
        f"please report it with the output of {_TRACEBACK}=1."
    )
