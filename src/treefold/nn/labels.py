"""Label encoders: from the labels of nodes to the vectors x that cells see."""

import abc
from collections.abc import Iterable
from typing import Final, final

import numpy.typing as npt
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, ShapeError, require_positive
from treefold.trees.vocabulary import Vocabulary

# Axes:  N nodes · M label size · V nodes with a vector label


_MOST_ONE_HOT: Final = 8192


class LabelEncoder(nn.Module, abc.ABC):
    """Label vectors for nodes: codes (N,), and the table of vector labels (V, M) -> (N, M).

    A code is the label's place in ``names``; ``-1 - row`` if the label is a row of the table.
    """

    names: Vocabulary
    size: int

    @abc.abstractmethod
    def forward(self, codes: Tensor, vectors: Tensor) -> Tensor:
        """Return the label vectors of nodes."""


class _Table(LabelEncoder):
    """A row for each name."""

    table: Tensor

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = names if isinstance(names, Vocabulary) else Vocabulary(names)
        if not len(self.names):
            raise ConfigurationError(
                f"{type(self).__name__} expects at least one label, got none; take them from forest.vocabulary."
            )

    def forward(self, codes: Tensor, vectors: Tensor) -> Tensor:
        """Look the rows up."""
        if codes.numel() and bool((codes < 0).any()):
            raise ShapeError(
                f"{type(self).__name__} expects text labels, got a vector of {vectors.shape[1]} numbers; "
                f"use Numeric(size={vectors.shape[1]}) for vector labels."
            )
        return nn.functional.embedding(codes, self.table)

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        return f"{len(self.names)} labels, size={self.size}"


@final
class OneHot(_Table):
    """The unit vector of each label; the paper's variables.

    >>> OneHot(["a", "b", "c"])(torch.tensor([1]), torch.zeros(0, 0))
    tensor([[0., 1., 0.]])
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.size = len(self.names)
        if self.size > _MOST_ONE_HOT:
            raise ConfigurationError(
                f"OneHot expects at most {_MOST_ONE_HOT} labels, got {self.size}; use Embedding(names, size) for so many."
            )
        self.register_buffer("table", torch.eye(self.size), persistent=False)


@final
class Thermometer(_Table):
    """Label k of an ordered list has its first k + 1 entries one; the paper's digits.

    >>> Thermometer("0123")(torch.tensor([2]), torch.zeros(0, 0))
    tensor([[1., 1., 1., 0.]])
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.size = len(self.names)
        self.register_buffer("table", torch.ones(self.size, self.size).tril(), persistent=False)


@final
class Embedding(_Table):
    """A learned vector for each label, from standard normal entries or from ``vectors`` that were trained before.

    >>> Embedding(["a", "b"], size=5)(torch.tensor([1, 0, 1]), torch.zeros(0, 0)).shape
    torch.Size([3, 5])
    """

    def __init__(self, names: Iterable[str], size: int | None = None, *, vectors: npt.ArrayLike | None = None) -> None:
        super().__init__(names)
        if (size is None) == (vectors is None):
            raise ConfigurationError("Embedding expects either a size or given vectors, got both or none; choose one.")
        if vectors is None:
            require_positive("Embedding", size=size or 0)
            table = torch.randn(len(self.names), size or 0)
        else:
            table = torch.as_tensor(vectors, dtype=torch.get_default_dtype()).clone()
            if table.dim() != 2 or len(table) != len(self.names):
                raise ShapeError(
                    f"Embedding expects a vector for each of {len(self.names)} labels, got the shape {tuple(table.shape)}."
                )
            if not bool(torch.isfinite(table).all()):
                row = int((~torch.isfinite(table)).any(1).nonzero()[0])
                raise ShapeError(
                    f"Embedding expects finite numbers, got NaN or infinity in the vector of {self.names[row]!r}; replace it."
                )
        self.size = table.shape[1]
        self.table = nn.Parameter(table)


@final
class Numeric(LabelEncoder):
    """Labels that are vectors already, ``Tree((0.5, 1.0), …)``.

    >>> Numeric(size=2)(torch.tensor([-2, -1]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.]])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        require_positive("Numeric", size=size)
        self.names = Vocabulary()
        self.size = size

    def forward(self, codes: Tensor, vectors: Tensor) -> Tensor:
        """Take the rows of the table."""
        if codes.numel() and vectors.shape[1] != self.size:
            raise ShapeError(
                f"Numeric expects vector labels of {self.size} numbers, got {vectors.shape[1]}; "
                f"make it with Numeric(size={vectors.shape[1]})."
            )
        return vectors.reshape(-1, self.size)[-1 - codes]

    def extra_repr(self) -> str:
        """Return the size, for printing."""
        return f"size={self.size}"
