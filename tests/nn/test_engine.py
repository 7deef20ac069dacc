"""Both engines mean the same: gradients without autograd against those with it, and which engine is chosen, and why."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.kernels.test_fold import assert_alike
from tests.nn.small import ARITIES, DIGITS, LISTOPS, SENTENCES, classes_for, listops_model, pair_model, pairs
from treefold import (
    Batch,
    Classifier,
    Embedding,
    Forest,
    LeafRNN,
    Numeric,
    OneHot,
    PairClassifier,
    PerLabel,
    Regressor,
    Thermometer,
    Tree,
    TreeEncoder,
    TreeLSTM,
    TreeModel,
    TreeRNN,
)
from treefold.errors import ConfigurationError, TreeError, TreeIndexError, VocabularyError
from treefold.kernels.records import Plan
from treefold.kernels.threads import threads
from treefold.nn import engine
from treefold.nn.aggregators import AGGREGATORS, Full, Sum, Tucker, form_named
from treefold.nn.cells import CELLS as CELL_KINDS
from treefold.nn.cells import Cell
from treefold.nn.engine import FusedEngine, StepResult, TorchEngine, engine_for
from treefold.nn.flat import FlatParameters
from treefold.trees.batch import Ints

CHOSEN = np.arange(140)
CLASSES = classes_for(140, 10)
PAIRS = pairs(30)
PAIR_CLASSES = classes_for(30, 7)


def cross_entropy(classes: Ints) -> Callable[[Tensor], Tensor]:
    return lambda outputs: nn.functional.cross_entropy(outputs, torch.from_numpy(classes))


def flat_of(model: TreeModel) -> FlatParameters:
    """Put the parameters into one tensor, as a training does."""
    model.encoder.flat = FlatParameters(model, model.layouts())
    return model.encoder.flat


def step(model: TreeModel, forest: Forest, trees: Ints, classes: Ints) -> StepResult:
    return model.engine().gradients(forest, trees, cross_entropy(classes), classes)


def expected_step(model: TreeModel, forest: Forest, trees: Ints, classes: Ints) -> tuple[TreeModel, StepResult]:
    """Return a copy of a model with the gradients of torch alone."""
    plain = copy.deepcopy(model)
    plain.encoder.backend = "torch"
    engine = plain.engine()
    assert not isinstance(engine, FusedEngine)
    return plain, engine.gradients(forest, trees, cross_entropy(classes), classes)


def assert_same_step(model: TreeModel, forest: Forest, trees: Ints, classes: Ints, *, fused: bool = True) -> None:
    """Take a step on flat parameters, and compare loss, right answers and every gradient with those of torch."""
    plain, expected = expected_step(model, forest, trees, classes)
    assert expected.outputs is not None
    right = int((expected.outputs.argmax(1).numpy() == classes).sum())
    flat_of(model)
    found = step(model, forest, trees, classes)
    assert (found.right is not None) == fused
    assert found.loss == pytest.approx(expected.loss, rel=1e-12)
    if found.right is not None:
        assert found.right == right and found.outputs is None
    else:
        torch.testing.assert_close(found.outputs, expected.outputs, rtol=1e-10, atol=1e-12)
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11, msg=name)
        else:
            assert one.grad is None or not one.grad.any(), name


def is_left_to_torch(model: TreeModel, forest: Forest, trees: Ints, classes: Ints) -> bool:
    return step(model, forest, trees, classes).right is None


# Gradients


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("aggregator", "shared"),
    [
        (name, shared)
        for name in [*AGGREGATORS, "complex+sum"]
        for shared in (False, True)
        if shared or not form_named(name).always_shared
    ],
)
@pytest.mark.parametrize("kind", CELL_KINDS)
def test_loss_right_answers_and_gradients_are_those_of_autograd(
    kind: str, aggregator: str, shared: bool, count: int
) -> None:
    # The forget gates' weights of a train are in two places of the layout, which one tensor cannot be.
    is_split = aggregator == "tensor-train" and not shared and kind != "rnn"
    with threads(count):
        model = listops_model(aggregator, shared=shared, kind=kind)
        assert_same_step(model, LISTOPS, CHOSEN, CLASSES, fused=not is_split)


@pytest.mark.parametrize("aggregator", ["sum", "full", "blockwise"])
@pytest.mark.parametrize("comparison", ["tensor", "blockwise"])
def test_a_step_on_pairs_is_that_of_autograd(aggregator: str, comparison: str) -> None:
    with threads(1):
        assert_same_step(pair_model(aggregator, comparison=comparison), SENTENCES, PAIRS, PAIR_CLASSES)


@pytest.mark.parametrize("hidden", [(), (3,), (5, 7, 2)])
def test_a_classifier_has_any_number_of_layers(hidden: tuple[int, ...]) -> None:
    assert_same_step(listops_model(hidden=hidden), LISTOPS, CHOSEN, CLASSES)


def test_single_precision_has_kernels_too() -> None:
    model = listops_model("tucker").float()
    plain, expected = expected_step(model, LISTOPS, CHOSEN, CLASSES)
    flat_of(model)
    found = step(model, LISTOPS, CHOSEN, CLASSES)
    assert found.right is not None and found.loss == pytest.approx(expected.loss, rel=1e-5)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)


def test_gradients_are_added() -> None:
    model = listops_model()
    flat = flat_of(model)
    step(model, LISTOPS, CHOSEN, CLASSES)
    once = flat.gradient.clone()
    step(model, LISTOPS, CHOSEN, CLASSES)
    torch.testing.assert_close(flat.gradient, 2 * once)


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_are_the_same_every_time(count: int) -> None:
    with threads(count):
        found = []
        for _ in range(2):
            model = listops_model("tucker")
            flat = flat_of(model)
            step(model, LISTOPS, CHOSEN, CLASSES)
            found.append(flat.gradient.clone())
    assert torch.equal(*found)


def test_an_engine_follows_the_parameters_until_the_training_ends() -> None:
    model = listops_model("tucker")
    flat = flat_of(model)
    engine = model.engine()
    assert engine.gradients(LISTOPS, CHOSEN, cross_entropy(CLASSES), CLASSES).right is not None
    flat.values.data.mul_(0.5)  # in place, as a step of an optimiser
    flat.restore_constants()
    flat.gradient.zero_()
    measured = engine.gradients(LISTOPS, CHOSEN, cross_entropy(CLASSES), CLASSES)
    plain = listops_model("tucker")
    for parameter in plain.parameters():
        parameter.data.mul_(0.5)
    plain, expected = expected_step(plain, LISTOPS, CHOSEN, CLASSES)
    assert measured.right is not None and measured.loss == pytest.approx(expected.loss, rel=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)
    model.encoder.flat = None
    flat.release()
    found = engine.gradients(LISTOPS, CHOSEN, cross_entropy(CLASSES), CLASSES)
    assert found.right is None and found.loss == pytest.approx(expected.loss, rel=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)


def test_without_classes_the_loss_is_any_function_of_the_outputs() -> None:
    """As with weights of examples or of classes: autograd computes the loss, kernels the states."""
    model, plain = listops_model("tucker"), listops_model("tucker")
    plain.encoder.backend = "torch"
    flat_of(model)
    weights = torch.linspace(0, 1, len(CHOSEN), dtype=torch.float64)

    def loss(outputs: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(outputs, torch.from_numpy(CLASSES), reduction="none")
        return (losses * weights).sum()

    found, expected = (each.engine().gradients(LISTOPS, CHOSEN, loss, None) for each in (model, plain))
    assert found.right is None and found.loss == pytest.approx(expected.loss, rel=1e-12)
    torch.testing.assert_close(found.outputs, expected.outputs, rtol=1e-10, atol=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)


def test_a_regressor_learns_through_autograd() -> None:
    model = listops_model()
    model.head = Regressor(in_size=4).double()
    flat_of(model)
    found = model.engine().gradients(LISTOPS, CHOSEN, lambda outputs: outputs.square().mean())
    assert found.right is None and all(
        bool((each.grad != 0).any()) for each in model.parameters() if each.grad is not None
    )


# Steps that are left to torch


@pytest.mark.parametrize("settings", [{"labels": Embedding("0123456789", 3)}, {"dropout": 0.5}])
def test_labels_that_learn_and_dropout_are_left_to_torch(settings: dict[str, object]) -> None:
    model = listops_model(**settings)  # type: ignore[arg-type]
    flat_of(model)
    assert is_left_to_torch(model, LISTOPS, CHOSEN, CLASSES)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_labels_that_learned_before_and_are_frozen_go_to_the_kernels() -> None:
    model = listops_model(labels=Embedding("0123456789", 3))
    assert model.encoder.labels is not None
    model.encoder.labels.requires_grad_(False)
    assert_same_step(model, LISTOPS, CHOSEN, CLASSES)


def test_learning_labels_have_the_gradients_of_torch() -> None:
    assert_same_step(listops_model(labels=Embedding("0123456789", 3)), LISTOPS, CHOSEN, CLASSES, fused=False)


def test_both_directions_are_left_to_torch() -> None:
    cell = TreeLSTM("sum", state_size=2, arity=5, label_size=14)
    encoder = TreeEncoder(cell, OneHot(LISTOPS.vocabulary), direction="both")
    assert_same_step(
        TreeModel(encoder, Classifier(in_size=4, classes=10)).double(), LISTOPS, CHOSEN, CLASSES, fused=False
    )


def test_without_flat_parameters_a_step_is_left_to_torch() -> None:
    model = listops_model()
    assert is_left_to_torch(model, LISTOPS, CHOSEN, CLASSES)
    plain, _ = expected_step(listops_model(), LISTOPS, CHOSEN, CLASSES)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("part", ["encoder", "head", "one"])
def test_frozen_parts_are_left_to_torch_and_do_not_move(part: str) -> None:
    model = listops_model("tucker")
    frozen = {
        "encoder": list(model.encoder.parameters()),
        "head": list(model.head.parameters()),
        "one": list(model.encoder.parameters())[:1],
    }[part]
    for parameter in frozen:
        parameter.requires_grad_(False)
    assert_same_step(model, LISTOPS, CHOSEN, CLASSES, fused=False)
    assert all(parameter.grad is None for parameter in frozen)


def test_a_batch_of_vector_labels_is_left_to_torch() -> None:
    cell = PerLabel({"f": TreeRNN("sum", state_size=4, arity=2)}, leaf=LeafRNN(label_size=2, state_size=4))
    model = TreeModel(TreeEncoder(cell, Numeric(size=2)), Classifier(in_size=4, classes=10)).double()
    forest = Forest([Tree("f", [Tree((1.0, 2.0)), Tree((0.5, float(k)))]) for k in range(10)])
    assert_same_step(model, forest, np.arange(10), classes_for(10, 10), fused=False)


def test_half_precision_is_left_to_torch() -> None:
    model = listops_model().bfloat16()
    flat_of(model)
    engine = model.engine()
    assert not isinstance(engine, FusedEngine)
    assert engine.reason == "kernels expect parameters of float32 or float64, got torch.bfloat16"
    found = step(model, LISTOPS, CHOSEN, CLASSES)
    assert found.right is None and np.isfinite(found.loss)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_head_of_another_type_is_left_to_torch_which_refuses_it() -> None:
    model = listops_model()
    model.head.float()
    for compute in (step, lambda *arguments: model.answers(*arguments[1:3])):
        with pytest.raises(RuntimeError, match=r"dtype|scalar type"):
            compute(model, LISTOPS, CHOSEN, CLASSES)


def test_hooks_are_called_and_a_step_with_them_is_left_to_torch() -> None:
    model = listops_model()
    flat_of(model)
    assert isinstance(model.head, Classifier)
    heard: list[object] = []
    for module in (model, model.encoder, model.head, model.head.layers, model.head.layers[0], model.head.layers[1]):
        for register in (module.register_forward_hook, module.register_forward_pre_hook):
            hook = register(lambda *arguments: heard.append(arguments))
            assert is_left_to_torch(model, LISTOPS, CHOSEN, CLASSES)
            assert len(heard) == 1
            model.answers(LISTOPS, CHOSEN)
            assert len(heard) == 2
            heard.clear()
            hook.remove()
    for module in (model.head, model.head.layers[0]):
        hook = module.register_full_backward_hook(lambda *arguments: heard.append(arguments))
        assert is_left_to_torch(model, LISTOPS, CHOSEN, CLASSES)
        assert len(heard) == 1
        heard.clear()
        hook.remove()
    assert not is_left_to_torch(model, LISTOPS, CHOSEN, CLASSES)


@pytest.mark.filterwarnings(
    "ignore:Full backward hook is firing"
)  # torch says so of leaves, which have no inputs with gradients
def test_a_backward_hook_of_a_cell_is_called_and_its_model_is_left_to_torch() -> None:
    encoder = TreeEncoder(TreeLSTM("sum", state_size=4, arity=2, label_size=3), OneHot("abc"))
    heard: list[object] = []
    assert isinstance(engine_for(encoder), FusedEngine)
    for register in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        hook = getattr(encoder.cell("up"), register)(lambda *arguments: heard.append(arguments))
        assert isinstance(engine_for(encoder), TorchEngine)
        encoder(Forest(["(a b c)"] * 3).batch()).roots.sum().backward()
        hook.remove()
        assert isinstance(engine_for(encoder), FusedEngine)
    assert len(heard) >= 2


def test_hooks_of_pairs_are_called_and_a_step_with_them_is_left_to_torch() -> None:
    model = pair_model()
    flat_of(model)
    with threads(1):
        assert isinstance(model.head, PairClassifier)
        for module in (model.head, model.head.comparison, model.head.scores, model.head.dropout):
            for register in (module.register_forward_hook, module.register_full_backward_pre_hook):
                hook = register(lambda *arguments: None)
                assert is_left_to_torch(model, SENTENCES, PAIRS, PAIR_CLASSES)
                hook.remove()
        assert not is_left_to_torch(model, SENTENCES, PAIRS, PAIR_CLASSES)


def test_pairs_that_would_be_in_different_parts_are_left_to_torch() -> None:
    many, classes = pairs(60), classes_for(60, 7)
    with threads(2):
        assert_same_step(pair_model(), SENTENCES, many, classes, fused=False)
    with threads(1):
        assert_same_step(pair_model(), SENTENCES, many, classes)


def test_pairs_with_dropout_are_left_to_torch() -> None:
    model = pair_model(dropout=0.5)
    flat_of(model)
    assert is_left_to_torch(model, SENTENCES, PAIRS, PAIR_CLASSES)


class Scaled(nn.Linear):
    """A layer that is more than its parameters."""

    def forward(self, states: Tensor) -> Tensor:
        return 100 * super().forward(states)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("scores", nn.Sequential(nn.Linear(75, 8), nn.ReLU(), nn.Linear(8, 7))),
        ("scores", Scaled(75, 7)),
        ("scores", nn.Linear(75, 7, bias=False)),
        ("dropout", nn.Identity()),
        ("dropout", nn.LayerNorm(4)),
    ],
)
def test_a_head_with_other_parts_is_left_to_torch(name: str, module: nn.Module) -> None:
    model = pair_model()
    setattr(model.head, name, copy.deepcopy(module).double())
    with threads(1):
        assert_same_step(model, SENTENCES, PAIRS, PAIR_CLASSES, fused=False)


def test_a_part_that_is_replaced_is_noticed() -> None:
    model = listops_model("full")
    flat_of(model)
    assert not is_left_to_torch(model, LISTOPS, CHOSEN, CLASSES)
    model.head = Classifier(in_size=4, classes=10, hidden=(3,)).double()
    assert_same_step(model, LISTOPS, CHOSEN, CLASSES)
    assert isinstance(model.head, Classifier)
    model.head.layers[0] = nn.Linear(4, 3).double()
    assert is_left_to_torch(model, LISTOPS, CHOSEN, CLASSES)  # its parameters are not in the tensor
    assert_same_step(model, LISTOPS, CHOSEN, CLASSES)


def test_classes_that_torch_refuses_are_left_to_it() -> None:
    model = listops_model()
    flat = flat_of(model)
    for wrong in (-1, 10):
        classes = np.where(np.arange(140) == 5, wrong, CLASSES)
        with pytest.raises((IndexError, RuntimeError), match=r"out of bounds|Target"):
            step(model, LISTOPS, CHOSEN, classes)
    for classes in (CLASSES[:-1], CLASSES[:0]):
        with pytest.raises(ValueError, match="batch_size"):
            step(model, LISTOPS, CHOSEN, classes)
    assert not flat.gradient.any()
    pair = pair_model()
    flat_of(pair)
    with threads(1), pytest.raises(ValueError, match="batch_size"):  # not two trees for each class
        step(pair, SENTENCES, PAIRS, PAIR_CLASSES[:-1])


def test_a_head_for_other_states_is_left_to_torch_which_refuses_it() -> None:
    for model, forest, trees, classes in (
        (listops_model(), LISTOPS, CHOSEN, CLASSES),
        (pair_model(), SENTENCES, PAIRS, PAIR_CLASSES),
    ):
        kind = type(model.head)
        model.head = kind(in_size=8, classes=10).double()  # the states have 4 entries
        flat_of(model)
        with threads(1), pytest.raises(RuntimeError, match=r"shape|size"):
            step(model, forest, trees, classes)


@pytest.mark.parametrize("count", [1, 2])
def test_trees_that_are_wrong_are_named_and_nothing_is_added(count: int) -> None:
    model = listops_model()
    model.encoder.unknown = "error"
    classes = np.zeros(100, np.int64)
    unknown = Forest([*(["(MAX 1 2)"] * 99), "(MAX 1 eleven)"])  # in the last part
    wide = Forest([*(["(MAX 1 2)"] * 99), "(MAX 1 2 3 4 5 6)"])
    known, trees = Forest(["(MAX 1 2)"] * 99), np.arange(100)  # one tree less than asked for
    flat = flat_of(model)
    with threads(count):
        for forest, error in ((unknown, VocabularyError), (wide, TreeError), (known, TreeIndexError)):
            with pytest.raises(error):
                step(model, forest, trees, classes)
            assert not flat.gradient.any()
            with pytest.raises(error):
                model.answers(forest, trees)
        assert not is_left_to_torch(model, known, np.arange(99), classes[1:])
        assert flat.gradient.any()


def test_a_tensor_that_cell_and_head_share_stays_one() -> None:
    torch.manual_seed(0)
    cells: dict[str, Cell] = {
        name: TreeRNN("full", state_size=3, arity=arity) for name, arity in (("and", 2), ("or", 2), ("not", 1))
    }
    cell = PerLabel(cells, leaf=LeafRNN(label_size=6, state_size=3))
    head = PairClassifier(in_size=3, classes=7, hidden_size=3)
    shared = cells["and"].get_submodule("transition")
    assert isinstance(shared, Full)
    head.comparison = shared
    model = TreeModel(TreeEncoder(cell, OneHot("abcdef")), head).double()
    plain = copy.deepcopy(model)
    plain.encoder.backend = "torch"
    for each in (model, plain):
        flat = flat_of(each)
        with threads(1):
            assert is_left_to_torch(each, SENTENCES, PAIRS, PAIR_CLASSES)
        assert len(flat.values) < sum(parameter.numel() for parameter in each.parameters()) + shared.tensor.numel()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)


# Outputs


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("is_flat", [False, True])
def test_answers_of_two_threads_are_those_of_one_and_of_torch(is_flat: bool, training: bool) -> None:
    model = listops_model("tucker").train(training)
    if is_flat:
        flat_of(model)
    with threads(1):
        alone = model.answers(LISTOPS, CHOSEN)
    with threads(2):
        engine = model.engine()
        assert isinstance(engine, FusedEngine)
        together = engine.outputs(LISTOPS, CHOSEN)
    model.encoder.backend = "torch"
    with torch.no_grad():
        plain = model(LISTOPS.batch(CHOSEN))
    assert together.shape == (len(CHOSEN), 10) and not together.requires_grad
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain, together, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("count", [1, 2])
def test_answers_on_pairs_are_those_of_torch(count: int) -> None:
    model = pair_model().eval()
    with threads(count):
        found = [model.answers(SENTENCES, pairs(number)) for number in (30, 200)]
    model.encoder.backend = "torch"
    with torch.no_grad():
        for outputs, number in zip(found, (30, 200), strict=True):
            torch.testing.assert_close(outputs, model(SENTENCES.batch(pairs(number))), rtol=1e-10, atol=1e-12)


def test_an_odd_number_of_trees_is_refused_as_pairs() -> None:
    with pytest.raises(TreeError, match="pairs expect an even number of trees, left ones then right ones, got 3"):
        pair_model().answers(SENTENCES, np.arange(3))


def test_answers_stay_as_they_were_when_the_next_batch_uses_their_workspace() -> None:
    model = listops_model("tucker").eval()
    with torch.no_grad(), threads(1):
        first = model.encoder(LISTOPS.batch(CHOSEN))
        roots, nodes = first.roots.clone(), first.nodes.clone()
        for chosen in (CHOSEN[::-1], CHOSEN[:3], CHOSEN):
            model.encoder(LISTOPS.batch(np.ascontiguousarray(chosen)))
        assert torch.equal(first.roots, roots) and torch.equal(first.nodes, nodes)
        assert torch.equal(model.encoder(LISTOPS.batch(CHOSEN)).nodes, nodes)


def test_threads_of_a_program_do_not_share_a_workspace() -> None:
    model = listops_model("tucker").eval()
    batches = [LISTOPS.batch(np.arange(start, start + 40)) for start in range(0, 120, 20)] * 4

    def answer(number: int) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = model(batches[number])
        return outputs

    expected = [answer(number) for number in range(len(batches))]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(answer, range(len(batches))))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


# The decision


def reason(encoder: TreeEncoder) -> str:
    engine = engine_for(encoder)
    assert not isinstance(engine, FusedEngine)
    return engine.reason


class Plain(Cell):
    """A cell that kernels do not know: the mean of the children's states."""

    def __init__(self) -> None:
        super().__init__()
        self.state_size = self.memory_size = 2
        self.arity, self.label_size, self.takes_any_number = 2, None, True
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        return torch.tanh(self.scale + children.sum(1))


def test_the_engine_says_why_it_was_chosen() -> None:
    encoder = TreeEncoder(TreeRNN("sum", state_size=2, arity=2))
    assert isinstance(engine_for(encoder), FusedEngine)
    assert engine_for(encoder).reason == "the cell has kernels, and its parameters are on the CPU"
    down = TreeEncoder(TreeRNN("sum", state_size=2, arity=2), direction="down")
    assert reason(down) == "kernels expect an upward pass, got direction='down'"
    encoder.cells["up"].register_forward_hook(lambda *_: None)
    assert reason(encoder) == "kernels expect a cell without hooks, got one with hooks"
    encoder.backend = "torch"
    assert reason(encoder) == "backend='torch'"
    assert reason(TreeEncoder(Plain())) == "kernels expect a cell with a kernel, got Plain, which has none"
    half = TreeEncoder(TreeRNN("sum", state_size=2, arity=2)).half()
    assert reason(half) == "kernels expect parameters of float32 or float64, got torch.float16"
    mixed = PerLabel(
        {"f": TreeRNN("sum", state_size=3, arity=2)},
        leaf=TreeRNN("sum", state_size=3, arity=2, label_size=2),
    )
    assert isinstance(engine_for(TreeEncoder(mixed, OneHot("ab"))), FusedEngine)  # the kernel of both is the same


def test_an_engine_is_chosen_by_name() -> None:
    make = TreeRNN("sum", state_size=3, arity=4)
    with pytest.raises(ConfigurationError, match="expects backend to be one of 'auto', 'torch', 'fused', got 'gpu'"):
        TreeEncoder(make, backend="gpu")  # type: ignore[arg-type]
    forest = Forest(["(f a)"])
    for direction in ("both", "down"):
        other = TreeEncoder(TreeRNN("sum", state_size=3, arity=4), direction=direction, backend="fused")
        with pytest.raises(
            ConfigurationError,
            match=rf"^TreeEncoder with backend='fused' expects direction='up', got '{direction}'; "
            r"choose backend='auto' or 'torch'\.$",
        ):
            other(forest.batch())
    half = TreeEncoder(TreeRNN("sum", state_size=3, arity=4), backend="fused").bfloat16()
    with pytest.raises(ConfigurationError, match=r"expects parameters of float32 or float64, got torch.bfloat16"):
        half(forest.batch())
    away = TreeEncoder(TreeRNN("sum", state_size=3, arity=4), backend="fused").to("meta")
    with pytest.raises(ConfigurationError, match="expects parameters on the CPU, got meta"):
        away(forest.batch())


def test_cells_without_kernels_are_computed_by_torch_or_refused() -> None:
    cell = TreeLSTM("tucker", state_size=3, arity=2, rank=2)
    cell.output_gate = Sum(state_size=3, arity=2)
    mixed, plain = TreeEncoder(cell), TreeEncoder(Plain())
    forest = Forest(["(f a)"])
    assert mixed(forest.batch()).roots.shape == (1, 3) and plain(forest.batch()).roots.shape == (1, 2)
    mixed.backend = plain.backend = "fused"
    with pytest.raises(ConfigurationError, match="expects gates with aggregators of one form and size, got different"):
        mixed(forest.batch())
    with pytest.raises(ConfigurationError, match="expects a cell with a kernel, got Plain, which has none; choose"):
        plain(forest.batch())
    hooked = TreeEncoder(TreeRNN("sum", state_size=3, arity=4), backend="fused")
    hooked.cells["up"].register_forward_hook(lambda *_: None)
    with pytest.raises(ConfigurationError, match="expects a cell without hooks, got one with"):
        hooked(forest.batch())


@pytest.mark.parametrize("nodes", [1, 40])  # a table that is longer than the batch, and one that is not
def test_label_vectors_of_another_type_are_refused(nodes: int) -> None:
    encoder = TreeEncoder(TreeRNN("sum", state_size=3, arity=1, label_size=10), OneHot("0123456789"))
    model = TreeModel(encoder, Classifier(in_size=3, classes=2))
    encoder.cells.double()
    model.head.double()
    forest = Forest(["1"] * nodes)
    for compute in (model, lambda forest: model.answers(forest, np.arange(nodes))):
        with pytest.raises(
            ConfigurationError, match=r"label vectors of the cell's torch.float64, got torch.float32; convert the whole"
        ):
            compute(forest)


def test_large_matrices_on_many_nodes_go_to_torch() -> None:
    forest = Forest(["(f (g a _ (f b)) (g a _ (f b)) _ a)", "(g (g (g a b c d) a) (f b))"])
    small = TreeEncoder(TreeRNN(Tucker(state_size=20, arity=5, rank=3)))
    large = TreeEncoder(TreeRNN("sum", state_size=1500, arity=5))
    with torch.no_grad():
        assert len(small(forest).passes[0].blocks) == 1  # one block of all distinct subtrees
        assert len(large(forest).passes[0].blocks) == 4  # a block for each level
        large.backend = "fused"
        assert len(large(forest).passes[0].blocks) == 1


def test_many_nodes_go_to_torch_only_if_levels_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_BREAK_EVEN", 0)
    encoder = TreeEncoder(TreeLSTM("sum", state_size=3, arity=2), siblings=True)
    wide, deep = Forest(["(f (g a) b)"] * 100), Forest([f"(f {'a ' * 300})"] * 3)
    with torch.no_grad():
        assert len(encoder(wide).passes[0].blocks) == 4
        assert len(encoder(deep).passes[0].blocks) == 1  # as chains of siblings they have 301 levels
        states = encoder(deep).nodes
        encoder.backend = "torch"
        torch.testing.assert_close(states, encoder(deep).nodes)


def test_many_pairs_with_a_large_tensor_are_left_to_torch() -> None:
    kernel = PairClassifier(in_size=100, classes=7).kernel()
    assert kernel is not None and kernel.is_worth_it(50) and not kernel.is_worth_it(500)


def test_an_engine_without_a_model_encodes() -> None:
    encoder = TreeEncoder(TreeRNN("sum", state_size=2, arity=2))
    batch = Forest(["(f a)"]).batch()
    torch.testing.assert_close(TorchEngine(encoder, "asked for").encode(batch).nodes, encoder(batch).nodes)


# Noise on states


def noisy_encoder(kind: str, activation: str = "tanh", **settings: object) -> TreeEncoder:
    torch.manual_seed(0)
    make, leaf = (cast(Any, each) for each in CELL_KINDS[kind])
    more = {"activation" if kind == "rnn" else "update": activation}
    cells = {name: make("complex+sum", state_size=6, arity=5, rank=2, shared=True, **more) for name in ARITIES}
    cell = PerLabel(cells, leaf=leaf(label_size=10, state_size=6, **more))
    return TreeEncoder(cell, Thermometer(DIGITS), **settings).double()  # type: ignore[arg-type]


def own_noise(encoder: TreeEncoder, forest: Forest) -> tuple[Tensor, Ints]:
    """Return by how much the state of each node differs from the cell's result for its children; and which have children."""
    batch = forest.batch()
    with torch.no_grad():
        states = encoder(batch).nodes
        children = torch.zeros(len(states), 5, states.shape[1], dtype=states.dtype)
        inner = np.flatnonzero(batch.parents >= 0)
        children[batch.parents[inner], batch.slots[inner]] = states[inner]
        operators, codes = encoder.codes(batch)
        assert isinstance(encoder.labels, Thermometer)
        labels = encoder.labels(torch.from_numpy(np.maximum(codes, 0)), torch.zeros(0, 0))
        clean = encoder.cell("up")(labels, children, torch.from_numpy(operators))
    return states - clean, np.bincount(batch.parents[inner], minlength=len(states))


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_noise_has_its_deviation_on_all_nodes_but_leaves_and_roots(backend: str) -> None:
    encoder = noisy_encoder("rnn", backend=backend, share_subtrees=False, state_noise=0.25)
    roots, noise, counts = LISTOPS.batch().roots, *own_noise(encoder, LISTOPS)
    is_noisy = counts > 0
    is_noisy[roots] = False
    assert is_noisy.sum() > 500 and float(noise[~is_noisy].abs().max()) < 1e-12
    drawn = noise[is_noisy]
    assert float(drawn.std()) == pytest.approx(0.25, rel=0.05) and abs(float(drawn.mean())) < 0.01
    assert float(drawn.std(0).min()) > 0.2 and float(drawn.std(1).min()) > 0.01  # in all entries, of all nodes
    assert not torch.equal(own_noise(encoder, LISTOPS)[0], noise)
    for quiet in (encoder.eval(), noisy_encoder("rnn", backend=backend)):
        assert float(own_noise(quiet, LISTOPS)[0].abs().max()) < 1e-12


def test_equal_subtrees_have_equal_noise_if_they_are_computed_once() -> None:
    encoder = noisy_encoder("rnn", backend="fused", state_noise=0.25)
    first, second = encoder(Forest(["(MAX (MIN 1 2) 3 (MIN 1 2))"])).nodes[[2, 6]]
    assert torch.equal(first, second)
    encoder.share_subtrees = False
    first, second = encoder(Forest(["(MAX (MIN 1 2) 3 (MIN 1 2))"])).nodes[[2, 6]]
    assert not torch.allclose(first, second)


def same_noise(monkeypatch: pytest.MonkeyPatch, size: int, count: int) -> None:
    """Give both engines the same noise for each node of a batch, in one part, without shared subtrees."""
    drawn = 0.3 * np.random.default_rng(0).standard_normal((count, size))

    def by_level(_: TorchEngine, batch: Batch, like: Tensor) -> Tensor:
        rows = drawn[: batch.node_count] * engine.noisy_nodes(batch)[:, None]
        return torch.from_numpy(rows[batch.schedule.order]).to(like)

    plain = engine._Noise.rows

    def by_unit(noise: Any, part: int, plan: Plan, roots: Ints, size: int, dtype: Any) -> Any:
        assert part == 0 and len(np.unique(plan.unit_of)) == len(plan.unit_of)
        is_noisy = plain(noise, part, plan, roots, size, dtype) != 0
        rows = np.zeros_like(drawn, dtype, shape=is_noisy.shape)
        rows[plan.unit_of] = drawn[: len(plan.unit_of)]
        return np.ascontiguousarray(rows * is_noisy)

    monkeypatch.setattr(TorchEngine, "_noise", by_level)
    monkeypatch.setattr(engine._Noise, "rows", by_unit)


@pytest.mark.parametrize("activation", ["tanh", "sharp-sigmoid", "clamp"])
@pytest.mark.parametrize("kind", CELL_KINDS)
def test_gradients_with_the_same_noise_are_those_of_autograd(
    kind: str, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = noisy_encoder(kind, activation, share_subtrees=False, state_noise=0.3)
    same_noise(monkeypatch, 6, LISTOPS.node_count)
    with threads(1):
        assert_alike(encoder, LISTOPS)
        model = TreeModel(encoder, Classifier(in_size=6, classes=10)).double()
        encoder.backend = "auto"
        assert_same_step(model, LISTOPS, CHOSEN, CLASSES)
        encoder.flat = None
        assert_alike(encoder.float(), Forest(["(MAX (MIN 1 2) (SM (MIN 3 4 5) 6))"]))


def test_noise_goes_upwards_along_siblings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    cell = TreeLSTM("complex+sum", state_size=6, arity=2, rank=2, label_size=3)
    encoder = TreeEncoder(cell, OneHot("fab"), siblings=True, share_subtrees=False, state_noise=0.3).double()
    forest = Forest(["(f a (f b a) b)", "(f (f a b b))"])
    same_noise(monkeypatch, 6, forest.node_count)
    with threads(1):
        assert_alike(encoder, forest)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_answers_have_noise_in_training_and_none_in_evaluation(backend: str, count: int) -> None:
    quiet = noisy_encoder("rnn", backend=backend)
    encoder = noisy_encoder("rnn", backend=backend, state_noise=0.25)
    head = Classifier(in_size=6, classes=10).double()
    model, other = TreeModel(encoder, head), TreeModel(quiet, head)
    with threads(count), torch.no_grad():
        expected = other(LISTOPS)
        for ask in (lambda: model(LISTOPS), lambda: model.answers(LISTOPS, np.arange(len(LISTOPS)))):
            model.train()
            assert not torch.allclose(ask(), expected, atol=1e-3)
            model.eval()
            torch.testing.assert_close(ask(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("count", [1, 2])
def test_a_seed_repeats_the_noise_and_another_does_not(count: int) -> None:
    found = []
    with threads(count):
        for seed in (1, 1, 2):
            model = listops_model("complex+sum", shared=True, kind="rnn")
            model.encoder.state_noise = 0.2
            flat = flat_of(model)
            torch.manual_seed(seed)
            assert step(model, LISTOPS, CHOSEN, CLASSES).right is not None
            found.append(flat.gradient.clone())
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_noise_that_is_no_deviation_is_refused(value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"expects a state_noise of at least 0, got {value}; it is a standard"):
        noisy_encoder("rnn", state_noise=value)
