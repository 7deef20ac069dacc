"""Blocks: storage, limits, starts, and both engines; the contract suite tests the law."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings

import treefold
from tests.kernels.test_fold import EVERYTHING, LEAVES, OPERATORS, assert_alike, forests
from treefold import Embedding, Forest, OneHot, PerLabel, Tree, TreeEncoder, TreeRNN
from treefold.errors import ConfigurationError
from treefold.nn import aggregators
from treefold.nn.aggregators import Blockwise, Full
from treefold.nn.cells import CELLS
from treefold.nn.model import compress

SIZE = 6
FORMS = list(itertools.product([1, 2, 3, 6], [False, True]))


def by_loops(form: Blockwise, children: torch.Tensor) -> list[list[float]]:
    """Evaluate the form from its equation and the stated order of its rows, with Python's own numbers."""
    k, arity = form.block_size, form.arity
    if form.shared:
        keys = list(itertools.combinations_with_replacement(range(k + 1), arity))
    else:
        keys = list(itertools.product(range(k + 1), repeat=arity))
    weights = dict(zip(keys, form.coefficients.tolist(), strict=True))
    result = []
    for states in children.tolist():
        line = []
        for i in range(form.state_size):
            first, total = i - i % k, 0.0
            for digits in itertools.product(range(k + 1), repeat=arity):
                term = weights[tuple(sorted(digits)) if form.shared else digits][i]
                for state, digit in zip(states, digits, strict=True):
                    term *= state[first + digit - 1] if digit else 1.0
                total += term
            line.append(total)
        result.append(line)
    return result


@pytest.mark.parametrize("arity", [1, 2, 3])
@pytest.mark.parametrize(("block_size", "shared"), FORMS)
def test_rows_are_in_the_order_that_is_stated(block_size: int, shared: bool, arity: int) -> None:
    torch.manual_seed(0)
    form = Blockwise(state_size=SIZE, arity=arity, block_size=block_size, shared=shared).double()
    torch.nn.init.normal_(form.coefficients)
    children = torch.randn(4, arity, SIZE, dtype=torch.float64)
    expected = torch.tensor(by_loops(form, children), dtype=torch.float64)
    torch.testing.assert_close(form(children).detach(), expected)


@pytest.mark.parametrize("shared", [False, True])
def test_blocks_of_one_work_entry_by_entry(shared: bool) -> None:
    form = Blockwise(state_size=2, arity=2, shared=shared).double()
    x, y = torch.randn(2, 5, 2, dtype=torch.float64)
    if shared:
        b, w, a = form.coefficients
        v = w
    else:
        b, v, w, a = form.coefficients  # none, the second, the first, both
    torch.testing.assert_close(form(torch.stack([x, y], 1)), b + w * x + v * y + a * x * y)


@pytest.mark.parametrize("arity", [1, 2, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_one_block_is_the_full_tensor(shared: bool, arity: int) -> None:
    torch.manual_seed(0)
    full = Full(state_size=4, arity=arity, shared=shared).double()
    form = Blockwise.from_dense(full.to_dense(), block_size=4, shared=shared)
    torch.testing.assert_close(form.to_dense(), full.to_dense())
    assert form.parameter_count == full.parameter_count
    again = Full.from_dense(form.to_dense(), shared=shared)
    torch.testing.assert_close(again.tensor, full.tensor)


@pytest.mark.parametrize(("block_size", "shared"), FORMS)
def test_the_nearest_blocks_are_what_a_tensor_has_within_blocks(block_size: int, shared: bool) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(SIZE + 1, SIZE + 1, SIZE, dtype=torch.float64)
    form = Blockwise.from_dense(tensor, block_size=block_size, shared=shared)
    nearest = (tensor + tensor.transpose(0, 1)) / 2 if shared else tensor.clone()
    for i, j, out in itertools.product(range(SIZE + 1), range(SIZE + 1), range(SIZE)):
        if any(each < SIZE and each // block_size != out // block_size for each in (i, j)):
            nearest[i, j, out] = 0
    torch.testing.assert_close(form.to_dense(), nearest)


@pytest.mark.parametrize("sees", ["operators", "labels"])
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(("block_size", "shared"), FORMS)
def test_both_engines_agree_in_values_and_gradients(block_size: int, shared: bool, kind: str, sees: str) -> None:
    torch.manual_seed(0)
    make, make_leaf = CELLS[kind]

    def cell(arity: int, label_size: int | None = None) -> Any:
        sizes = {"state_size": SIZE, "arity": arity, "label_size": label_size}
        return make("blockwise", **sizes, shared=shared, block_size=block_size)

    if sees == "labels":
        encoder = TreeEncoder(cell(4, 5), Embedding([*LEAVES, *OPERATORS], 5)).double()
    else:
        leaf = make_leaf(label_size=5, state_size=SIZE)
        encoder = TreeEncoder(PerLabel({"f": cell(4), "g": cell(5)}, leaf=leaf), OneHot(LEAVES)).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert_alike(encoder, Forest([*EVERYTHING, "(g _ b _ c)", "(g a _ b)", "(f _ _ a b)"]))

    @settings(max_examples=5, deadline=None, derandomize=True)
    @given(forests)
    def check(trees: list[Tree]) -> None:
        assert_alike(encoder, Forest(trees))

    check()
    assert_alike(encoder.float(), Forest(EVERYTHING))


@pytest.mark.parametrize(("block_size", "shared"), FORMS)
@pytest.mark.parametrize("arity", [1, 2, 3])
@pytest.mark.parametrize("label_size", [None, 5])
def test_balanced_outputs_have_mean_zero_and_variance_one_exactly(
    block_size: int, shared: bool, arity: int, label_size: int | None
) -> None:
    torch.manual_seed(0)
    form = Blockwise(state_size=SIZE, arity=arity, block_size=block_size, shared=shared, label_size=label_size).double()
    form.reset_parameters()  # in double precision
    flat = form.to_dense().detach().reshape(-1, SIZE)  # products of standard entries are orthonormal
    assert float(flat[-1].abs().max()) == 0
    torch.testing.assert_close(flat.square().sum(0), torch.ones(SIZE, dtype=torch.float64))


@pytest.mark.parametrize("shared", [False, True])
def test_balanced_orders_of_interaction_have_comparable_shares(shared: bool) -> None:
    """Each slot has weight 1/n for its state: the shares of the orders are those of (1 + 1/n)^n, without the one."""
    torch.manual_seed(0)
    tensor = Blockwise(state_size=150, arity=2, block_size=50, shared=shared).to_dense().detach()
    pairs, single = tensor[:-1, :-1].square().sum(), tensor[-1].square().sum() + tensor[:, -1].square().sum()
    assert float(pairs / single) == pytest.approx((1 / 4) / (2 / 2), rel=0.1)


@pytest.mark.parametrize(("block_size", "shared"), FORMS)
def test_it_may_start_near_the_product_of_all_children(block_size: int, shared: bool) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"state_size": 600, "block_size": block_size, "shared": shared, "start": "product"}
    form = Blockwise(arity=3, **sizes)
    children = torch.randn(4, 3, 600)
    exact = Blockwise(arity=3, **sizes)
    with torch.no_grad():
        exact.coefficients.round_()  # the noise is far below a half
    torch.testing.assert_close(exact(children), children.prod(1))
    assert bool((form.coefficients[0] == 0).all())
    noise = (form.coefficients - exact.coefficients)[1:].detach()
    assert float(noise.std()) == pytest.approx(min(0.1, 0.4 / block_size), rel=0.1)
    one = Blockwise(arity=1, **sizes).coefficients.detach()
    assert bool((one[0] == 0.5).all())
    assert float(one[1:].std()) == pytest.approx(min(0.5, block_size**-0.5), rel=0.1)
    assert "start='product'" in repr(form)


def test_wrong_options_are_refused_in_words() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"expects a block_size that divides state_size=6, got 4; choose one of 1, 2, 3, 6, or another state_size",
    ):
        Blockwise(state_size=6, arity=2, block_size=4)
    for value in (0, -1, 2.5, True, "2"):
        with pytest.raises(ConfigurationError, match="expects block_size to be an integer >= 1, got"):
            Blockwise(state_size=6, arity=2, block_size=value)
    with pytest.raises(ConfigurationError, match=r"'balanced', 'product', got 'prod' \(nearest known: 'product'\)"):
        Blockwise(state_size=6, arity=2, start="prod")
    with pytest.raises(ConfigurationError, match="expects start='product' or initialisation='kaiming', got both"):
        Blockwise(state_size=6, arity=2, start="product", initialisation="kaiming")
    with pytest.raises(
        ConfigurationError,
        match=r"Blockwise expects the options block_size, start, got blocksize=2 \(nearest known: 'block_size'\); leave it out",
    ):
        Blockwise(state_size=6, arity=2, blocksize=2)
    with pytest.raises(ConfigurationError, match="Full expects no options, got block_size=2; leave it out"):
        TreeRNN("full", state_size=6, arity=2, block_size=2)
    with pytest.raises(ConfigurationError, match="expects an aggregator object or its sizes, got both"):
        TreeRNN(Blockwise(state_size=6, arity=2), block_size=2)
    for shared in (False, True):
        with pytest.raises(ConfigurationError, match="Blockwise expects a tensor of at most 268,435,456 entries"):
            Blockwise(state_size=64, arity=6, block_size=64, shared=shared)


def test_the_description_names_options_that_are_not_the_default() -> None:
    sizes = "state_size=6, out_size=6, arity=2"
    assert repr(Blockwise(state_size=6, arity=2)) == f"Blockwise({sizes})"
    assert str(Blockwise(state_size=6, arity=2, block_size=3).describe()).startswith(
        f"Blockwise({sizes}, block_size=3)"
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_are_compressed_into_blocks(kind: str, shared: bool) -> None:
    torch.manual_seed(0)
    make: Any = CELLS[kind][0]
    encoder = TreeEncoder(make("full", state_size=4, arity=2, shared=shared)).double()
    forest = Forest(["(f (f a b) _)", "(f a)"])
    same = compress(encoder, "blockwise", block_size=4)
    torch.testing.assert_close(same(forest).nodes, encoder(forest).nodes)
    smaller = compress(encoder, "blockwise", block_size=2)
    counts = [sum(each.numel() for each in model.parameters()) for model in (smaller, encoder)]
    assert counts[0] < counts[1]


def test_the_old_name_is_blocks_of_one() -> None:
    for module in (aggregators, treefold):
        with pytest.warns(DeprecationWarning, match="Hadamard is now called Blockwise"):
            assert module.Hadamard is Blockwise
    assert type(TreeRNN("hadamard", state_size=6, arity=2).transition) is Blockwise
    assert "hadamard" not in aggregators.AGGREGATORS and "Hadamard" not in aggregators.__all__
