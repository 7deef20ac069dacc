"""Runs: training whose every step is kept in a directory, and goes on there after any end."""

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from treefold.building import build_model, facts_of, resolve
from treefold.dataset import Dataset
from treefold.errors import FileError, ModelFileError, TrainingError
from treefold.files import clear_unfinished
from treefold.forest import Forest
from treefold.saving import CONFIG, SavedModel, load_model, read_tensors, write_tensors, write_text
from treefold.settings import RunSettings
from treefold.training.examples import Examples
from treefold.training.loop import Reporter, Result, Silent, State, Trainer, load_optimiser_tensors, optimiser_tensors
from treefold.training.parallel import ALONE, Workers

CHECKPOINT, METRICS, ENVIRONMENT = "checkpoint.safetensors", "metrics.jsonl", "environment.json"
_OPTIMISER: Final = "optimiser."


def train(
    data: Dataset,
    folder: str | os.PathLike[str],
    settings: RunSettings,
    *,
    reporter: Reporter | None = None,
    workers: Workers = ALONE,
) -> tuple[SavedModel, Result]:
    """Train a model on a data set, in a run directory that must not exist yet.

    The directory holds ``config.toml`` (resolved settings), ``vocabulary.json``, ``model.safetensors`` (the best weights so
    far), ``metrics.jsonl`` (a line an epoch), ``environment.json``, and ``checkpoint.safetensors``, from which `resume` goes on.
    """
    folder = Path(folder)
    if workers.is_first and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(
            f"{folder}: expected a name that is free, got one that exists; choose another, or go on there with --resume."
        )
    examples = Examples.of(data, settings.task)
    outputs = 1 if settings.task == "regression" else len(data.classes)
    if settings.task != "regression" and outputs < 2:
        raise TrainingError(
            f"training expects at least two classes, got {list(data.classes)}; there is nothing to learn."
        )
    seed_everything(settings)
    train_numbers = data.splits.get("train", np.zeros(0, np.int64))
    if not len(train_numbers):
        raise TrainingError(
            f"training expects a data set with a train split, got {list(data.splits) or 'no split'}; "
            f"make one with `treefold data convert --split 0.8,0.1,0.1`."
        )
    model_settings, labels = resolve(settings.model, facts_of(trees_seen(data)))
    settings = settings.model_copy(update={"model": model_settings})
    model = build_model(model_settings, labels, settings.task, outputs)
    classes = () if settings.task == "regression" else data.classes
    saved = SavedModel(model, settings, labels, classes, outputs)
    trainer = _trainer(saved, examples, data, workers)
    if workers.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / ENVIRONMENT, json.dumps(_environment(data), indent=1) + "\n")
        saved.save(folder)
        _write_checkpoint(folder, trainer)
    return _run(saved, trainer, folder, reporter)


def resume(
    data: Dataset, folder: str | os.PathLike[str], *, reporter: Reporter | None = None, workers: Workers = ALONE
) -> tuple[SavedModel, Result]:
    """Go on with a run that was ended before it was finished; the end is that of a run without interruption, bit for bit."""
    folder = Path(folder)
    if not (folder / CHECKPOINT).is_file():
        state = "one without a checkpoint" if folder.is_dir() else "no such directory"
        raise ModelFileError(
            f"{folder}: expected the directory of a run to resume, got {state}; start it without --resume."
        )
    if workers.is_first:
        clear_unfinished(folder)
    saved = load_model(folder)
    environment = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    if environment["data"] != data.fingerprint():
        raise TrainingError(f"{folder}: expected the data set that the run began with, got another; give the same one.")
    seed_everything(saved.settings)
    trainer = _trainer(saved, Examples.of(data, saved.settings.task), data, workers)
    _read_checkpoint(folder, trainer)
    if workers.is_first and trainer.state.history:  # what a crash between checkpoint and files may have left out
        _write_epoch(folder, saved, trainer)
    return _run(saved, trainer, folder, reporter)


def _run(saved: SavedModel, trainer: Trainer, folder: Path, reporter: Reporter | None) -> tuple[SavedModel, Result]:
    if not trainer.workers.is_first:  # the first process writes the files, and talks
        result = trainer.run(Silent())
        trainer.flat.release()
        return saved, result
    minutes = saved.settings.training.checkpoint_minutes
    written = time.monotonic()
    board = _board(folder) if saved.settings.training.tensorboard else None

    def after(trainer: Trainer) -> None:
        nonlocal written
        closed = trainer.state.batch == 0
        if closed or time.monotonic() - written >= 60 * minutes:
            _write_checkpoint(folder, trainer)
            written = time.monotonic()
        if closed:
            _write_epoch(folder, saved, trainer)
            if board is not None:
                for name, value in trainer.state.history[-1].items():
                    board.add_scalar(name, value, trainer.state.epoch)
        if interrupted.is_set():
            raise KeyboardInterrupt

    try:
        with _interrupts_between_batches() as interrupted:
            result = trainer.run(reporter or Silent(), after)
    except KeyboardInterrupt:
        _write_checkpoint(folder, trainer)
        raise
    finally:
        if board is not None:
            board.close()
    _write_epoch(folder, saved, trainer)
    trainer.flat.release()
    return saved, result


@contextmanager
def _interrupts_between_batches() -> Iterator[threading.Event]:
    """Turn Ctrl-C into an event, so that training ends between two batches, where a checkpoint is of one moment.

    Nothing changes where somebody else takes care of Ctrl-C, or in other threads than the main one, which alone is told of it.
    """
    interrupted = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _write_epoch(folder: Path, saved: SavedModel, trainer: Trainer) -> None:
    """Write the metrics so far, and the best weights where they are new."""
    write_text(folder / METRICS, "".join(json.dumps(line) + "\n" for line in trainer.state.history))
    if trainer.state.best_epoch == trainer.state.epoch or trainer.finished:
        current = trainer.flat.values.data.clone()
        trainer.flat.values.data.copy_(trainer.best)
        write_tensors(folder / "model.safetensors", saved.model.state_dict())
        trainer.flat.values.data.copy_(current)


def _write_checkpoint(folder: Path, trainer: Trainer) -> None:
    tensors: dict[str, Tensor] = {
        "values": trainer.flat.values.data,
        "best": trainer.best,
        "random": torch.random.get_rng_state(),
    }
    tensors |= {f"{_OPTIMISER}{name}": tensor for name, tensor in optimiser_tensors(trainer.optimiser).items()}
    write_tensors(
        folder / CHECKPOINT, tensors, {"state": json.dumps(asdict(trainer.state)), "order": str(trainer.flat.order)}
    )


def _read_checkpoint(folder: Path, trainer: Trainer) -> None:
    tensors = read_tensors(folder / CHECKPOINT)
    header = (folder / CHECKPOINT).read_bytes()
    size = int.from_bytes(header[:8], "little")
    facts = json.loads(header[8 : 8 + size])["__metadata__"]
    if tensors["values"].shape != trainer.flat.values.shape:
        raise ModelFileError(f"{folder / CHECKPOINT}: expected the weights of the model in {CONFIG}, got others.")
    if facts.get("order") != str(trainer.flat.order):
        raise ModelFileError(
            f"{folder / CHECKPOINT}: expected parameters in the order of this version of treefold, got that of another; "
            f"go on with that version, or start the run anew."
        )
    trainer.flat.values.data.copy_(tensors["values"])
    trainer.best.copy_(tensors["best"])
    torch.random.set_rng_state(tensors["random"])
    trainer.state = State(**json.loads(facts["state"]))
    state = {name.removeprefix(_OPTIMISER): tensor for name, tensor in tensors.items() if name.startswith(_OPTIMISER)}
    load_optimiser_tensors(trainer.optimiser, state)


def _trainer(saved: SavedModel, examples: Examples, data: Dataset, workers: Workers) -> Trainer:
    empty = np.zeros(0, np.int64)
    train_numbers, validation = (np.asarray(data.splits.get(name, empty)) for name in ("train", "validation"))
    return Trainer(saved.model, examples, train_numbers, validation, saved.settings.training, workers)


def trees_seen(data: Dataset) -> Forest:
    """Return the trees of all splits: a model must know the labels of the test set to be asked about it."""
    numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *map(np.asarray, data.splits.values())]))
    return data.forest if len(numbers) == len(data) else data.forest[data.trees_of(numbers)]


def seed_everything(settings: RunSettings) -> None:
    """Make what follows depend on the seed alone."""
    torch.manual_seed(settings.training.seed)
    if settings.training.threads is not None:
        torch.set_num_threads(settings.training.threads)


def _environment(data: Dataset) -> dict[str, Any]:
    from treefold import __version__

    return {
        "treefold": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "data": data.fingerprint(),
        "made": dict(data.made),
    }


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise TrainingError(
            "tensorboard=true expects the package tensorboard, got none; pip install tensorboard."
        ) from None
    return SummaryWriter(str(folder / "tensorboard"))
