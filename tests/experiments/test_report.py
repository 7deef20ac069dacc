"""The paper's tables and figures with our results beside them."""

import statistics
from pathlib import Path
from typing import Any

import pytest
from experiments.paper.published import KINDS, LISTOPS, LRT, PaperTable
from experiments.paper.report import (
    compose,
    main,
    paper_studies,
    paper_summaries,
    paper_table,
    table_of,
)

from tests.sweeps.report.conftest import Drawn, Written, drawn
from tests.sweeps.report.made_up import LISTOPS_DATA, LISTOPS_SIZES, LRT_SIZES, result, sweep, write
from tests.sweeps.report.test_figures import texts
from tests.sweeps.report.test_formats import (
    Tags,
    document,
    tags,
    test_figures_of_the_page_have_words_for_those_who_cannot_see_them,
    test_latex_environments_and_braces_are_balanced,
    test_latex_rows_have_as_many_cells_as_the_table_has_columns,
    test_markdown_names_a_file_for_every_figure,
    test_markdown_tables_have_as_many_cells_in_every_row,
    test_the_page_is_well_formed_and_shows_odd_names_word_for_word,
    test_the_page_points_nowhere_outside,
)
from treefold.sweeps.report.figures import Figure, figures_of
from treefold.sweeps.report.summary import NONE, Cell, Table, gather, summary_table
from treefold.sweeps.results import RunResult

# The tests of the formats run on this report too, with its fixture `written`.
__all__ = [
    "document",
    "drawn",
    "tags",
    "test_figures_of_the_page_have_words_for_those_who_cannot_see_them",
    "test_latex_environments_and_braces_are_balanced",
    "test_latex_rows_have_as_many_cells_as_the_table_has_columns",
    "test_markdown_names_a_file_for_every_figure",
    "test_markdown_tables_have_as_many_cells_in_every_row",
    "test_the_page_is_well_formed_and_shows_odd_names_word_for_word",
    "test_the_page_points_nowhere_outside",
]


def made(paper: PaperTable, *lines: dict[str, Any]) -> Table:
    return paper_table(paper, paper_summaries([RunResult.model_validate(line) for line in lines]))


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
    table = made(paper)
    assert [len(row) for row in table.rows] == [columns] * rows
    assert [sum(cell.span for cell in row) for row in table.head] == [columns, columns]
    assert [row[0].text for row in table.rows] == ["Val.", *[""] * (rows - 2), "Test"]
    printed = [cell.text for row in table.rows for cell in row if "(" in cell.text]
    published = [row for column in paper.validation.values() for row in column] + list(paper.test.values())
    assert sorted(printed) == sorted(f"{row.mean:.2f} ({row.deviation:.2f})" for row in published)


def test_what_was_not_run_is_a_dash() -> None:
    lines = [result("listops", "Sum", 88)]
    table = made(LISTOPS, *lines)
    shown = {(kind, row): ours(table, kind, row).text for kind in ("Full", "Sum", "Hosvd") for row in range(4)}
    assert {place for place, text in shown.items() if text != NONE} == {("Sum", 1), ("Sum", 3)}


def test_ours_is_mean_and_sample_deviation_over_seeds_with_their_number() -> None:
    lines = sweep("listops", LISTOPS_SIZES)
    table = made(LISTOPS, *lines)
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
    table = made(LISTOPS, *lines)
    cell = ours(table, "Hosvd", 1)
    assert cell.text == "95.00 (–)"
    assert cell.details == ("n = 1, r = 7", f"{5 * 20 * 7 + 7 * 8**5:,} par.")
    assert ours(table, "Hosvd", 3).text == "91.00 (–)"  # the test of that rank, and not the best test


def test_the_test_row_has_the_configuration_that_is_best_on_validation() -> None:
    lines = sweep("lrt", LRT_SIZES)
    table = made(LRT, *lines)
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
    cell = ours(made(LISTOPS, result("listops", "Sum", 88, validation=validation)), "Sum", 1)
    assert (cell.verdict, cell.comparison()) == (verdict, comparison)


def test_the_best_of_each_kind_is_bold() -> None:
    table = made(LISTOPS, *sweep("listops", LISTOPS_SIZES))
    assert [ours(table, "Full", row).bold for row in range(3)] == [False, True, False]
    assert [ours(table, kind, 3).bold for kind in ("Full", "Sum", "Hosvd")] == [False, False, True]


def test_mixed_data_are_named_in_the_cells_and_in_a_warning() -> None:
    other = {**LISTOPS_DATA, "crc32": 0xABCDEF}
    same = made(LISTOPS, result("listops", "Sum", 25), result("listops", "Full", 3))
    assert not any("Caution" in note for note in same.notes)
    table = made(LISTOPS, result("listops", "Sum", 25), result("listops", "Full", 3, data=other))
    assert "data A" in ours(table, "Full", 0).details and "data B" in ours(table, "Sum", 0).details
    (warning,) = [note for note in table.notes if note.startswith("Caution")]
    assert "2 different data sets" in warning and "A: 100,000 examples, 4,321,000 nodes, checksum 00abcdef" in warning


def test_the_first_of_several_configurations_for_one_place_is_taken() -> None:
    lines = [
        result("listops", "Sum", 25, validation=0.5),
        result("listops", "Sum", 25, validation=0.9, training={"schedule": "cosine"}),
    ]
    assert ours(made(LISTOPS, *lines), "Sum", 0).text == "50.00 (–)"


def test_a_table_of_the_paper_has_one_recipe_and_what_is_beyond_says_how_it_differs() -> None:
    cosine = {"schedule": "cosine"}
    lines = [
        result("listops", "Sum", 25, validation=0.9, training=cosine),
        result("listops", "Sum", 25, validation=0.5),
        result("listops", "Full", 3, validation=0.6),
        result("listops", "Sum", 88, validation=0.95, training=cosine),
        result("listops", "Full", 5, validation=0.7),
    ]
    table = made(LISTOPS, *lines)
    assert [ours(table, "Sum", row).text for row in range(2)] == ["50.00 (–)", NONE]
    everything = paper_summaries([RunResult.model_validate(line) for line in lines])
    beyond = [each for each in everything if each.first.settings.training.schedule == "cosine"]
    shown = summary_table("t", "T", "C", beyond, everything)
    place = [cell.text for cell in shown.head[0]].index("schedule")
    assert [row[place].text for row in shown.rows] == ["cosine", "cosine"]


def test_a_run_that_the_budget_stopped_says_so() -> None:
    line = result("listops", "Sum", 25, stopped={"limit": "minutes_per_run", "value": 5.0})
    assert "1 stopped by the budget" in ours(made(LISTOPS, line), "Sum", 0).details


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
    (summary,) = paper_summaries([RunResult.model_validate(line)])
    assert table_of(summary) is table


def figures(*lines: dict[str, Any]) -> dict[str, Figure]:
    found = paper_summaries([RunResult.model_validate(line) for line in lines])
    return {figure.name: figure for study in paper_studies(found) for figure in figures_of(study)}


def test_listops_has_figures_by_depth_and_size_and_lrt_by_operators(written: Written) -> None:
    names = [f"lrt-{name}" for name in ("parameters", "time", "curves", "operators")]
    names += [f"listops-{name}" for name in ("parameters", "time", "curves", "depth", "size")]
    assert [figure.name for figure in written.document.figures] == names


@pytest.mark.parametrize(("grid", "paper"), [("listops", LISTOPS), ("lrt", LRT)])
def test_the_paper_s_points_are_shown_beside_ours(grid: str, paper: Any) -> None:
    size = paper.validation["Sum"][0].state_size
    figure = figures(result(grid, "Sum", size, groups={}, curves={}))[f"{grid}-parameters"]
    shown = texts(figure)
    assert {"Full, the paper", "Sum, the paper", "Hosvd, the paper", "Sum, ours"} <= set(shown)
    best = max(paper.validation["Hosvd"], key=lambda row: row.mean)
    assert f"Hosvd in the paper: best {best.mean:.1f} % with {best.parameters:,}" in figure.description


def test_published_points_of_different_ranks_are_not_joined(drawn: Drawn) -> None:
    figures(result("lrt", "Sum", 100, groups={}, curves={}), result("listops", "Sum", 25, groups={}, curves={}))
    styles = {
        (kind, place): drawn.labelled(f"{kind}, the paper")[place].get_linestyle() for kind in KINDS for place in (0, 1)
    }
    assert {each for each, style in styles.items() if style == "None"} == {("Hosvd", 0)}  # of LRT, which comes first


def test_a_line_joins_no_two_recipes_and_says_what_it_is(drawn: Drawn) -> None:
    plain = [result("listops", "Hosvd", 20, rank, groups={}, curves={}) for rank in (3, 5)]
    annealed = result("beyond", "Hosvd", 20, 3, groups={}, curves={}, training={"schedule": "cosine"})
    longer = result("listops", "Hosvd", 20, 7, groups={}, curves={}, training={"epochs": 9})
    other = [result("listops", "Hosvd", 10, rank, groups={}, curves={}) for rank in (3, 5)]
    figures(*plain, *other, annealed, longer)
    first = drawn.points(0).items()
    lines = {name.replace("\n", " "): len(points) for name, points in first if name.endswith("ours")}
    of = "Hosvd, state_size = {}, epochs = {} (listops), ours"
    assert lines == {
        of.format(10, 100): 2,
        of.format(20, 100): 2,
        "Hosvd, others (listops), ours": 1,
        "Hosvd (beyond), ours": 1,
    }


def test_the_page_has_a_row_for_each_configuration(tags: Tags) -> None:
    assert tags.rows == {
        "table-lrt": 2 + 6 + 1,
        "table-listops": 2 + 3 + 1,
        "table-beyond": 1 + 6 + 1,
        "all-lrt": 1 + len(LRT_SIZES),
        "all-listops": 1 + len(LISTOPS_SIZES),
    }


def test_the_conclusion_counts_places_of_the_paper(tmp_path: Path) -> None:
    lines = [
        result("listops", "Sum", 25, validation=0.9, test=0.1),
        result("listops", "Full", 3, validation=0.1, test=None),
    ]
    conclusion = compose(gather([write(tmp_path, lines)]), figures=False).conclusion
    assert conclusion == "At least as good as the paper in 1 of 3 values compared; its two tables hold 31."


def test_configurations_that_lose_their_place_are_listed_and_remarked_on(tmp_path: Path) -> None:
    lines = [result("listops", "Sum", 25), result("listops", "Sum", 25, training={"schedule": "cosine"})]
    made = compose(gather([write(tmp_path, lines)]), figures=False)
    (table,) = [table for table in made.tables if table.name == "table-beyond"]
    assert [row[0].text for row in table.rows] == ["Sum"] and "the others (1) are listed under" in made.remarks[0]


def test_another_grid_joins_the_paper_s_where_the_data_are_the_same(tmp_path: Path) -> None:
    elsewhere = {"examples": 9, "nodes": 9, "crc32": 9}
    lines = [result("listops", "Sum", 25), result("beyond", "X", 4, 2), result("mine", "X", 4, 2, data=elsewhere)]
    studies = paper_studies(paper_summaries(gather([write(tmp_path, lines)]).results))
    assert [(study.title, study.kinds) for study in studies] == [("ListOps", ["Sum", "X"]), ("mine", ["X"])]


def test_the_command_writes_the_report_and_bad_input_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_folder = write(tmp_path / "a", [result("listops", "Sum", 25, validation=0.9, groups={}, curves={})])
    main([str(sweep_folder)])
    assert "At least as good as the paper in 1 of 2 values compared" in capsys.readouterr().out
    assert {"report.md", "report.tex", "report.html"} <= {path.name for path in (sweep_folder / "paper").iterdir()}
    with pytest.raises(SystemExit, match=r"error: .*expected the folder of a sweep with results\.jsonl in it"):
        main([str(tmp_path)])


def test_parameters_are_counted_as_in_the_paper_whatever_the_file_says() -> None:
    line = result("listops", "Hosvd", 20, 3)
    lines = [line, {**line, "counted": "all", "aggregation_parameters": 3432}]
    for each in lines:
        (summary,) = paper_summaries([RunResult.model_validate(each)])
        assert summary.first.aggregator_parameters == 3372
    (shared,) = paper_summaries(
        [RunResult.model_validate(result("beyond", "X", 50, 5, counted=1760, model={"shared": True}))]
    )
    assert shared.first.aggregator_parameters == 1760
