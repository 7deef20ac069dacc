"""Sums of forms: multi-affine maps add up."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError
from treefold.kernels.layout import FormKernel
from treefold.nn.aggregators.base import Aggregator, dense_sizes
from treefold.nn.randomness import seeded

# Axes:  N nodes of one level · L child slots · C state size · K output size · M label size
_SIZES: Final = ("state_size", "out_size", "arity", "label_size", "shared", "initialisation")
_STARTS: Final = 4
_STEPS: Final = 1000
_EXACT: Final = 1e-16  # squared error, relative to the tensor


@final
class Combined(Aggregator):
    r"""The sum of aggregators of one size: :math:`f = f_1 + f_2 + \dots`

    Its tensor, its parameters and its multiply-adds are those of its parts together. By name, ``"canonical+sum"``; a rank or an
    option goes to every part that has it. With balanced initialisation, it scales the parts that it is given, so that their sum
    has variance one.

    >>> from treefold.nn.aggregators import Canonical, Sum
    >>> parts = [Canonical(state_size=8, arity=3, rank=4, shared=True), Sum(state_size=8, arity=3, shared=True)]
    >>> Combined(parts)(torch.zeros(5, 7, 8)).shape
    torch.Size([5, 8])
    """

    equation: ClassVar[str] = "f = f_1 + f_2 + …"

    def __init__(self, parts: Sequence[Aggregator]) -> None:
        nn.Module.__init__(self)
        if len(parts) < 2 or not all(isinstance(part, Aggregator) and not isinstance(part, Combined) for part in parts):
            got = ", ".join(type(part).__name__ for part in parts) or "none"
            raise ConfigurationError(
                f"Combined expects two aggregators or more, which are no sums, got {got}; list the parts of a sum one by one."
            )
        for name in _SIZES:
            found = [getattr(part, name) for part in parts]
            if found.count(found[0]) < len(found):
                raise ConfigurationError(
                    f"Combined expects parts with the same {name}, got {', '.join(map(repr, found))}; make them alike."
                )
            setattr(self, name, found[0])
        self.rank = max(part.rank for part in parts)
        self.parts = nn.ModuleList(parts)
        self.equation = "f = " + " + ".join(part.equation.removeprefix("f = ") for part in parts)  # type: ignore[misc]
        self.any_arity = all(part.any_arity for part in parts)  # type: ignore[misc]
        self.multi_affine = all(part.multi_affine for part in parts)  # type: ignore[misc]
        self.normalises = all(part.normalises for part in parts)  # type: ignore[misc]
        self.mixes = all(part.mixes for part in parts)  # type: ignore[misc]
        with torch.no_grad():
            self._balance()

    @property
    def summands(self) -> list[Aggregator]:
        """The parts."""
        return [part for part in self.parts if isinstance(part, Aggregator)]

    def build(self) -> None:
        """Do nothing: the parts are there."""

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Add up the results of the parts."""
        total: Tensor
        total, *others = [part(children, label) for part in self.summands]
        for other in others:
            total = total + other
        return total

    def dense(self, arity: int) -> Tensor:
        """Add up the tensors."""
        return torch.stack([part.to_dense(arity) for part in self.summands]).sum(0)

    def decompose(self, tensor: Tensor) -> None:
        """Fit each part to what the parts before it leave, then all together; the best of this start and several random ones."""
        rest = tensor
        for part in self.summands:
            part.decompose(rest)
            rest = rest - part.to_dense().detach()
        self.rescale(1 / (float(tensor.norm()) or 1.0))  # the fits work on the scale of one
        trials = [copy.deepcopy(self).double() for _ in range(_STARTS)]
        with seeded(0):
            for trial in trials[1:]:
                trial.reset_balanced()
        target = tensor.double() / (float(tensor.norm()) or 1.0)
        best, least = trials[0], math.inf
        for trial in trials:
            error = _fit_together(trial, target)
            if error < least:
                best, least = trial, error
            if least < _EXACT:
                break
        best.rescale(float(tensor.norm()) or 1.0)
        for own, found in zip(self.parameters(), best.parameters(), strict=True):
            own.copy_(found.detach())

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count those of all parts."""
        return sum(part.multiply_adds(arity) for part in self.summands)

    def reset_balanced(self) -> None:
        """Draw all parts, and give them equal shares of a variance of one."""
        for part in self.summands:
            part.reset_parameters()
        self._balance()

    def kaiming_fans(self) -> dict[str, int]:
        """Return those of the parts."""
        named = [(f"parts.{number}.", part.kaiming_fans()) for number, part in enumerate(self.summands)]
        return {prefix + name: fan for prefix, fans in named for name, fan in fans.items()}

    def scaling(self) -> list[Tensor]:
        """Return the parameters that scale the parts."""
        return [parameter for part in self.summands for parameter in part.scaling()]

    @torch.no_grad()
    def shrink_parts(self, amount: float) -> None:
        """Shrink the norm of each part by an amount, at most to zero: a step of a lasso over parts."""
        for part, norm in zip(self.summands, self.part_norms(), strict=True):
            part.rescale(max(0.0, 1 - amount / max(norm, 1e-12)))

    @torch.no_grad()
    def keep_strongest(self) -> None:
        """Set all parts to zero but the one with the greatest norm."""
        norms = self.part_norms()
        for number, part in enumerate(self.summands):
            if number != norms.index(max(norms)):
                part.rescale(0.0)

    def part_norms(self) -> list[float]:
        """Return the norm of the parameters that scale each part.

        >>> from treefold.nn.aggregators import Mean, Sum
        >>> sizes = {"state_size": 2, "arity": 2, "shared": True}
        >>> combined = Combined([Sum(**sizes), Mean(**sizes)])
        >>> combined.keep_strongest()
        >>> combined.part_norms().count(0.0)
        1
        """
        return [
            math.sqrt(sum(float(each.detach().square().sum()) for each in part.scaling())) for part in self.summands
        ]

    def kernel(self) -> FormKernel | None:
        """Return that of the first part, which the kernels of the others follow; None if a part has none, or cannot follow."""
        kernels = [part.kernel() for part in self.summands]
        return kernels[0] if all(each is not None and each.can_be_part for each in kernels) else None

    def _balance(self) -> None:
        if self.initialisation == "balanced":
            self.rescale(len(self.parts) ** -0.5)


def _fit_together(trial: Combined, target: Tensor) -> float:
    """Fit all parts to a tensor by L-BFGS; return the squared error, infinite if it diverged."""
    optimiser = torch.optim.LBFGS(
        trial.parameters(), max_iter=_STEPS, tolerance_grad=1e-14, tolerance_change=1e-18, line_search_fn="strong_wolfe"
    )

    def error() -> Tensor:
        optimiser.zero_grad()
        loss = (trial.to_dense() - target).square().sum()
        torch.autograd.backward(loss)
        return loss

    with torch.enable_grad():
        optimiser.step(error)  # type: ignore[no-untyped-call]
        found = float(error().detach())
    trial.zero_grad()
    return found if math.isfinite(found) else math.inf


@final
class Combination:
    """A sum of forms by name, as settings have it; it has what the class of a form has.

    >>> from treefold.nn.aggregators import form_named
    >>> form = form_named("complex+sum")
    >>> form.any_arity, form(state_size=4, arity=2, rank=3, shared=True, bound="disc").parameter_count
    (True, 68)
    """

    def __init__(self, forms: Sequence[type[Aggregator]]) -> None:
        self._forms = forms
        self.any_arity = all(form.any_arity for form in forms)
        self.always_shared = any(form.always_shared for form in forms)
        self.multi_affine = all(form.multi_affine for form in forms)
        self.normalises = all(form.normalises for form in forms)
        self.has_rank = any(form.has_rank for form in forms)
        self.mixes = all(form.mixes for form in forms)
        self.options: Mapping[str, Any] = {name: value for form in forms for name, value in form.options.items()}

    def __call__(self, *, rank: int | None = None, shared: bool = False, **given: Any) -> Combined:
        """Make the sum; a rank or an option goes to every part that has it."""
        if rank is not None and not self.has_rank:
            raise ConfigurationError(f"Combined expects no rank, got rank={rank}; no part has one, leave it out.")
        parts = []
        for form in self._forms:
            own = {name: value for name, value in given.items() if name not in self.options or name in form.options}
            shared_here = shared or self.always_shared
            parts.append(form(rank=rank if form.has_rank else None, shared=shared_here, **own))
        return Combined(parts)

    def from_dense(
        self,
        tensor: Tensor,
        rank: int | None = None,
        *,
        label_size: int | None = None,
        shared: bool = False,
        **options: Any,
    ) -> Combined:
        """Represent a dense tensor, as `Aggregator.from_dense` does."""
        sizes = dense_sizes(tensor, label_size, "Combined")
        result = self(**sizes, rank=rank, shared=shared, **options).to(tensor)
        with torch.no_grad():
            result.decompose(tensor.detach())
        return result
