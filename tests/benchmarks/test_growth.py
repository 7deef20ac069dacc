import numpy as np
import pytest
from benchmarks.cases import forward_backward
from benchmarks.growth import AXES, LABELS, Sizes, _value, one_node_trees, shapes, wide
from benchmarks.measuring import Options

from treefold import Forest


@pytest.mark.parametrize("axis", AXES)
def test_along_an_axis_one_size_grows_and_the_model_takes_its_trees(axis: str) -> None:
    line = AXES[axis]
    values = [_value(sizes, axis) for sizes in line]
    assert values == sorted(set(values))
    forest = line[0].forest()
    encoder = line[0].encoder()
    forward_backward(encoder, forest)
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    counted = {"nodes": forest.node_count, "depth": forest.depth, "arity": forest.arity}
    assert values[0] == counted.get(axis, values[0])


@pytest.mark.parametrize("axis", ["depth", "arity"])
def test_the_number_of_nodes_hardly_moves_along_the_other_axes(axis: str) -> None:
    nodes = [sizes.trees * (sizes.depth * sizes.arity + 1) for sizes in AXES[axis]]
    assert max(nodes) <= 1.15 * min(nodes)


def test_shapes_are_what_they_are_called_and_have_finite_gradients() -> None:
    found = {name: job() for name, job in shapes(Options(quick=True)).items() if name != "large batch"}
    shape = {
        name: (values["trees"], values["nodes"], values["depth"], values["arity"]) for name, values in found.items()
    }
    assert shape == {
        "chain": (1, 10_000, 9_999, 1),
        "wide": (1, 10_000, 1, 9_999),
        "one-node trees": (10_000, 10_000, 0, 0),
        "arity 200": (1, 25 * 200 + 1, 25, 200),
    }
    assert all(values["finite"] for values in found.values())


def test_wide_trees_and_single_nodes_have_all_labels() -> None:
    for forest in (Forest([wide(50)]), one_node_trees(50)):
        assert {forest.vocabulary[code] for code in np.unique(forest.labels)} == set(LABELS)


def test_the_leaves_of_a_spine_are_drawn() -> None:
    first, second = Sizes(trees=2, depth=9).forest()
    assert first != second
