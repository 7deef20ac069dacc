"""Time and memory of generating the ListOps and LRT data: ``python benchmarks/generate.py [--originals ../shared/data/lrt]``."""

import argparse
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from treefold import Forest, Tree
from treefold.data.generators import listops, lrt


def measured(title: str, goal: float, work: Callable[[], str]) -> None:
    start = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KiB on Linux
    print(f"{title:<32} {seconds:6.1f} s (goal {goal:.0f} s)   peak so far {peak:5.0f} MiB   {result}")


def listops_forest(size: int, seed: int) -> str:
    forest = Forest(listops.generate(size, seed))
    operators = int((forest.widths > 0).sum())
    digits = forest.node_count - operators
    depth = np.maximum.reduceat(forest.depths, forest.offsets[:-1]).mean()
    arities = np.bincount(forest.widths)[2:] / operators
    return (
        f"{len(forest)} trees; a tree has {operators / size:.2f} operators, {digits / size:.2f} digits, depth {depth:.2f}; "
        f"arity shares {np.round(100 * arities, 1)} %"
    )


def pair_forests(pairs: Iterable[lrt.Pair]) -> str:
    bins: Counter[int] = Counter()
    relations: Counter[str] = Counter()
    right: list[Forest] = []
    some: list[Tree] = []

    def left_trees() -> Iterator[Tree]:
        # The right trees go to forests in portions: all of them at once would be most of the memory.
        for pair in pairs:
            bins[pair.operators] += 1
            relations[pair.relation] += 1
            some.append(pair.right)
            if len(some) == 10_000:
                right.append(Forest(some))
                some.clear()
            yield pair.left

    left = Forest(left_trees())
    both = left, Forest.concatenate([*right, Forest(some)])
    total = len(both[0])
    shares = " ".join(f"{100 * bins[size] / total:.1f}" for size in range(lrt.LARGEST_BIN + 1))
    kinds = " ".join(f"{name} {100 * relations[name] / total:.1f}" for name in lrt.RELATIONS)
    return f"{total} pairs, {both[0].node_count + both[1].node_count} nodes; bins {shares} %; relations {kinds} %"


def main() -> None:
    beside = Path(__file__).parents[1].parent / "shared" / "data" / "lrt"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="ListOps trees")
    parser.add_argument("--draws", type=int, default=500_000, help="LRT draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--originals", type=Path, default=beside, help="folder with the original files train0 … train12"
    )
    options = parser.parse_args()

    measured("ListOps, with the forest", 30, lambda: listops_forest(options.size, options.seed))
    measured("LRT, with two forests", 60, lambda: pair_forests(lrt.generate(options.draws, options.seed)))
    keep = lrt.generate(options.draws, options.seed, keep_larger=True)
    measured("LRT, larger pairs kept, the same", 60, lambda: pair_forests(keep))
    files = [options.originals / f"train{size}" for size in range(lrt.LARGEST_BIN + 1)]
    if not files[0].exists():
        print(f"the LRT originals are not in {options.originals}: reading not measured")
        return
    measured("LRT originals, read", 20, lambda: f"{sum(1 for file in files for _ in lrt.read_lrt(file))} pairs")
    originals = (pair for file in files for pair in lrt.read_lrt(file, check=True))
    measured("  checked, with two forests", 60, lambda: pair_forests(originals))


if __name__ == "__main__":
    main()
