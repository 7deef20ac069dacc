"""A forest of a million trees: time and memory of opening it: python benchmarks/large_forest.py

The forest has ListOps trees; a new process opens it and makes batches from the memory map.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from treefold import Forest
from treefold.data.generators import listops

OPENING = """
import sys, time
import numpy as np
from treefold import Forest

def resident():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return " + ".join(f"{int(status[key].split()[0]) // 1024} MiB {name}" for key, name in
                      [("RssAnon", "own"), ("RssFile", "of files, which the system takes back when it needs to")])

print("resident before opening:", resident())
start = time.perf_counter()
forest = Forest.open(sys.argv[1])
opened = time.perf_counter() - start
print(f"open: {1000 * opened:.1f} ms; resident:", resident())
chosen = np.random.default_rng(0).integers(0, len(forest), (200, 25))
start = time.perf_counter()
for row in chosen:
    forest.batch(row)
batched = (time.perf_counter() - start) / len(chosen)
print(f"a batch of 25 random trees: {1000 * batched:.3f} ms; resident after 200 of them:", resident())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=1_000_000)
    options = parser.parse_args()
    part = Forest(listops.generate(50_000, seed=0))
    forest = part[np.arange(options.trees) % len(part)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.forest"
        start = time.perf_counter()
        forest.save(path)
        size = path.stat().st_size / 2**20
        print(
            f"{len(forest):,} trees, {forest.node_count:,} nodes, {size:,.0f} MiB, saved in {time.perf_counter() - start:.1f} s"
        )
        del forest, part
        subprocess.run([sys.executable, "-P", "-c", OPENING, str(path)], check=True)


if __name__ == "__main__":
    main()
