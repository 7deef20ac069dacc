"""The comparison of pairs without autograd against the same head with it."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from treefold.kernels.comparisons import LEAK, comparison_backward, comparison_forward, comparison_layout

from treefold import LeafRNN, OneHot, PairClassifier, PerLabel, TreeEncoder, TreeModel, TreeRNN
from treefold.data.generators import make_lrt
from treefold.kernels import PairScores
from treefold.kernels.threads import threads
from treefold.nn.aggregators import Full
from treefold.nn.flat import FlatParameters
from treefold.training import Examples
from treefold.training.build import build_model, facts_of, resolve
from treefold.training.settings import ModelSettings

DATA = Examples.of(make_lrt(300, seed=3), "pair")
CHOSEN = np.arange(30)
TREES = DATA.trees_of(CHOSEN)


def model_of(**settings: object) -> TreeModel:
    torch.manual_seed(0)
    facts = facts_of(DATA.forest)
    resolved, labels = resolve(ModelSettings(aggregator="sum", state_size=4, **settings), facts)  # type: ignore[arg-type]
    return build_model(resolved, labels, "pair", 7).double()


@pytest.mark.parametrize(("size", "hidden", "pairs"), [(1, 1, 1), (3, 75, 5), (7, 2, 8)])
def test_scores_and_gradients_are_those_of_the_formula(size: int, hidden: int, pairs: int) -> None:
    torch.manual_seed(size)
    head = PairClassifier(in_size=size, classes=3, hidden_size=hidden).double()
    layout = comparison_layout(head)
    assert layout is not None
    generator = np.random.default_rng(pairs)
    memory = torch.randn(6, 2 * size, dtype=torch.float64, requires_grad=True)
    roots = generator.integers(0, 6, 2 * pairs)  # some more than once, some on both sides
    one = torch.ones(pairs, 1, dtype=torch.float64)
    left, right = (torch.cat([memory[half, :size], one], 1) for half in (roots[:pairs], roots[pairs:]))
    images = torch.einsum("pi,pj,ijh->ph", left, right, head.comparison.tensor)
    expected = head.scores(torch.where(images > 0, images, LEAK * images))
    delta = torch.randn_like(expected)
    parameters = layout.parameters
    wanted = torch.autograd.grad((expected * delta).sum(), [memory, *parameters])

    weights = layout.pack([parameter.detach() for parameter in parameters])
    tables, states = (weights.values, weights.sets, size), memory.detach().numpy()
    carried, compared, scores = comparison_forward(*tables, states, roots)
    d_memory, d_values = np.ones_like(states), np.ones_like(weights.values)
    comparison_backward(*tables, states, roots, carried, compared, delta.numpy(), d_memory, d_values)

    np.testing.assert_allclose(scores, expected.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(d_memory, 1 + wanted[0].numpy(), rtol=1e-10, atol=1e-12)  # they are added
    for entry, gradient in zip(layout.entries, wanted[1:], strict=True):
        torch.testing.assert_close(entry.view(torch.from_numpy(d_values)), 1 + gradient, rtol=1e-10, atol=1e-12)


def test_a_step_on_pairs_is_that_of_autograd() -> None:
    model = model_of()
    plain = copy.deepcopy(model)
    plain.encoder.backend = "torch"
    outputs, target = plain(DATA.batch(CHOSEN)), DATA.target(CHOSEN)
    expected = nn.functional.cross_entropy(outputs, target)
    torch.autograd.backward(expected)
    classes = DATA.plain_classes(CHOSEN)
    assert classes is not None
    with FlatParameters(model, model.arrangements()).in_charge(), threads(1):
        measured = model.add_gradients(DATA.forest, TREES, classes)
    assert measured is not None
    assert measured.loss == pytest.approx(float(expected.detach()), rel=1e-12)
    assert measured.right == int((outputs.argmax(1) == target).sum())
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("count", [1, 2])
def test_answers_on_pairs_are_those_of_torch(count: int) -> None:
    model = model_of().eval()
    with threads(count):
        found = [model.answers(DATA.forest, DATA.trees_of(chosen)) for chosen in (CHOSEN, np.arange(200))]
    model.encoder.backend = "torch"
    with torch.no_grad():
        for outputs, chosen in zip(found, (CHOSEN, np.arange(200)), strict=True):
            torch.testing.assert_close(outputs, model(DATA.batch(chosen)), rtol=1e-10, atol=1e-12)


def test_it_is_left_to_autograd_where_something_listens_is_dropped_or_does_not_fit() -> None:
    classes = DATA.targets[CHOSEN].astype(np.int64)
    model = model_of()
    with FlatParameters(model, model.arrangements()).in_charge(), threads(1):
        assert model.add_gradients(DATA.forest, TREES, classes) is not None
        assert model.add_gradients(DATA.forest, TREES, classes[:-1]) is None  # not two trees for each class
        assert isinstance(model.head, PairClassifier)
        for module in (model.head, model.head.comparison, model.head.scores, model.head.dropout):
            for hear in (module.register_forward_hook, module.register_full_backward_pre_hook):
                hook = hear(lambda *arguments: None)
                assert model.add_gradients(DATA.forest, TREES, classes) is None
                hook.remove()
        many = np.tile(CHOSEN, 2)
        with threads(2):  # left and right trees would be in different parts
            assert model.add_gradients(DATA.forest, DATA.trees_of(many), DATA.targets[many].astype(np.int64)) is None
    model = model_of(dropout=0.5)
    with FlatParameters(model, model.arrangements()).in_charge(), threads(1):
        assert model.add_gradients(DATA.forest, TREES, classes) is None


def test_many_pairs_with_a_large_tensor_are_left_to_torch() -> None:
    head = PairClassifier(in_size=100, classes=7)
    with threads(1):
        assert PairScores(head).can_share_out(50) and not PairScores(head).can_share_out(500)


def test_a_layout_is_made_once_and_forgotten_with_its_head() -> None:
    head = PairClassifier(in_size=3, classes=2)
    layout = comparison_layout(head)
    assert layout is not None and comparison_layout(head) is layout
    head.scores = nn.Linear(75, 5)
    other = comparison_layout(head)
    assert other is not None and other.entries[-1].module is head.scores
    head.scores = nn.Linear(75, 5, bias=False)
    assert comparison_layout(head) is None
    gone = weakref.ref(head)
    del head
    gc.collect()
    assert gone() is None


class Scaled(nn.Linear):
    """A layer that is more than its parameters."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return 100 * super().forward(states)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("scores", nn.Sequential(nn.Linear(75, 8), nn.ReLU(), nn.Linear(8, 7)).double()),
        ("scores", Scaled(75, 7).double()),
        ("dropout", nn.Identity()),
        ("dropout", nn.LayerNorm(4).double()),
    ],
)
def test_a_head_with_other_parts_is_left_to_torch(name: str, module: nn.Module) -> None:
    model, batch = model_of(), DATA.batch(CHOSEN)
    setattr(model.head, name, module)
    expected = model(batch)
    with torch.no_grad():
        torch.testing.assert_close(model(batch), expected.detach())
    with FlatParameters(model, model.arrangements()).in_charge(), threads(1):
        assert model.add_gradients(DATA.forest, TREES, DATA.targets[CHOSEN].astype(np.int64)) is None


def test_what_torch_would_call_an_error_is_left_to_it() -> None:
    model, classes = model_of(), DATA.targets[CHOSEN].astype(np.int64)
    with FlatParameters(model, model.arrangements()).in_charge(), threads(1):
        for wrong in (-1, 7):
            assert model.add_gradients(DATA.forest, TREES, np.where(np.arange(30) == 5, wrong, classes)) is None
    model.head = PairClassifier(in_size=8, classes=7).double()  # the states have 4 entries
    with FlatParameters(model, model.arrangements()).in_charge(), threads(1):
        assert model.add_gradients(DATA.forest, TREES, classes) is None


def test_a_layout_follows_its_parameters() -> None:
    head = PairClassifier(in_size=3, classes=2)
    comparison_layout(head)
    head.scores.weight, head.scores.bias = nn.Parameter(torch.zeros(5, 75)), nn.Parameter(torch.zeros(5))
    layout = comparison_layout(head)
    assert layout is not None and layout.sets[-1][1] == 5


def test_a_tensor_that_cell_and_head_share_stays_one() -> None:
    torch.manual_seed(0)
    cells = {name: TreeRNN("full", state_size=3, arity=arity) for name, arity in (("and", 2), ("or", 2), ("not", 1))}
    labels = OneHot(name for name in DATA.forest.vocabulary if name not in cells)
    cell = PerLabel(cells, leaf=LeafRNN(label_size=labels.size, state_size=3))
    head = PairClassifier(in_size=3, classes=7, hidden_size=3)
    assert isinstance(cells["and"].transition, Full)
    head.comparison = cells["and"].transition
    model, batch = TreeModel(TreeEncoder(cell, labels), head).double(), DATA.batch(CHOSEN)
    plain = copy.deepcopy(model)
    plain.encoder.backend = "torch"
    for each in (model, plain):
        flat = FlatParameters(each, each.arrangements())
        torch.autograd.backward(nn.functional.cross_entropy(each(batch), DATA.target(CHOSEN)))
        twice = sum(parameter.numel() for parameter in each.parameters()) + cells["and"].transition.tensor.numel()
        assert len(flat.values) < twice
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)
