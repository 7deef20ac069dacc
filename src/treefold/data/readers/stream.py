"""The parts that readers share: records, error handling, lines and bytes of a file, optional packages."""

import functools
import gc
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, ParamSpec

from treefold.errors import ConfigurationError, ParseError, ReadError, require_choice
from treefold.trees.tree import Label, Tree

Source = str | os.PathLike[str]
"""The path of one file."""

OnBad = Callable[[ReadError], None]
"""Called with the error of each record that is skipped."""

Literals = Literal["type", "keep"]
"""Whether literals, such as strings and numbers, are cut to their type, or kept as labels."""

SHORT: Final = 20
"""The greatest length of a word that is kept as a label where longer text is cut to its type."""

Arguments = ParamSpec("Arguments")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Record:
    """One tree, or a pair of trees, with its label, its file and its place in the file.

    ``line`` is the first line of the record, or its row in a parquet file; ``None`` if the whole file is one record.
    ``node_labels`` are the classes of all nodes, in post-order, the order of a forest; empty if the format has none.

    >>> Record((Tree("a"),), label="yes", source="a.tsv", line=3).trees[0].label
    'a'
    """

    trees: tuple[Tree, ...]
    label: str | None
    source: str
    line: int | None
    node_labels: tuple[str, ...] = ()


def trees_only(records: Callable[Arguments, Iterator[Record]]) -> Callable[Arguments, Iterator[Tree]]:
    """Turn a reader of records into a reader that yields their trees, one after the other.

    >>> read_pairs = trees_only(lambda path: iter([Record((Tree("a"), Tree("b")), None, path, 2)]))
    >>> [str(tree) for tree in read_pairs("pairs.csv")]
    ['a', 'b']
    """

    @functools.wraps(records)
    def read(*arguments: Arguments.args, **options: Arguments.kwargs) -> Iterator[Tree]:
        return (tree for record in records(*arguments, **options) for tree in record.trees)

    read.__name__ = records.__name__.replace("records", "read")
    return read


class Faults:
    """Raises the errors of one file, or passes them to ``on_bad`` and counts them.

    >>> told = []
    >>> faults = Faults("a.txt", told.append)
    >>> faults.report(ReadError("expected a tree, got ')'; remove it", source="a.txt", line=2))
    >>> print(told[0])
    a.txt, line 2: expected a tree, got ')'; remove it
    """

    def __init__(self, source: Source, on_bad: OnBad | None) -> None:
        self.source = os.fspath(source)
        self._on_bad = on_bad
        self._count = 0

    def report(self, error: ReadError) -> None:
        """Raise the error, or pass it to ``on_bad`` and return."""
        if self._on_bad is None:
            raise error
        self._count += 1
        self._on_bad(error)

    def error(self, problem: str, line: int | None = None, column: int | None = None) -> ReadError:
        """Return an error at a place of this file."""
        return ReadError(problem, source=self.source, line=line, column=column)

    def unless_empty(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the records, and report a file without any."""
        found = False
        for record in records:
            found = True
            yield record
        if not found and not self._count:
            self.report(self.error("expected at least one tree, got an empty file; check how it was written"))


def opened(source: Source) -> BinaryIO:
    """Open a file for reading.

    >>> opened("no/such/file")
    Traceback (most recent call last):
    ...
    treefold.errors.ReadError: no/such/file: expected a file that can be read, got 'No such file or directory'; check the path
    """
    try:
        return Path(source).open("rb")
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        raise ReadError(f"expected a file that can be read, got {reason!r}; check the path", source=source) from None


class Line(NamedTuple):
    """A line with its end, ``\\n``, its number, and the error if its bytes are not UTF-8."""

    number: int
    text: str
    problem: ReadError | None


def lines_of(source: Source) -> Iterator[Line]:
    """Yield the lines of a file; a line that is not UTF-8 has a ``problem``.

    Bytes that cannot be decoded are replaced in ``text``, so that brackets and quotes after them still match.
    """
    with opened(source) as file:
        for number, data in enumerate(file, 1):
            if number == 1:
                data = data.removeprefix(_BOM)
            if data.endswith(b"\r\n"):
                data = data[:-2] + b"\n"
            try:
                yield Line(number, data.decode(), None)
            except UnicodeDecodeError as problem:
                yield Line(number, data.decode(errors="replace"), _not_utf8(source, problem, number))


def bytes_of(source: Source) -> bytes:
    """Return the bytes of a file, without a byte order mark."""
    with opened(source) as file:
        return file.read().removeprefix(_BOM)


def text_of(source: Source, data: bytes) -> str:
    r"""Decode the bytes of a file; lines end in ``\n``.

    >>> text_of("a.json", b"[1,\r\n2]")
    '[1,\n2]'
    >>> text_of("a.json", b"[1,\n'\xe9']")
    Traceback (most recent call last):
    ...
    treefold.errors.ReadError: a.json, line 2, column 2: expected UTF-8, got the byte 0xe9; convert the file...
    """
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as problem:
        raise _not_utf8(source, problem, 1 + data.count(b"\n", 0, problem.start)) from None


def one_record(
    source: Source, on_bad: OnBad | None, read: Callable[[bytes], Tree], *, may_be_blank: bool = False
) -> Iterator[Record]:
    """Read a file that holds one tree as one record."""
    faults = Faults(source, on_bad)

    def records() -> Iterator[Record]:
        data = bytes_of(source)
        if not may_be_blank and not data.strip():
            return
        try:
            with collection_paused():
                tree = read(data)
        except ReadError as problem:
            faults.report(problem)
        else:
            yield Record((tree,), None, faults.source, None)

    return faults.unless_empty(records())


@contextmanager
def collection_paused() -> Iterator[None]:
    """Turn garbage collection off while a tree is built: trees have no cycles, and looking for them takes most of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def tree_from(labels: Sequence[Label], widths: Sequence[int]) -> Tree:
    """Build a tree from its nodes in reverse post-order: root first, right before left. A width of -1 is an absent child.

    Equal leaves are one object, which saves memory: most nodes of most documents are leaves.

    >>> print(tree_from(["a", "c", "", "b"], [3, 0, -1, 0]))
    (a b _ c)
    """
    leaves: dict[Label, Tree] = {}
    done: list[Tree | None] = []
    for label, width in zip(reversed(labels), reversed(widths), strict=True):
        if width > 0:
            node = Tree(label, done[-width:])
            del done[-width:]
            done.append(node)
        elif width < 0:
            done.append(None)
        else:
            leaf = leaves.get(label)
            if leaf is None:
                leaf = leaves[label] = Tree(label)
            done.append(leaf)
    (root,) = done
    assert root is not None
    return root


def placed(problem: ParseError, source: Source, line: int = 1, column: int = 1) -> ReadError:
    """Turn the error of a piece of a file that begins at ``line`` and ``column`` into one of the file.

    >>> print(placed(ParseError("expected ')'", text="(a\\n b", position=5), "a.txt", line=7, column=3))
    a.txt, line 8, column 3: expected ')'
    """
    return ReadError(
        problem.problem,
        source=source,
        line=line + problem.line - 1,
        column=problem.column + (column - 1 if problem.line == 1 else 0),
    )


def cuts_literals(owner: str, literals: str) -> bool:
    """Say whether literals are cut to their type; raise unless the setting is ``"type"`` or ``"keep"``.

    >>> cuts_literals("read_json", "type"), cuts_literals("read_json", "keep")
    (True, False)
    """
    require_choice(owner, "literals", literals, ["type", "keep"])
    return literals == "type"


def is_short_word(text: str) -> bool:
    """Say whether text is one word of at most 20 characters, which may well be a category.

    >>> is_short_word("en-GB"), is_short_word("two words"), is_short_word("x" * 21)
    (True, False, False)
    """
    return len(text) <= SHORT and not any(map(str.isspace, text))


def optional_package(name: str, extra: str) -> Any:
    """Turn the name of a module that only some readers need into the module.

    >>> optional_package("no_such_package", extra="xml")
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: expected the package no_such_package, got none; install it with `pip install
    'treefold[xml]'`.
    """
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        # A package that is there but does not load is another fault than one that is missing: say which.
        missing = isinstance(problem, ModuleNotFoundError) and (problem.name or "").split(".")[0] == name.split(".")[0]
        got = "none" if missing else f"one that does not load ({problem})"
        raise ConfigurationError(
            f"expected the package {name.split('.')[0]}, got {got}; install it with `pip install 'treefold[{extra}]'`."
        ) from None


def _not_utf8(source: Source, problem: UnicodeDecodeError, line: int) -> ReadError:
    line_start = problem.object.rfind(b"\n", 0, problem.start) + 1
    likely = "UTF-16" if problem.object.startswith((b"\xff\xfe", b"\xfe\xff")) else "LATIN1"
    return ReadError(
        f"expected UTF-8, got the byte 0x{problem.object[problem.start]:02x}; "
        f"convert the file, for example with `iconv -f {likely} -t UTF-8`",
        source=source,
        line=line,
        column=len(problem.object[line_start : problem.start].decode()) + 1,
    )
