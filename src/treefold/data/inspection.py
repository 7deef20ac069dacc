"""Statistics of a data set: sizes, depths, arities, label balance, duplicates between splits, and example trees."""

from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treefold.data.dataset import Dataset
from treefold.trees.batch import Ints
from treefold.trees.tree import Tree

DRAWN_NODES: Final = 15


def inspect(data: Dataset) -> dict[str, Any]:
    """Return sizes, histograms, class balance, duplicates and three trees, ready for JSON."""
    forest = data.forest
    forest.verify()
    depths = np.maximum.reduceat(forest.depths, forest.offsets[:-1]) if len(forest) else np.zeros(0, np.int64)
    arities = forest.child_counts
    return {
        **{name: value for name, value in data.summary().items() if name not in ("format", "version")},
        "labels": len(forest.vocabulary),
        "most_frequent_labels": _most_frequent(data),
        "mean_size": round(float(forest.sizes.mean()), 3) if len(forest) else 0.0,
        "mean_depth": round(float(depths.mean()), 3) if len(forest) else 0.0,
        "sizes": _histogram(forest.sizes),
        "depths": _histogram(depths),
        "arities": _histogram(arities[arities > 0]),
        "classes": {name: _balance(data, part) for name, part in [("all", np.arange(len(data))), *data.splits.items()]},
        "duplicates": _duplicates(data),
        "drawn": [str(tree) for tree in _three(data)],
    }


def _histogram(values: npt.NDArray[Any]) -> dict[str, int]:
    """Count values: a bin for each value if they span less than 20, otherwise bins of doubling width."""
    if not len(values):
        return {}
    if int(values.max()) - int(values.min()) < 20:
        numbers, counts = np.unique(values, return_counts=True)
        return {str(number): int(count) for number, count in zip(numbers, counts, strict=True)}
    bins = np.floor(np.log2(np.maximum(values, 1))).astype(int)
    numbers, counts = np.unique(bins, return_counts=True)
    names = (str(2**n) if n == 0 else f"{2**n}–{2 ** (n + 1) - 1}" for n in numbers.tolist())
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def _most_frequent(data: Dataset) -> dict[str, int]:
    codes = data.forest.labels[data.forest.labels >= 0]
    counts = np.bincount(codes, minlength=len(data.forest.vocabulary))
    order = np.argsort(-counts, kind="stable")[:10]
    return {data.forest.vocabulary[int(code)]: int(counts[code]) for code in order}


def _balance(data: Dataset, part: Ints) -> dict[str, int]:
    """Count the examples of each class; numbers are counted in ten bins of equal width."""
    if data.task == "regression":
        every = data.numbers()
        numbers, every = every[part], every[np.isfinite(every)]
        counts, edges = np.histogram(
            numbers[np.isfinite(numbers)], 10, (every.min(), every.max()) if len(every) else None
        )
        named = {f"{low:.4g} … {high:.4g}": int(n) for low, high, n in zip(edges[:-1], edges[1:], counts, strict=True)}
        return {**named, **({"(none)": int(np.isnan(numbers).sum())} if np.isnan(numbers).any() else {})}
    counts = np.bincount(data.targets[part] + 1, minlength=len(data.classes) + 1)
    named = {name: int(count) for name, count in zip(data.classes, counts[1:], strict=True)}
    return {**named, **({"(none)": int(counts[0])} if counts[0] else {})}


def _duplicates(data: Dataset) -> dict[str, int]:
    """Count equal examples in the whole data set and between each two splits."""
    keys = data.keys()
    result = {"within all": len(keys) - len(set(keys))}
    sets = {name: {keys[index] for index in part.tolist()} for name, part in data.splits.items()}
    for left, right in combinations(sets, 2):
        result[f"{left} and {right}"] = len(sets[left] & sets[right])
    return result


def _three(data: Dataset) -> list[Tree]:
    """Choose a tree from each third of the data set, of a size near the median that fits on the screen."""
    sizes = data.forest.sizes
    if not len(sizes):
        return []
    blocks = np.array_split(np.arange(len(sizes)), min(3, len(sizes)))
    wanted = min(DRAWN_NODES, int(np.median(sizes)))
    return [data.forest[int(block[np.abs(sizes[block] - wanted).argmin()])] for block in blocks]
