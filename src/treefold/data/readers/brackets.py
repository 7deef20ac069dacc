"""Trees in brackets: s-expressions, the brackets of the Penn treebank, and those of the Stanford Sentiment Treebank.

A file is cut into pieces, one for each tree, and each piece is parsed separately. So a long file is read as a stream, and a
malformed tree does not affect the others.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from treefold.data.readers.stream import Faults, Line, OnBad, Record, Source, lines_of, placed
from treefold.errors import ParseError, ReadError
from treefold.trees.tree import Tree

# The groups hold the end of a quoted label or a vector; they are empty if it continues on the next line.
_SEXPR = re.compile(r'[()]|"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|\[[^\]]*+(\]?)|[^\s()"\[][^\s()"]*+', re.DOTALL)
_PENN = re.compile(r"[()]|[^\s()]++")
_TO_THE_END_OF = {
    '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL),
    "[": re.compile(r"[^\]]*+(\]?)"),
}
_COMMENT = ("#", ";")

PHRASE: Final = "<phrase>"
"""The label of the inner nodes of a tree whose words are its leaves."""

# A leaf `(label word)`, the beginning of an inner node `(label (`, an end of a node, or the end of the text. Blanks are those of
# ASCII: the treebank has words with a no-break space.
_NODE = re.compile(r"\s*+(?:\(\s*+([^\s()]++)\s++([^\s()]++)\s*+\)|\(\s*+([^\s()]++)(?=\s*+\()|(\))|(\Z))", re.ASCII)
_NO_NODE = re.compile(r"\s*+(\(?)\s*+([^\s()]*+)\s*+([^\s()]*+)\s*+", re.ASCII)


def records_sexpr(source: Source, *, on_bad: OnBad | None = None) -> Iterator[Record]:
    """Turn a file of s-expressions into trees; a tree without brackets, a label, must be alone on its line.

    Between trees, blank lines and lines that begin with ``#`` or ``;`` are skipped. A tree that is never closed extends to
    the end of the file; with ``on_bad``, reading then continues at the next line that begins with a bracket.
    """
    return _records(source, on_bad, _SEXPR, Tree.parse)


def records_penn(source: Source, *, on_bad: OnBad | None = None) -> Iterator[Record]:
    """Turn a file of Penn-style brackets into trees, each as `penn_tree` reads it."""
    return _records(source, on_bad, _PENN, penn_tree)


def penn_tree(text: str) -> Tree:
    """Turn Penn-style brackets into a tree; brackets without a label vanish around one tree, and are ``ROOT`` around several.

    Labels and words are anything but blanks and brackets, so ``-LRB-``, quotes and ``_`` are kept.

    >>> print(penn_tree("( (S (NP (DT The) (NN cat)) (VP sat)) )"))
    (S (NP (DT The) (NN cat)) (VP sat))
    """
    open_nodes: list[tuple[str, list[Tree]]] = []
    root: Tree | None = None
    after_bracket = False
    for match in _PENN.finditer(text):
        token = match[0]
        if root is not None or (not open_nodes and token != "("):
            expected = "'(' to begin a tree" if root is None else "the end of the text after a whole tree"
            raise ParseError(
                f"expected {expected}, got {token!r}; write (label word)", text=text, position=match.start()
            )
        if token == "(":
            open_nodes.append(("", []))
        elif after_bracket and token != ")":
            open_nodes[-1] = (token, [])
        else:
            node = _closed(*open_nodes.pop(), text, match.start()) if token == ")" else Tree(token)
            if open_nodes:
                open_nodes[-1][1].append(node)
            else:
                root = node
        after_bracket = token == "("
    if root is None:
        raise ParseError(
            "expected a whole tree, got the end of the text; close its brackets", text=text, position=len(text)
        )
    return root


def records_sst(source: Source, *, on_bad: OnBad | None = None) -> Iterator[Record]:
    """Turn lines of brackets with a class at every node, ``(3 (2 It) (4 works))``, into trees, each as `sst_tree` reads it.

    The class of a record is that of the root; ``node_labels`` has the classes of all nodes.
    """
    faults = Faults(source, on_bad)

    def records() -> Iterator[Record]:
        for number, text, wrong_bytes in lines_of(source):
            if not text.strip():
                continue
            try:
                if wrong_bytes:
                    raise wrong_bytes
                tree, classes = sst_tree(text.rstrip("\n"))
            except ParseError as problem:
                faults.report(placed(problem, faults.source, number))
            except ReadError as error:
                faults.report(error)
            else:
                yield Record((tree,), classes[-1], faults.source, number, classes)

    return faults.unless_empty(records())


def sst_tree(text: str) -> tuple[Tree, tuple[str, ...]]:
    """Turn brackets with a class at every node into a tree and the classes of its nodes in post-order.

    The words are the leaves, as they are written; inner nodes are labelled ``<phrase>``.

    >>> tree, classes = sst_tree("(4 (2 It) (3 (3 works) (2 .)))")
    >>> print(tree, classes)
    (<phrase> It (<phrase> works .)) ('2', '3', '2', '3', '4')
    """
    open_nodes: list[tuple[str, list[Tree]]] = []
    classes: list[str] = []
    root: Tree | None = None
    position = 0
    while True:
        match = _NODE.match(text, position)
        if match is None:
            raise _not_a_node(text, position, bool(open_nodes))
        leaf_class, word, inner_class, closing, end = match.groups()
        if root is not None and end is None:
            raise ParseError(
                "expected the end of the line after a whole tree, got more; write one a line",
                text=text,
                position=position,
            )
        position = match.end()
        if inner_class is not None:
            open_nodes.append((inner_class, []))
            continue
        if word is not None:
            node = Tree(word)
            classes.append(leaf_class)
        elif closing is not None and open_nodes:
            own_class, children = open_nodes.pop()
            node = Tree(PHRASE, children)
            classes.append(own_class)
        elif closing is not None:
            raise ParseError(
                "expected a tree, got ')' that closes nothing; remove it", text=text, position=position - 1
            )
        elif root is not None:
            return root, tuple(classes)
        else:
            raise ParseError(
                "expected ')' to close the tree, got the end of the line; close its brackets",
                text=text,
                position=position,
            )
        if open_nodes:
            open_nodes[-1][1].append(node)
        else:
            root = node


def _not_a_node(text: str, position: int, is_inside: bool) -> ParseError:
    """Return the error for text that is not the beginning or end of a node."""
    match = _NO_NODE.match(text, position)
    assert match is not None  # it also matches the empty text
    bracket, label, word = match.groups()
    place = match.end()
    after = repr(text[place]) if place < len(text) else "the end of the line"
    if not bracket:
        place = match.start(2)
        expected = "'(' or ')'" if is_inside else "'(' to begin a tree"
        problem = f"expected {expected}, got {_shown(label)}; write a word as (class word)"
    elif not label:
        problem = f"expected a class after '(', got {after}; write (class word) or (class tree …)"
    elif not word:
        problem = f"expected a word or trees after the class {_shown(label)}, got {after}; write (class word)"
    else:
        problem = f"expected ')' after the word {_shown(word)}, got {after}; write each word as (class word)"
    return ParseError(problem, text=text, position=place)


def _closed(label: str, children: list[Tree], text: str, position: int) -> Tree:
    if label:
        return Tree(label, children)
    if not children:
        raise ParseError("expected a label in brackets, got (); write (label word)", text=text, position=position)
    return children[0] if len(children) == 1 else Tree("ROOT", children)


def _records(
    source: Source, on_bad: OnBad | None, token: re.Pattern[str], parse: Callable[[str], Tree]
) -> Iterator[Record]:
    faults = Faults(source, on_bad)

    def records() -> Iterator[Record]:
        for piece in _Cutter(faults, token).cut(lines_of(source)):
            try:
                tree = parse(piece.text)
            except ParseError as problem:
                faults.report(placed(problem, faults.source, piece.line, piece.column))
            else:
                yield Record((tree,), None, faults.source, piece.line)

    return faults.unless_empty(records())


@dataclass(frozen=True, slots=True)
class _Piece:
    """The text of one tree, and the line and column of its first character."""

    text: str
    line: int
    column: int


class _Cutter:
    """Cuts lines into the pieces that hold one tree each, by counting brackets outside quotes and vectors."""

    def __init__(self, faults: Faults, token: re.Pattern[str]) -> None:
        self._faults = faults
        self._token = token
        self._open: list[Line] = []  # the lines of the tree that is not closed yet
        self._start = 0  # its first column in the first of them
        self._depth = 0
        self._inside = ""  # the quote or square bracket that is open at the end of the last line

    def cut(self, lines: Iterable[Line]) -> Iterator[_Piece]:
        for line in lines:
            yield from self._pieces(line)
        if not self._open:
            return
        # An unclosed tree contains the rest of the file. Read that again; now a bracket in the first column begins a tree. This
        # happens only once, so the cost stays linear.
        again = self._open[1:]
        self._give_up("the end of the file")
        for line in again:
            if self._open and line.text.startswith("("):
                self._give_up(f"the next tree in line {line.number}")
            yield from self._pieces(line)
        if self._open:
            self._give_up("the end of the file")

    def _pieces(self, line: Line) -> Iterator[_Piece]:
        text, position = line.text, 0
        if self._open:
            self._open.append(line)
            if self._inside:
                rest = _TO_THE_END_OF[self._inside].match(text)
                assert rest is not None  # it also matches the empty text
                if not rest[1]:
                    return
                self._inside, position = "", rest.end()
        elif text.lstrip().startswith(_COMMENT):
            return
        for match in self._token.finditer(text, position):
            token = match[0]
            if token == "(":
                if not self._depth:
                    self._open, self._start = [line], match.start()
                self._depth += 1
            elif not self._depth:
                if self._is_label_alone(match, line):
                    yield from self._checked([line], match.start(), match.end())
                return
            elif token == ")":
                self._depth -= 1
                if not self._depth:
                    yield from self._checked(self._open, self._start, match.end())
                    self._open = []
            elif token[0] in _TO_THE_END_OF and not match[match.lastindex or 0]:
                self._inside = token[0]
                return

    def _is_label_alone(self, match: re.Match[str], line: Line) -> bool:
        """Say whether a token outside brackets is a tree; if not, report it."""
        token, alone = match[0], match[0] == line.text.strip()
        if token == ")":
            problem = "expected a tree, got ')' that closes nothing; remove it"
        elif self._token is _PENN:
            problem = f"expected '(' to begin a tree, got {_shown(token)}; write (label word)"
        elif token[0] in _TO_THE_END_OF and not match[match.lastindex or 0]:
            problem = f"expected {token[0]!r} to be closed in its line, got the end of the line; close it"
        elif not alone:
            problem = (
                f"expected brackets, or a label alone on its line, got {_shown(token)} among others; "
                f"write (label child …), or put a label with blanks in quotes"
            )
        else:
            return True
        self._faults.report(line.problem or self._faults.error(problem, line.number, match.start() + 1))
        return False

    def _checked(self, lines: list[Line], start: int, end: int) -> Iterator[_Piece]:
        """Yield the lines from start to end as a piece, unless their bytes are not UTF-8."""
        problem = next((line.problem for line in lines if line.problem), None)
        if problem:
            self._faults.report(problem)
            return
        texts = [line.text for line in lines]
        texts[-1] = texts[-1][:end]
        texts[0] = texts[0][start:]
        yield _Piece("".join(texts), lines[0].number, start + 1)

    def _give_up(self, got: str) -> None:
        """Report the open tree as never closed, and drop it."""
        closer = {"": "')' to close this tree", '"': "'\"' to close a quoted label", "[": "']' to close a vector"}
        error = self._faults.error(
            f"expected {closer[self._inside]}, got {got}; close it", self._open[0].number, self._start + 1
        )
        self._open, self._depth, self._inside = [], 0, ""
        self._faults.report(error)


def _shown(token: str) -> str:
    return repr(token if len(token) <= 40 else token[:40] + "…")
