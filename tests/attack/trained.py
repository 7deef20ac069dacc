"""Imported by the process from which `kill` forks commands: it has trained, so that modules and kernels are loaded."""

import tempfile
from pathlib import Path

from treefold.cli import sweep, train  # noqa: F401  # which commands import when they are called
from treefold.data.generators import make_listops
from treefold.data.generators.listops import ListOpsSettings
from treefold.training import run
from treefold.training.settings import RunSettings

with tempfile.TemporaryDirectory() as folder:
    small = RunSettings.of({"model": {"state_size": 3}, "training": {"epochs": 1, "threads": 1}})
    run.train(make_listops(200, settings=ListOpsSettings(max_nodes=40)), Path(folder, "run"), small)
