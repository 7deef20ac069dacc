"""The data and the models that are measured."""

import functools
import itertools
import random
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import torch

from treefold.data.generators import listops, lrt
from treefold.nn.cells import LeafLSTM, PerLabel, TreeLSTM
from treefold.nn.encoder import TreeEncoder
from treefold.nn.labels import LabelEncoder, Numeric, OneHot, Thermometer
from treefold.nn.heads import Classifier, PairClassifier
from treefold.nn.model import TreeModel
from treefold.training.examples import Examples
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

VECTOR_SIZE: Final = 10
HEADLINE: Final = "listops tucker 20 3"
_ARITY: Final = 5  # of ListOps


class Case(NamedTuple):
    """A Tree-LSTM on data of a kind: a cell for each operator, as in the paper."""

    data: str
    aggregator: str
    state_size: int
    rank: int | None = None
    shared: bool = False


CASES: Final[dict[str, Case]] = {
    HEADLINE: Case("listops", "tucker", 20, 3),
    "listops tucker 50 7": Case("listops", "tucker", 50, 7),
    "listops shared tucker 50 5": Case("listops", "tucker", 50, 5, shared=True),
    "listops sum 25": Case("listops", "sum", 25),
    "listops sum 214": Case("listops", "sum", 214),
    "listops full 3": Case("listops", "full", 3),
    "listops full 5": Case("listops", "full", 5),
    "listops canonical 100 50": Case("listops", "canonical", 100, 50),
    "listops tensor-train 50 12": Case("listops", "tensor-train", 50, 12),
    "vectors sum 25": Case("vectors", "sum", 25),
    "vectors sum 214": Case("vectors", "sum", 214),
    "vectors sum 400": Case("vectors", "sum", 400),
    "lrt sum 10": Case("lrt", "sum", 10),
    "lrt full 10": Case("lrt", "full", 10),
    "lrt tucker 10 7": Case("lrt", "tucker", 10, 7),
    "lrt tucker 100 20": Case("lrt", "tucker", 100, 20),
    "lrt full 100": Case("lrt", "full", 100),
}


def listops_examples(count: int) -> Examples:
    """Generate ListOps trees with their values."""
    trees = list(listops.generate(count))
    return Examples(Forest(trees), np.array([listops.value(tree) for tree in trees]), "tree")


def vector_examples(count: int) -> Examples:
    """Generate ListOps trees with random vectors for digits, so that no two subtrees are equal.

    >>> vector_examples(3).forest.vectors.shape[1]
    10
    """
    rng = random.Random(0)

    def fresh(tree: Tree) -> Tree:
        made: list[Tree] = []
        for node in tree.postorder():
            below = [made.pop() for _ in node.children][::-1]
            made.append(Tree(node.label, below) if below else Tree([rng.random() for _ in range(VECTOR_SIZE)]))
        return made[0]

    trees = list(listops.generate(count))
    return Examples(Forest(map(fresh, trees)), np.array([listops.value(tree) for tree in trees]), "tree")


def lrt_examples(count: int) -> Examples:
    """Generate so many pairs of LRT.

    >>> len(lrt_examples(7)), len(lrt_examples(7).forest)
    (7, 14)
    """
    pairs = list(itertools.islice(lrt.generate(100 * count), count))
    codes = {name: code for code, name in enumerate(lrt.RELATIONS)}
    forest = Forest(tree for pair in pairs for tree in (pair.left, pair.right))
    return Examples(forest, np.array([codes[pair.relation] for pair in pairs]), "pair")


MAKERS: Final[dict[str, Callable[[int], Examples]]] = {
    "listops": listops_examples,
    "vectors": vector_examples,
    "lrt": lrt_examples,
}


@functools.lru_cache(maxsize=4)
def examples_of(data: str, count: int) -> Examples:
    """Return data of a kind, the same each time."""
    return MAKERS[data](count)


def model_of(case: Case) -> TreeModel:
    """Make the model of a case; its weights are the same each time.

    >>> model_of(CASES["lrt sum 10"]).encoder.out_size
    10
    """
    torch.manual_seed(0)
    pairs = case.data == "lrt"
    arities = {"not": 1, "and": 2, "or": 2} if pairs else dict.fromkeys(listops.OPERATORS, _ARITY)
    cells = {
        name: TreeLSTM(case.aggregator, state_size=case.state_size, arity=arity, rank=case.rank, shared=case.shared)
        for name, arity in arities.items()
    }
    makers: dict[str, Callable[[], LabelEncoder]] = {
        "listops": lambda: Thermometer(map(str, range(10))),
        "vectors": lambda: Numeric(VECTOR_SIZE),
        "lrt": lambda: OneHot(lrt.VARIABLES),
    }
    labels = makers[case.data]()
    leaf = LeafLSTM(label_size=labels.size, state_size=case.state_size)
    encoder = TreeEncoder(PerLabel(cells, leaf=leaf), labels)
    if pairs:
        return TreeModel(encoder, PairClassifier(in_size=case.state_size, classes=len(lrt.RELATIONS)))
    return TreeModel(encoder, Classifier(in_size=case.state_size, classes=10))
