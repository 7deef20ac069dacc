"""Experiments: grids of configurations, run side by side, each keyed by its content and never run twice."""

from treefold.sweeps.grid import Grid, read_grid
from treefold.sweeps.results import RunResult, read_results

__all__ = ["Grid", "RunResult", "read_grid", "read_results"]
