import functools
import threading
from pathlib import Path

import torch
from benchmarks.phases import FUNCTIONS, PHASES, TRAINER, Stopwatch, find_owner, watched

from treefold.data.generators import make_listops
from treefold.data.generators.listops import ListOpsSettings
from treefold.training import train
from treefold.training.settings import RunSettings


class Ticking:
    """A clock that only `pass_` moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def test_time_belongs_to_the_innermost_function_and_switches_with_it() -> None:
    clock = Ticking()
    watch = Stopwatch(clock)

    def backward() -> None:
        clock.pass_(4)
        watch.switch("kernels")
        clock.pass_(8)

    def whole() -> None:
        clock.pass_(1)
        watch.timed("deal", functools.partial(clock.pass_, 2))()
        watch.timed("head", backward)()
        clock.pass_(16)

    watch.timed("deal", functools.partial(clock.pass_, 1000))()  # outside of the whole: not counted
    watch.timed("other", whole, whole=True)()
    assert watch.seconds == {"other": 17, "deal": 2, "head": 4, "kernels": 8}


def test_other_threads_are_not_counted() -> None:
    clock = Ticking()
    watch = Stopwatch(clock)
    scheduling = watch.timed("schedule", functools.partial(clock.pass_, 3))

    def whole() -> None:
        thread = threading.Thread(target=scheduling)
        thread.start()
        thread.join()

    watch.timed("other", whole, whole=True)()
    assert watch.seconds == {"other": 3}


def wrapped_ones() -> list[object]:
    return [find_owner(TRAINER).__init__, *(getattr(find_owner(place), name) for place, name, _ in FUNCTIONS)]


def test_a_watched_training_is_the_same_training_and_nothing_stays_wrapped(tmp_path: Path) -> None:
    data = make_listops(60, settings=ListOpsSettings(max_nodes=30))
    settings = RunSettings.of({"model": {"state_size": 4, "rank": 2}, "training": {"epochs": 1, "batch_size": 10}})
    originals = wrapped_ones()
    watch = Stopwatch()
    with watched(watch):
        assert all(now is not before for now, before in zip(wrapped_ones(), originals, strict=True))
        saved, result = train(data, tmp_path / "watched", settings)
    assert wrapped_ones() == originals
    other, plain = train(data, tmp_path / "plain", settings)
    assert result.history[0]["loss"] == plain.history[0]["loss"]
    for name, tensor in saved.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    assert set(watch.seconds) == set(PHASES) and min(watch.seconds.values()) > 0
