"""`python -m treefold.kernels` compiles the kernels of all forms, cells and heads before their first use.

Good for an image or a test run. They are kept in the user's cache. ``--double`` compiles them for float64 too.
"""

import logging
import sys

import numpy as np

from treefold.kernels.compile import cache_folder, precompile
from treefold.kernels.gather import gather, gather_translated, translate
from treefold.kernels.layout import Kernel, collect
from treefold.kernels.optimisers import adadelta_step, adamw_step
from treefold.nn.aggregators import AGGREGATORS
from treefold.nn.cells import CELLS
from treefold.nn.cells.base import layout_of
from treefold.nn.heads import Classifier, PairClassifier


def all_kernels() -> list[Kernel]:
    """Return the kernels of everything in the registries."""
    found: list[Kernel] = [gather, translate, gather_translated, collect, adadelta_step, adamw_step]
    pairs = [PairClassifier(in_size=2, classes=2, comparison=each) for each in ("tensor", "blockwise")]
    for head in (Classifier(in_size=2, classes=2), *pairs):
        kernel = head.kernel()
        found += [] if kernel is None else [*kernel.functions[0], *kernel.functions[1]]
    for cell, _ in CELLS.values():
        for form in AGGREGATORS.values():
            for shared in (False, True):
                sizes = {"state_size": 2, "arity": 2, "rank": 2 if form.has_rank else None, "shared": shared}
                made = cell(form(**sizes))  # type: ignore[arg-type]
                if made.unsupported_reason() is None:
                    found += layout_of(made).functions(training=True)
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for name in ["float32", *(["float64"] if "--double" in sys.argv else [])]:
        precompile(all_kernels(), np.dtype(name))
    sys.stdout.write(f"all kernels are in {cache_folder()}\n")
