"""Random numbers: a training draws from a generator of its own, so that its seed repeats it whatever other threads draw."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, final

import torch
from torch import Tensor, nn

from treefold.kernels.threads import lock_for_forks

_LOCK: Final = lock_for_forks(threading.RLock())
_own: Final[ContextVar[torch.Generator | None]] = ContextVar("treefold_generator", default=None)


@contextmanager
def seeded(seed: int | torch.Generator) -> Iterator[torch.Generator]:
    """Within the block, torch's default generator draws what the seed gives, or goes on where the given generator was left.

    Modules draw their first weights from the default generator. Afterwards it is as it was before the block, and the generator
    that is yielded goes on where it was left. Only one thread at a time can be in such a block.

    >>> with seeded(3) as generator:
    ...     first = torch.rand(1)
    >>> both = torch.rand(2, generator=torch.Generator().manual_seed(3))
    >>> bool(both[0] == first), bool(both[1] == torch.rand(1, generator=generator))
    (True, True)
    """
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    with _LOCK:
        before = torch.random.get_rng_state()
        torch.random.set_rng_state(generator.get_state())
        try:
            yield generator
        finally:
            generator.set_state(torch.random.get_rng_state())
            torch.random.set_rng_state(before)


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Within the block, dropout and noise of this thread draw from the generator."""
    token = _own.set(generator)
    try:
        yield
    finally:
        _own.reset(token)


def own_generator() -> torch.Generator | None:
    """Return the generator of the training that this thread is in; None for torch's default generator."""
    return _own.get()


@final
class Dropout(nn.Dropout):
    """Dropout that draws from the generator of the training; the same numbers as torch's."""

    def forward(self, values: Tensor) -> Tensor:
        """Zero each value with probability p, and divide the others by 1 − p; in training only."""
        if not self.training or not self.p:
            return values
        kept = torch.empty(values.shape).bernoulli_(1 - self.p, generator=own_generator()).to(values)
        return values * kept.div_(1 - self.p)


def draws_elsewhere(model: nn.Module) -> bool:
    """Say whether a model has parts that may draw from torch's default generator in training: those that users wrote.

    >>> draws_elsewhere(nn.Linear(1, 1)), draws_elsewhere(nn.Sequential(nn.Dropout(0.5))), draws_elsewhere(Dropout(0.5))
    (False, True, False)
    """
    own = ("treefold.", "torch.nn.modules.")
    return any(
        not type(part).__module__.startswith(own)
        or ("dropout" in type(part).__module__ and not isinstance(part, Dropout))
        for part in model.modules()
    )
