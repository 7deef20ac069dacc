"""Aggregators: the maps that combine a node's children, multi-affine in all forms but `Max` and `Squashed`."""

from typing import Any

from treefold._moved import RENAMED_FORMS
from treefold.errors import require_choice
from treefold.nn.aggregators.base import Aggregator, Description, Initialisation
from treefold.nn.aggregators.blockwise import Blockwise, HadamardProduct
from treefold.nn.aggregators.canonical import Canonical, Complex
from treefold.nn.aggregators.combined import Combination, Combined
from treefold.nn.aggregators.full import Full
from treefold.nn.aggregators.max import Max
from treefold.nn.aggregators.mean import Mean
from treefold.nn.aggregators.positional import Positional
from treefold.nn.aggregators.squashed import Squashed
from treefold.nn.aggregators.sum import Sum
from treefold.nn.aggregators.tensor_train import TensorTrain
from treefold.nn.aggregators.tucker import Tucker

AGGREGATORS: dict[str, type[Aggregator]] = {
    "sum": Sum,
    "full": Full,
    "tucker": Tucker,
    "canonical": Canonical,
    "complex": Complex,
    "tensor-train": TensorTrain,
    "blockwise": Blockwise,
    "hadamard-product": HadamardProduct,
    "mean": Mean,
    "positional": Positional,
    "max": Max,
    "squashed": Squashed,
}

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Blockwise",
    "Canonical",
    "Combination",
    "Combined",
    "Complex",
    "Description",
    "Full",
    "HadamardProduct",
    "Initialisation",
    "Max",
    "Mean",
    "Positional",
    "Squashed",
    "Sum",
    "TensorTrain",
    "Tucker",
    "form_named",
]


def form_named(name: str, where: str = "a model") -> type[Aggregator] | Combination:
    """Return the class of a form by its name, or the sum of several: ``"canonical+sum"``.

    >>> form_named("canonical").__name__, form_named("canonical+sum").has_rank
    ('Canonical', True)
    """
    names = [RENAMED_FORMS.get(each, each) for each in name.split("+")]
    for each in names:
        require_choice(where, "aggregator", each, AGGREGATORS)
    return AGGREGATORS[names[0]] if len(names) == 1 else Combination([AGGREGATORS[each] for each in names])


def __getattr__(name: str) -> Any:
    if name == "Hadamard":
        import warnings

        warnings.warn("Hadamard is now called Blockwise, with block_size=1.", DeprecationWarning, stacklevel=2)
        return Blockwise
    raise AttributeError(f"module 'treefold.nn.aggregators' has no attribute {name!r}")
