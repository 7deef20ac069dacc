"""Requests that come together are computed together, in one thread.

There is no delay: while the thread computes, further requests wait, and all of them are its next batch. Everything but the
computation happens in the event loop, so nothing needs a lock.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, final

from treefold.errors import TreefoldError

Compute = Callable[[list[Any]], Sequence[Any]]


class RefusedError(TreefoldError):
    """A request that the service does not answer, with the status of HTTP that says so."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


@final
@dataclass(eq=False, slots=True)
class _Job:
    """What one request waits for: an item of a batch, or a function of its own."""

    item: Any
    weight: int
    answer: "asyncio.Future[Any]"
    alone: bool = False
    has_left: Callable[[], bool] | None = None


@final
@dataclass
class Batcher:
    """Computes the answers about items in batches, and functions one at a time, in the order in which they came.

    ``compute`` takes the items of a batch, and returns for each its answer, or the error to raise. A batch has items of at most
    ``most`` weight, but at least one. At most ``queue`` requests wait, each for at most ``seconds``. ``watch`` is called with the
    size of each batch, and the number of requests that still wait.

    >>> async def ask():
    ...     batcher = Batcher(lambda numbers: [sum(numbers)] * len(numbers), queue=8, seconds=60)
    ...     batcher.start()
    ...     return await asyncio.gather(*(batcher.answer(number) for number in (1, 2, 3)), batcher.run(divmod, 7, 2))
    >>> asyncio.run(ask())
    [6, 6, 6, (3, 1)]
    """

    compute: Compute
    queue: int
    seconds: float
    most: int = 200_000
    watch: Callable[[int, int], None] = lambda size, waiting: None
    _waiting: deque[_Job] = field(default_factory=deque, init=False)
    _tasks: "SimpleQueue[list[_Job] | None]" = field(default_factory=SimpleQueue, init=False)
    _is_busy: bool = field(default=False, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)

    def start(self) -> None:
        """Start the thread; call it in the event loop."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._work, name="compute", daemon=True).start()

    def stop(self) -> None:
        """Refuse what waits and what comes; the thread ends after its batch."""
        self._loop = None
        self._tasks.put(None)
        while self._waiting:
            job = self._waiting.popleft()
            if not job.answer.done():
                job.answer.set_exception(stopping())

    @property
    def waiting(self) -> int:
        """How many requests wait; those being computed do not count."""
        return len(self._waiting)

    async def answer(self, item: Any, weight: int = 1, has_left: Callable[[], bool] | None = None) -> Any:
        """Return the answer about an item; it is not computed if the client ``has_left`` before its turn."""
        return await self._submit(item, weight, False, has_left)

    async def run(
        self, function: Callable[..., Any], *arguments: Any, has_left: Callable[[], bool] | None = None
    ) -> Any:
        """Call a function in the thread."""
        return await self._submit((function, arguments), 0, True, has_left)

    async def _submit(self, item: Any, weight: int, alone: bool, has_left: Callable[[], bool] | None) -> Any:
        if self._loop is None:
            raise stopping()
        if len(self._waiting) >= self.queue:
            raise RefusedError(
                429,
                f"the service expects at most {self.queue} waiting requests, got more; wait a moment, and send it again.",
            )
        job = _Job(item, weight, self._loop.create_future(), alone, has_left)
        self._waiting.append(job)
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._next)  # after the requests that have arrived at the same time
        try:
            async with asyncio.timeout(self.seconds):
                return await job.answer
        except TimeoutError:
            raise RefusedError(
                503,
                f"the service expects to answer within {self.seconds:g} s, got more work than that; "
                f"send fewer or smaller trees, or send it again later.",
            ) from None

    def _next(self) -> None:
        """Give the thread its next batch."""
        batch: list[_Job] = []
        weight = 0
        while self._waiting:
            job = self._waiting[0]
            if job.answer.done() or (job.has_left is not None and job.has_left()):
                self._waiting.popleft()
                if not job.answer.done():  # end the waiting task; its client has left
                    job.answer.set_exception(RefusedError(499, "expected a client that waits, got one that has left."))
                continue
            if batch and (job.alone or batch[0].alone or weight + job.weight > self.most):
                break
            batch.append(self._waiting.popleft())
            weight += job.weight
        self._is_busy = bool(batch)
        if batch:
            self.watch(len(batch), len(self._waiting))
            self._tasks.put(batch)

    def _work(self) -> None:
        while (batch := self._tasks.get()) is not None:
            answers: Sequence[Any]
            try:
                if batch[0].alone:
                    function, arguments = batch[0].item
                    answers = [function(*arguments)]
                else:
                    answers = self.compute([job.item for job in batch])
            except BaseException as problem:  # of any kind: those who wait must hear of it
                answers = [problem] * len(batch)
            loop = self._loop
            if loop is None or loop.is_closed():
                return
            loop.call_soon_threadsafe(self._deliver, batch, answers)
            del batch, answers  # which would live until the next batch

    def _deliver(self, batch: list[_Job], answers: Sequence[Any]) -> None:
        self._next()  # the thread works while the answers are written
        for job, answer in zip(batch, answers, strict=True):
            if job.answer.done():
                continue
            if isinstance(answer, BaseException):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)


def stopping() -> RefusedError:
    """Return the refusal of a request while the service stops."""
    return RefusedError(503, "the service expects requests while it runs, got one while it stops; send it again later.")
