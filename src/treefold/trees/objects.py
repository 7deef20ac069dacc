"""Trees from other objects, and back: nested lists and dicts, parent arrays, Newick, NLTK, networkx, PyTorch Geometric.

`Tree` has a method for each function here; its docstring has an example. A child may have an edge label, which is the part of
its label before the first colon: ``nsubj:dog``. Absent children are ``None`` in nested objects. The other objects have no
place for them, so they are left out there. Nothing here recurses.
"""

import importlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, Final

from treefold.errors import ConfigurationError, ParseError, TreeError, nearest, require_choice
from treefold.trees.tree import Label, Tree

if TYPE_CHECKING:
    from treefold.trees.forest import Forest

LABEL_KEYS: Final = ("label", "name", "tag", "type", "value")
"""Where the label of a dict is looked for, in this order."""

EDGE: Final = ":"
"""Between the label of an edge and that of the node."""

_END: Final = object()
_MOST_SLOTS: Final = 2**24  # a slot beyond is a mistake, and would need much memory
_NEWICK: Final = re.compile(r"\s*(?:\[[^\]]*\]\s*)*(?:([(),:;])|('(?:[^']|'')*')|([^\s()\[\]':;,]+)|(\Z))")
_NEWICK_BARE: Final = re.compile(r"[^\s()\[\]':;,]+")


def from_nested(nested: object, *, label: str | None, children: str, edge: str | None) -> Tree:
    """Read nested lists, tuples, dicts and NLTK trees; see `Tree.from_nested`."""
    _require_names("Tree.from_nested", {"children": children}, or_none={"label": label, "edge": edge})

    def expand(item: Any) -> "Tree | tuple[Label, Sequence[object]] | None":
        if item is None or isinstance(item, Tree):
            return item
        if isinstance(item, Mapping):
            return _expand_dict(item, label, children, edge)
        if is_nltk(item):
            return _label(item.label()), [_tagged_word(child) for child in item]
        if not isinstance(item, (list, tuple)):
            return _label(item), ()
        if not item or (isinstance(item[0], (list, tuple)) and not all(isinstance(number, Real) for number in item[0])):
            got = f"{type(item[0]).__name__} {shortened(item[0])}" if item else "nothing"
            raise TreeError(f"expected a label in the first place of a list, got {got}; write [label, child, …].")
        return _label(item[0]), item[1:]

    if isinstance(nested, Mapping) and children not in nested:
        used = _label_key(nested, label)
        lists = [key for key, value in nested.items() if isinstance(value, (list, Mapping)) and key != used]
        if lists:
            raise TreeError(
                f"expected the children of a dict under {children!r}, got the keys {_listed(nested)}; "
                f"name the key, Tree.from_nested(…, children={lists[0]!r}), or give the root {children}=[]."
            )
    return _grow(nested, expand)


def _expand_dict(
    node: Mapping[Any, Any], label: str | None, children: str, edge: str | None
) -> tuple[Label, Sequence[object]]:
    key = _label_key(node, label)
    below = node.get(children)
    if below is not None and not isinstance(below, (list, tuple)):
        raise TreeError(
            f"expected a list of children under {children!r}, got {type(below).__name__} {shortened(below)}; "
            f"write [child, …]."
        )
    return with_edge(node.get(edge) if edge is not None else None, _label(node[key])), below or ()


def _label_key(node: Mapping[Any, Any], label: str | None) -> str:
    choices = LABEL_KEYS if label is None else (label,)
    for key in choices:
        if key in node:
            return key
    raise TreeError(
        f"expected the label of a dict under {' or '.join(map(repr, choices))}, got the keys {_listed(node)}; "
        f"name the key, Tree.from_nested(…, label='…')."
    )


def _tagged_word(child: object) -> object:
    """NLTK writes a word with its tag as a tuple ``(word, tag)``: here it is the node ``(tag word)``."""
    if isinstance(child, tuple) and len(child) == 2:
        return Tree(_label(child[1]), [Tree(_label(child[0]))])
    return child


def _grow(root: object, expand: "Callable[[Any], Tree | tuple[Label, Sequence[object]] | None]") -> Tree:
    """Build a tree from the root down; ``expand`` turns an object into a tree, or into its label and the objects below it."""
    open_nodes: list[tuple[Label, Iterator[object], list[Tree | None], int]] = []
    path: set[int] = set()  # of the objects that are open: one that is met again contains itself
    item: object = root
    while True:
        try:
            if id(item) in path:
                raise TreeError("expected a tree, got an object that contains itself; remove the cycle.")
            found = expand(item)
        except TreeError as problem:
            if open_nodes:
                parent, _, before, _ = open_nodes[-1]
                problem.args = (f"child {len(before)} of node {shortened(parent)}: {problem}",)
            raise
        if isinstance(found, tuple) and found[1]:
            open_nodes.append((found[0], iter(found[1]), [], id(item)))
            path.add(id(item))
        else:
            done = Tree(found[0]) if isinstance(found, tuple) else found
            if not open_nodes:
                if done is None:
                    raise TreeError("expected a tree, got None; only a child can be absent.")
                return done
            open_nodes[-1][2].append(done)
        while (item := next(open_nodes[-1][1], _END)) is _END:
            label, _, children, identity = open_nodes.pop()
            path.discard(identity)
            done = Tree(label, children)
            if not open_nodes:
                return done
            open_nodes[-1][2].append(done)


def to_nested(tree: Tree, *, form: str, label: str, children: str, edge: str | None) -> Any:
    """Write nested lists, tuples or dicts; see `Tree.to_nested`."""
    require_choice("Tree.to_nested", "form", form, ["list", "tuple", "dict"])
    _require_names("Tree.to_nested", {"label": label, "children": children}, or_none={"edge": edge})
    sequence: type[list[Any]] | type[tuple[Any, ...]] = tuple if form == "tuple" else list

    def write(node: Tree, below: list[Any]) -> Any:
        text = node.label if isinstance(node.label, str) else sequence(node.label)
        if form != "dict":
            return text if isinstance(text, str) and not below else sequence([text, *below])
        written = {label: text}
        if edge is not None and node is not tree and isinstance(text, str):
            found, written[label] = split_edge(text)
            written |= {edge: found} if found else {}
        return written | ({children: below} if below else {})

    return fold(tree, write)


def fold(tree: Tree, make: Callable[[Tree, list[Any]], Any]) -> Any:
    """Compute a value for each node from those of its children, ``None`` for absent ones; return that of the root."""
    done: list[Any] = []
    for node in tree.postorder():
        present = len(node.children) - node.children.count(None)
        values = iter(done[len(done) - present :])
        below = [None if child is None else next(values) for child in node.children]
        del done[len(done) - present :]
        done.append(make(node, below))
    return done[0]


def from_parents(
    labels: Iterable[object], parents: Iterable[object], *, edges: Iterable[object] | None, start: int
) -> Tree:
    """Read an array of parents; see `Tree.from_parents`."""
    owner = "Tree.from_parents"
    start = _start(owner, start)
    names, above = _values(owner, "labels", labels), _values(owner, "parents", parents)
    links = [None] * len(names) if edges is None else _values(owner, "edges", edges)
    if not len(names) == len(above) == len(links) or not names:
        raise TreeError(
            f"{owner} expects a label, a parent{'' if edges is None else ' and an edge'} for each node, and at least one "
            f"node, got {len(names)} labels, {len(above)} parents{'' if edges is None else f' and {len(links)} edges'}."
        )
    last = start + len(names) - 1
    numbers: list[int] = []
    for node, parent in enumerate(above):
        if parent is None:
            parent = -1
        if (
            isinstance(parent, bool)
            or not isinstance(parent, Integral)
            or not min(start - 1, -1) <= int(parent) <= last
        ):
            raise TreeError(
                f"{owner}: node {start + node}: expected the number of its parent, {start} to {last}, or {start - 1} at the "
                f"root, got {shortened(parent)}; give whole numbers{'' if start else ', or start=1 if nodes count from 1'}."
            )
        number = int(parent) - start
        numbers.append(-1 if number < 0 or number == node else number)

    def say(node: int) -> str:
        return f"{start + node} ({shortened(names[node])})"

    if edges is not None:
        links = [edge if parent >= 0 else None for edge, parent in zip(links, numbers, strict=True)]
    made = _labels(owner, names, links, say)
    children: list[list[int | None]] = [[] for _ in names]
    for node, parent in enumerate(numbers):
        if parent >= 0:
            children[parent].append(node)
    hint = "" if start else ", or start=1 if nodes count from 1 and the root has 0"
    return _joined(owner, made, numbers, children, say, f"give one tree, the parent of its root is {start - 1}{hint}")


def to_parents(tree: Tree, *, start: int) -> tuple[list[Label], list[int]]:
    """Write an array of parents; see `Tree.to_parents`."""
    start, rows = _start("Tree.to_parents", start), list(_preorder_rows(tree))
    return [node.label for node, _, _ in rows], [parent + start for _, parent, _ in rows]


def _preorder_rows(tree: Tree) -> Iterator[tuple[Tree, int, int]]:
    """Yield each node in pre-order with the number of its parent, -1 at the root, and its slot."""
    stack, number = [(tree, -1, 0)], 0
    while stack:
        node, parent, slot = stack.pop()
        yield node, parent, slot
        for place in range(len(node.children) - 1, -1, -1):
            child = node.children[place]
            if child is not None:
                stack.append((child, number, place))
        number += 1


def _joined(
    owner: str,
    labels: Sequence[Label],
    parents: Sequence[int],
    children: Sequence[Sequence[int | None]],
    say: Callable[[int], str],
    remedy: str,
) -> Tree:
    """Build a tree from nodes that know their parent, -1 at the root, and their children; raise if they are none."""
    roots = [node for node, parent in enumerate(parents) if parent < 0]
    if len(roots) > 1:
        more = "" if len(roots) == 2 else ", …"
        raise TreeError(
            f"{owner} expects one root, got {len(roots)}: nodes {say(roots[0])}, {say(roots[1])}{more}; {remedy}."
        )
    order = list(roots)
    for node in order:
        order += [child for child in children[node] if child is not None]
    if len(order) < len(parents):
        seen: dict[int, int] = {}
        node = next(iter(set(range(len(parents))).difference(order)))
        while node not in seen:  # from child to parent, until the cycle closes
            seen[node] = len(seen)
            node = parents[node]
        cycle = list(seen)[seen[node] :]
        shown = " → ".join([say(each) for each in cycle[:4]] + (["…"] if len(cycle) > 4 else []) + [say(node)])
        raise TreeError(f"{owner} expects a tree, got a cycle, from child to parent: {shown}; remove one of its edges.")
    made: dict[int, Tree] = {}
    for node in reversed(order):
        made[node] = Tree(labels[node], [None if child is None else made.pop(child) for child in children[node]])
    return made[order[0]]


def from_newick(text: str, *, edges: bool) -> Tree:
    """Read a tree in Newick notation; see `Tree.from_newick`."""
    if not isinstance(text, str):
        raise TreeError(f"Tree.from_newick expects text, got {type(text).__name__}; read the file as text.")
    edges = _flag("Tree.from_newick", edges)
    open_nodes: list[list[Tree]] = []
    children: list[Tree] = []
    name = length = None
    after = ""  # the last token: "", "(" or ",", ")", "name", ":" or "length"
    position = 0
    while True:
        match = _NEWICK.match(text, position)
        if match is None:
            while text[position].isspace():
                position += 1
            problem = f"expected a partner of {text[position]!r}, got none; close it, or put the name in single quotes"
            raise ParseError(problem, text=text, position=position)
        mark, quoted, bare, end = match.groups()
        start, position = match.start(match.lastindex or 0), match.end()
        got = "the end of the text" if end is not None else repr(mark or quoted or bare)
        if (quoted or bare) and after in ("", "(", ",", ")"):
            name = quoted[1:-1].replace("''", "'") if quoted else bare
            after = "name"
        elif bare and after == ":":
            length, after = bare, "length"
        elif after == ":":
            raise ParseError(f"expected a branch length after ':', got {got}; write :0.1", text=text, position=start)
        elif quoted or bare:
            raise ParseError(
                f"expected ',', ')' or ';' after a node, got {got}; put a name with blanks in single quotes",
                text=text,
                position=start,
            )
        elif mark == "(":
            if after not in ("", "(", ","):
                raise ParseError("expected ',' before the next node, got '('; add it", text=text, position=start)
            open_nodes.append([])
            after = "("
        elif mark == ":":
            if after == "length":
                raise ParseError("expected one branch length, got ':' again; remove it", text=text, position=start)
            after = ":"
        else:  # the node ends
            if not after and mark is None:
                raise ParseError("expected a tree, got none; write (A,B)C;", text=text, position=start)
            if bool(open_nodes) == (mark in (";", None)):
                expected = "')' to close a bracket" if open_nodes else "';' after the tree"
                raise ParseError(f"expected {expected}, got {got}; give one tree", text=text, position=start)
            label = name or ""
            node = Tree(f"{length}:{label}" if edges and length and open_nodes else label, children)
            name, length, children = None, None, []
            if not open_nodes:
                break
            open_nodes[-1].append(node)
            if mark == ")":
                children = open_nodes.pop()
            after = str(mark)
    rest = _NEWICK.match(text, position)
    if mark == ";" and (rest is None or rest[4] is None):
        raise ParseError(
            "expected the end of the text after ';', got more; give one tree at a time", text=text, position=position
        )
    return node


def to_newick(tree: Tree, *, edges: bool) -> str:
    """Write a tree in Newick notation; see `Tree.to_newick`."""
    edges = _flag("Tree.to_newick", edges)

    def name(node: Tree) -> str:
        label = _text("Tree.to_newick", node)
        edge, label = split_edge(label) if edges and node is not tree else (None, label)
        if edge and not _NEWICK_BARE.fullmatch(edge):
            raise TreeError(
                f"Tree.to_newick expects edge labels without blanks, brackets and quotes, got {shortened(edge)}; use edges=False."
            )
        quoted = label if not label or _NEWICK_BARE.fullmatch(label) else "'" + label.replace("'", "''") + "'"
        return f"{quoted}:{edge}" if edge else quoted

    pieces: list[str] = []
    stack: list[Tree | str] = [";", tree]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
            continue
        below = [child for child in item.children if child is not None]
        if not below:
            pieces.append(name(item))
            continue
        pieces.append("(")
        stack.append(")" + name(item))
        for child in reversed(below):
            stack += (child, ",")
        stack.pop()  # the comma before the first child
    return "".join(pieces)


def is_nltk(item: object) -> bool:
    """Say whether an object is a tree of NLTK: a list with a method ``label``."""
    return isinstance(item, list) and callable(getattr(item, "label", None))


def from_nltk(tree: object) -> Tree:
    """Read a tree of NLTK; see `Tree.from_nltk`."""
    if not is_nltk(tree):
        raise TreeError(f"Tree.from_nltk expects a tree of NLTK, got {type(tree).__name__}; try treefold.as_tree.")
    return from_nested(tree, label=None, children="children", edge=None)


def to_nltk(tree: Tree) -> Any:
    """Make a tree of NLTK; see `Tree.to_nltk`."""
    nltk = _package("nltk", "nltk")

    def make(node: Tree, below: list[Any]) -> Any:
        label, present = _text("Tree.to_nltk", node), [child for child in below if child is not None]
        return nltk.Tree(label, present) if present or node is tree else label

    return fold(tree, make)


def from_networkx(graph: Any, *, label: str, order: str, edge: str | None) -> Tree:
    """Read a directed graph of networkx; see `Tree.from_networkx`."""
    owner = "Tree.from_networkx"
    _require_names(owner, {"label": label, "order": order}, or_none={"edge": edge})
    directed = hasattr(graph, "is_directed") and graph.is_directed()
    if not directed or not len(graph):
        raise TreeError(
            f"{owner} expects a DiGraph with edges from parents to children, got {'an empty ' if directed else ''}"
            f"{type(graph).__name__}; build one with networkx.DiGraph([(parent, child), …])."
        )
    nodes: dict[Any, Mapping[str, Any]] = dict(graph.nodes(data=True))
    names, numbers = list(nodes), {node: number for number, node in enumerate(nodes)}
    parents, links = [-1] * len(nodes), dict[Any, Mapping[str, Any]]()
    children: list[list[int | None]] = [[] for _ in nodes]
    for parent, child, attributes in graph.edges(data=True):
        if child in links:
            raise TreeError(
                f"{owner}: node {child!r}: expected one parent, got {names[parents[numbers[child]]]!r} and {parent!r}; "
                f"remove an edge, or copy the node."
            )
        links[child] = attributes
        parents[numbers[child]] = numbers[parent]
        children[numbers[parent]].append(numbers[child])
    texts = _attributes(owner, label, nodes, needed=label != "label")
    places = _attributes(owner, order, {n: {**nodes[n], **links[n]} for n in links}, needed=order != "order")
    edges = {} if edge is None else _attributes(owner, edge, links, needed=True, everywhere=False)
    if places:
        try:
            is_missing = any(bool(place != place) for place in places.values())
            for below in children:
                below.sort(key=lambda child: places[names[child or 0]])
        except (TypeError, ValueError) as problem:  # of texts beside numbers, of arrays
            raise TreeError(f"{owner} expects {order!r} to be numbers, got {problem}; convert them.") from None
        if is_missing:
            raise TreeError(f"{owner} expects {order!r} to be numbers, got nan; give each child a place.")

    def say(node: int) -> str:
        return repr(names[node])

    values = [texts[node] for node in names] if texts else [str(node) for node in names]
    made = _labels(owner, values, [edges.get(node) for node in names], say)
    remedy = "take one component, or turn edges that point to parents with graph.reverse()"
    return _joined(owner, made, parents, children, say, remedy)


def _attributes(
    owner: str, name: str, nodes: Mapping[Any, Mapping[str, Any]], *, needed: bool, everywhere: bool = True
) -> dict[Any, Any]:
    """Return the values of an attribute; raise if only some nodes have it, or none although it is needed."""
    found = {node: attributes[name] for node, attributes in nodes.items() if name in attributes}
    if (found and everywhere and len(found) < len(nodes)) or (needed and nodes and not found):
        node, attributes = next((n, a) for n, a in nodes.items() if n not in found)
        got = f"{_listed(attributes)}{nearest(name, map(str, attributes))}" if attributes else "none"
        raise TreeError(f"{owner}: node {node!r}: expected an attribute {name!r}, got {got}; set it at every node.")
    return found


def to_networkx(tree: Tree, *, label: str, order: str, edge: str | None) -> Any:
    """Make a directed graph of networkx; see `Tree.to_networkx`."""
    _require_names("Tree.to_networkx", {"label": label, "order": order}, or_none={"edge": edge})
    graph = _package("networkx", "networkx").DiGraph()
    for number, (node, parent, slot) in enumerate(_preorder_rows(tree)):
        text: Label = node.label
        link: str | None = None
        if edge is not None and parent >= 0 and isinstance(text, str):
            link, text = split_edge(text)
        graph.add_node(number, **{label: text})
        if parent >= 0:
            graph.add_edge(parent, number, **{order: slot}, **({str(edge): link} if link else {}))
    return graph


def from_pyg(data: Any, *, names: Sequence[str] | None, edge: str | None) -> Tree:
    """Read a graph of PyTorch Geometric; see `Tree.from_pyg`."""
    owner = "Tree.from_pyg"
    _require_names(owner, {}, or_none={"edge": edge})
    for name in ("x", "edge_index", *([] if edge is None else [edge])):
        if getattr(data, name, None) is None:
            raise TreeError(f"{owner} expects data with {name!r}, got none in {type(data).__name__}; set data.{name}.")
    values = _values(owner, "x", data.x)
    ends = [_values(owner, "a row of edge_index", row) for row in _values(owner, "edge_index", data.edge_index)]
    if all(isinstance(value, list) and len(value) == 1 and isinstance(value[0], int) for value in values):
        values = [code for (code,) in values]
    links = [None] * len(ends[0] if ends else ()) if edge is None else _values(owner, edge, getattr(data, edge))
    if len(ends) != 2 or not len(ends[0]) == len(ends[1]) == len(links) or not values:
        sizes = " and ".join(str(len(row)) for row in ends) or "no"
        raise TreeError(
            f"{owner} expects at least one node, and edge_index of shape (2, edges), got {len(values)} nodes and "
            f"{len(ends)} rows with {sizes} entries, {len(links)} edges."
        )
    if names is not None:
        known = _values(owner, "names", names)
        values = [_name(owner, known, node, code) for node, code in enumerate(values)]

    def say(node: int) -> str:
        return f"{node} ({shortened(values[node])})"

    parents, edges = [-1] * len(values), [None] * len(values)
    for child, parent, link in zip(*ends, links, strict=True):
        if not all(isinstance(node, int) and 0 <= node < len(values) for node in (child, parent)):
            raise TreeError(
                f"{owner}: expected edges between the nodes 0 to {len(values) - 1}, got {shortened(child)} → "
                f"{shortened(parent)}; correct edge_index."
            )
        if parents[child] >= 0:
            raise TreeError(
                f"{owner}: node {say(child)}: expected one parent, got {parents[child]} and {parent}; edges go from children "
                f"to parents, turn them with edge_index.flip(0), and give one direction only."
            )
        parents[child], edges[child] = parent, link
    slots = getattr(data, "slot", None)
    children = _in_slots(owner, parents, None if slots is None else _values(owner, "slot", slots), say)
    remedy = "edges go from children to parents, turn them with edge_index.flip(0), or take batch.to_data_list()"
    return _joined(owner, _labels(owner, values, edges, say), parents, children, say, remedy)


def _name(owner: str, names: Sequence[Any], node: int, code: object) -> Any:
    if not isinstance(code, int) or not 0 <= code < len(names):
        raise TreeError(
            f"{owner}: node {node}: expected x to be the number of a name, 0 to {len(names) - 1}, got {shortened(code)}; "
            f"give all names, or names=None."
        )
    return names[code]


def _in_slots(
    owner: str, parents: Sequence[int], slots: Sequence[Any] | None, say: Callable[[int], str]
) -> list[list[int | None]]:
    """Return the children of each node: in the order of their numbers, or in their slots with absent children between."""
    children: list[list[int | None]] = [[] for _ in parents]
    if slots is not None and len(slots) != len(parents):
        raise TreeError(f"{owner} expects a slot for each of {len(parents)} nodes, got {len(slots)}; leave slot out.")
    for node, parent in enumerate(parents):
        if parent < 0:
            continue
        own, slot = children[parent], len(children[parent]) if slots is None else slots[node]
        if not isinstance(slot, int) or not 0 <= slot < _MOST_SLOTS or (slot < len(own) and own[slot] is not None):
            raise TreeError(
                f"{owner}: node {say(node)}: expected a slot of its own, at least 0, got {shortened(slot)}; correct data.slot."
            )
        own.extend([None] * (slot + 1 - len(own)))
        own[slot] = node
    return children


def forest_to_pyg(forest: "Forest", *, batch: bool) -> Any:
    """Make graphs of PyTorch Geometric; see `Forest.to_pyg`."""
    import numpy as np

    if len(forest.vectors) not in (0, forest.node_count):
        raise TreeError(
            f"Forest.to_pyg expects labels that are all text or all vectors, got {len(forest.vectors)} vectors at "
            f"{forest.node_count} nodes; use text at the other nodes, or vectors everywhere."
        )
    geometric, torch = _package("torch_geometric.data", "torch_geometric"), _package("torch", "torch")
    forest.verify()
    codes = forest.labels.astype(np.int64)
    values = forest.vectors[-1 - codes].astype(np.float32) if len(forest.vectors) else codes
    columns = [torch.from_numpy(np.array(each, np.int64)) for each in (forest.parents, forest.depths, forest.slots)]
    x, offsets = torch.from_numpy(values), forest.offsets.tolist()
    graphs = []
    for start, stop in itertools.pairwise(offsets):
        parents, depth, slot = (column[start:stop] for column in columns)
        edges = torch.stack([torch.arange(stop - start - 1), parents[:-1]])  # the root is the last node
        graphs.append(geometric.Data(x=x[start:stop], edge_index=edges, depth=depth, slot=slot))
    return geometric.Batch.from_data_list(graphs) if batch else graphs


def with_edge(edge: object, label: Label) -> Label:
    """Put an edge label before the label of a child; no edge is ``None`` or an empty text.

    >>> with_edge("nsubj", "dog"), with_edge(None, "dog")
    ('nsubj:dog', 'dog')
    """
    if edge is None or edge == "":
        return label
    text = _label(edge) if isinstance(edge, (str, Integral)) else None
    if not isinstance(text, str) or EDGE in text or not isinstance(label, str):
        raise TreeError(
            f"expected an edge label that is text without a colon, and a label that is text, got {shortened(edge)} at "
            f"{shortened(label)}; replace the colon, or leave the edges out."
        )
    return f"{text}{EDGE}{label}"


def split_edge(label: str) -> tuple[str | None, str]:
    """Return the label of the edge, if there is one, and the rest of a child's label.

    >>> split_edge("nsubj:dog"), split_edge("dog"), split_edge(":"), split_edge("a:b:c")
    (('nsubj', 'dog'), (None, 'dog'), (None, ':'), ('a', 'b:c'))
    """
    edge, colon, rest = label.partition(EDGE)
    return (edge, rest) if edge and colon else (None, label)


def _require_names(owner: str, names: Mapping[str, object], *, or_none: Mapping[str, object]) -> None:
    """Raise unless the names of keys and attributes are text; those in ``or_none`` may also be None."""
    for argument, name in {**names, **or_none}.items():
        if not isinstance(name, str) and (name is not None or argument in names):
            raise TreeError(
                f"{owner} expects {argument} to be the name of a key or attribute, got {shortened(name)}; write text."
            )


def _start(owner: str, start: object) -> int:
    if isinstance(start, bool) or not isinstance(start, Integral):
        raise TreeError(f"{owner} expects start to be a whole number, got {shortened(start)}; give 0 or 1.")
    return int(start)


def _flag(owner: str, edges: object) -> bool:
    try:
        return bool(edges)
    except (ValueError, TypeError, RuntimeError):  # of arrays and tensors
        raise TreeError(f"{owner} expects edges to be True or False, got {shortened(edges)}.") from None


def _label(value: object) -> Label:
    """Return a label: text, the digits of a whole number, or a vector."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (list, tuple)) or (hasattr(value, "__array__") and not isinstance(value, Real)):
        return Tree(value).label  # type: ignore[arg-type]  # which checks it
    remedy = (
        f"write {str(value)!r} for text, [{value}] for a vector" if isinstance(value, Real) else "convert it to text"
    )
    raise TreeError(
        f"a label is text, a whole number or a vector of numbers, got {type(value).__name__} {shortened(value)}; {remedy}."
    )


def _labels(owner: str, values: Sequence[object], edges: Sequence[object], say: Callable[[int], str]) -> list[Label]:
    made: list[Label] = []
    try:
        for value, edge in zip(values, edges, strict=True):
            made.append(with_edge(edge, _label(value)))
    except TreeError as problem:
        problem.args = (f"{owner}: node {say(len(made))}: {problem}",)
        raise
    return made


def _values(owner: str, what: str, values: Any) -> list[Any]:
    """Return a sequence, array, tensor or column as a list of Python's own values."""
    values = values.detach().cpu() if hasattr(values, "detach") else values
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise TreeError(
            f"{owner} expects {what} to be a list or an array, got {type(values).__name__} {shortened(values)}."
        )
    return list(values)


def _text(owner: str, node: Tree) -> str:
    if not isinstance(node.label, str):
        raise TreeError(
            f"{owner} expects labels that are text, got the vector {shortened(node.label)}; use Tree.map first."
        )
    return node.label


def _listed(keys: Iterable[object]) -> str:
    """Write some keys for a message.

    >>> _listed({"a": 1, "b": 2})
    "'a', 'b'"
    """
    names = [shortened(key) for key in keys]
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "none"


def _package(module: str, package: str) -> Any:
    """Import a package that only some conversions need.

    >>> _package("no_such_package", "no-such-package")
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: expected the package no-such-package, got none (No module named 'no_such_package');
    install it with `pip install no-such-package`.
    """
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise ConfigurationError(
            f"expected the package {package}, got none ({problem}); install it with `pip install {package}`."
        ) from None
