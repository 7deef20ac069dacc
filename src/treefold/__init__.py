"""treefold: a fold turns a tree into a value, from the leaves up; treefold learns that fold."""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

from treefold import _moved

if TYPE_CHECKING:
    from treefold.analysis.explaining import Explanation
    from treefold.data.objects import as_tree, from_ast, from_element, to_element
    from treefold.errors import TreefoldError
    from treefold.estimators import (
        NodeClassifier,
        TreeClassifier,
        TreeEmbedder,
        TreePairClassifier,
        TreePairRegressor,
        TreeRegressor,
        load,
    )
    from treefold.nn.aggregators import AGGREGATORS, Canonical, Full, Sum, TensorTrain, Tucker
    from treefold.nn.cells import LeafLSTM, LeafRNN, PerLabel, TreeLSTM, TreeRNN
    from treefold.nn.encoder import TreeEncoder
    from treefold.nn.heads import Classifier, PairClassifier, PairRegressor, Regressor
    from treefold.nn.labels import Embedding, Numeric, OneHot, Thermometer
    from treefold.nn.model import TreeModel, compress
    from treefold.service.client import Client
    from treefold.trees.batch import Batch
    from treefold.trees.forest import Forest
    from treefold.trees.tree import Tree
    from treefold.trees.vocabulary import Vocabulary

__version__ = "0.2.0.dev0"

_moved.install()

# Names are imported when they are first used: torch and scikit-learn take seconds, and reading trees needs neither.
_HOMES = {
    "as_tree": "treefold.data.objects",
    "from_ast": "treefold.data.objects",
    "from_element": "treefold.data.objects",
    "to_element": "treefold.data.objects",
    "AGGREGATORS": "treefold.nn.aggregators",
    "Canonical": "treefold.nn.aggregators",
    "Full": "treefold.nn.aggregators",
    "Sum": "treefold.nn.aggregators",
    "TensorTrain": "treefold.nn.aggregators",
    "Tucker": "treefold.nn.aggregators",
    "Batch": "treefold.trees.batch",
    "LeafLSTM": "treefold.nn.cells",
    "LeafRNN": "treefold.nn.cells",
    "PerLabel": "treefold.nn.cells",
    "TreeLSTM": "treefold.nn.cells",
    "TreeRNN": "treefold.nn.cells",
    "TreeEncoder": "treefold.nn.encoder",
    "TreefoldError": "treefold.errors",
    "Explanation": "treefold.analysis.explaining",
    "NodeClassifier": "treefold.estimators",
    "TreeClassifier": "treefold.estimators",
    "TreeEmbedder": "treefold.estimators",
    "TreePairClassifier": "treefold.estimators",
    "TreePairRegressor": "treefold.estimators",
    "TreeRegressor": "treefold.estimators",
    "load": "treefold.estimators",
    "Forest": "treefold.trees.forest",
    "Embedding": "treefold.nn.labels",
    "Numeric": "treefold.nn.labels",
    "OneHot": "treefold.nn.labels",
    "Thermometer": "treefold.nn.labels",
    "Classifier": "treefold.nn.heads",
    "PairClassifier": "treefold.nn.heads",
    "PairRegressor": "treefold.nn.heads",
    "Regressor": "treefold.nn.heads",
    "TreeModel": "treefold.nn.model",
    "compress": "treefold.nn.model",
    "Client": "treefold.service.client",
    "Tree": "treefold.trees.tree",
    "Vocabulary": "treefold.trees.vocabulary",
}

__all__ = [
    "AGGREGATORS",
    "Batch",
    "Canonical",
    "Classifier",
    "Client",
    "Embedding",
    "Explanation",
    "Forest",
    "Full",
    "LeafLSTM",
    "LeafRNN",
    "NodeClassifier",
    "Numeric",
    "OneHot",
    "PairClassifier",
    "PairRegressor",
    "PerLabel",
    "Regressor",
    "Sum",
    "TensorTrain",
    "Thermometer",
    "Tree",
    "TreeClassifier",
    "TreeEmbedder",
    "TreeEncoder",
    "TreeLSTM",
    "TreeModel",
    "TreePairClassifier",
    "TreePairRegressor",
    "TreeRNN",
    "TreeRegressor",
    "TreefoldError",
    "Tucker",
    "Vocabulary",
    "as_tree",
    "compress",
    "from_ast",
    "from_element",
    "load",
    "to_element",
]


_REGISTRIES = ("treefold.nn.aggregators", "treefold.nn.cells")  # their forms and cells need no line of their own here


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'treefold' has no attribute {name!r}")
    was_enabled = gc.isenabled()
    gc.disable()  # the imports of torch and scikit-learn create objects that stay; looking for garbage takes half a second
    try:
        for home in [_HOMES[name]] if name in _HOMES else _REGISTRIES:
            module = import_module(home)
            if name in _HOMES or name in module.__all__ or home == _moved.RENAMED_CLASSES.get(name):
                return getattr(module, name)
    finally:
        if was_enabled:
            gc.enable()
    raise AttributeError(f"module 'treefold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
