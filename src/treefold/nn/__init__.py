"""Networks on trees.

- aggregators: maps that combine a node's children, each form in one file with its kernel
- cells: state transitions built on aggregators, each in one file with its kernel
- labels: from labels to vectors
- encoder: the states of a batch
- heads: from states to answers
- wide: the linear part beside the network, on counts of labels and of pairs of labels
- model: an encoder with a head; compression of trained ones
- engine: how a model is computed
- flat: all parameters of a training in one tensor
- math: the algebra below
"""

from importlib import import_module
from typing import Any

# The door, imported at the first use: reading it costs no torch.
_HOMES = {
    "Classifier": "heads",
    "Head": "heads",
    "NodeHead": "heads",
    "PairClassifier": "heads",
    "PairRegressor": "heads",
    "Regressor": "heads",
    "TreeEncoder": "encoder",
    "TreeModel": "model",
    "compress": "model",
    "engine_for": "engine",
}


def __getattr__(name: str) -> Any:
    if name == "NodeClassifier":
        import warnings

        warnings.warn("the head NodeClassifier is now called NodeHead.", DeprecationWarning, stacklevel=2)
        name = "NodeHead"
    if name not in _HOMES:
        raise AttributeError(f"module 'treefold.nn' has no attribute {name!r}")
    return getattr(import_module(f"treefold.nn.{_HOMES[name]}"), name)
