"""Experiments: grids of configurations, run side by side, each keyed by its content and never run twice."""

from treefold.experiments.grid import Grid, read_grid
from treefold.experiments.results import RunResult, read_results

__all__ = ["Grid", "RunResult", "read_grid", "read_results"]
