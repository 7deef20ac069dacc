"""The suite `roofline`: how near training comes to the machine's limit, in multiply-adds a second, against matrix products."""

import functools
import io
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from benchmarks.cases import CASES, FUSED, Case, Ints, batches_of, examples_of, model_of, training, with_settings
from benchmarks.library import Examples
from benchmarks.measuring import Job, MissingPackageError, Options, Values, in_pieces
from treefold import PerLabel, TreeEncoder
from treefold.nn.aggregators import Aggregator
from treefold.nn.cells import Cell

PRODUCTS: Final = (64, 512)
_SPEED: Final = "multiply_adds_per_second"
_PASSES: Final = 3  # forward, and twice as much backward: gradients of the inputs and of the weights


def roofline(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite: a training step of each case, and matrix products of float32."""
    jobs: dict[str, Job] = {_product_name(size): functools.partial(_product, size, options) for size in PRODUCTS}
    for name, case in CASES.items():
        jobs[options.title(name, batched=True)] = functools.partial(_training, case, options)
    return jobs


def _product_name(size: int) -> str:
    return f"matrix product {size} × {size}"


def _product(size: int, options: Options) -> Values:
    left, right, result = (torch.rand(size, size) for _ in range(3))
    repeats = (max(PRODUCTS) // size) ** 3  # pieces of equal work, long enough that the clock itself does not count

    def work(piece: int) -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=result)

    seconds = options.measure({"product": in_pieces(work, 20)})["product"] / repeats
    return _values(seconds, size**3, options)


def _training(case: Case, options: Options) -> Values:
    examples = examples_of(case.data, options.size(full=10_000, quick=300))
    steps, batch = options.size(full=24, quick=4), options.batch
    model = model_of(case)
    counts = [step_multiply_adds(model.encoder, examples, chosen) for chosen in batches_of(examples, batch, steps)]
    way = training(with_settings(model, FUSED), examples, batch, steps)
    seconds, count = options.measure({"fused": way})["fused"], float(np.mean(counts))
    return _values(seconds, count, options)


def _values(seconds: float, count: float, options: Options) -> Values:
    values: Values = {"milliseconds": 1e3 * seconds, "multiply_adds": count, _SPEED: count / seconds}
    return {**values, "threads": options.threads}


def step_multiply_adds(encoder: TreeEncoder, examples: Examples, chosen: Ints) -> int:
    """Count the multiply-adds of a training step, forward and backward, without the head; equal subtrees count each time."""
    forest = examples.forest
    rows = forest.node_rows(examples.trees_of(chosen))
    cell = encoder.cells["up"]
    assert isinstance(cell, Cell)
    names = [*cell.operators, None]
    total = 0
    for place, name in enumerate(names):
        one = cell.cell_of(place) if isinstance(cell, PerLabel) else cell
        codes = [forest.vocabulary.code(operator) for operator in cell.operators if operator in forest.vocabulary]
        if name is None:
            nodes = ~np.isin(forest.labels[rows], codes)
        elif name in forest.vocabulary:
            nodes = forest.labels[rows] == forest.vocabulary.code(name)
        else:
            continue
        total += int(nodes.sum()) * node_multiply_adds(one)
    return _PASSES * total


def node_multiply_adds(cell: Cell) -> int:
    """Count the multiply-adds of a node with all its children: aggregators, forget gates and label maps.

    >>> from treefold import TreeLSTM
    >>> node_multiply_adds(TreeLSTM("sum", state_size=4, arity=2))  # three gates and two forget gates
    128
    """
    total = 0
    for part in cell.children():
        if isinstance(part, Aggregator):
            total += part.multiply_adds()
        else:
            weights = {name: weight for name, weight in part.named_parameters() if "bias" not in name}
            slots = cell.arity if getattr(part, "shared", False) else 1
            total += sum(weight.numel() * (slots if name.startswith("slot") else 1) for name, weight in weights.items())
    return total


def require_matplotlib() -> Any:
    """Return matplotlib's `Figure`, or say how to install it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError(
            "--figure expects the package matplotlib, got none; pip install 'treefold[bench]', or leave it out."
        ) from None
    return Figure


def draw(rows: Mapping[str, Values]) -> bytes:
    """Draw the suite's results as a PNG: a bar for each case, a line for each matrix product, on a logarithmic scale."""
    speeds = {name: values[_SPEED] / 1e9 for name, values in rows.items()}
    products = {name: speeds.pop(name) for name in [_product_name(size) for size in PRODUCTS] if name in speeds}
    figure = require_matplotlib()(figsize=(8, 1.2 + 0.3 * len(speeds)), layout="constrained")
    axes = figure.add_subplot()
    names = list(speeds)[::-1]
    axes.barh(names, [speeds[name] for name in names], color="tab:blue", height=0.7)
    for (name, speed), style in zip(products.items(), ("--", "-"), strict=False):
        axes.axvline(speed, color="tab:red", linestyle=style, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("10⁹ multiply-adds a second in a training step, every node counted")
    if products:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(products), frameon=False)
    axes.grid(axis="x", alpha=0.3)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()
