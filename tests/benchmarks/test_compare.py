import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import compare
from benchmarks.compare import NEW, OLD, cases_of, child_of, rounds_of, serve, summary
from benchmarks.measuring import ROOT, Options
from benchmarks.suites import SUITES

from treefold.errors import FileError, TrainingError

QUICK = Options(quick=True, rounds=1)


def answers(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    serve(iter([json.dumps(request) for request in requests]), found.append)
    return found


def test_the_cases_are_those_of_the_suites_without_the_other_package() -> None:
    for name in ("step", "inference"):
        expected = [case for case in SUITES[name](Options()) if "against" not in case]
        assert list(cases_of(name, Options())) == expected
    assert set(SUITES["threads"](Options())) < set(cases_of("threads", Options()))
    assert len(cases_of("threads", Options())) == 4


def test_a_child_prepares_times_and_forgets_a_case() -> None:
    case = "listops tucker 20 3, batch 25"
    hello, begun, first, second, ended = answers(
        {"do": "hello", "options": {"quick": True, "threads": 1}},
        {"do": "begin", "suite": "inference", "case": case, "backend": "fused"},
        {"do": "round"},
        {"do": "round"},
        {"do": "end"},
    )
    assert hello == {"source": str(ROOT / "src")}
    assert begun["trees"] == 25 and begun["nodes"] > 25
    assert len(first["times"]) == len(second["times"]) == 300 // 25
    assert ended["peak_bytes"] > 0


def test_a_child_reports_errors_and_goes_on() -> None:
    unknown, round_, ended = answers(
        {"do": "begin", "suite": "step", "case": "absent", "backend": "fused"}, {"do": "round"}, {"do": "end"}
    )
    assert unknown == {"error": "KeyError: 'absent'"} and "AssertionError" in round_["error"] and "peak_bytes" in ended


class Scripted:
    """A child with known times."""

    def __init__(self, log: list[str], name: str, times: list[list[float]], nodes: float = 50.0) -> None:
        self.log, self.name, self.times, self.nodes = log, name, iter(times), nodes

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self.log.append(f"{self.name} {do}")
        if do == "round":
            return {"times": next(self.times)}
        return {"trees": 5.0, "nodes": self.nodes} if do == "begin" else {"peak_bytes": 3_000_000}


def test_rounds_alternate_and_the_best_of_each_piece_counts() -> None:
    log: list[str] = []
    children: Any = {
        NEW: Scripted(log, NEW, [[1.0, 4.0], [2.0, 3.0]]),
        OLD: Scripted(log, OLD, [[3.0, 9.0], [4.0, 5.0]]),
    }
    found = compare._compare_case(children, "step", "case", 2, "fused")
    assert log[2:6] == ["new round", "old round", "old round", "new round"]
    assert (found["new_ms"], found["old_ms"], found["ratio"]) == (2000.0, 4000.0, 2.0)
    assert found["trees_per_second"] == 2.5 and found["old_peak_megabytes"] == 3.0


def test_different_data_are_an_error() -> None:
    children: Any = {NEW: Scripted([], NEW, []), OLD: Scripted([], OLD, [], nodes=51.0)}
    with pytest.raises(TrainingError, match="step: case: the checkouts generate different data"):
        compare._compare_case(children, "step", "case", 2, "fused")


def test_the_summary_names_the_slowest_case_and_the_highest_peaks() -> None:
    def row(ratio: float, peak: float) -> dict[str, float]:
        return {"ratio": ratio, "new_peak_megabytes": peak, "old_peak_megabytes": 2 * peak}

    assert summary({"step": {"a": row(1.2, 10), "b": row(0.9, 5)}, "threads": {"c": row(1.0, 7)}}) == {
        "least_ratio": 0.9,
        "least_ratio_case": "step: b",
        "new_peak_megabytes": 10,
        "old_peak_megabytes": 20,
    }


def test_threads_have_more_rounds_unless_asked_for() -> None:
    assert [rounds_of(suite, Options()) for suite in compare.SUITES] == [5, 5, 25]
    assert [rounds_of(suite, Options(rounds=3)) for suite in compare.SUITES] == [3, 3, 3]


def test_two_checkouts_are_compared_case_by_case() -> None:
    """Both children run this checkout: the protocol is the same for any."""
    begun: list[str] = []
    jobs = [("inference", "listops tucker 20 3, batch 25"), ("threads", "inference, batch 256, 1 thread")]
    found = compare.compare(ROOT, jobs, QUICK, begins=lambda suite, case, done, total: begun.append(case))
    assert [(suite, case) for suite, rows in found.items() for case in rows] == jobs and begun == [
        case for _, case in jobs
    ]
    for rows in found.values():
        for values in rows.values():
            assert values["ratio"] == pytest.approx(values["old_ms"] / values["new_ms"])
            assert min(values.values()) > 0


def test_a_child_imports_the_checkout_and_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "benchmarks", "json"):
        (tmp_path / f"{name}.py").write_text("from pathlib import Path; Path('executed').touch()", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with child_of(ROOT, QUICK) as child:
        assert child.ask("end")["peak_bytes"] > 0
    assert not (tmp_path / "executed").exists()


def test_a_child_that_dies_is_reported_with_its_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "child_command", lambda script: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(TrainingError, match=r"the benchmark failed \(hello\): exit code 3"), child_of(ROOT, QUICK):
        pass
    (tmp_path / "src").mkdir()
    with pytest.raises(FileError, match="expected a checkout with src/treefold"), child_of(tmp_path, QUICK):
        pass
