"""How fast trees are packed into forests, and forests into batches: python benchmarks/forest.py [--json FILE]

Prints the best of several runs with one thread. The seed is fixed.
"""

import argparse
import json
import platform
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from treefold import Forest
from treefold.data.generators import listops


def best(action: Callable[[], object], repeats: int) -> float:
    """Return the least time of several, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    torch.set_num_threads(1)

    start = time.perf_counter()
    forest = Forest(listops.generate(options.trees, seed=0))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    order = np.random.default_rng(0).permutation(len(forest))[:5000].reshape(-1, 25)

    def batches() -> None:
        for chosen in order:
            forest.batch(chosen)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trees.forest"
        save = best(lambda: forest.save(path), 3)
        size = path.stat().st_size / 2**20
        opening = best(lambda: Forest.open(path), 5)
        mapped = Forest.open(path)

        def mapped_batches() -> None:
            for chosen in order:
                mapped.batch(chosen)

        in_memory, memory_mapped = best(batches, 5) / len(order), best(mapped_batches, 5) / len(order)
    figures = {
        "trees": len(forest),
        "nodes": forest.node_count,
        "generate and build, s": round(seconds, 2),
        "peak memory of the process, MiB": round(peak),
        "schedule of 25 trees, ms": round(1000 * in_memory, 3),
        "the same from the memory map, ms": round(1000 * memory_mapped, 3),
        "save, s": round(save, 3),
        "file, MiB": round(size, 1),
        "open, ms": round(1000 * opening, 2),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__},
        "threads": 1,
    }
    for name, figure in figures.items():
        print(f"{name:36} {figure}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
