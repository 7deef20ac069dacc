import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.library import core_count, threads
from benchmarks.measuring import (
    ROOT,
    Clock,
    Options,
    Way,
    child_command,
    child_environment,
    compared,
    in_pieces,
    least_times,
    machine,
    peak_growth,
    peak_resident,
    require_threads,
    scaling,
)

from treefold.errors import ConfigurationError


class FakeClock:
    """A clock that only the work moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def scripted(clock: FakeClock, script: list[float], log: list[str], name: str) -> Way:
    """Return work in two pieces whose calls last as long as a script says; the first of three calls a round is not timed."""
    lasting = iter(script)

    def work(piece: int) -> None:
        log.append(f"{name}{piece}")
        clock.now += next(lasting)

    return in_pieces(work, 2)


def test_ways_take_turns_and_each_piece_has_its_least_time_without_the_first_call() -> None:
    clock, log = FakeClock(), list[str]()
    ways = {
        "a": scripted(clock, [50.0, 1.0, 8.0, 50.0, 3.0, 4.0], log, "a"),
        "b": scripted(clock, [50.0, 20.0, 10.0, 50.0, 10.0, 40.0], log, "b"),
    }
    assert least_times(ways, 2, clock) == {"a": (1.0 + 4.0) / 2, "b": (10.0 + 10.0) / 2}
    assert log == ["a0", "a0", "a1", "b0", "b0", "b1"] * 2


def test_the_first_way_is_compared_with_each_other_one() -> None:
    assert compared({"fused": 0.5, "torch": 4.0}, trees=10, nodes=30, threads=2) == {
        "fused_ms": 500.0,
        "torch_ms": 4000.0,
        "ratio": 8.0,
        "trees_per_second": 20.0,
        "nodes_per_second": 60.0,
        "threads": 2,
    }
    three = compared({"shared": 1.0, "apart": 3.0, "torch": 6.0}, trees=1, nodes=1)
    assert (three["ratio_to_apart"], three["ratio_to_torch"]) == (3.0, 6.0) and "ratio" not in three


@pytest.mark.parametrize(("options", "rounds"), [(Options(), 5), (Options(quick=True), 2), (Options(rounds=7), 7)])
def test_rounds_are_those_asked_for_or_fewer_when_quick(options: Options, rounds: int) -> None:
    calls: list[Clock] = []

    def way(clock: Clock) -> list[float]:
        calls.append(clock)
        return [1.0]

    options.measure({"way": way})
    assert len(calls) == rounds


def test_more_threads_than_cores_are_refused() -> None:
    require_threads(core_count())
    with pytest.raises(
        ConfigurationError, match=rf"at most the number of cores, {core_count()}, got {core_count() + 1}"
    ):
        require_threads(core_count() + 1)


def test_threads_are_put_back_even_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(KeyError), threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_memory_that_is_filled_and_freed_is_seen() -> None:
    size = 60_000_000
    grown = peak_growth(lambda: np.ones(size, np.int8).sum())
    if grown is None:
        pytest.skip("the system does not tell")
    assert size * 0.95 < grown < size * 3
    assert peak_resident() > size


def test_the_machine_is_named_with_its_versions() -> None:
    facts = machine()
    assert facts["versions"]["torch"] == torch.__version__ and facts["cores"] >= 1 and facts["cpu"]


def test_scaling_is_the_work_of_several_threads_in_the_time_of_one() -> None:
    """One round of a fake clock: alone 3 ticks, two together 4."""
    ticks = iter([0.0, 3.0, 10.0, 14.0])
    assert scaling(2, rounds=1, clock=lambda: next(ticks)) == 2 * 3 / 4


def test_a_child_process_is_started_with_an_explicit_path_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ".")
    command = child_command(tmp_path / "script.py", "job", 3)
    assert command == [sys.executable, "-P", str(tmp_path / "script.py"), "job", "3"]
    environment = child_environment(tmp_path, NUMBA_CACHE_DIR="cache")
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), str(ROOT)]
    assert environment["NUMBA_CACHE_DIR"] == "cache"
