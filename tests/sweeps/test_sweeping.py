import dataclasses
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.sweeps import tiny
from tests.sweeps.tiny import Here
from treefold.sweeps.events import Died, Event, Failed, Finished, Progressed, Started
from treefold.sweeps.grid import Budget
from treefold.sweeps.local import Local
from treefold.sweeps.planning import Run
from treefold.sweeps.results import RESULTS, Results
from treefold.sweeps.sweeping import Ending, sweep, to_do
from treefold.sweeps.tally import Tally


def done(out: Path, engine: Here, budget: Budget | None = None) -> Ending:
    results, told = Results.read(out / RESULTS), list[Event]()
    return sweep(tiny.runs(), results, tiny.data_folder(), out, engine, budget or Budget(), told.append)


def everything() -> list[dict[str, Any]]:
    return sorted((tiny.expected(number) for number in range(4)), key=lambda line: str(line["key"]))


def test_a_failing_run_does_not_stop_the_others_and_is_tried_again_by_the_next_sweep(tmp_path: Path) -> None:
    ending = done(tmp_path, Here(failing=[1]))
    assert [failure.message for failure in ending.failed] == ["as it should"] and len(ending.finished) == 3
    assert len(tiny.lines(tmp_path / RESULTS)) == 3
    engine = Here()
    done(tmp_path, engine)
    assert engine.asked == [tiny.runs()[1].key] and tiny.lines(tmp_path / RESULTS) == everything()
    names = {path.name for path in (tmp_path / "runs" / tiny.runs()[0].key).iterdir()}
    assert names == {"config.toml", "environment.json", "metrics.jsonl", "model.safetensors", "vocabulary.json"}
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(run.key for run in tiny.runs())


def test_results_of_another_machine_count_as_done(tmp_path: Path) -> None:
    done(tmp_path / "there", Here(failing=[0, 2]))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / RESULTS).write_bytes((tmp_path / "there" / RESULTS).read_bytes())
    engine = Here()
    done(tmp_path / "here", engine)
    assert engine.asked == [tiny.runs()[0].key, tiny.runs()[2].key]


def test_results_that_another_grid_asked_for_take_the_names_of_this_one(tmp_path: Path) -> None:
    done(tmp_path, Here(failing=[2, 3]))
    runs = [dataclasses.replace(run, grid="final", kind=f"my {run.kind}") for run in tiny.runs()]
    engine, results = Here(), Results.read(tmp_path / RESULTS)
    sweep(runs, results, tiny.data_folder(), tmp_path, engine, Budget(), list[Event]().append)
    assert len(engine.asked) == 2
    found = Results.read(tmp_path / RESULTS).results.values()
    assert sorted((each.grid, each.kind, each.seed) for each in found) == [
        ("final", f"my {kind}", seed) for kind in ("Hosvd", "Sum") for seed in (0, 1)
    ]


def test_what_a_budget_cut_short_is_done_until_the_budget_is_larger(tmp_path: Path) -> None:
    small, large = Budget(minutes_per_run=1e-9), Budget(minutes_per_run=1e9)
    ending = done(tmp_path, Here(), budget=small)
    assert all(result.stopped and result.epochs == 1 for result in ending.finished)
    results = Results.read(tmp_path / RESULTS)
    assert to_do(tiny.runs(), results, small) == []
    assert to_do(tiny.runs(), results, Budget()) == to_do(tiny.runs(), results, large) == tiny.runs()
    done(tmp_path, Here(), budget=large)
    assert tiny.lines(tmp_path / RESULTS) == everything()


def test_hours_that_are_over_leave_runs_for_another_time(tmp_path: Path) -> None:
    ending = done(tmp_path, Here(), budget=Budget(total_hours=1e-12))
    assert ending.unstarted == tiny.runs() and not ending.finished
    done(tmp_path, Here())
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
    done(misfortune.folder, Here())
    assert tiny.lines(misfortune.folder / RESULTS) == everything()


def test_a_tally_counts_runs_and_estimates_what_is_left(tmp_path: Path) -> None:
    runs, results = tiny.runs(), Results.read(tmp_path / RESULTS)
    tally = Tally(runs, results, runs[1:], workers=2)
    costs = [3 * run.seconds_an_epoch for run in runs]
    assert tally.before == 1 and tally.seconds_left() == pytest.approx(max(sum(costs[1:]) / 2, *costs[1:]))
    tally.note(Started(runs[1]))
    tally.note(Progressed(runs[1], epoch=2, part=0.5, validation=None))
    tally.note(Progressed(runs[1], epoch=2, part=1.0, validation=0.25))
    tally.note(Progressed(runs[1], epoch=3, part=1.0, validation=0.125))
    assert tally.running[runs[1].key].epochs_done == 3.0 and tally.running[runs[1].key].best == 0.25
    tally.note(Finished(runs[1], {}))
    tally.note(Started(runs[2]))
    tally.note(Died(runs[2], 1))
    assert (tally.done, tally.deaths, list(tally.left), tally.running) == (1, 1, [runs[2].key, runs[3].key], {})
    tally.note(Failed(runs[2], "no"))
    assert [failure.message for failure in tally.failed] == ["no"]
    assert tally.seconds_left() == pytest.approx(costs[3])
