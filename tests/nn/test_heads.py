"""Heads against their formulas, and their kernels against torch and autograd."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from treefold import (
    Classifier,
    Forest,
    OneHot,
    PairClassifier,
    PairRegressor,
    Regressor,
    TreeEncoder,
    TreeLSTM,
    TreeModel,
)
from treefold.errors import ConfigurationError, TreeError
from treefold.nn.engine import FusedEngine, TorchEngine
from treefold.nn.heads import _LEAK, Distance, Head, HeadKernel, NodeHead, cross_entropy
from treefold.training.task import PairRegressionTask
from treefold.trees.batch import Ints

FOREST = Forest(["(f a b)", "b", "(f (f a) _)", "a"])


def encoder() -> TreeEncoder:
    torch.manual_seed(0)
    return TreeEncoder(TreeLSTM("full", state_size=4, arity=2, label_size=3), OneHot(["a", "b", "f"]))


# The heads


def test_the_classifier_has_the_paper_s_two_layers_of_twenty() -> None:
    head = Classifier(in_size=4, classes=10)
    assert [tuple(p.shape) for p in head.parameters()] == [(20, 4), (20,), (20, 20), (20,), (10, 20), (10,)]
    model = TreeModel(encoder(), head)
    assert model(FOREST.batch()).shape == (4, 10)


@pytest.mark.parametrize("hidden_size", [3, 9])  # on both sides of the state size: there are two ways to compute it
def test_the_pair_classifier_is_the_bilinear_form_of_the_two_roots(hidden_size: int) -> None:
    torch.manual_seed(0)
    model = TreeModel(encoder(), PairClassifier(in_size=4, classes=7, hidden_size=hidden_size)).double()
    head = model.head
    assert isinstance(head, PairClassifier)
    logits = model(FOREST.batch([0, 1, 2, 3]))
    roots = model.encoder(FOREST.batch()).roots
    tensor = head.comparison.to_dense()
    for pair, (left, right) in enumerate([(0, 2), (1, 3)]):
        one = torch.ones(1, dtype=torch.float64)
        z = torch.einsum("a,b,abk->k", torch.cat([roots[left], one]), torch.cat([roots[right], one]), tensor)
        z = torch.maximum(z, torch.zeros_like(z)) + 0.01 * torch.minimum(z, torch.zeros_like(z))
        torch.testing.assert_close(logits[pair], head.scores.weight @ z + head.scores.bias)
    with pytest.raises(TreeError, match="pairs expect an even number of trees, left ones then right ones, got 3"):
        model(FOREST.batch([0, 1, 2]))


def test_thousands_of_pairs_get_the_answers_that_each_gets_alone() -> None:
    torch.manual_seed(0)
    model = TreeModel(encoder(), PairClassifier(in_size=4, classes=7)).double()
    left, right = torch.randint(len(FOREST), (2, 2500)).tolist()
    alone = torch.cat([model(FOREST.batch([one, other])) for one in range(4) for other in range(4)])
    chosen = [4 * one + other for one, other in zip(left, right, strict=True)]
    torch.testing.assert_close(model(FOREST.batch([*left, *right])), alone[chosen])


def by_distance(head: PairClassifier | PairRegressor, left: Any, right: Any) -> list[float]:
    """The scores of one pair, entry by entry."""
    product, distance, bias, last, constant = (
        each.detach().numpy()
        for each in (
            head.comparison.product.weight,
            head.comparison.distance.weight,
            head.comparison.distance.bias,
            head.scores.weight,
            head.scores.bias,
        )
    )
    compared = []
    for h in range(len(bias)):
        z = bias[h]
        for i in range(len(left)):
            z += product[h, i] * left[i] * right[i] + distance[h, i] * abs(left[i] - right[i])
        compared.append(1 / (1 + math.exp(-z)))
    return [constant[k] + sum(last[k, h] * compared[h] for h in range(len(bias))) for k in range(len(constant))]


DISTANCES = [
    lambda: PairRegressor(in_size=4, levels=3, hidden_size=7),
    lambda: PairClassifier(in_size=4, classes=6, hidden_size=5, comparison="distance"),
]


@pytest.mark.parametrize("make", DISTANCES)
def test_pairs_are_compared_by_product_and_distance(make: Any) -> None:
    torch.manual_seed(1)
    head = make().double()
    states = torch.randn(10, 4, dtype=torch.float64)
    scores = head(states).detach().numpy()
    for pair in range(5):
        expected = by_distance(head, states[pair].numpy(), states[5 + pair].numpy())
        np.testing.assert_allclose(scores[pair], expected, rtol=1e-12)
    torch.testing.assert_close(head(torch.cat([states[5:], states[:5]])), head(states))  # left and right are alike
    with pytest.raises(TreeError, match="pairs expect an even number of trees, left ones then right ones, got 3"):
        head(states[:3])
    assert head.kernel() is None  # torch computes it


@pytest.mark.parametrize("make", DISTANCES)
def test_gradients_of_a_comparison_are_those_of_finite_differences(make: Any) -> None:
    torch.manual_seed(2)
    head = make().double()
    states = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda states, *_: head(states), (states, *head.parameters()))


@pytest.mark.parametrize("make", DISTANCES)
def test_both_engines_compare_pairs_alike_with_all_gradients(make: Any) -> None:
    torch.manual_seed(3)
    model = TreeModel(encoder(), make()).double()
    numbers = torch.tensor([[0.3], [1.0]], dtype=torch.float64)

    def loss(outputs: Tensor) -> Tensor:
        return PairRegressionTask().losses(outputs, numbers).mean()

    found = []
    for backend in ("fused", "torch"):
        model.encoder.backend = backend
        model.zero_grad()
        engine = model.engine()
        assert type(engine) is (FusedEngine if backend == "fused" else TorchEngine)
        result = engine.gradients(FOREST, np.arange(4), loss)
        gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        assert len(gradients) == len(list(model.parameters()))
        found.append((result.loss, model.answers(FOREST, np.arange(4)), gradients))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    torch.testing.assert_close(found[0][1:], found[1][1:])


def entrywise(**sizes: int) -> PairClassifier:
    return PairClassifier(**{"in_size": 4, "classes": 6, "hidden_size": 5, **sizes}, comparison="blockwise")


def test_pairs_are_compared_entry_by_entry_and_left_differs_from_right() -> None:
    torch.manual_seed(1)
    head = entrywise().double()
    states = torch.randn(10, 4, dtype=torch.float64)
    weights, bias = head.comparison.linear.weight.tolist(), head.comparison.linear.bias.tolist()
    last, constant = head.scores.weight.tolist(), head.scores.bias.tolist()
    for pair, scores in enumerate(head(states).tolist()):
        left, right = states[pair].tolist(), states[5 + pair].tolist()
        inputs = [*(one * other for one, other in zip(left, right, strict=True)), *left, *right]
        z = [
            math.fsum([b, *(w * x for w, x in zip(row, inputs, strict=True))])
            for row, b in zip(weights, bias, strict=True)
        ]
        z = [max(each, 0) + 0.01 * min(each, 0) for each in z]
        expected = [
            math.fsum([c, *(v * x for v, x in zip(row, z, strict=True))]) for row, c in zip(last, constant, strict=True)
        ]
        np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-12)
    swapped = head(torch.cat([states[5:], states[:5]]))
    assert not torch.allclose(swapped, head(states))
    before = head(states)
    with torch.no_grad():  # the weights of left and right change places with them
        head.comparison.linear.weight.copy_(head.comparison.linear.weight[:, [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7]])
    torch.testing.assert_close(head(torch.cat([states[5:], states[:5]])), before)
    with pytest.raises(TreeError, match="pairs expect an even number of trees, left ones then right ones, got 3"):
        head(states[:3])
    shapes = [tuple(each.shape) for each in PairClassifier(in_size=8, classes=7, comparison="blockwise").parameters()]
    assert shapes == [(75, 24), (75,), (7, 75), (7,)]


def test_an_entry_wise_comparison_has_the_gradients_of_finite_differences() -> None:
    torch.manual_seed(2)
    head = entrywise().double()
    states = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda states, *_: head(states), (states, *head.parameters()))


@pytest.mark.parametrize(("size", "hidden", "pairs"), [(1, 1, 1), (3, 75, 5), (7, 2, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_of_an_entry_wise_comparison_is_its_formula(
    size: int, hidden: int, pairs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(size)
    head = entrywise(in_size=size, classes=3, hidden_size=hidden).to(dtype)
    generator = np.random.default_rng(pairs)
    memory = torch.randn(6, 2 * size, dtype=dtype, requires_grad=True)
    roots = generator.integers(0, 6, 2 * pairs)  # some more than once, some on both sides
    left, right = memory[roots[:pairs], :size], memory[roots[pairs:], :size]
    product, one, other = head.comparison.linear.weight.split(size, dim=1)
    images = (left * right) @ product.t() + left @ one.t() + right @ other.t() + head.comparison.linear.bias
    expected = head.scores(torch.where(images > 0, images, _LEAK * images))
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4
    assert_kernel_equals(head, memory, roots, generator.integers(0, 3, pairs), pairs + 2, expected, tolerance)


def test_an_entry_wise_comparison_that_is_not_plain_is_left_to_torch() -> None:
    assert entrywise().kernel() is not None
    with_dropout = PairClassifier(in_size=4, classes=2, comparison="blockwise", dropout=0.5)
    assert with_dropout.kernel() is None
    for change in (nn.utils.parametrizations.weight_norm, lambda linear: linear.register_forward_hook(print)):
        head = entrywise()
        change(head.comparison.linear)
        assert head.kernel() is None
    head = entrywise()
    head.comparison.linear = nn.Linear(12, 5, bias=False)
    assert head.kernel() is None


def test_a_comparison_has_the_sizes_of_tai_et_al() -> None:
    head = PairRegressor(in_size=150)
    shapes = {name: tuple(each.shape) for name, each in head.named_parameters()}
    assert isinstance(head.comparison, Distance) and shapes == {
        "comparison.product.weight": (50, 150),
        "comparison.distance.weight": (50, 150),
        "comparison.distance.bias": (50,),
        "scores.weight": (5, 50),
        "scores.bias": (5,),
    }


def test_wrong_levels_and_comparisons_are_clear_errors() -> None:
    with pytest.raises(ConfigurationError, match=r"PairRegressor expects at least two levels, .* got 1"):
        PairRegressor(in_size=4, levels=1)
    with pytest.raises(ConfigurationError, match="PairRegressor expects levels to be an integer >= 1, got 0"):
        PairRegressor(in_size=4, levels=0)
    with pytest.raises(ConfigurationError, match=r"got 'distanc' \(nearest known: 'distance'\)"):
        PairClassifier(in_size=4, classes=2, comparison="distanc")


def test_nodes_and_numbers_are_read_off_too() -> None:
    assert TreeModel(encoder(), NodeHead(in_size=4, classes=3))(FOREST.batch()).shape == (FOREST.node_count, 3)
    assert TreeModel(encoder(), Regressor(in_size=4, outputs=2, hidden=()))(FOREST.batch()).shape == (4, 2)
    with pytest.raises(ConfigurationError, match="Classifier expects classes to be an integer >= 1, got 0"):
        Classifier(in_size=4, classes=0)
    with pytest.raises(ConfigurationError, match=r"Regressor expects hidden\[1\] to be an integer >= 1, got -2"):
        Regressor(in_size=4, hidden=(3, -2))
    with pytest.raises(ConfigurationError, match="expects hidden to be a list of sizes such as"):
        Classifier(in_size=4, classes=2, hidden=20)  # type: ignore[arg-type]


# Their kernels


def kernel_of(head: Head) -> HeadKernel:
    kernel = head.kernel()
    assert kernel is not None
    return kernel


def assert_kernel_equals(
    head: Head, memory: Tensor, roots: Ints, classes: Ints, total: int, expected: Tensor, tolerance: float = 1e-10
) -> None:
    """Compare scores, loss, right answers and all gradients of a kernel with scores that autograd knows."""
    kernel = kernel_of(head)
    parameters = kernel.layout.parameters
    assert {id(each) for each in parameters} == {id(each) for each in head.parameters()}
    loss = nn.functional.cross_entropy(expected, torch.from_numpy(classes), reduction="sum")
    wanted = torch.autograd.grad(loss / total, [memory, *parameters])

    values, states = kernel.layout.pack([each.detach() for each in parameters]), memory.detach().numpy()
    scores = kernel.scores(values, states, roots)
    d_values = np.ones_like(values)
    lost, right, d_memory = kernel.gradients(values, states, roots, classes, total, d_values)

    near: dict[str, Any] = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(scores, expected.detach().numpy(), **near)
    assert lost == pytest.approx(float(loss.detach()), rel=tolerance)
    assert right == int((expected.argmax(1).numpy() == classes).sum())
    np.testing.assert_allclose(d_memory, wanted[0].numpy(), **near)
    for found, gradient in zip(kernel.layout.gradients(torch.from_numpy(d_values)), wanted[1:], strict=True):
        torch.testing.assert_close(found, 1 + gradient, **near)  # they are added


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.integers(1, 9),
    st.integers(0, 3),
    st.integers(1, 9),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_classifier_s_kernel_is_its_layers(
    sizes: list[int], units: int, more: int, chosen: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(len(sizes))
    head = Classifier(in_size=sizes[0], classes=sizes[-1], hidden=sizes[1:-1]).to(dtype)
    generator = np.random.default_rng(chosen)
    roots = generator.integers(0, units, chosen)  # some more than once, others not at all
    memory = torch.randn(units, sizes[0] + more, dtype=dtype, requires_grad=True)
    expected = head(memory[torch.from_numpy(roots), : sizes[0]])
    classes = generator.integers(0, sizes[-1], chosen)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4
    assert_kernel_equals(head, memory, roots, classes, chosen + 3, expected, tolerance)


@pytest.mark.parametrize(("size", "hidden", "pairs"), [(1, 1, 1), (3, 75, 5), (7, 2, 8)])
def test_a_pair_classifier_s_kernel_is_its_formula(size: int, hidden: int, pairs: int) -> None:
    torch.manual_seed(size)
    head = PairClassifier(in_size=size, classes=3, hidden_size=hidden).double()
    generator = np.random.default_rng(pairs)
    memory = torch.randn(6, 2 * size, dtype=torch.float64, requires_grad=True)
    roots = generator.integers(0, 6, 2 * pairs)  # some more than once, some on both sides
    one = torch.ones(pairs, 1, dtype=torch.float64)
    left, right = (torch.cat([memory[half, :size], one], 1) for half in (roots[:pairs], roots[pairs:]))
    images = torch.einsum("pi,pj,ijh->ph", left, right, head.comparison.tensor)
    expected = head.scores(torch.where(images > 0, images, _LEAK * images))
    torch.testing.assert_close(expected, head(memory[roots, :size]))
    assert_kernel_equals(head, memory, roots, generator.integers(0, 3, pairs), pairs, expected)


@pytest.mark.parametrize(
    "head", [Classifier(in_size=2, classes=2, hidden=(3,)), PairClassifier(in_size=2, classes=2), entrywise(in_size=2)]
)
def test_a_state_that_is_not_a_number_shows_in_the_scores(head: Head) -> None:
    kernel = kernel_of(head.double())
    values = kernel.layout.pack([each.detach() for each in kernel.layout.parameters])
    scores = kernel.scores(values, np.array([[math.nan, 1.0]]), np.zeros(2, np.int64))
    assert np.isnan(scores).all()


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


class Scaled(nn.Linear):
    """A layer that is more than its parameters."""

    def forward(self, states: Tensor) -> Tensor:
        return 100 * super().forward(states)


@pytest.mark.parametrize(
    "layers",
    [
        nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2, bias=False)),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Scaled(2, 2)),
        nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)),
        nn.Sequential(),
    ],
)
def test_other_layers_have_no_kernel(layers: nn.Sequential) -> None:
    head = Classifier(in_size=2, classes=2)
    head.layers = layers
    assert head.kernel() is None


def test_a_weight_that_is_computed_has_no_kernel() -> None:
    head = Classifier(in_size=2, classes=2, hidden=())
    nn.utils.parametrizations.weight_norm(head.layers[0])
    assert head.kernel() is None


def test_a_head_with_hooks_has_no_kernel() -> None:
    one, pair = Classifier(in_size=2, classes=2), PairClassifier(in_size=2, classes=2)
    for head, modules in (
        (one, [one.layers, *one.layers]),
        (pair, [pair.comparison, pair.scores, pair.dropout]),
    ):
        assert head.kernel() is not None
        for module in modules:
            for register in (module.register_forward_hook, module.register_full_backward_pre_hook):
                hook = register(lambda *arguments: None)
                assert head.kernel() is None
                hook.remove()
        assert head.kernel() is not None


def test_a_kernel_answers_for_numbers_as_torch_does_and_the_head_of_nodes_is_left_to_torch() -> None:
    forest, trees = Forest(["(f a b)", "a", "(f (f a) b)"]), np.arange(3)
    for head in (Regressor(in_size=4, outputs=2), NodeHead(in_size=4, classes=2)):
        model = TreeModel(encoder(), head).eval()
        found = model.predictor()(forest, trees)
        model.encoder.backend = "torch"
        torch.testing.assert_close(found, model(forest).detach(), rtol=1e-5, atol=1e-6)


def test_a_kernel_is_known_as_long_as_the_layers_are_the_same() -> None:
    model = TreeModel(encoder(), PairClassifier(in_size=4, classes=2))
    head = model.head
    assert isinstance(head, PairClassifier)
    kernel = model.head_kernel()
    assert kernel is not None and model.head_kernel() is kernel
    hook = head.scores.register_forward_hook(lambda *arguments: None)
    assert model.head_kernel() is None
    hook.remove()
    assert model.head_kernel() is kernel  # so that its place in flat parameters is found again
    head.scores = nn.Linear(75, 5)
    other = model.head_kernel()
    assert other is not None and other is not kernel
    assert other.layout.entries[-1].module is head.scores and other.classes == 5
    head.scores = nn.Linear(75, 5, bias=False)
    assert model.head_kernel() is None


def test_a_kernel_follows_parameters_that_are_replaced() -> None:
    model = TreeModel(encoder(), PairClassifier(in_size=4, classes=2))
    head = model.head
    assert isinstance(head, PairClassifier)
    before = model.head_kernel()
    head.scores.weight, head.scores.bias = nn.Parameter(torch.zeros(2, 75)), nn.Parameter(torch.zeros(2))
    assert model.head_kernel() is before and before is not None and before.layout.parameters[1] is head.scores.weight
    head.scores.weight, head.scores.bias = nn.Parameter(torch.zeros(5, 75)), nn.Parameter(torch.zeros(5))
    kernel = model.head_kernel()
    assert kernel is not None and kernel.layers[-1]["width"] == 5
