import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treefold.errors import ConfigurationError
from treefold.nn.aggregators import AGGREGATORS
from treefold.nn.cells import CELLS
from treefold.sweeps.grid import Grid
from treefold.training.build import facts_of
from treefold.training.recipe import choose
from treefold.training.settings import (
    ModelSettings,
    RunSettings,
    TrainingSettings,
    describe_settings,
    read_toml,
    to_toml,
    with_changes,
)
from treefold.training.task import TASKS
from treefold.trees.forest import Forest


@given(
    st.builds(ModelSettings, rank=st.none() | st.integers(1, 9), hidden=st.lists(st.integers(1, 99), max_size=3)),
    st.integers(1, 9),
)
def test_settings_survive_toml(tmp_path_factory: pytest.TempPathFactory, model: ModelSettings, epochs: int) -> None:
    settings = RunSettings(model=model, training=TrainingSettings(epochs=epochs, learning_rate=1e-3, patience=None))
    path = tmp_path_factory.mktemp("toml") / "config.toml"
    path.write_text(to_toml(settings), encoding="utf-8")
    assert RunSettings.of(read_toml(path)) == settings


def test_a_misspelt_key_names_the_nearest_and_a_bad_value_says_what_is_expected() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"x.toml: expected a known setting, got 'model.statesize' \(nearest known: 'state_size'\)",
    ):
        RunSettings.of({"model": {"statesize": 3}}, "x.toml")
    with pytest.raises(ConfigurationError, match=r"settings: model.state_size: input should be greater than 0, got -3"):
        RunSettings.of({"model": {"state_size": -3}})
    with pytest.raises(
        ConfigurationError,
        match=r"model.aggregator: unknown aggregator 'tuker' \(nearest known: 'tucker'\), expected 'sum', ",
    ):
        RunSettings.of({"model": {"aggregator": "tuker"}})


@pytest.mark.parametrize("value", [True, "3"])
@pytest.mark.parametrize("name", ["model.state_size", "model.dropout", "training.seed", "training.l2"])
def test_truth_values_and_digits_in_quotes_are_no_numbers(name: str, value: object) -> None:
    group, _, key = name.partition(".")
    with pytest.raises(ConfigurationError, match=f"{name}: input should be a number, got {value!r}"):
        RunSettings.of({group: {key: value}})


def test_numbers_of_numpy_are_numbers() -> None:
    assert ModelSettings.of({"state_size": np.int64(3), "dropout": np.float32(0.5)}).state_size == 3


def test_changes_as_text_reach_their_group() -> None:
    changes = {
        "rank": "5",
        "training.seed": "7",
        "aggregator": "tensor-train",
        "hidden": "[4]",
        "patience": "none",
        "task": "pair",
    }
    changed = with_changes(RunSettings(), changes)
    assert (changed.model.rank, changed.training.seed, changed.model.aggregator, changed.model.hidden) == (
        5,
        7,
        "tensor-train",
        (4,),
    )
    assert changed.training.patience is None and changed.task == "pair"
    with pytest.raises(ConfigurationError, match=r"expected a known setting, got 'rnak' \(nearest known: 'rank'\)"):
        with_changes(RunSettings(), {"rnak": "5"})
    with pytest.raises(ConfigurationError, match=r"expected a known setting, got 'model.epochs'"):
        with_changes(RunSettings(), {"model.epochs": "5"})


def test_files_that_are_no_toml_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("= 3")
    with pytest.raises(ConfigurationError, match="expected TOML, got"):
        read_toml(tmp_path / "x.toml")
    with pytest.raises(ConfigurationError, match="expected a file that can be read, got No such file"):
        read_toml(tmp_path / "absent.toml")


def test_no_patience_is_none_again_after_a_file() -> None:
    settings = RunSettings.of({"training": {"patience": None}})
    assert settings.training.patience is None and TrainingSettings().patience == 10
    assert RunSettings.of(tomllib.loads(to_toml(settings))) == settings
    assert RunSettings.of({"training": {"patience": "none"}}) == settings


def test_a_misspelt_name_is_named_before_the_required_one_that_it_leaves_out() -> None:
    with pytest.raises(ConfigurationError, match=r"expected a known setting, got 'sedes' \(nearest known: 'seeds'\)"):
        Grid.of({"name": "g", "sedes": [0], "models": [{"kind": "K"}]})


def test_a_mark_of_an_editor_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert read_toml(tmp_path / "a.toml") == {"x": 1}


@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = " + "[" * 5000])
def test_what_toml_cannot_hold_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigurationError, match="expected TOML, got"):
        read_toml(tmp_path / "a.toml")


def test_a_curriculum_survives_toml_and_text() -> None:
    given = TrainingSettings.of({"curriculum": [[3, 0.4], [8, 0.35], ["none", 0.25]]})
    assert given.curriculum == ((3, 0.4), (8, 0.35), (None, 0.25))
    assert 'curriculum = [[3, 0.4], [8, 0.35], ["none", 0.25]]' in to_toml(given)
    assert TrainingSettings.of(tomllib.loads(to_toml(given))) == given
    assert TrainingSettings.of(given.model_dump(mode="json")) == given
    changed = with_changes(RunSettings(), {"curriculum": '[[3, 0.5], ["none", 0.5]]'})
    assert changed.training.curriculum == ((3, 0.5), (None, 0.5))
    assert with_changes(changed, {"curriculum": "none"}).training.curriculum is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "expected stages of a largest number of inner nodes and a share of the steps, got []"),
        (3, "expected stages of a largest number of inner nodes and a share of the steps, got 3"),
        ([[3]], "expected each stage to have a largest number of inner nodes and a share of the steps, got [3]"),
        ([[2.5, 1.0]], "expected the largest number of inner nodes to be a whole number, or none, got 2.5"),
        ([[True, 1.0]], "expected the largest number of inner nodes to be a whole number, or none, got True"),
        ([[-1, 1.0]], "expected the largest number of inner nodes to be a whole number, or none, got -1"),
        ([[3, 0.0], ["none", 1.0]], "expected the share of the steps to be above 0 and at most 1, got 0.0"),
        ([[3, "half"], ["none", 0.5]], "expected the share of the steps to be above 0 and at most 1, got 'half'"),
        ([[3, float("nan")], ["none", 0.5]], "expected the share of the steps to be above 0 and at most 1, got nan"),
        ([[3, 0.5], [3, 0.5]], "expected limits that increase from stage to stage, got [3, 3]"),
        ([["none", 0.5], [3, 0.5]], "expected limits that increase from stage to stage, got ['none', 3]"),
        ([[3, 0.5], ["none", 0.4]], "expected shares that add up to 1, got [0.5, 0.4]"),
    ],
)
def test_a_wrong_curriculum_is_refused_in_words(value: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as problem:
        RunSettings.of({"training": {"curriculum": value}})
    assert str(problem.value).startswith(f"settings: training.curriculum: {message}; for example [[3, 0.4]")


@pytest.mark.parametrize("other", [{"bucketed": True}, {"batch_nodes": 100}])
def test_a_curriculum_has_batches_of_examples(other: dict[str, object]) -> None:
    message = f"a curriculum expects batches of batch_size examples, got {next(iter(other))}; leave one of them out"
    with pytest.raises(ConfigurationError, match=f"^settings: training: {message}"):
        RunSettings.of({"training": {"curriculum": [["none", 1.0]], **other}})
    with pytest.raises(ConfigurationError, match=f"^settings: {message}"):
        TrainingSettings.of({"curriculum": [["none", 1.0]], **other})


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.sampled_from(
            ["complex", "complex+sum", {"aggregator": "canonical", "rank": 3, "bound": "unit", "arity": 2}]
        ),
        max_size=3,
    )
)
def test_forms_of_operators_survive_toml(aggregators: dict[str, object]) -> None:
    model = {"aggregators": aggregators, "bound": "disc", "activation": "sharp-sigmoid", "cell_hidden": 7}
    settings = RunSettings.of({"model": {**model, "aggregator": "complex+sum", "cell": "rnn"}})
    again = RunSettings.of(tomllib.loads(to_toml(settings)))
    assert again == settings and hash(again) == hash(settings)
    assert RunSettings.of(settings.model_dump(mode="json")) == settings


def test_forms_of_operators_are_given_as_text_and_their_mistakes_are_named() -> None:
    changed = with_changes(
        RunSettings(), {"aggregators": '{SM = "complex", MED = {aggregator = "sum", rank = "none"}}'}
    )
    assert {name: form.aggregator for name, form in changed.model.aggregators.items()} == {
        "SM": "complex",
        "MED": "sum",
    }
    for value, message in {
        '{SM = {agregator = "sum"}}': r"got 'model.aggregators.SM.agregator' \(nearest known: 'aggregator'\)",
        '{SM = "complx"}': r"model.aggregators.SM.aggregator: unknown aggregator 'complx' \(nearest known: 'complex'\)",
        '{SM = "complex+smu"}': r"unknown aggregator 'smu' \(nearest known: 'sum'\)",
        '{SM = {aggregator = "complex", bound = "box"}}': r"bound: input should be 'unit' or 'disc', got 'box'",
        "{SM = {rank = 3}}": r"model.aggregators.SM.aggregator: field required",
        "3": r"model.aggregators: input should be a valid dictionary, got 3",
    }.items():
        with pytest.raises(ConfigurationError, match=message):
            with_changes(RunSettings(), {"aggregators": value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bound", "box", "input should be 'unit' or 'disc'"),
        ("activation", "relu", "input should be 'tanh', 'sigmoid', 'sharp-sigmoid' or 'clamp'"),
        ("cell_hidden", "0", "input should be greater than 0, got 0"),
        ("state_noise", "-1", "input should be greater than or equal to 0, got -1"),
        ("state_noise_end", "-0.5", "input should be greater than or equal to 0"),
        (
            "embeddings",
            "n\udcff.txt",
            r"model.embeddings: expected a name of a file that is UTF-8, got 'n\\udcff.txt'; rename",
        ),
    ],
)
def test_new_settings_say_what_they_expect(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        with_changes(RunSettings(), {name: value})


def test_old_names_of_parts_are_translated() -> None:
    assert ModelSettings.of({"aggregator": "hadamard+sum"}).aggregator == "blockwise+sum"


def test_every_setting_has_a_meaning_and_an_advice_when_to_change_it() -> None:
    rows = describe_settings()
    fields = {*RunSettings.model_fields, *ModelSettings.model_fields, *TrainingSettings.model_fields}
    assert sorted(row.name for row in rows) == sorted(fields - {"model", "training"})
    for row in rows:
        assert re.fullmatch(r"[A-Z].{15,}[.]", row.meaning), row
        assert re.fullmatch(r"[A-Z0-9`].{10,}[.]", row.when), row
        assert row.values and row.default, row
    assert len({row.meaning for row in rows}) == len(rows)


@pytest.mark.parametrize("text", [f"a{'.b' * 100_000} = 1", f"[{'.'.join('ab' * 50_000)}]", "x = " + "[" * 100_000])
def test_a_file_of_settings_that_is_nested_deeply_is_refused_at_once(tmp_path: Path, text: str) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"deep.toml: expected TOML, got .*; see toml.io for the format"):
        read_toml(path)


def test_meanings_name_all_parts_of_the_registries() -> None:
    meanings = {row.name: row.meaning for row in describe_settings()}
    registries: dict[str, Iterable[str]] = {"cell": CELLS, "aggregator": AGGREGATORS, "task": TASKS}
    for name, registry in registries.items():
        assert {part for part in registry if f"`{part}`" not in meanings[name]} == set()


def test_what_is_said_to_come_from_the_data_is_what_the_recipe_chooses() -> None:
    said = {row.name for row in describe_settings() if row.default.startswith("from the data")}
    wide = [f"(p {' '.join(f'(b a{number} p)' for number in range(70))})"] * 9
    many = [f"(p {' '.join(f'(b a{number} p)' for number in range(20_001))})"]
    found = set()
    for trees in (["(and a (or b a))"], wide, many):
        facts = facts_of(Forest(trees))
        chosen = choose(RunSettings(), facts, 9).settings
        for before, after in ((RunSettings().model, chosen.model), (RunSettings().training, chosen.training)):
            found |= {name for name in type(before).model_fields if getattr(before, name) != getattr(after, name)}
    assert found == said
