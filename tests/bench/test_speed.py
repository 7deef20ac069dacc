import numpy as np
import pytest

from treefold.bench.options import Options
from treefold.bench.speed import average_trees, batches, inference_suite, subtrees, threads
from treefold.nn.encoder import TreeEncoder

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
