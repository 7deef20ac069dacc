"""The canonical form over both fields, with bounds on its factors, against plain arithmetic; the contract suite tests the law."""

import copy
import itertools
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given as generated
from hypothesis import settings
from torch import Tensor

from tests.kernels.test_fold import EVERYTHING, LEAVES, OPERATORS, assert_alike, forests
from treefold import Embedding, Forest, OneHot, PerLabel, Tree, TreeEncoder, TreeRNN
from treefold.errors import ConfigurationError
from treefold.nn.aggregators import Canonical, Complex
from treefold.nn.cells import CELLS
from treefold.nn.math.functional import contract
from treefold.nn.model import compress

NODES, STATE, OUT, RANK, LABEL = 7, 4, 5, 3, 6
BOUNDS = [("real", "unit"), ("complex", "disc")]
FIELDS = [("real", None), ("complex", None), *BOUNDS]
FORMS = [(*form, *more) for form in FIELDS for more in itertools.product([False, True], [None, LABEL])]


def make(field: str, bound: str | None, shared: bool, label_size: int | None = None, **sizes: Any) -> Canonical:
    torch.manual_seed(0)
    sizes = {"state_size": STATE, "out_size": OUT, "arity": 3, "rank": RANK} | sizes
    made = Canonical(**sizes, field=field, bound=bound, shared=shared, label_size=label_size).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def inputs(form: Canonical, arity: int = 3) -> tuple[Tensor, Tensor | None]:
    children = torch.randn(NODES, arity, STATE, dtype=torch.float64)
    return children, None if form.label_size is None else torch.randn(NODES, LABEL, dtype=torch.float64)


def factors_of(form: Canonical, children: Tensor, label: Tensor | None) -> list[list[list[complex]]]:
    """Return the factors of each node, input and rank before any bound, with Python's own complex numbers."""
    slots, labels = form.slot_factors.tolist(), [] if form.label_factor is None else form.label_factor.tolist()

    def factor(vector: list[float], matrix: list[list[float]], r: int) -> complex:
        real = sum(entry * line[r] for entry, line in zip(vector, matrix, strict=True))
        if form.field == "real":
            return complex(real)
        return complex(real, sum(entry * line[form.rank + r] for entry, line in zip(vector, matrix, strict=True)))

    result = []
    for node, states in enumerate(children.tolist()):
        rows = (
            [[factor([*label[node].tolist(), 1.0], labels, r) for r in range(form.rank)]] if label is not None else []
        )
        for slot, state in enumerate(states):
            if form.shared:
                rows.append([1 + factor(state, slots, r) for r in range(form.rank)])
            else:
                rows.append([factor([*state, 1.0], slots[slot], r) for r in range(form.rank)])
        result.append(rows)
    return result


def clipped(z: complex, bound: str | None) -> complex:
    if bound == "unit":
        return complex(min(1.0, max(0.0, z.real)))
    return z / max(1.0, abs(z)) if bound == "disc" else z


def by_loops(form: Canonical, children: Tensor, label: Tensor | None) -> Tensor:
    """Multiply the factors of each node, and take the real part of what Q makes of them: its rows are Re Q, then -Im Q."""
    output, result = form.output.tolist(), []
    for rows in factors_of(form, children, label):
        products = [complex(1)] * form.rank
        for row in rows:
            products = [product * clipped(z, form.bound) for product, z in zip(products, row, strict=True)]
        line = []
        for k in range(form.out_size):
            q = [
                complex(output[r][k], -output[form.rank + r][k]) if form.field == "complex" else output[r][k]
                for r in range(form.rank)
            ]
            line.append(sum((a * z).real for a, z in zip(q, products, strict=True)))
        result.append(line)
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize(("field", "bound", "shared", "label_size"), FORMS)
def test_the_map_is_a_product_of_numbers_of_the_field_within_the_bound(
    field: str, bound: str | None, shared: bool, label_size: int | None
) -> None:
    form = make(field, bound, shared, label_size)
    for arity in (0, 1, 3, 9) if shared else (3,):
        children, label = inputs(form, arity)
        expected = by_loops(form, children, label)
        torch.testing.assert_close(form(children, label).detach(), expected, rtol=1e-12, atol=1e-12)
        if arity == 3 and bound:  # some factors are outside of the bound, and some inside
            outside = [
                z != clipped(z, bound) for rows in factors_of(form, children, label) for row in rows for z in row
            ]
            assert 0.1 < sum(outside) / len(outside) < 0.9


@pytest.mark.parametrize(("field", "bound"), BOUNDS)
@pytest.mark.parametrize(("shared", "label_size"), list(itertools.product([False, True], [None, LABEL])))
def test_the_law_holds_for_inputs_whose_factors_are_within_the_bound_and_no_others(
    field: str, bound: str, shared: bool, label_size: int | None
) -> None:
    form = make(field, bound, shared, label_size)
    with torch.no_grad():
        if shared:  # 1 + U h, to the left of one
            form.slot_factors.uniform_(-0.01, 0.01)
            form.slot_factors[:, :RANK] -= 0.1
        else:
            form.slot_factors.uniform_(-0.05, 0.05)[:, -1] += 0.4
        if form.label_factor is not None:
            form.label_factor.uniform_(-0.05, 0.05)[-1] += 0.4
    children = torch.rand(NODES, 3, STATE, dtype=torch.float64) * 0.8 + 0.2
    label = None if label_size is None else torch.rand(NODES, LABEL, dtype=torch.float64)
    vectors = [*([] if label is None else [label]), *children.unbind(1)]
    assert all(z == clipped(z, bound) for rows in factors_of(form, children, label) for row in rows for z in row)
    dense = form.to_dense().detach()
    torch.testing.assert_close(form(children, label).detach(), contract(dense, vectors), rtol=1e-12, atol=1e-12)
    far = [*vectors[:-1], 30 * vectors[-1]]
    beyond = form(torch.cat([children[:, :-1], 30 * children[:, -1:]], 1), label).detach()
    assert not torch.allclose(beyond, contract(dense, far), rtol=1e-3)
    assert float(beyond.abs().max()) <= float(form.output.detach().abs().sum(0).max())  # products stay within the bound


@pytest.mark.parametrize(("field", "bound", "shared", "label_size"), FORMS)
def test_gradients_agree_with_finite_differences(
    field: str, bound: str | None, shared: bool, label_size: int | None
) -> None:
    form = make(field, bound, shared, label_size)
    children, label = inputs(form)
    names = [name for name, _ in form.named_parameters()]
    given = [children, *([] if label is None else [label])]

    def run(*tensors: Tensor) -> Tensor:
        parameters = dict(zip(names, tensors[len(given) :], strict=True))
        result: Tensor = torch.func.functional_call(form, parameters, tensors[: len(given)])
        return result

    tensors = [tensor.detach().clone().requires_grad_() for tensor in [*given, *form.parameters()]]
    assert torch.autograd.gradcheck(run, tensors)


@pytest.mark.parametrize("sees", ["operators", "labels", "none"])
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(("field", "bound"), BOUNDS)
@pytest.mark.parametrize("shared", [False, True])
def test_both_engines_agree_with_bounds(field: str, bound: str, shared: bool, kind: str, sees: str) -> None:
    torch.manual_seed(0)
    make_cell, make_leaf = CELLS[kind]

    def cell(arity: int, label_size: int | None = None) -> Any:
        sizes = {"state_size": STATE, "arity": arity, "label_size": label_size, "rank": RANK}
        return make_cell("canonical", **sizes, shared=shared, field=field, bound=bound)

    if sees == "none":
        encoder = TreeEncoder(cell(4))
    elif sees == "labels":
        encoder = TreeEncoder(cell(4, 5), Embedding([*LEAVES, *OPERATORS], 5))
    else:
        leaf = make_leaf(label_size=5, state_size=STATE)
        encoder = TreeEncoder(PerLabel({"f": cell(4), "g": cell(5)}, leaf=leaf), OneHot(LEAVES))
    with torch.no_grad():
        for parameter in encoder.double().parameters():
            parameter.mul_(1.5).add_(0.1 * torch.randn_like(parameter))  # many factors are outside of the bound
    assert_alike(encoder, Forest([*EVERYTHING, "(g _ b _ c)", "(g a _ b)", "(f _ _ a b)"]))

    @settings(max_examples=5, deadline=None, derandomize=True)
    @generated(forests)
    def check(trees: list[Tree]) -> None:
        assert_alike(encoder, Forest(trees))

    check()
    assert_alike(encoder.float(), Forest(EVERYTHING))
    if shared:  # more children than the arity
        wide = Tree("f", [Tree(LEAVES[index % 5]) if index % 3 else None for index in range(50)])
        assert_alike(encoder.double(), Forest([wide, Tree("g", [wide, Tree("a"), wide])]))


@pytest.mark.parametrize("shared", [False, True])
def test_the_two_names_of_the_complex_form_are_one_map(shared: bool) -> None:
    one, other = (
        make("complex", "disc", shared),
        Complex(state_size=STATE, out_size=OUT, arity=3, rank=RANK, shared=shared, bound="disc"),
    )
    other.double().load_state_dict(one.state_dict())
    children, _ = inputs(one)
    assert torch.equal(one(children), other(children))
    assert "field='complex', bound='disc'" in repr(one) and "bound='disc'" in repr(other)
    assert str(other.describe()).splitlines()[1] == "  f = Re Q (W x̄ ∘ U_1 h̄_1 ∘ … ∘ U_L h̄_L)"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("label_size", [None, LABEL])
def test_complex_numbers_take_twice_the_parameters_and_four_times_the_products(
    shared: bool, label_size: int | None
) -> None:
    form = make("complex", None, shared, label_size)
    slots = STATE if shared else 3 * (STATE + 1)
    label, products = (0, 2) if label_size is None else (LABEL + 1, 3)
    assert form.parameter_count == 2 * RANK * (slots + label + OUT)
    assert form.multiply_adds() == 2 * RANK * (3 * STATE + (label_size or 0) + OUT) + 4 * RANK * products
    real = make("real", None, shared, label_size)
    assert form.parameter_count == 2 * real.parameter_count
    more = 2 * RANK * STATE + 4 * RANK
    assert form.multiply_adds(5) == form.multiply_adds(3) + 2 * more


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("label_size", [None, LABEL])
def test_complex_outputs_start_with_mean_zero_and_variance_one_exactly(
    shared: bool, label_size: int | None, rank: int
) -> None:
    torch.manual_seed(0)
    form = Complex(state_size=STATE, out_size=OUT, arity=3, rank=rank, shared=shared, label_size=label_size).double()
    form.reset_parameters()  # in double precision
    flat = form.to_dense().detach().reshape(-1, OUT)  # products of standard entries are orthonormal
    torch.testing.assert_close(flat[-1], torch.zeros(OUT, dtype=torch.float64))
    torch.testing.assert_close(flat.square().sum(0), torch.ones(OUT, dtype=torch.float64))


def test_one_complex_factor_for_each_frequency_adds_modulo_ten() -> None:
    """Digits are unit vectors, the factor of d turns by d tenths, and the output nearest to the product is the sum modulo ten."""
    form = Complex(state_size=10, arity=3, rank=1, shared=True, bound="disc").double()
    turn = 2 * math.pi * torch.arange(10, dtype=torch.float64) / 10
    with torch.no_grad():
        form.slot_factors.copy_(torch.stack([turn.cos() - 1, turn.sin()], 1))
        form.output.copy_(torch.stack([turn.cos(), turn.sin()]))
    digits = torch.randint(0, 10, (200, 12), generator=torch.Generator().manual_seed(0))
    found = form(torch.nn.functional.one_hot(digits, 10).double())
    assert torch.equal(found.argmax(1), digits.sum(1) % 10)
    torch.testing.assert_close(found.max(1).values, torch.ones(200, dtype=torch.float64))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("label_size", [None, 2])
def test_a_tensor_of_the_form_and_rank_is_found_exactly(shared: bool, label_size: int | None) -> None:
    tensor = make("complex", None, shared, label_size, state_size=3, arity=2, rank=2, out_size=4).to_dense().detach()
    found = Complex.from_dense(tensor, 2, label_size=label_size, shared=shared, bound="disc")
    assert found.bound == "disc" and found.field == "complex"
    assert float((found.to_dense().detach() - tensor).norm() / tensor.norm()) < 1e-5


def test_a_full_cell_is_compressed_to_complex_factors() -> None:
    torch.manual_seed(0)
    encoder = TreeEncoder(TreeRNN("full", state_size=3, arity=2, hidden=2, label_size=2), OneHot("fa")).double()
    forest = Forest(["(f (f a f) _)", "(f a)"])
    small = compress(encoder, "complex", rank=9)
    torch.testing.assert_close(small(forest).nodes, encoder(forest).nodes, rtol=1e-4, atol=1e-4)
    bounded = compress(encoder, "complex", rank=1, bound="disc").cell("up").transition
    assert isinstance(bounded, Complex) and bounded.bound == "disc"


def test_copies_and_pickles_are_alike() -> None:
    form = make("complex", "disc", True)
    children, _ = inputs(form)
    for other in (copy.deepcopy(form), pickle.loads(pickle.dumps(form))):
        assert torch.equal(other(children), form(children)) and repr(other) == repr(form)


def test_fields_and_bounds_that_do_not_exist_are_refused_in_words() -> None:
    sizes: dict[str, Any] = {"state_size": 4, "arity": 2, "rank": 3}
    with pytest.raises(
        ConfigurationError,
        match=r"expects field to be one of 'real', 'complex', got 'compl' \(nearest known: 'complex'",
    ):
        Canonical(**sizes, field="compl")
    with pytest.raises(
        ConfigurationError,
        match="expects bound to be 'unit' or None over the real numbers, got 'disc'; 'disc' is for field='complex'",
    ):
        Canonical(**sizes, bound="disc")
    with pytest.raises(ConfigurationError, match="Complex expects bound to be 'disc' or None over the complex numbers"):
        Complex(**sizes, bound="unit")
    for value in ("box", 1, True):
        with pytest.raises(ConfigurationError, match="expects bound to be 'unit' or None"):
            Canonical(**sizes, bound=value)
    with pytest.raises(ConfigurationError, match=r"expects the options field, bound, got bond='disc' \(nearest known"):
        Canonical(**sizes, bond="disc")
    with pytest.raises(ConfigurationError, match="Complex expects a rank, got none"):
        Complex(state_size=4, arity=2)
