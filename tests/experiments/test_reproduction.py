"""The tables in docs/reproduction.md and docs/results.md are those of the committed results."""

import json
import re
import statistics
from pathlib import Path

import pytest
from experiments.paper.tables import updated

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "paper" / "results"


def scores_of(grid: str, split: str) -> dict[tuple[str, str, str], list[float]]:
    """Return the scores of all seeds in %, by kind, state size and rank."""
    scores: dict[tuple[str, str, str], list[float]] = {}
    for line in (RESULTS / f"{grid}.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        model = run["settings"]["model"]
        key = run["kind"], str(model["state_size"]), str(model["rank"] or "")
        scores.setdefault(key, []).append(100 * run[split])
    return scores


def test_the_tables_of_the_reproduction_are_those_of_the_results() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert updated(text) == text, "results were added; python -m experiments.paper.tables updates the tables"


@pytest.mark.parametrize("grid", ["listops", "lrt"])
def test_a_row_is_the_mean_of_its_seeds(grid: str) -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    title = {"listops": "\n## ListOps\n", "lrt": "\n## LRT\n"}[grid]
    shown = text.partition(title)[2].partition("\n## ")[0]
    rows = re.findall(
        r"^\| (\w+)-LSTM c=(\d+)(?: r=(\d+))? \| [\d,]+ \| ([\d.]+)(?: \(([\d.]+)\))? \|", shown, re.MULTILINE
    )
    scores = scores_of(grid, "validation")
    assert len(rows) == len(scores)
    for kind, size, rank, mean, deviation in rows:
        values = scores[kind, size, rank]
        assert float(mean) == pytest.approx(statistics.fmean(values), abs=0.006)
        assert bool(deviation) == (len(values) > 1)
        assert len(values) == 1 or float(deviation) == pytest.approx(statistics.stdev(values), abs=0.006)


@pytest.mark.parametrize(("grid", "count"), [("listops", 3), ("lrt", 3)])
def test_the_figures_of_the_page_of_results_are_those_of_the_results(grid: str, count: int) -> None:
    task = {"listops": "ListOps", "lrt": "LRT"}[grid]
    figure = r"([\d.]+)(?: \(([\d.]+)\))? %"
    model = r"(\w+)-LSTM, c = (\d+)(?:, r = (\d+))?"
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| {task}, [^|]* \| {model} \| (\d) \| {figure} \| {figure} \|", text, re.MULTILINE)
    assert len(rows) == count
    for kind, size, rank, seeds, *figures in rows:
        for split, mean, deviation in (("validation", *figures[:2]), ("test", *figures[2:])):
            values = scores_of(grid, split)[kind, size, rank]
            assert len(values) == int(seeds)
            assert float(mean) == pytest.approx(statistics.fmean(values), abs=0.0501)
            assert len(values) == 1 or float(deviation) == pytest.approx(statistics.stdev(values), abs=0.0501)
