"""`as_tree` takes every object that is a tree."""

import ast
from typing import Any
from xml.etree import ElementTree

import networkx  # type: ignore[import-untyped]
import nltk  # type: ignore[import-untyped]
import pandas  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from lxml import etree, html, objectify  # type: ignore[import-untyped]

from tests.strategies import text_tree
from tests.trees.test_objects import CHAIN, Data, present
from treefold import Tree, as_tree, from_ast, from_element, to_element
from treefold.errors import ParseError, TreeError

TREE = Tree.parse("(f a (g b))")
OBJECTS: list[Any] = [
    TREE,
    "(f a (g b))",
    " (a,(b)g)f; ",
    ["f", "a", ["g", "b"]],
    ("f", "a", ("g", "b")),
    {"name": "f", "children": [{"name": "a"}, {"name": "g", "children": ["b"]}]},
    nltk.Tree.fromstring("(f a (g b))"),
    nltk.ImmutableTree("f", ["a", nltk.ImmutableTree("g", ["b"])]),
    networkx.DiGraph([("f", "a"), ("f", "g"), ("g", "b")]),
    ElementTree.fromstring("<f><!-- comment --><a/><g><b/></g></f>"),
    ElementTree.ElementTree(ElementTree.fromstring("<f><a/><g><b/></g></f>")),
    etree.fromstring("<f><!-- comment --><a/><?php x?><g><b/></g></f>"),
    etree.ElementTree(etree.fromstring("<f><a/><g><b/></g></f>")),
    html.fragment_fromstring("<f><a></a><g><b></b></g></f>"),
    objectify.fromstring("<f><a/><g><b/></g></f>"),
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_every_object_is_the_same_tree(value: Any) -> None:
    assert as_tree(value) == TREE


def test_syntax_trees_and_graphs_of_pyg_are_trees() -> None:
    assert as_tree(ast.parse("f(x)", mode="eval").body) == Tree.parse("(Call (Name f Load) (Name x Load))")
    assert from_ast(ast.parse("f(x)", mode="eval").body, names=False) == Tree.parse("(Call (Name Load) (Name Load))")
    assert as_tree(Data(x=[1, 0], edge_index=[[1], [0]])) == Tree.parse("(1 0)")


@given(text_tree)
def test_elements_give_back_the_tree(tree: Tree) -> None:
    assert from_element(to_element(tree)) == present(tree)


def test_elements_hold_a_chain_of_a_hundred_thousand_nodes() -> None:
    assert from_element(to_element(CHAIN)) == CHAIN


def test_elements_have_attributes_and_text_where_asked() -> None:
    element = etree.fromstring("<p id='x'>one<!-- comment --><b>two</b></p>")
    assert from_element(element, attributes=True, text=True) == Tree.parse("(p (@id x) one (b two))")
    with pytest.raises(TreeError, match="expected an element with a tag, got _Comment; give the root of the document"):
        from_element(etree.Comment("x"))
    with pytest.raises(TreeError, match=r"expected a node of ast, got str; parse source text with ast.parse\(text\)"):
        from_ast("x = 1")  # type: ignore[arg-type]
    with pytest.raises(TreeError, match=r"to_element expects labels that are text, got the vector \(1.0,\)"):
        to_element(Tree([1.0]))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "expected a tree, got the missing value None; drop the row, or fill it in"),
        (float("nan"), "expected a tree, got the missing value nan"),
        (pandas.NA, "expected a tree, got the missing value <NA>"),
        (7, "expected a Tree, an s-expression, .* got int 7; build it with Tree"),
        ({1, 2}, "got set {1, 2}"),
        ([], "expected a label in the first place"),
        (networkx.DiGraph([(1, 2), (2, 1)]), "got a cycle"),
    ],
)
def test_what_is_no_tree_is_refused(value: object, message: str) -> None:
    with pytest.raises(TreeError, match=message):
        as_tree(value)


def test_text_is_newick_only_in_brackets_with_a_semicolon() -> None:
    assert as_tree("a;") == Tree("a;")
    with pytest.raises(ParseError, match="expected ',', '\\)' or ';' after a node, got 'b'"):
        as_tree("(a b);")
