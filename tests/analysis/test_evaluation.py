import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics  # type: ignore[import-untyped]

from tests import runs
from treefold import Forest, Tree
from treefold.analysis import evaluation
from treefold.analysis.evaluation import Evaluation, Group, evaluate
from treefold.analysis.prediction import LabelCheck
from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, ForestFileError, TreeError, VocabularyError
from treefold.training import Examples
from treefold.training.examples import outputs_of


def test_a_model_is_judged_over_the_whole_split_and_not_by_averages_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.listops()
    found = evaluate(run.saved, run.data)
    numbers = run.data.splits["test"]
    outputs = torch.cat([run.saved.model(run.data.forest.batch([number])) for number in numbers]).double().detach()
    truth = run.data.targets[numbers]
    assert (found.split, found.count, found.unlabelled) == ("test", 30, 0)
    assert found.scores["accuracy"] == found.score == pytest.approx((outputs.argmax(1).numpy() == truth).mean())
    assert found.scores["macro_f1"] == pytest.approx(metrics.f1_score(truth, outputs.argmax(1), average="macro"))
    assert found.loss == pytest.approx(metrics.log_loss(truth, outputs.softmax(1), labels=range(10)), rel=1e-5)
    told: list[int] = []
    monkeypatch.setattr(evaluation, "_BATCH_NODES", 50)
    again = evaluate(run.saved, run.data, "test", progress=told.append)
    assert again.confusion == found.confusion and again.groups == found.groups
    assert again.loss == pytest.approx(found.loss, rel=1e-5) and len(told) > 3 and told[-1] == 30


def test_a_damaged_label_of_a_large_data_set_is_an_error_though_it_is_one_of_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.listops()
    data = Path(shutil.copytree(run.data_folder, tmp_path / "data"))
    monkeypatch.setattr("treefold.trees.forest.SMALL", 0)  # no file is so small that it is verified when it is opened
    leaf = int(np.flatnonzero(run.data.forest.widths == 0)[0])
    labels = np.memmap(data / "trees.forest", np.uint8, "r+")
    start = bytes(labels).index(run.data.forest.labels.tobytes()) + 4 * leaf
    other = next(code for code in run.data.forest.labels[run.data.forest.widths == 0] if code != labels[start])
    labels[start] = other
    labels.flush()
    opened = Dataset.open(data)
    with pytest.raises(ForestFileError, match=r"trees\.forest: the file is damaged: the checksum of column 'labels'"):
        evaluate(run.saved, opened)


def test_groups_are_by_depth_doubling_size_and_most_children_present() -> None:
    trees = ["1", "(MAX 1 _ 2)", "(MAX 1 2 3)", "(MIN (MAX 1 2) 3)"]
    run = runs.listops()
    data = Dataset(Forest(trees), np.zeros(4, np.int64), ("1",), {})
    groups = evaluate(run.saved, data).groups
    assert {name: {key: group.count for key, group in part.items()} for name, part in groups.items()} == {
        "depth": {"0": 1, "1": 2, "2": 1},
        "size": {"1": 1, "2–3": 1, "4–7": 2},
        "arity": {"0": 1, "2": 2, "3": 1},
    }


def test_group_scores_are_means_of_their_members() -> None:
    run = runs.listops()
    found = evaluate(run.saved, run.data, "train")
    for groups in found.groups.values():
        total = sum(group.count * group.score for group in groups.values())
        assert (
            total / found.count == pytest.approx(found.score) and sum(g.count for g in groups.values()) == found.count
        )
    numbers = run.data.splits["train"]
    flat = np.array([run.data.forest[int(number)].depth == 1 for number in numbers])
    right = (
        outputs_of(run.saved.model, Examples.of(run.data, "tree"), numbers).argmax(1).numpy()
        == run.data.targets[numbers]
    )
    assert found.groups["depth"]["1"] == Group(int(flat.sum()), float(right[flat].mean()))


def test_pairs_are_grouped_by_the_inner_nodes_of_the_larger_tree() -> None:
    run = runs.lrt()
    found = evaluate(run.saved, run.data, "train")
    trees = [
        (run.data.forest[2 * int(number)], run.data.forest[2 * int(number) + 1]) for number in run.data.splits["train"]
    ]
    counts = [max(sum(not node.is_leaf for node in tree.preorder()) for tree in pair) for pair in trees]
    assert {name: group.count for name, group in found.groups["inner_nodes"].items()} == {
        str(count): counts.count(count) for count in sorted(set(counts))
    }
    assert list(found.groups) == ["inner_nodes"]


def test_nodes_are_all_judged_except_those_without_a_label() -> None:
    run = runs.nodes()
    assert run.data.node_targets is not None
    targets = run.data.node_targets.copy()
    rows = run.data.forest.node_rows(run.data.splits["test"])
    targets[rows[:3]] = -1
    found = evaluate(run.saved, dataclasses.replace(run.data, node_targets=targets), "test")
    assert (found.count, found.unlabelled) == (len(rows) - 3, 3)
    answers = run.saved.model(run.data.forest.batch(run.data.splits["test"])).argmax(1).numpy()
    assert found.score == pytest.approx((answers == targets[rows])[3:].mean())
    assert sum(group.count for group in found.groups["depth"].values()) == found.count


def test_numbers_are_judged_by_variance_explained_and_errors() -> None:
    run = runs.numbers()
    found = evaluate(run.saved, run.data, "train")
    numbers = run.data.splits["train"]
    truth = np.array([float(name) for name in run.data.classes])[run.data.targets[numbers]]
    outputs = run.saved.model(run.data.forest.batch(numbers)).detach().double()[:, 0].numpy()
    answers = outputs * truth.std() + truth.mean()  # numbers were standardised in training
    assert found.scores == {
        "r2": pytest.approx(metrics.r2_score(truth, answers), rel=1e-5),
        "mae": pytest.approx(metrics.mean_absolute_error(truth, answers), rel=1e-5),
        "rmse": pytest.approx(metrics.root_mean_squared_error(truth, answers), rel=1e-5),
        "pearson": pytest.approx(np.corrcoef(truth, answers)[0, 1], rel=1e-5),
        "mse": pytest.approx(metrics.mean_squared_error(truth, answers), rel=1e-5),
    }
    assert found.score == found.scores["r2"] and found.confusion == ()
    assert found.loss == pytest.approx(found.scores["mse"] / truth.var())


def test_numbers_of_pairs_are_means_over_levels_in_the_units_of_the_data() -> None:
    run = runs.similarities()
    found = evaluate(run.saved, run.data)
    names = np.array([float(name) for name in run.data.classes])
    seen, truth = (names[run.data.targets[run.data.splits[split]]] for split in ("train", "test"))
    levels = np.linspace(seen.min(), seen.max(), 4)
    numbers = run.data.splits["test"]
    scores = run.saved.model(run.data.forest.batch(run.data.trees_of(numbers))).detach().double().numpy()
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    answers = chances @ levels
    assert found.scores["mae"] == pytest.approx(np.abs(answers - truth).mean(), rel=1e-5)
    assert found.scores["mse"] == pytest.approx(np.square(answers - truth).mean(), rel=1e-5)
    assert found.scores["pearson"] == pytest.approx(np.corrcoef(truth, answers)[0, 1], rel=1e-4)
    assert (found.task, found.count) == ("pair-regression", 20) and list(found.groups) == ["inner_nodes"]
    facts = found.to_json()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_classes_and_labels_are_matched_by_name() -> None:
    run = runs.listops()
    expected = evaluate(run.saved, run.data, "all")
    order = np.random.default_rng(0).permutation(10)
    classes = tuple(run.data.classes[place] for place in order)
    targets = np.argsort(order)[run.data.targets]
    forest = Forest(run.data.forest, vocabulary=["extra", *reversed(list(run.data.forest.vocabulary))])
    other = Dataset(forest, targets, (*classes, "never used"), {})
    found = evaluate(run.saved, other)
    assert dataclasses.replace(found, loss=0) == dataclasses.replace(expected, loss=0)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5) and found.split == "all"


def test_the_test_split_is_the_default_and_all_examples_without_one() -> None:
    run = runs.listops()
    without = dataclasses.replace(run.data, splits={"train": run.data.splits["train"], "test": np.zeros(0, np.int64)})
    assert evaluate(run.saved, without).split == "all"
    with pytest.raises(ConfigurationError, match=r"'train', 'test', 'all', got 'tset' \(nearest known: 'test'\)"):
        evaluate(run.saved, without, "tset")


def test_what_the_model_does_not_know_is_said_in_words() -> None:
    run = runs.listops()

    def judge(trees: list[str], classes: tuple[str, ...] = ("7",), **more: object) -> Evaluation:
        return evaluate(run.saved, Dataset(Forest(trees), np.zeros(len(trees), np.int64), classes, {}, **more))  # type: ignore[arg-type]

    with pytest.raises(
        ConfigurationError, match="expected the model's 10 classes, got 'seven' in the data set; rename it"
    ):
        judge(["7"], ("seven",))
    unknown = Dataset(Forest(["7", "(MAXX 1 2)"]), np.zeros(2, np.int64), ("7",), {})
    with pytest.raises(
        VocabularyError,
        match=r"tree 1 of the data set: expected one of the 14 labels .* 'MAXX' \(nearest known: 'MAX'\)",
    ):
        evaluate(run.saved, unknown, check=LabelCheck(run.saved, "error"))
    check = LabelCheck(run.saved)
    assert evaluate(run.saved, unknown, check=check).count == 2
    assert check.note() == "note: the model does not know 1 label (1 of 4 nodes); it counts as <unk>"
    with pytest.raises(TreeError, match="tree 1 of the data set: node 'MAX' has 7 children, but arity=5"):
        wide = Dataset(Forest(["7", "(MAX 1 2 3 4 5 6 7)"]), np.zeros(2, np.int64), ("7",), {})
        evaluate(run.saved, wide, check=LabelCheck(run.saved, "error"))
    data = Dataset(Forest(["7", "7"]), np.array([0]), ("7",), {}, pairs=True)
    with pytest.raises(
        ConfigurationError, match="task 'tree' expects a data set of single trees, got one of pairs of trees"
    ):
        evaluate(run.saved, data)
    with pytest.raises(ConfigurationError, match="expects examples with a known label in 'all', got none of 2"):
        evaluate(run.saved, Dataset(Forest(["7", "8"]), np.array([-1, -1]), ("7",), {}))
    with pytest.raises(ConfigurationError, match="a label for every node, got one without"):
        evaluate(runs.nodes().saved, Dataset(Forest(["7"]), np.array([0]), ("7",), {}))


def test_examples_without_a_label_are_left_out_and_counted() -> None:
    run = runs.listops()
    found = evaluate(run.saved, Dataset(Forest([Tree("7"), Tree("8")]), np.array([-1, 0]), ("7",), {}))
    assert (found.count, found.unlabelled) == (1, 1)


def test_an_evaluation_goes_through_json() -> None:
    facts = evaluate(runs.listops().saved, runs.listops().data).to_json()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert list(facts)[:6] == ["task", "split", "count", "unlabelled", "accuracy", "macro_f1"]
    assert np.array(facts["confusion"]).sum() == facts["count"] and len(facts["classes"]) == 10
