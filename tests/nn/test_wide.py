from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import text_tree
from treefold import Forest, Tree
from treefold.errors import ConfigurationError
from treefold.nn import wide as module
from treefold.nn.wide import KINDS, Wide, feature_counts, label_hashes, occurrences
from treefold.trees.batch import Ints

numeric_tree = st.recursive(
    st.builds(Tree, st.sampled_from(["a", "b", "(vector)", [1.0], [2.0]])),
    lambda smaller: st.builds(Tree, st.sampled_from(["f", "a", [3.0]]), st.lists(st.none() | smaller, max_size=4)),
    max_leaves=12,
)


def name(tree: Tree) -> object:
    return tree.label if isinstance(tree.label, str) else ("any vector",)


def counted(tree: Tree, side: int = 0) -> Counter[object]:
    """The features of a tree, found by walking it."""
    found: Counter[object] = Counter({(side, "child", None, name(tree)): 1})
    for node in tree.preorder():
        found[side, "label", name(node)] += 1
        children = [child for child in node.children if child is not None]
        for child in children:
            found[side, "child", name(node), name(child)] += 1
        for left, right in pairwise(children):
            found[side, "sibling", name(left), name(right)] += 1
    return found


def filled(forest: Forest, trees: Ints, outputs: int = 3, kinds: tuple[str, ...] = KINDS, sides: int = 1) -> Wide:
    """A linear part that knows the features of some trees, with weights of no meaning."""
    keys = np.unique(occurrences(forest, trees, kinds, sides=sides).keys)
    wide, made = Wide(len(keys), outputs, kinds, sides=sides), torch.Generator().manual_seed(3)
    wide.keys.copy_(torch.from_numpy(keys))
    wide.scale.copy_(torch.rand(len(keys), generator=made) + 0.5)
    wide.weights.copy_(torch.randn(len(keys), outputs, generator=made))
    wide.bias.copy_(torch.randn(outputs, generator=made))
    return wide


@given(st.lists(text_tree | numeric_tree, min_size=1, max_size=4))
def test_features_are_those_found_by_walking_the_trees(trees: list[Tree]) -> None:
    forest = Forest(trees)
    found = occurrences(forest, np.arange(len(trees)))
    expected = [counted(tree) for tree in trees]
    for example, counts in enumerate(expected):
        own = Counter(found.keys[found.examples == example].tolist())
        assert sorted(own.values()) == sorted(counts.values())
    assert len({*found.keys.tolist()}) == len({feature for counts in expected for feature in counts})


@given(st.lists(text_tree, min_size=2, max_size=2), st.lists(text_tree, min_size=2, max_size=2))
def test_left_and_right_trees_have_features_of_their_own(left: list[Tree], right: list[Tree]) -> None:
    forest = Forest([*left, *right])  # the pairs (0, 2) and (1, 3)
    keys = np.unique(occurrences(forest, np.arange(4), sides=2).keys)
    counts = feature_counts(forest, np.arange(4), keys, KINDS, sides=2)
    for pair in range(2):
        expected = counted(left[pair], 0) + counted(right[pair], 1)
        assert sorted(counts.values[counts.rows == pair].tolist()) == sorted(expected.values())


@given(st.lists(text_tree, min_size=1, max_size=5))
def test_keys_depend_on_the_texts_alone(trees: list[Tree]) -> None:
    alone = occurrences(Forest(trees), np.arange(len(trees))).keys
    among = occurrences(Forest(["(x y)", *trees]), np.arange(1, len(trees) + 1)).keys
    assert (alone == among).all()


def test_hashes_are_the_same_in_every_process() -> None:
    # echo -n f | b2sum -l 64
    assert label_hashes(Forest(["f"]).vocabulary)[0].tobytes().hex() == "2e960c8fb6398edb"


def test_counting_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    forest = Forest(["(f a (g b a))", "a", "(f a a a)", "(g (g (g a)))"])
    keys = np.unique(occurrences(forest, np.arange(4)).keys)
    for sides in (1, 2):
        monkeypatch.setattr(module, "_CHUNK", 2**20)
        whole = feature_counts(forest, np.array([3, 0, 1, 2]), keys, KINDS, sides=sides)
        monkeypatch.setattr(module, "_CHUNK", 3)
        parts = feature_counts(forest, np.array([3, 0, 1, 2]), keys, KINDS, sides=sides)
        assert all(np.array_equal(getattr(whole, name), getattr(parts, name)) for name in whole._fields) and len(
            whole.rows
        )


@given(st.lists(text_tree, min_size=1, max_size=4))
def test_scores_are_the_products_of_the_values_in_the_docstring(trees: list[Tree]) -> None:
    forest = Forest(trees)
    wide = filled(forest, np.arange(len(trees)))
    found = occurrences(forest, np.arange(len(trees)))
    for example, scores in enumerate(wide.scores(forest, np.arange(len(trees)))):
        counts = Counter(found.keys[found.examples == example].tolist())
        columns = [wide.keys.tolist().index(key) for key in counts]
        values = torch.log1p(torch.tensor([*counts.values()], dtype=torch.float64)) * wide.scale[columns]
        expected = (values / values.norm()) @ wide.weights[columns].double() + wide.bias
        torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-5)


@given(text_tree)
def test_contributions_and_bias_add_up_to_the_score(tree: Tree) -> None:
    forest = Forest([tree])
    wide = filled(Forest(["(f 1 (g two))", tree]), np.arange(1, 2))
    shares = wide.contributions(tree, 1)
    total = sum(share for _, share in shares) + float(wide.bias[1])
    assert total == pytest.approx(float(wide.scores(forest, np.array([0]))[0, 1]), abs=1e-4)
    assert [share for _, share in shares] == sorted((share for _, share in shares), reverse=True)
    assert len(shares) == len(counted(tree))


def test_contributions_are_named_after_the_labels_of_the_tree() -> None:
    tree = Tree.parse("(f a _ [1 2])")
    names = [text for text, _ in filled(Forest([tree]), np.array([0])).contributions(tree, 0)]
    assert sorted(names) == ["(vector)", "a", "a, (vector)", "f", "f > (vector)", "f > a", "f at the root"]
    pair = Forest(["(f a)", "a"])
    names = [text for text, _ in filled(pair, np.arange(2), sides=2).contributions(pair, 0)]
    expected = ["left: a", "left: f", "left: f > a", "left: f at the root", "right: a", "right: a at the root"]
    assert sorted(names) == expected


def test_labels_that_training_has_not_seen_match_nothing() -> None:
    wide = filled(Forest(["(f a)"]), np.array([0]))
    scores = wide.scores(Forest(["(x y)", "(f a)", "(x a)"]), np.arange(3))
    assert torch.equal(scores[0], wide.bias) and not torch.equal(scores[1], wide.bias)
    assert [text for text, _ in wide.contributions(Tree.parse("(x a)"), 0)] == ["a"]


def test_all_vector_labels_are_one_label_and_no_text_is() -> None:
    wide = filled(Forest(["(f [1 2])"]), np.array([0]))
    scores = wide.scores(Forest(["(f [1 2])", "(f [3 4])", '(f "[1 2]")']), np.arange(3))
    assert torch.equal(scores[0], scores[1]) and not torch.equal(scores[0], scores[2])


def test_without_features_or_trees_there_is_the_bias_or_nothing() -> None:
    empty = Wide(features=0, outputs=2)
    empty.bias.copy_(torch.tensor([1.0, 2.0]))
    assert empty.scores(Forest(["a", "b"]), np.arange(2)).tolist() == [[1.0, 2.0]] * 2
    assert empty.contributions(Tree("a"), 0) == []
    for wide in (empty, filled(Forest(["a"]), np.array([0]), 2)):
        assert wide.scores(Forest(["a"]), np.zeros(0, np.int64)).shape == (0, 2)


def test_the_answer_mixes_both_parts_and_gradients_reach_the_network_alone() -> None:
    forest = Forest(["(f a)", "b"])
    wide = filled(forest, np.arange(2))
    wide.mix.copy_(torch.tensor([0.25, 2.0]))
    outputs = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    answer = wide(outputs, forest, np.arange(2))
    torch.testing.assert_close(answer, 0.25 * outputs + 2 * wide.scores(forest, np.arange(2)).double())
    answer.sum().backward()
    assert outputs.grad is not None and (outputs.grad == 0.25).all() and not [*wide.parameters()]


def test_a_part_made_from_its_sizes_takes_a_saved_state() -> None:
    forest = Forest(["(f a)", "b"])
    saved = filled(forest, np.arange(2), kinds=("label", "child"))
    other = Wide(len(saved.keys), len(saved.bias), saved.kinds)
    other.load_state_dict(saved.state_dict())
    assert torch.equal(other.scores(forest, np.arange(2)), saved.scores(forest, np.arange(2)))


def test_in_double_precision_scores_are_double() -> None:
    forest = Forest(["(f a)", "b"])
    wide = filled(forest, np.arange(2))
    single = wide.scores(forest, np.arange(2))
    double = wide.double().scores(forest, np.arange(2))
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single)


def test_a_chain_and_a_node_of_a_hundred_thousand_are_counted() -> None:
    chain = Tree("a")
    for _ in range(100_000):
        chain = Tree("f", [chain])
    forest = Forest([chain, Tree("f", [Tree("a")] * 100_000)])
    keys = np.unique(occurrences(forest, np.arange(2)).keys)
    counts = feature_counts(forest, np.arange(2), keys, KINDS)
    assert sorted(counts.values[counts.rows == 0].tolist()) == [1, 1, 1, 99_999, 100_000]  # f > f, f
    assert sorted(counts.values[counts.rows == 1].tolist()) == [1, 1, 99_999, 100_000, 100_000]  # a, a; f > a; a


def test_wrong_kinds_outputs_and_numbers_of_trees_are_said() -> None:
    with pytest.raises(
        ConfigurationError, match=r"Wide expects kinds to be one of .*, got 'labels' \(nearest known: 'label'\)"
    ):
        Wide(1, 2, ["labels"])
    wide = filled(Forest(["a"]), np.array([0]))
    with pytest.raises(ConfigurationError, match="expected the number of one of 3 outputs, got 3"):
        wide.contributions(Tree("a"), 3)
    with pytest.raises(ConfigurationError, match="contributions are those of one example, of 1 trees, got 2 trees"):
        wide.contributions(Forest(["a", "b"]), 0)
