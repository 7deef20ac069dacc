"""Runs: training that is kept in a directory, and can be resumed there after any interruption."""

import hashlib
import itertools
import json
import os
import platform
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from treefold.data.convert import formats_of, reading_of
from treefold.data.dataset import Dataset
from treefold.data.readers import READERS
from treefold.errors import ConfigurationError, FileError, ModelFileError, TrainingError
from treefold.files import as_path, clear_unfinished, make_folder, read_json, require_place
from treefold.kernels.threads import threads
from treefold.nn.randomness import seeded
from treefold.training.build import Facts, build_model, facts_of
from treefold.training.distributed import ALONE, Workers
from treefold.training.examples import Examples
from treefold.training.recipe import choose
from treefold.training.saving import (
    CONFIG,
    WEIGHTS,
    SavedModel,
    load_model,
    read_facts,
    read_tensors,
    write_tensors,
    write_text,
)
from treefold.training.settings import RunSettings, with_recipe
from treefold.training.task import Units, task_of
from treefold.training.trainer import (
    Reporter,
    Result,
    Silent,
    State,
    Trainer,
    load_optimiser_tensors,
    optimiser_shapes,
    optimiser_tensors,
)
from treefold.trees.forest import Forest

try:
    import fcntl
except ImportError:  # a system without it: nothing stops two processes from writing to one run
    fcntl = None  # type: ignore[assignment]

CHECKPOINT, METRICS, ENVIRONMENT = "checkpoint.safetensors", "metrics.jsonl", "environment.json"
_OPTIMISER: Final = "optimiser."
_STATE: Final = TypeAdapter(State)
_REMEDY: Final = "take a copy of the directory, or remove it and start the run again."


def train(
    data: Dataset,
    folder: str | os.PathLike[str],
    settings: RunSettings,
    *,
    reporter: Reporter | None = None,
    workers: Workers = ALONE,
    init_from: str | os.PathLike[str] | None = None,
) -> tuple[SavedModel, Result]:
    """Train a model on a data set, in a run directory that must not exist yet or be empty.

    The directory holds ``config.toml`` (resolved settings), ``vocabulary.json``, ``model.safetensors`` (the best weights so
    far), ``metrics.jsonl`` (one line per epoch), ``environment.json``, and ``checkpoint.safetensors``, which `resume` reads.

    With ``init_from``, training starts with the weights of another run or saved model, which must have the same task, model
    settings, labels and classes; numbers are then predicted in its units. ``environment.json`` says which one it was.
    """
    folder = as_path(folder)
    if workers.is_first:
        _require_free(folder)
    settings = with_recipe(settings)
    start = None if init_from is None else load_model(init_from)
    task = task_of(settings.task)
    examples, classes, outputs = Examples.of(data, task), task.class_names(data), task.outputs(data)
    if task.has_classes and outputs < 2:
        raise TrainingError(f"training expects at least two classes, got {list(classes)}; there is nothing to learn.")
    train_numbers = data.splits.get("train", np.zeros(0, np.int64))
    if not len(train_numbers):
        raise TrainingError(
            f"training expects a data set with a train split, got {list(data.splits) or 'no split'}; "
            f"make one with `treefold data convert --split 0.8,0.1,0.1`."
        )
    recipe = choose(
        settings, training_facts(data, embeddings=settings.model.embeddings is not None), len(train_numbers)
    )
    targets = examples.targets[examples.known(train_numbers)]
    units = task.units(targets, recipe.settings.model) if len(targets) else Units()
    with seeded(settings.training.seed) as random:
        model = build_model(recipe.settings.model, recipe.labels, task, outputs)
    saved = SavedModel(model, recipe.settings, recipe.labels, classes, outputs, units, recipe.reasons)
    if start is not None:
        saved = _started(saved, start, str(init_from))
    trainer = _trainer(saved, data, workers, random)
    if not workers.is_first:
        return _run(saved, trainer, folder, reporter)
    existed = folder.exists()
    make_folder(folder)
    with _held(folder):
        _require_free(folder)  # once more: another process may have trained there in the meantime
        try:
            facts = _environment(data, settings.training.threads)
            facts |= {} if init_from is None else {"init_from": _origin(Path(init_from))}
            write_text(folder / ENVIRONMENT, json.dumps(facts, indent=1) + "\n")
            saved.save(folder)
            _write_checkpoint(folder, trainer)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # it was empty before, and is no run yet
            if existed:
                folder.mkdir(exist_ok=True)
            raise
        return _run(saved, trainer, folder, reporter)


def _require_free(folder: Path) -> None:
    """Raise unless a run can begin in a folder: it does not exist, or is empty."""
    require_place(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileError(
            f"{folder}: expected a name that is free, got one that exists; choose another"
            f"{', or go on there with --resume' if (folder / CHECKPOINT).is_file() else ''}."
        )


def resume(
    data: Dataset, folder: str | os.PathLike[str], *, reporter: Reporter | None = None, workers: Workers = ALONE
) -> tuple[SavedModel, Result]:
    """Resume an interrupted run; it ends with the same weights, bit for bit, as without the interruption."""
    folder = as_path(folder)
    if not (folder / CHECKPOINT).is_file():
        got = "one without a checkpoint; remove it, and" if folder.is_dir() else "no such directory;"
        raise ModelFileError(
            f"{folder}: expected the directory of a run to resume, got {got} start the run without --resume."
        )
    with _held(folder) if workers.is_first else nullcontext():
        if workers.is_first:
            clear_unfinished(folder)
        saved = load_model(folder)
        if _environment_of(folder / ENVIRONMENT)["data"] != data.fingerprint():
            raise TrainingError(
                f"{folder}: expected the data set that the run began with, got a different one; give the same one."
            )
        trainer = _trainer(saved, data, workers)
        _read_checkpoint(folder, trainer)
        if workers.is_first and trainer.state.history:  # a crash may have come between the two writes
            _write_epoch(folder, saved, trainer)
        return _run(saved, trainer, folder, reporter)


def _started(saved: SavedModel, other: SavedModel, name: str) -> SavedModel:
    """Give a fresh model the weights of another one, and its units; raise unless both are alike."""

    def facts(each: SavedModel) -> dict[str, Any]:
        labels = {"operators": each.labels.operators, "labels": each.labels.names, "frozen labels": each.labels.frozen}
        outputs = {"classes": each.classes, "outputs": each.outputs}
        return {"task": each.settings.task, **dict(each.settings.model), **labels, **outputs}

    here, there = facts(saved), facts(other)
    for key, value in here.items():
        if value != there[key]:
            words = f"{key} {_difference(value, there[key])}"
            raise ConfigurationError(
                f"init_from expects a run with the same task, model settings, labels and classes, but {name} differs: {words}; "
                f"change the settings, or start from another run."
            )
    weights = {key: tensor for key, tensor in other.model.state_dict().items() if not key.startswith("wide.")}
    saved.model.load_state_dict(weights)
    reason = f"training started with the weights of {name}"
    return replace(saved, units=other.units, reasons=(*saved.reasons, reason))


def _difference(here: Any, there: Any) -> str:
    """Say in which way two settings or two lists of names differ; of long lists, the first entry that does."""
    if not isinstance(here, tuple) or not isinstance(there, tuple):
        return f"is {there!r} there and {here!r} here"
    pairs = enumerate(itertools.zip_longest(here, there), 1)
    place, (own, other) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    words = ["none" if each is None else repr(each) for each in (other, own)]
    return f"number {place} is {words[0]} there and {words[1]} here"


def _origin(folder: Path) -> dict[str, str]:
    """Say which weights a run started with."""
    return {"run": str(folder), "sha256": hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()}


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a run for one process, if the system can: two would replace each other's files."""
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise FileError(f"{folder}: another process is working on this run; wait until it has ended.") from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)


def is_being_trained(folder: str | os.PathLike[str]) -> bool:
    """Say whether a process is training this run; False where the system has no locks."""
    if fcntl is None:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        pass
    finally:
        os.close(handle)
    return False


def made_of(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return how the data set of a run was made, its `Dataset.made`; empty if the directory does not say.

    Saved models and runs of older versions do not say. Settings of `convert` are checked: `reading_of` can read them.
    """
    path = Path(folder) / ENVIRONMENT
    if not path.exists():
        return {}
    remedy = "restore a copy, or remove the file to read trees with the defaults."
    made = _environment_of(path, remedy).get("made", {})
    try:
        if not isinstance(made, dict):
            raise ConfigurationError(f"'made' is a {type(made).__name__}")
        for form in formats_of(made).values():
            if form in READERS:  # the format of a plugin may not be loaded
                reading_of(made, form)
    except ConfigurationError as problem:
        raise ModelFileError(
            f"{path}: expected how the training data was made, but it is damaged: {str(problem).rstrip('.')}; {remedy}"
        ) from None
    return made


def _environment_of(path: Path, remedy: str = _REMEDY) -> dict[str, Any]:
    facts = read_json(path, ModelFileError, remedy.removesuffix("."))
    if "data" not in facts:
        raise ModelFileError(f"{path}: expected the file that `train` wrote, but it is missing or damaged; {remedy}")
    return facts


def _run(saved: SavedModel, trainer: Trainer, folder: Path, reporter: Reporter | None) -> tuple[SavedModel, Result]:
    if not trainer.workers.is_first:  # the first process writes the files and reports
        with threads(trainer.settings.threads):
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
        with threads(trainer.settings.threads), _interrupts_between_batches() as interrupted:
            result = trainer.run(reporter or Silent(), after)
    except KeyboardInterrupt:
        _write_checkpoint(folder, trainer)
        raise
    except TrainingError as problem:
        raise TrainingError(f"{problem} The last good checkpoint is in {folder}.") from None
    finally:
        if board is not None:
            board.close()
    _write_epoch(folder, saved, trainer)
    trainer.flat.release()
    return saved, result


@contextmanager
def _interrupts_between_batches() -> Iterator[threading.Event]:
    """Turn Ctrl-C into an event, so that training ends between two batches and its checkpoint is consistent.

    So is SIGTERM if it raises KeyboardInterrupt, as on the command line. Does nothing to signals that have another handler, or
    are ignored, or in threads other than the main one, which alone receives them.
    """
    interrupted = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    ours = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if is_main and signal.getsignal(number) is signal.default_int_handler
    ]
    try:
        for number in ours:
            signal.signal(number, lambda *_: interrupted.set())
        yield interrupted
    finally:
        for number in ours:
            signal.signal(number, signal.default_int_handler)


def _write_epoch(folder: Path, saved: SavedModel, trainer: Trainer) -> None:
    """Write the metrics so far, and the best weights if they are new."""
    write_text(folder / METRICS, "".join(json.dumps(line) + "\n" for line in trainer.state.history))
    if trainer.state.best_epoch == trainer.state.epoch or trainer.finished:
        current = trainer.flat.values.data.clone()
        trainer.flat.values.data.copy_(trainer.best)
        write_tensors(folder / WEIGHTS, saved.model.state_dict())
        trainer.flat.values.data.copy_(current)


def _write_checkpoint(folder: Path, trainer: Trainer) -> None:
    trainer.require_finite()
    tensors: dict[str, Tensor] = {
        "values": trainer.flat.values.data,
        "best": trainer.best,
        "random": trainer.random.get_state(),
    }
    tensors |= {f"{_OPTIMISER}{name}": tensor for name, tensor in optimiser_tensors(trainer.optimiser).items()}
    write_tensors(
        folder / CHECKPOINT, tensors, {"state": json.dumps(asdict(trainer.state)), "order": str(trainer.flat.order)}
    )


def _read_checkpoint(folder: Path, trainer: Trainer) -> None:
    path = folder / CHECKPOINT
    tensors = read_tensors(path)
    try:
        facts = read_facts(path)
        state = _STATE.validate_python(json.loads(facts["state"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ModelFileError(
            f"{path}: expected the checkpoint of a run, got a damaged or different file; {_REMEDY}"
        ) from None
    values, random = trainer.flat.values.data, trainer.random.get_state()
    expected = {"values": values.shape, "best": values.shape, "random": random.shape}
    if state.step:
        expected |= {f"{_OPTIMISER}{name}": shape for name, shape in optimiser_shapes(trainer).items()}
    if {name: tensor.shape for name, tensor in tensors.items()} != expected:
        raise ModelFileError(
            f"{path}: expected the weights and the optimiser of the run in {CONFIG}, got different names or shapes; {_REMEDY}"
        )
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise ModelFileError(f"{path}: expected finite numbers, got NaN or infinity; {_REMEDY}")
    if facts.get("order") != str(trainer.flat.order):
        raise ModelFileError(
            f"{path}: expected parameters in the order of this version of treefold, got the order of a different one; "
            f"resume with that version, or start the run again."
        )
    values.copy_(tensors["values"])
    trainer.best.copy_(tensors["best"])
    trainer.random.set_state(tensors["random"].to(random.dtype))
    trainer.state = state
    loaded = {name.removeprefix(_OPTIMISER): tensor for name, tensor in tensors.items() if name.startswith(_OPTIMISER)}
    load_optimiser_tensors(trainer.optimiser, loaded)


def _trainer(saved: SavedModel, data: Dataset, workers: Workers, random: torch.Generator | None = None) -> Trainer:
    examples = Examples.of(data, saved.task, saved.units)
    empty = np.zeros(0, np.int64)
    train_numbers, validation = (np.asarray(data.splits.get(name, empty)) for name in ("train", "validation"))
    return Trainer(
        saved.model,
        examples,
        train_numbers,
        validation,
        saved.settings.training,
        workers,
        wide=saved.settings.model.wide,
        random=random,
    )


def training_facts(data: Dataset, *, embeddings: bool = False) -> Facts:
    """Return what a model must know about its trees: the labels of the train split, and the arity of all splits.

    With given ``embeddings`` it knows the labels of all splits, which then have vectors without training.
    """
    whole = facts_of(_trees(data, list(data.splits)))
    return whole if embeddings else facts_of(_trees(data, ["train"]))._replace(arity=whole.arity)


def _trees(data: Dataset, splits: list[str]) -> Forest:
    numbers = np.unique(np.concatenate([np.asarray(data.splits[split]) for split in splits]))
    return data.forest if len(numbers) == len(data) else data.forest[data.trees_of(numbers)]


def _environment(data: Dataset, threads: int | None) -> dict[str, Any]:
    from treefold import __version__

    return {
        "treefold": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": threads or torch.get_num_threads(),
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
