"""The encoder: states of all nodes of a batch of trees, from a cell and the labels."""

import copy
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, TreeError, require_choice
from treefold.kernels.gather import Alphabet, translate
from treefold.nn.cells import Cell, PerLabel
from treefold.nn.cells.base import LeafCell
from treefold.nn.engine import Encoding, engine_for, has_one_slot
from treefold.nn.flat import FlatParameters
from treefold.nn.labels import Embedding, LabelEncoder, Numeric, OneHot, Thermometer
from treefold.trees.batch import Batch, Ints
from treefold.trees.forest import Forest
from treefold.trees.vocabulary import Vocabulary

# Axes:  N nodes of the batch · B trees · C state size · M label size · X label vectors
Direction = Literal["up", "down", "both"]
Backend = Literal["auto", "torch", "fused"]
_ANY_NUMBER = np.iinfo(np.int64).max
_SHORT = 256  # rows of a table that is taken whole, for any number of nodes


@final
class TreeEncoder(nn.Module):
    r"""States of all nodes, and of the roots, for a batch of trees.

    ``up`` folds a tree from the leaves: a node sees its children. ``down`` goes from the root: a node sees its parent, in
    the slot which the node itself has among its siblings (in the only slot of a cell with one, or with any number).
    ``both`` has a cell for each, ``down_cell`` or one like ``cell`` with weights of its own, and joins their states.

    ``labels`` turns labels into the vectors that the cell sees; None if the cell has ``label_size=None``. The encoder
    knows the labels of ``vocabulary``, and takes batches of any forest that has no others.

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
    ) -> None:
        super().__init__()
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
        self._translation: tuple[Vocabulary, Ints] | None = None

    def forward(self, batch: Batch | Forest) -> Encoding:
        """Encode a batch of trees, or all trees of a forest."""
        return engine_for(self).encode(as_batch(batch))

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
        return {**self.__dict__, "flat": None, "knowledge": None}

    def codes(self, batch: Batch) -> tuple[Ints, Ints]:
        """Translate the batch's labels: for each node its operator, and its code for the label encoder, both (N,).

        Raises if a label is unknown, or if a node has more children than its cell has slots.
        """
        operators, codes = self._translate(batch)
        for name in self.cells:
            _check_arity(self.cell(name), batch, operators, name, self._allowed[name])
        return operators, codes

    def alphabet(self, vocabulary: Vocabulary, nodes: int) -> Alphabet | None:
        """Return the meaning of labels, if they are rows of a table that is not much longer than the number of nodes."""
        if not isinstance(self.labels, (OneHot, Thermometer, Embedding)) or len(self.labels.table) > max(nodes, _SHORT):
            return None
        return Alphabet(self._codes_of(vocabulary), len(self.operators), self._allowed["up"], self.labels.table)

    def label_rows(self, batch: Batch, like: Tensor) -> tuple[Ints, Ints, Tensor | None, bool]:
        """Return for the kernels each node's operator (N,), its row (N,) of label vectors (X, M), -1 without, and these vectors.

        The last value says whether equal subtrees are computed once. Raises as `codes` does.
        """
        alphabet = None if len(batch.vectors) else self.alphabet(batch.vocabulary, batch.node_count)
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
        has_table = isinstance(self.labels, (OneHot, Thermometer, Embedding)) and not len(batch.vectors)
        if has_table:
            chosen, rows[sees] = np.unique(chosen, return_inverse=True)  # a few rows of a large table
        else:
            rows[sees] = np.arange(len(chosen))
        vectors = self.labels(
            torch.from_numpy(chosen).to(like.device),
            torch.tensor(batch.vectors, dtype=like.dtype, device=like.device),
        )
        # If all leaves have vectors of their own, hardly two subtrees are equal.
        return operators, rows, vectors, self.share_subtrees and has_table

    def label_vectors(self, batch: Batch, operators: Ints, codes: Ints, like: Tensor) -> Tensor | None:
        """Return the label vectors (N, M), zero at operators."""
        if self.labels is None:
            return None
        vectors = torch.tensor(batch.vectors, dtype=like.dtype, device=like.device)  # a copy: the map is read-only
        if not self.operators:
            result: Tensor = self.labels(torch.from_numpy(codes).to(like.device), vectors)
            return result
        leaves = np.flatnonzero(operators == len(self.operators))
        rows = self.labels(torch.from_numpy(codes[leaves]).to(like.device), vectors)
        return like.new_zeros(batch.node_count, self.labels.size).index_copy(
            0, torch.from_numpy(leaves).to(like.device), rows
        )

    def _translate(self, batch: Batch) -> tuple[Ints, Ints]:
        count = len(self.operators)
        if self.labels is None:
            return np.full(batch.node_count, count), batch.labels
        table = self._codes_of(batch.vocabulary)
        if not len(batch.vectors):  # text labels alone
            own = table[batch.labels]
            if own.min() < 0:
                self._raise_unknown(batch, int(np.flatnonzero(own < 0)[0]))
            return np.minimum(own, count), own - count
        own = np.where(batch.labels >= 0, table[np.maximum(batch.labels, -1)], count)
        if own.min() < 0:
            self._raise_unknown(batch, int(np.flatnonzero(own < 0)[0]))
        return np.minimum(own, count), np.where(batch.labels >= 0, own - count, batch.labels)

    def _codes_of(self, vocabulary: Vocabulary) -> Ints:
        """Return the encoder's code for each label of a forest's vocabulary, -1 for those it does not know; -1 at the end."""
        if self._translation is None or self._translation[0] is not vocabulary:
            self._translation = (vocabulary, np.append(vocabulary.codes_in(self.vocabulary), -1))
        return self._translation[1]

    def _raise_unknown(self, batch: Batch, place: int) -> None:
        label = batch.vocabulary[int(batch.labels[place])]
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
    name = repr(batch.vocabulary[code]) if code >= 0 else "with a vector label"
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
