"""How trees are written: the labels and tokens of s-expressions, and what is wrong with text that is none."""

import math
import re
from collections.abc import Iterable, Mapping, Set
from reprlib import repr as shortened  # labels may be anything, of any size
from typing import Final, SupportsFloat

from treefold.errors import ParseError, TreeError

Label = str | tuple[float, ...]
"""A label is text, or a vector of finite numbers."""

ABSENT: Final = "_"
"""How an absent child (⊥) is written."""

_BARE = r'[^\s()"\[][^\s()"]*'
_BARE_LABEL = re.compile(_BARE)
TOKEN = re.compile(rf'\s*(?:([()])|("(?:[^"\\]|\\.)*")|(\[[^\]]*\])|({_BARE})|(\Z))', re.DOTALL)
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPES: Final = {escape[1]: character for character, escape in _ESCAPES.items()}


def as_vector(label: object) -> tuple[float, ...]:
    """Return a label that is no text as a tuple of finite numbers, or say why it is none.

    >>> as_vector([1, 2.5])
    (1.0, 2.5)
    """
    if not isinstance(label, Iterable) or isinstance(label, (bytes, bytearray, Mapping, Set)):
        raise TreeError(
            f"a label is text or a vector of numbers, got {type(label).__name__} {shortened(label)}; "
            f"write Tree({shortened(str(label))})."
        )
    try:
        vector = tuple(_finite_float(number) for number in label)
    except (TypeError, ValueError, OverflowError):
        raise TreeError(
            f"a vector label expects numbers, got {shortened(label)}; give a flat list of numbers."
        ) from None
    if not vector:
        raise TreeError("a vector label expects at least one number, got none; use text for nodes without a vector.")
    for index, number in enumerate(vector):
        if not math.isfinite(number):
            raise TreeError(
                f"a vector label expects finite numbers, got {number} at index {index}; replace it, or drop the tree."
            )
    return vector


def _finite_float(number: object) -> float:
    if isinstance(number, str) or not isinstance(number, SupportsFloat):
        raise TypeError(number)
    return float(number)


def written(label: Label) -> str:
    """Write a label as it stands in an s-expression.

    >>> written("MAX"), written("two words"), written((0.5, 1.0))
    ('MAX', '"two words"', '[0.5 1.0]')
    """
    if isinstance(label, tuple):
        return f"[{' '.join(str(number) for number in label)}]"
    if label != ABSENT and _BARE_LABEL.fullmatch(label):
        return label
    return f'"{"".join(_ESCAPES.get(character, character) for character in label)}"'


def read_label(text: str, start: int, quoted: str | None, vector: str | None, bare: str | None) -> Label:
    """Return the label that a token stands for."""
    if quoted is not None:
        return re.sub(r"\\(.)", lambda match: _UNESCAPES.get(match[1], match[1]), quoted[1:-1], flags=re.DOTALL)
    if vector is not None:
        try:
            return as_vector([float(number) for number in vector[1:-1].replace(",", " ").split()])
        except ValueError as problem:
            raise ParseError(
                f"expected numbers in [ ], {problem}; put a label that begins with '[' in quotes",
                text=text,
                position=start,
            ) from None
    assert bare is not None
    return bare


def read_head(text: str, position: int) -> tuple[Label, int]:
    """Read the label that follows an opening bracket."""
    match = TOKEN.match(text, position)
    if match is None:
        raise bad_token(text, position)
    start = match.start(match.lastindex or 0)
    bracket, quoted, vector, bare, end = match.groups()
    if bracket is not None or end is not None or bare == ABSENT:
        got = "the end of the text" if end is not None else repr(bracket or bare)
        raise ParseError(
            f"expected a label after '(', got {got}; write \"\" for an empty label", text=text, position=start
        )
    return read_label(text, start, quoted, vector, bare), match.end()


def bad_token(text: str, position: int) -> ParseError:
    """Return the error for text that begins no token: a quote or a bracket of a vector that does not close."""
    while text[position].isspace():
        position += 1
    opener, closer = ('"', '"') if text[position] == '"' else ("[", "]")
    return ParseError(f"expected {closer!r} to close {opener!r}, got the end of the text", text=text, position=position)


def unfinished(text: str, label: Label, start: int) -> ParseError:
    """Return the error for text that ends inside a node."""
    line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
    where = f"column {column}" if line == text.count("\n") + 1 else f"line {line}, column {column}"
    return ParseError(
        f"expected ')' to close '({written(label)}' of {where}, got the end of the text", text=text, position=len(text)
    )
