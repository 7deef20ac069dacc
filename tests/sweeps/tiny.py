"""A tiny grid and its data for the tests of sweeps, and its results without a sweep."""

import atexit
import functools
import json
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, final

from treefold.data.dataset import Dataset
from treefold.data.generators import make_listops
from treefold.data.generators.listops import ListOpsSettings
from treefold.sweeps.grid import Grid
from treefold.sweeps.plan import Run, plan
from treefold.sweeps.run import Event, Failed, Finished, Limits, Started, Unstarted, execute

_PLACE = tempfile.TemporaryDirectory()
atexit.register(_PLACE.cleanup)

GRID = Grid.of(
    {
        "name": "tiny",
        "seeds": [0, 1],
        "training": {"epochs": 3, "batch_size": 20, "checkpoint_minutes": 0.0001},
        "models": [
            {"kind": "Sum", "aggregator": "sum", "state_size": 3},
            {"kind": "Hosvd", "aggregator": "tucker", "state_size": 3, "rank": 2},
        ],
    }
)


@functools.cache
def data_folder() -> Path:
    folder = Path(_PLACE.name) / "data"
    make_listops(240, settings=ListOpsSettings(max_nodes=40)).save(folder)
    return folder


@functools.cache
def data() -> Dataset:
    return Dataset.open(data_folder())


@functools.cache
def runs() -> list[Run]:
    return plan(GRID, data(), "tiny")


@functools.cache
def expected(number: int) -> dict[str, Any]:
    """The comparable part of the result of a run, trained in this process without interruption."""
    run = runs()[number]
    result = execute(run, data(), Path(_PLACE.name) / run.key, Limits(), lambda event: None)
    assert result is not None
    return comparable(result)


@final
class Here:
    """An engine that trains runs in this process, one after the other; those with a number in ``failing`` fail."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.failing, self.asked = failing, list[str]()

    def events(self, runs: Sequence[Run], data: Path, folder: Path, limits: Limits) -> Generator[Event, None, None]:
        examples = Dataset.open(data)
        for number, run in enumerate(runs):
            self.asked.append(run.key)
            yield Started(run)
            if number in self.failing:
                yield Failed(run, "as it should")
                continue
            result = execute(run, examples, folder / run.key, limits, lambda event: None)
            yield Unstarted(run) if result is None else Finished(run, result)


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """Leave out times, which differ from one training to the next."""
    kept = {name: value for name, value in result.items() if name not in ("seconds", "processor_seconds")}
    found: dict[str, Any] = json.loads(json.dumps(kept))
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    return sorted(
        (comparable(json.loads(line)) for line in path.read_text().splitlines()), key=lambda line: line["key"]
    )
