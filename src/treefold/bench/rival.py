"""pytorch-tree-lstm, a published child-sum Tree-LSTM in torch, on the same trees: the package to compare with."""

import importlib
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from treefold.bench.options import MissingPackageError
from treefold.nn.heads import Classifier
from treefold.training.examples import Examples

# Axes:  N nodes of the batch · E edges · B trees · K classes
RIVAL: Final = "pytorch-tree-lstm"
Ints = npt.NDArray[np.int64]


def rival_package() -> Any:
    """Return the package, or say how it is had."""
    try:
        return importlib.import_module("treelstm")
    except ImportError:
        raise MissingPackageError(
            f"this case expects the package {RIVAL}, got none; pip install 'treefold[bench]', or choose other cases."
        ) from None


def edges_of(parents: Ints, sizes: Ints) -> Ints:
    """Return the edges (E, 2), parent and child, of trees laid out as in a forest; those of one parent together, in its order.

    >>> edges_of(np.array([2, 2, -1, 1, -1]), np.array([3, 2])).tolist()  # (f a b) and (g c)
    [[2, 0], [2, 1], [4, 3]]
    """
    rows = parents + np.repeat(np.cumsum(sizes) - sizes, sizes)
    children = np.flatnonzero(parents >= 0)
    order = np.argsort(rows[children], kind="stable")
    return np.stack([rows[children], children], axis=1)[order]


@final
class RivalModel(nn.Module):
    """The package's Tree-LSTM with treefold's head: from numbers of trees to class scores (B, K)."""

    def __init__(self, examples: Examples, state_size: int, classes: int) -> None:
        super().__init__()
        package = rival_package()
        self.examples = examples
        self.orders = package.calculate_evaluation_orders
        self.lstm = package.TreeLSTM(len(examples.forest.vocabulary), state_size)
        self.layers = Classifier(in_size=state_size, classes=classes).layers
        self.register_buffer("one_hot", torch.eye(len(examples.forest.vocabulary)))

    def forward(self, chosen: Ints) -> Tensor:
        """Schedule as the package does, the whole batch at once, which is its fastest way; then run it."""
        forest = self.examples.forest
        rows, sizes = forest.node_rows(chosen), forest.sizes[chosen]
        edges = edges_of(forest.parents[rows].astype(np.int64), sizes)
        node_order, edge_order = self.orders(edges, len(rows))
        labels = torch.from_numpy(forest.labels[rows].astype(np.int64))
        features = self.get_buffer("one_hot").index_select(0, labels)
        states, _ = self.lstm(
            features, torch.from_numpy(node_order), torch.from_numpy(edges), torch.from_numpy(edge_order)
        )
        scores: Tensor = self.layers(states[torch.from_numpy(np.cumsum(sizes) - 1)])
        return scores
