"""Aggregators: the maps that combine a node's children, multi-affine in all forms but `Max`."""

from typing import Any

from treefold.nn.aggregators.base import Aggregator, Description, Initialisation
from treefold.nn.aggregators.blockwise import Blockwise, HadamardProduct
from treefold.nn.aggregators.canonical import Canonical
from treefold.nn.aggregators.full import Full
from treefold.nn.aggregators.max import Max
from treefold.nn.aggregators.mean import Mean
from treefold.nn.aggregators.positional import Positional
from treefold.nn.aggregators.sum import Sum
from treefold.nn.aggregators.tensor_train import TensorTrain
from treefold.nn.aggregators.tucker import Tucker

AGGREGATORS: dict[str, type[Aggregator]] = {
    "sum": Sum,
    "full": Full,
    "tucker": Tucker,
    "canonical": Canonical,
    "tensor-train": TensorTrain,
    "blockwise": Blockwise,
    "hadamard-product": HadamardProduct,
    "mean": Mean,
    "positional": Positional,
    "max": Max,
}

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Blockwise",
    "Canonical",
    "Description",
    "Full",
    "HadamardProduct",
    "Initialisation",
    "Max",
    "Mean",
    "Positional",
    "Sum",
    "TensorTrain",
    "Tucker",
]


def __getattr__(name: str) -> Any:
    if name == "Hadamard":
        import warnings

        warnings.warn("Hadamard is now called Blockwise, with block_size=1.", DeprecationWarning, stacklevel=2)
        return Blockwise
    raise AttributeError(f"module 'treefold.nn.aggregators' has no attribute {name!r}")
