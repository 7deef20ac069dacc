import time
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.cases import (
    CASES,
    FUSED,
    PROGRAM_CASES,
    TORCH,
    Case,
    batches_of,
    evaluation,
    examples_of,
    inference,
    model_of,
    one_by_one,
    program_model,
    torch_training,
    training,
    with_settings,
)

from treefold.errors import ConfigurationError
from treefold.nn.engine import FusedEngine, StepResult
from treefold.training.examples import Examples, epoch_batches
from treefold.trees.batch import Batch
from treefold.trees.forest import Forest

SMALL = Case("listops", "tucker", 4, 2)


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Note which examples were put into batches."""
    noted: list[list[int]] = []
    original, gradients = Examples.batch, FusedEngine.gradients

    def batch(self: Examples, numbers: Any) -> Batch:
        noted.append(numbers.tolist())
        return original(self, numbers)

    def noted_gradients(self: FusedEngine, forest: Forest, trees: Any, loss: Any, classes: Any) -> StepResult:
        noted.append(trees.tolist())
        return gradients(self, forest, trees, loss, classes)

    monkeypatch.setattr(Examples, "batch", batch)
    monkeypatch.setattr(FusedEngine, "gradients", noted_gradients)
    return noted


def test_both_trainings_time_the_same_steps_and_end_with_the_weights_of_plain_torch(
    scheduled: list[list[int]],
) -> None:
    examples, model = examples_of("listops", 30), model_of(SMALL)
    own, plain = with_settings(model, FUSED), with_settings(model, TORCH)
    timed = batches_of(examples, 5, 3)
    assert len(training(own, examples, 5, 3)(time.thread_time)) == len(timed) == 3
    assert scheduled[1:] == [chosen.tolist() for chosen in timed] and len(scheduled) == 4
    first = np.array(scheduled[0])
    scheduled.clear()
    way = torch_training(plain, lambda chosen: plain(examples.batch(chosen)), examples, 5, 3)
    assert len(way(time.thread_time)) == 3
    assert scheduled == [chosen.tolist() for chosen in (timed[0], *timed)]  # the first of them once without a clock
    expected = with_settings(model, TORCH)
    optimiser = torch.optim.Adadelta(expected.parameters())
    for chosen in (first, *timed):
        optimiser.zero_grad()
        logits = expected(examples.forest.batch(chosen))
        target = torch.from_numpy(np.asarray(examples.targets)[chosen])
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits, target))
        optimiser.step()
    for found, wanted in zip(own.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


def test_more_steps_than_there_are_examples_go_through_them_again() -> None:
    examples = examples_of("listops", 30)
    batches = batches_of(examples, 20, 4)
    assert [len(batch) for batch in batches] == [20] * 4
    assert {number for batch in batches for number in batch.tolist()} <= set(range(30))


def test_inference_computes_no_gradient_and_one_by_one_answers_each_tree_alone(
    scheduled: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    examples, model = examples_of("listops", 30), model_of(SMALL)
    asked: list[tuple[int, bool]] = []
    forward, answering = type(model).forward, type(model).predictor

    def noting(self: Any, batch: Any) -> Any:
        outputs = forward(self, batch)
        asked.append((len(batch), outputs.requires_grad))
        return outputs

    def noting_answers(self: Any) -> Any:
        answers = answering(self)

        def noted(forest: Any, trees: Any) -> Any:
            outputs = answers(forest, trees)
            asked.append((len(trees), outputs.requires_grad))
            return outputs

        return noted

    monkeypatch.setattr(type(model), "forward", noting)
    monkeypatch.setattr(type(model), "predictor", noting_answers)
    inference(model, examples, [np.arange(7), np.arange(7, 12)])(time.thread_time)
    assert asked == [(7, False), (7, False), (5, False)]  # the first once without a clock
    asked.clear()
    one_by_one(model, examples, np.array([3, 5, 8]))(time.thread_time)
    assert asked == [(1, False)] * 4
    asked.clear()
    assert len(evaluation(model, examples)(time.thread_time)) == 1
    assert sum(trees for trees, _ in asked) == 30 and not any(gradient for _, gradient in asked)


def test_a_setting_is_made_on_a_copy_and_must_exist() -> None:
    model = model_of(CASES["lrt sum 10"])
    other = with_settings(model, TORCH)
    assert (model.encoder.backend, other.encoder.backend) == ("auto", "torch")
    with pytest.raises(ConfigurationError, match="expects an encoder with 'share_everything', got one without"):
        with_settings(model, {"share_everything": True})


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_a_model_that_takes_its_data(name: str) -> None:
    case = CASES[name]
    examples, model = examples_of(case.data, 6), with_settings(model_of(case), TORCH)
    chosen = deal_one(examples)
    with torch.no_grad():
        outputs = model(examples.batch(chosen))
    assert outputs.shape == (3, 7 if case.data == "lrt" else 10)
    assert model.encoder.state_size == int(name.split()[-1 if case.rank is None else -2])


def test_generated_programs_are_like_real_ones() -> None:
    forest = examples_of("programs", 60).forest
    trees = list(forest)
    sizes, depths, widest = np.array(
        [(tree.size, tree.depth, max(len(node.children) for node in tree.postorder())) for tree in trees]
    ).T
    assert 180 < sizes.mean() < 230 and sizes.min() >= 100
    assert depths.min() >= 10 and depths.max() <= 30
    assert np.median(widest) >= 5 and 24 <= widest.max() < 50
    assert len(forest.vocabulary) == 100 and [tree.size for tree in trees] == forest.sizes.tolist()


@pytest.mark.parametrize("name", PROGRAM_CASES)
def test_a_model_for_programs_gives_the_same_step_fused_and_in_torch(name: str) -> None:
    examples = examples_of("programs", 6)
    model = program_model(PROGRAM_CASES[name], examples.forest)
    own, plain = with_settings(model, FUSED), with_settings(model, TORCH)
    for each in (own, plain):
        torch.autograd.backward(examples.loss(each(examples.batch(np.arange(3))), np.arange(3)))
    for found, wanted in zip(own.parameters(), plain.parameters(), strict=True):
        assert found.grad is not None and wanted.grad is not None
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-3, atol=1e-5)


def deal_one(examples: Examples) -> Any:
    from treefold.training.settings import TrainingSettings

    return epoch_batches(examples, np.arange(len(examples)), TrainingSettings(batch_size=3), 0)[0]
