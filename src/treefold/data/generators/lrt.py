"""Logical relations in propositional logic (Bowman, Potts & Manning 2015): how are two sentences related?

For every pair, four of the six variables a–f are drawn, then two sentences over them with the length bound 12. A sentence is,
with probability 4/9 and a bound of at least 2, an ``and`` or ``or`` (evenly) of two sentences with half the bound (12, 6, 3, 1:
three levels of connectives at most), else a variable; then, at every level, ``not`` is put in front with probability 1/3. A pair
with a sentence that is true or false in all 64 worlds is dropped, its variables included, and not counted. Of 500,000 counted
draws the distinct pairs (left, right) are kept, about half; the mirrored pair is another pair.

All 211,702 original pairs have the relation that `relation` computes, with ``<`` for left ⊂ right. The files 0–12 count ``and``,
``or`` and ``not`` of the longer sentence, but the last file holds *12 and more*: 2,211 of its 4,831 pairs have 13 to 19. Here
pairs above 12 are dropped by default; ``keep_larger=True`` gives the original shares of the bins.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
from treefold.errors import ConfigurationError, ParseError, ShapeError, TreeError, nearest, require_positive
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

VARIABLES: Final = ("a", "b", "c", "d", "e", "f")
RELATIONS: Final = ("=", "<", ">", "^", "|", "v", "#")
LARGEST_BIN: Final = 12

_BOUND, _VARIABLES_PER_PAIR = 12, 4
_ALL: Final = (1 << 64) - 1
# Bit w of a set is world w, in which variable i is true if bit i of w is set.
_WORLDS: Final = {
    name: sum(1 << world for world in range(64) if world >> place & 1) for place, name in enumerate(VARIABLES)
}
_OPERANDS: Final = {"and": 2, "or": 2, "not": 1}
_LEAVES: Final = {name: Tree(name) for name in VARIABLES}  # shared: trees are values
_TOKEN: Final = re.compile(r"[()]|[^\s()]+")


class Pair(NamedTuple):
    """Two sentences, the relation of the left one to the right one, and the bin: the larger number of operators.

    Bin 12 means 12 and more, as in the original files.

    >>> next(read_lrt(["<\\ta\\t( a ( or ( not b ) ) )"]))
    Pair(left=Tree.parse('a'), right=Tree.parse('(or a (not b))'), relation='<', operators=2)
    """

    left: Tree
    right: Tree
    relation: str
    operators: int


def worlds(tree: Tree) -> int:
    """Return the set of worlds in which a sentence is true, as the bits of a 64-bit number: bit w for world w.

    In world w, variable a is true if bit 0 of w is set, b if bit 1 is, … f if bit 5 is.

    >>> f"{worlds(Tree.parse('(and a (and b c))')):064b}".count("1")  # d, e, f are free
    8
    """
    sets: list[int] = []  # of the sentences that no operator has taken yet
    for node in tree.postorder():
        label = node.label
        present = len(node.children) - node.children.count(None)
        if not isinstance(label, str) or _OPERANDS.get(label, 0 if label in _WORLDS else -1) != present:
            raise _bad_node(node, present)
        if label == "and":
            last = sets.pop()
            sets[-1] &= last
        elif label == "or":
            last = sets.pop()
            sets[-1] |= last
        elif label == "not":
            sets[-1] ^= _ALL
        else:
            sets.append(_WORLDS[label])
    return sets[0]


def _bad_node(node: Tree, present: int) -> TreeError:
    label = node.label
    if label in _WORLDS:
        return TreeError(f"the variable {label} expects no operands, got {present}; make it a leaf.")
    if isinstance(label, str) and label in _OPERANDS:
        return TreeError(
            f"the operator {label!r} expects {_OPERANDS[label]} operands, got {present}; nest two-place operators."
        )
    known = (*VARIABLES, *_OPERANDS)
    return TreeError(
        f"LRT expects the labels {', '.join(known)}, got {label!r}{nearest(str(label), known)}; correct it."
    )


def relation(left: Tree, right: Tree) -> str:
    """Return how two sentences are related, from the sets of worlds L and R in which they are true.

    ``=`` L = R; ``<`` L ⊂ R; ``>`` L ⊃ R; ``^`` disjoint and together all worlds; ``|`` only disjoint; ``v`` only together
    all worlds; ``#`` none of these. The first that holds counts.

    >>> relation(Tree.parse("(and a b)"), Tree.parse("a")), relation(Tree.parse("a"), Tree.parse("(not a)"))
    ('<', '^')
    """
    return _relation(worlds(left), worlds(right))


def _relation(left: int, right: int) -> str:
    both = left & right
    if left == right:
        return "="
    if both == left:
        return "<"
    if both == right:
        return ">"
    exhaustive = left | right == _ALL
    if not both:
        return "^" if exhaustive else "|"
    return "v" if exhaustive else "#"


def generate(
    draws: int = 500_000, seed: int = 0, progress: Progress | None = None, *, keep_larger: bool = False
) -> Iterator[Pair]:
    """Yield the distinct pairs of ``draws`` counted draws; the same seed gives the same pairs on every machine.

    ``progress`` is called with the number of counted draws so far. Pairs of more than 12 operators are not counted, unless
    ``keep_larger``: then they are part of bin 12, as in the original data.

    >>> for pair in generate(3, seed=2):
    ...     print(pair.left, pair.relation, pair.right)
    (or (not b) e) v b
    (or (not (or (not a) d)) b) > b
    (not f) # (not b)
    """
    require_positive("lrt.generate", draws=draws)
    return _generate(draws, generator("lrt.generate", seed), progress, keep_larger)


# A drawn sentence: its prefix code, one character per node; its worlds; its operators. Only kept sentences become trees.
_Sentence = tuple[str, int, int]
_CODES: Final = {"&": "and", "|": "or", "~": "not"}


def _generate(draws: int, random: Random, progress: Progress | None, keep_larger: bool) -> Iterator[Pair]:
    draw = random.random
    variables: list[_Sentence] = [(name, _WORLDS[name], 0) for name in VARIABLES]
    seen: set[str] = set()
    counted = 0
    while counted < draws:
        for place in range(_VARIABLES_PER_PAIR):
            other = place + int(draw() * (len(variables) - place))
            variables[place], variables[other] = variables[other], variables[place]
        left_code, left, left_operators = _draw(random, variables, _BOUND)
        right_code, right, right_operators = _draw(random, variables, _BOUND)
        operators = max(left_operators, right_operators)
        if left in (0, _ALL) or right in (0, _ALL) or (operators > LARGEST_BIN and not keep_larger):
            continue
        counted += 1
        if progress is not None and (counted % PROGRESS_EVERY == 0 or counted == draws):
            progress(counted)
        key = f"{left_code} {right_code}"
        if key not in seen:
            seen.add(key)
            yield Pair(_tree(left_code), _tree(right_code), _relation(left, right), min(operators, LARGEST_BIN))


def _draw(random: Random, variables: list[_Sentence], bound: int) -> _Sentence:
    """Draw a sentence over the first four variables. Recursion is safe: the bound is halved, so it is three deep."""
    draw = random.random
    kind = int(draw() * 9)
    if kind < 4 and bound >= 2:
        left_code, left, left_operators = _draw(random, variables, bound // 2)
        right_code, right, right_operators = _draw(random, variables, bound // 2)
        operators = left_operators + right_operators + 1
        code, true = (
            (f"&{left_code}{right_code}", left & right) if kind < 2 else (f"|{left_code}{right_code}", left | right)
        )
    else:
        code, true, operators = variables[int(draw() * _VARIABLES_PER_PAIR)]
    if int(draw() * 3) == 0:
        return f"~{code}", true ^ _ALL, operators + 1
    return code, true, operators


def _tree(code: str) -> Tree:
    done: list[Tree] = []
    for character in reversed(code):
        if character in _LEAVES:
            done.append(_LEAVES[character])
        elif character == "~":
            done.append(Tree("not", [done.pop()]))
        else:
            done.append(Tree(_CODES[character], [done.pop(), done.pop()]))
    return done[0]


def read_lrt(source: Lines, on_bad: OnBad | None = None, *, check: bool = False) -> Iterator[Pair]:
    r"""Read lines ``relation<TAB>left<TAB>right`` of the original files, ``( a ( and b ) )`` being ``a and b``.

    A malformed line raises `ReadError`; if ``on_bad`` is given, it is called with the error and the line is skipped. With
    ``check``, a line with a wrong relation is malformed.

    >>> next(read_lrt(["^\t( not c )\tc"], check=True))
    Pair(left=Tree.parse('(not c)'), right=Tree.parse('c'), relation='^', operators=1)
    """
    return read_lines(source, lambda line: _parse(line, check), on_bad)


def _parse(line: str, check: bool) -> Pair:
    parts = line.split("\t")
    if len(parts) != 3:
        raise ParseError(
            f"expected three columns, got {len(parts)}; a line is relation<TAB>left<TAB>right",
            text=line,
            position=len(line) if len(parts) < 3 else sum(len(part) + 1 for part in parts[:3]),
        )
    name = parts[0]
    if name not in RELATIONS:
        raise ParseError(f"expected a relation, one of {' '.join(RELATIONS)}, got {name!r}", text=line, position=0)
    starts = (len(name) + 1, len(name) + len(parts[1]) + 2)
    (left, left_operators), (right, right_operators) = (
        _sentence(line, start, start + len(part)) for start, part in zip(starts, parts[1:], strict=True)
    )
    if check:
        computed = relation(left, right)
        if computed != name:
            raise ParseError(
                f"expected {computed!r}, the relation of the sentences, got {name!r}; correct one of them",
                text=line,
                position=0,
            )
    return Pair(left, right, name, min(max(left_operators, right_operators), LARGEST_BIN))


# A part in brackets: a sentence, an operator, or the second half ( and y ) of ( x ( and y ) ).
_Part = Tree | str | tuple[str, Tree]


def _joined(parts: list[_Part]) -> Tree | tuple[str, Tree] | None:
    """Return the meaning of brackets around the parts, or None if they have none."""
    if len(parts) != 2:
        return None
    first, second = parts
    if isinstance(second, Tree) and isinstance(first, str):
        return Tree("not", [second]) if first == "not" else (first, second)
    if isinstance(first, Tree) and isinstance(second, tuple):
        return Tree(second[0], [first, second[1]])
    return None


def _sentence(line: str, start: int, end: int) -> tuple[Tree, int]:
    """Read a sentence from a part of a line; return its tree and the number of its operators."""
    parts: list[_Part] = []  # of the innermost open bracket, so far
    outer: list[list[_Part]] = []
    operators = 0
    tokens = _TOKEN.findall(line[start:end])

    def bad(problem: str, index: int) -> ParseError:
        places = [match.start() for match in _TOKEN.finditer(line, start, end)]
        return ParseError(problem, text=line, position=[*places, end][index])

    for index, token in enumerate(tokens):
        if token == "(":
            outer.append(parts)
            parts = []
        elif token == ")":
            if not outer:
                raise bad("expected a sentence, got ')' that closes nothing; remove it", index)
            whole = _joined(parts)
            if whole is None:
                raise bad("expected ( not x ), ( x ( and y ) ) or ( x ( or y ) ), got other parts before ')'", index)
            parts = outer.pop()
            parts.append(whole)
        elif token in _LEAVES:
            parts.append(_LEAVES[token])
        elif token in _OPERANDS:
            operators += 1
            parts.append(token)
        else:
            known = (*VARIABLES, *_OPERANDS)
            raise bad(f"expected one of {' '.join(known)} ( ), got {token!r}{nearest(token, known)}", index)
    if outer:
        raise bad("expected ')', got the end of the sentence; close its brackets", len(tokens))
    if len(parts) == 1 and isinstance(parts[0], Tree):
        return parts[0], operators
    raise bad(
        "expected one sentence, got " + ("none" if not parts else "other parts; write ( x ( and y ) )"), len(tokens)
    )


def split(
    operators: npt.NDArray[np.integer] | Sequence[int],
    seed: int = 0,
    *,
    train_operators: int = 4,
    test_share: float = 0.15,
    validation_share: float = 0.10,
) -> Split:
    """Split pairs by their bins: ``test_share`` of each bin is the test set, ``validation_share`` of the rest validation.

    The others are the training set, but only up to ``train_operators``: larger pairs are used for validation and test alone,
    and most of them are in no part. No pair is in two parts.

    >>> train, validation, test = split([0] * 100 + [7] * 100)
    >>> len(train), len(validation), len(test), bool((train < 100).all())
    (77, 16, 30, True)
    """
    bins = np.asarray(operators)
    if bins.ndim != 1 or not bins.size or not np.issubdtype(bins.dtype, np.integer):
        raise ShapeError(
            f"lrt.split expects the operators of the pairs as a flat array of whole numbers, got {bins.dtype} of shape "
            f"{bins.shape}; give [pair.operators for pair in pairs]."
        )
    for name, share in (("test_share", test_share), ("validation_share", validation_share)):
        if not 0 <= share < 1:
            raise ConfigurationError(f"lrt.split expects 0 <= {name} < 1, got {share!r}; the paper has 0.15 and 0.1.")
    bins = np.minimum(bins, LARGEST_BIN)
    order = shuffled(len(bins), seed)
    part = np.full(len(bins), "unused", dtype="<U10")
    for size in np.unique(bins):
        members = order[bins[order] == size]
        test = round(test_share * len(members))
        validation = test + round(validation_share * (len(members) - test))
        part[members[:test]] = "test"
        part[members[test:validation]] = "validation"
        if size <= train_operators:
            part[members[validation:]] = "train"
    return Split(*(order[part[order] == name] for name in Split._fields))


def make_lrt(
    draws: int = 500_000, seed: int = 0, progress: Progress | None = None, *, train_operators: int = 4
) -> Dataset:
    """Generate an LRT data set as the original was made: pairs of sentences, seven relations as classes, `split` by bins.

    >>> data = make_lrt(200, seed=0)
    >>> data.pairs, data.classes
    (True, ('=', '<', '>', '^', '|', 'v', '#'))
    """
    pairs = generate(draws, seed, progress, keep_larger=True)  # the last bin of the original files is 12 and more
    return _dataset(pairs, {"task": "lrt", "draws": draws}, seed, 0.15, train_operators)


def load_lrt(
    paths: Paths,
    *,
    seed: int = 0,
    test_share: float = 0.15,
    train_operators: int = 4,
    check: bool = True,
    on_bad: OnBad | None = None,
) -> Dataset:
    """Read LRT files of the original format into a data set, and `split` it by bins.

    With ``check``, a line with a wrong relation is malformed.
    """
    pairs = read_files(paths, lambda path: read_lrt(path, on_bad, check=check))
    return _dataset(pairs, {"task": "lrt", "from": names_of(paths)}, seed, test_share, train_operators)


def _dataset(
    pairs: Iterable[Pair], made: dict[str, Any], seed: int, test_share: float, train_operators: int
) -> Dataset:
    relations, operators = array("b"), array("b")
    codes = {name: code for code, name in enumerate(RELATIONS)}

    def noted() -> Iterator[Tree]:
        for pair in pairs:
            relations.append(codes[pair.relation])
            operators.append(pair.operators)
            yield pair.left
            yield pair.right

    forest = Forest(noted())
    bins = np.array(operators, dtype=np.int64)
    if train_operators != 4:  # data sets with the paper's bins say nothing of them, as before
        made = {**made, "train_operators": train_operators}
    return Dataset(
        forest=forest,
        targets=np.array(relations, dtype=np.int64),
        classes=RELATIONS,
        splits=split(bins, seed, test_share=test_share, train_operators=train_operators)._asdict(),
        pairs=True,
        made={**made, "seed": seed, "test_share": test_share},
    )
