"""What is compiled ahead is what is called."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from treefold.kernels import ahead
from treefold.kernels.__main__ import compile_kernels
from treefold.kernels.calls import backward, forward

PROGRAM = """
import numpy as np, sys, torch
from treefold.kernels import ahead, calls
from treefold.kernels.__main__ import compile_kernels
dtype = getattr(torch, sys.argv[1])
compile_kernels(dtype)
called = [list(calls.forward.signatures), list(calls.backward.signatures)]
ahead.compile_passes(np.dtype(sys.argv[1]))
ahead.compile_backward(np.dtype(sys.argv[1]))
assert called == [list(calls.forward.signatures), list(calls.backward.signatures)], calls.backward.signatures
assert all(len(each) == 1 for each in called), called
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_examples_have_the_types_of_real_calls(dtype: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, dtype], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_another_process_it_is_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(Path(os.devnull) / "python"))
    compile_kernels(torch.float32)
    before = [len(forward.signatures), len(backward.signatures)]  # type: ignore[attr-defined]
    ahead.compile_passes(np.dtype(np.float32))
    assert before == [len(forward.signatures), len(backward.signatures)]  # type: ignore[attr-defined]
