"""Several processes train one model together: each takes its share of every batch, and the gradients are added up."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

from torch import Tensor, distributed

from treefold.errors import TrainingError
from treefold.trees.batch import Ints


@final
@dataclass(frozen=True)
class Workers:
    """The processes that work together, and which of them this is; one alone unless `joined` says otherwise.

    >>> import numpy as np
    >>> Workers().share(np.arange(5)).tolist(), Workers(1, 2).share(np.arange(5)).tolist()
    ([0, 1, 2, 3, 4], [2, 3, 4])
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and reports progress."""
        return self.rank == 0

    def first_of(self, count: int) -> int:
        """Return the start of this process's share of ``count`` items."""
        return count * self.rank // self.count

    def share(self, numbers: Ints) -> Ints:
        """Return this process's share of some numbers; all shares in a row are the whole."""
        return numbers[self.first_of(len(numbers)) : len(numbers) * (self.rank + 1) // self.count]

    def add_up(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over all processes, bit for bit the same in each."""
        if self.count > 1:
            distributed.all_reduce(tensor)
        return tensor

    def joined_rows(self, rows: Tensor, before: int, total: int) -> Tensor:
        """Join the rows of all processes, (total, …); this process's rows come after ``before`` others."""
        if self.count == 1:
            return rows
        whole = rows.new_zeros(total, *rows.shape[1:])
        whole[before : before + len(rows)] = rows
        return self.add_up(whole)


ALONE: Final = Workers()


@contextmanager
def joined() -> Iterator[Workers]:
    """Join the processes that `torchrun` started, if it did; else there is one."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count == "1":
        yield ALONE
        return
    # Its functions have the group as a default argument. Imported later, by an optimiser, they would keep the group and its
    # threads alive after `destroy_process_group`; a thread that frees a tensor while Python shuts down aborts the process.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        distributed.init_process_group("gloo")
    except (ValueError, RuntimeError) as problem:
        raise TrainingError(
            f"WORLD_SIZE={count} expects the environment that torchrun makes, got {problem}; "
            f"start with `torchrun --nproc-per-node {count} -m treefold train …`, or unset WORLD_SIZE."
        ) from None
    try:
        yield Workers(distributed.get_rank(), distributed.get_world_size())
        distributed.barrier()  # leave together: a process that ends while others are connected may be aborted at its exit
    finally:
        distributed.destroy_process_group()
