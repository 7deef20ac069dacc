"""The arguments of the kernels: the tables of a cell's weights, the plan of a batch, states and gradients.

Everything is a few flat arrays. A table is an array of records, one for each object; its fields are listed here. The annotations
of a kernel are its compiled signature (`treefold.kernels.compile`), so arrays are annotated by their number of axes.
"""

from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

# Axes:  N nodes · U units, the distinct subtrees · T children of units · E edges, the distinct (child, slot) of units
#        X label vectors · Y distinct (operator, label) · C state size · S memory size · G gates · P image size · M label size
Ints = Annotated[npt.NDArray[np.int64], np.int64, 1]
Vector = Annotated[npt.NDArray[Any], None, 1]
Matrix = Annotated[npt.NDArray[Any], None, 2]
Codes = Annotated[npt.NDArray[np.int32], np.int32, 1, "read-only"]  # the columns of a forest, which may be a memory map
Offsets = Annotated[npt.NDArray[np.int64], np.int64, 1, "read-only"]

TANH: Final = 0
SIGMOID: Final = 1
SHARP: Final = 2  # σ(4z - 2)
CLAMP: Final = 3  # to [0, 1]

BY_NOTHING: Final = 0  # how the units of an operator are grouped: all together,
BY_COUNT: Final = 1  # by how many children they have,
BY_SLOTS: Final = 2  # or by which slots have a child

BLOCK: Final = 8
"""How many units go through a core together: its entries are read once for all of them."""


def _record(*names: str) -> Any:
    return np.dtype([(name, np.int64) for name in names], align=True)


CELL: Final = _record(
    "gates",  # aggregators of a cell
    "unit_cache",  # numbers that the cell keeps for a unit,
    "child_cache",  # for a child of a unit,
    "edge_cache",  # and for an edge
    "forward",  # addresses of its functions: see `treefold.nn.cells.base.CellKernel`
    "backward",
    "edges_forward",
    "edges_backward",
    "edges_weights",
)
OPERATOR: Final = _record(  # one row for each operator; the cell of the leaves is the last
    "plan",  # addresses of its form's functions, 0 if it has none: see `treefold.nn.aggregators.base.FormKernel`
    "prepare",
    "forward",
    "backward",
    "weights",
    "finish",
    "grouping",  # BY_NOTHING, BY_COUNT or BY_SLOTS
    "shared",  # 1 if all slots share their weights
    "normalises",  # 1 if the cell takes means over the children instead of sums
    "projects",  # 1 if the form works on images of the children, 0 if on their states
    "rank",  # numbers that Q multiplies, for one gate; the state size if the form has no Q
    "arity",
    "out_size",  # numbers that the aggregator of one gate returns
    "next_part",  # row of the next part of a sum of forms, 0 if there is none; rows of parts come after all others
    "column",  # where the images of this part begin,
    "label_column",  # those of the label,
    "inner",  # and what its Q multiplies,
    "inner_size",  # of which all parts have so many numbers
    "bound",  # of the images: see the form
    "hidden",  # where the matrix (out_size+1, C) of the cell's hidden layer starts, -1 without
    "first_slot",  # row of `Weights.slots`
    "label_size",  # 0 without a label mode
    "label_start",  # where the matrix (M+1, label_width) starts
    "label_width",
    "label_part",  # columns for the aggregators; those of the child gates follow
    "core",  # where the core of the first gate starts: a tensor, the start of a train, the bias of a sum
    "core_size",  # of one gate
    "output",  # where Q of the first gate starts, (R+1, C), the last row zero; -1 without
    "activation",  # of the update value, or of the recursive neuron
    "first_order",  # row of `Weights.orders` for no children
)
SLOT: Final = _record(
    "start",  # of the matrix (C+1, width), the last row the bias
    "width",
    "part",  # columns for the aggregators; those of the cell follow
    "operator",
    "gate_start",  # of the matrix (C+1, C) of gates that are applied to a child before the images; -1 without
)
ORDER: Final = _record(  # the multisets of k coordinates
    "multisets",  # how many there are
    "first_term",
    "last_term",
    "first_row",  # of `Weights.padded`: which multiset of L each becomes with homogeneous coordinates added
)
STEP: Final = _record("is_edges", "start", "stop", "key")  # key: row of `Plan.groups`, or of `Weights.slots` for edges
GROUP: Final = _record(  # the units of one operator that are computed alike
    "operator",
    "mask",  # the slots that have a child, as bits, or their number, or 0: as `grouping` says
    "present",  # children, if the units are grouped by them
    "large",  # entries of a core that is worth waiting for, else 0
    "carry",  # numbers that each unit keeps for the backward pass
    "listed",  # rows of a core that its plan lists
    "restricted_size",  # numbers that the group keeps: its core, restricted to the slots that have a child
    "restricted",  # where they start
    "scratch",  # numbers of working space
    "row_count",  # rows of the core that count,
    "first_row",  # where they are listed in `Plan.core_rows`, -1 if they are one piece of the core,
    "offset",  # which then starts here
    "left",  # entries of the left half of the core's modes
    "right",  # and of the right half
)
RUN: Final = _record("start", "stop", "key")

Cells = Annotated[Any, CELL, 1]
Operators = Annotated[Any, OPERATOR, 1]
Slots = Annotated[Any, SLOT, 1]
Orders = Annotated[Any, ORDER, 1]
Steps = Annotated[Any, STEP, 1]
Groups = Annotated[Any, GROUP, 1]
Runs = Annotated[Any, RUN, 1]
Terms = Annotated[npt.NDArray[np.int64], np.int64, 2]


class Tables(NamedTuple):
    """Where the parameters of a cell are in its flat weights."""

    state_size: int
    memory_size: int
    image_width: int  # the most linear images of a child,
    label_width: int  # of a label,
    gate_width: int  # the most numbers that all aggregators of a cell return,
    part_width: int  # those of a further part of a sum of forms,
    inner_width: int  # and the most numbers that output matrices multiply
    cells: Cells  # one row
    operators: Operators
    slots: Slots
    orders: Orders
    terms: Terms  # (terms, 3): multiset, the multiset without one coordinate, that coordinate
    padded: Ints


class Weights(NamedTuple):
    """The parameters of a cell in one flat array, and their tables."""

    values: Vector
    tables: Tables


class Plan(NamedTuple):
    """The work of a batch and its order; units are sorted so that those of a step are neighbours."""

    unit_of: Ints  # (N,)
    row_of: Ints  # (U,) the label vector of a unit, -1 without
    label_of: Ints  # (U,) its row of the labels' images, -1 without
    carry_of: Ints  # (U+1,) where its carried products start
    children: Ints  # (U+1,) where its children start
    child_unit: Ints  # (T,)
    child_slot: Ints  # (T,)
    child_edge: Ints  # (T,)
    edge_unit: Ints  # (E,) the child
    edge_label: Ints  # (E,) the row of the labels' images of the parent, -1 without
    steps: Steps
    groups: Groups
    core_rows: Ints
    label_row: Ints  # (Y,) the label vector
    label_runs: Runs  # of operators
    by_slot: Ints  # (E,) the edges in the order of their slots
    slot_runs: Runs
    by_group: Ints  # (U,) the units in the order of their groups
    group_runs: Runs
    identity: Ints  # 0, 1, 2 …
    restricted_size: int
    scratch_size: int


class States(NamedTuple):
    """The results of the forward pass, which the backward pass needs."""

    memory: Matrix  # (U, S)
    gates: Matrix  # (U, G·C)
    units: Matrix  # (U, …), (T, …), (E, …): the caches of the cell
    children: Matrix
    edges: Matrix
    projected: Matrix  # (E, P) the linear images of children
    label: Matrix  # (Y, P) those of labels
    inner: Matrix  # (U, G·R) the inputs of Q
    part: Matrix  # (U, G·K) the results of a further part of a sum of forms
    carry: Vector
    restricted: Vector
    scratch: Vector


class Gradients(NamedTuple):
    """The gradients of all results of the forward pass."""

    memory: Matrix
    gates: Matrix  # of the pre-activations
    edges: Matrix
    projected: Matrix
    label: Matrix
    inner: Matrix
    carry: Vector
    restricted: Vector
    values: Vector
    vectors: Matrix  # (X, M)


LAYER: Final = _record("start", "width", "size")  # of a head: where its matrix (size + 1, width) starts
Layers = Annotated[Any, LAYER, 1]
