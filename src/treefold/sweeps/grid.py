"""Grids: TOML files that list the configurations to train, their data and their seeds."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

from pydantic import Field

from treefold.errors import ConfigurationError, nearest
from treefold.training.plugins import registered
from treefold.training.settings import (
    Count,
    ModelSettings,
    Positive,
    RecipeName,
    Seed,
    Settings,
    TaskName,
    TrainingSettings,
    read_toml,
)

_LIST_SETTINGS: Final = {
    "hidden": 1,
    "curriculum": 2,
}  # their value is a list, of lists if 2: one level more varies them


class DataSource(Settings):
    """The data of a grid: generated (``make``, with ``count`` and ``seed``), or a data set directory (``path``)."""

    make: Literal["listops", "lrt"] | None = None
    path: str | None = None
    count: Count | None = None
    seed: Seed = 0


class Budget(Settings):
    """Time limits. A run that exceeds its limit stops at the end of the epoch and keeps its best weights."""

    minutes_per_run: Positive | None = None
    total_hours: Positive | None = None


@final
@dataclass(frozen=True)
class Configuration:
    """Settings of one model and its training; ``name`` identifies its grid entry in messages."""

    name: str
    kind: str
    model: ModelSettings
    training: TrainingSettings

    @property
    def title(self) -> str:
        """Kind and sizes, as shown in tables."""
        return title_of(self.kind, self.model)


def title_of(kind: str, model: ModelSettings) -> str:
    """Return a short title of a configuration.

    >>> title_of("Hosvd", ModelSettings(state_size=20, rank=3))
    'Hosvd c=20 r=3'
    """
    return f"{kind} c={model.state_size}" + (f" r={model.rank}" if model.rank else "")


@final
class Grid(Settings):
    """The content of a grid file; `configurations` expands it.

    >>> entry = {"kind": "Sum", "aggregator": "sum", "state_size": [3, 5], "l2": [0.0, 0.01]}
    >>> grid = Grid.of({"name": "small", "seeds": [0], "models": [entry]})
    >>> [(each.model.state_size, each.training.l2) for each in grid.configurations()]
    [(3, 0.0), (3, 0.01), (5, 0.0), (5, 0.01)]
    """

    name: str = Field(min_length=1)
    description: str = ""
    seeds: tuple[Seed, ...] = Field(min_length=1)
    task: TaskName | None = None
    recipe: RecipeName = "auto"
    data: DataSource = DataSource()
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    budget: Budget = Budget()
    models: tuple[dict[str, Any], ...] = Field(min_length=1)

    def configurations(self, where: str = "grid") -> list[Configuration]:
        """Expand each entry to the product of its lists, and check every configuration."""
        found = [
            configuration
            for number, entry in enumerate(self.models, 1)
            for configuration in self._expand(entry, f"{where}: models entry {number}")
        ]
        names: dict[tuple[ModelSettings, TrainingSettings], str] = {}
        for each in found:
            other = names.setdefault((each.model, each.training), each.name)
            if other != each.name or found.count(each) > 1:
                raise ConfigurationError(f"{each.name}: expected every configuration once, but it equals {other}.")
        return found

    def _expand(self, entry: Mapping[str, Any], where: str) -> Iterator[Configuration]:
        kind = entry.get("kind")
        if not isinstance(kind, str) or not kind:
            raise ConfigurationError(f'{where}: expected a name, kind = "…", got {kind!r}.')
        where = f"{where} ({kind!r}"
        known = [*ModelSettings.model_fields, *TrainingSettings.model_fields]
        settings = {name: value for name, value in entry.items() if name != "kind"}
        for name, value in settings.items():
            if name not in known:
                raise ConfigurationError(
                    f"{where}): expected a known setting, got {name!r}{nearest(name, [*known, 'kind'])}."
                )
            if name == "seed":
                raise ConfigurationError(
                    f"{where}): expected no seed, got {value!r}; list seeds at the top of the grid."
                )
            if value == [] and name not in _LIST_SETTINGS:
                raise ConfigurationError(
                    f"{where}): {name}: expected at least one value, got an empty list; leave it out."
                )
        choices = [_alternatives(name, value) for name, value in settings.items()]
        varied = [name for name, options in zip(settings, choices, strict=True) if len(options) > 1]
        for values in itertools.product(*choices):
            chosen = dict(zip(settings, values, strict=True))
            name = ", ".join([where, *(f"{key} = {chosen[key]}" for key in varied)]) + ")"
            own = {key: value for key, value in chosen.items() if key in ModelSettings.model_fields}
            rest = {key: value for key, value in chosen.items() if key not in own}
            model = ModelSettings.of({**self.model, **own}, name)
            training = TrainingSettings.of({"threads": 1, **self.training, **rest}, name)
            if model.aggregator and model.rank is None and registered("aggregator", model.aggregator).has_rank:
                raise ConfigurationError(f"{name}: expected a rank for aggregator = {model.aggregator!r}, got none.")
            yield Configuration(name, kind, model, training)


def read_grid(path: Path) -> Grid:
    """Read a grid file and check everything that needs no data."""
    grid = Grid.of(read_toml(path), str(path))
    if "seed" in grid.training:
        raise ConfigurationError(f"{path}: [training]: expected no seed; list seeds at the top of the grid.")
    if len(set(grid.seeds)) < len(grid.seeds):
        raise ConfigurationError(f"{path}: seeds: expected every seed once, got {list(grid.seeds)}.")
    ModelSettings.of(grid.model, f"{path}: [model]")
    TrainingSettings.of(grid.training, f"{path}: [training]")
    source = grid.data
    if source.make and source.path:
        raise ConfigurationError(f"{path}: [data]: expected `make` or `path`, got both; keep one of them.")
    if not source.make and source.model_fields_set & {"count", "seed"}:
        raise ConfigurationError(f'{path}: [data]: count and seed need make = "listops" or "lrt".')
    if grid.recipe.endswith(".toml"):  # relative to the grid, as its data
        grid = grid.model_copy(update={"recipe": str(path.parent / grid.recipe)})
    grid.configurations(str(path))
    return grid


def _alternatives(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        return [value]
    depth = _LIST_SETTINGS.get(name, 0)
    return value if all(each == "none" or _depth(each) >= depth for each in value) else [value]


def _depth(value: Any) -> int:
    """Return how deep the lists of a value are nested: that of its first entries.

    >>> _depth(3), _depth([[3, 0.5], ["none", 0.5]])
    (0, 2)
    """
    depth = 0
    while isinstance(value, list):
        value, depth = value[0] if value else None, depth + 1
    return depth
