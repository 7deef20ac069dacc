"""What to try after a sweep: a few rules, computed from its results."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from treefold.errors import ConfigurationError
from treefold.sweeps.report.summary import Summary, best, numbers_of, same_kind, title_of, value_text, varied
from treefold.training.settings import ModelSettings, TrainingSettings

_FEW_SEEDS: Final = 3
_LAST_EPOCHS: Final = 0.05  # the share of the epochs that counts as the end
_WIDE_GAP: Final = 0.05  # between the accuracies on training and validation examples
_SMALL_GAP: Final = 0.01
_MUCH_LARGER: Final = 1.5  # ratio of the losses on validation and training examples
_FACTOR: Final = 2
# What is often worth varying, and what to try in place of zero.
_UNTRIED: Final = {
    "rank": (),
    "learning_rate": (),
    "state_size": (),
    "weight_decay": (0.0001, 0.001),
    "dropout": (0.1, 0.3),
    "batch_size": (),
}


def next_steps(summaries: Sequence[Summary]) -> list[str]:
    """Return what the results of one grid suggest to try next, the most promising first."""
    top = best(summaries)
    if top is None:
        return ["No run has a validation score: give the data set a validation split, by which models are compared."]
    rules: tuple[Callable[[Summary, Sequence[Summary]], list[str]], ...] = (_edges, _epochs, _fit, _seeds, _untried)
    return [step for rule in rules for step in rule(top, summaries)]


def _edges(top: Summary, summaries: Sequence[Summary]) -> list[str]:
    """Extend the range of a number whose best value is the first or the last that was tried."""
    steps = []
    near = same_kind(top, summaries)
    for name in varied(near):
        line = [each for each in near if each.without(name) == top.without(name) and each.data == top.data]
        values = numbers_of(name, line) or []
        value = top.settings[name]
        if len(values) < 2 or value not in (values[0], values[-1]):
            continue
        largest = value == values[-1]
        further = extended(value, values[-2] if largest else values[1])
        if _is_possible(name, further):
            steps.append(
                f"{name} = {value_text(value)} is the best and the {'largest' if largest else 'smallest'} value that was tried "
                f"({', '.join(map(value_text, values))}): extend the range, for example by {name} = {value_text(further)}."
            )
    return steps


def extended(end: float, inner: float) -> float:
    """Return the next value beyond the end of a range, as far from it as the one inside, by ratio if possible.

    >>> extended(20, 10), extended(0.001, 0.01), extended(10, 50), extended(0.3, 0.2)
    (40, 0.0001, 2, 0.45)
    """
    found = end * end / inner if end > 0 and inner > 0 else 2 * end - inner
    return round(found) if isinstance(end, int) and isinstance(inner, int) else float(f"{found:.2g}")


def _is_possible(name: str, value: Any) -> bool:
    group = ModelSettings if name in ModelSettings.model_fields else TrainingSettings
    try:
        return bool(getattr(group.of({name: value}), name) == value)
    except ConfigurationError:
        return False


def _epochs(top: Summary, summaries: Sequence[Summary]) -> list[str]:
    """Train longer if a run improved until its last epoch, or if the budget stopped it."""
    steps = []
    epochs = top.first.settings.training.epochs
    late = [run for run in top.runs if run.epochs >= epochs and run.best_epoch > (1 - _LAST_EPOCHS) * epochs]
    if (
        late and top.first.settings.training.schedule == "constant"
    ):  # if the rate ends at zero, the last epochs are best anyway
        steps.append(
            f"The best configuration was still improving at its last epoch in {len(late)} of {_runs(len(top.runs))}: raise "
            f"epochs, for example to {_FACTOR * epochs}, or anneal the rate with schedule = cosine."
        )
    stopped = sum(run.stopped is not None for each in summaries for run in each.runs)
    if stopped:
        steps.append(f"The budget stopped {_runs(stopped)}: raise it, and start the sweep again to continue them.")
    return steps


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _fit(top: Summary, summaries: Sequence[Summary]) -> list[str]:
    """Compare training and validation at the best epoch: a wide gap asks for regularisation, none for a larger model."""
    measure = top.measure
    gaps = [
        (run.curves[names[0]][run.best_epoch - 1], run.curves[names[1]][run.best_epoch - 1])
        for run in top.runs
        for names in [("accuracy", "validation_score") if measure.is_share else ("loss", "validation_loss")]
        if all(len(run.curves.get(name, ())) >= run.best_epoch > 0 for name in names)
    ]
    if not gaps:
        return []
    training, validation = np.mean(gaps, axis=0).tolist()
    scores = f"{measure.short(training)} on training examples and {measure.short(validation)} on validation"
    less = "It overfits: try more examples, a larger weight_decay, dropout or label_dropout, or a smaller model."
    if not measure.is_share:
        is_wide = validation > _MUCH_LARGER * training > 0
        losses = f"{training:.3g} on training examples and {validation:.3g} on validation"
        return [f"The best configuration has a loss of {losses}. {less}"] if is_wide else []
    if training - validation > _WIDE_GAP:
        return [f"The best configuration has {scores}. {less}"]
    if training - validation < _SMALL_GAP and validation < 1 - _WIDE_GAP:
        return [f"The best configuration has {scores}. It underfits: try a larger state_size, or more epochs."]
    return []


def _seeds(top: Summary, summaries: Sequence[Summary]) -> list[str]:
    """Ask for more seeds if they differ more than configurations do."""
    assert top.validation is not None
    others = [each for each in summaries if each is not top and each.validation is not None and each.data == top.data]
    if not others:
        return []
    if top.validation.deviation is None:
        return [f"The best configuration has one seed, so its lead may be chance: list at least {_FEW_SEEDS} seeds."]
    close = [each for each in others if top.validation.mean - _validation(each) < top.validation.deviation]
    if not close:
        return []
    second, more = title_of(max(close, key=_validation), summaries), len(close) - 1
    who = f"“{second}” is" if not more else f"“{second}” and {more:,} more are"
    return [
        f"Seeds differ more than the best configurations: {who} within one standard deviation of the best. "
        f"List more than {len(top.runs)} seeds, or choose the cheapest of these."
    ]


def _validation(summary: Summary) -> float:
    return summary.validation.mean if summary.validation else -math.inf


def _untried(top: Summary, summaries: Sequence[Summary]) -> list[str]:
    """Name one number that all configurations share."""
    for name, instead_of_zero in _UNTRIED.items():
        value = top.settings[name]
        if value is None or any(each.settings[name] != value for each in summaries):
            continue
        half = value // _FACTOR if isinstance(value, int) else float(f"{value / _FACTOR:.2g}")
        values = (half, value, _FACTOR * value) if value else (value, *instead_of_zero)
        words = ", ".join(value_text(each) for each in values if _is_possible(name, each))
        return [f"Not varied yet: {name}. Try {name} = [{words}] in the grid."]
    return []
