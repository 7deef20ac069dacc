"""What the data sets share: reading a file line by line, a stable shuffle, the three parts of a split."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from treefold.errors import ConfigurationError, ParseError, ReadError

Item = TypeVar("Item")
Source = str | os.PathLike[str] | Iterable[str]
"""A path, or the lines themselves, for instance an open text file."""

OnBad = Callable[[ReadError], None]
"""What to do with a line that cannot be read, instead of stopping there."""

Progress = Callable[[int], None]
"""Told from time to time how much is done."""

PROGRESS_EVERY: Final = 1000


class Split(NamedTuple):
    """The indices of three parts of a data set that have nothing in common, each in shuffled order.

    >>> train, validation, test = Split(np.array([2, 0]), np.array([1]), np.array([3]))
    """

    train: npt.NDArray[np.int64]
    validation: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]


def generator(owner: str, seed: int) -> Random:
    """Return a source of random numbers of its own for each owner and seed.

    Only its ``random()`` is promised to stay the same in every version of Python, so use no other method.

    >>> generator("split", 0).random() == generator("split", 0).random() != generator("generate", 0).random()
    True
    >>> generator("split", -1)
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: split expects seed to be an integer >= 0, got -1; choose another seed.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ConfigurationError(f"{owner} expects seed to be an integer >= 0, got {seed!r}; choose another seed.")
    # Text as seed is hashed with SHA-512, not with hash(). With the bare number, data and split would use the same draws.
    return Random(f"{owner} {seed}")


def shuffled(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return 0 … count-1 in an order that depends on nothing but ``count`` and ``seed``, not even on numpy's version.

    >>> shuffled(5, seed=0)
    array([3, 0, 1, 4, 2])
    """
    random = generator("split", seed).random
    keys = np.fromiter((random() for _ in range(count)), dtype=np.float64, count=count)
    return np.argsort(keys, kind="stable").astype(np.int64)


def read_lines(source: Source, parse: Callable[[str], Item], on_bad: OnBad | None) -> Iterator[Item]:
    """Parse every line that is not blank; a `ParseError` becomes a `ReadError` with file, line and column.

    >>> list(read_lines(["1", "", "2"], int, None))
    [1, 2]
    """
    name = _name(source)
    for number, line in enumerate(_lines(source, name), start=1):
        try:
            text = _text(line)
            if not text or text.isspace():
                continue
            item = parse(text)
        except ParseError as bad:
            error = ReadError(bad.problem, source=name, line=number, column=bad.column)
            if on_bad is None:
                raise error from None
            on_bad(error)
            continue
        yield item


def _name(source: Source) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    return str(getattr(source, "name", "lines"))


def _lines(source: Source, name: str) -> Iterator[str | bytes]:
    if not isinstance(source, (str, os.PathLike)):
        yield from source
        return
    try:
        # Bytes, since a line that is no text must cost that line only, not the file.
        with Path(source).open("rb") as file:
            yield from file
    except OSError as problem:
        raise ReadError(
            f"expected a file that can be read, got {problem.strerror or problem}; check the path.", source=name
        ) from None


def _text(line: str | bytes) -> str:
    try:
        text = line if isinstance(line, str) else line.decode("utf-8")
    except UnicodeDecodeError as problem:
        before = problem.object[: problem.start].decode("utf-8")
        raise ParseError(
            f"expected UTF-8 text, got the byte 0x{problem.object[problem.start]:02x}; convert the file",
            text=before + "?",
            position=len(before),
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
