"""Steps of optimisers over one flat tensor, each in one pass over memory."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from treefold.errors import ShapeError
from treefold.kernels.compile import entry_point
from treefold.kernels.records import Vector


class _Uncompiled:
    """Methods of torch's optimisers without their wrappers for `torch.compile`, whose first call imports modules for seconds."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)


@final
class FlatAdadelta(_Uncompiled, torch.optim.Adadelta):
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


@final
class FlatAdamW(_Uncompiled, torch.optim.AdamW):
    r"""`torch.optim.AdamW` with the same state and the same numbers, in one compiled pass over each tensor on the CPU.

    .. math::
        \theta \leftarrow (1 - \eta \lambda d)\, \theta,\quad m \leftarrow \beta_1 m + (1-\beta_1) g,\quad
        v \leftarrow \beta_2 v + (1-\beta_2) g^2,\quad
        \theta \leftarrow \theta - \eta \frac{m / (1-\beta_1^t)}{\sqrt{v / (1-\beta_2^t)} + \epsilon}

    ``decays`` (d), of the tensor's shape, says which entries the weight decay shrinks, by True or False, or by a factor; without
    it, all. As in `FlatAdadelta`, the gradient is zero after a step.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> weight.grad = torch.zeros(2)
    >>> FlatAdamW([weight], lr=0.1, weight_decay=0.5, decays=torch.tensor([True, False])).step()
    >>> weight.tolist()
    [0.949..., 1.0]
    """

    def __init__(self, params: Iterable[Tensor], *, decays: Tensor | None = None, **options: Any) -> None:
        super().__init__(params, **options)
        self._decays = decays
        for tensor in (tensor for group in self.param_groups for tensor in group["params"]):
            if decays is not None and decays.shape != tensor.shape:
                raise ShapeError(
                    f"FlatAdamW expects decays of the shape of its tensor, {tuple(tensor.shape)}, got {tuple(decays.shape)}."
                )
        self._shares: dict[tuple[torch.dtype, torch.Size], Tensor] = {}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, and clear the gradient."""
        tensors = [tensor for group in self.param_groups for tensor in group["params"] if tensor.grad is not None]
        special = any(group["maximize"] or group["amsgrad"] for group in self.param_groups)
        if closure is not None or special or not all(map(_is_plain, tensors)):
            return self._torch_step(closure)
        for group in self.param_groups:
            (first, second), rate = group["betas"], float(group["lr"])
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                state = self.state[tensor]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"] = torch.zeros_like(tensor)
                    state["exp_avg_sq"] = torch.zeros_like(tensor)
                state["step"] += 1
                count = float(state["step"])
                adamw_step(
                    tensor.detach().view(-1).numpy(),
                    tensor.grad.view(-1).numpy(),
                    state["exp_avg"].view(-1).numpy(),
                    state["exp_avg_sq"].view(-1).numpy(),
                    self._share(tensor).view(-1).numpy(),
                    rate / (1 - first**count),
                    1 / (1 - second**count) ** 0.5,
                    first,
                    second,
                    group["eps"],
                    rate * float(group["weight_decay"]),
                )
        return None

    step.hooked = True  # type: ignore[attr-defined]

    def _share(self, tensor: Tensor) -> Tensor:
        """Return how much of the weight decay each entry has, in the type of the tensor."""
        kind = tensor.dtype, tensor.shape
        if kind not in self._shares:
            share = torch.ones_like(tensor) if self._decays is None else self._decays.to(tensor)
            self._shares[kind] = share.detach().contiguous()
        return self._shares[kind]

    def _torch_step(self, closure: Callable[[], Any] | None) -> Any:
        decays = [group["weight_decay"] for group in self.param_groups]
        if self._decays is not None:
            for group in self.param_groups:
                for tensor in group["params"]:
                    if tensor.grad is not None or closure is not None:
                        tensor.detach().mul_(1 - group["lr"] * group["weight_decay"] * self._decays.to(tensor))
                group["weight_decay"] = 0.0
        loss = super().step(closure)
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        self.zero_grad(set_to_none=False)
        return loss


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


@entry_point
def adamw_step(
    values: Vector,
    gradient: Vector,
    means: Vector,
    squares: Vector,
    decays: Vector,
    rate: float,
    root_scale: float,
    first: float,
    second: float,
    epsilon: float,
    decay: float,
) -> None:
    """Take one step, in place, and clear the gradient; ``rate`` and ``root_scale`` have the corrections of the first steps."""
    one = values.dtype.type(1)
    eta, scale, small, shrink = (
        values.dtype.type(rate),
        values.dtype.type(root_scale),
        values.dtype.type(epsilon),
        values.dtype.type(decay),
    )
    keep, other = values.dtype.type(first), values.dtype.type(second)
    fresh, fresh_square = values.dtype.type(1 - first), values.dtype.type(1 - second)
    for k in range(len(values)):
        g = gradient[k]
        means[k] = keep * means[k] + fresh * g
        squares[k] = other * squares[k] + fresh_square * g * g
        shrunk = values[k] * (one - shrink * decays[k])
        values[k] = shrunk - eta * means[k] / (scale * np.sqrt(squares[k]) + small)
        gradient[k] = 0
