"""From folders of sweeps to a folder with a report."""

from collections.abc import Sequence
from pathlib import Path

from treefold.errors import FileError
from treefold.files import atomic_file
from treefold.sweeps.reporting.document import Report, compose
from treefold.sweeps.reporting.latex import to_latex
from treefold.sweeps.reporting.markdown import to_markdown
from treefold.sweeps.reporting.page import to_html
from treefold.sweeps.reporting.plotting import require_matplotlib
from treefold.sweeps.reporting.records import gather


def write_report(folders: Sequence[Path], out: Path | None = None) -> tuple[Report, list[Path]]:
    """Read the results of sweeps and write their report into ``out``; return it with the files that were written.

    Without ``out`` it is the folder ``report`` in the first sweep. Each file is written whole; other files stay. The same
    results give the same bytes.
    """
    require_matplotlib()
    gathered = gather(folders)
    out = folders[0] / "report" if out is None else out
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError(
            f"{out}: expected a folder to write the report into, got {problem.strerror or problem}; choose another with --out."
        ) from None
    report = compose(gathered)
    files: dict[str, bytes] = {
        "report.md": to_markdown(report).encode(),
        "report.tex": to_latex(report).encode(),
        "report.html": to_html(report).encode(),
    }
    for figure in report.figures:
        files[f"{figure.name}.png"] = figure.images.png
        files[f"{figure.name}.svg"] = figure.images.svg.encode()
    for name, content in files.items():
        with atomic_file(out / name) as file:
            file.write(content)
    return report, [out / name for name in files]
