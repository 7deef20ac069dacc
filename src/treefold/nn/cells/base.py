"""The cell: the state transition of a node, built on aggregators."""

import abc
import copy
from collections.abc import Callable
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, require_choice, require_positive
from treefold.kernels.layout import CellKernel, CellLayout
from treefold.nn.aggregators import Aggregator, Initialisation, form_named
from treefold.nn.aggregators.sum import sum_kernel

# Axes:  N nodes of one level · L child slots · C state size · S memory size, what a node hands to its parent · M label size
Activation = Literal["tanh", "sigmoid", "sharp-sigmoid", "clamp"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sharp-sigmoid": lambda z: torch.sigmoid(4 * z - 2),  # of slope one at one half
    "clamp": lambda z: nn.functional.hardtanh(z, 0.0, 1.0),  # without a gradient at 0 and 1, where `clamp` has one
}


class Cell(nn.Module, abc.ABC):
    """The transition from a node's label (N, M) and the memories of its children (N, L, S) to its own memory (N, S).

    The first ``state_size`` entries of the memory are the state h. The zero memory is the absent child. ``operator`` (N,)
    says which of ``operators`` each node has, ``len(operators)`` if it has none; cells without operators ignore it.

    A cell without a ``kernel`` is computed by torch.
    """

    state_size: int
    memory_size: int
    arity: int
    label_size: int | None
    takes_any_number: bool
    operators: tuple[str, ...] = ()
    kernel: CellKernel | None = None

    @abc.abstractmethod
    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return the memories of N nodes."""

    def arity_of(self, operator: int) -> int | None:
        """Return how many child slots a node with this operator may have; None for any number."""
        return None if self.takes_any_number else self.arity

    def unsupported_reason(self) -> str | None:
        """Say what the fused kernels expect and this cell is not; None if they can compute it."""
        return None if self.kernel is not None else f"a cell with a kernel, got {type(self).__name__}, which has none"

    def lay_out(self, layout: CellLayout) -> None:
        """Put the parameters into the places that the kernel reads."""
        raise ConfigurationError(f"{type(self).__name__} has no kernel.")

    @final
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for module in self.children():  # an aggregator resets its own parts, and balances them to each other
            for part in module if isinstance(module, nn.ModuleList) else [module]:
                if isinstance(part, (Aggregator, ChildGates, Affine, Cell)):
                    part.reset_parameters()


class InnerCell(Cell):
    """A cell with one aggregator for each gate, all of one form."""

    activation: str

    @abc.abstractmethod
    def gates(self) -> list[Aggregator]:
        """Return the aggregators, in the order of the kernel."""

    def unsupported_reason(self) -> str | None:
        """Say what the fused kernels expect and this cell is not."""
        aggregators = self.gates()
        if aggregators[0].kernel() is None:
            return f"an aggregator with a kernel, got {type(aggregators[0]).__name__}, which has none"
        kinds = {tuple((type(part), part.extra_repr()) for part in each.summands) for each in aggregators}
        if len(kinds) > 1:
            return "gates with aggregators of one form and size, got different ones"
        return super().unsupported_reason()


class LeafCell(Cell):
    """The cell of leaves that have a label vector and nothing else: gates of the label alone."""

    activation: str
    gate_count: int

    def __init__(
        self, label_size: int, state_size: int, memory_size: int, activation: str, initialisation: Initialisation
    ) -> None:
        super().__init__()
        name = type(self).__name__
        require_choice(name, "initialisation", initialisation, ["balanced", "kaiming"])
        require_positive(name, label_size=label_size, state_size=state_size)
        require_choice(name, "activation", activation, ACTIVATIONS)
        self.state_size, self.memory_size = state_size, memory_size
        self.label_size, self.arity, self.takes_any_number = label_size, 0, False
        self.activation = activation
        self.affine = Affine(label_size, self.gate_count * state_size, initialisation)

    def lay_out(self, layout: CellLayout) -> None:
        """Add the affine map as a sum without children."""
        layout.add_leaf(self.affine, sum_kernel(self.state_size), self.activation)


class ChildGates(nn.Module):
    r"""One gate for each child, which sees the label and that child alone: (N, L, C) -> (N, L, C).

    .. math:: g_j = \sigma(W x + U_j h_j + b_j)

    Balanced initialisation opens the gates with a bias of one.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("slot_biases",)

    def __init__(self, pattern: Aggregator) -> None:
        super().__init__()
        size, slots = pattern.state_size, () if pattern.shared else (pattern.arity,)
        self.shared, self.initialisation = pattern.shared, pattern.initialisation
        self.slot_weights = nn.Parameter(torch.empty(*slots, size, size))
        self.slot_biases = nn.Parameter(torch.empty(*slots, size))
        self.label_weights = nn.Parameter(torch.empty(pattern.label_size, size)) if pattern.label_size else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights by the aggregator's rule: here each gate sums C + M terms."""
        balanced = self.initialisation == "balanced"
        size, label_size = self.slot_weights.shape[-2], 0 if self.label_weights is None else len(self.label_weights)
        with torch.no_grad():
            self.slot_weights.normal_(std=(size + label_size) ** -0.5 if balanced else (2 / size) ** 0.5)
            self.slot_biases.fill_(1.0 if balanced else 0.0)
            if self.label_weights is not None:
                self.label_weights.normal_(std=(size + label_size) ** -0.5 if balanced else (2 / label_size) ** 0.5)

    def share(self) -> None:
        """Give all slots the same gate, the mean of those that they have."""
        if not self.shared:
            for name in ("slot_weights", "slot_biases"):
                old = self.get_parameter(name)
                setattr(self, name, nn.Parameter(old.detach().mean(0), requires_grad=old.requires_grad))
            self.shared = True

    def forward(self, h: Tensor, label: Tensor | None) -> Tensor:
        """Return the gates for the children's states."""
        if self.shared:
            gates = h @ self.slot_weights + self.slot_biases
        else:
            given = h.shape[1]  # slots beyond are absent: their memory is zero, gated or not
            weights, biases = self.slot_weights[:given], self.slot_biases[:given]
            gates = torch.baddbmm(biases.unsqueeze(1), h.transpose(0, 1), weights).transpose(0, 1)
        if label is not None and self.label_weights is not None:
            gates = gates + (label @ self.label_weights).unsqueeze(1)
        return gates.sigmoid()


class Affine(nn.Module):
    """W x + b: (N, M) -> (N, K)."""

    def __init__(self, in_size: int, out_size: int, initialisation: Initialisation) -> None:
        super().__init__()
        self.initialisation = initialisation
        self.weights = nn.Parameter(torch.empty(in_size, out_size))
        self.bias = nn.Parameter(torch.empty(out_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights by the aggregators' rule; the bias is zero."""
        with torch.no_grad():
            self.weights.normal_(std=((1 if self.initialisation == "balanced" else 2) / len(self.weights)) ** 0.5)
            self.bias.zero_()

    def forward(self, label: Tensor) -> Tensor:
        """Apply the map."""
        return torch.addmm(self.bias, label, self.weights)


def make_aggregator(
    aggregator: str | Aggregator,
    state_size: int | None,
    arity: int | None,
    rank: int | None,
    label_size: int | None,
    shared: bool,
    initialisation: Initialisation,
    *,
    out_size: int | None = None,
    **options: Any,
) -> Aggregator:
    """Make an aggregator by name, sizes and options, or take the object; ``out_size`` is that of a hidden layer."""
    if isinstance(aggregator, Aggregator):
        if options or (state_size, arity, rank, label_size, shared) != (None, None, None, None, False):
            raise ConfigurationError("a cell expects an aggregator object or its sizes, got both; leave the sizes out.")
        expected = aggregator.state_size if out_size is None else out_size
        if aggregator.out_size != expected:
            raise ConfigurationError(
                f"a cell expects an aggregator with out_size = {'state_size' if out_size is None else 'hidden'}, "
                f"got {aggregator.out_size} and {expected}."
            )
        return aggregator
    form = form_named(aggregator, "a cell")
    if state_size is None or arity is None:
        raise ConfigurationError(
            f"a cell expects state_size and arity for aggregator={aggregator!r}, got {state_size} and {arity}; "
            f"arity is the greatest number of children, forest.arity."
        )
    return form(
        state_size=state_size,
        out_size=out_size,
        arity=arity,
        rank=rank,
        label_size=label_size,
        shared=shared,
        initialisation=initialisation,
        **options,
    )


def take_sizes(cell: Cell, aggregator: Aggregator) -> None:
    """Give a cell the sizes of its aggregator."""
    cell.state_size = aggregator.state_size
    cell.arity = aggregator.arity
    cell.label_size = aggregator.label_size
    cell.takes_any_number = aggregator.takes_any_number


def fresh_copy(aggregator: Aggregator) -> Aggregator:
    """Return a copy with parameters drawn again."""
    other = copy.deepcopy(aggregator)
    other.reset_parameters()
    return other


def layout_of(cell: Cell) -> CellLayout:
    """Lay out the parameters of a cell that `Cell.unsupported_reason` has nothing against."""
    assert cell.kernel is not None
    layout = CellLayout(cell.state_size, cell.memory_size, cell.kernel)
    cell.lay_out(layout)
    return layout
