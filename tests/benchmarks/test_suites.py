import json
import sys
from typing import Any

import pytest
from benchmarks.measuring import Job, MissingPackageError, Options
from benchmarks.suites import CLAIMS, DEFAULT, SUITES, Claim, jobs_of, judged, run

from treefold.errors import ConfigurationError


class Noting:
    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    def begins(self, suite: str, case: str, done: int, total: int) -> None:
        self.said.append((suite, case, done, total))

    def skipped(self, suite: str, case: str, why: str) -> None:
        self.said.append((suite, case, why))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the suites by two whose values are known."""

    def absent() -> dict[str, Any]:
        raise MissingPackageError("no such package")

    def first(options: Options) -> dict[str, Job]:
        return {options.title("listops sum 25"): lambda: {"ratio": 8.0}, "other": absent}

    def second(options: Options) -> dict[str, Job]:
        return {"first use": lambda: {"first_seconds": 60.5}}

    for name in list(SUITES):
        monkeypatch.delitem(SUITES, name)
    monkeypatch.setitem(SUITES, "step", first)
    monkeypatch.setitem(SUITES, "compile", second)


def test_every_claim_is_about_a_case_that_its_suite_measures() -> None:
    for name, claim in CLAIMS.items():
        assert claim.case in SUITES[claim.suite](Options()), name
    assert set(DEFAULT) <= set(SUITES)


def test_claims_are_made_for_default_options_only() -> None:
    always = {"threads", "compile"}  # measure the same for all options
    claimed = {(claim.suite, claim.case) for claim in CLAIMS.values() if claim.suite not in always}
    assert not claimed & {(name, case) for name, suite in SUITES.items() for case in suite(Options(threads=2))}
    steps = {case for suite, case in claimed if suite == "step"}
    assert steps and not steps & set(SUITES["step"](Options(batch=400)))


@pytest.mark.parametrize(
    ("at_least", "value", "holds"), [(True, 3.0, True), (True, 2.9, False), (False, 3.0, True), (False, 3.1, False)]
)
def test_a_value_equal_to_the_bound_holds(at_least: bool, value: float, holds: bool) -> None:
    found = Claim("s", "c", "v", 3.0, at_least).judge(value)
    assert found == {"value": value, "at least" if at_least else "at most": 3.0, "holds": holds}


def test_cases_that_were_not_measured_give_no_figure() -> None:
    assert judged({"step": {"listops sum 25": {"other": 1.0}}, "unknown": {}}) == {}


@pytest.mark.usefixtures("small")
def test_a_report_has_values_figures_and_skipped_cases() -> None:
    listener = Noting()
    report = run(["step", "compile", "step"], Options(rounds=3), listener=listener).to_json()
    assert json.loads(json.dumps(report)) == report
    assert report["suites"] == {
        "step": {"listops sum 25": {"ratio": 8.0}},
        "compile": {"first use": {"first_seconds": 60.5}},
    }
    assert report["skipped"] == {"step: other": "no such package"}
    assert {name: figure["holds"] for name, figure in report["figures"].items()} == {
        "step, listops sum 25, torch / fused": True,
        "compile, first use, s": False,
    }
    assert report["options"] == {"quick": False, "rounds": 3, "threads": 1, "batch": 25}
    assert listener.said == [
        ("step", "listops sum 25", 0, 3),
        ("step", "other", 1, 3),
        ("step", "other", "no such package"),
        ("compile", "first use", 2, 3),
    ]


@pytest.mark.usefixtures("small")
def test_a_missing_package_is_an_error_if_only_its_case_was_asked_for() -> None:
    with pytest.raises(MissingPackageError, match="no such package"):
        run(["step"], Options(), words=["other"])


def test_the_other_package_must_be_installed_for_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "treelstm", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'treefold\[bench\]'"):
        run(["step"], Options(quick=True), words=["pytorch-tree-lstm"])


@pytest.mark.parametrize(
    ("names", "options", "words", "message"),
    [
        (["infrence"], Options(), [], "got 'infrence' (nearest known: 'inference')."),
        (["step"], Options(threads=0), [], "bench expects threads to be an integer >= 1, got 0"),
        (["step"], Options(threads=100_000), [], "got 100000; choose fewer."),
        (["step"], Options(rounds=0), [], "bench expects rounds to be an integer >= 1, got 0"),
        (["step"], Options(batch=-1), [], "bench expects batch to be an integer >= 1, got -1"),
        (["step"], Options(), ["tuker"], "in step, got 'tuker' (nearest known: 'tucker'); without --case all"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(
    names: list[str], options: Options, words: list[str], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        jobs_of(names, options, words)
    assert message in str(caught.value)


def test_words_choose_cases_of_all_suites() -> None:
    chosen = {(suite, case) for suite, case, _ in jobs_of(["step", "batches"], Options(), ["full", "batch 25"])}
    assert chosen == {
        ("step", "listops full 3"),
        ("step", "listops full 5"),
        ("step", "lrt full 10"),
        ("step", "lrt full 100"),
        ("batches", "listops tucker 20 3, batch 25"),
        ("batches", "listops tucker 20 3, batch 256"),
    }
