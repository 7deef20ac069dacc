"""Update the tables of docs/reproduction.md from the committed results: `python -m experiments.paper.tables`."""

import itertools
import re
from pathlib import Path

from experiments.paper.counts import counted_parameters
from experiments.paper.published import KINDS, LISTOPS, LRT, PaperTable
from treefold.sweeps.report.summary import Spread
from treefold.sweeps.results import RunResult, read_results

RESULTS = Path(__file__).resolve().parent / "results"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reproduction.md"
HEAD = "| model | p | validation | the paper | test | epochs | seconds | seeds |\n|---|---|---|---|---|---|---|---|\n"
RUNS = {"listops": 45, "lrt": 72}


def table(paper: PaperTable, results: list[RunResult]) -> str:
    """Return a table with a row for each configuration, followed by the time of all runs."""
    found = sorted(results, key=lambda run: (*_configuration(run), run.seed))
    rows = [_row(paper, list(runs)) for _, runs in itertools.groupby(found, key=_configuration)]
    hours = sum(run.busy_seconds for run in results) / 3600
    return f"{HEAD}{''.join(rows)}\nThese runs took {hours:.1f} hours of one core in all.\n"


def updated(text: str) -> str:
    """Return the document with the tables and counts of the committed results."""
    counts = []
    for paper in (LISTOPS, LRT):
        results = read_results(RESULTS / f"{paper.grid}.jsonl")
        counts.append(f"{len(results)} of {RUNS[paper.grid]} runs on {paper.name}")
        before, title, rest = text.partition(f"\n## {paper.name}\n")
        old = re.search(re.escape(HEAD) + r"(?:\|.*\n)+\nThese runs took .* hours of one core in all\.\n", rest)
        text = before + title + rest.replace(old[0] if old else HEAD, table(paper, results), 1)
    return re.sub(r"\d+ of \d+ runs on ListOps and \d+ of \d+( runs)? on LRT", " and ".join(counts), text, count=1)


def _configuration(run: RunResult) -> tuple[int, int, int]:
    return list(KINDS).index(run.kind), run.settings.model.state_size, run.settings.model.rank or 0


def _row(paper: PaperTable, runs: list[RunResult]) -> str:
    kind, (_, size, rank) = runs[0].kind, _configuration(runs[0])
    published = paper.published(kind, size)
    seconds = Spread.of(run.busy_seconds for run in runs)
    cells = [
        f"{kind}-LSTM c={size}" + (f" r={rank}" if rank else ""),
        f"{counted_parameters(KINDS[kind], state_size=size, arity=paper.arity, rank=rank or None):,}",
        _percent([run.validation for run in runs]),
        f"{published.mean:.2f}" if published else "",
        _percent([run.test for run in runs]),
        ", ".join(str(run.epochs) for run in runs),
        f"{seconds.mean:,.0f}" if seconds else "",
        ", ".join(str(run.seed) for run in runs),
    ]
    return f"| {' | '.join(cells)} |\n"


def _percent(values: list[float | None]) -> str:
    spread = Spread.of(values)
    return spread.percent().removesuffix(" (–)") if spread else ""


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
