"""The plan of a batch: equal subtrees are one unit, computed once; units of a kind are computed together, from the leaves up."""

import numpy as np

from treefold.kernels.compiled import allocating, inner
from treefold.kernels.scratch import scratch_sizes
from treefold.kernels.tables import (
    ARITY,
    FIRST_ROW,
    FIRST_SET,
    FORM,
    FROM,
    FULL,
    GROUP_COLUMNS,
    IS_EDGES,
    KEY,
    LABEL,
    LABEL_WIDTH,
    LEFT,
    MASK,
    MULTISETS,
    OPERATOR,
    PRESENT,
    RANK,
    RESTRICTED,
    RIGHT,
    ROW_COUNT,
    ROWS,
    SHARED,
    SYMMETRIC,
    TO,
    WIDTH,
    Ints,
    Plan,
    Tables,
)
from treefold.kernels.turns import large_entries, take_turns
from treefold.kernels.units import children_of, find_units

# Axes:  N nodes · U units · T children of units · E edges


@allocating
def table_for(entries: int) -> Ints:
    """Return an empty table for `intern` with at least twice as many places as entries."""
    size = 8
    while size < 2 * entries:
        size *= 2
    return np.full((size, 2), -1)


@inner
def intern(table: Ints, a: int, b: int) -> int:
    """Return the place of a pair of numbers in a hash table, which is the same whenever the pair is; a is not negative."""
    last = len(table) - 1
    mixed = a * 0x1E3779B97F4A7C15 + b * 0x42B2AE3D27D4EB4F
    place = (mixed ^ (mixed >> 29)) & last
    while table[place, 0] >= 0:
        if table[place, 0] == a and table[place, 1] == b:
            return place
        place = (place + 1) & last
    table[place, 0], table[place, 1] = a, b
    return place


@inner
def split_modes(labels: int, mode: int, present: int, out_size: int) -> tuple[int, int]:
    """Return the entries of the left and the right half of a core: the right has a mode more until it fills vector units.

    Of two modes it has one even where the outputs fill them: shorter outer products, and less to sum across vectors.
    """
    left, right = max(labels, 1) * mode**present, 1
    taken = 0
    while taken < present and (right * out_size < 32 or (taken == 0 and present > 1)):
        right *= mode
        left //= mode
        taken += 1
    return left, right


@inner
def core_entries(tables: Tables, op: int, present: int) -> int:
    """Return how many rows a core has for a number of present children."""
    operator = tables.operators[op]
    form, rank, label = operator[FORM], operator[RANK], operator[LABEL]
    if form < FULL:
        return 0
    labels = 1 if label == 0 else (label if form == FULL else rank) + 1
    if operator[SHARED]:
        return int(labels * tables.orders[operator[SYMMETRIC] + present][MULTISETS])
    return int(labels * (rank + 1) ** present)


@inner
def describe_group(
    tables: Tables, group: Ints, bits: int, core_rows: Ints, used: int, restricted: int
) -> tuple[int, int]:
    """Fill in a group's row: the halves of its core, and the rows of it that count, where children are absent."""
    operator = tables.operators[group[OPERATOR]]
    form, rank, arity, label = operator[FORM], operator[RANK], operator[ARITY], operator[LABEL]
    group[ROWS], group[RESTRICTED], group[LEFT], group[RIGHT] = -1, 0, 1, 1
    if form < FULL:
        return used, restricted
    labels = 0 if label == 0 else (label if form == FULL else rank) + 1
    present, mode = group[PRESENT], rank + 1
    start = used
    group[ROW_COUNT] = group[LEFT] = core_entries(tables, group[OPERATOR], present)
    if not operator[SHARED]:
        group[LEFT], group[RIGHT] = split_modes(labels, mode, present, rank)
    if present == arity:
        return used, restricted
    if bits == (1 << present) - 1 and not operator[SHARED] and not labels:
        group[RESTRICTED] = (mode**arity - mode**present) * rank
        return used, restricted
    if operator[SHARED]:
        order = tables.orders[operator[SYMMETRIC] + present]
        total = tables.orders[operator[SYMMETRIC] + arity][MULTISETS]
        for entry in range(max(labels, 1)):
            for multiset in range(order[MULTISETS]):
                core_rows[used] = entry * total + tables.padded[order[FIRST_ROW] + multiset]
                used += 1
    else:
        # The rows of the core, mode after mode, the last slot first; an absent child leaves the last entry of its mode only.
        core_rows[used] = 0
        filled = 1
        for place in range(arity, -1, -1):
            stride = mode**place
            if place < arity and not (bits >> place) & 1:
                for entry in range(filled):
                    core_rows[start + entry] += (mode - 1) * stride
                continue
            size = mode if place < arity else max(labels, 1)
            for entry in range(filled - 1, -1, -1):
                base = core_rows[start + entry]
                for index in range(size):
                    core_rows[start + entry * size + index] = base + index * stride
            filled *= size
        used += filled
    group[ROWS], group[RESTRICTED] = start, restricted
    return used, restricted + group[ROW_COUNT] * tables.gates * rank


@allocating
def make_steps(turn: Ints, group: Ints, edge_unit: Ints, edge_set: Ints) -> Ints:
    """Join the runs of units and of edges by turn: first the units of a turn, then the edges that leave them."""
    steps = np.empty((len(turn) + len(edge_unit), 4), np.int64)
    count = unit = edge = 0
    while unit < len(turn):
        now = turn[unit]
        while unit < len(turn) and turn[unit] == now:
            first = unit
            while unit < len(turn) and turn[unit] == now and group[unit] == group[first]:
                unit += 1
            steps[count, IS_EDGES], steps[count, FROM], steps[count, TO], steps[count, KEY] = (
                0,
                first,
                unit,
                group[first],
            )
            count += 1
        while edge < len(edge_unit) and turn[edge_unit[edge]] == now:
            first = edge
            while edge < len(edge_unit) and turn[edge_unit[edge]] == now and edge_set[edge] == edge_set[first]:
                edge += 1
            steps[count, IS_EDGES], steps[count, FROM], steps[count, TO] = 1, first, edge
            steps[count, KEY] = edge_set[first]
            count += 1
    return steps[:count]


@allocating
def runs(values: Ints) -> Ints:
    """Return first, last and value of each run of equal values, (runs, 3)."""
    result = np.empty((len(values), 3), np.int64)
    count = start = 0
    for index in range(1, len(values) + 1):
        if index == len(values) or values[index] != values[start]:
            result[count, 0], result[count, 1], result[count, 2] = start, index, values[start]
            count += 1
            start = index
    return result[:count]


@allocating
def sorted_by(keys: Ints, count: int) -> Ints:
    """Return the order of keys from 0 to count - 1, equal ones as they stand."""
    starts = np.zeros(count + 1, np.int64)
    for key in keys:
        starts[key + 1] += 1
    for key in range(count):
        starts[key + 1] += starts[key]
    order = np.empty(len(keys), np.int64)
    for index in range(len(keys)):
        order[starts[keys[index]]] = index
        starts[keys[index]] += 1
    return order


@allocating
def make_plan(parents: Ints, slots: Ints, first: int, operator: Ints, row: Ints, tables: Tables, share: bool) -> Plan:
    """Plan whole trees of a batch, the nodes from row ``first`` on.

    ``operator`` (N,) are rows of the operators' table, ``row`` (N,) label vectors or -1; ``share`` says whether equal subtrees
    are computed once.
    """
    starts, listed = children_of(parents, slots, first)
    unit_of, first_node, height = find_units(starts, listed, slots, operator, row, share)
    units, count = len(first_node), len(operator)
    operators, sets = tables.operators, tables.sets

    # Groups of units, and the order of units by turn and group.
    table = table_for(units)
    group_at = np.full(len(table), -1)
    groups = np.zeros((units, GROUP_COLUMNS), np.int64)
    group_of, present_of = np.empty(units, np.int64), np.empty(units, np.int64)
    group_count = entries = children_count = 0
    for unit in range(units):
        node = first_node[unit]
        op = operator[node]
        bits = 0
        for child in listed[starts[node] : starts[node + 1]]:
            if slots[child] < 62:
                bits |= 1 << slots[child]
        present_of[unit] = starts[node + 1] - starts[node]
        children_count += present_of[unit]
        mask = 0
        if operators[op, FORM] >= FULL:
            mask = present_of[unit] if operators[op, SHARED] else bits
        place = intern(table, op, mask)
        if group_at[place] < 0:
            group_at[place] = group_count
            groups[group_count, OPERATOR], groups[group_count, MASK] = op, mask
            groups[group_count, PRESENT] = present_of[unit]
            entries += core_entries(tables, op, present_of[unit])
            group_count += 1
        group_of[unit] = group_at[place]
    groups = groups[:group_count]
    core_rows = np.empty(entries, np.int64)
    used = restricted = 0
    for index in range(group_count):
        used, restricted = describe_group(tables, groups[index], groups[index, MASK], core_rows, used, restricted)

    large, any_large = np.zeros(group_count, np.int64), False
    for index in range(group_count):
        large[index] = large_entries(tables, groups[index])
        any_large = any_large or large[index] > 0
    turn = height
    if any_large:
        unit_children, below = np.zeros(units + 1, np.int64), np.empty(children_count, np.int64)
        filled = 0
        for unit in range(units):
            for place in range(starts[first_node[unit]], starts[first_node[unit] + 1]):
                below[filled] = unit_of[listed[place]]
                filled += 1
            unit_children[unit + 1] = filled
        turn = take_turns(unit_children, below, group_of, large)

    by_group = sorted_by(group_of, group_count)
    order = by_group[sorted_by(turn[by_group], turn.max() + 1)]  # by turn, and by group at each
    position = np.empty(units, np.int64)
    position[order] = np.arange(units)
    for node in range(count):
        unit_of[node] = position[unit_of[node]]

    # Children, labels and edges of the units in that order.
    row_of, label_of, carry_of = np.empty(units, np.int64), np.full(units, -1), np.zeros(units + 1, np.int64)
    children = np.zeros(units + 1, np.int64)
    child_unit, child_slot = np.empty(children_count, np.int64), np.empty(children_count, np.int64)
    edge_at_child = np.full(children_count, -1)
    edge_table, label_table = table_for(children_count), table_for(units)
    edge_at, label_at = np.full(len(edge_table), -1), np.full(len(label_table), -1)
    edge_unit, edge_set = np.empty(children_count, np.int64), np.empty(children_count, np.int64)
    label_row, label_operator = np.empty(units, np.int64), np.empty(units, np.int64)
    edges = labels = t = 0
    for new in range(units):
        unit = order[new]
        node, group = first_node[unit], groups[group_of[unit]]
        op = operator[node]
        row_of[new] = row[node]
        carry_of[new + 1] = carry_of[new]
        if operators[op, FORM] >= FULL and not operators[op, SHARED]:
            carry_of[new + 1] += tables.gates * group[RIGHT] * operators[op, RANK]
        if row[node] >= 0 and operators[op, LABEL_WIDTH] > 0:
            place = intern(label_table, op, row[node])
            if label_at[place] < 0:
                label_at[place] = labels
                label_row[labels], label_operator[labels] = row[node], op
                labels += 1
            label_of[new] = label_at[place]
        for child in listed[starts[node] : starts[node + 1]]:
            slot = slots[child]
            child_slot[t] = slot
            child_unit[t] = unit_of[child]
            which = operators[op, FIRST_SET] + (0 if operators[op, SHARED] else slot)
            if sets[which, WIDTH] > 0:
                place = intern(edge_table, child_unit[t], which)
                if edge_at[place] < 0:
                    edge_at[place] = edges
                    edge_unit[edges], edge_set[edges] = child_unit[t], which
                    edges += 1
                edge_at_child[t] = edge_at[place]
            t += 1
        children[new + 1] = t
    edge_unit, edge_set = edge_unit[:edges], edge_set[:edges]
    turns = turn[order]
    edge_order = sorted_by(edge_set, len(sets))
    edge_order = edge_order[sorted_by(turns[edge_unit[edge_order]], turns[-1] + 1)]
    edge_position = np.empty(edges, np.int64)
    edge_position[edge_order] = np.arange(edges)
    for child in range(children_count):
        if edge_at_child[child] >= 0:
            edge_at_child[child] = edge_position[edge_at_child[child]]
    edge_unit, edge_set = edge_unit[edge_order], edge_set[edge_order]

    label_order = sorted_by(label_operator[:labels], len(operators))
    label_position = np.empty(labels, np.int64)
    label_position[label_order] = np.arange(labels)
    for new in range(units):
        if label_of[new] >= 0:
            label_of[new] = label_position[label_of[new]]

    groups_in_order = group_of[order]
    by_set, by_group = sorted_by(edge_set, len(sets)), sorted_by(groups_in_order, group_count)
    return Plan(
        unit_of,
        row_of,
        label_of,
        carry_of,
        children,
        child_unit,
        child_slot,
        edge_at_child,
        edge_unit,
        make_steps(turns, groups_in_order, edge_unit, edge_set),
        groups,
        core_rows[:used],
        label_row[:labels][label_order],
        runs(label_operator[:labels][label_order]),
        by_set,
        runs(edge_set[by_set]),
        by_group,
        runs(groups_in_order[by_group]),
        restricted,
        scratch_sizes(tables, groups, children),
    )
