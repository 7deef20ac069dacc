"""Networks on trees.

`aggregators` combine a node's children, each form in one file · `cells` turn that into a state transition · `labels` turn labels into vectors ·
`encoder` computes the states of a batch · `heads` turn states into answers · `model` joins encoder and head · `engine` decides how a model is
computed · `flat` keeps all parameters of a training in one tensor · `compress` decomposes trained models · `math` is the algebra below.
"""

from importlib import import_module
from typing import Any

# The door, imported at the first use: reading it costs no torch.
_HOMES = {
    "Classifier": "heads",
    "Head": "heads",
    "NodeHead": "heads",
    "PairClassifier": "heads",
    "Regressor": "heads",
    "TreeEncoder": "encoder",
    "TreeModel": "model",
    "compress": "compress",
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
