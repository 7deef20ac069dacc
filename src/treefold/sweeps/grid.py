"""Grids: a TOML file that says which configurations are to be trained, on which data, with which seeds."""

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
    Seed,
    Settings,
    TaskName,
    TrainingSettings,
    read_toml,
)

_LISTS: Final = {"hidden"}  # settings that are lists themselves: a list of lists varies


class DataSource(Settings):
    """The data of a grid: made (``make``, with ``count`` and ``seed``), or a data set directory (``path``)."""

    make: Literal["listops", "lrt"] | None = None
    path: str | None = None
    count: Count | None = None
    seed: Seed = 0


class Budget(Settings):
    """How long runs may take: a run that exceeds it stops after the epoch, with the best so far."""

    minutes_per_run: Positive | None = None
    total_hours: Positive | None = None


@final
@dataclass(frozen=True)
class Configuration:
    """One choice of settings of an entry; ``name`` says which, for messages."""

    name: str
    kind: str
    model: ModelSettings
    training: TrainingSettings

    @property
    def title(self) -> str:
        """Kind and sizes, as tables show them."""
        return title_of(self.kind, self.model)


def title_of(kind: str, model: ModelSettings) -> str:
    """Say a configuration in a few words.

    >>> title_of("Hosvd", ModelSettings(state_size=20, rank=3))
    'Hosvd c=20 r=3'
    """
    return f"{kind} c={model.state_size}" + (f" r={model.rank}" if model.rank else "")


@final
class Grid(Settings):
    """What a grid file holds; `configurations` expands it.

    >>> entry = {"kind": "Sum", "aggregator": "sum", "state_size": [3, 5], "l2": [0.0, 0.01]}
    >>> grid = Grid.of({"name": "small", "seeds": [0], "models": [entry]})
    >>> [(each.model.state_size, each.training.l2) for each in grid.configurations()]
    [(3, 0.0), (3, 0.01), (5, 0.0), (5, 0.01)]
    """

    name: str = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    task: TaskName | None = None
    data: DataSource = DataSource()
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    budget: Budget = Budget()
    models: tuple[dict[str, Any], ...] = Field(min_length=1)

    def configurations(self, where: str = "grid") -> list[Configuration]:
        """Expand the entries, each to the product of its lists, and check every one."""
        found = [
            configuration
            for number, entry in enumerate(self.models, 1)
            for configuration in self._entry(entry, f"{where}: models entry {number}")
        ]
        names: dict[tuple[ModelSettings, TrainingSettings], str] = {}
        for each in found:
            other = names.setdefault((each.model, each.training), each.name)
            if other != each.name or found.count(each) > 1:
                raise ConfigurationError(f"{each.name}: expected every configuration once, got that of {other} again.")
        return found

    def _entry(self, entry: Mapping[str, Any], where: str) -> Iterator[Configuration]:
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
            if value == [] and name not in _LISTS:
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
    """Read a grid file and check all that can be checked without its data."""
    grid = Grid.of(read_toml(path), str(path))
    if "seed" in grid.training:
        raise ConfigurationError(f"{path}: [training]: expected no seed, got one; list seeds at the top of the grid.")
    if len(set(grid.seeds)) < len(grid.seeds):
        raise ConfigurationError(f"{path}: seeds: expected every seed once, got {list(grid.seeds)}.")
    ModelSettings.of(grid.model, f"{path}: [model]")
    TrainingSettings.of(grid.training, f"{path}: [training]")
    source = grid.data
    if source.make and source.path:
        raise ConfigurationError(f"{path}: [data]: expected `make` or `path`, got both; keep one of them.")
    if not source.make and source.model_fields_set & {"count", "seed"}:
        raise ConfigurationError(f'{path}: [data]: count and seed expect make = "listops" or "lrt", got none.')
    grid.configurations(str(path))
    return grid


def _alternatives(name: str, value: Any) -> list[Any]:
    if name in _LISTS:
        return value if isinstance(value, list) and value and all(isinstance(each, list) for each in value) else [value]
    return value if isinstance(value, list) else [value]
