"""Sweeps on ray; a cluster is started and ended for them."""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sweeps import tiny
from treefold.errors import ConfigurationError
from treefold.sweeps import ray
from treefold.sweeps.grid import read_grid
from treefold.sweeps.plan import plan
from treefold.sweeps.run import Limits, execute

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


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"--on ray needs the package ray; pip install 'treefold\[ray\]'"):
        ray.Ray(1, None)
