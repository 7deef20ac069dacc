"""The figures that the project answers for, by name, with the bound of each."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from treefold.bench.cases import HEADLINE
from treefold.bench.options import Values
from treefold.bench.rival import RIVAL

Results = Mapping[str, Mapping[str, Values]]  # suite, case, values


class Claim(NamedTuple):
    """A value of a case of a suite, and what it must be: at least, or at most, the bound."""

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
    "threads, training, batch 256, 1 / 2": Claim("threads", "training, batch 256, 2 threads", "ratio", 1.6),
    "threads, inference, batch 256, 1 / 2": Claim("threads", "inference, batch 256, 2 threads", "ratio", 1.6),
    "inference, batch 25, torch / fused": Claim("inference", f"{HEADLINE}, batch 25", "ratio", 10),
    "inference, batch 1, torch / fused": Claim("inference", f"{HEADLINE}, batch 1", "ratio", 15),
    "evaluation of LRT, subtrees apart / shared": Claim("subtrees", "lrt evaluation", "ratio_to_apart", 3),
    "phases, kernels + head + optimiser": Claim("phases", HEADLINE, "core_share", 0.85),
    "memory, peak of training, GB": Claim("memory", "training", "peak_gigabytes", 1.2, at_least=False),
    "compile, first use, s": Claim("compile", "first use", "first_seconds", 60, at_least=False),
}


def judged(results: Results) -> dict[str, dict[str, Any]]:
    """Return the figures that results hold, each with its bound; those that were not measured are left out.

    >>> judged({"step": {"listops sum 25": {"ratio": 9.0}}})
    {'step, listops sum 25, torch / fused': {'value': 9.0, 'at least': 8, 'holds': True}}
    """
    found: dict[str, dict[str, Any]] = {}
    for name, claim in CLAIMS.items():
        value = results.get(claim.suite, {}).get(claim.case, {}).get(claim.value)
        if value is not None:
            found[name] = claim.judge(value)
    return found
