"""A training step with the fused kernels and in plain torch: python benchmarks/kernels.py [CASE …] [--batch 25] [--json FILE]

A step is the batch's schedule, forward, head, backward and AdaDelta; one thread. Times are those which the processor spent on
the thread, so that other processes disturb less; the ways alternate, and the best median of several rounds counts.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from treefold import Forest, LeafLSTM, Numeric, OneHot, PerLabel, Thermometer, Tree, TreeEncoder, TreeLSTM
from treefold.datasets import listops, lrt
from treefold.labels import LabelEncoder
from treefold.models import Classifier, PairClassifier, TreeModel

TREES = 3000
Backend = Literal["fused", "torch"]
BACKENDS: tuple[Backend, Backend] = ("fused", "torch")


class Data(NamedTuple):
    """Trees and their classes; pairs are all left trees, then all right ones."""

    forest: Forest
    classes: Tensor
    sides: int

    def batch_rows(self, chosen: np.ndarray) -> np.ndarray:
        return np.concatenate([chosen + side * len(self.classes) for side in range(self.sides)])


def listops_data() -> Data:
    trees = list(listops.generate(TREES))
    return Data(Forest(trees), torch.tensor([listops.value(tree) for tree in trees]), 1)


def vector_data() -> Data:
    """Take ListOps with random vectors for digits, so that hardly two subtrees are equal."""
    rng = random.Random(0)

    def fresh(tree: Tree) -> Tree:
        made: list[Tree] = []
        for node in tree.postorder():
            below = [made.pop() for _ in node.children][::-1]
            made.append(Tree(node.label, below) if below else Tree([rng.random() for _ in range(10)]))
        return made[0]

    trees = list(listops.generate(TREES))
    return Data(Forest(map(fresh, trees)), torch.tensor([listops.value(tree) for tree in trees]), 1)


def lrt_data() -> Data:
    pairs = list(lrt.generate(TREES))
    names = sorted({pair.relation for pair in pairs})
    forest = Forest([*(pair.left for pair in pairs), *(pair.right for pair in pairs)])
    return Data(forest, torch.tensor([names.index(pair.relation) for pair in pairs]), 2)


def model_for(data: Data, aggregator: str, size: int, rank: int | None, shared: bool) -> TreeModel:
    arities = dict.fromkeys(listops.OPERATORS, 5) if data.sides == 1 else {"not": 1, "and": 2, "or": 2}
    cells = {
        name: TreeLSTM(aggregator, state_size=size, arity=arity, rank=rank, shared=shared)
        for name, arity in arities.items()
    }
    names = [name for name in data.forest.vocabulary if name not in cells]
    labels: LabelEncoder = Thermometer(names) if data.sides == 1 and names else OneHot(names) if names else Numeric(10)
    encoder = TreeEncoder(PerLabel(cells, leaf=LeafLSTM(label_size=labels.size, state_size=size)), labels)
    classes = int(data.classes.max()) + 1
    if data.sides == 1:
        return TreeModel(encoder, Classifier(in_size=size, classes=classes))
    return TreeModel(encoder, PairClassifier(in_size=size, classes=classes))


CASES: dict[str, tuple[str, str, int, int | None, bool]] = {
    "listops tucker 20 3": ("listops", "tucker", 20, 3, False),
    "listops tucker 50 7": ("listops", "tucker", 50, 7, False),
    "listops shared tucker 50 5": ("listops", "tucker", 50, 5, True),
    "listops sum 25": ("listops", "sum", 25, None, False),
    "listops sum 214": ("listops", "sum", 214, None, False),
    "listops full 3": ("listops", "full", 3, None, False),
    "listops full 5": ("listops", "full", 5, None, False),
    "listops canonical 100 50": ("listops", "canonical", 100, 50, False),
    "listops tensor-train 50 12": ("listops", "tensor-train", 50, 12, False),
    "vectors sum 25": ("vectors", "sum", 25, None, False),
    "vectors sum 214": ("vectors", "sum", 214, None, False),
    "vectors sum 400": ("vectors", "sum", 400, None, False),
    "lrt sum 10": ("lrt", "sum", 10, None, False),
    "lrt full 10": ("lrt", "full", 10, None, False),
    "lrt tucker 10 7": ("lrt", "tucker", 10, 7, False),
    "lrt tucker 100 20": ("lrt", "tucker", 100, 20, False),
    "lrt full 100": ("lrt", "full", 100, None, False),
}


def measure(model: TreeModel, data: Data, size: int, rounds: int) -> dict[Backend, float]:
    """Return seconds of a step for each way."""
    optimiser = torch.optim.Adadelta(model.parameters())
    order = np.random.default_rng(0).permutation(len(data.classes))
    batches = [order[start : start + size] for start in range(0, max(4 * size, 200), size)]

    def step(chosen: np.ndarray) -> None:
        logits = model(data.forest.batch(data.batch_rows(chosen)))
        optimiser.zero_grad()
        nn.functional.cross_entropy(logits, data.classes[chosen]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    best = dict.fromkeys(BACKENDS, float("inf"))
    for _ in range(rounds):
        for backend in BACKENDS:
            model.encoder.backend = backend
            step(batches[0])
            times = []
            for chosen in batches:
                start = time.thread_time()
                step(chosen)
                times.append(time.thread_time() - start)
            best[backend] = min(best[backend], statistics.median(times))
    return best


def compile_seconds() -> float:
    """Return the processor's seconds for the kernels of one model in a fresh process, with nothing on disk."""
    code = (
        "import time; from treefold import *; t = time.process_time();"
        "e = TreeEncoder(TreeLSTM('tucker', state_size=3, arity=2, rank=2), backend='fused');"
        "e(Forest(['(f (f x))']).batch()).nodes.sum().backward(); print(time.process_time() - t)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="run the cases whose name contains one of these words")
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="measure compilation too")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    torch.set_num_threads(1)

    makers: dict[str, Callable[[], Data]] = {"listops": listops_data, "vectors": vector_data, "lrt": lrt_data}
    known: dict[str, Data] = {}
    figures: dict[str, object] = {}
    for name, (source, aggregator, size, rank, shared) in CASES.items():
        if options.cases and not any(word in name for word in options.cases):
            continue
        data = known.setdefault(source, makers[source]() if source not in known else known[source])
        torch.manual_seed(0)
        seconds = measure(model_for(data, aggregator, size, rank, shared), data, options.batch, options.rounds)
        ratio = seconds["torch"] / seconds["fused"]
        figures[name] = {
            "fused, ms": round(1e3 * seconds["fused"], 2),
            "torch, ms": round(1e3 * seconds["torch"], 2),
            "ratio": round(ratio, 1),
            "fused, trees or pairs a second": round(options.batch / seconds["fused"]),
        }
        print(
            f"{name:28} fused {1e3 * seconds['fused']:8.2f} ms   torch {1e3 * seconds['torch']:8.2f} ms   {ratio:5.1f} ×"
        )
    if options.compile:
        figures["compilation of one model, s"] = round(compile_seconds(), 1)
        print(f"{'compilation of one model':28} {figures['compilation of one model, s']} s")
    figures["batch"] = options.batch
    figures["versions"] = {"python": platform.python_version(), "torch": torch.__version__}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
