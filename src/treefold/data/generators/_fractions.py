"""Fractions of a split into training, validation and test, checked once for all splits."""

import math

from treefold.errors import ConfigurationError


def check_fractions(owner: str, fractions: tuple[float, float, float]) -> None:
    """Raise unless the fractions are three numbers of at least 0 that add up to 1.

    >>> check_fractions("split_by_block", (0.8, 0.1, 0.2))
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: split_by_block expects three fractions >= 0 for training, validation and test that
    add up to 1, got (0.8, 0.1, 0.2); for instance (0.8, 0.1, 0.1).
    """
    if len(fractions) != 3 or min(fractions) < 0 or not math.isclose(sum(fractions), 1.0, abs_tol=1e-9):
        raise ConfigurationError(
            f"{owner} expects three fractions >= 0 for training, validation and test that add up to 1, "
            f"got {fractions!r}; for instance (0.8, 0.1, 0.1)."
        )
