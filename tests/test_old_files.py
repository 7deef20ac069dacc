"""Files that older versions wrote are read as before; tests/old_files/README.md says how they were made."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import treefold
from treefold import Forest, Tree, TreeClassifier, TreeRegressor
from treefold.analysis.evaluation import evaluate
from treefold.analysis.prediction import answers
from treefold.cli import app
from treefold.data.dataset import Dataset
from treefold.sweeps.grid import read_grid
from treefold.sweeps.plan import plan
from treefold.sweeps.results import key_of, read_results
from treefold.training import resume
from treefold.training.saving import SavedModel, load_model

OLD = Path(__file__).parent / "old_files"
COMMITTED = sorted((Path(__file__).parents[1] / "experiments" / "paper" / "runs").iterdir())
RUNS = sorted(OLD.glob("run-*"))
EXPECTED: dict[str, Any] = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))


def names(path: Path) -> str:
    return path.name


def data_of(run: Path) -> Dataset:
    data = {"run-full": "pairs", "run-sum": "pairs", "run-node": "listops", "run-regression": "listops"}
    return Dataset.open(OLD / data.get(run.name, "trees"), verify=True)


def outputs(saved: SavedModel, forest: Forest) -> "np.ndarray[Any, Any]":
    numbers = np.arange(len(forest)).reshape(-1, saved.task.trees).T.flatten()  # all left trees, then all right ones
    with torch.no_grad():
        return np.asarray(saved.model(forest.batch(numbers)).numpy())


def test_there_are_expectations_for_all_committed_runs() -> None:
    assert len(COMMITTED) >= 11 and len(RUNS) == 8
    assert {path.name for path in [*COMMITTED, *RUNS, OLD / "classifier", OLD / "regressor"]} == set(EXPECTED)


@pytest.mark.parametrize("run", COMMITTED, ids=names)
def test_a_committed_run_gives_the_outputs_that_it_gave_before(run: Path) -> None:
    saved, expected = load_model(run), EXPECTED[run.name]
    assert all(bool(tensor.isfinite().all()) for tensor in saved.model.state_dict().values())
    assert np.allclose(outputs(saved, Forest(expected["trees"])), expected["outputs"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("run", COMMITTED, ids=names)
def test_a_committed_run_can_be_evaluated_and_predicts(run: Path) -> None:
    saved, expected = load_model(run), EXPECTED[run.name]
    best = np.argmax(expected["outputs"], axis=1)
    forest = Forest(expected["trees"])
    data = Dataset(forest, best, saved.classes, {"test": np.arange(len(best))}, pairs=saved.task.trees == 2)
    report = evaluate(saved, data)
    assert report.scores["accuracy"] == 1.0
    trees = [tuple(forest[pair * saved.task.trees + side] for side in range(saved.task.trees)) for pair in range(2)]
    assert [each["prediction"] for each in answers(saved, trees)] == [saved.classes[number] for number in best[:2]]


def test_a_forest_has_its_trees() -> None:
    texts = [str(tree) for tree in Forest.open(OLD / "text.forest", verify=True)]
    assert texts[:3] == ["(and a b)", "(or a b)", "(and (or a b) b)"]
    assert texts[-1] == '(f _ "two words" (g x) _)'
    [tree] = Forest.open(OLD / "vectors.forest", verify=True)
    assert tree == Tree((0.5, 1.0), (Tree((2.0, 3.0)), None, Tree((4.0, -1.0))))


def test_a_data_set_has_its_trees_classes_and_splits() -> None:
    data = Dataset.open(OLD / "trees", verify=True)
    assert data.classes == ("false", "true") and data.targets.tolist() == [0, 1, 0, 0, 1, 1, 1, 0] * 2
    assert {name: part.tolist() for name, part in data.splits.items()} == {
        "train": list(range(12)),
        "validation": [12, 13],
        "test": [14, 15],
    }
    assert str(data.forest[5]) == "(or (and a b) (or a a))" and data.made == {"task": "old files"}
    pairs = Dataset.open(OLD / "pairs", verify=True)
    assert pairs.pairs and len(pairs) == 16 and pairs.targets[:8].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]


def test_a_results_file_has_its_results_under_the_keys_of_today() -> None:
    results = read_results(OLD / "results.jsonl")
    assert [(each.kind, each.epochs, each.test) for each in results] == [("Sum", 2, 0.5), ("Hosvd", 2, 0.5)]
    data = Dataset.open(OLD / "trees")
    assert [each.key for each in results] == [key_of(each.settings, data.fingerprint()) for each in results]


def test_a_sweep_takes_old_results_as_done(tmp_path: Path) -> None:
    paper = tmp_path / "grid.toml"  # settings that the grid does not have were the paper's
    paper.write_text('recipe = "paper"\n' + (OLD / "grid.toml").read_text())
    runs = plan(read_grid(paper), Dataset.open(OLD / "trees"), "old")
    assert {run.key for run in runs} == {each.key for each in read_results(OLD / "results.jsonl")}
    shutil.copy(OLD / "results.jsonl", tmp_path / "results.jsonl")
    done = CliRunner().invoke(app, ["sweep", str(paper), "--data", str(OLD / "trees"), "--out", str(tmp_path)])
    assert done.exit_code == 0 and "2 finished before, 0 to do" in done.output


@pytest.mark.parametrize(("name", "kind"), [("classifier", TreeClassifier), ("regressor", TreeRegressor)])
def test_a_saved_estimator_predicts_what_it_predicted(name: str, kind: Any) -> None:
    model = treefold.load(OLD / name)
    expected = EXPECTED[name]
    assert type(model) is kind
    predicted = model.predict_proba(expected["trees"]) if name == "classifier" else model.predict(expected["trees"])
    assert np.allclose(predicted, expected["outputs"], atol=1e-5)


@pytest.mark.parametrize("run", RUNS, ids=names)
def test_an_interrupted_run_gives_its_outputs_and_is_resumed(run: Path, tmp_path: Path) -> None:
    data = data_of(run)
    assert np.allclose(outputs(load_model(run), data.forest), EXPECTED[run.name]["outputs"], atol=1e-5)
    shutil.copytree(run, tmp_path / "run")
    before = (run / "metrics.jsonl").read_text(encoding="utf-8")
    saved, result = resume(data, tmp_path / "run")
    after = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert before.count("\n") == 1 and after.startswith(before) and after.count("\n") == 2
    assert result.epochs == 2 and all(bool(each.isfinite().all()) for each in saved.model.state_dict().values())
