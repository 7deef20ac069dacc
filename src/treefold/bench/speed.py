"""The suites that compare ways: step, inference, batches, threads, subtrees."""

import time
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from treefold.bench import machine
from treefold.bench.cases import CASES, HEADLINE, Case, examples_of, model_of
from treefold.bench.clock import Clock, Way
from treefold.bench.options import Job, Options, Values, compared
from treefold.bench.rival import RIVAL, RivalModel, rival_package
from treefold.bench.ways import (
    APART,
    FUSED,
    SHARING,
    TORCH,
    batches_of,
    evaluation,
    inference,
    one_by_one,
    torch_training,
    training,
    with_settings,
    work_of,
)
from treefold.kernels.threads import threads as torch_threads
from treefold.training.examples import Examples

BATCHES: Final = (1, 25, 256, 2048)
LRT_PAIRS: Final = 37_000
_RIVAL_SIZE: Final = 25
_ANSWERED: Final = 200  # single trees
_SHARED_CASES: Final = ("lrt full 100", "lrt tucker 100 20")


def step(options: Options) -> dict[str, Job]:
    """A training step, fused against torch; and against another package."""
    jobs: dict[str, Job] = {
        options.title(name, batched=True): partial(_step, case, options, options.batch) for name, case in CASES.items()
    }
    for name in (HEADLINE, "listops sum 25"):
        jobs[options.title(f"{name} against {RIVAL}", batched=True)] = partial(_against_rival, CASES[name], options)
    return jobs


def batches(options: Options) -> dict[str, Job]:
    """A training step for batches of growing size, fused against torch."""
    sizes = BATCHES[: options.size(full=4, quick=3)]
    return {
        options.title(f"{HEADLINE}, batch {size}"): partial(_step, CASES[HEADLINE], options, size) for size in sizes
    }


def inference_suite(options: Options) -> dict[str, Job]:
    """Answers without gradients, fused against torch; a batch of one is a single tree of average size."""
    sizes = BATCHES[: options.size(full=4, quick=3)]
    return {options.title(f"{HEADLINE}, batch {size}"): partial(_inference, options, size) for size in sizes}


def threads(options: Options) -> dict[str, Job]:
    """Training and inference with one thread and with more."""
    count = max(2, options.threads)
    return {
        f"training, batch 256, {count} threads": partial(_threads, options, count, train=True),
        f"inference, batch 256, {count} threads": partial(_threads, options, count, train=False),
    }


def subtrees(options: Options) -> dict[str, Job]:
    """Equal subtrees computed once against each for itself: evaluation of LRT, and training steps."""
    jobs: dict[str, Job] = {options.title("lrt evaluation"): partial(_shared_evaluation, options)}
    for name in _SHARED_CASES:
        jobs[options.title(f"{name}, training step", batched=True)] = partial(_shared_step, CASES[name], options)
    return jobs


def _examples(case: Case, options: Options) -> Examples:
    return examples_of(case.data, options.size(full=10_000, quick=300))


def _steps(options: Options, batch: int) -> int:
    """Return how many steps a round times: fewer of large batches."""
    return options.size(full=max(4, min(100, 600 // batch)), quick=max(2, min(10, 100 // batch)))


def _both(case: Case, examples: Examples, batch: int, steps: int) -> dict[str, Way]:
    model = model_of(case)
    plain = with_settings(model, TORCH)
    return {
        "fused": training(with_settings(model, FUSED), examples, batch, steps),
        "torch": torch_training(plain, lambda chosen: plain(examples.batch(chosen)), examples, batch, steps),
    }


def _step(case: Case, options: Options, batch: int) -> Values:
    examples, steps = _examples(case, options), _steps(options, batch)
    seconds = options.measure(_both(case, examples, batch, steps))
    return compared(seconds, *work_of(examples, batches_of(examples, batch, steps)), options.threads)


def _against_rival(case: Case, options: Options) -> Values:
    rival_package()
    examples, steps, batch = _examples(case, options), _steps(options, options.batch), options.batch
    rival = RivalModel(examples, _RIVAL_SIZE, classes=10)
    ways = {
        "fused": training(with_settings(model_of(case), FUSED), examples, batch, steps),
        "rival": torch_training(rival, rival, examples, batch, steps),
    }
    return compared(options.measure(ways), *work_of(examples, batches_of(examples, batch, steps)), options.threads)


def _inference(options: Options, size: int) -> Values:
    examples = examples_of("listops", options.size(full=10_000, quick=300))
    model = model_of(CASES[HEADLINE])
    models = {"fused": with_settings(model, FUSED), "torch": with_settings(model, TORCH)}
    if size == 1:
        chosen = average_trees(examples.forest.sizes, options.size(full=_ANSWERED, quick=20))
        pieces = [chosen[place : place + 1] for place in range(len(chosen))]
        ways = {name: one_by_one(each, examples, chosen) for name, each in models.items()}
    else:
        pieces = _full_batches(len(examples), size)
        ways = {name: inference(each, examples, pieces) for name, each in models.items()}
    return compared(options.measure(ways), *work_of(examples, pieces), options.threads)


def average_trees(sizes: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """Return the numbers of so many trees whose size is nearest to the mean.

    >>> average_trees(np.array([1, 9, 4, 50, 6]), 2).tolist()  # the mean is 14
    [1, 4]
    """
    return np.argsort(np.abs(sizes - sizes.mean()), kind="stable")[:count]


def _full_batches(count: int, size: int) -> list[npt.NDArray[np.int64]]:
    order = np.random.default_rng(0).permutation(count)
    starts = range(0, max(1, count - size + 1), size)
    return [order[start : start + size] for start in starts]


def _threads(options: Options, count: int, *, train: bool) -> Values:
    examples = examples_of("listops", options.size(full=10_000, quick=300))
    model, size = with_settings(model_of(CASES[HEADLINE]), FUSED), 256
    if train:
        pieces = batches_of(examples, size, _steps(options, size))
        way = training(model, examples, size, _steps(options, size))
    else:
        pieces = _full_batches(len(examples), size)
        way = inference(model, examples, pieces)

    def with_threads(number: int) -> Way:
        def run(clock: Clock) -> list[float]:
            with torch_threads(number):
                return way(clock)

        return run

    # By the clock on the wall, which other processes disturb: more rounds than elsewhere.
    ways = {f"{count}_threads": with_threads(count), "1_thread": with_threads(1)}
    values = compared(options.measure(ways, time.perf_counter, full=25), *work_of(examples, pieces), count)
    return {**values, "machine_ratio": machine.scaling(count)}


def _shared_evaluation(options: Options) -> Values:
    examples = examples_of("lrt", options.size(full=LRT_PAIRS, quick=400))
    model = model_of(CASES["lrt tucker 10 7"])
    settings = {"shared": SHARING, "apart": APART, "torch": {**TORCH, "share_subtrees": False}}
    ways = {name: evaluation(with_settings(model, each), examples) for name, each in settings.items()}
    return compared(options.measure(ways), len(examples.forest), examples.forest.node_count, options.threads)


def _shared_step(case: Case, options: Options) -> Values:
    examples, batch, steps = _examples(case, options), options.batch, _steps(options, options.batch)
    model = model_of(case)
    plain = with_settings(model, {**TORCH, "share_subtrees": False})
    ways = {
        "shared": training(with_settings(model, SHARING), examples, batch, steps),
        "apart": training(with_settings(model, APART), examples, batch, steps),
        "torch": torch_training(plain, lambda chosen: plain(examples.batch(chosen)), examples, batch, steps),
    }
    seconds = options.measure(ways)
    values = compared(seconds, *work_of(examples, batches_of(examples, batch, steps)), options.threads)
    return {**values, "apart_ratio_to_torch": seconds["torch"] / seconds["apart"]}
