"""Targets of estimators: classes, numbers and weights, checked and coded."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shortened
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import column_or_1d  # type: ignore[import-untyped]

from treefold.errors import ConfigurationError, ShapeError, TrainingError, nearest
from treefold.files import has_half_character
from treefold.training.task import LARGEST, Array, Floats
from treefold.trees.batch import Ints

# Axes:  n examples · N nodes · K classes or outputs
_FEWEST_HELD_OUT: Final = 10  # with fewer, the best epoch is a matter of chance
_KINDS: Final = (str, bool, int, float)


def class_values(y: Any, count: int, owner: str, per: str = "tree") -> Array:
    """Return the class of each example (n,); raise unless all are text or whole numbers.

    >>> class_values(["b", "a", "b"], 3, "TreeClassifier").tolist()
    ['b', 'a', 'b']
    """
    values = _flat(y, count, owner, per)
    if not count:
        raise TrainingError(f"{owner} expects at least two classes in y, got none; label some.")
    # numpy changes entries of lists: it makes numbers of booleans, and drops a NUL at the end of a text
    entries = values if hasattr(y, "dtype") else _as_array(y, owner, object).reshape(-1)
    _require_one_kind(entries.tolist(), owner)
    if values.dtype.kind == "f":
        odd = values[~np.isfinite(values)] if not np.isfinite(values).all() else values[values % 1 != 0]
        if odd.size:
            raise TrainingError(
                f"{owner} expects classes. Unknown label type: got the number {odd[0]} (input contains NaN, infinity or "
                f"fractions); use TreeRegressor for numbers, or remove the example."
            )
    return values


def as_classes(y: Any, count: int, owner: str, per: str = "tree") -> tuple[Array, Ints]:
    """Return the sorted classes (K,) and the index of each example's class (n,).

    >>> as_classes(["b", "a", "b"], 3, "TreeClassifier")[1].tolist()
    [1, 0, 1]
    """
    classes, codes = np.unique(class_values(y, count, owner, per), return_inverse=True)
    if len(classes) < 2:
        raise TrainingError(
            f"{owner} expects at least two classes in y, got one class, {classes.tolist()[0]!r}; "
            f"there is nothing to learn; check how y was made or split."
        )
    return classes, codes.astype(np.int64)


def codes_of(values: Iterable[Any], classes: Array, owner: str) -> Ints:
    """Return the index of each value among known classes (n,), -1 for None.

    >>> codes_of(["b", None, "a"], np.array(["a", "b"]), "NodeClassifier").tolist()
    [1, -1, 0]
    """
    known = classes.tolist()
    places = {**{value: code for code, value in enumerate(known)}, None: -1}
    codes = []
    for value in values:
        try:
            code = places.get(value)
        except TypeError:  # a list or an array
            code = None
        if code is None:
            raise TrainingError(
                f"{owner} expects one of the {len(known)} classes that it learns, got {value!r}"
                f"{nearest(str(value), map(str, known))}; correct it, or remove the example."
            )
        codes.append(code)
    return np.array(codes, np.int64)


def as_node_classes(y: Any, sizes: Ints, owner: str) -> tuple[Array, Ints]:
    """Return the sorted classes (K,) and the index of each node's class (N,), -1 for None.

    >>> as_node_classes([["a", None], ["b"]], np.array([2, 1]), "NodeClassifier")[1].tolist()
    [0, -1, 1]
    """
    flat = node_labels(y, sizes, owner)
    known = np.array([label is not None for label in flat])
    labels = [label for label in flat if label is not None]
    classes, found = as_classes(labels, len(labels), owner, "node")
    codes = np.full(len(flat), -1, np.int64)
    codes[known] = found
    return classes, codes


def node_labels(y: Any, sizes: Ints, owner: str) -> list[Any]:
    """Return the labels of all nodes in one list; raise unless each node has one."""
    _require_given(y, owner, "a list of labels for each tree")
    if len(y) != len(sizes):
        raise ShapeError(f"{owner} expects y to have a list of labels for each of {len(sizes)} trees, got {len(y)}.")
    flat: list[Any] = []
    for number, (labels, size) in enumerate(zip(y, sizes.tolist(), strict=True)):
        if isinstance(labels, str) or not isinstance(labels, Iterable) or len(row := list(labels)) != size:
            got = len(row) if not isinstance(labels, str) and isinstance(labels, Iterable) else repr(labels)
            raise ShapeError(
                f"tree {number}: expected a label for each of its {size} nodes, in post-order, got {got}; "
                f"Tree.postorder() walks them, None means no label."
            )
        flat += [label.item() if isinstance(label, np.generic) else label for label in row]
    return flat


def accuracy(classes: Array, predicted: Array, truth: Array, weights: Floats | None, owner: str) -> float:
    """Return the share of right predictions, weighted; raise if one of the known and the true classes are text, the others not.

    >>> known = np.array(["a", "b"])
    >>> accuracy(known, known, np.array(["a", "c"]), np.array([3.0, 1.0]), "TreeClassifier")
    0.75
    """
    known, given = classes.tolist()[0], truth.tolist()[0]
    if isinstance(known, str) != isinstance(given, str):
        raise TrainingError(
            f"{owner} expects classes like those that it learnt, such as {known!r}, got {given!r}; convert them."
        )
    if weights is not None and not weights.any():
        raise TrainingError(f"{owner} expects a sample_weight above zero for some labelled node, got zero for all.")
    return float(np.average(predicted == truth, weights=weights))


def as_numbers(y: Any, count: int, owner: str, per: str = "tree") -> Floats:
    """Return numbers (n,) or (n, K), all finite.

    >>> as_numbers([1, 2.5], 2, "TreeRegressor")
    array([1. , 2.5])
    """
    _require_given(y, owner, f"a number for each {per}")
    try:
        kind = _as_array(y, owner).dtype.kind
        if kind in "mMc":
            raise TypeError("times or complex numbers")
        values = _as_array(y, owner, np.float64)
    except (TypeError, ValueError) as problem:
        if isinstance(problem, TrainingError):
            raise
        raise TrainingError(f"{owner} expects numbers in y, got {problem}; use TreeClassifier for classes.") from None
    if values.ndim == 2 and values.shape[1] == 1:
        values = np.asarray(column_or_1d(values, warn=True))
    if values.ndim not in (1, 2) or len(values) != count or (count and not values.size):
        raise ShapeError(f"{owner} expects y to have one row for each of {count} {per}s, got the shape {values.shape}.")
    bad = np.flatnonzero(~np.isfinite(values).reshape(count, -1).all(1))
    if len(bad):
        raise TrainingError(
            f"{owner} expects finite numbers in y, got {values[bad[0]]} for {per} {bad[0]} (input contains NaN or infinity); "
            f"remove the {per}, or fill the number in."
        )
    if count and (largest := np.abs(values).max()) > LARGEST:
        raise TrainingError(
            f"{owner} expects numbers of at most {LARGEST:g} in y, got {largest:g}; divide all of them by the same number."
        )
    return values


def as_weights(sample_weight: Any, count: int, owner: str) -> Floats | None:
    """Return weights (n,) scaled to mean one, because their scale has no meaning.

    >>> as_weights([1, 3], 2, "TreeClassifier")
    array([0.5, 1.5])
    """
    if sample_weight is None:
        return None
    try:
        weights = _as_array(sample_weight, owner, np.float64)
    except (TypeError, ValueError):
        raise TrainingError(
            f"{owner} expects sample_weight to have one number for each of {count} examples, got {shortened(sample_weight)}."
        ) from None
    if weights.shape != (count,):
        raise ShapeError(
            f"{owner} expects sample_weight to have one number for each of {count} examples, got the shape {weights.shape}."
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        bad = weights[~(np.isfinite(weights) & (weights >= 0))][0]
        raise TrainingError(f"{owner} expects sample_weight to be finite and not negative, got {bad}.")
    if not weights.any():
        raise TrainingError(f"{owner} expects a sample_weight above zero, got zero for all; there is nothing to learn.")
    weights = weights / weights.max()  # the sum of huge numbers would be infinite
    return np.asarray(weights / weights.mean())


def has_entries(values: Any) -> bool:
    """Return whether something is a sequence or an array with an axis; text is neither.

    >>> [has_entries(each) for each in (["a"], np.zeros(2), "a", np.array("a"), 5)]
    [True, True, False, False, False]
    """
    is_sized = hasattr(values, "__len__") or hasattr(values, "__array__")
    return is_sized and not isinstance(values, str) and getattr(values, "ndim", 1) > 0


def as_class_weights(class_weight: Any, classes: Array, codes: Ints, owner: str) -> Floats | None:
    """Return a weight for each class (K,): from a dict, in which missing classes have 1, or "balanced", n / (K · count).

    >>> as_class_weights("balanced", np.array(["a", "b"]), np.array([0, 0, 0, 1]), "TreeClassifier")
    array([0.66666667, 2.        ])
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(codes[codes >= 0], minlength=len(classes))
        return np.asarray(counts.sum() / (len(classes) * counts))
    if not isinstance(class_weight, Mapping):
        raise ConfigurationError(
            f"{owner} expects class_weight to be None, 'balanced' or a dict of classes, got {class_weight!r}."
        )
    known = classes.tolist()
    for name in class_weight:
        if name not in known:
            raise ConfigurationError(
                f"{owner} expects class_weight to name classes of y, got {name!r}{nearest(str(name), map(str, known))}."
            )
    for name, weight in class_weight.items():
        is_number = isinstance(weight, (int, float, np.number)) and not isinstance(weight, np.complexfloating)
        if not is_number or not 0 <= weight <= sys.float_info.max:
            raise ConfigurationError(
                f"{owner} expects the class_weight of {name!r} to be a number, finite and not negative, got {shortened(weight)}."
            )
    return np.array([float(class_weight.get(name, 1.0)) for name in known])


def hold_out(numbers: Ints, classes: Ints | None, fraction: float, seed: int) -> tuple[Ints, Ints]:
    """Split examples into training and validation, stratified by class if possible; no validation if it would be small.

    >>> [len(part) for part in hold_out(np.arange(200), None, 0.1, 0)], len(hold_out(np.arange(20), None, 0.1, 0)[1])
    ([180, 20], 0)
    """
    count = round(fraction * len(numbers))
    if count < _FEWEST_HELD_OUT:
        return numbers, np.zeros(0, np.int64)
    strata = None if classes is None else classes[numbers]
    if strata is not None:
        sizes = np.bincount(strata)
        present = int((sizes > 0).sum())
        if sizes[sizes > 0].min() < 2 or count < present or len(numbers) - count < present:
            strata = None
    from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]  # slow to import

    train, held = train_test_split(numbers, test_size=count, stratify=strata, random_state=seed)
    return np.sort(train), np.sort(held)


def _flat(y: Any, count: int, owner: str, per: str) -> Array:
    _require_given(y, owner, f"a class for each {per}")
    try:
        values = _as_array(y, owner)
    except ValueError as problem:
        if isinstance(problem, TrainingError):
            raise
        raise ShapeError(f"{owner} expects y to be a flat sequence of classes, got a nested one.") from None
    if values.ndim == 2 and values.shape[1] == 1:
        values = np.asarray(column_or_1d(values, warn=True))
    if values.ndim != 1:
        raise ShapeError(f"{owner} expects y to be a flat sequence of classes, got the shape {values.shape}.")
    if len(values) != count:
        raise ShapeError(f"{owner} expects y to have one class for each of {count} {per}s, got {len(values)}.")
    return values


def _as_array(values: Any, owner: str, dtype: npt.DTypeLike | None = None) -> Array:
    """Return values as an array, without their gradient; raise if some are masked, which numpy would forget."""
    if np.ma.is_masked(values):
        raise TrainingError(f"{owner} expects y without masked entries, got some; remove these examples.")
    values = values.detach() if hasattr(values, "detach") else values
    try:
        return np.asarray(values, dtype=dtype)
    except RuntimeError as problem:  # of tensors in a list
        raise TrainingError(f"{owner} expects y to be a list or an array, got {problem}; convert it.") from None


def _require_given(y: Any, owner: str, what: str) -> None:
    if y is None:
        raise TrainingError(f"{owner} requires y to be passed, but the target y is None; give {what}.")
    if not has_entries(y):
        raise ShapeError(f"{owner} expects y to have {what}, got {type(y).__name__}.")


def _require_one_kind(values: Sequence[Any], owner: str) -> None:
    """Raise if classes are of several types, which numpy would turn into text or could not sort."""
    kinds: dict[type, Any] = {}
    for value in values:
        plain = value.item() if isinstance(value, np.generic) else value
        kind = next((kind for kind in _KINDS if isinstance(plain, kind)), None)
        if kind is None:
            raise TrainingError(f"{owner} expects classes that are text or numbers, got {value!r}; convert them.")
        if isinstance(plain, str) and (plain.endswith("\0") or has_half_character(plain)):
            raise TrainingError(
                f"{owner} expects classes of whole characters without a NUL at the end, got {shortened(plain)}; remove it."
            )
        kinds.setdefault(kind, value)
    if len(kinds) > 1 and set(kinds) != {int, float}:
        raise TrainingError(
            f"{owner} expects classes of one type, got {' and '.join(map(repr, kinds.values()))}; convert them to text."
        )
