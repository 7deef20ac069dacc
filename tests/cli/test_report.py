"""`treefold report`, run as a user runs it."""

from pathlib import Path

import pytest

from tests.cli.test_data import treefold
from tests.sweeps.report.made_up import result, write
from treefold.errors import FileError
from treefold.sweeps.report import write_report

OWN = {"examples": 9, "nodes": 99, "crc32": 999}


def test_a_report_is_written_and_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    lines = [result("listops", "Sum", 25, seed=seed, validation=0.9 + 0.01 * seed, groups={}) for seed in range(2)]
    sweeps = [
        write(tmp_path / "a", lines),
        write(tmp_path / "b", [result("mine", "Odd", 4, 2, data=OWN, groups={}, curves={})]),
    ]
    done = treefold("report", *sweeps)
    assert done.returncode == 0, done.stderr
    assert "finished runs: 3" in done.stdout and "Best on validation: listops: Sum, c = 25" in done.stdout
    files = {path.name: path.read_bytes() for path in (tmp_path / "a" / "report").iterdir()}
    names = ("listops-parameters", "listops-curves", "listops-time", "mine-parameters", "mine-time")
    expected = {f"{name}.{ending}" for name in names for ending in ("png", "svg")}
    assert set(files) == expected | {"report.md", "report.tex", "report.html"}
    assert files["mine-time.png"].startswith(b"\x89PNG") and files["mine-time.svg"].startswith(b"<?xml")
    write_report(sweeps, tmp_path / "deep" / "again")
    assert {path.name: path.read_bytes() for path in (tmp_path / "deep" / "again").iterdir()} == files
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["results.jsonl"]


def test_bad_input_ends_in_one_clear_error(tmp_path: Path) -> None:
    done = treefold("report", tmp_path)
    assert done.returncode == 2 and "expected the folder of a sweep with results.jsonl in it" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_a_file_where_the_folder_should_be_is_kept(tmp_path: Path) -> None:
    good = write(tmp_path / "good", [result("g", "X", 4, 2)])
    (tmp_path / "file").write_text("precious")
    with pytest.raises(FileError, match="expected a folder for the report, got File exists; choose another"):
        write_report([good], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
