"""treefold: a fold turns a tree into a value, from the leaves up; treefold learns that fold."""

from treefold.aggregators import AGGREGATORS, Canonical, Full, Sum, TensorTrain, Tucker
from treefold.batch import Batch
from treefold.cells import LeafLSTM, LeafRNN, PerLabel, TreeLSTM, TreeRNN
from treefold.encoder import TreeEncoder
from treefold.errors import TreefoldError
from treefold.forest import Forest
from treefold.labels import Embedding, Numeric, OneHot, Thermometer
from treefold.models import Classifier, NodeClassifier, PairClassifier, Regressor, TreeModel, compress
from treefold.tree import Tree
from treefold.vocabulary import Vocabulary

__version__ = "0.1.0"
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
    "TreeEncoder",
    "TreeLSTM",
    "TreeModel",
    "TreeRNN",
    "TreefoldError",
    "Tucker",
    "Vocabulary",
    "compress",
]
