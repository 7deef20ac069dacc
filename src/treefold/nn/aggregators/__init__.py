"""Aggregators: the representations of the multi-affine map that combines a node's children."""

from treefold.nn.aggregators.base import Aggregator, Description, Initialisation
from treefold.nn.aggregators.canonical import Canonical
from treefold.nn.aggregators.full import Full
from treefold.nn.aggregators.hadamard import Hadamard, HadamardProduct
from treefold.nn.aggregators.sum import Sum
from treefold.nn.aggregators.tensor_train import TensorTrain
from treefold.nn.aggregators.tucker import Tucker

AGGREGATORS: dict[str, type[Aggregator]] = {
    "sum": Sum,
    "full": Full,
    "tucker": Tucker,
    "canonical": Canonical,
    "tensor-train": TensorTrain,
    "hadamard": Hadamard,
    "hadamard-product": HadamardProduct,
}

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Canonical",
    "Description",
    "Full",
    "Hadamard",
    "HadamardProduct",
    "Initialisation",
    "Sum",
    "TensorTrain",
    "Tucker",
]
