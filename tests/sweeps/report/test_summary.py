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
    gather,
    summarise,
    summary_table,
    title_of,
)
from treefold.sweeps.results import RunResult, SweepFacts


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
    assert [title_of(each, found) for each in found[:2]] == ["Sum, schedule = constant", "Sum, schedule = cosine"]
    assert title_of(found[3], found) == "Sum"  # alone in its grid


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
    assert [cell.text for cell in table.head[0]] == ["Kind", "Parameters", "Validation accuracy, %", "Seconds", "Seeds"]
    texts = [cell.text for cell in table.rows[0]]
    assert texts == ["Tensor train", f"{lines[0]['parameters']:,}", percent([0.7, 0.8]), "110 (14)", "2"]


def test_a_column_has_each_setting_that_was_varied_and_one_the_parameters_of_an_aggregator_if_asked_for() -> None:
    lines = [
        result("g", "Odd", 20, 6, counted=99),
        result("g", "Odd", 20, 6, model={"dropout": 0.5}),
        result("g", "Full", 4),
    ]
    lines[2] = {**lines[2], "aggregation_parameters": None}
    found = summaries(*lines)
    table = summary_table("t", "T", "C", found, found, aggregators=True)
    columns = [cell.text for cell in table.head[0]][:6]
    assert columns == ["Kind", "state_size", "rank", "dropout", "N par.", "Parameters"]
    assert [[cell.text for cell in row][:5] for row in table.rows] == [
        ["Full", "4", NONE, "0.0", NONE],
        ["Odd", "20", "6", "0.0", "99"],
        ["Odd", "20", "6", "0.5", f"{lines[1]['aggregation_parameters'] + 20 * 6:,}"],
    ]


def test_numbers_have_r_squared_and_the_mean_absolute_error_in_the_units_of_the_data() -> None:
    lines = [
        {**result("g", "Sum", 4, seed=seed, validation=0.5 + 0.1 * seed, test=0.4), "scores": {"mae": 11.0 + seed}}
        for seed in (0, 1)
    ]
    for line in lines:
        line["settings"]["task"] = "regression"
    table = table_of(*lines)
    shown = dict(zip([cell.text for cell in table.head[0]], [cell.text for cell in table.rows[0]], strict=True))
    assert (
        shown["Validation R²"] == f"0.5500 ({statistics.stdev([0.5, 0.6]):.4f})"
        and shown["Test R²"] == "0.4000 (0.0000)"
    )
    assert shown["Test MAE"] == f"11.5 ({statistics.stdev([11, 12]):.2g})"


def test_a_report_says_which_runs_are_not_finished_and_why_others_failed(tmp_path: Path) -> None:
    line = result("g", "Sum", 5)
    runs = {line["key"]: "Sum c=5 seed 0", "b": "Sum c=6 seed 0", "c": "Sum c=7 seed 0"}
    SweepFacts(grid="g", description="Sizes.", data="my data", runs=runs, failed={"c": "no memory"}).write(
        write(tmp_path, [line])
    )
    found = gather([tmp_path])
    assert found.unfinished == 2 and found.descriptions == ("Sizes.",)
    assert found.remarks == (
        "g: 2 of 3 runs are not finished, and are missing here.",
        "g: failed: Sum c=7 seed 0 (no memory).",
    )
    assert found.sources[line["key"]] == (tmp_path / "runs" / line["key"], "my data")
    (tmp_path / "sweep.json").write_text("{")  # damaged: as if it were not there
    assert gather([tmp_path]).remarks == () and gather([tmp_path]).unfinished == 0
    SweepFacts(grid="g", data="d", runs=runs, failed={"b": "no memory"}).write(tmp_path)
    (tmp_path / "results.jsonl").unlink()
    with pytest.raises(TreefoldError, match=r"at least one finished run, got none \(1 failed: no memory\)"):
        gather([tmp_path])


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
    rows = table_of(first, second).rows
    assert [row[0].details for row in rows] == [("1 stopped by the budget",), ()]
    assert [row[1].text for row in rows] == ["constant", "cosine"]


def test_the_best_row_of_each_grid_is_bold() -> None:
    table = table_of(
        result("g", "A", 3, 2, validation=0.5), result("g", "B", 3, 2, validation=0.6), result("h", "A", 3, 2)
    )
    place = [cell.text for cell in table.head[0]].index("Validation accuracy, %")
    assert [row[place].bold for row in table.rows] == [False, True, True]
