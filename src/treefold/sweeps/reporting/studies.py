"""What can be shown in one figure: configurations on the same task and data."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from treefold.sweeps.reporting.paper_tables import KINDS, PAPER_TABLES, PaperTable
from treefold.sweeps.reporting.plotting import Look, look
from treefold.sweeps.reporting.records import Data
from treefold.sweeps.reporting.summary import Configuration, best, kind_order


@final
@dataclass(frozen=True)
class Study:
    """Configurations that can be compared with one another, and the paper's table where they are of its task."""

    name: str
    configurations: tuple[Configuration, ...]
    paper: PaperTable | None
    slug: str  # for files and anchors, unlike those of all other studies

    @property
    def title(self) -> str:
        """The name for readers."""
        return self.paper.name if self.paper else self.name

    @property
    def score(self) -> str:
        """What is measured."""
        return "R²" if self.configurations[0].first.settings.task == "regression" else "accuracy"

    @property
    def kinds(self) -> list[str]:
        """The kinds, the paper's first."""
        return sorted({each.kind for each in self.configurations}, key=kind_order)

    def of(self, kind: str) -> list[Configuration]:
        """Return the configurations of a kind."""
        return [each for each in self.configurations if each.kind == kind]

    def best_of_each(self) -> dict[str, Configuration]:
        """Return for each kind the configuration that is best on validation."""
        found = {kind: best(self.of(kind)) for kind in self.kinds}
        return {kind: each for kind, each in found.items() if each is not None}

    def look(self, kind: str) -> Look:
        """Return how a kind is drawn; the paper's kinds look the same in all studies."""
        others = [each for each in self.kinds if each not in KINDS]
        return look(list(KINDS).index(kind) if kind in KINDS else len(KINDS) + others.index(kind))


def studies_of(configurations: Sequence[Configuration]) -> list[Study]:
    """Put together what can be compared: a grid, or grids of the paper with others on the very same data.

    A grid of another name joins the paper's LRT or ListOps where its data are those of that grid.
    """
    homes: dict[Data, str] = {}
    for each in configurations:
        if each.grid.casefold() in PAPER_TABLES:
            homes.setdefault(each.data, each.grid.casefold())
    found: dict[str, list[Configuration]] = {}
    for each in configurations:
        own = each.grid.casefold() if each.grid.casefold() in PAPER_TABLES else each.grid
        found.setdefault(homes.get(each.data, own), []).append(each)
    slugs: list[str] = []
    for name in found:
        numbered = itertools.chain([slug(name)], (f"{slug(name)}-{number}" for number in itertools.count(2)))
        slugs.append(next(each for each in numbered if each not in slugs))
    return [
        Study(name, tuple(members), PAPER_TABLES.get(name), own)
        for (name, members), own in zip(found.items(), slugs, strict=True)
    ]


def pooled(configuration: Configuration, group: str) -> dict[str, tuple[int, int]]:
    """Add up right answers and answers over the seeds, for each bin of a group; bins without answers are left out."""
    totals: dict[str, tuple[int, int]] = {}
    for run in configuration.runs:
        for name, (right, count) in run.groups.get(group, {}).items():
            before = totals.get(name, (0, 0))
            totals[name] = (before[0] + right, before[1] + count)
    return {name: total for name, total in totals.items() if total[1]}


def mean_curve(curves: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Return the mean of curves as far as all of them go.

    >>> mean_curve([[0.5, 0.7, 0.9], [0.7, 0.9]]).round(2).tolist()
    [0.6, 0.8]
    """
    shortest = min(map(len, curves))
    stacked = np.array([curve[:shortest] for curve in curves], dtype=np.float64)  # (seeds, epochs)
    mean: npt.NDArray[np.float64] = stacked.mean(0)
    return mean


def slug(name: str) -> str:
    """Return a name for files and anchors.

    >>> slug("My grid/2"), slug("…")
    ('my-grid-2', 'grid')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-") or "grid"
