"""Working space of the kernels, made once a call: nothing is allocated while nodes are computed."""

from typing import Final, NamedTuple

import numpy as np

from treefold.kernels.compiled import allocating
from treefold.kernels.tables import (
    ARITY,
    FORM,
    FULL,
    LABEL,
    LEFT,
    MULTISETS,
    OPERATOR,
    PRESENT,
    RANK,
    RIGHT,
    SHARED,
    SYMMETRIC,
    Floats,
    Ints,
    Tables,
)

BLOCK: Final = 8
"""How many units go through a core together: its entries are read once for all of them."""


class Scratch(NamedTuple):
    """Buffers for one block of units, or for one unit."""

    rows: Ints  # 0, 1, 2 …: the rows of a block, and all units
    vectors: Floats  # (modes, D) the inputs of a core, and their gradients
    d_vectors: Floats
    sizes: Ints  # (modes,)
    left: Floats  # (BLOCK, I) outer products of the halves, and their gradients
    d_left: Floats
    right: Floats  # (BLOCK, J)
    d_right: Floats
    d_carry: Floats  # (BLOCK, J·K)
    products: Floats  # (factors + 1, G·R) of the canonical form, the carried vectors of a train
    line: Floats  # (G·R,)
    features: Floats  # (multisets of all orders, lanes), and their gradients
    d_features: Floats
    inputs: Floats  # (children, R+1, lanes)
    d_inputs: Floats
    labels: Floats  # (M+1, lanes)
    d_labels: Floats
    sums: Floats  # (K, lanes)


WIDEST_CARRY: Final = 2  # of the sizes


@allocating
def scratch_sizes(tables: Tables, groups: Ints, children: Ints) -> Ints:
    """Return the greatest sizes that occur in a plan, which `make_scratch` takes."""
    left = right = carry = modes = features = labels = small = longest = 0
    rank, dimension = 1, tables.state_size
    for op in range(len(tables.operators)):
        operator = tables.operators[op]
        rank = max(rank, operator[RANK])
        dimension = max(dimension, operator[LABEL], operator[RANK])
        longest = max(longest, operator[ARITY])
    for index in range(len(groups)):
        group = groups[index]
        operator = tables.operators[group[OPERATOR]]
        if operator[FORM] < FULL:
            continue
        modes = max(modes, group[PRESENT] + 1)
        if operator[SHARED]:
            total = 0
            for order in range(group[PRESENT] + 1):
                total += tables.orders[operator[SYMMETRIC] + order, MULTISETS]
            features = max(features, total)
            small = max(small, operator[RANK] + 1)
            labels = max(labels, (operator[LABEL] if operator[FORM] == FULL else operator[RANK]) + 1)
        else:
            left, right = max(left, group[LEFT]), max(right, group[RIGHT])
            carry = max(carry, group[RIGHT] * operator[RANK])
    for unit in range(len(children) - 1):
        longest = max(longest, children[unit + 1] - children[unit])
    return np.array([left, right, carry, modes, features, labels, small, longest, rank, dimension, len(children) - 1])


@allocating
def make_scratch(gates: int, sizes: Ints, like: Floats) -> Scratch:
    """Allocate."""
    left, right, carry, modes, features = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    labels, small, longest, rank, dimension, units = sizes[5], sizes[6], sizes[7], sizes[8], sizes[9], sizes[10]
    lanes, kind, children = BLOCK * gates, like.dtype, sizes[3] if sizes[6] else 0
    return Scratch(
        np.arange(max(units, BLOCK)),
        np.empty((modes, dimension), kind),
        np.empty((modes, dimension), kind),
        np.empty(modes, np.int64),
        np.empty((BLOCK, left), kind),
        np.empty((BLOCK, left), kind),
        np.empty((BLOCK, right), kind),
        np.empty((BLOCK, right), kind),
        np.empty((BLOCK, carry), kind),
        np.empty((longest + 2, gates * rank), kind),
        np.empty(gates * rank, kind),
        np.empty((features, lanes), kind),
        np.empty((features, lanes), kind),
        np.empty((children, small, lanes), kind),
        np.empty((children, small, lanes), kind),
        np.empty((labels, lanes), kind),
        np.empty((labels, lanes), kind),
        np.empty((rank, lanes), kind),
    )
