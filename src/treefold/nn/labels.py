"""Label encoders: from the labels of nodes to the vectors x that cells see."""

import abc
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, ShapeError, require_positive
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest
from treefold.trees.objects import EDGE, split_edge
from treefold.trees.vocabulary import UNKNOWN, Vocabulary

# Axes:  N nodes · M label size · V nodes with a vector label · D labels of a vocabulary · F features of all these labels


_MOST_ONE_HOT: Final = 8192
UNKNOWN_EDGE: Final = UNKNOWN + EDGE
BUCKETS: Final = 8192  # rows of character n-grams; saved models depend on it
_SHORTEST, _LONGEST = 3, 5  # n-grams


class Bags(NamedTuple):
    """The features of labels: those of label k are ``rows[starts[k]:starts[k + 1]]``, each with a weight."""

    starts: Ints  # (D + 1,)
    rows: Ints  # (F,)
    weights: npt.NDArray[np.float64]  # (F,)

    def followed_by(self, other: "Bags") -> "Bags":
        """Join two lists of labels."""
        starts = np.concatenate([self.starts, other.starts[1:] + self.starts[-1]])
        return Bags(starts, np.concatenate([self.rows, other.rows]), np.concatenate([self.weights, other.weights]))


class LabelEncoder(nn.Module, abc.ABC):
    """Label vectors for nodes: codes (N,), and the table of vector labels (V, M) -> (N, M).

    A code is the label's place in ``names``; ``-1 - row`` if the label is a row of the table. ``unknown_code`` is the code of
    labels that are not in ``names``; None if the encoder has no vector for them.
    """

    names: Vocabulary
    size: int
    unknown_code: int | None = None

    @abc.abstractmethod
    def forward(self, codes: Tensor, vectors: Tensor) -> Tensor:
        """Return the label vectors of nodes."""

    def knows(self, vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
        """Say for each label of a vocabulary whether it has a vector of its own, (D,)."""
        return vocabulary.codes_in(self.names) >= 0


class Table(LabelEncoder):
    """A row for each name, and one for unknown labels: that of ``<unk>`` if it is among the names, else a row of zeros."""

    table: Tensor

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = names if isinstance(names, Vocabulary) else Vocabulary(names)
        if not len(self.names):
            raise ConfigurationError(
                f"{type(self).__name__} expects at least one label, got none; take them from forest.vocabulary."
            )
        self.unknown_code: int = self.names.code(UNKNOWN) if UNKNOWN in self.names else len(self.names)

    def forward(self, codes: Tensor, vectors: Tensor) -> Tensor:
        """Look the rows up."""
        if codes.numel() and bool((codes < 0).any()):
            raise ShapeError(
                f"{type(self).__name__} expects text labels, got a vector of {vectors.shape[1]} numbers; "
                f"use Numeric(size={vectors.shape[1]}) for vector labels."
            )
        return self.lookup(codes)

    def lookup(self, rows: Tensor) -> Tensor:
        """Return some rows."""
        return nn.functional.embedding(rows, self.table)

    def first_rows(self, count: int) -> Tensor:
        """Return the first so many rows, or more."""
        return self.table

    def extra_repr(self) -> str:
        """Return the sizes, for printing."""
        return f"{len(self.names)} labels, size={self.size}"


@final
class OneHot(Table):
    """The unit vector of each label; the paper's variables. The vector of an unknown label is zero.

    >>> OneHot(["a", "b", "c"])(torch.tensor([1, 3]), torch.zeros(0, 0))
    tensor([[0., 1., 0.],
            [0., 0., 0.]])
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.size = len(self.names)
        if self.size > _MOST_ONE_HOT:
            raise ConfigurationError(
                f"OneHot expects at most {_MOST_ONE_HOT} labels, got {self.size}; use Embedding(names, size) for so many."
            )
        self.register_buffer("table", torch.eye(self.size + 1, self.size), persistent=False)


@final
class Thermometer(Table):
    """Label k of an ordered list has its first k + 1 entries one; the paper's digits. The vector of an unknown label is zero.

    >>> Thermometer("0123")(torch.tensor([2, 4]), torch.zeros(0, 0))
    tensor([[1., 1., 1., 0.],
            [0., 0., 0., 0.]])
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self.size = len(self.names)
        table = torch.cat([torch.ones(self.size, self.size).tril(), torch.zeros(1, self.size)])
        self.register_buffer("table", table, persistent=False)


class LearntTable(Table):
    """A learnt row for each name and for ``more``, those of the last ``frozen`` names fixed; after them, a row of zeros."""

    frozen: Tensor

    def __init__(
        self, names: Iterable[str], size: int | None, vectors: npt.ArrayLike | None, frozen: int, more: int = 0
    ) -> None:
        super().__init__(names)
        owner, count = type(self).__name__, len(self.names)
        if (size is None) == (vectors is None):
            raise ConfigurationError(f"{owner} expects either a size or given vectors, got both or none; choose one.")
        if not 0 <= frozen <= count:
            raise ConfigurationError(
                f"{owner} expects frozen to be at most {count}, the number of labels, got {frozen}."
            )
        if vectors is None:
            require_positive(owner, size=size or 0)
            table = torch.randn(count, size or 0)
            for name in (UNKNOWN, UNKNOWN_EDGE):
                if name in self.names:
                    table[self.names.code(name)] = 0.0  # as long as nothing is learnt, unknown labels say nothing
        else:
            table = torch.as_tensor(vectors, dtype=torch.get_default_dtype()).clone()
            if table.dim() != 2 or len(table) != count:
                raise ShapeError(
                    f"{owner} expects a vector for each of {count} labels, got the shape {tuple(table.shape)}."
                )
            if not bool(torch.isfinite(table).all()):
                row = int((~torch.isfinite(table)).any(1).nonzero()[0])
                raise ShapeError(
                    f"{owner} expects finite numbers, got NaN or infinity in the vector of {self.names[row]!r}; replace it."
                )
        self.size = table.shape[1]
        self.learnt = count - frozen
        self.table = nn.Parameter(
            torch.cat([table[: self.learnt], torch.randn(more, self.size)]) if more or frozen else table
        )
        rest = torch.cat([table[self.learnt :], torch.zeros(1, self.size)])
        self.register_buffer("frozen", rest, persistent=frozen > 0)

    def lookup(self, rows: Tensor) -> Tensor:
        """Return some rows, first those of the table, then the frozen ones and the zero."""
        count = len(self.table)
        if not count:
            return nn.functional.embedding(rows, self.frozen)
        is_frozen = rows >= count
        if not bool(is_frozen.any()):
            return nn.functional.embedding(rows, self.table)
        return torch.where(
            is_frozen.unsqueeze(1),
            nn.functional.embedding((rows - count).clamp(min=0), self.frozen),
            nn.functional.embedding(rows.clamp(max=count - 1), self.table),
        )

    def first_rows(self, count: int) -> Tensor:
        """Return the first so many rows, or more."""
        return self.table if count <= len(self.table) else torch.cat([self.table, self.frozen])


@final
class Embedding(LearntTable):
    """A learnt vector for each label, from standard normal entries or from ``vectors`` that were trained before.

    The vectors of the last ``frozen`` names are not learnt. The row of ``<unk>``, if it is among the names, starts at zero.

    >>> Embedding(["a", "b"], size=5)(torch.tensor([1, 0, 1]), torch.zeros(0, 0)).shape
    torch.Size([3, 5])
    """

    def __init__(
        self, names: Iterable[str], size: int | None = None, *, vectors: npt.ArrayLike | None = None, frozen: int = 0
    ) -> None:
        super().__init__(names, size, vectors, frozen)


@final
class Features(LearntTable):
    r"""The vector of a label is the sum of the learnt vectors of its features.

    .. math:: x = v_{\mathrm{edge}} + v_{\mathrm{label}} + \frac{1}{\sqrt{k}} \sum_{i=1}^{k} v_{\mathrm{gram}_i}

    The label itself is a feature; ``<unk>`` if it is not among the names. With ``edges``, the text before the first colon is
    that of the edge to the parent, a feature of its own, ``<unk>:`` if it is unknown; its name ends with the colon (see
    `edge_name`, `label_name`). With ``ngrams``, the label's character n-grams of 3 to 5 characters are features, the ends of
    the label included; they share a fixed number of rows by a hash. So new labels have vectors too.

    >>> encoder = Features(["<unk>", "dog", "<unk>:", "nsubj:"], 4, edges=True)
    >>> bags = encoder.bags(Vocabulary(["nsubj:dog", "dog", "nsubj:cat"]))
    >>> x = encoder(torch.tensor([0, 1, 2]), torch.zeros(0, 0), bags)
    >>> torch.equal(x[0], x[1] + encoder.table[3]), torch.equal(x[2], encoder.table[3])  # <unk> starts at zero
    (True, True)
    """

    def __init__(
        self,
        names: Iterable[str],
        size: int | None = None,
        *,
        edges: bool = False,
        ngrams: bool = False,
        vectors: npt.ArrayLike | None = None,
        frozen: int = 0,
    ) -> None:
        super().__init__(names, size, vectors, frozen, BUCKETS if ngrams else 0)
        self.edges, self.ngrams = edges, ngrams

    def forward(self, codes: Tensor, vectors: Tensor, bags: Bags | None = None) -> Tensor:
        """Return the sums of the features of labels, ``codes`` into bags; without bags, ``codes`` are features."""
        if bags is None or (codes.numel() and bool((codes < 0).any())):
            return super().forward(codes, vectors)
        chosen = codes.cpu().numpy()
        counts = np.diff(bags.starts)[chosen]
        places = np.repeat(bags.starts[chosen] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        rows = self.lookup(torch.from_numpy(bags.rows[places]).to(codes.device))
        weighted = rows * torch.from_numpy(bags.weights[places]).to(rows).unsqueeze(1)
        owners = torch.from_numpy(np.repeat(np.arange(len(chosen)), counts)).to(codes.device)
        return rows.new_zeros(len(chosen), self.size).index_add(0, owners, weighted)

    def bags(self, vocabulary: Iterable[str], *, dropped: bool = False) -> Bags:
        """Return the features of labels; with ``dropped``, as if none of the labels were known, except their edges."""
        starts, rows = [0], list[int]()
        weights: list[float] = []
        for text in vocabulary:
            edge, label = split_edge(text) if self.edges else (None, text)
            if edge is not None:
                rows.append(self._row(edge_name(edge), UNKNOWN_EDGE))
            rows.append(self._row(UNKNOWN if dropped else self._own(label), UNKNOWN))
            weights += [1.0] * (len(rows) - len(weights))
            if self.ngrams:
                rows += [self.learnt + zlib.crc32(gram) % BUCKETS for gram in grams(label)]
                count = len(rows) - len(weights)
                weights += [count**-0.5] * count if count else []
            starts.append(len(rows))
        return Bags(np.array(starts), np.array(rows, np.int64), np.array(weights, np.float64))

    def knows(self, vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
        """Say for each label of a vocabulary whether it and its edge have vectors of their own, (D,)."""
        if not self.edges:
            return super().knows(vocabulary)
        parts = map(split_edge, vocabulary)
        known = (
            label_name(label) in self.names and (edge is None or edge_name(edge) in self.names) for edge, label in parts
        )
        return np.fromiter(known, bool, len(vocabulary))

    def _own(self, label: str) -> str:
        return label_name(label) if self.edges else label

    def _row(self, name: str, otherwise: str) -> int:
        """Return the row of a feature, or else of another, or else the zero."""
        known = next((each for each in (name, otherwise) if each in self.names), None)
        code = len(self.names) if known is None else self.names.code(known)
        return code if code < self.learnt else code - self.learnt + len(self.table)


def grams(label: str) -> Iterator[bytes]:
    """Yield the character n-grams of a label with its ends marked.

    >>> [gram.decode() for gram in grams("ab")]
    ['<ab', 'ab>', '<ab>']
    """
    text = f"<{label}>"
    for length in range(_SHORTEST, _LONGEST + 1):
        for start in range(len(text) - length + 1):
            yield text[start : start + length].encode("utf-8", "surrogatepass")


def edge_name(edge: str) -> str:
    """Return the name of an edge among the names of features."""
    return edge + EDGE


def label_name(label: str) -> str:
    """Return the name of a node's label among the names of features: itself, unless an edge could have this name.

    >>> label_name("dog"), label_name("dog:"), edge_name("dog")
    ('dog', ':dog:', 'dog:')
    """
    return EDGE + label if label.endswith(EDGE) and label != EDGE else label


def frequent_labels(
    forest: Forest, min_count: int | None = None, max_labels: int | None = None, *, edges: bool = False
) -> list[str]:
    """Return the labels that at least ``min_count`` trees of a forest have, sorted; with ``edges``, the features of labels.

    If there are more than ``max_labels``, those found in the most trees are returned.

    >>> frequent_labels(Forest(["(f a a)", "(f b)", "(g b)"]), 2)
    ['b', 'f']
    >>> frequent_labels(Forest(["(f a a)", "(f b)", "(g b)"]), max_labels=3)
    ['a', 'b', 'f']
    >>> frequent_labels(Forest(["(saw nsubj:dog obj:dog)"]), edges=True)
    ['dog', 'nsubj:', 'obj:', 'saw']
    """
    texts, has_text = forest.vocabulary, forest.labels >= 0
    labels, trees = forest.labels[has_text], np.repeat(np.arange(len(forest)), forest.sizes)[has_text]
    if not edges:
        counts = _tree_counts(list(texts), np.arange(len(texts)), labels, trees)
        return _most_frequent(counts, min_count, max_labels)
    parts = [split_edge(text) for text in texts]
    counts = {}
    for features in (
        [label_name(label) for _, label in parts],
        [None if edge is None else edge_name(edge) for edge, _ in parts],
    ):
        codes = {name: code for code, name in enumerate(dict.fromkeys(features))}
        counts |= _tree_counts(list(codes), np.array([codes[name] for name in features], np.int64), labels, trees)
    return _most_frequent(counts, min_count, max_labels)


def _most_frequent(counts: dict[str, int], least: int | None, most: int | None) -> list[str]:
    """Return the names with at least this count, sorted; of more than ``most``, those with the greatest counts."""
    names = sorted(name for name, count in counts.items() if count >= (least or 1))
    return names if most is None else sorted(sorted(names, key=lambda name: -counts[name])[:most])


def _tree_counts(names: list[Any], codes: Ints, labels: npt.NDArray[Any], trees: Ints) -> dict[str, int]:
    """Return how many trees have each name, except None; ``codes`` (D,) are the names of a vocabulary's labels."""
    pairs = np.unique(trees * max(len(names), 1) + codes[labels])
    counts = np.bincount(pairs % max(len(names), 1), minlength=len(names))
    return {name: count for name, count in zip(names, counts.tolist(), strict=True) if name is not None}


@final
class Numeric(LabelEncoder):
    """Labels that are vectors already, ``Tree((0.5, 1.0), …)``. The vector of a text label is zero.

    >>> Numeric(size=2)(torch.tensor([-2, -1, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.],
            [0., 0.]])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        require_positive("Numeric", size=size)
        self.names = Vocabulary()
        self.size = size
        self.unknown_code: int = 0

    def forward(self, codes: Tensor, vectors: Tensor) -> Tensor:
        """Take the rows of the table."""
        if vectors.shape[1] != self.size and codes.numel() and bool((codes < 0).any()):
            raise ShapeError(
                f"Numeric expects vector labels of {self.size} numbers, got {vectors.shape[1]}; "
                f"make it with Numeric(size={vectors.shape[1]})."
            )
        rows = nn.functional.pad(vectors.reshape(-1, self.size), (0, 0, 0, 1))
        return rows[torch.where(codes < 0, -1 - codes, len(rows) - 1)]

    def extra_repr(self) -> str:
        """Return the size, for printing."""
        return f"size={self.size}"
