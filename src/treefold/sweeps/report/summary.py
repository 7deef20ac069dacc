"""Read the results of sweeps, average them over seeds, and put them into a table."""

import json
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Self, final

import numpy as np

from treefold.errors import ReadError
from treefold.sweeps.results import RESULTS, Results, RunResult, SweepFacts
from treefold.training.plugins import registered

NONE: Final = "–"
_IGNORED: Final = (
    "seed",
    "threads",
    "checkpoint_minutes",
    "tensorboard",
)  # runs that differ only in these are averaged
_SIZES: Final = ("state_size", "rank")
_MOST_COLUMNS: Final = 6  # of settings; more of them are listed below the kind
_MOST_FAILURES: Final = 5


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


class Source(NamedTuple):
    """Where a result comes from: the directory of its run, and its data set if that is known."""

    run: Path
    data: str | None


class Gathered(NamedTuple):
    """Results in the order of reading, the descriptions of grids, remarks, the sources of results by key, and open runs."""

    results: tuple[RunResult, ...]
    descriptions: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    sources: Mapping[str, Source] = MappingProxyType({})
    unfinished: int = 0


def gather(folders: Sequence[Path]) -> Gathered:
    """Read the results of sweeps without changing their files; a run that several sweeps contain counts once."""
    results: dict[tuple[str, str, str], RunResult] = {}
    sources: dict[str, Source] = {}
    descriptions: list[str] = []
    remarks: list[str] = []
    repeated = unfinished = 0
    for folder in folders:
        facts = SweepFacts.read(folder)
        found = _read(folder, facts)
        if found.damaged:
            remarks.append(f"The last line of {folder.name}/{RESULTS} is incomplete and was left out.")
        for result in found.results.values():
            name = (result.grid, result.kind, result.key)
            repeated += name in results
            results.setdefault(name, result)
            sources.setdefault(result.key, Source(folder / "runs" / result.key, facts and facts.data))
        if facts is not None:
            descriptions += [facts.description] if facts.description else []
            open_runs = [key for key in facts.runs if key not in found.results]
            unfinished += len(open_runs)
            remarks += _missing(facts, open_runs)
    if repeated:
        remarks.append(f"Runs that several sweeps contain are counted once: {repeated:,}.")
    return Gathered(tuple(results.values()), tuple(descriptions), tuple(remarks), sources, unfinished)


def _missing(facts: SweepFacts, open_runs: Sequence[str]) -> list[str]:
    """Say which runs are not finished, and why others failed."""
    failed = [f"{facts.runs[key]} ({facts.failed[key]})" for key in open_runs if key in facts.failed]
    remarks = []
    if open_runs:
        remarks.append(
            f"{facts.grid}: {len(open_runs):,} of {len(facts.runs):,} runs are not finished, and are missing here."
        )
    if failed:
        more = f"; and {len(failed) - _MOST_FAILURES:,} more" if len(failed) > _MOST_FAILURES else ""
        remarks.append(f"{facts.grid}: failed: {'; '.join(failed[:_MOST_FAILURES])}{more}.")
    return remarks


def _read(folder: Path, facts: SweepFacts | None) -> Results:
    path = folder / RESULTS
    if not path.is_file() and facts is None:
        raise ReadError(
            f"expected the folder of a sweep with {RESULTS} in it; make one with `treefold sweep GRID --out FOLDER`.",
            source=folder,
        )
    found = Results.read(path)
    if not found.results:
        first = (
            f" ({len(facts.failed):,} failed: {next(iter(facts.failed.values()))})" if facts and facts.failed else ""
        )
        raise ReadError(f"expected at least one finished run, got none{first}; let the sweep finish one.", source=path)
    return found


class Measure(NamedTuple):
    """The score of a task: its name, and whether it is a share, which we write in %."""

    name: str
    is_share: bool

    @classmethod
    def of(cls, result: RunResult) -> "Measure":
        """Return the score of a result's task."""
        task = registered("task", result.settings.task)
        return cls(task.score_name, task.has_classes)

    @property
    def factor(self) -> int:
        """What numbers are multiplied by before they are shown."""
        return 100 if self.is_share else 1

    @property
    def title(self) -> str:
        """The name with its unit.

        >>> Measure("accuracy", True).title, Measure("R²", False).title
        ('accuracy, %', 'R²')
        """
        return f"{self.name}, %" if self.is_share else self.name

    def write(self, spread: "Spread | None") -> str:
        """Write mean and deviation, without the unit.

        >>> Measure("R²", False).write(Spread(0.94567, 0.007, 3))
        '0.9457 (0.0070)'
        """
        if spread is None:
            return NONE
        deviation = NONE if spread.deviation is None else f"{spread.deviation:.4f}"
        return spread.percent() if self.is_share else f"{spread.mean:.4f} ({deviation})"

    def short(self, value: float) -> str:
        """Write one number, with the unit.

        >>> Measure("accuracy", True).short(0.9312), Measure("R²", False).short(0.9312)
        ('93.1 %', '0.931')
        """
        return f"{100 * value:.1f} %" if self.is_share else f"{value:.3f}"


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
    def measure(self) -> Measure:
        """The score of the task."""
        return Measure.of(self.first)

    @property
    def is_tested(self) -> bool:
        """Whether scores beside the validation score are those of the test set, and not of validation."""
        return self.test is not None

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
        return self.without("aggregator", *_SIZES)

    def without(self, *names: str) -> str:
        """Return all settings but these, as text that is equal for equal settings."""
        return json.dumps({name: value for name, value in self.settings.items() if name not in names}, sort_keys=True)


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
    flat = {"task": values["task"], **values["model"], **values["training"]}
    return {name: value for name, value in flat.items() if name not in _IGNORED}


def best(summaries: Iterable[Summary]) -> Summary | None:
    """Return the summary with the highest mean validation score, the first of equals; None without any score."""
    known = [each for each in summaries if each.validation is not None]
    return max(known, key=lambda each: each.validation.mean if each.validation else 0.0, default=None)


def varied(summaries: Sequence[Summary]) -> list[str]:
    """Return the settings in which summaries differ."""
    return [name for name in summaries[0].settings if any(_differ(name, summaries[0], each) for each in summaries[1:])]


def _differ(name: str, one: Summary, other: Summary) -> bool:
    return bool(one.settings[name] != other.settings[name])


def same_kind(summary: Summary, among: Iterable[Summary]) -> list[Summary]:
    """Return the summaries with the grid and the kind of this one."""
    return [each for each in among if (each.grid, each.kind) == (summary.grid, summary.kind)]


def title_of(summary: Summary, among: Sequence[Summary], left_out: Sequence[str] = ()) -> str:
    """Name a configuration: its kind, and the settings in which it differs from others of its kind."""
    names = [name for name in varied(same_kind(summary, [summary, *among])) if name not in left_out]
    return ", ".join([summary.kind, *(f"{name} = {value_text(summary.settings[name])}" for name in names)])


def value_text(value: Any) -> str:
    """Write the value of a setting.

    >>> value_text(True), value_text(None), value_text(0.0001), value_text([20, 20])
    ('yes', 'none', '0.0001', '[20, 20]')
    """
    words = {True: "yes", False: "no", None: "none"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def numbers_of(name: str, summaries: Sequence[Summary]) -> list[float] | None:
    """Return the distinct values of a setting in order; None if one of them is not a number."""
    values = [each.settings[name] for each in summaries]
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        return None
    return sorted(set(values))


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


def summary_table(
    name: str,
    title: str,
    caption: str,
    summaries: Sequence[Summary],
    among: Sequence[Summary],
    *,
    aggregators: bool = False,
) -> Table:
    """Return a table with a row for each summary and a section for each grid: settings, parameters, scores and time.

    Columns have the settings in which kinds differ ``among`` all summaries of the report. With ``aggregators``, a column
    counts the parameters of one aggregator.
    """
    data = DataNames(summaries)
    grids = list(dict.fromkeys(each.grid for each in summaries))
    differing = {each for summary in summaries for each in varied(same_kind(summary, [summary, *among]))}
    differing |= set(_SIZES) & set(varied([*summaries, *among]))
    columns = [each for each in summaries[0].settings if each in differing]
    columns, rest = columns[:_MOST_COLUMNS], columns[_MOST_COLUMNS:]
    measures = list(dict.fromkeys(each.measure for each in summaries))
    score = f" {measures[0].title}" if len(measures) == 1 else ""
    tested = any(each.is_tested for each in summaries)
    judged = "Test" if tested else "Validation"
    extras = {
        key: f"{judged} {words}"
        for key, words in (("macro_f1", "macro-F1, %"), ("mae", "MAE"))
        if any(key in each.first.scores for each in summaries)
    }
    sections = []
    for grid in grids:
        members = [each for each in summaries if each.grid == grid]
        leader = best(members) if len(summaries) > 1 else None
        rows = []
        for each in members:
            others = (f"{key} = {value_text(each.settings[key])}" for key in rest)
            details = (", ".join(others), data.name(each), each.stopped)
            row = [Cell(each.kind, tuple(filter(None, details))), *([Cell(grid)] if len(grids) > 1 else [])]
            row += [Cell(NONE if each.settings[key] is None else value_text(each.settings[key])) for key in columns]
            counts = [*([each.first.aggregator_parameters] if aggregators else []), each.first.parameters]
            row += [Cell(NONE if count is None else f"{count:,}") for count in counts]
            scores = (each.validation, each.test) if tested else (each.validation,)
            row += [
                Cell(each.measure.write(found), bold=each is leader and not place) for place, found in enumerate(scores)
            ]
            row += [Cell(_score(key, each)) for key in extras]
            row += [Cell(_seconds(each.seconds)), Cell(str(len(each.runs)))]
            rows.append(tuple(row))
        sections.append(tuple(rows))
    head = ["Kind", *(["Grid"] if len(grids) > 1 else []), *columns, *(["N par."] if aggregators else []), "Parameters"]
    head += [f"Validation{score}", *([f"Test{score}"] if tested else []), *extras.values(), "Seconds", "Seeds"]
    notes = tuple(data.notes())
    leads = 2 if len(grids) > 1 else 1
    return Table(name, title, caption, (tuple(map(Cell, head)),), tuple(sections), notes, leads=leads)


def _score(name: str, summary: Summary) -> str:
    spread = Spread.of(run.scores.get(name) for run in summary.runs)
    if spread is None or name != "mae":
        return NONE if spread is None else spread.percent()
    return f"{spread.mean:.4g} ({NONE if spread.deviation is None else f'{spread.deviation:.2g}'})"


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
    digits = 0 if spread.mean >= 10 else 2
    return f"{spread.mean:,.{digits}f} ({NONE if spread.deviation is None else f'{spread.deviation:,.{digits}f}'})"
