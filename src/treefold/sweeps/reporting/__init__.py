"""Reports on the results of sweeps: the paper's tables with ours beside, figures, as Markdown, LaTeX and HTML."""

from treefold.sweeps.reporting.document import Report, compose
from treefold.sweeps.reporting.writing import write_report

__all__ = ["Report", "compose", "write_report"]
