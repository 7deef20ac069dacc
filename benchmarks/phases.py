"""The suite `phases`: where the time of a training epoch goes. The functions of training are wrapped while one epoch runs."""

import functools
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar, final

from benchmarks.cases import HEADLINE
from benchmarks.library import RunSettings, make_listops, train
from benchmarks.measuring import Clock, Job, Options, Values

Result = TypeVar("Result")
OTHER: Final = "other"
PHASES: Final = ("deal", "schedule", "kernels", "head", "optimiser", "metrics", OTHER)
CORE: Final = ("kernels", "head", "optimiser")

# The internals of treefold that are wrapped; all that must follow when they change.
FUNCTIONS: Final = (  # module or class, function, phase
    ("treefold.training.trainer", "epoch_batches", "deal"),
    ("treefold.nn.engine", "gather_translated", "schedule"),
    ("treefold.nn.engine", "gather_batch", "schedule"),
    ("treefold.nn.engine:FusedEngine", "gradients", "kernels"),  # without autograd the head is part of the kernels
    ("treefold.training.examples:Examples", "loss", "head"),
    ("torch.autograd", "backward", "head"),  # until the gradient reaches the roots; then the kernels
    ("treefold.training.examples:Score", "of", "metrics"),
    ("treefold.training.run", "write_tensors", "metrics"),
    ("treefold.training.run", "write_text", "metrics"),
)
TRAINER: Final = "treefold.training.trainer:Trainer"
PARTS: Final = (  # part of a trainer, method, phase
    ("optimiser", "step", "optimiser"),
    ("model.encoder", "forward", "kernels"),
    ("model.head", "forward", "head"),
)


def _roots(encoding: Any) -> Any:
    """Return the tensor with the states of the roots, through which the gradient goes from the head to the kernels."""
    return encoding.passes[0].blocks[-1]


@final
class Stopwatch:
    """Adds up the time of wrapped functions by phase; a wrapped function within another one counts for itself only.

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
        """Count the rest of the running function for another phase."""
        self._charge()
        if self._stack:
            self._stack[-1] = phase

    def _charge(self) -> None:
        now = self._clock()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._last
        self._last = now


def phases(options: Options) -> dict[str, Job]:
    """Return the job of the suite: the share of each phase in one epoch of `treefold train`, with validation and files."""
    return {options.title(HEADLINE): functools.partial(_phases, options)}


def _phases(options: Options) -> Values:
    data = make_listops(options.size(full=100_000, quick=4000))
    settings = RunSettings.of(
        {"recipe": "paper", "model": {"aggregator": "tucker", "state_size": 20, "rank": 3}, "training": {"epochs": 1}}
    )
    with tempfile.TemporaryDirectory() as folder:
        train(make_listops(100), Path(folder) / "first", settings)  # loads the kernels
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
    """Wrap the functions of training within the block."""
    trainer_class = find_owner(TRAINER)
    initialise = trainer_class.__init__

    def make(trainer: Any, *arguments: Any, **named: Any) -> None:
        initialise(trainer, *arguments, **named)
        vars(trainer)["run"] = watch.timed(OTHER, trainer.run, whole=True)
        for part, name, phase in PARTS:
            owner = attrgetter(part)(trainer)
            vars(owner)[name] = watch.timed(phase, getattr(owner, name))
        encode = trainer.model.encoder.forward

        def forward(*arguments: Any) -> Any:
            encoding = encode(*arguments)
            if _roots(encoding).requires_grad:
                _roots(encoding).register_hook(lambda gradient: watch.switch("kernels"))
            return encoding

        vars(trainer.model.encoder)["forward"] = forward

    with ExitStack() as stack:
        for place, name, phase in FUNCTIONS:
            owner = find_owner(place)
            stack.enter_context(_replaced(owner, name, watch.timed(phase, getattr(owner, name))))
        stack.enter_context(_replaced(trainer_class, "__init__", make))
        yield


def find_owner(place: str) -> Any:
    """Return the module, or the class "module:class", of a name in the tables."""
    module, _, name = place.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of a module or class within the block."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
