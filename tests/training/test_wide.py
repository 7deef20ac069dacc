import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-untyped]
from torch import Tensor

from treefold import Forest, TreeClassifier
from treefold.errors import ModelFileError, TrainingError
from treefold.nn.wide import KINDS, Entries, Wide, feature_counts, occurrences
from treefold.training import wide as module
from treefold.training.examples import Examples
from treefold.training.saving import load_model, read_tensors, write_tensors
from treefold.training.wide import STRENGTHS, choose_mix, fit_wide
from treefold.trees.batch import Ints


def bags(count: int, classes: int = 3, seed: int = 0) -> tuple[Forest, Ints]:
    """Trees whose labels hint at their class, and sometimes at another."""
    made = np.random.default_rng(seed)
    targets = made.integers(classes, size=count)
    texts = []
    for target in targets.tolist():
        letters = made.choice(list("abcdefgh"), size=made.integers(3, 9)).tolist()
        letters.append("xyz"[target if made.random() < 0.7 else made.integers(3)])
        texts.append(f"({made.choice(['f', 'g'])} {' '.join(made.permutation(letters))})")
    return Forest(texts), targets


def dense(wide: Wide, forest: Forest, trees: Ints) -> csr_matrix:
    entries: Entries = wide.values(forest, trees)
    return csr_matrix((entries.values.astype(float), (entries.rows, entries.columns)), (len(trees), len(wide.keys)))


def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the optimiser go on until nothing improves."""
    monkeypatch.setattr(module, "_PROGRESS", 1e-7)
    monkeypatch.setattr(module, "_BIAS_PENALTY", 1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_fit_is_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch, weighted: bool) -> None:
    exactly(monkeypatch)
    forest, targets = bags(400)
    weights = np.random.default_rng(1).random(400) + 0.5 if weighted else None
    class_weights = np.array([1.0, 2.0, 0.5]) if weighted else None
    fitted = fit_wide(Examples(forest, targets, "tree", weights, class_weights), np.arange(280), np.arange(280, 400), 3)
    own = dense(fitted.module, forest, np.arange(400))
    by_class = None if class_weights is None else dict(enumerate(class_weights))
    oracle = LogisticRegression(C=fitted.strength, class_weight=by_class, tol=1e-8, max_iter=5000)
    oracle.fit(own, targets, sample_weight=weights)
    expected = oracle.predict_log_proba(own)
    got = torch.log_softmax(fitted.module.scores(forest, np.arange(400)).double(), 1).numpy()
    np.testing.assert_allclose(got, expected, atol=0.02)


@pytest.mark.parametrize("kind", ["tree", "regression"])
def test_equal_features_that_are_joined_give_the_fit_of_all(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    exactly(monkeypatch)
    forest, targets = bags(60)
    texts = [f"(r {forest[i]} {' '.join(f'own{i}-{j}' for j in range(200))})" for i in range(60)]
    examples = Examples(Forest(texts), targets if kind == "tree" else targets[:, None].astype(float), kind)
    fits = []
    for very_many in (100, 10**9):
        monkeypatch.setattr(module, "_VERY_MANY", very_many)
        fit = module._Fit(examples, np.arange(40), ("label",), 3 if kind == "tree" else 1)
        fit.improve(16.0)
        fits.append((len(fit.table), fit.module().scores(examples.forest, np.arange(60))))
    (few, joined), (many, alone) = fits
    assert few < 100 < 8_000 < many
    assert alone.std() > 0.1
    np.testing.assert_allclose(joined.numpy(), alone.numpy(), atol=0.02)


def test_a_fit_with_joined_features_starts_where_another_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    forest, targets = bags(40)
    examples = Examples(forest, targets, "tree")
    monkeypatch.setattr(module, "_VERY_MANY", 0)
    fit = module._Fit(examples, np.arange(40), KINDS, 3)
    fit.improve(16.0)
    again = module._Fit(examples, np.arange(40), KINDS, 3)
    again.start_from(fit.module())
    np.testing.assert_allclose(again.table, fit.table, atol=1e-5)


def test_numbers_are_fitted_as_by_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    exactly(monkeypatch)
    forest, classes = bags(400)
    targets = (classes - classes.mean())[:, None] + np.random.default_rng(1).normal(size=(400, 1))
    fitted = fit_wide(Examples(forest, targets, "regression"), np.arange(280), np.arange(280, 400), 1)
    own = dense(fitted.module, forest, np.arange(400))
    oracle = Ridge(alpha=0.5 / fitted.strength, tol=1e-8).fit(own, targets)  # the loss here has no factor of one half
    got = fitted.module.scores(forest, np.arange(400)).numpy()
    np.testing.assert_allclose(got[:, 0], oracle.predict(own).reshape(-1), atol=0.02)
    assert fitted.loss == pytest.approx(float(np.square(fitted.outputs.numpy() - targets[280:]).mean()), rel=1e-5)


def test_the_choice_has_the_least_loss_and_the_search_stops_when_it_rises() -> None:
    forest, targets = bags(600)
    validation = np.arange(400, 600)
    fitted = fit_wide(Examples(forest, targets, "tree"), np.arange(400), validation, 3)
    assert fitted.losses[fitted.kinds, fitted.strength] == min(fitted.losses.values()) == fitted.loss
    for kinds in (("label",), KINDS):
        tried = {strength: loss for (own, strength), loss in fitted.losses.items() if own == kinds}
        losses = [*tried.values()]
        assert [*tried] == [*STRENGTHS[: len(tried)]]
        assert losses[:-1] == sorted(losses[:-1], reverse=True) and losses[-1] >= min(losses)
    expected = torch.nn.functional.cross_entropy(fitted.outputs, torch.from_numpy(targets[validation]))
    assert fitted.loss == pytest.approx(float(expected))
    assert fitted.score == float((fitted.outputs.argmax(1).numpy() == targets[validation]).mean())


def test_the_chosen_strength_is_that_of_a_search_with_scikit_learn() -> None:
    forest, targets = bags(900)
    train, validation = np.arange(600), np.arange(600, 900)
    fitted = fit_wide(Examples(forest, targets, "tree"), train, validation, 3)
    keys = np.unique(occurrences(forest, train, ["label"]).keys)
    wide = Wide(len(keys), 3, ["label"])
    wide.keys.copy_(torch.from_numpy(keys))
    seen = dense_counts(wide, forest, train)
    wide.scale.copy_(torch.from_numpy(np.log(601 / (1 + (seen > 0).sum(0))) + 1))
    losses = {}
    for strength in STRENGTHS:
        oracle = LogisticRegression(C=strength, tol=1e-8, max_iter=5000).fit(dense(wide, forest, train), targets[train])
        own = oracle.predict_log_proba(dense(wide, forest, validation))
        losses[strength] = -own[np.arange(300), targets[validation]].mean()
    for strength in losses:
        if (("label",), strength) in fitted.losses:
            assert fitted.losses[("label",), strength] == pytest.approx(losses[strength], abs=5e-3)
    best = min((loss, strength) for (kinds, strength), loss in fitted.losses.items() if kinds == ("label",))[1]
    assert best == min(losses, key=losses.__getitem__)


def dense_counts(wide: Wide, forest: Forest, trees: Ints) -> npt.NDArray[Any]:
    entries = feature_counts(forest, trees, wide.keys.numpy(), wide.kinds)
    return np.asarray(
        csr_matrix((entries.values, (entries.rows, entries.columns)), (len(trees), len(wide.keys))).toarray()
    )


def test_pairs_are_chosen_where_order_decides_and_pay_for_themselves() -> None:
    forest = Forest(["(f a b c)", "(f c b a)"] * 150)
    fitted = fit_wide(Examples(forest, np.arange(300) % 2, "tree"), np.arange(200), np.arange(200, 300), 2)
    assert fitted.kinds == KINDS and fitted.score == 1.0
    assert min(loss for (kinds, _), loss in fitted.losses.items() if kinds == ("label",)) > 0.69


def test_pairs_of_one_example_are_left_out_and_labels_of_one_stay() -> None:
    forest = Forest(["(f a)", "(f a)", "(f b)", "(f c)"] * 1)
    examples = Examples(forest, np.array([0, 0, 1, 1]), "tree")
    wide = module._Fit(examples, np.arange(4), KINDS, 2).module()
    known = {text for tree in forest for text, _ in wide.contributions(tree, 0)}
    assert known == {"f", "a", "b", "c", "f > a", "f at the root"}


def test_the_most_widespread_features_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WEIGHTS", 5)
    forest = Forest(["(f a)", "(f b)", "(f a)"])
    wide = module._Fit(Examples(forest, np.array([0, 1, 0]), "tree"), np.arange(3), ("label",), 2).module()
    assert {text for tree in forest for text, _ in wide.contributions(tree, 0)} == {"f", "a"}


def test_without_validation_examples_folds_of_the_train_examples_decide() -> None:
    forest, targets = bags(300)
    none = np.zeros(0, np.int64)
    fitted = fit_wide(Examples(forest, targets, "tree"), np.arange(300), none, 3)
    assert fitted.outputs.shape == (0, 3)
    assert np.isfinite(fitted.loss) and fitted.score > np.bincount(targets).max() / 300 + 0.1
    few = fit_wide(Examples(forest, targets, "tree"), np.arange(290), np.arange(290, 300), 3)
    assert few.outputs.shape == (10, 3)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_handful_of_examples_and_classes_that_a_fold_lacks_are_no_problem(count: int) -> None:
    forest, targets = bags(7)
    targets[:] = [0, 1, 0, 0, 0, 0, 2]
    fitted = fit_wide(Examples(forest, targets, "tree"), np.arange(count), np.zeros(0, np.int64), 4)
    scores = fitted.module.scores(forest, np.arange(7))
    assert scores.isfinite().all() and np.isfinite(fitted.loss)
    assert (scores.argmax(1) < 3).all()  # no example has class 3


def test_one_class_is_answered_always() -> None:
    forest, _ = bags(250)
    fitted = fit_wide(Examples(forest, np.ones(250, np.int64), "tree"), np.arange(150), np.arange(150, 250), 2)
    assert fitted.score == 1.0 and fitted.module.scores(forest, np.arange(250)).isfinite().all()


def test_examples_without_a_target_take_no_part() -> None:
    forest, targets = bags(400)
    known = np.arange(400) % 4 > 0
    hidden = np.where(known, targets, -1)
    train, validation = np.arange(250), np.arange(250, 400)
    whole = fit_wide(Examples(forest, hidden, "tree"), train, validation, 3)
    part = fit_wide(Examples(forest, targets, "tree"), train[known[train]], validation[known[validation]], 3)
    assert whole.losses == part.losses and torch.equal(whole.module.weights, part.module.weights)
    with pytest.raises(TrainingError, match="expects training examples with a target, got none"):
        fit_wide(Examples(forest, np.full(400, -1), "tree"), train, validation, 3)


def test_left_and_right_trees_of_pairs_are_told_apart() -> None:
    forest = Forest(["a", "b", "b", "a"] * 150)
    fitted = fit_wide(Examples(forest, np.arange(300) % 2, "pair"), np.arange(200), np.arange(200, 300), 2)
    assert fitted.score == 1.0 and fitted.module.sides == 2
    assert fitted.module.scores(forest, np.array([2, 3])).argmax(1).tolist() == [1]


def test_a_fit_is_repeatable_and_leaves_random_states_alone() -> None:
    forest, targets = bags(150)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    none = np.zeros(0, np.int64)
    first, second, other = (
        fit_wide(Examples(forest, targets, "tree"), np.arange(150), none, 3, seed=s) for s in (0, 0, 1)
    )
    assert first.losses == second.losses != other.losses
    assert torch.equal(first.module.weights, second.module.weights)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == np.random.get_state()[1].tolist()  # type: ignore[index]
    assert before[2] == random.getstate()


def test_a_fit_works_where_gradients_are_off_and_warns_of_nothing() -> None:
    forest, targets = bags(150)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_wide(Examples(forest, targets, "tree"), np.arange(150), np.zeros(0, np.int64), 3)
    assert torch.is_grad_enabled()


def outputs(targets: Tensor, right: float, seed: int) -> Tensor:
    """Outputs of a classifier that is right about a share of the examples, and equally sure of all."""
    made = np.random.default_rng(seed)
    answers = np.where(made.random(len(targets)) < right, targets, made.integers(3, size=len(targets)))
    return 2.0 * torch.eye(3, dtype=torch.float64)[torch.from_numpy(answers)]


def test_the_mix_is_the_better_part_where_one_is_useless() -> None:
    targets = torch.from_numpy(np.random.default_rng(0).integers(3, size=2000))
    good, useless = outputs(targets, 0.9, 1), 3 * outputs(targets, 0.0, 2)
    a, b, losses = choose_mix(good, useless, targets, "tree")
    assert b == 0 < a and losses[a, b] <= losses[1.0, 0.0]
    a, b, losses = choose_mix(useless, good, targets, "tree")
    assert a == 0 < b and (0.0, 1.0) in losses and (1.0, 0.0) in losses


def test_parts_that_are_equally_good_are_joined_and_losses_are_those_of_the_mix() -> None:
    targets = torch.from_numpy(np.random.default_rng(0).integers(3, size=2000))
    left, right = outputs(targets, 0.7, 1), outputs(targets, 0.7, 2)
    a, b, losses = choose_mix(left, right, targets, "tree")
    assert 0 < a <= b and losses[a, b] < min(losses[1.0, 0.0], losses[0.0, 1.0])
    for (a, b), loss in losses.items():
        expected = torch.nn.functional.cross_entropy(a * left + b * right, targets)
        assert loss == pytest.approx(float(expected))


def test_of_pairs_that_few_examples_cannot_tell_apart_the_most_linear_one_is_taken() -> None:
    targets = torch.tensor([0, 1, 2, 0, 1])
    same = outputs(targets, 0.8, 1)
    a, b, losses = choose_mix(same, same, targets, "tree")
    assert a == 0 and losses[a, b] == min(losses.values())
    none = torch.zeros(0, 3)
    a, b, losses = choose_mix(none, none, torch.zeros(0, dtype=torch.int64), "tree")
    assert (a, b) == (0.5, 0.5) and all(np.isnan(loss) for loss in losses.values())


def test_numbers_are_mixed_by_their_squared_errors() -> None:
    made = torch.Generator().manual_seed(0)
    targets = torch.randn(500, 1, generator=made, dtype=torch.float64)
    a, b, losses = choose_mix(targets, torch.randn(500, 1, generator=made), targets, "regression")
    assert (a, b) == (1.0, 0.0) and losses[a, b] == 0.0


def test_a_network_that_diverged_gets_no_share() -> None:
    targets = torch.tensor([0, 1, 2] * 20)
    a, b, _ = choose_mix(torch.full((60, 3), torch.nan), outputs(targets, 0.9, 1), targets, "tree")
    assert a == 0 < b
    with pytest.raises(TrainingError, match="expects finite outputs"):
        choose_mix(torch.full((60, 3), torch.nan), torch.full((60, 3), torch.nan), targets, "tree")


def test_a_damaged_linear_part_is_not_loaded(tmp_path: Path) -> None:
    forest, targets = bags(120, classes=2)
    TreeClassifier(state_size=3, epochs=1, random_state=0, siblings=True, wide=True).fit(forest, targets).save(tmp_path)
    weights = read_tensors(tmp_path / "model.safetensors")
    for keys in (weights["wide.keys"].flip(0), weights["wide.keys"].to(torch.int8), weights["wide.keys"] * 0):
        write_tensors(tmp_path / "model.safetensors", {**weights, "wide.keys": keys})
        with pytest.raises(ModelFileError, match="expected sorted features in the linear part; the file is damaged"):
            load_model(tmp_path)
