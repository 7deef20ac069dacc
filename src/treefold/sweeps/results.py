"""The files of a sweep: a line of JSON for each finished run, and which runs there are; always replaced as a whole."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, final

from pydantic import ConfigDict, Field, ValidationError

from treefold.errors import ForestFileError
from treefold.files import atomic_file, parse_json
from treefold.training.settings import RunSettings, Settings

VERSION: Final = 1
RESULTS, DAMAGED, SWEEP = "results.jsonl", "results.jsonl.damaged", "sweep.json"
_NOT_IN_KEY: Final = {"checkpoint_minutes", "tensorboard"}  # they do not change the outcome of a run
_ADDED_LATER: Final[dict[str, dict[str, Any]]] = {  # keys of older runs lack these settings, which then had this value
    "model": {
        "siblings": False,
        "readout": "root",
        "comparison": "tensor",
        "levels": 5,
        "min_count": None,
        "max_labels": None,
        "label_dropout": 0.0,
        "edge_labels": False,
        "embeddings": None,
        "embeddings_frozen": False,
        "wide": False,
        "block_size": None,
        "bound": None,
        "aggregators": {},
        "activation": "tanh",
        "cell_hidden": None,
        "start": None,
    },
    "training": {
        "reduction": "mean",
        "keep": "best",
        "decay_all": False,
        "beta2": 0.999,
        "curriculum": None,
        "stage_schedule": "whole",
        "state_noise": 0.0,
        "state_noise_end": None,
        "selection": 0.0,
    },
}


class Stopped(Settings):
    """The limit of the grid's budget that ended a run early."""

    limit: Literal["minutes_per_run", "total_hours"]
    value: float


@final
class SweepFacts(Settings):
    """The content of ``sweep.json``: the latest grid, the folder of its data, its runs by key, and which failed, and why."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    grid: str
    description: str = ""
    data: str
    runs: dict[str, str]
    failed: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "SweepFacts | None":
        """Read the facts of a sweep; None if there are none, as in folders of older versions, or if they are damaged."""
        try:
            return cls.model_validate_json((folder / SWEEP).read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, folder: Path) -> None:
        """Write the facts into the folder of a sweep."""
        with atomic_file(folder / SWEEP) as file:
            file.write(self.model_dump_json(indent=1).encode() + b"\n")


@final
class RunResult(Settings):
    """The outcome of a run; docs/experiments.md explains each field."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = VERSION
    key: str
    grid: str
    kind: str
    seed: int
    settings: RunSettings
    data: dict[str, int]
    aggregation_parameters: int | None
    counted: Literal["paper", "all"] = "paper"
    parameters: int
    epochs: int
    best_epoch: int
    validation: float | None
    test: float | None
    curves: dict[str, list[float]]
    groups: dict[str, dict[str, tuple[int, int]]]
    scores: dict[str, float] = Field(default_factory=dict)
    classes: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    seconds: float
    processor_seconds: float | None = None
    environment: dict[str, Any]
    stopped: Stopped | None = None

    @property
    def busy_seconds(self) -> float:
        """Processor time of the run; elapsed time, pauses included, if processor time was not recorded."""
        return self.processor_seconds or self.seconds

    @property
    def aggregator_parameters(self) -> int | None:
        """All parameters of one aggregator, in older files too.

        Lines with ``counted="paper"`` leave out the bias of a sum (c) and the output matrix of a Tucker form (c times r).
        """
        model = self.settings.model
        if self.aggregation_parameters is None or self.counted == "all" or model.shared:
            return self.aggregation_parameters
        left_out = {"sum": model.state_size, "tucker": model.state_size * (model.rank or 0)}
        return self.aggregation_parameters + left_out.get(model.aggregator or "", 0)


def key_of(settings: RunSettings, fingerprint: Mapping[str, Any]) -> str:
    """Return the key of a run: a hash of its data, its settings and the version of the results format.

    >>> key_of(RunSettings(), {"crc32": 1}) == key_of(RunSettings.of({"training": {"checkpoint_minutes": 9}}), {"crc32": 1})
    True
    >>> key_of(RunSettings(), {"crc32": 1}) == key_of(RunSettings.of({"training": {"seed": 9}}), {"crc32": 1})
    False
    """
    values = settings.model_dump(mode="json", exclude={"recipe"})  # which has been followed
    for group, later in _ADDED_LATER.items():
        values[group] = {
            name: value
            for name, value in values[group].items()
            if name not in _NOT_IN_KEY and (name not in later or value != later[name])
        }
    content = json.dumps({"version": VERSION, "data": dict(fingerprint), "settings": values}, sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


@final
@dataclass
class Results:
    """The results of a sweep by key; ``damaged`` is an incomplete last line, or empty."""

    path: Path
    lines: dict[str, str] = field(default_factory=dict)
    results: dict[str, RunResult] = field(default_factory=dict)
    damaged: str = ""

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read a results file, which need not exist. The file is not changed."""
        found = cls(path)
        try:
            text = path.read_bytes().decode("utf-8-sig", errors="replace") if path.exists() else ""
        except OSError as problem:
            raise ForestFileError(f"{path}: expected a file that can be read, got {problem.strerror}.") from None
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        for number, line in lines:
            try:
                facts = parse_json(line)
            except ValueError as problem:
                if number == lines[-1][0]:
                    found.damaged = line
                    break
                raise ForestFileError(
                    f"{path}, line {number}: expected a result, one JSON object, got {line[:40]!r} ({problem}); remove "
                    f"the line to repeat its run, or restore the file from a copy. Nothing was changed."
                ) from None
            result = _checked(facts, f"{path}, line {number}")
            found.lines[result.key], found.results[result.key] = line, result
        return found

    def move_damaged_line(self) -> None:
        """Move an incomplete last line into a separate file."""
        if not self.damaged:
            return
        target = self.path.with_name(DAMAGED)
        before = target.read_bytes() if target.exists() else b""
        with atomic_file(target) as file:
            file.write(before + self.damaged.encode() + b"\n")
        self._write()
        self.damaged = ""

    def add(self, facts: Mapping[str, Any]) -> RunResult:
        """Record a result; the file is on disk when this returns."""
        result = _checked(facts, "a new result")
        self.lines.pop(result.key, None)
        self.lines[result.key], self.results[result.key] = json.dumps(facts), result
        self._write()
        return result

    def _write(self) -> None:
        with atomic_file(self.path) as file:
            file.write("".join(f"{line}\n" for line in self.lines.values()).encode())


def read_results(path: Path) -> list[RunResult]:
    """Return the results in a file, one for each key, without an incomplete last line."""
    if not path.is_file():
        raise ForestFileError(f"{path}: expected a file of results; make one with `treefold sweep`.")
    return list(Results.read(path).results.values())


def curves_of(history: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return each metric as a list over epochs, rounded to five digits.

    >>> curves_of([{"epoch": 1, "loss": 0.1234567}, {"epoch": 2, "loss": 0.1}])
    {'loss': [0.12346, 0.1]}
    """
    names = ("loss", "accuracy", "validation_loss", "validation_score")
    lines = list(history)
    return {name: [round(line[name], 5) for line in lines] for name in names if lines and name in lines[0]}


def _checked(facts: Any, where: str) -> RunResult:
    version = facts.get("version") if isinstance(facts, dict) else None
    if version != VERSION:
        raise ForestFileError(
            f"{where}: expected a result of version {VERSION}, got version {version!r}; read it with the version of treefold "
            f"that wrote it, or sweep into another folder. Nothing was changed."
        )
    try:
        return RunResult.model_validate(facts)
    except ValidationError as problem:
        error = problem.errors()[0]
        raise ForestFileError(
            f"{where}: expected a result, but {'.'.join(map(str, error['loc']))} is wrong "
            f"({error['msg'].lower()}); remove the line to repeat its run. Nothing was changed."
        ) from None
