"""Sweeps on ray; a cluster is started and ended for them."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps import tiny
from treefold.errors import ConfigurationError
from treefold.sweeps import ray
from treefold.sweeps.grid import Budget, read_grid
from treefold.sweeps.plan import Run, plan
from treefold.sweeps.results import RESULTS, Results
from treefold.sweeps.run import Died, Event, Failed, Limits, Progressed, Started, execute, sweep

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: treefold[ray]")

GRID = """
name = "ray"
seeds = [0, 1]
[training]
epochs = 40
patience = "none"
[[models]]
kind = "Sum"
aggregator = "sum"
state_size = 3
"""


@needs_ray
def test_a_worker_killed_in_the_middle_leaves_the_results_as_they_are_elsewhere(tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID)
    runs = plan(read_grid(grid), tiny.data(), "grid")
    expected = [execute(run, tiny.data(), tmp_path / run.key, Limits(), lambda event: None) for run in runs]
    options = ["--data", str(tiny.data_folder()), "--workers", "1", "--on", "ray"]
    command = [sys.executable, "-m", "treefold", "sweep", str(grid), "--out", str(out), *options]
    cache = tmp_path / "cache"
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "XDG_CACHE_HOME": str(cache), "COLUMNS": "200"}
    )
    assert process.stderr is not None
    worker = 0
    while not worker:
        line = process.stderr.readline()
        assert line, "the sweep ended before a run started"
        worker = int(found[1]) if (found := re.search(r"started .*\(process (\d+)\)", line)) else 0
    while not any(cache.glob("treefold/sweeps/runs/*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(worker, signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0 and "its process died; it continues from its checkpoint" in said, said
    assert tiny.lines(out / "results.jsonl") == sorted(
        (tiny.comparable(result) for result in expected if result is not None), key=lambda line: str(line["key"])
    )
    for run in runs:
        names = {path.name for path in (out / "runs" / run.key).iterdir()}
        assert names == {"config.toml", "environment.json", "metrics.jsonl", "model.safetensors", "vocabulary.json"}
        assert (out / "runs" / run.key / "model.safetensors").read_bytes() == (
            tmp_path / run.key / "model.safetensors"
        ).read_bytes()
    assert len(list(cache.glob("treefold/sweeps/data/*/trees.forest"))) == 1
    assert not list(cache.glob("treefold/sweeps/runs/*"))


@needs_ray
@pytest.mark.parametrize("listening", [False, True])
def test_an_address_that_does_not_answer_is_an_error_and_no_wait(
    listening: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process listens at the address, or one that never answers."""
    assert ray._SECONDS_TO_REACH + ray._SECONDS_TO_ANSWER < 15
    monkeypatch.setattr(ray, "_SECONDS_TO_ANSWER", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not listening:
            server.close()
        with pytest.raises(ConfigurationError, match=f"expects a running Ray cluster, .* at '{address}'; start one"):
            ray._require_answer(address)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expects HOST:PORT, ray://HOST:PORT or auto, got 'cluster'"):
        ray._require_answer("cluster")
    with pytest.raises(ConfigurationError, match="expects a running Ray cluster, got Exceeds the limit"):
        ray._require_answer(f"localhost:{'9' * 5000}")


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"--on ray needs the package ray; pip install 'treefold\[ray\]'"):
        ray.Ray(1, None)


class FakeRay(types.ModuleType):
    """Runs tasks at once, in this process; the first task of ``dying`` is repeated, as Ray does if its process dies."""

    def __init__(self, dying: str = "") -> None:
        super().__init__("ray")
        self.dying, self.exceptions = dying, types.SimpleNamespace(RayError=RuntimeError)

    def init(self, **options: Any) -> None: ...

    def shutdown(self) -> None: ...

    def put(self, value: Any) -> Any:
        return value

    def get(self, value: Any) -> Any:
        return value.outcome if isinstance(value, Reference) else value

    def wait(self, pending: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return pending[:1], pending[1:]

    def remote(self, **options: Any) -> Any:
        return lambda target: Actor(target) if isinstance(target, type) else Task(target, self)


class Reference:
    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome


class Task:
    def __init__(self, function: Any, fake: FakeRay) -> None:
        self.function, self.fake = function, fake

    def options(self, **options: Any) -> "Task":
        return self

    def remote(self, run: Run, *arguments: Any) -> Reference:
        if run.key == self.fake.dying:
            self.function(run, *arguments)
        return Reference(self.function(run, *arguments))


class Actor:
    """An actor whose methods have a method ``remote``."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def remote(self) -> Any:
        actor = self.kind()
        names = [name for name in vars(self.kind) if not name.startswith("_")]
        return types.SimpleNamespace(**{name: types.SimpleNamespace(remote=getattr(actor, name)) for name in names})


def test_the_engine_yields_the_events_of_its_tasks_and_the_files_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tiny.runs()[:2]
    monkeypatch.setitem(sys.modules, "ray", FakeRay(dying=runs[1].key))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    results = Results.read(tmp_path / RESULTS)
    events: list[Event] = []
    sweep(runs, results, tiny.data_folder(), tmp_path, ray.Ray(1, None), Budget(), events.append)
    assert tiny.lines(tmp_path / RESULTS) == sorted(map(tiny.expected, range(2)), key=lambda line: str(line["key"]))
    started = [(type(event), event.run.key) for event in events if isinstance(event, (Started, Died))]
    first, second = (run.key for run in runs)
    assert started == [(Started, first), (Started, second), (Died, second), (Started, second)]
    assert {event.epoch for event in events if isinstance(event, Progressed)} == {1, 2, 3}
    names = {path.name for path in (tmp_path / "runs" / first).iterdir()}
    assert names == {"config.toml", "environment.json", "metrics.jsonl", "model.safetensors", "vocabulary.json"}
    assert not list((tmp_path / "cache" / "treefold" / "sweeps" / "runs").iterdir())


def test_a_task_that_ray_cannot_run_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()

    def lost(value: Any) -> Any:
        if isinstance(value, Reference):
            raise RuntimeError("the machine is gone\nmore")
        return value

    monkeypatch.setattr(fake, "get", lost)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    events = list(ray.Ray(1, None).events(tiny.runs()[:1], tiny.data_folder(), tmp_path, Limits()))
    assert isinstance(events[-1], Failed) and events[-1].message == "Ray could not run it: the machine is gone"
