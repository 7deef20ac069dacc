import statistics
from typing import Any

import pytest

from tests.sweeps.reporting.made_up import LISTOPS_DATA, LISTOPS_SIZES, LRT_SIZES, beyond, result, sweep
from treefold.sweeps.reporting.paper_tables import LISTOPS, LRT, PaperTable
from treefold.sweeps.reporting.summary import configurations_of
from treefold.sweeps.reporting.tables import NONE, Cell, Table, further_table, paper_table
from treefold.sweeps.results import RunResult


def table_of(paper: PaperTable, *lines: dict[str, Any]) -> Table:
    return paper_table(paper, configurations_of([RunResult.model_validate(line) for line in lines]))


def further(*lines: dict[str, Any]) -> Table:
    configurations = configurations_of([RunResult.model_validate(line) for line in lines])
    return further_table("t", "T", "C", configurations, configurations)


def ours(table: Table, kind: str, row: int) -> Cell:
    """Find ours by the head of the table: the column "Ours" below the name of the kind."""
    over = [cell.text for cell in table.head[0] for _ in range(cell.span)]
    under = [cell.text for cell in table.head[1]]
    (column,) = [
        place for place, names in enumerate(zip(over, under, strict=True)) if names == (f"{kind}-LSTM", "Ours")
    ]
    return table.rows[row][column]


def scores(lines: list[dict[str, Any]], kind: str, c: int, r: int | None, name: str) -> list[float]:
    chosen = [each for each in lines if (each["kind"], each["settings"]["model"]["state_size"]) == (kind, c)]
    return [each[name] for each in chosen if each["settings"]["model"]["rank"] == r]


def percent(values: list[float]) -> str:
    return f"{100 * statistics.fmean(values):.2f} ({100 * statistics.stdev(values):.2f})"


@pytest.mark.parametrize(("paper", "rows", "columns"), [(LRT, 7, 11), (LISTOPS, 4, 13)], ids=["lrt", "listops"])
def test_the_layout_is_the_paper_s(paper: PaperTable, rows: int, columns: int) -> None:
    table = table_of(paper)
    assert [len(row) for row in table.rows] == [columns] * rows
    assert [sum(cell.span for cell in row) for row in table.head] == [columns, columns]
    assert [row[0].text for row in table.rows] == ["Val.", *[""] * (rows - 2), "Test"]
    printed = [cell.text for row in table.rows for cell in row if "(" in cell.text]
    published = [row for column in paper.validation.values() for row in column] + list(paper.test.values())
    assert sorted(printed) == sorted(f"{row.mean:.2f} ({row.deviation:.2f})" for row in published)


def test_what_was_not_run_is_a_dash() -> None:
    lines = [result("listops", "Sum", 88)]
    table = table_of(LISTOPS, *lines)
    shown = {(kind, row): ours(table, kind, row).text for kind in ("Full", "Sum", "Hosvd") for row in range(4)}
    assert {place for place, text in shown.items() if text != NONE} == {("Sum", 1), ("Sum", 3)}


def test_ours_is_mean_and_sample_deviation_over_seeds_with_their_number() -> None:
    lines = sweep("listops", LISTOPS_SIZES)
    table = table_of(LISTOPS, *lines)
    for row, size in enumerate((3, 5, 7)):
        cell = ours(table, "Full", row)
        assert cell.text == percent(scores(lines, "Full", size, None, "validation"))
        assert cell.details[0] == "n = 3"


def test_of_the_hosvd_the_best_rank_on_validation_is_shown_with_its_parameters() -> None:
    lines = [
        result("listops", "Hosvd", 20, 3, validation=0.90, test=0.99),
        result("listops", "Hosvd", 20, 7, validation=0.95, test=0.91),
        result("listops", "Hosvd", 20, 5, validation=0.93, test=0.95),
    ]
    table = table_of(LISTOPS, *lines)
    cell = ours(table, "Hosvd", 1)
    assert cell.text == "95.00 (–)"
    assert cell.details == ("n = 1, r = 7", f"{5 * 20 * 7 + 7 * 8**5:,} par.")
    assert ours(table, "Hosvd", 3).text == "91.00 (–)"  # the test of that rank, and not the best test


def test_the_test_row_has_the_configuration_that_is_best_on_validation() -> None:
    lines = sweep("lrt", LRT_SIZES)
    table = table_of(LRT, *lines)
    cell = ours(table, "Full", 6)
    means = {c: statistics.fmean(scores(lines, "Full", c, None, "validation")) for c in (3, 5, 10, 20, 50)}
    top = max(means, key=lambda c: means[c])
    assert cell.text == percent(scores(lines, "Full", top, None, "test")) and f"n = 3, c = {top}" in cell.details
    assert ours(table, "Full", 5).text == NONE  # c = 100 is not among the runs


@pytest.mark.parametrize(
    ("validation", "verdict", "comparison"),
    [
        (0.8216, "reached", "✓ +0.00"),
        (0.82156, "reached", "✓ +0.00"),  # printed as the paper's 82.16
        (0.8215, "missed", "✗ −0.01"),
        (0.83, "reached", "✓ +0.84"),
    ],
)
def test_at_least_as_good_is_said_of_the_numbers_as_printed(validation: float, verdict: str, comparison: str) -> None:
    cell = ours(table_of(LISTOPS, result("listops", "Sum", 88, validation=validation)), "Sum", 1)
    assert (cell.verdict, cell.comparison()) == (verdict, comparison)


def test_the_best_of_each_kind_is_bold() -> None:
    table = table_of(LISTOPS, *sweep("listops", LISTOPS_SIZES))
    assert [ours(table, "Full", row).bold for row in range(3)] == [False, True, False]
    assert [ours(table, kind, 3).bold for kind in ("Full", "Sum", "Hosvd")] == [False, False, True]


def test_mixed_data_are_named_in_the_cells_and_in_a_warning() -> None:
    other = {**LISTOPS_DATA, "crc32": 0xABCDEF}
    same = table_of(LISTOPS, result("listops", "Sum", 25), result("listops", "Full", 3))
    assert not any("Caution" in note for note in same.notes)
    table = table_of(LISTOPS, result("listops", "Sum", 25), result("listops", "Full", 3, data=other))
    assert "data A" in ours(table, "Full", 0).details and "data B" in ours(table, "Sum", 0).details
    (warning,) = [note for note in table.notes if note.startswith("Caution")]
    assert "2 different data sets" in warning and "A: 100,000 examples, 4,321,000 nodes, checksum 00abcdef" in warning


def test_different_grids_may_have_different_data_without_a_warning() -> None:
    table = further(result("a", "X", 3, 2), result("b", "X", 3, 2, data={**LISTOPS_DATA, "crc32": 1}))
    assert not table.notes and [cell.text for cell in table.head[0]][:2] == ["Kind", "Grid"]


def test_the_first_of_several_configurations_for_one_place_is_taken() -> None:
    lines = [
        result("listops", "Sum", 25, validation=0.5),
        result("listops", "Sum", 25, validation=0.9, training={"schedule": "cosine"}),
    ]
    assert ours(table_of(LISTOPS, *lines), "Sum", 0).text == "50.00 (–)"


def test_a_table_of_the_paper_has_one_recipe_and_what_is_beyond_says_how_it_differs() -> None:
    cosine = {"schedule": "cosine"}
    lines = [
        result("listops", "Sum", 25, validation=0.9, training=cosine),
        result("listops", "Sum", 25, validation=0.5),
        result("listops", "Full", 3, validation=0.6),
        result("listops", "Sum", 88, validation=0.95, training=cosine),
        result("listops", "Full", 5, validation=0.7),
    ]
    table = table_of(LISTOPS, *lines)
    assert [ours(table, "Sum", row).text for row in range(2)] == ["50.00 (–)", NONE]
    everything = configurations_of([RunResult.model_validate(line) for line in lines])
    beyond = [each for each in everything if each.first.settings.training.schedule == "cosine"]
    rows = further_table("t", "T", "C", beyond, everything).rows
    assert [row[0].details for row in rows] == [("schedule = cosine",), ()]  # there is no other Sum of 88


def test_a_further_table_has_parameters_scores_and_seconds() -> None:
    lines = [
        result(
            "g", "Tensor train", 20, 6, seed=seed, validation=value, test=None, counted=3270, seconds=100.0 + 20 * seed
        )
        for seed, value in enumerate((0.7, 0.8))
    ]
    table = further(*lines)
    texts = [cell.text for cell in table.rows[0]]
    assert texts[:4] == ["Tensor train", "20", "6", "3,270"]
    assert texts[4:] == [f"{lines[0]['parameters']:,}", percent([0.7, 0.8]), NONE, "110 (14)", "2"]


def test_parameters_that_were_not_counted_are_a_dash() -> None:
    line = {**result("g", "Odd", 20, 6), "aggregation_parameters": None}
    assert [cell.text for cell in further(line).rows[0]][3] == NONE


def test_a_run_that_the_budget_stopped_says_so() -> None:
    line = result("listops", "Sum", 25, stopped={"limit": "minutes_per_run", "value": 5.0})
    assert "1 stopped by the budget" in ours(table_of(LISTOPS, line), "Sum", 0).details
    assert further(line).rows[0][0].details == ("1 stopped by the budget",)


def test_kinds_beyond_the_paper_are_rows_of_their_own() -> None:
    lines = beyond()
    assert {row[0].text for row in further(*lines).rows} == {line["kind"] for line in lines}
