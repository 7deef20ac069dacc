"""The recipe: one function of the data for estimators, runs and sweeps, which says why."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treefold import Forest, Tree, TreeClassifier, TreeRegressor, load
from treefold.data.dataset import Dataset
from treefold.sweeps.grid import Grid
from treefold.sweeps.plan import plan
from treefold.training import train
from treefold.training.build import facts_of
from treefold.training.recipe import choose
from treefold.training.run import training_facts
from treefold.training.saving import load_model
from treefold.training.settings import ModelSettings, RunSettings, TrainingSettings

FORMULAS = Forest(["(and a (or b a))", "(or a b)", "b"] * 20)
PAGES = Forest([f"(page (h p{number % 7}) (p {'a ' * (number % 9)}) (p b h))" for number in range(120)])
PAGE_CLASSES = np.arange(120) % 9 > 4
FAST: dict[str, Any] = {"state_size": 4, "epochs": 2, "random_state": 0}


def chosen(forest: Forest, **groups: Any) -> RunSettings:
    return choose(RunSettings(**groups), facts_of(forest), len(forest)).settings


def pages() -> Dataset:
    numbers = np.arange(120)
    splits = {"train": numbers[:90], "validation": numbers[90:105], "test": numbers[105:]}
    return Dataset(PAGES, PAGE_CLASSES.astype(np.int64), ("no", "yes"), splits)


def test_formulas_have_a_cell_for_each_operator_and_pages_read_all_nodes_along_siblings() -> None:
    formulas, pages = chosen(FORMULAS).model, chosen(PAGES).model
    assert (formulas.aggregator, formulas.per_label, formulas.siblings, formulas.readout, formulas.wide) == (
        "tucker",
        True,
        False,
        "root",
        False,
    )
    assert (pages.aggregator, pages.per_label, pages.siblings, pages.readout, pages.wide) == (
        "sum",
        False,
        True,
        "root+mean+max",
        True,
    )
    assert pages.arity == 2 and pages.labels == "embedding"


def test_given_settings_stay_and_the_word_none_switches_one_off() -> None:
    model = ModelSettings.of({"readout": "max", "wide": False, "state_size": 5})
    training = TrainingSettings.of({"epochs": 3, "clip": "none", "optimiser": "adadelta"})
    found = chosen(PAGES, model=model, training=training)
    assert (found.model.readout, found.model.wide, found.model.state_size, found.model.siblings) == (
        "max",
        False,
        5,
        True,
    )
    assert (found.training.epochs, found.training.clip, found.training.learning_rate) == (3, None, None)
    both = chosen(PAGES, model=ModelSettings(direction="both")).model
    assert (both.siblings, both.aggregator) == (True, "sum")
    for other in ({"siblings": False}, {"per_label": False}, {"arity": 20}, {"direction": "down"}):
        bounded = chosen(PAGES, model=ModelSettings.of(other)).model
        assert (bounded.siblings, bounded.aggregator, bounded.shared) == (False, "positional", True)
    given_form = chosen(PAGES, model=ModelSettings(aggregator="mean")).model
    assert (given_form.aggregator, given_form.siblings, given_form.shared) == ("mean", False, True)


def test_the_paper_recipe_is_the_paper_s() -> None:
    found = chosen(FORMULAS, recipe="paper")
    assert (found.training.optimiser, found.training.schedule, found.training.batch_size) == (
        "adadelta",
        "constant",
        25,
    )
    assert (found.model.state_size, found.model.hidden, found.training.keep) == (20, (20, 20), "best")


def test_epochs_follow_the_number_of_examples() -> None:
    few, many = (choose(RunSettings(), facts_of(PAGES), count).settings.training.epochs for count in (100, 100_000_000))
    assert few > many
    few, many = (choose(RunSettings(), facts_of(FORMULAS), count).settings.training.epochs for count in (50, 100_000))
    assert (few, many) == (200, 40)


def test_pairs_and_nodes_read_no_other_nodes() -> None:
    for task in ("pair", "node"):
        model = chosen(PAGES, task=task).model
        assert (model.readout, model.wide, model.siblings) == ("root", False, True)


def test_estimator_run_and_sweep_resolve_to_the_same_settings(tmp_path: Path) -> None:
    data = pages()
    model = TreeClassifier(**FAST).fit(data.forest[:90], PAGE_CLASSES[:90])
    settings = RunSettings(
        model=ModelSettings(state_size=4), training=TrainingSettings(epochs=2, seed=model.saved_.settings.training.seed)
    )
    saved, _ = train(data, tmp_path / "run", settings)
    grid = Grid.of({"name": "g", "seeds": [0], "models": [{"kind": "k", "state_size": 4, "epochs": 2}]})
    (run,) = plan(grid, data, "grid")
    assert saved.settings.model == model.saved_.settings.model == run.settings.model
    same = {"seed": 0, "threads": None}
    assert (
        saved.settings.training.model_copy(update=same)
        == model.saved_.settings.training.model_copy(update=same)
        == run.settings.training.model_copy(update=same)
    )


def test_reasons_are_kept_with_the_model_and_name_the_facts(tmp_path: Path) -> None:
    model = TreeClassifier(**FAST).fit(PAGES, PAGE_CLASSES)
    assert any("the widest node has 8 children" in reason for reason in model.reasons_)
    model.save(tmp_path)
    assert load(tmp_path).reasons_ == model.reasons_ == load_model(tmp_path).reasons


def test_labels_of_the_test_split_are_unknown_to_a_run_but_not_its_arity() -> None:
    forest = Forest(["(f a)", "(f b)", "(g c c c)"])
    data = Dataset(forest, np.array([0, 1, 0]), ("x", "y"), {"train": np.array([0, 1]), "test": np.array([2])})
    facts = training_facts(data)
    assert (facts.inner, facts.leaves, facts.arity) == (("f",), ("a", "b"), 3)
    assert training_facts(data, embeddings=True).leaves == ("a", "b", "c")


def test_the_linear_part_is_saved_mixed_and_used_in_predictions(tmp_path: Path) -> None:
    model = TreeClassifier(**FAST).fit(PAGES, PAGE_CLASSES)
    wide = model.saved_.model.wide
    assert wide is not None and float(wide.mix.sum()) > 0
    model.save(tmp_path)
    again = load(tmp_path)
    assert np.allclose(again.predict_proba(PAGES), model.predict_proba(PAGES))
    trees = np.arange(5)
    network = model.saved_.model(PAGES[:5]).detach()
    expected = wide.mix[0] * network + wide.mix[1] * wide.scores(PAGES, trees)
    assert np.allclose(model.saved_.model.answers(PAGES, trees).numpy(), expected.numpy(), atol=1e-6)
    assert TreeClassifier(**FAST, wide=False).fit(PAGES, PAGE_CLASSES).saved_.model.wide is None


def test_numbers_have_a_linear_part_too() -> None:
    y = [float(tree.size) for tree in PAGES]
    model = TreeRegressor(**FAST).fit(PAGES, y)
    assert model.saved_.model.wide is not None and model.score(PAGES, y) > 0.5


def test_a_model_that_learnt_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    noise = np.random.default_rng(0).integers(0, 4, 400) > 0
    trees = [Tree("f", [Tree("ab"[place % 2]) for place in range(7)]) for _ in noise]
    with caplog.at_level(logging.WARNING, "treefold"):
        TreeClassifier(**FAST).fit(trees, noise)
    assert "no better than the most frequent class" in caplog.text


def test_trees_that_training_did_not_prepare_for_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    model = TreeClassifier(**FAST).fit(FORMULAS, np.arange(60) % 2)
    found = model.predict(["(and a b a b a b)", "(a (or b a))", "(xor a (nand b))", "z"])
    assert len(found) == 4 and "have more children than their cell has slots" in caplog.text
    assert set(model.unknown_labels_) == {"xor", "nand", "z"}
