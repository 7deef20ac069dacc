"""The errors that treefold raises. A message names the expected input, the given one, and the remedy."""

import difflib
from collections.abc import Iterable
from numbers import Integral


class TreefoldError(ValueError):
    """Base class of all errors about wrong input.

    >>> issubclass(ShapeError, TreefoldError) and issubclass(TreefoldError, ValueError)
    True
    """


class TreeError(TreefoldError):
    """A tree has a wrong child, label or number of children."""


class ParseError(TreeError):
    """A text cannot be parsed; the message shows the position.

    >>> print(ParseError("expected ')', got the end", text="(a (b", position=5))
    line 1, column 6: expected ')', got the end
      (a (b
           ^
    """

    def __init__(self, problem: str, *, text: str, position: int) -> None:
        self.problem = problem
        self.position = position
        self.line = text.count("\n", 0, position) + 1
        line_start = text.rfind("\n", 0, position) + 1
        self.column = position - line_start + 1
        line_end = text.find("\n", position)
        line = text[line_start : line_end if line_end >= 0 else len(text)]
        # A line can hold a million nodes: show only the part around the position.
        first = max(0, self.column - 1 - 40)
        excerpt = line[first : first + 80].replace("\t", " ")
        pointer = " " * (self.column - 1 - first) + "^"
        super().__init__(f"line {self.line}, column {self.column}: {problem}\n  {excerpt}\n  {pointer}")
        self._arguments = (problem, text, position)

    def __reduce__(self) -> tuple[object, ...]:  # for pickle: errors cross process boundaries
        return _parse_error, self._arguments


def _parse_error(problem: str, text: str, position: int) -> ParseError:
    return ParseError(problem, text=text, position=position)


class TreeIndexError(TreefoldError, IndexError):
    """There is no tree with this number."""


class VocabularyError(TreefoldError):
    """A label is unknown."""


class ShapeError(TreefoldError):
    """An array or tensor has the wrong shape or type."""


class ConfigurationError(TreefoldError):
    """A setting is invalid, or settings contradict each other."""


class ArgumentError(ConfigurationError, TypeError):
    """There is no argument of this name."""


class FileError(TreefoldError):
    """A file or folder cannot be written, or must not be replaced."""


class ForestFileError(TreefoldError):
    """A file of treefold is of another kind than expected, incomplete or damaged."""


class ModelFileError(TreefoldError):
    """A directory is not a saved model or run, or is incomplete."""


class ServiceError(TreefoldError):
    """A service cannot be reached, or does not answer as expected."""


class TrainingError(TreefoldError):
    """Training cannot start or continue."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the nearest known word as the end of a message, or an empty text if none is near.

    >>> nearest("MAXX", ["MIN", "MAX"])
    " (nearest known: 'MAX')"
    >>> nearest("zebra", ["MIN", "MAX"])
    ''
    """
    matches = difflib.get_close_matches(word, list(known), n=1)
    return f" (nearest known: {matches[0]!r})" if matches else ""


def require_positive(owner: str, **sizes: int) -> None:
    """Raise unless every size is an integer of at least one.

    >>> require_positive("Tucker", rank=0)
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: Tucker expects rank to be an integer >= 1, got 0; choose a positive rank.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise ConfigurationError(
                f"{owner} expects {name} to be an integer >= 1, got {size!r}; choose a positive {name}."
            )


def require_choice(owner: str, setting: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless the value is one of the choices.

    >>> require_choice("TreeEncoder", "direction", "upp", ["up", "down"])
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: TreeEncoder expects direction to be one of 'up', 'down', got 'upp' (nearest known: 'up').
    """
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:  # an array compares itself with each choice
        expected = ", ".join(repr(choice) for choice in choices)
        raise ConfigurationError(
            f"{owner} expects {setting} to be one of {expected}, got {value!r}{nearest(str(value), choices)}."
        )


class ReadError(TreefoldError):
    """An input file is malformed; the message names file, line and column as far as they are known.

    >>> print(ReadError("expected a digit, got 'x'", source="a.tsv", line=3, column=7))
    a.tsv, line 3, column 7: expected a digit, got 'x'
    """

    def __init__(self, problem: str, *, source: object, line: int | None = None, column: int | None = None) -> None:
        self.problem, self.source, self.line, self.column = problem, str(source), line, column
        place = [self.source]
        place += [f"line {line}"] if line is not None else []
        place += [f"column {column}"] if column is not None else []
        super().__init__(f"{', '.join(place)}: {problem}")

    def __reduce__(self) -> tuple[object, ...]:  # for pickle: errors cross process boundaries
        return _read_error, (self.problem, self.source, self.line, self.column)


def _read_error(problem: str, source: str, line: int | None, column: int | None) -> ReadError:
    return ReadError(problem, source=source, line=line, column=column)
