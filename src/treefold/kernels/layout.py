"""Where each parameter of a cell stands in the one flat array that the kernels read, and the tables that say so."""

import functools
import itertools
import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from treefold.kernels import tables
from treefold.kernels.compiled import collect
from treefold.kernels.numbering import in_rows, multiset_tables
from treefold.kernels.tables import Floats, Ints, Tables, Weights
from treefold.nn.aggregators import Aggregator, Canonical, Full, Sum, TensorTrain, Tucker
from treefold.nn.cells import Cell, LeafLSTM, LeafRNN, PerLabel, TreeLSTM, TreeRNN
from treefold.nn.flat import Arrangement

# Axes:  L child slots · C state size · R rank · M label size · G gates: one, or three side by side
FORMS: dict[type[Aggregator], int] = {
    Sum: tables.SUM,
    Canonical: tables.CANONICAL,
    TensorTrain: tables.TRAIN,
    Full: tables.FULL,
    Tucker: tables.TUCKER,
}
NUMPY_TYPES: dict[torch.dtype, Any] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
_ACTIVATIONS = {"tanh": tables.TANH, "sigmoid": tables.SIGMOID}


@final
@dataclass(frozen=True)
class Entry:
    """The place of one parameter in the flat array, or of ``count`` rows of it from ``first``: sizes and strides of a view."""

    module: nn.Module
    name: str
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    first: int = 0

    def view(self, flat: Tensor) -> Tensor:
        """Return the place as a view."""
        return flat.as_strided(self.sizes, self.strides, self.offset)


@final
@dataclass
class Layout:
    """The places of all parameters of a cell, made once for a cell; `pack` copies them together."""

    gates: int
    state_size: int
    size: int = 0
    entries: list[Entry] = field(default_factory=list)
    ones: list[tuple[int, int]] = field(default_factory=list)
    operators: list[list[int]] = field(default_factory=list)
    sets: list[list[int]] = field(default_factory=list)
    orders: list[Ints] = field(default_factory=list)
    terms: list[Ints] = field(default_factory=list)
    padded: list[Ints] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_split = False
        self._standing: tuple[list[int], Weights] | None = None
        self.tables = Tables(0, 0, *[np.zeros((0, 0), np.int64)] * 5)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters, each once, in the order of the entries."""
        # By the dictionary, which is several times faster than `getattr`, unless a parametrisation stands in between.
        return [
            getattr(entry.module, entry.name) if (found := entry.module._parameters.get(entry.name)) is None else found
            for entry in self.entries
            if not entry.first
        ]

    @functools.cached_property
    def rank(self) -> int:
        """The greatest rank of those forms that have an output matrix, 0 without any."""
        outer = (tables.SUM, tables.FULL)
        return max((row[tables.RANK] for row in self.operators if row[tables.FORM] not in outer), default=0)

    @functools.cached_property
    def width(self) -> int:
        """The greatest number of linear images of one child."""
        return max((row[tables.WIDTH] for row in self.sets), default=0)

    @functools.cached_property
    def label_width(self) -> int:
        """The greatest number of linear images of one label."""
        return max(row[tables.LABEL_WIDTH] for row in self.operators)

    @functools.cached_property
    def widths(self) -> Ints:
        """The sizes that the states of a pass have, in the order that `tables` names."""
        return np.array([self.width, self.label_width, self.rank])

    @functools.cached_property
    def largest(self) -> int:
        """The entries of the largest matrix that a node goes through; of cores a share, since few nodes have L children."""
        slots = [(self.state_size + 1) * row[tables.WIDTH] for row in self.sets]
        return max([*slots, *(row[tables.CORE_SIZE] // max(1, row[tables.ARITY]) for row in self.operators)])

    def pack(self, parameters: list[Tensor]) -> Weights:
        """Copy the parameters into one flat array."""
        whole = [each if each.is_contiguous() else each.contiguous() for each in parameters]
        values = self.empty(NUMPY_TYPES[parameters[0].dtype])
        collect(np.array([each.data_ptr() for each in whole]), self.copies, values)
        return Weights(values, *self.tables)

    @functools.cached_property
    def copies(self) -> Ints:
        """What `pack` copies, as `collect` takes it."""
        sizes = np.array([each.numel() for each in self.parameters])
        starts = np.cumsum(sizes) - sizes
        numbered = [
            torch.arange(start, start + each.numel()).view(each.shape)
            for start, each in zip(starts.tolist(), self.parameters, strict=True)
        ]
        source = torch.full((self.size,), -2)  # no parameter
        for entry, piece in zip(self.entries, self._pieces(numbered), strict=True):
            entry.view(source).copy_(piece)
        places = source.numpy()
        owner = np.searchsorted(starts, places, side="right") - 1
        # A run ends where the next number is not the next one of the same parameter.
        firsts = np.flatnonzero((np.diff(places, prepend=-3) != 1) | (np.diff(owner, prepend=-2) != 0))
        lengths, owner, places = np.diff(firsts, append=len(places)), owner[firsts], places[firsts]
        runs = np.stack([owner, places - starts[owner], firsts, lengths], 1)[places >= 0]
        return in_rows(runs.tolist())

    def arrangement(self) -> Arrangement | None:
        """Say how the parameters can stand in one tensor that is the flat array, so that nothing is copied."""
        tensors = self.parameters
        parameters = [each for each in tensors if isinstance(each, nn.Parameter)]
        if self.is_split or len({id(each) for each in parameters}) < len(tensors):
            return None
        with torch.inference_mode(False):
            background = torch.from_numpy(self.empty(NUMPY_TYPES[parameters[0].dtype]))
        places = [(entry.sizes, entry.strides, entry.offset) for entry in self.entries]
        return Arrangement(self, background, [(each, *place) for each, place in zip(parameters, places, strict=True)])

    def standing(self, parameters: list[Tensor]) -> Weights | None:
        """Return the weights where the parameters stand as the kernels read them; move them there first, where that can be.

        From then on they are views of one array, so that nothing is copied to use them, and whoever changes one changes the
        array. Memory that is shared with other processes is left alone.
        """
        pointers = [each.data_ptr() for each in parameters]
        if self._standing is None or self._standing[0] != pointers:
            arrangement = self.arrangement()
            shared = any(each.is_shared() for each in parameters)  # type: ignore[no-untyped-call]
            if arrangement is None or shared:
                return None
            flat = arrangement.background
            with torch.inference_mode(False):  # else parameters that answered once could not be trained any more
                for parameter, sizes, strides, offset in arrangement.views:
                    parameter.data = flat.as_strided(sizes, strides, offset).copy_(parameter.data)
            self._standing = [each.data_ptr() for each in parameters], Weights(flat.numpy(), *self.tables)
        return self._standing[1]

    def empty(self, dtype: "np.dtype[Any]") -> Floats:
        """Return a flat array with nothing but the constants in it."""
        flat = np.zeros(self.size, dtype)
        for start, count in self.ones:
            flat[start : start + count] = 1
        return flat

    def gradients(self, flat: Tensor) -> list[Tensor]:
        """Return the gradient of each parameter, views of the flat one where they can be."""
        views = [entry.view(flat) for entry in self.entries]
        if not self.is_split:
            return views
        starts = [index for index, entry in enumerate(self.entries) if not entry.first]
        pieces = [views[start:stop] for start, stop in itertools.pairwise([*starts, len(views)])]
        return [piece[0] if len(piece) == 1 else torch.cat(piece) for piece in pieces]

    def _pieces(self, parameters: list[Tensor]) -> list[Tensor]:
        """Return the rows of the parameters that the entries are about."""
        whole = [parameter.detach() for parameter in parameters]
        if not self.is_split:
            return whole
        place = -1
        result: list[Tensor] = []
        for entry in self.entries:
            place += not entry.first
            result.append(whole[place][entry.first : entry.first + entry.sizes[0]])
        return result

    def finish(self) -> None:
        """Turn the rows that were gathered into tables."""
        self.is_split = any(entry.first for entry in self.entries)
        none = np.zeros((0, 4), np.int64)
        self.tables = Tables(
            self.gates,
            self.state_size,
            np.array(self.operators, np.int64),
            np.array(self.sets, np.int64).reshape(-1, 3),
            np.concatenate([none, *self.orders]),
            np.concatenate([none[:, :3], *self.terms]),
            np.concatenate([none[:, 0], *self.padded]),
        )

    def take(self, size: int) -> int:
        """Reserve room for this many numbers; return where it starts."""
        self.size += size
        return self.size - size


def layout_of(cell: Cell) -> Layout:
    """Lay out the parameters of a cell, of all its operators' where it has some."""
    cells = [cell.cell_of(index) for index in range(len(cell.operators) + 1)] if isinstance(cell, PerLabel) else [cell]
    layout = Layout(gates=3 if cell.memory_size > cell.state_size else 1, state_size=cell.state_size)
    for one in cells:
        if isinstance(one, (LeafRNN, LeafLSTM)):
            _add_leaf(layout, one)
        else:
            assert isinstance(one, (TreeRNN, TreeLSTM))
            _add_cell(layout, one)
    layout.finish()
    return layout


def gates_of(cell: TreeRNN | TreeLSTM) -> list[Aggregator]:
    """Return the aggregators of a cell: that of the recursive neuron, or those of the gates i, o and u."""
    gates = [cell.transition] if isinstance(cell, TreeRNN) else [cell.input_gate, cell.output_gate, cell.update_value]
    return list(gates)


def _add_leaf(layout: Layout, leaf: LeafRNN | LeafLSTM) -> None:
    """Add a leaf's cell: a sum of the label and nothing else."""
    width, size = layout.gates * leaf.state_size, leaf.affine.weights.shape[0]
    weights, bias = layout.take((size + 1) * width), layout.take(width)
    layout.entries.append(Entry(leaf.affine, "weights", weights, (size, width), (width, 1)))
    layout.entries.append(Entry(leaf.affine, "bias", bias, (width,), (1,)))
    row = [0] * tables.OPERATOR_COLUMNS
    row[tables.FORM], row[tables.RANK], row[tables.FIRST_SET] = tables.SUM, leaf.state_size, len(layout.sets)
    row[tables.LABEL], row[tables.LABEL_WEIGHTS], row[tables.LABEL_WIDTH] = size, weights, width
    row[tables.LABEL_PART], row[tables.CORE], row[tables.CORE_SIZE] = width, bias, leaf.state_size
    row[tables.ACTIVATION] = _ACTIVATIONS[leaf.activation if isinstance(leaf, LeafRNN) else leaf.update]
    layout.operators.append(row)


def _add_cell(layout: Layout, cell: TreeRNN | TreeLSTM) -> None:
    """Add a cell: the images of each slot side by side, first those of the aggregators, then the forget gate."""
    aggregators, gates, size = gates_of(cell), layout.gates, cell.state_size
    pattern = aggregators[0]
    form, label = FORMS[type(pattern)], pattern.label_size or 0
    rank = pattern.rank or size
    forget = size if isinstance(cell, TreeLSTM) else 0
    part = gates * {tables.SUM: size, tables.TRAIN: rank * rank, tables.FULL: 0}.get(form, rank)
    child_starts = form == tables.TRAIN and not pattern.shared and not label
    row = [0] * tables.OPERATOR_COLUMNS
    row[tables.FORM], row[tables.SHARED], row[tables.RANK] = form, int(pattern.shared), rank
    row[tables.ARITY], row[tables.FIRST_SET], row[tables.LABEL] = pattern.arity, len(layout.sets), label
    for slot in range(1 if pattern.shared else pattern.arity):
        own = gates * rank if child_starts and slot == 0 else part
        layout.sets.append([layout.take((size + 1) * (own + forget)), own + forget, own])
    if label:
        row[tables.LABEL_PART] = gates * {tables.SUM: size, tables.FULL: 0}.get(form, rank)
        row[tables.LABEL_WIDTH] = row[tables.LABEL_PART] + forget
        row[tables.LABEL_WEIGHTS] = layout.take((label + 1) * row[tables.LABEL_WIDTH])
    row[tables.CORE_SIZE] = _core_size(pattern, form, size)
    row[tables.CORE] = layout.take(gates * row[tables.CORE_SIZE])
    if form in (tables.CANONICAL, tables.TRAIN, tables.TUCKER):
        row[tables.OUTPUT] = layout.take(gates * (rank + 1) * size)
    chosen = cell.activation if isinstance(cell, TreeRNN) else cell.update
    row[tables.ACTIVATION] = _ACTIVATIONS[chosen]
    if form >= tables.FULL and pattern.shared:
        row[tables.SYMMETRIC] = _add_multisets(layout, rank, pattern.arity)
    layout.operators.append(row)
    for gate, aggregator in enumerate(aggregators):
        _add_gate(layout, aggregator, row, gate)
    if isinstance(cell, TreeLSTM):
        _add_slots(layout, cell.forget_gates, "slot_weights", row, last=True)
        _add_slots(layout, cell.forget_gates, "slot_biases", row, last=True, bias=True)
        _add_label(layout, cell.forget_gates, "label_weights", row, row[tables.LABEL_PART])


def _add_gate(layout: Layout, aggregator: Aggregator, row: list[int], gate: int) -> None:
    """Add the parameters of one gate's aggregator."""
    size, rank = layout.state_size, row[tables.RANK]
    core = row[tables.CORE] + gate * row[tables.CORE_SIZE]

    def add_flat(module: nn.Module, name: str) -> None:
        layout.entries.append(Entry(module, name, core, *_contiguous(getattr(module, name))))

    def add_tensor(full: Full) -> None:
        sizes, strides = _contiguous(full.tensor)
        if not full.shared:  # the last slot slowest, so that what counts without the last children stands together
            strides = (*strides[: -full.arity - 1], *strides[-full.arity - 1 : -1][::-1], 1)
        layout.entries.append(Entry(full, "tensor", core, sizes, strides))

    match aggregator:
        case Sum():
            _add_slots(layout, aggregator, "slot_weights", row, column=gate * size)
            _add_label(layout, aggregator, "label_weights", row, gate * size)
            add_flat(aggregator, "bias")
            return
        case Full():
            add_tensor(aggregator)
            return
        case Canonical():
            _add_slots(layout, aggregator, "slot_factors", row, column=gate * rank)
            _add_label(layout, aggregator, "label_factor", row, gate * rank)
            if aggregator.shared:  # the bias of a slot is one
                start, width, _ = layout.sets[row[tables.FIRST_SET]]
                layout.ones.append((start + size * width + gate * rank, rank))
        case TensorTrain():
            starts = not aggregator.shared and not row[tables.LABEL]
            _add_slots(layout, aggregator, "cores", row, column=gate * rank * rank, skip=int(starts))
            if starts:
                start, width, _ = layout.sets[row[tables.FIRST_SET]]
                place = start + gate * rank
                layout.entries.append(Entry(aggregator, "start", place, (size + 1, rank), (width, 1)))
            elif row[tables.LABEL]:
                _add_label(layout, aggregator, "start", row, gate * rank)
            else:
                add_flat(aggregator, "start")
        case Tucker():
            _add_slots(layout, aggregator, "slot_factors", row, column=gate * rank)
            _add_label(layout, aggregator, "label_factor", row, gate * rank)
            add_tensor(aggregator.core)
    output = row[tables.OUTPUT] + gate * (rank + 1) * size
    layout.entries.append(Entry(aggregator, "output", output, (rank, size), (size, 1)))


def _add_slots(
    layout: Layout,
    module: nn.Module,
    name: str,
    row: list[int],
    *,
    column: int = 0,
    skip: int = 0,
    last: bool = False,
    bias: bool = False,
) -> None:
    """Add a parameter with a matrix, or a bias, for each slot: in a column of the slots' matrices, or behind all."""
    parameter = getattr(module, name)
    first_set, slots = row[tables.FIRST_SET] + skip, 1 if row[tables.SHARED] else len(parameter)
    own = _contiguous(parameter)[1][0 if row[tables.SHARED] else 1 :]  # the strides within one slot
    chosen, first = layout.sets[first_set : first_set + slots], 0
    for _, group in itertools.groupby(chosen, key=lambda one: one[1:]):  # the first slot of a train may be narrower
        (start, width, part), *others = group
        count = 1 + len(others)
        offset = start + (part if last else column) + (layout.state_size * width if bias else 0)
        strides = own if bias else (width, *own[1:])
        if row[tables.SHARED]:
            layout.entries.append(Entry(module, name, offset, tuple(parameter.shape), strides))
        else:
            sizes = (count, *parameter.shape[1:])
            between = (layout.state_size + 1) * width
            layout.entries.append(Entry(module, name, offset, sizes, (between, *strides), first))
        first += count
    if not slots:
        layout.entries.append(Entry(module, name, 0, *_contiguous(parameter)))


def _contiguous(parameter: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes and strides of a tensor of this shape without gaps."""
    sizes = tuple(parameter.shape)
    return sizes, tuple(math.prod(sizes[place + 1 :]) for place in range(len(sizes)))


def _add_label(layout: Layout, module: nn.Module, name: str, row: list[int], column: int) -> None:
    """Add a parameter that multiplies the label: in a column of the label's matrix."""
    parameter = getattr(module, name)
    if parameter is not None:
        offset = row[tables.LABEL_WEIGHTS] + column
        layout.entries.append(Entry(module, name, offset, tuple(parameter.shape), (row[tables.LABEL_WIDTH], 1)))


def _core_size(pattern: Aggregator, form: int, size: int) -> int:
    """Return the entries of what belongs to a gate and to no input: a tensor, a bias, a free start."""
    match pattern:
        case Full():
            return pattern.tensor.numel()
        case Tucker():
            return pattern.core.tensor.numel()
        case TensorTrain():
            return pattern.rank if pattern.start.dim() == 1 else 0
        case _:
            return size if form == tables.SUM else 0


def _add_multisets(layout: Layout, rank: int, arity: int) -> int:
    """Add the tables of multisets; return the row for no children."""
    orders, terms, padded = multiset_tables(rank, arity)
    first = sum(map(len, layout.orders))
    orders = orders.copy()
    orders[:, [tables.FIRST_TERM, tables.LAST_TERM]] += sum(map(len, layout.terms))
    orders[:, tables.FIRST_ROW] += sum(map(len, layout.padded))
    layout.orders.append(orders)
    layout.terms.append(terms)
    layout.padded.append(padded)
    return first
