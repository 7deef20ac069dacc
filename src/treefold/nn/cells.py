"""Cells: the state transition of a node, built on aggregators."""

import abc
import copy
from collections.abc import Callable, Mapping
from typing import Literal, final

import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, ShapeError, require_choice, require_positive
from treefold.nn.aggregators import AGGREGATORS, Aggregator, Initialisation

# Axes:  N nodes of one level · L child slots · C state size · S memory size, what a node hands to its parent · M label size


class Cell(nn.Module, abc.ABC):
    """The transition from a node's label (N, M) and the memories of its children (N, L, S) to its own memory (N, S).

    The first ``state_size`` entries of the memory are the state h. The zero memory is the absent child. ``operator`` (N,)
    says which of ``operators`` stands at each node, ``len(operators)`` where none does; cells without operators ignore it.
    """

    state_size: int
    memory_size: int
    arity: int
    label_size: int | None
    takes_any_number: bool
    operators: tuple[str, ...] = ()

    @abc.abstractmethod
    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return the memories of N nodes."""

    def arity_of(self, operator: int) -> int | None:
        """Return how many child slots a node with this operator may have; None for any number."""
        return None if self.takes_any_number else self.arity

    @final
    def reset_parameters(self) -> None:
        """Draw fresh parameters."""
        for module in self.children():  # an aggregator resets its own parts, and balances them to each other
            if isinstance(module, (Aggregator, _ForgetGates, _Affine, Cell)):
                module.reset_parameters()
            elif isinstance(module, nn.ModuleList):
                for cell in module:
                    assert isinstance(cell, Cell)
                    cell.reset_parameters()


@final
class TreeRNN(Cell):
    r"""The recursive neuron: :math:`h_v = \sigma(f(x_v, h_{v1}, \dots, h_{vL}))` with an aggregator f.

    ``aggregator`` is a name of `AGGREGATORS` with its sizes, or an aggregator object.

    >>> cell = TreeRNN("sum", state_size=4, arity=2, label_size=3)
    >>> cell(torch.zeros(5, 3), torch.zeros(5, 2, 4)).shape
    torch.Size([5, 4])
    """

    def __init__(
        self,
        aggregator: str | Aggregator,
        *,
        state_size: int | None = None,
        arity: int | None = None,
        rank: int | None = None,
        label_size: int | None = None,
        shared: bool = False,
        activation: Literal["tanh", "sigmoid"] = "tanh",
        initialisation: Initialisation = "balanced",
    ) -> None:
        super().__init__()
        require_choice("TreeRNN", "activation", activation, _ACTIVATIONS)
        pattern = _aggregator(aggregator, state_size, arity, rank, label_size, shared, initialisation)
        _take_sizes(self, pattern)
        self.memory_size = self.state_size
        self.activation = activation
        self.transition = pattern

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return h (N, C)."""
        return _ACTIVATIONS[self.activation](self.transition(children, label))


@final
class TreeLSTM(Cell):
    r"""The Tree-LSTM of the paper; Sum-, Full- or Hosvd-LSTM as the aggregator is `Sum`, `Full` or `Tucker`.

    .. math::
        i = \sigma(f^I(x, h_1 \dots h_L)),\quad o = \sigma(f^O(x, h_1 \dots h_L)),\quad u = \tanh(f^U(x, h_1 \dots h_L)), \\
        f_j = \sigma(W^f x + U^f_j h_j + b^f_j),\quad c = i \circ u + \sum_j f_j \circ c_j,\quad h = o \circ \tanh(c)

    The paper writes σ for u: ``update="sigmoid"``. The memory is [h; c]. Balanced initialisation opens the forget gates
    with a bias of one.

    >>> cell = TreeLSTM("tucker", state_size=4, arity=2, rank=3)
    >>> cell(None, torch.zeros(5, 2, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        aggregator: str | Aggregator,
        *,
        state_size: int | None = None,
        arity: int | None = None,
        rank: int | None = None,
        label_size: int | None = None,
        shared: bool = False,
        update: Literal["tanh", "sigmoid"] = "tanh",
        initialisation: Initialisation = "balanced",
    ) -> None:
        super().__init__()
        require_choice("TreeLSTM", "update", update, _ACTIVATIONS)
        pattern = _aggregator(aggregator, state_size, arity, rank, label_size, shared, initialisation)
        _take_sizes(self, pattern)
        self.memory_size = 2 * self.state_size
        self.update = update
        self.input_gate = pattern
        self.output_gate = _fresh_copy(pattern)
        self.update_value = _fresh_copy(pattern)
        self.forget_gates = _ForgetGates(pattern)

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return [h; c] (N, 2C)."""
        if children.dim() != 3 or children.shape[2] != self.memory_size:
            raise ShapeError(
                f"TreeLSTM expects the memories [h; c] of children, (N, L, {self.memory_size}), got {tuple(children.shape)}."
            )
        h, c = torch.split(children, self.state_size, dim=2)  # (N, L, C) each
        i = self.input_gate(h, label).sigmoid()
        o = self.output_gate(h, label).sigmoid()
        u = _ACTIVATIONS[self.update](self.update_value(h, label))
        c = i * u + (self.forget_gates(h, label) * c).sum(1)  # (N, C)
        return torch.cat([o * c.tanh(), c], dim=1)


class _ForgetGates(nn.Module):
    """One gate for each child, which sees the label and that child alone: (N, L, C) -> (N, L, C)."""

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

    def forward(self, h: Tensor, label: Tensor | None) -> Tensor:
        if self.shared:
            gates = h @ self.slot_weights + self.slot_biases
        else:
            given = h.shape[1]  # slots beyond are absent: their memory is zero, and so is what a gate lets through
            weights, biases = self.slot_weights[:given], self.slot_biases[:given]
            gates = torch.baddbmm(biases.unsqueeze(1), h.transpose(0, 1), weights).transpose(0, 1)
        if label is not None and self.label_weights is not None:
            gates = gates + (label @ self.label_weights).unsqueeze(1)
        return gates.sigmoid()


@final
class LeafRNN(Cell):
    r"""The base case of the recursion for leaves that have a label vector and nothing else: :math:`h = \sigma(W x + b)`.

    >>> LeafRNN(label_size=3, state_size=4)(torch.zeros(5, 3), torch.zeros(5, 0, 4)).shape
    torch.Size([5, 4])
    """

    def __init__(
        self,
        *,
        label_size: int,
        state_size: int,
        activation: Literal["tanh", "sigmoid"] = "tanh",
        initialisation: Initialisation = "balanced",
    ) -> None:
        super().__init__()
        require_choice("LeafRNN", "initialisation", initialisation, ["balanced", "kaiming"])
        require_positive("LeafRNN", label_size=label_size, state_size=state_size)
        require_choice("LeafRNN", "activation", activation, _ACTIVATIONS)
        self.state_size = self.memory_size = state_size
        self.label_size, self.arity, self.takes_any_number = label_size, 0, False
        self.activation = activation
        self.affine = _Affine(label_size, state_size, initialisation)

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return h (N, C)."""
        return _ACTIVATIONS[self.activation](self.affine(label))


@final
class LeafLSTM(Cell):
    r"""The base case of the Tree-LSTM for leaves: the gates i, o and u of the label alone, :math:`c = i \circ u`.

    >>> LeafLSTM(label_size=3, state_size=4)(torch.zeros(5, 3), torch.zeros(5, 0, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        *,
        label_size: int,
        state_size: int,
        update: Literal["tanh", "sigmoid"] = "tanh",
        initialisation: Initialisation = "balanced",
    ) -> None:
        super().__init__()
        require_choice("LeafLSTM", "initialisation", initialisation, ["balanced", "kaiming"])
        require_positive("LeafLSTM", label_size=label_size, state_size=state_size)
        require_choice("LeafLSTM", "update", update, _ACTIVATIONS)
        self.state_size, self.memory_size = state_size, 2 * state_size
        self.label_size, self.arity, self.takes_any_number = label_size, 0, False
        self.update = update
        self.affine = _Affine(label_size, 3 * state_size, initialisation)

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return [h; c] (N, 2C)."""
        i, o, u = self.affine(label).chunk(3, dim=1)
        c = i.sigmoid() * _ACTIVATIONS[self.update](u)
        return torch.cat([o.sigmoid() * c.tanh(), c], dim=1)


class _Affine(nn.Module):
    """W x + b: (N, M) -> (N, K)."""

    def __init__(self, in_size: int, out_size: int, initialisation: Initialisation) -> None:
        super().__init__()
        self.initialisation = initialisation
        self.weights = nn.Parameter(torch.empty(in_size, out_size))
        self.bias = nn.Parameter(torch.empty(out_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights by the aggregators' rule, the bias zero."""
        with torch.no_grad():
            self.weights.normal_(std=((1 if self.initialisation == "balanced" else 2) / len(self.weights)) ** 0.5)
            self.bias.zero_()

    def forward(self, label: Tensor) -> Tensor:
        return torch.addmm(self.bias, label, self.weights)


@final
class PerLabel(Cell):
    """An own cell for every operator, and one for the leaves, which sees their label vector: the paper's experiments.

    A node's text label chooses the cell: one of ``cells``, or else ``leaf``. Operators need no label vector, since each has
    weights of its own.

    >>> operators = {name: TreeLSTM("tucker", state_size=4, arity=2, rank=3) for name in ("MIN", "MAX")}
    >>> cell = PerLabel(operators, leaf=LeafLSTM(label_size=10, state_size=4))
    >>> cell(torch.zeros(3, 10), torch.zeros(3, 2, 8), torch.tensor([1, 0, 2])).shape  # MAX, MIN, a leaf
    torch.Size([3, 8])
    """

    def __init__(self, cells: Mapping[str, Cell], *, leaf: Cell) -> None:
        super().__init__()
        if not cells:
            raise ConfigurationError("PerLabel expects a cell for at least one operator, got none; pass {label: cell}.")
        for name, cell in [*cells.items(), ("the leaves", leaf)]:
            if not isinstance(cell, Cell) or isinstance(cell, PerLabel):
                raise ConfigurationError(
                    f"PerLabel expects a TreeRNN or TreeLSTM for {name!r}, got {type(cell).__name__}."
                )
        for name, cell in cells.items():
            if (cell.state_size, cell.memory_size) != (leaf.state_size, leaf.memory_size):
                raise ConfigurationError(
                    f"PerLabel expects cells of one kind and size, got state and memory sizes {cell.state_size}, "
                    f"{cell.memory_size} for {name!r} and {leaf.state_size}, {leaf.memory_size} for the leaves."
                )
            if cell.label_size is not None:
                raise ConfigurationError(
                    f"PerLabel expects operator cells without a label mode, got label_size={cell.label_size} for {name!r}; "
                    f"the operator chooses the cell, leave label_size out."
                )
        if leaf.label_size is None:
            raise ConfigurationError("PerLabel expects a leaf cell that sees a label vector, got label_size=None.")
        self.operators = tuple(cells)
        self.cells = nn.ModuleList([*cells.values(), leaf])
        self.state_size, self.memory_size, self.label_size = leaf.state_size, leaf.memory_size, leaf.label_size
        self.arity = max(cell.arity for cell in [*cells.values(), leaf])
        self.takes_any_number = all(cell.takes_any_number for cell in [*cells.values(), leaf] if cell.arity)

    def arity_of(self, operator: int) -> int | None:
        """Return the arity of the cell of an operator, or of the leaves."""
        return self.cell_of(operator).arity_of(0)

    def cell_of(self, operator: int) -> Cell:
        """Return the cell of an operator; ``len(operators)`` is the leaves'."""
        cell = self.cells[operator]
        assert isinstance(cell, Cell)
        return cell

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return the memories; runs of nodes with the same operator go through its cell together."""
        assert label is not None and operator is not None
        runs, lengths = torch.unique_consecutive(operator, return_counts=True)
        sizes = lengths.tolist()
        parts = []
        for kind, x, slots in zip(runs.tolist(), torch.split(label, sizes), torch.split(children, sizes), strict=True):
            cell = self.cell_of(kind)
            if not cell.takes_any_number:  # other nodes of the level may have more slots
                slots = slots[:, : cell.arity]
            parts.append(cell(x if kind == len(self.operators) else None, slots))
        return torch.cat(parts)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}


def _aggregator(
    aggregator: str | Aggregator,
    state_size: int | None,
    arity: int | None,
    rank: int | None,
    label_size: int | None,
    shared: bool,
    initialisation: Initialisation,
) -> Aggregator:
    """Make an aggregator by name and sizes, or take one as it is."""
    if isinstance(aggregator, Aggregator):
        if (state_size, arity, rank, label_size, shared) != (None, None, None, None, False):
            raise ConfigurationError("a cell expects an aggregator object or its sizes, got both; leave the sizes out.")
        if aggregator.out_size != aggregator.state_size:
            raise ConfigurationError(
                f"a cell expects an aggregator with out_size = state_size, got {aggregator.out_size} and {aggregator.state_size}."
            )
        return aggregator
    require_choice("a cell", "aggregator", aggregator, AGGREGATORS)
    if state_size is None or arity is None:
        raise ConfigurationError(
            f"a cell expects state_size and arity for aggregator={aggregator!r}, got {state_size} and {arity}; "
            f"arity is the greatest number of children, forest.arity."
        )
    return AGGREGATORS[aggregator](
        state_size=state_size,
        arity=arity,
        rank=rank,
        label_size=label_size,
        shared=shared,
        initialisation=initialisation,
    )


def _take_sizes(cell: Cell, aggregator: Aggregator) -> None:
    cell.state_size = aggregator.state_size
    cell.arity = aggregator.arity
    cell.label_size = aggregator.label_size
    cell.takes_any_number = aggregator.takes_any_number


def _fresh_copy(aggregator: Aggregator) -> Aggregator:
    other = copy.deepcopy(aggregator)
    other.reset_parameters()
    return other
