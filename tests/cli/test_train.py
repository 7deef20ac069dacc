"""`treefold train`, run as a user runs it."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import treefold.cli.train as display
from tests.cli.test_data import LONG, treefold
from treefold.training import Progress
from treefold.training.saving import read_facts
from treefold.training.settings import describe_settings, read_recipe, recipe_names, recipe_path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "lo"
    assert treefold("data", "listops", "--out", folder, "--size", 300).returncode == 0
    return folder


SMALL = ["--set", "state_size=3", "--set", "rank=2", "--set", "epochs=2", "--set", "threads=1"]


def test_a_run_is_trained_evaluated_and_used(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = treefold("train", data, "--out", run, *SMALL, "--baselines")
    assert done.returncode == 0, done.stderr
    finished = re.findall(r"^epoch +(\d+)  loss", done.stderr, re.MULTILINE)  # a slow machine prints more lines
    assert finished == ["1", "2"] and "accuracy on the test set: " in done.stdout
    assert all(name in done.stdout for name in ("majority class", "bag of nodes", "bag of parent-child pairs"))
    measured = json.loads(treefold("evaluate", run, data, "--json").stdout)
    assert f"accuracy on the test set: {measured['accuracy']:.4f}" in done.stdout
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]


def test_settings_come_from_a_file_and_are_changed_one_by_one(data: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[model]\naggregator = "sum"\nstate_size = 3\n[training]\nepochs = 1\n')
    assert (
        treefold(
            "train", data, "--out", tmp_path / "run", "--config", tmp_path / "c.toml", "--set", "seed=7"
        ).returncode
        == 0
    )
    written = (tmp_path / "run" / "config.toml").read_text()
    assert 'aggregator = "sum"' in written and "seed = 7" in written and "epochs = 1" in written


def test_a_recipe_by_name_or_from_a_file_gives_the_settings_that_are_not_given(data: Path, tmp_path: Path) -> None:
    done = treefold("train", data, "--out", tmp_path / "run", "--recipe", "listops", *SMALL, "--set", "batch_size=20")
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "run" / "config.toml").read_text()
    assert all(line in written for line in ('recipe = "listops"', 'cell = "rnn"', "state_size = 3", "beta2 = 0.98"))
    assert re.findall(r"^epoch +(\d+)  stage (\d)  loss", done.stderr, re.MULTILINE) == [("1", "2"), ("2", "3")]
    listed = treefold("recipes")
    assert listed.returncode == 0
    for name in recipe_names():
        assert f"{name}: {read_recipe(name).description}\n" in listed.stdout
        assert f"  reached: {read_recipe(name).reached}\n" in listed.stdout
        assert treefold("recipes", name).stdout == recipe_path(name).read_text(encoding="utf-8")
    (tmp_path / "own.toml").write_text(treefold("recipes", "listops").stdout.replace("0.98", "0.97"))
    again = ["--recipe-file", tmp_path / "own.toml", "--init-from", tmp_path / "run"]
    done = treefold("train", data, "--out", tmp_path / "own", *again, *SMALL, "--set", "batch_size=20")
    assert done.returncode == 0, done.stderr
    assert "beta2 = 0.97" in (tmp_path / "own" / "config.toml").read_text()
    assert json.loads((tmp_path / "own" / "environment.json").read_text())["init_from"]["run"] == str(tmp_path / "run")
    wrong = treefold("recipes", "listop")
    assert wrong.returncode == 2 and "got 'listop' (nearest known: 'listops')" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize("way", ["Ctrl-C", "SIGTERM where Ctrl-C is ignored"])
def test_an_interrupted_run_says_how_to_go_on_and_does(data: Path, tmp_path: Path, way: str) -> None:
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "treefold",
        "train",
        str(data),
        "--out",
        str(run),
        *SMALL,
        "--set",
        "epochs=500",
        "--set",
        "patience=none",
    ]
    ignored = way != "Ctrl-C"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None  # as in scripts, for commands with &
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    if ignored:
        signal.signal(signal.SIGINT, before)
    while not (run / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 130 and "interrupted" in said and "Traceback" not in said
    stopped = read_facts(run / "checkpoint.safetensors")["state"]
    assert json.loads(stopped)["step"] > 0
    config = run / "config.toml"
    config.write_text(config.read_text().replace("epochs = 500", "epochs = 1"))
    done = treefold("train", data, "--out", run, "--resume")
    assert done.returncode == 0, done.stderr


def test_the_display_shows_loss_accuracy_speed_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(display, "err", Console(file=screen, force_terminal=True, width=120, soft_wrap=True))
    monkeypatch.setattr(display, "_SECONDS_BETWEEN_MOVES", 0)
    with display._Display() as shown:
        shown.batch(Progress(epoch=3, batch=1, batches=4, seen=25, loss=2.5, accuracy=0.125))
        shown.batch(Progress(epoch=3, batch=2, batches=4, seen=50, loss=1.25, accuracy=0.5))
        shown.batch(Progress(epoch=3, batch=3, batches=4, seen=75, loss=1.25, accuracy=0.5, stage=2))
        assert shown._bar is not None
        shown._bar.refresh()
    said = screen.getvalue()
    assert "epoch 3, stage 2" in said and "loss 1.250, train 50.0%, " in said and "/s" in said
    assert re.search(r"-:--:--|\d:\d\d:\d\d", said)


def test_without_a_terminal_the_same_stands_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(display, "err", Console(file=screen, soft_wrap=True))
    monkeypatch.setattr(display, "_SECONDS_BETWEEN_LINES", 0)
    with display._Display() as shown:
        shown.batch(Progress(epoch=3, batch=1, batches=4, seen=25, loss=2.5, accuracy=None))
        shown.batch(Progress(epoch=3, batch=2, batches=4, seen=50, loss=1.25, accuracy=0.5))
    first, second = screen.getvalue().splitlines()
    assert first.startswith("epoch 3: batch 1 of 4, loss 2.500, 0/s")
    assert second.startswith("epoch 3: batch 2 of 4, loss 1.250, train 50.0%, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "rnak=3"], "expected a known setting, got 'rnak' (nearest known: 'rank')"),
        (["--set", "rank"], "--set expects key=value, got 'rank'"),
        (["--set", "aggregator=tucker", "--set", "rank=99"], "Tucker expects a rank of at most"),
        (["--config", "absent.toml"], "absent.toml: expected a file that can be read"),
        (["--task", "pair"], "task 'pair' expects a data set of pairs of trees, got one of single trees"),
        (["--task", "sentence"], "task: unknown task 'sentence', expected 'tree', 'pair', 'node', 'regression'"),
        (["--resume"], "expected the directory of a run to resume, got no such directory"),
        (["--resume", "--set", "rank=3"], "--resume continues a run with its own settings"),
        (["--resume", "--recipe", "listops"], "--resume continues a run with its own settings"),
        (["--recipe", "lrt"], "recipe 'lrt' expects the task 'pair', got 'tree'; choose another recipe"),
        (
            ["--recipe", "listop"],
            "expected one of 'auto', 'paper', 'formulas', 'listops', 'lrt', 'operands' or a TOML file, got",
        ),
        (["--recipe-file", "absent.toml"], "absent.toml: expected a file that can be read"),
        (["--recipe", "lrt", "--recipe-file", "x.toml"], "expected --recipe or --recipe-file, got both"),
        (["--init-from", "absent"], "absent: expected the directory of a model or run, got no such directory"),
        (
            ["--set", 'curriculum=[[0, 0.5], ["none", 0.4]]'],
            "training.curriculum: expected shares that add up to 1, got [0.5, 0.4]",
        ),
    ],
)
def test_bad_settings_end_in_one_clear_error(data: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = treefold("train", data, "--out", tmp_path / "run", *arguments)
    assert done.returncode == 2 and message in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()


def test_an_existing_run_is_not_touched(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    done = treefold("train", data, "--out", tmp_path / "run")
    assert done.returncode == 2 and "got one that exists; choose another." in done.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious"]


def test_all_settings_are_listed_without_data() -> None:
    done = treefold("train", "--settings")
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    for row in describe_settings():
        place = f"{row.group}.{row.name}" if row.group else row.name
        assert f"{place} = {row.default} ({row.values}) {row.meaning} When to change it: {row.when}" in words
    assert max(map(len, done.stdout.splitlines())) <= 100
