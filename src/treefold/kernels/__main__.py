"""`python -m treefold.kernels` compiles all kernels, which the first use of each would do otherwise; they are kept on disk."""

import sys
import time
from typing import Any

import numpy as np

from treefold.kernels.compile import precompile
from treefold.kernels.gather import gather, gather_translated, translate
from treefold.kernels.layout import Kernel, collect
from treefold.kernels.optimisers import adadelta_step
from treefold.nn.aggregators import AGGREGATORS
from treefold.nn.cells import CELLS
from treefold.nn.cells.base import layout_of
from treefold.nn.heads import Classifier, PairClassifier


def all_kernels() -> list[Kernel]:
    """Return the kernels that any model may need."""
    found: list[Kernel] = []
    for make, _ in CELLS.values():
        for name, form in AGGREGATORS.items():
            for shared in (False, True):
                sizes: dict[str, Any] = {"state_size": 2, "arity": 2, "rank": 2 if form.has_rank else None}
                found += layout_of(make(name, **sizes, shared=shared)).functions(training=True)
    for head in (Classifier(in_size=2, classes=2), PairClassifier(in_size=2, classes=2)):
        kernel = head.kernel()
        assert kernel is not None
        found += [*kernel.functions[0], *kernel.functions[1]]
    return list(dict.fromkeys([*found, collect, gather, gather_translated, translate, adadelta_step]))


def compile_kernels(dtype: "np.dtype[Any]") -> float:
    """Compile all kernels for numbers of a type; return the seconds."""
    start = time.perf_counter()
    precompile(all_kernels(), dtype)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.stdout.write("compiling the kernels (once, a few minutes) … ")
    sys.stdout.flush()
    seconds = compile_kernels(np.dtype(np.float32))
    seconds += compile_kernels(np.dtype(np.float64)) if "--double" in sys.argv else 0
    sys.stdout.write(f"{seconds:.0f} s\n")
