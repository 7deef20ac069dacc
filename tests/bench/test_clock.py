import pytest

from treefold.bench.clock import Clock, Way, in_pieces, least_times
from treefold.bench.options import Options, compared


class FakeClock:
    """Stands still but for what work adds to it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def scripted(clock: FakeClock, script: list[float], log: list[str], name: str) -> Way:
    """Take from a script how long each call of two pieces lasts; a round has three calls, of which the first is not timed."""
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
