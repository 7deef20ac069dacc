import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sweeps import tiny
from treefold.analysis.evaluation import evaluate
from treefold.data.generators import make_lrt
from treefold.errors import FileError, ModelFileError
from treefold.sweeps.grid import Grid
from treefold.sweeps.planning import plan
from treefold.sweeps.running import Limits, execute, only_sweep
from treefold.training import train
from treefold.training.saving import load_model, read_tensors, write_tensors


def silent(facts: dict[str, Any]) -> None:
    pass


def test_a_result_says_what_training_and_evaluation_say(tmp_path: Path) -> None:
    run, data = tiny.runs()[1], tiny.data()
    result = execute(run, data, tmp_path / "swept", Limits(), silent)
    assert result is not None
    _, trained = train(data, tmp_path / "trained", run.settings)
    judged = evaluate(load_model(tmp_path / "trained"), data, "test")
    assert (result["epochs"], result["best_epoch"], result["validation"], result["test"]) == (
        trained.epochs,
        trained.best_epoch,
        trained.best_score,
        judged.score,
    )
    assert result["curves"]["validation_score"] == [round(line["validation_score"], 5) for line in trained.history]
    assert result["curves"]["loss"] == [round(line["loss"], 5) for line in trained.history]
    own = [json.loads(line) for line in (tmp_path / "swept" / "metrics.jsonl").read_text().splitlines()]
    assert result["seconds"] == pytest.approx(sum(line["seconds"] for line in own), abs=1e-3)
    assert (tmp_path / "swept" / "model.safetensors").read_bytes() == (
        tmp_path / "trained" / "model.safetensors"
    ).read_bytes()
    assert result["settings"] == json.loads(load_model(tmp_path / "trained").settings.model_dump_json())
    for bins in result["groups"].values():
        right, count = np.array(list(bins.values())).sum(0)
        assert count == len(data.splits["test"]) and right == round(judged.score * count)


def test_depths_and_sizes_are_those_of_the_test_trees() -> None:
    groups, data = tiny.expected(0)["groups"], tiny.data()
    trees = [data.forest[int(number)] for number in data.splits["test"]]
    for first, last in ((1, 2), (3, 4)):
        expected = sum(first <= tree.depth <= last for tree in trees)
        assert groups["by_depth"].get(f"{first}-{last}", [0, 0])[1] == expected
    assert groups["by_size"]["4-7"][1] == sum(4 <= tree.size <= 7 for tree in trees) > 0
    firsts = [int(name.split("-")[0]) for name in groups["by_depth"]]
    assert firsts == sorted(firsts)


def test_pairs_are_grouped_by_the_operators_of_the_side_that_has_more(tmp_path: Path) -> None:
    data = make_lrt(400)
    training = {"epochs": 1, "batch_size": 50}
    models = [{"kind": "Sum", "aggregator": "sum", "state_size": 2, "comparison_size": 3}]
    (run,) = plan(Grid.of({"name": "x", "seeds": [0], "training": training, "models": models}), data, "x")
    result = execute(run, data, tmp_path / "run", Limits(), silent)
    assert result is not None and set(result["groups"]) == {"by_operators"}
    found = {name: counts[1] for name, counts in result["groups"]["by_operators"].items()}
    expected: dict[str, int] = {}
    for number in data.splits["test"].tolist():
        operators = max(
            sum(bool(node.children) for node in data.forest[tree].preorder()) for tree in (2 * number, 2 * number + 1)
        )
        name = "12+" if operators >= 12 else str(operators)
        expected[name] = expected.get(name, 0) + 1
    assert found == expected and list(found) == sorted(found, key=lambda name: int(name.rstrip("+")))


def test_a_run_beyond_its_minutes_stops_after_the_epoch_and_a_larger_budget_goes_on(tmp_path: Path) -> None:
    run, data, folder = tiny.runs()[0], tiny.data(), tmp_path / "run"
    told: list[dict[str, Any]] = []
    stopped = execute(run, data, folder, Limits(minutes=1e-9), told.append)
    assert stopped is not None and stopped["stopped"] == {"limit": "minutes_per_run", "value": 1e-9}
    assert stopped["epochs"] == stopped["best_epoch"] == 1 and [facts["epoch"] for facts in told] == [1]
    assert stopped["test"] == evaluate(load_model(folder), data, "test").score
    again = execute(run, data, folder, Limits(minutes=1e-9), silent)
    assert again is not None and tiny.comparable(again) == tiny.comparable(stopped)
    whole = execute(run, data, folder, Limits(minutes=1e9), silent)
    assert whole is not None and tiny.comparable(whole) == tiny.expected(0)


def test_weights_that_a_crash_kept_from_the_disk_are_those_of_the_result(tmp_path: Path) -> None:
    run, data, folder = tiny.runs()[0], tiny.data(), tmp_path / "run"
    file = folder / "model.safetensors"
    stopped = execute(run, data, folder, Limits(minutes=1e-9), silent)
    best, zeros = file.read_bytes(), {name: 0 * tensor for name, tensor in read_tensors(file).items()}
    write_tensors(file, zeros)
    again = execute(run, data, folder, Limits(minutes=1e-9), silent)
    assert file.read_bytes() == best
    assert stopped is not None and again is not None and tiny.comparable(again) == tiny.comparable(stopped)


def test_a_moment_for_all_stops_what_runs_and_lets_nothing_begin(tmp_path: Path) -> None:
    run, data = tiny.runs()[0], tiny.data()
    past = Limits(deadline=time.time() - 1, hours=2.0)
    assert execute(run, data, tmp_path / "new", past, silent) is None and not (tmp_path / "new").exists()
    execute(run, data, tmp_path / "begun", Limits(minutes=1e-9), silent)
    stopped = execute(run, data, tmp_path / "begun", past, silent)
    assert stopped is not None and stopped["stopped"] == {"limit": "total_hours", "value": 2.0}


@pytest.mark.parametrize("batches", [1, 9, 10, 15])
def test_a_halted_run_goes_on_to_the_same_end(tmp_path: Path, batches: int) -> None:
    left = batches

    def halted() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    run, data, folder = tiny.runs()[1], tiny.data(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        execute(run, data, folder, Limits(), silent, halted)
    result = execute(run, data, folder, Limits(), silent)
    assert result is not None and tiny.comparable(result) == tiny.expected(1)


def test_a_folder_without_a_checkpoint_is_begun_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text("half")
    result = execute(tiny.runs()[1], tiny.data(), folder, Limits(), silent)
    assert result is not None and tiny.comparable(result) == tiny.expected(1)


def test_a_folder_has_one_sweep_at_a_time(tmp_path: Path) -> None:
    message = f"got one of process {os.getpid()}; wait for its end"
    with only_sweep(tmp_path), pytest.raises(FileError, match=message), only_sweep(tmp_path):
        pass
    with only_sweep(tmp_path):
        assert (tmp_path / "sweep.lock").read_text() == f"{os.getpid()}\n"


def test_what_a_killed_process_had_begun_to_write_is_cleared(tmp_path: Path) -> None:
    run, stops = tiny.runs()[0], iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        execute(run, tiny.data(), tmp_path / "run", Limits(), lambda facts: None, lambda: next(stops, True))
    (tmp_path / "run" / ".writing.abc").write_text("half of a check")
    execute(run, tiny.data(), tmp_path / "run", Limits(), lambda facts: None)
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_a_run_of_other_settings_in_its_folder_is_not_taken_for_it(tmp_path: Path) -> None:
    own, other = tiny.runs()[0], tiny.runs()[2]
    train(tiny.data(), tmp_path / own.key, other.settings)
    with pytest.raises(
        ModelFileError, match=r"expected a run of Sum c=3 seed 0, got one of other settings; remove the"
    ):
        execute(own, tiny.data(), tmp_path / own.key, Limits(), silent)
