"""Fitting forms whose factors are tied across the slots, and which therefore have no decomposition in closed form."""

import copy
import math
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from treefold.errors import ShapeError

_STARTS: Final = 4
_STEPS: Final = 300
_RIDGE: Final = 1e-12


class Tied(Protocol):
    """A form that is a basis times an output matrix."""

    arity: int
    output: nn.Parameter

    def basis(self, arity: int) -> Tensor:
        """Return the tensor before the output matrix, (…, R)."""

    def reset_balanced(self) -> None:
        """Draw a start."""


def fit_tied(aggregator: Tied, tensor: Tensor, *, seed: int = 0) -> None:
    """Move the parameters so that the dense tensor is near the given one: the best of several L-BFGS fits.

    The output matrix enters linearly: it is solved for in every step (variable projection), and the rest is searched. In
    double precision and on the scale of one, so that neither the precision nor the scale of the tensor matters. A local
    optimum, not always the best; the same for the same tensor.
    """
    scale = float(tensor.norm()) or 1.0
    target = tensor.double().reshape(-1, tensor.shape[-1]) / scale
    best_error, best = math.inf, None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for _ in range(_STARTS):
            trial = copy.deepcopy(aggregator)
            assert isinstance(trial, nn.Module)
            trial.double()
            with torch.no_grad():
                trial.reset_balanced()
            error = _fit(trial, target)
            if error < best_error:
                best_error, best = error, trial
    if best is None:
        raise ShapeError("the tensor could not be fitted with finite numbers; use an unshared form, or another rank.")
    assert isinstance(aggregator, nn.Module)
    with torch.no_grad():
        best.output.mul_(scale)
        for own, found in zip(aggregator.parameters(), best.parameters(), strict=True):
            own.copy_(found)


def _fit(trial: nn.Module, target: Tensor) -> float:
    """Fit one start; return its squared error, infinite if it diverged."""
    searched = [parameter for name, parameter in trial.named_parameters() if name != "output"]
    optimiser = torch.optim.LBFGS(
        searched, max_iter=_STEPS, tolerance_grad=1e-14, tolerance_change=1e-18, line_search_fn="strong_wolfe"
    )

    def solved() -> tuple[Tensor, Tensor]:
        basis = trial.basis(trial.arity).reshape(len(target), -1)  # type: ignore[operator]
        gram = basis.T @ basis
        ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
        output = torch.linalg.solve(gram + ridge, basis.T @ target)
        return output, (basis @ output - target).square().sum()

    def error() -> Tensor:
        optimiser.zero_grad()
        loss = solved()[1]
        torch.autograd.backward(loss)
        return loss

    try:
        with torch.enable_grad():
            optimiser.step(error)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            output, loss = solved()
            trial.output.copy_(output)  # type: ignore[operator]
    except RuntimeError:  # a step into overflow: this start is lost, others are not
        return math.inf
    for parameter in trial.parameters():
        parameter.grad = None
    return float(loss) if math.isfinite(float(loss)) else math.inf
