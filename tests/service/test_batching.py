"""Requests that wait are computed together, within the bounds of queue, weight and time."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from treefold.service.batching import Batcher, RefusedError


class Slow:
    """Doubles numbers; keeps its batches, and waits in each for a signal if it has one."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, numbers: list[int]) -> list[Any]:
        self.batches.append(numbers)
        assert self.go.wait(20)
        return [ValueError(f"bad {number}") if number < 0 else 2 * number for number in numbers]


def run(ask: Callable[[Batcher, Slow], Coroutine[Any, Any, Any]], **options: Any) -> tuple[Any, Slow]:
    slow = Slow()

    async def inside() -> Any:
        batcher = Batcher(slow, **{"queue": 100, "seconds": 20, **options})
        batcher.start()
        try:
            return await ask(batcher, slow)
        finally:
            slow.go.set()
            batcher.stop()

    return asyncio.run(inside()), slow


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


async def behind(batcher: Batcher, slow: Slow, *numbers: int) -> "list[asyncio.Task[Any]]":
    """Send a first number that keeps the thread busy, and then the others."""
    slow.go.clear()
    tasks = [asyncio.create_task(batcher.answer(0))]
    await until(lambda: len(slow.batches) == 1)
    tasks += [asyncio.create_task(batcher.answer(number, weight=number)) for number in numbers]
    await until(lambda: batcher.waiting == len(numbers))
    return tasks


def test_requests_that_come_while_the_thread_computes_are_its_next_batch() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        tasks = await behind(batcher, slow, *range(1, 8))
        slow.go.set()
        return await asyncio.gather(*tasks)

    answers, slow = run(ask)
    assert answers == [2 * number for number in range(8)] and slow.batches == [[0], [1, 2, 3, 4, 5, 6, 7]]


def test_requests_that_come_at_once_are_one_batch() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        return await asyncio.gather(*(batcher.answer(number) for number in range(5)))

    answers, slow = run(ask)
    assert answers == [0, 2, 4, 6, 8] and slow.batches == [[0, 1, 2, 3, 4]]


def test_a_batch_is_bounded_by_its_weight() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        tasks = await behind(batcher, slow, 4, 5, 30, 2)
        slow.go.set()
        return await asyncio.gather(*tasks)

    assert run(ask, most=10)[1].batches == [[0], [4, 5], [30], [2]]


def test_an_error_of_one_is_an_error_of_no_other() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        return await asyncio.gather(*(batcher.answer(number) for number in (1, -2, 3)), return_exceptions=True)

    first, bad, last = run(ask)[0]
    assert (first, str(bad), last) == (2, "bad -2", 6)


def test_a_computation_that_fails_fails_for_all_and_the_next_works() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        wrong = await asyncio.gather(*(batcher.answer(text) for text in "ab"), return_exceptions=True)
        return [type(each) for each in wrong], await batcher.answer(4)

    assert run(ask)[0] == ([TypeError, TypeError], 8)


def test_functions_run_alone_in_their_turn() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        tasks = await behind(batcher, slow, 1)
        tasks.append(asyncio.create_task(batcher.run(lambda: [list(batch) for batch in slow.batches])))
        tasks.append(asyncio.create_task(batcher.answer(3)))
        await until(lambda: batcher.waiting == 3)
        slow.go.set()
        return await asyncio.gather(*tasks)

    answers, slow = run(ask)
    assert answers == [0, 2, [[0], [1]], 6] and slow.batches == [[0], [1], [3]]
    with pytest.raises(ZeroDivisionError):
        run(lambda batcher, slow: batcher.run(divmod, 1, 0))


def test_a_full_queue_refuses_with_429() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        await behind(batcher, slow, 1, 2)
        await batcher.answer(3)

    with pytest.raises(RefusedError, match="at most 2 waiting requests, got more") as caught:
        run(ask, queue=2)
    assert caught.value.status == 429


def test_a_request_whose_time_is_over_is_refused_with_503_and_not_computed() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        tasks = await behind(batcher, slow, 1)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        slow.go.set()
        return found, await batcher.answer(5)

    (refusals, answer), slow = run(ask, seconds=0.5)
    assert [refusal.status for refusal in refusals] == [503, 503] and "within 0.5 s" in str(refusals[0])
    assert answer == 10 and slow.batches == [[0], [5]]


def test_work_of_clients_that_have_left_is_dropped() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        tasks = await behind(batcher, slow)
        gone = asyncio.create_task(batcher.answer(1, has_left=lambda: True))
        tasks += [asyncio.create_task(batcher.answer(2, has_left=lambda: False))]
        await until(lambda: batcher.waiting == 2)
        slow.go.set()
        return await asyncio.gather(*tasks), await asyncio.gather(gone, return_exceptions=True)

    (answers, (gone,)), slow = run(ask)
    assert answers == [0, 4] and gone.status == 499 and slow.batches == [[0], [2]]


def test_what_waits_when_the_service_stops_is_refused() -> None:
    async def ask(batcher: Batcher, slow: Slow) -> Any:
        _, waiting = await behind(batcher, slow, 1)
        batcher.stop()
        return await asyncio.gather(waiting, batcher.answer(2), return_exceptions=True)

    assert [refusal.status for refusal in run(ask)[0]] == [503, 503]
