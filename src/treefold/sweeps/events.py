"""What happens in a sweep, as engines tell it."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from treefold.sweeps.planning import Run
from treefold.sweeps.running import Limits


@dataclass(frozen=True)
class Event:
    """Something happened to a run."""

    run: Run


@final
@dataclass(frozen=True)
class Started(Event):
    """A process took the run up, or took it up again."""

    process: int = 0


@final
@dataclass(frozen=True)
class Progressed(Event):
    """The run got so far: an epoch, the part of it that is done, and at its end the score on validation."""

    epoch: int = 0
    part: float = 0.0
    validation: float | None = None


@final
@dataclass(frozen=True)
class Finished(Event):
    """The run ended; ``result`` is its line. ``files`` are those of the run directory, where it is on another machine."""

    result: dict[str, Any]
    files: dict[str, bytes] | None = None


@final
@dataclass(frozen=True)
class Failed(Event):
    """The run cannot be done."""

    message: str


@final
@dataclass(frozen=True)
class Died(Event):
    """The process of the run died; the run is taken up again."""

    attempt: int


@final
@dataclass(frozen=True)
class Unstarted(Event):
    """Time was up before the run began."""


class Engine(Protocol):
    """Does runs, somewhere."""

    def events(self, runs: Sequence[Run], data: Path, folder: Path, limits: Limits) -> Generator[Event, None, None]:
        """Do the runs, each in its folder below ``folder``, and tell what happens."""
