"""Equal subtrees: each kind of subtree of a batch is a unit, computed once."""

from typing import Final

import numpy as np

from treefold.kernels.compiled import allocating, inner
from treefold.kernels.tables import Ints

# Axes:  N nodes · U units
# Columns of a table of words: three numbers, and the number of the word; -1 where a place is free.
_WORD: Final = 3
_COLUMNS: Final = 4


@allocating
def children_of(parents: Ints, slots: Ints, first: int) -> tuple[Ints, Ints]:
    """Return where the children of each node start in a list, and the list, in the order of the slots.

    ``parents`` are rows counted from ``first``, -1 at roots.
    """
    count = len(parents)
    starts = np.zeros(count + 1, np.int64)
    for node in range(count):
        if parents[node] >= 0:
            starts[parents[node] - first + 1] += 1
    for node in range(count):
        starts[node + 1] += starts[node]
    listed, filled = np.empty(starts[count], np.int64), starts[:count].copy()
    for node in range(count):
        if parents[node] >= 0:
            parent = parents[node] - first
            place = filled[parent]
            filled[parent] += 1
            # In post-order the slots come in order; files of others may have them otherwise.
            while place > starts[parent] and slots[listed[place - 1]] > slots[node]:
                listed[place] = listed[place - 1]
                place -= 1
            listed[place] = node
    return starts, listed


@inner
def number_of(table: Ints, a: int, b: int, c: int, fresh: int) -> int:
    """Return the number of a word in a hash table with room; ``fresh``, which it is given, where it is a new one."""
    last = len(table) - 1
    mixed = a * 0x1E3779B97F4A7C15 + b * 0x42B2AE3D27D4EB4F + c * 0x165667B19E3779F9
    place = (mixed ^ (mixed >> 29)) & last
    while table[place, _WORD] >= 0:
        if table[place, 0] == a and table[place, 1] == b and table[place, 2] == c:
            return int(table[place, _WORD])
        place = (place + 1) & last
    table[place, 0], table[place, 1], table[place, 2], table[place, _WORD] = a, b, c, fresh
    return fresh


@allocating
def with_room(table: Ints, words: int) -> Ints:
    """Return the table, or a larger one with the same words where more than half of its places are taken."""
    if 2 * words < len(table):
        return table
    larger = np.full((4 * len(table), _COLUMNS), -1)
    for place in range(len(table)):
        if table[place, _WORD] >= 0:
            number_of(larger, table[place, 0], table[place, 1], table[place, 2], table[place, _WORD])
    return larger


@allocating
def find_units(
    starts: Ints, listed: Ints, slots: Ints, operator: Ints, row: Ints, share: bool
) -> tuple[Ints, Ints, Ints]:
    """Give equal subtrees the same unit, or each node its own: the unit of each node, and the first node and height of each unit.

    A subtree is looked up like a word in a trie: its operator and label, then its children two by two, each with its slot and
    unit. Operator and label are a number of their own where that takes little room, so that leaves need no looking up.
    """
    count = len(operator)
    span, width = row.max() + 2, slots.max() + 2
    kinds = (operator.max() + 1) * span
    numbered = kinds <= 4 * count + 1024
    # It begins small and grows: of most data few subtrees differ, and a small table stays near the processor.
    table = np.full((256, _COLUMNS), -1)
    unit_at = np.empty(2 * count if share else 0, np.int64)
    unit_of_leaf = np.full(kinds if share and numbered else 0, -1)
    unit_of = np.empty(count, np.int64)
    first_node, height = np.empty(count, np.int64), np.empty(count, np.int64)
    units = words = 0
    none = int(np.int64(-1))
    for node in range(count):  # children stand before their parents
        begin, end = starts[node], starts[node + 1]
        kind = operator[node] * span + row[node] + 1
        word, known, tall = -1 - kind, -1, 0
        for index in range(begin, end):
            tall = max(tall, height[unit_of[listed[index]]] + 1)
        if share:
            if not numbered:
                word = number_of(table, none, operator[node], row[node], words)
                if word == words:
                    unit_at[words] = -1
                    words += 1
                    table = with_room(table, words)
            for index in range(begin, end, 2):
                one, other = listed[index], listed[min(index + 1, end - 1)]
                second = slots[other] if index + 1 < end else width - 1  # a slot that no child has
                pair = unit_of[one] * count + unit_of[other]
                word = number_of(table, word, slots[one] * width + second, pair, words)
                if word == words:
                    unit_at[words] = -1
                    words += 1
                    table = with_room(table, words)
            known = unit_of_leaf[kind] if word < 0 else unit_at[word]
        if known >= 0:
            unit_of[node] = known
            continue
        if share and word < 0:
            unit_of_leaf[kind] = units
        elif share:
            unit_at[word] = units
        unit_of[node], first_node[units], height[units] = units, node, tall
        units += 1
    return unit_of, first_node[:units], height[:units]
