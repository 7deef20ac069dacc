"""How weights start, by exact moments of the dense tensor: with standard inputs, all products of entries are orthonormal."""

import itertools

import pytest
import torch

from treefold import LeafLSTM, LeafRNN, OneHot, PerLabel, TreeEncoder, TreeLSTM, TreeRNN
from treefold.nn.aggregators import AGGREGATORS, Aggregator, Canonical, Positional, Sum, TensorTrain, Tucker


def moments(aggregator: Aggregator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the second moment of each output, for one child if the form normalises."""
    tensor = aggregator.to_dense(1) if aggregator.normalises else aggregator.to_dense()
    flat = tensor.detach().reshape(-1, aggregator.out_size)
    return flat[-1], flat.square().sum(0)


MULTI_AFFINE = [name for name, form in AGGREGATORS.items() if form.multi_affine]


@pytest.mark.parametrize(
    ("name", "shared", "label_size", "arity"),
    list(itertools.product(MULTI_AFFINE, [False, True], [None, 6], [1, 2, 4])),
)
def test_balanced_outputs_have_mean_zero_and_variance_one_exactly(
    name: str, shared: bool, label_size: int | None, arity: int
) -> None:
    torch.manual_seed(0)
    rank = 3 if AGGREGATORS[name].has_rank else None
    aggregator = AGGREGATORS[name](
        state_size=4,
        out_size=5 if AGGREGATORS[name].mixes else 4,
        arity=arity,
        rank=rank,
        label_size=label_size,
        shared=shared,
    ).double()
    aggregator.reset_parameters()  # in double precision
    mean, moment = moments(aggregator)
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-10, rtol=0)
    torch.testing.assert_close(moment, torch.ones_like(moment), atol=1e-9, rtol=0)


@pytest.mark.parametrize("label_size", [None, 6])
@pytest.mark.parametrize("arity", [1, 79])
def test_the_maximum_starts_like_the_mean_which_it_is_for_one_child(label_size: int | None, arity: int) -> None:
    found = []
    for name in ("max", "mean"):
        torch.manual_seed(0)
        found.append(AGGREGATORS[name](state_size=4, arity=arity, label_size=label_size).state_dict())
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())


def test_two_independent_children_and_any_like_ones_give_the_positional_mean_a_variance_of_one() -> None:
    torch.manual_seed(0)
    form = Positional(state_size=400, out_size=50, arity=79).double()
    variances = form.to_dense(2).detach()[-1, :-1].square().sum(0) + form.to_dense(2).detach()[:-1, -1].square().sum(0)
    assert float(variances.mean()) == pytest.approx(1, abs=0.1)
    alike = torch.randn(500, 1, 400, dtype=torch.float64).expand(-1, 9, -1)
    assert float(form(alike).detach().var()) == pytest.approx(1, abs=0.1)


def test_orders_of_interaction_have_comparable_shares() -> None:
    """Every slot has weight 1/n for its state: the shares of the orders are those of the binomial (1 + 1/n)^n, without 1."""
    torch.manual_seed(0)
    tensor = AGGREGATORS["full"](state_size=9, arity=3, out_size=200).double().to_dense().detach().square().mean(-1)
    state = torch.zeros(10)
    state[:9] = 1
    order = state[:, None, None] + state[None, :, None] + state[None, None]
    shares = torch.stack([tensor[order == degree].sum() for degree in range(4)])
    expected = torch.tensor([0.0, 3 / 3, 3 / 9, 1 / 27], dtype=torch.float64)
    torch.testing.assert_close(shares, expected / expected.sum(), rtol=0.1, atol=0.01)


def test_a_cell_reset_is_as_balanced_as_a_new_one() -> None:
    cell = TreeRNN("tucker", state_size=20, arity=2, rank=2).double()
    cell.reset_parameters()
    torch.testing.assert_close(moments(cell.transition)[1], torch.ones(20, dtype=torch.float64), atol=1e-9, rtol=0)
    per_label = PerLabel({"f": cell}, leaf=LeafRNN(label_size=3, state_size=20).double())
    before = [parameter.clone() for parameter in per_label.parameters() if parameter.dim() > 1]
    per_label.reset_parameters()
    after = [parameter for parameter in per_label.parameters() if parameter.dim() > 1]
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_kaiming_leaves_separate_biases_at_zero_and_forget_gates_closed_half_way() -> None:
    lstm = TreeLSTM("sum", state_size=50, arity=2, label_size=40, initialisation="kaiming")
    assert isinstance(lstm.input_gate, Sum) and lstm.input_gate.label_weights is not None
    assert not lstm.input_gate.bias.any() and not lstm.forget_gates.slot_biases.any()
    assert float(lstm.input_gate.label_weights.detach().std()) == pytest.approx((2 / 40) ** 0.5, rel=0.1)
    assert bool((TreeLSTM("sum", state_size=5, arity=2).forget_gates.slot_biases == 1).all())
    tucker = Tucker(state_size=50, arity=1, rank=40, label_size=45, initialisation="kaiming")
    assert tucker.label_factor is not None
    assert float(tucker.label_factor.detach().std()) == pytest.approx((2 / 45) ** 0.5, rel=0.1)
    train = TensorTrain(state_size=3, arity=2, rank=4000, shared=True, initialisation="kaiming", out_size=1)
    assert float(train.start.detach().std()) == pytest.approx(2**0.5, rel=0.1)


@pytest.mark.parametrize(("initialisation", "variance"), [("balanced", 1 / 40), ("kaiming", 2 / 40)])
def test_leaves_start_by_the_size_of_their_label(initialisation: str, variance: float) -> None:
    for leaf in (
        LeafRNN(label_size=40, state_size=60, initialisation=initialisation),  # type: ignore[arg-type]
        LeafLSTM(label_size=40, state_size=60, initialisation=initialisation),  # type: ignore[arg-type]
    ):
        assert float(leaf.affine.weights.detach().var()) == pytest.approx(variance, rel=0.1)
        assert not leaf.affine.bias.any()


def test_balanced_canonical_factors_start_near_one_whatever_the_number_of_slots() -> None:
    torch.manual_seed(0)
    factors = Canonical(state_size=30, arity=7, rank=50).slot_factors.detach()
    assert bool((factors[:, -1] == 1).all())
    assert float(factors[:, :-1].var()) == pytest.approx(1 / (7 * 30), rel=0.1)


def test_the_down_cell_of_an_encoder_of_both_directions_is_balanced_too() -> None:
    cell = TreeRNN("tucker", state_size=8, arity=2, rank=2, label_size=4)
    encoder = TreeEncoder(cell, OneHot("abcd"), direction="both")
    down = encoder.cells["down"]
    assert isinstance(down, TreeRNN)
    torch.testing.assert_close(moments(down.transition)[1], torch.ones(8), atol=1e-4, rtol=0)
