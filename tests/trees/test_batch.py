from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import text_tree
from treefold import Batch, Forest, Tree


def with_places(tree: Tree, batch: Batch, index: int, forest: Forest) -> dict[int, tuple[Tree, list[int]]]:
    """Map the schedule place of each node to the node and the places of its children (-1 for ⊥), by plain recursion."""
    result: dict[int, tuple[Tree, list[int]]] = {}
    counter = iter(range(index, index + tree.size))

    def walk(node: Tree) -> int:
        children = [-1 if child is None else walk(child) for child in node.children]
        place = int(batch.schedule.places[next(counter)])
        result[place] = (node, children)
        return place

    walk(tree)
    return result


@given(st.lists(text_tree, min_size=1, max_size=6), st.data())
def test_the_schedule_names_every_child_of_every_node(trees: list[Tree], data: st.DataObject) -> None:
    forest = Forest(trees)
    chosen = data.draw(st.lists(st.integers(0, len(trees) - 1), min_size=1, max_size=6))
    batch = forest.batch(chosen)
    assert len(batch) == len(chosen) and batch.node_count == sum(trees[index].size for index in chosen)
    assert sorted(batch.schedule.places.tolist()) == list(range(batch.node_count))

    expected: dict[int, tuple[Tree, list[int]]] = {}
    for order, index in enumerate(chosen):
        found = with_places(trees[index], batch, len(expected), forest)
        root = next(place for place, (node, _) in found.items() if node is trees[index])
        row = int(batch.roots[order])
        assert batch.schedule.places[row] == root and batch.tree_of(row) == order and batch.parents[row] == -1
        expected |= found

    below = 0
    depths: dict[int, int] = {}
    levels = list(batch.schedule.levels())
    for level in levels:
        for row, place in enumerate(range(level.nodes.start, level.nodes.stop)):
            node, children = expected[place]
            in_batch = int(batch.schedule.order[place])
            assert batch.vocabulary[batch.labels[in_batch]] == node.label
            for slot, child in enumerate(children):
                if child >= 0:
                    below_it = int(batch.schedule.order[child])
                    assert batch.parents[below_it] == in_batch and batch.slots[below_it] == slot
            present = [child for child in children if child >= 0]
            got = [below + child - 1 if child else -1 for child in level.children[row].tolist()]
            used = max((slot + 1 for slot, child in enumerate(children) if child >= 0), default=0)
            assert got[:used] == children[:used] and all(child == -1 for child in got[used:])
            for slot, child in enumerate(children):
                if child >= 0:
                    child_level = levels[len(depths) - 1] if depths else level
                    assert child_level.parents[child - below] == row + 1 and child_level.slots[child - below] == slot
            assert all(below <= child < level.nodes.start for child in present)
        below = level.nodes.start
        depths[len(depths)] = below
    assert levels[-1].nodes.stop == batch.node_count
    assert not levels[-1].parents.any() and not levels[-1].slots.any()


@given(st.lists(text_tree, min_size=1, max_size=6))
def test_equal_labels_of_a_level_stand_together(trees: list[Tree]) -> None:
    batch = Forest(trees).batch()
    for level in batch.schedule.levels():
        labels = batch.labels[batch.schedule.order[level.nodes]].tolist()
        assert labels == sorted(labels)


def test_a_chain_beside_a_bush_takes_memory_linear_in_the_nodes() -> None:
    chain = Tree("a")
    for _ in range(5000):
        chain = Tree("f", [chain])
    bush = Tree("f", [Tree("a")] * 5000)
    batch = Forest([chain, bush]).batch()
    # Only the level of the two roots is 5,000 slots wide; the level below has 5,001 nodes and one slot; the rest is the chain.
    assert batch.schedule.flat_children.size == 2 * 5000 + 5001 + 4998
    assert batch.schedule.width == 5000
