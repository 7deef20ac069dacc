import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from treefold import Forest, TreeModel
from treefold.data.generators import make_listops, make_lrt
from treefold.errors import ConfigurationError, TrainingError
from treefold.nn.aggregators import Combined
from treefold.nn.flat import FlatParameters
from treefold.training import Examples, Progress, fit
from treefold.training.build import build_model, facts_of, resolve
from treefold.training.examples import Curriculum, Score, by_nodes, epoch_batches, outputs_of
from treefold.training.settings import ModelSettings, TrainingSettings
from treefold.training.trainer import Trainer, _rate_factor
from treefold.trees.batch import Ints

DATA = make_listops(120, seed=0)


def model_for(examples: Examples, outputs: int = 10, **settings: object) -> TreeModel:
    torch.manual_seed(0)
    resolved, labels = resolve(ModelSettings(state_size=4, **settings), facts_of(examples.forest))  # type: ignore[arg-type]
    return build_model(resolved, labels, examples.task, outputs)


def listops() -> Examples:
    return Examples.of(DATA, "tree")


@pytest.mark.parametrize(
    "changes",
    [
        {"optimiser": "adadelta"},
        {"optimiser": "adadelta", "reduction": "sum"},
        {"optimiser": "adadelta", "weight_decay": 0.01},
        {"optimiser": "adamw"},
        {"optimiser": "adamw", "weight_decay": 0.5, "beta2": 0.98},
        {"optimiser": "adamw", "weight_decay": 0.5, "decay_all": True},
    ],
    ids=str,
)
def test_the_flat_step_equals_the_step_of_each_tensor(changes: dict[str, Any]) -> None:
    """The oracle is torch's own optimiser over the separate parameters."""
    examples = listops()
    flat_model, plain_model = model_for(examples), model_for(examples)
    settings = TrainingSettings.of({"batch_size": 10, "epochs": 2, "patience": None, "l2": 0.01, **changes})
    fit(flat_model, examples, settings)
    decay = settings.weight_decay
    optimiser: torch.optim.Optimizer = torch.optim.Adadelta(plain_model.parameters(), weight_decay=decay)
    if settings.optimiser == "adamw":
        is_bias = {
            name: not settings.decay_all and "bias" in name.rpartition(".")[2]
            for name, _ in plain_model.named_parameters()
        }
        groups = [
            {"params": [each for name, each in plain_model.named_parameters() if is_bias[name] == chosen]}
            | {"weight_decay": 0.0 if chosen else decay}
            for chosen in (False, True)
        ]
        optimiser = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, settings.beta2))
    for epoch in range(2):
        for chosen in epoch_batches(examples, np.arange(len(examples)), settings, epoch):
            optimiser.zero_grad()
            outputs, target = plain_model(examples.batch(chosen)), examples.target(chosen)
            loss = nn.functional.cross_entropy(outputs, target, reduction=settings.reduction)
            penalty = sum(parameter.square().sum() for parameter in plain_model.parameters())
            torch.autograd.backward(loss + 0.01 * penalty)
            optimiser.step()
    for one, other in zip(flat_model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class Notes:
    def __init__(self) -> None:
        self.progress: list[Progress] = []
        self.metrics: list[dict[str, object]] = []

    def batch(self, progress: Progress) -> None:
        self.progress.append(progress)

    def epoch(self, metrics: dict[str, object]) -> None:
        self.metrics.append(metrics)


def test_progress_counts_batches_and_ends_with_the_figures_of_the_epoch() -> None:
    notes = Notes()
    fit(model_for(listops()), listops(), TrainingSettings(batch_size=50, epochs=2), reporter=notes)
    assert [(p.epoch, p.batch, p.batches, p.seen) for p in notes.progress] == [
        (epoch, batch, 3, seen) for epoch in (1, 2) for batch, seen in ((1, 50), (2, 100), (3, 120))
    ]
    for last, metrics in zip(notes.progress[2::3], notes.metrics, strict=True):
        assert (last.loss, last.accuracy) == (metrics["loss"], metrics["accuracy"])
        assert float(str(metrics["seconds"])) > 0 and float(str(metrics["processor_seconds"])) > 0


def test_numbers_have_no_accuracy() -> None:
    notes = Notes()
    examples = Examples(Forest(["(f a)", "b"]), np.array([[1.0], [0.0]]), "regression")
    fit(model_for(examples, 1), examples, TrainingSettings(epochs=1), reporter=notes)
    assert [p.accuracy for p in notes.progress] == [None]


def test_of_epochs_with_equal_score_the_one_of_lower_loss_is_kept() -> None:
    """One tree held out is right or wrong; once right, later epochs are more certain of it."""
    examples = Examples(Forest(["(f a b)", "(f b a)"] * 8), np.array([0, 1] * 8), "tree")
    result = fit(
        model_for(examples, 2), examples, TrainingSettings(epochs=12), train=np.arange(15), validation=np.array([15])
    )
    right = [m for m in result.history if m["validation_score"] == result.best_score]
    assert len(right) > 1
    assert result.best_epoch == min(right, key=lambda m: m["validation_loss"])["epoch"]


@pytest.mark.parametrize("frozen", ["encoder", "biases", "all but the biases", "head"])
def test_a_model_with_frozen_parts_learns_the_same_in_both_ways(frozen: str) -> None:
    """Between the epochs it is evaluated, which must not move its weights away from those that are trained."""
    examples = listops()

    def trained(backend: Literal["torch", "fused"]) -> tuple[list[float], TreeModel]:
        model, notes = model_for(examples), Notes()
        model.encoder.backend = backend
        for name, parameter in model.named_parameters():
            chosen = "biases" in name if "biases" in frozen else name.startswith(frozen)
            parameter.requires_grad_(chosen if frozen.startswith("all but") else not chosen)
        numbers = np.arange(len(examples))
        settings = TrainingSettings(batch_size=10, epochs=3, patience=None)
        fit(model, examples, settings, train=numbers[:80], validation=numbers[80:], reporter=notes)
        return [float(str(metrics["loss"])) for metrics in notes.metrics], model

    (fused, model), (expected, _) = trained("fused"), trained("torch")
    assert fused == pytest.approx(expected, rel=1e-5)
    assert fused[2] < fused[1] < fused[0]
    for one, start in zip(model.parameters(), model_for(examples).parameters(), strict=True):
        assert one.requires_grad or torch.equal(one, start)


def test_training_repeats_for_a_seed_and_differs_for_another() -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        model = model_for(listops(), dropout=0.2)
        torch.manual_seed(seed)
        fit(model, listops(), TrainingSettings(epochs=1, seed=seed))
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(1), weights(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(1), weights(2), strict=True))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 50))
def test_batches_by_nodes_stay_below_the_budget_and_leave_nothing_out(sizes: list[int], budget: int) -> None:
    runs = list(by_nodes(np.arange(len(sizes)), np.array(sizes), budget))
    assert np.concatenate(runs).tolist() == list(range(len(sizes)))
    assert all(sum(sizes[index] for index in run) <= budget or len(run) == 1 for run in runs)


@pytest.mark.parametrize(
    "settings", [{}, {"bucketed": True}, {"batch_nodes": 200}, {"batch_nodes": 200, "bucketed": True}]
)
def test_every_epoch_deals_all_examples_once_in_another_order(settings: dict[str, object]) -> None:
    examples, numbers = listops(), np.arange(100)
    training = TrainingSettings.of({"batch_size": 7, **settings})
    first, again, other = (epoch_batches(examples, numbers, training, epoch) for epoch in (0, 0, 1))
    for batches in (first, other):
        assert sorted(np.concatenate(batches).tolist()) == list(range(100))
    assert (
        [batch.tolist() for batch in first]
        == [batch.tolist() for batch in again]
        != [batch.tolist() for batch in other]
    )
    if settings.get("bucketed"):
        spread = np.mean([np.ptp(examples.sizes(batch)) for batch in first])
        assert spread < np.mean(
            [
                np.ptp(examples.sizes(batch))
                for batch in epoch_batches(examples, numbers, TrainingSettings(batch_size=7), 0)
            ]
        )


def test_early_stopping_restores_the_best_weights() -> None:
    examples = listops()
    model = model_for(examples)
    validation = np.arange(80, 120)
    result = fit(model, examples, TrainingSettings(epochs=40, patience=2), train=np.arange(80), validation=validation)
    scores = [line["validation_score"] for line in result.history]
    assert result.best_score == max(scores) and scores.index(max(scores)) + 1 == result.best_epoch
    assert result.epochs == min(40, result.best_epoch + 2)
    assert Score.of(model, examples, validation).score == result.best_score


def test_metrics_are_over_the_whole_set_and_not_averages_of_batches() -> None:
    examples = listops()
    model = model_for(examples)
    numbers = np.arange(120)
    logits = torch.cat([model(examples.batch(np.array([number]))).detach() for number in numbers])
    target = torch.from_numpy(DATA.targets)
    measured = Score.of(model, examples, numbers)
    assert measured.score == pytest.approx(float((logits.argmax(1) == target).double().mean()))
    assert measured.loss == pytest.approx(float(nn.functional.cross_entropy(logits, target)), rel=1e-5)
    torch.testing.assert_close(outputs_of(model, examples, numbers), logits, rtol=1e-4, atol=1e-5)


def test_an_evaluation_leaves_every_module_in_its_mode_also_after_an_error() -> None:
    examples = listops()
    model = model_for(examples, dropout=0.5).train()
    model.encoder.eval()
    before = {name: module.training for name, module in model.named_modules()}
    outputs_of(model, examples, np.arange(5))
    assert {name: module.training for name, module in model.named_modules()} == before
    model.encoder.unknown = "error"
    with pytest.raises(ValueError):
        outputs_of(model, Examples(Forest(["(UNKNOWN 1)"]), np.array([0]), "tree"), np.array([0]))
    assert {name: module.training for name, module in model.named_modules()} == before


def test_an_evaluation_never_moves_a_parameter() -> None:
    examples = listops()
    model = model_for(examples)
    before = [parameter.data_ptr() for parameter in model.parameters()]
    outputs_of(model, examples, np.arange(120))
    assert [parameter.data_ptr() for parameter in model.parameters()] == before


def test_a_loss_that_is_not_finite_stops_with_its_place_and_a_hint() -> None:
    examples = listops()
    model = model_for(examples)
    with torch.no_grad():
        next(iter(model.head.parameters())).fill_(float("nan"))
    with pytest.raises(
        TrainingError,
        match=r"epoch 1, batch 1: training diverged: the loss became nan, also after the learning rate was halved 3 times, "
        r"to 0.125; lower learning_rate \(now 1\), set clip=1, or look for very large numbers",
    ):
        fit(model, examples, TrainingSettings(epochs=1))
    with pytest.raises(
        TrainingError, match=r"to 0.0125; lower learning_rate \(now 0.1\), lower clip \(now 1\), or look"
    ):
        fit(model, examples, TrainingSettings(epochs=1, learning_rate=0.1, clip=1.0))


def test_forms_that_grow_with_the_number_of_children_are_named_as_the_reason() -> None:
    examples = listops()
    model = model_for(examples, aggregator="canonical", rank=2, shared=True)
    with torch.no_grad():
        next(iter(model.head.parameters())).fill_(float("nan"))
    with pytest.raises(
        TrainingError, match=r"states grow with the number of children: choose siblings=true, or a form"
    ):
        fit(model, examples, TrainingSettings(epochs=1))


@pytest.mark.parametrize("optimiser", ["adadelta", "adamw"])
def test_training_that_diverges_goes_back_to_the_last_good_epoch_with_half_the_rate(
    optimiser: Literal["adadelta", "adamw"], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    examples, model = listops(), None
    rates, starts, steps = [], [], 0
    plain = Trainer._step

    def broken(trainer: Trainer, chosen: Ints, total: int) -> tuple[float, int, int]:
        nonlocal steps
        if trainer.state.batch == 0:
            starts.append((trainer.state.epoch, trainer.flat.values.detach().clone()))
        result = plain(trainer, chosen, total)
        steps += 1
        rates.append(trainer.optimiser.param_groups[0]["lr"])
        if steps == 8:  # in the second epoch
            trainer.flat.values.data[3] = float("inf")
        return result

    monkeypatch.setattr(Trainer, "_step", broken)
    model = model_for(examples)
    settings = TrainingSettings(epochs=3, batch_size=25, optimiser=optimiser, learning_rate=0.01)
    result = fit(model, examples, settings, train=np.arange(120))
    assert [epoch for epoch, _ in starts] == [0, 1, 1, 2]
    assert torch.equal(starts[1][1], starts[2][1])
    assert rates[0] == pytest.approx(0.01) and rates[-1] == pytest.approx(0.005)
    assert [line.get("restarts") for line in result.history] == [None, 1, 1]
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert "goes back to epoch 1 with half the learning rate, 0.005" in caplog.text


def test_the_last_weights_are_kept_if_that_is_asked_for() -> None:
    examples = listops()
    model = model_for(examples)
    settings = TrainingSettings(epochs=4, keep="last", patience=1, learning_rate=3.0)
    result = fit(model, examples, settings, train=np.arange(60), validation=np.arange(60, 120))
    assert result.epochs == result.best_epoch == 4
    assert Score.of(model, examples, np.arange(60, 120)).loss == pytest.approx(result.history[-1]["validation_loss"])


@pytest.mark.parametrize("task", ["node", "regression"])
def test_nodes_and_numbers_are_learned_too(task: str) -> None:
    examples = Examples.of(DATA, task)
    model = model_for(examples, outputs=10 if task == "node" else 1)
    before = Score.of(model, examples, np.arange(120)).loss
    fit(
        model,
        examples,
        TrainingSettings(epochs=8, optimiser="adamw", learning_rate=0.01, clip=1.0, schedule="cosine", warmup=0.1),
    )
    assert Score.of(model, examples, np.arange(120)).loss < 0.8 * before


def test_weights_scale_what_an_example_counts() -> None:
    forest = Forest(["(f a)", "(f b)"])
    one = Examples(forest, np.array([0, 1]), "tree", weights=np.array([1.0, 0.0]))
    outputs = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    expected = nn.functional.cross_entropy(outputs[:1], torch.tensor([0])) / 2
    assert float(one.loss(outputs, np.array([0, 1]))) == pytest.approx(float(expected))
    weighted = Examples(forest, np.array([0, 1]), "tree", class_weights=np.array([2.0, 0.0]))
    assert float(weighted.loss(outputs, np.array([0, 1]))) == pytest.approx(2 * float(expected))


def test_unknown_labels_take_no_part() -> None:
    examples = Examples(Forest(["a", "b", "c"]), np.array([0, -1, 1]), "tree")
    assert examples.known(np.arange(3)).tolist() == [0, 2]
    with pytest.raises(TrainingError, match="at least one example with a known label, got none"):
        Trainer(model_for(examples, 2), examples, np.array([1]), np.zeros(0, np.int64), TrainingSettings())


def test_the_rate_warms_up_in_a_line_and_falls_along_a_cosine_to_zero() -> None:
    settings = TrainingSettings(schedule="cosine", warmup=0.1)
    factors = [_rate_factor(settings, step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert factors[10] == pytest.approx(1) and factors[55] == pytest.approx(0.5) and factors[99] < 0.001
    assert all(math.isclose(_rate_factor(TrainingSettings(), step, 100), 1) for step in range(100))


def test_flat_parameters_share_memory_with_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    flat = FlatParameters(model)
    model(torch.ones(1, 2)).sum().backward()
    assert torch.equal(flat.gradient, torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    flat.values.data.fill_(2.0)
    assert all(bool((p == 2).all()) for p in model.parameters())


def operators(examples: Examples, number: int) -> int:
    """Count the inner nodes of an example the plain way."""
    trees = [examples.forest[int(tree)] for tree in examples.trees_of(np.array([number]))]
    return max(sum(any(child is not None for child in node.children) for node in tree.preorder()) for tree in trees)


@pytest.mark.parametrize("kind", ["tree", "pair"])
def test_inner_nodes_are_counted_and_of_a_pair_those_of_the_larger_tree(kind: str) -> None:
    examples = Examples.of(DATA if kind == "tree" else make_lrt(60), kind)
    numbers = np.arange(len(examples))[::-3]
    assert examples.inner_counts(numbers).tolist() == [operators(examples, number) for number in numbers.tolist()]


def plain_curriculum(examples: Examples, numbers: list[int], settings: TrainingSettings) -> list[tuple[int, list[int]]]:
    """Return stage and batch of every step, by the plainest loop."""
    assert settings.curriculum is not None
    steps = settings.epochs * math.ceil(len(numbers) / settings.batch_size)
    found: list[tuple[int, list[int]]] = []
    for stage, (limit, _) in enumerate(settings.curriculum):
        end = round(steps * sum(share for _, share in settings.curriculum[: stage + 1]))
        pool = [number for number in numbers if limit is None or operators(examples, number) <= limit]
        turn = 0
        waiting: list[int] = []
        while len(found) < end:
            if not waiting:
                waiting = np.random.default_rng([settings.seed, stage, turn]).permutation(pool).tolist()
                turn += 1
            found.append((stage + 1, waiting[: settings.batch_size]))
            waiting = waiting[settings.batch_size :]
    return found


@pytest.mark.parametrize("batch_size", [7, 16, 200])
@pytest.mark.parametrize(
    "stages", [[[3, 0.4], [8, 0.35], ["none", 0.25]], [[2, 0.5], [5, 0.5]], [["none", 1.0]], [[1, 0.001], [9, 0.999]]]
)
def test_a_curriculum_takes_its_shares_from_shuffled_pools(stages: list[Any], batch_size: int) -> None:
    examples, numbers = listops(), np.arange(5, 115)
    settings = TrainingSettings(curriculum=stages, batch_size=batch_size, epochs=6, seed=4)  # type: ignore[arg-type]
    curriculum = Curriculum(examples, numbers, settings)
    batches = [batch.tolist() for epoch in range(6) for batch in curriculum.batches(epoch)]
    expected = plain_curriculum(examples, numbers.tolist(), settings)
    assert [(curriculum.stage_of(step) + 1, batch) for step, batch in enumerate(batches)] == expected


def test_training_follows_the_curriculum_and_says_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    examples, notes, taken = listops(), Notes(), []
    plain = Trainer._step

    def noted(trainer: Trainer, chosen: Ints, total: int) -> tuple[float, int, int]:
        taken.append((trainer.state.epoch, chosen.tolist(), total))
        return plain(trainer, chosen, total)

    monkeypatch.setattr(Trainer, "_step", noted)
    settings = TrainingSettings.of({"curriculum": [[3, 0.5], ["none", 0.5]], "batch_size": 25, "epochs": 3})
    fit(model_for(examples), examples, settings, reporter=notes)
    expected = plain_curriculum(examples, list(range(120)), settings)
    assert [(epoch, total) for epoch, _, total in taken] == [(step // 5, 15) for step in range(15)]
    assert [chosen for _, chosen, _ in taken] == [batch for _, batch in expected]
    assert [progress.stage for progress in notes.progress] == [stage for stage, _ in expected]
    assert [metrics["stage"] for metrics in notes.metrics] == [expected[step][0] for step in (4, 9, 14)]
    for epoch, metrics in enumerate(notes.metrics):
        seen = sum(len(batch) for _, batch in expected[5 * epoch : 5 * epoch + 5])
        assert notes.progress[5 * epoch + 4].seen == seen
        speed, seconds = float(str(metrics["examples_per_second"])), float(str(metrics["seconds"]))
        assert seen / (seconds + 0.001) <= speed <= seen / max(seconds - 0.001, 1e-9)  # seconds are rounded


def test_a_stage_without_trees_names_the_smallest_tree() -> None:
    examples = Examples(Forest(["(f (g (h a)))", "(f (g b))"]), np.array([0, 1]), "tree")
    settings = TrainingSettings.of({"curriculum": [[1, 0.5], ["none", 0.5]]})
    with pytest.raises(
        ConfigurationError,
        match=r"trees of at most 1 inner nodes for its stage 1, got none: the smallest has 2; raise the limit",
    ):
        fit(model_for(examples, 2), examples, settings)


@pytest.mark.parametrize(("how", "factor"), [("whole", 1), ("each", 2)])
def test_the_rate_has_one_schedule_for_all_stages_or_one_for_each(
    how: str, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, rates = listops(), []
    plain = Trainer._step

    def noted(trainer: Trainer, chosen: Ints, total: int) -> tuple[float, int, int]:
        result = plain(trainer, chosen, total)
        rates.append(trainer.optimiser.param_groups[0]["lr"])
        return result

    monkeypatch.setattr(Trainer, "_step", noted)
    values = {"curriculum": [[5, 0.5], ["none", 0.5]], "batch_size": 25, "epochs": 4, "learning_rate": 0.1}
    settings = TrainingSettings.of({**values, "schedule": "cosine", "warmup": 0.2, "stage_schedule": how})
    fit(model_for(examples), examples, settings)
    once = [0.1 * _rate_factor(settings, step, 20 // factor) for step in range(20 // factor)]
    assert rates == pytest.approx(once * factor)


def test_patience_waits_for_the_last_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation never improves after the first epoch; without a curriculum, training ends after the third."""
    examples = listops()
    scores = iter([1.0] + [0.0] * 100)
    monkeypatch.setattr(Score, "of", lambda *_: Score(1.0, next(scores)))
    values = {"batch_size": 20, "epochs": 12, "patience": 2}
    stages = [[3, 0.4], ["none", 0.6]]  # 4 steps an epoch, 48 in all: the last stage begins in epoch 5, at step 19
    for curriculum, epochs in ((None, 3), (stages, 5 + 2)):
        settings = TrainingSettings.of({**values, "curriculum": curriculum})
        model, numbers = model_for(examples), np.arange(120)
        result = fit(model, examples, settings, train=numbers[:80], validation=numbers[80:])
        assert result.epochs == epochs and result.best_epoch == 1
        scores = iter([1.0] + [0.0] * 100)


@pytest.mark.parametrize(("end", "last"), [(None, 0.5), (0.1, 0.1)])
def test_the_noise_on_states_goes_in_a_line_and_is_off_outside_of_steps(
    end: float | None, last: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, model = listops(), model_for(listops())
    noise, elsewhere = [], []
    plain, score = Trainer._add_gradients, Score.of

    def noted(trainer: Trainer, chosen: Ints) -> tuple[float, int, int]:
        noise.append(trainer.model.encoder.state_noise)
        return plain(trainer, chosen)

    def evaluated(*arguments: Any) -> Score:
        elsewhere.append(model.encoder.state_noise)
        return score(*arguments)

    monkeypatch.setattr(Trainer, "_add_gradients", noted)
    monkeypatch.setattr(Score, "of", evaluated)
    settings = TrainingSettings.of({"batch_size": 20, "epochs": 2, "state_noise": 0.5, "state_noise_end": end})
    fit(model, examples, settings, train=np.arange(100), validation=np.arange(100, 120))
    assert noise == pytest.approx(np.linspace(0.5, last, 10).tolist())
    assert elsewhere == [0.0, 0.0] and model.encoder.state_noise == 0.0
    monkeypatch.setattr(Trainer, "_add_gradients", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fit(model, examples, settings)
    assert model.encoder.state_noise == 0.0


def test_selection_leaves_one_part_of_each_sum_and_no_selection_all_of_them() -> None:
    examples = listops()
    for selection in (0.0, 1.0):
        torch.manual_seed(0)
        model = model_for(examples, cell="rnn", aggregator="canonical+sum+max", rank=2, shared=True, hidden=[])
        training = TrainingSettings(optimiser="adamw", epochs=3, batch_size=10, selection=selection, patience=None)
        fit(model, examples, training)
        sums = [part for part in model.modules() if isinstance(part, Combined)]
        assert len(sums) == 4
        for each in sums:
            assert sum(norm > 0 for norm in each.part_norms()) == (1 if selection else 3)


def test_the_lasso_of_a_selection_begins_after_a_tenth_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(Combined, "shrink_parts", lambda self, amount: calls.append(f"shrink {amount:.5f}"))
    monkeypatch.setattr(Combined, "keep_strongest", lambda self: calls.append("keep"))
    examples = listops()
    model = model_for(examples, cell="rnn", aggregator="canonical+sum", rank=2, shared=True, per_label=False)
    settings: dict[str, Any] = {"optimiser": "adamw", "learning_rate": 0.01, "epochs": 10, "batch_size": len(examples)}
    settings |= {"selection": 2.0, "patience": None}
    for stages in ({}, {"curriculum": [[3, 0.5], ["none", 0.5]], "stage_schedule": "each"}):
        calls.clear()
        fit(model, examples, TrainingSettings.of({**settings, **stages}))
        assert calls == ["shrink 0.02000"] * 3 + ["keep"] * 6  # of ten steps, the first does nothing
