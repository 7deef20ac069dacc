"""Effects of points that the paper leaves open and for which there is no setting, one at a time, on small ListOps data.

`python -m experiments.paper.small_effects > effects.jsonl` trains a Hosvd-LSTM c=10 r=3 with the recipe of listops.toml and
prints a line for each run. Variants:

- ``ours``: the zero state for an absent child; Kaiming with the number of terms as fan;
- ``previous sibling``: for an absent child the gates see its previous sibling, as in the authors' code. This custom cell
  runs in plain torch, which is slower than the kernels, hence the small data;
- ``fans of torch``: every tensor of the aggregations is drawn by `torch.nn.init.kaiming_normal_`, as for a convolution;
- ``no forget biases``: forget gates without a bias for each slot.
"""

import argparse
import json
import sys
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from treefold import Classifier, LeafLSTM, PerLabel, Thermometer, TreeEncoder, TreeLSTM, TreeModel
from treefold.data.generators import listops, make_listops
from treefold.nn.cells import Cell
from treefold.training import Examples, Progress, fit
from treefold.training.settings import TrainingSettings

WAYS: Final = ("ours", "fans of torch", "no forget biases", "previous sibling")
_STATE: Final = 10


@final
class PreviousSibling(Cell):
    """A cell whose gates see the state of the previous sibling of an absent child; the memory c is still zero.

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
        """Return the children (N, L, S) with the state of the previous sibling in empty slots."""
        states, present = children[..., : self.state_size], children.abs().sum(2) > 0
        found = [states[:, 0]]
        for slot in range(1, self.arity):
            found.append(torch.where(present[:, slot, None], states[:, slot], found[-1]))
        return torch.cat([torch.stack(found, 1), children[..., self.state_size :]], dim=2)


@final
class Scores:
    """Keeps the validation score of each epoch."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def batch(self, progress: Progress) -> None:
        """Ignore batches."""

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Keep the score."""
        self.found.append(round(metrics["validation_score"], 4))


def cell_of(way: str) -> Cell:
    """Return the cell of an operator."""
    cell = TreeLSTM("tucker", state_size=_STATE, arity=5, rank=3, initialisation="kaiming")
    for name, parameter in cell.named_parameters():
        if way == "fans of torch" and parameter.dim() > 1:
            torch.nn.init.kaiming_normal_(parameter)
        if way == "no forget biases" and name.endswith("slot_biases"):
            torch.nn.init.zeros_(parameter).requires_grad_(False)
    return PreviousSibling(cell) if way == "previous sibling" else cell


def model_of(way: str, seed: int) -> TreeModel:
    """Return the model; with the same seed, all variants draw the same numbers."""
    torch.manual_seed(seed)
    cells = {name: cell_of(way) for name in listops.OPERATORS}
    labels = Thermometer(map(str, range(10)))
    leaf = LeafLSTM(label_size=labels.size, state_size=_STATE, initialisation="kaiming")
    return TreeModel(TreeEncoder(PerLabel(cells, leaf=leaf), labels), Classifier(in_size=_STATE, classes=10))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    options = parser.parse_args()
    data = make_listops(options.trees)
    examples = Examples.of(data, "tree")
    train, validation = (np.asarray(data.splits[name]) for name in ("train", "validation"))
    torch.set_num_threads(1)
    for way in options.ways:
        for seed in options.seeds:
            chosen = TrainingSettings(epochs=options.epochs, patience=None, weight_decay=0.0001, threads=1, seed=seed)
            scores = Scores()
            fit(model_of(way, seed), examples, chosen, train=train, validation=validation, reporter=scores)
            line = {"way": way, "seed": seed, "trees": options.trees, "best": max(scores.found), "curve": scores.found}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
