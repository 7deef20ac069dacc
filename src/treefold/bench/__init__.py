"""Benchmarks: how fast, in how much memory, against what; `treefold bench` runs them.

`clock` times ways against each other · `cases` are the data and models, `ways` and `rival` what is timed · `speed`, `phases`,
`growth`, `processes`, `roofline` are the suites · `claims` names the figures that the project answers for · `suites` runs.
"""

from treefold.bench.options import Options
from treefold.bench.suites import DEFAULT, SUITES, Report, run

__all__ = ["DEFAULT", "SUITES", "Options", "Report", "run"]
