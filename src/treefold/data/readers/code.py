"""Programs as trees: Python with the standard ``ast``, and several languages with tree-sitter, which tolerates errors."""

import ast
import io
import time
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from treefold.data.readers.stream import (
    Literals,
    OnBad,
    Record,
    Source,
    cuts_literals,
    one_record,
    optional_package,
    text_of,
    tree_from,
)
from treefold.errors import ConfigurationError, ReadError, TreeError, require_choice
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

PARSE_SECONDS = 20.0
"""How long tree-sitter may parse a program, in seconds; large programs have more, of which code without errors takes a tenth."""

_BYTES_PER_SECOND = 500_000
_PIECE = 4096
_COMMENTS = frozenset({"comment", "line_comment", "block_comment", "html_comment"})
# Types of tree-sitter whose text is a literal, or a part of one, or any text.
_LITERALS = frozenset(
    {
        *("character", "escape_sequence", "float", "integer", "number", "number_literal", "string_content"),
        *("string_fragment", "multiline_string_fragment", "escape_interpolation", "format_specifier"),
        *("binary_integer_literal", "decimal_integer_literal", "hex_integer_literal", "octal_integer_literal"),
        *("character_literal", "decimal_floating_point_literal", "hex_floating_point_literal", "regex_pattern"),
        *("hash_bang_line", "html_character_reference", "jsx_text", "preproc_arg"),
    }
)


def records_python(
    source: Source, *, names: bool = True, literals: Literals = "type", on_bad: OnBad | None = None
) -> Iterator[Record]:
    """Turn a Python file into the tree of its module, as `ast_tree` makes it."""
    cuts_literals("records_python", literals)

    def read(data: bytes) -> Tree:
        return ast_tree(_parsed(source, data), names=names, literals=literals)

    return one_record(source, on_bad, read, may_be_blank=True)


def ast_tree(module: ast.AST, *, names: bool = True, literals: Literals = "type") -> Tree:
    """Turn a syntax tree of Python into a tree labelled by classes, fields in order; names and constants are leaves.

    Numbers, strings and bytes are labelled by their type; with ``literals="keep"``, as Python writes them. An absent field is
    an absent child, so that ``a[:b]`` and ``a[b:]`` differ; absent fields at the end of a node are left out.

    >>> print(ast_tree(ast.parse("x[:n] = 'a b'")))
    (Module (Assign (Subscript (Name x Load) (Slice _ (Name n Load)) Store) (Constant str)))
    >>> print(ast_tree(ast.parse("x[:n] = 'a b'"), literals="keep"))
    (Module (Assign (Subscript (Name x Load) (Slice _ (Name n Load)) Store) (Constant "'a b'")))
    >>> print(ast_tree(ast.parse("x[:n] = 'a b'"), names=False))
    (Module (Assign (Subscript (Name Load) (Slice _ (Name Load)) Store) Constant))
    """
    cut = cuts_literals("ast_tree", literals)
    labels: list[Label] = []
    widths: list[int] = []
    stack: list[ast.AST | str | None] = [module]
    if not isinstance(module, ast.AST):
        raise TreeError(f"expected a node of ast, got {type(module).__name__}; parse source text with ast.parse(text).")
    while stack:
        item = stack.pop()
        if item is None:
            labels.append("")
            widths.append(-1)
        elif isinstance(item, str):
            labels.append(item)
            widths.append(0)
        else:
            before = len(stack)
            _push_fields(item, stack, names, cut)
            while len(stack) > before and stack[-1] is None:
                stack.pop()
            labels.append(type(item).__name__)
            widths.append(len(stack) - before)
    return tree_from(labels, widths)


# Fields with an optional name. Without names they are not even absent children.
_NAME_FIELDS = frozenset({"arg", "asname", "kind", "module", "name", "rest", "type_comment"})


def _push_fields(node: ast.AST, stack: list[ast.AST | str | None], names: bool, cut: bool) -> None:
    if isinstance(node, (ast.Constant, ast.MatchSingleton)):  # whose None is a value
        if names:
            stack.append(type(node.value).__name__ if cut and _is_open(node.value) else _written(node.value))
        return
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, ast.AST):
            stack.append(value)
        elif isinstance(value, list):
            for element in value:
                if element is None or isinstance(element, ast.AST):
                    stack.append(element)
                elif names:
                    stack.append(str(element))
        elif value is None:
            if names or field not in _NAME_FIELDS:
                stack.append(None)
        elif names:  # the field `str` has the text of an expression in a template
            stack.append("str" if cut and field == "str" else str(value))


def _is_open(constant: object) -> bool:
    """Say whether a constant is one of endlessly many: not None, ..., True or False."""
    return isinstance(constant, (str, bytes, int, float, complex)) and not isinstance(constant, bool)


def _written(constant: object) -> str:
    if constant is ...:
        return "..."
    try:
        return repr(constant)
    except ValueError:  # Python refuses to write thousands of decimal digits, but not hexadecimal ones
        return hex(constant) if isinstance(constant, int) else type(constant).__name__


def _parsed(source: Source, data: bytes) -> ast.Module:
    text = _decoded(source, data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the code is not run: its warnings concern its author
            return ast.parse(text)
    except SyntaxError as problem:
        raise ReadError(
            f"expected Python, got {problem.msg!r}; correct the code",
            source=source,
            line=problem.lineno or None,
            column=problem.offset or None,
        ) from None
    except (RecursionError, MemoryError):
        raise ReadError(
            "expected code that Python's own parser can hold, got expressions nested too deeply; "
            "break them up, or read the file as format 'code'",
            source=source,
        ) from None
    except ValueError as problem:  # null characters
        raise ReadError(f"expected Python, got {str(problem)!r}; correct the file", source=source) from None


def _decoded(source: Source, data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        if not encoding.startswith("utf-8"):
            return data.decode(encoding)
    except (SyntaxError, LookupError, UnicodeError) as problem:
        text_of(source, data)  # raises the better message if UTF-8 was meant
        raise ReadError(
            f"expected the encoding that the file declares, got {str(problem)!r}; convert the file to UTF-8",
            source=source,
            line=1,
        ) from None
    return text_of(source, data)


def records_code(
    source: Source,
    *,
    language: str | None = None,
    names: bool = True,
    literals: Literals = "type",
    anonymous: bool = False,
    strict: bool = False,
    on_bad: OnBad | None = None,
) -> Iterator[Record]:
    """Turn a program into one tree, labelled by the node types of its grammar; without ``language``, the suffix decides.

    With ``names`` identifiers have their text as a child, and with ``literals="keep"`` also literals, of which otherwise only
    the node type is seen. With ``anonymous`` keywords and punctuation are nodes, too. Code that cannot be parsed becomes
    ``ERROR`` nodes, or with ``strict`` raises `ReadError`.
    """
    language = language_of(source) if language is None else language
    require_choice("records_code", "language", language, LANGUAGES)
    without_text = _COMMENTS | _LITERALS if cuts_literals("records_code", literals) else _COMMENTS
    tree_sitter = optional_package("tree_sitter", extra="code")
    grammar = optional_package(LANGUAGES[language].module, extra="code")
    parser = tree_sitter.Parser(tree_sitter.Language(grammar.language()))

    def read(data: bytes) -> Tree:
        text_of(source, data)  # only to refuse bytes that are not UTF-8
        root = _parse(parser, data, source).root_node
        if strict and root.has_error:
            raise _first_error(root, source, data, language)
        return _code_tree(root, data, names=names, anonymous=anonymous, without_text=without_text)

    return one_record(source, on_bad, read, may_be_blank=True)


def _parse(parser: Any, data: bytes, source: Source) -> Any:
    """Return the tree of tree-sitter; raise if it takes too long.

    The time of its recovery from errors grows with the square of their number, and it has no limit of its own: what gives it
    the program in pieces looks at the clock.
    """
    allowed = PARSE_SECONDS + len(data) / _BYTES_PER_SECOND
    end = time.monotonic() + allowed
    stopped: list[BaseException] = []

    def piece(start: int, _: object) -> bytes:
        if stopped:
            return b""
        try:
            if time.monotonic() > end:
                raise ReadError(
                    f"expected code that tree-sitter can parse, got so many errors that it takes more than {allowed:.0f} s; "
                    f"correct the code, or leave the file out",
                    source=source,
                )
            return data[start : start + _PIECE]
        except BaseException as problem:  # the parser cannot take an exception, but it can take an end of the program
            stopped.append(problem)
            return b""

    try:
        tree = parser.parse(piece)
    except BaseException as problem:
        stopped.append(problem)
    if stopped:
        reason = stopped[0]
        while isinstance(reason, SystemError) and reason.__cause__:  # Ctrl-C between two lines of Python
            reason = reason.__cause__
        raise reason from None
    return tree


def language_of(source: Source) -> str:
    """Return the language that the suffix of a path suggests.

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


def _code_tree(root: Any, data: bytes, *, names: bool, anonymous: bool, without_text: frozenset[str]) -> Tree:
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
        if names and node.is_named and label not in without_text:
            text = data[node.start_byte : node.end_byte]
        if text:  # a token that the parser inserted to recover from an error has none
            labels.append(text.decode(errors="replace"))
            widths += (1, 0)
        else:
            widths.append(0)
    return tree_from(labels, widths)


def _first_error(root: Any, source: Source, data: bytes, language: str) -> ReadError:
    node = root
    while not (node.is_error or node.is_missing):
        wrong = next((child for child in node.children if child.has_error or child.is_error or child.is_missing), None)
        if wrong is None:  # the grammar says that there is an error below this node, but shows none
            break
        node = wrong
    got = (
        f"no {node.type!r}"
        if node.is_missing
        else repr(data[node.start_byte : node.end_byte].decode(errors="replace")[:40])
    )
    line_start = data.rfind(b"\n", 0, node.start_byte) + 1
    return ReadError(
        f"expected {language}, got {got}; correct the code, or read it with strict=False",
        source=source,
        line=node.start_point[0] + 1,
        column=len(data[line_start : node.start_byte].decode(errors="replace")) + 1,
    )
