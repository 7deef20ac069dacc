"""Equal subtrees against the plainest way to find them: by nested tuples."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treefold import Forest, OneHot, Tree, TreeEncoder, TreeLSTM

Subtree = tuple[object, tuple[object, ...]]


def subtree(node: Tree) -> Subtree:
    """Return what makes a subtree: its label, and its children with their slots."""
    return node.label, tuple((slot, subtree(child)) for slot, child in enumerate(node.children) if child is not None)


def random_trees(seed: int, labels: str, most: int) -> list[Tree]:
    rng = random.Random(seed)

    def grow(budget: int) -> Tree:
        kids: list[Tree | None] = []
        for _ in range(rng.randint(0, min(4, budget))):
            kids.append(None if rng.random() < 0.2 else grow(budget // 4))
        return Tree(rng.choice(labels), kids)

    return [grow(most) for _ in range(rng.randint(1, 8))]


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 40))
def test_nodes_share_a_unit_exactly_where_their_subtrees_are_the_same(seed: int, kinds: int, most: int) -> None:
    trees = random_trees(seed, "abc"[:kinds], most)
    encoder = TreeEncoder(
        TreeLSTM("sum", state_size=2, arity=4, label_size=3, shared=False), OneHot("abc"), backend="fused"
    )
    forest = Forest(trees)
    rows = encoder(forest).passes[0].rows
    units: dict[Subtree, int] = {}
    subtrees = [subtree(node) for tree in trees for node in tree.postorder()]
    for one, row in zip(subtrees, rows.tolist(), strict=True):
        assert units.setdefault(one, row) == row
    assert len(set(units.values())) == len(units) == len(np.unique(rows))


def test_a_table_that_grows_keeps_its_words() -> None:
    rng = random.Random(0)
    trees = [Tree("a", [Tree(rng.choice("abc")) for _ in range(rng.randint(1, 9))]) for _ in range(3000)]
    encoder = TreeEncoder(TreeLSTM("sum", state_size=1, arity=9, label_size=3), OneHot("abc"), backend="fused")
    found = encoder(Forest([*trees, *trees]).batch())
    roots = found.passes[0].rows[found.batch.roots]
    assert np.array_equal(roots[:3000], roots[3000:])
    assert len(np.unique(roots)) == len({str(tree) for tree in trees})
