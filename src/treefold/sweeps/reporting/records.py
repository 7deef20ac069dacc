"""The finished runs of one or more sweeps, gathered for a report; nothing is changed on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from treefold.errors import ReadError
from treefold.sweeps.results import RESULTS, Results, RunResult


class Data(NamedTuple):
    """The fingerprint of a data set: runs with the same one saw the same examples."""

    examples: int
    nodes: int
    crc32: int

    @classmethod
    def of(cls, result: RunResult) -> "Data":
        """Return the fingerprint that a result carries."""
        return cls(*(result.data.get(name, 0) for name in cls._fields))

    def __str__(self) -> str:
        return f"{self.examples:,} examples, {self.nodes:,} nodes, checksum {self.crc32:08x}"


class Gathered(NamedTuple):
    """Results in the order of reading, and what a reader of the report should know of how they were read."""

    results: tuple[RunResult, ...]
    remarks: tuple[str, ...] = ()


def gather(folders: Sequence[Path]) -> Gathered:
    """Read the results of sweeps; a run that several of them hold under one name counts once."""
    results: dict[tuple[str, str, str], RunResult] = {}
    remarks: list[str] = []
    repeated = 0
    for folder in folders:
        found = _read(folder)
        if found.damaged:
            remarks.append(
                f"The last line of {folder.name}/{RESULTS} was cut off while it was written; it is left out."
            )
        for result in found.results.values():
            name = (result.grid, result.kind, result.key)
            repeated += name in results
            results.setdefault(name, result)
    if repeated:
        remarks.append(f"Runs that several of the sweeps hold are counted once: {repeated:,}.")
    return Gathered(tuple(results.values()), tuple(remarks))


def _read(folder: Path) -> Results:
    path = folder / RESULTS
    if not path.is_file():
        raise ReadError(
            f"expected the folder of a sweep, with {RESULTS} in it, got none; make one: treefold sweep GRID --out FOLDER.",
            source=folder,
        )
    found = Results.read(path)
    if not found.results:
        raise ReadError("expected at least one finished run, got none; let the sweep finish one.", source=path)
    return found
