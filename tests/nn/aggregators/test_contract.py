"""The contract that every aggregator keeps, over the registry; all axis sizes differ, so that mixed-up axes cannot hide."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from treefold.errors import ConfigurationError, ShapeError
from treefold.nn.aggregators import AGGREGATORS as REGISTRY
from treefold.nn.aggregators import Aggregator, Full, Max, Tucker, form_named
from treefold.nn.aggregators.mean import Normalised
from treefold.nn.math.functional import contract

NODES, ARITY, STATE, OUT, RANK, LABEL = 7, 3, 4, 5, 2, 6
# Options of a form are tested as forms of their own.
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "blockwise-2": ("blockwise", {"block_size": 2}),
    "blockwise-4": ("blockwise", {"block_size": 4}),
    "complex+sum": ("complex+sum", {}),
}
AGGREGATORS: dict[str, Any] = REGISTRY | {name: form_named(form) for name, (form, _) in VARIANTS.items()}
ANY_ARITY = [name for name, form in AGGREGATORS.items() if form.any_arity]
MULTI_AFFINE = [name for name, form in AGGREGATORS.items() if form.multi_affine]
ORDERED = ("tensor-train", "positional")  # shared forms that see the order of the children
SHARED = [
    (name, shared) for name, form in AGGREGATORS.items() for shared in (False, True) if shared or not form.always_shared
]
FORMS = [(*form, *more) for form in SHARED for more in itertools.product([None, LABEL], ["balanced", "kaiming"])]


def make(name: str, **sizes: object) -> Aggregator:
    options = VARIANTS[name][1] if name in VARIANTS else {}
    settings: dict[str, object] = {"state_size": STATE, "out_size": OUT, "arity": ARITY, **options, **sizes}
    if not AGGREGATORS[name].mixes and sizes.get("out_size", 1) in (1, 30):
        settings["out_size"] = settings["state_size"]
    if AGGREGATORS[name].has_rank:
        settings.setdefault("rank", RANK)
    made: Aggregator = AGGREGATORS[name](**settings).double()
    return made


def block_of(name: str) -> int:
    return int(str(VARIANTS.get(name, (name, {}))[1].get("block_size", 1)))


@pytest.fixture(params=FORMS, ids=lambda form: "-".join(str(part) for part in form))
def aggregator(request: pytest.FixtureRequest) -> Iterator[Aggregator]:
    torch.manual_seed(0)
    name, shared, label_size, initialisation = request.param
    yield make(name, shared=shared, label_size=label_size, initialisation=initialisation)


@pytest.fixture
def tensor_form(aggregator: Aggregator) -> Aggregator:
    """A form that has a dense tensor."""
    if not aggregator.multi_affine:
        pytest.skip("has no tensor")
    return aggregator


def inputs(aggregator: Aggregator, *, arity: int = ARITY, nodes: int = NODES) -> tuple[Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    children = torch.randn(nodes, arity, aggregator.state_size, generator=generator, dtype=torch.float64)
    if aggregator.label_size is None:
        return children, None
    return children, torch.randn(nodes, aggregator.label_size, generator=generator, dtype=torch.float64)


def by_definition(aggregator: Aggregator, children: Tensor, label: Tensor | None) -> Tensor:
    """Sum over all index tuples with Python's own loops: the paper's equation, letter by letter.

    Forms that normalise have the tensor of the children that are present.
    """
    result = torch.zeros(len(children), aggregator.out_size, dtype=torch.float64)
    for node in range(len(children)):
        states = [state for state in children[node] if bool(state.any()) or not aggregator.normalises]
        tensor = aggregator.to_dense(len(states)).detach()
        vectors = [*([] if label is None else [label[node]]), *states]
        homogeneous = [[*vector.tolist(), 1.0] for vector in vectors]
        for entry in itertools.product(*(range(len(vector)) for vector in homogeneous)):
            weight = 1.0
            for vector, index in zip(homogeneous, entry, strict=True):
                weight *= vector[index]
            result[node] += weight * tensor[entry]
    return result


def test_forward_equals_contraction_with_its_own_dense_tensor(tensor_form: Aggregator) -> None:
    aggregator = tensor_form
    children, label = inputs(aggregator)
    vectors = [*([] if label is None else [label]), *children.unbind(1)]
    torch.testing.assert_close(
        aggregator(children, label), contract(aggregator.to_dense(), vectors), rtol=1e-10, atol=1e-10
    )


def test_forward_equals_the_sum_over_all_index_tuples(tensor_form: Aggregator) -> None:
    aggregator = tensor_form
    children, label = inputs(aggregator, nodes=2)
    torch.testing.assert_close(
        aggregator(children, label).detach(), by_definition(aggregator, children, label), rtol=1e-10, atol=1e-10
    )


def test_the_dense_tensor_has_a_mode_for_the_label_each_child_and_the_output(tensor_form: Aggregator) -> None:
    aggregator = tensor_form
    label = [] if aggregator.label_size is None else [LABEL + 1]
    assert list(aggregator.to_dense().shape) == [*label, *[STATE + 1] * ARITY, aggregator.out_size]
    assert aggregator.out_size == (OUT if aggregator.mixes else STATE)


def test_the_map_is_affine_in_each_child_and_in_the_label(tensor_form: Aggregator) -> None:
    aggregator = tensor_form
    children, label = inputs(aggregator)
    for slot in range(ARITY):
        other = children.clone()
        other[:, slot] = torch.randn(NODES, STATE, dtype=torch.float64)
        between = children.clone()
        between[:, slot] = 0.3 * children[:, slot] + 0.7 * other[:, slot]
        expected = 0.3 * aggregator(children, label) + 0.7 * aggregator(other, label)
        torch.testing.assert_close(aggregator(between, label), expected, rtol=1e-10, atol=1e-10)
    if label is not None:
        other = torch.randn_like(label)
        expected = 0.3 * aggregator(children, label) + 0.7 * aggregator(children, other)
        torch.testing.assert_close(aggregator(children, 0.3 * label + 0.7 * other), expected, rtol=1e-10, atol=1e-10)


def test_gradients_agree_with_finite_differences(aggregator: Aggregator) -> None:
    children, label = inputs(aggregator, nodes=2)
    names = [name for name, _ in aggregator.named_parameters()]
    differentiable = [children, *([] if label is None else [label])]

    def run(*tensors: Tensor) -> Tensor:
        given = dict(zip(names, tensors[len(differentiable) :], strict=True))
        result: Tensor = torch.func.functional_call(aggregator, given, tensors[: len(differentiable)])
        return result

    tensors = [tensor.detach().clone().requires_grad_() for tensor in [*differentiable, *aggregator.parameters()]]
    assert torch.autograd.gradcheck(run, tensors)


def test_every_parameter_entry_receives_gradient(aggregator: Aggregator) -> None:
    children, label = inputs(aggregator)
    aggregator(children, label).square().sum().backward()
    for name, parameter in aggregator.named_parameters():
        assert parameter.grad is not None and bool((parameter.grad != 0).all()), name


def test_an_absent_child_is_the_zero_state_and_not_its_sibling(aggregator: Aggregator) -> None:
    children, label = inputs(aggregator)
    absent = children.clone()
    absent[:, 1:] = 0
    fewer = aggregator(children[:, :1], label)
    torch.testing.assert_close(fewer, aggregator(absent, label), rtol=1e-12, atol=1e-12)
    if aggregator.multi_affine:
        torch.testing.assert_close(fewer.detach(), by_definition(aggregator, absent, label), rtol=1e-10, atol=1e-10)
    copied = children[:, :1].expand(-1, ARITY, -1)
    # Only for the normalised forms, copies of a child are no more than the child.
    assert torch.allclose(aggregator(absent, label), aggregator(copied, label)) == aggregator.normalises


def test_an_absent_child_between_others_is_not_one_of_them(aggregator: Aggregator) -> None:
    children, label = inputs(aggregator)
    absent = children.clone()
    absent[:, 1] = 0
    found = aggregator(absent, label)
    if aggregator.multi_affine:
        torch.testing.assert_close(found.detach(), by_definition(aggregator, absent, label), rtol=1e-10, atol=1e-10)
    if aggregator.takes_any_number:
        torch.testing.assert_close(found, aggregator(children[:, [0, 2]], label), rtol=1e-12, atol=1e-12)
    for copied in (
        [0, 0, 2],
        [0, 2, 2],
    ):  # a copy of either sibling is no greater than it, but counts in all other forms
        same = torch.allclose(found, aggregator(children[:, copied], label))
        assert same == isinstance(aggregator, Max)


def test_no_children_at_all_give_the_map_of_zero_states(aggregator: Aggregator) -> None:
    children, label = inputs(aggregator)
    zero = torch.zeros_like(children)
    torch.testing.assert_close(aggregator(children[:, :0], label), aggregator(zero, label))


@pytest.mark.parametrize("name", MULTI_AFFINE)
@pytest.mark.parametrize("label_size", [None, LABEL])
def test_the_shared_dense_tensor_is_symmetric_in_the_slots_unless_order_matters(
    name: str, label_size: int | None
) -> None:
    torch.manual_seed(0)
    tensor = make(name, shared=True, label_size=label_size).to_dense()
    first = 0 if label_size is None else 1
    swapped = tensor.transpose(first, first + 2)
    assert torch.allclose(tensor, swapped, atol=1e-12) == (name not in ORDERED)


@pytest.mark.parametrize("name", ANY_ARITY)
@pytest.mark.parametrize("label_size", [None, LABEL])
def test_a_shared_form_takes_any_number_of_children_and_ignores_absent_ones(name: str, label_size: int | None) -> None:
    torch.manual_seed(0)
    aggregator = make(name, shared=True, label_size=label_size)
    for arity in (0, 1, 2, 5):
        children, label = inputs(aggregator, arity=arity)
        result = aggregator(children, label)
        if arity and aggregator.multi_affine:
            vectors = [*([] if label is None else [label]), *children.unbind(1)]
            torch.testing.assert_close(result, contract(aggregator.to_dense(arity), vectors), rtol=1e-10, atol=1e-10)
        absent = torch.zeros(NODES, 1, STATE, dtype=torch.float64)
        for place in range(arity + 1):
            longer = torch.cat([children[:, :place], absent, children[:, place:]], dim=1)
            torch.testing.assert_close(aggregator(longer, label), result, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_shared_forms_do_not_see_the_order_of_the_children_except_two(name: str) -> None:
    torch.manual_seed(0)
    aggregator = make(name, shared=True)
    children, _ = inputs(aggregator)
    permuted = aggregator(children[:, [2, 0, 1]])
    assert torch.allclose(aggregator(children), permuted, atol=1e-12) == (name not in ORDERED)


@pytest.mark.parametrize(("name", "shared"), SHARED)
@pytest.mark.parametrize("label_size", [None, 6, 40])
@pytest.mark.parametrize(
    ("arity", "rank", "state_size"), [(1, 1, 3), (2, 1, 20), (3, 2, 8), (5, 3, 6), (5, 5, 5), (2, 20, 20)]
)
def test_balanced_pre_activations_start_with_a_standard_deviation_near_one(
    name: str, shared: bool, label_size: int | None, arity: int, rank: int, state_size: int
) -> None:
    torch.manual_seed(0)
    if state_size % block_of(name):
        pytest.skip("blocks must divide the state")
    if name == "full" and (state_size + 1) ** arity * ((label_size or 0) + 1) > 100_000:
        pytest.skip("a full tensor of this size is out of place in a test")
    aggregator = make(name, state_size=state_size, out_size=30, arity=arity, shared=shared, label_size=label_size)
    if aggregator.rank:
        aggregator = make(
            name, state_size=state_size, out_size=30, arity=arity, shared=shared, label_size=label_size, rank=rank
        )
    # The normalised forms start so that it is one for a single child.
    children, label = inputs(aggregator, arity=1 if aggregator.normalises else arity, nodes=5_000)
    with torch.no_grad():
        pre_activations = aggregator(children, label)
    assert 0.7 < float(pre_activations.std()) < 1.4
    # The rule is exact, but a rank of one cannot have the mean zero, and tiny ranks sample heavy tails.
    if rank > 1:
        assert 0.6 < float(pre_activations.std(0).median()) < 1.3


@pytest.mark.parametrize("name", AGGREGATORS)
def test_balanced_stays_alive_for_many_children(name: str) -> None:
    torch.manual_seed(0)
    if name in ("full", "tucker") or block_of(name) > 1:
        pytest.skip("grows fast with the number of children")
    for shared in (True,) if name == "blockwise" else (False, True):
        aggregator = make(name, arity=50, shared=shared, rank=8 if AGGREGATORS[name].has_rank else None)
        children, _ = inputs(aggregator, arity=50, nodes=20_000)
        if aggregator.normalises:  # for siblings that are alike; independent ones have less, but not nothing
            assert 0.1 < float(aggregator(children).detach().std()) < 2
            children = children[:, :1].expand(-1, 50, -1)
        assert 0.5 < float(aggregator(children).detach().std()) < 2


@pytest.mark.parametrize("name", AGGREGATORS)
def test_kaiming_draws_each_factor_with_variance_two_over_the_terms_it_sums(name: str) -> None:
    torch.manual_seed(0)
    sizes = {
        "state_size": 60 if block_of(name) == 4 else 30,
        "arity": 2,
        "initialisation": "kaiming",
        "rank": 25 if AGGREGATORS[name].has_rank else None,
    }
    aggregator = make(name, **sizes)
    expected = {
        "sum": {"slot_weights": 30},
        "full": {"tensor": 31 * 31},
        "tucker": {"slot_factors": 30, "core.tensor": 26 * 26, "output": 25},
        "canonical": {"slot_factors": 31, "output": 25},
        "complex": {"slot_factors": 31, "output": 50},
        "complex+sum": {"parts.0.slot_factors": 31, "parts.0.output": 50, "parts.1.slot_weights": 30},
        "tensor-train": {"start": 31, "cores": 31 * 25, "output": 25},
        "blockwise": {"coefficients": 4},
        "blockwise-2": {"coefficients": 9},
        "blockwise-4": {"coefficients": 25},
        "hadamard-product": {"factors": 1},
        "mean": {"slot_weights": 30},
        "positional": {"first_weights": 30, "last_weights": 30},
        "max": {"slot_weights": 30},
        "squashed": {"votes": 31, "output": 25},
    }[name]
    for parameter, fan in expected.items():
        std = float(aggregator.get_parameter(parameter).detach().std())
        assert std == pytest.approx((2 / fan) ** 0.5, rel=0.1), parameter


@pytest.mark.parametrize("name", [name for name, form in AGGREGATORS.items() if not form.always_shared])
def test_more_children_than_arity_raise_and_say_what_to_do(name: str) -> None:
    with pytest.raises(
        ShapeError,
        match="expects at most arity=3 children, got 4; raise `arity`, or choose a shared form that",
    ):
        make(name)(torch.zeros(2, ARITY + 1, STATE, dtype=torch.float64))


@pytest.mark.parametrize("name", AGGREGATORS)
def test_wrong_shapes_and_labels_are_refused_in_words(name: str) -> None:
    children = torch.zeros(2, ARITY, STATE, dtype=torch.float64)
    with pytest.raises(
        ShapeError, match=r"expects children of shape \(N, 3, 4\), got \(2, 3, 9\); absent children are zero"
    ):
        make(name)(torch.zeros(2, ARITY, 9))
    with pytest.raises(ShapeError, match=r"expects no label, got \(2, 6\)"):
        make(name)(children, torch.zeros(2, LABEL))
    with pytest.raises(ShapeError, match=r"expects a label of shape \(2, 6\), got none"):
        make(name, label_size=LABEL)(children)
    with pytest.raises(ShapeError, match=r"expects a label of shape \(2, 6\), got \(2, 5\)"):
        make(name, label_size=LABEL)(children, torch.zeros(2, 5))


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("setting", ["arity", "state_size", "out_size", "label_size", "rank"])
@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_sizes_that_cannot_be_are_refused(name: str, setting: str, value: object) -> None:
    if setting == "rank" and not AGGREGATORS[name].has_rank:
        with pytest.raises(ConfigurationError, match="expects no rank, got rank="):
            make(name, rank=value)
        return
    with pytest.raises(ConfigurationError, match=f"expects {setting} to be an integer >= 1, got {value}"):
        make(name, **{setting: value})


@pytest.mark.parametrize("name", ["tucker", "canonical", "tensor-train"])
def test_a_missing_rank_is_asked_for(name: str) -> None:
    with pytest.raises(ConfigurationError, match="expects a rank, got none"):
        AGGREGATORS[name](state_size=3, arity=2)


def test_tensors_beyond_memory_are_refused_before_they_are_made() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"Full expects a tensor of at most 268,435,456 entries, got .* GiB\); choose a smaller",
    ):
        Tucker(state_size=8, arity=20, rank=3)
    for shared in (False, True):
        with pytest.raises(ConfigurationError, match="or a form that is linear in the arity"):
            Full(state_size=20, arity=12, shared=shared)


def test_sizes_may_be_numpy_integers_and_an_empty_level_is_no_problem(aggregator: Aggregator) -> None:
    children, label = inputs(aggregator)
    assert aggregator(children[:0], None if label is None else label[:0]).shape == (0, aggregator.out_size)
    assert make("sum", arity=np.int32(3)).arity == 3


def test_an_unknown_initialisation_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"'balanced', 'kaiming', got 'kaimin' \(nearest known: 'kaiming'\)"):
        make("sum", initialisation="kaimin")


def test_the_description_counts_parameters_and_multiply_adds(aggregator: Aggregator) -> None:
    description = aggregator.describe()
    assert description.parameter_count == sum(parameter.numel() for parameter in aggregator.parameters())
    assert f"{description.parameter_count} parameters, {aggregator.multiply_adds()} multiply-adds" in str(description)


def matrix_product_multiply_adds(aggregator: Aggregator, nodes: int) -> float:
    children, label = inputs(aggregator, arity=aggregator.arity, nodes=nodes)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        aggregator(children, label)
    return counter.get_total_flops() / 2 / nodes


def test_counted_multiply_adds_cover_what_the_matrix_products_do(aggregator: Aggregator) -> None:
    assert matrix_product_multiply_adds(aggregator, 5) <= aggregator.multiply_adds()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("arity", "rank"), [(1, 4), (2, 7), (3, 3), (4, 4), (5, 3), (5, 7), (6, 2)])
def test_the_tucker_core_never_takes_more_than_its_size_in_multiply_adds(arity: int, rank: int, shared: bool) -> None:
    torch.manual_seed(0)
    core = Tucker(state_size=10, arity=arity, rank=rank, shared=shared).double().core
    assert isinstance(core, Full)
    assert matrix_product_multiply_adds(core, 5) < rank * (rank + 1) ** arity


@pytest.mark.parametrize(("arity", "rank"), [(4, 4), (5, 3), (5, 5)])
def test_the_tucker_core_keeps_nothing_of_the_size_of_the_outer_product(arity: int, rank: int) -> None:
    aggregator = Tucker(state_size=10, arity=arity, rank=rank)
    nodes, kept = 11, []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    children = torch.randn(nodes, arity, 10, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        aggregator(children)
    assert max(kept) < max(nodes * (rank + 1) ** arity / 2, aggregator.core.tensor.numel() + 1)


def test_rescaling_multiplies_the_map(aggregator: Aggregator) -> None:
    children, label = inputs(aggregator)
    expected = 0.3 * aggregator(children, label).detach()
    with torch.no_grad():
        aggregator.rescale(0.3)
    torch.testing.assert_close(aggregator(children, label).detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, form in AGGREGATORS.items() if not form.mixes])
def test_forms_that_mix_no_blocks_expect_as_many_outputs_as_inputs(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expects out_size = state_size, got 5 and 4: it does not mix"):
        AGGREGATORS[name](state_size=4, out_size=5, arity=2)
    for shared in (False, True):
        tensor = make(name, shared=shared).to_dense().detach()
        used = [
            index
            for index in itertools.product(range(STATE + 1), repeat=ARITY + 1)
            if index[-1] < STATE and tensor[index]
        ]
        block = block_of(name)
        assert used and all(entry == STATE or entry // block == index[-1] // block for index in used for entry in index)


# Normalised forms

NORMALISED = [name for name, form in AGGREGATORS.items() if form.normalises]


def by_loops(name: str, aggregator: Aggregator, children: Tensor, label: Tensor | None) -> Tensor:
    """Evaluate a normalised form entry by entry with Python's own numbers, from its equation."""
    weights = {each: parameter.tolist() for each, parameter in aggregator.named_parameters()}
    result = []
    for node, states in enumerate(children.tolist()):
        states = [state for state in states if any(entry != 0 for entry in state)]
        row, n = [], len(states)
        for k in range(aggregator.out_size):
            terms = []
            for rank, state in enumerate(states):
                p = rank / (n - 1) if n > 1 else 0.5

                def image(matrix: str, state: list[float] = state, k: int = k) -> float:
                    return float(sum(entry * line[k] for entry, line in zip(state, weights[matrix], strict=True)))

                if name == "positional":
                    terms.append((1 - p) * image("first_weights") + p * image("last_weights"))
                else:
                    terms.append(image("slot_weights"))
            value = weights["bias"][k]
            if label is not None:
                value += sum(
                    x * line[k] for x, line in zip(label[node].tolist(), weights["label_weights"], strict=True)
                )
            if terms:
                value += max(terms) if name == "max" else sum(terms) / n
            row.append(value)
        result.append(row)
    return torch.tensor(result, dtype=torch.float64).view(len(children), aggregator.out_size)


@pytest.mark.parametrize("name", NORMALISED)
@pytest.mark.parametrize("label_size", [None, LABEL])
@pytest.mark.parametrize("arity", [0, 1, 2, 3, 8])
def test_normalised_forms_are_their_equation_over_the_children_that_are_present(
    name: str, label_size: int | None, arity: int
) -> None:
    torch.manual_seed(0)
    aggregator = make(name, label_size=label_size)
    with torch.no_grad():
        aggregator.get_parameter("bias").normal_()
    children, label = inputs(aggregator, arity=arity, nodes=20)
    children *= torch.rand(20, arity, 1) < 0.6  # any number is absent, in any place
    if arity:
        children[0, 0, 1:] = 0  # one entry that is not zero is enough
    expected = by_loops(name, aggregator, children, label)
    torch.testing.assert_close(aggregator(children, label).detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NORMALISED)
def test_normalised_forms_are_shared_whatever_is_asked_for(name: str) -> None:
    for shared in (False, True):
        aggregator = make(name, shared=shared)
        assert aggregator.shared and aggregator.takes_any_number and "shared=True" in repr(aggregator)


@pytest.mark.parametrize("name", NORMALISED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_million_children_leave_values_and_gradients_bounded(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    aggregator = make(name, state_size=2, out_size=3).to(dtype)
    one = torch.randn(1, 1, 2, dtype=dtype)
    children = one.repeat(1, 1_000_000, 1).requires_grad_()
    found = aggregator(children)
    error = 0.02 if dtype == torch.float32 else 1e-9  # of a sum of a million numbers
    torch.testing.assert_close(found, aggregator(one), rtol=error, atol=error)
    found.sum().backward()
    assert isinstance(aggregator, Normalised)
    matrices = [aggregator.get_parameter(matrix).detach() for matrix in aggregator.matrices]
    assert children.grad is not None
    expected = torch.stack(matrices).mean(0).sum(1)  # that of one child
    torch.testing.assert_close(children.grad.double().sum(1)[0], expected.double(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["max", "squashed"])
def test_a_form_that_is_not_multi_affine_has_no_tensor_and_says_so(name: str) -> None:
    message = (
        f"{name.capitalize()} has no dense tensor, because it is not multi-affine; choose another form, such as mean"
    )
    aggregator, tensor = make(name), torch.zeros(4, 4, 2)
    rank = RANK if AGGREGATORS[name].has_rank else None
    refusals = (
        aggregator.to_dense,
        lambda: aggregator.to_dense(5),
        lambda: AGGREGATORS[name].from_dense(tensor, rank),
    )
    for refused in refusals:
        with pytest.raises(ConfigurationError, match=message):
            refused()


def test_all_other_forms_are_multi_affine() -> None:
    assert [name for name in AGGREGATORS if name not in MULTI_AFFINE] == ["max", "squashed"]


def test_each_entry_of_the_maximum_gives_its_gradient_to_one_child() -> None:
    aggregator = Max(state_size=2, arity=3).double()
    with torch.no_grad():
        aggregator.slot_weights.copy_(torch.eye(2))
    children = torch.tensor([[[1.0, -5.0], [0.0, 0.0], [1.0, -3.0]]], dtype=torch.float64, requires_grad=True)
    found = aggregator(children)
    assert found.tolist() == [[1.0, -3.0]]  # the absent child's zero is no candidate
    found.sum().backward()
    assert children.grad is not None and children.grad.tolist() == [[[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]]
