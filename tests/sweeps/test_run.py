import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.sweeps import tiny
from tests.sweeps.tiny import Here
from treefold.analysis.evaluation import evaluate
from treefold.data.generators import make_lrt
from treefold.errors import FileError, ModelFileError
from treefold.sweeps.grid import Budget, Grid
from treefold.sweeps.local import Local
from treefold.sweeps.plan import Run, plan
from treefold.sweeps.results import RESULTS, Results
from treefold.sweeps.run import (
    Died,
    Event,
    Failed,
    Finished,
    Limits,
    Progressed,
    Started,
    SweepOutcome,
    execute,
    pending_runs,
    sweep,
    sweep_lock,
)
from treefold.training import train
from treefold.training.saving import load_model, read_tensors, write_tensors


def silent(event: Event) -> None:
    pass


def test_sums_bounds_hidden_layers_and_noise_are_swept(tmp_path: Path) -> None:
    new = {"cell": "rnn", "aggregator": "complex+sum", "bound": "disc", "rank": 2, "shared": True, "cell_hidden": 4}
    more = {"state_size": 3, "activation": "sharp-sigmoid", "aggregators": {"SM": "complex"}}
    values = {"name": "new", "seeds": [0], "training": {"epochs": 1, "state_noise": 0.1}}
    grid = Grid.of({**values, "models": [{"kind": "New", **new, **more}, {"kind": "Sum", "aggregator": "sum"}]})
    first, second = plan(grid, tiny.data(), "new")
    assert first.key != second.key and first.settings.model.aggregators["SM"].aggregator == "complex"
    result = execute(first, tiny.data(), tmp_path / "run", Limits(), silent)
    assert result is not None
    settings = load_model(tmp_path / "run").settings
    assert (settings.model.bound, settings.model.cell_hidden, settings.training.state_noise) == ("disc", 4, 0.1)


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
    told: list[Progressed] = []
    stopped = execute(run, data, folder, Limits(minutes=1e-9), told.append)
    assert stopped is not None and stopped["stopped"] == {"limit": "minutes_per_run", "value": 1e-9}
    assert stopped["epochs"] == stopped["best_epoch"] == 1 and {event.epoch for event in told} == {1}
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


def test_a_folder_without_a_checkpoint_is_trained_from_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text("half")
    (folder / ".writing.abc").write_text("half of a checkpoint")
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(FileError, match=r"expected only files of a saved model, got 'thesis.txt', .* move this file"):
        execute(tiny.runs()[1], tiny.data(), folder, Limits(), silent)
    (folder / "thesis.txt").rename(tmp_path / "thesis.txt")
    result = execute(tiny.runs()[1], tiny.data(), folder, Limits(), silent)
    assert result is not None and tiny.comparable(result) == tiny.expected(1)


def test_a_folder_has_one_sweep_at_a_time(tmp_path: Path) -> None:
    message = rf"a sweep is running in this folder \(process {os.getpid()}\); wait for its end"
    with sweep_lock(tmp_path), pytest.raises(FileError, match=message), sweep_lock(tmp_path):
        pass
    with sweep_lock(tmp_path):
        assert (tmp_path / "sweep.lock").read_text() == f"{os.getpid()}\n"


def test_what_a_killed_process_had_begun_to_write_is_cleared(tmp_path: Path) -> None:
    run, stops = tiny.runs()[0], iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        execute(run, tiny.data(), tmp_path / "run", Limits(), lambda event: None, lambda: next(stops, True))
    (tmp_path / "run" / ".writing.abc").write_text("half of a check")
    execute(run, tiny.data(), tmp_path / "run", Limits(), lambda event: None)
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_a_run_of_other_settings_in_its_folder_is_not_taken_for_it(tmp_path: Path) -> None:
    own, other = tiny.runs()[0], tiny.runs()[2]
    train(tiny.data(), tmp_path / own.key, other.settings)
    with pytest.raises(
        ModelFileError, match=r"expected a run of Sum c=3 seed 0, but config.toml has other settings; remove the"
    ):
        execute(own, tiny.data(), tmp_path / own.key, Limits(), silent)


def sweep_once(out: Path, engine: Here, budget: Budget | None = None) -> SweepOutcome:
    results, told = Results.read(out / RESULTS), list[Event]()
    return sweep(tiny.runs(), results, tiny.data_folder(), out, engine, budget or Budget(), told.append)


def everything() -> list[dict[str, Any]]:
    return sorted((tiny.expected(number) for number in range(4)), key=lambda line: str(line["key"]))


def test_a_failing_run_does_not_stop_the_others_and_is_tried_again_by_the_next_sweep(tmp_path: Path) -> None:
    outcome = sweep_once(tmp_path, Here(failing=[1]))
    assert [failure.message for failure in outcome.failed] == ["as it should"] and len(outcome.finished) == 3
    assert len(tiny.lines(tmp_path / RESULTS)) == 3
    engine = Here()
    sweep_once(tmp_path, engine)
    assert engine.asked == [tiny.runs()[1].key] and tiny.lines(tmp_path / RESULTS) == everything()
    names = {path.name for path in (tmp_path / "runs" / tiny.runs()[0].key).iterdir()}
    assert names == {"config.toml", "environment.json", "metrics.jsonl", "model.safetensors", "vocabulary.json"}
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(run.key for run in tiny.runs())


def test_results_of_another_machine_count_as_done(tmp_path: Path) -> None:
    sweep_once(tmp_path / "there", Here(failing=[0, 2]))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / RESULTS).write_bytes((tmp_path / "there" / RESULTS).read_bytes())
    engine = Here()
    sweep_once(tmp_path / "here", engine)
    assert engine.asked == [tiny.runs()[0].key, tiny.runs()[2].key]


def test_results_that_another_grid_asked_for_take_the_names_of_this_one(tmp_path: Path) -> None:
    sweep_once(tmp_path, Here(failing=[2, 3]))
    runs = [dataclasses.replace(run, grid="final", kind=f"my {run.kind}") for run in tiny.runs()]
    engine, results = Here(), Results.read(tmp_path / RESULTS)
    sweep(runs, results, tiny.data_folder(), tmp_path, engine, Budget(), list[Event]().append)
    assert len(engine.asked) == 2
    found = Results.read(tmp_path / RESULTS).results.values()
    assert sorted((each.grid, each.kind, each.seed) for each in found) == [
        ("final", f"my {kind}", seed) for kind in ("Hosvd", "Sum") for seed in (0, 1)
    ]


def test_runs_stopped_by_a_budget_count_as_finished_until_it_is_larger(tmp_path: Path) -> None:
    small, large = Budget(minutes_per_run=1e-9), Budget(minutes_per_run=1e9)
    outcome = sweep_once(tmp_path, Here(), budget=small)
    assert all(result.stopped and result.epochs == 1 for result in outcome.finished)
    results = Results.read(tmp_path / RESULTS)
    assert pending_runs(tiny.runs(), results, small) == []
    assert pending_runs(tiny.runs(), results, Budget()) == pending_runs(tiny.runs(), results, large) == tiny.runs()
    sweep_once(tmp_path, Here(), budget=large)
    assert tiny.lines(tmp_path / RESULTS) == everything()


def test_hours_that_are_over_leave_runs_for_another_time(tmp_path: Path) -> None:
    outcome = sweep_once(tmp_path, Here(), budget=Budget(total_hours=1e-12))
    assert outcome.unstarted == tiny.runs() and not outcome.finished
    sweep_once(tmp_path, Here())
    assert tiny.lines(tmp_path / RESULTS) == everything()


class Misfortune(NamedTuple):
    folder: Path
    diverging: Run
    events: list[Event]
    processes: list[int]


@pytest.fixture(scope="module")
def misfortune(tmp_path_factory: pytest.TempPathFactory) -> Misfortune:
    """A sweep on one worker that meets everything.

    The first run loses its process at every start, the second once in the middle of its training, one has a rate with which
    nothing can be learned, and in the middle of the third comes Ctrl-C.
    """
    folder = tmp_path_factory.mktemp("sweep")
    events: list[Event] = []
    processes: list[int] = []
    first, second, third, fourth = tiny.runs()
    training = second.settings.training.model_copy(update={"learning_rate": 1e30})
    diverging = dataclasses.replace(
        second, key="0" * 16, settings=second.settings.model_copy(update={"training": training})
    )

    def tell(event: Event) -> None:
        events.append(event)
        if isinstance(event, Started):
            processes.append(event.process)
            if event.run.key == first.key:
                os.kill(event.process, signal.SIGKILL)
        elif isinstance(event, Progressed) and event.run.key == second.key:
            if not any(isinstance(each, Died) and each.run.key == second.key for each in events):
                os.kill(processes[-1], signal.SIGKILL)
        elif isinstance(event, Progressed) and event.run.key == third.key:
            raise KeyboardInterrupt

    runs = [first, second, diverging, third, fourth]
    with pytest.raises(KeyboardInterrupt):
        sweep(runs, Results.read(folder / RESULTS), tiny.data_folder(), folder, Local(1), Budget(), tell)
    return Misfortune(folder, diverging, events, processes)


def test_a_worker_that_dies_is_replaced_twice_and_then_its_run_has_failed(misfortune: Misfortune) -> None:
    first, second, *_ = tiny.runs()
    deaths = [(event.run.key, event.attempt) for event in misfortune.events if isinstance(event, Died)]
    assert deaths == [(first.key, 1), (first.key, 2), (second.key, 1)]
    failed = {event.run.key: event.message for event in misfortune.events if isinstance(event, Failed)}
    assert failed[first.key] == "its process died 3 times; is there enough memory?"


def test_a_run_that_fails_says_why_and_its_worker_takes_the_next(misfortune: Misfortune) -> None:
    failed = {event.run.key: event.message for event in misfortune.events if isinstance(event, Failed)}
    assert len(failed) == 2 and "training diverged: the loss became" in failed[misfortune.diverging.key]
    order = [event.run.key for event in misfortune.events if isinstance(event, Started)]
    assert order[-2:] == [misfortune.diverging.key, tiny.runs()[2].key]
    assert misfortune.processes[-1] == misfortune.processes[-2]


def test_a_run_whose_worker_was_killed_ends_as_if_it_had_not_been(misfortune: Misfortune) -> None:
    (result,) = (event.result for event in misfortune.events if isinstance(event, Finished))
    assert tiny.comparable(result) == tiny.expected(1)


def test_ctrl_c_ends_the_workers_and_the_next_sweep_goes_on(misfortune: Misfortune, tmp_path: Path) -> None:
    assert len(set(misfortune.processes)) == 5  # three for the first run, one more that was killed, and the last
    for process in misfortune.processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    third = misfortune.folder / "runs" / tiny.runs()[2].key
    assert (third / "checkpoint.safetensors").exists()
    assert tiny.lines(misfortune.folder / RESULTS) == [tiny.expected(1)]
    sweep_once(misfortune.folder, Here())
    assert tiny.lines(misfortune.folder / RESULTS) == everything()
