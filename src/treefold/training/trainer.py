"""The training loop."""

import copy
import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, NamedTuple, Protocol, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from treefold.errors import TrainingError
from treefold.kernels.optimisers import FlatAdadelta, FlatAdamW
from treefold.kernels.threads import reserve_threads_for_kernels
from treefold.nn.aggregators import Aggregator, Combined
from treefold.nn.engine import FusedEngine, TorchEngine
from treefold.nn.flat import FlatParameters
from treefold.nn.model import TreeModel
from treefold.nn.randomness import drawing_from, draws_elsewhere, seeded
from treefold.training.distributed import ALONE, Workers
from treefold.training.examples import Curriculum, Examples, Score, epoch_batches, outputs_of
from treefold.training.settings import TrainingSettings
from treefold.training.wide import choose_mix, fit_wide
from treefold.trees.batch import Ints

logger = logging.getLogger("treefold")
_MOST_RESTARTS: Final = 3
_SELECTION: Final = (0.1, 0.4)  # of the steps: when the lasso over parts begins, and when one part of each sum is left


class DivergedError(TrainingError):
    """The loss or a weight became NaN or infinite."""


@final
@dataclass(frozen=True, slots=True)
class Progress:
    """How far an epoch is: batches done and in all, and the number, mean loss and accuracy of the targets seen so far.

    ``stage`` is that of the curriculum, from 1.
    """

    epoch: int
    batch: int
    batches: int
    seen: int
    loss: float
    accuracy: float | None  # None if the targets are numbers
    stage: int | None = None  # None without a curriculum


class Reporter(Protocol):
    """Follows a training."""

    def batch(self, progress: Progress) -> None:
        """Called after each batch."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Called after each epoch."""


@final
class Silent:
    """A reporter that reports nothing."""

    def batch(self, progress: Progress) -> None:
        """Do nothing."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Do nothing."""


_Count = Annotated[int, Field(ge=0, lt=2**53)]


@final
@dataclass
class State:
    """How far training is; together with the parameters and the optimiser's state, all that is needed to resume it."""

    epoch: _Count = 0  # completed epochs
    batch: _Count = 0  # completed batches of the current epoch
    step: _Count = 0
    loss_sum: float = 0.0
    correct: _Count = 0
    seen: _Count = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0
    best_score: float = -math.inf
    best_loss: float = math.inf
    best_epoch: _Count = 0
    # How often training went back to the last good epoch; each time halves the learning rate.
    restarts: Annotated[int, Field(ge=0, le=_MOST_RESTARTS)] = 0
    history: list[dict[str, Any]] = field(default_factory=list)


class _Snapshot(NamedTuple):
    """Everything that training goes back to if it diverges."""

    state: State
    values: Tensor
    best: Tensor
    optimiser: dict[str, Tensor]


@final
@dataclass(frozen=True)
class Result:
    """The outcome of a training; the model has the best weights, or the last ones if ``keep`` is "last".

    ``best_score`` is that of the whole model on validation; ``parts`` are the scores of its parts and of the simplest answer.
    ``notes`` say what the scores mean, and what to try.
    """

    epochs: int
    best_epoch: int
    best_score: float
    history: list[dict[str, Any]]
    parts: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@final
class Trainer:
    """A training: model, examples, optimiser and state."""

    def __init__(
        self,
        model: TreeModel,
        examples: Examples,
        train: Ints,
        validation: Ints,
        settings: TrainingSettings,
        workers: Workers = ALONE,
        *,
        wide: bool = False,
        random: torch.Generator | None = None,
    ) -> None:
        self.model, self.examples, self.settings, self.workers, self.wide = model, examples, settings, workers, wide
        self.train_numbers, self.validation_numbers = examples.known(train), examples.known(validation)
        if not len(self.train_numbers):
            raise TrainingError(
                "training expects at least one example with a known label, got none; check the train split."
            )
        self.curriculum = Curriculum(examples, self.train_numbers, settings) if settings.curriculum else None
        self.flat = FlatParameters(model, model.layouts())
        self.optimiser = _optimiser(self.flat, settings)
        self.best = self.flat.values.detach().clone()
        self.state = State()
        self._draws_elsewhere = False
        self.random = torch.Generator().manual_seed(settings.seed) if random is None else random
        self.stopped = False  # set it to end the training after the current epoch
        self._engine: TorchEngine = model.engine()
        self._sums = [module for module in model.modules() if isinstance(module, Combined)]

    @property
    def finished(self) -> bool:
        """Whether training was stopped, all epochs are done, or validation has not improved for `patience` epochs.

        With a curriculum, only the epochs of its last stage count for patience.
        """
        started = 0 if self.curriculum is None else self.curriculum.epochs_before_last_stage
        waited = self.state.epoch - max(self.state.best_epoch, started)
        patience = self.settings.patience if len(self.validation_numbers) else None
        is_last = self.stopped or self.state.epoch >= self.settings.epochs
        return is_last or (patience is not None and waited >= patience)

    def run(self, reporter: Reporter, after: Callable[["Trainer"], None] = lambda trainer: None) -> Result:
        """Train until finished; ``after`` is called after each batch and each epoch.

        If the loss or a weight becomes NaN or infinite, training goes back to the last good epoch with half the learning rate
        (after `resume`, to the batch at which the run was resumed). It does so three times before it raises.
        """
        self.model.train()
        self.model.wide = None  # that of an earlier training
        self.model.encoder.flat = self.flat
        try:
            is_fused = isinstance(self.model.engine(), FusedEngine)
            self._draws_elsewhere = draws_elsewhere(self.model)
            with drawing_from(self.random), reserve_threads_for_kernels() if is_fused else nullcontext():
                good = self._snapshot()
                while not self.finished:
                    try:
                        self._epoch(reporter, after)
                        good = self._snapshot()
                    except DivergedError as problem:
                        self._go_back(good, problem)
        finally:
            self.model.encoder.flat, self.model.encoder.state_noise = None, 0.0
        if len(self.validation_numbers):
            self.flat.values.data.copy_(self.best)
        self.model.eval()
        state = self.state
        score, parts = self._join_linear_part() if self.wide else (state.best_score, {})
        parts, notes = self._judged(score, parts)
        return Result(state.epoch, state.best_epoch, score, state.history, parts, notes)

    def _join_linear_part(self) -> tuple[float, dict[str, float]]:
        """Fit the linear part and join it with the network; return the validation scores of the whole and of both parts."""
        examples, held_out, task = self.examples, self.validation_numbers, self.examples.task
        network = outputs_of(self.model, examples, held_out) if len(held_out) else None
        outputs = outputs_of(self.model, examples, self.train_numbers[:1]).shape[1]
        fitted = fit_wide(examples, self.train_numbers, held_out, outputs, seed=self.settings.seed)
        self.model.wide = fitted.module
        if network is None:
            return self.state.best_score, {}
        target = examples.target(held_out)
        own, other, _ = choose_mix(network, fitted.outputs, target, task)
        fitted.module.mix.copy_(torch.tensor([own, other]))
        scores = {"network": task.score(network, target), "linear part": task.score(fitted.outputs, target)}
        return task.score(own * network + other * fitted.outputs.to(network), target), scores

    def _judged(self, score: float, parts: dict[str, float]) -> tuple[dict[str, float], tuple[str, ...]]:
        """Compare the whole model with its parts and with the most frequent class; say so if it is no better."""
        examples, held_out = self.examples, self.validation_numbers
        if not len(held_out):
            return parts, ()
        name, notes = examples.task.score_name, []
        if examples.task.has_classes and not examples.task.per_node:
            common = int(np.bincount(examples.targets[self.train_numbers]).argmax())
            parts = {**parts, "most frequent class": float((examples.targets[held_out] == common).mean())}
            if score <= parts["most frequent class"] < 1:
                notes.append(
                    f"the model is no better than the most frequent class ({name} {score:.3f} on validation); check that labels "
                    f"and trees belong together, or try more epochs, a smaller learning_rate or another form"
                )
        if self.model.wide is not None and float(self.model.wide.mix[0]) == 0:
            notes.append(
                "the network adds nothing to the linear part, which counts labels and pairs of labels; its answer is used "
                "alone; more trees, or a larger state_size, may help"
            )
        for note in notes:
            logger.warning("%s", note)
        return parts, tuple(notes)

    def _epoch(self, reporter: Reporter, after: Callable[["Trainer"], None]) -> None:
        state = self.state
        if self.curriculum is None:
            batches = epoch_batches(self.examples, self.train_numbers, self.settings, state.epoch)
        else:
            batches = self.curriculum.batches(state.epoch)
        self._engine = self.model.engine()
        total_steps = self.settings.epochs * len(batches)
        start, processor_start = time.perf_counter() - state.seconds, time.process_time() - state.processor_seconds
        while state.batch < len(batches):
            chosen = batches[state.batch]
            loss, correct, count = self._step(chosen, total_steps)
            if not math.isfinite(loss):
                raise self._diverged(f"the loss became {loss}")
            state.batch += 1
            state.loss_sum += loss * count
            state.correct += correct
            state.seen += count
            state.seconds, state.processor_seconds = (
                time.perf_counter() - start,
                time.process_time() - processor_start,
            )
            reporter.batch(self._progress(len(batches)))
            after(self)
        self._close_epoch(reporter, sum(map(len, batches)))
        after(self)

    def require_finite(self) -> None:
        """Raise unless all weights are finite. Checked before they are written: a loss is that of the weights before the step."""
        if not bool(self.flat.values.data.isfinite().all()):
            raise self._diverged("weights became NaN or infinite")

    def _diverged(self, problem: str) -> DivergedError:
        return DivergedError(
            f"epoch {self.state.epoch + 1}, batch {self.state.batch + 1}: training diverged: {problem}"
        )

    def _snapshot(self) -> _Snapshot:
        tensors = {name: tensor.clone() for name, tensor in optimiser_tensors(self.optimiser).items()}
        return _Snapshot(copy.deepcopy(self.state), self.flat.values.detach().clone(), self.best.clone(), tensors)

    def _go_back(self, good: _Snapshot, problem: DivergedError) -> None:
        """Go back to a snapshot and halve the learning rate; raise if that did not help."""
        restarts, settings = self.state.restarts + 1, self.settings
        rate = _base_rate(settings) / 2**self.state.restarts
        if restarts > _MOST_RESTARTS:
            raise DivergedError(
                f"{problem}, also after the learning rate was halved {_MOST_RESTARTS} times, to {rate:g}; {self._advice()}."
            )
        logger.warning(
            "%s; training goes back to epoch %d with half the learning rate, %g", problem, good.state.epoch, rate / 2
        )
        self.state = replace(copy.deepcopy(good.state), restarts=restarts)
        self.flat.values.data.copy_(good.values)
        self.flat.gradient.zero_()
        self.best.copy_(good.best)
        load_optimiser_tensors(self.optimiser, {name: tensor.clone() for name, tensor in good.optimiser.items()})

    def _advice(self) -> str:
        settings = self.settings
        forms = [part for part in self.model.modules() if isinstance(part, Aggregator)]
        if any(form.takes_any_number and not form.normalises for form in forms) and not self.model.encoder.siblings:
            return (
                "states grow with the number of children: choose siblings=true, or a form that stays bounded, "
                "such as positional or mean"
            )
        clip = "set clip=1" if settings.clip is None else f"lower clip (now {settings.clip:g})"
        rate = f"lower learning_rate (now {_base_rate(settings):g})"
        return f"{rate}, {clip}, or look for very large numbers among vector labels and targets"

    def _progress(self, batches: int) -> Progress:
        state = self.state
        accuracy = state.correct / state.seen if self.examples.task.has_classes else None
        mean = state.loss_sum / state.seen
        return Progress(state.epoch + 1, state.batch, batches, state.seen, mean, accuracy, self._stage)

    @property
    def _stage(self) -> int | None:
        """The stage of the last step, from 1; None without a curriculum."""
        return None if self.curriculum is None else self.curriculum.stage_of(self.state.step - 1) + 1

    def _step(self, chosen: Ints, total_steps: int) -> tuple[float, int, int]:
        """Take one step; return the loss before it, the number of right predictions and of targets."""
        settings, step = self.settings, self.state.step
        self.model.encoder.state_noise = _state_noise(settings, step, total_steps)
        with seeded(self.random) if self._draws_elsewhere else nullcontext():
            loss, correct, count = self._add_gradients(chosen)
        self.model.encoder.state_noise = 0.0
        if settings.reduction == "sum":
            self.flat.gradient.mul_(count)
        if settings.l2:
            self.flat.gradient.add_(self.flat.values.data, alpha=2 * settings.l2)
        self.flat.clear_constant_gradients()
        if settings.clip is not None:
            norm = float(self.flat.gradient.norm())
            if norm > settings.clip:
                self.flat.gradient.mul_(settings.clip / norm)
        first, length = 0, total_steps
        if self.curriculum is not None and settings.stage_schedule == "each":
            stage = self.curriculum.stages[self.curriculum.stage_of(step)]
            first, length = stage.start, stage.end - stage.start
        for group in self.optimiser.param_groups:
            rate = _base_rate(settings) * _rate_factor(settings, step - first, length)
            group["lr"] = rate / 2**self.state.restarts
        self.optimiser.step()  # which clears the gradient
        if settings.weight_decay:
            self.flat.restore_constants()
        if settings.selection:
            self._select(total_steps)
        self.state.step += 1
        return loss, correct, count

    def _select(self, total_steps: int) -> None:
        """Let the parts of sums of forms compete: first a lasso shrinks them, then only the strongest of each sum is kept."""
        done, (first, last) = self.state.step / total_steps, _SELECTION
        for part in self._sums:
            if done >= last:
                part.keep_strongest()
            elif done >= first:
                part.shrink_parts(self.settings.selection * float(self.optimiser.param_groups[0]["lr"]))

    def _add_gradients(self, chosen: Ints) -> tuple[float, int, int]:
        """Add the gradient of the batch's mean loss to the flat gradient; each of several processes takes its share."""
        if self.workers.count == 1:
            return self._backward(chosen)
        share = self.workers.share(chosen)
        loss, correct, count = self._backward(share) if len(share) else (0.0, 0, 0)
        # The mean of all is the mean of the shares' means, weighted by their numbers of targets.
        sums = self.workers.add_up(torch.tensor([loss * count, correct, count], dtype=torch.float64)).tolist()
        self.workers.add_up(self.flat.gradient.mul_(count / max(sums[2], 1)))
        return sums[0] / max(sums[2], 1), int(sums[1]), int(sums[2])

    def _backward(self, chosen: Ints) -> tuple[float, int, int]:
        examples, trees = self.examples, self.examples.trees_of(chosen)
        classes = examples.plain_classes(chosen)
        result = self._engine.gradients(examples.forest, trees, lambda outputs: examples.loss(outputs, chosen), classes)
        if result.right is not None:
            return result.loss, result.right, len(chosen)
        target = examples.target(chosen)
        right = 0 if result.outputs is None else examples.task.count_right(result.outputs, target)
        return result.loss, right, examples.target_count(target)

    def _close_epoch(self, reporter: Reporter, examples: int) -> None:
        state = self.state
        self.require_finite()
        measured = None
        if len(self.validation_numbers):
            measured = Score.of(self.model, self.examples, self.validation_numbers, self.workers)
            if not math.isfinite(measured.loss):
                raise self._diverged(f"the validation loss became {measured.loss}")
        state.epoch += 1
        metrics: dict[str, Any] = {"epoch": state.epoch, "loss": state.loss_sum / state.seen}
        if self.examples.task.has_classes:
            metrics["accuracy"] = state.correct / state.seen
        metrics["seconds"] = round(state.seconds, 3)
        metrics["processor_seconds"] = round(state.processor_seconds, 3)  # the cost on a shared machine
        metrics["examples_per_second"] = round(examples / max(state.seconds, 1e-9), 1)
        if self._stage is not None:
            metrics["stage"] = self._stage
        if measured is not None:
            metrics["validation_loss"], metrics["validation_score"] = measured.loss, measured.score
            # Ties go to the lower loss: with few validation trees, all are soon right by chance.
            is_better = (measured.score, -measured.loss) > (state.best_score, -state.best_loss)
            if is_better or self.settings.keep == "last":
                state.best_score, state.best_loss, state.best_epoch = measured.score, measured.loss, state.epoch
                self.best.copy_(self.flat.values.data)
        else:
            state.best_epoch = state.epoch
            self.best.copy_(self.flat.values.data)
        if state.restarts:
            metrics["restarts"] = state.restarts
        state.history.append(metrics)
        state.batch = state.correct = state.seen = 0
        state.loss_sum = state.seconds = state.processor_seconds = 0.0
        reporter.epoch(metrics)


def fit(
    model: TreeModel,
    examples: Examples,
    settings: TrainingSettings,
    *,
    train: Ints | None = None,
    validation: Ints | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Train a model in memory. It ends with the weights that were best on validation, or with the last if there is none.

    >>> from treefold.training.build import build_model, facts_of, resolve
    >>> from treefold.trees.forest import Forest
    >>> from treefold.training.settings import ModelSettings
    >>> forest = Forest(["(f a b)", "(f b a)"] * 8)
    >>> model = build_model(*resolve(ModelSettings(state_size=4), facts_of(forest)), "tree", 2)
    >>> examples = Examples(forest, np.array([0, 1] * 8), "tree")
    >>> fit(model, examples, TrainingSettings(epochs=2)).epochs
    2
    """
    numbers = np.arange(len(examples)) if train is None else train
    held_out = np.zeros(0, np.int64) if validation is None else validation
    trainer = Trainer(model, examples, numbers, held_out, settings)
    result = trainer.run(reporter or Silent())
    trainer.flat.release()
    return result


def _base_rate(settings: TrainingSettings) -> float:
    return settings.learning_rate or {"adadelta": 1.0, "adamw": 3e-3}[settings.optimiser]


def _rate_factor(settings: TrainingSettings, step: int, total: int) -> float:
    """Rise linearly during warm-up, then stay, or fall to zero along a cosine."""
    warm = settings.warmup * total
    if step < warm:
        return (step + 1) / warm
    if settings.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(total - warm, 1)))


def _state_noise(settings: TrainingSettings, step: int, total: int) -> float:
    """Go in a line from the first to the last step."""
    start, end = settings.state_noise, settings.state_noise_end
    return start if end is None else start + (end - start) * step / max(total - 1, 1)


def _optimiser(flat: FlatParameters, settings: TrainingSettings) -> torch.optim.Optimizer:
    rate, decay = _base_rate(settings), settings.weight_decay
    if settings.optimiser == "adadelta":
        return FlatAdadelta([flat.values], lr=rate, weight_decay=decay)
    decays = None if settings.decay_all else flat.decays
    return FlatAdamW([flat.values], lr=rate, betas=(0.9, settings.beta2), weight_decay=decay, decays=decays)


def optimiser_shapes(trainer: Trainer) -> dict[str, torch.Size]:
    """Return the names and shapes of the optimiser's state after the first step."""
    names = {"adadelta": ("square_avg", "acc_delta"), "adamw": ("exp_avg", "exp_avg_sq")}
    shape = trainer.flat.values.shape
    return {"step": torch.Size(()), **dict.fromkeys(names[trainer.settings.optimiser], shape)}


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser of one tensor, by name."""
    (state,) = optimiser.state_dict()["state"].values() or ({},)
    return {name: torch.as_tensor(value) for name, value in state.items()}


def load_optimiser_tensors(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the state of an optimiser of one tensor."""
    whole = optimiser.state_dict()
    whole["state"] = {0: tensors} if tensors else {}
    optimiser.load_state_dict(whole)
