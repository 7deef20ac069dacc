import zlib
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import text_tree
from treefold import Embedding, Forest, Numeric, OneHot, Thermometer, Tree, Vocabulary
from treefold.errors import ConfigurationError, ShapeError
from treefold.nn.labels import Features, edge_name, frequent_labels, label_name
from treefold.trees.objects import split_edge

NO_VECTORS = torch.zeros(0, 0)


def test_the_digit_two_of_ten_is_the_paper_s_thermometer_vector() -> None:
    labels = Thermometer([str(digit) for digit in range(10)])
    assert labels(torch.tensor([2]), NO_VECTORS).tolist() == [[1, 1, 1, 0, 0, 0, 0, 0, 0, 0]]
    assert labels.size == 10


def test_one_hot_has_its_one_at_the_label_s_place() -> None:
    assert OneHot("abcdef")(torch.tensor([5, 0]), NO_VECTORS).tolist() == [[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]]


def test_an_embedding_learns_or_starts_from_given_vectors() -> None:
    vectors = np.arange(6.0).reshape(2, 3)
    labels = Embedding(["a", "b"], vectors=vectors)
    assert labels(torch.tensor([1]), NO_VECTORS).tolist() == [[3, 4, 5]] and labels.size == 3
    labels(torch.tensor([1]), NO_VECTORS).sum().backward()
    assert labels.table.grad is not None and labels.table.grad.tolist() == [[0, 0, 0], [1, 1, 1]]
    with pytest.raises(ShapeError, match=r"a vector for each of 3 labels, got the shape \(2, 3\)"):
        Embedding("abc", vectors=vectors)
    with pytest.raises(
        ShapeError, match="expects finite numbers, got NaN or infinity in the vector of 'b'; replace it"
    ):
        Embedding("ab", vectors=[[1.0, 2.0], [float("nan"), 0.0]])
    with pytest.raises(ConfigurationError, match="either a size or given vectors, got both or none"):
        Embedding("ab")
    with pytest.raises(ConfigurationError, match="Embedding expects size to be an integer >= 1, got 0"):
        Embedding("ab", 0)


def test_numeric_takes_the_rows_that_the_codes_name() -> None:
    assert Numeric(2)(torch.tensor([-1, -3]), torch.arange(6.0).view(3, 2)).tolist() == [[0, 1], [4, 5]]


def test_no_labels_at_all_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"OneHot expects at least one label, got none; take them from forest.vocabulary"
    ):
        OneHot([])


# Labels without a row of their own --------------------------------------------------------------------------------------


def test_unknown_labels_have_a_row_of_zeros_unless_there_is_one_for_them() -> None:
    for labels in (OneHot("abc"), Thermometer("abc"), Embedding("abc", 5), Features("abc", 5)):
        assert labels.unknown_code == 3
        assert not labels(torch.tensor([3]), NO_VECTORS).any() and labels(torch.tensor([2]), NO_VECTORS).any()
    labels = Embedding(["<unk>", "a", "b"], 5)
    assert labels.unknown_code == 0 and not labels.table[0].any() and labels.table[1].any()
    labels(torch.tensor([0]), NO_VECTORS).sum().backward()
    assert labels.table.grad is not None and labels.table.grad[0].tolist() == [1.0] * 5
    assert Numeric(2)(torch.tensor([0, -1]), torch.tensor([[1.0, 2.0]])).tolist() == [[0, 0], [1, 2]]


def test_frozen_rows_are_no_parameters_and_are_saved() -> None:
    vectors = np.arange(8.0).reshape(4, 2)
    labels = Embedding("abcd", vectors=vectors, frozen=3)
    found = labels(torch.tensor([3, 0, 4, 1]), NO_VECTORS)
    assert found.tolist() == [[6, 7], [0, 1], [0, 0], [2, 3]]
    found.sum().backward()
    assert labels.table.grad is not None and labels.table.grad.tolist() == [[1, 1]]
    assert [parameter.shape for parameter in labels.parameters()] == [(1, 2)]
    assert {name: tuple(value.shape) for name, value in labels.state_dict().items()} == {
        "table": (1, 2),
        "frozen": (4, 2),
    }
    whole = Embedding("abcd", vectors=vectors, frozen=4)
    assert whole(torch.tensor([2, 4]), NO_VECTORS).tolist() == [[4, 5], [0, 0]]
    assert list(Embedding("ab", 3).state_dict()) == ["table"]  # as in older files
    with pytest.raises(
        ConfigurationError, match="Embedding expects frozen to be at most 2, the number of labels, got 3"
    ):
        Embedding("ab", 3, frozen=3)


def vector_by_hand(labels: Features, text: str, *, dropped: bool = False) -> torch.Tensor:
    """The vector of a label, from the definition."""
    whole = torch.cat([labels.table[: labels.learnt], labels.frozen[:-1]])
    rows = dict(zip(labels.names, whole, strict=True))
    zero = torch.zeros(labels.size, dtype=whole.dtype)
    total, label = zero, text
    if labels.edges and ":" in text and not text.startswith(":"):
        edge, label = text.split(":", 1)
        total = total + rows.get(edge + ":", rows.get("<unk>:", zero))
    name = label if not labels.edges or label == ":" or label[-1:] != ":" else ":" + label
    total = total + (rows.get("<unk>", zero) if dropped else rows.get(name, rows.get("<unk>", zero)))
    padded = "<" + label + ">"
    found = [padded[a:b] for a in range(len(padded)) for b in range(a + 3, min(a + 5, len(padded)) + 1)]
    if labels.ngrams and found:
        places = [labels.learnt + zlib.crc32(gram.encode()) % 8192 for gram in found]
        total = total + labels.table[places].sum(0) / len(found) ** 0.5
    assert isinstance(total, torch.Tensor)
    return total


texts = st.text(alphabet="ab:<>é", max_size=7)


@given(st.lists(texts, min_size=1, max_size=6), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2))
def test_a_label_is_the_sum_of_its_features(
    labels: list[str], edges: bool, ngrams: bool, dropped: bool, frozen: int
) -> None:
    torch.manual_seed(0)
    names = ["<unk>", "<unk>:", "a", "b", "ab", "a:", ":a:", ":"] if edges else ["<unk>", "a", "b:", ":"]
    encoder = Features(names, 3, edges=edges, ngrams=ngrams, frozen=frozen).double()
    encoder.table.data.normal_()  # also the rows of unknown labels
    bags = encoder.bags(labels, dropped=dropped)
    codes = torch.tensor([*range(len(labels)), 0])
    found = encoder(codes, NO_VECTORS, bags)
    expected = torch.stack([vector_by_hand(encoder, labels[code], dropped=dropped) for code in codes.tolist()])
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    one = torch.autograd.grad((found * weights).sum(), encoder.table)[0]
    other = torch.autograd.grad((expected * weights).sum(), encoder.table)[0]
    torch.testing.assert_close(one, other)


@given(texts, texts)
def test_names_of_edges_and_labels_tell_them_apart(one: str, other: str) -> None:
    edge, label = split_edge(one)
    assert one == (label if edge is None else f"{edge}:{label}") and (edge is None or (edge and ":" not in edge))
    assert (label_name(one) == label_name(other)) == (one == other)
    assert edge is None or edge_name(edge) != label_name(other)


def test_a_label_with_features_is_known_if_its_parts_are() -> None:
    labels = Features(["<unk>", "dog", "<unk>:", "nsubj:"], 3, edges=True)
    assert labels.knows(Vocabulary(["nsubj:dog", "dog", "nsubj:cat", "obj:dog", "nsubj:"])).tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert Features(["dog"], 3, ngrams=True).knows(Vocabulary(["dog", "dogs"])).tolist() == [True, False]


@given(st.lists(text_tree, min_size=1, max_size=5), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_frequent_labels_are_in_so_many_trees(trees: list[Tree], least: int, most: int, edges: bool) -> None:
    trees = [tree.map(lambda label: "f:x" if label == "f" else label) for tree in trees]
    counts: Counter[str] = Counter()
    for tree in trees:
        found = set()
        for node in tree.preorder():
            edge, label = split_edge(str(node.label)) if edges else (None, str(node.label))
            found |= {label_name(label) if edges else label} | ({f"{edge}:"} if edge else set())
        counts.update(found)
    expected = sorted(name for name, count in counts.items() if count >= least)
    forest = Forest([*trees, Tree("of another forest")])[: len(trees)]
    assert frequent_labels(forest, least, edges=edges) == expected
    few = frequent_labels(forest, least, most, edges=edges)
    assert len(few) == min(most, len(expected)) and few == sorted(few) and set(few) <= set(expected)
    others = [counts[name] for name in expected if name not in few]
    assert max(others, default=0) <= min((counts[name] for name in few), default=0)
