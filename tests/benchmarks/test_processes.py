from pathlib import Path
from typing import Any

import pytest
from benchmarks import processes
from benchmarks.measuring import Options

from treefold.data.generators import make_listops
from treefold.errors import TrainingError


def test_a_training_in_its_own_process_tells_its_memory(tmp_path: Path) -> None:
    make_listops(40).save(tmp_path / "data")
    found = processes.in_child("train", tmp_path / "data", tmp_path / "run", 1)
    assert 0 < found["before_bytes"] <= found["peak_bytes"]
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_process_that_fails_is_reported_with_its_last_message() -> None:
    with pytest.raises(TrainingError, match=r"failed with exit code 1: KeyError: 'absent'"):
        processes.in_child("absent")


@pytest.mark.parametrize("again", [False, True])
def test_a_second_compilation_is_noticed_by_its_files(monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    calls: list[str] = []

    def child(job: str, case: str, **environment: str) -> dict[str, Any]:
        folder = Path(environment["TREEFOLD_CACHE_DIR"])
        assert calls or not list(folder.iterdir())
        if not calls or again:
            (folder / f"kernel{len(calls)}.nbc").write_bytes(b"code")
        calls.append(job)
        return {"seconds": float(len(calls)), "warnings": ["compiling"] if len(calls) == 1 else []}

    monkeypatch.setattr(processes, "in_child", child)
    (found,) = (job() for job in processes.compilation(Options(quick=True)).values())
    assert len(processes.compilation(Options())) == 6  # a form each
    assert calls == ["compile", "compile"] and found["compiled_again"] is again
    assert (found["first_seconds"], found["second_seconds"]) == (1.0, 2.0)
    assert (found["announced"], found["announced_again"], found["kept_files"]) == (["compiling"], [], 1)


def test_the_memory_of_a_batch_is_told_for_each_node() -> None:
    found = processes.memory(Options(quick=True))["state, batch 512"]()
    if found["peak_megabytes"] is None:
        pytest.skip("the system does not tell")
    assert found["bytes_per_node"] == pytest.approx(1e6 * found["peak_megabytes"] / found["nodes"])
