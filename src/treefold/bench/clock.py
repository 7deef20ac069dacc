"""How ways of doing the same work are timed: in turn, several rounds, the least time of each piece counts."""

import statistics
from collections.abc import Callable, Mapping

Clock = Callable[[], float]
Way = Callable[[Clock], list[float]]  # does the work once, and returns the time of each of its pieces


def in_pieces(work: Callable[[int], object], count: int) -> Way:
    """Return the way that does ``work(0) … work(count - 1)``, after one that is not timed.

    >>> ticks = iter(range(10))
    >>> in_pieces(lambda piece: None, 3)(lambda: float(next(ticks)))
    [1.0, 1.0, 1.0]
    """

    def way(clock: Clock) -> list[float]:
        work(0)
        times = []
        for piece in range(count):
            start = clock()
            work(piece)
            times.append(clock() - start)
        return times

    return way


def least_times(ways: Mapping[str, Way], rounds: int, clock: Clock) -> dict[str, float]:
    """Return the mean seconds of a piece for each way, where each piece has the least time of several rounds.

    The ways take turns, so that a disturbance of the machine meets all of them; the least time of a piece is the one without.

    >>> times = iter([[3.0, 9.0], [2.0, 2.0], [4.0, 5.0], [1.0, 4.0]])
    >>> least_times({"slow": lambda clock: next(times), "fast": lambda clock: next(times)}, 2, lambda: 0.0)
    {'slow': 4.0, 'fast': 1.5}
    """
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way(clock))
    return {name: statistics.mean(map(min, zip(*times, strict=True))) for name, times in found.items()}
