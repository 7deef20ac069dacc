"""Cells: the state transition of a node, built on aggregators. A cell is one file, with its kernel."""

from treefold.nn.cells.base import Cell
from treefold.nn.cells.gru import LeafGRU, TreeGRU
from treefold.nn.cells.lstm import LeafLSTM, TreeLSTM
from treefold.nn.cells.per_label import PerLabel
from treefold.nn.cells.rnn import LeafRNN, TreeRNN

CELLS: dict[str, tuple[type[Cell], type[Cell]]] = {
    "lstm": (TreeLSTM, LeafLSTM),
    "gru": (TreeGRU, LeafGRU),
    "rnn": (TreeRNN, LeafRNN),
}
"""By name: the cell of nodes, and that of leaves which have a label vector and nothing else."""

__all__ = ["CELLS", "Cell", "LeafGRU", "LeafLSTM", "LeafRNN", "PerLabel", "TreeGRU", "TreeLSTM", "TreeRNN"]
