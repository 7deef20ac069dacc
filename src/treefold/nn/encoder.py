"""The encoder: states of all nodes of a batch of trees, from a cell and the labels."""

import copy
import logging
import math
from collections import Counter
from dataclasses import replace
from typing import Any, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, TreeError, require_choice
from treefold.kernels.gather import Alphabet, translate
from treefold.nn.cells import Cell, PerLabel
from treefold.nn.cells.base import LeafCell
from treefold.nn.engine import Encoding, engine_for, has_one_slot
from treefold.nn.flat import FlatParameters
from treefold.nn.labels import Bags, Features, LabelEncoder, Numeric, Table
from treefold.nn.randomness import own_generator
from treefold.trees.batch import Batch, Ints
from treefold.trees.forest import Forest
from treefold.trees.vocabulary import Vocabulary, require_policy

# Axes:  N nodes of the batch · B trees · C state size · M label size · X label vectors
Direction = Literal["up", "down", "both"]
Backend = Literal["auto", "torch", "fused"]
logger = logging.getLogger("treefold")
Unknown = Literal["unk", "error"]
_ANY_NUMBER = np.iinfo(np.int64).max
_SHORT = 256  # rows of a table that is taken whole, for any number of nodes


class _Meaning(NamedTuple):
    """The meaning of a vocabulary's D labels for an encoder.

    ``codes`` (2D + 1,): for each label an operator, or a code for the label encoder counted from the number of operators, -1 if
    it is unknown and that is an error; then the same for each label that is dropped; at the end -1, for vectors. ``is_unknown``
    (2D + 1,) says which labels the encoder does not know. ``bags`` are the features that codes refer to, if labels have features.
    """

    vocabulary: Vocabulary
    unknown: Unknown
    drops: bool
    codes: Ints
    is_unknown: npt.NDArray[np.bool_]
    bags: Bags | None


@final
class TreeEncoder(nn.Module):
    r"""States of all nodes, and of the roots, for a batch of trees.

    ``up`` folds a tree from the leaves: a node sees its children. ``down`` goes from the root: a node sees its parent, in
    the slot which the node itself has among its siblings (in the only slot of a cell with one, or with any number).
    ``both`` has a cell for each, ``down_cell`` or one like ``cell`` with weights of its own, and joins their states.

    ``labels`` turns labels into the vectors that the cell sees; None if the cell has ``label_size=None``. The encoder
    knows the labels of ``vocabulary``, and takes batches of any forest. ``unknown`` says how it treats other labels: with "unk"
    they have the vector of ``<unk>``, or a zero vector if the label encoder has none; with "error" they raise. If leaves have a
    cell that takes no children, a node with an unknown label counts as a leaf: it does not see its children.
    ``label_dropout`` is the probability with which, in training, a node's label counts as unknown; operators are kept.
    ``cut`` ignores children that a cell has no slot for, with a warning; without it they are an error.
    ``state_noise`` is the standard deviation of noise that is added, in training, to the upward states of all nodes but leaves
    and roots, so that states are learnt which bear it: errors of small subtrees then do not grow with the size of a tree. In the
    fused way, equal subtrees have the same noise. It may be set later; `fit` and `train` set it from their own settings.

    ``siblings`` makes the order of children matter, for any number of them: instead of its children, a node sees its last child
    in slot 0 and its previous sibling in slot 1 (`Batch.by_siblings`). A node's state then tells of its subtree and of those of
    its elder siblings; the root's still tells of the whole tree.

    ``backend`` says how the upward pass runs, with the same meaning: ``torch``, level by level on any device; ``fused``, by
    compiled kernels on the CPU, a whole batch in one call; ``auto``, whichever is faster. In the fused way equal subtrees of a
    batch are computed once, unless ``share_subtrees`` is off. Both attributes may be set later.

    >>> from treefold import Forest, OneHot, TreeLSTM
    >>> forest = Forest(["(and (not a) b)", "c"])
    >>> cell = TreeLSTM("sum", state_size=4, arity=2, label_size=len(forest.vocabulary))
    >>> encoding = TreeEncoder(cell, OneHot(forest.vocabulary))(forest.batch())
    >>> encoding.roots.shape, encoding.nodes.shape
    (torch.Size([2, 4]), torch.Size([5, 4]))
    """

    def __init__(
        self,
        cell: Cell,
        labels: LabelEncoder | None = None,
        *,
        direction: Direction = "up",
        down_cell: Cell | None = None,
        siblings: bool = False,
        backend: Backend = "auto",
        share_subtrees: bool = True,
        unknown: Unknown = "unk",
        label_dropout: float = 0.0,
        cut: bool = False,
        state_noise: float = 0.0,
    ) -> None:
        super().__init__()
        require_policy("TreeEncoder", "unknown", unknown)
        require_choice("TreeEncoder", "direction", direction, ["up", "down", "both"])
        require_choice("TreeEncoder", "backend", backend, ["auto", "torch", "fused"])
        self.backend: Backend = backend
        self.share_subtrees = share_subtrees
        if not isinstance(cell, Cell) or not (labels is None or isinstance(labels, LabelEncoder)):
            raise ConfigurationError(
                f"TreeEncoder expects a cell and a label encoder such as OneHot(names), got {type(cell).__name__} and "
                f"{type(labels).__name__}."
            )
        if down_cell is not None and direction != "both":
            raise ConfigurationError(f"TreeEncoder expects a down_cell with direction='both' only, got {direction!r}.")
        if not 0 <= label_dropout < 1 or (label_dropout and not isinstance(labels, Table)):
            raise ConfigurationError(
                f"TreeEncoder expects a label_dropout of at least 0 and below 1, and above 0 for text labels only, got "
                f"{label_dropout} with {type(labels).__name__}."
            )
        self.unknown: Unknown = unknown
        self.label_dropout = label_dropout
        self.cut = cut
        if not 0 <= state_noise < math.inf:
            raise ConfigurationError(
                f"TreeEncoder expects a state_noise of at least 0, got {state_noise!r}; it is a standard deviation, such as 0.1."
            )
        self.state_noise = state_noise
        self.direction: Direction = direction
        self.siblings = siblings
        self.labels = labels
        self.cells = nn.ModuleDict()
        if direction != "down":
            self.cells["up"] = cell
        if direction != "up":
            self.cells["down"] = cell if direction == "down" else down_cell or _reset_copy(cell)
        for name in self.cells:
            _check_cell(self.cell(name), labels, cell)
        self.read_arities()
        if direction != "up":
            _check_down(self.cell("down"))
        self.operators = cell.operators
        twice = [name for name in cell.operators if labels is not None and name in labels.names]
        if twice:
            raise ConfigurationError(
                f"TreeEncoder expects labels for the leaves alone, got {twice[0]!r}, which has a cell of its own; "
                f"leave the operators out: OneHot(name for name in names if name not in cell.operators)."
            )
        self.vocabulary = Vocabulary([*cell.operators, *(labels.names if labels is not None else [])])
        self.state_size = cell.state_size
        self.out_size = cell.state_size * len(self.cells)
        self.flat: FlatParameters | None = None
        """All parameters in one tensor, while a training lasts."""
        self.knowledge: tuple[Cell, Any] | None = None
        """What `treefold.nn.engine` knows of the cell."""
        self._meaning: _Meaning | None = None
        self._has_warned = False  # of children that are cut off

    def forward(self, batch: Batch | Forest) -> Encoding:
        """Encode a batch of trees, or all trees of a forest."""
        batch = self.prepare(batch)
        if self.drops_labels:
            drawn = torch.rand(batch.node_count, generator=own_generator()).numpy() < self.label_dropout
            batch = replace(batch, labels=batch.labels + len(batch.vocabulary) * (drawn & (batch.labels >= 0)))
        return engine_for(self).encode(batch)

    @property
    def drops_labels(self) -> bool:
        """Whether some labels of a batch count as unknown, as in training."""
        return self.training and self.label_dropout > 0

    @property
    def adds_noise(self) -> bool:
        """Whether states have noise, as in training."""
        return self.training and self.state_noise > 0

    def prepare(self, batch: Batch | Forest) -> Batch:
        """Return a batch, or that of all trees of a forest, without the children that no slot of a cell is for.

        Nodes with unknown labels lose their children if leaves take none. With ``cut``, so do all nodes with more children than
        their cell has slots: they lose the further ones. Otherwise these are an error.
        """
        batch = as_batch(batch)
        limits = self._allowed.get("up")
        if limits is None or self.labels is None or self.unknown == "error" or limits.min() == _ANY_NUMBER:
            return batch
        if not self.cut and (not self.operators or limits[-1]):
            return batch
        meaning, labels = self._meaning_of(batch.vocabulary), np.maximum(batch.labels, -1)
        kinds = np.minimum(np.where(batch.labels >= 0, meaning.codes[labels], len(self.operators)), len(self.operators))
        loses = (batch.parents >= 0) & (batch.slots >= limits[kinds][batch.parents])
        is_unknown = meaning.is_unknown[labels][batch.parents]
        if not self.cut:
            loses &= is_unknown
        if not loses.any():
            return batch
        if (loses & ~is_unknown).any() and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "nodes whose children were ignored: %d; they have more children than slots, or a label that only leaves had in "
                "training; train with such trees, or set siblings=true for any number of children",
                len(np.unique(batch.parents[loses & ~is_unknown])),
            )
        return replace(batch, parents=np.where(loses, -1, batch.parents), slots=np.where(loses, 0, batch.slots))

    def ignored_children(self, forest: Forest) -> int:
        """Count the children that `prepare` takes away from their parents."""
        if self._allowed.get("up") is None:
            return 0
        batch = forest.batch()
        return int((self.prepare(batch).parents < 0).sum() - (batch.parents < 0).sum())

    def known(self, vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
        """Say for each label of a vocabulary whether the encoder knows it.

        >>> from treefold import OneHot, TreeRNN
        >>> TreeEncoder(TreeRNN("sum", state_size=4, arity=2, label_size=2), OneHot("ab")).known(Vocabulary("bc")).tolist()
        [True, False]
        """
        if self.labels is None:
            return np.ones(len(vocabulary), bool)
        return self.labels.knows(vocabulary) | (vocabulary.codes_in(Vocabulary(self.operators)) >= 0)

    def unknown_labels(self, forest: Forest) -> Counter[str]:
        """Return the labels of a forest that the encoder does not know, and how many nodes have each."""
        unknown = ~self.known(forest.vocabulary)
        if not unknown.any():
            return Counter()
        counts = np.bincount(forest.labels[forest.labels >= 0], minlength=len(unknown))
        found = np.flatnonzero(unknown & (counts > 0))  # the vocabulary may have labels that no node has
        return Counter({forest.vocabulary[code]: int(counts[code]) for code in found.tolist()})

    def linked(self, batch: Batch) -> Batch:
        """Return a batch with the links that the cells follow: from children to parents, or along siblings."""
        return batch.by_siblings() if self.siblings else batch

    def read_arities(self) -> None:
        """Note how many children the cells take; call it again if their aggregators were replaced."""
        self._allowed = {name: _arities(self.cell(name)) for name in self.cells}
        if self.siblings:
            for name, allowed in self._allowed.items():
                _check_siblings(allowed)
                self._allowed[name] = np.full_like(allowed, _ANY_NUMBER)

    def cell(self, name: str) -> Cell:
        """Return the cell of a direction, "up" or "down"."""
        cell = self.cells[name]
        assert isinstance(cell, Cell)
        return cell

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a training attached."""
        return {**self.__dict__, "flat": None, "knowledge": None, "_meaning": None}

    def codes(self, batch: Batch) -> tuple[Ints, Ints]:
        """Translate the batch's labels: for each node its operator, and its code for the label encoder, both (N,).

        Raises if a label is unknown, or if a node has more children than its cell has slots.
        """
        operators, codes = self._translate(batch)
        for name in self.cells:
            _check_arity(self.cell(name), batch, operators, name, self._allowed[name])
        return operators, codes

    def alphabet(self, vocabulary: Vocabulary, nodes: int) -> Alphabet | None:
        """Return the meaning of labels, if they are rows of a table that is not much longer than the number of nodes.

        None if some of the labels are to be dropped: `forward` chooses which.
        """
        return None if self.drops_labels else self._alphabet(vocabulary, nodes)

    def _alphabet(self, vocabulary: Vocabulary, nodes: int) -> Alphabet | None:
        labels = self.labels
        if not isinstance(labels, Table) or self.direction != "up":  # downwards, `codes` checks the slots
            return None
        length = len(vocabulary) * (1 + self.drops_labels) if isinstance(labels, Features) else len(labels.names)
        if length > max(nodes, _SHORT):
            return None
        meaning, count = self._meaning_of(vocabulary), len(self.operators)
        if isinstance(labels, Features):
            assert meaning.bags is not None
            own = torch.arange(len(meaning.bags.starts) - 1, device=labels.table.device)
            vectors = labels(own, labels.table, meaning.bags)
        else:
            vectors = labels.first_rows(int(meaning.codes.max()) + 1 - count)
        return Alphabet(meaning.codes, count, self._allowed["up"], vectors)

    def label_rows(self, batch: Batch, like: Tensor) -> tuple[Ints, Ints, Tensor | None, bool]:
        """Return for the kernels each node's operator (N,), its row (N,) of label vectors (X, M), -1 without, and these vectors.

        The last value says whether equal subtrees are computed once. Raises as `codes` does.
        """
        alphabet = None if len(batch.vectors) else self._alphabet(batch.vocabulary, batch.node_count)
        if alphabet is not None:
            operators, rows, is_right = translate(
                batch.labels, alphabet.codes, alphabet.operators, batch.parents, batch.slots, alphabet.allowed
            )
            if is_right:
                return operators, rows, alphabet.vectors, self.share_subtrees
        operators, codes = self.codes(batch)
        if self.labels is None:
            return operators, np.full(batch.node_count, -1), None, self.share_subtrees
        sees = operators == len(self.operators)
        rows, chosen = np.where(sees, codes, -1), codes[sees]
        has_table = isinstance(self.labels, Table) and not len(batch.vectors)
        if has_table:
            chosen, rows[sees] = np.unique(chosen, return_inverse=True)  # a few rows of a large table
        else:
            rows[sees] = np.arange(len(chosen))
        vectors = self._vectors(batch, chosen, like)
        # If all leaves have vectors of their own, hardly two subtrees are equal.
        return operators, rows, vectors, self.share_subtrees and has_table

    def _vectors(self, batch: Batch, codes: Ints, like: Tensor) -> Tensor:
        """Return the vectors of codes; the sums of features are computed once for each distinct code."""
        labels = self.labels
        assert labels is not None
        vectors = torch.tensor(batch.vectors, dtype=like.dtype, device=like.device)  # a copy: the map is read-only
        result: Tensor
        if not isinstance(labels, Features):
            result = labels(torch.from_numpy(codes).to(like.device), vectors)
            return result
        distinct, places = np.unique(codes, return_inverse=True)
        bags = self._meaning_of(batch.vocabulary).bags
        result = labels(torch.from_numpy(distinct).to(like.device), vectors, bags)
        return result.index_select(0, torch.from_numpy(places).to(like.device))

    def _translate(self, batch: Batch) -> tuple[Ints, Ints]:
        count = len(self.operators)
        if self.labels is None:
            return np.full(batch.node_count, count), batch.labels
        own = self._meaning_of(batch.vocabulary).codes[np.maximum(batch.labels, -1)]
        if not len(batch.vectors):  # text labels alone
            if own.min() < 0:
                self._raise_unknown(batch, int(np.flatnonzero(own < 0)[0]))
            return np.minimum(own, count), own - count
        own = np.where(batch.labels >= 0, own, count)
        if own.min() < 0:
            self._raise_unknown(batch, int(np.flatnonzero(own < 0)[0]))
        return np.minimum(own, count), np.where(batch.labels >= 0, own - count, batch.labels)

    def _meaning_of(self, vocabulary: Vocabulary) -> _Meaning:
        """Return the meaning of a forest's labels, which is kept until another forest comes."""
        last, settings = self._meaning, (self.unknown, self.drops_labels)
        if last is not None and last.vocabulary is vocabulary and (last.unknown, last.drops) == settings:
            return last
        labels, count, size = self.labels, len(self.operators), len(vocabulary)
        assert labels is not None
        operators = vocabulary.codes_in(Vocabulary(self.operators))
        is_operator, is_known = operators >= 0, self.known(vocabulary)
        is_error = self.unknown == "error" or labels.unknown_code is None
        unknown, bags = count + (labels.unknown_code or 0), None
        if isinstance(labels, Features):
            own, bags = count + np.arange(size), labels.bags(vocabulary)
        else:
            codes = vocabulary.codes_in(labels.names)
            own = np.where(codes >= 0, codes + count, unknown)
        dropped = own
        if self.drops_labels and bags is not None and isinstance(labels, Features):
            dropped, bags = own + size, bags.followed_by(labels.bags(vocabulary, dropped=True))
        elif self.drops_labels:
            dropped = np.full(size, unknown)
        if is_error:
            own = np.where(is_known, own, -1)
        both = [np.where(is_operator, operators, each) for each in (own, dropped)]
        is_unknown = np.concatenate([~is_known, np.zeros(size + 1, bool)])
        meaning = _Meaning(vocabulary, *settings, np.concatenate([*both, [-1]]), is_unknown, bags)
        self._meaning = meaning
        return meaning

    def _raise_unknown(self, batch: Batch, place: int) -> None:
        label = batch.vocabulary[int(batch.labels[place]) % len(batch.vocabulary)]
        tree = batch.tree_of(place)
        if isinstance(self.labels, Numeric):
            raise TreeError(
                f"tree {tree} of the batch: expected a vector label, or one of the operators {list(self.vocabulary)}, "
                f"got {label!r}; give Tree a vector as label, or use OneHot or Embedding for text."
            )
        problem = self.vocabulary.unknown(label)
        raise type(problem)(f"tree {tree} of the batch: {problem}")


def as_batch(batch: Batch | Forest) -> Batch:
    """Return a batch, or that of all trees of a forest."""
    if isinstance(batch, Forest):
        return batch.batch()
    if not isinstance(batch, Batch):
        raise TreeError(
            f"TreeEncoder expects a batch, got {type(batch).__name__}; write encoder(Forest(trees).batch())."
        )
    return batch


def _arities(cell: Cell) -> Ints:
    """Return how many child slots each operator's nodes may have, and those without; the greatest number for any."""
    limits = [cell.arity_of(operator) for operator in range(len(cell.operators) + 1)]
    return np.array([_ANY_NUMBER if limit is None else limit for limit in limits])


def _check_arity(cell: Cell, batch: Batch, operators: Ints, direction: str, allowed: Ints) -> None:
    """Raise if a node needs more slots than its cell has: up, for its children; down, for its place among its siblings."""
    if direction == "down" and has_one_slot(cell):
        return
    holders = batch.parents if direction == "up" else np.arange(batch.node_count)  # whose cell must have the slot
    wide = np.flatnonzero((batch.slots >= allowed[operators[holders]]) & (batch.parents >= 0))
    if not len(wide):
        return
    place = int(holders[wide].min())
    needed = int(batch.slots[wide[holders[wide] == place]].max()) + 1
    code = int(batch.labels[place])
    name = repr(batch.vocabulary[code % len(batch.vocabulary)]) if code >= 0 else "with a vector label"
    has = "has {} children" if direction == "up" else "is child {} of its parent"
    node = f"tree {batch.tree_of(place)} of the batch: node {name} {has.format(needed)}"
    limit = int(allowed[operators[place]])
    if limit == 0 and cell.operators:
        raise TreeError(
            f"{node}, but is no operator of PerLabel, which knows {', '.join(map(repr, cell.operators))}; "
            f"give it a cell of its own, or a leaf cell that takes children."
        )
    raise TreeError(
        f"{node}, but arity={limit}; raise `arity`, or choose a shared form that takes any number, such as mean or sum."
    )


def _check_cell(cell: Cell, labels: LabelEncoder | None, first: Cell) -> None:
    """Raise if a cell does not see labels of this kind, or is not like the first."""
    size = None if labels is None else labels.size
    if cell.label_size != size:
        raise ConfigurationError(
            f"TreeEncoder expects labels of the cell's label_size={cell.label_size}, got {size}; "
            f"make the cell with label_size=labels.size, or leave both out."
        )
    if (cell.state_size, cell.operators) != (first.state_size, first.operators):
        raise ConfigurationError("TreeEncoder expects both cells to have the same state_size and operators.")


def _check_down(cell: Cell) -> None:
    """Raise if leaves would not see their parents."""
    if isinstance(cell, PerLabel) and isinstance(cell.cell_of(len(cell.operators)), LeafCell):
        raise ConfigurationError(
            "TreeEncoder with direction='down' expects leaves that see their parent, got a cell of leaves alone; "
            "make PerLabel with leaf=TreeRNN(…, label_size=…) or leaf=TreeLSTM(…, label_size=…)."
        )


def _check_siblings(allowed: Ints) -> None:
    """Raise if a node could not see its last child and its previous sibling."""
    if allowed.min() < 2:
        raise ConfigurationError(
            f"TreeEncoder with siblings=True expects cells with two slots, one for the last child and one for the previous "
            f"sibling, got {int(allowed.min())}; make the cell with arity=2, and leaves with a cell that takes children."
        )


def _reset_copy(cell: Cell) -> Cell:
    other = copy.deepcopy(cell)
    other.reset_parameters()
    return other
