"""The parts that data sets share: random numbers, splits, and reading a file line by line."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, TypeVar

import numpy as np

from treefold.data.readers.stream import Line, OnBad, lines_of
from treefold.errors import ConfigurationError, ParseError, ReadError
from treefold.trees.batch import Ints

Item = TypeVar("Item")
Lines = str | os.PathLike[str] | Iterable[str]
"""A path, or the lines themselves, for instance an open text file."""

Paths = Sequence[str | os.PathLike[str]]

Progress = Callable[[int], None]
"""Called from time to time with the number of items done so far."""

PROGRESS_EVERY: Final = 1000


class Split(NamedTuple):
    """The numbers of the examples of three disjoint parts, each in shuffled order.

    >>> train, validation, test = Split(np.array([2, 0]), np.array([1]), np.array([3]))
    """

    train: Ints
    validation: Ints
    test: Ints


def generator(owner: str, seed: int) -> Random:
    """Return a random number generator that is determined by an owner's name and a seed.

    Only its ``random()`` is guaranteed to stay the same in every version of Python, so use no other method.

    >>> generator("split", 0).random() == generator("split", 0).random() != generator("generate", 0).random()
    True
    >>> generator("split", -1)
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: split expects seed to be an integer >= 0, got -1; choose another seed.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ConfigurationError(f"{owner} expects seed to be an integer >= 0, got {seed!r}; choose another seed.")
    # A text seed is hashed with SHA-512, not with hash(). The owner's name keeps the draws of data and split apart.
    return Random(f"{owner} {seed}")


def shuffled(count: int, seed: int) -> Ints:
    """Return 0 … count-1 in an order that depends only on ``count`` and ``seed``, not on numpy's version.

    >>> shuffled(5, seed=0)
    array([3, 0, 1, 4, 2])
    """
    random = generator("split", seed).random
    keys = np.fromiter((random() for _ in range(count)), dtype=np.float64, count=count)
    return np.argsort(keys, kind="stable").astype(np.int64)


def check_fractions(owner: str, fractions: tuple[float, float, float]) -> None:
    """Raise unless the fractions are three numbers of at least 0 that add up to 1.

    >>> check_fractions("convert", (0.8, 0.1, 0.2))
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: convert expects three fractions >= 0 for training, validation and test that
    add up to 1, got (0.8, 0.1, 0.2); for instance (0.8, 0.1, 0.1).
    """
    if len(fractions) != 3 or min(fractions) < 0 or not math.isclose(sum(fractions), 1.0, abs_tol=1e-9):
        raise ConfigurationError(
            f"{owner} expects three fractions >= 0 for training, validation and test that add up to 1, "
            f"got {fractions!r}; for instance (0.8, 0.1, 0.1)."
        )


def read_lines(source: Lines, parse: Callable[[str], Item], on_bad: OnBad | None) -> Iterator[Item]:
    """Parse every line that is not blank; a `ParseError` becomes a `ReadError` with file, line and column.

    >>> list(read_lines(["1", "", "2"], int, None))
    [1, 2]
    """
    if isinstance(source, (str, os.PathLike)):
        name, lines = os.fspath(source), lines_of(source)
    else:
        name = str(getattr(source, "name", "lines"))
        lines = (Line(number, text, None) for number, text in enumerate(source, start=1))
    for number, line, problem in lines:
        text = line.removesuffix("\n").removesuffix("\r")
        if not text or text.isspace():
            continue
        try:
            if problem:
                raise problem
            item = parse(text)
        except (ParseError, ReadError) as bad:
            error = (
                bad
                if isinstance(bad, ReadError)
                else ReadError(bad.problem, source=name, line=number, column=bad.column)
            )
            if on_bad is None:
                raise error from None
            on_bad(error)
        else:
            yield item


def read_files(paths: Paths, read: Callable[[str | os.PathLike[str]], Iterator[Item]]) -> Iterator[Item]:
    """Read files one after the other; a file without any item is an error."""
    for path in paths:
        empty = True
        for item in read(path):
            empty = False
            yield item
        if empty:
            raise ReadError(
                "expected at least one line that can be read, got none; check how it was written", source=path
            )


def names_of(paths: Paths) -> list[str]:
    """Return the names of files without their folders, which mean nothing on another machine."""
    return [Path(path).name for path in paths]
