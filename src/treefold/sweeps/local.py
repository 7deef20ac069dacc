"""Runs side by side on this machine: processes of their own, each with a pipe to the main process."""

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
from treefold.errors import TreefoldError
from treefold.sweeps.events import Died, Event, Failed, Finished, Progressed, Started, Unstarted
from treefold.sweeps.planning import Run
from treefold.sweeps.running import Limits, execute

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
    """An engine of spawned processes; a process that dies is replaced, and its run goes on from its checkpoint."""

    def __init__(self, workers: int) -> None:
        self._count = workers

    def events(self, runs: Sequence[Run], data: Path, folder: Path, limits: Limits) -> Generator[Event, None, None]:
        """Do the runs, and tell what happens; closing the iterator ends the workers, and leaves all resumable."""
        waiting, attempts = deque(runs), dict.fromkeys((run.key for run in runs), 0)
        workers: list[_Worker] = []
        try:
            workers += [_start(data, folder, limits) for _ in range(min(self._count, len(runs)))]
            while waiting or any(worker.run for worker in workers):
                for worker in workers:
                    if worker.run is None and waiting:
                        worker.run = waiting.popleft()
                        attempts[worker.run.key] += 1
                        with contextlib.suppress(OSError):  # it is dead, which is seen below
                            worker.pipe.send(worker.run)
                        yield Started(worker.run, worker.process.pid or 0)
                for pipe in connection.wait([worker.pipe for worker in workers if worker.run], timeout=1.0):
                    worker = next(each for each in workers if each.pipe is pipe)
                    run = worker.run
                    assert run is not None
                    try:
                        event = _event(run, worker.pipe.recv())
                    except (EOFError, OSError):
                        workers[workers.index(worker)] = _replacement(worker, data, folder, limits)
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


def _event(run: Run, message: tuple[str, Any]) -> Event:
    what, value = message
    if what == "progress":
        return Progressed(run, **value)
    if what == "failed":
        return Failed(run, value)
    return Unstarted(run) if value is None else Finished(run, value)


def _start(data: Path, folder: Path, limits: Limits) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, str(data), str(folder), limits), daemon=True)
    with _safe_imports():
        process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
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


def _replacement(worker: _Worker, data: Path, folder: Path, limits: Limits) -> _Worker:
    _end([worker])
    return _start(data, folder, limits)


def _end(workers: Sequence[_Worker]) -> None:
    """Ask the workers to write a checkpoint and end; those that do not are killed."""
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


def _work(pipe: "Connection[Any, Any]", data: str, folder: str, limits: Limits) -> None:
    """Do the runs that come through the pipe: the life of a worker."""
    halt = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which then ends this one
    signal.signal(signal.SIGTERM, lambda *_: halt.set())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    examples = Dataset.open(data)

    def tell(facts: dict[str, Any]) -> None:
        pipe.send(("progress", facts))

    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while not halt.is_set():
            run: Run = pipe.recv()
            try:
                answer: tuple[str, Any] = (
                    "result",
                    execute(run, examples, Path(folder) / run.key, limits, tell, halt.is_set),
                )
            except BrokenPipeError:
                raise
            except TreefoldError as problem:
                answer = "failed", str(problem)
            except Exception as problem:  # whatever it is, the other runs can be done
                answer = "failed", f"{type(problem).__name__}: {problem}"
            pipe.send(answer)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
