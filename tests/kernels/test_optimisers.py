from typing import Any

import pytest
import torch
from torch import nn

from treefold.kernels.optimisers import FlatAdadelta


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options", [{}, {"lr": 0.3, "rho": 0.95, "eps": 1e-4, "weight_decay": 0.1}, {"maximize": True, "weight_decay": 0.1}]
)
def test_steps_are_those_of_torch(dtype: torch.dtype, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.randn(40, dtype=dtype)), nn.Parameter(torch.zeros(40, dtype=dtype))
    theirs.data.copy_(ours.data)
    optimisers = FlatAdadelta([ours], **options), torch.optim.Adadelta([theirs], **options)
    for step in range(20):
        gradient = torch.randn(40, dtype=dtype) * 10 ** (step % 5 - 2)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        for optimiser in optimisers:
            optimiser.step()
        assert not ours.grad.any()  # used up
    relative, absolute = (1e-5, 1e-7) if dtype == torch.float32 else (1e-12, 1e-15)
    torch.testing.assert_close(ours, theirs, rtol=relative, atol=absolute)
    (own,), (plain,) = (optimiser.state_dict()["state"].values() for optimiser in optimisers)
    assert own.keys() == plain.keys()
    for name in own:
        torch.testing.assert_close(torch.as_tensor(own[name]), torch.as_tensor(plain[name]), rtol=1e-4, atol=1e-12)


def test_a_broken_gradient_shows_in_the_values() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([1.0, float("nan"), float("inf")])
    FlatAdadelta([weight]).step()
    assert torch.isfinite(weight).tolist() == [True, False, False]


def test_what_the_kernel_cannot_take_goes_the_way_of_torch() -> None:
    ours, theirs = nn.Parameter(torch.ones(4, 6).T), nn.Parameter(torch.ones(4, 6).T)  # not contiguous
    for weight, optimiser in ((ours, FlatAdadelta([ours])), (theirs, torch.optim.Adadelta([theirs]))):
        weight.grad = torch.arange(24.0).view(6, 4)
        optimiser.step()
    assert torch.equal(ours, theirs) and not bool((ours == 1).all())
