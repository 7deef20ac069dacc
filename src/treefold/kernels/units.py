"""Equal subtrees: each kind of subtree of a batch is a unit, computed once."""

from typing import Final

import numpy as np
import numpy.typing as npt

from treefold.kernels.compiled import allocating, inner
from treefold.kernels.tables import Ints

# Axes:  N nodes · U units
# Columns of a list of words: three numbers, and the unit whose subtree the word is, -1 as long as it is none.
_UNIT: Final = 3
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
def first_place(table: npt.NDArray[np.int32], word: Ints) -> int:
    """Return where the search for a word begins."""
    mixed = word[0] * 0x1E3779B97F4A7C15 + word[1] * 0x42B2AE3D27D4EB4F + word[2] * 0x165667B19E3779F9
    return int((mixed ^ (mixed >> 29)) & (len(table) - 1))


@inner
def number_of(table: npt.NDArray[np.int32], words: Ints, known: int) -> int:
    """Return the number of the word that stands behind the known ones; it is ``known`` itself where it is a new one.

    The table has the numbers of words, and is small, so that it stays near the processor.
    """
    word = words[known]
    place = first_place(table, word)
    while table[place] >= 0:
        other = words[table[place]]
        if other[0] == word[0] and other[1] == word[1] and other[2] == word[2]:
            return int(table[place])
        place = (place + 1) & (len(table) - 1)
    table[place], word[_UNIT] = known, -1
    return known


@allocating
def with_room(table: npt.NDArray[np.int32], words: Ints, known: int) -> npt.NDArray[np.int32]:
    """Return the table, or a larger one for the same words where more than half of its places are taken."""
    if 2 * known < len(table):
        return table
    larger = np.full(4 * len(table), -1, np.int32)
    for number in range(known):
        place = first_place(larger, words[number])
        while larger[place] >= 0:
            place = (place + 1) & (len(larger) - 1)
        larger[place] = number
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
    # It begins small and grows: of most data few subtrees differ.
    table = np.full(256, -1, np.int32)
    words = np.empty((2 * count + 1 if share else 0, _COLUMNS), np.int64)
    unit_of_leaf = np.full(kinds if share and numbered else 0, -1)
    unit_of = np.empty(count, np.int64)
    first_node, height = np.empty(count, np.int64), np.empty(count, np.int64)
    units = known = 0
    for node in range(count):  # children stand before their parents
        begin, end = starts[node], starts[node + 1]
        kind = operator[node] * span + row[node] + 1
        word, unit = -1 - kind, -1
        if share:
            if not numbered:
                words[known, 0], words[known, 1], words[known, 2] = -1, operator[node], row[node]
                word = number_of(table, words, known)
                if word == known:
                    known += 1
                    table = with_room(table, words, known)
            for index in range(begin, end, 2):
                one, other = listed[index], listed[min(index + 1, end - 1)]
                second = slots[other] if index + 1 < end else width - 1  # a slot that no child has
                words[known, 0], words[known, 1] = word, slots[one] * width + second
                words[known, 2] = unit_of[one] * count + unit_of[other]
                word = number_of(table, words, known)
                if word == known:
                    known += 1
                    table = with_room(table, words, known)
            unit = unit_of_leaf[kind] if word < 0 else words[word, _UNIT]
        if unit >= 0:
            unit_of[node] = unit
            continue
        if share and word < 0:
            unit_of_leaf[kind] = units
        elif share:
            words[word, _UNIT] = units
        unit_of[node], first_node[units], height[units] = units, node, 0
        for child in listed[begin:end]:
            height[units] = max(height[units], height[unit_of[child]] + 1)
        units += 1
    return unit_of, first_node[:units], height[:units]
