"""The encoder: runs a cell over a batch of trees, level by level."""

import copy
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, TreeError, require_choice
from treefold.kernels import (
    Alphabet,
    FusedAnswers,
    FusedGradients,
    Scores,
    arrangement_of,
    fold_up_fused,
    is_worth_it,
    perceptron,
    translate,
    why_not,
)
from treefold.nn.cells import Cell
from treefold.nn.checks import arities, check_arity, check_cell, check_down, one_slot
from treefold.nn.flat import Arrangement, in_charge_of
from treefold.nn.labels import Embedding, LabelEncoder, Numeric, OneHot, Thermometer
from treefold.trees.batch import Batch, Ints, Schedule
from treefold.trees.forest import Forest
from treefold.trees.vocabulary import Vocabulary

# Axes:  N nodes of the batch · B trees · n nodes of one level · L child slots · C state size · S memory size · M label size
Direction = Literal["up", "down", "both"]
Backend = Literal["auto", "torch", "fused"]


@final
@dataclass(frozen=True)
class Memories:
    """What one pass computed: memories (R, S) in blocks, one behind the other, and ``rows`` (N,), which of them is a node's."""

    blocks: list[Tensor]
    rows: Ints
    fused: bool = False  # whether the kernels made them, and may go on with them

    def of(self, nodes: Ints) -> Tensor:
        """Return the memories of some nodes, (n, S)."""
        rows, last = self.rows[nodes], self.blocks[-1]
        if len(self.blocks) == 1:
            return last.index_select(0, torch.from_numpy(rows).to(last.device))
        before = sum(map(len, self.blocks)) - len(last)
        if rows.min(initial=0) >= before:  # no need to join the blocks
            return last.index_select(0, torch.from_numpy(rows - before).to(last.device))
        return torch.cat(self.blocks).index_select(0, torch.from_numpy(rows).to(last.device))


@final
@dataclass(frozen=True)
class Encoding:
    """The states of a batch; with both directions, the upward and the downward state one behind the other."""

    passes: list[Memories]
    state_size: int
    batch: Batch

    @property
    def nodes(self) -> Tensor:
        """The states of all nodes, (N, C), in the forest's order: tree after tree, post-order."""
        return self._states(np.arange(self.batch.node_count))

    @property
    def roots(self) -> Tensor:
        """The states of the roots, (B, C)."""
        return self._states(self.batch.roots)

    def through(self, layers: nn.Sequential, nodes: Ints) -> Tensor:
        """Return what layers make of the states of some nodes."""
        first = self.passes[0]
        fused = (
            perceptron(layers, first.blocks[0], first.rows[nodes]) if first.fused and len(self.passes) == 1 else None
        )
        if fused is not None:
            return fused
        outputs: Tensor = layers(self._states(nodes))
        return outputs

    def _states(self, nodes: Ints) -> Tensor:
        states = [memories.of(nodes)[:, : self.state_size] for memories in self.passes]
        return states[0] if len(states) == 1 else torch.cat(states, dim=1)


@final
class TreeEncoder(nn.Module):
    r"""States of all nodes, and of the roots, for a batch of trees.

    ``up`` folds a tree from the leaves: a node sees its children. ``down`` goes from the root: a node sees its parent, in
    the slot which the node itself has among its siblings (in the only slot of a cell with one, or with any number).
    ``both`` has a cell for each, ``down_cell`` or one like ``cell`` with weights of its own, and joins their states.

    ``labels`` turns labels into the vectors that the cell sees; None where the cell has ``label_size=None``. The encoder
    knows the labels of ``vocabulary``, and takes batches of any forest that has no others.

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
        self.labels = labels
        self.cells = nn.ModuleDict()
        if direction != "down":
            self.cells["up"] = cell
        if direction != "up":
            self.cells["down"] = cell if direction == "down" else down_cell or _fresh_copy(cell)
        for name in self.cells:
            check_cell(self._cell(name), labels, cell)
        self._allowed = {name: arities(self._cell(name)) for name in self.cells}
        if direction != "up":
            check_down(self._cell("down"))
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
        self._translation: tuple[Vocabulary, Ints] | None = None

    def forward(self, batch: Batch | Forest) -> Encoding:
        """Encode a batch of trees, or all trees of a forest."""
        if isinstance(batch, Forest):
            batch = batch.batch()
        if not isinstance(batch, Batch):
            raise TreeError(
                f"TreeEncoder expects a batch, got {type(batch).__name__}; write encoder(Forest(trees).batch())."
            )
        reference = _first_parameter(self.cells)
        fused = self._runs_fused(batch, reference)
        if fused and len(self.cells) == 1:
            found = self._translated(batch)
            if found is not None:
                folded = fold_up_fused(self._cell("up"), batch, *found, share=self.share_subtrees)
                return Encoding([Memories([folded.memories], folded.unit_of, fused=True)], self.state_size, batch)
        operators, codes = self._codes(batch)
        for name in self.cells:
            check_arity(self._cell(name), batch, operators, name, self._allowed[name])
        passes: list[Memories] = []
        if fused:
            vectors, rows = self._label_rows(batch, operators, codes, reference)
            # Where all leaves have vectors of their own, hardly two subtrees are equal.
            share = self.share_subtrees and not (vectors is not None and len(vectors) == len(batch.vectors) > 0)
            folded = fold_up_fused(self._cell("up"), batch, operators, rows, vectors, share=share)
            passes.append(Memories([folded.memories], folded.unit_of, fused=True))
        if len(passes) < len(self.cells):
            schedule = batch.schedule
            operators, codes = operators[schedule.order], codes[schedule.order]
            operator = torch.from_numpy(operators).to(reference.device)
            label = self._label_vectors(batch, operators, codes, reference)
            folds = {"up": _fold_up, "down": _fold_down}
            for name in list(self.cells)[len(passes) :]:
                blocks = folds[name](self._cell(name), schedule, label, operator, reference)
                passes.append(Memories(blocks, schedule.places))
        return Encoding(passes, self.state_size, batch)

    def gradients_through(self, scores: Scores) -> FusedGradients | None:
        """Return what adds the gradients of batches' mean cross-entropy, for the scores of the roots' states, without autograd.

        For as long as the model stays as it is. None where `FlatParameters` are not in charge, or the kernels cannot do it all.
        """
        if len(self.cells) > 1 or not self._can_be_fused(_first_parameter(self.cells)):
            return None
        return FusedGradients.of(self._cell("up"), scores, self._translation_of, share=self.share_subtrees)

    def answers_through(self, scores: Scores) -> FusedAnswers | None:
        """Return what gives the scores of the roots' states, without gradients; for as long as the model stays as it is."""
        if len(self.cells) > 1 or not self._can_be_fused(_first_parameter(self.cells)):
            return None
        return FusedAnswers.of(self._cell("up"), scores, self._translation_of, share=self.share_subtrees)

    def _translation_of(self, forest: Forest, trees: int, nodes: int) -> Alphabet | None:
        return self._alphabet(forest.vocabulary, nodes) if self._is_worth_it(trees, nodes) else None

    def _translated(self, batch: Batch) -> tuple[Ints, Ints, Tensor] | None:
        """Return for trees whose labels are rows of a table each node's operator, its row and the table, all in one call.

        None where that cannot be, also where something is wrong with the trees: those who look more closely say what.
        """
        alphabet = None if len(batch.vectors) else self._alphabet(batch.vocabulary, batch.node_count)
        if alphabet is None:
            return None
        codes, count, allowed, table = alphabet
        operators, rows, right = translate(batch.labels, codes, count, batch.parents, batch.slots, allowed)
        return (operators, rows, table) if right else None

    def _alphabet(self, vocabulary: Vocabulary, nodes: int) -> Alphabet | None:
        """Return what labels are where they are rows of a table; None where they are not, or the table has more than nodes."""
        if not isinstance(self.labels, (OneHot, Thermometer, Embedding)):
            return None
        table = self.labels.table
        if len(table) > nodes:
            return None
        return Alphabet(self._codes_of(vocabulary), len(self.operators), self._allowed["up"], table)

    def __getstate__(self) -> dict[str, Any]:
        """Give each parameter storage of its own before it is pickled: a view would bring along all that it stands among."""
        for parameter in self.parameters():
            if parameter.untyped_storage().nbytes() > parameter.nbytes and in_charge_of(parameter) is None:
                parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
        return self.__dict__

    def arrangement(self) -> Arrangement | None:
        """Say how the parameters should stand in one tensor, for `FlatParameters`; None where it does not matter."""
        return arrangement_of(self._cell("up")) if self.may_be_fused else None

    @property
    def may_be_fused(self) -> bool:
        """Whether the upward pass can go through the fused kernels, and may."""
        if self.backend == "torch" or "up" not in self.cells:
            return False
        return why_not(self._cell("up"), _first_parameter(self.cells)) is None

    def _runs_fused(self, batch: Batch, reference: Tensor) -> bool:
        """Say whether the upward pass goes through the fused kernels; raise where it must and cannot."""
        return self._can_be_fused(reference) and self._is_worth_it(len(batch), batch.node_count)

    def _can_be_fused(self, reference: Tensor) -> bool:
        if self.backend == "torch" or (self.backend == "auto" and self.direction == "down"):
            return False
        reason = f"direction='up', got {self.direction!r}" if self.direction != "up" else None
        if reason is None or self.backend == "auto":
            reason = why_not(self._cell("up"), reference)
        if reason is not None and self.backend == "fused":
            raise ConfigurationError(
                f"TreeEncoder with backend='fused' expects {reason}; choose backend='auto' or 'torch'."
            )
        return reason is None

    def _is_worth_it(self, trees: int, nodes: int) -> bool:
        return self.backend == "fused" or is_worth_it(self._cell("up"), trees, nodes)

    def _label_rows(self, batch: Batch, operators: Ints, codes: Ints, like: Tensor) -> tuple[Tensor | None, Ints]:
        """Return label vectors (X, M), and for each node its row of them, (N,), -1 where it sees none.

        The rows of a table are the vectors; other encoders may tell apart nodes with the same label.
        """
        if self.labels is None:
            return None, np.full(batch.node_count, -1)
        table = self.labels.table if isinstance(self.labels, (OneHot, Thermometer, Embedding)) else None
        if table is not None and not len(batch.vectors) and len(table) <= batch.node_count:
            return table, np.maximum(codes, -1)  # negative at operators
        sees = operators == len(self.operators)
        rows, chosen = np.where(sees, codes, -1), codes[sees]
        if table is not None and not len(batch.vectors):
            chosen, rows[sees] = np.unique(chosen, return_inverse=True)  # a few rows of a large table
        else:
            rows[sees] = np.arange(len(chosen))
        vectors = torch.tensor(batch.vectors, dtype=like.dtype, device=like.device)
        return self.labels(torch.from_numpy(chosen).to(like.device), vectors), rows

    def _cell(self, name: str) -> Cell:
        cell = self.cells[name]
        assert isinstance(cell, Cell)
        return cell

    def _codes(self, batch: Batch) -> tuple[Ints, Ints]:
        """Translate the batch's labels: for each node its operator, and its code for the label encoder, both (N,)."""
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
        """Return the encoder's code for each label of a forest's vocabulary, -1 for those it does not know; -1 behind all."""
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

    def _label_vectors(self, batch: Batch, operators: Ints, codes: Ints, like: Tensor) -> Tensor | None:
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


def _fold_up(cell: Cell, schedule: Schedule, label: Tensor | None, operator: Tensor, like: Tensor) -> list[Tensor]:
    """Compute memories from the deepest level to the roots."""
    memory = like.new_zeros(0, cell.memory_size)
    memories = []
    for level, x, kind in zip(
        schedule.levels(), _by_level(label, schedule), _by_level(operator, schedule), strict=True
    ):
        rows = torch.from_numpy(level.children).to(like.device)  # (n, W); row 0 is the absent child
        below = nn.functional.pad(memory, (0, 0, 1, 0))
        children = below.index_select(0, rows.flatten()).view(*rows.shape, cell.memory_size)
        memory = cell(x, children, kind)
        memories.append(memory)
    return memories


def _fold_down(cell: Cell, schedule: Schedule, label: Tensor | None, operator: Tensor, like: Tensor) -> list[Tensor]:
    """Compute memories from the roots to the deepest level."""
    memory = like.new_zeros(0, cell.memory_size)
    memories = []
    steps = list(zip(schedule.levels(), _by_level(label, schedule), _by_level(operator, schedule), strict=True))
    for level, x, kind in reversed(steps):
        above = nn.functional.pad(memory, (0, 0, 1, 0))
        parent = above.index_select(0, torch.from_numpy(level.parents).to(like.device)).unsqueeze(1)  # (n, 1, S)
        slots = torch.from_numpy(level.slots).to(like.device)
        width = max(cell.arity, int(level.slots.max()) + 1)  # beyond the arity only where a cell takes any number
        place = None if one_slot(cell) else nn.functional.one_hot(slots, width).to(parent).unsqueeze(2)  # (n, L, 1)
        memory = cell(x, parent if place is None else place * parent, kind)
        memories.append(memory)
    return memories[::-1]


def _first_parameter(module: nn.Module) -> Tensor:
    """Return `next(module.parameters())`, which asks every module first and takes longer than a small batch's labels."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        if child is not None:
            return _first_parameter(child)
    raise ConfigurationError("TreeEncoder expects a cell with parameters, got one without.")


def _by_level(values: Tensor | None, schedule: Schedule) -> list[Tensor] | list[None]:
    # Split once instead of slicing at each level: the gradient of a slice is as long as the whole.
    sizes = schedule.level_sizes.tolist()
    return [None] * len(sizes) if values is None else list(torch.split(values, sizes))


def _fresh_copy(cell: Cell) -> Cell:
    other = copy.deepcopy(cell)
    other.reset_parameters()
    return other
