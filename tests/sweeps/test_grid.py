import itertools
from pathlib import Path
from typing import Any

import pytest

from treefold.errors import ConfigurationError
from treefold.sweeps.grid import Grid, read_grid


def grid(**values: Any) -> Grid:
    return Grid.of({"name": "x", "seeds": [0], **values}, "x.toml")


def test_lists_vary_in_a_product_over_model_and_training_settings_alike() -> None:
    entry = {"kind": "K", "aggregator": "sum", "state_size": [2, 3], "l2": [0.0, 0.1, 0.2], "shared": True}
    found = grid(models=[entry], training={"epochs": 7, "l2": 0.9}).configurations()
    assert [(each.model.state_size, each.training.l2) for each in found] == list(
        itertools.product([2, 3], [0.0, 0.1, 0.2])
    )
    assert all(each.model.shared and each.training.epochs == 7 for each in found)


def test_a_setting_that_is_a_list_varies_as_a_list_of_lists() -> None:
    def hidden(value: object) -> list[tuple[int, ...]]:
        entry = {"kind": "K", "aggregator": "sum", "hidden": value}
        return [each.model.hidden for each in grid(models=[entry]).configurations()]

    assert hidden([5, 6]) == [(5, 6)]
    assert hidden([[5, 6], [7], []]) == [(5, 6), (7,), ()]
    assert hidden([]) == [()]


def test_the_word_none_stands_for_no_value_and_threads_are_one_unless_said() -> None:
    entries = [{"kind": "K", "aggregator": "sum", "patience": [3, "none"]}]
    found = grid(models=entries).configurations()
    assert [each.training.patience for each in found] == [3, None] and found[0].training.threads == 1
    (several,) = grid(models=[{"kind": "K", "aggregator": "sum"}], training={"threads": 4}).configurations()
    assert several.training.threads == 4


HEAD = 'name = "x"\nseeds = [0]\n'
SUM = '[[models]]\nkind = "Sum"\naggregator = "sum"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD, "models: field required"),
        (HEAD + "models = []\n", "models: tuple should have at least 1 item"),
        ('name = "x"\nseeds = []\n' + SUM, "seeds: tuple should have at least 1 item"),
        ('name = "x"\nseeds = [0, 1, 0]\n' + SUM, "seeds: expected every seed once, got [0, 1, 0]"),
        (HEAD + "sedes = 1\n" + SUM, "expected a known setting, got 'sedes' (nearest known: 'seeds')"),
        (HEAD + "[data]\nmaek = 'listops'\n" + SUM, "got 'data.maek' (nearest known: 'make')"),
        (HEAD + "[data]\nmake = 'listops'\npath = 'x'\n" + SUM, "expected `make` or `path`, got both"),
        (HEAD + "[data]\ncount = 5\n" + SUM, 'count and seed need make = "listops" or "lrt"'),
        (HEAD + "[budget]\nminutes = 5\n" + SUM, "got 'budget.minutes' (nearest known: 'minutes_per_run')"),
        (HEAD + "[model]\nsate_size = 5\n" + SUM, "[model]: expected a known setting, got 'sate_size'"),
        (HEAD + "[training]\nepocs = 5\n" + SUM, "[training]: expected a known setting, got 'epocs'"),
        (HEAD + "[training]\nseed = 5\n" + SUM, "[training]: expected no seed; list seeds at the top"),
        (HEAD + SUM + "seed = 5\n", "entry 1 ('Sum'): expected no seed, got 5; list seeds at the top"),
        (
            HEAD + SUM + SUM + "rnak = 5\n",
            "entry 2 ('Sum'): expected a known setting, got 'rnak' (nearest known: 'rank')",
        ),
        (
            HEAD + SUM + "state_size = []\n",
            "entry 1 ('Sum'): state_size: expected at least one value, got an empty list",
        ),
        (HEAD + SUM + "state_size = [3, -1]\n", "('Sum', state_size = -1): state_size: input should be greater than 0"),
        (HEAD + SUM + "state_size = [3, 3]\n", "expected every configuration once"),
        (HEAD + SUM + SUM.replace("Sum", "Other"), "expected every configuration once"),
        (
            HEAD + SUM.replace("sum", "tukcer"),
            "aggregator: unknown aggregator 'tukcer' (nearest known: 'tucker')",
        ),
        (HEAD + SUM.replace("sum", "tucker"), "entry 1 ('Sum'): expected a rank for aggregator = 'tucker', got none"),
        (HEAD + '[[models]]\naggregator = "sum"\n', 'entry 1: expected a name, kind = "…", got None'),
        ("name = ", "expected TOML"),
    ],
)
def test_a_wrong_grid_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as problem:
        read_grid(path)
    assert message in str(problem.value) and str(problem.value).startswith(str(path))


def test_a_curriculum_is_one_value_and_a_list_of_curricula_varies_it() -> None:
    one, other = [[3, 0.5], ["none", 0.5]], [["none", 1.0]]
    entry = {"kind": "Sum", "aggregator": "sum"}

    def found(value: object) -> list[object]:
        grid = Grid.of({"name": "g", "seeds": [0], "models": [{**entry, "curriculum": value}]})
        return [each.training.curriculum for each in grid.configurations()]

    assert found(one) == [((3, 0.5), (None, 0.5))] and found("none") == [None]
    assert found([one, other, "none"]) == [((3, 0.5), (None, 0.5)), ((None, 1.0),), None]
