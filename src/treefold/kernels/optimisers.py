"""Steps of optimisers over one flat tensor, each in one pass over memory."""

from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from treefold.kernels.compile import entry_point
from treefold.kernels.records import Vector


@final
class FlatAdadelta(torch.optim.Adadelta):
    r"""`torch.optim.Adadelta` with the same state and the same numbers, in one compiled pass over each tensor on the CPU.

    .. math::
        E \leftarrow \rho E + (1-\rho) g^2,\quad d = g \sqrt{D + \epsilon} / \sqrt{E + \epsilon},\quad
        D \leftarrow \rho D + (1-\rho) d^2,\quad \theta \leftarrow \theta - \eta d

    A step uses the gradient up: it is zero afterwards, without a pass of its own over a large tensor.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> weight.grad = torch.ones(2)
    >>> FlatAdadelta([weight]).step()
    >>> bool((weight < 1).all()), weight.grad.tolist()
    (True, [0.0, 0.0])
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and clear the gradient."""
        tensors = [tensor for group in self.param_groups for tensor in group["params"] if tensor.grad is not None]
        turned = any(group["maximize"] for group in self.param_groups)
        if closure is not None or turned or not all(map(_is_plain, tensors)):
            loss = super().step(closure)
            self.zero_grad(set_to_none=False)
            return loss
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                state = self.state[tensor]
                if not state:
                    state["step"] = torch.zeros(())
                    state["square_avg"] = torch.zeros_like(tensor)
                    state["acc_delta"] = torch.zeros_like(tensor)
                state["step"] += 1
                adadelta_step(
                    tensor.detach().view(-1).numpy(),
                    tensor.grad.view(-1).numpy(),
                    state["square_avg"].view(-1).numpy(),
                    state["acc_delta"].view(-1).numpy(),
                    float(group["lr"]),
                    group["rho"],
                    group["eps"],
                    float(group["weight_decay"]),
                )
        return None

    # torch wraps the step for its profiler and for hooks, unless it is told that this is done; here it would take longer than
    # the step itself.
    step.hooked = True  # type: ignore[attr-defined]


def _is_plain(tensor: Tensor) -> bool:
    grad = tensor.grad
    assert grad is not None
    return (
        tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.float64)
        and grad.dtype == tensor.dtype
        and tensor.is_contiguous()
        and grad.is_contiguous()
    )


@entry_point
def adadelta_step(
    values: Vector,
    gradient: Vector,
    squares: Vector,
    deltas: Vector,
    rate: float,
    rho: float,
    epsilon: float,
    decay: float,
) -> None:
    """Take one step, in place, and clear the gradient."""
    one = values.dtype.type(1)
    eta, keep, small, shrink = (
        values.dtype.type(rate),
        values.dtype.type(rho),
        values.dtype.type(epsilon),
        values.dtype.type(decay),
    )
    for k in range(len(values)):
        g = gradient[k] + shrink * values[k]
        squares[k] = keep * squares[k] + (one - keep) * g * g
        delta = g * np.sqrt((deltas[k] + small) / (squares[k] + small))
        deltas[k] = keep * deltas[k] + (one - keep) * delta * delta
        values[k] -= eta * delta
        gradient[k] = 0
