"""The fused layers equal torch's own, values and gradients."""

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from treefold import Classifier, Forest, OneHot, TreeEncoder, TreeLSTM, TreeModel
from treefold.kernels import perceptron, perceptron_arrangement
from treefold.kernels.perceptrons import _MANY


def layers_of(sizes: list[int], dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(len(sizes))
    found: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        found += [nn.Linear(size, following, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*found[:-1])


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 9), st.integers(0, 3), st.integers(0, 9))
def test_values_and_gradients_are_those_of_the_layers(sizes: list[int], units: int, more: int, chosen: int) -> None:
    layers, generator = layers_of(sizes), np.random.default_rng(chosen)
    rows = generator.integers(0, units, chosen)  # some more than once, others not at all
    memories = torch.randn(units, sizes[0] + more, dtype=torch.float64, requires_grad=True)
    expected = layers(memories[torch.from_numpy(rows), : sizes[0]])
    weights = torch.randn_like(expected)
    inputs = [memories, *layers.parameters()]
    wanted = torch.autograd.grad((expected * weights).sum(), inputs)
    found = perceptron(layers, memories, rows)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    got = torch.autograd.grad((found * weights).sum(), inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        for mode in (True, False):  # in eval mode the parameters may be moved
            answer = perceptron(layers.train(mode), memories, rows)
            torch.testing.assert_close(answer, expected.detach(), rtol=1e-10, atol=1e-10)


def test_a_change_of_weights_is_seen_after_an_answer() -> None:
    layers, memories, rows = layers_of([3, 4, 2]).eval(), torch.randn(5, 3, dtype=torch.float64), np.arange(5)
    with torch.no_grad():
        perceptron(layers, memories, rows)
        for parameter in layers.parameters():
            parameter.mul_(2)
        torch.testing.assert_close(perceptron(layers, memories, rows), layers(memories))
        other = copy.deepcopy(layers)
        for parameter in layers.parameters():
            parameter.zero_()
        torch.testing.assert_close(perceptron(other, memories, rows), other(memories))
        assert not torch.equal(layers(memories), other(memories))


def test_nan_is_not_lost() -> None:
    layers = layers_of([2, 3, 2])
    with torch.no_grad():
        found = perceptron(layers, torch.tensor([[math.nan, 1.0]], dtype=torch.float64), np.zeros(1, np.int64))
    assert found is not None and bool(found.isnan().all())


@pytest.mark.parametrize(
    "layers",
    [
        nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2, bias=False)),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(),
    ],
)
def test_other_layers_are_left_to_torch(layers: nn.Sequential) -> None:
    assert perceptron(layers, torch.ones(1, 2), np.zeros(1, np.int64)) is None
    assert perceptron_arrangement(layers) is None


def test_hooks_other_types_and_many_rows_are_left_to_torch() -> None:
    layers, memories = layers_of([2, 2], torch.float32), torch.ones(1, 2)
    assert perceptron(layers, memories, np.zeros(3, np.int64)) is not None
    assert perceptron(layers, memories, np.zeros(_MANY, np.int64)) is None
    assert perceptron(layers, memories.double(), np.zeros(3, np.int64)) is None
    with_hook = layers[0].register_forward_hook(lambda *_: None)
    assert perceptron(layers, memories, np.zeros(3, np.int64)) is None
    with_hook.remove()
    assert perceptron(layers, memories, np.zeros(3, np.int64)) is not None


def test_a_model_that_answered_keeps_its_head_through_a_pickle() -> None:
    forest = Forest(["(f a b)", "b"])
    encoder = TreeEncoder(TreeLSTM("sum", state_size=3, arity=2, label_size=3), OneHot("fab"), backend="fused")
    model = TreeModel(encoder, Classifier(in_size=3, classes=2)).eval()
    with torch.no_grad():
        before = model(forest)
        again = pickle.loads(pickle.dumps(model))(forest)
    torch.testing.assert_close(again, before, rtol=0, atol=0)
    encoder.backend = "torch"
    torch.testing.assert_close(model(forest), before, rtol=1e-5, atol=1e-6)
