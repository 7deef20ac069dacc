"""Report on the results of sweeps as HTML, Markdown and LaTeX, with figures.

- `summary`: reads results, averages them over seeds, and builds tables.
- `figures`: the figures, as PNG and SVG.
- `document`: the content of a report, and `write_report`.
- `formats`: the document as HTML, Markdown and LaTeX.
"""

from treefold.sweeps.report.document import Document, compose, write_report

__all__ = ["Document", "compose", "write_report"]
