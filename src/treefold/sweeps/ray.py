"""Train runs as tasks on a Ray cluster. Data are copied to each machine once; a run's files return with its result."""

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
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError
from treefold.files import atomic_folder
from treefold.sweeps.plan import Run
from treefold.sweeps.run import Died, Event, Failed, Finished, Limits, Started, Unstarted, attempt
from treefold.training.run import CHECKPOINT

_RETRIES: Final = 2
_SECONDS_TO_REACH: Final = 3.0
_SECONDS_TO_ANSWER: Final = 11.0
_PROBE: Final = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
_DATA_FILES: Final = ("dataset.json", "vocabulary.json", "examples.columns", "trees.forest")


class _Packed(NamedTuple):
    """The files of a data set in the object store, and a digest of their content."""

    files: list[Any]  # one reference; inside a list, Ray does not fetch it before the task asks for it
    digest: str


@final
class Ray:
    """An engine of Ray tasks, on the cluster at an address or on a new cluster on this machine."""

    def __init__(self, workers: int, address: str | None) -> None:
        self._ray = _import_ray()
        self._workers, self._address = workers, address
        if address is not None:
            _require_answer(address)

    def events(self, runs: Sequence[Run], data: Path, folder: Path, limits: Limits) -> Generator[Event, None, None]:
        """Train the runs and yield events; if a process dies, Ray repeats its task, which resumes the run."""
        if not runs:
            return
        ray = self._ray
        options: dict[str, Any] = {} if self._address else {"num_cpus": self._workers, "include_dashboard": False}
        ray.init(address=self._address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
        try:
            events = ray.remote(num_cpus=0)(_Events).remote()
            packed = _pack(ray, data)
            task = ray.remote(max_retries=_RETRIES)(_task)
            pending = {
                task.options(num_cpus=run.settings.training.threads or 1).remote(run, packed, limits, events): run
                for run in runs
            }
            starts: dict[str, int] = {}
            while pending:
                ready, _ = ray.wait(list(pending), timeout=1.0)
                running = {run.key for run in pending.values()}
                for event in ray.get(events.drain.remote()):
                    if event.run.key not in running:
                        continue
                    if isinstance(event, Started):
                        if event.run.key in starts:
                            yield Died(event.run, starts[event.run.key])
                        starts[event.run.key] = starts.get(event.run.key, 0) + 1
                    yield event
                for reference in ready:
                    yield _outcome(ray, pending.pop(reference), reference)
        finally:
            ray.shutdown()  # ends the tasks of this sweep, and the cluster if this engine started it


def _outcome(ray: Any, run: Run, reference: Any) -> Event:
    try:
        event: Event = ray.get(reference)
    except ray.exceptions.RayError as problem:  # errors of the run itself arrive as `Failed`
        return Failed(run, f"Ray could not run it: {str(problem).strip().splitlines()[0]}")
    return event


class _Events:
    """An actor that collects the events of tasks for the main process."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def add(self, event: Event) -> None:
        self._events.append(event)

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _task(run: Run, packed: _Packed, limits: Limits, events: Any) -> Finished | Failed | Unstarted:
    """Train or resume a run in the cache folder of this machine; return its outcome with its files."""
    events.add.remote(Started(run, os.getpid()))
    folder = _cache() / "runs" / run.key
    outcome = attempt(run, lambda: Dataset.open(_unpack(packed)), folder, limits, events.add.remote)
    if not isinstance(outcome, Finished):
        return outcome
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != CHECKPOINT}
    if "stopped" not in outcome.result:  # else a larger budget resumes from the checkpoint on this machine
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f".{run.key}.lock").unlink(missing_ok=True)
    return replace(outcome, files=files)


def _pack(ray: Any, data: Path) -> _Packed:
    files = {name: (data / name).read_bytes() for name in _DATA_FILES}
    digest = hashlib.blake2b(digest_size=16)
    for content in files.values():
        digest.update(content)
    return _Packed([ray.put(files)], digest.hexdigest())


def _unpack(packed: _Packed) -> Path:
    """Return the data set's folder on this machine; the first task here creates it."""
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
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigurationError(
            "--on ray needs the package ray; pip install 'treefold[ray]', or use --on local."
        ) from None


def _require_answer(address: str) -> None:
    """Raise unless a Ray cluster answers. A separate process asks, because Ray may wait long or end its process."""
    remedy = "start one with `ray start --head`, or leave --address out to start one on this machine."
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto":
        if not host or not port.isdecimal():
            raise ConfigurationError(f"--address expects HOST:PORT, ray://HOST:PORT or auto, got {address!r}.")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_REACH).close()
        except (OSError, OverflowError, ValueError) as problem:
            raise ConfigurationError(
                f"--address expects a running Ray cluster, got {problem} at {address!r}; {remedy}"
            ) from None
    command = [sys.executable, "-P", "-c", _PROBE, address]  # -P: a ray.py in the working directory is not ours
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS_TO_ANSWER, check=False)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode != 0:
        raise ConfigurationError(f"--address expects a running Ray cluster, but none answers at {address!r}; {remedy}")
