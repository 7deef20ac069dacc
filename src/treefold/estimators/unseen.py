"""Labels that were not there in training: how a model can take them."""

from collections.abc import Iterable
from typing import final

from torch import Tensor

from treefold.nn.cells import Cell, LeafLSTM, LeafRNN, PerLabel
from treefold.nn.encoder import TreeEncoder
from treefold.nn.labels import LabelEncoder
from treefold.nn.model import TreeModel
from treefold.trees.vocabulary import Vocabulary

# Axes:  N nodes · L child slots · S memory size · M label size


@final
class Padded(LabelEncoder):
    """A label encoder with further labels, whose vector is zero.

    >>> import torch
    >>> from treefold import OneHot
    >>> Padded(OneHot(["a", "b"]), ["c"])(torch.tensor([2, 1]), torch.zeros(0, 0))
    tensor([[0., 0.],
            [0., 1.]])
    """

    def __init__(self, labels: LabelEncoder, others: Iterable[str]) -> None:
        super().__init__()
        self.labels = labels
        self.names = Vocabulary([*labels.names, *others])
        self.size = labels.size

    def forward(self, codes: Tensor, vectors: Tensor) -> Tensor:
        """Return the label vectors (N, M)."""
        known = codes < len(self.labels.names)  # vector labels have codes below zero
        rows: Tensor = self.labels(codes[known], vectors)
        return rows.new_zeros(len(codes), self.size).index_put((known,), rows)


@final
class Blind(Cell):
    """A leaf's cell for nodes with any number of children, which it does not see."""

    def __init__(self, leaf: Cell) -> None:
        super().__init__()
        self.leaf = leaf
        self.state_size, self.memory_size, self.label_size = leaf.state_size, leaf.memory_size, leaf.label_size
        self.arity, self.takes_any_number = 0, True

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return the memories of leaves."""
        memory: Tensor = self.leaf(label, children[:, :0])
        return memory


def tolerant(model: TreeModel, others: Iterable[str]) -> TreeModel:
    """Return a model with the same weights that takes further labels.

    Their label vector is zero. Where each operator has a cell of its own, an inner node whose label is no operator counts as
    a leaf: what stands below it is not seen.
    """
    encoder = model.encoder
    assert encoder.labels is not None
    cells = [_tolerant(cell) for cell in encoder.cells.values() if isinstance(cell, Cell)]
    made = TreeEncoder(
        cells[0],
        Padded(encoder.labels, others),
        direction=encoder.direction,
        down_cell=cells[1] if len(cells) > 1 else None,
    )
    return TreeModel(made, model.head).train(model.training)


def _tolerant(cell: Cell) -> Cell:
    if not isinstance(cell, PerLabel):
        return cell
    leaf = cell.cell_of(len(cell.operators))
    if not isinstance(leaf, (LeafLSTM, LeafRNN)):
        return cell
    return PerLabel({name: cell.cell_of(place) for place, name in enumerate(cell.operators)}, leaf=Blind(leaf))
