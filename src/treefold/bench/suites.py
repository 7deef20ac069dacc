"""The suites by name, and how they are run."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol, final

from treefold.bench.claims import judged
from treefold.bench.growth import growth, shapes
from treefold.bench.machine import machine, require_threads
from treefold.bench.options import Job, MissingPackageError, Options, Values
from treefold.bench.phases import phases
from treefold.bench.processes import compilation, memory
from treefold.bench.roofline import roofline
from treefold.bench.speed import batches, inference_suite, step, subtrees
from treefold.bench.speed import threads as threads_suite
from treefold.errors import ConfigurationError, nearest, require_choice, require_positive
from treefold.kernels.threads import threads

SUITES: Final[dict[str, Callable[[Options], dict[str, Job]]]] = {
    "step": step,
    "inference": inference_suite,
    "batches": batches,
    "threads": threads_suite,
    "subtrees": subtrees,
    "phases": phases,
    "growth": growth,
    "memory": memory,
    "compile": compilation,
    "shapes": shapes,
    "roofline": roofline,
}
DEFAULT: Final = ("step", "inference", "threads")


class Listener(Protocol):
    """Is told how a benchmark goes."""

    def begins(self, suite: str, case: str, done: int, total: int) -> None:
        """Take note of the case that is measured now."""

    def skipped(self, suite: str, case: str, why: str) -> None:
        """Take note of a case that cannot be measured."""


@final
@dataclass(frozen=True)
class Report:
    """What was measured: by suite and case the values, and what was left out, with the reason."""

    options: Options
    machine: dict[str, Any]
    suites: dict[str, dict[str, Values]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return all of it, ready for JSON; ``figures`` are those that the project answers for, with their bounds."""
        return {
            "machine": self.machine,
            "options": asdict(self.options),
            "suites": self.suites,
            "skipped": self.skipped,
            "figures": judged(self.suites),
        }


def run(
    names: Sequence[str], options: Options, *, words: Sequence[str] = (), listener: Listener | None = None
) -> Report:
    """Run suites, of each the cases whose name contains one of the words.

    >>> run(["stepp"], Options())
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: bench expects suite to be one of 'step', ..., got 'stepp' (nearest known: 'step').
    """
    jobs = jobs_of(names, options, words)
    report = Report(options, machine())
    missing: MissingPackageError | None = None
    with threads(options.threads):
        for done, (suite, case, job) in enumerate(jobs):
            if listener is not None:
                listener.begins(suite, case, done, len(jobs))
            try:
                report.suites.setdefault(suite, {})[case] = job()
            except MissingPackageError as problem:
                missing = problem
                report.skipped[f"{suite}: {case}"] = str(problem)
                if listener is not None:
                    listener.skipped(suite, case, str(problem))
    if missing is not None and len(report.skipped) == len(jobs):
        raise missing
    return report


def jobs_of(names: Sequence[str], options: Options, words: Sequence[str] = ()) -> list[tuple[str, str, Job]]:
    """Return suite, case and job of all that is to be measured; raise where that is nothing.

    >>> [case for _, case, _ in jobs_of(["inference"], Options(), ["batch 2"])]
    ['listops tucker 20 3, batch 25', 'listops tucker 20 3, batch 256', 'listops tucker 20 3, batch 2048']
    """
    for name in names:
        require_choice("bench", "suite", name, SUITES)
    require_threads(options.threads)
    require_positive("bench", batch=options.batch, **({} if options.rounds is None else {"rounds": options.rounds}))
    cases = [(name, case, job) for name in dict.fromkeys(names) for case, job in SUITES[name](options).items()]
    for word in words:
        if not any(word in case for _, case, _ in cases):
            known = {part for _, case, _ in cases for part in (case, *case.replace(",", "").split())}
            raise ConfigurationError(
                f"--case expects part of a case's name in {', '.join(names)}, got {word!r}{nearest(word, sorted(known))}; "
                f"without --case all are measured."
            )
    return [each for each in cases if not words or any(word in each[1] for word in words)]
