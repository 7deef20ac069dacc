import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sweeps.reporting.made_up import LISTOPS_DATA, LISTOPS_SIZES, result, sweep, write
from treefold.errors import TreefoldError
from treefold.sweeps.reporting.paper_tables import LISTOPS, LRT
from treefold.sweeps.reporting.records import gather
from treefold.sweeps.reporting.summary import Configuration, Spread, best, configurations_of, difference
from treefold.sweeps.results import RunResult


def configurations(*lines: dict[str, object]) -> list[Configuration]:
    return configurations_of([RunResult.model_validate(line) for line in lines])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_mean_and_deviation_are_those_of_the_standard_library(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread is not None and spread.count == len(values)
    assert spread.mean == pytest.approx(statistics.fmean(values), abs=1e-12)
    if len(values) == 1:
        assert spread.deviation is None
    else:
        assert spread.deviation == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_unknown_numbers_are_left_out_of_a_mean() -> None:
    assert Spread.of([None, 0.5, float("nan"), 0.7]) == Spread.of([0.5, 0.7])
    assert Spread.of([None]) is None


def test_runs_that_differ_in_the_seed_alone_are_one_configuration() -> None:
    found = configurations(
        *[result("listops", "Sum", 25, seed=seed, training={"threads": seed + 1}) for seed in (2, 0, 1)]
    )
    assert [[run.seed for run in each.runs] for each in found] == [[0, 1, 2]]


def test_other_settings_or_other_data_are_other_configurations_and_never_averaged() -> None:
    other = {**LISTOPS_DATA, "crc32": 1}
    found = configurations(
        result("listops", "Sum", 25, validation=0.5),
        result("listops", "Sum", 25, seed=1, validation=0.7, training={"schedule": "cosine"}),
        result("listops", "Sum", 25, seed=2, validation=0.9, data=other),
        result("other", "Sum", 25, seed=3, validation=0.1),
    )
    assert [each.validation and each.validation.mean for each in found] == [0.5, 0.7, 0.9, 0.1]
    assert difference(found[1], found) == "schedule = cosine"


def test_a_seed_that_was_run_twice_counts_once() -> None:
    found = configurations(
        result("g", "Sum", 5, validation=0.5), result("g", "Sum", 5, validation=0.9, training={"threads": 2})
    )
    assert [each.validation for each in found] == [Spread(0.5, None, 1)]


def test_the_order_of_lines_makes_no_difference() -> None:
    lines = sweep("listops", LISTOPS_SIZES, seeds=2)
    there, back = configurations(*lines), configurations(*reversed(lines))
    assert there == back
    assert [(each.kind, each.state_size, each.rank) for each in there] == [size[:3] for size in LISTOPS_SIZES]


def test_the_best_configuration_is_the_best_on_validation_whatever_the_test_says() -> None:
    found = configurations(
        result("g", "Sum", 5, validation=0.6, test=0.9), result("g", "Sum", 6, validation=0.7, test=0.1)
    )
    top = best(found)
    assert top is not None and top.state_size == 6
    assert best([]) is None


@pytest.mark.parametrize(
    ("line", "table"),
    [
        (result("listops", "Hosvd", 20, 3), LISTOPS),
        (result("ListOps", "Hosvd", 20, 3), LISTOPS),
        (result("lrt", "Sum", 100), LRT),
        (result("smoke", "Hosvd", 20, 3), None),
        (result("listops", "Hosvd", 20, 4), None),  # a rank that the paper did not try
        (result("listops", "Hosvd", 21, 3), None),
        (result("listops", "Tucker", 20, 3), None),
        (result("listops", "Hosvd", 20, 3, aggregator="canonical", counted=9), None),
        (result("listops", "Hosvd", 20, 3, model={"shared": True}), None),
        (result("listops", "Hosvd", 20, 3, model={"cell": "rnn"}), None),
    ],
    ids=lambda value: value["kind"] + value["grid"] if isinstance(value, dict) else "",
)
def test_only_what_the_paper_ran_has_a_place_in_its_tables(line: dict[str, object], table: object) -> None:
    assert configurations(line)[0].paper_table is table


def test_a_run_that_two_sweeps_hold_counts_once_and_the_report_says_so(tmp_path: Path) -> None:
    lines = sweep("listops", LISTOPS_SIZES, seeds=1)
    found = gather([write(tmp_path / "a", lines), write(tmp_path / "b", lines[:4])])
    assert len(found.results) == len(lines)
    assert found.remarks == ("Runs that several of the sweeps hold are counted once: 4.",)


def test_a_line_that_was_cut_off_is_left_out_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a", sweep("listops", LISTOPS_SIZES, seeds=1)) / "results.jsonl"
    path.write_text(path.read_text()[:-40])
    before = path.read_bytes()
    found = gather([tmp_path / "a"])
    assert len(found.results) == len(LISTOPS_SIZES) - 1 and "was cut off" in found.remarks[0]
    assert path.read_bytes() == before and [each.name for each in (tmp_path / "a").iterdir()] == ["results.jsonl"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected the folder of a sweep, with results.jsonl in it, got none; make one: treefold sweep"),
        ("", "expected at least one finished run, got none"),
        ('{"version": 2}\n', "line 1: expected a result of version 1, got version 2"),
        ("[1]\n", "line 1: expected a result of version 1, got version None"),
        ('{"version": 1, "key": "x"}\n', "line 1: expected a result, got one whose grid is wrong"),
        ("{\n{}\n", "line 1: expected a result, one JSON object, got '{'"),
    ],
)
def test_files_that_are_not_results_are_refused_with_the_place(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "results.jsonl").write_text(text)
    with pytest.raises(TreefoldError) as caught:
        gather([tmp_path])
    assert message in str(caught.value) and str(tmp_path) in str(caught.value)
