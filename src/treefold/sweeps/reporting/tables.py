"""The tables of a report, before they become Markdown, LaTeX or HTML."""

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from treefold.sweeps.reporting.paper_tables import KINDS, PaperTable, Published
from treefold.sweeps.reporting.records import Data
from treefold.sweeps.reporting.summary import Configuration, Spread, best, difference

NONE: Final = "–"
Verdict = Literal["", "reached", "missed"]
MARKS: Final[dict[Verdict, str]] = {"": "", "reached": "✓", "missed": "✗"}


@final
@dataclass(frozen=True)
class Cell:
    """An entry: what it says, below what it rests on, and how ours compares with the paper's, in points."""

    text: str
    details: tuple[str, ...] = ()
    points: float | None = None
    bold: bool = False
    span: int = 1

    @property
    def verdict(self) -> Verdict:
        """Whether ours is at least as good; nothing where there is nothing to compare."""
        return "" if self.points is None else "reached" if self.points >= 0 else "missed"

    def comparison(self) -> str:
        """Write the mark and the difference.

        >>> Cell("94.81", points=0.24).comparison(), Cell("94.24", points=-0.33).comparison()
        ('✓ +0.24', '✗ −0.33')
        """
        if self.points is None:
            return ""
        return f"{MARKS[self.verdict]} {'+' if self.points >= 0 else '−'}{abs(self.points):.2f}"


Row = tuple[Cell, ...]


@final
@dataclass(frozen=True)
class Table:
    """A table: a head of one or two rows (the upper with spans), rows in sections, and notes below."""

    name: str
    title: str
    caption: str
    head: tuple[Row, ...]
    sections: tuple[tuple[Row, ...], ...]
    notes: tuple[str, ...] = ()
    group_starts: tuple[int, ...] = ()  # columns at which a group of the head begins
    leads: int = 1  # columns that say what a row is about
    sticky: bool = False  # whether these stay in sight when the table is moved sideways

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows below the head."""
        return tuple(row for section in self.sections for row in section)


def points_above(ours: Spread, paper: Published) -> float:
    """Return by how many points ours is above the paper's, both as printed, with two digits.

    >>> points_above(Spread(0.94566, 0.01, 3), Published(20, 3, 3372, 94.57, 0.70))
    0.0
    """
    return round(round(100 * ours.mean, 2) - paper.mean, 2)


def paper_table(table: PaperTable, configurations: Sequence[Configuration]) -> Table:
    """Build a table of the paper, in its layout, with ours beside each of its values."""
    placed = placements(table, configurations)
    data = DataNames(placed.values())
    columns = (("c",) if not table.one_size_column else ()) + ("N par.", "Paper", "Ours")
    lead = 2 if table.one_size_column else 1
    upper = (*[Cell("")] * lead, *[Cell(f"{kind}-LSTM", span=len(columns)) for kind in KINDS])
    lower = (
        Cell(""),
        *([Cell("c")] if table.one_size_column else []),
        *[Cell(name) for _ in KINDS for name in columns],
    )
    chosen = {kind: [each for (owner, _), each in placed.items() if owner == kind] for kind in KINDS}
    tops = {kind: best(chosen[kind]) for kind in KINDS}
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
        notes=(*_paper_notes(table, placed), *data.notes()),
        group_starts=tuple(lead + len(columns) * place for place in range(len(KINDS))),
        leads=lead,
        sticky=True,
    )


def candidates(table: PaperTable, configurations: Iterable[Configuration]) -> list[Configuration]:
    """Return those that have a place in a table of the paper, all of one recipe.

    Of several recipes it is the one with most places, the first of equals; of equal models on different data, the first.
    """
    found: dict[str, dict[tuple[str, int, int | None], Configuration]] = {}
    for each in configurations:
        if each.paper_table is table:
            place = each.kind, each.state_size, each.rank if each.kind == "Hosvd" else None
            found.setdefault(each.recipe, {}).setdefault(place, each)
    return list(max(found.values(), key=len, default={}).values())


def placements(table: PaperTable, configurations: Iterable[Configuration]) -> dict[tuple[str, int], Configuration]:
    """Say which candidate stands in which place (kind, state size): of several ranks, the best on validation."""
    places: dict[tuple[str, int], list[Configuration]] = {}
    for each in candidates(table, configurations):
        places.setdefault((each.kind, each.state_size), []).append(each)
    return {place: best(found) or found[0] for place, found in places.items()}


def further_table(
    name: str,
    title: str,
    caption: str,
    configurations: Sequence[Configuration],
    among: Sequence[Configuration],
) -> Table:
    """Build a table with a row for each configuration, a section for each grid: sizes, parameters, scores and time.

    A row names the settings in which it differs from its likes ``among`` those of the whole report.
    """
    data = DataNames(configurations)
    grids = list(dict.fromkeys(each.grid for each in configurations))
    several = len(grids) > 1
    head = ["Kind", *(["Grid"] if several else []), "c", "r", "N par.", "All par."]
    head += ["Validation", "Test", "Seconds", "Seeds"]
    leaders = [best(each for each in configurations if each.grid == grid) for grid in grids]
    sections = []
    for grid in grids:
        rows = []
        for each in (each for each in configurations if each.grid == grid):
            details = (difference(each, among), data.name(each), _stopped(each))
            top = any(each is leader for leader in leaders) and len(configurations) > 1
            row = [Cell(each.kind, tuple(filter(None, details))), *([Cell(grid)] if several else [])]
            row += [Cell(_count(number)) for number in (each.state_size, each.rank, each.first.aggregation_parameters)]
            row += [Cell(_count(each.first.parameters))]
            row += [Cell(score.percent() if score else NONE, bold=top) for score in (each.validation, each.test)]
            row += [Cell(_seconds(each.seconds)), Cell(str(len(each.runs)))]
            rows.append(tuple(row))
        sections.append(tuple(rows))
    return Table(
        name, title, caption, (tuple(map(Cell, head)),), tuple(sections), tuple(data.notes()), leads=2 if several else 1
    )


@final
class DataNames:
    """Names for the data sets of a table, where one grid of it has several, which must not be compared unseen."""

    def __init__(self, configurations: Iterable[Configuration]) -> None:
        found: dict[str, list[Data]] = {}
        for each in configurations:
            known = found.setdefault(each.grid, [])
            known += [each.data] if each.data not in known else []
        self._mixed = {grid: known for grid, known in found.items() if len(known) > 1}

    def name(self, configuration: Configuration) -> str:
        """Return the name of a configuration's data, or nothing where its grid has only one."""
        known = self._mixed.get(configuration.grid)
        return f"data {_letter(known.index(configuration.data))}" if known else ""

    def notes(self) -> list[str]:
        """Return a warning for each grid that mixes data."""
        return [
            f"Caution: the results of the grid “{grid}” come from {len(known)} different data sets and cannot be compared as "
            f"they stand. {'; '.join(f'{_letter(place)}: {data}' for place, data in enumerate(known))}."
            for grid, known in self._mixed.items()
        ]


def _letter(place: int) -> str:
    return string.ascii_uppercase[place] if place < len(string.ascii_uppercase) else str(place + 1)


def _published(paper: Published, *, bold: bool) -> Cell:
    return Cell(f"{paper.mean:.2f} ({paper.deviation:.2f})", bold=bold)


def _ours(
    configuration: Configuration | None,
    score: Spread | None,
    paper: Published,
    data: DataNames,
    *,
    bold: bool,
    sizes: bool = False,
) -> Cell:
    if configuration is None or score is None:
        return Cell(NONE)
    size = f"c = {configuration.state_size}" if sizes else ""
    rank = f"r = {configuration.rank}" if configuration.kind == "Hosvd" else ""
    counted = configuration.first.aggregation_parameters
    parameters = f"{counted:,} par." if counted is not None and counted != paper.parameters else ""
    facts = list(filter(None, (f"n = {score.count}", size, rank)))
    details = [", ".join(facts[:2]), *facts[2:], parameters]  # short lines keep the column narrow
    details += [data.name(configuration), _stopped(configuration)]
    return Cell(score.percent(), tuple(filter(None, details)), points_above(score, paper), bold)


def _paper_notes(table: PaperTable, placed: dict[tuple[str, int], Configuration]) -> list[str]:
    notes = [
        "n is the number of seeds; ours has the standard deviation in sample form (n − 1), of one run none.",
        "Of the Hosvd-LSTM the result with the best rank on validation is given, as in the paper; where ours has "
        "another rank, its number of parameters is given too.",
        "Test: the configuration of each kind that is best on validation, of those that were run.",
    ]
    if not placed:
        notes.append(f"None of the results is of the grid “{table.grid}” with the paper's kinds and sizes.")
    return notes


def _count(number: int | None) -> str:
    return NONE if number is None else f"{number:,}"


def _stopped(configuration: Configuration) -> str:
    return f"{configuration.stopped} stopped by the budget" if configuration.stopped else ""


def _seconds(spread: Spread | None) -> str:
    if spread is None:
        return NONE
    return f"{spread.mean:,.0f} ({NONE if spread.deviation is None else f'{spread.deviation:,.0f}'})"
