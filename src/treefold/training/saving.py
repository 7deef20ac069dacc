"""Saved models: a directory with settings (TOML), labels and classes (JSON) and weights (safetensors). Nothing is pickled."""

import json
import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final, final

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from treefold.errors import FileError, ModelFileError, TreefoldError
from treefold.files import FolderKind, as_path, atomic_file, make_folder, read_json, require_place, write_files
from treefold.nn.model import TreeModel
from treefold.nn.randomness import seeded
from treefold.nn.wide import Wide
from treefold.training.build import Labels, build_model
from treefold.training.settings import RunSettings, read_toml, to_toml
from treefold.training.task import Task, Units, task_of

VERSION: Final = 1
_MOST_OUTPUTS: Final = 10**9
_CHECKSUM: Final = "crc32"
CONFIG, VOCABULARY, WEIGHTS = "config.toml", "vocabulary.json", "model.safetensors"
MODEL: Final = FolderKind(
    "a saved model",
    VOCABULARY,
    '"treefold model"',
    (
        *(CONFIG, VOCABULARY, WEIGHTS, "estimator.json", "compression.json"),
        *("metrics.jsonl", "environment.json", "checkpoint.safetensors", "tensorboard/*"),
    ),
)
_RESOLVED: Final = ("aggregator", "shared", "per_label", "labels", "label_size")  # a guess could give other answers
_OTHER_FOLDERS: Final = {
    "dataset.json": "a data set; train a model on it with `treefold train`, and name that run",
    "sweep.json": "a sweep; name one of the runs in its folder runs",
}


@final
@dataclass(frozen=True)
class SavedModel:
    """A model with everything that is needed to use it on new trees.

    ``settings`` are resolved: none is left to be chosen from data; ``reasons`` say why they were chosen. ``classes`` are the
    names of the outputs, empty for numbers. ``units`` are those of the numbers that it predicts.
    """

    model: TreeModel
    settings: RunSettings
    labels: Labels
    classes: tuple[str, ...]
    outputs: int
    units: Units = field(default_factory=Units)
    reasons: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """The task of the model."""
        return task_of(self.settings.task)

    def save(self, folder: str | os.PathLike[str], more: Mapping[str, bytes] | None = None) -> None:
        """Write the model, and the contents of ``more`` files, into a directory, which is created if necessary.

        A model that was saved there is replaced: all files are written before the first old one goes. Other files stay.
        """
        folder = as_path(folder)
        require_place(folder)
        if folder.exists() and not folder.is_dir():
            raise FileError(f"{folder}: expected a directory, or a name that is free, got a file; choose another name.")
        make_folder(folder)
        vocabulary = {
            "format": "treefold model",
            "version": VERSION,
            "operators": self.labels.operators,
            "labels": self.labels.names,
            **({"frozen": self.labels.frozen} if self.labels.frozen else {}),
            "classes": self.classes,
            "outputs": self.outputs,
            "reasons": self.reasons,
        }
        if self.units.scale:
            vocabulary["units"] = self.units._asdict()
        contents = {
            WEIGHTS: _tensors_as_bytes(self.model.state_dict()),
            CONFIG: to_toml(self.settings).encode(),
            **(more or {}),
            VOCABULARY: (json.dumps(vocabulary, indent=1) + "\n").encode(),  # named first: it shows the kind
        }
        taken = [name for name in contents if os.path.lexists(folder / name)]
        if taken and not MODEL.is_signed(folder):
            raise FileError(
                f"{folder}: expected a new folder, or a saved model to replace, got one with {taken[0]}, which treefold did not "
                f"write; choose another name."
            )
        write_files(folder, contents)


def load_model(folder: str | os.PathLike[str]) -> SavedModel:
    """Open a saved model, or the best model of a run."""
    folder = as_path(folder)
    for name in (CONFIG, VOCABULARY, WEIGHTS):
        if not (folder / name).is_file():
            state = f"one without {name}" if folder.is_dir() else "no such directory"
            got = f"{state}; make one with `treefold train` or save()"
            got = next((other for sign, other in _OTHER_FOLDERS.items() if (folder / sign).is_file()), got)
            raise ModelFileError(f"{folder}: expected the directory of a model or run, got {got}.")
    vocabulary = _vocabulary(folder / VOCABULARY)
    settings = RunSettings.of(read_toml(folder / CONFIG), str(folder / CONFIG))
    missing = [name for name in _RESOLVED if getattr(settings.model, name) is None]
    if missing:
        raise ModelFileError(
            f"{folder / CONFIG}: expected the setting model.{missing[0]}, got none; restore a copy of this file."
        )
    labels = Labels(tuple(vocabulary["operators"]), tuple(vocabulary["labels"]), vocabulary.get("frozen", 0))
    try:
        with seeded(0):  # the weights are replaced below
            model = build_model(settings.model, labels, settings.task, vocabulary["outputs"])
    except TreefoldError as problem:
        raise type(problem)(f"{folder / CONFIG}: {problem}") from None
    weights = read_tensors(folder / WEIGHTS)
    if "wide.keys" in weights:
        sides = task_of(settings.task).trees
        model.wide = Wide(weights["wide.keys"].numel(), vocabulary["outputs"], sides=sides)
    fresh = model.state_dict()
    if {name: value.shape for name, value in weights.items()} != {name: value.shape for name, value in fresh.items()}:
        raise ModelFileError(
            f"{folder / WEIGHTS}: expected the weights of the model in {CONFIG}, got different names or shapes; "
            f"the files are not of one model."
        )
    for name, value in weights.items():
        if value.is_floating_point() != fresh[name].is_floating_point() or not bool(value.isfinite().all()):
            raise ModelFileError(
                f"{folder / WEIGHTS}: expected finite floating-point numbers in {name!r}, got NaN, infinity or integers; "
                f"restore a copy, or train again."
            )
    if model.wide is not None:
        keys, kinds = weights["wide.keys"], weights["wide.has_kind"]
        if (keys.dtype, kinds.dtype) != (torch.int64, torch.bool) or bool((keys.diff() <= 0).any()):
            raise ModelFileError(
                f"{folder / WEIGHTS}: expected sorted features in the linear part; the file is damaged; "
                f"restore a copy, or train again."
            )
    model.load_state_dict(weights)
    model.eval()
    units = Units(**{name: tuple(map(float, numbers)) for name, numbers in vocabulary.get("units", {}).items()})
    classes, reasons = tuple(vocabulary["classes"]), tuple(vocabulary["reasons"])
    return SavedModel(model, settings, labels, classes, vocabulary["outputs"], units, reasons)


def _vocabulary(path: Path) -> dict[str, Any]:
    facts = read_json(path, ModelFileError, "the model is damaged")
    if facts.get("format") != "treefold model" or facts.get("version") != VERSION:
        raise ModelFileError(
            f"{path}: expected a treefold model of version {VERSION}, got version {shortened(facts.get('version'))}; load it "
            f"with the treefold that wrote it."
        )
    missing = [name for name in ("operators", "labels", "classes", "outputs") if name not in facts]
    if missing:
        raise ModelFileError(f"{path}: expected an entry {missing[0]!r}, got none; the model is damaged.")
    facts.setdefault("reasons", [])  # not in files of older versions
    for name in ("operators", "labels", "classes", "reasons"):
        if not isinstance(facts[name], list) or not all(isinstance(each, str) for each in facts[name]):
            raise ModelFileError(f"{path}: expected {name!r} to be a list of texts; the model is damaged.")
    if type(facts.get("frozen", 0)) is not int or not 0 <= facts.get("frozen", 0) <= len(facts["labels"]):
        raise ModelFileError(f"{path}: expected 'frozen' to be a number of labels; the model is damaged.")
    count = facts["outputs"]
    if type(count) is not int or not 1 <= count <= _MOST_OUTPUTS or len(facts["classes"]) not in (0, count):
        raise ModelFileError(
            f"{path}: expected a number of outputs, as many as classes, got {shortened(count)}; the model is damaged."
        )
    if "units" in facts and not _are_units(facts["units"], count):
        raise ModelFileError(
            f"{path}: expected 'units' to have an offset and a scale above zero for each of {count} outputs, "
            f"got {shortened(facts['units'])}; the model is damaged."
        )
    return facts


def _are_units(value: Any, count: int) -> bool:
    """Say whether a value from a file has the entries of `Units`, finite numbers for so many outputs."""
    if not isinstance(value, dict) or value.keys() != {"offset", "scale"}:
        return False
    if any(not isinstance(numbers, list) or len(numbers) != count for numbers in value.values()):
        return False
    numbers = [*value["offset"], *value["scale"]]
    return all(type(each) in (int, float) and math.isfinite(each) for each in numbers) and min(value["scale"]) > 0


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically; ``facts`` go into its header, with a checksum of the tensors."""
    with atomic_file(path) as file:
        file.write(_tensors_as_bytes(tensors, facts))


def _tensors_as_bytes(tensors: dict[str, Tensor], facts: dict[str, str] | None = None) -> bytes:
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(tensors, metadata={**(facts or {}), _CHECKSUM: _checksum(tensors)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, and check it, unless an older version wrote it without a checksum."""
    try:
        data = path.read_bytes()
        tensors = safetensors.torch.load(data)
        checksum = _checksum(tensors)
        if _facts(data).get(_CHECKSUM, checksum) != checksum:
            raise ValueError("numbers with a wrong checksum")
    except (
        OSError,
        SafetensorError,
        KeyError,
        ValueError,
        RecursionError,
    ) as problem:  # KeyError: a type that torch lacks
        raise ModelFileError(
            f"{path}: expected a whole safetensors file, got {problem}; the file is damaged; restore a copy, or train again."
        ) from None
    return tensors


def read_facts(path: Path) -> dict[str, str]:
    """Return the facts in the header of a safetensors file that `read_tensors` has read."""
    return _facts(path.read_bytes())


def _facts(data: bytes) -> dict[str, str]:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}


def _checksum(tensors: dict[str, Tensor]) -> str:
    checksum = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, checksum)
    return str(checksum)
