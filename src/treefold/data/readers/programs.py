"""Python programs as trees, through the standard ``ast``."""

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator

from treefold.data.readers.records import OnBad, Record, Source, one_record, text_of, tree_from, trees_of
from treefold.errors import ReadError
from treefold.trees.tree import Label, Tree


def records_python(source: Source, *, names: bool = True, on_bad: OnBad | None = None) -> Iterator[Record]:
    """Turn a Python file into the tree of its module, as `ast_tree` makes it."""

    def read(data: bytes) -> Tree:
        return ast_tree(_parsed(source, data), names=names)

    return one_record(source, on_bad, read, may_be_blank=True)


def read_python(source: Source, *, names: bool = True, on_bad: OnBad | None = None) -> Iterator[Tree]:
    """Turn a Python file into the tree of its module: see `ast_tree`."""
    return trees_of(records_python(source, names=names, on_bad=on_bad))


def ast_tree(module: ast.AST, *, names: bool = True) -> Tree:
    """Turn a syntax tree of Python into a tree labelled by classes, fields in order; names and constants are leaves.

    An absent field is an absent child, so that ``a[:b]`` is not ``a[b:]``; at the end of a node it is left out.

    >>> print(ast_tree(ast.parse("x[:n] = 'a b'")))
    (Module (Assign (Subscript (Name x Load) (Slice _ (Name n Load)) Store) (Constant "'a b'")))
    >>> print(ast_tree(ast.parse("x[:n] = 'a b'"), names=False))
    (Module (Assign (Subscript (Name Load) (Slice _ (Name Load)) Store) Constant))
    """
    labels: list[Label] = []
    widths: list[int] = []
    stack: list[ast.AST | str | None] = [module]
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
            _push_fields(item, stack, names)
            while len(stack) > before and stack[-1] is None:
                stack.pop()
            labels.append(type(item).__name__)
            widths.append(len(stack) - before)
    return tree_from(labels, widths)


# Fields that hold a name or nothing. Without names they are no slots at all, not even absent ones.
_NAME_FIELDS = frozenset({"arg", "asname", "kind", "module", "name", "rest", "type_comment"})


def _push_fields(node: ast.AST, stack: list[ast.AST | str | None], names: bool) -> None:
    if isinstance(node, (ast.Constant, ast.MatchSingleton)):  # whose None is a value
        if names:
            stack.append(_written(node.value))
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
        elif names:
            stack.append(str(value))


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
            warnings.simplefilter("ignore")  # the code is read, not run: its warnings are its author's
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
    except (SyntaxError, LookupError, UnicodeDecodeError) as problem:
        text_of(source, data)  # the better message, where UTF-8 was meant
        raise ReadError(
            f"expected the encoding that the file declares, got {str(problem)!r}; convert the file to UTF-8",
            source=source,
            line=1,
        ) from None
    return text_of(source, data)
