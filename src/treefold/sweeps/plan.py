"""Turn a grid and its data into runs: resolve settings, build each model once to check it, compute keys and costs."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
from torch import nn

from treefold.data.dataset import Dataset
from treefold.data.generators import make_listops, make_lrt
from treefold.errors import ConfigurationError, TreefoldError
from treefold.nn.aggregators import Aggregator
from treefold.nn.cells import PerLabel
from treefold.nn.model import TreeModel
from treefold.nn.randomness import seeded
from treefold.sweeps.grid import DataSource, Grid, title_of
from treefold.sweeps.results import RunResult, key_of
from treefold.training.build import build_model
from treefold.training.examples import Examples
from treefold.training.recipe import choose
from treefold.training.run import training_facts
from treefold.training.settings import RunSettings, TrainingSettings
from treefold.training.task import default_task, task_of

# Assumed rates of one thread, for estimates before any run has finished.
MULTIPLY_ADDS_A_SECOND: Final = 1e10
_SECONDS_A_NODE: Final = 2e-6
_SECONDS_A_STEP: Final = 1e-3
_SECONDS_A_STEP_AND_PARAMETER: Final = 5e-9
_FORWARD_AND_BACKWARD: Final = 3


class EpochSize(NamedTuple):
    """Numbers of nodes with children, of leaves and of examples in one epoch."""

    inner: int
    leaves: int
    examples: int


@final
@dataclass(frozen=True)
class Run:
    """A run of a grid: one configuration with one seed on one data set."""

    key: str
    grid: str
    kind: str
    name: str
    seed: int
    settings: RunSettings
    data: dict[str, int]
    aggregation_parameters: int  # of one aggregator
    parameters: int  # of the whole model
    multiply_adds: int  # in one epoch
    seconds_an_epoch: float  # estimated

    @property
    def configuration(self) -> str:
        """Kind and sizes."""
        return title_of(self.kind, self.settings.model)

    @property
    def title(self) -> str:
        """Kind, sizes and seed."""
        return f"{self.configuration} seed {self.seed}"


def open_data(
    source: DataSource, given: Path | None, grid_folder: Path, out: Path, *, keep: bool = True
) -> tuple[Dataset, Path]:
    """Open or generate the data set of a grid; return it with its folder.

    ``given`` takes precedence over the grid. A path in the grid is relative to ``grid_folder``. Generated data are saved
    in ``out / "data"`` unless ``keep`` is false.
    """
    if given is not None:
        return Dataset.open(given), given
    if source.path is not None:
        return Dataset.open(grid_folder / source.path), grid_folder / source.path
    if source.make is None:
        raise ConfigurationError("the grid names no data; give --data DIR, or set `make` or `path` in [data].")
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
    """Return the runs of a grid ordered by seed, then by cost; an impossible configuration is an error."""
    task = grid.task or default_task(data)
    fingerprint = data.fingerprint()
    Examples.of(data, task)  # raises if the task does not fit the data
    facts = training_facts(data)
    found: list[list[Run]] = [[] for _ in grid.seeds]
    names: dict[str, str] = {}
    size = _epoch_size(data)
    for each in grid.configurations(where):
        try:
            given = RunSettings(task=task, recipe=grid.recipe, model=each.model, training=each.training)
            settings, labels, _ = choose(given, facts, size.examples)
            with seeded(0):
                model = build_model(settings.model, labels, task, task_of(task).outputs(data))
        except TreefoldError as problem:
            raise ConfigurationError(f"{each.name}: {problem}") from None
        multiply_adds, seconds = _cost(model, size, settings.training)
        for place, seed in enumerate(grid.seeds):
            training = settings.training.model_copy(update={"seed": seed})
            whole = settings.model_copy(update={"training": training})
            key = key_of(whole, fingerprint)
            if key in names:  # settings resolved from the data may equal those written in another entry
                raise ConfigurationError(
                    f"{each.name}: expected every configuration once, but with these data it equals {names[key]}."
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
                    aggregation_parameters=max(
                        part.parameter_count for part in model.encoder.modules() if isinstance(part, Aggregator)
                    ),
                    parameters=sum(value.numel() for value in model.parameters() if value.requires_grad),
                    multiply_adds=multiply_adds,
                    seconds_an_epoch=seconds,
                )
            )
    return [run for runs in found for run in sorted(runs, key=lambda run: run.seconds_an_epoch)]


def estimated_seconds(run: Run, finished: Iterable[RunResult], runs: Sequence[Run]) -> float:
    """Estimate the duration of a run.

    If other seeds of its configuration have finished, it is their mean time. Otherwise it follows from the multiply-adds,
    scaled by the actual times and epochs of the grid's finished runs. Processor time counts, because runs may have been
    paused.
    """
    by_key = {each.key: each for each in runs}
    same: list[float] = []
    ratios: list[float] = []
    epochs: list[float] = []
    for result in finished:
        other = by_key.get(result.key)
        if other is None or not result.epochs:
            continue
        seconds = min(result.seconds, result.busy_seconds)  # with several threads, processor time exceeds elapsed time
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


def _epoch_size(data: Dataset) -> EpochSize:
    numbers = np.asarray(data.splits.get("train", np.zeros(0, np.int64)))
    forest = data.forest[data.trees_of(numbers)]
    inside = forest.parents >= 0
    rows = (np.repeat(forest.offsets[:-1], forest.sizes) + forest.parents)[inside]
    inner = int(np.count_nonzero(np.bincount(rows, minlength=1)))
    return EpochSize(inner, forest.node_count - inner, len(numbers))


def _cost(model: TreeModel, size: EpochSize, training: TrainingSettings) -> tuple[int, float]:
    """Return the multiply-adds of an epoch and its estimated seconds.

    We assume that each node, leaf or example multiplies every parameter outside the aggregators that it uses once.
    """
    total: float = size.examples * sum(value.numel() for value in model.head.parameters())
    for cell in model.encoder.cells.values():
        parts: list[nn.Module] = list(cell.cells) if isinstance(cell, PerLabel) else [cell, cell]
        *inner, leaf = map(_multiply_adds, parts)
        total += size.inner * sum(inner) / len(inner) + size.leaves * leaf
    count = round(_FORWARD_AND_BACKWARD * total)
    nodes = size.inner + size.leaves
    steps = math.ceil(nodes / training.batch_nodes if training.batch_nodes else size.examples / training.batch_size)
    parameters = sum(value.numel() for value in model.parameters())
    seconds = (
        count / MULTIPLY_ADDS_A_SECOND / (training.threads or 1)
        + nodes * _SECONDS_A_NODE
        + steps * (_SECONDS_A_STEP + parameters * _SECONDS_A_STEP_AND_PARAMETER)
    )
    return count, seconds


def _multiply_adds(cell: nn.Module) -> int:
    aggregators = [part for part in cell.modules() if isinstance(part, Aggregator)]
    rest = sum(value.numel() for value in cell.parameters()) - sum(part.parameter_count for part in aggregators)
    return sum(part.multiply_adds() for part in aggregators) + rest
