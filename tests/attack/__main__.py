"""Run the attack: `python -m tests.attack --minutes 60`; a finding is kept as a file, `--repeat FILE` runs it again."""

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.attack.case import FINDINGS, Outcome, packed, unpacked, versions
from tests.attack.child import Child

_BATCH, _SECONDS_EACH = 10, 3


def main() -> int:
    """Attack for some minutes, or with a number of cases of each target; the exit code is 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--cases", type=int, help="run so many cases of each target instead")
    parser.add_argument("--scan", action="store_true", help="run all inputs with one change of a right one instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets whose name begins so")
    parser.add_argument("--keep", type=Path, default=Path("attack-findings"), help="the folder for findings and counts")
    parser.add_argument("--seconds", type=float, default=120, help="a case that takes longer hangs")
    parser.add_argument("--repeat", type=Path, help="run a kept input again")
    options = parser.parse_args()
    child = Child(options.seconds)
    try:
        if options.repeat is not None:
            facts, data = unpacked(options.repeat.read_bytes())
            outcome = child.repeat(facts["target"], data)
            print(f"{facts['target']}: {outcome.kind} {outcome.detail}")
            return int(outcome.kind in FINDINGS)
        return _scan(child, options) if options.scan else _attack(child, options)
    finally:
        child.close()


def _attack(child: Child, options: argparse.Namespace) -> int:
    from tests.attack.targets import TARGETS

    names = [name for name in TARGETS if name.startswith(options.only)]
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    kept: set[str] = set()
    end = time.monotonic() + 60 * options.minutes
    while min(map(Counter.total, counts.values())) < options.cases if options.cases else time.monotonic() < end:
        for name in names:
            # As much time for each target: some take a thousand times as long as others.
            stop = min(end, time.monotonic() + _SECONDS_EACH)
            while counts[name].total() < options.cases if options.cases else time.monotonic() < stop:
                done = counts[name].total()
                size = min(_BATCH, options.cases - done) if options.cases else _BATCH
                for number, outcome, data in child.outcomes(name, options.seed, range(done, done + size)):
                    counts[name][outcome.kind] += 1
                    if outcome.kind in FINDINGS:
                        _keep(options, name, number, outcome, data, kept)
        _write_counts(options, counts)
    return _summary(counts)


def _scan(child: Child, options: argparse.Namespace) -> int:
    from tests.attack.targets import TARGETS

    targets = [target for name, target in TARGETS.items() if name.startswith(options.only)]
    counts: dict[str, Counter[str]] = {target.name: Counter() for target in targets}
    kept: set[str] = set()
    for target in targets:
        for number, data in enumerate(target.every()):
            outcome = child.repeat(target.name, data)
            counts[target.name][outcome.kind] += 1
            if outcome.kind in FINDINGS:
                _keep(options, target.name, number, outcome, data, kept)
        _write_counts(options, counts)
    return _summary(counts)


def _keep(options: argparse.Namespace, name: str, number: int, outcome: Outcome, data: bytes, kept: set[str]) -> None:
    """Write the input of a finding to a file, unless one with the same cause was written before."""
    cause = (
        f"{name} {outcome.kind} {outcome.detail.rpartition('(')[2] if outcome.kind == 'exception' else outcome.detail}"
    )
    if cause in kept:
        return
    kept.add(cause)
    options.keep.mkdir(parents=True, exist_ok=True)
    path = options.keep / f"{name.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:8]}"
    facts = {"target": name, "seed": options.seed, "number": number, **outcome._asdict()}
    path.write_bytes(packed(facts | {"repeat": f"python -m tests.attack --repeat {path}"}, data))
    print(f"{name} {number}: {outcome.kind}: {outcome.detail}\n  python -m tests.attack --repeat {path}", flush=True)


def _write_counts(options: argparse.Namespace, counts: dict[str, Counter[str]]) -> None:
    cases = sum(map(Counter.total, counts.values()))
    facts: dict[str, Any] = {"seed": options.seed, "cases": cases, "versions": versions(), "outcomes": counts}
    options.keep.mkdir(parents=True, exist_ok=True)
    (options.keep / "counts.json").write_text(json.dumps(facts, indent=1) + "\n")


def _summary(counts: dict[str, Counter[str]]) -> int:
    kinds = ["answer", "refused", *FINDINGS]
    print("".join(f"{word:>14}" for word in ["cases", *kinds]) + "  target")
    total: Counter[str] = sum(counts.values(), Counter())
    for name, count in {**counts, "all": total}.items():
        print("".join(f"{number:>14,}" for number in [count.total(), *(count[kind] for kind in kinds)]) + f"  {name}")
    return int(any(total[kind] for kind in FINDINGS))


if __name__ == "__main__":
    sys.exit(main())
