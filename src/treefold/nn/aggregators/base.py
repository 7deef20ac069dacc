"""The aggregator: one representation of a multi-affine map of a node's children and label."""

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Self, TypedDict, final

import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, ShapeError, nearest, require_choice, require_positive
from treefold.kernels.layout import FormKernel, GatePlaces

# Axes:  N nodes of one level · L child slots · C state size · K output size · R rank · M label size
Initialisation = Literal["balanced", "kaiming"]
_MOST_ENTRIES: Final = 2**28


class Aggregator(nn.Module, abc.ABC):
    r"""A multi-affine map of a node's children, and of its label if ``label_size`` is given: (N, L, C) -> (N, K).

    Law: ``aggregator(children, label)`` equals ``contract(aggregator.to_dense(), [label, *children])`` for all inputs,
    in which `treefold.nn.math.functional.contract` appends the homogeneous coordinate one to each vector. Forms that divide
    by the number of children have a tensor for each number: ``to_dense(n)`` is that for n children that are present. Two forms,
    `Max` and `Squashed`, are not multi-affine and have no tensor.

    An absent child (⊥) is the zero state, so that its homogeneous vector is ``[0; 1]``; children beyond those given are
    absent. ``shared=True`` treats all slots alike. Shared forms with ``any_arity`` take any number of children, and there
    an absent child changes nothing in any place.

    ``initialisation="balanced"`` starts with pre-activations of mean zero and standard deviation one for children and
    labels of independent standard entries, whatever the arity and rank: every slot contributes its state with weight
    1/n and its bias with weight one, n the number of slots, so that low and high orders of interaction have comparable
    shares. ``"kaiming"`` draws every factor with variance 2 / fan-in, as the paper does; for a tensor of order above two,
    its fan-in is the product of all its modes but the output's, that is, the number of terms which each output sums.
    """

    any_arity: ClassVar[bool] = False
    """Whether the shared form takes any number of children."""
    always_shared: ClassVar[bool] = False
    """Whether the form has no other than the shared form: then ``shared`` is True, whatever is asked for."""
    multi_affine: ClassVar[bool] = True
    """Whether the map is affine in each input, so that it has a dense tensor."""
    normalises: ClassVar[bool] = False
    """Whether the result stays bounded for any number of bounded children; then cells take means over the children, too."""
    has_rank: ClassVar[bool] = True
    """Whether the form has a rank."""
    mixes: ClassVar[bool] = True
    """Whether the form mixes coordinates; one that does not expects ``out_size`` = ``state_size``."""
    has_free_output: ClassVar[bool] = False
    """Whether its kernel can return another number of entries than the state has."""
    options: ClassVar[Mapping[str, Any]] = {}
    """The arguments that this form has beside the sizes, with their defaults; each is an attribute."""
    undecayed: ClassVar[tuple[str, ...]] = ()
    """Parameters with two axes or more that are no matrices, so that weight decay leaves them alone, as it does vectors."""
    equation: ClassVar[str]
    """The map in one line, for `describe`."""

    def __init__(
        self,
        *,
        state_size: int,
        arity: int,
        out_size: int | None = None,
        rank: int | None = None,
        label_size: int | None = None,
        shared: bool = False,
        initialisation: Initialisation = "balanced",
        **options: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for option in options:
            if option not in self.options:
                known = f"the options {', '.join(self.options)}" if self.options else "no options"
                raise ConfigurationError(
                    f"{name} expects {known}, got {option}={options[option]!r}{nearest(option, self.options)}; leave it out."
                )
        out_size = state_size if out_size is None else out_size
        require_positive(name, state_size=state_size, arity=arity, out_size=out_size)
        if label_size is not None:
            require_positive(name, label_size=label_size)
        if rank is not None and not self.has_rank:
            raise ConfigurationError(
                f"{name} expects no rank, got rank={rank}; leave it out, or choose a form that has one."
            )
        require_choice(name, "initialisation", initialisation, ["balanced", "kaiming"])
        if not isinstance(shared, bool):
            raise ConfigurationError(f"{name} expects shared to be True or False, got {shared!r}.")
        self.state_size = int(state_size)
        self.arity = int(arity)
        self.out_size = int(out_size)
        self.label_size = None if label_size is None else int(label_size)
        self.rank = require_rank(name, rank) if self.has_rank else 0
        self.shared = shared or self.always_shared
        self.initialisation: Initialisation = initialisation
        for option, default in self.options.items():
            setattr(self, option, options.get(option, default))
        self.build()
        self.reset_parameters()

    @abc.abstractmethod
    def build(self) -> None:
        """Make the parameters, not yet filled; called once, when the sizes are known."""

    @abc.abstractmethod
    def aggregate(self, children: Tensor, label: Tensor | None) -> Tensor:  # (N, L, C), (N, M) -> (N, K)
        """Evaluate the map without forming the dense tensor."""

    @abc.abstractmethod
    def dense(self, arity: int) -> Tensor:  # -> (M+1,) (C+1, …, C+1, K)
        """Write the map out as a tensor for this number of child slots; differentiable."""

    @abc.abstractmethod
    def multiply_adds(self, arity: int | None = None) -> int:
        """Count the multiplications that `aggregate` takes for one node."""

    @abc.abstractmethod
    def decompose(self, tensor: Tensor) -> None:
        """Take parameters that represent a dense tensor, exactly if the form and the rank allow."""

    @abc.abstractmethod
    def reset_balanced(self) -> None:
        """Draw parameters that give pre-activations of standard deviation one."""

    @abc.abstractmethod
    def kaiming_fans(self) -> dict[str, int]:
        """Return the fan-in of each parameter; 0 for one that starts at zero."""

    def kernel(self) -> FormKernel | None:
        """Return the compiled kernel of the form; without one, torch computes it."""
        return None

    def lay_out(self, places: GatePlaces) -> None:
        """Put the parameters into the places that the kernel reads."""
        raise ConfigurationError(f"{type(self).__name__} has no kernel.")

    def forward(self, children: Tensor, label: Tensor | None = None) -> Tensor:
        """Aggregate children (N, L, C), and labels (N, M) if the map has a label mode, to (N, K)."""
        self._check(children, label)
        missing = self.arity - children.shape[1]
        if missing > 0 and not self.takes_any_number:
            children = nn.functional.pad(children, (0, 0, 0, missing))
        return self.aggregate(children, label)

    @final
    @classmethod
    def from_dense(
        cls,
        tensor: Tensor,
        rank: int | None = None,
        *,
        label_size: int | None = None,
        shared: bool = False,
        **options: Any,
    ) -> Self:
        """Represent a dense tensor, exactly if the form and the rank allow, else by its decomposition."""
        sizes = dense_sizes(tensor, label_size, cls.__name__)
        result = cls(**sizes, rank=rank, shared=shared, **options).to(tensor)
        with torch.no_grad():
            result.decompose(tensor.detach())
        return result

    @final
    def to_dense(self, arity: int | None = None) -> Tensor:
        """Return the tensor of the map, ``(M+1,) (C+1, …, C+1, K)``, the homogeneous coordinate last in each mode.

        ``arity`` may differ from the aggregator's own only if the form takes any number of children.
        """
        arity = self.arity if arity is None else arity
        if arity != self.arity and not self.takes_any_number:
            raise ConfigurationError(
                f"{type(self).__name__} expects arity={self.arity} as made, got {arity}; "
                f"only shared forms that take any number of children have a tensor for every arity."
            )
        return self.dense(arity)

    @final
    def reset_parameters(self) -> None:
        """Draw fresh parameters by the initialisation that was chosen."""
        with torch.no_grad():
            if self.initialisation == "balanced":
                self.reset_balanced()
                return
            fans = self.kaiming_fans()
            for name, parameter in self.named_parameters():
                if fans[name]:
                    parameter.normal_(std=math.sqrt(2 / fans[name]))
                else:
                    parameter.zero_()

    def scaling(self) -> list[Tensor]:
        """Return the parameters that scale the map: its output matrix if it has one, else all its parameters."""
        own = dict(self.named_parameters())
        return [own["output"]] if "output" in own else list(own.values())

    @final
    def rescale(self, factor: float) -> None:
        """Multiply the map by a factor that is not negative."""
        for parameter in self.scaling():
            parameter.mul_(factor)

    @property
    def summands(self) -> "Sequence[Aggregator]":
        """The parts of a sum of forms; the aggregator itself if it is none."""
        return [self]

    @property
    def takes_any_number(self) -> bool:
        """Whether this aggregator takes any number of children."""
        return self.shared and self.any_arity

    @property
    def mode_count(self) -> int:
        """The number of input modes: the child slots, and the label if there is one."""
        return self.arity + (self.label_size is not None)

    @property
    def parameter_count(self) -> int:
        """The number of trainable entries."""
        return sum(parameter.numel() for parameter in self.parameters())

    @final
    def describe(self) -> "Description":
        """Return a printable description: sizes, parameters, multiply-adds for one node."""
        return Description(
            name=f"{'shared ' if self.shared else ''}{type(self).__name__}",
            equation=self.equation,
            sizes=self.extra_repr(),
            parameters={name: tuple(parameter.shape) for name, parameter in self.named_parameters()},
            multiply_adds=self.multiply_adds(),
        )

    def extra_repr(self) -> str:
        """Return the sizes, and the options that are not the default, for printing."""
        names = ["state_size", "out_size", "arity", "rank", "label_size", "shared"]
        values = [(name, getattr(self, name, None)) for name in names]
        chosen = [
            (name, getattr(self, name)) for name, default in self.options.items() if getattr(self, name) != default
        ]
        return ", ".join(
            [f"{name}={value}" for name, value in values if value] + [f"{name}={value!r}" for name, value in chosen]
        )

    def _check(self, children: Tensor, label: Tensor | None) -> None:
        name = type(self).__name__
        if children.dim() != 3 or children.shape[2] != self.state_size:
            raise ShapeError(
                f"{name} expects children of shape (N, {self.arity}, {self.state_size}), got {tuple(children.shape)}; "
                f"absent children are zero states."
            )
        if children.shape[1] > self.arity and not self.takes_any_number:
            raise ShapeError(
                f"{name} expects at most arity={self.arity} children, got {children.shape[1]}; raise `arity`, "
                f"or choose a shared form that takes any number, such as mean or sum."
            )
        if (label is None) != (self.label_size is None) or (
            label is not None and tuple(label.shape) != (len(children), self.label_size)
        ):
            expected = (
                "no label" if self.label_size is None else f"a label of shape ({len(children)}, {self.label_size})"
            )
            got = "none" if label is None else tuple(label.shape)
            raise ShapeError(
                f"{name} expects {expected}, got {got}; `label_size` says whether the map has a label mode."
            )


@final
@dataclass(frozen=True)
class Description:
    """What an aggregator is made of.

    >>> from treefold.nn.aggregators import Sum
    >>> print(Sum(state_size=4, arity=2).describe())
    Sum(state_size=4, out_size=4, arity=2)
      f = W x + Σ_j U_j h_j + b
      slot_weights (2, 4, 4)  32
      bias         (4,)        4
      36 parameters, 32 multiply-adds a node
    """

    name: str
    equation: str
    sizes: str
    parameters: dict[str, tuple[int, ...]]
    multiply_adds: int

    @property
    def parameter_count(self) -> int:
        """The number of trainable entries."""
        return sum(math.prod(shape) for shape in self.parameters.values())

    def __str__(self) -> str:
        rows = [(name, str(shape), str(math.prod(shape))) for name, shape in self.parameters.items()]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{self.name}({self.sizes})", f"  {self.equation}"]
        lines += [f"  {row[0]:<{widths[0]}} {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}" for row in rows]
        lines.append(f"  {self.parameter_count} parameters, {self.multiply_adds} multiply-adds a node")
        return "\n".join(lines)


class DenseSizes(TypedDict):
    """The sizes that a dense tensor tells."""

    state_size: int
    arity: int
    out_size: int
    label_size: int | None


def dense_sizes(tensor: Tensor, label_size: int | None, name: str = "an aggregator") -> DenseSizes:
    """Read the sizes of an aggregator off its dense tensor, or say what is wrong with it."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
        got = f"a tensor of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ShapeError(f"{name}.from_dense expects a tensor of finite floating-point numbers, got {got}.")
    modes = list(tensor.shape[:-1])
    if label_size is not None and (not modes or modes[0] != label_size + 1):
        raise ShapeError(
            f"a dense tensor with label_size={label_size} expects a first mode of {label_size + 1} entries, "
            f"got the shape {tuple(tensor.shape)}; the homogeneous coordinate is the last entry of each mode."
        )
    children = modes if label_size is None else modes[1:]
    if not children or len(set(children)) != 1 or children[0] < 2:
        raise ShapeError(
            f"a dense tensor expects the shape {'(M+1, ' if label_size else '('}C+1, …, C+1, K) with a mode for each child, "
            f"got {tuple(tensor.shape)}; pass label_size if the first mode is the label's."
        )
    return {
        "state_size": children[0] - 1,
        "arity": len(children),
        "out_size": tensor.shape[-1],
        "label_size": label_size,
    }


def present(children: Tensor) -> Tensor:  # (N, L, C) -> (N, L)
    """Say which children are there: those whose state is not zero.

    >>> present(torch.tensor([[[0.0, 2.0], [0.0, 0.0]]]))
    tensor([[ True, False]])
    """
    return (children != 0).any(2)


def present_count(children: Tensor) -> Tensor:  # (N, L, C) -> (N, 1)
    """Count the children that are there, at least one, as a divisor.

    >>> present_count(torch.tensor([[[0.0, 2.0], [1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]))
    tensor([[2.],
            [1.]])
    """
    return present(children).sum(1, keepdim=True).clamp_min(1).to(children.dtype)


def no_tensor(name: str) -> ConfigurationError:
    """Return the error of a form that is asked for a tensor, and is not multi-affine."""
    return ConfigurationError(
        f"{name} has no dense tensor, because it is not multi-affine; choose another form, such as mean or positional."
    )


def require_entries(name: str, entries: int) -> None:
    """Raise if a tensor would be too large to be meant."""
    if entries > _MOST_ENTRIES:
        raise ConfigurationError(
            f"{name} expects a tensor of at most {_MOST_ENTRIES:,} entries, got {entries:,} "
            f"({4 * entries / 2**30:,.1f} GiB); choose a smaller rank, state_size or arity, or a form that is linear in the "
            f"arity: canonical, tensor-train or sum."
        )


def require_rank(name: str, rank: int | None) -> int:
    """Return the rank, which this form cannot do without."""
    if rank is None:
        raise ConfigurationError(f"{name} expects a rank, got none; pass rank=…, a small one has fewer parameters.")
    require_positive(name, rank=rank)
    return rank


def balance_output(output: Tensor, mean: Tensor, moment: Tensor) -> None:
    """Draw the output matrix (R, K) so that ``z @ output`` has mean zero and variance one.

    ``mean`` (R,) is that of z and ``moment`` (R, R) is E[z zᵀ]. With rank one the mean cannot be avoided: then the second
    moment is one.
    """
    output.normal_()
    if len(mean) > 1 and float(mean.norm()) > 0:
        direction = mean / mean.norm()
        output -= torch.outer(direction, direction @ output)
    output /= (output * (moment @ output)).sum(0).clamp_min(1e-30).sqrt()


def order_weights(sizes: Sequence[int], like: Tensor) -> Tensor:
    """Return the balanced standard deviation of each entry of a tensor with modes of D_j + 1 entries, constant term zero.

    An entry that multiplies q states has the product of their 1 / sqrt(n D_j), n the number of modes.
    """
    weights = like.new_ones(())
    for size in sizes:
        mode = torch.full((size + 1,), (len(sizes) * size) ** -0.5).to(like)
        mode[-1] = 1
        weights = weights.unsqueeze(-1) * mode
    weights.view(-1)[-1] = 0
    return weights
