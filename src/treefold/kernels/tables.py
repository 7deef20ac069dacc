"""What the kernels are handed: the tables of a cell's weights, the plan of a batch, states and gradients.

Everything is a few flat arrays. Integer tables have one row for each object and the columns that are named here.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

# Axes:  N nodes · U units, the distinct subtrees · T children of units · E edges, the distinct (unit, operator, slot)
#        X distinct label vectors · Y distinct (operator, label) · C state size · S memory size · G gates · M label size
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

# Forms of the multi-affine map.
SUM: Final = 0
CANONICAL: Final = 1
TRAIN: Final = 2
FULL: Final = 3
TUCKER: Final = 4

# Activations.
TANH: Final = 0
SIGMOID: Final = 1

# Columns of `Weights.operators`, one row for each operator; the leaves' cell is the last.
FORM: Final = 0
SHARED: Final = 1  # 1 where all slots share their weights
RANK: Final = 2  # of the form; the state size for `FULL`
ARITY: Final = 3
FIRST_SET: Final = 4  # row of `Weights.sets` of the first slot
LABEL: Final = 5  # label size, 0 without a label mode
LABEL_WEIGHTS: Final = 6  # where the matrix (M+1, LABEL_WIDTH) starts
LABEL_WIDTH: Final = 7
LABEL_PART: Final = 8  # the columns which the aggregators take; the forget gates' follow
CORE: Final = 9  # where the first gate's core starts: the tensor, the free start of a train, the bias of a sum
CORE_SIZE: Final = 10  # of one gate
OUTPUT: Final = 11  # where the first gate's Q starts, (R+1, C), the last row zero
ACTIVATION: Final = 12  # of the update value, or of the recursive neuron
SYMMETRIC: Final = 13  # row of `Weights.orders` for no children
OPERATOR_COLUMNS: Final = 14

# Columns of `Weights.sets`, one row for each slot with weights of its own: a matrix (C+1, WIDTH), the last row the bias.
START: Final = 0
WIDTH: Final = 1
PART: Final = 2  # the columns which the aggregators take; the forget gate's follow

# Columns of `Plan.steps`, the order of the work: units, then the edges that leave them, from the leaves up.
IS_EDGES: Final = 0
FROM: Final = 1
TO: Final = 2
KEY: Final = 3  # row of `Plan.groups` or of `Weights.sets`

# Columns of `Plan.groups`: the units of one operator that have children in the same slots.
OPERATOR: Final = 0
MASK: Final = (
    1  # the slots that have a child, as bits; their number where the slots are shared; 0 where it does not matter
)
PRESENT: Final = 2
LEFT: Final = 3  # entries of the left half of the core's modes, and of the right
RIGHT: Final = 4
ROWS: Final = 5  # where the core's rows begin in `Plan.core_rows`, -1 where they stand together at the core's end
ROW_COUNT: Final = 6
RESTRICTED: Final = (
    7  # where the first gate's restricted core begins, or how much of each gate's core is left out before
)
GROUP_COLUMNS: Final = 8

# Entries of `Layout.widths`: the greatest numbers of images of a child, of images of a label, and the greatest rank before Q.
IMAGE_WIDTH: Final = 0
LABEL_IMAGE_WIDTH: Final = 1
CORE_RANK: Final = 2

# Columns of `Weights.orders`: the multisets of k coordinates.
MULTISETS: Final = 0
FIRST_TERM: Final = 1
LAST_TERM: Final = 2
FIRST_ROW: Final = 3  # where `Weights.padded` says which multiset of L each becomes with homogeneous coordinates added


class Tables(NamedTuple):
    """Where the parameters of a cell stand in its flat weights."""

    gates: int
    state_size: int
    operators: Ints
    sets: Ints
    orders: Ints
    terms: Ints  # (terms, 3): multiset, the multiset without one coordinate, that coordinate
    padded: Ints


class Weights(NamedTuple):
    """The parameters of a cell in one flat array, and the tables that say where they are: those of `Tables`."""

    values: Floats
    gates: int
    state_size: int
    operators: Ints
    sets: Ints
    orders: Ints
    terms: Ints
    padded: Ints


class Plan(NamedTuple):
    """What is computed, and in which order; units are sorted so that those of a step stand together."""

    unit_of: Ints  # (N,)
    row_of: Ints  # (U,) the label vector of a unit, -1 without
    label_of: Ints  # (U,) its row of the labels' projections, -1 without
    carry_of: Ints  # (U+1,) where its carried products start
    children: Ints  # (U+1,) where its children start
    child_unit: Ints  # (T,)
    child_slot: Ints
    child_edge: Ints  # -1 where the operator projects nothing
    edge_unit: Ints  # (E,) the unit at the lower end
    steps: Ints
    groups: Ints
    core_rows: Ints
    label_row: Ints  # (Y,) the label vector
    label_runs: Ints  # (runs, 3): first, last, operator
    by_set: Ints  # (E,) the edges in the order of their sets, and (runs, 3): first, last, set
    set_runs: Ints
    by_group: Ints  # (U,) the units in the order of their groups, and (runs, 3)
    group_runs: Ints
    restricted_size: int
    scratch_sizes: Ints  # see `treefold.kernels.scratch`


class States(NamedTuple):
    """What the forward pass computes, and the backward pass needs."""

    memory: Floats  # (U, S)
    gates: Floats  # (U, G·C), behind them tanh(c) for the Tree-LSTM
    forget: Floats  # (T, C)
    projected: Floats  # (E, P) the linear images of children
    label: Floats  # (Y, P) those of labels
    inner: Floats  # (U, G·R) what Q multiplies
    carry: Floats  # the cores contracted with their left halves
    restricted: Floats  # cores restricted to the slots that have a child


class Gradients(NamedTuple):
    """The gradients of all that the forward pass computes."""

    memory: Floats
    delta: Floats  # (U, G·C), before the activations
    projected: Floats
    label: Floats
    inner: Floats
    carry: Floats
    restricted: Floats
    values: Floats
    vectors: Floats  # (X, M)
