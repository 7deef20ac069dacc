"""Made-up results in the format of `treefold sweep`; the numbers follow from names, so they are reproducible."""

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.paper.counts import counted_parameters

from treefold.training.settings import ModelSettings, RunSettings, TrainingSettings

LISTOPS_DATA = {"examples": 100_000, "nodes": 4_321_000, "crc32": 0xC0FFEE}
LRT_DATA = {"examples": 120_000, "nodes": 2_345_000, "crc32": 0xBEEF}
ODD = '_a|b & 50% $\\x$ #1 {y}_z^2~ <b>"bold"</b> `c` 木'
AGGREGATORS = {"Full": "full", "Sum": "sum", "Hosvd": "tucker"}


def noise(*names: object) -> float:
    """Return a number between -1 and 1 that depends on the names alone."""
    return zlib.crc32(repr(names).encode()) / 2**31 - 1


def result(
    grid: str,
    kind: str,
    state_size: int,
    rank: int | None = None,
    *,
    seed: int = 0,
    validation: float = 0.8,
    test: float | None = 0.79,
    aggregator: str | None = None,
    data: dict[str, int] | None = None,
    counted: int | None = None,
    epochs: int = 12,
    training: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return a line of results.jsonl."""
    lrt = grid == "lrt"
    name = aggregator or AGGREGATORS.get(kind, "tucker")
    rule = "all" if counted is not None else "paper"
    if counted is None and name in ("full", "sum", "tucker"):
        counted = counted_parameters(name, state_size=state_size, arity=2 if lrt else 5, rank=rank)
    chosen = {"aggregator": name, "state_size": state_size, "rank": rank, "shared": False, "arity": 2 if lrt else 5}
    settings = RunSettings(
        task="pair" if lrt else "tree",
        model=ModelSettings.of({**chosen, "per_label": True, **(model or {})}),
        training=TrainingSettings.of({"seed": seed, **(training or {})}),
    )
    data = data or (LRT_DATA if lrt else LISTOPS_DATA)
    names = (grid, kind, state_size, rank, seed, settings.model_dump_json(), tuple(data.values()))
    scores = [round(validation * (1 - 0.6 * 0.7**epoch), 5) for epoch in range(epochs)]
    bins = {"by_operators": range(1, 13)} if lrt else {"by_depth": range(1, 11), "by_size": range(5)}
    groups: dict[str, dict[str, list[int]]] = {}
    for group, places in bins.items():
        counts = {(f"{2**b * 4}-{2**b * 8 - 1}" if group == "by_size" else str(b)): 400 - 20 * b for b in places}
        groups[group] = {
            each: [min(count, round(count * ((test or validation) + 0.05 - 0.012 * place))), count]
            for place, (each, count) in enumerate(counts.items())
        }
    return {
        "version": 1,
        "key": f"{zlib.crc32(repr(names).encode()):016x}",
        "grid": grid,
        "kind": kind,
        "seed": seed,
        "settings": settings.model_dump(mode="json"),
        "data": data,
        "aggregation_parameters": counted,
        "counted": rule,
        "parameters": (counted or 1000) * 12 + 5000,
        "epochs": epochs,
        "best_epoch": epochs - 2,
        "validation": validation,
        "test": test,
        "curves": {
            "loss": [round(2 * 0.8**epoch, 5) for epoch in range(epochs)],
            "accuracy": scores,
            "validation_loss": [round(2 * 0.85**epoch, 5) for epoch in range(epochs)],
            "validation_score": scores,
        },
        "groups": groups,
        "seconds": round(60 + 0.004 * (counted or 4000) * (1.2 + 0.2 * noise(names)) + 900 * abs(noise(names, "t")), 1),
        "environment": {"treefold": "0.1.0", "torch": "2.9.0", "python": "3.11.2", "machine": "x86_64", "threads": 1},
        **facts,
    }


def sweep(grid: str, sizes: Iterable[tuple[str, int, int | None, float]], seeds: int = 3) -> list[dict[str, Any]]:
    """Return the lines of a sweep with these kinds, c, r and approximate accuracies."""
    return [
        result(
            grid,
            kind,
            c,
            r,
            seed=seed,
            validation=round(about + 0.006 * noise(grid, kind, c, r, seed), 4),
            test=round(about - 0.003 + 0.006 * noise(grid, kind, c, r, seed, "test"), 4),
            epochs=10 + 3 * seed + c % 5,
        )
        for seed in range(seeds)
        for kind, c, r, about in sizes
    ]


LISTOPS_SIZES: list[tuple[str, int, int | None, float]] = [
    ("Full", 3, None, 0.761),
    ("Full", 5, None, 0.829),
    ("Full", 7, None, 0.821),
    ("Sum", 25, None, 0.78),
    ("Sum", 88, None, 0.817),
    ("Sum", 214, None, 0.839),
    *[
        ("Hosvd", c, r, 0.935 + 0.0002 * c - 0.003 * (r - 3) + 0.01 * (c == 20))
        for c in (10, 20, 50)
        for r in (3, 5, 7)
    ],
]
LRT_SIZES: list[tuple[str, int, int | None, float]] = [
    *[("Full", c, None, 0.92 - 1.1 / c) for c in (3, 5, 10, 20, 50)],  # c = 100 has not been run
    *[("Sum", c, None, 0.92 - 1.2 / c) for c in (3, 5, 10, 20, 50, 100)],
    *[
        ("Hosvd", c, r, 0.915 - 1.0 / c - 0.2 / r)
        for c, ranks in {10: (3, 5, 7), 20: (5, 10, 15), 50: (10, 20, 30), 100: (20, 50, 70)}.items()
        for r in ranks
    ],
]


def beyond(seeds: int = 2) -> list[dict[str, Any]]:
    """Return results of kinds that the paper does not have, on the data of the ListOps sweep."""
    kinds = [
        ("Canonical", "canonical", 20, 28, 3388, 0.921, False),
        ("Tensor train", "tensor-train", 20, 6, 3270, 0.936, False),
        ("Tucker, shared, cosine", "tucker", 50, 5, 1660, 0.955, True),
        ("Canonical, shared", "canonical", 20, 60, 2460, 0.902, True),
        ("Tensor train, shared", "tensor-train", 20, 10, 2400, 0.927, True),
        ("Sum, shared", "sum", 50, None, 2550, 0.61, True),
    ]
    return [
        result(
            "beyond",
            kind,
            c,
            r,
            seed=seed,
            aggregator=aggregator,
            counted=counted,
            validation=round(about + 0.004 * noise(kind, seed), 4),
            test=round(about + 0.004 * noise(kind, seed, "test"), 4),
            model={"shared": shared},
        )
        for seed in range(seeds)
        for kind, aggregator, c, r, counted, about, shared in kinds
    ]


def write(folder: Path, lines: Iterable[dict[str, Any]]) -> Path:
    """Write results.jsonl into a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return folder
