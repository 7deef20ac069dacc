"""What is compiled ahead is what is called."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from treefold.kernels.calls import backward, forward

from treefold.kernels import ahead
from treefold.kernels.__main__ import compile_kernels

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


TRAP = "from pathlib import Path; Path('executed').touch(); raise ImportError('a file of the working directory')"
HELPER = """
import subprocess, numpy as np
from treefold.kernels import ahead
started = []
class Noted(subprocess.Popen):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        started.append(self)
ahead.subprocess.Popen = Noted
ahead.os.cpu_count = lambda: 2
ahead.compile_passes(np.dtype("float32"))
assert [each.returncode for each in started] == [0], started
"""


def test_the_helper_process_executes_nothing_from_the_working_directory(tmp_path: Path) -> None:
    for name in ("numpy", "numba", "treefold", "contextlib"):
        (tmp_path / f"{name}.py").write_text(TRAP, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-c", HELPER], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


def test_the_import_path_of_the_helper_has_only_absolute_folders_other_than_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ".", "sub", str(tmp_path), str(tmp_path / "other")])
    assert ahead.safe_import_path() == str(tmp_path / "other")
    source = Path(ahead.__file__).parents[2]
    monkeypatch.chdir(source)
    monkeypatch.setattr(sys, "path", ["", str(source)])
    assert ahead.safe_import_path() == str(source)
