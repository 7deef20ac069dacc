"""The command `serve`: what it refuses, what it says, and how `predict` asks it."""

import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import runs
from tests.cli.test_model import Treefold, treefold
from tests.service.running import running
from treefold import Forest
from treefold.data.convert import Conversion, convert
from treefold.data.dataset import Dataset
from treefold.service.models import open_models
from treefold.training import train
from treefold.training.settings import RunSettings

__all__ = ["treefold"]


@pytest.fixture(autouse=True)
def without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREEFOLD_API_KEY", raising=False)


def test_help_teaches_with_an_example(treefold: Treefold) -> None:
    done = treefold("serve", "--help")
    assert done.code == 0 and "Example: treefold serve runs/hosvd" in done.stdout and "curl" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--host", "0.0.0.0"],
            "--host expects this machine alone, 127.0.0.1, as there is no key, got '0.0.0.0'; set a key",
        ),
        (["--host", "0.0.0.0", "--api-key", "short"], "--api-key expects at least 8 printable ASCII characters"),
        (["no/such/run"], "no/such/run: expected the directory of a model or run, got no such directory"),
        (["--data", "no/such/data"], "no/such/data"),
    ],
)
def test_what_cannot_be_served_is_refused(treefold: Treefold, options: list[str], said: str) -> None:
    done = treefold("serve", runs.listops().folder, *options, "--port", "0")
    assert done.code == 2 and said in done.said


def test_a_port_in_use_is_told(treefold: Treefold) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        done = treefold("serve", runs.listops().folder, "--port", place.getsockname()[1])
    assert done.code == 2 and "which is in use; end the other program, or choose another port with --port." in done.said


def test_a_data_set_that_fits_no_model_is_told(treefold: Treefold) -> None:
    done = treefold("serve", runs.listops().folder, "--data", runs.lrt().data_folder)
    assert done.code == 2 and "fits no model: task 'tree' expects a data set of single trees, got" in done.said


def test_a_missing_package_is_told(treefold: Treefold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = treefold("serve", runs.listops().folder)
    assert (
        done.code == 2
        and "expected the package uvicorn, got none; install it with `pip install 'treefold[serve]'`" in done.said
    )


def test_a_run_that_is_being_trained_is_served_and_said_so(
    treefold: Treefold,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fcntl

    seen: dict[str, Any] = {}
    monkeypatch.setattr(
        "treefold.service.workers.serve", lambda models, place, limits, **options: seen.update(options, models=models)
    )
    shutil.copytree(runs.listops().folder, tmp_path / "run")
    handle = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        done = treefold(
            *("serve", tmp_path / "run", runs.lrt().folder, "--data", runs.lrt().data_folder, "--port", "0"),
            *("--api-key", "open sesame", "--workers", "3"),
        )
    finally:
        os.close(handle)
    assert done.code == 0 and "run: tree; still being trained; this is its model as of epoch 2" in done.said
    assert f"lrt: pair; examples of {runs.lrt().data_folder} open http://127.0.0.1:" in done.said
    assert seen["api_key"] == "open sesame" and seen["workers"] == 3 and list(seen["data"]) == ["lrt"]


def test_predict_asks_a_service(treefold: Treefold, tmp_path: Path) -> None:
    run = runs.listops()
    file = tmp_path / "trees.txt"
    file.write_text("\n".join(map(str, run.data.forest[:7])) + "\n")
    with running(open_models([run.folder, runs.lrt().folder]), api_key="open sesame") as service:
        url = ("--url", service.url, "--api-key", "open sesame")
        assert treefold("predict", file, *url).lines == treefold("predict", run.folder, file).lines
        typed = treefold("predict", *url, stdin="(MAX 1 2)\n")
        assert typed.lines == treefold("predict", run.folder, stdin="(MAX 1 2)\n").lines
        pairs = '{"left": "(and a b)", "right": "b"}\n'
        asked = treefold("predict", *url, "--model", "lrt", stdin=pairs)
        assert asked.lines == treefold("predict", runs.lrt().folder, stdin=pairs).lines
        file.write_text("(MAX 1 2)\n(MAX 1 zebra)\n(MIN 1 2)\n")
        bad = treefold("predict", file, *url, "--unknown", "error")
        assert bad.code == 2 and f"{file}, line 2: " in bad.said and "got 'zebra'" in bad.said and len(bad.lines) == 1
        skipped = treefold("predict", file, *url, "--unknown", "error", "--skip-bad")
        assert skipped.code == 0 and len(skipped.lines) == 2 and "left out 1, answered 2" in skipped.said
        assert "expected the key of the service" in treefold("predict", file, "--url", service.url).said
        assert "got 'lrtt' (nearest known: 'lrt')" in treefold("predict", file, *url, "--model", "lrtt").said
    done = treefold("predict", file, *url)
    assert done.code == 2 and "expected a service at http://127.0.0.1" in done.said
    assert "--url expects a file of trees at most, got --explain" in treefold("predict", *url, "--explain").said
    assert "predict expects the directory of a run, got none" in treefold("predict").said


def test_files_for_a_service_are_read_as_the_training_data(treefold: Treefold, tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.xml").write_text(f"<a x='{'one' if number % 2 else 'two'}'><b/><b/><b/></a>")
    labels = tmp_path / "labels"
    labels.write_text("\n".join(str(number % 2) for number in range(8)) + "\n")
    how = Conversion(options={"attributes": "true"}, label_file=labels, max_arity=2, wide="group", fractions=(1, 0, 0))
    data = convert(sorted(tmp_path.glob("*.xml")), how)
    settings = RunSettings.of({"recipe": "paper", "model": {"state_size": 3}, "training": {"epochs": 1}})
    train(data, tmp_path / "run", settings)
    with running(open_models([tmp_path / "run"])) as service:
        asked = treefold("predict", tmp_path / "0.xml", "--url", service.url)
        assert asked.lines == treefold("predict", tmp_path / "run", tmp_path / "0.xml").lines
        assert Forest([asked.lines[0]["tree"]])[0] == data.forest[0]


def test_each_model_shows_the_data_that_it_can_be_evaluated_on(
    treefold: Treefold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr("treefold.service.workers.serve", lambda models, place, limits, **options: seen.update(options))
    listops, numbers = runs.listops(), runs.numbers()
    other = Dataset.from_labels(["(MAX 1 2)", "(MIN 1 2)"], ["yes", "no"], {"test": np.arange(2)}, {})
    other.save(tmp_path / "other")
    data = [part for folder in (numbers.data_folder, listops.data_folder) for part in ("--data", folder)]
    done = treefold("serve", listops.folder, numbers.folder, *data, "--port", "0")
    assert done.code == 0
    assert seen["data"]["listops"].classes == listops.data.classes
    assert seen["data"]["numbers"].classes == numbers.data.classes
    refused = treefold("serve", listops.folder, numbers.folder, "--data", tmp_path / "other")
    assert refused.code == 2 and "fits no model: expected the model's 10 classes, got 'no'" in refused.said


def test_a_note_of_the_service_is_printed_once(treefold: Treefold) -> None:
    with running(open_models([runs.listops().folder])) as service:
        asked = treefold("predict", "--url", service.url, stdin="(MAX 1 zebra)\n(MAX 1 2)\n(MIN 3 lion)\n")
    assert (
        "note: 2 of 3 answers have notes; the first: the model does not know 1 label (1 of 3 nodes); it counts as"
        in asked.said
    )
    assert len(asked.lines) == 3 and "notes" not in asked.lines[0]
