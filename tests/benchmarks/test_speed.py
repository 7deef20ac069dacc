import sys

import numpy as np
import pytest
import torch
from benchmarks.cases import examples_of
from benchmarks.measuring import MissingPackageError, Options
from benchmarks.speed import (
    RivalModel,
    average_trees,
    batches,
    edges_of,
    inference_suite,
    programs,
    rival_package,
    subtrees,
    threads,
)

from treefold import Tree, TreeEncoder

QUICK = Options(quick=True, rounds=1)


def test_trees_of_average_size_are_nearest_to_the_mean() -> None:
    sizes = np.array([1, 1, 40, 11, 1, 9, 7])  # the mean is 10
    assert sorted(average_trees(sizes, 3).tolist()) == [3, 5, 6]


def test_with_and_without_shared_subtrees_each_is_compared_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TreeEncoder, "share_subtrees", True, raising=False)
    values = subtrees(QUICK)["lrt tucker 100 20, training step"]()
    assert values["ratio_to_apart"] == pytest.approx(values["apart_ms"] / values["shared_ms"])
    assert values["ratio_to_torch"] == pytest.approx(values["torch_ms"] / values["shared_ms"])
    assert values["apart_ratio_to_torch"] == pytest.approx(values["torch_ms"] / values["apart_ms"])
    evaluated = subtrees(QUICK)["lrt evaluation"]()
    assert evaluated["trees_per_second"] == pytest.approx(2 * 400 / evaluated["shared_ms"] * 1000)


def test_the_speed_of_more_threads_is_compared_with_that_of_one() -> None:
    values = threads(QUICK)["inference, batch 256, 2 threads"]()
    assert values["threads"] == 2
    assert values["ratio"] == pytest.approx(values["1_thread_ms"] / values["2_threads_ms"])
    assert values["trees_per_second"] == pytest.approx(256 / values["2_threads_ms"] * 1000)


def test_batches_of_one_are_single_trees() -> None:
    for suite in (batches, inference_suite):
        values = suite(QUICK)["listops tucker 20 3, batch 1"]()
        assert values["trees_per_second"] == pytest.approx(1000 / values["fused_ms"])


def test_quick_leaves_the_largest_batch_out() -> None:
    for suite in (batches, inference_suite):
        assert len(suite(QUICK)) == 3 and any("2048" in name for name in suite(Options()))


def test_steps_on_programs_have_sixteen_trees_whatever_the_batch() -> None:
    values = programs(Options(quick=True, rounds=1, batch=400))["mean, attention, batch 16"]()
    assert values["ratio"] == pytest.approx(values["torch_ms"] / values["fused_ms"])
    assert values["trees_per_second"] == pytest.approx(16 / values["fused_ms"] * 1000)


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
