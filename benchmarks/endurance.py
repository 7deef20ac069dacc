"""`python -m benchmarks.endurance`: does one process stay small and right over many fits and predictions, in threads and forks?

Prints counts as JSON. The exit code is 1 if memory grew, or if answers in threads or in a forked process differ.
"""

import argparse
import gc
import json
import logging
import mmap
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from treefold import TreeClassifier

TREES = ["(f a b)", "(f b a)", "(f (f a a) b)", "(f b (f b a))"] * 5
CLASSES = [0, 1, 1, 0] * 5
GROWTH = 5e6  # bytes that the memory may grow after the first fits
FIRST = 100


def resident() -> int:
    """Return the bytes of memory that the process has now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


def measure(fits: int, predictions: int, threads: int, first: int = FIRST) -> dict[str, Any]:
    """Fit and predict so many times; then predict in threads, and in a forked process."""
    start = 0
    for number in range(fits):
        if number == min(first, fits - 1):
            start = resident()
        model = TreeClassifier(epochs=1, random_state=number).fit(TREES, CLASSES)
    after_fits = resident()
    for number in range(predictions):
        model.predict([TREES[number % 4]])
    end = resident()
    alone, found = model.predict_proba(TREES).tolist(), [False] * threads

    def compare(place: int) -> None:
        found[place] = all(model.predict_proba(TREES).tolist() == alone for _ in range(20))

    workers = [threading.Thread(target=compare, args=(place,)) for place in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with warnings.catch_warnings(action="ignore"):  # of newer versions of Python: a fork with threads is what is tested
        child = os.fork()
    if not child:
        again = TreeClassifier(epochs=1, random_state=fits - 1).fit(TREES, CLASSES)
        same = all(each.predict_proba(TREES).tolist() == alone for each in (model, again))
        os._exit(0 if same else 1)
    return {
        "fits": fits,
        "predictions": predictions,
        "bytes_after_first_fits": start,
        "growth_by_fits": after_fits - start,
        "growth_by_predictions": end - after_fits,
        "threads_right": f"{sum(found)} of {threads}",
        "fork_right": os.waitpid(child, 0)[1] == 0,
    }


def holds(found: dict[str, Any]) -> bool:
    """Say whether memory stayed, and all answers were the same."""
    right, threads = found["threads_right"].split(" of ")
    return bool(
        found["growth_by_fits"] + found["growth_by_predictions"] < GROWTH and right == threads and found["fork_right"]
    )


def main() -> int:
    """Run it with the numbers from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fits", type=int, default=2000)
    parser.add_argument("--predictions", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # one epoch is not enough, and each fit would say so
    found = measure(options.fits, options.predictions, options.threads)
    print(json.dumps(found, indent=1))
    return 0 if holds(found) else 1


if __name__ == "__main__":
    sys.exit(main())
