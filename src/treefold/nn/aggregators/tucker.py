"""The Tucker form, which the paper calls HOSVD: combine the children in a small space."""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError
from treefold.kernels.layout import FormKernel, GatePlaces
from treefold.nn.aggregators.base import Aggregator, balance_output
from treefold.nn.aggregators.full import Full
from treefold.nn.math.decompositions import homogeneous_factor, hosvd, mode_product

# Axes:  N nodes of one level · L child slots · C state size · K output size · R rank · M label size


@final
class Tucker(Aggregator):
    r"""Tucker (HOSVD) aggregation: project every input to ``rank``, combine there, project back.

    .. math:: f(x, h_1, \dots, h_L) = Q\, G(W x, U_1 h_1, \dots, U_L h_L)

    with a core G that is multi-affine in the small space: a `Full` aggregator of size R. Exponential in L through the core,
    R·(R+1)^L, but not in the state size. The core's matrix products take less than R·(R+1)^L multiply-adds a node, the
    outer products that feed them about 2·(R+1)^(L/2) multiplications more. ``shared`` has one U for all slots and a
    symmetric core.

    >>> Tucker(state_size=8, out_size=8, arity=3, rank=2)(torch.zeros(5, 3, 8)).shape
    torch.Size([5, 8])
    """

    has_free_output: ClassVar[bool] = True
    equation: ClassVar[str] = "f = Q G(W x, U_1 h_1 … U_L h_L), G multi-affine in rank"

    def build(self) -> None:
        """Make U (L, C, R), or (C, R) if it is shared, W (M, R), the core and Q (R, K)."""
        largest = max(self.state_size, self.out_size, self.label_size or 0)
        if self.rank > largest:
            raise ConfigurationError(
                f"Tucker expects a rank of at most {largest}, the greatest of state, output and label size, "
                f"got {self.rank}; a larger one adds nothing, choose a smaller rank or a larger state_size."
            )
        slots = () if self.shared else (self.arity,)
        self.slot_factors = nn.Parameter(torch.empty(*slots, self.state_size, self.rank))
        self.label_factor = nn.Parameter(torch.empty(self.label_size, self.rank)) if self.label_size else None
        self.core = Full(
            state_size=self.rank,
            arity=self.arity,
            label_size=self.rank if self.label_size else None,
            shared=self.shared,
            initialisation=self.initialisation,
        )
        self.output = nn.Parameter(torch.empty(self.rank, self.out_size))

    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:
        """Project, combine in the core, project back."""
        if self.shared:
            projected = children @ self.slot_factors  # (N, L, R)
        else:
            projected = torch.bmm(children.transpose(0, 1), self.slot_factors).transpose(0, 1)
        small_label = None if label is None or self.label_factor is None else label @ self.label_factor
        combined: Tensor = self.core(projected, small_label)  # (N, R)
        return combined @ self.output

    def dense(self, arity: int) -> Tensor:
        """Multiply the core by the factor of each mode."""
        tensor = mode_product(self.core.to_dense(), self.output, self.mode_count)
        factors = [self.slot_factors] * arity if self.shared else list(self.slot_factors)
        if self.label_factor is not None:
            factors.insert(0, self.label_factor)
        for mode, factor in enumerate(factors):
            tensor = mode_product(tensor, homogeneous_factor(factor).T, mode)
        return tensor

    def decompose(self, tensor: Tensor) -> None:
        """Decompose by the HOSVD; exact when the rank reaches every mode's. ``shared`` first makes the slots symmetric.

        The error is at most the root of the sum of the squared singular values that are dropped from the modes.
        """
        if self.shared:
            tensor = Full.from_dense(tensor, label_size=self.label_size, shared=True).to_dense()
        factors, core, output = hosvd(tensor, self.rank, alike=self.arity if self.shared else 1)
        if self.label_factor is not None:
            self.label_factor.copy_(factors.pop(0))
        self.slot_factors.copy_(factors[0] if self.shared else torch.stack(factors))
        self.output.copy_(output)
        self.core.decompose(core)

    def multiply_adds(self, arity: int | None = None) -> int:
        """Count the projections, the core and the way back."""
        inputs = self.arity * self.state_size + (self.label_size or 0)
        return inputs * self.rank + self.core.multiply_adds() + self.rank * self.out_size

    def reset_balanced(self) -> None:
        """Project by orthonormal columns, which keeps standard entries standard; balance the core, then the output."""
        for factor in self.slot_factors if not self.shared else [self.slot_factors]:
            nn.init.orthogonal_(factor, gain=max(1.0, self.rank / self.state_size) ** 0.5)
        if self.label_factor is not None and self.label_size is not None:
            nn.init.orthogonal_(self.label_factor, gain=max(1.0, self.rank / self.label_size) ** 0.5)
        self.core.reset_parameters()
        balance_output(self.output, self.output.new_zeros(self.rank), self.core.second_moment())

    def kaiming_fans(self) -> dict[str, int]:
        """Return the input size of each projection, and the number of terms which each output of the core sums."""
        return {
            "slot_factors": self.state_size,
            "label_factor": self.label_size or 0,
            "core.tensor": self.core.kaiming_fans()["tensor"],
            "output": self.rank,
        }

    def kernel(self) -> FormKernel:
        """Contract the core with the images of the children."""
        return self.core.kernel(images=self.rank)

    def lay_out(self, places: GatePlaces) -> None:
        """U in the slots, W at the label, the core's tensor in the core, Q in the output."""
        places.slots("slot_factors")
        places.label("label_factor")
        self.core.lay_out(places)
        places.output("output")
