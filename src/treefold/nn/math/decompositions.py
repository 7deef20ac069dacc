"""Decompositions of dense tensors of multi-affine maps: HOSVD, canonical by alternating least squares, tensor train.

Forms whose factors are tied across the slots have no decomposition in closed form; they are fitted.
"""

import copy
import math
from collections.abc import Sequence
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from treefold.errors import ShapeError
from treefold.nn.randomness import seeded

# Axes:  n input modes of D_j + 1 entries (the last one homogeneous) · K output size · R rank

_STARTS: Final = 4
_STEPS: Final = 300
_RIDGE: Final = 1e-12


def unfold(tensor: Tensor, mode: int) -> Tensor:
    """Lay a tensor out as a matrix, one row for each entry of a mode: (…, D, …) -> (D, rest).

    >>> unfold(torch.zeros(2, 3, 4), 1).shape
    torch.Size([3, 8])
    """
    return tensor.movedim(mode, 0).reshape(tensor.shape[mode], -1)


def mode_product(tensor: Tensor, matrix: Tensor, mode: int) -> Tensor:
    """Multiply one mode of a tensor by a matrix: (…, D, …) and (D, E) -> (…, E, …).

    >>> mode_product(torch.zeros(2, 3, 4), torch.zeros(3, 5), 1).shape
    torch.Size([2, 5, 4])
    """
    return (tensor.movedim(mode, -1) @ matrix).movedim(-1, mode)


def homogeneous_factor(factor: Tensor) -> Tensor:
    """Extend a projection (D, R) to homogeneous coordinates, (D+1, R+1): the one stays one."""
    extended = factor.new_zeros(factor.shape[0] + 1, factor.shape[1] + 1)
    extended[:-1, :-1] = factor
    extended[-1, -1] = 1
    return extended


def leading_vectors(matrix: Tensor, rank: int) -> Tensor:
    """Return the ``rank`` leading left singular vectors of (D, rest) as (D, R), zero beyond D."""
    # The eigenvectors of the Gram matrix would do with less work, but lose half of the digits.
    vectors = torch.linalg.svd(matrix, full_matrices=False).U[:, :rank]
    return torch.nn.functional.pad(vectors, (0, rank - vectors.shape[1]))


def hosvd(tensor: Tensor, rank: int, *, alike: int = 1) -> tuple[list[Tensor], Tensor, Tensor]:
    r"""Decompose (D_1+1, …, D_n+1, K) into projections (D_j, R), a core (R+1, …, R+1, R) and an output matrix (R, K).

    The homogeneous coordinate of each mode is kept, only the state's part is projected, each by an orthogonal projector.
    So the error obeys the bound of the HOSVD,
    :math:`\|T - \hat T\|^2 \le \sum_j \sum_{i > R} \sigma_i^2(T_{(j)})`, with :math:`T_{(j)}` the unfolding of the part of
    T in which mode j is not homogeneous, and of the whole of T for the output mode. The last ``alike`` input modes, in
    which T is symmetric, get one projection.

    >>> factors, core, output = hosvd(torch.randn(4, 4, 3), rank=3)
    >>> core.shape
    torch.Size([4, 4, 3])
    """
    modes = tensor.dim() - 1
    own = modes - alike + 1  # the modes with a projection of their own
    factors = [
        leading_vectors(unfold(tensor.narrow(mode, 0, tensor.shape[mode] - 1), mode), rank) for mode in range(own)
    ]
    factors += [factors[-1]] * (alike - 1)
    output = leading_vectors(unfold(tensor, modes), rank)  # (K, R)
    core = mode_product(tensor, output, modes)
    for mode, factor in enumerate(factors):
        core = mode_product(core, homogeneous_factor(factor), mode)
    return factors, core, output.T


def canonical_als(
    tensor: Tensor, rank: int, *, iterations: int = 500, tolerance: float = 1e-12, restarts: int = 4, seed: int = 0
) -> list[Tensor]:
    r"""Fit a sum of ``rank`` outer products by alternating least squares: one (D, R) factor for each mode.

    .. math:: T(i_1, \dots, i_p) \approx \sum_r \prod_m A_m(i_m, r)

    Each sweep solves for one factor after the other exactly, so the error never grows; the best of ``restarts`` random
    starts is kept. A best approximation need not exist: then the error is that of the last sweep.

    >>> T = torch.einsum("ar,br,cr->abc", *(torch.randn(d, 2, dtype=torch.float64) for d in (4, 5, 6)))
    >>> A, B, C = canonical_als(T, rank=2)
    >>> bool(torch.allclose(torch.einsum("ar,br,cr->abc", A, B, C), T, atol=1e-5))
    True
    """
    generator = torch.Generator().manual_seed(seed)
    best: tuple[float, list[Tensor]] | None = None
    norm = tensor.norm().item() or 1.0
    for _ in range(restarts):
        factors = [torch.randn(size, rank, generator=generator, dtype=tensor.dtype).to(tensor) for size in tensor.shape]
        previous = math.inf
        for _ in range(iterations):
            for mode in range(tensor.dim()):
                others = khatri_rao([factor for other, factor in enumerate(factors) if other != mode])  # (rest, R)
                factors[mode] = torch.linalg.lstsq(others, unfold(tensor, mode).T, driver="gelsd").solution.T
                if mode < tensor.dim() - 1:  # the scale wanders to the last factor, which keeps the others tame
                    factors[mode] = factors[mode] / factors[mode].norm(dim=0).clamp_min(1e-30)
            error = (khatri_rao(factors).sum(1) - tensor.reshape(-1)).norm().item() / norm
            if error < 1e-12 or previous - error < tolerance:
                break
            previous = error
        if best is None or error < best[0]:
            best = (error, factors)
    assert best is not None
    return best[1]


def khatri_rao(factors: Sequence[Tensor]) -> Tensor:
    """Multiply factors (D_m, R) column by column into (∏ D_m, R), the first one's index slowest."""
    product = factors[0]
    for factor in factors[1:]:
        product = (product.unsqueeze(1) * factor.unsqueeze(0)).flatten(0, 1)
    return product


def tensor_train_svd(tensor: Tensor, rank: int) -> list[Tensor]:
    r"""Split (D_1, …, D_p) into a chain of cores (R_{m-1}, D_m, R_m) with bonds of at most ``rank``, R_0 = R_p = 1.

    .. math:: T(i_1, \dots, i_p) \approx A_1(i_1) A_2(i_2) \cdots A_p(i_p)

    Truncates one singular value decomposition after the other, so that the squared error is at most the sum of the dropped
    squared singular values of the unfoldings.

    >>> [core.shape for core in tensor_train_svd(torch.randn(4, 5, 6), rank=3)]
    [torch.Size([1, 4, 3]), torch.Size([3, 5, 3]), torch.Size([3, 6, 1])]
    """
    cores = []
    bond, rest = 1, tensor
    for size in tensor.shape[:-1]:
        left, values, right = torch.linalg.svd(rest.reshape(bond * size, -1), full_matrices=False)
        kept = min(rank, len(values))
        cores.append(left[:, :kept].reshape(bond, size, kept))
        bond, rest = kept, values[:kept, None] * right[:kept]
    cores.append(rest.reshape(bond, tensor.shape[-1], 1))
    return cores


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
    with seeded(seed):
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
