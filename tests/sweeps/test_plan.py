import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps import tiny
from treefold.data.dataset import Dataset
from treefold.data.generators import make_listops
from treefold.errors import ConfigurationError
from treefold.sweeps.grid import DataSource, Grid
from treefold.sweeps.plan import estimated_seconds, open_data, plan
from treefold.sweeps.results import RunResult


def test_all_parameters_are_those_of_the_cells_the_leaves_and_the_head() -> None:
    run = next(run for run in tiny.runs() if run.kind == "Sum")
    c, length, operators, digits = 3, 5, 4, 10
    gates = 3 * (length * c * c + c) + length * (c * c + c)
    head = (c + 1) * 20 + 21 * 20 + 21 * 10
    assert run.parameters == operators * gates + (digits + 1) * 3 * c + head
    assert run.aggregation_parameters == length * c * c + c  # of one aggregator, with its bias


def test_keys_are_of_content_and_not_of_names() -> None:
    values = tiny.GRID.model_dump()
    renamed = plan(Grid.of({**values, "name": "other"}), tiny.data(), "elsewhere")
    kinds = [{**entry, "kind": f"my {entry['kind']}"} for entry in values["models"]]
    other_kinds = plan(Grid.of({**values, "models": kinds}), tiny.data(), "x")
    keys = [run.key for run in tiny.runs()]
    assert [run.key for run in renamed] == [run.key for run in other_kinds] == keys and len(set(keys)) == 4
    longer = plan(Grid.of({**values, "training": {**values["training"], "epochs": 4}}), tiny.data(), "x")
    other_data = plan(tiny.GRID, make_listops(241), "x")
    assert not {run.key for run in [*longer, *other_data]} & set(keys)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"aggregator": "tucker", "state_size": 4, "rank": [2, 99]},
            r"\('K', rank = 99\): Tucker expects a rank of at most",
        ),
        ({"aggregator": "sum", "rank": 3}, r"\('K'\): Sum expects no rank, got rank=3"),
        (
            {"aggregator": "full", "state_size": [3, 500]},
            r"\('K', state_size = 500\): Full expects a tensor of at most",
        ),
        ({"aggregator": "sum", "labels": "numeric"}, r"\('K'\): labels='numeric' expects vectors"),
    ],
)
def test_a_configuration_that_cannot_be_is_named_with_its_entry_and_value(entry: dict[str, Any], message: str) -> None:
    models = [{"kind": "fine", "aggregator": "sum"}, {"kind": "K", **entry}]
    with pytest.raises(ConfigurationError, match=r"^g.toml: models entry 2 " + message):
        plan(Grid.of({"name": "g", "seeds": [0], "models": models}), tiny.data(), "g.toml")


def test_entries_that_come_to_the_same_with_the_data_are_an_error() -> None:
    entries = [{"kind": "Sum", "aggregator": "sum"}, {"kind": "again", "aggregator": "sum", "arity": 5}]
    with pytest.raises(
        ConfigurationError,
        match=r"entry 2 \('again'\): expected every configuration once, but with these data it equals",
    ):
        plan(Grid.of({"name": "g", "seeds": [0], "models": entries}), tiny.data(), "g.toml")


@pytest.mark.parametrize("task", ["pair", "node"])
def test_a_task_that_does_not_fit_the_data_is_an_error_before_anything_runs(task: str) -> None:
    data = dataclasses.replace(tiny.data(), node_targets=None)
    with pytest.raises(ConfigurationError, match=f"task '{task}' expects a data set"):
        plan(Grid.of({**tiny.GRID.model_dump(), "task": task}), data, "g.toml")


def test_data_are_made_once_and_others_are_not_taken_for_them(tmp_path: Path) -> None:
    source = DataSource(make="listops", count=50, seed=3)
    unsaved, _ = open_data(source, None, tmp_path, tmp_path / "out", keep=False)
    assert not (tmp_path / "out").exists() and len(unsaved) == 50
    data, folder = open_data(source, None, tmp_path, tmp_path / "out")
    assert folder == tmp_path / "out" / "data" and list(data.forest) == list(unsaved.forest)
    before = (folder / "trees.forest").stat().st_mtime_ns
    open_data(source, None, tmp_path, tmp_path / "out")
    assert (folder / "trees.forest").stat().st_mtime_ns == before
    with pytest.raises(
        ConfigurationError, match="expected listops with count = 50 and seed = 4, as the grid says, got listops"
    ):
        open_data(DataSource(make="listops", count=50, seed=4), None, tmp_path, tmp_path / "out")
    pairs, _ = open_data(DataSource(make="lrt", count=60), None, tmp_path, tmp_path / "pairs")
    assert pairs.pairs and pairs.made["draws"] == 60


def test_data_come_from_a_path_beside_the_grid_or_from_what_is_given(tmp_path: Path) -> None:
    Dataset.open(tiny.data_folder()).save(tmp_path / "own")
    data, folder = open_data(DataSource(path="own"), None, tmp_path, tmp_path / "out")
    assert folder == tmp_path / "own" and len(data) == 240
    _, folder = open_data(DataSource(path="own"), tiny.data_folder(), tmp_path, tmp_path / "out")
    assert folder == tiny.data_folder()
    with pytest.raises(ConfigurationError, match="the grid names no data; give --data DIR"):
        open_data(DataSource(), None, tmp_path, tmp_path / "out")


def test_time_is_estimated_from_costs_and_better_from_finished_runs() -> None:
    runs = tiny.runs()
    first, second = runs[0], runs[1]
    twin = next(run for run in runs if run.name == first.name and run.seed == 1)
    assert estimated_seconds(second, [], runs) == pytest.approx(3 * second.seconds_an_epoch)
    slow = {**tiny.expected(0), "epochs": 2, "seconds": 2 * 5 * first.seconds_an_epoch}
    finished = [RunResult.model_validate(json.loads(json.dumps(slow)))]
    assert estimated_seconds(twin, finished, runs) == pytest.approx(slow["seconds"])
    assert estimated_seconds(second, finished, runs) == pytest.approx(
        5 * 2 * second.seconds_an_epoch
    )  # 2 epochs, as it did
    paused = {**slow, "seconds": 9000.0, "processor_seconds": slow["seconds"]}
    assert estimated_seconds(twin, [RunResult.model_validate(paused)], runs) == pytest.approx(slow["seconds"])
