"""The suites that compare alternatives: step, inference, batches, threads, subtrees, programs; and pytorch-tree-lstm."""

import importlib
import time
from functools import partial
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks import measuring
from benchmarks.cases import (
    APART,
    CASES,
    FUSED,
    HEADLINE,
    PROGRAM_CASES,
    SHARED,
    TORCH,
    Case,
    Ints,
    ProgramCase,
    batches_of,
    evaluation,
    examples_of,
    inference,
    model_of,
    one_by_one,
    program_model,
    recipe_model,
    torch_training,
    training,
    with_settings,
    work_of,
)
from benchmarks.library import Examples
from benchmarks.library import threads as torch_threads
from benchmarks.measuring import Clock, Job, MissingPackageError, Options, Values, Way, compared
from treefold import Classifier, TreeModel

# Axes:  N nodes of the batch · E edges · B trees · K classes
BATCHES: Final = (1, 25, 256, 2048)
THREADED_BATCH: Final = 256
THREADED_ROUNDS: Final = 25  # measured in real time, which other processes disturb: more rounds than elsewhere
LRT_PAIRS: Final = 37_000
PROGRAM_BATCH: Final = 16
RECIPE_BATCH: Final = 100
RIVAL: Final = "pytorch-tree-lstm"
_RIVAL_SIZE: Final = 25
_SINGLE_TREES: Final = 200
_SHARED_CASES: Final = ("lrt full 100", "lrt tucker 100 20")


def step(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `step`: a training step, fused against torch, and against another package."""
    jobs: dict[str, Job] = {
        options.title(name, batched=True): partial(_step, case, options, options.batch) for name, case in CASES.items()
    }
    for name in (HEADLINE, "listops sum 25"):
        jobs[options.title(f"{name} against {RIVAL}", batched=True)] = partial(_against_rival, CASES[name], options)
    return jobs


def batches(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `batches`: a training step for batches of growing size, fused against torch."""
    return {
        options.title(f"{HEADLINE}, batch {size}"): partial(_step, CASES[HEADLINE], options, size)
        for size in batch_sizes(options)
    }


def inference_suite(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `inference`: predictions without gradients, fused against torch.

    A batch of one is a single tree of average size.
    """
    return {
        options.title(f"{HEADLINE}, batch {size}"): partial(_inference, options, size) for size in batch_sizes(options)
    }


def threads(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `threads`: training and inference with one thread and with several."""
    count = max(2, options.threads)
    return {
        f"training, batch {THREADED_BATCH}, {count} threads": partial(_threads, options, count, train=True),
        f"inference, batch {THREADED_BATCH}, {count} threads": partial(_threads, options, count, train=False),
    }


def subtrees(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `subtrees`: equal subtrees computed once or each on its own, in evaluation and training."""
    jobs: dict[str, Job] = {options.title("lrt evaluation"): partial(_shared_evaluation, options)}
    for name in _SHARED_CASES:
        jobs[options.title(f"{name}, training step", batched=True)] = partial(_shared_step, CASES[name], options)
    return jobs


def programs(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `programs`: a training step on large trees with wide nodes, fused against torch."""
    return {
        options.title(f"{name}, batch {PROGRAM_BATCH}"): partial(_program_step, case, options)
        for name, case in PROGRAM_CASES.items()
    }


def recipes(options: Options) -> dict[str, Job]:
    """Return the jobs of the suite `recipes`: a training step of a model that solves ListOps, or LRT, fused against torch."""
    return {
        options.title(f"{name}, batch {RECIPE_BATCH}"): partial(_recipe_step, name, options)
        for name in ("listops", "lrt")
    }


def batch_sizes(options: Options) -> tuple[int, ...]:
    """Return the batch sizes of the suites `batches` and `inference`."""
    return BATCHES[: options.size(full=4, quick=3)]


def case_examples(data: str, options: Options) -> Examples:
    """Return the examples of a kind that the suites use."""
    return examples_of(data, options.size(full=10_000, quick=300))


def step_count(options: Options, batch: int) -> int:
    """Return the number of steps that a round times: fewer for large batches."""
    return options.size(full=max(4, min(100, 600 // batch)), quick=max(2, min(10, 100 // batch)))


def inference_pieces(examples: Examples, options: Options, size: int) -> list[Ints]:
    """Return the batches to predict; batches of one are trees of average size."""
    if size == 1:
        chosen = average_trees(examples.forest.sizes, options.size(full=_SINGLE_TREES, quick=20))
        return [chosen[place : place + 1] for place in range(len(chosen))]
    order = np.random.default_rng(0).permutation(len(examples))
    return [order[start : start + size] for start in range(0, max(1, len(order) - size + 1), size)]


def inference_way(model: TreeModel, examples: Examples, pieces: list[Ints], size: int) -> Way:
    """Return the way to predict these batches."""
    return one_by_one(model, examples, np.concatenate(pieces)) if size == 1 else inference(model, examples, pieces)


def average_trees(sizes: npt.NDArray[Any], count: int) -> Ints:
    """Return the numbers of the ``count`` trees whose size is nearest to the mean.

    >>> average_trees(np.array([1, 9, 4, 50, 6]), 2).tolist()  # the mean is 14
    [1, 4]
    """
    return np.argsort(np.abs(sizes - sizes.mean()), kind="stable")[:count]


def with_threads(way: Way, count: int) -> Way:
    """Return the same way, computed with so many threads."""

    def run(clock: Clock) -> list[float]:
        with torch_threads(count):
            return way(clock)

    return run


def _step(case: Case, options: Options, batch: int) -> Values:
    return _fused_and_torch(model_of(case), case_examples(case.data, options), options, batch)


def _program_step(case: ProgramCase, options: Options) -> Values:
    examples = examples_of("programs", options.size(full=640, quick=64))
    return _fused_and_torch(program_model(case, examples.forest), examples, options, PROGRAM_BATCH)


def _recipe_step(name: str, options: Options) -> Values:
    examples = case_examples(name, options)
    return _fused_and_torch(recipe_model(name, examples.forest), examples, options, RECIPE_BATCH)


def _fused_and_torch(model: TreeModel, examples: Examples, options: Options, batch: int) -> Values:
    steps, plain = step_count(options, batch), with_settings(model, TORCH)
    ways = {
        "fused": training(with_settings(model, FUSED), examples, batch, steps),
        "torch": torch_training(plain, lambda chosen: plain(examples.batch(chosen)), examples, batch, steps),
    }
    return compared(options.measure(ways), *work_of(examples, batches_of(examples, batch, steps)), options.threads)


def _against_rival(case: Case, options: Options) -> Values:
    rival_package()
    examples, steps, batch = case_examples(case.data, options), step_count(options, options.batch), options.batch
    rival = RivalModel(examples, _RIVAL_SIZE, classes=10)
    ways = {
        "fused": training(with_settings(model_of(case), FUSED), examples, batch, steps),
        "rival": torch_training(rival, rival, examples, batch, steps),
    }
    return compared(options.measure(ways), *work_of(examples, batches_of(examples, batch, steps)), options.threads)


def _inference(options: Options, size: int) -> Values:
    examples, model = case_examples("listops", options), model_of(CASES[HEADLINE])
    pieces = inference_pieces(examples, options, size)
    ways = {
        name: inference_way(with_settings(model, settings), examples, pieces, size)
        for name, settings in (("fused", FUSED), ("torch", TORCH))
    }
    return compared(options.measure(ways), *work_of(examples, pieces), options.threads)


def threaded_way(
    examples: Examples, options: Options, settings: dict[str, Any], *, train: bool
) -> tuple[Way, list[Ints]]:
    """Return training or inference of the suite `threads`, and its batches."""
    model, steps = with_settings(model_of(CASES[HEADLINE]), settings), step_count(options, THREADED_BATCH)
    if train:
        pieces = batches_of(examples, THREADED_BATCH, steps)
        return training(model, examples, THREADED_BATCH, steps), pieces
    pieces = inference_pieces(examples, options, THREADED_BATCH)
    return inference(model, examples, pieces), pieces


def _threads(options: Options, count: int, *, train: bool) -> Values:
    examples = case_examples("listops", options)
    way, pieces = threaded_way(examples, options, FUSED, train=train)
    ways = {f"{count}_threads": with_threads(way, count), "1_thread": with_threads(way, 1)}
    seconds = options.measure(ways, time.perf_counter, full=THREADED_ROUNDS)
    return {**compared(seconds, *work_of(examples, pieces), count), "machine_ratio": measuring.scaling(count)}


def _shared_evaluation(options: Options) -> Values:
    examples = examples_of("lrt", options.size(full=LRT_PAIRS, quick=400))
    model = model_of(CASES["lrt tucker 10 7"])
    settings = {"shared": SHARED, "apart": APART, "torch": {**TORCH, "share_subtrees": False}}
    ways = {name: evaluation(with_settings(model, each), examples) for name, each in settings.items()}
    return compared(options.measure(ways), len(examples.forest), examples.forest.node_count, options.threads)


def _shared_step(case: Case, options: Options) -> Values:
    examples, batch, steps = case_examples(case.data, options), options.batch, step_count(options, options.batch)
    model = model_of(case)
    plain = with_settings(model, {**TORCH, "share_subtrees": False})
    ways = {
        "shared": training(with_settings(model, SHARED), examples, batch, steps),
        "apart": training(with_settings(model, APART), examples, batch, steps),
        "torch": torch_training(plain, lambda chosen: plain(examples.batch(chosen)), examples, batch, steps),
    }
    seconds = options.measure(ways)
    values = compared(seconds, *work_of(examples, batches_of(examples, batch, steps)), options.threads)
    return {**values, "apart_ratio_to_torch": seconds["torch"] / seconds["apart"]}


def rival_package() -> Any:
    """Return pytorch-tree-lstm, a published child-sum Tree-LSTM in torch, or say how to install it."""
    try:
        return importlib.import_module("treelstm")
    except ImportError:
        raise MissingPackageError(
            f"this case expects the package {RIVAL}, got none; pip install 'treefold[bench]', or choose other cases."
        ) from None


def edges_of(parents: Ints, sizes: Ints) -> Ints:
    """Return the edges (E, 2), parent and child, of trees laid out as in a forest; grouped by parent, children in order.

    >>> edges_of(np.array([2, 2, -1, 1, -1]), np.array([3, 2])).tolist()  # (f a b) and (g c)
    [[2, 0], [2, 1], [4, 3]]
    """
    rows = parents + np.repeat(np.cumsum(sizes) - sizes, sizes)
    children = np.flatnonzero(parents >= 0)
    order = np.argsort(rows[children], kind="stable")
    return np.stack([rows[children], children], axis=1)[order]


@final
class RivalModel(nn.Module):
    """The Tree-LSTM of pytorch-tree-lstm with treefold's head: from numbers of trees to class scores (B, K)."""

    def __init__(self, examples: Examples, state_size: int, classes: int) -> None:
        super().__init__()
        package = rival_package()
        self.examples = examples
        self.orders = package.calculate_evaluation_orders
        self.lstm = package.TreeLSTM(len(examples.forest.vocabulary), state_size)
        self.layers = Classifier(in_size=state_size, classes=classes).layers
        self.register_buffer("one_hot", torch.eye(len(examples.forest.vocabulary)))

    def forward(self, chosen: Ints) -> Tensor:
        """Schedule the whole batch at once, which is the package's fastest way, and run it."""
        forest = self.examples.forest
        rows, sizes = forest.node_rows(chosen), forest.sizes[chosen]
        edges = edges_of(forest.parents[rows].astype(np.int64), sizes)
        node_order, edge_order = self.orders(edges, len(rows))
        labels = torch.from_numpy(forest.labels[rows].astype(np.int64))
        features = self.get_buffer("one_hot").index_select(0, labels)
        states, _ = self.lstm(
            features, torch.from_numpy(node_order), torch.from_numpy(edges), torch.from_numpy(edge_order)
        )
        scores: Tensor = self.layers(states[torch.from_numpy(np.cumsum(sizes) - 1)])
        return scores
