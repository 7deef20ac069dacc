"""Forests: many trees in a few flat arrays, and the file that holds them. docs/forest-format.md describes the file."""

import json
import math
import os
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, BinaryIO, Final, NamedTuple, Self, cast, final, overload

import numpy as np
import numpy.typing as npt

from treefold.errors import ForestFileError, ParseError, TreeError, TreeIndexError
from treefold.files import as_path, atomic_file, has_half_character
from treefold.trees.batch import Batch, Ints
from treefold.trees.tree import Label, Tree
from treefold.trees.vocabulary import Vocabulary

# Axes:  N nodes · T trees · V nodes with a vector label · M length of a vector label
Array = npt.NDArray[Any]

_NODE_COLUMNS: Final = ("labels", "parents", "slots", "widths", "depths")
_DTYPES: Final = {**dict.fromkeys(_NODE_COLUMNS, np.int32), "offsets": np.int64, "vectors": np.float64}
_LARGEST: Final = 2**31 - 1
_SHOWN_TREES, _SHOWN_NODES, _SHOWN_LABELS = 3, 60, 10  # in notebooks

MAGIC: Final = b"TREEFOLD"
VERSION: Final = 1
SMALL: Final = 16 * 2**20  # bytes of a file that is verified when it is opened
_PREAMBLE: Final = struct.Struct("<8sIIQ")  # magic, version, CRC-32 of the header, length of the header
_ALIGNMENT: Final = 64
MOST_SLOTS: Final = (
    2**27
)  # of a tree: a small file can name as many absent children as it likes, but memory must hold them
_WIDE: Final = 2**16  # child slots of a node that is only believed once the whole file is verified
_CHUNK: Final = 2**22  # nodes that are verified at a time


class _File(NamedTuple):
    path: Path
    checksums: dict[str, int]


@final
class Forest:
    """A sequence of trees in flat arrays, with their vocabulary.

    The nodes are stored tree after tree, each tree in post-order (children before parents, the root last):

    - ``labels`` (N,): the label's code in ``vocabulary``, or ``-1 - row`` if the label is row ``row`` of ``vectors`` (V, M);
    - ``parents`` (N,): the parent's place within the tree, -1 at the root; ``slots`` (N,): which child of it this node is;
    - ``widths`` (N,): the number of child slots; ``depths`` (N,): the number of edges to the root;
    - ``offsets`` (T+1,): tree ``t`` has the nodes ``offsets[t]:offsets[t + 1]``.

    >>> forest = Forest([Tree.parse("(MIN 2 _ (MAX 1 3))"), Tree.parse("7")])
    >>> len(forest), forest.node_count, forest.arity, forest[0]
    (2, 6, 3, Tree.parse('(MIN 2 _ (MAX 1 3))'))
    >>> list(forest[1:] + forest[:1])
    [Tree.parse('7'), Tree.parse('(MIN 2 _ (MAX 1 3))')]
    """

    _unverified: _File | None = None  # the file that was opened without reading all its data

    def __init__(self, trees: Iterable[Tree | str], vocabulary: Vocabulary | Iterable[str] | None = None) -> None:
        """Take trees or s-expressions; if a ``vocabulary`` is given, all labels must be in it."""
        if isinstance(trees, (Tree, str)) or not isinstance(trees, Iterable):
            raise TreeError(
                f"Forest expects an iterable of trees, got a single {type(trees).__name__}; write Forest([tree])."
            )
        self._set_columns(*_flatten(trees, vocabulary))

    def _set_columns(self, columns: dict[str, Array], vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.labels: npt.NDArray[np.int32] = columns["labels"]
        self.parents: npt.NDArray[np.int32] = columns["parents"]
        self.slots: npt.NDArray[np.int32] = columns["slots"]
        self.widths: npt.NDArray[np.int32] = columns["widths"]
        self.depths: npt.NDArray[np.int32] = columns["depths"]
        self.offsets: Ints = columns["offsets"]
        self.vectors: npt.NDArray[np.float64] = columns["vectors"]

    @classmethod
    def _of(cls, columns: dict[str, Array], vocabulary: Vocabulary) -> Self:
        forest = cls.__new__(cls)
        forest._set_columns(columns, vocabulary)
        return forest

    @classmethod
    def from_preorder(
        cls,
        labels: npt.ArrayLike,
        child_counts: npt.ArrayLike,
        sizes: npt.ArrayLike,
        vocabulary: Vocabulary | Iterable[str],
    ) -> Self:
        """Make a forest from columns: the label codes and child counts of all nodes (N,), and the trees' sizes (T,).

        The nodes stand tree after tree, each tree in pre-order (parents before children); no child is absent.

        >>> list(Forest.from_preorder([0, 1, 2, 2, 1], [2, 1, 0, 0, 0], [4, 1], ["f", "g", "x"]))
        [Tree.parse('(f (g x) x)'), Tree.parse('g')]
        """
        names = vocabulary if isinstance(vocabulary, Vocabulary) else Vocabulary(vocabulary)
        codes, counts, lengths = map(_whole_numbers, (labels, child_counts, sizes), ("labels", "child_counts", "sizes"))
        places, columns = _from_preorder(codes, counts, lengths, len(names))
        flat: dict[str, Array] = {"offsets": np.append(0, np.cumsum(lengths)), "vectors": np.zeros((0, 0))}
        for name, column in columns.items():
            flat[name] = np.empty(len(codes), np.int32)
            flat[name][places] = column
        return cls._of(flat, names)

    @property
    def node_count(self) -> int:
        """The number of nodes of all trees."""
        return len(self.labels)

    @property
    def sizes(self) -> Ints:
        """The number of nodes of each tree, (T,)."""
        return np.diff(self.offsets)

    @property
    def arity(self) -> int:
        """The greatest number of child slots of any node."""
        self.verify()
        return int(self.widths.max(initial=0))

    @property
    def depth(self) -> int:
        """The depth of the deepest tree."""
        self.verify()
        return int(self.depths.max(initial=0))

    @property
    def parent_rows(self) -> Ints:
        """The row of each node's parent in the columns, (N,); -1 at the roots.

        >>> Forest(["(f a)", "(g b c)"]).parent_rows.tolist()
        [1, -1, 4, 4, -1]
        """
        self.verify()
        rows = np.add(np.repeat(self.offsets[:-1], self.sizes), self.parents, dtype=np.int64)
        rows[self.offsets[1:] - 1] = -1
        return rows

    @property
    def child_counts(self) -> Ints:
        """The number of children of each node, (N,); absent children do not count.

        >>> Forest(["(f a _)", "(g b c)"]).child_counts.tolist()
        [0, 1, 0, 0, 2]
        """
        rows = self.parent_rows
        return np.bincount(rows[rows >= 0], minlength=self.node_count)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Tree]:
        self.verify()
        return (self._tree(index) for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Tree: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[np.integer]) -> "Forest": ...
    def __getitem__(self, index: "int | slice | Sequence[int] | npt.NDArray[np.integer]") -> "Tree | Forest":
        """Return a tree for a number, a forest for a slice or an array of numbers."""
        if isinstance(index, (int, np.integer)):
            position = int(index) + (len(self) if index < 0 else 0)
            if isinstance(index, bool) or not 0 <= position < len(self):
                raise TreeIndexError(f"expected the number of one of {len(self)} trees, got {index}.")
            self._check(np.array([position]))
            return self._tree(position)
        rows, sizes = self._rows(self._indices(index))
        columns: dict[str, Array] = {name: getattr(self, name)[rows] for name in _NODE_COLUMNS}
        columns["offsets"] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        columns["labels"], columns["vectors"] = _own_vectors(columns["labels"], self.vectors)
        return Forest._of(columns, self.vocabulary)

    def __add__(self, other: "Forest") -> "Forest":
        return Forest.concatenate([self, other])

    @staticmethod
    def concatenate(forests: "Iterable[Forest]") -> "Forest":
        """Join forests into one, with the labels of all of them; the codes of the first forest stay the same."""
        forests = list(forests) if isinstance(forests, Iterable) else [forests]
        for forest in forests:
            if not isinstance(forest, Forest):
                raise TreeError(
                    f"Forest.concatenate expects a list of forests, got {shortened(forest)}; write [forest, …]."
                )
        if not forests:
            return Forest([])
        for forest in forests:
            forest.verify()
        names = list(dict.fromkeys(name for forest in forests for name in forest.vocabulary))
        vocabulary = forests[0].vocabulary if len(names) == len(forests[0].vocabulary) else Vocabulary(names)
        sizes = {forest.vectors.shape[1] for forest in forests if len(forest.vectors)}
        if len(sizes) > 1:
            raise TreeError(f"vector labels of one forest have one length, got {sorted(sizes)}; pad the shorter ones.")
        columns: dict[str, Array] = {
            name: np.concatenate([getattr(forest, name) for forest in forests])
            for name in ("parents", "slots", "widths", "depths")
        }
        labels, vectors, vector_count = [], [], 0
        for forest in forests:
            table = np.append(forest.vocabulary.codes_in(vocabulary), 0)  # never empty
            text = forest.labels >= 0
            labels.append(np.where(text, table[np.where(text, forest.labels, -1)], forest.labels - vector_count))
            vector_count += len(forest.vectors)
            vectors.append(forest.vectors if len(forest.vectors) else np.zeros((0, max(sizes, default=0))))
        columns["labels"] = np.concatenate(labels).astype(np.int32)
        columns["vectors"] = np.concatenate(vectors)
        columns["offsets"] = np.concatenate([[0], np.cumsum(np.concatenate([f.sizes for f in forests]))]).astype(
            np.int64
        )
        return Forest._of(columns, vocabulary)

    def batch(self, indices: "slice | Sequence[int] | npt.NDArray[np.integer] | None" = None) -> Batch:
        """Return the nodes of the chosen trees, or of all trees, as a `Batch`.

        >>> Forest(["(MIN 2 (MAX 1 3))", "7"]).batch([1, 0]).schedule.level_sizes.tolist()  # deepest level first
        [2, 2, 2]
        """
        rows: slice | Ints
        if indices is None:
            self.verify()
            rows, sizes = slice(None), self.sizes
        else:
            rows, sizes = self._rows(self._indices(indices))
        if not len(sizes):
            raise TreeError("a batch expects at least one tree, got none; skip empty batches.")
        labels, vectors = _own_vectors(self.labels[rows].astype(np.int64), self.vectors)
        roots = np.cumsum(sizes) - 1
        parents = np.add(np.repeat(roots + 1 - sizes, sizes), self.parents[rows], dtype=np.int64)
        slots = self.slots[rows].astype(np.int64)
        parents[roots], slots[roots] = -1, 0
        return Batch(
            vocabulary=self.vocabulary,
            labels=labels,
            vectors=vectors,
            parents=parents,
            slots=slots,
            roots=roots,
        )

    def node_rows(self, indices: "slice | Sequence[int] | npt.NDArray[np.integer]") -> Ints:
        """Return the rows of the chosen trees' nodes in the columns, in the order of a batch's nodes.

        >>> Forest(["(f a)", "b"]).node_rows([1, 0]).tolist()
        [2, 0, 1]
        """
        return self._rows(self._indices(indices))[0]

    def to_pyg(self, *, batch: bool = False) -> Any:
        """Make graphs of PyTorch Geometric, for message passing of your own: a list of ``Data``, or one ``Batch``.

        Nodes are in post-order, the root is the last. Each graph has ``x`` (N,), codes in ``vocabulary``, or (N, M) if labels are
        vectors; ``edge_index`` (2, N-1) from children to parents; ``depth`` (N,) and ``slot`` (N,).

        >>> Forest(["(f a b)", "c"]).to_pyg()  # doctest: +SKIP
        [Data(x=[3], edge_index=[2, 2], depth=[3], slot=[3]), Data(x=[1], edge_index=[2, 0], depth=[1], slot=[1])]
        """
        from treefold.trees.objects import forest_to_pyg  # which also imports trees

        return forest_to_pyg(self, batch=batch)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the forest to one file, atomically; `open` maps it."""
        self.verify()
        columns = {name: getattr(self, name) for name in _DTYPES}
        write_columns(path, {"kind": "forest", "vocabulary": list(self.vocabulary)}, columns)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool | None = None) -> Self:
        """Open a saved forest as a memory map: most of it is read only when it is used.

        ``verify=True`` reads everything and checks it: checksums, and that the arrays describe trees. By default files of up
        to 16 MiB are verified. Of larger files, each tree is checked when it is used: all its values must be in their range.
        """
        facts, columns = read_columns(path, kind="forest", verify=False)
        for name, dtype in _DTYPES.items():
            if name not in columns or columns[name].dtype != dtype:
                got = columns[name].dtype if name in columns else "none"
                raise ForestFileError(
                    f"{path}: expected a column {name!r} of {np.dtype(dtype)}, got {got}; write the file again."
                )
        names = facts.get("vocabulary")
        if (
            not isinstance(names, list)
            or not all(isinstance(name, str) and not has_half_character(name) for name in names)
            or len({*names}) < len(names)
        ):
            raise ForestFileError(
                f"{path}: expected a vocabulary of distinct text labels, got {shortened(names)}; write the file again."
            )
        forest = cls._of(columns, Vocabulary(names))
        forest._unverified = _File(Path(path), {name: facts["checksums"][name] for name in _DTYPES})
        problem = _outline_problem(forest)
        if problem:
            raise _damaged(path, problem)
        if verify or (verify is None and Path(path).stat().st_size <= SMALL):
            forest.verify()
        return forest

    def verify(self) -> None:
        """Read and check all data of a forest that was opened without verification; does nothing the second time.

        Raises `ForestFileError` if a checksum is wrong or the arrays do not describe trees.
        """
        if self._unverified is None:
            return
        path, checksums = self._unverified
        verify_columns(path, {name: getattr(self, name) for name in _DTYPES}, checksums)
        first = 0
        while first < len(self):  # some million nodes at a time, to save memory
            end = int(np.searchsorted(self.offsets, self.offsets[first] + _CHUNK, side="right")) - 1
            end = max(end, first + 1)
            rows = slice(int(self.offsets[first]), int(self.offsets[end]))
            found = _tree_problem(self, rows, np.diff(self.offsets[first : end + 1]))
            if found:
                raise _damaged(path, f"tree {first + found[0]} has {found[1]}")
            first = end
        self._unverified = None

    def _check(self, chosen: Ints) -> None:
        """Raise unless the chosen trees of an unverified file are trees."""
        if self._unverified is None or not len(chosen):
            return
        rows, sizes = _rows(self.offsets, chosen)
        if self.widths[rows].max() > _WIDE:
            self.verify()  # rare, and the tree would need much memory: rather read the whole file
            return
        found = _tree_problem(self, rows, sizes)
        if found:
            raise _damaged(self._unverified.path, f"tree {chosen[found[0]]} has {found[1]}")

    def __repr__(self) -> str:
        return f"<Forest of {len(self)} trees, {self.node_count} nodes, {len(self.vocabulary)} text labels>"

    def _repr_html_(self) -> str:
        """Return a table of sizes and the first trees, for notebooks; data of a large file that was not read yet stay unread."""
        from treefold.trees.drawing import html_box, html_table

        sizes = self.sizes
        largest = f", {int(sizes.max()):,} in the largest tree" if len(self) else ""
        names = [shortened(name) for name in islice(self.vocabulary, _SHOWN_LABELS)]
        more = ", …" if len(self.vocabulary) > len(names) else ""
        facts = [("trees", f"{len(self):,}"), ("nodes", f"{self.node_count:,}{largest}")]
        if self._unverified is None:
            facts += [("depth", f"{self.depth:,}"), ("most children", f"{self.arity:,}")]
        facts.append(("text labels", f"{len(self.vocabulary):,}" + (f": {', '.join(names)}{more}" if names else "")))
        if len(self.vectors):
            facts.append(("vector labels", f"{len(self.vectors):,} of length {self.vectors.shape[1]}"))
        shown = [self[number] for number in range(min(len(self), _SHOWN_TREES))]
        drawn = [
            f"<figure><figcaption>tree {number}</figcaption>{tree.to_svg(max_nodes=_SHOWN_NODES)}</figure>"
            for number, tree in enumerate(shown)
        ]
        return html_box(html_table(facts), *drawn)

    def _indices(self, index: "slice | Sequence[int] | npt.NDArray[np.integer]") -> Ints:
        return chosen_numbers(index, len(self), "trees")

    def _rows(self, chosen: Ints) -> tuple[Ints, Ints]:
        """Check the chosen trees; return the rows of their nodes, in their order, and the trees' sizes."""
        self._check(chosen)
        return _rows(self.offsets, chosen)

    def _tree(self, index: int) -> Tree:
        nodes = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        children: list[list[Tree | None]] = [[None] * width for width in self.widths[nodes].tolist()]
        columns = (self.labels[nodes].tolist(), self.parents[nodes].tolist(), self.slots[nodes].tolist(), children)
        for code, parent, slot, own in zip(*columns, strict=True):
            label = self.vocabulary[code] if code >= 0 else self.vectors[-1 - code].tolist()
            tree = Tree(label, own)
            if parent >= 0:
                children[parent][slot] = tree
        return tree


def chosen_numbers(index: "slice | Sequence[int] | npt.NDArray[np.integer]", count: int, what: str) -> Ints:
    """Return the numbers of the trees or other things, ``count`` in all, that a slice, a list or a mask chooses.

    >>> chosen_numbers([0, -1], 5, "trees"), chosen_numbers([True, False], 2, "trees")
    (array([0, 4]), array([0]))
    """
    if isinstance(index, slice):
        try:
            return np.arange(*index.indices(count), dtype=np.int64)
        except (TypeError, ValueError) as problem:
            raise TreeError(f"{what} are chosen by a slice of whole numbers, got {index} ({problem}).") from None
    chosen: npt.NDArray[Any] = index if isinstance(index, np.ndarray) else _as_array(index)
    if chosen.dtype == bool and chosen.shape == (count,):
        return np.flatnonzero(chosen)
    if chosen.size and (chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer)):
        raise TreeError(
            f"{what} are chosen by a flat list of whole numbers, or a mask of {count} booleans, "
            f"got an array of {chosen.dtype} with shape {chosen.shape}."
        )
    if not chosen.size or (chosen.min() >= 0 and chosen.max() < count):  # at each step of a training: few calls
        return chosen.astype(np.int64, copy=False).reshape(-1)
    outside = chosen[(chosen < -count) | (chosen >= count)]  # of uint64, too, which int64 may not hold
    if outside.size:
        raise TreeIndexError(f"expected the numbers of some of {count} {what}, got {outside[0]}.")
    chosen = chosen.astype(np.int64, copy=False)
    return np.where(chosen < 0, chosen + count, chosen)


def _rows(offsets: Ints, chosen: Ints) -> tuple[Ints, Ints]:
    starts = offsets[chosen]
    sizes = offsets[chosen + 1] - starts
    ends = np.cumsum(sizes)
    return np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1] if len(ends) else 0), sizes


def _as_array(index: object) -> npt.NDArray[Any]:
    try:
        return np.asarray(index)
    except (ValueError, TypeError, RuntimeError):  # the last of tensors with a gradient
        raise TreeError(f"trees are chosen by a flat list of whole numbers, got {shortened(index)}.") from None


def _flatten(
    trees: Iterable[Tree | str], vocabulary: Vocabulary | Iterable[str] | None
) -> tuple[dict[str, Array], Vocabulary]:
    """Write trees into the columns of a forest; return them with the vocabulary."""
    given = vocabulary if isinstance(vocabulary, Vocabulary) or vocabulary is None else Vocabulary(vocabulary)
    codes: dict[Label, int] = {} if given is None else {name: code for code, name in enumerate(given)}
    columns = {name: array("i") for name in _NODE_COLUMNS}
    offsets = array("q", [0])
    vectors: list[tuple[float, ...]] = []
    for number, tree in enumerate(trees):
        if isinstance(tree, str):
            tree = _parsed(tree, number)
        if not isinstance(tree, Tree):
            raise TreeError(
                f"tree {number}: expected a Tree or an s-expression, got {type(tree).__name__} {shortened(tree)}; "
                f"build it with Tree(label, children), or convert it with treefold.as_tree."
            )
        labels: list[int] = []
        parents: list[int] = []
        slots: list[int] = []
        widths: list[int] = []
        depths: list[int] = []
        if tree.size > _LARGEST:
            raise TreeError(f"tree {number}: expected at most {_LARGEST} nodes, got {tree.size}; it shares subtrees.")
        # Root first, right before left: reversed, that is post-order. A node's place then is `last - its place here`.
        last = tree.size - 1
        stack: list[tuple[Tree, int, int, int]] = [(tree, -1, 0, 0)]
        while stack:
            node, parent, slot, depth = stack.pop()
            label, children = node._label, node._children
            code = codes.get(label)
            if code is None:
                code = _new_code(label, number, given, codes, vectors)
            place = last - len(labels)
            labels.append(code)
            parents.append(parent)
            slots.append(slot)
            widths.append(len(children))
            depths.append(depth)
            for child_slot, child in enumerate(children):
                if child is not None:
                    stack.append((child, place, child_slot, depth + 1))
        for name, values in zip(_NODE_COLUMNS, (labels, parents, slots, widths, depths), strict=True):
            values.reverse()
            columns[name].extend(values)
        if sum(widths) > MOST_SLOTS:
            raise TreeError(
                f"tree {number}: expected at most {MOST_SLOTS:,} child slots, got {sum(widths):,}; leave absent children out."
            )
        offsets.append(offsets[-1] + last + 1)
    flat: dict[str, Array] = {name: np.array(column, dtype=np.int32) for name, column in columns.items()}
    flat["offsets"] = np.array(offsets, dtype=np.int64)
    flat["vectors"] = np.array(vectors, dtype=np.float64).reshape(len(vectors), len(vectors[0]) if vectors else 0)
    if given is not None:
        return flat, given
    # Sorted, so that the codes depend on the set of the labels alone and not on which tree came first.
    found = Vocabulary(cast(dict[str, int], codes))
    ordered = Vocabulary(sorted(found))
    table = np.append(found.codes_in(ordered), 0).astype(np.int32)  # never empty
    flat["labels"] = np.where(flat["labels"] >= 0, table[np.maximum(flat["labels"], 0)], flat["labels"])
    return flat, ordered


def _whole_numbers(values: npt.ArrayLike, name: str) -> Ints:
    found = _as_array(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise TreeError(
            f"Forest.from_preorder expects {name} to be a flat list of whole numbers, got {shortened(values)}."
        )
    return found.astype(np.int64)


def _from_preorder(labels: Ints, counts: Ints, sizes: Ints, names: int) -> tuple[Ints, dict[str, Ints]]:
    """Return each node's place in post-order (N,), and the columns of the nodes in pre-order."""
    nodes, trees, rows = len(labels), len(sizes), np.arange(len(labels))
    if len(counts) != nodes or (sizes < 1).any() or sizes.sum() != nodes:
        raise TreeError(
            f"Forest.from_preorder expects a label and a child count for each node of trees of at least one node, got "
            f"{nodes} labels, {len(counts)} child counts and sizes {shortened(sizes.tolist())}, in all {sizes.sum()}."
        )
    for what, values, end in [("label codes", labels, names), ("child counts", counts, nodes)]:
        if nodes and not 0 <= values.min() <= values.max() < end:
            raise TreeError(
                f"Forest.from_preorder expects {what} from 0 to {end - 1}, got {values.min()} to {values.max()}."
            )
    tree_of, ends = np.repeat(np.arange(trees), sizes), np.cumsum(sizes)
    due = np.cumsum(counts - 1) + trees  # nodes that are announced, but have not come yet, after each node
    wrong = np.flatnonzero((due == trees - 1 - tree_of) != np.isin(rows, ends - 1))
    if len(wrong):
        tree = int(tree_of[wrong[0]])
        raise TreeError(
            f"tree {tree}: expected {sizes[tree]} nodes in pre-order, got child counts of more or fewer; correct `sizes`."
        )
    # The subtree of a node ends where, for the first time, one node fewer is due than before it.
    keys = due * nodes + rows
    order = np.argsort(keys)
    last = order[np.searchsorted(keys[order], (due - counts) * nodes + rows)]
    depths = (
        rows - np.cumsum(np.bincount(last + 1, minlength=nodes + 1))[:nodes]
    )  # the nodes before it that have not ended
    places = last - depths
    # Level by level, the children stand in the order of their parents.
    order = np.argsort(depths, kind="stable")
    widths = counts[order]
    parents, slots = np.full(nodes, -1), np.zeros(nodes, np.int64)
    above = np.repeat(order, widths)
    parents[order[trees:]] = places[above] - (ends - sizes)[tree_of[above]]
    slots[order[trees:]] = np.arange(nodes - trees) - np.repeat(np.cumsum(widths) - widths, widths)
    return places, {"labels": labels, "parents": parents, "slots": slots, "widths": counts, "depths": depths}


def _parsed(text: str, number: int) -> Tree:
    try:
        return Tree.parse(text)
    except ParseError as problem:
        problem.args = (f"tree {number}: {problem}",)
        raise


def _new_code(
    label: Label, number: int, given: Vocabulary | None, codes: dict[Label, int], vectors: list[tuple[float, ...]]
) -> int:
    if isinstance(label, tuple):
        if vectors and len(vectors[0]) != len(label):
            raise TreeError(
                f"tree {number}: expected a vector label of {len(vectors[0])} numbers as before, got {len(label)}; pad it."
            )
        vectors.append(label)
        return -len(vectors)
    if given is not None:
        problem = given.unknown(label)
        raise type(problem)(f"tree {number}: {problem}")
    codes[label] = len(codes)
    return codes[label]


def _own_vectors(
    labels: npt.NDArray[Any], vectors: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float64]]:
    """Copy the vectors of chosen nodes into a new table, and renumber the nodes' labels in place."""
    if not len(vectors):
        return labels, vectors
    with_vector = np.flatnonzero(labels < 0)
    table = vectors[-1 - labels[with_vector]]
    labels[with_vector] = -1 - np.arange(len(with_vector))
    return labels, table


def _damaged(path: str | os.PathLike[str], problem: str) -> ForestFileError:
    return ForestFileError(f"{path}: the file is damaged: {problem}; copy or write it again.")


def _outline_problem(forest: Forest) -> str:
    """Describe the problem with the lengths of the columns and of the trees; return an empty text if there is none."""
    offsets = forest.offsets
    if (
        {getattr(forest, name).ndim for name in _NODE_COLUMNS} != {1}
        or len({len(getattr(forest, name)) for name in _NODE_COLUMNS}) > 1
        or offsets.ndim != 1
        or forest.vectors.ndim != 2
    ):
        return "columns of different length"
    nodes = forest.node_count
    if not len(offsets) or offsets[0] != 0 or offsets[-1] != nodes:
        return "tree offsets that do not span the nodes"
    empty = np.flatnonzero(offsets[1:] <= offsets[:-1])  # a difference could overflow
    return f"tree {int(empty[0])} has no nodes" if len(empty) else ""


def _tree_problem(forest: Forest, rows: slice | Ints, sizes: Ints) -> tuple[int, str] | None:
    """Return the first damaged tree, by its place among the given ones, and its problem; None if all are sound."""
    labels, parents, slots, widths, depths = (getattr(forest, name)[rows] for name in _NODE_COLUMNS)
    ends = np.cumsum(sizes)
    places = np.arange(len(labels)) - np.repeat(ends - sizes, sizes)
    own_sizes = np.repeat(sizes, sizes)
    is_root = places == own_sizes - 1

    def first(is_bad: npt.NDArray[np.bool_], problem: str) -> tuple[int, str] | None:
        nodes = np.flatnonzero(is_bad)
        return (int(np.searchsorted(ends, nodes[0], side="right")), problem) if len(nodes) else None

    problem = (
        first((labels >= len(forest.vocabulary)) | (labels < -len(forest.vectors)), "labels outside the vocabulary")
        or first(widths < 0, "a negative number of child slots")
        or first((parents == -1) != is_root, "parents that do not follow their children")
        or first(~is_root & (parents <= places), "parents that do not follow their children")
        or first(parents >= own_sizes, "parents outside their tree")
    )
    if not problem and len(sizes):
        slots_of_trees = np.add.reduceat(widths, ends - sizes, dtype=np.int64)
        first_wide = np.flatnonzero(slots_of_trees > MOST_SLOTS)
        problem = (int(first_wide[0]), f"more than {MOST_SLOTS:,} child slots") if len(first_wide) else None
    if problem:
        return problem
    with_vector = np.flatnonzero(labels < 0)
    finite = np.ones(len(labels), bool)
    finite[with_vector] = np.isfinite(forest.vectors[-1 - labels[with_vector]]).all(1)
    nodes = np.flatnonzero(~is_root)
    parent_rows, slots = np.repeat(ends - sizes, sizes)[nodes] + parents[nodes], slots[nodes].astype(np.int64)
    outside, wrong_depth = np.zeros(len(labels), bool), is_root & (depths != 0)
    outside[nodes] = (slots < 0) | (slots >= widths[parent_rows])
    wrong_depth[nodes] = depths[nodes] != depths[parent_rows] + 1
    taken = np.sort(parent_rows << 31 | slots & _LARGEST)
    twice = np.zeros(len(labels), bool)
    twice[taken[1:][taken[1:] == taken[:-1]] >> 31] = True
    return (
        first(~finite, "vector labels that are not finite")
        or first(outside, "children outside the slots of their parent")
        or first(twice, "two children in one slot")
        or first(wrong_depth, "depths that are not those of the parents plus one")
    )


def write_columns(path: str | os.PathLike[str], facts: Mapping[str, Any], columns: Mapping[str, Array]) -> None:
    """Write facts (JSON) and named arrays to one file, atomically.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_columns(Path(folder) / "x", {"kind": "demo"}, {"a": np.arange(3, dtype=np.int32)})
    ...     facts, columns = read_columns(Path(folder) / "x", kind="demo")
    >>> columns["a"]
    array([0, 1, 2], dtype=int32)
    """
    arrays = {
        name: np.ascontiguousarray(column).astype(column.dtype.newbyteorder("<")) for name, column in columns.items()
    }
    table: dict[str, dict[str, Any]] = {}
    offset = 0  # relative to the end of the header, so that the header need not know its own length
    for name, column in arrays.items():
        table[name] = {
            "dtype": column.dtype.str,
            "shape": list(column.shape),
            "offset": offset,
            "crc32": zlib.crc32(_raw(column)),
        }
        offset += _aligned(column.nbytes)
    header = json.dumps({**facts, "columns": table, "bytes": offset}).encode()
    header += b" " * (_aligned(_PREAMBLE.size + len(header)) - _PREAMBLE.size - len(header))

    with atomic_file(path) as file:
        file.write(_PREAMBLE.pack(MAGIC, VERSION, zlib.crc32(header), len(header)))
        file.write(header)
        for column in arrays.values():
            file.write(_raw(column))
            file.write(b"\0" * (_aligned(column.nbytes) - column.nbytes))


def read_columns(
    path: str | os.PathLike[str], *, kind: str, verify: bool | None = None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Open a file of columns: return its facts, the columns' checksums among them, and its arrays as read-only memory maps.

    Magic, version, the header's checksum and the file's size are always checked; ``verify`` also reads all data and checks
    their checksums, by default in files of up to 16 MiB.
    """
    path = as_path(path)
    if not path.is_file():
        raise ForestFileError(
            f"{path}: expected a {kind} file, got {'a directory' if path.is_dir() else 'no such file'}."
        )
    size = path.stat().st_size
    with _readable(path) as file:
        preamble = file.read(_PREAMBLE.size)
        if len(preamble) < _PREAMBLE.size or not preamble.startswith(MAGIC):
            raise ForestFileError(
                f"{path}: expected a treefold {kind} file, which begins with {MAGIC.decode()}, got {preamble[:8]!r}; "
                f"make one with Forest(trees).save(path)."
            )
        _, version, checksum, header_size = _PREAMBLE.unpack(preamble)
        if version != VERSION:
            raise ForestFileError(
                f"{path}: expected format version {VERSION}, got {version}; "
                f"open it with the version of treefold that wrote it, or write it again."
            )
        header = file.read(min(header_size, size))
    if len(header) < header_size:
        raise _truncated(path, kind, _PREAMBLE.size + header_size, size)
    if zlib.crc32(header) != checksum:
        raise _damaged(path, "the checksum of the header is wrong")
    facts = _checked_facts(path, header, kind)
    start = _PREAMBLE.size + header_size
    if size != start + facts["bytes"]:
        raise _truncated(path, kind, start + facts["bytes"], size)
    data: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
    if facts["bytes"]:
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=0).view(np.ndarray)[start:]
    arrays: dict[str, Array] = {}
    checksums: dict[str, int] = {}
    for name, (dtype, shape, offset, checksum) in facts.pop("columns").items():
        raw = data[offset : offset + dtype.itemsize * math.prod(shape)]
        try:
            arrays[name] = raw.view(dtype).reshape(shape)
        except (ValueError, OverflowError) as problem:  # no values, but so many rows that numpy has no number for them
            raise _damaged(path, f"column {name!r} has the shape {shape} ({problem})") from None
        checksums[name] = checksum
    if verify or (verify is None and size <= SMALL):
        verify_columns(path, arrays, checksums)
    return {**facts, "checksums": checksums}, arrays


def verify_columns(path: str | os.PathLike[str], columns: Mapping[str, Array], checksums: Mapping[str, int]) -> None:
    """Read all data of a file of columns; raise unless each column has its checksum."""
    for name, checksum in checksums.items():
        if zlib.crc32(_raw(columns[name])) != checksum:
            raise _damaged(path, f"the checksum of column {name!r} is wrong")


@contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as problem:
        raise ForestFileError(f"{path}: expected a file that can be read, got {problem.strerror or problem}.") from None


def _checked_facts(path: Path, header: bytes, kind: str) -> dict[str, Any]:
    """Read the header; return its facts, with the dtype, shape, offset and checksum of each column, which lie in the file."""
    try:
        facts = json.loads(header)
        found = facts.get("kind")
        if found != kind:
            raise ForestFileError(f"{path}: expected a {kind} file, got a file of kind {found!r}.")
        if not _is_size(total := facts["bytes"]):
            raise ValueError(f"a size of {total!r}")
        columns = {}
        for name, entry in facts["columns"].items():
            dtype, shape, offset = np.dtype(entry["dtype"]), entry["shape"], entry["offset"]
            if dtype.kind not in "iuf" or type(shape) is not list or not all(map(_is_size, [*shape, offset])):
                raise ValueError(f"the column {name!r} as {entry}")
            if offset % _ALIGNMENT or offset + dtype.itemsize * math.prod(shape) > total:
                raise ValueError(f"the column {name!r} outside the file")
            columns[name] = (dtype, shape, offset, entry["crc32"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        if isinstance(problem, ForestFileError):
            raise
        raise _damaged(path, f"its header does not describe columns ({type(problem).__name__}: {problem})") from None
    return {**facts, "columns": columns}


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _raw(column: Array) -> memoryview:
    return memoryview(column.reshape(-1).view(np.uint8).data)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _truncated(path: Path, kind: str, expected: int, got: int) -> ForestFileError:
    state = "truncated" if got < expected else "longer than written"
    return ForestFileError(
        f"{path}: expected a {kind} file of {expected} bytes, got {got}; it is {state}, copy or write it again."
    )
