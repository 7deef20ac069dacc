"""Aggregators: the representations of the multi-affine map that combines a node's children."""

from treefold.aggregators.base import Aggregator, Description, Initialisation
from treefold.aggregators.canonical import Canonical
from treefold.aggregators.full import Full
from treefold.aggregators.sum import Sum
from treefold.aggregators.tensor_train import TensorTrain
from treefold.aggregators.tucker import Tucker

AGGREGATORS: dict[str, type[Aggregator]] = {
    "sum": Sum,
    "full": Full,
    "tucker": Tucker,
    "canonical": Canonical,
    "tensor-train": TensorTrain,
}

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Canonical",
    "Description",
    "Full",
    "Initialisation",
    "Sum",
    "TensorTrain",
    "Tucker",
]
