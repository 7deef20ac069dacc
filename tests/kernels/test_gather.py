"""The nodes of a batch against the trees themselves, walked one by one."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import text_tree
from treefold import Forest, Tree
from treefold.errors import TreeError, TreeIndexError
from treefold.kernels.gather import columns_of, gather, gather_batch, gather_translated


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
    assert gather(np.array(chosen), *columns_of(forest))[0]
    batch = gather_batch(forest, np.array(chosen))
    nodes = Nodes()
    roots = [nodes.walk(trees[number]) for number in chosen]
    assert [forest.vocabulary[code] for code in batch.labels] == nodes.labels
    assert (batch.parents.tolist(), batch.slots.tolist()) == (nodes.parents, nodes.slots)
    assert batch.roots.tolist() == roots


def test_a_batch_of_a_memory_map_is_the_same(tmp_path: Path) -> None:
    forest = Forest(["(f a (g b))", "c", "(g c)"])
    forest.save(tmp_path / "trees.forest")
    mapped = Forest.open(tmp_path / "trees.forest")
    assert gather(np.array([2, 0]), *columns_of(mapped))[0]
    assert gather_batch(mapped, np.array([2, 0])).parents.tolist() == [1, -1, 5, 4, 5, -1]


def test_numbers_of_trees_that_kernels_do_not_take_are_left_to_the_forest() -> None:
    forest = Forest(["(f a)", "b"])
    for chosen in ([0, 2], [-1]):
        assert not gather(np.array(chosen), *columns_of(forest))[0]
    with pytest.raises(TreeError, match="a batch expects at least one tree, got none"):
        gather_batch(forest, np.array([], np.int64))
    assert gather_batch(forest, np.array([True, False])).parents.tolist() == [1, -1]
    assert gather_batch(forest, np.array([-1])).parents.tolist() == [-1]  # from the end, as ever
    with pytest.raises(TreeIndexError, match="expected the numbers of some of 2 trees, got 2"):
        gather_batch(forest, np.array([2]))
    vectors = gather_batch(Forest([Tree((1.0, 2.0))]), np.array([0]))
    assert vectors.vectors.tolist() == [[1.0, 2.0]] and vectors.labels.tolist() == [-1]


@pytest.mark.parametrize("wild", [[0, 2, 10**9], [0, -5, 3], [0, 3, 2]])
def test_damaged_offsets_are_not_sound(wild: list[int]) -> None:
    damaged = Forest(["(f a)", "b"])
    damaged.offsets = np.array(wild)
    assert not gather(np.array([0, 1]), *columns_of(damaged))[0]


@pytest.mark.parametrize(
    ("column", "value"),
    [("labels", 5), ("labels", -2), ("parents", 0), ("parents", 9), ("parents", -1), ("slots", 7), ("slots", -1)],
)
def test_damaged_nodes_are_not_sound(column: str, value: int) -> None:
    forest = Forest(["(f a b)"])
    assert gather(np.array([0]), *columns_of(forest))[0]
    changed = np.array(getattr(forest, column))
    changed[1] = value
    setattr(forest, column, changed)
    assert not gather(np.array([0]), *columns_of(forest))[0]


def test_labels_are_translated_and_checked_with_the_arities_of_their_operators() -> None:
    forest = Forest(["(f a (g b))", "(g a)", "c"])
    place = {name: code for code, name in enumerate(forest.vocabulary)}
    codes = np.full(len(place) + 1, -1)
    for code, name in enumerate(["f", "g", "a", "b"]):  # two operators, two labels; c is unknown
        codes[place[name]] = code
    for allowed, chosen, is_known in (
        ([2, 1, 0], [0, 1], True),
        ([2, 1, 0], [0, 2], False),
        ([1, 1, 0], [0, 1], False),
        ([1, 1, 0], [1], True),
    ):
        known, parents, slots, operators, rows, roots = gather_translated(
            np.array(chosen), *columns_of(forest), codes, 2, np.array(allowed)
        )
        assert known == is_known
        if known:
            batch = forest.batch(chosen)
            names = [forest.vocabulary[code] for code in batch.labels]
            assert (parents.tolist(), slots.tolist()) == (batch.parents.tolist(), batch.slots.tolist())
            assert operators.tolist() == [{"f": 0, "g": 1}.get(name, 2) for name in names]
            assert rows.tolist() == [{"a": 0, "b": 1}.get(name, -1) for name in names]
            assert roots.tolist() == batch.roots.tolist()
