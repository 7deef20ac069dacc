"""Read the results of sweeps, average them over seeds, and put them into a table."""

import json
import math
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, final

import numpy as np

from treefold.errors import ReadError
from treefold.sweeps.results import RESULTS, Results, RunResult

NONE: Final = "–"
_IGNORED: Final = (
    "seed",
    "threads",
    "checkpoint_minutes",
    "tensorboard",
)  # runs that differ only in these are averaged


class Data(NamedTuple):
    """The fingerprint of a data set; runs with equal fingerprints saw the same examples."""

    examples: int
    nodes: int
    crc32: int

    @classmethod
    def of(cls, result: RunResult) -> "Data":
        """Return the fingerprint in a result."""
        return cls(*(result.data.get(name, 0) for name in cls._fields))

    def __str__(self) -> str:
        return f"{self.examples:,} examples, {self.nodes:,} nodes, checksum {self.crc32:08x}"


class Gathered(NamedTuple):
    """Results in the order of reading, and remarks for the reader of the report."""

    results: tuple[RunResult, ...]
    remarks: tuple[str, ...] = ()


def gather(folders: Sequence[Path]) -> Gathered:
    """Read the results of sweeps without changing their files; a run that several sweeps contain counts once."""
    results: dict[tuple[str, str, str], RunResult] = {}
    remarks: list[str] = []
    repeated = 0
    for folder in folders:
        found = _read(folder)
        if found.damaged:
            remarks.append(f"The last line of {folder.name}/{RESULTS} is incomplete and was left out.")
        for result in found.results.values():
            name = (result.grid, result.kind, result.key)
            repeated += name in results
            results.setdefault(name, result)
    if repeated:
        remarks.append(f"Runs that several sweeps contain are counted once: {repeated:,}.")
    return Gathered(tuple(results.values()), tuple(remarks))


def _read(folder: Path) -> Results:
    path = folder / RESULTS
    if not path.is_file():
        raise ReadError(
            f"expected the folder of a sweep with {RESULTS} in it; make one with `treefold sweep GRID --out FOLDER`.",
            source=folder,
        )
    found = Results.read(path)
    if not found.results:
        raise ReadError("expected at least one finished run, got none; let the sweep finish one.", source=path)
    return found


@final
@dataclass(frozen=True)
class Spread:
    r"""Mean, sample standard deviation (None for one number) and count of some numbers.

    .. math:: s^2 = \frac{1}{n - 1} \sum_i (x_i - \bar x)^2

    >>> Spread.of([1.0, 2.0, 3.0])
    Spread(mean=2.0, deviation=1.0, count=3)
    """

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """Summarise the finite numbers among the values; None if there are none."""
        known = np.array([value for value in values if value is not None and math.isfinite(value)], dtype=np.float64)
        if not len(known):
            return None
        return cls(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None, len(known))

    def percent(self) -> str:
        """Write mean and deviation in %.

        >>> Spread(0.94567, 0.007, 3).percent(), Spread(0.94567, None, 1).percent()
        ('94.57 (0.70)', '94.57 (–)')
        """
        return f"{100 * self.mean:.2f} ({NONE if self.deviation is None else f'{100 * self.deviation:.2f}'})"


@final
@dataclass(frozen=True)
class Summary:
    """The results of one configuration on one data set: its runs, one for each seed, and their mean scores."""

    grid: str
    kind: str  # the name of the grid's entry
    settings: dict[str, Any]  # those that affect the result, by name
    data: Data
    runs: tuple[RunResult, ...]
    validation: Spread | None
    test: Spread | None
    seconds: Spread | None  # processor time of a run

    @classmethod
    def of(cls, runs: Sequence[RunResult]) -> Self:
        """Summarise runs of one configuration."""
        first = runs[0]
        return cls(
            first.grid,
            first.kind,
            _settings(first),
            Data.of(first),
            tuple(runs),
            validation=Spread.of(run.validation for run in runs),
            test=Spread.of(run.test for run in runs),
            seconds=Spread.of(run.busy_seconds for run in runs),
        )

    @property
    def first(self) -> RunResult:
        """The first run; settings, data and sizes are the same for all."""
        return self.runs[0]

    @property
    def state_size(self) -> int:
        """The state size c."""
        return self.first.settings.model.state_size

    @property
    def rank(self) -> int | None:
        """The rank r, or None."""
        return self.first.settings.model.rank

    @property
    def stopped(self) -> str:
        """The number of runs that the budget stopped, in words; empty if none."""
        count = sum(run.stopped is not None for run in self.runs)
        return f"{count} stopped by the budget" if count else ""

    @property
    def recipe(self) -> str:
        """The settings other than form and sizes; a fair comparison needs equal recipes."""
        sizes = ("aggregator", "state_size", "rank")
        return json.dumps({name: value for name, value in self.settings.items() if name not in sizes})

    def sizes(self) -> str:
        """Write the sizes, ``c = 20, r = 3``."""
        return f"c = {self.state_size}" + ("" if self.rank is None else f", r = {self.rank}")


def summarise(results: Sequence[RunResult]) -> list[Summary]:
    """Group runs that differ only in the seed, ordered by grid, kind and size; of runs with equal seeds the first counts."""
    groups: dict[str, dict[int, RunResult]] = {}
    for result in results:
        identity = json.dumps([result.grid, result.kind, _settings(result), Data.of(result)], sort_keys=True)
        groups.setdefault(identity, {}).setdefault(result.seed, result)
    found = [Summary.of([runs[seed] for seed in sorted(runs)]) for runs in groups.values()]
    return sorted(found, key=lambda each: (each.grid, each.kind, each.state_size, each.rank or 0))


def _settings(result: RunResult) -> dict[str, Any]:
    values = result.settings.model_dump(mode="json")
    flat = {"task": values["task"], **values["training"], **values["model"]}
    return {name: value for name, value in flat.items() if name not in _IGNORED}


def best(summaries: Iterable[Summary]) -> Summary | None:
    """Return the summary with the highest mean validation score, the first of equals; None without any score."""
    known = [each for each in summaries if each.validation is not None]
    return max(known, key=lambda each: each.validation.mean if each.validation else 0.0, default=None)


def difference(summary: Summary, others: Iterable[Summary]) -> str:
    """Write the settings in which a summary differs from others with the same name and sizes."""
    name = (summary.grid, summary.kind, summary.state_size, summary.rank)
    rest = [each.settings for each in others if (each.grid, each.kind, each.state_size, each.rank) == name]
    words = {True: "yes", False: "no", None: "none"}
    return ", ".join(
        f"{setting} = {words[value] if value is None or isinstance(value, bool) else value}"
        for setting, value in sorted(summary.settings.items())
        if any(each[setting] != value for each in rest)
    )


@final
@dataclass(frozen=True)
class Cell:
    """A table entry: its text, details below it, and the difference from a reference value in points."""

    text: str
    details: tuple[str, ...] = ()
    points: float | None = None
    bold: bool = False
    span: int = 1

    @property
    def verdict(self) -> Literal["", "reached", "missed"]:
        """Whether the reference value is reached; empty without one."""
        return "" if self.points is None else "reached" if self.points >= 0 else "missed"

    def comparison(self) -> str:
        """Write the verdict and the difference.

        >>> Cell("94.81", points=0.24).comparison(), Cell("94.24", points=-0.33).comparison()
        ('✓ +0.24', '✗ −0.33')
        """
        if self.points is None:
            return ""
        return f"✓ +{self.points:.2f}" if self.points >= 0 else f"✗ −{-self.points:.2f}"


Row = tuple[Cell, ...]


@final
@dataclass(frozen=True)
class Table:
    """A table: one or two header rows (the upper with spans), rows in sections, and notes."""

    name: str
    title: str
    caption: str
    head: tuple[Row, ...]
    sections: tuple[tuple[Row, ...], ...]
    notes: tuple[str, ...] = ()
    group_starts: tuple[int, ...] = ()  # first columns of the groups in the upper header row
    leads: int = 1  # columns that name the row
    sticky: bool = False  # whether these stay visible when the table is scrolled sideways

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows below the header."""
        return tuple(row for section in self.sections for row in section)


def summary_table(name: str, title: str, caption: str, summaries: Sequence[Summary], among: Sequence[Summary]) -> Table:
    """Return a table with a row for each summary and a section for each grid: sizes, parameters, scores and time.

    A row names the settings in which it differs from similar ones ``among`` all summaries of the report.
    """
    data = DataNames(summaries)
    grids = list(dict.fromkeys(each.grid for each in summaries))
    several = len(grids) > 1
    head = ["Kind", *(["Grid"] if several else []), "c", "r", "N par.", "All par.", "Validation", "Test"]
    sections = []
    for grid in grids:
        members = [each for each in summaries if each.grid == grid]
        leader = best(members) if len(summaries) > 1 else None
        rows = []
        for each in members:
            details = (difference(each, among), data.name(each), each.stopped)
            row = [Cell(each.kind, tuple(filter(None, details))), *([Cell(grid)] if several else [])]
            counts = (each.state_size, each.rank, each.first.aggregator_parameters, each.first.parameters)
            row += [Cell(NONE if count is None else f"{count:,}") for count in counts]
            row += [
                Cell(score.percent() if score else NONE, bold=each is leader) for score in (each.validation, each.test)
            ]
            row += [Cell(_seconds(each.seconds)), Cell(str(len(each.runs)))]
            rows.append(tuple(row))
        sections.append(tuple(rows))
    columns = tuple(map(Cell, [*head, "Seconds", "Seeds"]))
    return Table(name, title, caption, (columns,), tuple(sections), tuple(data.notes()), leads=2 if several else 1)


@final
class DataNames:
    """Names the data sets of grids that have several, and warns that these results are not comparable."""

    def __init__(self, summaries: Iterable[Summary]) -> None:
        found: dict[str, list[Data]] = {}
        for each in summaries:
            known = found.setdefault(each.grid, [])
            known += [each.data] if each.data not in known else []
        self._mixed = {grid: known for grid, known in found.items() if len(known) > 1}

    def name(self, summary: Summary) -> str:
        """Return the name of a summary's data, or nothing if its grid has only one data set."""
        known = self._mixed.get(summary.grid)
        return f"data {_letter(known.index(summary.data))}" if known else ""

    def notes(self) -> list[str]:
        """Return a warning for each grid with several data sets."""
        return [
            f"Caution: the results of the grid “{grid}” come from {len(known)} different data sets and are not directly "
            f"comparable. {'; '.join(f'{_letter(place)}: {data}' for place, data in enumerate(known))}."
            for grid, known in self._mixed.items()
        ]


def _letter(place: int) -> str:
    return string.ascii_uppercase[place] if place < len(string.ascii_uppercase) else str(place + 1)


def _seconds(spread: Spread | None) -> str:
    if spread is None:
        return NONE
    return f"{spread.mean:,.0f} ({NONE if spread.deviation is None else f'{spread.deviation:,.0f}'})"
