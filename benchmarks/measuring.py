"""How alternatives are timed: in turn, for several rounds; and what the times depend on: options, the processor, memory."""

import ctypes
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, final

import torch

from benchmarks.library import core_count, threads
from treefold.errors import ConfigurationError, require_positive

Clock = Callable[[], float]
Way = Callable[[Clock], list[float]]  # does the work once and returns the time of each piece
Values = dict[str, Any]  # the measurements of one case by name, ready for JSON
Job = Callable[[], Values]
DEFAULT_BATCH: Final = 25
ROOT: Final = Path(__file__).resolve().parents[1]  # of this checkout
_PACKAGES: Final = ("treefold", "torch", "numpy", "numba", "pytorch-tree-lstm")
_STATUS: Final = Path("/proc/self/status")


class MissingPackageError(ConfigurationError):
    """A case needs a package that is not installed."""


def in_pieces(work: Callable[[int], object], count: int) -> Way:
    """Return the way that does ``work(0) … work(count - 1)``, after a first piece that is not timed.

    >>> ticks = iter(range(10))
    >>> in_pieces(lambda piece: None, 3)(lambda: float(next(ticks)))
    [1.0, 1.0, 1.0]
    """

    def way(clock: Clock) -> list[float]:
        work(0)
        times = []
        for piece in range(count):
            start = clock()
            work(piece)
            times.append(clock() - start)
        return times

    return way


def mean_of_best(rounds: list[list[float]]) -> float:
    """Return the mean seconds of a piece; each piece counts with its best round, the one that nothing disturbed.

    >>> mean_of_best([[3.0, 9.0], [4.0, 5.0]])
    4.0
    """
    return statistics.fmean(map(min, zip(*rounds, strict=True)))


def least_times(ways: Mapping[str, Way], rounds: int, clock: Clock) -> dict[str, float]:
    """Return the mean seconds of a piece for each way, by `mean_of_best`.

    The ways take turns, so that other load on the machine affects all of them.

    >>> times = iter([[3.0, 9.0], [2.0, 2.0], [4.0, 5.0], [1.0, 4.0]])
    >>> least_times({"slow": lambda clock: next(times), "fast": lambda clock: next(times)}, 2, lambda: 0.0)
    {'slow': 4.0, 'fast': 1.5}
    """
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way(clock))
    return {name: mean_of_best(times) for name, times in found.items()}


@final
@dataclass(frozen=True)
class Options:
    """How to measure; ``quick`` uses small data and few repetitions, for a first impression."""

    quick: bool = False
    rounds: int | None = None
    threads: int = 1
    batch: int = DEFAULT_BATCH

    def size(self, full: int, quick: int) -> int:
        """Choose between two sizes.

        >>> Options(quick=True).size(full=1000, quick=10)
        10
        """
        return quick if self.quick else full

    @property
    def clock(self) -> Clock:
        """The processor time of this thread, which other processes disturb less; with several threads, real time."""
        return time.thread_time if self.threads == 1 else time.perf_counter

    def round_count(self, full: int = 5) -> int:
        """Return the number of rounds: as asked for, else ``full``, or 2 if quick."""
        return self.rounds or self.size(full=full, quick=2)

    def measure(self, ways: Mapping[str, Way], clock: Clock | None = None, *, full: int = 5) -> dict[str, float]:
        """Return the seconds of a piece for each way."""
        return least_times(ways, self.round_count(full), clock or self.clock)

    def title(self, case: str, *, batched: bool = False) -> str:
        """Name a case, with the options that differ from the defaults; ``batched`` cases depend on ``batch``.

        >>> Options(threads=2, batch=400).title("listops sum 25", batched=True)
        'listops sum 25, batch 400, 2 threads'
        """
        batch = f", batch {self.batch}" if batched and self.batch != DEFAULT_BATCH else ""
        return f"{case}{batch}" + (f", {self.threads} threads" if self.threads > 1 else "")


def compared(seconds: Mapping[str, float], trees: float, nodes: float, threads: int = 1) -> Values:
    """Return the times of several ways, the ratio of each other way to the first, and the first one's speed.

    ``trees`` and ``nodes`` are those of a piece of work.

    >>> compared({"fused": 0.002, "torch": 0.03}, trees=25, nodes=600)["ratio"]
    15.0
    """
    first, *others = seconds
    values: Values = {f"{name}_ms": 1e3 * value for name, value in seconds.items()}
    for other in others:
        name = "ratio" if len(others) == 1 else f"ratio_to_{other}"
        values[name] = seconds[other] / seconds[first]
    speeds = {"trees_per_second": trees / seconds[first], "nodes_per_second": nodes / seconds[first]}
    return {**values, **speeds, "threads": threads}


def machine() -> dict[str, Any]:
    """Return the versions, the processor and its cores, ready for JSON.

    >>> sorted(machine())
    ['cores', 'cpu', 'system', 'versions']
    """
    return {
        "cpu": _cpu(),
        "cores": core_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def require_threads(count: int) -> None:
    """Raise unless the machine has so many cores.

    >>> require_threads(0)
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: bench expects threads to be an integer >= 1, got 0; choose a positive threads.
    """
    require_positive("bench", threads=count)
    if count > core_count():
        raise ConfigurationError(
            f"bench expects threads to be at most the number of cores, {core_count()}, got {count}; choose fewer."
        )


def scaling(count: int, rounds: int = 5, clock: Clock = time.perf_counter) -> float:
    """Return how much more work ``count`` threads do than one in the same time: the most that any program can gain here.

    The work is matrix products that share nothing. Virtual cores can give less than their number.
    """
    matrix = torch.rand(256, 256)

    def work(_: object = None) -> None:
        for _ in range(100):
            torch.mm(matrix, matrix)

    alone, together = [], []
    with threads(1), ThreadPoolExecutor(count) as pool:
        for _ in range(rounds):
            start = clock()
            work()
            alone.append(clock() - start)
            start = clock()
            list(pool.map(work, range(count)))
            together.append(clock() - start)
    return count * min(alone) / min(together)


def peak_resident() -> int:
    """Return the most bytes that this process has had in memory (since `reset_peak`).

    On Linux of this program only: the peak of `resource` starts with that of the parent process.
    """
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_peak() -> bool:
    """Let `peak_resident` start again from the memory in use; return False if the system cannot (not Linux)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # returns freed memory, else later work would reuse it unseen
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError):
        return False
    return True


def peak_growth(work: Callable[[], object]) -> int | None:
    """Return by how many bytes the process grows at most during the work; None if the system does not tell (not Linux)."""
    if not reset_peak():
        return None
    before = _status("VmRSS")
    work()
    peak = _status("VmHWM")
    return None if before is None or peak is None else max(0, peak - before)


def child_command(script: Path, *arguments: object) -> list[str]:
    """Return the command that runs a script of the benchmarks in a new process; -P: nothing is imported from its folder."""
    return [sys.executable, "-P", str(script), *map(str, arguments)]


def child_environment(source: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process that imports treefold from ``source`` and the benchmarks from this checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(source.resolve()), str(ROOT)]), **more}


def _status(key: str) -> int | None:
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
