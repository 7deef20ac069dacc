"""ListOps (Nangia & Bowman 2018): nested operations on lists of digits, whose value is again a digit.

A tree is a digit with probability 0.75, and always at depth 20; else it is an operator, drawn evenly from MIN, MAX, MED and SM,
with two to five operands (evenly), each drawn one level deeper. The root has depth 1 and is drawn like every other node; trees
are drawn until there are as many distinct ones as asked for. The published figures of the 10,000 original trees agree with this:
at most 19 operators are nested, not 20; and because a set has at most ten single digits, and few distinct small trees, the mean
number of operators is 9.2, not the 2 of the plain draws. No rule against trivial trees is needed.
"""

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final, Literal

import numpy as np

from treefold.data.dataset import Dataset
from treefold.data.generators.common import (
    PROGRESS_EVERY,
    Lines,
    Paths,
    Progress,
    Split,
    generator,
    names_of,
    read_files,
    read_lines,
    shuffled,
)
from treefold.data.readers.stream import OnBad
from treefold.errors import (
    ConfigurationError,
    ParseError,
    TreeError,
    nearest,
    require_choice,
    require_positive,
)
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

Placement = Literal["left", "random"]
Place = Callable[[list[Tree]], Sequence[Tree | None]]
"""A function that puts the operands of a node into its child slots."""


def _median(values: list[int]) -> int:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


def _sum_modulo(values: list[int]) -> int:
    return sum(values) % 10


OPERATORS: Final[dict[str, Callable[[list[int]], int]]] = {"MIN": min, "MAX": max, "MED": _median, "SM": _sum_modulo}
"""The operators, by label: least, greatest, median truncated to an integer, sum modulo 10."""

_DIGITS: Final = {str(digit): digit for digit in range(10)}
_LEAVES: Final = {label: Tree(label) for label in _DIGITS}  # shared: trees are values
_TOKEN: Final = re.compile(r"[()\]]|\[[^\s()\[\]]*|[^\s()\[\]]+")
_PATIENCE: Final = 100_000  # draws without a new tree before the settings are called exhausted
_VAST: Final = 1e6  # expected nodes of a tree that no one can mean


@dataclass(frozen=True)
class ListOpsSettings:
    """The distribution of the trees; the defaults are those of the paper.

    ``max_nodes``: a tree with more nodes is drawn again. ``placement``: operands fill the child slots from the ``"left"``, or are
    put into ``"random"`` ones of ``max_operands`` slots, the others empty (⊥). Both give the same expressions for a seed.

    >>> ListOpsSettings(operators=("MIN", "MXA"))
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: ListOpsSettings expects operators to be one of 'MIN', 'MAX', 'MED', 'SM', got 'MXA'...
    """

    max_depth: int = 20
    value_probability: float = 0.75
    min_operands: int = 2
    max_operands: int = 5
    operators: tuple[str, ...] = tuple(OPERATORS)
    max_nodes: int | None = None
    placement: Placement = "left"

    def __post_init__(self) -> None:
        owner = type(self).__name__
        require_positive(
            owner, max_depth=self.max_depth, min_operands=self.min_operands, max_operands=self.max_operands
        )
        if self.max_nodes is not None:
            require_positive(owner, max_nodes=self.max_nodes)
        require_choice(owner, "placement", self.placement, ("left", "random"))
        if self.min_operands > self.max_operands:
            raise ConfigurationError(
                f"{owner} expects min_operands <= max_operands, got {self.min_operands} and {self.max_operands}; swap them."
            )
        if not isinstance(self.value_probability, (int, float)) or not 0 <= self.value_probability <= 1:
            raise ConfigurationError(
                f"{owner} expects value_probability from 0 to 1, got {self.value_probability!r}; the paper has 0.75."
            )
        object.__setattr__(self, "operators", tuple(self.operators))
        for label in self.operators:
            require_choice(owner, "operators", label, OPERATORS)
        if not self.operators or len(set(self.operators)) < len(self.operators):
            raise ConfigurationError(
                f"{owner} expects distinct operators, at least one, got {self.operators}; choose from {tuple(OPERATORS)}."
            )
        if self.max_nodes is None and self._expected_nodes() > _VAST:
            raise ConfigurationError(
                f"{owner} expects trees of a size that fits in memory, got settings whose mean is above {_VAST:.0f} nodes; "
                f"set max_nodes, or raise value_probability."
            )

    def _expected_nodes(self) -> float:
        growth = (1 - self.value_probability) * (self.min_operands + self.max_operands) / 2
        expected = 1.0
        for _ in range(min(self.max_depth - 1, 10_000)):
            expected = 1 + growth * expected
            if expected > _VAST:
                break
        return expected


def generate(
    size: int = 100_000,
    seed: int = 0,
    settings: ListOpsSettings | None = None,
    progress: Progress | None = None,
) -> Iterator[Tree]:
    """Yield ``size`` distinct trees; the same seed gives the same trees on every machine.

    ``progress`` is called with the number of trees so far. Only a 16-byte key of each tree is kept, so memory stays small.

    >>> for tree in generate(3, seed=0):
    ...     print(tree, "=", value(tree))
    (MED 5 (MAX 4 6 6) 5) = 5
    3 = 3
    (SM 7 9 8) = 4
    """
    require_positive("listops.generate", size=size)
    return _generate(size, seed, generator("listops.generate", seed), settings or ListOpsSettings(), progress)


def _generate(
    size: int, seed: int, random: Random, settings: ListOpsSettings, progress: Progress | None
) -> Iterator[Tree]:
    # The places have a random generator for themselves, so that both placements give the same expressions.
    place = _placing(settings.placement, seed, settings.max_operands)
    seen: set[bytes] = set()
    repeats = too_large = 0
    while len(seen) < size:
        tokens = _draw(random, settings)
        if tokens:
            key = hashlib.blake2b(" ".join(tokens).encode(), digest_size=16).digest()
            if key not in seen:
                seen.add(key)
                repeats = too_large = 0
                if progress is not None and (len(seen) % PROGRESS_EVERY == 0 or len(seen) == size):
                    progress(len(seen))
                yield _build(tokens, place)
                continue
            repeats += 1
        else:
            too_large += 1
        if repeats + too_large >= _PATIENCE:
            raise ConfigurationError(
                f"listops.generate expects settings with {size} distinct trees, got {len(seen)} and then no new one in "
                f"{_PATIENCE} draws ({repeats} repeats, {too_large} above max_nodes={settings.max_nodes}); "
                f"ask for fewer trees, or raise max_depth, max_operands or max_nodes."
            )


def _draw(random: Random, settings: ListOpsSettings) -> list[str]:
    """Draw an expression such as ``[SM 6 5 ]`` in tokens; none when it has too many nodes."""
    draw, value_probability, inner_depth = random.random, settings.value_probability, settings.max_depth - 1
    openers, digits = [f"[{label}" for label in settings.operators], list(_DIGITS)
    least, choices = settings.min_operands, settings.max_operands - settings.min_operands + 1
    budget = settings.max_nodes or 0
    tokens: list[str] = []
    missing: list[int] = []  # for each open operator, how many operands are still to come
    nodes = 0
    while True:
        nodes += 1
        if budget and nodes > budget:
            return []
        if len(missing) < inner_depth and draw() >= value_probability:
            tokens.append(openers[int(draw() * len(openers))])
            missing.append(least + int(draw() * choices))
            continue
        tokens.append(digits[int(draw() * 10)])
        while missing:
            missing[-1] -= 1
            if missing[-1]:
                break
            missing.pop()
            tokens.append("]")
        else:
            return tokens


def _placing(placement: str, seed: int, slots: int) -> Place:
    if placement == "left":
        return lambda operands: operands
    draw = generator("listops.placement", seed).random

    def spread(operands: list[Tree]) -> list[Tree | None]:
        if len(operands) > slots:
            raise TreeError(
                f"expected at most {slots} operands to place, got {len(operands)}; raise max_operands, or place them left"
            )
        left = list(reversed(operands))
        # A slot is taken with the share of operands still to place: every choice of slots is equally likely.
        return [left.pop() if draw() * (slots - slot) < len(left) else None for slot in range(slots)]

    return spread


class _TokenError(Exception):
    """A problem with a token; the reader adds its column."""

    def __init__(self, problem: str, token: int) -> None:
        self.problem, self.token = problem, token


def _build(tokens: list[str], place: Place) -> Tree:
    """Build the tree of tokens such as those of ``[SM 6 5 ]``."""
    open_nodes: list[tuple[str, list[Tree]]] = []
    for index, token in enumerate(tokens):
        node = _LEAVES.get(token)
        if node is None:
            if token[1:] in OPERATORS and token[0] == "[":
                open_nodes.append((token[1:], []))
                continue
            if token != "]":
                known = [*_LEAVES, "]", *(f"[{label}" for label in OPERATORS)]
                raise _TokenError(f"expected a digit, ']' or an operator, got {token!r}{nearest(token, known)}", index)
            if not open_nodes:
                raise _TokenError("expected an operator or a digit, got ']' that closes nothing; remove it", index)
            label, operands = open_nodes.pop()
            if not operands:
                raise _TokenError(f"expected an operand of {label}, got ']'; give it one", index)
            try:
                node = Tree(label, place(operands))
            except TreeError as problem:
                raise _TokenError(f"{label}: {problem}", index) from None
        if open_nodes:
            open_nodes[-1][1].append(node)
        elif index + 1 < len(tokens):
            raise _TokenError(f"expected the end of the line, got {tokens[index + 1]!r}; one tree a line", index + 1)
        else:
            return node
    expected = f"']' to close '[{open_nodes[-1][0]}'" if open_nodes else "a tree"
    raise _TokenError(f"expected {expected}, got the end of the line; complete it", len(tokens))


def node_values(tree: Tree) -> list[int]:
    """Return the value of every subtree, in post-order like the nodes of a `Forest`; absent operands are ignored.

    >>> node_values(Tree.parse("(SM (MAX 2 9) _ (MED 3 6))"))
    [2, 9, 9, 3, 6, 4, 3]
    """
    values: list[int] = []
    operands: list[int] = []  # the values that no operator has taken yet
    for node in tree.postorder():
        label = node.label
        present = len(node.children) - node.children.count(None)
        operator = OPERATORS.get(label) if isinstance(label, str) else None
        if operator is not None and present:
            result = operator(operands[-present:])
            del operands[-present:]
        elif label in _DIGITS and not present:
            result = _DIGITS[str(label)]
        else:
            raise _bad_node(node, present)
        operands.append(result)
        values.append(result)
    return values


def value(tree: Tree) -> int:
    """Return the value of a tree, a digit.

    >>> value(Tree.parse("(MED 4 (MIN 7 1) 8 (SM 9 9))"))  # of 4 1 8 8: (4 + 8) / 2
    6
    """
    return node_values(tree)[-1]


def _bad_node(node: Tree, present: int) -> TreeError:
    label = node.label
    if label in _DIGITS:
        return TreeError(f"the digit {label} expects no operands, got {present}; make it a leaf, or an operator.")
    if label in OPERATORS:
        return TreeError(f"the operator {label} expects at least one operand, got none; give it one, or a digit.")
    return TreeError(
        f"ListOps expects the labels 0–9, {', '.join(OPERATORS)}, got {label!r}{nearest(str(label), OPERATORS)}; correct it."
    )


def read_listops(
    source: Lines,
    *,
    placement: Placement = "left",
    seed: int = 0,
    max_operands: int = 5,
    on_bad: OnBad | None = None,
) -> Iterator[tuple[Tree, int]]:
    r"""Read lines ``value<TAB>expression`` as trees and values; round brackets, as in the original files, are optional.

    A malformed line, or a wrong value, raises `ReadError`; if ``on_bad`` is given, it is called with the error and the line
    is skipped. ``seed`` and ``max_operands`` (the slots) matter for random placement only.

    >>> for tree, result in read_listops(["2\t( ( ( [MIN 2 ) 7 ) ] )", "8\t[SM 9 9 ]"]):
    ...     print(tree, "=", result)
    (MIN 2 7) = 2
    (SM 9 9) = 8
    """
    require_choice("read_listops", "placement", placement, ("left", "random"))
    require_positive("read_listops", max_operands=max_operands)
    place = _placing(placement, seed, max_operands)
    return read_lines(source, lambda line: _parse(line, place), on_bad)


def _parse(line: str, place: Place) -> tuple[Tree, int]:
    digit, tab, _ = line.partition("\t")
    if not tab or digit not in _DIGITS:
        raise ParseError(
            f"expected a digit and a tab, got {line[:12]!r}; a line is value<TAB>expression", text=line, position=0
        )
    found = list(_TOKEN.finditer(line, len(digit) + 1))
    tokens = [match[0] for match in found]
    bare = [match for match in found if match[0] not in "()"]
    try:
        tree = _build([match[0] for match in bare], place)
    except _TokenError as bad:
        position = bare[bad.token].start() if bad.token < len(bare) else len(line)
        raise ParseError(bad.problem, text=line, position=position) from None
    if len(bare) < len(tokens):
        # The round brackets follow from the square ones, so they are only compared.
        expected = _binarised([match[0] for match in bare])
        if tokens != expected:
            pairs = zip(tokens, expected, strict=False)
            at = next((i for i, (got, due) in enumerate(pairs) if got != due), min(len(tokens), len(expected)))
            got, position = (repr(tokens[at]), found[at].start()) if at < len(tokens) else ("the end", len(line))
            due = repr(expected[at]) if at < len(expected) else "the end of the line"
            raise ParseError(f"expected {due}, got {got}; correct the round brackets", text=line, position=position)
    result = value(tree)
    if result != _DIGITS[digit]:
        raise ParseError(
            f"expected {result}, the value of the expression, got {digit}; correct one of them", text=line, position=0
        )
    return tree, result


def _binarised(tokens: list[str]) -> list[str]:
    """Add the round brackets of the original files: ``( ( ( [SM 6 ) 5 ) ] )`` for ``[SM 6 5 ]``."""
    pieces: list[list[str]] = []
    open_nodes: list[tuple[list[str], int]] = []  # the piece to complete once the operands are counted
    for token in tokens:
        piece = [token]
        pieces.append(piece)
        if token.startswith("["):
            open_nodes.append((piece, 0))
            continue
        if token == "]":
            opener, operands = open_nodes.pop()
            opener[:0] = ["("] * (operands + 1)
            piece.append(")")
        if open_nodes:
            piece.append(")")
            opener, operands = open_nodes.pop()
            open_nodes.append((opener, operands + 1))
    return [token for piece in pieces for token in piece]


def split(n: int, seed: int = 0) -> Split:
    """Split ``n`` trees like the paper: 10 % test, 9 % of the rest validation, the others training.

    >>> [len(part) for part in split(100_000, seed=0)]
    [81900, 8100, 10000]
    """
    require_positive("listops.split", n=n)
    order = shuffled(n, seed)
    test = (n + 5) // 10
    validation = (9 * (n - test) + 50) // 100
    return Split(train=order[test + validation :], validation=order[test : test + validation], test=order[:test])


def make_listops(
    size: int = 100_000,
    seed: int = 0,
    settings: ListOpsSettings | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Generate a ListOps data set: digits as classes, the value of every subtree as node labels, the paper's split.

    >>> data = make_listops(100, seed=0)
    >>> {name: len(part) for name, part in data.splits.items()}
    {'train': 82, 'validation': 8, 'test': 10}
    """
    settings = settings or ListOpsSettings()
    trees = generate(size, seed, settings, progress)
    made = {"task": "listops", "size": size, "seed": seed, "settings": asdict(settings)}
    return _dataset(trees, made, split(size, seed))


def load_listops(paths: Paths, *, placement: Placement = "left", seed: int = 0, on_bad: OnBad | None = None) -> Dataset:
    """Read ListOps files of the original format into a data set; all examples are in the test set."""
    lines = read_files(paths, lambda path: read_listops(path, placement=placement, seed=seed, on_bad=on_bad))
    made = {"task": "listops", "from": names_of(paths), "placement": placement, "seed": seed}
    return _dataset((tree for tree, _ in lines), made, None)


def _dataset(trees: Iterable[Tree], made: dict[str, Any], parts: Split | None) -> Dataset:
    values = array("b")

    def noted() -> Iterator[Tree]:
        for tree in trees:
            values.extend(node_values(tree))
            yield tree

    forest = Forest(noted())
    node_targets = np.array(values, dtype=np.int64)
    return Dataset(
        forest=forest,
        targets=node_targets[forest.offsets[1:] - 1],
        classes=tuple(_DIGITS),
        splits={"test": np.arange(len(forest))} if parts is None else parts._asdict(),
        node_targets=node_targets,
        made=made,
    )
