"""From a grid and its data to runs: settings resolved, models built once to see that they can be, keys and costs."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
import torch
from torch import nn

from treefold.data.dataset import Dataset
from treefold.data.generators import make_listops, make_lrt
from treefold.errors import ConfigurationError, TreefoldError
from treefold.nn.aggregators import Aggregator
from treefold.nn.cells import PerLabel
from treefold.nn.models import TreeModel
from treefold.paper import counted_parameters
from treefold.sweeps.grid import DataSource, Grid, title_of
from treefold.sweeps.results import RunResult, key_of
from treefold.training.build import build_model, facts_of, resolve
from treefold.training.examples import Examples
from treefold.training.run import trees_seen
from treefold.training.settings import ModelSettings, RunSettings, Task, TrainingSettings

# Stated rates of one thread, for estimates before anything ran; finished runs correct them.
MULTIPLY_ADDS_A_SECOND: Final = 1e10
_SECONDS_A_NODE: Final = 2e-6
_SECONDS_A_STEP: Final = 1e-3
_SECONDS_A_STEP_AND_PARAMETER: Final = 5e-9
_FORWARD_AND_BACKWARD: Final = 3


class Nodes(NamedTuple):
    """What an epoch goes through: nodes with children, leaves, and examples."""

    inner: int
    leaves: int
    examples: int


@final
@dataclass(frozen=True)
class Run:
    """A run that a grid asks for: one configuration with one seed, on one data set."""

    key: str
    grid: str
    kind: str
    name: str
    seed: int
    settings: RunSettings
    data: dict[str, int]
    aggregation_parameters: int
    counted: str
    parameters: int
    multiply_adds: int  # of an epoch
    seconds_an_epoch: float  # estimated

    @property
    def configuration(self) -> str:
        """The configuration in a few words: kind and sizes."""
        return title_of(self.kind, self.settings.model)

    @property
    def title(self) -> str:
        """The run in a few words: its configuration and seed."""
        return f"{self.configuration} seed {self.seed}"


def open_data(
    source: DataSource, given: Path | None, home: Path, out: Path, *, keep: bool = True
) -> tuple[Dataset, Path]:
    """Open or make the data set of a grid; return it with its folder.

    ``given`` replaces what the grid says. A path in the grid starts at ``home``, the folder of the grid. What is made is
    kept in ``out / "data"``; with ``keep=False`` nothing is written.
    """
    if given is not None:
        return Dataset.open(given), given
    if source.path is not None:
        return Dataset.open(home / source.path), home / source.path
    if source.make is None:
        raise ConfigurationError("the grid expects data, got none; give --data DIR, or `make` or `path` in [data].")
    folder = out / "data"
    count = source.count or {"listops": 100_000, "lrt": 500_000}[source.make]
    if folder.exists():
        data = Dataset.open(folder)
        made = (data.made.get("task"), data.made.get("size", data.made.get("draws")), data.made.get("seed"))
        if made != (source.make, count, source.seed):
            raise ConfigurationError(
                f"{folder}: expected {source.make} with count = {count} and seed = {source.seed}, as the grid says, got "
                f"{made[0]} with {made[1]} and {made[2]}; sweep into another folder, or give --data."
            )
        return data, folder
    data = (make_listops if source.make == "listops" else make_lrt)(count, source.seed)
    if not keep:
        return data, folder
    data.save(folder)
    return Dataset.open(folder), folder


def plan(grid: Grid, data: Dataset, where: str) -> list[Run]:
    """Return the runs of a grid, the first seed first and the cheapest first; a configuration that cannot be is an error."""
    task: Task = grid.task or ("pair" if data.pairs else "tree")
    fingerprint = data.fingerprint()
    Examples.of(data, task)  # raises where the task does not fit the data
    facts = facts_of(trees_seen(data))
    found: list[list[Run]] = [[] for _ in grid.seeds]
    names: dict[str, str] = {}
    nodes = _nodes(data)
    for each in grid.configurations(where):
        try:
            settings, labels = resolve(each.model, facts)
            with torch.random.fork_rng():
                model = build_model(settings, labels, task, 1 if task == "regression" else len(data.classes))
        except TreefoldError as problem:
            raise ConfigurationError(f"{each.name}: {problem}") from None
        counted, how = _aggregation_parameters(settings, model)
        multiply_adds, seconds = _cost(model, nodes, each.training)
        for place, seed in enumerate(grid.seeds):
            whole = RunSettings(task=task, model=settings, training=each.training.model_copy(update={"seed": seed}))
            key = key_of(whole, fingerprint)
            if key in names:  # what one entry says, the data may give to another
                raise ConfigurationError(
                    f"{each.name}: expected every configuration once, got that of {names[key]} again."
                )
            names[key] = each.name
            found[place].append(
                Run(
                    key=key,
                    grid=grid.name,
                    kind=each.kind,
                    name=each.name,
                    seed=seed,
                    settings=whole,
                    data=fingerprint,
                    aggregation_parameters=counted,
                    counted=how,
                    parameters=sum(value.numel() for value in model.parameters() if value.requires_grad),
                    multiply_adds=multiply_adds,
                    seconds_an_epoch=seconds,
                )
            )
    return [run for runs in found for run in sorted(runs, key=lambda run: run.seconds_an_epoch)]


def estimated_seconds(run: Run, finished: Iterable[RunResult], runs: Sequence[Run]) -> float:
    """Return how long a run will take: from finished runs of its configuration, or else from its multiply-adds.

    Estimates from multiply-adds are scaled by what finished runs of the same grid took against theirs, and expect as many
    epochs as those; without a finished run, all. What counts is the processor's time: runs may have been paused.
    """
    by_key = {each.key: each for each in runs}
    same: list[float] = []
    ratios: list[float] = []
    epochs: list[float] = []
    for result in finished:
        other = by_key.get(result.key)
        if other is None or not result.epochs:
            continue
        seconds = min(
            result.seconds, result.busy_seconds
        )  # several threads spend more of the processor's than of the clock's
        ratios.append(seconds / result.epochs / other.seconds_an_epoch)
        epochs.append(result.epochs)
        if other.name == run.name:
            same.append(seconds)
    if same:
        return statistics.fmean(same)
    most = run.settings.training.epochs
    if not ratios:
        return run.seconds_an_epoch * most
    return statistics.median(ratios) * run.seconds_an_epoch * min(statistics.median(epochs), most)


def _aggregation_parameters(settings: ModelSettings, model: TreeModel) -> tuple[int, str]:
    """Count one aggregation as the paper does where it does, else all parameters of the aggregator of one gate."""
    if settings.aggregator in ("full", "sum", "tucker") and not settings.shared and settings.per_label:
        counted = counted_parameters(
            settings.aggregator, state_size=settings.state_size, arity=settings.arity or 0, rank=settings.rank
        )
        return counted, "paper"
    return max(part.parameter_count for part in model.modules() if isinstance(part, Aggregator)), "all"


def _nodes(data: Dataset) -> Nodes:
    numbers = np.asarray(data.splits.get("train", np.zeros(0, np.int64)))
    forest = data.forest[data.trees_of(numbers)]
    inside = forest.parents >= 0
    rows = (np.repeat(forest.offsets[:-1], forest.sizes) + forest.parents)[inside]
    inner = int(np.count_nonzero(np.bincount(rows, minlength=1)))
    return Nodes(inner, forest.node_count - inner, len(numbers))


def _cost(model: TreeModel, nodes: Nodes, training: TrainingSettings) -> tuple[int, float]:
    """Return the multiply-adds of an epoch, and the seconds that they and the steps are expected to take.

    Every parameter outside the aggregators is taken to be multiplied once for each node, leaf or example that uses it.
    """
    total: float = nodes.examples * sum(value.numel() for value in model.head.parameters())
    for cell in model.encoder.cells.values():
        parts: list[nn.Module] = list(cell.cells) if isinstance(cell, PerLabel) else [cell, cell]
        *inner, leaf = map(_multiply_adds, parts)
        total += nodes.inner * sum(inner) / len(inner) + nodes.leaves * leaf
    count = round(_FORWARD_AND_BACKWARD * total)
    size = nodes.inner + nodes.leaves
    steps = math.ceil(size / training.batch_nodes if training.batch_nodes else nodes.examples / training.batch_size)
    parameters = sum(value.numel() for value in model.parameters())
    seconds = (
        count / MULTIPLY_ADDS_A_SECOND / (training.threads or 1)
        + size * _SECONDS_A_NODE
        + steps * (_SECONDS_A_STEP + parameters * _SECONDS_A_STEP_AND_PARAMETER)
    )
    return count, seconds


def _multiply_adds(cell: nn.Module) -> int:
    aggregators = [part for part in cell.modules() if isinstance(part, Aggregator)]
    rest = sum(value.numel() for value in cell.parameters()) - sum(part.parameter_count for part in aggregators)
    return sum(part.multiply_adds() for part in aggregators) + rest
