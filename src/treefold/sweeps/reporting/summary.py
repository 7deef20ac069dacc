"""Runs that differ in nothing but the seed are one configuration; its scores are a mean and a deviation."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np

from treefold.sweeps.reporting.paper_tables import KINDS, PAPER_TABLES, PaperTable
from treefold.sweeps.reporting.records import Data
from treefold.sweeps.results import RunResult

_NO_MATTER: Final = ("seed", "threads", "checkpoint_minutes", "tensorboard")  # settings that leave a model as it is


@final
@dataclass(frozen=True)
class Spread:
    r"""The mean of some numbers, their standard deviation in sample form (none of one number), and how many they are.

    .. math:: s^2 = \frac{1}{n - 1} \sum_i (x_i - \bar x)^2

    >>> Spread.of([1.0, 2.0, 3.0])
    Spread(mean=2.0, deviation=1.0, count=3)
    """

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """Summarise what is known; nothing where nothing is."""
        known = np.array([value for value in values if value is not None and math.isfinite(value)], dtype=np.float64)
        if not len(known):
            return None
        return cls(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None, len(known))

    def percent(self) -> str:
        """Write mean and deviation in %, as the paper does.

        >>> Spread(0.94567, 0.007, 3).percent(), Spread(0.94567, None, 1).percent()
        ('94.57 (0.70)', '94.57 (–)')
        """
        return f"{100 * self.mean:.2f} ({'–' if self.deviation is None else f'{100 * self.deviation:.2f}'})"


@final
@dataclass(frozen=True)
class Configuration:
    """A model with its settings on a data set, and its runs, one a seed."""

    runs: tuple[RunResult, ...]

    @property
    def first(self) -> RunResult:
        """The first run: what it shares with the others is read off it."""
        return self.runs[0]

    @property
    def kind(self) -> str:
        """The name of the grid's entry."""
        return self.first.kind

    @property
    def grid(self) -> str:
        """The name of the grid."""
        return self.first.grid

    @property
    def data(self) -> Data:
        """The fingerprint of the data set."""
        return Data.of(self.first)

    @property
    def state_size(self) -> int:
        """The size c of a state."""
        return self.first.settings.model.state_size

    @property
    def rank(self) -> int | None:
        """The rank r, of forms that have one."""
        return self.first.settings.model.rank

    @property
    def validation(self) -> Spread | None:
        """The score on validation."""
        return Spread.of(run.validation for run in self.runs)

    @property
    def test(self) -> Spread | None:
        """The score on the test set."""
        return Spread.of(run.test for run in self.runs)

    @property
    def seconds(self) -> Spread | None:
        """The processor's time of a run."""
        return Spread.of(run.busy_seconds for run in self.runs)

    @property
    def stopped(self) -> int:
        """How many runs ended because the grid's budget did."""
        return sum(run.stopped is not None for run in self.runs)

    @property
    def paper_table(self) -> PaperTable | None:
        """The table of the paper in which it has a place: that of its grid, if kind, form and sizes are the paper's."""
        table = PAPER_TABLES.get(self.grid.casefold())
        model = self.first.settings.model
        if table is None or table.published(self.kind, self.state_size) is None:
            return None
        plain = model.cell == "lstm" and model.direction == "up" and not model.shared
        if not plain or model.aggregator != KINDS[self.kind]:
            return None
        return table if self.kind != "Hosvd" or self.rank in table.ranks[self.state_size] else None

    @property
    def recipe(self) -> str:
        """The settings apart from those that the paper's tables vary: what must be the same for a fair comparison."""
        varied = ("aggregator", "state_size", "rank")
        return json.dumps({name: value for name, value in _flat(self.first).items() if name not in varied})

    def sizes(self) -> str:
        """Write the sizes, ``c = 20, r = 3``."""
        return f"c = {self.state_size}" + ("" if self.rank is None else f", r = {self.rank}")


def configurations_of(results: Sequence[RunResult]) -> list[Configuration]:
    """Put runs that differ in nothing but the seed together; of two runs with one seed the first counts.

    Grids and kinds of the paper come first, then others by name; smaller models before larger ones.
    """
    groups: dict[str, dict[int, RunResult]] = {}
    for result in results:
        groups.setdefault(_identity(result), {}).setdefault(result.seed, result)
    found = [Configuration(tuple(runs[seed] for seed in sorted(runs))) for runs in groups.values()]
    return sorted(
        found, key=lambda each: (_place(each.grid.casefold(), PAPER_TABLES), kind_order(each.kind), _size(each))
    )


def kind_order(kind: str) -> tuple[int, str]:
    """Return a key that sorts kinds: the paper's in its order, then others by name.

    >>> sorted(["Tensor train", "Hosvd", "Canonical", "Full"], key=kind_order)
    ['Full', 'Hosvd', 'Canonical', 'Tensor train']
    """
    return _place(kind, KINDS)


def _place(name: str, known: Iterable[str]) -> tuple[int, str]:
    order = list(known)
    return (order.index(name), "") if name in order else (len(order), name)


def _size(configuration: Configuration) -> tuple[int, int]:
    return configuration.state_size, configuration.rank or 0


def _identity(result: RunResult) -> str:
    return json.dumps([result.grid, result.kind, _flat(result), Data.of(result)], sort_keys=True)


def _flat(result: RunResult) -> dict[str, Any]:
    """Return the settings that make a difference, by name."""
    values = result.settings.model_dump(mode="json")
    flat = {"task": values["task"], **values["training"], **values["model"]}
    return {name: value for name, value in flat.items() if name not in _NO_MATTER}


def best(configurations: Iterable[Configuration]) -> Configuration | None:
    """Return the configuration with the best mean on validation; the first of equals, none where nothing is known."""
    known = [each for each in configurations if each.validation is not None]
    return max(known, key=lambda each: each.validation.mean if each.validation else 0.0, default=None)


def difference(configuration: Configuration, others: Iterable[Configuration]) -> str:
    """Write the settings in which a configuration differs from others of its name and sizes; nothing without any."""
    name = (configuration.grid, configuration.kind, configuration.state_size, configuration.rank)
    same = [each for each in others if (each.grid, each.kind, each.state_size, each.rank) == name]
    own = _flat(configuration.first)
    rest = [_flat(each.first) for each in same]
    return ", ".join(
        f"{setting} = {_written(own[setting])}"
        for setting in sorted(own)
        if any(each[setting] != own[setting] for each in rest)
    )


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
