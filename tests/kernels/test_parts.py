"""The parts of the fused way: the plan, the layout, and the compilation."""

import importlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from treefold.kernels.calls import forward
from treefold.kernels.compiled import planner
from treefold.kernels.tables import FROM, IS_EDGES, MASK, OPERATOR, PRESENT, TO, Ints, Plan

from treefold import Forest, LeafLSTM, PerLabel, TreeLSTM
from treefold.kernels import compiled, parts
from treefold.kernels.layout import Layout, layout_of
from treefold.nn.aggregators import AGGREGATORS
from treefold.nn.flat import FlatParameters


def listops_like(aggregator: str, *, shared: bool = False) -> PerLabel:
    rank = 2 if AGGREGATORS[aggregator].has_rank else None
    cells = {
        name: TreeLSTM(aggregator, state_size=3, arity=arity, rank=rank, shared=shared)
        for name, arity in (("f", 3), ("g", 2))
    }
    return PerLabel(cells, leaf=LeafLSTM(label_size=2, state_size=3))


def plan_with(
    layout: Layout, parents: Ints, slots: Ints, first: int, operators: Ints, rows: Ints, share: bool = True
) -> Plan:
    weights, labels = layout.pack(layout.parameters), np.eye(2, dtype=np.float32)
    rows = np.minimum(rows, 1)  # two label vectors
    room = np.zeros(0, np.float32)
    return forward(weights, layout.widths, parents, slots, first, operators, rows, labels, share, True, room)[0]


def plan_of(forest: Forest, aggregator: str, *, share: bool = True, trees: slice = slice(None)) -> Plan:
    batch = forest.batch()
    kinds = {"f": 0, "g": 1}
    operators = np.array([kinds.get(forest.vocabulary[code], 2) for code in batch.labels])
    rows = np.where(operators == 2, batch.labels, -1)
    layout = layout_of(listops_like(aggregator))
    chosen = range(len(batch))[trees]
    start, stop = int(forest.offsets[chosen[0]]), int(forest.offsets[chosen[-1] + 1])
    part = slice(start, stop)
    return plan_with(layout, batch.parents[part], batch.slots[part], start, operators[part], rows[part], share)


def test_equal_subtrees_are_one_unit_and_equal_edges_are_one_edge() -> None:
    plan = plan_of(Forest(["(f (g a b) (g a b) a)", "(g a b)", "a"]), "tucker")
    assert len(plan.row_of) == 4  # a, b, (g a b), and the whole first tree
    assert len(plan.edge_unit) == 5  # a and b below g, (g a b) in two slots of f, a in the third
    assert len(plan.label_row) == 2


def test_an_absent_child_makes_another_subtree() -> None:
    assert len(plan_of(Forest(["(g a)", "(g _ a)"]), "sum").row_of) == 3


def test_units_come_after_their_children_and_edges_between_them() -> None:
    plan = plan_of(Forest(["(f (g a b) _ (f (g b) a))", "(f b a a)"]), "canonical")
    done_units = done_edges = 0
    for step in plan.steps:
        assert step[FROM] == (done_edges if step[IS_EDGES] else done_units)
        if step[IS_EDGES]:
            assert plan.edge_unit[step[FROM] : step[TO]].max() < done_units
            done_edges = step[TO]
        else:
            for child in range(plan.children[step[FROM]], plan.children[step[TO]]):
                assert plan.child_edge[child] < done_edges and plan.child_unit[child] < done_units
            done_units = step[TO]
    assert (done_units, done_edges) == (len(plan.row_of), len(plan.edge_unit))


def test_units_are_grouped_by_operator_and_by_the_slots_that_have_a_child() -> None:
    plan = plan_of(Forest(["(f a _ b)", "(f a _ a)", "(f a b)", "(g a)"]), "full")
    found = {(group[OPERATOR], group[MASK], group[PRESENT]) for group in plan.groups.tolist()}
    assert found == {(0, 0b101, 2), (0, 0b011, 2), (1, 0b1, 1), (2, 0, 0)}


def test_without_sharing_each_node_is_a_unit_of_its_own() -> None:
    plan = plan_of(Forest(["(f (g a b) (g a b) a)", "(g a b)", "a"]), "tucker", share=False)
    assert sorted(plan.unit_of.tolist()) == list(range(12)) and len(plan.edge_unit) == 9
    assert len(plan.label_row) == 2  # the linear images of labels stay shared


def test_the_plan_of_some_trees_is_that_of_the_same_trees_alone() -> None:
    forest = Forest(["(f a b)", "b", "(g a (g b))", "(g b)"])
    some, alone = plan_of(forest, "sum", trees=slice(1, 3)), plan_of(forest[1:3], "sum")
    for name in Plan._fields:
        assert np.array_equal(getattr(some, name), getattr(alone, name)), name


def test_children_stand_in_the_order_of_their_slots_however_they_are_stored() -> None:
    """Two siblings (a in slot 1, b in slot 0) stored the wrong way round, below a root."""
    layout = layout_of(listops_like("tensor-train"))
    parents, slots = np.array([2, 2, -1]), np.array([1, 0, 0])
    plan = plan_with(layout, parents, slots, 0, np.array([2, 2, 0]), np.array([0, 1, -1]))
    root = plan.unit_of[2]
    children = slice(plan.children[root], plan.children[root + 1])
    assert plan.child_slot[children].tolist() == [0, 1]
    assert plan.child_unit[children].tolist() == [plan.unit_of[1], plan.unit_of[0]]


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("shared", [False, True])
def test_arranged_parameters_stand_as_they_would_be_packed(aggregator: str, shared: bool) -> None:
    cell = listops_like(aggregator, shared=shared)
    layout = layout_of(cell)
    packed = layout.pack(layout.parameters).values.copy()
    arrangement = layout.arrangement()
    if aggregator == "tensor-train" and not shared:
        assert arrangement is None  # the forget gates' weights stand in two places
        return
    assert arrangement is not None
    flat = FlatParameters(cell, [arrangement])
    assert np.array_equal(flat.values.detach().numpy()[flat.place_of(arrangement.owner)], packed)
    flat.gradient.fill_(3)
    flat.settle_gradient()
    flat.values.data.mul_(0.5)
    flat.settle_values()
    for parameter in cell.parameters():
        assert parameter.grad is not None and bool((parameter.grad == 3).all())
    assert int((flat.gradient == 3).sum()) == sum(parameter.numel() for parameter in cell.parameters())
    constant = (flat.gradient == 0).numpy()
    assert np.array_equal(flat.values.detach().numpy()[constant], packed[constant[: len(packed)]])


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("shared", [False, True])
def test_packing_and_unpacking_give_each_parameter_back(aggregator: str, shared: bool) -> None:
    cell = listops_like(aggregator, shared=shared)
    layout = layout_of(cell)
    flat = torch.from_numpy(layout.pack(layout.parameters).values)
    assert {id(parameter) for parameter in layout.parameters} == {id(parameter) for parameter in cell.parameters()}
    for parameter, found in zip(layout.parameters, layout.gradients(flat), strict=True):
        assert torch.equal(parameter, found)


def test_kernels_compile_without_a_place_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = numba.njit

    def without_cache(*arguments: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return plain(*arguments, **options)

    monkeypatch.setattr(numba, "njit", without_cache)

    @planner
    def doubled(number: int) -> int:
        return 2 * number

    assert doubled(4) == 8


def test_what_was_compiled_from_other_files_is_not_taken_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "one.py"
    source.write_text("def doubled(number):\n    return 2 * number\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    function = importlib.import_module("one").doubled

    def is_kept(fingerprint: int) -> bool:
        monkeypatch.setattr(compiled, "_fingerprint", lambda: fingerprint)
        return compiled.is_on_disk(planner(function))

    monkeypatch.setattr(compiled, "_fingerprint", lambda: 1)
    assert not is_kept(1)
    assert planner(function)(4) == 8
    assert is_kept(1) and not is_kept(2)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 5))
def test_parts_are_runs_of_whole_trees_and_none_is_much_larger_than_its_share(sizes: list[int], count: int) -> None:
    ends = parts.ends_of_parts(np.cumsum(sizes), count)
    assert ends == sorted(set(ends)) and ends[0] > 0 and ends[-1] == len(sizes) and len(ends) <= count
    nodes = [sum(sizes[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    assert nodes[0] <= max(sizes[0], 1.1 * sum(sizes) / (count + 0.1))
    assert max(nodes) < 1.1 * sum(sizes) / (count + 0.1) + 2 * max(sizes)


def test_parts_are_computed_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=30)  # broken unless three threads come to it
    assert sorted(parts.each_part(lambda part: meeting.wait(), 3)) == [0, 1, 2]
    assert parts.each_part(lambda part: -part, 3) == [0, -1, -2]  # in their order


def test_the_first_error_of_several_parts_is_raised_when_all_have_ended() -> None:
    ended = []

    def run(part: int) -> None:
        if part != 1:
            time.sleep(0.05)
        ended.append(part)
        if part:
            raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 1"):
        parts.each_part(run, 3)
    assert sorted(ended) == [0, 1, 2]
    assert parts.each_part(lambda part: part, 3) == [0, 1, 2]  # the threads are still there


def test_several_callers_may_share_the_threads() -> None:
    with ThreadPoolExecutor(5) as callers:
        found = callers.map(lambda caller: parts.each_part(lambda part: 10 * caller + part, 3), range(40))
        assert list(found) == [[10 * caller + part for part in range(3)] for caller in range(40)]


def test_the_kernels_have_the_threads_and_torch_one_as_long_as_it_is_said() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert parts.parts_of(1000) == 2
        with parts.kernels_first():
            assert torch.get_num_threads() == 1 and parts.parts_of(1000) == 2
            with parts.kernels_first():
                assert parts.parts_of(1000) == 2
            assert torch.get_num_threads() == 1 and parts.parts_of(1000) == 2
        assert torch.get_num_threads() == 2 and parts.parts_of(1000) == 2
        torch.set_num_threads(1)
        assert parts.parts_of(1000) == 1
    finally:
        torch.set_num_threads(before)
