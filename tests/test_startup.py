"""Quick to start: `--help`, mistakes and imports load only the modules that they need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import treefold
from tests import runs
from treefold import cli
from treefold.data.generators.listops import OPERATORS

SLOW = {"torch", "sklearn", "scipy", "numba", "numpy", "pandas", "matplotlib", "treefold.sweeps"}


def modules_after(code: str, *arguments: str) -> set[str]:
    """Return the modules that a new process has imported after it ran some code."""
    report = "import atexit, json, sys\natexit.register(lambda: print('\\n' + json.dumps(list(sys.modules))))\n"
    command = [sys.executable, "-c", report + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert "Traceback" not in done.stderr, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def modules_of(*arguments: str) -> set[str]:
    return modules_after("from treefold.cli import main\nmain()", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["trian"], ["data", "--help"], ["data", "convrt"]]
    + [[name, "--help"] for name in cli.COMMANDS if name != "data"]
    + [["data", name, "--help"] for name in ("listops", "convert", "inspect")]
    + [["train", "--no-such-option"], ["predict"]],
    ids=" ".join,
)
def test_help_and_mistakes_import_nothing_slow(arguments: list[str]) -> None:
    assert not modules_of(*arguments) & SLOW


def test_predict_imports_no_sweep_or_report(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("(MAX 1 2)\n")
    imported = modules_of("predict", str(runs.listops().folder), str(tmp_path / "trees.txt"))
    assert "torch" in imported and "treefold.cli.model" in imported
    unused = ("treefold.sweeps", "treefold.cli.sweep", "treefold.cli.report")
    assert not [name for name in imported if name.startswith((*unused, "treefold.estimators", "sklearn", "matplotlib"))]


@pytest.mark.parametrize("optimiser", ["adamw", "adadelta"])
def test_a_training_does_not_import_the_compiler_of_torch(tmp_path: Path, optimiser: str) -> None:
    settings = ("epochs=2", "state_size=3", "patience=none", "checkpoint_minutes=0.0001", f"optimiser={optimiser}")
    words = [word for setting in settings for word in ("--set", setting)]
    imported = modules_of("train", str(runs.listops().data_folder), "--out", str(tmp_path / "run"), *words)
    assert "treefold.kernels.optimisers" in imported and "torch._dynamo" not in imported


def test_data_commands_import_no_torch(tmp_path: Path) -> None:
    imported = modules_of("data", "listops", "--out", str(tmp_path / "lo"), "--size", "20")
    assert "numpy" in imported and not imported & (SLOW - {"numpy"})
    assert not modules_of("data", "inspect", str(tmp_path / "lo")) & (SLOW - {"numpy"})


def test_an_estimator_imports_no_command_line_and_no_model_selection() -> None:
    imported = modules_after("from treefold import TreeClassifier")
    assert not imported & {
        "typer",
        "treefold.cli",
        "treefold.sweeps",
        "sklearn.model_selection",
        "sklearn.linear_model",
    }


def test_commands_are_listed_with_the_first_line_of_their_help() -> None:
    for name, (_, line) in cli.COMMANDS.items():
        command = cli.load(name)
        assert command.help.split("\n")[0] == line
        assert name == "data" or f"Example: `{'echo' if name == 'predict' else f'treefold {name}'} " in command.help
    for name, command in cli.load("data").commands.items():
        assert command.hidden or f"Example: `treefold data {name} " in command.help


def test_defaults_written_as_text_are_those_of_the_library() -> None:
    (operators,) = (each for each in cli.load("data").commands["listops"].params if each.name == "operators")
    assert operators.default == ",".join(OPERATORS)


def test_the_version_is_written_in_one_place() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project and 'version = { attr = "treefold.__version__" }' in project
    assert f'"{treefold.__version__}"' not in project
