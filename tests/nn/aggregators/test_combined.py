"""Sums of forms: everything follows from the parts, in both engines; the contract suite tests the law."""

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from tests.kernels.test_fold import EVERYTHING, LEAVES, OPERATORS, assert_alike, forests
from treefold import Embedding, Forest, OneHot, PerLabel, Tree, TreeEncoder, TreeLSTM, TreeRNN
from treefold.errors import ConfigurationError
from treefold.nn.aggregators import AGGREGATORS, Blockwise, Canonical, Combined, Complex, Mean, Sum, Tucker, form_named
from treefold.nn.cells import CELLS
from treefold.nn.engine import engine_for
from treefold.nn.model import compress

STATE, ARITY, RANK, LABEL = 4, 3, 2, 5
SIZES: dict[str, Any] = {"state_size": STATE, "arity": ARITY}


def make(name: str, **options: Any) -> Any:
    rank = RANK if form_named(name).has_rank else None
    return form_named(name)(**{**SIZES, "rank": rank, **options})


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("label_size", [None, LABEL])
@pytest.mark.parametrize(
    "name",
    ["canonical+sum", "tucker+complex", "full+tensor-train+sum", "blockwise+sum", "mean+complex", "positional+max"],
)
def test_values_counts_and_tensors_are_the_sums_of_those_of_the_parts(
    name: str, label_size: int | None, shared: bool
) -> None:
    torch.manual_seed(0)
    form = make(name, shared=shared, label_size=label_size).double()
    parts = form.summands
    assert [type(part) for part in parts] == [AGGREGATORS[each] for each in name.split("+")]
    children = torch.randn(6, ARITY, STATE, dtype=torch.float64)
    children[:2, 1:] = 0
    label = None if label_size is None else torch.randn(6, label_size, dtype=torch.float64)
    torch.testing.assert_close(form(children, label), sum(part(children, label) for part in parts))
    assert form.parameter_count == sum(part.parameter_count for part in parts)
    assert form.multiply_adds() == sum(part.multiply_adds() for part in parts)
    assert form.takes_any_number == all(part.takes_any_number for part in parts)
    if form.multi_affine:
        torch.testing.assert_close(form.to_dense(), torch.stack([part.to_dense() for part in parts]).sum(0))
    else:
        with pytest.raises(ConfigurationError, match="Max has no dense tensor"):
            form.to_dense()
    text = str(form.describe())
    assert "parts.0." in text and "parts.1." in text and f"{form.parameter_count} parameters" in text
    first = parts[0].equation.removeprefix("f = ")
    assert text.splitlines()[1].startswith(f"  f = {first} + ")


def test_a_rank_and_an_option_go_to_every_part_that_has_it() -> None:
    form = form_named("complex+canonical+sum+blockwise")(**SIZES, rank=3, block_size=2)
    assert [part.rank for part in form.summands] == [3, 3, 0, 0] and form.rank == 3
    assert [getattr(part, "block_size", None) for part in form.summands] == [None, None, None, 2]
    one, two, three = make("complex+complex+sum", bound="disc").summands
    assert one.bound == two.bound == "disc" and not hasattr(three, "bound")
    assert [part.field for part in make("complex+canonical").summands] == ["complex", "real"]


def test_the_paper_s_sizes_have_at_most_three_thousand_parameters() -> None:
    cell = TreeRNN("complex+sum", state_size=20, arity=5, rank=16, shared=True, bound="disc", hidden=32)
    factors, output, linear, hidden = 20 * 32, 32 * 32, 20 * 32 + 32, 32 * 20 + 20
    assert sum(each.numel() for each in cell.parameters()) == factors + output + linear + hidden == 2996


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("label_size", [None, LABEL])
@pytest.mark.parametrize("name", ["complex+sum", "canonical+tucker+blockwise", "hadamard-product+sum"])
def test_balanced_sums_start_with_mean_zero_and_variance_one(name: str, label_size: int | None, shared: bool) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "state_size": 8,
        "out_size": None,
        "arity": 2,
        "rank": 3 if form_named(name).has_rank else None,
    }
    made = [form_named(name)(**sizes, shared=shared, label_size=label_size).double() for _ in range(20)]
    objects = [Combined([type(part)(**_arguments(part)) for part in made[0].summands]).double() for _ in range(20)]
    for forms in (made, objects, [_reset(form) for form in made]):
        flat = torch.stack([form.to_dense().detach().reshape(-1, 8) for form in forms])
        assert float(flat[:, -1].abs().max()) < 1e-5
        # For given weights the parts are not independent of each other: the variance is one on average.
        assert 0.85 < float(flat.square().sum(1).mean()) < 1.15


def _arguments(part: Any) -> dict[str, Any]:
    names = ("state_size", "out_size", "arity", "label_size", "shared")
    return {name: getattr(part, name) for name in names} | {"rank": part.rank or None}


def _reset(form: Any) -> Any:
    form.reset_parameters()
    return form


PARTS = ["sum", "canonical", "complex", "blockwise", "hadamard-product", "mean", "positional", "max"]


def make_encoder(kind: str, sees: str, name: str, shared: bool, **options: Any) -> TreeEncoder:
    torch.manual_seed(0)
    make_cell, make_leaf = CELLS[kind]
    rank = RANK if form_named(name).has_rank else None

    def cell(arity: int, label_size: int | None = None) -> Any:
        sizes = {"state_size": STATE, "arity": arity, "label_size": label_size, "rank": rank, "shared": shared}
        return make_cell(name, **sizes, **options)

    if sees == "labels":
        encoder = TreeEncoder(cell(4, LABEL), Embedding([*LEAVES, *OPERATORS], LABEL))
    else:
        leaf = make_leaf(label_size=5, state_size=STATE)
        encoder = TreeEncoder(PerLabel({"f": cell(4), "g": cell(5)}, leaf=leaf), OneHot(LEAVES))
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return encoder.double()


@pytest.mark.parametrize("sees", ["operators", "labels"])
@pytest.mark.parametrize(("one", "other"), list(itertools.product(PARTS, PARTS)))
def test_both_engines_agree_for_any_two_parts(one: str, other: str, sees: str) -> None:
    kind = list(CELLS)[(PARTS.index(one) + PARTS.index(other)) % len(CELLS)]
    for shared in (False, True):
        encoder = make_encoder(kind, sees, f"{one}+{other}", shared)
        assert_alike(encoder, Forest(EVERYTHING))
        assert_alike(encoder.float(), Forest(EVERYTHING))


@pytest.mark.parametrize("sees", ["operators", "labels"])
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("shared", [False, True])
def test_both_engines_agree_for_three_parts_with_a_bound(shared: bool, kind: str, sees: str) -> None:
    encoder = make_encoder(kind, sees, "sum+complex+complex", shared, bound="disc")
    assert_alike(encoder, Forest([*EVERYTHING, "(g _ b _ c)", "(g a _ b)", "(f _ _ a b)"]))

    @settings(max_examples=5, deadline=None, derandomize=True)
    @given(forests)
    def check(trees: list[Tree]) -> None:
        assert_alike(encoder, Forest(trees))

    check()
    if shared:
        wide = Tree("f", [Tree(LEAVES[index % 5]) if index % 3 else None for index in range(50)])
        assert_alike(encoder, Forest([wide, Tree("g", [wide, Tree("a"), wide])]))


@pytest.mark.parametrize("sees", ["operators", "labels"])
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("name", ["blockwise+canonical", "sum+blockwise"])
def test_both_engines_agree_for_blocks_of_two_as_parts(name: str, kind: str, sees: str) -> None:
    encoder = make_encoder(kind, sees, name, True, block_size=2)
    assert_alike(encoder, Forest([*EVERYTHING, "(g _ b _ c)", "(g a _ b)", "(f _ _ a b)"]))
    assert_alike(encoder.float(), Forest(EVERYTHING))


def test_operators_with_sums_of_different_lengths_go_together() -> None:
    torch.manual_seed(0)
    cells: dict[str, Any] = {
        "f": TreeLSTM("complex+sum+canonical", state_size=STATE, arity=4, rank=3, shared=True),
        "g": TreeLSTM("sum+blockwise", state_size=STATE, arity=5),
        "h": TreeLSTM("tucker", state_size=STATE, arity=2, rank=2),
    }
    leaf = TreeLSTM("complex+sum", state_size=STATE, arity=2, rank=2, label_size=5)
    encoder = TreeEncoder(PerLabel(cells, leaf=leaf), OneHot(LEAVES)).double()
    assert_alike(encoder, Forest([*EVERYTHING, "(h (a b) (c (g (h a))))", "(f a b c d e (h a b))"]))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["tucker+sum", "sum+full", "tensor-train+sum", "sum+tensor-train"])
def test_a_sum_with_a_part_that_cannot_follow_others_is_left_to_torch(name: str, shared: bool) -> None:
    encoder = TreeEncoder(TreeRNN(name, **SIZES, rank=RANK if form_named(name).has_rank else None, shared=shared))
    assert engine_for(encoder).reason == "kernels expect an aggregator with a kernel, got Combined, which has none"
    assert encoder(Forest(["(f (f) (f (f)) (f))"])).roots.shape == (1, STATE)


def test_gates_with_other_parts_are_left_to_torch() -> None:
    cell = TreeLSTM("canonical+sum", **SIZES, rank=RANK)
    cell.output_gate = make("complex+sum")
    encoder = TreeEncoder(cell)
    assert engine_for(encoder).reason == (
        "kernels expect gates with aggregators of one form and size, got different ones"
    )
    cell.output_gate = make("canonical+sum")
    assert "the cell has kernels" in engine_for(encoder).reason


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["canonical+sum", "complex+sum", "sum+blockwise"])
def test_a_tensor_that_is_a_sum_of_the_forms_is_found_exactly(name: str, shared: bool) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"state_size": 3, "arity": 2, "rank": 2 if form_named(name).has_rank else None}
    tensor = form_named(name)(**sizes, shared=shared).double().to_dense().detach()
    found = form_named(name).from_dense(tensor, sizes["rank"], shared=shared)
    assert isinstance(found, Combined) and found.shared == shared
    assert float((found.to_dense().detach() - tensor).norm() / tensor.norm()) < 1e-4


def test_the_zero_tensor_is_a_sum_of_nothing() -> None:
    found = form_named("sum+blockwise").from_dense(torch.zeros(4, 4, 3, dtype=torch.float64))
    assert float(found.to_dense().detach().norm()) < 1e-6


@pytest.mark.parametrize("kind", CELLS)
def test_cells_are_compressed_into_sums(kind: str) -> None:
    torch.manual_seed(0)
    make_cell: Any = CELLS[kind][0]
    encoder = TreeEncoder(make_cell("sum", state_size=3, arity=2)).double()
    forest = Forest(["(f (f a b) _)", "(f a)"])
    same = compress(encoder, "canonical+sum", rank=1)
    torch.testing.assert_close(same(forest).nodes, encoder(forest).nodes, rtol=1e-4, atol=1e-4)
    assert_alike(same, forest)
    back = compress(same, "full")
    torch.testing.assert_close(back(forest).nodes, same(forest).nodes, rtol=1e-10, atol=1e-10)


def test_sums_with_a_mean_are_not_compressed() -> None:
    """Their tensor depends on the number of children."""
    cell = TreeRNN("mean+complex", **SIZES, rank=RANK)
    with pytest.raises(ConfigurationError, match="compress expects a form with one tensor for any number of children"):
        compress(cell, "full")


def test_copies_and_pickles_are_alike_and_apart() -> None:
    torch.manual_seed(0)
    form, children = make("complex+sum", shared=True, bound="disc"), torch.randn(5, 7, STATE)
    for other in (copy.deepcopy(form), pickle.loads(pickle.dumps(form))):
        assert torch.equal(other(children), form(children)) and repr(other) == repr(form)
        assert other.takes_any_number and other.equation == form.equation
        nn.init.zeros_(other.summands[0].output)
        assert not torch.equal(other(children), form(children))
    with torch.no_grad():
        before = [parameter.clone() for parameter in form.parameters()]
        form.reset_parameters()
    assert not any(torch.equal(one, other) for one, other in zip(before, form.parameters(), strict=True) if one.any())


def test_gates_of_a_cell_start_with_weights_of_their_own() -> None:
    cell = TreeLSTM(make("complex+sum", shared=True))
    first, second, third = (gate.summands[0].get_parameter("output") for gate in cell.gates())
    assert not torch.equal(first, second) and not torch.equal(second, third)


def test_wrong_parts_are_refused_in_words() -> None:
    summand, other = Sum(**SIZES), Canonical(**SIZES, rank=2)
    with pytest.raises(
        ConfigurationError,
        match="Combined expects two aggregators or more, which are no sums, got Combined, Sum; list the parts of a sum one",
    ):
        Combined([Combined([summand, other]), Sum(**SIZES)])
    for parts, got in (([], "none"), ([summand], "Sum"), ([summand, "sum"], "Sum, str")):
        with pytest.raises(ConfigurationError, match=f"expects two aggregators or more, which are no sums, got {got};"):
            Combined(parts)  # type: ignore[arg-type]
    for changes in (
        {"state_size": 5, "out_size": STATE},
        {"out_size": 6},
        {"arity": 2},
        {"label_size": 3},
        {"shared": True},
        {"initialisation": "kaiming"},
    ):
        name = next(iter(changes))
        with pytest.raises(
            ConfigurationError, match=rf"Combined expects parts with the same {name}, got .*; make them"
        ):
            Combined([summand, Sum(**{**SIZES, **changes})])
    with pytest.raises(ConfigurationError, match="expects parts with the same shared, got False, True"):
        Combined([summand, Mean(**SIZES)])


def test_wrong_names_ranks_and_options_are_refused_in_words() -> None:
    with pytest.raises(ConfigurationError, match="Combined expects no rank, got rank=3; no part has one, leave it out"):
        form_named("sum+blockwise")(**SIZES, rank=3)
    with pytest.raises(ConfigurationError, match="Canonical expects a rank, got none"):
        form_named("canonical+sum")(**SIZES)
    with pytest.raises(ConfigurationError, match=r"got 'complx' \(nearest known: 'complex'\)"):
        form_named("complx+sum")
    for name in ("sum+", "+sum", "sum++complex"):
        with pytest.raises(ConfigurationError, match=r"a cell expects aggregator to be one of .*, got ''"):
            TreeRNN(name, **SIZES)
    with pytest.raises(ConfigurationError, match="expects the options field, bound, got block_size=2"):
        form_named("canonical+sum")(**SIZES, rank=2, block_size=2)
    with pytest.raises(
        ConfigurationError, match="expects bound to be 'unit' or None over the real numbers, got 'disc'"
    ):
        make("complex+canonical", bound="disc")
    with pytest.raises(ConfigurationError, match="expects out_size = state_size"):
        TreeRNN("blockwise+sum", **SIZES, hidden=7)
    assert [type(part) for part in make("hadamard+sum").summands] == [Blockwise, Sum]
    assert isinstance(make("tucker"), Tucker) and isinstance(make("complex"), Complex)


def test_a_lasso_shrinks_the_norm_of_each_part_and_the_strongest_can_be_kept() -> None:
    torch.manual_seed(0)
    form = make("canonical+sum+hadamard-product", shared=True).double()
    before, values = form.part_norms(), copy.deepcopy(form).requires_grad_(False)
    canonical, linear, product = values.summands
    plain = [[canonical.output], [linear.slot_weights, linear.bias], [product.scale, product.bias]]
    for norm, parameters in zip(before, plain, strict=True):
        assert norm == pytest.approx(sum(float(each.square().sum()) for each in parameters) ** 0.5)
    amount = min(before) / 2
    form.shrink_parts(amount)
    assert form.part_norms() == pytest.approx([norm - amount for norm in before])
    torch.testing.assert_close(form.summands[1].bias.detach(), linear.bias * (1 - amount / before[1]))
    torch.testing.assert_close(form.summands[2].factors.detach(), product.factors)  # does not scale the product
    form.keep_strongest()
    kept = before.index(max(before))
    assert [norm > 0 for norm in form.part_norms()] == [number == kept for number in range(3)]
    children = torch.randn(7, ARITY, STATE, dtype=torch.float64)
    torch.testing.assert_close(form(children), form.summands[kept](children))
    form.shrink_parts(1e9)
    assert form.part_norms() == [0.0, 0.0, 0.0]
