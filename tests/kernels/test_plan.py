"""The plan of a batch: equal subtrees, the order of the work, groups and edges."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treefold import Forest, LeafLSTM, OneHot, PerLabel, Tree, TreeEncoder, TreeLSTM
from treefold.kernels.compile import entry_point
from treefold.kernels.layout import CellLayout
from treefold.kernels.plan import assign_waves, children_of, find_units, intern, make_plan, table_for
from treefold.kernels.records import Ints, Plan, Terms
from treefold.nn.aggregators import AGGREGATORS
from treefold.nn.cells.base import layout_of

# Waves


@entry_point
def _waves(children: Ints, child_unit: Ints, group_of: Ints, large: Ints) -> Ints:
    return assign_waves(children, child_unit, group_of, large)


def waves(below: list[list[int]], groups: list[int], large: list[int]) -> list[int]:
    children = np.cumsum([0, *map(len, below)])
    flat = np.array([child for each in below for child in each], np.int64)
    return list(map(int, _waves(children, flat, np.array(groups), np.array(large))))


def test_units_of_a_large_group_wait_for_each_other() -> None:
    # Two chains, a - b - A and c - A with A large: by height the second A would be in an earlier wave than the first.
    below = [[], [0], [1], [], [3]]
    assert waves(below, [0, 0, 1, 0, 1], [0, 1]) == [0, 1, 2, 0, 2]
    assert waves(below, [0, 0, 1, 0, 1], [0, 0]) == [0, 1, 2, 0, 1]


def test_of_two_large_groups_that_with_more_units_is_first() -> None:
    assert waves([[], [0], [0], [0]], [0, 1, 2, 2], [0, 1, 1]) == [0, 2, 1, 1]


def test_of_two_large_groups_that_with_the_smaller_core_is_first() -> None:
    # The larger one has more units that could be computed; one more waits for the smaller one.
    assert waves([[], [0], [0], [0], [1]], [0, 1, 2, 2, 2], [0, 5, 9]) == [0, 1, 2, 2, 2]
    assert waves([[], [0], [0], [0], [1]], [0, 1, 2, 2, 2], [0, 9, 9]) == [0, 2, 1, 1, 3]


def test_a_unit_may_be_a_child_of_its_parent_twice() -> None:
    assert waves([[], [0, 0], [1, 1, 0]], [0, 1, 1], [0, 1]) == [0, 1, 2]


@st.composite
def units(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    count = draw(st.integers(1, 30))
    below = [draw(st.lists(st.integers(0, unit - 1), max_size=4)) if unit else [] for unit in range(count)]
    large = draw(st.lists(st.integers(0, 2), min_size=3, max_size=3))
    return below, draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), large


@given(units())
def test_every_unit_comes_after_its_children_and_a_wave_has_either_small_units_or_one_large_group(
    drawn: tuple[list[list[int]], list[int], list[int]],
) -> None:
    below, groups, large = drawn
    found = waves(*drawn)
    assert all(found[child] < found[unit] for unit, each in enumerate(below) for child in each)
    for wave in range(max(found) + 1):
        at_once = {groups[unit] for unit in range(len(below)) if found[unit] == wave}
        assert at_once and (len(at_once) == 1 or not any(large[group] for group in at_once))


# Units

Subtree = tuple[object, tuple[object, ...]]


def subtree(node: Tree) -> Subtree:
    """Return what makes a subtree: its label, and its children with their slots."""
    return node.label, tuple((slot, subtree(child)) for slot, child in enumerate(node.children) if child is not None)


def random_trees(seed: int, labels: str, most: int) -> list[Tree]:
    rng = random.Random(seed)

    def grow(budget: int) -> Tree:
        kids: list[Tree | None] = []
        for _ in range(rng.randint(0, min(4, budget))):
            kids.append(None if rng.random() < 0.2 else grow(budget // 4))
        return Tree(rng.choice(labels), kids)

    return [grow(most) for _ in range(rng.randint(1, 8))]


@entry_point
def _units(
    parents: Ints, slots: Ints, operator: Ints, row: Ints, share: bool
) -> tuple[Ints, Ints, tuple[Ints, Ints, Ints]]:
    starts, listed = children_of(parents, slots, int(np.int64(0)))
    return starts, listed, find_units(starts, listed, slots, operator, row, share)


def units_of(forest: Forest, *, share: bool = True, spread: int = 1) -> tuple[Ints, Ints, Ints]:
    """Return the unit of each node, and the first node and the height of each unit; labels are rows, ``spread`` apart."""
    batch = forest.batch()
    return _units(batch.parents, batch.slots, np.zeros_like(batch.labels), spread * batch.labels, share)[2]


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 40), st.sampled_from([1, 10**6]))
def test_nodes_share_a_unit_exactly_if_their_subtrees_are_equal(seed: int, kinds: int, most: int, spread: int) -> None:
    """Against the plainest way to find equal subtrees, nested tuples; labels far apart are looked up like subtrees."""
    trees = random_trees(seed, "abc"[:kinds], most)
    unit_of, first_node, height = units_of(Forest(trees), spread=spread)
    nodes = [node for tree in trees for node in tree.postorder()]
    units: dict[Subtree, int] = {}
    for node, unit in zip(nodes, unit_of.tolist(), strict=True):
        assert units.setdefault(subtree(node), unit) == unit
    assert len(set(units.values())) == len(units) == len(first_node) == len(height)
    for unit, node in enumerate(first_node.tolist()):
        assert unit_of.tolist().index(unit) == node
        below = [child for child in nodes[node].children if child is not None]
        assert height[unit] == max((height[units[subtree(child)]] + 1 for child in below), default=0)


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_an_encoder_computes_each_distinct_subtree_once(seed: int, most: int) -> None:
    trees = random_trees(seed, "abc", most)
    encoder = TreeEncoder(TreeLSTM("sum", state_size=2, arity=4, label_size=3), OneHot("abc"), backend="fused")
    encoding = encoder(Forest(trees))
    distinct = {subtree(node) for tree in trees for node in tree.postorder()}
    assert len(encoding.passes[0].blocks[0]) == len(np.unique(encoding.passes[0].rows)) == len(distinct)


def test_without_sharing_each_node_has_its_own_unit() -> None:
    unit_of, first_node, height = units_of(Forest(["(f a a)", "a"]), share=False)
    assert unit_of.tolist() == first_node.tolist() == [0, 1, 2, 3] and height.tolist() == [0, 0, 1, 0]


def test_a_table_that_grows_keeps_its_words() -> None:
    rng = random.Random(0)
    trees = [Tree("a", [Tree(rng.choice("abc")) for _ in range(rng.randint(1, 9))]) for _ in range(3000)]
    forest = Forest([*trees, *trees])
    roots = units_of(forest)[0][forest.batch().roots]
    assert np.array_equal(roots[:3000], roots[3000:])
    assert len(np.unique(roots)) == len({str(tree) for tree in trees})


def test_children_are_listed_in_the_order_of_their_slots_however_they_are_stored() -> None:
    parents, slots = np.array([3, 3, 3, 5, 5, -1]), np.array([4, 0, 2, 1, 0, 0])
    starts, listed, _ = _units(parents, slots, np.zeros(6, np.int64), np.zeros(6, np.int64), True)
    assert starts.tolist() == [0, 0, 0, 0, 3, 3, 5] and listed.tolist() == [1, 2, 0, 4, 3]


@entry_point
def _numbers(pairs: Terms) -> Ints:
    table, found, known = table_for(len(pairs)), np.empty(len(pairs), np.int64), 0
    for index in range(len(pairs)):
        found[index] = intern(table, pairs[index, 0], pairs[index, 1], known)
        known += found[index] == known
    return found


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(-50, 50)), min_size=1, max_size=300))
def test_equal_pairs_get_the_same_number_in_the_order_of_their_first_use(pairs: list[tuple[int, int]]) -> None:
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    assert _numbers(np.array(pairs)).tolist() == [numbers[pair] for pair in pairs]


# Plans


def listops_like(aggregator: str) -> CellLayout:
    rank = 2 if AGGREGATORS[aggregator].has_rank else None
    cells = {name: TreeLSTM(aggregator, state_size=3, arity=arity, rank=rank) for name, arity in (("f", 3), ("g", 2))}
    return layout_of(PerLabel(cells, leaf=LeafLSTM(label_size=2, state_size=3)))


def plan_with(
    aggregator: str, parents: Ints, slots: Ints, first: int, operators: Ints, rows: Ints, share: bool = True
) -> Plan:
    tables = listops_like(aggregator).tables(np.dtype(np.float32), training=False)
    return make_plan(tables, parents, slots, first, operators, rows, share)


def plan_of(forest: Forest, aggregator: str, *, share: bool = True, trees: slice = slice(None)) -> Plan:
    batch = forest.batch()
    kinds = {"f": 0, "g": 1}
    operators = np.array([kinds.get(forest.vocabulary[code], 2) for code in batch.labels])
    rows = np.where(operators == 2, batch.labels, -1)
    chosen = range(len(batch))[trees]
    start, stop = int(forest.offsets[chosen[0]]), int(forest.offsets[chosen[-1] + 1])
    part = slice(start, stop)
    return plan_with(aggregator, batch.parents[part], batch.slots[part], start, operators[part], rows[part], share)


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
        assert step["start"] == (done_edges if step["is_edges"] else done_units)
        if step["is_edges"]:
            assert plan.edge_unit[step["start"] : step["stop"]].max() < done_units
            done_edges = step["stop"]
        else:
            for child in range(plan.children[step["start"]], plan.children[step["stop"]]):
                assert plan.child_edge[child] < done_edges and plan.child_unit[child] < done_units
            done_units = step["stop"]
    assert (done_units, done_edges) == (len(plan.row_of), len(plan.edge_unit))


def test_units_are_grouped_by_operator_and_by_the_slots_that_have_a_child() -> None:
    plan = plan_of(Forest(["(f a _ b)", "(f a _ a)", "(f a b)", "(g a)"]), "full")
    found = {(group["operator"], group["mask"], group["present"]) for group in plan.groups}
    assert found == {(0, 0b101, 2), (0, 0b011, 2), (1, 0b1, 1), (2, 0, 0)}


def test_runs_list_all_units_by_their_groups_and_all_edges_by_their_slots() -> None:
    plan = plan_of(Forest(["(f (g a b) _ (f (g b) a))", "(f b a a)"]), "full")
    for runs, order in ((plan.group_runs, plan.by_group), (plan.slot_runs, plan.by_slot)):
        assert [int(run["start"]) for run in runs] == [0, *(int(run["stop"]) for run in runs[:-1])]
        assert runs[-1]["stop"] == len(order) and sorted(order.tolist()) == list(range(len(order)))
        assert len({int(run["key"]) for run in runs}) == len(runs)
    of_step = np.empty((2, len(plan.row_of) + len(plan.edge_unit)), np.int64)
    for step in plan.steps:
        of_step[int(step["is_edges"]), step["start"] : step["stop"]] = step["key"]
    for kind, runs, order in ((0, plan.group_runs, plan.by_group), (1, plan.slot_runs, plan.by_slot)):
        for run in runs:
            assert set(of_step[kind, order[run["start"] : run["stop"]]].tolist()) == {int(run["key"])}


def test_without_sharing_the_images_of_labels_stay_shared() -> None:
    plan = plan_of(Forest(["(f (g a b) (g a b) a)", "(g a b)", "a"]), "tucker", share=False)
    assert sorted(plan.unit_of.tolist()) == list(range(12)) and len(plan.edge_unit) == 9
    assert len(plan.label_row) == 2


def test_the_plan_of_some_trees_is_that_of_the_same_trees_alone() -> None:
    forest = Forest(["(f a b)", "b", "(g a (g b))", "(g b)"])
    some, alone = plan_of(forest, "sum", trees=slice(1, 3)), plan_of(forest[1:3], "sum")
    for name in Plan._fields:
        assert np.array_equal(getattr(some, name), getattr(alone, name)), name


def test_children_of_a_unit_are_in_the_order_of_their_slots_however_they_are_stored() -> None:
    """Two siblings (a in slot 1, b in slot 0) stored the wrong way round, below a root."""
    parents, slots = np.array([2, 2, -1]), np.array([1, 0, 0])
    plan = plan_with("tensor-train", parents, slots, 0, np.array([2, 2, 0]), np.array([0, 1, -1]))
    root = plan.unit_of[2]
    children = slice(plan.children[root], plan.children[root + 1])
    assert plan.child_slot[children].tolist() == [0, 1]
    assert plan.child_unit[children].tolist() == [plan.unit_of[1], plan.unit_of[0]]


def test_units_with_large_cores_wait_for_each_other_in_a_plan() -> None:
    """A core of 17³·16 entries is large: the units of both heights are one step."""
    large = layout_of(
        PerLabel({"f": TreeLSTM("full", state_size=16, arity=2)}, leaf=LeafLSTM(label_size=2, state_size=16))
    )
    batch = Forest(["(f (f (f a b) b) b)", "(f a (f b b))"]).batch()
    operators = np.array([0 if batch.vocabulary[code] == "f" else 1 for code in batch.labels])
    tables = large.tables(np.dtype(np.float32), training=False)
    plan = make_plan(tables, batch.parents, batch.slots, 0, operators, np.where(operators, batch.labels, -1), True)
    steps = [int(step["stop"] - step["start"]) for step in plan.steps if not step["is_edges"]]
    assert steps == [2, 2, 2, 1] and plan.groups["large"].max() == 17 * 17 * 16
