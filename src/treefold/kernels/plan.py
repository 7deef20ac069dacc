"""The plan of a batch: equal subtrees are one unit, computed once; units that are computed alike are computed together.

`find_units` numbers the distinct subtrees. `assign_waves` orders them from the leaves up. `make_plan` does the rest: groups of
units, the edges from units to their parents, and the steps of the passes.
"""

import numpy as np
import numpy.typing as npt

from treefold.kernels.compile import allocating, call, entry_point, kernel, refer
from treefold.kernels.records import (
    BLOCK,
    BY_COUNT,
    BY_SLOTS,
    GROUP,
    RUN,
    STEP,
    Groups,
    Ints,
    Plan,
    Runs,
    Steps,
    Tables,
)

# Axes:  N nodes · U units · T children of units · E edges
# Plain loops throughout: numpy's functions of whole arrays take longer to compile.
Slots32 = npt.NDArray[np.int32]


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
    listed, filled = np.empty(starts[count], np.int64), np.empty(count, np.int64)
    for node in range(count):
        filled[node] = starts[node]
    for node in range(count):
        if parents[node] >= 0:
            parent = parents[node] - first
            place = filled[parent]
            filled[parent] += 1
            # In post-order the slots come in order; files from elsewhere may have another order.
            while place > starts[parent] and slots[listed[place - 1]] > slots[node]:
                listed[place] = listed[place - 1]
                place -= 1
            listed[place] = node
    return starts, listed


@kernel
def hash_place(table: Slots32, words: Ints, number: int) -> int:
    """Return where the search for a word begins in a hash table."""
    mixed = (
        words[4 * number] * 0x1E3779B97F4A7C15
        + words[4 * number + 1] * 0x42B2AE3D27D4EB4F
        + words[4 * number + 2] * 0x165667B19E3779F9
    )
    return int((mixed ^ (mixed >> 29)) & (len(table) - 1))


@kernel
def number_of(table: Slots32, words: Ints, known: int) -> int:
    """Return the number of the word that follows the known ones; ``known`` if it is new.

    A word is three numbers, and the unit whose subtree it is, -1 if it is none yet. The table holds the numbers of words.
    """
    place, word = hash_place(table, words, known), 4 * known
    while table[place] >= 0:
        other = 4 * int(table[place])
        if words[other] == words[word] and words[other + 1] == words[word + 1] and words[other + 2] == words[word + 2]:
            return int(table[place])
        place = (place + 1) & (len(table) - 1)
    table[place], words[word + 3] = known, -1
    return known


@allocating
def grown(table: Slots32, words: Ints, known: int) -> Slots32:
    """Return the table, or a larger one for the same words if more than half of it is used."""
    if 2 * known < len(table):
        return table
    larger = np.full(4 * len(table), -1, np.int32)
    for number in range(known):
        place = hash_place(larger, words, number)
        while larger[place] >= 0:
            place = (place + 1) & (len(larger) - 1)
        larger[place] = number
    return larger


@allocating
def find_units(
    starts: Ints, listed: Ints, slots: Ints, operator: Ints, row: Ints, share: bool
) -> tuple[Ints, Ints, Ints]:
    """Give equal subtrees the same unit, or each node its own: the unit of each node; first node and height of each unit.

    A subtree is looked up like a word in a trie: its operator and label, then its children two by two, each with its slot and
    unit. If there are few pairs of operator and label, they are numbers themselves, so that leaves need no looking up.
    """
    count = len(operator)
    span, width, kinds = 1, 1, 0
    for node in range(count):
        span, width, kinds = max(span, row[node] + 2), max(width, slots[node] + 2), max(kinds, operator[node] + 1)
    kinds *= span
    numbered = kinds <= 4 * count + 1024
    # The table begins small and grows: in most data few subtrees differ.
    table = np.full(256, -1, np.int32)
    words = np.empty(4 * (2 * count + 1) if share else 0, np.int64)
    unit_of_leaf = np.full(kinds if share and numbered else 0, -1)
    unit_of = np.empty(count, np.int64)
    first_node, height = np.empty(count, np.int64), np.empty(count, np.int64)
    units = known = 0
    for node in range(count):  # children come before their parents
        begin, end = starts[node], starts[node + 1]
        kind = operator[node] * span + row[node] + 1
        word, unit = -1 - kind, -1
        if share:
            if not numbered:
                words[4 * known], words[4 * known + 1], words[4 * known + 2] = -1, operator[node], row[node]
                word = number_of(table, words, known)
                if word == known:
                    known += 1
                    table = grown(table, words, known)
            for index in range(begin, end, 2):
                one, other = listed[index], listed[min(index + 1, end - 1)]
                second = slots[other] if index + 1 < end else width - 1  # a slot that no child has
                words[4 * known], words[4 * known + 1] = word, slots[one] * width + second
                words[4 * known + 2] = unit_of[one] * count + unit_of[other]
                word = number_of(table, words, known)
                if word == known:
                    known += 1
                    table = grown(table, words, known)
            unit = unit_of_leaf[kind] if word < 0 else words[4 * word + 3]
        if unit >= 0:
            unit_of[node] = unit
            continue
        if share and word < 0:
            unit_of_leaf[kind] = units
        elif share:
            words[4 * word + 3] = units
        unit_of[node], first_node[units], height[units] = units, node, 0
        for index in range(begin, end):
            height[units] = max(height[units], height[unit_of[listed[index]]] + 1)
        units += 1
    return unit_of, first_node[:units], height[:units]


@allocating
def assign_waves(children: Ints, child_unit: Ints, group_of: Ints, large: Ints) -> Ints:
    """Return the wave of each unit, (U,), which comes after those of its children.

    Units of small groups join the next wave as soon as they can be computed. If there are none, the wave is all waiting units of
    one large group: the one with the smallest core, then the one with most units. So the largest cores are read least often.
    ``children`` (U+1,) says where a unit's children start in ``child_unit`` (T,); ``large`` are the entries of the core of a
    large group, 0 for small ones.
    """
    units = len(group_of)
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
    # Units that can be computed: those of small groups in a list, those of each large group in a linked list.
    wave, small = np.empty(units, np.int64), np.empty(units, np.int64)
    freed, following = np.empty(units, np.int64), np.empty(units, np.int64)
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
                following[unit], first[group] = first[group], unit
                ready[group] += 1
            else:
                small[small_count] = unit
                small_count += 1
        if done == units:
            return wave
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
                unit = following[unit]
        freed_count = 0
        for index in range(small_count):
            unit = small[index]
            wave[unit] = now
            done += 1
            for place in range(starts[unit], starts[unit + 1]):
                parent = parents[place]
                missing[parent] -= 1
                if missing[parent] == 0:
                    freed[freed_count] = parent
                    freed_count += 1
        now, small_count = now + 1, 0


@allocating
def table_for(entries: int) -> Ints:
    """Return an empty table for `intern` with at least twice as many places as entries: pairs, and a number for each."""
    size = 8
    while size < 2 * entries:
        size *= 2
    return np.full(3 * size, -1)


@kernel
def intern(table: Ints, a: int, b: int, new: int) -> int:
    """Return the number of a pair of numbers in a hash table; ``new`` if the pair is. The first is not negative."""
    last = len(table) // 3 - 1
    mixed = a * 0x1E3779B97F4A7C15 + b * 0x42B2AE3D27D4EB4F
    place = (mixed ^ (mixed >> 29)) & last
    while table[3 * place] >= 0:
        if table[3 * place] == a and table[3 * place + 1] == b:
            return int(table[3 * place + 2])
        place = (place + 1) & last
    table[3 * place], table[3 * place + 1], table[3 * place + 2] = a, b, new
    return new


@allocating
def sorted_by(keys: Ints, count: int, order: Ints) -> Ints:
    """Return an order sorted by keys from 0 to count - 1, equal ones as they were."""
    starts = np.zeros(count + 1, np.int64)
    for index in order:
        starts[keys[index] + 1] += 1
    for key in range(count):
        starts[key + 1] += starts[key]
    result = np.empty(len(order), np.int64)
    for index in order:
        result[starts[keys[index]]] = index
        starts[keys[index]] += 1
    return result


@allocating
def taken(values: Ints, order: Ints) -> Ints:
    """Return ``values[order]``."""
    result = np.empty(len(order), np.int64)
    for index in range(len(order)):
        result[index] = values[order[index]]
    return result


@kernel
def renumber(values: Ints, order: Ints, position: Ints) -> None:
    """Replace numbers by their places in an order; negative ones stay."""
    for index in range(len(order)):
        position[order[index]] = index
    for index in range(len(values)):
        if values[index] >= 0:
            values[index] = position[values[index]]


@allocating
def runs(keys: Ints, order: Ints) -> Runs:
    """Return the runs of equal keys in an order."""
    result = np.empty(len(order), RUN)
    count = start = 0
    for index in range(1, len(order) + 1):
        if index == len(order) or keys[order[index]] != keys[order[start]]:
            result[count].start, result[count].stop, result[count].key = start, index, keys[order[start]]
            count += 1
            start = index
    return result[:count]


@allocating
def make_steps(wave: Ints, group: Ints, edge_unit: Ints, edge_slot: Ints) -> Steps:
    """Join the runs of units and of edges wave by wave: first the units of a wave, then the edges to their parents."""
    steps = np.empty(len(wave) + len(edge_unit), STEP)
    count = unit = edge = 0
    while unit < len(wave):
        now = wave[unit]
        while unit < len(wave) and wave[unit] == now:
            step = steps[count]
            step.is_edges, step.start, step.key = 0, unit, group[unit]
            while unit < len(wave) and wave[unit] == now and group[unit] == step.key:
                unit += 1
            step.stop = unit
            count += 1
        while edge < len(edge_unit) and wave[edge_unit[edge]] == now:
            step = steps[count]
            step.is_edges, step.start, step.key = 1, edge, edge_slot[edge]
            while edge < len(edge_unit) and wave[edge_unit[edge]] == now and edge_slot[edge] == step.key:
                edge += 1
            step.stop = edge
            count += 1
    return steps[:count]


@allocating
def plan_groups(tables: Tables, groups: Groups, longest: int) -> tuple[Ints, int, int]:
    """Let the forms fill in their groups; return the listed rows of cores, and the sizes of restricted cores and of scratch."""
    core_rows, listed = np.empty(0, np.int64), 0
    for index in range(len(groups)):
        number = part = groups[index].operator
        scratch = 0
        while True:  # all parts of a sum of forms, each as if the group was its own
            groups[index].operator = part
            address = tables.operators[part].plan
            if address:
                call(address, (refer(tables), groups, index, core_rows, longest))
            scratch = max(scratch, groups[index].scratch)
            part = tables.operators[part].next_part
            if part == 0:
                break
        groups[index].operator, groups[index].scratch = number, scratch
        groups[index].first_row = listed if groups[index].listed else -1
        listed += groups[index].listed
    core_rows, restricted, scratch = np.empty(listed, np.int64), 0, 0
    for index in range(len(groups)):
        group = groups[index]
        if group.listed:
            call(tables.operators[group.operator].plan, (refer(tables), groups, index, core_rows, longest))
        group.restricted = restricted
        restricted += group.restricted_size
        scratch = max(scratch, group.scratch)
    return core_rows, restricted, scratch


@entry_point
def make_plan(tables: Tables, parents: Ints, slots: Ints, first: int, operator: Ints, row: Ints, share: bool) -> Plan:
    """Plan whole trees of a batch, the nodes from row ``first`` on.

    ``operator`` (N,) are rows of the operators' table, ``row`` (N,) label vectors or -1; ``share`` says whether equal subtrees
    are computed once.
    """
    starts, listed = children_of(parents, slots, first)
    unit_of, first_node, wave = find_units(starts, listed, slots, operator, row, share)
    units, operators = len(first_node), tables.operators

    # Groups of units.
    table, groups, group_of = table_for(units), np.zeros(units, GROUP), np.empty(units, np.int64)
    unit_children = np.zeros(units + 1, np.int64)
    group_count = longest = 0
    for unit in range(units):
        node = first_node[unit]
        present, mask = starts[node + 1] - starts[node], 0
        grouping = operators[operator[node]].grouping
        if grouping == BY_COUNT:
            mask = present
        elif grouping == BY_SLOTS:
            for index in range(starts[node], starts[node + 1]):
                mask |= 1 << slots[listed[index]]
        group_of[unit] = intern(table, operator[node], mask, group_count)
        if group_of[unit] == group_count:
            group = groups[group_count]
            group.operator, group.mask, group.present = operator[node], mask, present
            group_count += 1
        unit_children[unit + 1] = unit_children[unit] + present
        longest = max(longest, present)
    groups = groups[:group_count]
    core_rows, restricted, scratch = plan_groups(tables, groups, longest)

    # The order of units: by wave, and by group in each wave. A unit's wave is its height, unless cores are large.
    large, any_large = np.empty(group_count, np.int64), False
    for index in range(group_count):
        large[index] = groups[index].large
        any_large = any_large or large[index] > 0
    if any_large:
        below = np.empty(unit_children[units], np.int64)
        for unit in range(units):
            for index in range(unit_children[unit + 1] - unit_children[unit]):
                below[unit_children[unit] + index] = unit_of[listed[starts[first_node[unit]] + index]]
        wave = assign_waves(unit_children, below, group_of, large)
    waves = 0
    for unit in range(units):
        waves = max(waves, wave[unit] + 1)
    identity = np.arange(max(units, unit_children[units], BLOCK))
    order = sorted_by(wave, waves, sorted_by(group_of, group_count, identity[:units]))
    position = np.empty(max(units, unit_children[units]), np.int64)
    renumber(unit_of, order, position)
    wave, group_of = taken(wave, order), taken(group_of, order)

    # Children, labels and edges of the units in that order.
    count = unit_children[units]
    row_of, label_of, carry_of = np.empty(units, np.int64), np.empty(units, np.int64), np.zeros(units + 1, np.int64)
    children = np.zeros(units + 1, np.int64)
    child_unit, child_slot, child_edge = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    edge_unit, edge_slot, edge_label = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    label_row, label_operator = np.empty(units, np.int64), np.empty(units, np.int64)
    edge_table, label_table = table_for(count), table_for(units)
    sees_label, slot_count = tables.cells[0].edge_cache > 0, len(tables.slots)
    edges = labels = t = 0
    for unit in range(units):
        node = first_node[order[unit]]
        op = operator[node]
        row_of[unit], label_of[unit] = row[node], -1
        carry_of[unit + 1] = carry_of[unit] + groups[group_of[unit]].carry
        if row[node] >= 0 and operators[op].label_width > 0:
            label_of[unit] = intern(label_table, op, row[node], labels)
            if label_of[unit] == labels:
                label_row[labels], label_operator[labels] = row[node], op
                labels += 1
        for index in range(starts[node], starts[node + 1]):
            child = listed[index]
            child_unit[t], child_slot[t] = unit_of[child], slots[child]
            slot = operators[op].first_slot + (0 if operators[op].shared else slots[child])
            key = slot + (label_of[unit] + 1) * slot_count if sees_label else slot
            child_edge[t] = intern(edge_table, child_unit[t], key, edges)
            if child_edge[t] == edges:
                edge_unit[edges], edge_slot[edges], edge_label[edges] = child_unit[t], slot, label_of[unit]
                edges += 1
            t += 1
        children[unit + 1] = t
    edge_wave = np.empty(edges, np.int64)
    for edge in range(edges):
        edge_wave[edge] = wave[edge_unit[edge]]
    edge_order = sorted_by(edge_wave, waves, sorted_by(edge_slot, slot_count, np.arange(edges)))
    renumber(child_edge, edge_order, position)
    label_order = sorted_by(label_operator, len(operators), np.arange(labels))
    renumber(label_of, label_order, position)
    renumber(edge_label[:edges], label_order, position)
    edge_unit, edge_slot = taken(edge_unit, edge_order), taken(edge_slot, edge_order)
    by_slot = sorted_by(edge_slot, slot_count, np.arange(edges))
    by_group = sorted_by(group_of, group_count, identity[:units])
    return Plan(
        unit_of,
        row_of,
        label_of,
        carry_of,
        children,
        child_unit,
        child_slot,
        child_edge,
        edge_unit,
        taken(edge_label, edge_order),
        make_steps(wave, group_of, edge_unit, edge_slot),
        groups,
        core_rows,
        taken(label_row, label_order),
        runs(label_operator, label_order),
        by_slot,
        runs(edge_slot, by_slot),
        by_group,
        runs(group_of, by_group),
        identity,
        restricted,
        scratch,
    )
