from collections import Counter

import numpy as np
import pytest

from treefold import Forest, Tree
from treefold.analysis.baselines import _counts, baselines
from treefold.data.dataset import Dataset
from treefold.data.generators import make_listops, make_lrt
from treefold.errors import ConfigurationError
from treefold.trees.batch import Ints

FOREST = Forest(["(f a (g b a))", "[1 2]", "(g _ (f b b) [3 4])", "(f a)"])


def name(node: Tree) -> str:
    return node.label if isinstance(node.label, str) else "any vector"


def counts(forest: Forest, chosen: Ints) -> list[Ints]:
    data = Dataset(forest, np.zeros(len(forest), np.int64), ("x",), {})
    return [_counts(data, chosen, kind).toarray() for kind in ("label", "child")]


def test_counts_equal_those_of_walking_the_trees() -> None:
    chosen = np.array([2, 0, 3, 1])
    nodes, edges = counts(FOREST, chosen)
    for row, number in enumerate(chosen.tolist()):
        tree = FOREST[number]
        labels = Counter(name(node) for node in tree.preorder())
        pairs = Counter(
            (name(node), name(child)) for node in tree.preorder() for child in node.children if child is not None
        )
        assert sorted(nodes[row][nodes[row] > 0]) == sorted(labels.values())
        assert sorted(edges[row][edges[row] > 0]) == sorted([*pairs.values(), 1])  # the root below none
    assert nodes.shape == (4, 5) and edges.shape[0] == 4


def test_labels_are_told_apart_by_column_and_equal_ones_share_it() -> None:
    forest = Forest(["(f a)", "(a f)", "(f a)"])
    nodes, edges = counts(forest, np.arange(3))
    assert (nodes[0] == nodes[1]).all() and (nodes[0] == nodes[2]).all()
    assert (edges[0] != edges[1]).any() and (edges[0] == edges[2]).all()


def test_order_of_parent_and_child_is_seen_by_the_pairs_only() -> None:
    forest = Forest(["(f (g a))", "(g (f a))"] * 20)
    splits = {"train": np.arange(20), "test": np.arange(20, 40)}
    data = Dataset(forest, np.array([0, 1] * 20), ("no", "yes"), splits)
    assert baselines(data) == {"majority class": 0.5, "bag of nodes": 0.5, "bag of parent-child pairs": 1.0}


def test_left_and_right_trees_of_pairs_are_told_apart() -> None:
    forest = Forest(["a", "b", "b", "a"] * 20)
    splits = {"train": np.arange(20), "test": np.arange(20, 40)}
    data = Dataset(forest, np.array([0, 1] * 20), ("no", "yes"), splits, pairs=True)
    assert baselines(data)["bag of nodes"] == 1.0


def test_a_large_train_split_is_sampled_by_the_seed() -> None:
    data = make_listops(400)
    found = [baselines(data, seed=seed, most_examples=50) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert baselines(data, seed=0) == baselines(data, seed=1)


def test_accuracies_are_those_of_the_named_split() -> None:
    data = make_lrt(400)
    train = baselines(data, test_split="train")
    counts = np.bincount(data.targets[data.splits["train"]])
    assert train["majority class"] == pytest.approx(counts.max() / counts.sum())
    assert train["bag of parent-child pairs"] > train["majority class"]


def test_examples_without_a_label_take_no_part_and_one_class_needs_no_regression() -> None:
    forest = Forest(["a", "b", "c", "a"])
    data = Dataset(forest, np.array([1, -1, 1, 0]), ("x", "y"), {"train": np.arange(3), "test": np.array([0, 1, 3])})
    assert set(baselines(data).values()) == {0.5}


def test_missing_splits_and_labels_are_said() -> None:
    data = Dataset(Forest(["a", "b"]), np.array([-1, 0]), ("x",), {"train": np.array([0]), "both": np.arange(2)})
    with pytest.raises(
        ConfigurationError, match=r"expect a data set with the split 'test', got \['train', 'both'\]; make one with"
    ):
        baselines(data, train_split="both")
    with pytest.raises(ConfigurationError, match="expect examples with a label in 'train', got none"):
        baselines(data, test_split="all")
