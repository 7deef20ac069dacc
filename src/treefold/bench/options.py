"""What is asked of a benchmark, and what it hands back."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from treefold.bench.clock import Clock, Way, least_times
from treefold.errors import ConfigurationError

Values = dict[str, Any]  # figures of one case by name, ready for JSON
Job = Callable[[], Values]
DEFAULT_BATCH = 25


class MissingPackageError(ConfigurationError):
    """A case needs a package that is not installed."""


@final
@dataclass(frozen=True)
class Options:
    """How to measure: ``quick`` takes small data and few repetitions, for a first impression."""

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
        """The time that the processor spent on this thread, which other processes disturb less; with more threads, real time."""
        return time.thread_time if self.threads == 1 else time.perf_counter

    def measure(self, ways: Mapping[str, Way], clock: Clock | None = None, *, full: int = 5) -> dict[str, float]:
        """Return the seconds of a piece for each way."""
        return least_times(ways, self.rounds or self.size(full=full, quick=2), clock or self.clock)

    def title(self, case: str, *, batched: bool = False) -> str:
        """Name a case, with what is not as usual; ``batched`` are those that depend on ``batch``.

        >>> Options(threads=2, batch=400).title("listops sum 25", batched=True)
        'listops sum 25, batch 400, 2 threads'
        """
        batch = f", batch {self.batch}" if batched and self.batch != DEFAULT_BATCH else ""
        return f"{case}{batch}" + (f", {self.threads} threads" if self.threads > 1 else "")


def compared(seconds: Mapping[str, float], trees: float, nodes: float, threads: int = 1) -> Values:
    """Put times of ways side by side; ratios and speeds are those of the first against the others, for pieces of so much work.

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
