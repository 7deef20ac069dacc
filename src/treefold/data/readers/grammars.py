"""Programs in several languages as trees, through tree-sitter, which reads on behind errors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from treefold.data.readers.records import (
    OnBad,
    Record,
    Source,
    one_record,
    optional_package,
    text_of,
    tree_from,
    trees_of,
)
from treefold.errors import ConfigurationError, ReadError, require_choice
from treefold.trees.tree import Label, Tree


class Grammar(NamedTuple):
    """The module of a grammar, and the file suffixes of its language."""

    module: str
    suffixes: tuple[str, ...]


LANGUAGES: dict[str, Grammar] = {
    "c": Grammar("tree_sitter_c", (".c", ".h")),
    "java": Grammar("tree_sitter_java", (".java",)),
    "javascript": Grammar("tree_sitter_javascript", (".js", ".cjs", ".jsx", ".mjs")),
    "python": Grammar("tree_sitter_python", (".py", ".pyi")),
}

_COMMENTS = frozenset({"comment", "line_comment", "block_comment", "html_comment"})


def records_code(
    source: Source,
    *,
    language: str | None = None,
    names: bool = True,
    anonymous: bool = False,
    strict: bool = False,
    on_bad: OnBad | None = None,
) -> Iterator[Record]:
    """Turn a program into one tree, labelled by the node types of its grammar; the language is told or seen in the suffix.

    With ``names`` identifiers and literals have their text as a child; with ``anonymous`` keywords and punctuation are nodes,
    too. What cannot be understood stays as ``ERROR`` nodes, or with ``strict`` is a `ReadError`.
    """
    language = language_of(source) if language is None else language
    require_choice("records_code", "language", language, LANGUAGES)
    tree_sitter = optional_package("tree_sitter", extra="code")
    grammar = optional_package(LANGUAGES[language].module, extra="code")
    parser = tree_sitter.Parser(tree_sitter.Language(grammar.language()))

    def read(data: bytes) -> Tree:
        text_of(source, data)  # only to refuse what is not UTF-8
        root = parser.parse(data).root_node
        if strict and root.has_error:
            raise _first_error(root, source, data, language)
        return _code_tree(root, data, names=names, anonymous=anonymous)

    return one_record(source, on_bad, read, may_be_blank=True)


def read_code(
    source: Source,
    *,
    language: str | None = None,
    names: bool = True,
    anonymous: bool = False,
    strict: bool = False,
    on_bad: OnBad | None = None,
) -> Iterator[Tree]:
    """Turn a program into one tree: see `records_code`."""
    return trees_of(
        records_code(source, language=language, names=names, anonymous=anonymous, strict=strict, on_bad=on_bad)
    )


def language_of(source: Source) -> str:
    """Turn the suffix of a path into the language.

    >>> language_of("src/Main.java")
    'java'
    >>> language_of("main.rs")
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: main.rs: expected a suffix of 'c', 'java', 'javascript', 'python', got '.rs'; say
    which language it is with `language`.
    """
    suffix = Path(source).suffix.lower()
    for language, grammar in LANGUAGES.items():
        if suffix in grammar.suffixes:
            return language
    raise ConfigurationError(
        f"{source}: expected a suffix of {', '.join(map(repr, LANGUAGES))}, got {suffix!r}; "
        f"say which language it is with `language`."
    )


def _code_tree(root: Any, data: bytes, *, names: bool, anonymous: bool) -> Tree:
    labels: list[Label] = []
    widths: list[int] = []
    stack = [root]
    while stack:
        node = stack.pop()
        label = node.type
        labels.append(label)
        if node.child_count:
            children = node.children if anonymous else node.named_children
            widths.append(len(children))
            stack += children
            continue
        text = b""
        if names and node.is_named and label not in _COMMENTS:
            text = data[node.start_byte : node.end_byte]
        if text:  # a token that the parser made up to go on has none
            labels.append(text.decode(errors="replace"))
            widths += (1, 0)
        else:
            widths.append(0)
    return tree_from(labels, widths)


def _first_error(root: Any, source: Source, data: bytes, language: str) -> ReadError:
    node = root
    while not (node.is_error or node.is_missing):
        node = next(child for child in node.children if child.has_error or child.is_error or child.is_missing)
    got = f"no {node.type!r}" if node.is_missing else repr(data[node.start_byte : node.end_byte].decode()[:40])
    line_start = data.rfind(b"\n", 0, node.start_byte) + 1
    return ReadError(
        f"expected {language}, got {got}; correct the code, or read it with strict=False",
        source=source,
        line=node.start_point[0] + 1,
        column=len(data[line_start : node.start_byte].decode(errors="replace")) + 1,
    )
