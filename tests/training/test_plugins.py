"""Aggregators, cells, tasks and heads of a user's own, used by settings, estimators and commands."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import treefold
from treefold import AGGREGATORS, Forest, TreeClassifier
from treefold.cli import app
from treefold.data.dataset import Dataset
from treefold.data.readers import READERS, SUFFIXES
from treefold.errors import ConfigurationError
from treefold.estimators import ESTIMATORS
from treefold.nn.cells import CELLS
from treefold.training import TASKS, load_plugin
from treefold.training.saving import load_model
from treefold.training.settings import ModelSettings, RunSettings

PLUGIN = """
import torch
from torch import nn
from treefold import AGGREGATORS, Sum, TreeRNN, LeafRNN
from treefold.nn.aggregators import Aggregator
from treefold.nn.cells import Cell
from treefold.nn.heads import Head
from treefold.nn.cells import CELLS
from treefold.training.task import TASKS, TreeTask


class Average(Aggregator):
    has_rank = False
    any_arity = True
    equation = "f = U average_j h_j + b"

    def build(self):
        self.weights = nn.Parameter(torch.empty(self.state_size, self.out_size))
        self.label_weights = nn.Parameter(torch.empty(self.label_size or 0, self.out_size))

    def aggregate(self, children, label):
        result = children.mean(1) @ self.weights
        return result if label is None else result + label @ self.label_weights

    def dense(self, arity):
        raise NotImplementedError

    def multiply_adds(self, arity=None):
        return self.weights.numel()

    def decompose(self, tensor):
        raise NotImplementedError

    def reset_balanced(self):
        self.weights.normal_(std=self.state_size**-0.5)
        self.label_weights.normal_(std=max(self.label_size or 0, 1) ** -0.5)

    def kaiming_fans(self):
        return {"weights": self.state_size, "label_weights": self.label_size or 0}


class Gated(Cell):
    def __init__(self, aggregator, *, state_size, arity, rank, label_size, shared, initialisation):
        super().__init__()
        sizes = dict(state_size=state_size, arity=arity, label_size=label_size, shared=shared, initialisation=initialisation)
        self.transition = AGGREGATORS[aggregator](rank=rank, **sizes)
        self.state_size = self.memory_size = state_size
        self.arity, self.label_size = arity, label_size
        self.takes_any_number = self.transition.takes_any_number

    def forward(self, label, children, operator=None):
        z = self.transition(children, label)
        return z.sigmoid() * z.tanh()


class Linear(Head):
    def __init__(self, in_size, outputs):
        super().__init__()
        self.in_size = in_size
        self.scores = nn.Linear(in_size, outputs)

    def forward(self, states):
        return self.scores(states)


class LinearTask(TreeTask):
    name = "linear"

    def head(self, settings, in_size, outputs):
        return Linear(in_size, outputs)


AGGREGATORS["average"] = Average
CELLS["gated"] = (Gated, LeafRNN)
TASKS["linear"] = LinearTask()
"""
TREES = ["(f a b)", "(f b a)", "(g a a)", "(g b b)", "(f (g a b) b)", "(g (f b b) a)"] * 4
Y = ["f", "f", "g", "g", "f", "g"] * 4


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TREEFOLD_PLUGINS", "")
    path = tmp_path / "forms.py"
    path.write_text(PLUGIN)
    yield path
    for registry, name in (
        (AGGREGATORS, "average"),
        (CELLS, "gated"),
        (TASKS, "linear"),
        (ESTIMATORS, "LinearClassifier"),
    ):
        registry.pop(name, None)


def dataset() -> Dataset:
    splits = {"train": np.arange(18), "test": np.arange(18, 24)}
    return Dataset(Forest(TREES), np.array([int(name == "g") for name in Y]), ("f", "g"), splits)


def test_an_estimator_uses_an_aggregator_and_a_cell_of_the_user(plugin: Path, tmp_path: Path) -> None:
    load_plugin(str(plugin))
    model = TreeClassifier(aggregator="average", cell="gated", state_size=6, random_state=0).fit(TREES, Y)
    assert model.score(TREES, Y) == 1.0 and model.saved_.settings.model.rank is None
    cell = model.saved_.model.encoder.cells["up"]
    assert type(cell.get_submodule("cells.0")).__name__ == "Gated"
    model.save(tmp_path / "model")
    assert np.allclose(treefold.load(tmp_path / "model").predict_proba(TREES), model.predict_proba(TREES), atol=1e-6)


def test_an_estimator_uses_a_task_and_a_head_of_the_user(plugin: Path, tmp_path: Path) -> None:
    load_plugin(str(plugin))

    class LinearClassifier(TreeClassifier):
        task = "linear"

    ESTIMATORS["LinearClassifier"] = LinearClassifier
    model = LinearClassifier(state_size=6, random_state=0).fit(TREES, Y)
    assert type(model.saved_.model.head).__name__ == "Linear" and model.score(TREES, Y) == 1.0
    model.save(tmp_path / "model")
    loaded = treefold.load(tmp_path / "model")
    assert type(loaded) is LinearClassifier and loaded.predict(TREES).tolist() == model.predict(TREES).tolist()


def test_a_wide_tree_shares_the_slots_of_a_form_that_takes_any_number(plugin: Path) -> None:
    load_plugin(str(plugin))
    model = TreeClassifier(aggregator="average", cell="rnn", state_size=4, epochs=1)
    model.fit(["(f a a a a a a)", "(f b)", "(f a)", "b"], [0, 1, 0, 1])
    assert model.saved_.settings.model.shared
    assert len(model.predict(["(f a b a b a b a b a b)"])) == 1


def test_commands_take_a_plugin_and_say_so_without_it(plugin: Path, tmp_path: Path) -> None:
    runner, run, data = CliRunner(), str(tmp_path / "run"), str(tmp_path / "data")
    dataset().save(data)
    settings = ["--set", "aggregator=average", "--set", "cell=gated", "--set", "epochs=2", "--task", "linear"]
    missing = runner.invoke(app, ["train", data, "--out", run, *settings])
    assert isinstance(missing.exception, ConfigurationError)
    assert "unknown task 'linear'" in str(missing.exception) and "pass --plugin FILE" in str(missing.exception)
    done = runner.invoke(app, ["train", data, "--out", run, *settings, "--plugin", str(plugin)])
    assert done.exit_code == 0, done.output
    for command in (["evaluate", run, data], ["describe", run]):
        done = runner.invoke(app, [*command, "--plugin", str(plugin)])
        assert done.exit_code == 0, done.output
    assert type(load_model(run).model.head).__name__ == "Linear"


def test_the_workers_of_a_sweep_know_the_plugin(plugin: Path, tmp_path: Path) -> None:
    dataset().save(tmp_path / "data")
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'name = "own"\nseeds = [0]\n[data]\npath = "data"\n[training]\nepochs = 1\n'
        '[[models]]\nkind = "Average"\naggregator = "average"\nstate_size = 3\n'
    )
    command = ["sweep", str(grid), "--out", str(tmp_path / "sweep"), "--workers", "1", "--plugin", str(plugin)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert len((tmp_path / "sweep" / "results.jsonl").read_text().splitlines()) == 1


def test_a_process_that_is_started_later_knows_the_plugin(plugin: Path) -> None:
    load_plugin(str(plugin))
    assert os.environ["TREEFOLD_PLUGINS"] == str(plugin.resolve())
    code = "from treefold.training.settings import ModelSettings; ModelSettings.of({'aggregator': 'average'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # as in a worker of a sweep


def test_an_unknown_part_names_the_nearest_and_the_remedy() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RunSettings.of({"model": {"aggregator": "mine"}}, "run/config.toml")
    assert str(caught.value) == (
        f"run/config.toml: model.aggregator: unknown aggregator 'mine', expected {', '.join(map(repr, AGGREGATORS))}; "
        f"if it is your own, pass --plugin FILE (or import it before load)."
    )
    with pytest.raises(ConfigurationError, match=r"cell: unknown cell 'lsmt' \(nearest known: 'lstm'\)"):
        ModelSettings.of({"cell": "lsmt"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.py", None, "cannot be loaded: FileNotFoundError"),
        ("bad.py", "1 +", "cannot be loaded: SyntaxError"),
        ("raises.py", "raise RuntimeError('no')", "cannot be loaded: RuntimeError: no; give a Python file"),
        ("ends.py", "import sys; sys.exit(0)", "cannot be loaded: SystemExit: 0; give a Python file"),
        (
            "own.py",
            "class Stop(BaseException): pass\nraise Stop('no')",
            "cannot be loaded: Stop: no; give a Python file",
        ),
        ("no_such_module_anywhere", None, "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load_plugin(name)


@pytest.fixture
def registries() -> Iterator[None]:
    registries: tuple[dict[str, Any], ...] = (AGGREGATORS, CELLS, TASKS, READERS, SUFFIXES)
    before = [(registry, dict(registry)) for registry in registries]
    yield
    for registry, parts in before:
        registry.clear()
        registry.update(parts)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "AGGREGATORS['mine'] = 3",
            r"AGGREGATORS\['mine'\] expects a subclass of Aggregator without .*, got 3; correct it",
        ),
        (
            "AGGREGATORS['mine'] = lambda: 3",
            r"AGGREGATORS\['mine'\] expects a subclass of Aggregator .*, got <function",
        ),
        (
            "AGGREGATORS['mine'] = Aggregator",
            r"expects .* without abstract methods, got <class '.*Aggregator'>; correct it",
        ),
        ("AGGREGATORS[3] = Sum", "AGGREGATORS expects text as names, got 3; write it in quotes"),
        ("AGGREGATORS.clear()", "AGGREGATORS expects at least one part, got none; add parts, and remove none"),
        ("CELLS['mine'] = 3", r"CELLS\['mine'\] expects a pair of subclasses of Cell without abstract methods, got 3"),
        ("CELLS['mine'] = (TreeRNN, 3)", r"CELLS\['mine'\] expects a pair of subclasses of Cell .*, 3\); correct it"),
        (
            "TASKS['mine'] = 3",
            r"TASKS\['mine'\] expects an object of a subclass of Task, with a name, got 3; correct it",
        ),
        ("TASKS['mine'] = TreeTask", r"TASKS\['mine'\] expects an object of a subclass of Task, .*, got <class"),
        ("READERS['mine'] = 3", r"READERS\['mine'\] expects a function that yields records, got 3; correct it"),
        ("SUFFIXES['.mine'] = 'mine'", r"SUFFIXES\['.mine'\] expects the name of a reader, got 'mine'; correct it"),
    ],
)
def test_a_registry_with_a_wrong_part_names_plugin_part_and_remedy(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "wrong.py").write_text(f"{PLUGIN}\nfrom treefold.data.readers import READERS, SUFFIXES\n{line}")
    with pytest.raises(ConfigurationError, match=rf"the plugin '.*wrong.py' cannot be loaded: .*{message}"):
        load_plugin(str(tmp_path / "wrong.py"))


def test_a_wrong_part_that_no_plugin_has_added_is_refused_when_parts_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(AGGREGATORS, "mine", 3)
    with pytest.raises(ConfigurationError, match=r"AGGREGATORS\['mine'\] expects a subclass of Aggregator"):
        TreeClassifier(aggregator="mine").fit(TREES, Y)


def test_what_a_part_of_the_user_raises_while_a_model_is_made_is_an_error_of_the_part(plugin: Path) -> None:
    plugin.write_text(
        PLUGIN.replace("    def build(self):", "    def build(self):\n        raise LookupError('no weights')")
    )
    load_plugin(str(plugin))
    message = "expected a model with your Average, got LookupError: no weights; correct their code"
    with pytest.raises(ConfigurationError, match=message):
        TreeClassifier(aggregator="average+sum").fit(TREES, Y)


def test_a_plugin_that_is_a_pipe_or_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    for name in ("pipe.py", "folder.py"):
        with pytest.raises(
            ConfigurationError, match="cannot be loaded: ValueError: it is a folder, pipe or device; give a"
        ):
            load_plugin(str(tmp_path / name))


def test_ctrl_c_while_a_plugin_is_loaded_is_no_error_of_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_plugin(str(tmp_path / "slow.py"))


def test_settings_are_read_without_torch() -> None:
    code = "import sys; from treefold.training.settings import RunSettings; RunSettings(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
