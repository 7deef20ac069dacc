"""Several processes that train one model, started as a user starts them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.test_data import treefold
from treefold.errors import TrainingError
from treefold.training.distributed import ALONE, Workers, joined


@given(st.integers(0, 40), st.integers(1, 5))
def test_the_shares_in_a_row_are_the_whole(count: int, workers: int) -> None:
    shares = [Workers(rank, workers).share(np.arange(count)) for rank in range(workers)]
    assert np.concatenate(shares).tolist() == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_is_alone() -> None:
    with joined() as workers:
        assert workers is ALONE


def test_an_environment_that_torchrun_did_not_make_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainingError, match="WORLD_SIZE=2 expects the environment that torchrun makes"), joined():
        pass


_LEAVES: Final = """
import os, torch
from treefold.training.distributed import joined

with joined() as workers:
    torch.optim.Adam([torch.zeros(2, requires_grad=True)])  # imports modules that know the group
    import torch._dynamo

    assert workers.add_up(torch.ones(3)).tolist() == [2, 2, 2]
print("threads:", [open(f"/proc/self/task/{each}/comm").read() for each in os.listdir("/proc/self/task")])
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="THREADS ARE NOT COUNTED: there is no /proc")
def test_processes_that_leave_keep_no_threads_of_the_group(tmp_path: Path) -> None:
    # A thread that lives on may let a tensor go while Python ends, which aborts the process.
    (tmp_path / "leaves.py").write_text(_LEAVES)
    done = _together(str(tmp_path / "leaves.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("threads:") == 2
    assert "gloo" not in done.stdout


def _together(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)


@pytest.mark.parametrize("kind", ["tree", "pair"])
def test_two_processes_have_the_loss_curve_of_one(kind: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = ["listops", "--size", 200] if kind == "tree" else ["lrt", "--size", 150]
    assert treefold("data", *made, "--out", data).returncode == 0
    # Seven does not divide by two, and the last batch has one example or few.
    settings = ["state_size=3", "epochs=2", "threads=1", "batch_size=7", "patience=none", "aggregator=sum"]
    settings += [f"reduction={'sum' if kind == 'tree' else 'mean'}"]
    options = [part for setting in settings for part in ("--set", setting)]
    alone = treefold("train", data, "--out", tmp_path / "alone", *options)
    assert alone.returncode == 0, alone.stderr
    both = _together("-m", "treefold", "train", str(data), "--out", str(tmp_path / "both"), *options)
    assert both.returncode == 0, both.stderr
    assert both.stdout.count("accuracy on the test set") == 1  # one process talks
    assert both.stderr.count("no better than the most frequent class") <= 1
    curves = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("alone", "both")
    ]
    assert len(curves[0]) == len(curves[1]) == 2
    for one, two in zip(*curves, strict=True):
        for name in ("loss", "accuracy", "validation_loss", "validation_score"):
            assert two[name] == pytest.approx(one[name], abs=1e-5), name
