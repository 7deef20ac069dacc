"""Trees from nested objects, parent arrays, Newick, NLTK, networkx and PyTorch Geometric, and back."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import networkx  # type: ignore[import-untyped]
import nltk  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import any_tree, text_tree
from treefold import Forest, Tree
from treefold.errors import ConfigurationError, ParseError, TreeError, TreefoldError

NODES = 100_000
CHAIN = Tree.from_parents(["a"] * NODES, range(-1, NODES - 1))


def present(tree: Tree) -> Tree:
    """Return the tree without its absent children, by recursion."""
    return Tree(tree.label, [present(child) for child in tree.children if child is not None])


def plain(tree: Tree | None) -> Any:
    """Return nested lists, by recursion; a vector leaf stands in a list of its own."""
    if tree is None:
        return None
    if not tree.children and isinstance(tree.label, str):
        return tree.label
    return [tree.label if isinstance(tree.label, str) else list(tree.label), *map(plain, tree.children)]


def plain_dict(tree: Tree | None) -> Any:
    if tree is None:
        return None
    label = tree.label if isinstance(tree.label, str) else list(tree.label)
    return {"label": label} | ({"children": list(map(plain_dict, tree.children))} if tree.children else {})


def test_a_chain_of_a_hundred_thousand_nodes_goes_through_every_object() -> None:
    assert (CHAIN.size, CHAIN.depth) == (NODES, NODES - 1)
    for form in ("list", "dict"):
        assert Tree.from_nested(CHAIN.to_nested(form=form)) == CHAIN
    assert Tree.from_parents(*CHAIN.to_parents()) == CHAIN
    assert Tree.from_newick(CHAIN.to_newick()) == CHAIN
    assert Tree.from_nltk(CHAIN.to_nltk()) == CHAIN
    assert Tree.from_networkx(CHAIN.to_networkx()) == CHAIN
    numbers = np.arange(NODES)
    data = SimpleNamespace(x=numbers * 0, edge_index=np.array([numbers[1:], numbers[:-1]]))
    assert Tree.from_pyg(data, names=["a"]) == CHAIN


@given(any_tree)
def test_nested_objects_equal_those_of_plain_recursion_and_give_back_the_tree(tree: Tree) -> None:
    assert tree.to_nested() == plain(tree)
    assert tree.to_nested(form="dict") == plain_dict(tree)
    for form in ("list", "tuple", "dict"):
        assert Tree.from_nested(tree.to_nested(form=form)) == tree


def test_nested_objects_may_be_mixed_and_have_their_own_keys() -> None:
    nested = ("f", Tree("a"), [7, np.array([0.5, 1.0]), None], {"name": "g", "children": ("b",)}, np.str_("c"))
    assert str(Tree.from_nested(nested)) == "(f a (7 [0.5 1.0] _) (g b) c)"
    word = {"word": "eats", "deps": [{"word": "dog", "rel": "nsubj"}, {"word": "now", "deps": None}]}
    tree = Tree.from_nested(word, label="word", children="deps", edge="rel")
    assert str(tree) == "(eats nsubj:dog now)"
    del word["deps"][1]["deps"]  # type: ignore[attr-defined]
    assert tree.to_nested(form="dict", label="word", children="deps", edge="rel") == word


LOOP: list[Any] = ["f", ["g"]]
LOOP[1].append(LOOP)


@pytest.mark.parametrize(
    ("nested", "message"),
    [
        (None, "expected a tree, got None; only a child can be absent"),
        ([], r"expected a label in the first place of a list, got nothing; write \[label, child, …\]"),
        (["f", ["g", []]], "^child 0 of node 'g': expected a label in the first place"),
        ([["f", "a"], "b"], r"in the first place of a list, got list \['f', 'a'\]"),
        (
            ["f", "a", 0.5],
            "^child 1 of node 'f': a label is text, a whole number or a vector .* got float 0.5; write '0.5'",
        ),
        (["f", True], "child 0 of node 'f': a label is text, .* got bool True"),
        (["f", b"a"], "child 0 of node 'f': a label is text, .* got bytes b'a'; convert it to text"),
        (
            ["f", [[1.0, float("nan")]]],
            "child 0 of node 'f': a vector label expects finite numbers, got nan at index 1",
        ),
        (LOOP, "^child 0 of node 'g': expected a tree, got an object that contains itself; remove the cycle"),
        ({"id": 1}, "label of a dict under 'label' or 'name' or .* got the keys 'id'; name the key, .*label='…'"),
        ({"label": "f", "children": "ab"}, "expected a list of children under 'children', got str 'ab'"),
        ({"type": "return", "value": {"type": "x"}}, r"children of a dict under 'children', .* children='value'\)"),
        ({"type": "call", "args": [{"type": "x"}]}, r"children of a dict under 'children', .* children='args'\)"),
    ],
)
def test_what_is_no_nested_tree_is_refused(nested: object, message: str) -> None:
    with pytest.raises(TreeError, match=message):
        Tree.from_nested(nested)


def test_the_form_of_nested_objects_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="expects form to be one of 'list', 'tuple', 'dict', got 'lists'"):
        Tree("a").to_nested(form="lists")
    with pytest.raises(TreeError, match=r"under 'text', got the keys 'label'; name the key"):
        Tree.from_nested({"label": "a"}, label="text")


@given(any_tree, st.sampled_from([0, 1]))
def test_parents_come_before_their_children_and_give_back_the_tree(tree: Tree, start: int) -> None:
    labels, parents = tree.to_parents(start=start)
    assert labels == [node.label for node in tree.preorder()]
    assert parents[0] == start - 1 and all(start <= parent < start + row for row, parent in enumerate(parents) if row)
    assert Tree.from_parents(labels, parents, start=start) == present(tree)


@given(st.lists(st.integers(0, 30), max_size=8), st.randoms())
def test_parents_in_any_order_of_nodes_agree_with_plain_recursion(above: list[int], random: Any) -> None:
    parents = [-1] + [parent % (row + 1) for row, parent in enumerate(above)]
    names = list(range(len(parents)))
    random.shuffle(names)  # node `row` is now number names[row]
    shuffled = [0] * len(parents)
    for row, parent in enumerate(parents):
        shuffled[names[row]] = names[parent] if parent >= 0 else -1

    def grow(node: int) -> Tree:
        return Tree(str(node), [grow(child) for child, parent in enumerate(shuffled) if parent == node])

    expected = grow(names[0])
    own = [node if parent < 0 else parent for node, parent in enumerate(shuffled)]
    for given_parents in (shuffled, own, np.array(shuffled), [None if p < 0 else p for p in shuffled]):
        assert Tree.from_parents(np.arange(len(parents)), given_parents) == expected
    assert Tree.from_parents(range(len(parents)), [parent + 1 for parent in shuffled], start=1) == expected


@pytest.mark.parametrize("name", [None, 3, b"x", ["x"]])
def test_names_of_keys_and_attributes_are_text(name: Any) -> None:
    tree, graph = Tree("f", [Tree("a")]), Tree("f", [Tree("a")]).to_networkx()
    data = SimpleNamespace(x=[0, 1], edge_index=[[1], [0]])
    calls: dict[str, list[Any]] = {
        "children": [lambda: Tree.from_nested(["f"], children=name), lambda: tree.to_nested(children=name)],
        "order": [lambda: Tree.from_networkx(graph, order=name), lambda: tree.to_networkx(order=name)],
        "label": [
            lambda: Tree.from_networkx(graph, label=name),
            lambda: tree.to_networkx(label=name),
            lambda: tree.to_nested(label=name),
        ],
    }
    if name is not None:  # None stands for no edges, and for the usual keys of labels
        calls["label"].append(lambda: Tree.from_nested(["f"], label=name))
        calls["edge"] = [
            lambda: Tree.from_nested(["f"], edge=name),
            lambda: tree.to_nested(edge=name),
            lambda: Tree.from_networkx(graph, edge=name),
            lambda: tree.to_networkx(edge=name),
            lambda: Tree.from_pyg(data, edge=name),
        ]
    for argument, each in calls.items():
        for call in each:
            with pytest.raises(
                TreeError, match=f"expects {argument} to be the name of a key or attribute, got .*; write"
            ):
                call()


def test_edges_stand_before_the_labels_of_children() -> None:
    tree = Tree.from_parents(["the", "dog", "eats"], [1, 2, -1], edges=["det", "nsubj", "root"])
    assert tree == Tree("eats", [Tree("nsubj:dog", [Tree("det:the")])])
    assert Tree.from_parents(["a", "b"], [-1, 0], edges=np.array([5, 7])) == Tree("a", [Tree("7:b")])
    assert Tree.from_parents(["a", "b", "c"], [-1, 0, 0], edges=[None, "", None]).to_nested() == ["a", "b", "c"]


def test_arrays_and_tensors_of_vectors_are_labels() -> None:
    expected = Tree((1.0, 2.0), [Tree((3.0, 4.0))])
    for labels in ([[1, 2], [3, 4]], np.array([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])):
        assert Tree.from_parents(labels, torch.tensor([-1, 0])) == expected


@pytest.mark.parametrize(
    ("labels", "parents", "message"),
    [
        ("fab", [-1, -1, 0], "expects labels to be a list or an array, got str 'fab'"),
        (["f", "a"], 3, "expects parents to be a list or an array, got int 3"),
        ([], [], "and at least one node, got 0 labels, 0 parents"),
        (["f", "a"], [-1], "expects a label, a parent for each node, .* got 2 labels, 1 parents"),
        (["f", "a", "g"], [-1, 0, -1], r"expects one root, got 2: nodes 0 \('f'\), 2 \('g'\); give one tree.* start=1"),
        (["f", "a"], [1, 0], r"got a cycle, from child to parent: 0 \('f'\) → 1 \('a'\) → 0 \('f'\); remove one"),
        (["f", "a", "b"], [-1, 2, 1], r"got a cycle, from child to parent: 1 \('a'\) → 2 \('b'\) → 1 \('a'\)"),
        (
            ["f", "a"],
            [-1, 2],
            "node 1: expected the number of its parent, 0 to 1, or -1 at the root, got 2; .* start=1",
        ),
        (["f", "a"], [-1, -2], "node 1: expected the number of its parent, .* got -2"),
        (["f", "a"], [-1, 0.0], "node 1: expected the number of its parent, .* got 0.0; give whole numbers"),
        (["f", None], [-1, 0], r"node 1 \(None\): a label is text, .* got NoneType None; convert it to text"),
        (["f", 0.5], [-1, 0], r"node 1 \(0.5\): a label is text, a whole number or a vector"),
    ],
)
def test_what_is_no_array_of_parents_is_refused(labels: Any, parents: Any, message: str) -> None:
    with pytest.raises(TreeError, match=f"^Tree.from_parents:? ?.*{message}"):
        Tree.from_parents(labels, parents)


def test_edges_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(
        TreeError, match=r"node 1 \('a'\): expected an edge label .* without a colon, .* got 'nsubj:pass'"
    ):
        Tree.from_parents(["f", "a"], [-1, 0], edges=["", "nsubj:pass"])
    with pytest.raises(TreeError, match="and a label that is text, got 'x' at"):
        Tree.from_parents(["f", [1.0]], [-1, 0], edges=["", "x"])
    with pytest.raises(TreeError, match=r"a parent and an edge for each node, .* got 2 labels, 2 parents and 1 edges"):
        Tree.from_parents(["f", "a"], [-1, 0], edges=["x"])
    with pytest.raises(TreeError, match=r"got a cycle.*→ …"):
        Tree.from_parents(range(6), [1, 2, 3, 4, 5, 0])


@pytest.mark.parametrize("start", [None, 0.5, "1", True])
def test_the_first_number_of_parents_is_a_whole_number(start: Any) -> None:
    with pytest.raises(TreeError, match=r"Tree.from_parents expects start to be a whole number, got .*; give 0 or 1"):
        Tree.from_parents(["f"], [-1], start=start)
    with pytest.raises(TreeError, match=r"Tree.to_parents expects start to be a whole number, got .*; give 0 or 1"):
        Tree("f").to_parents(start=start)


def test_arrays_are_neither_true_nor_false() -> None:
    edges: Any = np.zeros(2)
    for convert in (lambda: Tree("f").to_newick(edges=edges), lambda: Tree.from_newick("f;", edges=edges)):
        with pytest.raises(TreeError, match=r"_newick expects edges to be True or False, got array"):
            convert()


@given(text_tree)
def test_newick_gives_back_the_tree(tree: Tree) -> None:
    assert Tree.from_newick(tree.to_newick()) == present(tree)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(,,(,));", '("" "" "" ("" "" ""))'),  # the examples of the format's own page
        ("(A,B,(C,D));", '("" A B ("" C D))'),
        ("(A,B,(C,D)E)F;", "(F A B (E C D))"),
        ("(:0.1,:0.2,(:0.3,:0.4):0.5):0.0;", '("" "" "" ("" "" ""))'),
        ("(A:0.1,B:0.2,(C:0.3,D:0.4)E:0.5)F;", "(F A B (E C D))"),
        ("((B:0.2,(C:0.3,D:0.4)E:0.5)F:0.1)A;", "(A (F B (E C D)))"),
        (" ( 'it''s [x]' [a comment] , Homo_sapiens )\n r ", '(r "it\'s [x]" Homo_sapiens)'),
        ("A;", "A"),
        (";", '""'),
    ],
)
def test_newick_is_read(text: str, expected: str) -> None:
    assert Tree.from_newick(text) == Tree.parse(expected)


def test_branch_lengths_are_edges_where_asked() -> None:
    text = "(A:0.1,B:1e-3,(C,D:4)E:0.5)F;"
    tree = Tree.from_newick(text, edges=True)
    assert tree == Tree.parse("(F 0.1:A 1e-3:B (0.5:E C 4:D))")
    assert tree.to_newick(edges=True) == text
    assert tree.to_newick() == "('0.1:A','1e-3:B',(C,'4:D')'0.5:E')F;"
    assert Tree.from_newick("(A)B:2;", edges=True) == Tree.parse("(B A)")
    assert Tree("f", [Tree(":a"), Tree("a:b:c")]).to_newick(edges=True) == "(':a','b:c':a)f;"
    assert Tree.from_newick("(':a','b:c':a)f;", edges=True) == Tree("f", [Tree(":a"), Tree("a:b:c")])
    for edge in ("two words", "it's", "(x"):
        with pytest.raises(
            TreeError, match=r"expects edge labels without blanks, brackets and quotes, got .* use edges=False"
        ):
            Tree("f", [Tree(f"{edge}:a")]).to_newick(edges=True)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "expected a tree, got none"),
        ("[empty]", 8, "expected a tree, got none"),
        ("(A,B", 5, r"expected '\)' to close a bracket, got the end of the text"),
        ("(A,B;", 5, r"expected '\)' to close a bracket, got ';'"),
        ("A,B;", 2, "expected ';' after the tree, got ','; give one tree"),
        ("(A))B;", 4, r"expected ';' after the tree, got '\)'"),
        ("(A,B)C;(D)E;", 8, "expected the end of the text after ';', got more; give one tree at a time"),
        ("(A B)C;", 4, "expected ',', '\\)' or ';' after a node, got 'B'; put a name with blanks in single quotes"),
        ("(A(B))C;", 3, "expected ',' before the next node, got '\\('"),
        ("(A:,B);", 4, "expected a branch length after ':', got ','"),
        ("(A:1:2,B);", 5, "expected one branch length, got ':' again"),
        ("(A,'B);", 4, 'expected a partner of "\'", got none; close it'),
        ("(A,[B);", 4, "expected a partner of '\\[', got none"),
    ],
)
def test_bad_newick_is_reported_with_its_position(text: str, column: int, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        Tree.from_newick(text)
    assert caught.value.column == column


@given(st.text(alphabet="(),:;'[]_ ab1\n", max_size=14))
def test_any_text_is_newick_or_a_parse_error(text: str) -> None:
    try:
        tree = Tree.from_newick(text)
    except ParseError as problem:
        assert problem.position <= len(text)
    else:
        assert Tree.from_newick(tree.to_newick()) == tree


@given(text_tree)
def test_nltk_gives_back_the_tree(tree: Tree) -> None:
    made = tree.to_nltk()
    assert isinstance(made, nltk.Tree) and Tree.from_nltk(made) == present(tree)


def test_nltk_reads_and_writes_the_same_sentence() -> None:
    text = "(S (NP (DT the) (NN dog)) (VP barks))"
    assert Tree.from_nltk(nltk.Tree.fromstring(text)) == Tree.parse(text)
    assert Tree.parse(text).to_nltk() == nltk.Tree.fromstring(text)
    assert Tree("a").to_nltk() == nltk.Tree("a", [])
    chunk = nltk.Tree("S", [nltk.Tree("NP", [("the", "DT"), ("dog", "NN")]), ("barks", "VBZ"), 7])
    assert str(Tree.from_nltk(chunk)) == "(S (NP (DT the) (NN dog)) (VBZ barks) 7)"
    with pytest.raises(TreeError, match=r"from_nltk expects a tree of NLTK, got list; try treefold.as_tree"):
        Tree.from_nltk(["f", "a"])
    with pytest.raises(TreeError, match=r"child 0 of node 'S': a label is text, .* got float 0.5"):
        Tree.from_nltk(nltk.Tree("S", [0.5]))
    with pytest.raises(TreeError, match=r"Tree.to_nltk expects labels that are text, got the vector \(1.0,\)"):
        Tree([1.0]).to_nltk()


@given(any_tree)
def test_networkx_gives_back_the_tree(tree: Tree) -> None:
    graph = tree.to_networkx()
    assert networkx.is_arborescence(graph) and len(graph) == tree.size
    assert Tree.from_networkx(graph) == present(tree)
    slots = [slot for node in tree.preorder() for slot, child in enumerate(node.children) if child is not None]
    assert [order for _, _, order in graph.edges(data="order")] == slots


def test_networkx_attributes_are_labels_order_and_edges() -> None:
    graph = networkx.DiGraph()
    graph.add_nodes_from([(2, {"word": "dog"}), (1, {"word": "eats"}), (3, {"word": "fish"})])
    graph.add_edge(1, 3, rel="obj", at=9)
    graph.add_edge(1, 2, rel="nsubj", at=1)
    assert str(Tree.from_networkx(graph)) == "(1 3 2)"
    tree = Tree.from_networkx(graph, label="word", order="at", edge="rel")
    assert str(tree) == "(eats nsubj:dog obj:fish)"
    again = tree.to_networkx(label="word", edge="rel")
    assert dict(again.nodes(data="word")) == {0: "eats", 1: "dog", 2: "fish"}
    assert list(again.edges(data="rel")) == [(0, 1, "nsubj"), (0, 2, "obj")]
    networkx.set_node_attributes(graph, {1: 0, 2: 2, 3: 1}, "order")  # at the nodes
    assert str(Tree.from_networkx(graph, label="word")) == "(eats fish dog)"
    assert str(Tree.from_networkx(networkx.MultiDiGraph(graph))) == "(1 3 2)"


def graph_of(*edges: tuple[object, object]) -> Any:
    return networkx.DiGraph(list(edges))


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (["f"], {}, "expects a DiGraph with edges from parents to children, got list; build one"),
        (networkx.Graph([(1, 2)]), {}, "expects a DiGraph .* got Graph"),
        (networkx.DiGraph(), {}, "got an empty DiGraph"),
        (
            graph_of(("a", "b"), ("b", "c"), ("c", "b")),
            {},
            "node 'b': expected one parent, got 'a' and 'c'; remove an edge",
        ),
        (graph_of(("a", "b"), ("b", "a")), {}, "got a cycle, from child to parent: 'a' → 'b' → 'a'; remove one"),
        (graph_of(("r", "s"), ("a", "b"), ("b", "a")), {}, "got a cycle, from child to parent: '[ab]' → "),
        (graph_of(("a", "a")), {}, "got a cycle, from child to parent: 'a' → 'a'"),
        (
            graph_of(("a", "b"), ("c", "d")),
            {},
            r"expects one root, got 2: nodes 'a', 'c'; take one .* graph.reverse\(\)",
        ),
        (
            graph_of(("a", "b")),
            {"label": "word"},
            "node 'a': expected an attribute 'word', got none; set it at every node",
        ),
        (graph_of(("a", "b")), {"edge": "rel"}, "node 'b': expected an attribute 'rel', got none"),
        (
            networkx.DiGraph([("a", "b", {"order": float("nan")}), ("a", "c", {"order": 1})]),
            {},
            "expects 'order' to be numbers, got nan; give each child a place",
        ),
        (
            networkx.DiGraph([("a", "b", {"order": np.zeros(2)}), ("a", "c", {"order": np.ones(2)})]),
            {},
            "expects 'order' to be numbers, got The truth value of an array",
        ),
    ],
)
def test_what_is_no_graph_of_a_tree_is_refused(graph: Any, options: dict[str, str], message: str) -> None:
    with pytest.raises(TreeError, match=f"^Tree.from_networkx.*{message}"):
        Tree.from_networkx(graph, **options)


def test_attributes_of_some_nodes_only_are_refused() -> None:
    graph = graph_of(("a", "b"), ("a", "c"))
    graph.nodes["a"]["label"] = "f"
    graph.nodes["b"]["labels"] = "g"
    with pytest.raises(
        TreeError, match=r"node 'b': expected an attribute 'label', got 'labels' \(nearest known: 'labels'\)"
    ):
        Tree.from_networkx(graph)
    networkx.set_node_attributes(graph, {"a": None, "b": "x", "c": "y"}, "label")
    with pytest.raises(TreeError, match=r"node 'a': a label is text, .* got NoneType"):
        Tree.from_networkx(graph)
    networkx.set_node_attributes(graph, {"a": 0, "b": "x", "c": 3}, "order")
    with pytest.raises(TreeError, match="expects 'order' to be numbers, got '<' not supported"):
        Tree.from_networkx(graph, label="order")


class Data:
    """In place of ``torch_geometric.data.Data``, which keeps what it is given as attributes."""

    x: Any = None
    edge_index: Any = None

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Batch:
    def __init__(self, graphs: list[Data]) -> None:
        self.graphs = graphs

    @staticmethod
    def from_data_list(graphs: list[Data]) -> "Batch":
        return Batch(graphs)

    def to_data_list(self) -> list[Data]:
        return self.graphs


@pytest.fixture(autouse=True, scope="module")
def geometric() -> Any:
    patch = pytest.MonkeyPatch()
    module = ModuleType("torch_geometric.data")
    module.Data, module.Batch = Data, Batch  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "torch_geometric", ModuleType("torch_geometric"))
    patch.setitem(sys.modules, "torch_geometric.data", module)
    yield
    patch.undo()


@given(st.lists(text_tree, max_size=4))
def test_pyg_has_edges_from_children_to_parents_with_depth_and_slot(trees: list[Tree]) -> None:
    forest = Forest(trees)
    graphs = forest.to_pyg()
    assert len(graphs) == len(trees)
    for tree, data in zip(trees, graphs, strict=True):
        nodes = list(tree.postorder())
        assert [forest.vocabulary[code] for code in data.x.tolist()] == [node.label for node in nodes]
        assert data.x.dtype == data.edge_index.dtype == data.depth.dtype == data.slot.dtype == torch.int64
        assert data.edge_index.shape == (2, tree.size - 1)
        depth = {tree.size - 1: 0}
        for child, parent in reversed(data.edge_index.T.tolist()):
            depth[child] = depth[parent] + 1
            assert nodes[parent].children[data.slot[child]] is nodes[child]
        assert data.depth.tolist() == [depth[node] for node in range(tree.size)]
        again = Tree.from_pyg(data, names=list(forest.vocabulary))
        assert present(again) == present(tree)
        del data.slot
        assert Tree.from_pyg(data, names=list(forest.vocabulary)) == present(tree)


def test_pyg_keeps_vectors_slots_and_edges() -> None:
    tree = Tree((1.0, 2.0), [None, Tree((3.0, 4.0))])
    (data,) = Forest([tree]).to_pyg()
    assert data.x.tolist() == [[3.0, 4.0], [1.0, 2.0]] and data.x.dtype == torch.float32
    assert Tree.from_pyg(data) == tree
    parts = Forest([Tree("b"), Tree.parse("(f a _ b)")]).to_pyg(batch=True)
    assert isinstance(parts, Batch) and parts.graphs[1].x.tolist() == [0, 1, 2]
    assert Tree.parse("(f a b)").to_pyg(["f", "a", "b"]).x.tolist() == [1, 2, 0]
    columns = Data(x=torch.tensor([[5], [6], [7]]), edge_index=torch.tensor([[2, 0], [1, 1]]), rel=torch.tensor([8, 9]))
    assert str(Tree.from_pyg(columns)) == "(6 5 7)"
    assert str(Tree.from_pyg(columns, edge="rel")) == "(6 9:5 8:7)"
    with pytest.raises(TreeError, match="labels that are all text or all vectors, got 1 vectors at 2 nodes"):
        Forest([Tree("f", [Tree([1.0])])]).to_pyg()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"edge_index": [[], []]}, r"expects data with 'x', got none in Data; set data.x"),
        ({"x": [0]}, "expects data with 'edge_index', got none"),
        ({"x": [0, 1], "edge_index": [[0]]}, r"edge_index of shape \(2, edges\), got 2 nodes and 1 rows"),
        ({"x": [], "edge_index": [[], []]}, "expects at least one node, .* got 0 nodes"),
        ({"x": [0, 1], "edge_index": [[0], [2]]}, "expected edges between the nodes 0 to 1, got 0 → 2; correct"),
        (
            {"x": [0, 1, 1], "edge_index": [[0, 0], [1, 2]]},
            r"node 0 \(0\): expected one parent, got 1 and 2; .*flip\(0\)",
        ),
        ({"x": [0, 1], "edge_index": [[], []]}, r"expects one root, got 2: nodes 0 \(0\), 1 \(1\); .*to_data_list"),
        ({"x": [0, 1], "edge_index": [[0, 1], [1, 0]]}, r"got a cycle, from child to parent: 0 \(0\) → 1 \(1\)"),
        ({"x": [0.5, 1.0], "edge_index": [[0], [1]]}, r"node 0 \(0.5\): a label is text, a whole number or"),
        (
            {"x": [0, 1, 1], "edge_index": [[0, 1], [2, 2]], "slot": [1, 1, 0]},
            r"node 1 \(1\): expected a slot of its own",
        ),
        ({"x": [0, 1], "edge_index": [[0], [1]], "slot": [2**40, 0]}, r"node 0 \(0\): expected a slot of its own"),
        ({"x": [0, 1], "edge_index": [[0], [1]], "slot": [0]}, "expects a slot for each of 2 nodes, got 1"),
    ],
)
def test_what_is_no_pyg_tree_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TreeError, match=f"^Tree.from_pyg.*{message}"):
        Tree.from_pyg(Data(**{name: np.array(value) if name != "x" else value for name, value in values.items()}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"edge_index": []}, "got 2 nodes and 0 rows with no entries"),
        ({"edge_index": [[1, 1], [0]]}, "got 2 nodes and 2 rows with 2 and 1 entries"),
        ({"edge_index": [1, 0]}, "expects a row of edge_index to be a list or an array, got int 1"),
        ({"edge_index": [[0.5], [0]]}, "expected edges between the nodes 0 to 1, got 0.5 → 0; correct edge_index"),
        ({"edge_index": [["1"], [None]]}, "expected edges between the nodes 0 to 1, got '1' → None"),
    ],
)
def test_lists_that_are_no_edges_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TreeError, match=f"^Tree.from_pyg.*{message}"):
        Tree.from_pyg(SimpleNamespace(x=[0, 1], **values))


def test_codes_without_a_name_are_refused() -> None:
    with pytest.raises(TreeError, match="node 1: expected x to be the number of a name, 0 to 0, got 1; give all names"):
        Tree.from_pyg(Data(x=[0, 1], edge_index=np.array([[0], [1]])), names=["a"])


@given(st.lists(st.integers(0, 3) | st.none(), max_size=5), st.lists(st.integers(-2, 5) | st.none(), max_size=5))
def test_any_labels_and_parents_are_a_tree_or_an_error(labels: list[Any], parents: list[Any]) -> None:
    try:
        assert Tree.from_parents(labels, parents).size == len(labels)
    except TreefoldError as problem:
        assert "expect" in str(problem) or "a label is" in str(problem)


def test_a_missing_package_is_an_error_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, convert in (
        ("nltk", Tree.to_nltk),
        ("networkx", Tree.to_networkx),
        ("torch_geometric.data", Tree.to_pyg),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        package = name.removesuffix(".data")
        with pytest.raises(
            ConfigurationError, match=f"expected the package {package}, got none .* `pip install {package}`"
        ):
            convert(Tree("a"))
