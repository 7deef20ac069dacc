import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from treefold.nn.math.functional import contract, multi_affine, multi_affine_cost
from treefold.nn.math.symmetric import SymmetricIndex


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 3))
def test_the_arranged_contraction_equals_the_sum_over_all_entries(sizes: list[int], out: int, nodes: int) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(*[size + 1 for size in sizes], out, dtype=torch.float64)
    vectors = [torch.randn(nodes, size, dtype=torch.float64) for size in sizes]
    expected = torch.zeros(nodes, out, dtype=torch.float64)
    for node in range(nodes):
        homogeneous = [[*vector[node].tolist(), 1.0] for vector in vectors]
        for entry in itertools.product(*(range(size + 1) for size in sizes)):
            expected[node] += tensor[entry] * math.prod(
                row[index] for row, index in zip(homogeneous, entry, strict=True)
            )
    torch.testing.assert_close(contract(tensor, vectors), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(multi_affine(tensor, vectors), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sizes", [[5], [5, 5], [2, 7, 3], [3, 3, 3, 3, 3], [10, 3, 3, 3, 3, 3]])
def test_the_counted_cost_is_that_of_the_matrix_products_and_the_outer_products(sizes: list[int]) -> None:
    out, nodes = 4, 6
    tensor = torch.randn(*[size + 1 for size in sizes], out)
    counter = FlopCounterMode(display=False)
    with counter:
        multi_affine(tensor, [torch.randn(nodes, size) for size in sizes])
    products = counter.get_total_flops() / 2 / nodes
    assert products < tensor.numel()  # never more than one multiply-add for each entry
    entries = tensor.numel() // out
    assert products == out * (entries - 1)
    assert products <= multi_affine_cost(sizes, out) <= products + 2 * math.sqrt(entries * (max(sizes) + 1))


@pytest.mark.parametrize(("size", "order"), [(1, 1), (3, 1), (2, 2), (3, 3), (2, 5)])
def test_multisets_their_arrangements_and_the_dense_places_agree(size: int, order: int) -> None:
    index = SymmetricIndex(size=size, order=order)
    entries = list(itertools.product(range(size + 1), repeat=order))
    distinct = sorted({tuple(sorted(entry)) for entry in entries})
    assert [tuple(row) for row in index.multisets.tolist()] == distinct
    assert len(index) == math.comb(size + order, order)
    assert index.arrangements.tolist() == [sum(tuple(sorted(e)) == alpha for e in entries) for alpha in distinct]
    assert index.places.tolist() == [distinct.index(tuple(sorted(entry))) for entry in entries]


def test_packing_averages_over_all_permutations_of_the_slots() -> None:
    torch.manual_seed(0)
    dense = torch.randn(3, 3, 3, 2, dtype=torch.float64)
    mean = torch.stack([dense.permute(*order, 3) for order in itertools.permutations(range(3))]).mean(0)
    index = SymmetricIndex(size=2, order=3)
    torch.testing.assert_close(index.expand(index.pack(dense)), mean)
