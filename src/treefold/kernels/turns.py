"""When each unit has its turn: by height, or so that units which go through a large core wait for others that do."""

from typing import Final

import numpy as np

from treefold.kernels.compiled import allocating, inner
from treefold.kernels.tables import FORM, FULL, OPERATOR, RANK, ROW_COUNT, SHARED, Ints, Tables

# Axes:  U units · T children of units
_LARGE: Final = 4096
"""Entries of a core from which reading it takes longer than finding units that share the reading."""


@inner
def is_large(tables: Tables, group: Ints) -> bool:
    """Say whether the units of a group go through a large core."""
    operator = tables.operators[group[OPERATOR]]
    return operator[FORM] >= FULL and not operator[SHARED] and group[ROW_COUNT] * operator[RANK] >= _LARGE


@allocating
def take_turns(children: Ints, child_unit: Ints, group_of: Ints, large: Ints) -> Ints:
    """Return the turn of each unit, (U,), which is after those of its children.

    At each turn stand all units of small groups that can be computed; where there are none, those of the large group with most.
    ``children`` (U+1,) says where a unit's children start in ``child_unit`` (T,); ``large`` is 1 for large groups.
    """
    units = len(group_of)
    starts = np.zeros(units + 1, np.int64)
    for unit in child_unit:
        starts[unit + 1] += 1
    for unit in range(units):
        starts[unit + 1] += starts[unit]
    parents, filled = np.empty(len(child_unit), np.int64), starts[:units].copy()
    for unit in range(units):
        for child in child_unit[children[unit] : children[unit + 1]]:
            parents[filled[child]] = unit
            filled[child] += 1
    missing = children[1:] - children[:-1]
    # Units that can be computed: small ones in a list of their own, those of each large group in a linked list.
    small, small_count = np.empty(units, np.int64), 0
    first, ready, behind = np.full(len(large), -1), np.zeros(len(large), np.int64), np.full(units, -1)
    turns, now, done = np.zeros(units, np.int64), 0, 0
    chosen, chosen_count = np.empty(units, np.int64), 0
    for unit in range(units):
        if missing[unit] == 0:
            chosen[chosen_count] = unit
            chosen_count += 1
    while True:
        for index in range(chosen_count):  # they can be computed now
            unit = chosen[index]
            group = group_of[unit]
            if large[group]:
                behind[unit], first[group] = first[group], unit
                ready[group] += 1
            else:
                small[small_count] = unit
                small_count += 1
        if done == units:
            return turns
        chosen_count = 0
        if small_count == 0:
            unit = first[ready.argmax()]
            first[group_of[unit]], ready[group_of[unit]] = -1, 0
            while unit >= 0:
                small[small_count] = unit
                small_count += 1
                unit = behind[unit]
        for unit in small[:small_count]:
            turns[unit] = now
            done += 1
            for parent in parents[starts[unit] : starts[unit + 1]]:
                missing[parent] -= 1
                if missing[parent] == 0:
                    chosen[chosen_count] = parent
                    chosen_count += 1
        now, small_count = now + 1, 0
