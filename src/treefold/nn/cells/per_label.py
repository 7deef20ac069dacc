"""An own cell for every operator."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError
from treefold.kernels.layout import CellKernel, CellLayout
from treefold.nn.cells.base import Cell

# Axes:  N nodes of one level · L child slots · M label size


@final
class PerLabel(Cell):
    """An own cell for every operator, and one for the leaves, which sees their label vector: the paper's experiments.

    A node's text label chooses the cell: one of ``cells``, or else ``leaf``. Operators need no label vector, since each has
    weights of its own.

    >>> from treefold import LeafLSTM, TreeLSTM
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

    @property
    def kernel(self) -> CellKernel | None:  # type: ignore[override]
        """That of the leaves' cell, which the others share."""
        return self.cell_of(len(self.operators)).kernel

    def unsupported_reason(self) -> str | None:
        """Say what the fused kernels expect and the cells are not."""
        cells = [self.cell_of(index) for index in range(len(self.operators) + 1)]
        if len({id(cell.kernel) for cell in cells}) > 1:
            return "cells of one kind for all operators and leaves, got different ones"
        return next((reason for cell in cells if (reason := cell.unsupported_reason()) is not None), None)

    def lay_out(self, layout: CellLayout) -> None:
        """Add all cells, that of the leaves last."""
        for index in range(len(self.operators) + 1):
            self.cell_of(index).lay_out(layout)

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
