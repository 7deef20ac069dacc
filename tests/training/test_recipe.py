"""The recipe: one function of the data for estimators, runs and sweeps, which says why."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treefold import Forest, Tree, TreeClassifier, TreeRegressor, load
from treefold.data.dataset import Dataset
from treefold.data.generators import make_listops, make_lrt
from treefold.errors import ConfigurationError
from treefold.sweeps.grid import Grid, read_grid
from treefold.sweeps.plan import plan
from treefold.sweeps.results import key_of
from treefold.sweeps.run import Limits, execute
from treefold.training import train
from treefold.training.build import facts_of
from treefold.training.recipe import choose
from treefold.training.run import training_facts
from treefold.training.saving import load_model
from treefold.training.settings import (
    ModelSettings,
    RunSettings,
    TrainingSettings,
    read_recipe,
    read_toml,
    recipe_names,
    recipe_path,
    with_recipe,
)

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


def test_of_very_many_labels_the_most_frequent_have_vectors() -> None:
    """Otherwise a step costs as much as there are labels, and more trees have more labels: quadratic time."""
    many = Forest([f"(r {' '.join(f'a{number + place}' for place in range(9))})" for number in range(0, 24_000, 4)])
    recipe = choose(RunSettings(), facts_of(many), len(many))
    assert recipe.settings.model.max_labels == 20_000 and len(recipe.labels.names) == 20_001
    assert {"<unk>", "r"} <= set(recipe.labels.names)
    assert "those of at least 2 trees, at most the 20,000 most frequent, have a learnt vector; others" in str(
        recipe.reasons
    )
    settings = RunSettings(model=ModelSettings(max_labels=7, min_count=None))
    assert "labels: all, at most the 7 most frequent, have" in str(choose(settings, facts_of(many), len(many)).reasons)
    assert chosen(many, model=ModelSettings(max_labels=None)).model.max_labels is None
    assert chosen(PAGES).model.max_labels is None


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


@pytest.mark.parametrize("recipe", ["auto", "paper"])
def test_answers_at_nodes_have_no_linear_part(recipe: str) -> None:
    with pytest.raises(
        ConfigurationError, match="wide=true expects one answer for each tree or pair, got the task 'node'"
    ):
        chosen(PAGES, task="node", recipe=recipe, model=ModelSettings(wide=True))


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
    assert len(found) == 4 and "they have more children than slots" in caplog.text
    assert set(model.unknown_labels_) == {"xor", "nand", "z"}


OWN = """
description = "small"
[model]
cell = "gru"
aggregator = "sum"
state_size = 3
[training]
epochs = 1
seed = 5
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_that_ships_says_what_it_is_for_and_gives_its_settings(name: str) -> None:
    recipe, values = read_recipe(name), read_toml(recipe_path(name))
    assert recipe.description and recipe.reached and len(recipe.description) < 120
    forest = make_lrt(30).forest if recipe.task == "pair" else make_listops(30, seed=0).forest
    found = choose(RunSettings(recipe=name), facts_of(forest), 30)
    for group in ("model", "training"):
        for key, value in values[group].items():
            expected = type(getattr(recipe, group)).of({key: value})
            assert getattr(getattr(found.settings, group), key) == getattr(expected, key), key
    assert found.settings.recipe == name and found.settings.task == (recipe.task or "tree")
    assert found.reasons[0] == f"recipe {name}: {recipe.description}"


def test_formulas_by_name_are_what_is_chosen_for_formulas() -> None:
    assert chosen(FORMULAS, recipe="formulas").model_copy(update={"recipe": "auto"}) == chosen(FORMULAS)
    assert chosen(PAGES, recipe="formulas", model=ModelSettings(per_label=False)).model.readout == "root"


def test_settings_that_are_given_win_over_the_recipe_and_the_recipe_over_the_data(own: Path) -> None:
    name = str(own)
    found = chosen(PAGES, recipe=name, model=ModelSettings(state_size=7), training=TrainingSettings(clip=None))
    assert (found.model.cell, found.model.aggregator, found.model.state_size) == ("gru", "sum", 7)
    assert (found.training.epochs, found.training.seed, found.training.clip) == (1, 5, None)
    assert found.model.readout == "root+mean+max" and found.training.batch_size == 16  # from the data
    assert found.recipe == "auto"  # complete: the file is not needed again
    assert choose(found, facts_of(PAGES), len(PAGES)).settings == found
    assert chosen(PAGES).model.aggregator == "sum" and chosen(PAGES).model.cell == "lstm"


def test_the_rate_of_a_recipe_is_that_of_its_optimiser() -> None:
    other = TrainingSettings(optimiser="adadelta")
    assert chosen(FORMULAS, recipe="formulas", training=other).training.learning_rate is None
    given = TrainingSettings(optimiser="adadelta", learning_rate=0.7)
    assert chosen(FORMULAS, recipe="formulas", training=given).training.learning_rate == 0.7


def test_a_run_follows_a_recipe_and_needs_its_file_no_more(own: Path, tmp_path: Path) -> None:
    saved, _ = train(pages(), tmp_path / "run", RunSettings(recipe=str(own)))
    own.unlink()
    again = load_model(tmp_path / "run").settings
    assert again == saved.settings and (again.model.cell, again.training.seed, again.recipe) == ("gru", 5, "auto")
    assert saved.reasons[0] == f"recipe {own}: small"
    by_hand = {"model": {"cell": "gru", "aggregator": "sum", "state_size": 3}, "training": {"epochs": 1, "seed": 5}}
    train(pages(), tmp_path / "plain", RunSettings.of(by_hand))
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "plain"))
    assert one == other


def test_estimators_take_recipes(own: Path) -> None:
    y = np.arange(60) % 2
    model = TreeClassifier(recipe="formulas", epochs=1, state_size=4, random_state=0).fit(FORMULAS, y)
    assert (model.saved_.settings.model.rank, model.saved_.settings.training.batch_size) == (3, 50)
    assert model.reasons_[0].startswith("recipe formulas: ")
    assert TreeClassifier(recipe=str(own)).fit(FORMULAS, y).saved_.settings.model.cell == "gru"
    paper = TreeClassifier(recipe="paper", epochs=1).fit(FORMULAS, y).saved_.settings
    assert (paper.recipe, paper.training.optimiser) == ("paper", "adadelta")
    with pytest.raises(ConfigurationError, match=r"recipe 'lrt' expects the task 'pair', got 'tree'"):
        TreeClassifier(recipe="lrt").fit(FORMULAS, y)
    with pytest.raises(
        ConfigurationError, match=r"TreeClassifier: recipe: .*got 'formula' \(nearest known: 'formulas'"
    ):
        TreeClassifier(recipe="formula").fit(FORMULAS, y)


def test_partial_fit_follows_a_recipe_without_its_stages(tmp_path: Path) -> None:
    path = tmp_path / "staged.toml"
    path.write_text(OWN + 'curriculum = [[1, 0.5], ["none", 0.5]]\nstate_noise = 0.2\nstate_noise_end = 0.1\n')
    y = np.arange(60) % 2
    model = TreeClassifier(recipe=str(path), random_state=0)
    model.partial_fit(FORMULAS, y, classes=[0, 1]).partial_fit(FORMULAS, y)
    training = model.saved_.settings.training
    assert model.n_iter_ == 2 and training.curriculum is None and training.state_noise == 0.2
    assert TreeClassifier(recipe=str(path)).fit(FORMULAS, y).saved_.settings.training.curriculum is not None


def test_sweeps_follow_a_recipe_named_in_the_grid(own: Path, tmp_path: Path) -> None:
    entry = '[[models]]\nkind = "K"\nstate_size = 2\n'
    (tmp_path / "grid.toml").write_text(f'name = "g"\nseeds = [0]\nrecipe = "own.toml"\n{entry}')
    grid = read_grid(tmp_path / "grid.toml")
    (run,) = plan(grid, pages(), "g")
    assert (run.settings.model.cell, run.settings.model.state_size, run.settings.training.seed) == ("gru", 2, 0)
    own.unlink()
    result = execute(run, pages(), tmp_path / "run", Limits(), lambda event: None)
    assert result is not None and result["key"] == run.key
    assert key_of(load_model(tmp_path / "run").settings, pages().fingerprint()) == run.key
    (tmp_path / "grid.toml").write_text(f'name = "g"\nseeds = [0]\nrecipe = "lrt"\n{entry}')
    with pytest.raises(ConfigurationError, match=r"models entry 1.*recipe 'lrt' expects the task 'pair', got 'tree'"):
        plan(read_grid(tmp_path / "grid.toml"), pages(), "g")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("= 3", r"own.toml: expected TOML, got"),
        ("[model]\nrank = 3\n", r"own.toml: description: field required"),
        (
            'description = "x"\n[model]\nrnak = 3\n',
            r"expected a known setting, got 'model.rnak' \(nearest known: 'rank'",
        ),
        ('description = "x"\n[training]\nepochs = 0\n', r"own.toml: training.epochs: input should be greater than 0"),
        ('description = "x"\ntask = "tre"\n', r"own.toml: task: unknown task 'tre' \(nearest known: 'tree'\)"),
        ('description = "x"\ntask = "node"\n', r"own.toml' expects the task 'node', got 'tree'; choose another recipe"),
        ('description = "x"\n[training]\nbucketed = true\n', r"a curriculum expects batches of batch_size examples"),
        (None, r"own.toml: expected a file that can be read, got No such file"),
    ],
)
def test_a_wrong_recipe_is_refused_in_words(own: Path, tmp_path: Path, text: str | None, message: str) -> None:
    own.unlink()
    if text is not None:
        own.write_text(text)
    training = TrainingSettings.of({"curriculum": [["none", 1.0]]})
    with pytest.raises(ConfigurationError, match=message):
        train(pages(), tmp_path / "run", RunSettings(task="tree", recipe=str(own), training=training))
    assert not (tmp_path / "run").exists()


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"settings: recipe: expected one of 'auto', 'paper', 'formulas', 'listops', 'lrt', 'operands' or a TOML file, "
        r"got 'listop' \(nearest known: 'listops'\)",
    ):
        RunSettings.of({"recipe": "listop"})


def test_a_recipe_without_a_file_changes_nothing() -> None:
    for name in ("auto", "paper"):
        settings = RunSettings(recipe=name, model=ModelSettings(rank=2))
        assert with_recipe(settings) is settings
