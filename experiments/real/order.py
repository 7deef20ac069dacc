"""Trees in which the order or the place of nodes decides: two classes (thirds: three) with the same labels, in the same numbers.

Each generator returns a tree and its class; classes are equally likely. Models that count labels, or pairs of neighbours, are
near chance.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

import numpy as np

from treefold.data.dataset import Dataset
from treefold.data.generators.common import generator
from treefold.trees.tree import Tree

Example = tuple[Tree, str]
Item = TypeVar("Item")
SIZES: Final = {"train": 2000, "validation": 500, "test": 1000}

_NOUNS: Final = ["dog", "cat", "key", "cabinet", "teacher", "senator", "report", "car", "boy", "author"]
_VERBS: Final = ["run", "sleep", "fall", "laugh", "wait", "vanish"]
_LINKED: Final = ["see", "like", "follow", "own"]
_LETTERS: Final = "abcdefgh"


def agreement(random: Random) -> Example:
    """Make a sentence whose verb agrees with its subject, or with none of its own: 1 to 4 nouns stand between the two.

    All other verbs agree with their own subjects; the numbers of the nouns are independent.
    """
    plural, right = random.random() < 0.5, random.random() < 0.5
    subject = _noun_phrase(random, plural, attractors=1 + _below(random, 4))
    words = [Tree("V", [Tree(_inflected(_pick(random, _VERBS), plural == right))])]
    if random.random() < 0.5:
        words.insert(0, Tree("ADV", [Tree(_pick(random, ["often", "now", "soon"]))]))
    return Tree("S", [subject, Tree("VP", words)]), "right" if right else "wrong"


def first_is_last(random: Random) -> Example:
    """Make a node with 3 to 12 arguments; are the first and the last alike? One letter is there twice in either case."""
    width, right = 3 + _below(random, 10), random.random() < 0.5
    letters = [_pick(random, _LETTERS) for _ in range(width)]
    letters[-1] = letters[0]
    others = [place for place in range(1, width - 1) if letters[place] != letters[0]]
    if not others:
        return first_is_last(random)
    if not right:
        end, place = (0, -1)[_below(random, 2)], others[_below(random, len(others))]
        letters[end], letters[place] = letters[place], letters[end]
    arguments = [Tree(x, [Tree("x")] * _below(random, 3) if random.random() < 0.3 else ()) for x in letters]
    return Tree("call", arguments), "same" if right else "different"


def inside(random: Random) -> Example:
    """Make a document in which all links are inside a menu, at any depth, or one is outside."""
    right, nodes = random.random() < 0.5, 12 + _below(random, 20)
    labels, parents, covered = ["page", "menu", "div"], [-1, 0, 0], [False, True, False]
    while len(labels) < nodes:
        parent = _below(random, len(labels))
        labels.append("menu" if random.random() < 0.1 else _pick(random, ["div", "p", "list", "item"]))
        parents.append(parent)
        covered.append(covered[parent] or labels[-1] == "menu")
    for number in range(1 + _below(random, 4)):
        wanted = right or number > 0
        places = [i for i in range(nodes) if covered[i] == wanted and labels[i] not in ("menu", "page")]
        if not places:
            return inside(random)
        labels.append("link")
        parents.append(_pick(random, places))
    return Tree.from_parents(labels, parents), "inside" if right else "outside"


def third(random: Random) -> Example:
    """Make a node with 6 to 20 children; is the star in the first, the middle or the last third?"""
    width, wanted = 6 + _below(random, 15), _below(random, 3)
    places = [place for place in range(width) if 3 * place // width == wanted]
    star = _pick(random, places)
    children = [Tree("star") if place == star else Tree(_pick(random, _LETTERS)) for place in range(width)]
    return Tree("row", children), ("first", "middle", "last")[wanted]


def before(random: Random) -> Example:
    """Make a node with 5 to 15 children; does the red one come before the blue one? They are never neighbours, nor at an end."""
    width, right = 5 + _below(random, 11), random.random() < 0.5
    one = 1 + _below(random, width - 4)
    other = one + 2 + _below(random, width - one - 3)
    labels = [_pick(random, _LETTERS) for _ in range(width)]
    labels[one], labels[other] = ("red", "blue") if right else ("blue", "red")
    return Tree("row", [Tree(label) for label in labels]), "before" if right else "after"


def brackets(random: Random) -> Example:
    """Make a row of 4 to 12 brackets of three kinds, with letters between; are they properly nested, or do two pairs cross?"""
    right, row, stack, length = random.random() < 0.5, [""] * 0, [""] * 0, 4 + 2 * _below(random, 5)
    while len(row) < length:
        opens = not stack or (random.random() < 0.5 and len(stack) < length - len(row))
        row.append(_pick(random, "([{") if opens else {"(": ")", "[": "]", "{": "}"}[stack.pop()])
        if opens:
            stack.append(row[-1])
    if not right:
        closers = [place for place, mark in enumerate(row) if mark in ")]}"]
        swaps = [(i, j) for i in closers for j in closers if i < j and row[i] != row[j]]
        if not swaps:
            return brackets(random)
        i, j = swaps[_below(random, len(swaps))]
        row[i], row[j] = row[j], row[i]
    labels = [
        label for mark in row for label in (mark, *(_pick(random, _LETTERS) for _ in range(1 + _below(random, 2))))
    ]
    return Tree("row", [Tree(label) for label in labels]), "nested" if right else "crossed"


ORDER: Final[dict[str, Callable[[Random], Example]]] = {
    "agreement": agreement,
    "first_is_last": first_is_last,
    "inside": inside,
    "third": third,
    "before": before,
    "brackets": brackets,
}


def make_order(name: str, seed: int = 0, sizes: Mapping[str, int] = SIZES) -> Dataset:
    """Make the data set of a generator; no tree is there twice.

    >>> data = make_order("third", sizes={"train": 3, "test": 2})
    >>> data.splits["test"], data.classes
    (array([3, 4]), ('first', 'last', 'middle'))
    """
    examples = list(_different(ORDER[name], generator(name, seed), sum(sizes.values())))
    bounds = np.cumsum([0, *sizes.values()])
    splits = {split: np.arange(bounds[i], bounds[i + 1]) for i, split in enumerate(sizes)}
    trees, classes = zip(*examples, strict=True)
    return Dataset.from_labels(trees, classes, splits, {"generator": name, "seed": seed})


def _different(make: Callable[[Random], Example], random: Random, count: int) -> Iterator[Example]:
    seen: set[Tree] = set()
    while len(seen) < count:
        tree, label = make(random)
        if tree not in seen:
            seen.add(tree)
            yield tree, label


def _noun_phrase(random: Random, plural: bool, attractors: int) -> Tree:
    """Return a noun with its determiner, followed by phrases that have ``attractors`` nouns in all."""
    noun = Tree("N", [Tree(_pick(random, _NOUNS) + ("s" if plural else ""))])
    words = [Tree("D", [Tree(_pick(random, ["the", "my", "no"]))]), noun]
    if random.random() < 0.3:
        words.insert(1, Tree("A", [Tree(_pick(random, ["old", "red", "famous"]))]))
    phrase = Tree("NP", words)
    if not attractors:
        return phrase
    other = random.random() < 0.5
    inner = _noun_phrase(random, other, attractors - 1)
    if random.random() < 0.5:
        return Tree("NP", [phrase, Tree("PP", [Tree("P", [Tree(_pick(random, ["of", "near", "with"]))]), inner])])
    verb = Tree("V", [Tree(_inflected(_pick(random, _LINKED), other))])
    return Tree("NP", [phrase, Tree("SBAR", [Tree("that"), Tree("S", [inner, Tree("VP", [verb])])])])


def _inflected(verb: str, plural: bool) -> str:
    return verb if plural else verb + "s"


def _below(random: Random, count: int) -> int:
    return int(random.random() * count)


def _pick(random: Random, items: Sequence[Item]) -> Item:
    return items[_below(random, len(items))]
