"""Kill trainings and sweeps at random times, resume them to the end, and compare with undisturbed ones, byte for byte.

`make kill RUNS=200`, or `python -m tests.attack.kill --runs 200 --seed 0`; also a full disk, a folder that is removed, two starts at once.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.attack.case import versions

_TIMES: Final = ("seconds", "processor_seconds", "examples_per_second")
_SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_GRID: Final = """name = "killed"
seeds = [0, 1]
[training]
epochs = 60
batch_size = 20
checkpoint_minutes = 0.0001
[[models]]
kind = "Sum"
aggregator = "sum"
state_size = 3
"""
_KINDS: Final = ("run", "run", "run", "sweep")  # a sweep takes several times as long
_LONG: Final = 600
_MOST_KILLS: Final = 12
_NEW: Final = 0.1  # the share of commands that start a new Python; it imports modules for longer than a training takes
_SKIPPED: Final = "SKIPPED"


class Command:
    """A command that runs: in a new Python, or in a fork of a process that has trained."""

    def __init__(self, words: list[str], folder: Path, *, is_new: bool) -> None:
        handle, name = tempfile.mkstemp(dir=folder, prefix="said ")
        self._said = Path(name)
        self._process: Any
        if is_new:
            command = [sys.executable, "-m", "treefold", *words]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=handle, start_new_session=True
            )
        else:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["tests.attack.trained"])
            self._process = context.Process(target=_run_forked, args=(words, folder, self._said))
            self._process.start()
        os.close(handle)
        self.pid: int = self._process.pid

    def code(self, seconds: float = 0) -> int | None:
        """Wait so long at most for the end, and return the exit code, or None while the command runs."""
        if isinstance(self._process, subprocess.Popen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            return self._process.returncode
        self._process.join(seconds)
        found: int | None = self._process.exitcode
        return found

    def end(self) -> tuple[int, str]:
        """Wait for the end, and return the exit code and what was written to stderr."""
        code = self.code(_LONG)
        if code is None:
            self._process.kill()
            raise TimeoutError(f"a command did not end within {_LONG} s")
        said = self._said.read_text()
        self._said.unlink()
        return code, said


def _run_forked(words: list[str], folder: Path, said: Path) -> None:
    """Be `python -m treefold` in a forked process."""
    os.setsid()
    os.chdir(folder)
    for number, name in ((1, os.devnull), (2, str(said))):
        os.dup2(os.open(name, os.O_WRONLY), number)
    sys.argv = ["treefold", *words]
    code = 1
    try:
        runpy.run_module("treefold", run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class Place:
    """The data of the runs, and the undisturbed outcomes; ``seconds`` is how long each kind of run takes."""

    def __init__(self, folder: Path, kinds: Iterable[str], rng: random.Random) -> None:
        self.folder, self._rng, self._new_share = folder, rng, 0.0
        _done(self.start("data", "listops", "--size", 200, "--max-nodes", 40, "--out", folder / "data"))
        (folder / "grid.toml").write_text(_GRID)
        self.seconds: dict[str, float] = {}
        for kind in kinds:
            began = time.monotonic()
            _done(self.go(kind, f"whole {kind}"))
            self.seconds[kind] = time.monotonic() - began
        self._new_share = _NEW

    def start(self, *words: object) -> Command:
        """Start a command in a process group of its own."""
        return Command(list(map(str, words)), self.folder, is_new=self._rng.random() < self._new_share)

    def go(self, kind: str, name: str) -> Command:
        """Start a training or a sweep, or resume it."""
        return self.train(name) if kind == "run" else self.sweep(name)

    def train(self, name: str, *more: str) -> Command:
        """Start a training, or resume it."""
        run = self.folder / name
        if (run / "checkpoint.safetensors").is_file():
            return self.start("train", self.folder / "data", "--out", run, "--resume")
        shutil.rmtree(run, ignore_errors=True)  # killed before it was a run
        settings = ("epochs=60", "state_size=3", "patience=none", "checkpoint_minutes=0.0001", *more)
        return self.start(
            "train", self.folder / "data", "--out", run, *(word for each in settings for word in ("--set", each))
        )

    def sweep(self, name: str) -> Command:
        """Start a sweep, or resume it."""
        folder = self.folder
        return self.start(
            "sweep", folder / "grid.toml", "--data", folder / "data", "--out", folder / name, "--workers", 2
        )

    def outcome(self, name: str) -> Any:
        """Return what must be equal: weights as bytes, metrics and results without times."""
        folder = self.folder / name
        if (folder / "results.jsonl").is_file():
            lines = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
            return sorted(json.dumps({key: line[key] for key in line if key not in _TIMES}) for line in lines)
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        kept = [{key: value for key, value in line.items() if key not in _TIMES} for line in metrics]
        return (folder / "model.safetensors").read_bytes(), kept


def interrupted(place: Place, kind: str, rng: random.Random, kills: Counter[str]) -> str:
    """Kill a run one to twelve times, finish it, and return what is wrong with its outcome, or an empty text."""
    name = f"killed {kind}"
    shutil.rmtree(place.folder / name, ignore_errors=True)
    for _ in range(rng.randint(1, _MOST_KILLS)):
        process = place.go(kind, name)
        code = process.code(rng.random() * place.seconds[kind] / 2)
        worker = rng.choice(_children(process.pid) or [None]) if kind == "sweep" and rng.random() < 0.5 else None
        how = rng.choice(_SIGNALS)
        if code is None:
            with contextlib.suppress(ProcessLookupError):  # a worker may have ended
                os.kill(worker or process.pid, how)
                kills[f"{how.name} to a {'worker' if worker else kind}"] += 1
        code, said = process.end()
        if "Traceback" in said or "internal error" in said:
            return f"{how.name}: {said[max(0, said.find('Traceback') - 300) :][:1500]}"
        if not code:  # it has come to its end: there is nothing left to kill
            break
    code, said = place.go(kind, name).end()
    if code:
        return f"resuming ended with {code}: {said[-300:]}"
    return "" if place.outcome(name) == place.outcome(f"whole {kind}") else "another outcome than undisturbed"


def two_at_once(place: Place) -> str:
    """Start a training twice; one of them must say that the other works, or that the name is taken."""
    shutil.rmtree(place.folder / "twice", ignore_errors=True)
    ended = [process.end() for process in [place.train("twice") for _ in range(2)]]
    if sorted(code for code, _ in ended) != [0, 2]:
        return f"exit codes and messages: {ended}"
    return "" if place.outcome("twice") == place.outcome("whole run") else "another outcome than alone"


def folder_removed(place: Place) -> str:
    """Remove the folder under a training: one error, no traceback."""
    process = place.train("removed", "epochs=20000")
    while process.code() is None and not (place.folder / "removed" / "metrics.jsonl").exists():
        time.sleep(0.05)
    (place.folder / "removed").rename(place.folder / "gone")  # at once, while files are being written
    shutil.rmtree(place.folder / "gone", ignore_errors=True)
    return _one_error(process)


def disk_full(place: Place) -> str:
    """Train on a file system that is full after a while: one error; with more space, the run goes on."""
    disk = place.folder / "disk"
    disk.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True).returncode:
        return f"{_SKIPPED}: a small tmpfs needs root"
    try:
        process = place.train("disk/run")
        while process.code() is None and not (disk / "run" / "metrics.jsonl").exists():
            time.sleep(0.02)
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(2**12)):
                pass
        problem = _one_error(process)
        if problem:
            return problem
        (disk / "filler").unlink()
        code, said = place.train("disk/run").end()
        if code:
            return f"resuming ended with {code}: {said[-300:]}"
        return "" if place.outcome("disk/run") == place.outcome("whole run") else "another outcome than undisturbed"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def _one_error(process: Command) -> str:
    """Return what is wrong unless a command ends with one error."""
    code, said = process.end()
    errors = [line for line in said.splitlines() if line.startswith("error:")]
    fine = code in (1, 2) and len(errors) == 1 and "internal" not in said and "Traceback" not in said
    return "" if fine else f"{code}: {said[-300:]}"


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        return [int(word) for task in tasks for word in task.read_text().split()]
    except OSError:  # it has just ended
        return []


def _done(process: Command) -> None:
    code, said = process.end()
    assert code == 0, f"exit code {code}: {said[-300:]}"


def attack(runs: int, seed: int, kinds: tuple[str, ...] = _KINDS, *, others: bool = True) -> Iterator[dict[str, Any]]:
    """Disturb as many runs; yield counts and findings after each of them."""
    rng, counts, kills, findings = random.Random(seed), Counter[str](), Counter[str](), list[str]()
    checks = {"two at once": two_at_once, "folder removed": folder_removed, "disk full": disk_full} if others else {}
    with tempfile.TemporaryDirectory(prefix="treefold-kill-") as folder:
        place = Place(Path(folder), dict.fromkeys(("run", *kinds)), rng)
        for number in range(-len(checks), runs):
            if number < 0:
                name = list(checks)[number]
                problem = checks[name](place)
            else:
                name = kinds[number % len(kinds)]
                problem = interrupted(place, name, rng, kills)
            is_skipped = problem.startswith(_SKIPPED)
            counts[f"{name}, {problem}" if is_skipped else name] += 1
            if problem and not is_skipped:
                findings.append(f"{name} {number}: {problem}")
            yield {
                "seed": seed,
                "counts": dict(counts),
                "kills": {"all": kills.total(), **dict(sorted(kills.items()))},
                "findings": findings,
                "versions": versions(),
            }


def main() -> int:
    """Kill, print the counts, and exit with 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.kill", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("run", "sweep"), help="only trainings, or only sweeps")
    parser.add_argument("--out", type=Path, help="a JSON file for the counts; it is written after each run")
    options = parser.parse_args()
    found: dict[str, Any] = {"findings": []}
    kinds = (options.only,) if options.only else _KINDS
    for found in attack(options.runs, options.seed, kinds):
        if options.out is not None:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return int(bool(found["findings"]))


if __name__ == "__main__":
    sys.exit(main())
