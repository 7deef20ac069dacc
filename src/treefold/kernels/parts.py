"""A batch in parts, each on a thread of its own."""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final, TypeVar

import numpy as np
import torch

from treefold.kernels.tables import Ints

Result = TypeVar("Result")
_kernel_threads: int | None = None


@contextmanager
def kernels_first() -> Iterator[None]:
    """While this lasts, the kernels have all of torch's threads, and torch itself one.

    Between its own calls torch's threads stay awake for a while, on the cores that the kernels' threads wait for; what torch has
    to do beside the kernels is little.
    """
    global _kernel_threads
    before, count = _kernel_threads, torch.get_num_threads()
    _kernel_threads = _kernel_threads or count
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _kernel_threads = before
        torch.set_num_threads(count)


def parts_of(trees: int) -> int:
    """Return in how many parts a batch is computed at the same time: few trees are not worth a thread."""
    return min(_kernel_threads or torch.get_num_threads(), trees // 32) if trees >= 64 else 1


_LEAD: Final = 0.1
"""How much more the first part has than each other: the thread that asks for them computes it, starts first and ends last."""


def ends_of_parts(ends: Ints, parts: int) -> list[int]:
    """Return behind which trees the parts of a batch end, for the nodes up to the end of each tree.

    Each part is a run of whole trees, all with about as many nodes.

    >>> ends_of_parts(np.array([9, 10, 11, 12, 20]), 2), ends_of_parts(np.array([99, 100]), 3)
    ([2, 5], [1, 2])
    """
    if parts == 1:
        return [len(ends)]
    share = int(ends[-1]) / (parts + _LEAD)
    found = np.searchsorted(ends, [share * (part + 1 + _LEAD) for part in range(parts - 1)], side="right")
    return sorted({*np.maximum(found, 1).tolist(), len(ends)})


def each_part(run: Callable[[int], Result], parts: int) -> list[Result]:
    """Run for each part, all at the same time; the first error, in their order, is raised when all have ended.

    >>> each_part(lambda part: part + 5, 3)
    [5, 6, 7]
    """
    if parts == 1:
        return [run(0)]
    tasks = _tasks(parts)
    ended: SimpleQueue[int] = SimpleQueue()
    outcomes: list[tuple[Result] | BaseException] = [RuntimeError()] * parts

    def attempt(part: int) -> None:
        try:
            outcomes[part] = (run(part),)
        except BaseException as problem:  # of whatever kind: it is raised again where the parts were asked for
            outcomes[part] = problem
        ended.put(part)

    for part in range(1, parts):
        tasks.put((attempt, part))
    attempt(0)
    for _ in range(parts):
        ended.get()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome[0] for outcome in outcomes if not isinstance(outcome, BaseException)]


Task = tuple[Callable[[int], None], int]


@functools.cache
def _tasks(count: int) -> "SimpleQueue[Task]":
    """Start threads that wait for tasks; a queue and nothing else between, since a batch takes a few milliseconds only."""
    tasks: SimpleQueue[Task] = SimpleQueue()
    for _ in range(count):
        threading.Thread(target=_work, args=(tasks,), name="treefold", daemon=True).start()
    return tasks


def _work(tasks: "SimpleQueue[Task]") -> None:
    while True:
        attempt, part = tasks.get()
        attempt(part)
        del attempt  # with it the arrays of the batch, which would stay until the next one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tasks.cache_clear)  # threads do not live on in a forked process
