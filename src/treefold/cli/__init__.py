"""The command line: `treefold --help` teaches it."""

import io
import os
import signal
import sys
from typing import Final

import typer

from treefold.cli.console import err
from treefold.cli.data import app as data_app
from treefold.errors import ConfigurationError, TreefoldError

_INTERRUPTED: Final = 130
_NOTHING_LEFT: Final = "interrupted; nothing was left half-written."
_TRACEBACK: Final = "TREEFOLD_TRACEBACK"
_LONGEST: Final = 200

app = typer.Typer(
    name="treefold",
    help="Recursive neural networks on trees: make or convert data, train models, and use them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")


def add_model_commands() -> None:
    """Add the commands that need torch, which takes seconds to import; `treefold data` does without."""
    from treefold.cli.model import compress, describe, embed, evaluate, predict
    from treefold.cli.report import report
    from treefold.cli.sweep import sweep
    from treefold.cli.train import train

    for command in (train, evaluate, predict, embed, describe, compress, sweep, report):
        app.command()(command)


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench() -> None:
    """Moved: benchmarks are run with `python -m benchmarks` in a checkout of the repository."""
    raise ConfigurationError(
        "`treefold bench` is no longer part of the library; run `python -m benchmarks` in a checkout of the repository, with the "
        "same suites and options."
    )


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Show the version and stop.")) -> None:
    if version:
        from treefold import __version__

        typer.echo(f"treefold {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; what went wrong is said in a line, with a non-zero exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may know fewer characters than tables use
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Who asks politely to end, as schedulers do before they kill, gets what Ctrl-C does.
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        if sys.argv[1:2] != ["data"]:
            add_model_commands()
        app()
    except TreefoldError as problem:
        err.print(f"error: {problem}", markup=False, emoji=False, style="red")
        sys.exit(2)
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        err.print(
            f"error: {where}{problem.strerror or problem}; nothing was left half-written.",
            markup=False,
            emoji=False,
            style="red",
        )
        sys.exit(1)
    except KeyboardInterrupt:  # while torch is imported; later typer is told of it
        err.print(_NOTHING_LEFT)
        sys.exit(_INTERRUPTED)
    except Exception as problem:
        if os.environ.get(_TRACEBACK):
            raise
        err.print(f"error: {_unforeseen(problem)}", markup=False, emoji=False, style="red")
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == _INTERRUPTED:  # what typer makes of Ctrl-C, without a word
            err.print(_NOTHING_LEFT)
        raise


def _unforeseen(problem: Exception) -> str:
    """Say in a line what nobody has thought of, and how to see more of it."""
    lines = str(problem).strip().splitlines() or [""]
    if isinstance(problem, MemoryError) or "can't allocate memory" in str(problem):
        return "expected sizes that fit into the memory, got larger ones; choose smaller sizes, or a smaller batch."
    return (
        f"expected no {type(problem).__name__}, got one: {lines[0][:_LONGEST]}; look at the input, and if it is right, report "
        f"this with what {_TRACEBACK}=1 shows."
    )
