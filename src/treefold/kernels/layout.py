"""Where each parameter of a cell is in the flat array that the kernels read, and the tables that say so.

Aggregators and cells describe themselves with a `FormKernel` and a `CellKernel`, and put their parameters into a `Layout`.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import torch
from numba import carray  # type: ignore[attr-defined]
from numba.core.types import CPointer
from torch import Tensor, nn

from treefold.errors import ConfigurationError
from treefold.kernels.compile import address_of, entry_point, operation, precompile
from treefold.kernels.fold import fold_backward, fold_forward
from treefold.kernels.plan import make_plan
from treefold.kernels.records import (
    BY_NOTHING,
    CELL,
    CLAMP,
    OPERATOR,
    ORDER,
    SHARP,
    SIGMOID,
    SLOT,
    TANH,
    Ints,
    Tables,
    Terms,
    Vector,
    Weights,
)

# Axes:  L child slots · C state size · R rank · M label size · G gates
NUMPY_TYPES: dict[torch.dtype, Any] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
_ACTIVATIONS = {"tanh": TANH, "sigmoid": SIGMOID, "sharp-sigmoid": SHARP, "clamp": CLAMP}
Kernel = Callable[..., Any]


@final
@dataclass(frozen=True)
class FormKernel:
    """The kernel of an aggregator: how large its parts are, for one gate, and its compiled functions.

    A form takes a linear image of each child and of the label, reduces them to one vector, and multiplies that by an output
    matrix. The passes do the linear maps; a form's functions do the reduction, for all gates:

    - ``forward(weights, plan, states, labels, start, stop, group, out)`` writes ``out[unit]`` for units of a group,
    - ``backward(weights, plan, states, labels, gradients, start, stop, group, delta)`` adds the gradients of its inputs for
      ``delta[unit]``, and those of its own weights unless ``weights`` does,
    - ``weights(weights, plan, states, labels, gradients, members, group)`` adds those of all units of a group at once,
    - ``plan(tables, groups, index, core_rows, longest)`` fills in the fields of a group, if it needs any,
    - ``prepare(weights, plan, states, group)`` and ``finish(weights, plan, gradients, group)`` frame the passes.
    """

    forward: Kernel
    backward: Kernel
    weights: Kernel | None = None
    plan: Kernel | None = None
    prepare: Kernel | None = None
    finish: Kernel | None = None
    grouping: int = BY_NOTHING
    images: int = 0
    """Linear images of a child."""
    first_images: int | None = None
    """Those of the first child, if they are not as many."""
    label_images: int = 0
    core: int = 0
    """Numbers that belong to no input: a tensor, a bias."""
    rank: int = 0
    """The rank that its functions see, if it is not the form's own."""
    has_output: bool = False
    bound: int = 0
    """How the images are bounded; the form knows what it means."""
    has_orders: bool = False
    """Whether it needs the tables of multisets of coordinates."""
    can_be_part: bool = False
    """Whether it can be a part of a sum of forms: its functions find their operator by `operator_of`, their images by its columns
    and their place in ``out`` by its ``inner``; they need no groups of units, and nothing that a group keeps."""


@final
@dataclass(frozen=True)
class CellKernel:
    """The kernel of a cell: its number of aggregators, the numbers that it keeps, in state sizes, and its compiled functions.

    - ``forward(weights, plan, states, start, stop, operator)`` turns pre-activations ``states.gates`` into ``states.memory``,
    - ``backward(weights, plan, states, gradients, start, stop, operator)`` goes back,
    - ``edges_forward(weights, plan, states, start, stop, slot)``, ``edges_backward(…)`` and
      ``edges_weights(weights, plan, states, gradients, edges, slot)`` take the images of children, unless they are linear maps
      of the children's states.
    """

    forward: Kernel
    backward: Kernel
    edges_forward: Kernel | None = None
    edges_backward: Kernel | None = None
    edges_weights: Kernel | None = None
    gates: int = 1
    unit_cache: int = 0
    child_cache: int = 0
    edge_cache: int = 0


class Form(Protocol):
    """An aggregator, as a layout sees it."""

    state_size: int
    arity: int
    out_size: int
    rank: int
    label_size: int | None
    shared: bool

    @property
    def normalises(self) -> bool:
        """Whether cells take means over the children."""

    @property
    def summands(self) -> "Sequence[Form]":
        """The parts of a sum of forms; the form itself if it is none."""

    def kernel(self) -> FormKernel | None:
        """Return the kernel."""

    def lay_out(self, places: "GatePlaces") -> None:
        """Put the parameters into their places."""


@final
@dataclass(frozen=True)
class Entry:
    """The place of one parameter in the flat array, or of some rows of it from ``first``: sizes and strides of a view."""

    module: nn.Module
    name: str
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    first: int = 0

    def view(self, flat: Tensor) -> Tensor:
        """Return the place as a view."""
        return flat.as_strided(self.sizes, self.strides, self.offset)


class FlatLayout:
    """The places of parameters in one flat array."""

    def __init__(self) -> None:
        self.size = 0
        self.entries: list[Entry] = []
        self.ones: list[tuple[int, int]] = []
        self._packed: tuple[object, Vector] | None = None

    def take(self, size: int) -> int:
        """Reserve so many numbers; return where they start."""
        self.size += size
        return self.size - size

    def add(self, module: nn.Module, name: str, offset: int, strides: tuple[int, ...] | None = None) -> None:
        """Put a whole parameter somewhere."""
        sizes, contiguous = _contiguous(getattr(module, name))
        self.entries.append(Entry(module, name, offset, sizes, contiguous if strides is None else strides))

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters, each once, in the order of the entries."""
        # The dictionary is several times faster than `getattr`, which finds what parametrisations compute.
        return [
            getattr(entry.module, entry.name) if (found := entry.module._parameters.get(entry.name)) is None else found
            for entry in self.entries
            if not entry.first
        ]

    @property
    def fits(self) -> bool:
        """Whether the parameters have the shapes that they had when they were laid out."""
        if self.is_split:
            return True
        return all(each.shape == entry.sizes for each, entry in zip(self.parameters, self.entries, strict=True))

    @functools.cached_property
    def _sizes(self) -> Ints:
        return np.array([each.numel() for each in self.parameters])

    @functools.cached_property
    def is_split(self) -> bool:
        """Whether a parameter is in several places."""
        return any(entry.first for entry in self.entries)

    def empty(self, dtype: "np.dtype[Any]") -> Vector:
        """Return a flat array with nothing but the constants in it."""
        flat = np.zeros(self.size, dtype)
        for start, count in self.ones:
            flat[start : start + count] = 1
        return flat

    def values(self) -> Vector:
        """Return the parameters in one flat array, which must not be changed: the last one if no parameter has changed since.

        A checksum says so, because some changes pass by torch's version counters.
        """
        whole = [each if each.is_contiguous() else each.detach().contiguous() for each in self.parameters]
        sizes = self._sizes * (whole[0].element_size() // 4)
        stamp = whole[0].dtype, checksum(np.array([each.data_ptr() for each in whole]), sizes)
        if self._packed is None or self._packed[0] != stamp:
            self._packed = stamp, self.pack(whole)
        return self._packed[1]

    def pack(self, parameters: Sequence[Tensor]) -> Vector:
        """Copy the parameters into one flat array."""
        whole = [each if each.is_contiguous() else each.contiguous() for each in parameters]
        kinds = {each.dtype for each in whole}
        if len(kinds) > 1:
            raise ConfigurationError(f"kernels expect parameters of one type, got {' and '.join(map(str, kinds))}.")
        values = self.empty(NUMPY_TYPES[parameters[0].dtype])
        collect(np.array([each.data_ptr() for each in whole]), self._copies, values)
        return values

    def gradients(self, flat: Tensor) -> list[Tensor]:
        """Return the gradient of each parameter, as views of the flat one if possible."""
        views = [entry.view(flat) for entry in self.entries]
        if not self.is_split:
            return views
        return [piece[0] if len(piece) == 1 else torch.cat(piece) for piece in self._by_parameter(views)]

    def _by_parameter(self, views: list[Tensor]) -> Iterator[list[Tensor]]:
        starts = [index for index, entry in enumerate(self.entries) if not entry.first]
        return (views[start:stop] for start, stop in itertools.pairwise([*starts, len(views)]))

    @functools.cached_property
    def _copies(self) -> Terms:
        """The copies that `pack` makes, as `collect` takes them."""
        parameters = self.parameters
        sizes = np.array([each.numel() for each in parameters])
        starts = np.cumsum(sizes) - sizes
        source = torch.full((self.size,), -2)  # no parameter
        pieces = self._by_parameter([entry.view(source) for entry in self.entries])
        for start, parameter, views in zip(starts.tolist(), parameters, pieces, strict=True):
            numbers = torch.arange(start, start + parameter.numel()).view(parameter.shape)
            for view, part in zip(
                views,
                torch.split(numbers, [len(each) for each in views]) if parameter.dim() else [numbers],
                strict=True,
            ):
                view.copy_(part)
        places = source.numpy()
        owner = np.searchsorted(starts, places, side="right") - 1
        # A run ends if the next number is not the next one of the same parameter.
        firsts = np.flatnonzero((np.diff(places, prepend=-3) != 1) | (np.diff(owner, prepend=-2) != 0))
        lengths, owner, places = np.diff(firsts, append=len(places)), owner[firsts], places[firsts]
        runs = np.stack([owner, places - starts[owner], firsts, lengths], 1)[places >= 0]
        return in_rows(runs.tolist())


@final
class CellLayout(FlatLayout):
    """The places of all parameters of a cell, made once for a cell, and their tables."""

    def __init__(self, state_size: int, memory_size: int, kernel: CellKernel) -> None:
        super().__init__()
        self.state_size, self.memory_size, self.kernel = state_size, memory_size, kernel
        self.forms: list[FormKernel] = []
        self.operators: list[dict[str, int]] = []
        self.parts: list[dict[str, int]] = []  # the further parts of sums of forms
        self.part_forms: list[FormKernel] = []
        self.slots: list[dict[str, int]] = []
        self._multisets: list[tuple[Any, Terms, Ints]] = []
        self._tables: dict[tuple[Any, bool], Tables] = {}

    def add_cell(
        self,
        aggregators: Sequence[Form],
        activation: str,
        child_gates: nn.Module | None = None,
        *,
        gates_come_first: bool = False,
        hidden: nn.Module | None = None,
    ) -> None:
        """Add a cell with one aggregator for each gate, all of one form and size, and gates of its children, if it has them.

        The gates of a child follow its images in one matrix. If they come first, they scale the children before the images are
        taken, and have a matrix of their own. ``hidden`` is an affine map from the aggregator's result to the state.
        """
        pattern, gates, size = aggregators[0], self.kernel.gates, self.state_size
        kernels = [form for part in pattern.summands if (form := part.kernel()) is not None]
        extra = 0 if child_gates is None else size
        row = self._add_operator(kernels[0], activation)
        row |= {"shared": int(pattern.shared), "arity": pattern.arity, "normalises": int(pattern.normalises)}
        row |= {"out_size": pattern.out_size, "projects": int(any(form.images for form in kernels))}
        for slot in range(1 if pattern.shared else pattern.arity):
            images = [form.images if slot or form.first_images is None else form.first_images for form in kernels]
            part = gates * sum(images)
            width = part if gates_come_first else part + extra
            place = {"start": self.take((size + 1) * width), "width": width, "part": part}
            place["operator"] = len(self.operators) - 1
            place["gate_start"] = self.take((size + 1) * size) if gates_come_first else -1
            self.slots.append(place)
        if pattern.label_size:
            part = gates * sum(form.label_images for form in kernels)
            row |= {"label_size": pattern.label_size, "label_part": part, "label_width": part + extra}
            row["label_start"] = self.take((pattern.label_size + 1) * row["label_width"])
        own, before = row, dict.fromkeys(("column", "label_column", "inner"), 0)
        for number, form in enumerate(kernels):
            if number:
                own["next_part"] = len(self.parts) + 1  # the rows of parts follow all others: see `_made_tables`
                own = row | before
                self.parts.append(own)
                self.part_forms.append(form)
            own |= {"next_part": 0, "core_size": form.core, "bound": form.bound}
            own["rank"] = form.rank or pattern.summands[number].rank or size
            own["core"] = self.take(gates * form.core)
            own["output"] = self.take(gates * (own["rank"] + 1) * pattern.out_size) if form.has_output else -1
            if form.has_orders:
                own["first_order"] = self._add_multisets(own["rank"], pattern.arity)
            for gate, aggregator in enumerate(aggregators):
                summand = aggregator.summands[number]
                summand.lay_out(GatePlaces(self, summand, own, form, gate))
            before["column"] += gates * form.images
            before["label_column"] += gates * form.label_images
            before["inner"] += gates * own["rank"] if form.has_output else 0
        row["inner_size"] = before["inner"]
        if child_gates is not None:
            places = GatePlaces(self, pattern, row, kernels[0], gates)
            places.child_gates(child_gates, come_first=gates_come_first)
        if hidden is not None:
            row["hidden"] = self.take((pattern.out_size + 1) * size)
            self.add(hidden, "weights", row["hidden"])
            self.add(hidden, "bias", row["hidden"] + pattern.out_size * size)

    def add_leaf(self, affine: nn.Module, form: FormKernel, activation: str) -> None:
        """Add the cell of leaves, an affine map ``affine.weights``, ``affine.bias`` of the label: a sum without children."""
        (size, width), row = affine.get_parameter("weights").shape, self._add_operator(form, activation)
        row |= {"label_size": size, "label_width": width, "label_part": width, "rank": self.state_size}
        row["out_size"] = self.state_size
        row["label_start"], row["core"] = self.take((size + 1) * width), self.take(width)
        self.add(affine, "weights", row["label_start"])
        self.add(affine, "bias", row["core"])

    def _add_operator(self, form: FormKernel, activation: str) -> dict[str, int]:
        row = dict.fromkeys(OPERATOR.names, 0)
        row |= {"first_slot": len(self.slots), "core_size": form.core, "output": -1, "hidden": -1, "inner_size": 0}
        row |= {"grouping": form.grouping, "projects": int(form.images > 0), "activation": _ACTIVATIONS[activation]}
        self.operators.append(row)
        self.forms.append(form)
        return row

    def _add_multisets(self, rank: int, arity: int) -> int:
        """Add the tables of multisets; return the row for no children."""
        orders, terms, padded = multiset_tables(rank, arity)
        before = [sum(len(each[part]) for each in self._multisets) for part in range(3)]
        orders = orders.copy()
        for name in ("first_term", "last_term"):
            orders[name] += before[1]
        orders["first_row"] += before[2]
        self._multisets.append((orders, terms, padded))
        return before[0]

    @functools.cached_property
    def largest(self) -> int:
        """The entries of the largest matrix that a node goes through; of cores a share, since few nodes have L children."""
        slots = [(self.state_size + 1) * slot["width"] for slot in self.slots]
        return max([*slots, *(row["core_size"] // max(1, row["arity"]) for row in self.operators)])

    def functions(self, *, training: bool, more: Sequence[Kernel] = ()) -> list[Kernel]:
        """Return the kernels that this cell needs, without or with gradients, and ``more`` in their middle.

        The longest to compile are at both ends, and few of the functions that both ends call are the same: two processes compile
        them from there.
        """
        cell, found = self.kernel, list[Kernel | None]([make_plan, fold_forward])
        forms = [*self.forms, *self.part_forms]
        for form in forms:
            found += [form.plan, form.prepare, form.forward]
        found += [cell.edges_forward, cell.forward, *more]
        if training:
            for form in forms:
                found += [form.finish, form.weights, form.backward]
            found += [cell.edges_weights, cell.edges_backward, cell.backward, fold_backward]
        return list(dict.fromkeys(each for each in found if each is not None))

    def tables(self, dtype: "np.dtype[Any]", *, training: bool, more: Sequence[Kernel] = ()) -> Tables:
        """Return the tables for numbers of a type; compile or load their kernels, and ``more`` with them, at the first call."""
        if (dtype, training) not in self._tables:
            precompile(self.functions(training=training, more=more), dtype)
            self._tables[dtype, training] = self._made_tables(dtype, training)
        return self._tables[dtype, training]

    def _made_tables(self, dtype: "np.dtype[Any]", training: bool) -> Tables:
        def addresses(kernel: FormKernel | CellKernel, names: Sequence[str]) -> dict[str, int]:
            back = {"backward", "weights", "finish", "edges_backward", "edges_weights"}
            found = {name: getattr(kernel, name) for name in names if training or name not in back}
            return {name: 0 if each is None else address_of(each, dtype) for name, each in found.items()}

        size, cell = self.state_size, self.kernel
        own: dict[str, int] = {name: size * getattr(cell, name) for name in ("unit_cache", "child_cache", "edge_cache")}
        own |= {"gates": cell.gates} | addresses(
            cell, ("forward", "backward", "edges_forward", "edges_backward", "edges_weights")
        )
        steps = ("plan", "prepare", "forward", "backward", "weights", "finish")
        rows = zip([*self.operators, *self.parts], [*self.forms, *self.part_forms], strict=True)
        operators = [row | addresses(form, steps) for row, form in rows]
        for row in operators:
            row["next_part"] += len(self.operators) - 1 if row["next_part"] else 0
        orders, terms, padded = zip(
            (np.zeros(0, ORDER), np.zeros((0, 3), np.int64), np.zeros(0, np.int64)), *self._multisets, strict=True
        )
        return Tables(
            size,
            self.memory_size,
            max((slot["width"] for slot in self.slots), default=0),
            max(row["label_width"] for row in self.operators),
            cell.gates * max(row["out_size"] for row in self.operators),
            cell.gates * max((row["out_size"] for row in self.parts), default=0),
            max(row["inner_size"] for row in self.operators),
            records([own], CELL),
            records(operators, OPERATOR),
            records(self.slots, SLOT),
            np.concatenate(orders),
            np.concatenate(terms),
            np.concatenate(padded),
        )

    def weights(self, values: Vector, *, training: bool = False, more: Sequence[Kernel] = ()) -> Weights:
        """Return flat values with their tables."""
        return Weights(values, self.tables(values.dtype, training=training, more=more))


@final
class GatePlaces:
    """The places for the parameters of one gate's aggregator."""

    def __init__(self, layout: CellLayout, form: Form, row: dict[str, int], kernel: FormKernel, gate: int) -> None:
        self._layout, self._form, self._row, self._kernel, self._gate = layout, form, row, kernel, gate

    def slots(self, name: str, *, skip: int = 0, column: int = 0) -> None:
        """Put ``name`` (L, C or C+1, …), or without L if it is shared, into the matrices of the slots; the first some skipped.

        ``column`` is the first of the gate's columns that it takes.
        """
        column += self._row["column"] + self._gate * self._kernel.images
        self._add_slots(self._form, name, lambda slot: slot["start"] + column, skip=skip)  # type: ignore[arg-type]

    def first_slot(self, name: str) -> None:
        """Put ``name`` (C+1, …) into the matrix of the first slot."""
        slot = self._layout.slots[self._row["first_slot"]]
        column = self._gate * (self._kernel.first_images or self._kernel.images)
        self._layout.add(self._form, name, slot["start"] + column, (slot["width"], 1))  # type: ignore[arg-type]

    def slot_bias_is_one(self, count: int) -> None:
        """Let the bias of shared slots be the constant one, for the first ``count`` images."""
        slot, images = self._layout.slots[self._row["first_slot"]], self._kernel.images
        bias = slot["start"] + self._form.state_size * slot["width"] + self._row["column"] + self._gate * images
        self._layout.ones.append((bias, count))

    def label(self, name: str) -> None:
        """Put ``name`` (M or M+1, …) into the matrix of the label, if there is one."""
        column = self._row["label_column"] + self._gate * self._kernel.label_images
        self._add_label(self._form, name, column)  # type: ignore[arg-type]

    def core(
        self,
        name: str,
        *,
        module: nn.Module | None = None,
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        """Put ``name`` into the core, from an offset on."""
        start = self._row["core"] + self._gate * self._kernel.core + offset
        self._layout.add(self._form if module is None else module, name, start, strides)  # type: ignore[arg-type]

    def output(self, name: str) -> None:
        """Put ``name`` (R, K) into the output matrix."""
        size = (self._row["rank"] + 1) * self._form.out_size
        self._layout.add(self._form, name, self._row["output"] + self._gate * size)  # type: ignore[arg-type]

    def child_gates(self, module: nn.Module, *, come_first: bool) -> None:
        """Put the gates of children, ``slot_weights``, ``slot_biases`` and ``label_weights``, into their places."""
        size = self._layout.state_size

        def start(slot: dict[str, int]) -> int:
            return slot["gate_start"] if come_first else slot["start"] + slot["part"]

        def bias(slot: dict[str, int]) -> int:
            return start(slot) + size * (size if come_first else slot["width"])

        width = size if come_first else None
        self._add_slots(module, "slot_weights", start, width=width)
        self._add_slots(module, "slot_biases", bias, width=width, is_bias=True)
        self._add_label(module, "label_weights", self._row["label_part"])

    def _add_label(self, module: nn.Module, name: str, column: int) -> None:
        if getattr(module, name) is not None:
            self._layout.add(module, name, self._row["label_start"] + column, (self._row["label_width"], 1))

    def _add_slots(
        self,
        module: nn.Module,
        name: str,
        start: Callable[[dict[str, int]], int],
        *,
        skip: int = 0,
        width: int | None = None,
        is_bias: bool = False,
    ) -> None:
        parameter, shared, layout = getattr(module, name), self._form.shared, self._layout
        first_slot = self._row["first_slot"] + skip
        slots = layout.slots[first_slot : first_slot + (1 if shared else len(parameter))]
        own = _contiguous(parameter)[1][0 if shared else 1 :]  # the strides within one slot
        first = 0
        for slot_width, group in itertools.groupby(slots, key=lambda slot: slot["width"]):
            same = list(group)  # the first slot of a train may be narrower
            strides = own if is_bias else (width or slot_width, *own[1:])
            if shared:
                layout.add(module, name, start(same[0]), strides)
            else:
                # One slot needs no distance, but checkpoints have a checksum of all sizes and strides.
                apart = start(same[1]) - start(same[0]) if len(same) > 1 else (layout.state_size + 1) * slot_width
                sizes = (len(same), *parameter.shape[1:])
                layout.entries.append(Entry(module, name, start(same[0]), sizes, (apart, *strides), first))
            first += len(same)
        if not slots:  # a parameter without entries
            layout.add(module, name, 0)


def records(rows: Sequence[dict[str, int]], kind: Any) -> Any:
    """Return rows as an array of records."""
    table = np.zeros(len(rows), kind)
    for index, row in enumerate(rows):
        for name, value in row.items():
            table[index][name] = value
    return table


def _contiguous(parameter: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes and strides of a contiguous tensor of this shape."""
    sizes = tuple(parameter.shape)
    return sizes, tuple(math.prod(sizes[place + 1 :]) for place in range(len(sizes)))


def in_rows(runs: list[list[int]]) -> Terms:
    """Join runs (from which, where in it, where to, how many) that follow each other at equal distances: (…, how many, how far).

    >>> in_rows([[0, 0, 10, 2], [0, 2, 15, 2], [0, 4, 20, 2], [1, 0, 25, 2]]).tolist()
    [[0, 0, 10, 2, 3, 5], [1, 0, 25, 2, 1, 0]]
    """
    rows: list[list[int]] = []
    for which, start, target, count in sorted(runs):
        if rows:
            last = rows[-1]
            step = target - (last[2] + (last[4] - 1) * last[5])
            follows = (which, start, count) == (last[0], last[1] + last[3] * last[4], last[3])
            if follows and (last[4] == 1 or step == last[5]):
                last[4:] = [last[4] + 1, step]
                continue
        rows.append([which, start, target, count, 1, 0])
    return np.array(rows, np.int64).reshape(-1, 6)


@functools.lru_cache(maxsize=64)
def multiset_tables(rank: int, arity: int) -> tuple[Any, Terms, Ints]:
    """Return for k = 0 … arity the multisets of k coordinates out of rank + 1: how many, their terms, and padded to arity.

    >>> multiset_tables(1, 2)[0].tolist()  # one, two and three multisets; their terms; their rows when padded
    [(1, 0, 0, 0), (2, 0, 2, 1), (3, 2, 6, 3)]
    """
    orders: list[dict[str, int]] = []
    terms: list[tuple[int, int, int]] = []
    padded: list[int] = []
    coordinates = range(rank + 1)
    whole = {each: place for place, each in enumerate(itertools.combinations_with_replacement(coordinates, arity))}
    before: dict[tuple[int, ...], int] = {}
    for k in range(arity + 1):
        now = {each: place for place, each in enumerate(itertools.combinations_with_replacement(coordinates, k))}
        row = {"multisets": len(now), "first_term": len(terms), "first_row": len(padded)}
        for multiset, place in now.items():
            for index, coordinate in enumerate(multiset):
                if not index or multiset[index - 1] != coordinate:  # each distinct coordinate once
                    rest = multiset[:index] + multiset[index + 1 :]
                    terms.append((place, before[rest], coordinate))
            padded.append(whole[(*multiset, *[rank] * (arity - k))])
        orders.append(row | {"last_term": len(terms)})
        before = now
    return records(orders, ORDER), np.array(terms, np.int64).reshape(-1, 3), np.array(padded, np.int64)


@operation
def _pointer(context: Any, address: Any, like: Any) -> Any:
    """Turn an address into a pointer to numbers of an array's type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return CPointer(like.dtype)(address, like), generate  # type: ignore[no-untyped-call]


@entry_point
def checksum(addresses: Ints, sizes: Ints) -> int:
    """Return a checksum of numbers at several places of memory; the sizes count words of 32 bits.

    Four chains of products take two words each in turn, and do not wait for each other. A change of one word is always noticed.
    """
    a, b, c, d = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(5)
    factor = np.uint64(0x9E3779B97F4A7C15)
    for index in range(len(addresses)):
        count = sizes[index] // 2
        words = carray(_pointer(addresses[index], np.empty(0, np.uint64)), count)
        for k in range(0, count - 3, 4):
            a = (a ^ words[k]) * factor
            b = (b ^ words[k + 1]) * factor
            c = (c ^ words[k + 2]) * factor
            d = (d ^ words[k + 3]) * factor
        for k in range(count - count % 4, count):
            a = (a ^ words[k]) * factor
        if sizes[index] % 2:
            last = carray(_pointer(addresses[index], np.empty(0, np.uint32)), sizes[index])
            b = (b ^ np.uint64(last[sizes[index] - 1])) * factor
    for other in (b, c, d):
        a = (a ^ (a >> np.uint64(29)) ^ other) * factor
    return int(a >> np.uint64(1))


@entry_point
def collect(addresses: Ints, copies: Terms, result: Vector) -> None:
    """Copy numbers from several places of memory into one array.

    ``copies`` (n, 6): from which, where in it, where to, how many in a row, how many rows, how far apart they are here.
    """
    for index in range(len(copies)):
        start, target, count = copies[index, 1], copies[index, 2], copies[index, 3]
        rows, apart = copies[index, 4], copies[index, 5]
        source = carray(_pointer(addresses[copies[index, 0]], result), start + rows * count)
        if count >= rows:
            for row in range(rows):
                for k in range(count):
                    result[target + row * apart + k] = source[start + row * count + k]
        else:
            for k in range(count):
                for row in range(rows):
                    result[target + row * apart + k] = source[start + row * count + k]
