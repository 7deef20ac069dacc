"""Metamath: the syntax trees of the statements of a database such as set.mm, and the task "were two arguments swapped?".

The file declares its own grammar: every ``$a`` statement whose typecode is not ``|-`` is a production, every ``$f`` the
typecode of a variable. Proofs are skipped and nothing is verified; nothing recurses.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, final

import numpy as np
import numpy.typing as npt

from treefold.data.generators._common import PROGRESS_EVERY, Progress, generator
from treefold.data.generators._fractions import check_fractions
from treefold.data.generators._grammar import Grammar, GrammarError
from treefold.errors import ConfigurationError, ReadError, require_choice
from treefold.trees.tree import Tree

PACKAGE: Final = "metamath-databases"
STANDARD_PATH: Final = Path("/usr/share/metamath/databases/set.mm")
"""Where the Debian package puts its greatest database."""

_PROVABLE: Final = "|-"
_STATEMENTS: Final = ("$c", "$v", "$d", "$f", "$e", "$a", "$p")
_COMMENT: Final = r"\$\((?!\S).*?(?<!\S)\$\)(?!\S)"
# A comment or a proof is one token: they are nine tenths of set.mm, and nothing in them is of use here.
_TOKEN: Final = re.compile(rf"{_COMMENT}|\$=(?!\S)(?:[^$]++|{_COMMENT})*+\$\.(?!\S)|\S+", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class Statement:
    """A provable statement: its name, its syntax tree, its symbols, and the typecode of every label of the database.

    >>> statement = Statement("ax-1", Tree.parse("(wi ph (wi ps ph))"), "|- ( ph -> ( ps -> ph ) )", {"wi": "wff"})
    >>> statement.tree.depth
    2
    """

    name: str
    tree: Tree
    text: str
    typecodes: Mapping[str, str] = field(repr=False, compare=False)


def load_metamath(
    path: str | Path | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    *,
    variables: Literal["name", "typecode"] = "name",
) -> Iterator[Statement]:
    """Read the ``|-`` statements (axioms and theorems) of a Metamath file, in its order, one at a time.

    Without a ``path`` it is the ``set.mm`` of the Debian package ``metamath-databases``. ``progress`` is called with the
    number of statements read, every thousand. The rest as in `parse_metamath`.

    >>> next(load_metamath("nowhere.mm"))
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: load_metamath expects a Metamath file, got no file at nowhere.mm; ...
    """
    file = STANDARD_PATH if path is None else Path(path)
    if not file.is_file():
        raise ConfigurationError(
            f"load_metamath expects a Metamath file, got no file at {file}; "
            f"install it with `apt-get install {PACKAGE}`, or give `path`."
        )
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise ReadError(f"expected text, got {problem}; Metamath files are ASCII", source=file) from None
    return parse_metamath(text, limit=limit, progress=progress, variables=variables, source=str(file))


def parse_metamath(
    text: str,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
    variables: Literal["name", "typecode"] = "name",
    source: str = "text",
) -> Iterator[Statement]:
    """Read the ``|-`` statements of a Metamath text as trees, at most ``limit`` of them.

    A node is labelled with its syntax axiom, its children stand in the order of the variables in the axiom's pattern; a leaf
    is a variable, labelled with its name, or with its typecode where ``variables="typecode"``.

    >>> text = '''$c ( ) -> wff |- $. $v ph ps $. wph $f wff ph $. wps $f wff ps $.
    ... wi $a wff ( ph -> ps ) $.  $( Simplification. $) ax-1 $a |- ( ph -> ( ps -> ph ) ) $.'''
    >>> [(statement.name, str(statement.tree)) for statement in parse_metamath(text)]
    [('ax-1', '(wi ph (wi ps ph))')]
    """
    require_choice("parse_metamath", "variables", variables, ("name", "typecode"))
    if limit is not None and limit < 0:
        raise ConfigurationError(f"parse_metamath expects limit >= 0, got {limit}; leave it out to read everything.")
    return _provable(text, limit, progress, variables, source)


def swap_task(statements: Iterable[Statement], seed: int) -> tuple[list[Tree], list[str]]:
    """Make the task "were two arguments swapped?": half of the trees as they are, half with two children swapped.

    The node is drawn among those with differing children of one typecode, then two such children of it. No tree occurs twice,
    and a swapped one is never a given statement: a statement that repeats an earlier one (inferences often share their
    conclusion) or allows no swap, which would give its label away, is left out. The order stays. A swap may turn a truth into
    another truth: the task is one of custom as much as of logic.

    >>> types = {"ph": "wff", "ps": "wff", "wi": "wff"}
    >>> trees = ["(wi ph ps)", "(wi ph (wi ph ps))", "(wi ph ps)", "(wi ph ph)"]
    >>> swap_task([Statement("", Tree.parse(tree), "", types) for tree in trees], seed=0)
    ([Tree.parse('(wi ph ps)'), Tree.parse('(wi ph (wi ps ph))')], ['original', 'swapped'])
    """
    random = generator("swap_task", seed).random
    distinct = list({statement.tree: statement.typecodes for statement in statements}.items())
    taken = {tree for tree, _ in distinct}
    pairs = []
    for tree, typecodes in distinct:
        swapped = _swap(tree, typecodes, taken, random)
        if swapped is not None:
            taken.add(swapped)
            pairs.append((tree, swapped))
    labels = ["swapped" if index < len(pairs) // 2 else "original" for index in range(len(pairs))]
    labels.sort(key=lambda _: random())  # a shuffle
    return [pair[label == "swapped"] for pair, label in zip(pairs, labels, strict=True)], labels


def split_by_block(
    n: int, fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split ``range(n)`` into contiguous blocks for training, validation and test, so that a chapter stays together.

    >>> [block.tolist() for block in split_by_block(6, (0.5, 0.25, 0.25))]
    [[0, 1, 2], [3], [4, 5]]
    """
    check_fractions("split_by_block", fractions)
    if n < 0:
        raise ConfigurationError(f"split_by_block expects n >= 0, got {n}; give the number of trees.")
    first, second = int(n * fractions[0] + 1e-9), int(n * (fractions[0] + fractions[1]) + 1e-9)
    numbers = np.arange(n, dtype=np.int64)
    return numbers[:first], numbers[first:second], numbers[second:]


def _provable(
    text: str, limit: int | None, progress: Progress | None, variables: str, source: str
) -> Iterator[Statement]:
    grammar = Grammar(named=variables == "name")
    declared: set[str] = set()
    count = 0
    for position, label, keyword, symbols in _scan(text, source):
        if limit is not None and count >= limit:
            return
        if keyword == "$v":
            declared.update(symbols)
        if keyword not in ("$f", "$a", "$p"):
            continue
        if label is None or not symbols:
            got = f"no label before {keyword}" if label is None else f"'{label} {keyword} $.'"
            raise _error(
                text, source, position, f"expected `label {keyword} typecode symbols $.`, got {got}; complete it"
            )
        typecode, formula = symbols[0], symbols[1:]
        try:
            if keyword == "$f":
                grammar.declare_variable(formula, typecode)
            elif typecode == _PROVABLE:
                tree = grammar.parse(formula)
                count += 1
                yield Statement(label, tree, " ".join(symbols), grammar.typecodes)
                if progress is not None and count % PROGRESS_EVERY == 0:
                    progress(count)
            elif keyword == "$a":  # a $p of syntax is derived: its reading follows from the axioms
                grammar.declare_axiom(label, typecode, formula, declared)
        except GrammarError as problem:
            raise _error(text, source, position, f"{label}: {problem}") from None


def _scan(text: str, source: str) -> Iterator[tuple[int, str | None, str, list[str]]]:
    """Yield position, label, keyword and symbols of every statement; scopes are only checked to balance."""
    label: str | None = None
    keyword = ""
    symbols: list[str] = []
    start = 0  # of the statement's first token
    scopes: list[int] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token[0] != "$":
            if keyword:
                symbols.append(token)
            elif label is None:
                label, start = token, match.start()
            else:
                raise _error(
                    text,
                    source,
                    start,
                    f"expected $f, $e, $a or $p after the label {label!r}, got {token!r}; remove one",
                )
            continue
        if token.startswith("$("):
            if token == "$(":
                raise _error(text, source, match.start(), "expected $) to close the comment $(, got none; add $)")
            continue
        if keyword:
            if token == "$=":
                raise _error(text, source, match.start(), "expected $. to close the proof $=, got none; add $.")
            if token != "$." and not (keyword == "$p" and token.startswith("$=")):
                raise _error(text, source, start, f"expected $. to close {keyword}, got {token.split()[0]!r}; add $.")
            yield start, label, keyword, symbols
            label, keyword, symbols = None, "", []
        elif token in _STATEMENTS:
            keyword, start = token, match.start() if label is None else start
        elif token == "$[":
            raise _error(text, source, match.start(), "expected a single file, got an include $[; join the files first")
        elif token == "${" and label is None:
            scopes.append(match.start())
        elif token == "$}" and label is None and scopes:
            scopes.pop()
        else:
            after = "" if label is None else f" after the label {label!r}"
            raise _error(
                text, source, match.start(), f"expected a statement{after}, got {token.split()[0]!r}; remove it"
            )
    unfinished = " ".join(filter(None, (label, keyword)))
    if unfinished:
        raise _error(text, source, start, f"expected $. to close {unfinished!r}, got the end of the file; add $.")
    if scopes:
        raise _error(text, source, scopes[-1], "expected $} to close the scope ${, got the end of the file; add $}")


def _error(text: str, source: str, position: int, problem: str) -> ReadError:
    return ReadError(problem, source=source, line=text.count("\n", 0, position) + 1)


def _swap(tree: Tree, typecodes: Mapping[str, str], taken: set[Tree], random: Callable[[], float]) -> Tree | None:
    """Return the tree with two differing children of one node swapped, none of ``taken``; ``None`` where there is none."""
    nodes: list[tuple[Tree, int, int]] = []  # node, the number of its parent, its slot there
    choices: list[tuple[int, list[tuple[int, int]]]] = []
    stack = [(tree, -1, 0)]
    while stack:
        node, parent, slot = stack.pop()
        number = len(nodes)
        nodes.append((node, parent, slot))
        pairs = _swappable(node, typecodes)
        if pairs:
            choices.append((number, pairs))
        stack.extend((child, number, place) for place, child in enumerate(node.children) if child is not None)
    choices.sort(key=lambda _: random())
    for number, pairs in choices:
        pairs.sort(key=lambda _: random())
        for left, right in pairs:
            node, parent, slot = nodes[number]
            children = list(node.children)
            children[left], children[right] = children[right], children[left]
            swapped = Tree(node.label, children)
            while parent >= 0:
                above, grandparent, place = nodes[parent]
                swapped = Tree(above.label, [*above.children[:slot], swapped, *above.children[slot + 1 :]])
                parent, slot = grandparent, place
            if swapped not in taken:
                return swapped
    return None


def _swappable(node: Tree, typecodes: Mapping[str, str]) -> list[tuple[int, int]]:
    present = [(slot, child) for slot, child in enumerate(node.children) if child is not None]
    return [
        (left, right)
        for index, (left, first) in enumerate(present)
        for right, second in present[index + 1 :]
        if typecodes.get(str(first.label)) == typecodes.get(str(second.label)) and first != second
    ]
