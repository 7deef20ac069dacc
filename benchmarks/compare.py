"""This checkout against another one: both are measured alternately in one run, each in a process that lives throughout.

A child process runs this file with the ``src`` folder of its checkout on the path. It reads requests as lines of JSON and answers
each with a line of JSON. Both run the benchmarks of this checkout; `library` knows the names of older versions.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch

import treefold
from benchmarks.cases import CASES, HEADLINE, Case, batches_of, model_of, training, with_settings, work_of
from benchmarks.measuring import (
    ROOT,
    Clock,
    Options,
    Values,
    Way,
    child_command,
    child_environment,
    mean_of_best,
    peak_resident,
    reset_peak,
)
from benchmarks.speed import (
    THREADED_BATCH,
    THREADED_ROUNDS,
    batch_sizes,
    case_examples,
    inference_pieces,
    inference_way,
    step_count,
    threaded_way,
    with_threads,
)
from treefold.errors import FileError, TrainingError

SUITES: Final = ("step", "inference", "threads")
NEW: Final = "new"
OLD: Final = "old"


class Prepared(NamedTuple):
    """Work that is ready to be timed, the clock for it, and the mean number of trees and nodes of a piece."""

    way: Way
    clock: Clock
    trees: float
    nodes: float


Preparation = Callable[[], Prepared]


def cases_of(suite: str, options: Options, backend: str = "fused") -> dict[str, Preparation]:
    """Return the cases of a suite by name, those of `python -m benchmarks`; the threads of each count as a case.

    >>> list(cases_of("inference", Options(quick=True)))
    ['listops tucker 20 3, batch 1', 'listops tucker 20 3, batch 25', 'listops tucker 20 3, batch 256']
    """
    settings = {"backend": backend}
    if suite == "step":
        return {
            options.title(name, batched=True): partial(_step, case, options, settings) for name, case in CASES.items()
        }
    if suite == "inference":
        return {
            options.title(f"{HEADLINE}, batch {size}"): partial(_inference, size, options, settings)
            for size in batch_sizes(options)
        }
    return {
        f"{name}, batch {THREADED_BATCH}, {count} thread{'s' if count > 1 else ''}": partial(
            _threaded, count, options, settings, train=name == "training"
        )
        for name in ("training", "inference")
        for count in (1, max(2, options.threads))
    }


def _step(case: Case, options: Options, settings: dict[str, Any]) -> Prepared:
    examples, steps = case_examples(case.data, options), step_count(options, options.batch)
    way = training(with_settings(model_of(case), settings), examples, options.batch, steps)
    return Prepared(way, options.clock, *work_of(examples, batches_of(examples, options.batch, steps)))


def _inference(size: int, options: Options, settings: dict[str, Any]) -> Prepared:
    examples = case_examples("listops", options)
    pieces = inference_pieces(examples, options, size)
    way = inference_way(with_settings(model_of(CASES[HEADLINE]), settings), examples, pieces, size)
    return Prepared(way, options.clock, *work_of(examples, pieces))


def _threaded(count: int, options: Options, settings: dict[str, Any], *, train: bool) -> Prepared:
    examples = case_examples("listops", options)
    way, pieces = threaded_way(examples, options, settings, train=train)
    return Prepared(with_threads(way, count), time.perf_counter, *work_of(examples, pieces))


def rounds_of(suite: str, options: Options) -> int:
    """Return the number of rounds for the cases of a suite."""
    return options.round_count(THREADED_ROUNDS if suite == "threads" else 5)


# The child.


def serve(requests: Iterator[str], answer: Callable[[dict[str, Any]], None]) -> None:
    """Answer requests until there are none: `begin` prepares a case, `round` times it once, `end` forgets it."""
    prepared: Prepared | None = None
    options = Options()
    for line in requests:
        request = json.loads(line)
        try:
            if request["do"] == "hello":
                options = Options(**request["options"])
                torch.set_num_threads(options.threads)
                answer({"source": str(Path(treefold.__file__).resolve().parents[1])})
            elif request["do"] == "begin":
                prepared = cases_of(request["suite"], options, request["backend"])[request["case"]]()
                prepared.way(prepared.clock)  # loads or compiles the kernels
                reset_peak()
                answer({"trees": prepared.trees, "nodes": prepared.nodes})
            elif request["do"] == "round":
                assert prepared is not None
                answer({"times": prepared.way(prepared.clock)})
            else:
                prepared = None
                answer({"peak_bytes": peak_resident()})
        except Exception as problem:  # anything: the parent process reports it
            answer({"error": f"{type(problem).__name__}: {problem}"})


def _serve_pipes() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which closes the pipe
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints does not disturb the answers

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    serve(iter(sys.stdin.readline, ""), answer)


# The parent.


@final
class Child:
    """A process that measures with the treefold of one checkout."""

    def __init__(self, checkout: Path, process: "subprocess.Popen[str]") -> None:
        self.checkout, self._process = checkout, process

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Send a request and return the answer; raise with the checkout's name if it fails."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died, which the missing answer shows
            self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": f"exit code {self._process.wait()}"}
        if "error" in found:
            raise TrainingError(f"{self.checkout}: the benchmark failed ({do}): {found['error']}")
        return found


def require_checkout(folder: Path) -> Path:
    """Return the ``src`` folder of a checkout; raise if treefold is not there."""
    source = folder.resolve() / "src"
    if not (source / "treefold" / "__init__.py").is_file():
        raise FileError(
            f"{folder}: expected a checkout with src/treefold, got a folder without it; `git worktree add` makes one."
        )
    return source


@contextmanager
def child_of(checkout: Path, options: Options) -> Iterator[Child]:
    """Start the child process of a checkout; it ends with the block."""
    source = require_checkout(checkout)
    process = subprocess.Popen(
        child_command(Path(__file__)),
        env=child_environment(source),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    child = Child(checkout, process)
    try:
        found = child.ask("hello", options=asdict(options))
        if Path(found["source"]) != source:
            raise TrainingError(
                f"{checkout}: the benchmark imported treefold from {found['source']}, not from {source}."
            )
        yield child
    finally:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def compare(
    old: Path,
    jobs: Sequence[tuple[str, str]],
    options: Options,
    *,
    backend: str = "fused",
    begins: Callable[[str, str, int, int], None] = lambda suite, case, done, total: None,
) -> dict[str, dict[str, Values]]:
    """Measure cases, given as (suite, case), in this checkout and an older one; return the values by suite and case.

    ``ratio`` is the time of the old one divided by that of the new one: above 1, the new one is faster.
    """
    require_checkout(old)
    for checkout in (ROOT, old):
        _compile(checkout, jobs, options, backend)
    found: dict[str, dict[str, Values]] = {}
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(child_of(checkout, options)) for name, checkout in ((NEW, ROOT), (OLD, old))
        }
        for done, (suite, case) in enumerate(jobs):
            begins(suite, case, done, len(jobs))
            values = _compare_case(children, suite, case, rounds_of(suite, options), backend)
            found.setdefault(suite, {})[case] = values
    return found


def _compile(checkout: Path, jobs: Sequence[tuple[str, str]], options: Options, backend: str) -> None:
    """Compile the kernels of the cases in a process before the measurement: compilation takes memory that is not given back."""
    quick = replace(options, quick=True)
    with child_of(checkout, quick) as child:
        for suite, case in jobs:
            if case in cases_of(suite, quick):
                child.ask("begin", suite=suite, case=case, backend=backend)


def _compare_case(children: dict[str, Child], suite: str, case: str, rounds: int, backend: str) -> Values:
    work = {name: child.ask("begin", suite=suite, case=case, backend=backend) for name, child in children.items()}
    if work[NEW] != work[OLD]:
        raise TrainingError(f"{suite}: {case}: the checkouts generate different data, {work[NEW]} and {work[OLD]}.")
    times: dict[str, list[list[float]]] = {name: [] for name in children}
    for number in range(rounds):
        for name in (NEW, OLD) if number % 2 == 0 else (OLD, NEW):  # neither is always first
            times[name].append(children[name].ask("round")["times"])
    peaks = {name: child.ask("end")["peak_bytes"] for name, child in children.items()}
    seconds = {name: mean_of_best(each) for name, each in times.items()}
    return {
        "new_ms": 1e3 * seconds[NEW],
        "old_ms": 1e3 * seconds[OLD],
        "ratio": seconds[OLD] / seconds[NEW],
        "new_peak_megabytes": peaks[NEW] / 1e6,
        "old_peak_megabytes": peaks[OLD] / 1e6,
        "trees_per_second": work[NEW]["trees"] / seconds[NEW],
    }


def summary(found: dict[str, dict[str, Values]]) -> Values:
    """Return the least ratio with its case, and the highest peaks of memory.

    >>> summary({"step": {"a": {"ratio": 0.9, "new_peak_megabytes": 2.0, "old_peak_megabytes": 3.0}}})["least_ratio_case"]
    'step: a'
    """
    rows = {f"{suite}: {case}": values for suite, cases in found.items() for case, values in cases.items()}
    least = min(rows, key=lambda name: float(rows[name]["ratio"]))
    peaks = {
        f"{name}_peak_megabytes": max(row[f"{name}_peak_megabytes"] for row in rows.values()) for name in (NEW, OLD)
    }
    return {"least_ratio": rows[least]["ratio"], "least_ratio_case": least, **peaks}


def commit_of(checkout: Path) -> str | None:
    """Return the commit of a checkout, with "+" for uncommitted changes; None without git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None


if __name__ == "__main__":
    _serve_pipes()
