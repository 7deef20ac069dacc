"""`treefold report`, run as a user runs it."""

import re
import sys
from pathlib import Path

import pytest

from tests.cli.test_data import treefold
from tests.sweeps.report.made_up import result, write
from treefold.errors import ConfigurationError, FileError
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
    assert "finished runs: 3" in done.stdout and "Best on validation: listops, Sum: accuracy 90.50" in done.stdout
    assert "What to try next:" in done.stdout and "paper" not in done.stdout
    files = {path.name: path.read_bytes() for path in (tmp_path / "a" / "report").iterdir()}
    names = ("listops-parameters", "listops-curves", "listops-time", "mine-parameters", "mine-time")
    expected = {f"{name}.{ending}" for name in names for ending in ("png", "svg")}
    assert set(files) == expected | {"report.md", "report.tex", "report.html", "best-listops.toml", "best-mine.toml"}
    assert not any(
        re.search(r"\bpapers?\b", text.decode().casefold())
        for name, text in files.items()
        if name.endswith((".md", ".tex"))
    )
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
    for force, message in (
        (False, "expected a name that is free"),
        (True, "expected a directory to replace, got a file"),
    ):
        with pytest.raises(FileError, match=message):
            write_report([good], tmp_path / "file", force=force)
    assert (tmp_path / "file").read_text() == "precious"


def test_only_a_report_is_replaced_and_only_with_force(tmp_path: Path) -> None:
    good = write(tmp_path / "good", [result("g", "X", 4, 2, groups={}, curves={})])
    write_report([good])
    stale = good / "report" / "stale.png"
    stale.touch()
    done = treefold("report", good)
    assert (
        done.returncode == 2 and "expected a name that is free, got one that exists" in done.stderr and stale.exists()
    )
    done = treefold("report", good, "--force")
    assert done.returncode == 0 and not stale.exists() and (good / "report" / "best.toml").exists()
    with pytest.raises(FileError, match=r"expected a report to replace, got a folder with 'results\.jsonl'"):
        write_report([good], good, force=True)
    assert sorted(path.name for path in good.iterdir()) == ["report", "results.jsonl"]


def test_a_missing_matplotlib_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"a report needs the package matplotlib"):
        write_report([tmp_path / "no such folder"])
