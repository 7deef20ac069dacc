"""Random numbers: trainings neither disturb each other nor the caller's generators."""

import csv
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from treefold import Forest, TreeClassifier
from treefold.data.dataset import Dataset
from treefold.kernels.threads import part_count, reserve_threads_for_kernels, threads
from treefold.nn.heads import Head
from treefold.nn.model import TreeModel
from treefold.nn.randomness import Dropout, drawing_from, draws_elsewhere, seeded
from treefold.training import fit, train
from treefold.training.build import build_model, facts_of, resolve
from treefold.training.examples import Examples
from treefold.training.saving import load_model
from treefold.training.settings import ModelSettings, RunSettings, TrainingSettings

FOREST = Forest(["(f a b)", "(f b a)", "(f (f a a) b)", "(f b (f b a))"] * 40)
CLASSES = np.array([0, 1, 1, 0] * 40)


@contextmanager
def unchanged() -> Iterator[None]:
    """Check that the block leaves all global state as it was."""

    def state() -> list[Any]:
        return [
            torch.random.get_rng_state().tolist(),
            np.random.get_state()[1].tolist(),  # type: ignore[index]
            random.getstate(),
            csv.field_size_limit(),
            torch.get_num_threads(),
        ]

    before = state()
    try:
        yield
    finally:
        assert state() == before


def together(run: Callable[[int], Any], count: int) -> list[Any]:
    """Run a function in several threads at once."""
    results: list[Any] = [None] * count
    start = threading.Barrier(count)

    def one(place: int) -> None:
        start.wait()
        results[place] = run(place)

    workers = [threading.Thread(target=one, args=(place,)) for place in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"dropout": 0.4, "label_dropout": 0.1}, {"recipe": "operands", "epochs": 4}])
def test_fits_at_the_same_time_give_what_each_gives_alone(options: dict[str, Any]) -> None:
    def chances(seed: int) -> list[Any]:
        model = TreeClassifier(**{"epochs": 3, "batch_size": 80, "random_state": seed, **options})
        return model.fit(FOREST, CLASSES).predict_proba(FOREST).tolist()  # type: ignore[no-any-return]

    alone = [chances(seed) for seed in range(6)]
    with unchanged():
        assert together(chances, 6) == alone
    assert alone[0] != alone[1]


@pytest.mark.slow
def test_a_training_leaves_global_state_alone(tmp_path: Path) -> None:
    data = Dataset.from_labels(list(FOREST), [str(each) for each in CLASSES], {"train": np.arange(160)}, {})
    settings = RunSettings.of({"model": {"state_size": 4}, "training": {"epochs": 1, "threads": 1}})
    with unchanged():
        train(data, tmp_path / "run", settings)
    with unchanged():
        load_model(tmp_path / "run")
    with unchanged(), pytest.raises(Exception, match="epochs"):
        TreeClassifier(epochs=-1, n_threads=1).fit(FOREST, CLASSES)


class Noisy(Head):
    """A part that a user wrote; it draws from torch's default generator."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head, self.in_size = head, head.in_size
        self.drawn: list[float] = []

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(states.shape)
        if self.training:
            self.drawn.append(float(noise[0, 0]))
        return self.head(states + noise)  # type: ignore[no-any-return]


def test_parts_of_users_draw_what_the_seed_gives() -> None:
    drawn = []
    for _ in range(2):
        with seeded(1):
            settings, labels = resolve(ModelSettings(state_size=3), facts_of(FOREST))
            model = build_model(settings, labels, "tree", 2)
        model = TreeModel(model.encoder, Noisy(model.head))
        assert draws_elsewhere(model)
        with unchanged():
            fit(model, Examples(FOREST, CLASSES, "tree"), TrainingSettings(epochs=1, seed=7, batch_size=40))
        assert isinstance(model.head, Noisy)
        drawn.append(model.head.drawn)
        torch.rand(3)  # other draws do not matter
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 4


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_draws_the_numbers_of_torch(share: float) -> None:
    values = torch.arange(1.0, 601).reshape(20, 30).requires_grad_()
    torch.manual_seed(5)
    expected = nn.Dropout(share)(values)
    with unchanged(), drawing_from(torch.Generator().manual_seed(5)):
        assert torch.equal(Dropout(share)(values), expected)
    assert torch.equal(Dropout(share).eval()(values), values)


def test_a_seeded_block_restores_the_generator_after_an_error() -> None:
    with unchanged(), pytest.raises(ZeroDivisionError), seeded(2):
        torch.rand(5)
        raise ZeroDivisionError


def test_threads_of_one_block_do_not_count_for_another_thread() -> None:
    inside, seen = threading.Event(), threading.Event()
    found: list[int] = []

    def other() -> None:
        inside.wait()
        with threads(None), reserve_threads_for_kernels():
            found.append(part_count(10_000))
        seen.set()

    worker = threading.Thread(target=other)
    worker.start()
    with threads(3):
        usual = part_count(10_000)
        with threads(1):
            inside.set()
            seen.wait()
    worker.join()
    assert usual == 3
    assert found == [part_count(10_000)]
