"""A file of named arrays: written atomically, checked on opening, memory-mapped. The format stands in docs/forest-format.md."""

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treefold.errors import ForestFileError
from treefold.files import atomic_file

Array = npt.NDArray[Any]

MAGIC: Final = b"TREEFOLD"
VERSION: Final = 1
_ALIGNMENT: Final = 64
SMALL: Final = 16 * 2**20
_PREAMBLE: Final = struct.Struct("<8sIIQ")  # magic, version, CRC-32 of the header, length of the header


def write_columns(path: str | os.PathLike[str], facts: Mapping[str, Any], columns: Mapping[str, Array]) -> None:
    """Write facts (JSON) and arrays under a name; the name holds the old file or the whole new one, never a part.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_columns(Path(folder) / "x", {"kind": "demo"}, {"a": np.arange(3, dtype=np.int32)})
    ...     facts, columns, _ = read_columns(Path(folder) / "x", kind="demo")
    >>> columns["a"]
    array([0, 1, 2], dtype=int32)
    """
    arrays = {
        name: np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")) for name, array in columns.items()
    }
    table: dict[str, dict[str, Any]] = {}
    offset = 0  # relative to the end of the header, so that the header need not know its own length
    for name, array in arrays.items():
        table[name] = {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "offset": offset,
            "crc32": zlib.crc32(_raw(array)),
        }
        offset += _aligned(array.nbytes)
    header = json.dumps({**facts, "columns": table, "bytes": offset}).encode()
    header += b" " * (_aligned(_PREAMBLE.size + len(header)) - _PREAMBLE.size - len(header))

    with atomic_file(path) as file:
        file.write(_PREAMBLE.pack(MAGIC, VERSION, zlib.crc32(header), len(header)))
        file.write(header)
        for array in arrays.values():
            file.write(_raw(array))
            file.write(b"\0" * (_aligned(array.nbytes) - array.nbytes))


def read_columns(
    path: str | os.PathLike[str], *, kind: str, verify: bool | None = None
) -> tuple[dict[str, Any], dict[str, Array], bool]:
    """Open a file of columns: its facts, its arrays as read-only memory maps, and whether all data were verified.

    Magic, version, the header's checksum and the file's size are checked always; ``verify`` also reads all the data and
    checks its checksums, by default in files of up to 16 MiB.
    """
    path = Path(path)
    if not path.is_file():
        raise ForestFileError(
            f"{path}: expected a {kind} file, got {'a directory' if path.is_dir() else 'nothing there'}."
        )
    size = path.stat().st_size
    with path.open("rb") as file:
        preamble = file.read(_PREAMBLE.size)
        if len(preamble) < _PREAMBLE.size or not preamble.startswith(MAGIC):
            raise ForestFileError(
                f"{path}: expected a treefold {kind} file, which begins with {MAGIC.decode()}, got {preamble[:8]!r}; "
                f"make one with Forest(trees).save(path)."
            )
        _, version, checksum, header_size = _PREAMBLE.unpack(preamble)
        if version != VERSION:
            raise ForestFileError(
                f"{path}: expected format version {VERSION}, got {version}; "
                f"open it with the treefold that wrote it, or write it anew."
            )
        header = file.read(min(header_size, size))
    if len(header) < header_size:
        raise _truncated(path, kind, _PREAMBLE.size + header_size, size)
    if zlib.crc32(header) != checksum:
        raise ForestFileError(f"{path}: expected a header with checksum {checksum}, got another; the file is damaged.")
    facts = _checked_facts(path, header, kind)
    start = _PREAMBLE.size + header_size
    if size != start + facts["bytes"]:
        raise _truncated(path, kind, start + facts["bytes"], size)
    data: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
    if facts["bytes"]:
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=0).view(np.ndarray)[start:]
    whole = size <= SMALL if verify is None else verify
    arrays: dict[str, Array] = {}
    checksums: dict[str, int] = {}
    for name, (dtype, shape, offset, checksum) in facts.pop("columns").items():
        raw = data[offset : offset + dtype.itemsize * math.prod(shape)]
        arrays[name] = raw.view(dtype).reshape(shape)
        checksums[name] = checksum
    if whole:
        verify_columns(path, arrays, checksums)
    return {**facts, "checksums": checksums}, arrays, whole


def verify_columns(path: str | os.PathLike[str], columns: Mapping[str, Array], checksums: Mapping[str, int]) -> None:
    """Read all the data of a file of columns and raise unless each column has its checksum."""
    for name, checksum in checksums.items():
        if zlib.crc32(_raw(columns[name])) != checksum:
            raise ForestFileError(
                f"{path}: the checksum of column {name!r} is wrong: the file is damaged; copy or write it again."
            )


def _checked_facts(path: Path, header: bytes, kind: str) -> dict[str, Any]:
    """Read the header; each column becomes its dtype, shape, offset and checksum, all within the file."""
    try:
        facts = json.loads(header)
        found = facts.get("kind")
        if found != kind:
            raise ForestFileError(f"{path}: expected a {kind} file, got one that holds {found!r}.")
        total = facts["bytes"]
        columns = {}
        for name, entry in facts["columns"].items():
            dtype, shape, offset = np.dtype(entry["dtype"]), entry["shape"], entry["offset"]
            if dtype.kind not in "iuf" or not all(type(size) is int and size >= 0 for size in [*shape, offset, total]):
                raise ValueError(f"the column {name!r} as {entry}")
            if offset % _ALIGNMENT or offset + dtype.itemsize * math.prod(shape) > total:
                raise ValueError(f"the column {name!r} outside the file")
            columns[name] = (dtype, shape, offset, entry["crc32"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        if isinstance(problem, ForestFileError):
            raise
        raise ForestFileError(
            f"{path}: expected a header that describes columns, got {type(problem).__name__} {problem}; the file is damaged."
        ) from None
    return {**facts, "columns": columns}


def _raw(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _truncated(path: Path, kind: str, expected: int, got: int) -> ForestFileError:
    state = "truncated" if got < expected else "longer than written"
    return ForestFileError(
        f"{path}: expected a {kind} file of {expected} bytes, got {got}; it is {state}, write or copy it anew."
    )
