"""Dependency trees of sentences: CoNLL-U files, and aligned files of tokens, heads and relations."""

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from reprlib import repr as shortened
from typing import Any, Final

from treefold.data.readers.stream import Faults, Line, OnBad, Record, Source, lines_of, optional_package
from treefold.errors import ReadError, TreeError, require_choice
from treefold.trees.tree import Tree

_LABELS = ("upos", "deprel", "form", "lemma")
_FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel")  # the columns that are read
_CLASS = re.compile(r"#\s*label\s*=\s*(.*?)\s*")
_MOST_DIGITS: Final = 18  # Python refuses to read thousands of digits as a number
_FIELD = re.compile(r"[^ \t\r\n]+")


def records_conllu(
    source: Source,
    *,
    label: str = "upos",
    relations: bool = False,
    head: bool = True,
    on_bad: OnBad | None = None,
) -> Iterator[Record]:
    """Turn each sentence of a CoNLL-U file into a tree, as `dependency_tree` makes it.

    A comment ``# label = yes`` before its words is the class of the sentence.
    """
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
            return dependency_tree(tokens, label=label, relations=relations, head=head) if tokens else None
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
                    yield Record((tree,), _class_of(sentence), faults.source, sentence[0].number)

    return faults.unless_empty(records())


def dependency_tree(
    tokens: Iterable[Mapping[str, Any]], *, label: str = "upos", relations: bool = False, head: bool = True
) -> Tree:
    """Turn tokens into the tree of their heads, as `tree_of_heads` makes it.

    Words are labelled by the column ``label``, with ``relations`` by ``deprel:label``. Multi-word tokens and empty nodes are
    skipped: their ``id`` is not a number.

    >>> cats = {"id": 1, "upos": "NOUN", "head": 2, "deprel": "nsubj"}
    >>> sleep = {"id": 2, "upos": "VERB", "head": 0, "deprel": "root"}
    >>> print(dependency_tree([cats, sleep]), dependency_tree([cats, sleep], relations=True))
    (VERB NOUN VERB) (root:VERB nsubj:NOUN head:VERB)
    """
    words = [token for token in tokens if isinstance(token["id"], int)]
    heads: list[int] = []
    for number, word in enumerate(words, 1):
        above = word.get("head")
        if word["id"] != number:
            raise TreeError(f"expected word {number}, got word {word['id']}; number the words 1, 2, …")
        if not isinstance(above, int) or not 0 <= above <= len(words):
            raise TreeError(
                f"expected the head of word {number} to be 0 … {len(words)}, got {above!r}; write all ten columns"
            )
        heads.append(above)
    labels = [str(word.get(label) or "_") for word in words]
    return tree_of_heads(
        labels, heads, [str(word.get("deprel") or "_") for word in words] if relations else None, head=head
    )


def tree_of_heads(
    words: Sequence[str], heads: Sequence[int], relations: Sequence[str] | None = None, *, head: bool = False
) -> Tree:
    """Turn words and the numbers of their heads (from 1; 0 for the root) into a tree; dependents are in sentence order.

    With ``relations`` labels are ``relation:word``; a relation's own colon becomes ``_``. With ``head`` a word that has
    dependents is also a leaf among them, at its place in the sentence; the leaves then are the sentence, unless arcs cross.

    >>> print(tree_of_heads(["old", "cats", "sleep", "well"], [2, 3, 0, 3]))
    (sleep (cats old) well)
    >>> print(tree_of_heads(["old", "cats", "sleep", "well"], [2, 3, 0, 3], head=True))
    (sleep (cats old cats) sleep well)
    >>> print(tree_of_heads(["her", "cat"], [2, 0], ["nmod:poss", "root"], head=True))
    (root:cat nmod_poss:her head:cat)
    """
    dependents: list[list[int]] = [[] for _ in range(len(words) + 1)]  # of the root, 0, and of each word
    for number, above in enumerate(heads, 1):
        dependents[above].append(number)
    if len(dependents[0]) != 1:
        got = "none" if not dependents[0] else f"words {', '.join(map(str, dependents[0][:5]))}"
        raise TreeError(f"expected one word with head 0, the root, got {got}; attach the others to it")
    order = _heads_first(dependents)
    if len(order) != len(words):
        lost = min(set(range(1, len(words) + 1)) - set(order))
        raise TreeError(f"expected heads that lead to the root, got a cycle at word {lost}; correct its head")
    trees: list[Tree | None] = [None] * (len(words) + 1)
    for number in reversed(order):
        word, edge = words[number - 1], ""
        children = [trees[dependent] for dependent in dependents[number]]
        if head and children:
            place = bisect.bisect(dependents[number], number)
            children.insert(place, Tree(word if relations is None else f"head:{word}"))
        if relations is not None:
            edge = relations[number - 1].replace(":", "_") + ":"
        trees[number] = Tree(edge + word, children)
    root = trees[order[0]]
    assert root is not None
    return root


def read_dependencies(
    tokens: Source, parents: Source, relations: Source | None = None, *, head: bool = False
) -> Iterator[Tree]:
    """Turn aligned files of tokens and of the numbers of their heads, one sentence a line, into trees.

    `tree_of_heads` makes the trees; ``relations`` is a third file, with the relation of each word to its head. Every line must
    be a tree, since further files, such as scores, are aligned, too.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = [pathlib.Path(folder, name) for name in ("a.toks", "a.parents", "a.rels")]
    ...     for path, text in zip(files, ("cats sleep well\\n", "2 0 2\\n", "nsubj root advmod\\n")):
    ...         _ = path.write_text(text)
    ...     [tree] = read_dependencies(*files[:2])
    ...     [with_relations] = read_dependencies(*files)
    >>> print(tree, with_relations)
    (sleep cats well) (root:sleep nsubj:cats advmod:well)
    """
    sources = [tokens, parents, *([] if relations is None else [relations])]
    for lines in itertools.zip_longest(*map(lines_of, sources)):
        number = next(line.number for line in lines if line is not None)
        for line, source in zip(lines, sources, strict=True):
            if line is None:
                raise ReadError(
                    f"expected as many lines as the files beside it, got {number - 1}; align them", source=source
                )
            if line.problem:
                raise line.problem
        rows = [_FIELD.findall(line.text) for line in lines]
        words = rows[0]
        if not words:
            raise ReadError(
                "expected the words of a sentence, got an empty line; remove it", source=tokens, line=number
            )
        for row, source in zip(rows[1:], sources[1:], strict=True):
            if len(row) != len(words):
                raise ReadError(
                    f"expected {len(words)} entries, one for each word, got {len(row)}; align the files",
                    source=source,
                    line=number,
                )
        try:
            heads = [_head(text, place, len(words)) for place, text in enumerate(rows[1], 1)]
            tree = tree_of_heads(words, heads, rows[2] if relations is not None else None, head=head)
        except TreeError as problem:
            raise ReadError(str(problem), source=parents, line=number) from None
        yield tree


def _head(text: str, word: int, words: int) -> int:
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) > words:
        raise TreeError(f"expected the head of word {word} to be 0 … {words}, got {shortened(text)}; correct it")
    return int(text)


def _heads_first(dependents: Sequence[Sequence[int]]) -> list[int]:
    order = list(dependents[0])
    for head in order:  # grows while it is walked
        order += dependents[head]
    return order


def _class_of(sentence: Sequence[Line]) -> str | None:
    found = (_CLASS.fullmatch(line.text) for line in sentence)
    return next((match[1] for match in found if match and match[1]), None)


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
