"""Turns: after the children's, and few for units that go through large cores."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from treefold.kernels.compiled import planner
from treefold.kernels.tables import Ints
from treefold.kernels.turns import take_turns


@planner
def _turns(children: Ints, child_unit: Ints, group_of: Ints, large: Ints) -> Ints:
    return take_turns(children, child_unit, group_of, large)


def turns(below: list[list[int]], groups: list[int], large: list[int]) -> list[int]:
    children = np.cumsum([0, *map(len, below)])
    flat = np.array([child for each in below for child in each], np.int64)
    return list(map(int, _turns(children, flat, np.array(groups), np.array(large))))


def test_units_of_a_large_group_wait_for_each_other() -> None:
    # Two chains, a - b - A and c - A with A large: by height the second A would have its turn before the first.
    below = [[], [0], [1], [], [3]]
    assert turns(below, [0, 0, 1, 0, 1], [0, 1]) == [0, 1, 2, 0, 2]
    assert turns(below, [0, 0, 1, 0, 1], [0, 0]) == [0, 1, 2, 0, 1]


def test_of_two_large_groups_that_with_more_units_is_first() -> None:
    assert turns([[], [0], [0], [0]], [0, 1, 2, 2], [0, 1, 1]) == [0, 2, 1, 1]


def test_of_two_large_groups_that_with_the_smaller_core_is_first() -> None:
    # The larger one has more units that could be computed; behind the smaller one stands one more.
    assert turns([[], [0], [0], [0], [1]], [0, 1, 2, 2, 2], [0, 5, 9]) == [0, 1, 2, 2, 2]
    assert turns([[], [0], [0], [0], [1]], [0, 1, 2, 2, 2], [0, 9, 9]) == [0, 2, 1, 1, 3]


def test_a_child_may_stand_twice_below_its_parent() -> None:
    assert turns([[], [0, 0], [1, 1, 0]], [0, 1, 1], [0, 1]) == [0, 1, 2]


@st.composite
def units(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    count = draw(st.integers(1, 30))
    below = [draw(st.lists(st.integers(0, unit - 1), max_size=4)) if unit else [] for unit in range(count)]
    large = draw(st.lists(st.integers(0, 2), min_size=3, max_size=3))
    return below, draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), large


@given(units())
def test_every_unit_comes_after_its_children_and_a_turn_has_either_small_units_or_one_large_group(
    drawn: tuple[list[list[int]], list[int], list[int]],
) -> None:
    below, groups, large = drawn
    found = turns(*drawn)
    assert all(found[child] < found[unit] for unit, each in enumerate(below) for child in each)
    for turn in range(max(found) + 1):
        at_once = {groups[unit] for unit in range(len(below)) if found[unit] == turn}
        assert at_once and (len(at_once) == 1 or not any(large[group] for group in at_once))
