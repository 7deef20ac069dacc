import copy
from typing import Any

import pytest
import torch
from torch import nn

from treefold.errors import ShapeError
from treefold.kernels.optimisers import FlatAdadelta, FlatAdamW


def steps_of_both(
    ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer, own: nn.Parameter, plain: list[nn.Parameter]
) -> None:
    """Take twenty steps with the same gradients; ``own`` is one tensor, ``plain`` the same entries in one or more tensors."""
    for step in range(20):
        gradient = torch.randn(len(own), dtype=own.dtype) * 10 ** (step % 5 - 2)
        own.grad, place = gradient.clone(), 0
        for part in plain:
            part.grad = gradient[place : place + part.numel()].view(part.shape).clone()
            place += part.numel()
        ours.step()
        theirs.step()
        assert not own.grad.any()  # used up
    relative, absolute = (1e-5, 1e-6) if own.dtype == torch.float32 else (1e-12, 1e-15)
    expected = torch.cat([part.detach().reshape(-1) for part in plain])
    torch.testing.assert_close(own.detach(), expected, rtol=relative, atol=absolute)
    (state,), others = ours.state_dict()["state"].values(), list(theirs.state_dict()["state"].values())
    for name, value in state.items():
        found = [torch.as_tensor(other[name]).reshape(-1) for other in others]
        whole = found[0] if name == "step" else torch.cat(found)
        torch.testing.assert_close(torch.as_tensor(value).reshape(-1), whole, rtol=1e-4, atol=1e-12)
    assert all(state.keys() == other.keys() for other in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ((FlatAdadelta, torch.optim.Adadelta), {}),
        ((FlatAdadelta, torch.optim.Adadelta), {"lr": 0.3, "rho": 0.95, "eps": 1e-4, "weight_decay": 0.1}),
        ((FlatAdadelta, torch.optim.Adadelta), {"maximize": True, "weight_decay": 0.1}),
        ((FlatAdamW, torch.optim.AdamW), {}),
        ((FlatAdamW, torch.optim.AdamW), {"lr": 0.02, "betas": (0.8, 0.98), "eps": 1e-4, "weight_decay": 0.1}),
        ((FlatAdamW, torch.optim.AdamW), {"maximize": True, "weight_decay": 0.1}),
        ((FlatAdamW, torch.optim.AdamW), {"amsgrad": True}),
    ],
)
def test_steps_are_those_of_torch(dtype: torch.dtype, kinds: tuple[Any, Any], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.randn(40, dtype=dtype)), nn.Parameter(torch.zeros(40, dtype=dtype))
    theirs.data.copy_(ours.data)
    steps_of_both(kinds[0]([ours], **options), kinds[1]([theirs], **options), ours, [theirs])


@pytest.mark.parametrize("options", [{}, {"maximize": True}])  # compiled, and by torch
@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_a_mask_decays_what_groups_of_parameters_decay_in_torch(kind: torch.dtype, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    ours = nn.Parameter(torch.randn(30, dtype=torch.float64))
    first, second = (nn.Parameter(part.detach().clone()) for part in (ours[:12].view(3, 4), ours[12:]))
    groups = [{"params": [first], "weight_decay": 0.3}, {"params": [second], "weight_decay": 0.0}]
    decays = (torch.arange(30) < 12).to(kind)
    own = FlatAdamW([ours], lr=0.05, weight_decay=0.3, decays=decays, **options)
    steps_of_both(own, torch.optim.AdamW(groups, lr=0.05, **options), ours, [first, second])
    assert own.param_groups[0]["weight_decay"] == 0.3


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"decays of the shape of its tensor, \(3,\), got \(2,\)"):
        FlatAdamW([nn.Parameter(torch.ones(3))], decays=torch.ones(2))


def test_the_state_goes_to_torch_and_back() -> None:
    """A run that was begun with torch's AdamW is resumed with ours."""
    torch.manual_seed(2)
    ours, theirs = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    own, plain = FlatAdamW([ours], lr=0.1), torch.optim.AdamW([theirs], lr=0.1)
    for _ in range(3):
        theirs.grad = torch.randn(5)
        plain.step()
    own.load_state_dict(copy.deepcopy(plain.state_dict()))
    ours.data.copy_(theirs.data)
    for _ in range(3):
        gradient = torch.randn(5)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        own.step()
        plain.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [FlatAdadelta, FlatAdamW])
def test_a_broken_gradient_shows_in_the_values(kind: Any) -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([1.0, float("nan"), float("inf")])
    kind([weight]).step()
    assert torch.isfinite(weight).tolist() == [True, False, False]


@pytest.mark.parametrize("kinds", [(FlatAdadelta, torch.optim.Adadelta), (FlatAdamW, torch.optim.AdamW)])
def test_what_the_kernel_cannot_take_goes_the_way_of_torch(kinds: tuple[Any, Any]) -> None:
    ours, theirs = nn.Parameter(torch.ones(4, 6).T), nn.Parameter(torch.ones(4, 6).T)  # not contiguous
    for weight, optimiser in ((ours, kinds[0]([ours])), (theirs, kinds[1]([theirs]))):
        weight.grad = torch.arange(24.0).view(6, 4)
        optimiser.step()
    assert torch.equal(ours, theirs) and not bool((ours == 1).all())
