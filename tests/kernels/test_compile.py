"""Compiled kernels: their signatures and addresses, and the cache that processes share."""

import errno
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numba.core import types

from treefold import Classifier, Forest, OneHot, PairClassifier, TreeEncoder, TreeLSTM, TreeModel, TreeRNN
from treefold.kernels import compile as compiling
from treefold.kernels.__main__ import all_kernels
from treefold.kernels.compile import address_of, cache_folder, call, entry_point, is_on_disk, kernel, matrix, signature
from treefold.kernels.fold import fold_forward
from treefold.kernels.gather import translate
from treefold.kernels.records import Codes, Ints, Matrix, Plan, Slots, Vector, Weights
from treefold.nn.cells.rnn import rnn_forward
from treefold.nn.engine import FusedEngine
from treefold.nn.flat import FlatParameters

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


# Signatures and addresses


@kernel
def _scale(values: Vector, factor: int) -> None:
    for index in range(len(values)):
        values[index] *= factor


@kernel
def _turn_signs(values: Vector, factor: int) -> None:
    for index in range(len(values)):
        values[index] = -values[index]


@entry_point
def _call_both(addresses: Ints, values: Vector) -> None:
    for index in range(len(addresses)):
        call(addresses[index], (values, int(np.int64(3))))


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_kernels_are_called_by_their_addresses(dtype: "np.dtype[Any]") -> None:
    addresses = np.array([address_of(_scale, dtype), address_of(_turn_signs, dtype), address_of(_scale, dtype)])
    values = np.arange(5, dtype=dtype)
    _call_both(addresses, values)
    assert values.tolist() == [0, -9, -18, -27, -36]
    assert addresses[0] == addresses[2] == address_of(_scale, dtype) != addresses[1]


def test_each_type_has_its_own_address() -> None:
    assert address_of(_scale, SINGLE) != address_of(_scale, DOUBLE)


def test_a_signature_is_read_off_the_annotations() -> None:
    @entry_point
    def example(numbers: Vector, table: Matrix, ints: Ints, codes: Codes, slots: Slots, flag: bool, x: float) -> int:
        return 0

    for dtype, own in ((SINGLE, types.float32), (DOUBLE, types.float64)):
        *plain, slots, flag, x = signature(example, dtype)
        assert plain == [
            types.Array(own, 1, "C"),
            types.Array(own, 2, "C"),
            types.Array(types.int64, 1, "C"),
            types.Array(types.int32, 1, "C", readonly=True),
        ]
        assert isinstance(slots.dtype, types.Record) and list(slots.dtype.fields)[:2] == ["start", "width"]
        assert (flag, x) == (types.boolean, types.float64)
    weights, plan, *_, operator = signature(rnn_forward, SINGLE)
    assert weights.target.instance_class is Weights and plan.target.instance_class is Plan  # by reference
    assert weights.target.types[0] == types.Array(types.float32, 1, "C") and operator == types.int64
    by_value = signature(fold_forward, SINGLE)[0]
    assert by_value.instance_class is Weights


def run_everything(dtype: torch.dtype, folder: Path) -> None:
    """Compute states, answers and gradients of trees in memory and on disk, with and without autograd."""
    forest = Forest(["(f a)", "a"])
    forest.save(folder / "trees.forest")
    encoder = TreeEncoder(
        TreeLSTM("tucker", state_size=2, arity=2, rank=2, label_size=2), OneHot("fa"), backend="fused"
    )
    for trees in (forest, Forest.open(folder / "trees.forest")):
        for head, classes in ((Classifier(in_size=2, classes=2), 2), (PairClassifier(in_size=2, classes=2), 1)):
            model = TreeModel(encoder, head).to(dtype)
            model(trees).sum().backward()
            model.predictor()(trees, np.arange(2))
            flat = FlatParameters(model, model.layouts())
            encoder.flat = flat
            engine = model.engine()
            assert isinstance(engine, FusedEngine)
            found = engine.gradients(trees, np.arange(2), torch.sum, np.zeros(classes, np.int64))
            assert found.right is not None  # computed by kernels
            encoder.flat = None
            flat.release()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_are_compiled_for_the_types_of_real_calls_and_for_no_others(dtype: torch.dtype, tmp_path: Path) -> None:
    before = {function: set(function.overloads) for function in map(_any, all_kernels())}
    run_everything(dtype, tmp_path)
    kind = SINGLE if dtype == torch.float32 else DOUBLE
    for function in map(_any, all_kernels()):
        new = set(function.overloads) - before[function]
        assert new <= {signature(function, kind)}, function


def _any(function: Any) -> Any:
    return function


@entry_point
def _filled(flat: Vector, start: int, rows: int, width: int) -> Matrix:
    view = matrix(flat, start, rows, width)
    for row in range(rows):
        for column in range(width):
            view[row, column] = 10 * row + column
    result: Matrix = view.copy()
    return result


@pytest.mark.parametrize(("start", "rows", "width"), [(0, 3, 4), (5, 2, 3), (2, 0, 4), (2, 4, 0), (7, 1, 5)])
def test_a_matrix_is_a_view_of_a_piece_of_an_array(start: int, rows: int, width: int) -> None:
    flat, expected = np.full(12, -1.0), np.full(12, -1.0)
    own = expected[start : start + rows * width].reshape(rows, width)
    own[:] = 10 * np.arange(rows)[:, None] + np.arange(width)
    assert np.array_equal(_filled(flat, start, rows, width), own) and np.array_equal(flat, expected)


@entry_point
def _lines(flat: Vector, width: int) -> Matrix:
    return matrix(flat, int(np.int64(0)), len(flat) // width, width)  # type: ignore[no-any-return]


def test_a_matrix_keeps_its_array_alive() -> None:
    view = _lines(np.arange(1e6), 1000)
    others = [np.zeros(10**6) for _ in range(3)]  # which would take the place of an array that was given back
    assert view[999, 999] == 1e6 - 1 and not any(each.any() for each in others)


# The cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another cache for the kernels that are defined meanwhile."""
    monkeypatch.setenv("TREEFOLD_CACHE_DIR", str(tmp_path / "cache"))
    cache_folder.cache_clear()
    yield tmp_path / "cache"
    monkeypatch.undo()
    cache_folder.cache_clear()


def defined_in(path: Path, source: str = "return 2 * number") -> Any:
    """Write a module with one kernel, and return it, as after a new start."""
    path.write_text(f"def doubled(number: int) -> int:\n    {source}\n")
    place: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(), path, "exec"), place)
    return entry_point(place["doubled"])


def test_kernels_are_kept_in_the_cache_of_the_user(cache: Path, tmp_path: Path) -> None:
    function = defined_in(tmp_path / "one.py")
    assert not is_on_disk(function, SINGLE)
    assert function(4) == 8 and is_on_disk(function, SINGLE)
    again = defined_in(tmp_path / "one.py")
    assert is_on_disk(again, SINGLE) and again(4) == 8 and sum(again.stats.cache_hits.values()) == 1
    folder = cache_folder()
    assert folder is not None and folder.is_relative_to(cache / "kernels") and list(folder.glob("*.nbc"))


def test_a_changed_file_outdates_its_kernels_and_any_changed_kernel_file_outdates_all(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert defined_in(tmp_path / "one.py")(4) == 8
    assert is_on_disk(defined_in(tmp_path / "one.py"), SINGLE)
    changed = defined_in(tmp_path / "one.py", "return number + number + 0")
    assert not is_on_disk(changed, SINGLE) and changed(4) == 8
    assert is_on_disk(changed, SINGLE)
    monkeypatch.setattr(compiling, "_fingerprint", lambda: 1)
    cache_folder.cache_clear()
    assert not is_on_disk(defined_in(tmp_path / "one.py", "return number + number + 0"), SINGLE)


def test_the_fingerprint_changes_with_any_file_of_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "compile.py", tmp_path / "new.py"]
    for file in files:
        file.write_text("1")
    monkeypatch.setattr(compiling, "__file__", str(files[0]))
    found = [compiling._fingerprint()]
    for file in files:
        file.write_text("2")
        found.append(compiling._fingerprint())
    assert len(set(found)) == 3


def test_a_changed_kernel_of_another_file_outdates_those_that_call_it(cache: Path, tmp_path: Path) -> None:
    def caller(body: str) -> Any:
        place: dict[str, Any] = {"doubled": defined_in(tmp_path / "one.py", body), "__name__": "caller"}
        file = tmp_path / "caller.py"
        file.write_text("def twice(number: int) -> int:\n    return doubled(doubled(number))\n")
        exec(compile(file.read_text(), str(file), "exec"), place)
        return entry_point(place["twice"])

    assert caller("return 2 * number")(3) == 12
    assert is_on_disk(caller("return 2 * number"), SINGLE)
    changed = caller("return 3 * number")
    assert not is_on_disk(changed, SINGLE) and changed(3) == 27


def test_a_kernel_without_a_file_is_compiled_and_not_kept(cache: Path) -> None:
    place: dict[str, Any] = {"__name__": "prompt"}
    exec(compile("def doubled(number: int) -> int:\n    return 2 * number\n", "<prompt>", "exec"), place)
    function = entry_point(place["doubled"])
    assert function(4) == 8 and not is_on_disk(function, SINGLE)


def test_a_cache_that_cannot_be_written_is_none_and_kernels_stay_in_memory(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TREEFOLD_CACHE_DIR", str(tmp_path / "file"))
    cache_folder.cache_clear()
    with caplog.at_level(logging.INFO, logger="treefold"):
        assert cache_folder() is None
    assert f"{tmp_path / 'file'} cannot be written: compiled kernels are not kept" in caplog.text
    function = defined_in(tmp_path / "one.py")
    assert function(4) == 8 and not is_on_disk(function, SINGLE)
    assert compiling._start_helper([], SINGLE) is None


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_is_none(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o500)
    assert cache_folder() is None


def test_a_relative_cache_stays_where_it_was_when_the_program_moves(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREEFOLD_CACHE_DIR", "here")
    cache_folder.cache_clear()
    monkeypatch.chdir(tmp_path)
    folder = cache_folder()
    assert folder is not None and folder.is_absolute() and folder.is_relative_to(tmp_path / "here")


def test_the_default_cache_is_in_the_folder_that_the_system_has_for_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREEFOLD_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cache_folder.cache_clear()
    folder = cache_folder()
    assert folder is not None and folder.is_relative_to(tmp_path / "xdg" / "treefold" / "kernels")
    monkeypatch.delenv("TREEFOLD_CACHE_DIR")
    cache_folder.cache_clear()
    assert cache_folder() == folder


def test_versions_that_were_not_used_for_long_are_forgotten_and_other_folders_stay(cache: Path) -> None:
    for age in range(9):
        for name in (f"python3.{age}-numba0.60.0rc1-0123abcd", f"mine{age}"):
            folder = cache / "kernels" / name
            folder.mkdir(parents=True)
            os.utime(folder, (10**9 - age, 10**9 - age))
    own = cache_folder()
    kept = {each.name for each in (cache / "kernels").iterdir()}
    versions, mine = {f"python3.{age}-numba0.60.0rc1-0123abcd" for age in range(5)}, {f"mine{age}" for age in range(9)}
    assert own is not None and kept == {own.name} | versions | mine
    os.utime(own, (10**9 - 100, 10**9 - 100))
    cache_folder.cache_clear()
    assert cache_folder() == own and own.stat().st_mtime > 10**9  # the time of its last use


def test_a_kernel_has_a_file_for_each_of_its_types(cache: Path, tmp_path: Path) -> None:
    files = defined_in(tmp_path / "one.py")._cache.files
    files.save("single", "code for single")
    files.save("double", "code for double")
    assert [files.load(kind) for kind in ("single", "double", "half")] == ["code for single", "code for double", None]
    files.flush()
    assert files.load("single") is None


@pytest.mark.parametrize("damage", ["empty", "cut", "zeros", "bit", "folder", "gone"])
def test_a_damaged_kernel_file_counts_as_missing_and_is_written_again(cache: Path, tmp_path: Path, damage: str) -> None:
    assert defined_in(tmp_path / "one.py")(4) == 8
    (path,) = [path for folder in (cache / "kernels").iterdir() for path in folder.iterdir()]
    data = path.read_bytes()
    flipped = bytes([*data[:-9], data[-9] ^ 16, *data[-8:]])
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes(
            {"empty": b"", "cut": data[: len(data) // 2], "zeros": bytes(len(data)), "bit": flipped}[damage]
        )
    again = defined_in(tmp_path / "one.py")
    assert not is_on_disk(again, SINGLE) and again(4) == 8 and not again.stats.cache_hits
    if damage != "folder":
        assert is_on_disk(defined_in(tmp_path / "one.py"), SINGLE)


def test_kernels_of_a_full_disk_stay_in_memory(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    function = defined_in(tmp_path / "one.py")
    monkeypatch.setattr("os.fsync", full)
    compiling._say_not_kept.cache_clear()
    assert function(4) == 8 and not is_on_disk(function, SINGLE)
    assert f"compiled kernels cannot be kept in {cache_folder()} ([Errno 28] No space left on device)" in caplog.text


FEW = "from treefold.kernels.gather import gather, translate\nfrom treefold.nn.heads import cross_entropy\n"
USE = FEW + textwrap.dedent(
    """
    import logging, sys
    import numpy as np
    from treefold.kernels.compile import is_on_disk, precompile
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    few, dtype = [gather, translate, cross_entropy], np.dtype(sys.argv[1])
    precompile(few, dtype)
    assert all(is_on_disk(each, dtype) for each in few)
    scores = np.zeros((2, 3), dtype)
    assert abs(cross_entropy(scores, np.zeros(2, np.int64), 1)[0] - 2 * np.log(3)) < 1e-5
    assert len(cross_entropy.signatures) == 1, cross_entropy.signatures
    """
)


def start(folder: Path, program: str, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    """Start a program with a cache in a folder."""
    source = str(Path(compiling.__file__).parents[2])
    environment = {**os.environ, "TREEFOLD_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": source, **variables}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_processes_that_start_at_the_same_time_share_one_cache(tmp_path: Path) -> None:
    running = [start(tmp_path, USE, dtype) for dtype in ("float32", "float32", "float64")]
    for each in running:
        said, _ = each.communicate(timeout=300)
        assert each.returncode == 0, said
        assert "compiling 3 kernels in float" in said and str(tmp_path / "cache") in said
    later = start(tmp_path, USE, "float32")
    said, _ = later.communicate(timeout=300)
    assert later.returncode == 0 and "compiling" not in said, said


def test_without_a_cache_kernels_are_compiled_in_memory(tmp_path: Path) -> None:
    program = USE.replace("assert all(", "assert not any(")
    running = start(tmp_path, program, "float32", TREEFOLD_CACHE_DIR=os.devnull)
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0 and "they are kept in memory only" in said, said


def test_the_helper_process_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """A numpy.py of the user's, in the directory in which the program was started, which Python puts into its path."""
    (tmp_path / "numpy.py").write_text("open('imported', 'w').close()\nraise ImportError('a foreign numpy')\n")
    program = FEW + textwrap.dedent(
        """
        import os, sys
        import numpy as np
        from treefold.kernels import compile as compiling
        sys.path[:0] = ["", os.getcwd()]  # as "python -m" and "python script.py" have it
        os.cpu_count = lambda: 2
        dtype = np.dtype("float32")
        helper = compiling._start_helper(["treefold.kernels.gather:translate", "treefold.nn.heads:cross_entropy"], dtype)
        assert helper is not None and helper.wait(300) == 0
        assert compiling.is_on_disk(translate, dtype) and compiling.is_on_disk(cross_entropy, dtype)
        assert not compiling.is_on_disk(gather, dtype)
        """
    )
    running = start(tmp_path, program)
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0, said
    assert not (tmp_path / "imported").exists()
    assert not any(each.name == "imported" for each in tmp_path.rglob("*"))


def test_a_helper_that_cannot_be_started_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(sys, "executable", str(Path(os.devnull) / "python"))
    assert compiling._start_helper(["treefold.kernels.gather:translate"], SINGLE) is None
    monkeypatch.setattr(compiling, "_ready", set())
    compiling.precompile([translate], SINGLE)
    assert (compiling._name(translate), "float32") in compiling._ready


def test_the_helper_compiles_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(compiling, "is_on_disk", lambda function, dtype: function is translate)
    monkeypatch.setattr(type(translate), "compile", lambda function, kinds: compiled.append((function, kinds)))
    compiling.main('[["treefold.kernels.gather:translate", "treefold.kernels.gather:gather"], "float64"]')
    from treefold.kernels.gather import gather

    assert compiled == [(gather, signature(gather, DOUBLE))]


def test_compiling_is_announced_with_the_place_where_kernels_are_kept(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_ready", set())
    monkeypatch.setattr(compiling, "is_on_disk", lambda *_: False)
    monkeypatch.setattr(compiling, "_start_helper", lambda *_: None)
    with caplog.at_level(logging.INFO, logger="treefold"):
        TreeEncoder(TreeRNN("sum", state_size=3, arity=4))(Forest(["(f a)"]).batch())
    assert "kernels in float32 (once; they are kept in" in caplog.text and str(cache_folder()) in caplog.text


def test_a_terminal_sees_one_line_of_progress_and_a_file_sees_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_terminal in (False, True):
        monkeypatch.setattr(compiling, "_ready", set())
        monkeypatch.setattr(compiling, "is_on_disk", lambda *_: False)
        monkeypatch.setattr(compiling, "_start_helper", lambda *_: None)
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=is_terminal: shown)
        compiling.precompile([translate], SINGLE)
        said = capsys.readouterr().err
        assert ("treefold: compiling kernel 1 of 1, translate" in said) == is_terminal
        assert said.endswith("\r\x1b[2K") == is_terminal  # the line is removed at the end


def test_all_kernels_can_be_compiled_ahead() -> None:
    names = {each.py_func.__name__ for each in all_kernels()}  # type: ignore[attr-defined]
    assert {"make_plan", "fold_forward", "fold_backward", "rnn_backward", "lstm_backward", "adadelta_step"} <= names
    assert "adamw_step" in names
    assert {"sum_backward", "dense_weights", "symmetric_backward", "canonical_plan", "train_backward"} <= names
    assert {"perceptron_gradients", "comparison_gradients", "gather_translated"} <= names
