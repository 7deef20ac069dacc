import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sweeps.report.made_up import LISTOPS_DATA, LISTOPS_SIZES, beyond, result, sweep, write
from treefold.errors import TreefoldError
from treefold.sweeps.report.summary import (
    NONE,
    Spread,
    Summary,
    Table,
    best,
    difference,
    gather,
    summarise,
    summary_table,
)
from treefold.sweeps.results import RunResult


def summaries(*lines: dict[str, object]) -> list[Summary]:
    return summarise([RunResult.model_validate(line) for line in lines])


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
    found = summaries(*[result("listops", "Sum", 25, seed=seed, training={"threads": seed + 1}) for seed in (2, 0, 1)])
    assert [[run.seed for run in each.runs] for each in found] == [[0, 1, 2]]


def test_other_settings_or_other_data_are_other_configurations_and_never_averaged() -> None:
    other = {**LISTOPS_DATA, "crc32": 1}
    found = summaries(
        result("listops", "Sum", 25, validation=0.5),
        result("listops", "Sum", 25, seed=1, validation=0.7, training={"schedule": "cosine"}),
        result("listops", "Sum", 25, seed=2, validation=0.9, data=other),
        result("other", "Sum", 25, seed=3, validation=0.1),
    )
    assert [each.validation and each.validation.mean for each in found] == [0.5, 0.7, 0.9, 0.1]
    assert difference(found[1], found) == "schedule = cosine"


def test_a_seed_that_was_run_twice_counts_once() -> None:
    found = summaries(
        result("g", "Sum", 5, validation=0.5), result("g", "Sum", 5, validation=0.9, training={"threads": 2})
    )
    assert [each.validation for each in found] == [Spread(0.5, None, 1)]


def test_the_order_of_lines_makes_no_difference() -> None:
    lines = sweep("listops", LISTOPS_SIZES, seeds=2)
    there, back = summaries(*lines), summaries(*reversed(lines))
    assert there == back
    names = [(each.kind, each.state_size, each.rank) for each in there]
    assert names == sorted((size[:3] for size in LISTOPS_SIZES), key=lambda size: (size[0], size[1], size[2] or 0))


def test_the_best_configuration_is_the_best_on_validation_whatever_the_test_says() -> None:
    found = summaries(result("g", "Sum", 5, validation=0.6, test=0.9), result("g", "Sum", 6, validation=0.7, test=0.1))
    top = best(found)
    assert top is not None and top.state_size == 6
    assert best([]) is None


def test_a_run_that_two_sweeps_hold_counts_once_and_the_report_says_so(tmp_path: Path) -> None:
    lines = sweep("listops", LISTOPS_SIZES, seeds=1)
    found = gather([write(tmp_path / "a", lines), write(tmp_path / "b", lines[:4])])
    assert len(found.results) == len(lines)
    assert found.remarks == ("Runs that several sweeps contain are counted once: 4.",)


def test_a_line_that_was_cut_off_is_left_out_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "a", sweep("listops", LISTOPS_SIZES, seeds=1)) / "results.jsonl"
    path.write_text(path.read_text()[:-40])
    before = path.read_bytes()
    found = gather([tmp_path / "a"])
    assert len(found.results) == len(LISTOPS_SIZES) - 1 and "is incomplete" in found.remarks[0]
    assert path.read_bytes() == before and [each.name for each in (tmp_path / "a").iterdir()] == ["results.jsonl"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected the folder of a sweep with results.jsonl in it; make one with `treefold sweep"),
        ("", "expected at least one finished run, got none"),
        ('{"version": 2}\n', "line 1: expected a result of version 1, got version 2"),
        ("[1]\n", "line 1: expected a result of version 1, got version None"),
        ('{"version": 1, "key": "x"}\n', "line 1: expected a result, but grid is wrong"),
        ("{\n{}\n", "line 1: expected a result, one JSON object, got '{'"),
    ],
)
def test_files_that_are_not_results_are_refused_with_the_place(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "results.jsonl").write_text(text)
    with pytest.raises(TreefoldError) as caught:
        gather([tmp_path])
    assert message in str(caught.value) and str(tmp_path) in str(caught.value)


def table_of(*lines: dict[str, Any]) -> Table:
    found = summarise([RunResult.model_validate(line) for line in lines])
    return summary_table("t", "T", "C", found, found)


def percent(values: list[float]) -> str:
    return f"{100 * statistics.fmean(values):.2f} ({100 * statistics.stdev(values):.2f})"


def test_different_grids_may_have_different_data_without_a_warning() -> None:
    table = table_of(result("a", "X", 3, 2), result("b", "X", 3, 2, data={**LISTOPS_DATA, "crc32": 1}))
    assert not table.notes and [cell.text for cell in table.head[0]][:2] == ["Kind", "Grid"]


def test_a_table_has_parameters_scores_and_seconds() -> None:
    lines = [
        result(
            "g", "Tensor train", 20, 6, seed=seed, validation=value, test=None, counted=3270, seconds=100.0 + 20 * seed
        )
        for seed, value in enumerate((0.7, 0.8))
    ]
    table = table_of(*lines)
    texts = [cell.text for cell in table.rows[0]]
    assert texts[:4] == ["Tensor train", "20", "6", "3,270"]
    assert texts[4:] == [f"{lines[0]['parameters']:,}", percent([0.7, 0.8]), NONE, "110 (14)", "2"]


def test_parameters_that_were_not_counted_are_a_dash() -> None:
    line = {**result("g", "Odd", 20, 6), "aggregation_parameters": None}
    assert [cell.text for cell in table_of(line).rows[0]][3] == NONE


def test_every_kind_has_a_row() -> None:
    lines = beyond()
    assert {row[0].text for row in table_of(*lines).rows} == {line["kind"] for line in lines}


def test_mixed_data_are_named_in_the_rows_and_in_a_warning() -> None:
    table = table_of(result("g", "A", 3, 2), result("g", "B", 3, 2, data={**LISTOPS_DATA, "crc32": 0xABCDEF}))
    assert [row[0].details for row in table.rows] == [("data A",), ("data B",)]
    assert table.notes[0].startswith("Caution: the results of the grid “g” come from 2 different data sets")
    assert "B: 100,000 examples, 4,321,000 nodes, checksum 00abcdef" in table.notes[0]


def test_a_row_says_that_the_budget_stopped_a_run_and_in_which_settings_it_differs() -> None:
    first = result("g", "X", 3, 2, stopped={"limit": "minutes_per_run", "value": 5.0})
    second = result("g", "X", 3, 2, validation=0.9, training={"schedule": "cosine"})
    details = [row[0].details for row in table_of(first, second).rows]
    assert details == [("schedule = constant", "1 stopped by the budget"), ("schedule = cosine",)]


def test_the_best_row_of_each_grid_is_bold() -> None:
    table = table_of(
        result("g", "A", 3, 2, validation=0.5), result("g", "B", 3, 2, validation=0.6), result("h", "A", 3, 2)
    )
    assert [row[6].bold for row in table.rows] == [False, True, True]
