"""Runs on a ray cluster: the same runs, as tasks. Data go to each machine once; the files of a run come back with its result."""

import fcntl
import hashlib
import importlib
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from treefold.errors import ConfigurationError, TreefoldError
from treefold.files import atomic_folder
from treefold.sweeps.events import Died, Event, Failed, Finished, Progressed, Started, Unstarted
from treefold.sweeps.planning import Run
from treefold.sweeps.running import Limits

_RETRIES: Final = 2
_SECONDS_TO_REACH: Final = 3.0
_SECONDS_TO_ANSWER: Final = 11.0
_PROBE: Final = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
_DATA_FILES: Final = ("dataset.json", "vocabulary.json", "examples.columns", "trees.forest")


class _Packed(NamedTuple):
    """The files of a data set in the object store, and a digest of what is in them."""

    files: list[Any]  # one reference: in a list, it is not fetched before it is needed
    digest: str


@final
class Ray:
    """An engine of ray tasks: on the cluster at an address, or on one of its own, here."""

    def __init__(self, workers: int, address: str | None) -> None:
        self._ray = _import_ray()
        self._workers, self._address = workers, address
        if address is not None:
            _require_answer(address)

    def events(self, runs: Sequence[Run], data: Path, folder: Path, limits: Limits) -> Generator[Event, None, None]:
        """Do the runs, and tell what happens; ray takes the run of a process that died up again."""
        if not runs:
            return
        ray = self._ray
        options: dict[str, Any] = {} if self._address else {"num_cpus": self._workers, "include_dashboard": False}
        ray.init(address=self._address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
        try:
            board = ray.remote(num_cpus=0)(_Board).remote()
            packed = _pack(ray, data)
            task = ray.remote(max_retries=_RETRIES)(_task)
            pending = {
                task.options(num_cpus=run.settings.training.threads or 1).remote(run, packed, limits, board): run
                for run in runs
            }
            begun: dict[str, int] = {}
            while pending:
                ready, _ = ray.wait(list(pending), timeout=1.0)
                for key, facts in ray.get(board.drain.remote()):
                    run = next((each for each in pending.values() if each.key == key), None)
                    if run is not None:
                        yield from _told(run, facts, begun)
                for reference in ready:
                    yield _ended(ray, pending.pop(reference), reference)
        finally:
            ray.shutdown()  # ends the tasks of this sweep, and the cluster if it is of our own


def _told(run: Run, facts: dict[str, Any], begun: dict[str, int]) -> Generator[Event, None, None]:
    if "process" not in facts:
        yield Progressed(run, **facts)
        return
    if begun.get(run.key):
        yield Died(run, begun[run.key])
    begun[run.key] = begun.get(run.key, 0) + 1
    yield Started(run, facts["process"])


def _ended(ray: Any, run: Run, reference: Any) -> Event:
    try:
        what, value, files = ray.get(reference)
    except ray.exceptions.RayError as problem:  # not of the run itself, whose errors come as values
        return Failed(run, f"ray gave it up: {str(problem).strip().splitlines()[0]}")
    if what == "failed":
        return Failed(run, value)
    return Unstarted(run) if value is None else Finished(run, value, files)


class _Board:
    """Where tasks leave word for the main process; an actor."""

    def __init__(self) -> None:
        self._notes: list[tuple[str, dict[str, Any]]] = []

    def add(self, key: str, facts: dict[str, Any]) -> None:
        self._notes.append((key, facts))

    def drain(self) -> list[tuple[str, dict[str, Any]]]:
        notes, self._notes = self._notes, []
        return notes


def _task(run: Run, packed: _Packed, limits: Limits, board: Any) -> tuple[str, Any, dict[str, bytes]]:
    """Do a run in the cache folder of this machine, where it goes on when its process died before; return its files."""
    from treefold.data.dataset import Dataset
    from treefold.sweeps.running import execute
    from treefold.training.run import CHECKPOINT

    board.add.remote(run.key, {"process": os.getpid()})
    folder = _cache() / "runs" / run.key
    try:
        data = Dataset.open(_unpack(packed))
        result = execute(run, data, folder, limits, lambda facts: board.add.remote(run.key, facts))
    except TreefoldError as problem:
        return "failed", str(problem), {}
    except Exception as problem:  # whatever it is, the other runs can be done
        return "failed", f"{type(problem).__name__}: {problem}", {}
    if result is None:
        return "result", None, {}
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != CHECKPOINT}
    if "stopped" not in result:  # else a larger budget goes on from the checkpoint, on this machine
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f".{run.key}.lock").unlink(missing_ok=True)
    return "result", result, files


def _pack(ray: Any, data: Path) -> _Packed:
    files = {name: (data / name).read_bytes() for name in _DATA_FILES}
    digest = hashlib.blake2b(digest_size=16)
    for content in files.values():
        digest.update(content)
    return _Packed([ray.put(files)], digest.hexdigest())


def _unpack(packed: _Packed) -> Path:
    """Return the data set's folder on this machine, which the first task here makes."""
    folder = _cache() / "data" / packed.digest
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{packed.digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            files: dict[str, bytes] = _import_ray().get(packed.files[0])
            with atomic_folder(folder) as place:
                for name, content in files.items():
                    (place / name).write_bytes(content)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "treefold" / "sweeps"


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigurationError(
            "--on ray expects the package ray, got none; pip install 'treefold[ray]', or use --on local."
        ) from None


def _require_answer(address: str) -> None:
    """Raise unless a ray cluster answers; asked by a process of its own, since ray may wait long, or end its process."""
    remedy = "start one with `ray start --head`, or leave --address out for one of this machine's own."
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not host or not port.isdecimal():
            raise ConfigurationError(f"--address expects HOST:PORT, ray://HOST:PORT or auto, got {address!r}.")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_REACH).close()
        except (OSError, OverflowError) as problem:
            raise ConfigurationError(
                f"--address expects a ray cluster that answers, got {problem} at {address!r}; {remedy}"
            ) from None
    command = [sys.executable, "-P", "-c", _PROBE, address]  # -P: a ray.py in the working directory is not ours
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS_TO_ANSWER, check=False)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode != 0:
        raise ConfigurationError(f"--address expects a ray cluster that answers, got none at {address!r}; {remedy}")
