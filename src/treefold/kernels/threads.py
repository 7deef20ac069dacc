"""Threads: how many there are, and a batch in parts, each computed by one thread."""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import numpy as np
import torch

from treefold.errors import ConfigurationError
from treefold.kernels.records import Ints, Vector

Result = TypeVar("Result")
_MOST_THREADS: Final = 4096
_blocks, _usual = 0, 1  # how many blocks are open in all threads, and the number of threads outside of them
_is_forked = False
_inside: Final[ContextVar[int | None]] = ContextVar(
    "treefold_threads", default=None
)  # the number of the innermost block
_kernel_threads: Final[ContextVar[int | None]] = ContextVar("treefold_kernel_threads", default=None)


def in_forked_processes(action: Callable[[], object]) -> None:
    """Do something at the start of each forked process, where the system has them."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)


def lock_for_forks(lock: Any) -> Any:
    """Return a lock that is free in forked processes: the thread that may hold it does not live on there."""
    in_forked_processes(lock._at_fork_reinit)
    return lock


_LOCK: Final = lock_for_forks(threading.Lock())


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with so many threads within the block; with as many as before if it is None.

    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    """
    global _blocks, _usual
    if count is not None and count > _MOST_THREADS:
        raise ConfigurationError(
            f"treefold expects at most {_MOST_THREADS:,} threads, got {count:,}; as many as there are cores are enough."
        )
    with _LOCK:
        before = _count()
        if not _blocks:
            _usual = before
        _blocks += 1
    chosen = before if count is None else count
    token = _inside.set(chosen)
    try:
        _give_torch(chosen)
        yield
    finally:
        _inside.reset(token)
        with _LOCK:
            _blocks -= 1
        _give_torch(before)


def _count() -> int:
    """Return the number of threads; a new thread would begin with the number of whichever block is open elsewhere."""
    if _is_forked:
        return _inside.get() or _usual
    return _usual if _blocks and _inside.get() is None else torch.get_num_threads()


def _give_torch(count: int) -> None:
    torch.set_num_threads(1 if _is_forked else count)


def _after_fork() -> None:
    """Give torch one thread: OpenMP would wait for ever for threads that do not live on. Kernels keep theirs."""
    global _is_forked, _usual
    _usual, _is_forked = _count(), True
    _tasks.cache_clear()
    _give_torch(1)


in_forked_processes(_after_fork)


def core_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def reserve_threads_for_kernels() -> Iterator[None]:
    """Give the kernels all of torch's threads within the block, and torch one.

    After a call, torch's threads stay awake for a while, on the cores that the kernels' threads need; the calls of torch between
    kernels are short.
    """
    token = _kernel_threads.set(_kernel_threads.get() or _count())
    try:
        with threads(1):
            yield
    finally:
        _kernel_threads.reset(token)


def part_count(trees: int) -> int:
    """Return into how many parts a batch is split: few trees are not worth a thread."""
    return min(_kernel_threads.get() or _count(), trees // 32) if trees >= 64 else 1


_LEAD: Final = 0.1
"""The first part has a tenth more than the others: the calling thread computes it, starts first and ends last."""


def part_ends(ends: Ints, parts: int) -> list[int]:
    """Return after which trees the parts of a batch end, given the number of nodes up to the end of each tree.

    Each part is a run of whole trees, all with about as many nodes.

    >>> part_ends(np.array([9, 10, 11, 12, 20]), 2), part_ends(np.array([99, 100]), 3)
    ([2, 5], [1, 2])
    """
    if parts == 1:
        return [len(ends)]
    share = int(ends[-1]) / (parts + _LEAD)
    found = np.searchsorted(ends, [share * (part + 1 + _LEAD) for part in range(parts - 1)], side="right")
    return sorted({*np.maximum(found, 1).tolist(), len(ends)})


def run_parts(run: Callable[[int], Result], parts: int) -> list[Result]:
    """Run a function for each part, all at the same time; raise the first error, in their order, when all have ended.

    >>> run_parts(lambda part: part + 5, 3)
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
        except BaseException as problem:  # of any kind: the calling thread raises it
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
    """Start threads that wait for tasks. They share a plain queue and nothing else, since a batch takes a few milliseconds."""
    tasks: SimpleQueue[Task] = SimpleQueue()
    for _ in range(count):
        threading.Thread(target=_work, args=(tasks,), name="treefold", daemon=True).start()
    return tasks


def _work(tasks: "SimpleQueue[Task]") -> None:
    while True:
        attempt, part = tasks.get()
        attempt(part)
        del attempt  # and with it the arrays of the batch, which would live until the next one


_LARGEST_WORKSPACE: Final = 32_000_000  # numbers that a thread keeps
_workspaces = threading.local()


def workspace(dtype: "np.dtype[Any]") -> Vector:
    """Return the memory that this thread's calls reuse: fresh memory costs as much time as the arithmetic of small states."""
    found: Vector | None = getattr(_workspaces, dtype.char, None)
    return np.empty(0, dtype) if found is None else found


def grow_workspace(dtype: "np.dtype[Any]", needed: int) -> None:
    """Keep a larger workspace, if it was too small and is not too large."""
    if len(workspace(dtype)) < needed <= _LARGEST_WORKSPACE:
        setattr(_workspaces, dtype.char, np.empty(min(needed + needed // 4, _LARGEST_WORKSPACE), dtype))
