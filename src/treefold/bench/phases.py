"""Where the time of a training epoch goes: the functions of training are wrapped while one epoch runs."""

import functools
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, final

import torch

from treefold.bench.cases import HEADLINE
from treefold.bench.clock import Clock
from treefold.bench.options import Job, Options, Values
from treefold.data.generators import make_listops
from treefold.kernels import FusedGradients, gradients
from treefold.nn.encoder import Encoding
from treefold.training import run, train
from treefold.training import trainer as loop
from treefold.training.examples import Examples, Score
from treefold.training.settings import RunSettings

Result = TypeVar("Result")
OTHER: Final = "other"
PHASES: Final = ("deal", "schedule", "kernels", "head", "optimiser", "metrics", OTHER)
CORE: Final = ("kernels", "head", "optimiser")


@final
class Stopwatch:
    """Sums the time of wrapped functions by phase; time within a function that is wrapped too belongs to the inner one.

    >>> ticks = iter(range(10))
    >>> watch = Stopwatch(lambda: float(next(ticks)))
    >>> watch.timed("other", lambda: watch.timed("deal", lambda: None)(), whole=True)()
    >>> dict(watch.seconds)
    {'other': 2.0, 'deal': 1.0}
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._clock, self._stack, self._last = clock, list[str](), 0.0
        self._thread = threading.get_ident()

    def timed(self, phase: str, function: Callable[..., Result], *, whole: bool = False) -> Callable[..., Result]:
        """Wrap a function; only calls within that of the ``whole`` are counted, on the same thread."""

        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Result:
            if threading.get_ident() != self._thread or not (whole or self._stack):
                return function(*arguments, **named)
            self._charge()
            self._stack.append(phase)
            try:
                return function(*arguments, **named)
            finally:
                self._charge()
                self._stack.pop()

        return wrapper

    def switch(self, phase: str) -> None:
        """Count what follows in the running function to another phase."""
        self._charge()
        if self._stack:
            self._stack[-1] = phase

    def _charge(self) -> None:
        now = self._clock()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._last
        self._last = now


def phases(options: Options) -> dict[str, Job]:
    """The share of each phase in one epoch of `treefold train`, validation and files included."""
    return {options.title(HEADLINE): functools.partial(_phases, options)}


def _phases(options: Options) -> Values:
    data = make_listops(options.size(full=100_000, quick=4000))
    settings = RunSettings.of(
        {"model": {"aggregator": "tucker", "state_size": 20, "rank": 3}, "training": {"epochs": 1}}
    )
    # Once without a watch: the kernels are loaded, and memory is there.
    with tempfile.TemporaryDirectory() as folder:
        train(make_listops(100), Path(folder) / "first", settings)
        watch = Stopwatch()
        with watched(watch):
            train(data, Path(folder) / "run", settings)
    total = sum(watch.seconds.values())
    values: Values = {f"{phase}_share": watch.seconds[phase] / total for phase in PHASES}
    return {
        **values,
        "core_share": sum(values[f"{phase}_share"] for phase in CORE),
        "epoch_seconds": total,
        "trees_per_second": len(data.splits["train"]) / total,
        "threads": options.threads,
    }


@contextmanager
def watched(watch: Stopwatch) -> Iterator[None]:
    """Wrap what training calls, within the block.

    Where a step goes without autograd, its head is among the kernels. Else the backward pass of the head ends when the gradient
    reaches the states of the roots; what follows is that of the kernels.
    """
    made = loop.Trainer.__init__

    def make(trainer: loop.Trainer, *arguments: Any, **named: Any) -> None:
        made(trainer, *arguments, **named)
        instead: list[tuple[Any, str, str]] = [
            (trainer, "run", OTHER),
            (trainer.optimiser, "step", "optimiser"),
            (trainer.model.encoder, "forward", "kernels"),
            (trainer.model.head, "forward", "head"),
        ]
        for owner, name, phase in instead:
            vars(owner)[name] = watch.timed(phase, getattr(owner, name), whole=owner is trainer)
        encode = trainer.model.encoder.forward

        def forward(*arguments: Any) -> Encoding:
            encoding: Encoding = encode(*arguments)
            roots = encoding.passes[0].blocks[-1]
            if roots.requires_grad:
                roots.register_hook(lambda gradient: watch.switch("kernels"))  # type: ignore[no-untyped-call]
            return encoding

        vars(trainer.model.encoder)["forward"] = forward

    wrapped: list[tuple[Any, str, str]] = [
        (loop, "epoch_batches", "deal"),
        (gradients, "gather_translated", "schedule"),
        (Examples, "batch", "schedule"),
        (FusedGradients, "add", "kernels"),
        (Examples, "loss", "head"),
        (torch.autograd, "backward", "head"),
        (Score, "of", "metrics"),
        (run, "write_tensors", "metrics"),
        (run, "write_text", "metrics"),
    ]
    with ExitStack() as stack:
        for owner, name, phase in wrapped:
            stack.enter_context(_replaced(owner, name, watch.timed(phase, getattr(owner, name))))
        stack.enter_context(_replaced(loop.Trainer, "__init__", make))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Put another value in a place of a module or class within the block."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
