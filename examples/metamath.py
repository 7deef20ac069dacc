"""Make a data set of Metamath statements: python examples/metamath.py [FILE] --out DIR

The trees are the syntax trees of the statements of a database such as set.mm, which Debian has in its package
metamath-databases. The task: were two arguments of a statement swapped? The statements are split by contiguous blocks.

The file declares its own grammar: every ``$a`` statement whose typecode is not ``|-`` is a production, every ``$f`` the
typecode of a variable. Proofs are skipped, and nothing is verified. Nothing here recurses.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, final

import numpy as np

from treefold.data.dataset import DATASET, Dataset
from treefold.data.generators.common import PROGRESS_EVERY, Progress, check_fractions, generator
from treefold.errors import ConfigurationError, ReadError, TreefoldError, require_choice
from treefold.files import require_replaceable
from treefold.trees.batch import Ints
from treefold.trees.tree import Tree

PACKAGE: Final = "metamath-databases"
STANDARD_PATH: Final = Path("/usr/share/metamath/databases/set.mm")
"""Where the Debian package puts its largest database."""

_PROVABLE: Final = "|-"
_STATEMENTS: Final = ("$c", "$v", "$d", "$f", "$e", "$a", "$p")
_COMMENT: Final = r"\$\((?!\S).*?(?<!\S)\$\)(?!\S)"
# A comment or a proof is one token: they are nine tenths of set.mm, and are not needed here.
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
    number of statements read, every thousand. ``limit`` and ``variables`` are those of `parse_metamath`.

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

    A node is labelled with its syntax axiom, its children are in the order of the variables in the axiom's pattern; a leaf
    is a variable, labelled with its name, or with its typecode if ``variables="typecode"``.

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
    """Make the task "were two arguments swapped?": half of the trees are unchanged, half have two children swapped.

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


def split_by_block(n: int, fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)) -> tuple[Ints, Ints, Ints]:
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


FORMULA: Final = "wff"
"""The typecode of the formula that a statement asserts."""


class GrammarError(Exception):
    """An error in the grammar or in a formula; the reader of the file adds the place."""


class _Prefix:
    """A node of a trie: a beginning of patterns, and the axiom whose whole pattern it is, if any."""

    __slots__ = ("axiom", "constants", "typecode", "variables")

    def __init__(self, typecode: str) -> None:
        self.typecode = typecode
        self.constants: dict[str, _Prefix] = {}
        self.variables: dict[str, _Prefix] = {}
        self.axiom: str | None = None


_Item = tuple[_Prefix, int, tuple[Tree, ...]]  # a prefix, the place of its first symbol, the children so far


@final
class Grammar:
    """The syntax axioms, one trie for each typecode, and Earley's algorithm over the tries.

    An Earley item is a place in a trie, so that a thousand axioms that begin with ``(`` are one item. Takes any grammar
    without empty patterns, left-recursive or not; if it is ambiguous, one reading is chosen, always the same.

    >>> grammar = Grammar(named=True)
    >>> grammar.declare_variable(["ph"], "wff")
    >>> grammar.declare_axiom("wn", "wff", ["-.", "ph"], {"ph"})
    >>> print(grammar.parse(["-.", "-.", "ph"]))
    (wn (wn ph))
    """

    def __init__(self, *, named: bool) -> None:
        self.named = named
        self.roots: dict[str, _Prefix] = {}
        self.leaves: dict[str, Tree] = {}
        self.types: dict[str, str] = {}
        self.typecodes: dict[str, str] = {}

    def declare_variable(self, formula: Sequence[str], typecode: str) -> None:
        """Take ``$f typecode variable $.``: the variable is of this typecode, in all scopes."""
        if len(formula) != 1:
            raise GrammarError(
                f"expected one variable after the typecode {typecode!r}, got {' '.join(formula)!r}; write `$f {typecode} x $.`"
            )
        (variable,) = formula
        if self.types.setdefault(variable, typecode) != typecode:
            raise GrammarError(
                f"expected the typecode {self.types[variable]!r} for {variable!r} as before, got {typecode!r}; "
                f"rename the variable in one of the scopes"
            )
        leaf = variable if self.named else typecode
        self.leaves[variable] = Tree(leaf)
        self.typecodes[leaf] = typecode

    def declare_axiom(self, label: str, typecode: str, pattern: Sequence[str], declared: set[str]) -> None:
        """Take ``label $a typecode pattern $.``, a production; ``declared`` are the variables that need a typecode."""
        if not pattern:
            raise GrammarError(
                f"expected symbols after the typecode {typecode!r}, got none; empty syntax is not supported"
            )
        prefix = self.roots.setdefault(typecode, _Prefix(typecode))
        for symbol in pattern:
            if symbol in self.types:
                prefix = prefix.variables.setdefault(self.types[symbol], _Prefix(typecode))
            elif symbol in declared:
                raise GrammarError(f"expected a typecode for the variable {symbol!r}, got none; declare it with $f")
            else:
                prefix = prefix.constants.setdefault(symbol, _Prefix(typecode))
        prefix.axiom = prefix.axiom or label
        self.typecodes[label] = typecode

    def parse(self, symbols: Sequence[str]) -> Tree:
        """Return the syntax tree of a formula."""
        # waiting[i][t]: the items at symbol i that need a t there.
        waiting: list[dict[str, list[_Item]]] = []
        start = _Prefix("")
        goal = start.variables[FORMULA] = _Prefix("")
        items: list[_Item] = [(start, 0, ())]
        for end in range(len(symbols) + 1):
            here: dict[str, list[_Item]] = {}
            waiting.append(here)
            seen = {item[:2] for item in items}
            completed: set[tuple[str, int]] = set()
            for item in items:  # grows while it is walked
                prefix, origin, children = item
                for typecode in prefix.variables:
                    if typecode in here:
                        here[typecode].append(item)
                        continue
                    here[typecode] = [item]
                    if typecode in self.roots:
                        items.append((self.roots[typecode], end, ()))
                if prefix.axiom is None or (prefix.typecode, origin) in completed:
                    continue
                completed.add((prefix.typecode, origin))
                tree = Tree(prefix.axiom, children)
                for before, first, siblings in waiting[origin][prefix.typecode]:
                    after = before.variables[prefix.typecode]
                    if (after, first) not in seen:
                        seen.add((after, first))
                        items.append((after, first, (*siblings, tree)))
            if end == len(symbols):
                break
            items = self._shift(symbols[end], items, here)
            if not items:
                raise GrammarError(
                    f"expected a {FORMULA} by the syntax axioms declared before, got {symbols[end]!r} as symbol {end + 1}, "
                    f"after {_ending(symbols[:end])}; check the formula, or declare its syntax"
                )
        for prefix, _, children in items:
            if prefix is goal:
                return children[0]
        raise GrammarError(f"expected a whole {FORMULA}, got the end after {_ending(symbols)}; complete it")

    def _shift(self, symbol: str, items: list[_Item], here: dict[str, list[_Item]]) -> list[_Item]:
        """Return the items after a symbol that is a variable or a constant."""
        typecode = self.types.get(symbol)
        if typecode is None:
            return [
                (prefix.constants[symbol], origin, children)
                for prefix, origin, children in items
                if symbol in prefix.constants
            ]
        leaf = self.leaves[symbol]
        return [
            (prefix.variables[typecode], origin, (*children, leaf))
            for prefix, origin, children in here.get(typecode, ())
        ]


def _ending(symbols: Sequence[str]) -> str:
    """Show the last symbols: a formula of set.mm can have thousands."""
    return ("'… " if len(symbols) > 8 else "'") + " ".join(symbols[-8:]) + "'"


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
    """Return the tree with two differing children of one node swapped, none of ``taken``; ``None`` if there is none."""
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


def make_metamath(
    path: str | Path | None = None, *, seed: int = 0, limit: int | None = None, progress: Progress | None = None
) -> Dataset:
    """Make the data set of the task "were two arguments swapped?", split by contiguous blocks."""
    trees, labels = swap_task(load_metamath(path, limit, progress), seed)
    splits = dict(zip(("train", "validation", "test"), split_by_block(len(trees)), strict=True))
    return Dataset.from_labels(trees, labels, splits, {"task": "metamath", "seed": seed, "limit": limit})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help=f"the Metamath file (default: {STANDARD_PATH})")
    parser.add_argument("--out", type=Path, required=True, help="the data set's directory; it must not exist yet")
    parser.add_argument("--limit", type=int, help="read only so many statements")
    parser.add_argument("--seed", type=int, default=0, help="seed of the swaps")
    parser.add_argument("--force", action="store_true", help="replace the data set if it exists")
    options = parser.parse_args(arguments)
    try:
        require_replaceable(options.out, DATASET if options.force else None)
        data = make_metamath(options.file, seed=options.seed, limit=options.limit, progress=_show)
        data.save(options.out, force=options.force)
    except TreefoldError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    parts = ", ".join(f"{len(part):,} {name}" for name, part in data.splits.items())
    print(f"{options.out}: {len(data):,} trees, {data.forest.node_count:,} nodes ({parts})")
    return 0


def _show(count: int) -> None:
    if count % (10 * PROGRESS_EVERY) == 0:
        print(f"{count:,} statements", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
