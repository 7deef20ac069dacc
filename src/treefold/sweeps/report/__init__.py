"""Report on the results of sweeps as HTML, Markdown and LaTeX, with figures.

- `summary`: reads results, averages them over seeds, and builds tables.
- `figures`: the figures, as PNG and SVG.
- `advice`: what to try next.
- `document`: the content of a report, and `write_report`.
- `formats`: the document as HTML, Markdown and LaTeX.

In a notebook, ``compose(gather([folder]), figures=False)`` shows the results of a sweep.
"""

from treefold.sweeps.report.document import Document, compose, require_report_folder, write_report
from treefold.sweeps.report.figures import require_matplotlib
from treefold.sweeps.report.summary import gather

__all__ = ["Document", "compose", "gather", "require_matplotlib", "require_report_folder", "write_report"]
