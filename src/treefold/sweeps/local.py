"""Train runs in parallel processes on this machine; each has a pipe to the main process."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final, final

from treefold.data.dataset import Dataset
from treefold.sweeps.plan import Run
from treefold.sweeps.run import Died, Event, Failed, Limits, Progressed, Started, attempt

_RETRIES: Final = 2
_SECONDS_TO_END: Final = 20.0


@final
@dataclass
class _Worker:
    process: SpawnProcess
    pipe: "Connection[Any, Any]"
    run: Run | None = None


@final
class Local:
    """An engine of spawned processes. If a process dies, a new one resumes its run from the checkpoint."""

    def __init__(self, workers: int) -> None:
        self._count = workers

    def events(self, runs: Sequence[Run], data: Path, folder: Path, limits: Limits) -> Generator[Event, None, None]:
        """Train the runs and yield events; closing the iterator ends the workers after they wrote a checkpoint."""
        waiting, attempts = deque(runs), dict.fromkeys((run.key for run in runs), 0)
        workers: list[_Worker] = []
        try:
            workers += [_start(data, folder, limits) for _ in range(min(self._count, len(runs)))]
            while waiting or any(worker.run for worker in workers):
                for worker in workers:
                    if worker.run is None and waiting:
                        worker.run = waiting.popleft()
                        attempts[worker.run.key] += 1
                        with contextlib.suppress(OSError):  # the worker is dead, which recv() detects below
                            worker.pipe.send(worker.run)
                        yield Started(worker.run, worker.process.pid or 0)
                for pipe in connection.wait([worker.pipe for worker in workers if worker.run], timeout=1.0):
                    worker = next(each for each in workers if each.pipe is pipe)
                    run = worker.run
                    assert run is not None
                    try:
                        event: Event = worker.pipe.recv()
                    except (EOFError, OSError):
                        _end([worker])
                        workers[workers.index(worker)] = _start(data, folder, limits)
                        if attempts[run.key] > _RETRIES:
                            yield Failed(run, f"its process died {attempts[run.key]} times; is there enough memory?")
                        else:
                            waiting.appendleft(run)
                            yield Died(run, attempts[run.key])
                        continue
                    if not isinstance(event, Progressed):
                        worker.run = None
                    yield event
        finally:
            _end(workers)


def _start(data: Path, folder: Path, limits: Limits) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, data, folder, limits), daemon=True)
    with _safe_imports():
        process.start()
    theirs.close()  # so that the pipe closes when the process ends
    return _Worker(process, ours)


@contextlib.contextmanager
def _safe_imports() -> Iterator[None]:
    """Start Python without the working directory on its path: a struct.py there would be executed.

    multiprocessing starts the process with ``-c`` and offers no place for ``-P``; the environment does the same.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _end(workers: Sequence[_Worker]) -> None:
    """Ask the workers to write a checkpoint and end; kill those that do not."""
    for worker in workers:
        if worker.process.is_alive():
            if worker.run is None:
                worker.process.kill()
            else:
                worker.process.terminate()
    limit = time.monotonic() + _SECONDS_TO_END
    for worker in workers:
        worker.process.join(max(0.0, limit - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()
        worker.process.close()


def _work(pipe: "Connection[Any, Any]", data: Path, folder: Path, limits: Limits) -> None:
    """Train the runs that arrive through the pipe; a worker's main function."""
    halt = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the main process, which then ends this one
    signal.signal(signal.SIGTERM, lambda *_: halt.set())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    examples = Dataset.open(data)
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while not halt.is_set():
            run: Run = pipe.recv()
            pipe.send(attempt(run, lambda: examples, folder / run.key, limits, pipe.send, halt.is_set))


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
