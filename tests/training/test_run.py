import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import runs
from treefold import Forest
from treefold.data.dataset import Dataset
from treefold.data.generators import make_listops
from treefold.errors import ConfigurationError, FileError, ModelFileError, TrainingError, TreefoldError
from treefold.kernels.optimisers import FlatAdadelta
from treefold.training import Examples, Progress, fit, resume, train
from treefold.training.build import build_model
from treefold.training.saving import load_model, read_tensors, write_tensors
from treefold.training.settings import ModelSettings, RunSettings, TrainingSettings

DATA = make_listops(400, seed=0)
SETTINGS = RunSettings(
    recipe="paper",
    model=ModelSettings(state_size=4, rank=2, dropout=0.1),
    training=TrainingSettings(epochs=3, batch_size=20, patience=2, threads=1, checkpoint_minutes=0.0005),
)


class StopError(Exception):
    pass


class StopAt:
    def __init__(self, batch: int) -> None:
        self.left = batch

    def batch(self, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            raise StopError

    def epoch(self, metrics: dict[str, object]) -> None:
        pass


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def metrics(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "second" not in key} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(DATA, folder, SETTINGS)
    return folder


def test_a_run_directory_has_everything_and_loads(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    assert names == {
        "checkpoint.safetensors",
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "model.safetensors",
        "vocabulary.json",
    }
    saved = load_model(whole)
    assert saved.classes == DATA.classes and saved.settings.model.aggregator == "tucker" and not saved.model.training
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["torch"] == torch.__version__ and environment["made"]["task"] == "listops"
    assert [line["epoch"] for line in metrics(whole)] == [1, 2, 3]


@pytest.mark.parametrize("batch", [1, 7, 17, 18, 30, 50])
def test_a_run_stopped_anywhere_ends_as_if_it_had_not_been(whole: Path, tmp_path: Path, batch: int) -> None:
    folder = tmp_path / "run"
    with pytest.raises(StopError):
        train(DATA, folder, SETTINGS, reporter=StopAt(batch))
    load_model(folder)
    resume(DATA, folder)
    assert weights(folder) == weights(whole) and metrics(folder) == metrics(whole)


NEW = RunSettings.of(
    {
        "recipe": "paper",
        "model": {"state_size": 4, "rank": 2, "dropout": 0.1},
        "training": {
            "curriculum": [[3, 0.4], [8, 0.35], ["none", 0.25]],
            "optimiser": "adamw",
            "weight_decay": 0.1,
            "beta2": 0.98,
            "schedule": "cosine",
            "stage_schedule": "each",
            "state_noise": 0.2,
            "state_noise_end": 0.1,
            "epochs": 3,
            "batch_size": 20,
            "patience": 2,
            "threads": 1,
            "checkpoint_minutes": 0.0005,
        },
    }
)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "staged"
    train(DATA, folder, NEW)
    return folder


@pytest.mark.parametrize("batch", [1, 17, 22, 40, 50])
def test_a_run_with_curriculum_adamw_and_noise_resumes_bit_for_bit(staged: Path, tmp_path: Path, batch: int) -> None:
    folder = tmp_path / "run"
    with pytest.raises(StopError):
        train(DATA, folder, NEW, reporter=StopAt(batch))
    resume(DATA, folder)
    assert weights(folder) == weights(staged) and metrics(folder) == metrics(staged)
    assert [line["stage"] for line in metrics(staged)] == [1, 2, 3]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_of_the_new_forms_repeats_and_resumes_bit_for_bit(tmp_path: Path, threads: int) -> None:
    model = {"cell": "rnn", "aggregator": "complex+sum", "bound": "disc", "rank": 2, "shared": True, "cell_hidden": 5}
    values = NEW.model_dump()
    values["model"] |= {**model, "dropout": 0.0}
    values["training"] |= {"threads": threads, "epochs": 2, "batch_size": 200}
    settings = RunSettings.of(values)
    for name in ("one", "two"):
        train(DATA, tmp_path / name, settings)
    with pytest.raises(StopError):
        train(DATA, tmp_path / "three", settings, reporter=StopAt(2))
    resume(DATA, tmp_path / "three")
    one, two, three = (weights(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two == three
    assert load_model(tmp_path / "one").settings.model.aggregator == "complex+sum"


def test_a_run_starts_from_another_and_is_resumed_without_it(whole: Path, tmp_path: Path) -> None:
    other, begun, straight = (tmp_path / name for name in ("other", "begun", "straight"))
    shutil.copytree(whole, other)
    train(DATA, straight, SETTINGS, init_from=other)
    with pytest.raises(StopError):
        train(DATA, begun, SETTINGS, init_from=other, reporter=StopAt(1))
    start = load_model(begun).model.state_dict()  # those of the beginning: no epoch is done
    expected = load_model(whole).model.state_dict()
    assert start.keys() == expected.keys() and all(torch.equal(start[name], expected[name]) for name in start)
    facts = json.loads((begun / "environment.json").read_text())["init_from"]
    assert facts == {"run": str(other), "sha256": hashlib.sha256(weights(whole)).hexdigest()}
    assert f"training started with the weights of {other}" in load_model(begun).reasons
    shutil.rmtree(other)
    resume(DATA, begun)
    assert weights(begun) == weights(straight) and metrics(begun) == metrics(straight)
    assert metrics(straight)[0]["loss"] != metrics(whole)[0]["loss"]
    assert "init_from" not in json.loads((whole / "environment.json").read_text())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"state_size": 5}}, "state_size is 4 there and 5 here"),
        ({"model": {"hidden": [20, 7]}}, "hidden number 2 is 20 there and 7 here"),
        ({"model": {"cell": "rnn"}}, "cell is 'lstm' there and 'rnn' here"),
        ({"task": "node"}, "task is 'tree' there and 'node' here"),
        ("operators", "operators number 1 is 'MAX' there and 'MED' here"),
        ("classes", "classes number 10 is '9' there and 'ten' here"),
        ("fewer", "classes number 10 is '9' there and none here"),
    ],
)
def test_a_run_that_is_not_alike_cannot_be_the_start(
    whole: Path, tmp_path: Path, changes: dict[str, object] | str, message: str
) -> None:
    data, values = DATA, SETTINGS.model_dump(exclude_unset=True)
    if isinstance(changes, dict):
        values |= {name: {**values[name], **each} if isinstance(each, dict) else each for name, each in changes.items()}
    elif changes == "operators":
        texts = [str(tree).replace("MAX", "MED") for tree in DATA.forest]
        data = Dataset(Forest(texts), DATA.targets, DATA.classes, DATA.splits)
    else:
        names = (*DATA.classes[:9], "ten") if changes == "classes" else DATA.classes[:9]
        data = Dataset(DATA.forest, np.minimum(DATA.targets, len(names) - 1), names, DATA.splits)
    with pytest.raises(
        ConfigurationError, match=f"init_from expects a run with the same .*, but {whole} differs: {message}; change"
    ):
        train(data, tmp_path / "run", RunSettings.of(values), init_from=whole)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ModelFileError, match="expected the directory of a model or run, got no such directory"):
        train(DATA, tmp_path / "run", SETTINGS, init_from=tmp_path / "absent")


def test_numbers_are_predicted_in_the_units_of_the_run_that_they_started_from(tmp_path: Path) -> None:
    values = {"task": "regression", "model": {"state_size": 3}, "training": {"epochs": 1, "threads": 1}}
    settings = RunSettings.of({"recipe": "paper", **values})
    first, _ = train(DATA, tmp_path / "first", settings)
    fewer = Dataset(DATA.forest, DATA.targets, DATA.classes, {**DATA.splits, "train": DATA.splits["train"][:100]})
    alone, _ = train(fewer, tmp_path / "alone", settings)
    second, _ = train(fewer, tmp_path / "second", settings, init_from=tmp_path / "first")
    assert second.units == first.units != alone.units
    assert load_model(tmp_path / "second").units == first.units


@pytest.mark.parametrize("step", [1, 20, 40])
def test_ctrl_c_in_the_middle_of_a_step_waits_for_its_end(
    whole: Path, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the checkpoint would have the weights after the step and the count of batches before it."""
    plain, taken = FlatAdadelta.step, 0

    def interrupted(optimiser: FlatAdadelta) -> None:
        nonlocal taken
        plain(optimiser)
        taken += 1
        if taken == step:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(FlatAdadelta, "step", interrupted)
    interrupted.hooked = True  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        train(DATA, tmp_path / "run", SETTINGS)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    resume(DATA, tmp_path / "run")
    assert weights(tmp_path / "run") == weights(whole) and metrics(tmp_path / "run") == metrics(whole)


def test_a_killed_run_is_never_damaged_and_ends_with_the_same_weights(whole: Path, tmp_path: Path) -> None:
    """Twenty times kill -9 at a random moment, each time going on from where the last left off, over several runs."""
    DATA.save(tmp_path / "data")
    (tmp_path / "config.toml").write_text((whole / "config.toml").read_text())
    rng = random.Random(0)
    script = tmp_path / "go.py"
    script.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from treefold.data.dataset import Dataset\n"
        "from treefold.training.settings import RunSettings, read_toml\n"
        "from treefold.training import Progress, resume, train\n"
        "data = Dataset.open(sys.argv[1]); run = Path(sys.argv[2])\n"
        "class Slow:\n"
        "    def batch(self, *a): time.sleep(0.03)\n"
        "    def epoch(self, m): pass\n"
        "print('ready', flush=True)\n"
        "if (run / 'checkpoint.safetensors').exists(): resume(data, run, reporter=Slow())\n"
        "else:\n"
        "    import shutil; shutil.rmtree(run, ignore_errors=True)\n"
        "    train(data, run, RunSettings.of(read_toml(Path(sys.argv[3]))), reporter=Slow())\n"
    )
    kills = finished = 0
    while kills < 20 or not finished:
        run = tmp_path / f"run{finished}"
        command = [sys.executable, str(script), str(tmp_path / "data"), str(run), str(tmp_path / "config.toml")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        if kills < 20:
            time.sleep(rng.random() * 1.5)
            process.send_signal(signal.SIGKILL)
        _, said = process.communicate(timeout=600)
        if process.returncode == 0:
            finished += 1
            assert weights(run) == weights(whole)
        else:
            assert process.returncode == -signal.SIGKILL, said
            kills += 1
            if (run / "checkpoint.safetensors").exists():
                load_model(run)
    assert kills == 20


def test_nothing_is_overwritten_and_nothing_is_resumed_that_is_no_run(whole: Path, tmp_path: Path) -> None:
    before = weights(whole)
    with pytest.raises(FileError, match="got one that exists; choose another, or go on there with --resume"):
        train(DATA, whole, SETTINGS)
    assert weights(whole) == before
    with pytest.raises(ModelFileError, match="expected the directory of a run to resume, got no such directory"):
        resume(DATA, tmp_path / "absent")
    with pytest.raises(TrainingError, match="expected the data set that the run began with, got a different one"):
        resume(make_listops(50, seed=3), whole)


def test_data_that_cannot_be_learned_from_are_refused(tmp_path: Path) -> None:
    forest = Forest(["(f a)", "(f b)"])
    single = Dataset(forest, np.array([0, 0]), ("only",), {"train": np.array([0, 1])})
    with pytest.raises(TrainingError, match=r"at least two classes, got \['only'\]; there is nothing to learn"):
        train(single, tmp_path / "run", RunSettings())
    unsplit = Dataset(forest, np.array([0, 1]), ("a", "b"), {"test": np.array([0, 1])})
    with pytest.raises(TrainingError, match=r"a data set with a train split, got \['test'\]"):
        train(unsplit, tmp_path / "run", RunSettings())
    with pytest.raises(
        ConfigurationError, match="task 'pair' expects a data set of pairs of trees, got one of single trees"
    ):
        train(DATA, tmp_path / "run", RunSettings(task="pair"))
    assert not (tmp_path / "run").exists()


def test_a_damaged_or_foreign_run_is_refused_in_words(whole: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for path in whole.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return folder

    cut = copy("cut")
    (cut / "model.safetensors").write_bytes(weights(cut)[:-100])
    with pytest.raises(ModelFileError, match=r"expected a whole safetensors file, got .* the file is damaged"):
        load_model(cut)
    old = copy("old")
    facts = json.loads((old / "vocabulary.json").read_text())
    (old / "vocabulary.json").write_text(json.dumps({**facts, "version": 0}))
    with pytest.raises(
        ModelFileError, match="expected a treefold model of version 1, got version 0; load it with the treefold that"
    ):
        load_model(old)
    mixed = copy("mixed")
    (mixed / "config.toml").write_text((mixed / "config.toml").read_text().replace("state_size = 4", "state_size = 5"))
    with pytest.raises(ModelFileError, match=r"expected the weights of the model in config.toml, got different"):
        load_model(mixed)
    with pytest.raises(ModelFileError, match=r"expected the directory of a model or run, got one without config.toml"):
        load_model(tmp_path)
    DATA.save(tmp_path / "data")
    with pytest.raises(ModelFileError, match="expected the directory of a model or run, got a data set; train a model"):
        load_model(tmp_path / "data")
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(ModelFileError, match="got a sweep; name one of the runs in its folder runs"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('labels = "thermometer"', "", "expected the setting model.labels, got none"),
        ('aggregator = "tucker"', "", "expected the setting model.aggregator, got none"),
        ('aggregator = "tucker"', 'aggregator = "tuker"', "model.aggregator"),
        ("state_size = 4", f"state_size = {10**30}", "expects weights that fit into memory"),
        ("arity = 5", f"arity = {2**40}", "expects weights that fit into memory"),
        ("seed = 0", f"seed = {2**63}", "training.seed"),
        ("label_size = 10", "label_size = -1", "model.label_size"),
    ],
)
def test_a_wrong_config_is_an_error_that_names_the_file(tmp_path: Path, old: str, new: str, said: str) -> None:
    """Without ``labels``, a thermometer was taken for one-hot vectors: other answers without a word."""
    folder = tmp_path / "run"
    shutil.copytree(runs.listops().folder, folder)
    text = (folder / "config.toml").read_text()
    assert old + "\n" in text
    (folder / "config.toml").write_text(text.replace(old + "\n", new + "\n"))
    with pytest.raises(TreefoldError, match=f"config.toml: .*{re.escape(said)}"):
        load_model(folder)


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    with pytest.raises(StopError):
        train(DATA, folder, SETTINGS, reporter=StopAt(5))
    good = (folder / "checkpoint.safetensors").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(FileError, match="No space left"):
            resume(DATA, folder)
    assert (folder / "checkpoint.safetensors").read_bytes() == good
    resume(DATA, folder)


def test_a_checkpoint_with_parameters_in_another_order_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers would fit in length, and go to the wrong places."""
    folder = tmp_path / "run"
    with pytest.raises(StopError):
        train(DATA, folder, SETTINGS, reporter=StopAt(5))
    good = (folder / "checkpoint.safetensors").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("treefold.nn.model.TreeModel.layouts", lambda model: [])
        # Without constants between them there may be fewer numbers; either way it is refused.
        with pytest.raises(ModelFileError, match=r"expected (the weights and the optimiser|parameters in the order)"):
            resume(DATA, folder)
    altered = good.replace(b'"order":"', b'"order":"9', 1)
    size = int.from_bytes(good[:8], "little") + 1
    (folder / "checkpoint.safetensors").write_bytes(size.to_bytes(8, "little") + altered[8:])
    with pytest.raises(ModelFileError, match="expected parameters in the order of this version of treefold"):
        resume(DATA, folder)
    (folder / "checkpoint.safetensors").write_bytes(good)
    resume(DATA, folder)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run in its second epoch, with the checkpoint after the first."""
    folder = tmp_path / "begun"
    with pytest.raises(StopError):
        train(DATA, folder, SETTINGS, reporter=StopAt(20))
    return folder


def alter(folder: Path, change: Callable[[dict[str, Tensor], dict[str, str]], None]) -> None:
    path = folder / "checkpoint.safetensors"
    tensors, header = read_tensors(path), path.read_bytes()
    facts = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    change(tensors, facts)
    write_tensors(path, tensors, facts)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, facts: tensors.update({"optimiser.square_avg": torch.zeros(1)}),  # once read beyond its end
        lambda tensors, facts: tensors.update(best=tensors["best"][:-1]),
        lambda tensors, facts: tensors.update(random=torch.zeros(3, dtype=torch.uint8)),
        lambda tensors, facts: tensors.pop("best"),
        lambda tensors, facts: tensors.pop("optimiser.acc_delta"),
        lambda tensors, facts: tensors["values"].fill_(torch.nan),
        lambda tensors, facts: facts.update(state="{"),
        lambda tensors, facts: facts.update(state="[]"),
        lambda tensors, facts: facts.update(state=json.dumps({"epoch": "first"})),
        lambda tensors, facts: facts.update(state=json.dumps({**json.loads(facts["state"]), "epoch": -1})),
        lambda tensors, facts: facts.update(state=json.dumps({**json.loads(facts["state"]), "restarts": 10**30})),
        lambda tensors, facts: facts.pop("state"),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_words(
    begun: Path, change: Callable[[dict[str, Tensor], dict[str, str]], None]
) -> None:
    alter(begun, change)
    with pytest.raises(ModelFileError, match=r"checkpoint.safetensors: expected .*, got .*; take a copy"):
        resume(DATA, begun)


@pytest.mark.parametrize("text", ["", "[]", "{}", "\ud800"])
def test_a_damaged_environment_is_refused_in_words(begun: Path, text: str) -> None:
    (begun / "environment.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(
        ModelFileError,
        match=r"environment.json: expected (the file that `train` wrote|a JSON file, got .*; take a copy)",
    ):
        resume(DATA, begun)


def test_the_state_of_another_optimiser_is_refused(begun: Path) -> None:
    config = begun / "config.toml"
    config.write_text(config.read_text().replace("adadelta", "adamw"))
    with pytest.raises(ModelFileError, match=r"expected the weights and the optimiser of the run in config.toml"):
        resume(DATA, begun)


@pytest.mark.parametrize(
    ("rate", "problem"), [(8e38, "the validation loss became nan"), (1e45, "weights became NaN or infinite")]
)
def test_weights_that_diverge_in_the_last_step_of_an_epoch_are_not_kept(
    tmp_path: Path, rate: float, problem: str
) -> None:
    """The loss of a step is that before it, and finite."""
    wild = TrainingSettings(epochs=1, batch_size=1000, learning_rate=rate, threads=1)
    settings = RunSettings(recipe="paper", model=ModelSettings(state_size=3, aggregator="sum"), training=wild)
    halved = r"also after the learning rate was halved 3 times, to [\de+.]+; lower learning_rate .*, set clip=1"
    with pytest.raises(
        TrainingError, match=f"epoch 1, batch 2: training diverged: {problem}, {halved}, .* checkpoint is in"
    ):
        train(DATA, tmp_path / "run", settings)
    kept = read_tensors(tmp_path / "run" / "checkpoint.safetensors")["values"]
    assert kept.isfinite().all() and float(kept.abs().max()) < 10
    model = load_model(tmp_path / "run").model  # that of the beginning
    with pytest.raises(TrainingError, match=problem):
        fit(model, Examples.of(DATA, "tree"), wild, train=DATA.splits["train"], validation=DATA.splits["validation"])


def test_a_model_with_weights_that_are_no_numbers_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    tensors = read_tensors(folder / "model.safetensors")
    name = min(tensors)
    for wrong in (tensors[name] * torch.nan, tensors[name].long()):
        write_tensors(folder / "model.safetensors", {**tensors, name: wrong})
        with pytest.raises(
            ModelFileError, match=f"model.safetensors: expected finite floating-point numbers in '{name}'"
        ):
            load_model(folder)


def test_a_weight_that_changed_in_the_file_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(whole, folder)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(
        ModelFileError, match=r"model.safetensors: .* got numbers with a wrong checksum; the file is damaged"
    ):
        load_model(folder)


def test_a_run_that_could_not_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "empty").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        for name in ("new", "empty"):
            with pytest.raises(FileError, match="No space left"):
                train(DATA, tmp_path / name, SETTINGS)
    assert not (tmp_path / "new").exists() and list((tmp_path / "empty").iterdir()) == []
    (tmp_path / "empty" / "x").touch()
    with pytest.raises(FileError, match=r"got one that exists; choose another\.$"):  # there is nothing to resume
        train(DATA, tmp_path / "empty", SETTINGS)
    with pytest.raises(
        ModelFileError, match="got one without a checkpoint; remove it, and start the run without --resume"
    ):
        resume(DATA, tmp_path / "empty")


def test_a_run_that_ended_while_another_training_began_stays(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*arguments: object) -> object:
        shutil.copytree(whole, tmp_path / "run")
        return build_model(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("treefold.training.run.build_model", slow)
    with pytest.raises(FileError, match="got one that exists; choose another, or go on there with --resume"):
        train(DATA, tmp_path / "run", SETTINGS)
    for path in whole.iterdir():
        assert (tmp_path / "run" / path.name).read_bytes() == path.read_bytes()


def test_a_run_has_one_process_at_a_time(begun: Path) -> None:
    handle = os.open(begun, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    (begun / ".writing.x").touch()
    with pytest.raises(FileError, match="another process is working on this run; wait until it has ended"):
        resume(DATA, begun)
    assert (begun / ".writing.x").exists()  # what the other one is writing
    os.close(handle)
    resume(DATA, begun)


@pytest.mark.parametrize("task", ["regression", "pair-regression"])
def test_numbers_are_standardised_by_the_train_split_and_a_resumed_run_has_the_same_weights(
    task: str, tmp_path: Path
) -> None:
    forest = DATA.forest[:120]
    pairs = task.startswith("pair")
    count = 60 if pairs else 120
    targets = np.arange(count) % 10
    targets[3] = -1  # unknown
    targets[:3] = targets[-10:] = 9
    splits = {"train": np.arange(40), "validation": np.arange(40, 50), "test": np.arange(50, count)}
    data = Dataset(forest, targets, tuple(str(1000 + 3.5 * each) for each in range(10)), splits, pairs=pairs)
    settings = SETTINGS.model_copy(update={"task": task})
    saved, _ = train(data, tmp_path / "whole", settings)
    seen = 1000 + 3.5 * np.delete(targets[:40], 3)
    expected = ([seen.min()], [(seen.max() - seen.min()) / 4]) if pairs else ([seen.mean()], [seen.std()])
    assert list(map(list, saved.units)) == [pytest.approx(each) for each in expected]
    assert load_model(tmp_path / "whole").units == saved.units
    with pytest.raises(StopError):
        train(data, tmp_path / "broken", settings, reporter=StopAt(3))
    resume(data, tmp_path / "broken")
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")
    assert metrics(tmp_path / "broken") == metrics(tmp_path / "whole")


def test_a_run_without_two_numbers_or_without_any_is_refused(tmp_path: Path) -> None:
    forest, splits = Forest(["a", "b"] * 4), {"train": np.arange(4)}
    settings = SETTINGS.model_copy(update={"task": "pair-regression"})
    same = Dataset(forest, np.zeros(4, np.int64), ("2.5",), splits, pairs=True)
    with pytest.raises(TrainingError, match=r"expects at least two different numbers, got 2\.5 for all pairs"):
        train(same, tmp_path / "run", settings)
    none = Dataset(forest, np.full(4, -1), ("2.5",), splits, pairs=True)
    with pytest.raises(TrainingError, match="at least one example with a known label, got none"):
        train(none, tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "units",
    [
        [],
        {"offset": [1.0]},
        {"offset": [1.0], "scale": [0.0]},
        {"offset": [1.0], "scale": [1.0, 2.0]},
        {"offset": ["1"], "scale": [1.0]},
        {"offset": [1.0], "scale": [float("inf")]},
        {"offset": [1.0], "scale": [True]},
        {"offset": 1.0, "scale": 1.0},
    ],
)
def test_damaged_units_are_refused_in_words(units: object, tmp_path: Path) -> None:
    forest, targets = Forest(["a", "b"] * 4), np.arange(8) % 3
    data = Dataset(forest, targets, ("1", "2", "4"), {"train": np.arange(8)})
    train(data, tmp_path, SETTINGS.model_copy(update={"task": "regression"}))
    facts = json.loads((tmp_path / "vocabulary.json").read_text())
    (tmp_path / "vocabulary.json").write_text(json.dumps({**facts, "units": units}))
    with pytest.raises(ModelFileError, match="expected 'units' to have an offset and a scale above zero for each of 1"):
        load_model(tmp_path)
