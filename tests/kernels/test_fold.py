"""The two passes have one law: values and gradients are those of torch."""

import copy
import itertools
import pickle
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.strategies import trees
from treefold import (
    Batch,
    Embedding,
    Forest,
    LeafLSTM,
    LeafRNN,
    Numeric,
    OneHot,
    PerLabel,
    Tree,
    TreeEncoder,
    TreeLSTM,
    TreeRNN,
)
from treefold.errors import ConfigurationError
from treefold.nn.aggregators import AGGREGATORS, form_named
from treefold.nn.cells import CELLS as CELL_KINDS
from treefold.nn.cells import Cell
from treefold.nn.engine import engine_for
from treefold.nn.model import compress

STATE, ARITY, RANK = 3, 4, 2
LEAVES, OPERATORS = ["a", "b", "c", "d", "e"], ["f", "g"]
forests = st.lists(trees(leaves=LEAVES, operators=OPERATORS, arity=ARITY), min_size=1, max_size=5)
SHARED = [
    (name, shared)
    for name in [*AGGREGATORS, "complex+sum"]
    for shared in (False, True)
    if shared or not form_named(name).always_shared
]
CELLS = [(*cell, *form) for cell in itertools.product(CELL_KINDS, ["operators", "labels", "none"]) for form in SHARED]
# Absent first, middle and last children, an operator without any, repeated subtrees, a tree of one node.
EVERYTHING = [
    "(f _ (g a _ (f b)) (g) _)",
    "c",
    "(g (g (g a b c d) a) (f b))",
    "(f (g a _ (f b)) (g a _ (f b)) _ a)",
    "a",
]
TOLERANCE = {torch.float64: (1e-10, 1e-10), torch.float32: (1e-5, 1e-4)}


def make_cell(
    kind: str, aggregator: str, *, shared: bool = False, label_size: int | None = None, arity: int = ARITY
) -> Cell:
    make: Any = CELL_KINDS[kind][0]
    rank = RANK if form_named(aggregator).has_rank else None
    cell: Cell = make(aggregator, state_size=STATE, arity=arity, rank=rank, label_size=label_size, shared=shared)
    return cell


def make_encoder(kind: str, sees: str, aggregator: str, shared: bool) -> TreeEncoder:
    torch.manual_seed(0)
    if sees == "none":
        encoder = TreeEncoder(make_cell(kind, aggregator, shared=shared))
    elif sees == "labels":
        cell = make_cell(kind, aggregator, shared=shared, label_size=6)
        encoder = TreeEncoder(cell, Embedding([*LEAVES, *OPERATORS], 6))
    else:
        make_leaf: Any = CELL_KINDS[kind][1]
        leaf = make_leaf(label_size=5, state_size=STATE)
        arities = dict(zip(OPERATORS, [ARITY, ARITY + 1], strict=True))  # each operator its own
        cells = {name: make_cell(kind, aggregator, shared=shared, arity=arity) for name, arity in arities.items()}
        encoder = TreeEncoder(PerLabel(cells, leaf=leaf), OneHot(LEAVES))
    with torch.no_grad():
        for parameter in encoder.parameters():  # biases that start at zero would hide what is missing
            parameter.add_(0.1 * torch.randn_like(parameter))
    return encoder


def results(encoder: TreeEncoder, forest: Forest, backend: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the states of all nodes, and the gradients of all parameters for a sum in which each state counts."""
    encoder.backend = backend  # type: ignore[assignment]
    encoder.zero_grad()
    nodes = encoder(forest.batch()).nodes
    (nodes * torch.linspace(-1, 1, nodes.numel(), dtype=nodes.dtype).reshape(nodes.shape)).sum().backward()
    grads = {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in encoder.named_parameters()
    }
    return nodes.detach(), grads


def assert_alike(encoder: TreeEncoder, forest: Forest) -> None:
    values, gradients = TOLERANCE[next(encoder.parameters()).dtype]
    expected, expected_grads = results(encoder, forest, "torch")
    got, got_grads = results(encoder, forest, "fused")
    torch.testing.assert_close(got, expected, rtol=values, atol=values)
    scale = max([1.0, *(float(grad.abs().max()) for grad in expected_grads.values() if grad.numel())])
    for name, grad in expected_grads.items():
        assert got_grads[name].shape == grad.shape
        torch.testing.assert_close(got_grads[name], grad, rtol=gradients, atol=gradients * scale, msg=name)


@pytest.mark.parametrize(("kind", "sees", "aggregator", "shared"), CELLS)
def test_values_and_gradients_equal_those_of_torch(kind: str, sees: str, aggregator: str, shared: bool) -> None:
    encoder = make_encoder(kind, sees, aggregator, shared).double()

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(forests)
    def check(trees: list[Tree]) -> None:
        assert_alike(encoder, Forest(trees))

    assert_alike(encoder, Forest(EVERYTHING))
    assert_alike(encoder.float(), Forest(EVERYTHING))
    encoder.double()
    check()


@pytest.mark.parametrize("update", ["tanh", "sigmoid", "sharp-sigmoid", "clamp"])
@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_activations_are_those_chosen(kind: str, update: str) -> None:
    torch.manual_seed(0)
    cell: Cell
    if kind == "rnn":
        cell = TreeRNN("sum", state_size=STATE, arity=ARITY, label_size=7, activation=update)  # type: ignore[arg-type]
    else:
        make: Any = CELL_KINDS[kind][0]
        cell = make("sum", state_size=STATE, arity=ARITY, label_size=7, update=update)
    assert_alike(TreeEncoder(cell, OneHot([*LEAVES, *OPERATORS])).double(), Forest(EVERYTHING))


def test_a_clamped_state_at_the_end_of_its_range_has_no_gradient_in_both_engines() -> None:
    cell = TreeRNN("sum", state_size=STATE, arity=ARITY, activation="clamp")  # biases of zero: all states are zero
    assert_alike(TreeEncoder(cell).double(), Forest(EVERYTHING))
    encoder = TreeEncoder(TreeRNN("sum", state_size=STATE, arity=ARITY, activation="clamp")).double()
    assert all(not bool(grad.any()) for grad in results(encoder, Forest(EVERYTHING), "fused")[1].values())


HIDDEN = ["sum", "canonical", "complex", "tucker", "tensor-train", "mean", "positional", "max", "complex+sum"]


@pytest.mark.parametrize("activation", ["tanh", "sharp-sigmoid", "clamp"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("aggregator", HIDDEN)
def test_a_hidden_layer_of_any_size_is_that_of_torch(aggregator: str, shared: bool, activation: str) -> None:
    torch.manual_seed(0)
    leaf = LeafRNN(label_size=5, state_size=STATE, activation=activation)  # type: ignore[arg-type]

    def cell(arity: int, hidden: int | None, label_size: int | None = None) -> TreeRNN:
        sizes: dict[str, Any] = {"state_size": STATE, "arity": arity, "label_size": label_size, "shared": shared}
        rank = RANK if form_named(aggregator).has_rank else None
        return TreeRNN(aggregator, **sizes, rank=rank, hidden=hidden, activation=activation)  # type: ignore[arg-type]

    for hidden in (1, 20):  # below and above the state's size; the other operator has none
        cells = PerLabel({"f": cell(ARITY, hidden), "g": cell(ARITY + 1, None)}, leaf=leaf)
        encoders = [TreeEncoder(cells, OneHot(LEAVES))]
        encoders += [TreeEncoder(cell(ARITY, hidden, 6), Embedding([*LEAVES, *OPERATORS], 6))]
        for encoder in encoders:
            with torch.no_grad():
                for parameter in encoder.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            assert_alike(encoder.double(), Forest(EVERYTHING))
            assert_alike(encoder.float(), Forest(EVERYTHING))


@pytest.mark.parametrize("aggregator", ["full", "blockwise"])
def test_a_form_without_another_number_of_outputs_leaves_a_hidden_layer_to_torch(aggregator: str) -> None:
    if aggregator == "full":
        encoder = TreeEncoder(TreeRNN("full", state_size=STATE, arity=ARITY, hidden=7))
        assert encoder(Forest(EVERYTHING)).roots.shape == (5, STATE)
        reason = engine_for(encoder).reason
        assert reason == "kernels expect a form with an output matrix for a hidden layer, got Full"
        return
    with pytest.raises(ConfigurationError, match="expects out_size = state_size, got 7 and 3: it does not mix"):
        TreeRNN("blockwise", state_size=STATE, arity=ARITY, hidden=7)


def test_a_leaf_may_be_any_cell_and_operators_of_different_forms_and_ranks() -> None:
    torch.manual_seed(0)
    cells: dict[str, Cell] = {
        "f": TreeLSTM("tucker", state_size=5, arity=4, rank=3),
        "g": TreeLSTM("canonical", state_size=5, arity=4, rank=7, update="sigmoid"),
    }
    leaf = TreeLSTM("tensor-train", state_size=5, arity=2, rank=4, label_size=5)
    encoder = TreeEncoder(PerLabel(cells, leaf=leaf), OneHot(LEAVES)).double()
    assert_alike(encoder, Forest([*EVERYTHING, "(f (a b) (c (g a)))"]))


def test_vector_labels_are_told_apart() -> None:
    torch.manual_seed(0)
    leaf = LeafLSTM(label_size=2, state_size=STATE)
    encoder = TreeEncoder(PerLabel({"f": make_cell("lstm", "full")}, leaf=leaf), Numeric(size=2)).double()
    assert_alike(encoder, Forest(["(f [0.5 2] (f [1 -1] [0.5 2]))", "[7 8]"]))


def test_few_nodes_take_few_rows_of_a_large_table() -> None:
    torch.manual_seed(0)
    names = [f"word{number}" for number in range(300)]
    encoder = TreeEncoder(make_cell("lstm", "sum", label_size=4), Embedding(names, 4)).double()
    assert_alike(encoder, Forest(["(word7 word3 word41 word3)", "word49"]))


@pytest.mark.parametrize("aggregator", ["full", "tucker"])
def test_without_gradients_the_values_are_the_same(aggregator: str) -> None:
    encoder = make_encoder("lstm", "operators", aggregator, False)
    # Without gradients blocks of units share a place for what is carried: here are more units of a kind than a block takes.
    leaves = itertools.product(LEAVES, repeat=ARITY)
    forest = Forest(
        [*EVERYTHING, *(f"(f {' '.join(chosen)})" for chosen in leaves), *(f"(f {leaf})" for leaf in LEAVES)]
    )
    expected, _ = results(encoder, forest, "fused")
    with torch.no_grad():
        nodes = encoder(forest.batch()).nodes
    assert not nodes.requires_grad and torch.equal(nodes, expected)


def test_some_parameters_may_be_frozen() -> None:
    encoder = make_encoder("lstm", "labels", "canonical", False).double()
    expected = results(encoder, Forest(EVERYTHING), "torch")[1]
    encoder.requires_grad_(False)
    assert not encoder(Forest(EVERYTHING).batch()).nodes.requires_grad
    assert encoder.labels is not None
    encoder.labels.requires_grad_(True)
    got = results(encoder, Forest(EVERYTHING), "fused")[1]
    torch.testing.assert_close(got["labels.table"], expected["labels.table"])
    assert all(parameter.grad is None for parameter in encoder.cells.parameters())


def test_gradients_add_up_over_two_backward_passes_of_one_graph() -> None:
    encoder = make_encoder("lstm", "operators", "tensor-train", False).double()
    encoder.backend = "fused"
    loss = encoder(Forest(EVERYTHING).batch()).nodes.sum()
    loss.backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]
    loss.backward()
    twice = [parameter.grad for parameter in encoder.parameters() if parameter.grad is not None]
    torch.testing.assert_close([2 * grad for grad in once], twice)


def test_gradients_agree_with_differences() -> None:
    encoder = make_encoder("lstm", "labels", "tucker", False).double()
    encoder.backend = "fused"
    forest = Forest(["(f a (g _ b))"])
    names = [name for name, _ in encoder.named_parameters()]

    def states(*values: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(
            encoder, dict(zip(names, values, strict=True)), forest.batch()
        ).nodes
        return result

    inputs = tuple(parameter.detach().clone().requires_grad_() for parameter in encoder.parameters())
    assert torch.autograd.gradcheck(states, inputs, fast_mode=True)


def test_a_chain_of_a_hundred_thousand_nodes_encodes_and_back_propagates() -> None:
    torch.manual_seed(0)
    encoder = TreeEncoder(TreeRNN("sum", state_size=2, arity=1, label_size=2), Embedding(["f", "a"], 2)).double()
    chain = Tree("a")
    for _ in range(99_999):
        chain = Tree("f", [chain])
    assert_alike(encoder, Forest([chain]))


@pytest.mark.parametrize(
    "aggregator", ["sum", "canonical", "complex", "complex+sum", "tensor-train", "mean", "positional", "max"]
)
def test_a_shared_cell_takes_two_hundred_children(aggregator: str) -> None:
    encoder = make_encoder("lstm", "labels", aggregator, True).double()
    wide = Tree("f", [Tree(LEAVES[index % 5]) if index % 3 else None for index in range(200)])
    assert_alike(encoder, Forest([wide, Tree("g", [wide, Tree("a"), wide])]))


@pytest.mark.parametrize("kind", CELL_KINDS)
@pytest.mark.parametrize("aggregator", [name for name, form in AGGREGATORS.items() if form.normalises])
def test_children_whose_state_is_zero_are_absent_in_both_engines(kind: str, aggregator: str) -> None:
    # With biases of zero, an operator without children has the zero state, and so have all nodes without labels.
    for sees in ("operators", "none"):
        encoder = make_encoder(kind, sees, aggregator, True).double()
        for name, parameter in encoder.named_parameters():
            if name.endswith("bias"):
                parameter.data.zero_()
        assert_alike(encoder, Forest(EVERYTHING))
        zero, other = encoder(Forest(["(f a (g) b (f (g)) (g))", "(f a b)"])).roots
        torch.testing.assert_close(zero, other, rtol=1e-12, atol=1e-12)
        assert bool(zero.any()) == (sees == "operators")


@pytest.fixture(scope="module")
def wide_batch() -> Batch:
    """A node with a million children, and one with ten thousand like them."""
    return Forest([Tree("f", [Tree("a"), Tree("b")] * count) for count in (500_000, 5_000)]).batch()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", CELL_KINDS)
@pytest.mark.parametrize("aggregator", [name for name, form in AGGREGATORS.items() if form.normalises])
def test_a_million_children_have_the_state_of_a_few(
    wide_batch: Batch, kind: str, aggregator: str, dtype: torch.dtype
) -> None:
    encoder = make_encoder(kind, "labels", aggregator, True).to(dtype)
    encoder.backend = "fused"
    many, few = encoder(wide_batch).roots
    torch.testing.assert_close(many, few, rtol=2e-2, atol=2e-2)
    many.sum().backward()
    assert all(bool(torch.isfinite(each.grad).all()) for each in encoder.parameters() if each.grad is not None)


@pytest.mark.parametrize("aggregator", ["tucker", "complex+sum"])
def test_parts_on_several_threads_give_the_same_every_time(aggregator: str) -> None:
    encoder = make_encoder("lstm", "operators", aggregator, False).double()
    forest = Forest(EVERYTHING * 20)
    before = torch.get_num_threads()
    alone, alone_grads = results(encoder, forest, "fused")
    try:
        torch.set_num_threads(2)
        first, first_grads = results(encoder, forest, "fused")
        second, second_grads = results(encoder, forest, "fused")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(first, second) and torch.equal(first, alone)
    for name, grad in alone_grads.items():
        assert torch.equal(first_grads[name], second_grads[name])
        torch.testing.assert_close(first_grads[name], grad, rtol=1e-10, atol=1e-10)


def test_a_broken_weight_shows_as_not_a_number() -> None:
    encoder = make_encoder("lstm", "operators", "sum", False)
    with torch.no_grad():
        next(encoder.cells.parameters()).fill_(float("nan"))
    encoder.backend = "fused"
    assert bool(torch.isnan(encoder(Forest(["(f a b)"]).batch()).roots).any())


def test_replacing_aggregators_is_noticed() -> None:
    encoder = make_encoder("lstm", "operators", "full", False).double()
    forest = Forest(EVERYTHING)
    results(encoder, forest, "fused")
    assert_alike(compress(encoder, "tucker", rank=2), forest)


def test_both_directions_use_kernels_upwards_if_they_may() -> None:
    torch.manual_seed(0)
    encoder = TreeEncoder(make_cell("lstm", "sum", label_size=7), OneHot([*LEAVES, *OPERATORS]), direction="both")
    batch = Forest(EVERYTHING).batch()
    auto = encoder(batch)
    encoder.backend = "torch"
    plain = encoder(batch)
    torch.testing.assert_close(auto.nodes, plain.nodes, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(auto.roots, plain.roots, rtol=1e-5, atol=1e-5)


def test_a_model_is_changed_saved_and_copied_after_inference_like_any_other() -> None:
    forest = Forest(["(f a (f b a))", "(f b)"])
    encoder = TreeEncoder(TreeLSTM("tucker", state_size=8, arity=2, rank=3, label_size=3), OneHot("fab")).eval()
    small = len(pickle.dumps(encoder))

    def roots(model: TreeEncoder, backend: Literal["fused", "torch"]) -> Tensor:
        model.backend = backend
        with torch.no_grad():
            states: Tensor = model(forest.batch()).roots
        return states

    first = roots(encoder, "fused")
    torch.testing.assert_close(first, roots(encoder, "torch"), rtol=1e-5, atol=1e-6)
    for parameter in encoder.parameters():
        parameter.data.mul_(0.5)  # past the version counter
    assert not torch.allclose(first, roots(encoder, "fused"), atol=1e-3)
    torch.testing.assert_close(roots(encoder, "fused"), roots(encoder, "torch"), rtol=1e-5, atol=1e-6)
    assert len(pickle.dumps(encoder)) <= 1.1 * small
    copied = copy.deepcopy(encoder)
    encoder.load_state_dict({name: torch.zeros_like(value) for name, value in encoder.state_dict().items()})
    assert not bool(roots(encoder, "fused").any())
    torch.testing.assert_close(roots(copied, "fused"), roots(copied, "torch"), rtol=1e-5, atol=1e-6)
    assert bool(roots(copied, "fused").any())


def test_a_model_that_answered_in_inference_mode_can_still_be_trained() -> None:
    forest = Forest(["(f a b)"])
    cell = TreeLSTM("tucker", state_size=4, arity=2, rank=2, label_size=3)
    encoder = TreeEncoder(cell, OneHot("fab"), backend="fused").eval()
    with torch.inference_mode():
        encoder(forest.batch())
    for backend in ("fused", "torch"):
        encoder.backend = backend
        encoder.zero_grad()
        encoder(forest.batch()).roots.sum().backward()
        assert all(parameter.grad is not None for parameter in encoder.parameters())
