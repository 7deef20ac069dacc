"""Tasks, and the scores that they report."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics  # type: ignore[import-untyped]

from treefold import Forest
from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, TrainingError
from treefold.training import Examples, train
from treefold.training.settings import ModelSettings, RunSettings
from treefold.training.task import (
    TASKS,
    PairRegressionTask,
    Units,
    confusion_matrix,
    level_weights,
    macro_f1,
    pearson,
    r_squared,
    task_of,
)


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, answers = rng.integers(0, 5, 40), rng.integers(1, 7, 40)  # some classes in one only, class 7 in none
    matrix = confusion_matrix(truth, answers, 8)
    assert matrix.tolist() == metrics.confusion_matrix(truth, answers, labels=range(8)).tolist()
    assert macro_f1(matrix) == pytest.approx(metrics.f1_score(truth, answers, average="macro"))
    numbers, guesses = rng.normal(size=(2, 30))
    assert r_squared(numbers, guesses) == pytest.approx(metrics.r2_score(numbers, guesses))
    assert pearson(numbers, guesses) == pytest.approx(np.corrcoef(numbers, guesses)[0, 1])
    assert pearson(1e-200 * numbers, 1e-200 * guesses) == pytest.approx(pearson(numbers, guesses))
    report = task_of("regression").report(numbers, guesses, 0).scores
    assert report["mse"] == pytest.approx(metrics.mean_squared_error(numbers, guesses))
    assert report["pearson"] == pearson(numbers, guesses) and next(iter(report)) == "r2"


def test_equal_numbers_are_explained_wholly_or_not_at_all() -> None:
    same = np.full(3, 2.0)
    assert (r_squared(same, same), r_squared(same, same + 1)) == (1.0, 0.0)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e300])
def test_constant_predictions_or_numbers_have_no_correlation(constant: float) -> None:
    same, numbers = np.full(7, constant), np.arange(7.0)
    assert pearson(numbers, same) == pearson(same, numbers) == pearson(same, same) == 0.0
    assert pearson(numbers, -2 * numbers) == pytest.approx(-1)


# Numbers of pairs


def shared(number: float, levels: int) -> list[float]:
    """The target distribution of Tai et al.: the two levels next to a number share it."""
    number = min(max(number, 0.0), levels - 1.0)
    weights = [0.0] * levels
    below = math.floor(number)
    weights[below] = below - number + 1
    if number > below:
        weights[below + 1] = number - below
    return weights


@pytest.mark.parametrize("levels", [2, 5, 9])
def test_the_loss_of_a_pair_is_the_divergence_from_the_two_levels_next_to_its_number(levels: int) -> None:
    rng = np.random.default_rng(levels)
    scores = rng.normal(0, 2, (40, levels))
    numbers = np.concatenate([np.arange(levels), [-1.0, levels + 3.0], rng.uniform(0, levels - 1, 38 - levels)])
    wanted = [shared(number, levels) for number in numbers.tolist()]
    np.testing.assert_allclose(level_weights(torch.from_numpy(numbers), levels).numpy(), wanted, atol=1e-12)
    losses, means = [], []
    for row, weights in zip(scores.tolist(), wanted, strict=True):
        mass = sum(map(math.exp, row))
        chances = [math.exp(score) / mass for score in row]
        losses.append(sum(w * math.log(w / p) for w, p in zip(weights, chances, strict=True) if w > 0))
        means.append(sum(level * p for level, p in enumerate(chances)))
    task, outputs, targets = PairRegressionTask(), torch.from_numpy(scores), torch.from_numpy(numbers)[:, None]
    np.testing.assert_allclose(task.losses(outputs, targets).numpy(), losses, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(task.predictions(outputs), means, rtol=1e-12)
    assert task.probabilities(outputs).shape == (40, 1)
    assert task.score(outputs, targets) == pytest.approx(metrics.r2_score(numbers, means))
    assert min(losses) >= 0 and task.count_right(outputs, targets) == 0


def test_the_gradient_of_the_divergence_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    numbers = torch.tensor([[0.0], [0.4], [1.0], [2.7], [3.0], [9.0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda scores: PairRegressionTask().losses(scores, numbers), (scores,))


def test_levels_reach_from_the_least_to_the_greatest_number() -> None:
    relatedness, numbers = np.array([[1.0], [4.5], [5.0], [3.3]]), np.array([[-2.0], [10.0]])
    assert task_of("pair-regression").units(relatedness, ModelSettings()) == Units((1.0,), (1.0,))  # 1, 2, 3, 4, 5
    assert task_of("pair-regression").units(numbers, ModelSettings(levels=7)) == Units((-2.0,), (2.0,))
    with pytest.raises(TrainingError, match="expects at least two different numbers, got 3 for all pairs"):
        task_of("pair-regression").units(np.full((4, 1), 3.0), ModelSettings())


def test_numbers_are_standardised_by_mean_and_deviation_and_equal_ones_by_their_mean() -> None:
    numbers = np.array([[1.0, 0.1, 0.0], [3.0, 0.1, 1e-200], [8.0, 0.1, 0.0]])
    units = task_of("regression").units(numbers, ModelSettings())
    assert units.offset == pytest.approx((4.0, 0.1, 1e-200 / 3))
    assert units.scale == pytest.approx((math.sqrt(26 / 3), 1.0, 1.0))
    np.testing.assert_allclose(units.restore(units.standardise(numbers)), numbers)
    assert units.standardise(numbers)[:, 0].std() == pytest.approx(1)
    classes = np.array([0, 1])
    assert task_of("tree").units(classes, ModelSettings()) == Units() and Units().standardise(classes) is classes


def test_a_label_that_is_no_number_is_refused_by_the_task_s_name() -> None:
    data = Dataset(Forest(["a", "b"]), np.array([0]), ("near",), {}, pairs=True)
    with pytest.raises(ConfigurationError, match="task 'pair-regression' expects labels that are numbers, got 'near'"):
        Examples.of(data, "pair-regression")
    with pytest.raises(
        ConfigurationError, match="task 'regression' expects a data set of single trees, got one of pairs"
    ):
        Examples.of(data, "regression")


def test_a_number_whose_square_is_infinite_is_refused() -> None:
    data = Dataset(Forest(["a"]), np.array([0]), ("-1e308",), {})
    with pytest.raises(
        ConfigurationError, match=r"task 'regression' expects numbers of at most 1e\+100, got -1e308; divide"
    ):
        task_of("regression").targets(data)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_known_by_its_name(name: str) -> None:
    assert task_of(name) is TASKS[name] and TASKS[name].name == name and task_of(TASKS[name]) is TASKS[name]
    with pytest.raises(ConfigurationError, match=r"unknown task 'pairs' \(nearest known: 'pair'\), expected 'tree', "):
        task_of("pairs")


def test_a_task_under_a_name_that_is_not_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "mine", TASKS["tree"])
    with pytest.raises(
        ConfigurationError, match="the task 'mine' of TASKS has the name 'tree'; set its `name` to 'mine'"
    ):
        task_of("mine")


@pytest.mark.parametrize("name", TASKS)
def test_sizes_are_those_of_all_trees_of_an_example(name: str) -> None:
    forest, task = Forest(["a", "(f a)", "(f a b)", "(f (f a))", "b", "(f (f a) b)"]), TASKS[name]
    count = len(forest) // task.trees
    for number in range(count):
        trees = task.trees_of(np.array([number]))
        assert task.sizes(forest, np.array([number])).tolist() == [sum(forest[int(tree)].size for tree in trees)]
    assert sorted(task.trees_of(np.arange(count)).tolist()) == list(range(len(forest)))


def test_node_targets_of_a_saved_data_set_can_be_learnt(tmp_path: Path) -> None:
    forest = Forest(["(f a b)", "(f b a)"])
    nodes = np.array([0, 1, 1, 1, 0, 0])
    data = Dataset(forest, np.array([0, 1]), ("x", "y"), {"train": np.arange(2)}, node_targets=nodes)
    data.save(tmp_path / "data")
    opened = Dataset.open(tmp_path / "data")
    examples = Examples.of(opened, "node")
    assert examples.target(np.array([1])).tolist() == [1, 0, 0] and examples.target(np.array([1])).dtype == torch.int64
    train(opened, tmp_path / "run", RunSettings.of({"task": "node", "training": {"epochs": 1}}))


def test_a_subtree_of_a_pair_is_compared_with_the_other_tree() -> None:
    states = torch.arange(5.0).unsqueeze(1)  # two nodes on the left, three on the right; roots are 1 and 4
    left, right = TASKS["pair"].subtree_states(states, [2, 3]).squeeze(1).chunk(2)
    assert left.tolist() == [0, 1, 1, 1, 1] and right.tolist() == [4, 4, 2, 3, 4]


def test_accuracy_leaves_out_unknown_targets() -> None:
    outputs, targets = torch.eye(4)[[0, 1, 2, 3]], torch.tensor([0, 2, -1, 3])
    assert TASKS["node"].count_right(outputs, targets) == 2
    assert TASKS["node"].score(outputs, targets) == pytest.approx(2 / 3)
