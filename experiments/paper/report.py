"""Write the paper's tables and figures with our results beside them: `python -m experiments.paper.report SWEEP… [--out DIR]`.

Runs of the grids `lrt` and `listops` appear in the paper's tables, all other results in a separate table. The report has
the formats and figures of `treefold report`. Parameters are counted as in the paper.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from experiments.paper.counts import counted_parameters
from experiments.paper.published import KINDS, PAPER_TABLES, PaperTable, Published
from treefold.cli.report import show
from treefold.errors import TreefoldError
from treefold.sweeps.report.document import Document, key_figures, require_report_folder, units_of, versions_of, write
from treefold.sweeps.report.figures import Reference, Study, figures_of, require_matplotlib, slugs
from treefold.sweeps.report.summary import (
    NONE,
    Cell,
    Data,
    DataNames,
    Gathered,
    Spread,
    Summary,
    Table,
    best,
    gather,
    summarise,
    summary_table,
)
from treefold.sweeps.results import RunResult

TITLE: Final = "Tree-LSTMs and their aggregations: our results beside the paper's"
PAPER: Final = (
    "Castellana and Bacciu, Generalising Recursive Neural Models by Tensor Decomposition, "
    "International Joint Conference on Neural Networks, 2020"
)
_INTRODUCTION: Final = (
    "A recursive network turns a tree into a vector, from the leaves up; at every node it combines the states of the "
    "children. This report compares ways to combine them: a full tensor over all products of their entries (Full), a "
    "weighted sum (Sum), and the tensor in Tucker's factored form (Hosvd), each inside a Tree-LSTM. c is the size of a state, "
    "r the rank of the factored form, and N par. counts the parameters of a single aggregation, as in the paper.",
    "LRT asks which of seven logical relations holds between two sentences of propositional logic; ListOps asks for the "
    f"value of nested operations on lists of digits. The paper is: {PAPER}.",
)


def write_paper_report(
    folders: Sequence[Path], out: Path | None = None, *, force: bool = False
) -> tuple[Document, list[Path]]:
    """Read the results of sweeps and write the report into ``out``, by default ``paper`` in the first folder."""
    require_matplotlib()
    out = folders[0] / "paper" if out is None else out
    require_report_folder(out, force=force)
    document = compose(gather(folders))
    return document, write(document, out, force=force)


def compose(gathered: Gathered, *, figures: bool = True) -> Document:
    """Return the report on some results; ``figures=False`` leaves out the figures, which take most of the time."""
    summaries = paper_summaries(gathered.results)
    tables = [paper_table(table, summaries) for table in PAPER_TABLES.values()]
    placed = {id(each) for table in PAPER_TABLES.values() for each in candidates(table, summaries)}
    beyond = [each for each in summaries if id(each) not in placed]
    if beyond:
        caption = (
            f"Kinds, sizes, data and settings beyond the paper's tables. {units_of(beyond)} N par. is counted as in the paper "
            "if it has the form; otherwise it counts all parameters of one aggregator."
        )
        tables.append(summary_table("table-beyond", "Beyond the paper", caption, beyond, summaries, aggregators=True))
    for table in PAPER_TABLES.values():
        if members := candidates(table, summaries):
            caption = f"All configurations of Table {table.numeral}, with all ranks. {units_of(members)}"
            title = f"{table.name} in full"
            tables.append(summary_table(f"all-{table.grid}", title, caption, members, members, aggregators=True))
    return Document(
        title=TITLE,
        introduction=_INTRODUCTION,
        facts=key_figures(gathered, summaries),
        conclusion=_conclusion(tables),
        tables=tuple(tables),
        figures=tuple(figure for study in paper_studies(summaries) for figure in figures_of(study)) if figures else (),
        remarks=(*gathered.remarks, *_displaced(beyond)),
        versions=versions_of(gathered.results),
    )


def paper_summaries(results: Iterable[RunResult]) -> list[Summary]:
    """Summarise results with the paper's counts of parameters, its grids and kinds first and in its order."""
    order = [*PAPER_TABLES, *KINDS]

    def place(name: str) -> tuple[int, str]:
        return (order.index(name), "") if name in order else (len(order), name)

    found = summarise([_with_paper_count(result) for result in results])
    return sorted(found, key=lambda each: (place(each.grid.casefold()), place(each.kind)))


def _with_paper_count(result: RunResult) -> RunResult:
    model = result.settings.model
    if model.aggregator is None or model.aggregator not in KINDS.values() or model.shared or not model.per_label:
        return result
    counted = counted_parameters(model.aggregator, state_size=model.state_size, arity=model.arity or 0, rank=model.rank)
    return result.model_copy(update={"aggregation_parameters": counted, "counted": "all"})


def table_of(summary: Summary) -> PaperTable | None:
    """Return the paper's table that contains this kind, form and size in this grid; None if there is none."""
    table = PAPER_TABLES.get(summary.grid.casefold())
    model = summary.first.settings.model
    if table is None or table.published(summary.kind, summary.state_size) is None:
        return None
    plain = model.cell == "lstm" and model.direction == "up" and not model.shared
    if not plain or model.aggregator != KINDS[summary.kind]:
        return None
    return table if summary.kind != "Hosvd" or summary.rank in table.ranks[summary.state_size] else None


def candidates(table: PaperTable, summaries: Iterable[Summary]) -> list[Summary]:
    """Return the summaries for a table of the paper, all of one recipe.

    Of several recipes we take the one that fills most places, and the first of equals; of equal models on different data,
    the first.
    """
    found: dict[str, dict[tuple[str, int, int | None], Summary]] = {}
    for each in summaries:
        if table_of(each) is table:
            place = each.kind, each.state_size, each.rank if each.kind == "Hosvd" else None
            found.setdefault(each.recipe, {}).setdefault(place, each)
    return list(max(found.values(), key=len, default={}).values())


def placements(table: PaperTable, summaries: Iterable[Summary]) -> dict[tuple[str, int], Summary]:
    """Return the summary for each place (kind, state size) of a table; of several ranks, the best on validation."""
    places: dict[tuple[str, int], list[Summary]] = {}
    for each in candidates(table, summaries):
        places.setdefault((each.kind, each.state_size), []).append(each)
    return {place: best(found) or found[0] for place, found in places.items()}


def points_above(ours: Spread, paper: Published) -> float:
    """Return the difference to the paper's value in points, both rounded to two digits as printed.

    >>> points_above(Spread(0.94566, 0.01, 3), Published(20, 3, 3372, 94.57, 0.70))
    0.0
    """
    return round(round(100 * ours.mean, 2) - paper.mean, 2)


def paper_table(table: PaperTable, summaries: Sequence[Summary]) -> Table:
    """Return a table of the paper in its layout, with our value beside each of its values."""
    placed = placements(table, summaries)
    data = DataNames(placed.values())
    columns = (("c",) if not table.one_size_column else ()) + ("N par.", "Paper", "Ours")
    lead = 2 if table.one_size_column else 1
    upper = (*[Cell("")] * lead, *[Cell(f"{kind}-LSTM", span=len(columns)) for kind in KINDS])
    lower = (
        Cell(""),
        *([Cell("c")] if table.one_size_column else []),
        *[Cell(name) for _ in KINDS for name in columns],
    )
    tops = {kind: best(each for (owner, _), each in placed.items() if owner == kind) for kind in KINDS}
    tests = {kind: top.test for kind, top in tops.items() if top is not None and top.test is not None}
    rows = []
    for place in range(max(len(column) for column in table.validation.values())):
        size = table.validation["Full"][place].state_size
        row = [Cell("Val." if place == 0 else "")] + ([Cell(str(size))] if table.one_size_column else [])
        for kind, column in table.validation.items():
            paper = table.published(kind, size) if table.one_size_column else column[place]
            if paper is None:
                row += [Cell(NONE)] * len(columns)
                continue
            ours = placed.get((kind, paper.state_size))
            top = max(column, key=lambda each: each.mean)
            row += [Cell(str(paper.state_size))] if not table.one_size_column else []
            row += [Cell(f"{paper.parameters:,}"), _published(paper, bold=paper is top)]
            row += [_ours(ours, ours and ours.validation, paper, data, bold=ours is not None and ours is tops[kind])]
        rows.append(tuple(row))
    last = [Cell("Test")] + ([Cell(str(table.test["Full"].state_size))] if table.one_size_column else [])
    for kind, paper in table.test.items():
        top_test = max(table.test.values(), key=lambda each: each.mean)
        own = tops[kind]
        leads = kind in tests and tests[kind].mean == max(spread.mean for spread in tests.values())
        last += [Cell(str(paper.state_size))] if not table.one_size_column else []
        last += [Cell(f"{paper.parameters:,}"), _published(paper, bold=paper is top_test)]
        last += [_ours(own, own and own.test, paper, data, bold=leads, sizes=True)]
    return Table(
        name=f"table-{table.grid}",
        title=f"Table {table.numeral}: {table.name}",
        caption=f"Accuracy on {table.name} in %, mean and standard deviation over seeds in brackets; the paper's three runs, "
        f"and ours. ✓: ours is at least as good, with the difference in points; {NONE}: not run yet. Best results are in bold.",
        head=(upper, lower),
        sections=(tuple(rows), (tuple(last),)),
        notes=(*_notes(table, placed), *data.notes()),
        group_starts=tuple(lead + len(columns) * place for place in range(len(KINDS))),
        leads=lead,
        sticky=True,
    )


def _published(paper: Published, *, bold: bool) -> Cell:
    return Cell(f"{paper.mean:.2f} ({paper.deviation:.2f})", bold=bold)


def _ours(
    summary: Summary | None, score: Spread | None, paper: Published, data: DataNames, *, bold: bool, sizes: bool = False
) -> Cell:
    if summary is None or score is None:
        return Cell(NONE)
    size = f"c = {summary.state_size}" if sizes else ""
    rank = f"r = {summary.rank}" if summary.kind == "Hosvd" else ""
    counted = summary.first.aggregator_parameters
    parameters = f"{counted:,} par." if counted is not None and counted != paper.parameters else ""
    facts = list(filter(None, (f"n = {score.count}", size, rank)))
    details = [", ".join(facts[:2]), *facts[2:], parameters, data.name(summary), summary.stopped]  # short lines
    return Cell(score.percent(), tuple(filter(None, details)), points_above(score, paper), bold)


def _notes(table: PaperTable, placed: dict[tuple[str, int], Summary]) -> list[str]:
    notes = [
        "n is the number of seeds; our standard deviation is in sample form (n − 1), and absent for a single run.",
        "For the Hosvd-LSTM we give the rank that is best on validation, as in the paper; if it differs from the paper's, we "
        "give its number of parameters too.",
        "Test: of each kind, the configuration that is best on validation among those that were run.",
    ]
    if not placed:
        notes.append(f"No result is of the grid “{table.grid}” with the paper's kinds and sizes.")
    return notes


def _conclusion(tables: Sequence[Table]) -> str:
    cells = [cell for table in tables for row in table.rows for cell in row if cell.points is not None]
    if not cells:
        return "None of these results has a place in the paper's tables."
    reached = sum(cell.verdict == "reached" for cell in cells)
    places = sum(len(column) for table in PAPER_TABLES.values() for column in table.validation.values())
    places += sum(len(table.test) for table in PAPER_TABLES.values())
    return f"At least as good as the paper in {reached} of {len(cells)} values compared; its two tables hold {places}."


def _displaced(beyond: Sequence[Summary]) -> list[str]:
    count = sum(table_of(each) is not None for each in beyond)
    if not count:
        return []
    return [
        "Some places in the paper's tables have several configurations, which differ in other settings or in data. The tables "
        f"show those of the recipe that fills most places; the others ({count:,}) are listed under “Beyond the paper”."
    ]


def paper_studies(summaries: Sequence[Summary]) -> list[Study]:
    """Return a study for each grid; a grid on the data of the paper's LRT or ListOps grid joins that study."""
    homes: dict[Data, str] = {}
    for each in summaries:
        if each.grid.casefold() in PAPER_TABLES:
            homes.setdefault(each.data, each.grid.casefold())
    found: dict[str, list[Summary]] = {}
    for each in summaries:
        own = each.grid.casefold() if each.grid.casefold() in PAPER_TABLES else each.grid
        found.setdefault(homes.get(each.data, own), []).append(each)
    palette = tuple(dict.fromkeys([*KINDS, *sorted(each.kind for each in summaries)]))
    studies = []
    for (name, members), slug in zip(found.items(), slugs(found), strict=True):
        table = PAPER_TABLES.get(name)
        if table is None:
            studies.append(Study(name, slug, tuple(members), palette, of_aggregators=True))
            continue
        points = {kind: [(row.parameters, row.mean) for row in rows] for kind, rows in table.validation.items()}
        apart = [kind for kind, rows in table.validation.items() if len({row.rank for row in rows}) > 1]
        reference = Reference("the paper", points, apart)
        studies.append(Study(table.name, slug, tuple(members), palette, reference, of_aggregators=True))
    return studies


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.paper.report", description=__doc__)
    parser.add_argument("sweeps", type=Path, nargs="+", metavar="SWEEP", help="folder of a sweep")
    parser.add_argument("--out", type=Path, help="folder for the report (default: `paper` in the first SWEEP)")
    parser.add_argument("--force", action="store_true", help="replace the report in this folder")
    options = parser.parse_args(arguments)
    try:
        show(*write_paper_report(options.sweeps, options.out, force=options.force))
    except TreefoldError as problem:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    main()
