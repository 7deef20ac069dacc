"""A batch in parts, each on a thread of its own."""

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
    """Run for each part, all at the same time."""
    if parts == 1:
        return [run(0)]
    others = [_threads(parts).submit(run, part) for part in range(1, parts)]
    return [run(0), *(other.result() for other in others)]


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # threads do not live on in a forked process
