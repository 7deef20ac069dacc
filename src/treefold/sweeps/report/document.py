"""The content of a report, and the function that writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from treefold.errors import FileError
from treefold.files import atomic_file
from treefold.sweeps.report.figures import Figure, figures_of, require_matplotlib, studies_of
from treefold.sweeps.report.formats import to_html, to_latex, to_markdown
from treefold.sweeps.report.summary import Data, Gathered, Summary, Table, best, gather, summarise, summary_table
from treefold.sweeps.results import RunResult

_LEGEND: Final = (
    "c is the size of a state, r the rank of a factored form. N par. counts the parameters of one aggregator, All par. those "
    "of the whole model. Validation is the score of the best epoch, Test that of the same weights on the test set."
)
SCORES: Final = (
    "Scores are in %, seconds are processor time of a run; brackets: sample standard deviation (n − 1) over seeds."
)


@final
@dataclass(frozen=True)
class Document:
    """The content of a report, independent of the format; facts and versions are pairs of name and value."""

    title: str
    introduction: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    conclusion: str
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    remarks: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]


def compose(gathered: Gathered, *, figures: bool = True) -> Document:
    """Return the report on some results. Most of the time goes into the figures; ``figures=False`` leaves them out."""
    summaries = summarise(gathered.results)
    studies = studies_of(summaries)
    names = ", ".join(study.title for study in studies)
    tops = {study.title: best(study.summaries) for study in studies}
    leaders = [
        f"{grid}: {top.kind}, {top.sizes()}, {top.validation.percent()} %"
        for grid, top in tops.items()
        if top is not None and top.validation is not None
    ]
    return Document(
        title=f"Results of {names}",
        introduction=(_LEGEND,),
        facts=key_figures(gathered.results, summaries),
        conclusion=f"Best on validation: {'; '.join(leaders)}." if leaders else "No run has a validation score.",
        tables=(summary_table("results", "Results", f"Every configuration. {SCORES}", summaries, summaries),),
        figures=tuple(figure for study in studies for figure in figures_of(study)) if figures else (),
        remarks=gathered.remarks,
        versions=versions_of(gathered.results),
    )


def key_figures(results: Sequence[RunResult], summaries: Sequence[Summary]) -> tuple[tuple[str, str], ...]:
    """Return the numbers of runs, configurations and seeds, and the hours of training."""
    distinct = {result.key: result for result in results}
    hours = sum(result.busy_seconds for result in distinct.values()) / 3600
    counts = sorted({len(each.runs) for each in summaries})
    return (
        ("finished runs", f"{len(distinct):,}"),
        ("configurations", f"{len(summaries):,}"),
        ("seeds for each", str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"),
        ("hours of training", f"{hours:,.1f}" if hours >= 0.05 else f"{hours:.3f}"),
    )


def versions_of(results: Sequence[RunResult]) -> tuple[tuple[str, str], ...]:
    """Return the versions, machines and data sets of the runs."""
    names = ("treefold", "torch", "numpy", "python", "machine", "threads")
    found = {
        name: sorted({str(each.environment[name]) for each in results if name in each.environment}) for name in names
    }
    data = sorted({Data.of(each) for each in results})
    listed = [(name, ", ".join(values)) for name, values in found.items() if values]
    return (*listed, ("data", "; ".join(map(str, data))))


def write_report(folders: Sequence[Path], out: Path | None = None) -> tuple[Document, list[Path]]:
    """Read the results of sweeps and write their report into ``out``, by default ``report`` in the first folder.

    Returns the document and the files written. Equal results give equal bytes.
    """
    require_matplotlib()
    gathered = gather(folders)
    out = make_folder(folders[0] / "report" if out is None else out)
    document = compose(gathered)
    return document, write(document, out)


def make_folder(out: Path) -> Path:
    """Create the folder of a report and return it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise FileError(
            f"{out}: expected a folder for the report, got {problem.strerror or problem}; choose another with --out."
        ) from None
    return out


def write(document: Document, out: Path) -> list[Path]:
    """Write a document in all formats into a folder, each file atomically; return the files. Other files stay."""
    files: dict[str, bytes] = {
        "report.md": to_markdown(document).encode(),
        "report.tex": to_latex(document).encode(),
        "report.html": to_html(document).encode(),
    }
    for figure in document.figures:
        files[f"{figure.name}.png"] = figure.png
        files[f"{figure.name}.svg"] = figure.svg.encode()
    for name, content in files.items():
        with atomic_file(out / name) as file:
            file.write(content)
    return [out / name for name in files]
