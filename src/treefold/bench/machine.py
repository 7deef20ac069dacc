"""What a measurement depends on: versions, the processor, threads, memory."""

import ctypes
import platform
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from treefold.errors import ConfigurationError, require_positive
from treefold.kernels.threads import core_count, threads

_PACKAGES: Final = ("treefold", "torch", "numpy", "numba", "pytorch-tree-lstm")
_STATUS: Final = Path("/proc/self/status")


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


def scaling(count: int, rounds: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how many times the work of one thread so many do at the same time: what any program can gain here at most.

    The work are matrix products that share nothing. Virtual cores may be less than their number.
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
    """Return the most bytes that this process has had in memory.

    Of this program alone where the system tells: the peak of `resource` begins with that of the process which started it.
    """
    told = _status("VmHWM")
    if told is not None:
        return told
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_growth(work: Callable[[], object]) -> int | None:
    """Return by how many bytes the process grows at most while it works; None where the system does not tell (not Linux)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before goes back, else work would grow into it unseen
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError):
        return None
    before = _status("VmRSS")
    work()
    peak = _status("VmHWM")
    return None if before is None or peak is None else max(0, peak - before)


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
