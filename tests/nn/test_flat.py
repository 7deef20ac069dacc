import torch
from torch import nn

from treefold.nn.flat import Arrangement, FlatParameters, in_charge_of


def test_an_arrangement_decides_where_parameters_stand_and_the_others_follow() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    weight, bias = model[0].weight, model[0].bias
    assert isinstance(weight, nn.Parameter) and isinstance(bias, nn.Parameter)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    # weight (3, 2) transposed between two constants, then bias: 7 w00 w10 w20 w01 w11 w21 7 b0 b1 b2
    background = torch.full((11,), 7.0)
    owner = object()
    flat = FlatParameters(model, [Arrangement(owner, background, [(weight, (3, 2), (1, 3), 1), (bias, (3,), (1,), 8)])])
    assert flat.place_of(owner) == slice(0, 11) and flat.place_of(model) is None
    assert torch.equal(flat.values[1:7].view(2, 3).T, before[0]) and torch.equal(flat.values[8:11], before[1])
    assert flat.values[[0, 7]].tolist() == [7.0, 7.0] and len(flat.values) == 11 + 4
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    x = torch.tensor([[1.0, 2.0]])
    model(x).sum().backward()
    assert torch.equal(flat.gradient[8:11], before[2][0])  # the gradient of the first bias is the second weight
    flat.release()
    assert all(torch.equal(a, b) and a.is_contiguous() for a, b in zip(model.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    flat.values.data.zero_()
    assert torch.equal(weight, before[0])


def test_who_is_in_charge_is_known_only_meanwhile() -> None:
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    flat = FlatParameters(model)
    with flat.in_charge():
        assert in_charge_of(model.bias) is flat and in_charge_of(other.bias) is None
        with FlatParameters(other).in_charge():
            assert in_charge_of(model.bias) is flat and in_charge_of(other.bias) not in (None, flat)
    assert in_charge_of(model.bias) is None
