import sys

import numpy as np
import pytest
import torch

from treefold.bench.cases import examples_of
from treefold.bench.options import MissingPackageError
from treefold.bench.rival import RivalModel, edges_of, rival_package
from treefold.trees.tree import Tree


def walked(trees: list[Tree]) -> list[tuple[int, int]]:
    """Number the nodes of trees in post-order and list the edges by a plain walk."""
    edges, start = [], 0
    for tree in trees:
        waiting: list[int] = []
        for place, node in enumerate(tree.postorder()):
            present = [child for child in node.children if child is not None]
            own = [waiting.pop() for _ in present][::-1]
            edges += [(start + place, child) for child in own]
            waiting.append(start + place)
        start += tree.size
    return edges


def test_edges_are_those_of_a_plain_walk_grouped_by_parents_in_order() -> None:
    forest = examples_of("listops", 40).forest
    found = edges_of(forest.parents.astype(np.int64), forest.sizes)
    assert sorted(map(tuple, found.tolist())) == sorted(walked(list(forest)))
    assert (np.diff(found[:, 0]) >= 0).all()


def test_its_absence_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "treelstm", None)
    with pytest.raises(
        MissingPackageError, match=r"package pytorch-tree-lstm, got none; pip install 'treefold\[bench\]'"
    ):
        rival_package()


def test_its_answers_for_a_batch_are_those_of_each_tree_alone() -> None:
    pytest.importorskip("treelstm")
    torch.manual_seed(0)
    examples = examples_of("listops", 40)
    model = RivalModel(examples, state_size=5, classes=10)
    sizes = examples.forest.sizes
    chosen = np.concatenate([np.flatnonzero(sizes > 1)[:4], np.flatnonzero(sizes == 1)[:2]])
    with torch.no_grad():
        alone = torch.cat([model(chosen[place : place + 1]) for place in range(len(chosen))])
        torch.testing.assert_close(model(chosen), alone)
