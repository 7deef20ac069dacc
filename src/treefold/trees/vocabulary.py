"""Vocabularies: the text labels of a forest or a model, and their codes."""

from collections.abc import Iterable, Iterator
from reprlib import repr as shortened
from typing import Final, final

import numpy as np
import numpy.typing as npt

from treefold.errors import ConfigurationError, VocabularyError, nearest, require_choice
from treefold.files import has_half_character

UNKNOWN: Final = "<unk>"
"""The name of the row that stands for all labels without a row of their own."""


@final
class Vocabulary:
    """An immutable list of distinct labels; a label's code is its index.

    >>> vocabulary = Vocabulary(["MIN", "MAX", "7"])
    >>> vocabulary.code("7"), vocabulary[0], len(vocabulary)
    (2, 'MIN', 3)
    >>> vocabulary.code("MAXX")
    Traceback (most recent call last):
    ...
    treefold.errors.VocabularyError: expected one of 3 known labels, got 'MAXX' (nearest known: 'MAX'); ...
    """

    __slots__ = ("_codes", "_names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        if not isinstance(names, Iterable):
            raise VocabularyError(f"a vocabulary expects a list of labels, got {shortened(names)}.")
        self._names = tuple(names)
        for name in self._names:
            if not isinstance(name, str):
                raise VocabularyError(
                    f"a vocabulary expects text labels, got {type(name).__name__} {name!r}; convert it with str()."
                )
            if has_half_character(name):
                raise VocabularyError(
                    f"a vocabulary expects labels of whole characters, got {name!r} with half of a surrogate pair; remove it."
                )
        self._codes = {name: code for code, name in enumerate(self._names)}
        if len(self._codes) != len(self._names):
            twice = next(name for code, name in enumerate(self._names) if self._codes[name] != code)
            raise VocabularyError(f"a vocabulary expects distinct labels, got {twice!r} twice; remove one of them.")

    def code(self, label: str) -> int:
        """Return the code of a label; the error for an unknown label names the nearest known one."""
        try:
            return self._codes[label]
        except KeyError:
            raise self.unknown(label) from None

    def unknown(self, label: str) -> VocabularyError:
        """Return the error for an unknown label."""
        return VocabularyError(
            f"expected one of {len(self)} known labels, got {label!r}{nearest(label, self._names)}; "
            f"correct the label, or make the vocabulary from data that has it."
        )

    def codes_in(self, other: "Vocabulary") -> npt.NDArray[np.int64]:
        """Return the code of each label in another vocabulary, -1 if it is not in there.

        >>> Vocabulary(["a", "b"]).codes_in(Vocabulary(["b", "c"]))
        array([-1,  0])
        """
        return np.fromiter((other._codes.get(name, -1) for name in self._names), dtype=np.int64, count=len(self))

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, code: int) -> str:
        return self._names[code]

    def __contains__(self, label: object) -> bool:
        return label in self._codes

    def __eq__(self, other: object) -> bool:
        return self._names == other._names if isinstance(other, Vocabulary) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._names)

    def __repr__(self) -> str:
        shown = ", ".join(repr(name) for name in self._names[:8])
        return f"Vocabulary([{shown}{', …' if len(self) > 8 else ''}])" + (f" of {len(self)}" if len(self) > 8 else "")


def require_policy(owner: str, setting: str, value: str) -> None:
    """Raise unless the value is a policy for labels that no training tree had: "unk" or "error".

    >>> require_policy("TreeClassifier", "unknown", "zero")
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: TreeClassifier expects unknown to be one of 'unk', 'error', got 'zero', a word of ...
    """
    if isinstance(value, str) and value in ("zero", "absent"):
        raise ConfigurationError(
            f"{owner} expects {setting} to be one of 'unk', 'error', got {value!r}, a word of older versions; "
            f"with 'unk', unknown labels count as {UNKNOWN}."
        )
    require_choice(owner, setting, value, ["unk", "error"])
