"""When each unit has its turn: by height, or so that units which go through a large core wait for others that do."""

from typing import Final

import numpy as np

from treefold.kernels.compiled import allocating, inner
from treefold.kernels.tables import FORM, FULL, OPERATOR, RANK, ROW_COUNT, SHARED, Ints, Tables

# Axes:  U units · T children of units
_LARGE: Final = 4096
"""Entries of a core from which reading it takes longer than finding units that share the reading."""


@inner
def large_entries(tables: Tables, group: Ints) -> int:
    """Return how many entries the core has that the units of a group go through, where it is a large one; else 0."""
    operator = tables.operators[group[OPERATOR]]
    if operator[FORM] < FULL or operator[SHARED] or group[ROW_COUNT] * operator[RANK] < _LARGE:
        return 0
    return int(group[ROW_COUNT] * operator[RANK])


@allocating
def take_turns(children: Ints, child_unit: Ints, group_of: Ints, large: Ints) -> Ints:
    """Return the turn of each unit, (U,), which is after those of its children.

    At each turn stand all units of small groups that can be computed; where there are none, those of the large group with the
    smallest core, and of those the one with most units: so the largest cores are read least often. ``children`` (U+1,) says where
    a unit's children start in ``child_unit`` (T,); ``large`` has the entries of a group's core where it is large, else 0.
    """
    units = len(group_of)
    # Plain loops throughout: what numpy does with whole arrays takes longer to compile.
    starts, missing = np.zeros(units + 1, np.int64), np.empty(units, np.int64)
    for index in range(len(child_unit)):
        starts[child_unit[index] + 1] += 1
    filled = np.empty(units, np.int64)
    for unit in range(units):
        filled[unit] = starts[unit]
        starts[unit + 1] += starts[unit]
        missing[unit] = children[unit + 1] - children[unit]
    parents = np.empty(len(child_unit), np.int64)
    for unit in range(units):
        for index in range(children[unit], children[unit + 1]):
            child = child_unit[index]
            parents[filled[child]] = unit
            filled[child] += 1
    # Units that can be computed: of small groups in a list, of each large group behind its first one.
    turns, small = np.empty(units, np.int64), np.empty(units, np.int64)
    freed, behind = np.empty(units, np.int64), np.empty(units, np.int64)
    small_count = freed_count = now = done = 0
    first, ready = np.empty(len(large), np.int64), np.zeros(len(large), np.int64)
    for group in range(len(large)):
        first[group] = -1
    for unit in range(units):
        if missing[unit] == 0:
            freed[freed_count] = unit
            freed_count += 1
    while True:
        for index in range(freed_count):
            unit = freed[index]
            group = group_of[unit]
            if large[group]:
                behind[unit], first[group] = first[group], unit
                ready[group] += 1
            else:
                small[small_count] = unit
                small_count += 1
        if done == units:
            return turns
        if small_count == 0:
            chosen = -1
            for group in range(len(large)):
                if ready[group] > 0 and (
                    chosen < 0
                    or large[group] < large[chosen]
                    or (large[group] == large[chosen] and ready[group] > ready[chosen])
                ):
                    chosen = group
            unit = first[chosen]
            first[chosen], ready[chosen] = -1, 0
            while unit >= 0:
                small[small_count] = unit
                small_count += 1
                unit = behind[unit]
        freed_count = 0
        for index in range(small_count):
            unit = small[index]
            turns[unit] = now
            done += 1
            for place in range(starts[unit], starts[unit + 1]):
                parent = parents[place]
                missing[parent] -= 1
                if missing[parent] == 0:
                    freed[freed_count] = parent
                    freed_count += 1
        now, small_count = now + 1, 0
