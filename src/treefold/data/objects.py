"""One door for all objects that are trees: `as_tree` recognises them, and estimators take them through it.

Objects that `Tree` has a method for, such as nested lists and graphs, are converted in `trees.objects`; syntax trees and
elements of documents by their readers.
"""

import ast
from collections.abc import Callable, Mapping
from reprlib import repr as shortened
from typing import Any, Final
from xml.etree.ElementTree import Element

from treefold.data.readers.code import ast_tree as from_ast
from treefold.data.readers.markup import element_tree as from_element
from treefold.errors import TreeError
from treefold.trees.objects import fold, is_nltk
from treefold.trees.tree import Tree

KINDS: Final[list[tuple[str, Callable[[Any], bool], Callable[[Any], Tree]]]] = [
    ("NLTK tree", is_nltk, Tree.from_nltk),
    ("syntax tree", lambda value: isinstance(value, ast.AST), from_ast),
    ("element", lambda value: hasattr(value, "attrib") or hasattr(value, "getroot"), from_element),
    ("graph", lambda value: hasattr(value, "is_directed") and hasattr(value, "adj"), Tree.from_networkx),
    ("PyG Data", lambda value: hasattr(type(value), "edge_index"), Tree.from_pyg),
]
"""Objects of other packages: their name, how they are recognised, how they become a tree."""


def kind_of(value: object) -> str | None:
    """Return the name of the kind of an object of another package that is one tree, None for anything else.

    >>> kind_of(ast.parse("x")), kind_of(["f", "a"])
    ('syntax tree', None)
    """
    if type(value) in (list, tuple, dict):
        return None
    return next((name for name, recognises, _ in KINDS if recognises(value)), None)


def as_tree(value: Any) -> Tree:
    """Turn an object into a tree.

    It may be a tree, an s-expression, Newick text in brackets that ends with a semicolon, a nested list, tuple or dict, an NLTK
    tree, a networkx ``DiGraph``, a PyG ``Data``, a node of ``ast``, or an element of ElementTree or lxml. `Tree.from_nested`,
    `from_ast` and others do the same with options.

    >>> print(as_tree("(f a)"), as_tree("(a,b)f;"), as_tree(["f", "a"]), as_tree({"name": "f", "children": [{"name": "a"}]}))
    (f a) (f a b) (f a) (f a)
    >>> print(as_tree(ast.parse("x", mode="eval")), as_tree(Element("p")))
    (Expression (Name x Load)) p
    """
    if isinstance(value, Tree):
        return value
    if isinstance(value, str):
        text = value.strip()
        return Tree.from_newick(value) if text.endswith(";") and text.startswith("(") else Tree.parse(value)
    kind = kind_of(value)
    if kind is not None:
        return next(convert for name, _, convert in KINDS if name == kind)(value)
    if isinstance(value, (list, tuple, Mapping)):
        return Tree.from_nested(value)
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        raise TreeError(f"expected a tree, got the missing value {value}; drop the row, or fill it in.")
    raise TreeError(
        f"expected a Tree, an s-expression, a nested list or dict, an NLTK tree, a DiGraph, an ast node or an element, "
        f"got {type(value).__name__} {shortened(value)}; build it with Tree(label, children)."
    )


def to_element(tree: Tree) -> Element:
    """Turn a tree into an element of the standard ElementTree, labels into tags; absent children are left out.

    >>> from xml.etree.ElementTree import tostring
    >>> tostring(to_element(Tree.parse("(p (b i) b)")))
    b'<p><b><i /></b><b /></p>'
    """

    def make(node: Tree, below: list[Element | None]) -> Element:
        if not isinstance(node.label, str):
            raise TreeError(
                f"to_element expects labels that are text, got the vector {shortened(node.label)}; use Tree.map first."
            )
        element = Element(node.label)
        element.extend(child for child in below if child is not None)
        return element

    made: Element = fold(tree, make)
    return made


__all__ = ["KINDS", "as_tree", "from_ast", "from_element", "kind_of", "to_element"]
