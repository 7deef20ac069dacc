"""Trees: immutable values with ordered child slots, and their notation as s-expressions.

Nothing here recurses: a chain of a million nodes is a valid tree.
"""

import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from numbers import Integral
from reprlib import repr as shortened  # labels may be anything, of any size
from typing import Any, Final, Self, SupportsFloat, final

from treefold.errors import ParseError, TreeError, require_positive
from treefold.files import has_half_character

Label = str | tuple[float, ...]
"""A label is text, or a vector of finite numbers."""

ABSENT: Final = "_"
"""How an absent child (⊥) is written."""

_BARE = r'[^\s()"\[][^\s()"]*'
_BARE_LABEL = re.compile(_BARE)
_TOKEN = re.compile(rf'\s*(?:([()])|("(?:[^"\\]|\\.)*")|(\[[^\]]*\])|({_BARE})|(\Z))', re.DOTALL)
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_UNESCAPES: Final = {escape[1]: character for character, escape in _ESCAPES.items()}
_LARGE: Final = 10_000
_LARGEST: Final = 2**31 - 1


@final
class Tree:
    """A node with a label and ordered children; a child is a tree, or ``None`` if its slot is empty (⊥).

    A tree cannot be changed; trees with equal labels and children are equal and have the same hash. ``size``, ``depth`` and
    ``arity`` describe the whole tree; they are computed once, when the tree is made.

    >>> tree = Tree("MIN", [Tree("2"), None, Tree("MAX", [Tree("1"), Tree("3")])])
    >>> print(tree)
    (MIN 2 _ (MAX 1 3))
    >>> tree == Tree.parse("(MIN 2 _ (MAX 1 3))"), tree.size, tree.depth, tree.arity
    (True, 5, 2, 3)
    """

    __slots__ = ("_arity", "_children", "_depth", "_hash", "_label", "_size")
    _label: Label
    _children: "tuple[Tree | None, ...]"
    _size: int
    _depth: int
    _arity: int
    _hash: int

    def __init__(self, label: str | Sequence[float], children: "Iterable[Tree | None]" = ()) -> None:
        if not isinstance(label, str):
            label = _as_vector(label)
        elif has_half_character(label):
            raise TreeError(
                f"expected a label of whole characters, got {shortened(label)} with half of a surrogate pair; remove it."
            )
        children = _as_children(label, children)
        size, depth, arity = 1, 0, len(children)
        for slot, child in enumerate(children):
            if child is None:
                continue
            if not isinstance(child, Tree):
                raise TreeError(
                    f"child {slot} of node {label!r}: expected a Tree, or None for an absent child, "
                    f"got {type(child).__name__} {shortened(child)}; wrap a leaf as Tree({shortened(child)})."
                )
            size += child._size
            if child._depth >= depth:
                depth = child._depth + 1
            if child._arity > arity:
                arity = child._arity
        self._label = label
        self._children = children
        self._size = size
        self._depth = depth
        self._arity = arity
        self._hash = hash((label, children))  # does not recurse: children keep theirs

    @property
    def label(self) -> Label:
        """The label of the root: text, or a tuple of numbers."""
        return self._label

    @property
    def children(self) -> "tuple[Tree | None, ...]":
        """The child slots of the root; an absent child is ``None``."""
        return self._children

    @property
    def size(self) -> int:
        """The number of nodes; absent children do not count."""
        return self._size

    @property
    def depth(self) -> int:
        """The number of edges on the longest path from the root to a leaf; 0 for a single node."""
        return self._depth

    @property
    def arity(self) -> int:
        """The greatest number of child slots of any node."""
        return self._arity

    @property
    def is_leaf(self) -> bool:
        """Whether no child is present."""
        return self._size == 1

    def preorder(self) -> "Iterator[Tree]":
        """Walk all nodes, each before its children, from left to right.

        >>> [node.label for node in Tree.parse("(a (b c) _ d)").preorder()]
        ['a', 'b', 'c', 'd']
        """
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(child for child in reversed(node._children) if child is not None)

    def postorder(self) -> "Iterator[Tree]":
        """Walk all nodes, each after its children, from left to right: the order of a fold.

        >>> [node.label for node in Tree.parse("(a (b c) _ d)").postorder()]
        ['c', 'b', 'd', 'a']
        """
        self._refuse_beyond_memory("walked")
        # Root-right-left, reversed, is left-right-root.
        reverse, stack = [], [self]
        while stack:
            node = stack.pop()
            reverse.append(node)
            stack.extend(child for child in node._children if child is not None)
        return reversed(reverse)

    def map(self, function: Callable[[Label], str | Sequence[float]]) -> "Tree":
        """Return the tree of the same shape with ``function`` applied to every label.

        >>> print(Tree.parse("(a b _ c)").map(str.upper))
        (A B _ C)
        """
        if not callable(function):
            raise TreeError(f"map expects a function from label to label, got {shortened(function)}.")
        done: list[Tree] = []
        for node in self.postorder():
            present = len(node._children) - node._children.count(None)
            mapped = iter(done[len(done) - present :])
            children = [None if child is None else next(mapped) for child in node._children]
            del done[len(done) - present :]
            done.append(Tree(function(node._label), children))
        return done[0]

    @classmethod
    def parse(cls, text: str) -> Self:
        r"""Read an s-expression: ``label`` is a leaf, ``(label child …)`` an inner node, ``_`` an absent child.

        Labels that are empty or ``_``, or contain blanks, brackets or quotes, are written in double quotes with backslash
        escapes; vectors of numbers are written in square brackets.

        >>> Tree.parse('(add "two words" _ [0.5 -1])').children[2].label
        (0.5, -1.0)
        >>> Tree.parse("(MIN 1 (MAX 2")
        Traceback (most recent call last):
        ...
        treefold.errors.ParseError: line 1, column 14: expected ')' to close '(MAX' of column 8, got the end of the text...
        """
        if not isinstance(text, str):
            raise TreeError(
                f"Tree.parse expects text, got {type(text).__name__}; decode bytes, or build the tree with Tree(label, children)."
            )
        open_nodes: list[tuple[Label, list[Tree | None], int]] = []
        root: Tree | None = None
        position = 0
        while True:
            match = _TOKEN.match(text, position)
            if match is None:
                raise _bad_token(text, position)
            start, position = match.start(match.lastindex or 0), match.end()
            bracket, quoted, vector, bare, end = match.groups()
            if root is not None and end is None:
                problem = (
                    f"expected the end of the text after a whole tree, got {text[start]!r}; give one tree at a time"
                )
                raise ParseError(problem, text=text, position=start)
            if bracket == "(":
                label, position = _read_head(text, position)
                open_nodes.append((label, [], start))
                continue
            node: Tree | None
            if bracket == ")":
                if not open_nodes:
                    raise ParseError(
                        "expected a tree, got ')' that closes nothing; remove it", text=text, position=start
                    )
                label, children, _ = open_nodes.pop()
                node = cls(label, children)
            elif end is not None:
                if root is not None:
                    return root
                if open_nodes:
                    raise _unfinished(text, open_nodes[-1][0], open_nodes[-1][2])
                raise ParseError(
                    "expected a tree, got an empty text; write a label or (label …)", text=text, position=0
                )
            elif bare == ABSENT:
                if not open_nodes:
                    raise ParseError(
                        'expected a tree, got the absent child _ alone; write "_" in quotes if it is a label',
                        text=text,
                        position=start,
                    )
                node = None
            else:
                node = cls(_read_label(text, start, quoted, vector, bare))
            if open_nodes:
                open_nodes[-1][1].append(node)
            else:
                root = node  # never None: an absent child outside brackets was refused above

    # Conversions; `objects` has their code, and imports this module.

    @staticmethod
    def from_nested(
        nested: object, *, label: str | None = None, children: str = "children", edge: str | None = None
    ) -> "Tree":
        """Read nested lists, tuples or dicts; a whole number as a label becomes text, ``None`` is an absent child.

        In a list the label comes first, then the children; in a dict they are under the keys ``label`` (if None: "label",
        "name", "tag", "type" or "value") and ``children``, and the label of the edge to the parent is under ``edge``.

        >>> print(Tree.from_nested(["f", "a", ["g", 1, None]]))
        (f a (g 1 _))
        >>> print(Tree.from_nested({"word": "eats", "below": [{"word": "dog", "rel": "nsubj"}]},
        ...                        label="word", children="below", edge="rel"))
        (eats nsubj:dog)
        """
        from treefold.trees import objects

        return objects.from_nested(nested, label=label, children=children, edge=edge)

    def to_nested(
        self, *, form: str = "list", label: str = "label", children: str = "children", edge: str | None = None
    ) -> Any:
        """Write the tree as a nested "list", "tuple" or "dict"; in lists and tuples, leaves with text are the text itself.

        >>> Tree.parse("(f a (g b))").to_nested()
        ['f', 'a', ['g', 'b']]
        >>> Tree.parse("(f a)").to_nested(form="dict", label="name")
        {'name': 'f', 'children': [{'name': 'a'}]}
        """
        from treefold.trees import objects

        return objects.to_nested(self, form=form, label=label, children=children, edge=edge)

    @staticmethod
    def from_parents(
        labels: Iterable[object], parents: Iterable[object], *, edges: Iterable[object] | None = None, start: int = 0
    ) -> "Tree":
        """Read the number of each node's parent; children are in the order of their numbers.

        ``start`` is the number of the first node. The root's parent is ``start - 1``, -1, ``None`` or its own number. ``edges``
        are the labels of the edges to the parents; the root's is ignored.

        >>> print(Tree.from_parents(["the", "dog", "eats"], [1, 2, -1]))
        (eats (dog the))
        >>> print(Tree.from_parents(["the", "dog", "eats"], [2, 3, 0], edges=["det", "nsubj", "root"], start=1))
        (eats (nsubj:dog det:the))
        """
        from treefold.trees import objects

        return objects.from_parents(labels, parents, edges=edges, start=start)

    def to_parents(self, *, start: int = 0) -> tuple[list[Label], list[int]]:
        """Return the labels of the nodes in pre-order, and the numbers of their parents; absent children are left out.

        >>> Tree.parse("(eats (dog the) fish)").to_parents()
        (['eats', 'dog', 'the', 'fish'], [-1, 0, 1, 0])
        """
        from treefold.trees import objects

        return objects.to_parents(self, start=start)

    @staticmethod
    def from_newick(text: str, *, edges: bool = False) -> "Tree":
        """Read Newick notation; nodes without a name have an empty label, ``edges=True`` keeps branch lengths as edge labels.

        >>> print(Tree.from_newick("(chimp:6,human:6)ape;"))
        (ape chimp human)
        >>> print(Tree.from_newick("(chimp:6,human:6)ape;", edges=True))
        (ape 6:chimp 6:human)
        """
        from treefold.trees import objects

        return objects.from_newick(text, edges=edges)

    def to_newick(self, *, edges: bool = False) -> str:
        """Write Newick notation; ``edges=True`` writes edge labels as branch lengths. Absent children are left out.

        >>> Tree.parse('(ape 6:chimp "6:modern human")').to_newick(edges=True)
        "(chimp:6,'modern human':6)ape;"
        """
        from treefold.trees import objects

        return objects.to_newick(self, edges=edges)

    @staticmethod
    def from_nltk(tree: object) -> "Tree":
        """Read a tree of NLTK; a leaf ``(word, tag)`` becomes the node ``(tag word)``.

        >>> import nltk
        >>> print(Tree.from_nltk(nltk.Tree("S", [nltk.Tree("NP", [("dogs", "NNS")]), "bark"])))
        (S (NP (NNS dogs)) bark)
        """
        from treefold.trees import objects

        return objects.from_nltk(tree)

    def to_nltk(self) -> Any:
        """Make a tree of NLTK, whose leaves are text; absent children are left out.

        >>> Tree.parse("(S (NP dogs) bark)").to_nltk()
        Tree('S', [Tree('NP', ['dogs']), 'bark'])
        """
        from treefold.trees import objects

        return objects.to_nltk(self)

    @staticmethod
    def from_networkx(graph: Any, *, label: str = "label", order: str = "order", edge: str | None = None) -> "Tree":
        """Read a directed graph of networkx, whose edges go from parents to children.

        ``label`` is an attribute of nodes; if no node has "label", the names of the nodes are the labels. Children are sorted
        by ``order``, an attribute of edges or nodes; without it they stay as they were added. ``edge`` is an attribute of
        edges, the edge label.

        >>> import networkx
        >>> graph = networkx.DiGraph()
        >>> graph.add_edge("eats", "fish", order=2, rel="obj")
        >>> graph.add_edge("eats", "dog", order=1, rel="nsubj")
        >>> print(Tree.from_networkx(graph), Tree.from_networkx(graph, edge="rel"))
        (eats dog fish) (eats nsubj:dog obj:fish)
        """
        from treefold.trees import objects

        return objects.from_networkx(graph, label=label, order=order, edge=edge)

    def to_networkx(self, *, label: str = "label", order: str = "order", edge: str | None = None) -> Any:
        """Make a directed graph of networkx, edges from parents to children; the nodes are numbers in pre-order.

        Nodes have the attribute ``label``, edges ``order``, the child slot. With ``edge``, edge labels are moved to this
        attribute of edges. Absent children are left out.

        >>> Tree.parse("(f a _ b)").to_networkx().edges(data="order")
        OutEdgeDataView([(0, 1, 0), (0, 2, 2)])
        """
        from treefold.trees import objects

        return objects.to_networkx(self, label=label, order=order, edge=edge)

    @staticmethod
    def from_pyg(data: Any, *, names: Sequence[str] | None = None, edge: str | None = None) -> "Tree":
        """Read a graph of PyTorch Geometric, whose ``edge_index`` goes from children to parents.

        ``x`` has a code for each node, which becomes text or one of ``names``, or a vector. ``slot``, if there, are the
        places of the nodes among their siblings; otherwise children are in the order of their numbers. ``edge`` is the name
        of an attribute with a label for each edge.

        >>> from types import SimpleNamespace  # in place of torch_geometric.data.Data
        >>> data = SimpleNamespace(x=[0, 1, 1], edge_index=[[0, 1], [2, 2]])
        >>> print(Tree.from_pyg(data), Tree.from_pyg(data, names=["a", "f"]))
        (1 0 1) (f a f)
        """
        from treefold.trees import objects

        return objects.from_pyg(data, names=names, edge=edge)

    def to_pyg(self, vocabulary: Iterable[str] | None = None) -> Any:
        """Make a graph of PyTorch Geometric, as `Forest.to_pyg`; without a ``vocabulary``, codes are places in the sorted labels.

        >>> Tree.parse("(f a b)").to_pyg()  # doctest: +SKIP
        Data(x=[3], edge_index=[2, 2], depth=[3], slot=[3])
        """
        from treefold.trees.forest import Forest

        return Forest([self], vocabulary).to_pyg()[0]

    def __str__(self) -> str:
        self._refuse_beyond_memory("written")
        return "".join(self._pieces())

    def _pieces(self) -> Iterator[str]:
        """Yield the s-expression in pieces, so that a reader may stop early."""
        stack: list[Tree | str | None] = [self]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                yield item
            elif item is None:
                yield ABSENT
            elif not item._children:
                yield _written(item._label)
            else:
                yield f"({_written(item._label)}"
                stack.append(")")
                for child in reversed(item._children):
                    stack.append(child)
                    stack.append(" ")

    def __repr__(self) -> str:
        pieces, length = [], 0
        for piece in self._pieces():
            pieces.append(piece)
            length += len(piece)
            if length > 200:
                return f"<Tree of {self._size} nodes, depth {self._depth}: {''.join(pieces)[:200]}…>"
        return f"Tree.parse({''.join(pieces)!r})"

    def _refuse_beyond_memory(self, done: str) -> None:
        if self._size > _LARGEST:
            raise TreeError(
                f"a tree of {self._size} nodes cannot be {done} node by node, at most {_LARGEST} can; "
                f"its shared subtrees are too many when written out."
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        stack: list[tuple[Tree | None, Tree | None]] = [(self, other)]
        # For large trees, remember the pairs already compared: subtrees may be shared thousands of times.
        compared: set[tuple[int, int]] | None = set() if self._size > _LARGE else None
        while stack:
            left, right = stack.pop()
            if left is right:
                continue
            if compared is not None:
                if (id(left), id(right)) in compared:
                    continue
                compared.add((id(left), id(right)))
            if left is None or right is None or left._hash != right._hash or left._label != right._label:
                return False
            if len(left._children) != len(right._children):
                return False
            stack.extend(zip(left._children, right._children, strict=True))
        return True

    def __hash__(self) -> int:
        return self._hash

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        self._refuse_beyond_memory("pickled")
        # Flat lists, since pickle recurses through nested objects. An absent child has width -1.
        labels: list[Label] = []
        widths: list[int] = []
        stack: list[Tree | None] = [self]
        while stack:
            node = stack.pop()
            labels.append("" if node is None else node._label)
            widths.append(-1 if node is None else len(node._children))
            if node is not None:
                stack.extend(node._children)
        return _from_reverse_postorder, (labels, widths)

    def draw(self, *, max_nodes: int = 100, max_depth: int = 20, notes: Sequence[str] | None = None) -> str:
        """Draw the tree for a terminal, one node per line; nodes beyond the limits are counted, not drawn.

        ``notes`` are written after the labels, one for each node in pre-order.

        >>> print(Tree.parse("(MIN 2 _ (MAX 1 3))").draw())
        MIN
        ├── 2
        ├── ⊥
        └── MAX
            ├── 1
            └── 3
        """
        require_limits("draw", max_nodes, max_depth)
        notes = entries_of_nodes("draw", "notes", notes, self._size, "pre-order")
        lines: list[str] = []
        drawn = drawn_at = 0  # nodes drawn; the pre-order index of the next node
        stack: list[tuple[Tree | None, str, str]] = [(self, "", "")]
        while stack:
            node, lead, indent = stack.pop()
            if node is None:
                lines.append(f"{lead}⊥")
                continue
            if drawn >= max_nodes:
                rest = self._size - drawn_at  # the nodes that follow in pre-order are exactly those still to draw
                lines.append(f"{lead}… {rest} more" + (" nodes" if rest > 1 else " node"))
                break
            if len(indent) > 4 * max_depth:
                lines.append(f"{lead}… {node._size} more" + (" nodes" if node._size > 1 else " node"))
                drawn_at += node._size
                continue
            note = notes[drawn_at] if notes is not None else ""
            lines.append(f"{lead}{printable(_written(node._label))}{'  ' + note if note else ''}")
            drawn += 1
            drawn_at += 1
            last = len(node._children) - 1
            for slot in range(last, -1, -1):
                branch, below = ("└── ", "    ") if slot == last else ("├── ", "│   ")
                stack.append((node._children[slot], indent + branch, indent + below))
        return "\n".join(lines)

    def to_svg(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        notes: Sequence[str] | None = None,
        titles: Sequence[str] | None = None,
        colours: Sequence[str | None] | None = None,
        dashed: Collection[int] = (),
        folded: Collection[int] = (),
        unfolded: Collection[int] = (),
        max_nodes: int = 200,
        max_depth: int | None = None,
        name: str | None = None,
    ) -> str:
        """Draw the tree as SVG; return the text, and write it to a file if a ``path`` is given.

        ``notes`` (below the labels), ``titles`` (shown when the mouse is over a node, with the whole label) and ``colours``
        ("#0072B2" or None) have an entry for each node, and nodes are numbered, in post-order: in the order of
        `NodeClassifier.predict`, while `draw` takes pre-order. ``dashed`` nodes have a dashed border. ``name`` is what screen
        readers say.

        Nodes are drawn level by level, at most ``max_nodes``, of larger trees none below ``max_depth`` (None: 20); marks such as
        +12 count those that are hidden. The children of ``folded`` nodes are hidden, those of ``unfolded`` nodes are drawn
        despite the limits.

        >>> tree = Tree.parse("(MIN 2 _ (MAX 1 3))")
        >>> svg = tree.to_svg(notes=["2", "1", "3", "3", "2"], folded=[3])
        >>> "+2" in svg, "2 of 5 nodes are hidden" in svg
        (True, True)
        """
        from treefold.files import atomic_file
        from treefold.trees.drawing import draw_svg

        svg = draw_svg(
            self,
            notes=notes,
            titles=titles,
            colours=colours,
            dashed=dashed,
            folded=folded,
            unfolded=unfolded,
            max_nodes=max_nodes,
            max_depth=max_depth,
            name=name,
        )
        if path is not None:
            with atomic_file(path) as file:
                file.write(svg.encode("utf-8"))
        return svg

    def _repr_svg_(self) -> str:  # in notebooks
        return self.to_svg()


def _as_children(label: object, children: object) -> "tuple[Tree | None, ...]":
    if isinstance(children, (Tree, str)) or not isinstance(children, Iterable):
        raise TreeError(
            f"node {shortened(label)}: expected a list of children, got {type(children).__name__} {shortened(children)}; "
            f"write Tree({shortened(label)}, [child, …])."
        )
    return tuple(children)


def require_limits(owner: str, max_nodes: int, max_depth: int) -> None:
    """Raise unless a drawing can have these limits."""
    require_positive(owner, max_nodes=max_nodes)
    if not isinstance(max_depth, Integral) or max_depth:
        require_positive(owner, max_depth=max_depth)


def entries_of_nodes(owner: str, option: str, values: Any, count: int, order: str) -> list[Any] | None:
    """Return an option with an entry for each node as a list, None if there is none; raise unless notes and titles are texts."""
    if values is None:
        return None
    is_bad = not isinstance(values, Iterable)
    entries = [] if is_bad else list(values)
    if is_bad or (option != "colours" and not all(isinstance(entry, str) for entry in entries)):
        raise TreeError(f"{owner} expects {option} to be a list of texts, got {shortened(values)}.")
    if len(entries) != count:
        raise TreeError(
            f"{owner} expects {option} for each of the {count} nodes, in {order}, got {len(entries)}; "
            f"pad with {'None' if option == 'colours' else repr('')}."
        )
    return entries


def printable(text: str) -> str:
    r"""Escape characters that would move the cursor, break the line or turn its direction.

    >>> printable("a\nb")
    'a\\nb'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _from_reverse_postorder(labels: list[Label], widths: list[int]) -> Tree:
    """Rebuild a pickled tree: the nodes in reverse post-order, absent children included."""
    done: list[Tree | None] = []
    for label, width in zip(reversed(labels), reversed(widths), strict=True):
        if width < 0:
            done.append(None)
            continue
        children = done[len(done) - width :] if width else []
        del done[len(done) - width :]
        done.append(Tree(label, children))
    (root,) = done
    assert root is not None
    return root


def _as_vector(label: object) -> tuple[float, ...]:
    """Return a vector label as a tuple of finite numbers; raise if it is not one.

    >>> _as_vector([1, 2.5])
    (1.0, 2.5)
    """
    if not isinstance(label, Iterable) or isinstance(label, (bytes, bytearray, Mapping, Set)):
        raise TreeError(
            f"a label is text or a vector of numbers, got {type(label).__name__} {shortened(label)}; "
            f"write Tree({shortened(str(label))})."
        )
    try:
        vector = tuple(_finite_float(number) for number in label)
    except (TypeError, ValueError, OverflowError):
        raise TreeError(
            f"a vector label expects numbers, got {shortened(label)}; give a flat list of numbers."
        ) from None
    if not vector:
        raise TreeError("a vector label expects at least one number, got none; use text for nodes without a vector.")
    for index, number in enumerate(vector):
        if not math.isfinite(number):
            raise TreeError(
                f"a vector label expects finite numbers, got {number} at index {index}; replace it, or drop the tree."
            )
    return vector


def _finite_float(number: object) -> float:
    if isinstance(number, str) or not isinstance(number, SupportsFloat):
        raise TypeError(number)
    return float(number)


def _written(label: Label) -> str:
    """Write a label in the notation of s-expressions.

    >>> _written("MAX"), _written("two words"), _written((0.5, 1.0))
    ('MAX', '"two words"', '[0.5 1.0]')
    """
    if isinstance(label, tuple):
        return f"[{' '.join(str(number) for number in label)}]"
    if label != ABSENT and _BARE_LABEL.fullmatch(label):
        return label
    return f'"{"".join(_ESCAPES.get(character, character) for character in label)}"'


def _read_label(text: str, start: int, quoted: str | None, vector: str | None, bare: str | None) -> Label:
    """Return the label of a token."""
    if quoted is not None:
        return re.sub(r"\\(.)", lambda match: _UNESCAPES.get(match[1], match[1]), quoted[1:-1], flags=re.DOTALL)
    if vector is not None:
        try:
            return _as_vector([float(number) for number in vector[1:-1].replace(",", " ").split()])
        except ValueError as problem:
            raise ParseError(
                f"expected numbers in [ ], {problem}; put a label that begins with '[' in quotes",
                text=text,
                position=start,
            ) from None
    assert bare is not None
    return bare


def _read_head(text: str, position: int) -> tuple[Label, int]:
    """Read the label that follows an opening bracket."""
    match = _TOKEN.match(text, position)
    if match is None:
        raise _bad_token(text, position)
    start = match.start(match.lastindex or 0)
    bracket, quoted, vector, bare, end = match.groups()
    if bracket is not None or end is not None or bare == ABSENT:
        got = "the end of the text" if end is not None else repr(bracket or bare)
        raise ParseError(
            f"expected a label after '(', got {got}; write \"\" for an empty label", text=text, position=start
        )
    return _read_label(text, start, quoted, vector, bare), match.end()


def _bad_token(text: str, position: int) -> ParseError:
    """Return the error for a quote, or the bracket of a vector, that is never closed."""
    while text[position].isspace():
        position += 1
    opener, closer = ('"', '"') if text[position] == '"' else ("[", "]")
    return ParseError(f"expected {closer!r} to close {opener!r}, got the end of the text", text=text, position=position)


def _unfinished(text: str, label: Label, start: int) -> ParseError:
    """Return the error for text that ends inside a node."""
    line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
    place = f"column {column}" if line == text.count("\n") + 1 else f"line {line}, column {column}"
    return ParseError(
        f"expected ')' to close '({_written(label)}' of {place}, got the end of the text", text=text, position=len(text)
    )
