"""`treefold sweep`, run as a user runs it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from tests.sweeps import tiny
from treefold.cli import main
from treefold.cli.sweep import SweepProgress, sweep
from treefold.errors import ConfigurationError, FileError, ForestFileError, TreefoldError
from treefold.sweeps.grid import read_grid
from treefold.sweeps.plan import open_data, plan
from treefold.sweeps.results import RESULTS, Results, SweepFacts
from treefold.sweeps.run import Died, Failed, Finished, Limits, Progressed, Started, execute, sweep_lock

SMOKE = Path(__file__).parents[2] / "experiments" / "smoke.toml"


def test_a_sweep_that_is_killed_in_the_middle_ends_with_the_results_of_one_that_is_not(tmp_path: Path) -> None:
    """The smoke grid with two workers; kill -9 of the whole after the first result, then the same command again."""
    out = tmp_path / "out"
    data, _ = open_data(read_grid(SMOKE).data, None, SMOKE.parent, out)
    runs = plan(read_grid(SMOKE), data, "smoke")
    expected = [execute(run, data, tmp_path / "expected" / run.key, Limits(), lambda event: None) for run in runs]
    command = [sys.executable, "-m", "treefold", "sweep", str(SMOKE), "--out", str(out), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not (out / "results.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert 1 <= _lines(out / "results.jsonl") < 6

    sweep(SMOKE, out, workers=1)
    assert tiny.lines(out / "results.jsonl") == sorted(
        (tiny.comparable(result) for result in expected if result is not None), key=lambda line: str(line["key"])
    )
    weights = [path.relative_to(out / "runs") for path in (out / "runs").glob("*/model.safetensors")]
    assert len(weights) == 6
    assert all((out / "runs" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes() for name in weights)
    assert not list(out.glob("runs/*/checkpoint.safetensors"))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


GRID = """
name = "own"
seeds = [0]
[training]
epochs = 1
[[models]]
kind = "good"
aggregator = "sum"
state_size = 2
[[models]]
kind = "bad"
aggregator = "sum"
state_size = 3
"""


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(GRID)
    return path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> tiny.Here:
    """Runs are done in this process; the second fails."""
    engine = tiny.Here(failing=[1])
    monkeypatch.setattr("treefold.sweeps.local.Local", lambda workers: engine)
    return engine


def test_a_failing_run_is_listed_at_the_end_and_the_exit_says_so(
    grid: Path, tmp_path: Path, here: tiny.Here, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as stop:
        sweep(grid, tmp_path / "out", tiny.data_folder())
    said = capsys.readouterr()
    assert stop.value.exit_code == 1 and "1 runs finished, 1 failed" in said.out
    assert said.err.endswith("failed: bad c=3 seed 0: as it should\n")
    (line,) = tiny.lines(tmp_path / "out" / "results.jsonl")
    assert line["kind"] == "good" and line["grid"] == "own"
    here.failing = []
    sweep(grid, tmp_path / "out", tiny.data_folder())
    assert "own: 2 runs, 1 finished before, 1 to do" in capsys.readouterr().err and len(here.asked) == 3


def test_data_may_have_a_name_that_is_not_utf_8(grid: Path, tmp_path: Path, here: tiny.Here) -> None:
    data = tmp_path / os.fsdecode(b"n\xff")
    data.symlink_to(tiny.data_folder())
    with pytest.raises(typer.Exit):  # the second run fails
        sweep(grid, tmp_path / "out", data)
    facts = SweepFacts.read(tmp_path / "out")
    assert (
        facts is not None and facts.data == f"{tmp_path}/n\\udcff" and len(tiny.lines(tmp_path / "out" / RESULTS)) == 1
    )


def test_ctrl_c_ends_in_a_message_and_exit_130(
    grid: Path, tmp_path: Path, here: tiny.Here, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("treefold.sweeps.run.sweep", interrupted)
    arguments = ["sweep", str(grid), "--out", str(tmp_path / "out"), "--data", str(tiny.data_folder())]
    monkeypatch.setattr(sys, "argv", ["treefold", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130 and "the sweep is not finished; start it again to continue" in capsys.readouterr().err


def test_a_dry_run_shows_everything_and_writes_nothing(
    grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GRID.replace("[training]", '[data]\nmake = "listops"\ncount = 60\n[training]')
    grid.write_text(text)
    sweep(grid, tmp_path / "out", dry_run=True)
    shown = capsys.readouterr().out
    assert "own: 2 runs, 0 of them finished" in shown and "good c=2" in shown and "to do: 2 runs" in shown
    parameters = 4 * (3 * (5 * 4 + 2) + 5 * (4 + 2)) + 11 * 6 + 3 * 20 + 21 * 20 + 21 * 10  # of the Sum-LSTM with c = 2
    assert f"{parameters:,}" in shown and not (tmp_path / "out").exists()
    sweep(grid, tmp_path / "out", dry_run=True, only=["good"])
    assert "bad c=3" not in capsys.readouterr().out
    sweep(grid, tmp_path / "out", dry_run=True, only=["bad c=3"])
    shown = capsys.readouterr().out
    assert "bad c=3" in shown and "good" not in shown and "to do: 1 runs" in shown


def test_names_with_brackets_are_shown_word_for_word(
    grid: Path, tmp_path: Path, here: tiny.Here, capsys: pytest.CaptureFixture[str]
) -> None:
    grid.write_text(GRID.replace('"own"', '"own [/b]"').replace('"good"', '"good [no biases]"'))
    sweep(grid, tmp_path / "out", tiny.data_folder(), dry_run=True)
    shown = capsys.readouterr().out
    assert "own [/b]: 2 runs" in shown and "good [no biases] c=2" in shown
    here.failing = []
    sweep(grid, tmp_path / "out", tiny.data_folder())
    assert "own [/b]: 2 runs" in capsys.readouterr().err


def test_an_incomplete_last_line_is_moved_with_a_warning_and_its_run_repeated(
    grid: Path, tmp_path: Path, here: tiny.Here, capsys: pytest.CaptureFixture[str]
) -> None:
    out, path = tmp_path / "out", tmp_path / "out" / "results.jsonl"
    here.failing = []
    sweep(grid, out, tiny.data_folder())
    first, second = path.read_text().splitlines()
    path.write_text(first + "\n" + second[:90])
    sweep(grid, out, tiny.data_folder())
    assert (
        "the last line of results.jsonl is incomplete; it was moved to results.jsonl.damaged" in capsys.readouterr().err
    )
    assert (out / "results.jsonl.damaged").read_text() == second[:90] + "\n"
    assert here.asked[2:] == [json.loads(second)["key"]]
    again = [tiny.comparable(json.loads(line)) for line in path.read_text().splitlines()]
    assert again == [tiny.comparable(json.loads(line)) for line in (first, second)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"only": ["goood"]},
            ConfigurationError,
            "a kind of the grid, 'good', 'bad', or a configuration like 'good c=2', got 'goood' (nearest known: 'good')",
        ),
        ({"address": "127.0.0.1:6379"}, ConfigurationError, "--address expects --on ray, got --on local"),
        ({"data": Path("absent")}, ForestFileError, "absent: expected a data set"),
        ({}, ConfigurationError, "the grid names no data; give --data DIR"),
    ],
)
def test_options_that_do_not_fit_are_clear_errors(
    grid: Path, tmp_path: Path, options: dict[str, object], error: type[TreefoldError], message: str
) -> None:
    with pytest.raises(error) as problem:
        sweep(grid, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert message in str(problem.value) and not (tmp_path / "out" / "runs").exists()


def test_damaged_results_and_a_sweep_under_way_stop_everything_before_anything_runs(grid: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        sweep_lock(out),
        pytest.raises(FileError, match=rf"a sweep is running in this folder \(process {os.getpid()}\)"),
    ):
        sweep(grid, out, tiny.data_folder())
    (out / "results.jsonl").write_text('{"version": 9}\n')
    with pytest.raises(ForestFileError, match=r"results.jsonl, line 1: expected a result of version 1, got version 9"):
        sweep(grid, out, tiny.data_folder())
    assert (out / "results.jsonl").read_text() == '{"version": 9}\n' and not (out / "runs").exists()


def test_progress_counts_runs_and_estimates_the_time_left(tmp_path: Path) -> None:
    runs, results = tiny.runs(), Results.read(tmp_path / RESULTS)
    progress = SweepProgress(runs, results, runs[1:], workers=2)
    costs = [3 * run.seconds_an_epoch for run in runs]
    assert progress.finished == 1
    assert progress.seconds_left() == pytest.approx(max(sum(costs[1:]) / 2, *costs[1:]))
    progress.update(Started(runs[1]))
    progress.update(Progressed(runs[1], epoch=2, part=0.5, validation=None))
    progress.update(Progressed(runs[1], epoch=2, part=1.0, validation=0.25))
    progress.update(Progressed(runs[1], epoch=3, part=1.0, validation=0.125))
    assert progress.running[runs[1].key].epochs_done == 3.0 and progress.running[runs[1].key].best == 0.25
    progress.update(Finished(runs[1], {}))
    progress.update(Started(runs[2]))
    progress.update(Died(runs[2], 1))
    assert (progress.finished, list(progress.pending), progress.running) == (2, [runs[2].key, runs[3].key], {})
    progress.update(Failed(runs[2], "no"))
    assert progress.failed == 1
    assert progress.seconds_left() == pytest.approx(costs[3])


def test_a_sweep_with_a_report_ends_with_it_and_says_what_failed(
    grid: Path, tmp_path: Path, here: tiny.Here, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for _ in range(2):  # the second replaces the first one's report
        with pytest.raises(typer.Exit):
            sweep(grid, out, tiny.data_folder(), with_report=True)
        here.failing = [0]
    said = capsys.readouterr().out
    assert "finished runs: 1 of 2" in said and "own: failed: bad c=3 seed 0 (as it should)." in said
    page = (out / "report" / "report.html").read_text()
    assert (
        "own: failed: bad c=3 seed 0 (as it should)." in page and f"treefold train {tiny.data_folder()} --out" in page
    )
    facts = SweepFacts.read(out)
    assert facts is not None and list(facts.runs.values()) == ["good c=2 seed 0", "bad c=3 seed 0"]
    assert [facts.runs[key] for key in facts.failed] == ["bad c=3 seed 0"]


def test_a_missing_matplotlib_is_said_before_anything_is_trained(
    grid: Path, tmp_path: Path, here: tiny.Here, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"needs the package matplotlib.*pip install 'treefold\[plot\]'"):
        sweep(grid, tmp_path / "out", tiny.data_folder(), with_report=True)
    assert not (tmp_path / "out").exists() and not here.asked
    here.failing = []
    sweep(grid, tmp_path / "out", tiny.data_folder())
    assert capsys.readouterr().err.startswith("note: a report of this sweep will need matplotlib; pip install")


def test_a_folder_that_is_no_report_stops_a_sweep_with_a_report_before_it_starts(
    grid: Path, tmp_path: Path, here: tiny.Here
) -> None:
    notes = tmp_path / "out" / "report" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("precious")
    with pytest.raises(FileError, match=r"expected a report to replace, got a folder with 'notes\.txt'"):
        sweep(grid, tmp_path / "out", tiny.data_folder(), with_report=True)
    assert notes.read_text() == "precious" and not here.asked
