"""JSON documents as trees, read without recursion: the standard decoder fails at a depth of about a thousand."""

import re
from collections.abc import Iterator
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]  # typeshed leaves it out

from treefold.data.readers.stream import (
    Literals,
    OnBad,
    Record,
    Source,
    cuts_literals,
    is_short_word,
    one_record,
    placed,
    text_of,
)
from treefold.errors import ParseError
from treefold.files import has_half_character
from treefold.trees.tree import Tree

_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?"
_TOKEN = re.compile(
    rf'[ \t\n\r]*+(?:(?P<open>[\[{{])|(?P<close>[\]}}])|(?P<comma>,)|(?P<string>")'
    rf"|(?P<scalar>(?:{_NUMBER}|true|false|null|NaN|-?Infinity)(?![\w.+-]))|(?P<end>\Z))"
)
_COLON = re.compile(r"[ \t\n\r]*+:")
_BLANKS = re.compile(r"[ \t\n\r]*+")

# The tokens that may come next, in the words of the error messages.
_VALUE, _VALUE_OR_END = "a value", "a value or ']'"
_KEY, _KEY_OR_END = 'a key in quotes, "…"', "a key in quotes or '}'"
_NEXT = {"": "the end of the document", "[": "',' or ']'", "{": "',' or '}'"}
_LABELS = {"[": "array", "{": "object"}
_CLOSERS = {"[": "]", "{": "}"}
_WORDS = frozenset({"true", "false", "null"})


def records_json(source: Source, *, literals: Literals = "type", on_bad: OnBad | None = None) -> Iterator[Record]:
    """Turn a JSON document, which is a whole file, into one tree, as `json_tree` reads it."""
    cuts_literals("records_json", literals)

    def read(data: bytes) -> Tree:
        try:
            return json_tree(text_of(source, data), literals=literals)
        except ParseError as problem:
            raise placed(problem, source) from None

    return one_record(source, on_bad, read)


def json_tree(text: str, *, literals: Literals = "type") -> Tree:
    """Turn JSON into a tree: an object has a child for each key, which has the value as its child; an array its elements.

    Scalars are leaves. ``true``, ``false``, ``null`` and strings that are one word of at most 20 characters are their own
    labels; numbers are labelled ``number``, other strings ``string``. With ``literals="keep"`` all are labelled as they are
    written.

    >>> text = '{"kind": "x", "name": "x y", "sizes": [1, 2.50], "more": {}}'
    >>> print(json_tree(text))
    (object (kind x) (name string) (sizes (array number number)) (more object))
    >>> print(json_tree(text, literals="keep"))
    (object (kind x) (name "x y") (sizes (array 1 2.50)) (more object))
    """
    cut = cuts_literals("json_tree", literals)
    open_nodes: list[tuple[str, list[Tree], list[str]]] = []  # bracket, children, keys
    bracket, expected, position = "", _VALUE, 0
    root: Tree | None = None
    while True:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise _unexpected(text, position, expected)
        kind, token = match.lastgroup, match[match.lastgroup]
        start, position = match.start(kind), match.end()
        done: Tree | None = None
        if expected in (_KEY, _KEY_OR_END) and kind == "string":
            key, position = _key(text, position)
            open_nodes[-1][2].append(key)
            expected = _VALUE
        elif expected in (_VALUE, _VALUE_OR_END) and kind == "string":
            string, position = _string(text, position)
            done = Tree("string" if cut and not is_short_word(string) else string)
        elif expected in (_VALUE, _VALUE_OR_END) and kind == "scalar":
            done = Tree("number" if cut and token not in _WORDS else token)
        elif expected in (_VALUE, _VALUE_OR_END) and kind == "open":
            open_nodes.append((token, [], []))
            bracket, expected = token, _KEY_OR_END if token == "{" else _VALUE_OR_END
        elif expected == _NEXT[bracket] and kind == "comma" and bracket:
            expected = _KEY if bracket == "{" else _VALUE
        elif expected in (_NEXT[bracket], _VALUE_OR_END, _KEY_OR_END) and token == _CLOSERS.get(bracket):
            _, children, keys = open_nodes.pop()
            if keys:
                children = [Tree(key, (child,)) for key, child in zip(keys, children, strict=True)]
            done = Tree(_LABELS[bracket], children)
        elif root is not None and kind == "end":
            return root
        else:
            raise _unexpected(text, start, expected)
        if done is not None:
            bracket = open_nodes[-1][0] if open_nodes else ""
            expected = _NEXT[bracket]
            if open_nodes:
                open_nodes[-1][1].append(done)
            else:
                root = done


def _key(text: str, position: int) -> tuple[str, int]:
    key, position = _string(text, position)
    colon = _COLON.match(text, position)
    if colon is None:
        raise _unexpected(text, position, f"':' after the key {key!r}")
    return key, colon.end()


def _string(text: str, position: int) -> tuple[str, int]:
    """Read the string that begins after a quote."""
    string: str
    try:
        string, end = scanstring(text, position, True)
    except JSONDecodeError as problem:
        raise ParseError(
            f"expected a string, got {problem.msg[0].lower()}{problem.msg[1:]}; correct the document",
            text=text,
            position=problem.pos,
        ) from None
    if has_half_character(string):
        raise ParseError(
            "expected whole characters, got half of a \\ud8… pair; correct the escapes", text=text, position=position
        )
    return string, end


def _unexpected(text: str, position: int, expected: str) -> ParseError:
    blanks = _BLANKS.match(text, position)
    start = blanks.end() if blanks else position
    got = repr(text[start]) if start < len(text) else "the end of the document"
    return ParseError(f"expected {expected}, got {got}; correct the document", text=text, position=start)
