"""A training step without autograd against the same step with it, and answers of several threads against those of one."""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from treefold import AGGREGATORS, Forest, TreeModel
from treefold.data.generators import build
from treefold.errors import TreeError, TreeIndexError, VocabularyError
from treefold.kernels.scores import cross_entropy
from treefold.kernels.threads import threads
from treefold.nn.flat import FlatParameters
from treefold.training import Examples
from treefold.training.build import build_model, facts_of, resolve
from treefold.training.settings import ModelSettings

DATA = Examples.of(build.make_listops(150, seed=3), "tree")
CHOSEN = np.arange(140)


def model_of(**settings: object) -> TreeModel:
    torch.manual_seed(0)
    resolved, labels = resolve(ModelSettings(state_size=4, **settings), facts_of(DATA.forest))  # type: ignore[arg-type]
    return build_model(resolved, labels, "tree", 10).double()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_loss_right_answers_and_gradients_are_those_of_autograd(aggregator: str, shared: bool, count: int) -> None:
    ranked = aggregator not in ("sum", "full")
    model = model_of(aggregator=aggregator, shared=shared, rank=2 if ranked else None)
    plain = copy.deepcopy(model)
    plain.encoder.backend = "torch"
    outputs = plain(DATA.batch(CHOSEN))
    expected = nn.functional.cross_entropy(outputs, DATA.target(CHOSEN))
    torch.autograd.backward(expected)
    right = int((outputs.argmax(1) == DATA.target(CHOSEN)).sum())
    flat = FlatParameters(model, model.arrangements())
    classes = DATA.plain_classes(CHOSEN)
    assert classes is not None
    with flat.in_charge(), threads(count):
        measured = model.add_gradients(DATA.forest, CHOSEN, classes)
    if aggregator == "tensor-train" and not shared:
        assert measured is None  # its parameters cannot stand in one tensor as the kernels read them
        return
    assert measured is not None
    assert measured.loss == pytest.approx(float(expected.detach()), rel=1e-12) and measured.right == right
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)


def test_gradients_are_added() -> None:
    model = model_of(aggregator="sum")
    flat = FlatParameters(model, model.arrangements())
    classes = DATA.targets[CHOSEN].astype(np.int64)
    with flat.in_charge():
        model.add_gradients(DATA.forest, CHOSEN, classes)
        once = flat.gradient.clone()
        model.add_gradients(DATA.forest, CHOSEN, classes)
    torch.testing.assert_close(flat.gradient, 2 * once)


def test_what_was_prepared_follows_the_parameters_and_ends_with_the_charge() -> None:
    model = model_of(aggregator="tucker", rank=2)
    flat = FlatParameters(model, model.arrangements())
    classes = DATA.targets[CHOSEN].astype(np.int64)
    with flat.in_charge():
        kernels = model.gradient_kernels()
        assert kernels is not None and kernels.add(DATA.forest, CHOSEN, classes) is not None
        flat.values.data.mul_(0.5)  # as a step moves them, in place
        flat.settle_values()
        flat.gradient.zero_()
        measured = kernels.add(DATA.forest, CHOSEN, classes)
    plain = model_of(aggregator="tucker", rank=2)
    plain.encoder.backend = "torch"
    for parameter in plain.parameters():
        parameter.data.mul_(0.5)
    expected = nn.functional.cross_entropy(plain(DATA.batch(CHOSEN)), DATA.target(CHOSEN))
    torch.autograd.backward(expected)
    assert measured is not None and measured.loss == pytest.approx(float(expected.detach()), rel=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)
    assert kernels.add(DATA.forest, CHOSEN, classes) is None


def test_where_something_listens_or_learns_besides_it_is_left_to_autograd() -> None:
    classes = DATA.targets[CHOSEN].astype(np.int64)
    for settings in (
        {"labels": "embedding", "label_size": 3},
        {"dropout": 0.5},
        {"direction": "both", "per_label": False},
    ):
        model = model_of(aggregator="sum", **settings)
        with FlatParameters(model, model.arrangements()).in_charge():
            assert model.add_gradients(DATA.forest, CHOSEN, classes) is None, settings
    model = model_of(aggregator="sum")
    assert model.add_gradients(DATA.forest, CHOSEN, classes) is None  # nobody is in charge
    with FlatParameters(model, model.arrangements()).in_charge():
        heard: list[object] = []
        outer = model.register_forward_hook(lambda *arguments: None)
        assert model.add_gradients(DATA.forest, CHOSEN, classes) is None
        outer.remove()
        hook = model.head.register_forward_hook(lambda *arguments: heard.append(arguments))
        assert model.add_gradients(DATA.forest, CHOSEN, classes) is None
        model.answers(DATA.forest, CHOSEN)
        assert heard
        hook.remove()
        assert model.add_gradients(DATA.forest, CHOSEN, classes) is not None


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("in_charge", [False, True])
def test_answers_of_two_threads_are_those_of_one(in_charge: bool, training: bool) -> None:
    model = model_of(aggregator="tucker", rank=2).train(training)
    flat = FlatParameters(model, model.arrangements()) if in_charge else None
    batch = DATA.batch(CHOSEN)
    with torch.no_grad():
        with threads(1):
            alone = model.answers(DATA.forest, CHOSEN)
        with threads(2):
            scores = model._plain_scores()
            assert scores is not None
            kernels = model.encoder.answers_through(scores)
            quick = None if kernels is None else kernels(DATA.forest, CHOSEN)
            together = model.answers(DATA.forest, CHOSEN)
        model.encoder.backend = "torch"
        plain = model(batch)
    assert quick is not None and torch.equal(quick, together) and quick.shape == (len(CHOSEN), 10)
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain, together, rtol=1e-10, atol=1e-10)
    del flat


@pytest.mark.parametrize("count", [1, 2])
def test_trees_that_are_wrong_are_left_to_those_who_say_what_is_wrong_and_nothing_is_added(count: int) -> None:
    model = model_of(aggregator="sum")
    classes = np.zeros(100, np.int64)
    unknown = Forest([*(["(MAX 1 2)"] * 99), "(MAX 1 eleven)"])  # in the last part
    wide = Forest([*(["(MAX 1 2)"] * 99), "(MAX 1 2 3 4 5 6)"])
    known, trees = Forest(["(MAX 1 2)"] * 99), np.arange(100)  # one tree less than asked for
    flat = FlatParameters(model, model.arrangements())
    with threads(count):
        for forest, error in ((unknown, VocabularyError), (wide, TreeError), (known, TreeIndexError)):
            with flat.in_charge():
                assert model.add_gradients(forest, trees, classes) is None
            assert not flat.gradient.any()
            with pytest.raises(error):
                model.answers(forest, trees)
        with flat.in_charge():
            assert model.add_gradients(known, np.arange(99), classes[1:]) is not None
        assert flat.gradient.any()


def test_cross_entropy_is_that_of_torch() -> None:
    generator = np.random.default_rng(0)
    scores, classes = generator.normal(0, 30, (50, 4)), generator.integers(0, 4, 50)
    like = torch.tensor(scores, requires_grad=True)
    expected = nn.functional.cross_entropy(like, torch.from_numpy(classes), reduction="sum")
    torch.autograd.backward(expected / 7)
    loss, right = cross_entropy(scores, classes, 7)
    assert loss == pytest.approx(float(expected.detach())) and right == int((like.argmax(1).numpy() == classes).sum())
    assert like.grad is not None
    np.testing.assert_allclose(scores, like.grad.numpy(), atol=1e-12)


def test_a_loss_that_is_not_a_number_shows() -> None:
    for broken in (np.nan, np.inf):
        loss, _ = cross_entropy(np.array([[0.0, broken]]), np.zeros(1, np.int64), 1)
        assert not np.isfinite(loss)


def test_answers_stay_as_they_were_when_the_next_batch_takes_their_room() -> None:
    model = model_of(aggregator="tucker", rank=2).eval()
    with torch.no_grad(), threads(1):
        first = model.encoder(DATA.batch(CHOSEN))
        roots, nodes = first.roots.clone(), first.nodes.clone()
        for chosen in (CHOSEN[::-1], CHOSEN[:3], CHOSEN):
            model.encoder(DATA.batch(np.ascontiguousarray(chosen)))
        assert torch.equal(first.roots, roots) and torch.equal(first.nodes, nodes)
        assert torch.equal(model.encoder(DATA.batch(CHOSEN)).nodes, nodes)


def test_threads_of_a_program_do_not_share_room() -> None:
    model = model_of(aggregator="tucker", rank=2).eval()
    batches = [DATA.batch(np.arange(start, start + 40)) for start in range(0, 120, 20)] * 4

    def answer(number: int) -> torch.Tensor:
        with torch.no_grad():
            outputs: torch.Tensor = model(batches[number])
        return outputs

    expected = [answer(number) for number in range(len(batches))]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(answer, range(len(batches))))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
