"""The best configuration of a report, and its display in notebooks."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sweeps import tiny
from tests.sweeps.report.made_up import ODD, result, write
from tests.sweeps.report.test_formats import Tags
from treefold import Forest
from treefold.analysis.evaluation import evaluate
from treefold.data.dataset import Dataset
from treefold.sweeps.grid import Grid
from treefold.sweeps.plan import plan
from treefold.sweeps.report import compose, gather, write_report
from treefold.sweeps.report.formats import to_html, to_latex, to_markdown
from treefold.sweeps.results import RESULTS, Results, SweepFacts, key_of
from treefold.sweeps.run import Limits, execute
from treefold.training.recipe import choose
from treefold.training.run import training_facts
from treefold.training.saving import load_model
from treefold.training.settings import RunSettings, read_toml


def swept(folder: Path, grid: Grid, data: Dataset) -> Path:
    """Train all runs of a grid in this process."""
    runs, results = plan(grid, data, "grid"), Results.read(folder / RESULTS)
    folder.mkdir(parents=True)
    SweepFacts(grid=grid.name, data="my data", runs={run.key: run.title for run in runs}).write(folder)
    for run in runs:
        found = execute(run, data, folder / "runs" / run.key, Limits(), lambda event: None)
        assert found is not None
        results.add(found)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("sweeps") / "tiny", tiny.GRID, tiny.data())


def test_the_settings_of_the_best_are_complete_and_train_the_same_run(folder: Path, tmp_path: Path) -> None:
    document, files = write_report([folder], tmp_path / "report")
    results = gather([folder]).results
    means = {
        run.kind: np.mean([each.validation or 0.0 for each in results if each.kind == run.kind]) for run in results
    }
    kind = max(sorted(means), key=lambda kind: means[kind])
    (best,) = document.bests
    assert best.words.startswith(f"{kind}: accuracy {100 * means[kind]:.2f} (")
    assert best.command == "treefold train 'my data' --out runs/best --config best.toml" and best.evaluate == ""
    given = RunSettings.of(read_toml(tmp_path / "report" / "best.toml"))
    chosen = choose(given, training_facts(tiny.data()), len(tiny.data().splits["train"])).settings
    key = next(run.key for run in results if run.kind == kind and run.seed == 0)
    assert key_of(chosen, tiny.data().fingerprint()) == key
    assert tmp_path / "report" / "best.toml" in files


def test_the_confusion_in_the_results_is_that_of_the_evaluation(folder: Path) -> None:
    document = compose(gather([folder]))
    (figure,) = [each for each in document.figures if each.name == "tiny-confusion"]
    first = gather([folder]).results[0]
    found = evaluate(load_model(folder / "runs" / first.key), tiny.data())
    assert first.classes == found.classes and first.confusion == found.confusion
    assert first.scores == {name: round(score, 6) for name, score in found.scores.items()}
    assert f"of {2 * found.count} right" in figure.description  # of two seeds


def tasks() -> list[tuple[str, Dataset, str]]:
    rng = np.random.default_rng(0)
    trees = [f"(f {' '.join(rng.choice(list('abc'), 3))})" for _ in range(40)]
    splits = dict(zip(("train", "validation", "test"), np.split(np.arange(40), [24, 32]), strict=True))
    pairs = dict(zip(splits, np.split(np.arange(20), [12, 16]), strict=True))
    forest, two = Forest(trees), ("no", "yes")
    nodes = rng.integers(0, 2, forest.node_count)
    return [
        ("pair", Dataset(forest, rng.integers(0, 2, 20), two, pairs, pairs=True), "accuracy"),
        ("regression", Dataset.from_labels(trees, rng.normal(size=40).tolist(), splits, task="regression"), "R²"),
        ("node", Dataset(forest, np.zeros(40, np.int64), two, splits, node_targets=nodes), "accuracy"),
    ]


@pytest.mark.parametrize(("task", "data", "score"), tasks(), ids=lambda value: value if isinstance(value, str) else "")
def test_each_task_has_its_own_score(task: str, data: Dataset, score: str, tmp_path: Path) -> None:
    entry = {"kind": "Sum", "aggregator": "sum", "state_size": [2, 3], "epochs": 2}
    document = compose(
        gather([swept(tmp_path / task, Grid.of({"name": task, "seeds": [0], "task": task, "models": [entry]}), data)])
    )
    assert f": {score} " in document.conclusion
    names = {figure.name for figure in document.figures}
    assert {f"{task}-parameters", f"{task}-state-size", f"{task}-time", f"{task}-curves"} <= names
    assert (f"{task}-confusion" in names) == (score == "accuracy")
    head = [cell.text for cell in document.tables[0].head[0]]
    assert ("Test MAE" in head) == (score == "R²") == ("Test macro-F1, %" not in head)
    assert not any("%" in figure.description for figure in document.figures if score == "R²")


def test_results_without_a_confusion_matrix_name_the_command_that_shows_it(tmp_path: Path) -> None:
    (best,) = compose(gather([write(tmp_path, [line := result("g", "Sum", 5)])]), figures=False).bests
    assert best.evaluate == f"treefold evaluate {tmp_path / 'runs' / line['key']} DATA"


def test_every_format_has_the_best_configuration_and_the_next_steps_and_escapes_them(tmp_path: Path) -> None:
    lines = [result("g", ODD, size, 2, validation=0.1 * size) for size in (3, 5)]
    SweepFacts(
        grid="g",
        description="<b>Why</b> we do this.",
        data="a; rm -rf 'b'",
        runs={"x": "X", lines[0]["key"]: "Y"},
        failed={"x": "<i>"},
    ).write(write(tmp_path, lines))
    document = compose(gather([tmp_path]), figures=False)
    assert document.introduction == ("<b>Why</b> we do this.",)
    assert document.steps[0] == "Start the sweep again: it continues with the runs that are not finished (1)."
    assert dict(document.facts)["finished runs"] == "2 of 3"
    parser = Tags()
    parser.feed(to_html(document))
    assert not parser.open and not any(tag in ("b", "i") for tag, _, _ in parser.attributes)
    (best,) = document.bests
    assert best.command in parser.text and best.toml in parser.text and set(document.steps) <= set(parser.text)
    assert best.command.startswith("""treefold train 'a; rm -rf '"'"'b'"'"'' --out""")
    assert f"    {best.command}\n" in to_markdown(document) and "state_size = 5 is the best" in to_markdown(
        document
    ).replace("\\", "")
    assert r"\section*{What to try next}" in to_latex(document) and r"\section*{Best configuration}" in to_latex(
        document
    )


def test_complete_settings_say_none_where_nothing_is_set() -> None:
    (best,) = compose(gather_of(result("g", "Sum", 5)), figures=False).bests
    values = tomllib.loads(best.toml)
    assert values["model"]["rank"] == values["training"]["clip"] == "none"
    given = RunSettings.of(values)
    assert given.model.model_fields_set == set(type(given.model).model_fields)
    assert given.training.model_fields_set == set(type(given.training).model_fields)


def gather_of(*lines: dict[str, Any]) -> Any:
    from treefold.sweeps.report.summary import Gathered
    from treefold.sweeps.results import RunResult

    return Gathered(tuple(RunResult.model_validate(line) for line in lines))


def test_a_notebook_shows_the_table() -> None:
    shown = compose(gather_of(result("g", "<b>X</b>", 5, 2, validation=0.875)), figures=False)._repr_html_()
    assert "&lt;b&gt;X&lt;/b&gt;" in shown and "<b>" not in shown and "87.50 (–)" in shown
    parser = Tags()
    parser.feed(shown)
    assert not parser.open
