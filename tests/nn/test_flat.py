import pytest
import torch
from torch import nn

from treefold.kernels.layout import FlatLayout
from treefold.nn.cells import TreeLSTM
from treefold.nn.flat import FlatParameters


def layout_with(layer: nn.Linear) -> FlatLayout:
    """Return the layout 1 w00 w10 w20 w01 w11 w21 0 b0 b1 b2 of a layer: the weight (3, 2) transposed between two constants."""
    layout = FlatLayout()
    layout.ones.append((layout.take(11), 1))
    layout.add(layer, "weight", 1, (1, 3))
    layout.add(layer, "bias", 8)
    return layout


def test_a_layout_decides_where_parameters_are_and_the_others_follow() -> None:
    torch.manual_seed(0)
    first = nn.Linear(2, 3)
    model = nn.Sequential(first, nn.Linear(3, 1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    layout, other = layout_with(first), FlatLayout()
    flat = FlatParameters(model, [layout])
    assert flat.place_of(layout) == slice(0, 11) and flat.place_of(other) is None
    assert torch.equal(flat.values[1:7].view(2, 3).T, before[0]) and torch.equal(flat.values[8:11], before[1])
    assert flat.values[[0, 7]].tolist() == [1.0, 0.0] and len(flat.values) == 11 + 4
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    x = torch.tensor([[1.0, 2.0]])
    model(x).sum().backward()
    assert torch.equal(flat.gradient[8:11], before[2][0])  # the gradient of the first bias is the second weight
    flat.release()
    assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(model.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    flat.values.data.zero_()
    assert torch.equal(first.weight, before[0])


def test_constants_between_the_parameters_are_restored() -> None:
    first = nn.Linear(2, 3)
    flat = FlatParameters(first, [layout_with(first)])
    flat.gradient.fill_(2)
    flat.clear_constant_gradients()
    assert flat.gradient.tolist() == [0, *[2] * 6, 0, *[2] * 3]
    flat.values.data.fill_(5)
    flat.restore_constants()
    assert flat.values.tolist() == [1, *[5] * 6, 0, *[5] * 3]


def test_matrices_decay_and_vectors_constants_and_what_a_part_names_do_not() -> None:
    first = nn.Linear(2, 3)
    flat = FlatParameters(first, [layout_with(first)])
    assert flat.decays.tolist() == [False, *[True] * 6, False, *[False] * 3]

    for form, kept in (("hadamard", "coefficients"), ("hadamard-product", "factors"), ("sum", "")):
        cell = TreeLSTM(form, state_size=3, arity=2, label_size=4)
        flat = FlatParameters(cell)
        decays = torch.zeros(len(flat.values))
        for name, parameter in cell.named_parameters():  # each is a view: mark what decays through it
            end = name.rpartition(".")[2]
            parameter.data.fill_(float(parameter.dim() > 1 and end not in ("slot_biases", kept)))
        decays.copy_(flat.values.data)
        assert flat.decays.tolist() == decays.bool().tolist() and 0 < int(flat.decays.sum()) < len(decays)


def test_parameters_that_are_frozen_shared_or_in_two_places_stay_outside_of_layouts() -> None:
    first = nn.Linear(2, 3)
    layout, again = layout_with(first), layout_with(first)
    flat = FlatParameters(first, [layout, again])
    assert flat.place_of(layout) is not None and flat.place_of(again) is None and len(flat.values) == 11
    flat.release()
    twice = FlatLayout()
    twice.add(first, "weight", twice.take(6))
    twice.add(first, "weight", twice.take(6))
    flat = FlatParameters(first, [twice])
    assert flat.place_of(twice) is None and len(flat.values) == 9
    flat.release()
    first.bias.requires_grad_(False)
    layout = layout_with(first)
    flat = FlatParameters(first, [layout])
    assert flat.place_of(layout) is None and len(flat.values) == 6
    assert first.bias.grad is None


@pytest.mark.parametrize("is_laid_out", [False, True])
def test_the_order_is_a_checksum_of_all_places(is_laid_out: bool) -> None:
    orders = []
    for _ in range(2):
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        first = model[0]
        assert isinstance(first, nn.Linear)
        orders.append(FlatParameters(model, [layout_with(first)] if is_laid_out else []).order)
    assert orders[0] == orders[1]
    other = FlatParameters(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))).order
    assert orders[0] != other
