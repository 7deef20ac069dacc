"""`python -m benchmarks`, run as a developer runs it, on tiny data."""

import json
from pathlib import Path

import pytest
import typer
from benchmarks import __main__ as program
from benchmarks.__main__ import bench, main
from benchmarks.suites import Report
from typer.testing import CliRunner

from tests.cli.test_data import treefold
from treefold.errors import ConfigurationError, FileError

APP = typer.Typer()
APP.command()(bench)


def test_a_quick_run_shows_a_table_and_writes_everything_as_json(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    cases = ["--case", "lrt sum 10", "--case", "batch 1"]
    done = CliRunner().invoke(APP, ["step", "inference", "--quick", *cases, "--rounds", "1", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "1 of 2  step: lrt sum 10" in done.stderr
    assert "fused ms" in done.stdout and "what must hold" in done.stdout
    found = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {"machine", "options", "suites", "skipped", "figures"}
    assert found["options"] == {"quick": True, "rounds": 1, "threads": 1, "batch": 25}
    assert {"python", "treefold", "torch", "numpy", "numba"} <= set(found["machine"]["versions"])
    values = found["suites"]["step"]["lrt sum 10"]
    assert set(values) == {"fused_ms", "torch_ms", "ratio", "trees_per_second", "nodes_per_second", "threads"}
    assert values["ratio"] == pytest.approx(values["torch_ms"] / values["fused_ms"], rel=1e-2)
    assert values["trees_per_second"] == pytest.approx(2 * 25 / values["fused_ms"] * 1000, rel=1e-2)
    assert set(found["figures"]) == {"step, lrt sum 10, torch / fused", "inference, batch 1, torch / fused"}
    figure = found["figures"]["step, lrt sum 10, torch / fused"]
    assert (figure["value"], figure["at least"]) == (values["ratio"], 6)
    assert figure["holds"] is (figure["value"] >= 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rofline"], "got 'rofline' (nearest known: 'roofline')"),
        (["compare", ".", "phases"], "compare expects suite to be one of 'step', 'inference', 'threads', got 'phases'"),
        (["compare", ".", "--backend", "fussed"], "got 'fussed' (nearest known: 'fused')"),
        (["compare", ".", "step", "--case", "tuker"], "in step, got 'tuker' (nearest known: 'tucker')"),
        (["compare", "no-such-folder", "step"], "no-such-folder: expected a checkout with src/treefold"),
    ],
)
def test_a_mistake_ends_in_one_clear_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    shown = capsys.readouterr()
    assert caught.value.code == 2 and message in shown.err and not shown.out


def test_the_old_command_says_how_to_run_benchmarks_now() -> None:
    done = treefold("bench", "step", "--quick")
    assert done.returncode == 2 and "run `python -m benchmarks` in a checkout" in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


def test_help_names_the_suites() -> None:
    shown = CliRunner().invoke(APP, ["--help"]).stdout
    assert all(name in shown for name in ("step", "subtrees", "roofline", "--quick", "--case", "--json"))


def test_files_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="expected a folder that exists, got no"):
        bench(["step"], json_file=tmp_path / "absent" / "found.json")
    with pytest.raises(FileError, match="expected the name of a file, got a folder"):
        bench(["step"], json_file=tmp_path)


def test_figures_are_on_disk_before_they_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(report: Report) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(program, "run_suites", lambda names, options, **more: Report(options, {"cores": 2}))
    monkeypatch.setattr(program, "show", broken)
    with pytest.raises(BrokenPipeError):
        bench(["step"], json_file=tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["machine"] == {"cores": 2}


def test_a_figure_is_drawn_of_the_roofline_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--figure expects the suite 'roofline', got step; name it as well"):
        bench(["step"], figure=tmp_path / "roof.png")
    with pytest.raises(
        ConfigurationError, match="--figure expects cases of the suite 'roofline', got none of it by --case"
    ):
        bench(["step", "roofline"], cases=["pytorch-tree-lstm"], figure=tmp_path / "roof.png")
    pytest.importorskip("matplotlib")
    bench(["roofline"], quick=True, rounds=1, cases=["listops full 3", "matrix"], figure=tmp_path / "roof.png")
    assert (tmp_path / "roof.png").read_bytes().startswith(b"\x89PNG")
