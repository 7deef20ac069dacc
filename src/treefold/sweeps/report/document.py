"""The content of a report, and the function that writes it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from treefold.files import FolderKind, atomic_folder, require_replaceable
from treefold.sweeps.report.advice import next_steps
from treefold.sweeps.report.figures import (
    Figure,
    Study,
    confusion_of,
    figures_of,
    require_matplotlib,
    studies_of,
    time_unit,
)
from treefold.sweeps.report.formats import GENERATOR, to_html, to_latex, to_markdown
from treefold.sweeps.report.summary import (
    Data,
    Gathered,
    Measure,
    Spread,
    Summary,
    Table,
    best,
    gather,
    summarise,
    summary_table,
    title_of,
    value_text,
    varied,
)
from treefold.sweeps.results import RunResult
from treefold.training.settings import to_toml
from treefold.trees.drawing import escaped, html_box, html_table

_PAGE: Final = "report.html"
_REPORT: Final = FolderKind(
    "a report", _PAGE, GENERATOR, (_PAGE, "report.md", "report.tex", "best*.toml", "*.png", "*.svg")
)
SECONDS: Final = "Seconds are processor time of a run; brackets: sample standard deviation (n − 1) over seeds."


@final
@dataclass(frozen=True)
class Best:
    """The best configuration of a grid: its scores in words, the settings that were varied, and the command that trains it."""

    title: str
    words: str
    settings: tuple[tuple[str, str], ...]
    command: str
    file: str  # of all settings, beside the report
    toml: str
    evaluate: str = ""  # the command that shows the confusion matrix, if results have none


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
    bests: tuple[Best, ...] = ()
    steps: tuple[str, ...] = ()

    def _repr_html_(self) -> str:  # in notebooks
        tables = [
            html_table([[cell.text for cell in row] for row in table.rows], [cell.text for cell in table.head[-1]])
            for table in self.tables
        ]
        return html_box(html_table(self.facts), f"<p>{escaped(self.conclusion)}</p>", *tables)


def compose(gathered: Gathered, *, figures: bool = True) -> Document:
    """Return the report on some results. Most of the time goes into the figures; ``figures=False`` leaves them out."""
    summaries = summarise(gathered.results)
    studies = studies_of(summaries)
    several = len(studies) > 1
    bests = [found for study in studies if (found := _best(study, gathered, several=several)) is not None]
    leaders = [f"{f'{found.title}, ' if several else ''}{found.words}" for found in bests]
    steps = [
        f"{f'{study.title}: ' if several else ''}{step}" for study in studies for step in next_steps(study.summaries)
    ]
    if gathered.unfinished:
        steps.insert(
            0, f"Start the sweep again: it continues with the runs that are not finished ({gathered.unfinished:,})."
        )
    return Document(
        title=f"Results of {', '.join(study.title for study in studies)}",
        introduction=gathered.descriptions,
        facts=key_figures(gathered, summaries),
        conclusion=f"Best on validation: {'; '.join(leaders)}." if leaders else "No run has a validation score.",
        tables=(
            summary_table("results", "Results", f"Every configuration. {units_of(summaries)}", summaries, summaries),
        ),
        figures=tuple(figure for study in studies for figure in figures_of(study)) if figures else (),
        remarks=gathered.remarks,
        versions=versions_of(gathered.results),
        bests=tuple(bests),
        steps=tuple(steps),
    )


def _best(study: Study, gathered: Gathered, *, several: bool) -> Best | None:
    top = best(study.summaries)
    if top is None:
        return None
    source = gathered.sources.get(top.first.key)
    data = shlex.quote(source.data) if source and source.data else "DATA"
    names = varied(study.summaries) if len(study.summaries) > 1 else ["aggregator", "state_size", "rank"]
    file = f"best-{study.slug}.toml" if several else "best.toml"
    run = shlex.quote(str(source.run)) if source else "RUN"
    is_unseen = top.measure.is_share and confusion_of(top) is None
    scores = [f"{top.measure.name} {_with_unit(top.measure, top.validation)} on validation"]
    scores += [f"{_with_unit(top.measure, top.test)} on the test set"] if top.test else []
    return Best(
        title=study.title,
        words=f"{title_of(top, study.summaries)}: {', '.join(scores)}",
        settings=tuple((name, value_text(top.settings[name])) for name in names),
        command=f"treefold train {data} --out runs/best --config {file}",
        file=file,
        toml=to_toml(top.first.settings, complete=True),
        evaluate=f"treefold evaluate {run} {data}" if is_unseen else "",
    )


def _with_unit(measure: Measure, spread: Spread | None) -> str:
    return f"{measure.write(spread)}{' %' if measure.is_share else ''}"


def units_of(summaries: Sequence[Summary]) -> str:
    """Explain the numbers of a table."""
    shares = {each.measure.name for each in summaries if each.measure.is_share}
    return f"{f'{min(shares).capitalize()} is in %. ' if shares else ''}{SECONDS}"


def key_figures(gathered: Gathered, summaries: Sequence[Summary]) -> tuple[tuple[str, str], ...]:
    """Return the numbers of runs, configurations and seeds, and the time of training."""
    distinct = {result.key: result for result in gathered.results}
    seconds = sum(result.busy_seconds for result in distinct.values())
    size, unit = time_unit(seconds)
    counts = sorted({len(each.runs) for each in summaries})
    of = f" of {len(distinct) + gathered.unfinished:,}" if gathered.unfinished else ""
    return (
        ("finished runs", f"{len(distinct):,}{of}"),
        ("configurations", f"{len(summaries):,}"),
        ("seeds for each", str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"),
        (f"{unit} of training", f"{seconds / size:,.1f}"),
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


def write_report(
    folders: Sequence[Path], out: Path | None = None, *, force: bool = False
) -> tuple[Document, list[Path]]:
    """Read the results of sweeps and write their report into ``out``, by default ``report`` in the first folder.

    An existing report is replaced with ``force``, any other folder never. Returns the document and the files written.
    Equal results give equal bytes.
    """
    require_matplotlib()
    out = folders[0] / "report" if out is None else out
    require_report_folder(out, force=force)
    document = compose(gather(folders))
    return document, write(document, out, force=force)


def require_report_folder(out: Path, *, force: bool) -> None:
    """Raise unless a report can be written to a folder: its name is free, or it is a report to replace."""
    require_replaceable(out, _REPORT if force else None)


def write(document: Document, out: Path, *, force: bool = False) -> list[Path]:
    """Write a document in all formats into a new folder, atomically; return the files."""
    files: dict[str, bytes] = {
        "report.md": to_markdown(document).encode(),
        "report.tex": to_latex(document).encode(),
        _PAGE: to_html(document).encode(),
    }
    for found in document.bests:
        files[found.file] = found.toml.encode()
    for figure in document.figures:
        files[f"{figure.name}.png"] = figure.png
        files[f"{figure.name}.svg"] = figure.svg.encode()
    with atomic_folder(out, _REPORT if force else None) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
    return [out / name for name in files]
