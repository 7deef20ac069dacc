"""A process that runs cases, so that a segmentation fault or a hang is a finding and not the end."""

import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.attack.case import HANG, SIGNAL, Outcome, outcome_of, random_for

_INPUT: Final = "input"
_MORE_MEMORY: Final = 4 * 2**30  # for a case: absurd sizes must not fill the machine
_SECONDS_TO_START: Final = 600


class Child:
    """Runs cases in one process after the other; a process that dies or hangs is replaced."""

    def __init__(self, seconds: float = 120) -> None:
        self._seconds = seconds
        self._place = Path(tempfile.mkdtemp(prefix="treefold-attack-"))
        self._process: Any = None
        self._pipe: Any = None

    def outcomes(self, target: str, seed: int, numbers: range) -> Iterator[tuple[int, Outcome, bytes]]:
        """Yield the outcome of each case, and its input."""
        waiting = list(numbers)
        while waiting:
            self._ask(("numbers", target, seed, waiting))
            while waiting:
                outcome, data = self._answer()
                yield waiting[0], outcome, data
                del waiting[0]
                if outcome.kind in (SIGNAL, HANG):
                    break

    def repeat(self, target: str, data: bytes) -> Outcome:
        """Run one input again."""
        (self._place / _INPUT).write_bytes(data)
        self._ask(("input", target, 0, []))
        return self._answer()[0]

    def close(self) -> None:
        """End the process and remove its files."""
        self._end()
        shutil.rmtree(self._place, ignore_errors=True)

    def _ask(self, question: tuple[str, str, int, list[int]]) -> None:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_work, args=(theirs, self._place), daemon=True)
            self._process.start()
            theirs.close()
            assert self._pipe.poll(_SECONDS_TO_START) and self._pipe.recv() == "ready"
        self._pipe.send(question)

    def _answer(self) -> tuple[Outcome, bytes]:
        """Return an outcome with its input: of a process that died or hangs, what the file has."""
        try:
            if self._pipe.poll(self._seconds):
                found: tuple[Outcome, bytes] = self._pipe.recv()
                return found
            outcome = Outcome(HANG, f"no outcome within {self._seconds:g} s")
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            outcome = Outcome(SIGNAL, signal.Signals(-code).name if code < 0 else f"the process ended with {code}")
        data = (self._place / _INPUT).read_bytes()
        self._end()
        return outcome, data

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def _work(pipe: "Connection[Any, Any]", place: Path) -> None:
    import torch

    from tests.attack.files import originals
    from tests.attack.targets import TARGETS

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    originals()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folder = place / "folder"
    pipe.send("ready")
    while True:
        try:
            way, name, seed, numbers = pipe.recv()
        except EOFError:
            break
        for number in numbers if way == "numbers" else [None]:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            os.chdir(folder)
            if number is not None:
                (place / _INPUT).write_bytes(TARGETS[name].make(random_for(name, seed, number)))
            data = (place / _INPUT).read_bytes()
            pipe.send((outcome_of(TARGETS[name], data, folder), data))
    shutil.rmtree(originals(), ignore_errors=True)
