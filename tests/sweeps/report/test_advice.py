from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sweeps.report.made_up import result
from treefold.sweeps.report.advice import extended, next_steps
from treefold.sweeps.report.summary import summarise
from treefold.sweeps.results import RunResult


def of(c: int, seed: int = 0, **facts: Any) -> dict[str, Any]:
    return result("g", "Sum", c, seed=seed, **{"curves": {}, "best_epoch": 3, **facts})


def steps(*lines: dict[str, Any]) -> list[str]:
    return next_steps(summarise([RunResult.model_validate(line) for line in lines]))


def said(word: str, *lines: dict[str, Any]) -> list[str]:
    return [step for step in steps(*lines) if word in step]


@pytest.mark.parametrize(
    ("scores", "step"),
    [
        (
            {5: 0.7, 10: 0.8, 20: 0.9},
            "the largest value that was tried (5, 10, 20): extend the range, for example by state_size = 40.",
        ),
        (
            {10: 0.9, 20: 0.8},
            "the smallest value that was tried (10, 20): extend the range, for example by state_size = 5.",
        ),
        ({5: 0.7, 10: 0.9, 20: 0.8}, None),
        ({5: 0.9}, None),
        ({1: 0.9, 2: 0.8}, None),  # there is nothing below one
    ],
)
def test_the_range_is_extended_if_the_best_value_is_at_its_end(scores: dict[int, float], step: str | None) -> None:
    found = said("extend the range", *(of(c, validation=score) for c, score in scores.items()))
    best = max(scores, key=lambda c: scores[c])
    assert found == ([] if step is None else [f"state_size = {best} is the best and {step}"])


def test_ranges_of_shares_end_where_shares_do() -> None:
    ends = [of(3, model={"dropout": dropout}, validation=score) for dropout, score in ((0.0, 0.9), (0.5, 0.8))]
    assert not said("extend the range", *ends)  # no dropout below zero
    ends = [of(3, model={"dropout": dropout}, validation=score) for dropout, score in ((0.5, 0.8), (0.9, 0.9))]
    assert not said("extend the range", *ends)  # 0.9 * 0.9 / 0.5 is above one


def test_only_configurations_that_differ_in_one_setting_are_a_range() -> None:
    lines = [of(5, validation=0.7, training={"batch_size": 8}), of(9, validation=0.9)]
    assert not said("state_size =", *lines)


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_an_extended_range_goes_on_in_the_same_direction(end: int, inner: int) -> None:
    further = extended(end, inner)
    assert isinstance(further, int) and (further >= end if end > inner else further <= end)


def test_runs_that_improve_until_the_end_ask_for_more_epochs_unless_the_rate_ends_at_zero() -> None:
    late: dict[str, Any] = {"training": {"epochs": 40}, "epochs": 40, "best_epoch": 40}
    (step,) = said("epochs", of(3, **late), of(3, seed=1, **{**late, "best_epoch": 20}))
    assert "still improving at its last epoch in 1 of 2 runs: raise epochs, for example to 80" in step
    assert not said("epochs", of(3, **{**late, "best_epoch": 20}))
    assert not said("epochs", of(3, **{**late, "epochs": 20, "best_epoch": 20}))  # patience ended it
    assert not said("epochs", of(3, **{**late, "training": {"epochs": 40, "schedule": "cosine"}}))


def test_a_budget_that_stopped_runs_is_too_small() -> None:
    stopped: dict[str, Any] = {"stopped": {"limit": "minutes_per_run", "value": 5.0}}
    assert said("budget", of(3), of(5, **stopped)) == [
        "The budget stopped 1 run: raise it, and start the sweep again to continue them."
    ]


@pytest.mark.parametrize(
    ("training", "validation", "word"),
    [(0.95, 0.8, "overfits"), (0.84, 0.8, ""), (0.79, 0.8, "underfits"), (0.97, 0.97, "")],
)
def test_training_and_validation_are_compared_at_the_best_epoch(training: float, validation: float, word: str) -> None:
    curves = {"accuracy": [0.5, training, 1.0], "validation_score": [0.5, validation, 0.6]}
    found = [step for step in steps(of(3, curves=curves, best_epoch=2)) if "fits" in step]
    scores = f"The best configuration has {100 * training:.1f} % on training examples and {100 * validation:.1f} % on validation."
    assert len(found) == bool(word) and all(step.startswith(f"{scores} It {word}") for step in found)


def test_numbers_are_compared_by_their_losses() -> None:
    line = of(3, curves={"loss": [1.0, 0.2], "validation_loss": [1.0, 0.5]}, best_epoch=2)
    line["settings"]["task"] = "regression"
    (step,) = said("overfits", line)
    assert step.startswith(
        "The best configuration has a loss of 0.2 on training examples and 0.5 on validation. It overfits"
    )


def test_more_seeds_are_wanted_if_they_differ_more_than_configurations() -> None:
    scores = {3: (0.88, 0.92), 5: (0.8, 0.82), 9: (0.89, 0.89)}  # the best has a deviation of 0.028
    lines = [of(c, seed, validation=score) for c, pair in scores.items() for seed, score in enumerate(pair)]
    (step,) = said("seeds", *lines)
    assert "“Sum, state_size = 9” is within one standard deviation of the best. List more than 2 seeds" in step
    assert not said("seeds", *[line for line in lines if line["settings"]["model"]["state_size"] != 9])
    assert said("seed", of(3), of(5)) == [
        "The best configuration has one seed, so its lead may be chance: list at least 3 seeds."
    ]
    assert not said("seed", of(3))  # there is nothing to compare it with


def test_one_thing_that_was_not_varied_is_named() -> None:
    assert said("Not varied", of(8)) == ["Not varied yet: state_size. Try state_size = [4, 8, 16] in the grid."]
    sizes = [of(c, training={"weight_decay": 0.0}) for c in (8, 9)]
    assert said("Not varied", *sizes) == [
        "Not varied yet: weight_decay. Try weight_decay = [0.0, 0.0001, 0.001] in the grid."
    ]


def test_without_validation_scores_the_first_step_is_a_split() -> None:
    assert steps(of(3, validation=0.5) | {"validation": None}) == [
        "No run has a validation score: give the data set a validation split, by which models are compared."
    ]
