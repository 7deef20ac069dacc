"""A batch in parts, and the threads that compute them."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treefold.kernels.threads import (
    _LARGEST_WORKSPACE,
    grow_workspace,
    part_count,
    part_ends,
    reserve_threads_for_kernels,
    run_parts,
    threads,
    workspace,
)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 5))
def test_parts_are_runs_of_whole_trees_and_none_is_much_larger_than_its_share(sizes: list[int], count: int) -> None:
    ends = part_ends(np.cumsum(sizes), count)
    assert ends == sorted(set(ends)) and ends[0] > 0 and ends[-1] == len(sizes) and len(ends) <= count
    nodes = [sum(sizes[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert nodes[0] <= max(sizes[0], 1.1 * sum(sizes) / (count + 0.1))
    assert max(nodes) < 1.1 * sum(sizes) / (count + 0.1) + 2 * max(sizes)


def test_parts_are_computed_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=30)  # broken unless three threads come to it
    assert sorted(run_parts(lambda part: meeting.wait(), 3)) == [0, 1, 2]
    assert run_parts(lambda part: -part, 3) == [0, -1, -2]  # in their order


def test_the_first_error_of_several_parts_is_raised_when_all_have_ended() -> None:
    ended = []

    def run(part: int) -> None:
        if part != 1:
            time.sleep(0.05)
        ended.append(part)
        if part:
            raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 1"):
        run_parts(run, 3)
    assert sorted(ended) == [0, 1, 2]
    assert run_parts(lambda part: part, 3) == [0, 1, 2]  # the threads are still there


def test_several_callers_may_share_the_threads() -> None:
    with ThreadPoolExecutor(5) as callers:
        found = callers.map(lambda caller: run_parts(lambda part: 10 * caller + part, 3), range(40))
        assert list(found) == [[10 * caller + part for part in range(3)] for caller in range(40)]


def test_kernels_have_the_reserved_threads_and_torch_has_one_within_the_block() -> None:
    with threads(2):
        assert part_count(1000) == 2
        with reserve_threads_for_kernels():
            assert torch.get_num_threads() == 1 and part_count(1000) == 2
            with reserve_threads_for_kernels():
                assert part_count(1000) == 2
            assert torch.get_num_threads() == 1 and part_count(1000) == 2
        assert torch.get_num_threads() == 2 and part_count(1000) == 2
        torch.set_num_threads(1)
        assert part_count(1000) == 1


FORKED = """
import os, signal, threading, torch
from treefold import TreeClassifier
from treefold.kernels import threads
from treefold.nn.randomness import _LOCK

torch.set_num_threads(2)
trees = ["(f a b)", "(g b)", "(f (g a) b)", "(g (f b b))"] * 40

def fit():
    return TreeClassifier(state_size=4, epochs=1, random_state=0, n_threads=2).fit(trees, ["x", "y"] * 80).predict_proba(trees)

large = torch.rand(300, 300)
expected, product = fit(), large @ large  # which starts OpenMP's threads
threading.Thread(target=_LOCK.acquire).start()  # another thread initialises a model
child = os.fork()
if not child:
    signal.alarm(200)
    same = (fit() == expected).all() and torch.allclose(large @ large, product)
    os._exit(0 if same and torch.get_num_threads() == 1 and threads.part_count(1000) == 2 else 3)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_process_fits_as_the_one_before_it() -> None:
    """OpenMP waited for ever for threads that do not live on in a forked process."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done.stderr


def test_few_trees_are_one_part() -> None:
    with threads(4):
        assert [part_count(trees) for trees in (1, 63, 64, 100, 128, 10_000)] == [1, 1, 2, 3, 4, 4]


def test_each_thread_has_its_own_workspace_which_grows_up_to_a_limit() -> None:
    def use(needed: int) -> tuple[int, int]:
        grow_workspace(np.dtype(np.float64), needed)
        own = workspace(np.dtype(np.float64))
        assert len(workspace(np.dtype(np.float32))) == 0  # one for each type
        grow_workspace(np.dtype(np.float64), needed // 2)
        grow_workspace(np.dtype(np.float64), _LARGEST_WORKSPACE + 1)
        assert workspace(np.dtype(np.float64)) is own
        return len(own), own.ctypes.data

    found = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(use(1000)))
        thread.start()
        thread.join()
    assert all(length >= 1000 for length, _ in found)
