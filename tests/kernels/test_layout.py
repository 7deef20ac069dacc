"""The places of parameters in one flat array, and the tables that say so."""

import itertools
import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from treefold import PerLabel, TreeRNN
from treefold.errors import ConfigurationError
from treefold.kernels.layout import FlatLayout, collect, in_rows, multiset_tables, records
from treefold.kernels.records import SLOT
from treefold.nn.aggregators import AGGREGATORS
from treefold.nn.cells import CELLS as CELL_KINDS
from treefold.nn.cells import Cell
from treefold.nn.cells.base import layout_of
from treefold.nn.flat import FlatParameters

FORMS = list(itertools.product(CELL_KINDS, AGGREGATORS, [False, True]))


def listops_like(kind: str, aggregator: str, *, shared: bool) -> PerLabel:
    rank = 2 if AGGREGATORS[aggregator].has_rank else None
    make, make_leaf = (cast(Any, each) for each in CELL_KINDS[kind])
    cells = {
        name: make(aggregator, state_size=3, arity=arity, rank=rank, shared=shared)
        for name, arity in (("f", 3), ("g", 2))
    }
    return PerLabel(cells, leaf=make_leaf(label_size=2, state_size=3))


def with_label(kind: str, aggregator: str, *, shared: bool) -> Cell:
    rank = 2 if AGGREGATORS[aggregator].has_rank else None
    make: Any = CELL_KINDS[kind][0]
    cell: Cell = make(aggregator, state_size=3, arity=4, rank=rank, shared=shared, label_size=5)
    return cell


@pytest.mark.parametrize(("kind", "aggregator", "shared"), FORMS)
@pytest.mark.parametrize("make", [listops_like, with_label])
def test_packing_and_unpacking_give_each_parameter_back(make: Any, kind: str, aggregator: str, shared: bool) -> None:
    cell = make(kind, aggregator, shared=shared)
    layout = layout_of(cell)
    assert {id(parameter) for parameter in layout.parameters} == {id(parameter) for parameter in cell.parameters()}
    flat = torch.from_numpy(layout.pack([parameter.detach() for parameter in layout.parameters]))
    for parameter, found in zip(layout.parameters, layout.gradients(flat), strict=True):
        assert torch.equal(parameter, found)
    numbers = [torch.full_like(parameter, index + 1.0) for index, parameter in enumerate(layout.parameters)]
    packed = layout.pack(numbers)
    for index, number in enumerate(numbers):  # no two parameters have a place in common
        assert int((packed == index + 1).sum()) >= number.numel()
    ones = sum(count for _, count in layout.ones)
    assert int((layout.empty(np.dtype(np.float64)) == 1).sum()) == ones
    assert ones == 0 or (shared and aggregator in ("canonical", "complex"))


@pytest.mark.parametrize(("kind", "aggregator", "shared"), FORMS)
def test_flat_parameters_are_what_would_be_packed(kind: str, aggregator: str, shared: bool) -> None:
    cell = listops_like(kind, aggregator, shared=shared)
    layout = layout_of(cell)
    packed = layout.pack([parameter.detach() for parameter in layout.parameters])
    flat = FlatParameters(cell, [layout])
    place = flat.place_of(layout)
    if aggregator == "tensor-train" and not shared and kind != "rnn":
        assert layout.is_split and place is None  # the weights of the children's gates are in two places
        return
    assert not layout.is_split and place is not None
    assert np.array_equal(flat.values.detach().numpy()[place], packed)
    for parameter, gradient in zip(layout.parameters, layout.gradients(flat.gradient[place]), strict=True):
        assert parameter.grad is not None and gradient.data_ptr() == parameter.grad.data_ptr()  # views, no copies
    flat.gradient.fill_(3)
    flat.clear_constant_gradients()
    flat.values.data.mul_(0.5)
    flat.restore_constants()
    for parameter in cell.parameters():
        assert parameter.grad is not None and bool((parameter.grad == 3).all())
    assert int((flat.gradient == 3).sum()) == sum(parameter.numel() for parameter in cell.parameters())
    constant = (flat.gradient == 0).numpy()
    assert np.array_equal(flat.values.detach().numpy()[constant], packed[constant[: len(packed)]])


def test_parameters_that_are_not_contiguous_are_packed_as_they_look() -> None:
    layer = nn.Linear(3, 2)
    layout = FlatLayout()
    layout.add(layer, "weight", layout.take(8), (1, 2))
    layout.add(layer, "bias", 6)
    turned = torch.arange(6.0).view(3, 2).t()
    assert layout.pack([turned, torch.tensor([7.0, 8.0])]).tolist() == [0, 1, 2, 3, 4, 5, 7, 8]


def test_parameters_of_two_types_are_refused() -> None:
    layout = layout_of(TreeRNN("sum", state_size=2, arity=2))
    first, *others = [parameter.detach() for parameter in layout.parameters]
    with pytest.raises(ConfigurationError, match=r"kernels expect parameters of one type, got torch\.float"):
        layout.pack([first.double(), *others])


def test_a_layout_tells_whether_its_parameters_still_have_their_shapes() -> None:
    layer, layout = nn.Linear(3, 2), FlatLayout()
    layout.add(layer, "weight", layout.take(6))
    assert layout.fits
    layer.weight = nn.Parameter(torch.zeros(2, 3))
    assert layout.fits and layout.parameters[0] is layer.weight
    layer.weight = nn.Parameter(torch.zeros(3, 3))
    assert not layout.fits


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 5))
def test_copies_in_rows_are_the_copies_one_by_one(gaps: list[int], count: int, start: int) -> None:
    sources = [np.arange(100.0, 200.0), np.arange(200.0, 300.0)]
    runs: list[list[int]] = []
    place, target = start, 0
    for gap in gaps:  # pieces of the sources, one after the other, with gaps between their targets
        runs.append([len(runs) % 2 if gap == 3 else 0, place, target, count])
        place, target = place + count, target + count + gap
    expected = np.zeros(target + 8)
    for which, begin, to, length in runs:
        expected[to : to + length] = sources[which][begin : begin + length]
    found, joined = np.zeros_like(expected), in_rows(runs)
    collect(np.array([source.ctypes.data for source in sources]), joined, found)
    np.testing.assert_array_equal(found, expected)
    assert len(joined) <= len(runs)


def test_runs_at_equal_distances_are_one_copy() -> None:
    assert in_rows([[0, 2 * row, 5 * row, 2] for row in range(9)]).tolist() == [[0, 0, 0, 2, 9, 5]]
    assert in_rows([]).shape == (0, 6)


def products(vectors: npt.NDArray[Any], multiset: tuple[int, ...]) -> float:
    """Return the sum over all distinct orders of a multiset of the product of the vectors' entries."""
    orders = set(itertools.permutations(multiset))
    return sum(math.prod(float(vectors[k, place]) for k, place in enumerate(order)) for order in orders)


@pytest.mark.parametrize(("rank", "arity"), [(1, 1), (1, 4), (2, 3), (3, 2), (4, 4)])
def test_multisets_give_the_symmetric_products_and_their_padding(rank: int, arity: int) -> None:
    orders, terms, padded = multiset_tables(rank, arity)
    vectors = np.random.default_rng(0).normal(size=(arity, rank + 1))
    vectors[:, -1] = 1
    features = np.ones(1)
    listed = [list(itertools.combinations_with_replacement(range(rank + 1), k)) for k in range(arity + 1)]
    for k in range(arity + 1):
        order = orders[k]
        assert order["multisets"] == len(listed[k]) == math.comb(rank + k, k)
        if k:
            following = np.zeros(len(listed[k]))
            for multiset, rest, coordinate in terms[order["first_term"] : order["last_term"]]:
                following[multiset] += features[rest] * vectors[k - 1, coordinate]
            features = following
        np.testing.assert_allclose(features, [products(vectors[:k], each) for each in listed[k]], rtol=1e-12)
        rows = padded[order["first_row"] : order["first_row"] + len(listed[k])]
        assert [listed[arity][row] for row in rows] == [(*each, *[rank] * (arity - k)) for each in listed[k]]


def test_tables_of_two_operators_refer_to_their_own_multisets() -> None:
    layout = layout_of(listops_like("rnn", "tucker", shared=True))
    tables = layout.tables(np.dtype(np.float32), training=False)
    for operator, arity in zip(tables.operators, (3, 2), strict=False):
        orders, terms, padded = multiset_tables(2, arity)
        own = tables.orders[operator["first_order"] : operator["first_order"] + arity + 1]
        assert own["multisets"].tolist() == orders["multisets"].tolist()
        for mine, plain in zip(own, orders, strict=True):
            found = tables.terms[mine["first_term"] : mine["last_term"]]
            assert np.array_equal(found, terms[plain["first_term"] : plain["last_term"]])
            count = plain["multisets"]
            rows = tables.padded[mine["first_row"] : mine["first_row"] + count]
            assert np.array_equal(rows, padded[plain["first_row"] : plain["first_row"] + count])


def test_tables_are_made_once_for_a_type_and_have_backward_addresses_for_training_only() -> None:
    layout = layout_of(TreeRNN("sum", state_size=2, arity=2))
    kind = np.dtype(np.float32)
    forward, training = (layout.tables(kind, training=each) for each in (False, True))
    assert layout.tables(kind, training=False) is forward and layout.tables(kind, training=True) is training
    assert forward.operators["forward"].all() and not forward.operators["backward"].any()
    assert training.operators["backward"].all() and training.cells["backward"].all()
    assert not forward.operators["prepare"].any()  # a sum has nothing to prepare


def test_records_have_their_fields_by_name_and_zero_for_the_others() -> None:
    table = records([{"start": 3, "gate_start": -1}, {"width": 2}], SLOT)
    assert table.tolist() == [(3, 0, 0, 0, -1), (0, 2, 0, 0, 0)]


def test_the_flat_values_are_kept_until_any_entry_of_any_parameter_changes() -> None:
    cell = listops_like("lstm", "tucker", shared=False)
    layout = layout_of(cell)
    before = layout.values()
    assert np.array_equal(before, layout.pack([parameter.detach() for parameter in layout.parameters]))
    assert layout.values() is before
    for parameter in cell.parameters():
        for entry in {0, parameter.numel() // 2, parameter.numel() - 1}:
            flat = parameter.data.view(-1)  # past the version counter
            old, flat[entry] = float(flat[entry]), float(flat[entry]) + 0.5
            changed = layout.values()
            assert changed is not before and int((changed != before).sum()) == 1
            flat[entry] = old
            before = layout.values()
    cell.double()
    assert layout.values().dtype == np.float64
