"""Estimators take nested lists, columns of pandas and the trees of other packages."""

import ast
from typing import Any

import networkx  # type: ignore[import-untyped]
import nltk  # type: ignore[import-untyped]
import numpy as np
import pandas  # type: ignore[import-untyped]
import pytest
from lxml import etree  # type: ignore[import-untyped]

from tests.data.test_objects import OBJECTS, TREE
from tests.estimators.tasks import FAST, trees
from treefold import Tree, TreeClassifier
from treefold.errors import TreeError
from treefold.estimators.inputs import forest_of, forest_of_pairs

TREES = trees(20)
Y = ["even" if tree.size % 2 == 0 else "odd" for tree in TREES]


def test_objects_of_any_kind_are_examples() -> None:
    assert list(forest_of(OBJECTS, "TreeClassifier")) == [TREE] * len(OBJECTS)
    assert list(forest_of(["f", "a"], "TreeClassifier")) == [Tree("f"), Tree("a")]  # two examples, not a nested list
    pairs = list(zip(OBJECTS, reversed(OBJECTS), strict=True))
    assert list(forest_of_pairs(pairs, "TreePairClassifier")) == [TREE] * (2 * len(OBJECTS))
    nested, model = [tree.to_nested() for tree in TREES], TreeClassifier(**FAST).fit(TREES, Y)
    assert np.array_equal(model.predict_proba(nested), model.predict_proba(TREES))


def test_columns_and_frames_of_pandas_are_examples() -> None:
    texts = ["(f a)", "b", "(g (f b))"]
    expected = [Tree.parse(text) for text in texts]
    mixed = pandas.Series([texts[0], expected[1], ["g", ["f", "b"]]], index=[7, 7, 9])
    for column in (pandas.Series(texts), pandas.Series(expected), mixed):
        assert list(forest_of(column, "TreeClassifier")) == expected
        assert list(forest_of(pandas.DataFrame({"attrib": column}), "TreeClassifier")) == expected
        frame = pandas.DataFrame({"left": column, "right": list(reversed(expected))})
        assert list(forest_of_pairs(frame, "TreePairClassifier"))[::2] == expected
        assert list(forest_of_pairs(frame, "TreePairClassifier"))[5] == expected[0]
    with pytest.raises(
        TreeError, match=r"sequence of trees, got a frame with 2 columns; choose one of them, frame\[\[…\]\]"
    ):
        forest_of(frame, "TreeClassifier")
    with pytest.raises(TreeError, match="sequence of pairs of trees, got a frame with 1 columns; choose two of them"):
        forest_of_pairs(frame[["left"]], "TreePairClassifier")
    with pytest.raises(
        TreeError, match="tree 1: expected a tree, got the missing value nan; drop the row, or fill it in"
    ):
        forest_of(pandas.Series(["(f a)", None]), "TreeClassifier")
    with pytest.raises(TreeError, match="pair 1: expected a tree, got the missing value None"):
        forest_of_pairs([("a", "b"), ("a", None)], "TreePairClassifier")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (nltk.Tree("f", ["a", "b"]), "NLTK tree"),
        (etree.fromstring("<f><a/><b/></f>"), "element"),
        (networkx.DiGraph([("f", "a")]), "graph"),
        (ast.parse("x"), "syntax tree"),
    ],
)
def test_a_single_object_is_no_sequence(given: Any, kind: str) -> None:
    with pytest.raises(TreeError, match=rf"expects a sequence of trees, got a single {kind}; write \[it\]"):
        forest_of(given, "TreeClassifier")
    with pytest.raises(TreeError, match="pair 0: expected two trees, got"):
        forest_of_pairs([given], "TreePairClassifier")


def test_a_bad_object_is_named_by_its_place() -> None:
    with pytest.raises(TreeError, match=r"tree 1: Tree.from_networkx expects a tree, got a cycle"):
        forest_of(["a", networkx.DiGraph([(1, 2), (2, 1)])], "TreeClassifier")
    with pytest.raises(TreeError, match="tree 1: child 0 of node 'f': a label is text"):
        forest_of(["a", ["f", 0.5]], "TreeClassifier")
    with pytest.raises(TreeError, match="tree 0: line 1, column 4: expected"):
        forest_of(["(a b);"], "TreeClassifier")


def test_estimators_learn_from_objects_and_model_selection_splits_them() -> None:
    from sklearn.model_selection import cross_val_score  # type: ignore[import-untyped]

    frame = pandas.DataFrame({"tree": [tree.to_nltk() for tree in TREES]})
    for X in (frame, frame["tree"], frame["tree"].tolist(), [tree.to_nested() for tree in TREES]):
        assert len(cross_val_score(TreeClassifier(**FAST), X, Y, cv=2)) == 2
