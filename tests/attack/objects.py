"""Attack on conversions: nested values, parent arrays, Newick and graphs. An input is JSON: the conversion, its arguments."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import networkx  # type: ignore[import-untyped]

from tests.attack.case import PIECES, Target, changed_once, mutated, mutated_json, require
from treefold import Tree, as_tree
from treefold.errors import TreefoldError

_NEWICK: Final = ("(chimp:6,human:6)ape;", "((a,b:1e-3)'c d':2[note],,(e)f);", "('it''s':0.5,b)[&x=1]r:0;")
_NESTED: Final = (
    ["f", "a", ["g", 1, None]],
    {"label": "f", "children": [{"label": "a"}, {"name": "b", "children": []}, None]},
    {"word": "eats", "below": [{"word": "dog", "rel": "nsubj"}, {"word": "fish", "rel": 3}]},
    ["f", ["g", ["h", ["i"]]], "a", "b"],
)


def _graph(nodes: Any, edges: Any, **more: Any) -> Tree:
    graph = networkx.DiGraph()
    try:
        graph.add_nodes_from((number, {"label": label}) for number, label in enumerate(nodes))
        graph.add_edges_from((parent, child, {"order": order, "rel": rel}) for parent, child, order, rel in edges)
    except (TypeError, ValueError, networkx.NetworkXException) as problem:  # no such graph
        raise TreefoldError(str(problem)) from None
    return Tree.from_networkx(graph, **more)


def _pyg(x: Any, edge_index: Any, rel: Any, slot: Any, **more: Any) -> Tree:
    return Tree.from_pyg(SimpleNamespace(x=x, edge_index=edge_index, rel=rel, slot=slot), **more)


_EDGES: Final = [[0, 1, 1, "a"], [0, 2, 0, "b"], [1, 3, 0.5, "c"]]
_LISTS: Final = {"labels": ["the", "dog", "eats"], "parents": [1, 2, -1]}
_PYG: Final = {"x": [0, 1, 1, 2], "edge_index": [[1, 2, 3], [0, 0, 1]], "rel": ["a", "b", "c"], "slot": [0, 1, 0, 0]}
# Each conversion, and right arguments for it.
_WAYS: Final[dict[str, tuple[Callable[..., Tree], list[dict[str, Any]]]]] = {
    "newick": (Tree.from_newick, [{"text": text, "edges": edges} for text in _NEWICK for edges in (False, True)]),
    "nested": (
        Tree.from_nested,
        [
            *({"nested": value} for value in _NESTED),
            {"nested": _NESTED[2], "label": "word", "children": "below", "edge": "rel"},
        ],
    ),
    "any": (as_tree, [{"value": value} for value in _NESTED]),
    "parents": (
        Tree.from_parents,
        [_LISTS, {**_LISTS, "parents": [2, 3, 0], "edges": ["det", "nsubj", "root"], "start": 1}],
    ),
    "graph": (
        _graph,
        [
            {"nodes": ["f", "a", "b", "c"], "edges": _EDGES},
            {"nodes": [None] * 4, "edges": _EDGES, "label": "x", "order": "order", "edge": "rel"},
        ],
    ),
    "pyg": (_pyg, [_PYG, {**_PYG, "names": ["f", "a", "b"], "edge": "rel"}]),
}


def _make(random: random.Random) -> bytes:
    way = random.choice(list(_WAYS))
    arguments = random.choice(_WAYS[way][1])
    if way == "newick" and random.random() < 0.9:
        text = mutated(random, arguments["text"].encode(), tuple(text.encode() for text in _NEWICK))
        if random.random() < 0.1:
            text = random.choice((b"(", b"[", b"'", b"(,", *PIECES)) * random.choice((30, 3000)) + text
        return _packed(way, {**arguments, "text": text.decode(errors="surrogateescape")})
    name = random.choice(list(arguments))
    return _packed(way, {**arguments, name: mutated_json(random, arguments[name])})


def _every() -> Iterator[bytes]:
    for way, (_, right) in _WAYS.items():
        for arguments in right:
            for name, value in arguments.items():
                for changed in changed_once(value):
                    yield _packed(way, {**arguments, name: changed})


def _packed(way: str, arguments: dict[str, Any]) -> bytes:
    return json.dumps([way, arguments]).encode()


def _run(data: bytes, folder: Path) -> None:
    way, arguments = json.loads(data)
    tree = _WAYS[way][0](**arguments)
    require(isinstance(tree, Tree), "no tree")
    require(Tree.parse(str(tree)) == tree, "the tree as text is another tree")
    again: list[Callable[[], Tree]] = [
        lambda: Tree.from_nested(tree.to_nested(form="dict")),
        lambda: Tree.from_nested(tree.to_nested(form="list")),
    ]
    whole = all(child is not None for node in tree.preorder() for child in node.children)
    if whole:  # these leave out absent children
        again += [
            lambda: Tree.from_parents(*tree.to_parents()),
            lambda: Tree.from_newick(tree.to_newick()),
            lambda: Tree.from_newick(tree.to_newick(edges=True), edges=True),
            lambda: Tree.from_networkx(tree.to_networkx()),
            lambda: Tree.from_nltk(tree.to_nltk()),
        ]
    for number, convert in enumerate(again):
        try:
            found = convert()
        except TreefoldError:
            continue  # what a format cannot hold is refused
        require(found == tree, f"another tree after conversion {number}: {str(found)[:100]!r}")


TARGETS: Final = [Target("object", _make, _run, _every)]
