"""What a report says: facts, tables and figures, before they are written in some format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from treefold.sweeps.reporting.figures import Figure, figures_of
from treefold.sweeps.reporting.paper_tables import PAPER_TABLES
from treefold.sweeps.reporting.records import Data, Gathered
from treefold.sweeps.reporting.studies import studies_of
from treefold.sweeps.reporting.summary import Configuration, configurations_of
from treefold.sweeps.reporting.tables import Table, candidates, further_table, paper_table
from treefold.sweeps.results import RunResult

TITLE: Final = "Tree-LSTMs and their aggregations: our results beside the paper's"
PAPER: Final = (
    "Castellana and Bacciu, Generalising Recursive Neural Models by Tensor Decomposition, "
    "International Joint Conference on Neural Networks, 2020"
)
_INTRODUCTION: Final = (
    "A recursive network turns a tree into a vector, from the leaves up; at every node it combines the states of the "
    "children. Compared here are ways to combine them: a full tensor over all products of their entries (Full), a weighted "
    "sum (Sum), and the tensor in Tucker's factored form (Hosvd), each inside a Tree-LSTM. c is the size of a state, r the "
    "rank of the factored form, and N par. counts the parameters of a single aggregation, as the paper does.",
    "LRT asks which of seven logical relations holds between two sentences of propositional logic; ListOps asks for the "
    f"value of nested operations on lists of digits. The paper is: {PAPER}.",
)


@final
@dataclass(frozen=True)
class Report:
    """A report: paragraphs, facts as pairs of name and value, tables, figures, and remarks."""

    title: str
    introduction: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    verdict: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    remarks: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]


def compose(gathered: Gathered, *, figures: bool = True) -> Report:
    """Make the report of some results; drawing its figures takes most of the time."""
    configurations = configurations_of(gathered.results)
    tables = [paper_table(table, configurations) for table in PAPER_TABLES.values()]
    first = {id(each) for table in PAPER_TABLES.values() for each in candidates(table, configurations)}
    beyond = [each for each in configurations if id(each) not in first]
    counted = "N par. is counted as the paper counts, where it does; of other forms it is all of one aggregator."
    spread = (
        "Scores are in %, time is what the processor spent on a run; in brackets the standard deviation over seeds in sample "
        "form (n − 1)."
    )
    if beyond:
        caption = f"Kinds, sizes, data and settings beyond the paper's tables. {spread} {counted}"
        tables.append(further_table("table-beyond", "Beyond the paper", caption, beyond, configurations))
    for table in PAPER_TABLES.values():
        members = candidates(table, configurations)
        if members:
            caption = f"Every configuration behind Table {table.numeral}, all ranks included. {spread}"
            tables.append(further_table(f"all-{table.grid}", f"{table.name} in full", caption, members, configurations))
    return Report(
        title=TITLE,
        introduction=_INTRODUCTION,
        facts=_facts(gathered.results, configurations),
        verdict=_verdict(tables),
        tables=tuple(tables),
        figures=tuple(figure for study in studies_of(configurations) for figure in figures_of(study))
        if figures
        else (),
        remarks=(*gathered.remarks, *_repeats(beyond)),
        versions=_versions(gathered.results),
    )


def _repeats(beyond: Sequence[Configuration]) -> list[str]:
    more = sum(each.paper_table is not None for each in beyond)
    if not more:
        return []
    return [
        "For some places in the paper's tables there are several configurations, which differ in other settings or in "
        f"data; those of the recipe that has most places stand there, the others ({more:,}) stand under “Beyond the paper”."
    ]


def _verdict(tables: Sequence[Table]) -> str:
    cells = [cell for table in tables for row in table.rows for cell in row if cell.points is not None]
    if not cells:
        return "None of these results has a place in the paper's tables."
    reached = sum(cell.verdict == "reached" for cell in cells)
    places = sum(len(column) for table in PAPER_TABLES.values() for column in table.validation.values())
    places += sum(len(table.test) for table in PAPER_TABLES.values())
    return f"At least as good as the paper in {reached} of {len(cells)} values compared; its two tables hold {places}."


def _facts(results: Sequence[RunResult], configurations: Sequence[Configuration]) -> tuple[tuple[str, str], ...]:
    distinct = {result.key: result for result in results}
    hours = sum(result.busy_seconds for result in distinct.values()) / 3600
    counts = sorted({len(each.runs) for each in configurations})
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    return (
        ("finished runs", f"{len(distinct):,}"),
        ("configurations", f"{len(configurations):,}"),
        ("seeds for each", seeds),
        ("hours of training", f"{hours:,.1f}" if hours >= 0.05 else f"{hours:.3f}"),
    )


def _versions(results: Sequence[RunResult]) -> tuple[tuple[str, str], ...]:
    names = ("treefold", "torch", "numpy", "python", "machine", "threads")
    found = {
        name: sorted({str(each.environment[name]) for each in results if name in each.environment}) for name in names
    }
    data = sorted({Data.of(each) for each in results})
    listed = [(name, ", ".join(values)) for name, values in found.items() if values]
    return (*listed, ("data", "; ".join(map(str, data))))
