"""The suites by name, how they are run, and the bounds that the project promises."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple, Protocol, final

from benchmarks.cases import HEADLINE, PROGRAM_CASES
from benchmarks.growth import growth, shapes
from benchmarks.library import threads
from benchmarks.measuring import Job, MissingPackageError, Options, Values, machine, require_threads
from benchmarks.phases import phases
from benchmarks.processes import compilation, memory
from benchmarks.roofline import roofline
from benchmarks.service import CASE as SERVICE
from benchmarks.service import service
from benchmarks.speed import (
    PROGRAM_BATCH,
    RECIPE_BATCH,
    RIVAL,
    batches,
    inference_suite,
    programs,
    recipes,
    step,
    subtrees,
)
from benchmarks.speed import threads as threads_suite
from treefold.errors import ConfigurationError, nearest, require_choice, require_positive

Results = Mapping[str, Mapping[str, Values]]  # suite, case, values

SUITES: Final[dict[str, Callable[[Options], dict[str, Job]]]] = {
    "step": step,
    "inference": inference_suite,
    "batches": batches,
    "threads": threads_suite,
    "subtrees": subtrees,
    "programs": programs,
    "recipes": recipes,
    "phases": phases,
    "growth": growth,
    "memory": memory,
    "compile": compilation,
    "shapes": shapes,
    "roofline": roofline,
    "service": service,
}
DEFAULT: Final = ("step", "inference", "threads")


class Claim(NamedTuple):
    """A value of a case of a suite that must be at least, or at most, the bound."""

    suite: str
    case: str
    value: str
    bound: float
    at_least: bool = True

    def judge(self, value: float) -> dict[str, Any]:
        """Return the value with its bound, ready for JSON.

        >>> Claim("compile", "first use", "seconds", 60, at_least=False).judge(70)["holds"]
        False
        """
        holds = value >= self.bound if self.at_least else value <= self.bound
        return {"value": value, "at least" if self.at_least else "at most": self.bound, "holds": bool(holds)}


def _steps(bounds: Mapping[str, float]) -> dict[str, Claim]:
    return {f"step, {case}, torch / fused": Claim("step", case, "ratio", bound) for case, bound in bounds.items()}


CLAIMS: Final[dict[str, Claim]] = {
    **_steps(
        {
            HEADLINE: 12,
            "listops tucker 50 7": 3,
            "listops sum 25": 8,
            "listops full 3": 8,
            "listops full 5": 8,
            "listops canonical 100 50": 2,
            "listops tensor-train 50 12": 2,
            "lrt sum 10": 6,
            "lrt full 10": 6,
            "lrt tucker 10 7": 6,
        }
    ),
    f"step, {HEADLINE}, {RIVAL} / fused": Claim("step", f"{HEADLINE} against {RIVAL}", "ratio", 5),
    **{
        f"step, {case}, torch / fused, {name}": Claim("subtrees", f"{case}, training step", value, bound)
        for case in ("lrt full 100", "lrt tucker 100 20")
        for name, value, bound in (
            ("subtrees apart", "apart_ratio_to_torch", 1),
            ("subtrees shared", "ratio_to_torch", 1.5),
        )
    },
    **{
        f"programs, {case}, torch / fused": Claim("programs", f"{case}, batch {PROGRAM_BATCH}", "ratio", 5)
        for case in PROGRAM_CASES
    },
    **{
        f"recipes, {name}, torch / fused": Claim("recipes", f"{name}, batch {RECIPE_BATCH}", "ratio", bound)
        for name, bound in (("listops", 8), ("lrt", 10))
    },
    "threads, training, batch 256, 1 / 2": Claim("threads", "training, batch 256, 2 threads", "ratio", 1.6),
    "threads, inference, batch 256, 1 / 2": Claim("threads", "inference, batch 256, 2 threads", "ratio", 1.6),
    "inference, batch 25, torch / fused": Claim("inference", f"{HEADLINE}, batch 25", "ratio", 10),
    "inference, batch 1, torch / fused": Claim("inference", f"{HEADLINE}, batch 1", "ratio", 15),
    "evaluation of LRT, subtrees apart / shared": Claim("subtrees", "lrt evaluation", "ratio_to_apart", 3),
    "phases, kernels + head + optimiser": Claim("phases", HEADLINE, "core_share", 0.85),
    "memory, peak of training, GB": Claim("memory", "training", "peak_gigabytes", 1.2, at_least=False),
    "compile, first use, s": Claim("compile", "first use", "first_seconds", 12, at_least=False),
    "service, requests a second": Claim("service", SERVICE, "requests_per_second", 1500),
    "service, median of a request, ms": Claim("service", SERVICE, "median_ms", 25, at_least=False),
    "service, requests a second, service / plain handler": Claim("service", SERVICE, "ratio", 5),
}


def judged(results: Results) -> dict[str, dict[str, Any]]:
    """Return the claimed figures among the results, each with its bound; those that were not measured are left out.

    >>> judged({"step": {"listops sum 25": {"ratio": 9.0}}})
    {'step, listops sum 25, torch / fused': {'value': 9.0, 'at least': 8, 'holds': True}}
    """
    found: dict[str, dict[str, Any]] = {}
    for name, claim in CLAIMS.items():
        value = results.get(claim.suite, {}).get(claim.case, {}).get(claim.value)
        if value is not None:
            found[name] = claim.judge(value)
    return found


class Listener(Protocol):
    """Is told about the progress of a benchmark."""

    def begins(self, suite: str, case: str, done: int, total: int) -> None:
        """Take note of the case that is measured next."""

    def skipped(self, suite: str, case: str, why: str) -> None:
        """Take note of a case that cannot be measured."""


@final
@dataclass(frozen=True)
class Report:
    """The results by suite and case, and the cases that were left out, with the reason."""

    options: Options
    machine: dict[str, Any]
    suites: dict[str, dict[str, Values]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return everything, ready for JSON; ``figures`` are the claimed ones with their bounds."""
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
    """Run suites; with ``words``, only the cases whose name contains one of them.

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
    """Return suite, case and job of everything to be measured; raise for an unknown suite or word.

    >>> [case for _, case, _ in jobs_of(["inference"], Options(), ["batch 2"])]
    ['listops tucker 20 3, batch 25', 'listops tucker 20 3, batch 256', 'listops tucker 20 3, batch 2048']
    """
    for name in names:
        require_choice("bench", "suite", name, SUITES)
    require_options(options)
    cases = [(name, case, job) for name in dict.fromkeys(names) for case, job in SUITES[name](options).items()]
    return [cases[place] for place in chosen_cases([case for _, case, _ in cases], names, words)]


def require_options(options: Options) -> None:
    """Raise for options that cannot be measured with."""
    require_threads(options.threads)
    require_positive("bench", batch=options.batch, **({} if options.rounds is None else {"rounds": options.rounds}))


def chosen_cases(cases: Sequence[str], suites: Sequence[str], words: Sequence[str]) -> list[int]:
    """Return the places of the cases whose name contains one of the words, of all without words; raise for an unknown word.

    >>> chosen_cases(["listops full 3", "lrt sum 10"], ["step"], ["lrt"])
    [1]
    """
    for word in words:
        if not any(word in case for case in cases):
            known = {part for case in cases for part in (case, *case.replace(",", "").split())}
            raise ConfigurationError(
                f"--case expects part of a case's name in {', '.join(suites)}, got {word!r}{nearest(word, sorted(known))}; "
                f"without --case all are measured."
            )
    return [place for place, case in enumerate(cases) if not words or any(word in case for word in words)]
