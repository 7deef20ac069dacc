"""The ways that are compared: treefold's own training and inference, and plain torch as one would write it."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from treefold.bench.clock import Clock, Way, in_pieces
from treefold.errors import ConfigurationError
from treefold.kernels import kernels_first
from treefold.nn.model import TreeModel
from treefold.training.examples import Examples, epoch_batches, outputs_of
from treefold.training.settings import TrainingSettings
from treefold.training.trainer import Silent, Trainer

Ints = npt.NDArray[np.int64]
Outputs = Callable[[Ints], Tensor]
FUSED, TORCH = {"backend": "fused"}, {"backend": "torch"}
SHARING, APART = {**FUSED, "share_subtrees": True}, {**FUSED, "share_subtrees": False}


def with_settings(model: TreeModel, settings: dict[str, Any]) -> TreeModel:
    """Return a copy of a model whose encoder runs as these attributes say.

    >>> from treefold.bench.cases import CASES, model_of
    >>> with_settings(model_of(CASES["lrt sum 10"]), TORCH).encoder.backend
    'torch'
    """
    model = copy.deepcopy(model)
    for name, value in settings.items():
        if not hasattr(model.encoder, name):
            raise ConfigurationError(
                f"the benchmark expects an encoder with {name!r}, got one without; update treefold."
            )
        setattr(model.encoder, name, value)
    return model


def training(model: TreeModel, examples: Examples, batch: int, steps: int) -> Way:
    """Return steps of training exactly as `treefold train` takes them, after a first one that is not timed."""
    numbers, settings = _numbers(examples, batch, steps), _settings(batch)

    def way(clock: Clock) -> list[float]:
        times: list[float] = []
        last: float | None = None

        def after(trainer: Trainer) -> None:
            nonlocal last
            if last is not None and trainer.state.batch:  # 0 where the epoch was closed, after the last batch
                times.append(clock() - last)
            last = clock()

        Trainer(model, examples, numbers, np.zeros(0, np.int64), settings).run(Silent(), after)
        return times

    return way


def torch_training(model: nn.Module, outputs: Outputs, examples: Examples, batch: int, steps: int) -> Way:
    """Return the same steps as one writes them in torch: outputs, the loss, its gradients, AdaDelta on all parameters."""
    batches = batches_of(examples, batch, steps)
    optimiser = torch.optim.Adadelta(model.parameters())

    def step(piece: int) -> float:
        loss = examples.loss(outputs(batches[piece]), batches[piece])
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        return float(loss.detach())

    return in_pieces(step, len(batches))


def inference(model: TreeModel, examples: Examples, batches: list[Ints]) -> Way:
    """Return the classes of batches, from the forest's arrays to the numbers of the classes, without gradients."""
    answers = model.eval().predictor()

    def answer(piece: int) -> Ints:
        with kernels_first() if model.encoder.backend == "fused" else nullcontext():
            classes: Ints = answers(examples.forest, examples.trees_of(batches[piece])).argmax(1).numpy()
        return classes

    return in_pieces(answer, len(batches))


def one_by_one(model: TreeModel, examples: Examples, numbers: Ints) -> Way:
    """Return the classes of single trees, each a forest of its own."""
    model = model.eval()
    singles = [examples.forest[[number]] for number in numbers.tolist()]

    def answer(piece: int) -> int:
        with torch.no_grad():
            return int(model(singles[piece].batch()).argmax(1))

    return in_pieces(answer, len(singles))


def evaluation(model: TreeModel, examples: Examples) -> Way:
    """Return the outputs for all examples at once, as evaluation computes them."""
    everything = np.arange(len(examples))

    def way(clock: Clock) -> list[float]:
        start = clock()
        outputs_of(model, examples, everything)
        return [clock() - start]

    return way


def batches_of(examples: Examples, batch: int, steps: int) -> list[Ints]:
    """Return the batches whose steps `training` times."""
    return epoch_batches(examples, _numbers(examples, batch, steps), _settings(batch), epoch=0)[1:]


def work_of(examples: Examples, batches: list[Ints]) -> tuple[float, float]:
    """Return the mean numbers of trees and of nodes of a batch.

    >>> from treefold.trees.forest import Forest
    >>> examples = Examples(Forest(["(f a)", "b", "(f a b)"]), np.zeros(3), "tree")
    >>> work_of(examples, [np.array([0, 1]), np.array([2, 1])])
    (2.0, 3.5)
    """
    trees = [len(examples.trees_of(chosen)) for chosen in batches]
    return float(np.mean(trees)), float(np.mean([examples.sizes(chosen).sum() for chosen in batches]))


def _numbers(examples: Examples, batch: int, steps: int) -> Ints:
    """Choose examples for one step that is not timed and those that are, all full; again from the first where there are few."""
    return np.arange((steps + 1) * batch) % len(examples)


def _settings(batch: int) -> TrainingSettings:
    return TrainingSettings(batch_size=batch, epochs=1)
