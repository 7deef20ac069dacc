from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.real import run as runner
from experiments.real.baselines import read_lines, write_line
from experiments.real.data import DATA
from experiments.real.run import EXPERIMENTS, RESULTS, Experiment, main, run, table

from treefold import Forest
from treefold.data.dataset import Dataset
from treefold.training.settings import RunSettings

TINY: dict[str, Any] = {"model": {"state_size": 4}, "training": {"epochs": 2}}


def made_up(source: Path) -> Dataset:
    forest = Forest(["(f a)", "(f b)"] * 8)
    parts = {"train": np.arange(8), "validation": np.arange(8, 12), "test": np.arange(12, 16)}
    nodes = np.where(np.arange(forest.node_count) % 2, np.repeat(np.arange(16) % 2, 2), -1)
    return Dataset(forest, np.arange(16) % 2, ("no", "yes"), parts, node_targets=nodes)


@pytest.fixture(autouse=True)
def _mine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATA, "mine", made_up)
    monkeypatch.setitem(EXPERIMENTS, "mine", Experiment("mine", TINY, {"Nobody 2000": "12.0"}))


@pytest.mark.slow
def test_a_result_has_scores_settings_and_versions_and_is_not_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = run("mine", 1, folder=tmp_path / "data", out=tmp_path / "out")
    assert read_lines(tmp_path / "out" / "mine.jsonl") == [line]
    assert {"accuracy", "error"} == {*line["validation"]} == {*line["test"]}
    assert (line["seed"], line["epochs"], line["settings"]["model"]["state_size"]) == (1, 2, 4)
    assert line["settings"]["training"]["seed"] == 1
    assert {*line["versions"]} == {"treefold", "torch", "python"}
    assert not [*(tmp_path / "data" / "runs").iterdir()]
    monkeypatch.setattr(runner, "train", None)
    assert run("mine", 1, folder=tmp_path / "data", out=tmp_path / "out") == line
    with pytest.raises(TypeError):  # another seed is trained
        run("mine", 2, folder=tmp_path / "data", out=tmp_path / "out")


@pytest.mark.slow
def test_an_interrupted_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("mine", 0, folder=tmp_path / "data", out=tmp_path / "whole")
    monkeypatch.setattr(runner, "write_line", None)
    with pytest.raises(TypeError):  # trained, but stopped before the result was written
        run("mine", 0, folder=tmp_path / "data", out=tmp_path / "out")
    monkeypatch.undo()
    DATA["mine"], EXPERIMENTS["mine"] = made_up, Experiment("mine", TINY)
    monkeypatch.setattr(runner, "train", None)
    try:
        again = run("mine", 0, folder=tmp_path / "data", out=tmp_path / "out")
    finally:
        del DATA["mine"], EXPERIMENTS["mine"]
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}


@pytest.mark.slow
def test_of_nodes_only_the_roots_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPERIMENTS, "mine", Experiment("mine", {**TINY, "task": "node", "training": {"epochs": 60}}))
    line = run("mine", 0, folder=tmp_path / "data", out=tmp_path / "out")
    assert line["test"] == {"accuracy": 1.0, "error": 0.0}


def test_the_table_has_means_over_seeds_baselines_and_publications(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, share in enumerate([0.5, 0.7]):
        scores = {"accuracy": share, "error": 0.1}
        line = {"experiment": "mine", "seed": seed, "validation": scores, "test": scores, "seconds": 10}
        write_line(tmp_path / "mine.jsonl", line, ["experiment", "seed"])
    scores = {"accuracy": 0.45, "error": 0.02}
    write_line(tmp_path / "baselines.jsonl", {"data": "mine", "model": "labels", "test": scores}, ["data", "model"])
    assert table(tmp_path).splitlines()[-1] == (
        "| mine | 60.00 (14.14) | 60.00 (14.14) | 2 | 10 | 45.0 ± 2.0 |  |  | 12.0 (Nobody 2000) |"
    )
    assert main(["--table", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == table(tmp_path)


def test_an_unknown_experiment_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mein"]) == 2
    assert "got 'mein' (nearest known: 'mine')" in capsys.readouterr().err


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_settings_of_experiments_are_known(name: str) -> None:
    RunSettings.of(runner.with_seed(EXPERIMENTS[name].settings, 0))


@pytest.mark.slow
def test_numbers_of_pairs_are_measured_in_the_units_of_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pairs(source: Path) -> Dataset:
        forest = Forest(["(f a)", "(f a)", "(f a)", "(f b)"] * 16)
        parts = {"train": np.arange(16), "validation": np.arange(16, 24), "test": np.arange(24, 32)}
        return Dataset(forest, np.arange(32) % 2, ("100", "300"), parts, pairs=True, task="regression")

    monkeypatch.setitem(DATA, "mine", pairs)
    settings = {"task": "pair-regression", "model": {"state_size": 4}, "training": {"epochs": 1}}
    monkeypatch.setitem(EXPERIMENTS, "mine", Experiment("mine", settings))
    line = run("mine", 0, folder=tmp_path / "data", out=tmp_path / "out")
    assert {*line["validation"]} == {"pearson", "mse"}
    assert (
        100 < line["test"]["mse"] < 40_000
    )  # predictions are between 100 and 300; in units of levels it would be below 16


@pytest.mark.slow
def test_word_vectors_are_found_in_the_source_and_results_do_not_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "downloads"
    source.mkdir()
    (source / "vectors.txt").write_text("a 0.5 -0.5\nb 0.25 1\n")
    words = {"state_size": 4, "embeddings": "{source}/vectors.txt"}
    monkeypatch.setitem(EXPERIMENTS, "mine", Experiment("mine", {**TINY, "model": words}))
    run("mine", 0, folder=tmp_path / "data", out=tmp_path / "out", source=source)
    text = (tmp_path / "out" / "mine.jsonl").read_text()
    assert text.count("{source}/vectors.txt") == 2
    assert str(tmp_path) not in text


def test_the_table_of_real_trees_is_that_of_the_committed_results() -> None:
    assert table(RESULTS) in (RESULTS.parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
