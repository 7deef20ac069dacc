"""A context-free grammar that grows axiom by axiom, as a Metamath file declares it, and a parser that does not recurse."""

from collections.abc import Sequence
from typing import Final, final

from treefold.trees.tree import Tree

FORMULA: Final = "wff"
"""The typecode of what a statement asserts."""


class GrammarError(Exception):
    """What is wrong, without the place, which the reader of the file knows."""


class _Prefix:
    """A node of a trie: a beginning of patterns, and the axiom whose whole pattern it is, if any."""

    __slots__ = ("axiom", "constants", "typecode", "variables")

    def __init__(self, typecode: str) -> None:
        self.typecode = typecode
        self.constants: dict[str, _Prefix] = {}
        self.variables: dict[str, _Prefix] = {}
        self.axiom: str | None = None


_Item = tuple[_Prefix, int, tuple[Tree, ...]]  # a prefix, the place where it began, the children so far


@final
class Grammar:
    """The syntax axioms, one trie for each typecode, and Earley's algorithm over the tries.

    An Earley item is a place in a trie, so that a thousand axioms that begin with ``(`` are one item. Takes any grammar
    without empty patterns, left-recursive or not; where it is ambiguous, one reading is chosen, always the same.

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
        # waiting[i][t]: the items that stand before symbol i and need a t there.
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
