"""Small classifiers of trees and of pairs, with trees to learn from."""

import random
from typing import Any, cast

import numpy as np
import torch

from treefold import (
    Classifier,
    Forest,
    LeafLSTM,
    OneHot,
    PairClassifier,
    PerLabel,
    Thermometer,
    TreeEncoder,
    TreeLSTM,
    TreeModel,
)
from treefold.nn.aggregators import form_named
from treefold.nn.cells import CELLS, Cell
from treefold.nn.labels import LabelEncoder
from treefold.trees.batch import Ints

DIGITS, ARITIES = "0123456789", {"MAX": 5, "MIN": 5, "MED": 5, "SM": 5}
LETTERS, LOGIC = "abcdef", {"and": 2, "or": 2, "not": 1}


def random_forest(count: int, leaves: str, arities: dict[str, int], *, fixed: bool = False, seed: int = 0) -> Forest:
    """Return trees of operators with up to so many children, or exactly so many."""
    rng = random.Random(seed)

    def grow(depth: int) -> str:
        if depth == 0 or rng.random() < 0.2:
            return rng.choice(leaves)
        name = rng.choice(list(arities))
        children = arities[name] if fixed else rng.randint(1, arities[name])
        return f"({name} {' '.join(grow(depth - 1) for _ in range(children))})"

    return Forest([grow(4) for _ in range(count)])


LISTOPS = random_forest(150, DIGITS, ARITIES, seed=3)
SENTENCES = random_forest(600, LETTERS, LOGIC, fixed=True, seed=4)


def classes_for(count: int, classes: int) -> Ints:
    return np.random.default_rng(count).integers(0, classes, count)


def listops_model(
    aggregator: str = "sum",
    *,
    shared: bool = False,
    kind: str = "lstm",
    labels: LabelEncoder | None = None,
    **head: Any,
) -> TreeModel:
    """Return a classifier of `LISTOPS` with a cell for each operator."""
    torch.manual_seed(0)
    labels = Thermometer(DIGITS) if labels is None else labels
    rank = 2 if form_named(aggregator).has_rank else None
    make, leaf = (cast(Any, each) for each in CELLS[kind])
    cells: dict[str, Cell] = {
        name: make(aggregator, state_size=4, arity=arity, rank=rank, shared=shared) for name, arity in ARITIES.items()
    }
    cell = PerLabel(cells, leaf=leaf(label_size=labels.size, state_size=4))
    return TreeModel(TreeEncoder(cell, labels), Classifier(in_size=4, classes=10, **head)).double()


def pair_model(aggregator: str = "sum", **head: Any) -> TreeModel:
    """Return a classifier of pairs of `SENTENCES`."""
    torch.manual_seed(0)
    cells: dict[str, Cell] = {name: TreeLSTM(aggregator, state_size=4, arity=arity) for name, arity in LOGIC.items()}
    cell = PerLabel(cells, leaf=LeafLSTM(label_size=len(LETTERS), state_size=4))
    return TreeModel(TreeEncoder(cell, OneHot(LETTERS)), PairClassifier(in_size=4, classes=7, **head)).double()


def pairs(count: int) -> Ints:
    """Return the trees of pairs, the left ones first."""
    return np.concatenate([2 * np.arange(count), 2 * np.arange(count) + 1])
