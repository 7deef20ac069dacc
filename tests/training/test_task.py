"""Tasks, and the scores that they report."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics  # type: ignore[import-untyped]

from treefold import Forest
from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError
from treefold.training import Examples, train
from treefold.training.settings import RunSettings
from treefold.training.task import TASKS, confusion_matrix, macro_f1, r_squared, task_of


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, answers = rng.integers(0, 5, 40), rng.integers(1, 7, 40)  # some classes in one only, class 7 in none
    matrix = confusion_matrix(truth, answers, 8)
    assert matrix.tolist() == metrics.confusion_matrix(truth, answers, labels=range(8)).tolist()
    assert macro_f1(matrix) == pytest.approx(metrics.f1_score(truth, answers, average="macro"))
    numbers, guesses = rng.normal(size=(2, 30))
    assert r_squared(numbers, guesses) == pytest.approx(metrics.r2_score(numbers, guesses))


def test_equal_numbers_are_explained_wholly_or_not_at_all() -> None:
    same = np.full(3, 2.0)
    assert (r_squared(same, same), r_squared(same, same + 1)) == (1.0, 0.0)


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
