import itertools

import pytest
import torch

from treefold.errors import ConfigurationError, ShapeError
from treefold.nn.aggregators import AGGREGATORS, Canonical, Full, Sum, TensorTrain, Tucker
from treefold.nn.math.decompositions import canonical_als, tensor_train_svd, unfold

MULTI_AFFINE = [name for name, form in AGGREGATORS.items() if form.multi_affine]


def random_tensor(arity: int, state: int, out: int, label: int | None = None) -> torch.Tensor:
    torch.manual_seed(0)
    modes = [*([] if label is None else [label + 1]), *[state + 1] * arity]
    return torch.randn(*modes, out, dtype=torch.float64)


def symmetric(tensor: torch.Tensor, first: int) -> torch.Tensor:
    slots = range(first, tensor.dim() - 1)
    orders = itertools.permutations(slots)
    return torch.stack([tensor.permute(*range(first), *order, tensor.dim() - 1) for order in orders]).mean(0)


def test_sum_to_dense_is_the_paper_s_tensor_and_zero_where_it_says_zero() -> None:
    torch.manual_seed(0)
    m, c, L, k = 2, 3, 2, 4
    aggregator = Sum(state_size=c, out_size=k, arity=L, label_size=m).double()
    torch.nn.init.normal_(aggregator.bias)
    T = aggregator.to_dense().detach()
    W, U, b = aggregator.label_weights, aggregator.slot_weights, aggregator.bias
    assert W is not None
    for i, j1, j2 in itertools.product(range(m + 1), range(c + 1), range(c + 1)):
        inputs_multiplied = (i < m) + (j1 < c) + (j2 < c)
        if inputs_multiplied > 1:
            expected = torch.zeros(k, dtype=torch.float64)
        elif i < m:
            expected = W[i]
        elif j1 < c:
            expected = U[0, j1]
        elif j2 < c:
            expected = U[1, j2]
        else:
            expected = b
        assert torch.equal(T[i, j1, j2], expected), (i, j1, j2)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("label", [None, 5])
def test_a_full_tensor_made_from_a_sum_computes_the_same_function(shared: bool, label: int | None) -> None:
    torch.manual_seed(0)
    original = Sum(state_size=3, out_size=4, arity=3, label_size=label, shared=shared).double()
    full = Full.from_dense(original.to_dense(), label_size=label, shared=shared)
    children = torch.randn(6, 3, 3, dtype=torch.float64)
    x = None if label is None else torch.randn(6, label, dtype=torch.float64)
    torch.testing.assert_close(full(children, x), original(children, x), rtol=1e-10, atol=1e-10)
    again = Sum.from_dense(full.to_dense(), label_size=label, shared=shared)
    torch.testing.assert_close(again(children, x), original(children, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("label", [None, 2])
@pytest.mark.parametrize(("arity", "state", "out"), [(1, 4, 3), (2, 4, 5), (3, 3, 3), (4, 2, 3)])
def test_tucker_of_full_rank_reproduces_the_tensor(arity: int, state: int, out: int, label: int | None) -> None:
    tensor = random_tensor(arity, state, out, label)
    result = Tucker.from_dense(tensor, rank=max(state, out), label_size=label)
    torch.testing.assert_close(result.to_dense(), tensor, rtol=1e-10, atol=1e-10)
    tensor = symmetric(tensor, 0 if label is None else 1)
    result = Tucker.from_dense(tensor, rank=max(state, out), label_size=label, shared=True)
    torch.testing.assert_close(result.to_dense(), tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("label", [None, 6])
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_the_truncated_error_never_exceeds_the_bound_of_the_hosvd(rank: int, label: int | None, shared: bool) -> None:
    tensor = random_tensor(3, 5, 4, label)
    if shared:
        tensor = symmetric(tensor, 0 if label is None else 1)
    dense = Tucker.from_dense(tensor, rank=rank, label_size=label, shared=shared).to_dense().detach()
    error = (dense - tensor).norm()
    dropped = []
    for mode in range(tensor.dim()):
        part = tensor if mode == tensor.dim() - 1 else tensor.narrow(mode, 0, tensor.shape[mode] - 1)
        dropped.append(torch.linalg.svdvals(unfold(part, mode))[rank:].square().sum())
    bound = torch.stack(dropped).sum().sqrt()
    assert 0 < float(error) <= float(bound) * (1 + 1e-12)


def test_tucker_keeps_the_homogeneous_coordinate_of_every_mode() -> None:
    tensor = random_tensor(2, 5, 1)
    result = Tucker.from_dense(tensor, rank=1).to_dense()
    torch.testing.assert_close(result[-1, -1], tensor[-1, -1])


@pytest.mark.parametrize("label", [None, 4])
def test_canonical_recovers_a_tensor_of_known_rank(label: int | None) -> None:
    torch.manual_seed(1)
    original = Canonical(state_size=3, out_size=5, arity=2, rank=2, label_size=label).double()
    torch.nn.init.normal_(original.slot_factors)
    result = Canonical.from_dense(original.to_dense(), rank=2, label_size=label)
    torch.testing.assert_close(result.to_dense(), original.to_dense(), rtol=1e-5, atol=1e-5)


def test_shared_forms_take_the_mean_over_the_slots() -> None:
    tensor = random_tensor(2, 3, 4)
    means = symmetric(tensor, 0)
    torch.testing.assert_close(Full.from_dense(tensor, shared=True).to_dense(), means)
    torch.testing.assert_close(Tucker.from_dense(tensor, rank=4, shared=True).to_dense(), means, rtol=1e-9, atol=1e-9)
    shared = Sum.from_dense(tensor, shared=True)
    torch.testing.assert_close(shared.slot_weights.detach(), (tensor[:3, -1] + tensor[-1, :3]) / 2)


def test_of_several_starts_the_best_is_kept() -> None:
    tensor = random_tensor(2, 4, 4)

    def error(restarts: int, seed: int) -> float:
        factors = canonical_als(tensor, 4, iterations=30, restarts=restarts, seed=seed)
        return float((torch.einsum("ar,br,kr->abk", *factors) - tensor).norm())

    gains = [error(1, seed) - error(4, seed) for seed in range(6)]
    assert min(gains) >= 0 and max(gains) > 0.01


@pytest.mark.parametrize("form", [Canonical, TensorTrain])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_tied_fits_depend_neither_on_scale_nor_on_precision(form: type, scale: float) -> None:
    torch.manual_seed(7)
    original = form(state_size=4, arity=3, rank=3, out_size=4, shared=True)
    for parameter in original.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    target = (original.to_dense() * scale).detach()
    result = form.from_dense(target, 3, shared=True).to_dense().detach()  # type: ignore[attr-defined]
    assert float((result - target).norm() / target.norm()) < 1e-2
    assert result.dtype == torch.float32


def test_the_canonical_error_does_not_grow_with_more_sweeps_and_shrinks_with_rank() -> None:
    tensor = random_tensor(2, 3, 3)

    def error(rank: int, iterations: int) -> float:
        factors = canonical_als(tensor, rank, iterations=iterations, tolerance=-1.0, restarts=1)
        return float((torch.einsum("ar,br,kr->abk", *factors) - tensor).norm())

    errors = [error(3, iterations) for iterations in (1, 2, 5, 20, 100)]
    assert errors == sorted(errors, reverse=True)
    assert error(1, 100) > error(3, 100) > error(6, 100)


@pytest.mark.parametrize("label", [None, 3])
@pytest.mark.parametrize("arity", [1, 2, 3])
def test_a_tensor_train_of_full_rank_reproduces_the_tensor(arity: int, label: int | None) -> None:
    tensor = random_tensor(arity, 2, 4, label)
    result = TensorTrain.from_dense(tensor, rank=40, label_size=label)
    torch.testing.assert_close(result.to_dense(), tensor, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_tensor_train_error_never_exceeds_its_bound(rank: int) -> None:
    tensor = random_tensor(3, 3, 5)
    error = (TensorTrain.from_dense(tensor, rank=rank).to_dense().detach() - tensor).norm()
    sizes = [4, 16, 64]
    dropped = [torch.linalg.svdvals(tensor.reshape(size, -1))[rank:].square().sum() for size in sizes]
    assert 0 < float(error) <= float(torch.stack(dropped).sum().sqrt()) * (1 + 1e-12)
    assert all(core.shape[0] <= rank and core.shape[2] <= max(rank, 1) for core in tensor_train_svd(tensor, rank))


@pytest.mark.parametrize("form", [Canonical, TensorTrain])
@pytest.mark.parametrize("label", [None, 2])
def test_tied_forms_are_fitted_to_a_tensor_that_they_can_hold(form: type, label: int | None) -> None:
    torch.manual_seed(0)
    original = form(state_size=2, out_size=3, arity=2, rank=2, label_size=label, shared=True).double()
    torch.manual_seed(5)
    result = form.from_dense(original.to_dense().detach(), rank=2, label_size=label, shared=True)  # type: ignore[attr-defined]
    with torch.no_grad():
        error = (result.to_dense() - original.to_dense()).norm() / original.to_dense().norm()
    assert float(error) < 1e-3


@pytest.mark.parametrize("name", MULTI_AFFINE)
def test_from_dense_keeps_precision_sizes_and_gradients(name: str) -> None:
    for dtype in (torch.float32, torch.float64):
        out_size = 4 if AGGREGATORS[name].mixes else 3
        tensor = random_tensor(2, 3, out_size).to(dtype)
        result = AGGREGATORS[name].from_dense(tensor, 2 if AGGREGATORS[name].has_rank else None)
        assert result.to_dense().dtype == dtype and result.to_dense().shape == tensor.shape
        assert all(parameter.requires_grad and parameter.grad is None for parameter in result.parameters())


@pytest.mark.parametrize("name", MULTI_AFFINE)
@pytest.mark.parametrize("shared", [False, True])
def test_from_dense_leaves_the_tensor_s_own_graph_alone(name: str, shared: bool) -> None:
    torch.manual_seed(0)
    source = Full(state_size=3, arity=2)
    AGGREGATORS[name].from_dense(source.to_dense(), 2 if AGGREGATORS[name].has_rank else None, shared=shared)
    assert source.tensor.grad is None
    for bad in (torch.full((3, 3, 2), float("nan")), torch.zeros(3, 3, 2, dtype=torch.int64)):
        with pytest.raises(ShapeError, match="from_dense expects a tensor of finite floating-point numbers"):
            AGGREGATORS[name].from_dense(bad, 2 if AGGREGATORS[name].has_rank else None)


@pytest.mark.parametrize("name", MULTI_AFFINE)
def test_tensors_that_are_no_multi_affine_map_are_refused(name: str) -> None:
    form, rank = AGGREGATORS[name], 2 if AGGREGATORS[name].has_rank else None
    with pytest.raises(
        ShapeError, match=r"expects the shape \(C\+1, …, C\+1, K\) with a mode for each child, got \(3, 4, 2\)"
    ):
        form.from_dense(torch.zeros(3, 4, 2), rank)
    with pytest.raises(ShapeError, match=r"label_size=5 expects a first mode of 6 entries, got the shape \(3, 3, 2\)"):
        form.from_dense(torch.zeros(3, 3, 2), rank, label_size=5)
    with pytest.raises(ShapeError, match="with a mode for each child"):
        form.from_dense(torch.zeros(4), rank)
    if rank:
        with pytest.raises(ConfigurationError, match="expects a rank, got none"):
            form.from_dense(torch.zeros(3, 3, 2))


def test_a_rank_above_all_sizes_is_refused_for_tucker() -> None:
    with pytest.raises(
        ConfigurationError, match="expects a rank of at most 4, the greatest of state, output and label size, got 5"
    ):
        Tucker(state_size=4, arity=2, rank=5)
    assert Tucker(state_size=4, arity=2, rank=5, label_size=6).rank == 5


@pytest.mark.parametrize("label", [None, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["blockwise", "hadamard-product"])
def test_element_wise_forms_are_found_in_their_own_tensor_and_drop_what_mixes_coordinates(
    name: str, shared: bool, label: int | None
) -> None:
    torch.manual_seed(0)
    original = AGGREGATORS[name](state_size=4, arity=3, label_size=label, shared=shared).double()
    for parameter in original.parameters():
        torch.nn.init.normal_(parameter)
    tensor = original.to_dense().detach()
    result = AGGREGATORS[name].from_dense(tensor, label_size=label, shared=shared)
    torch.testing.assert_close(result.to_dense(), tensor, rtol=1e-4, atol=1e-4)
    mixed = tensor.clone()
    mixed[(0, 1) if label is None else (-1, 0, 1)] += (
        1  # entries of two different coordinates of the first two children
    )
    again = AGGREGATORS[name].from_dense(mixed, label_size=label, shared=shared)
    torch.testing.assert_close(again.to_dense(), tensor, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("label", [None, 2])
@pytest.mark.parametrize("arity", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["mean", "positional"])
def test_normalised_forms_are_found_in_their_own_tensor_and_nearest_in_others(
    name: str, arity: int, label: int | None
) -> None:
    torch.manual_seed(0)
    original = AGGREGATORS[name](state_size=2, out_size=4, arity=arity, label_size=label).double()
    torch.nn.init.normal_(original.get_parameter("bias"))
    again = AGGREGATORS[name].from_dense(original.to_dense(), label_size=label)
    torch.testing.assert_close(again.to_dense(), original.to_dense(), rtol=1e-10, atol=1e-10)
    if name == "mean" or arity > 1:
        torch.testing.assert_close(again.to_dense(4), original.to_dense(4), rtol=1e-10, atol=1e-10)
    tensor = random_tensor(arity, 2, 4, label)
    found = AGGREGATORS[name].from_dense(tensor, label_size=label)
    torch.autograd.backward((found.to_dense() - tensor).square().sum())
    for each in found.parameters():  # the squared distance is convex: it is least where its gradient is zero
        assert each.grad is not None and float(each.grad.norm()) < 1e-10
