"""What it makes to put the previous sibling where a child is absent, as the authors' code does, instead of the zero state.

`python experiments/previous_sibling.py` trains a Hosvd-LSTM both ways on small ListOps data and prints a line for each epoch.
The cell below is one of a user's own: it goes through plain torch, which takes longer than the kernels, hence the size.
"""

import argparse
import json
import sys
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from treefold import Classifier, LeafLSTM, PerLabel, Thermometer, TreeEncoder, TreeLSTM, TreeModel
from treefold.cells import Cell
from treefold.datasets import listops
from treefold.datasets.build import make_listops
from treefold.settings import TrainingSettings
from treefold.training import Examples, Progress, fit


@final
class PreviousSibling(Cell):
    """A cell whose gates see the state of the sibling before, where a child is absent; its c is still zero.

    >>> cell = PreviousSibling(TreeLSTM("sum", state_size=1, arity=3))
    >>> both = torch.tensor([[[0.5, 1.0], [0.0, 0.0], [0.0, 0.0]]])
    >>> cell.filled(both).tolist()
    [[[0.5, 1.0], [0.5, 0.0], [0.5, 0.0]]]
    """

    def __init__(self, cell: TreeLSTM) -> None:
        super().__init__()
        self.cell = cell
        self.state_size, self.memory_size, self.arity = cell.state_size, cell.memory_size, cell.arity
        self.label_size, self.takes_any_number = cell.label_size, cell.takes_any_number

    def forward(self, label: Tensor | None, children: Tensor, operator: Tensor | None = None) -> Tensor:
        """Return the memories of N nodes."""
        missing = self.arity - children.shape[1]
        memories: Tensor = self.cell(label, self.filled(torch.nn.functional.pad(children, (0, 0, 0, missing))))
        return memories

    def filled(self, children: Tensor) -> Tensor:
        """Return the children (N, L, S) with the states of siblings in empty slots."""
        states, present = children[..., : self.state_size], children.abs().sum(2) > 0
        found = [states[:, 0]]
        for slot in range(1, self.arity):
            found.append(torch.where(present[:, slot, None], states[:, slot], found[-1]))
        return torch.cat([torch.stack(found, 1), children[..., self.state_size :]], dim=2)


@final
class Lines:
    """Prints a line of JSON for each epoch."""

    def __init__(self, absent: str) -> None:
        self.absent = absent

    def batch(self, progress: Progress) -> None:
        """Say nothing."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Say how good it is."""
        chosen = {name: round(metrics[name], 4) for name in ("loss", "accuracy", "validation_score")}
        sys.stdout.write(json.dumps({"absent": self.absent, "epoch": metrics["epoch"], **chosen}) + "\n")
        sys.stdout.flush()


def model_of(absent: str) -> TreeModel:
    """Make the model, with the same weights both ways."""
    torch.manual_seed(0)
    cells: dict[str, Cell] = {}
    for name in listops.OPERATORS:
        cell = TreeLSTM("tucker", state_size=10, arity=5, rank=3, initialisation="kaiming")
        cells[name] = PreviousSibling(cell) if absent == "previous" else cell
    labels = Thermometer(map(str, range(10)))
    leaf = LeafLSTM(label_size=labels.size, state_size=10)
    return TreeModel(TreeEncoder(PerLabel(cells, leaf=leaf), labels), Classifier(in_size=10, classes=10))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    data = make_listops(options.trees)
    examples = Examples.of(data, "tree")
    settings = TrainingSettings(batch_size=100, epochs=options.epochs, patience=None, threads=1)
    torch.set_num_threads(1)
    for way in ("zero", "previous"):
        train, validation = (np.asarray(data.splits[name]) for name in ("train", "validation"))
        fit(model_of(way), examples, settings, train=train, validation=validation, reporter=Lines(way))
