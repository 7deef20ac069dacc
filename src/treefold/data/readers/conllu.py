"""Dependency trees of sentences in CoNLL-U files."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from treefold.data.readers.stream import Faults, Line, OnBad, Record, Source, lines_of, optional_package
from treefold.errors import ReadError, TreeError, require_choice
from treefold.trees.tree import Tree

_LABELS = ("upos", "deprel", "form", "lemma")
_FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel")  # the columns that are read


def records_conllu(
    source: Source, *, label: str = "upos", relations: bool = False, on_bad: OnBad | None = None
) -> Iterator[Record]:
    """Turn each sentence of a CoNLL-U file into a tree, as `dependency_tree` makes it."""
    require_choice("records_conllu", "label", label, _LABELS)
    conllu = optional_package("conllu", extra="conllu")
    problems = (conllu.exceptions.ParseException, ValueError, IndexError)
    faults = Faults(source, on_bad)

    def read(sentence: Sequence[Line]) -> Tree | None:
        number = sentence[0].number
        for line in sentence:
            if line.problem:
                raise line.problem
        try:
            (tokens,) = conllu.parse("".join(line.text for line in sentence), fields=_FIELDS)
        except problems as problem:
            raise faults.error(
                f"expected a sentence in CoNLL-U, got {str(problem).rstrip('.')!r}; write ten columns with tabs between them",
                number,
            ) from None
        try:
            return dependency_tree(tokens, label=label, relations=relations) if tokens else None
        except TreeError as problem:
            raise faults.error(str(problem), number) from None

    def records() -> Iterator[Record]:
        for sentence in _sentences(lines_of(source)):
            try:
                tree = read(sentence)
            except ReadError as error:
                faults.report(error)
            else:
                if tree is not None:  # a block of comments is not a sentence
                    yield Record((tree,), None, faults.source, sentence[0].number)

    return faults.unless_empty(records())


def dependency_tree(tokens: Iterable[Mapping[str, Any]], *, label: str = "upos", relations: bool = False) -> Tree:
    """Turn tokens into the tree of their heads; the children of a word are its dependents from left to right.

    Words are labelled by the column ``label``, with ``relations`` by ``deprel:label``. Multi-word tokens and empty nodes are
    skipped: their ``id`` is not a number.

    >>> cats = {"id": 1, "upos": "NOUN", "head": 2, "deprel": "nsubj"}
    >>> sleep = {"id": 2, "upos": "VERB", "head": 0, "deprel": "root"}
    >>> print(dependency_tree([cats, sleep]), dependency_tree([cats, sleep], relations=True))
    (VERB NOUN) (root:VERB nsubj:NOUN)
    """
    words = [token for token in tokens if isinstance(token["id"], int)]
    dependents: list[list[int]] = [[] for _ in range(len(words) + 1)]  # of the root, 0, and of each word
    for number, word in enumerate(words, 1):
        head = word.get("head")
        if word["id"] != number:
            raise TreeError(f"expected word {number}, got word {word['id']}; number the words 1, 2, …")
        if not isinstance(head, int) or not 0 <= head <= len(words):
            raise TreeError(
                f"expected the head of word {number} to be 0 … {len(words)}, got {head!r}; write all ten columns"
            )
        dependents[head].append(number)
    if len(dependents[0]) != 1:
        got = "none" if not dependents[0] else f"words {', '.join(map(str, dependents[0][:5]))}"
        raise TreeError(f"expected one word with head 0, the root, got {got}; attach the others to it")
    order = _heads_first(dependents)
    if len(order) != len(words):
        lost = min(set(range(1, len(words) + 1)) - set(order))
        raise TreeError(f"expected heads that lead to the root, got a cycle at word {lost}; correct its head")
    trees: list[Tree | None] = [None] * (len(words) + 1)
    for number in reversed(order):
        word = words[number - 1]
        text = str(word.get(label) or "_")
        text = f"{word.get('deprel') or '_'}:{text}" if relations else text
        trees[number] = Tree(text, [trees[dependent] for dependent in dependents[number]])
    root = trees[order[0]]
    assert root is not None
    return root


def _heads_first(dependents: Sequence[Sequence[int]]) -> list[int]:
    order = list(dependents[0])
    for head in order:  # grows while it is walked
        order += dependents[head]
    return order


def _sentences(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Yield the blocks between blank lines."""
    block: list[Line] = []
    for line in lines:
        if line.text.strip():
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block
