"""What `treefold data inspect` finds in a data set, and how it shows it in 80 columns."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.markup import escape

from treefold.cli.console import out
from treefold.data.dataset import Dataset
from treefold.trees.tree import Tree

_BAR = 30
_DRAWN_NODES = 15


def findings(data: Dataset) -> dict[str, Any]:
    """Return sizes, histograms, balance, duplicates and three trees, ready for JSON."""
    forest = data.forest
    forest.verify()
    depths = np.maximum.reduceat(forest.depths, forest.offsets[:-1]) if len(forest) else np.zeros(0, np.int64)
    present = (
        np.bincount(_parent_rows(data), minlength=forest.node_count) if forest.node_count else np.zeros(0, np.int64)
    )
    return {
        **{name: value for name, value in data.summary().items() if name not in ("format", "version")},
        "labels": len(forest.vocabulary),
        "most_frequent_labels": _most_frequent(data),
        "mean_size": round(float(forest.sizes.mean()), 3) if len(forest) else 0.0,
        "mean_depth": round(float(depths.mean()), 3) if len(forest) else 0.0,
        "sizes": _histogram(forest.sizes),
        "depths": _histogram(depths),
        "arities": _histogram(present[present > 0]),
        "classes": {name: _balance(data, part) for name, part in [("all", np.arange(len(data))), *data.splits.items()]},
        "duplicates": _duplicates(data),
        "drawn": [str(tree) for tree in _three(data)],
    }


def _parent_rows(data: Dataset) -> npt.NDArray[np.int64]:
    forest = data.forest
    inner = forest.parents >= 0
    return (np.repeat(forest.offsets[:-1], forest.sizes) + forest.parents.astype(np.int64))[inner]


def _histogram(values: npt.NDArray[Any]) -> dict[str, int]:
    """Count values; one bin each up to 20 different ones, else bins of doubling width."""
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


def _balance(data: Dataset, part: npt.NDArray[np.int64]) -> dict[str, int]:
    counts = np.bincount(data.targets[part] + 1, minlength=len(data.classes) + 1)
    named = {name: int(count) for name, count in zip(data.classes, counts[1:], strict=True)}
    return {**named, **({"(none)": int(counts[0])} if counts[0] else {})}


def _duplicates(data: Dataset) -> dict[str, int]:
    """Count equal examples within the whole and between each two splits."""
    keys = data.keys()
    result = {"within all": len(keys) - len(set(keys))}
    sets = {name: {keys[index] for index in part.tolist()} for name, part in data.splits.items()}
    for left, right in combinations(sets, 2):
        result[f"{left} and {right}"] = len(sets[left] & sets[right])
    return result


def _three(data: Dataset) -> list[Tree]:
    """Choose three trees that fit on the screen: spread over the data set, the nearest to a middling size."""
    sizes = data.forest.sizes
    if not len(sizes):
        return []
    blocks = np.array_split(np.arange(len(sizes)), min(3, len(sizes)))
    wanted = min(_DRAWN_NODES, int(np.median(sizes)))
    return [data.forest[int(block[np.abs(sizes[block] - wanted).argmin()])] for block in blocks]


def show(found: dict[str, Any], name: str) -> None:
    """Print the findings for a terminal of 80 columns."""
    kind = "pairs" if found["pairs"] else "trees"
    out.print(f"[bold]{escape(name)}[/bold]")
    rows = [
        (kind, f"{found['examples']:,}"),
        ("nodes", f"{found['nodes']:,}, {found['mean_size']:.1f} a tree"),
        ("depth", f"{found['mean_depth']:.2f} on average, greatest {found['depth']}"),
        ("arity", f"greatest {found['arity']}"),
        ("labels", f"{found['labels']:,}: {_joined(found['most_frequent_labels'])}"),
        ("splits", ", ".join(f"{split} {count:,}" for split, count in found["splits"].items()) or "none"),
        ("made by", _joined_made(found["made"])),
    ]
    for row, value in rows:
        out.print(f"  {row:<8} {escape(_fitted(value, 68))}")
    for title, key in [("nodes of a tree", "sizes"), ("depth of a tree", "depths"), ("children of a node", "arities")]:
        _bars(title, found[key])
    _bars("class", found["classes"]["all"])
    out.print("\n[bold]equal examples[/bold]")
    for where, count in found["duplicates"].items():
        warn = "  [yellow]← the test is not independent[/yellow]" if count and where != "within all" else ""
        out.print(f"  {where:<24} {count:,}{warn}")
    for text in found["drawn"]:
        out.print()
        for line in Tree.parse(text).draw(max_nodes=_DRAWN_NODES, max_depth=8).split("\n"):
            out.print("  " + escape(_fitted(line, 76)))


def _bars(title: str, counts: dict[str, int]) -> None:
    if not counts:
        return
    out.print(f"\n[bold]{title}[/bold]")
    shown = dict(Counter(counts).most_common(20)) if len(counts) > 20 else counts
    most, total = max(counts.values()), sum(counts.values())
    width = min(24, max(len(name) for name in shown))
    for name, count in shown.items():
        bar = "█" * max(round(_BAR * count / most), 1 if count else 0)
        out.print(f"  {escape(_fitted(name, width)):<{width}} {count:>10,} {count / total:>6.1%} {bar}")
    if len(shown) < len(counts):
        out.print(f"  … and {len(counts) - len(shown):,} more")


def _joined(counts: dict[str, int]) -> str:
    return ", ".join(counts)


def _joined_made(made: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in made.items() if key != "settings")


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
