"""Train a grid of configurations in parallel, and report on the results.

- `grid`: the TOML file that lists configurations, data and seeds.
- `plan`: the runs that a grid needs, each with its key, its model's size and its cost.
- `run`: trains and evaluates one run, and drives all runs of a sweep through an engine.
- `local`, `ray`: the engines, processes on this machine or tasks on a Ray cluster.
- `results`: the file ``results.jsonl``, one line for each finished run.
- `report`: tables and figures of the results as HTML, Markdown and LaTeX.
"""

from treefold.sweeps.grid import Grid, read_grid
from treefold.sweeps.results import RunResult, read_results

__all__ = ["Grid", "RunResult", "read_grid", "read_results"]
