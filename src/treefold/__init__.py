"""treefold: a fold turns a tree into a value, from the leaves up; treefold learns that fold."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treefold.aggregators import AGGREGATORS, Canonical, Full, Sum, TensorTrain, Tucker
    from treefold.batch import Batch
    from treefold.cells import LeafLSTM, LeafRNN, PerLabel, TreeLSTM, TreeRNN
    from treefold.encoder import TreeEncoder
    from treefold.errors import TreefoldError
    from treefold.estimators import (
        NodeClassifier,
        TreeClassifier,
        TreeEmbedder,
        TreePairClassifier,
        TreeRegressor,
        load,
    )
    from treefold.forest import Forest
    from treefold.labels import Embedding, Numeric, OneHot, Thermometer
    from treefold.models import Classifier, PairClassifier, Regressor, TreeModel, compress
    from treefold.tree import Tree
    from treefold.vocabulary import Vocabulary

__version__ = "0.1.0"

# Names are imported when they are first used: torch and scikit-learn take seconds, and who only reads trees needs neither.
_HOMES = {
    "AGGREGATORS": "treefold.aggregators",
    "Canonical": "treefold.aggregators",
    "Full": "treefold.aggregators",
    "Sum": "treefold.aggregators",
    "TensorTrain": "treefold.aggregators",
    "Tucker": "treefold.aggregators",
    "Batch": "treefold.batch",
    "LeafLSTM": "treefold.cells",
    "LeafRNN": "treefold.cells",
    "PerLabel": "treefold.cells",
    "TreeLSTM": "treefold.cells",
    "TreeRNN": "treefold.cells",
    "TreeEncoder": "treefold.encoder",
    "TreefoldError": "treefold.errors",
    "NodeClassifier": "treefold.estimators",
    "TreeClassifier": "treefold.estimators",
    "TreeEmbedder": "treefold.estimators",
    "TreePairClassifier": "treefold.estimators",
    "TreeRegressor": "treefold.estimators",
    "load": "treefold.estimators",
    "Forest": "treefold.forest",
    "Embedding": "treefold.labels",
    "Numeric": "treefold.labels",
    "OneHot": "treefold.labels",
    "Thermometer": "treefold.labels",
    "Classifier": "treefold.models",
    "PairClassifier": "treefold.models",
    "Regressor": "treefold.models",
    "TreeModel": "treefold.models",
    "compress": "treefold.models",
    "Tree": "treefold.tree",
    "Vocabulary": "treefold.vocabulary",
}

__all__ = [
    "AGGREGATORS",
    "Batch",
    "Canonical",
    "Classifier",
    "Embedding",
    "Forest",
    "Full",
    "LeafLSTM",
    "LeafRNN",
    "NodeClassifier",
    "Numeric",
    "OneHot",
    "PairClassifier",
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
    "TreeRNN",
    "TreeRegressor",
    "TreefoldError",
    "Tucker",
    "Vocabulary",
    "compress",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'treefold' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
