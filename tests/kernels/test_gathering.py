"""The nodes of a batch against the trees themselves, walked one by one."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import text_tree
from tests.trees.test_forest import damage, damages, plain_tree
from treefold import Classifier, Forest, OneHot, Tree, TreeEncoder, TreeModel, TreeRNN
from treefold.errors import ForestFileError, TreeIndexError
from treefold.kernels import gathered
from treefold.training import Examples


@dataclass
class Nodes:
    """Nodes as they are met on a walk."""

    labels: list[object] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def walk(self, tree: Tree, slot: int = 0) -> int:
        """Add a tree, children first; return the place of its root."""
        present = [(slot, child) for slot, child in enumerate(tree.children) if child is not None]
        below = [self.walk(child, slot) for slot, child in present]
        self.labels.append(tree.label)
        self.parents.append(-1)
        self.slots.append(slot)
        for place in below:
            self.parents[place] = len(self.labels) - 1
        return len(self.labels) - 1


@given(st.lists(text_tree, min_size=1, max_size=6), st.data())
def test_a_batch_has_the_nodes_of_its_trees_in_post_order(trees: list[Tree], data: st.DataObject) -> None:
    forest = Forest(trees)
    chosen = data.draw(st.lists(st.integers(0, len(trees) - 1), min_size=1, max_size=8))
    batch = gathered(forest, np.array(chosen))
    assert batch is not None
    nodes = Nodes()
    roots = [nodes.walk(trees[number]) for number in chosen]
    assert [forest.vocabulary[code] for code in batch.labels] == nodes.labels
    assert (batch.parents.tolist(), batch.slots.tolist()) == (nodes.parents, nodes.slots)
    assert batch.roots.tolist() == roots


def test_a_batch_of_a_memory_map_is_the_same(tmp_path: Path) -> None:
    forest = Forest(["(f a (g b))", "c", "(g c)"])
    forest.save(tmp_path / "trees.forest")
    mapped = gathered(Forest.open(tmp_path / "trees.forest"), np.array([2, 0]))
    assert mapped is not None
    assert mapped.parents.tolist() == [1, -1, 5, 4, 5, -1]


def test_damaged_values_of_an_unverified_file_never_reach_the_kernels(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    Forest(["(f (g a _ b) c)", "(g b)", "a"]).save(good)
    cell, head = TreeRNN("sum", state_size=2, arity=3, label_size=5), Classifier(in_size=2, classes=2)
    model = TreeModel(TreeEncoder(cell, OneHot("abcfg"), backend="fused"), head)
    plain = TreeModel(TreeEncoder(cell, OneHot("abcfg"), backend="torch"), head)
    every = np.arange(3)
    errors = 0
    for column, place, value in damages(Forest.open(good)):
        damage(good, bad, column, place, value)
        forest = Forest.open(bad, verify=False)
        trees = [plain_tree(forest, number) for number in range(3)]
        try:
            found = model.answers(forest, every)
        except ForestFileError as problem:
            assert f"{bad}: the file is damaged: tree" in str(problem)
            errors += 1
        else:
            sound = Forest([tree for tree in trees if tree is not None], forest.vocabulary)
            if column in ("labels", "parents", "slots"):
                assert len(sound) == len(trees)
            if len(sound) == len(trees):
                torch.testing.assert_close(found, plain.answers(sound, every))
        batch = gathered(forest, every)
        if batch is not None and None not in trees:
            assert batch.labels.tolist() == sound.batch().labels.tolist()
    assert errors > 200


def test_what_it_cannot_do_is_left_to_the_forest() -> None:
    forest = Forest(["(f a)", "b"])
    assert gathered(forest, np.array([], np.int64)) is None
    assert gathered(forest, np.array([0, 2])) is None
    assert gathered(forest, np.array([-1])) is None
    assert gathered(forest, np.array([True, False])) is None
    assert gathered(Forest([Tree((1.0, 2.0))]), np.array([0])) is None
    for wild in ([0, 2, 10**9], [0, -5, 3], [0, 3, 2]):
        damaged = Forest(["(f a)", "b"])
        damaged.offsets = np.array(wild)
        assert gathered(damaged, np.array([0, 1])) is None
    examples = Examples(forest, np.array([0, 1]), "tree")
    assert examples.batch(np.array([-1])).parents.tolist() == [-1]  # from the end, as ever
    with pytest.raises(TreeIndexError, match="expected the numbers of some of 2 trees, got 2"):
        examples.batch(np.array([2]))
