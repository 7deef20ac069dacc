"""Cases of the attack: a seed gives an input, mutations make it hostile, and its outcome is judged."""

import copy
import json
import platform
import random
import subprocess
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from treefold.errors import TreefoldError

ANSWER, REFUSED = "answer", "refused"
EXCEPTION, WRONG, SIGNAL, HANG = "exception", "wrong answer", "signal", "hang"
FINDINGS: Final = (EXCEPTION, WRONG, SIGNAL, HANG)


class WrongAnswerError(Exception):
    """An answer that differs from the right one, or cannot be one."""


class Target(NamedTuple):
    """A door of the library: how hostile input is made, and what is done with it in an empty folder.

    ``every`` yields all inputs that differ from a right one in one place, by a value of a list.
    """

    name: str
    make: Callable[[random.Random], bytes]
    run: Callable[[bytes, Path], None]
    every: Callable[[], Iterator[bytes]] = lambda: iter(())


class Outcome(NamedTuple):
    """What came out of a case, and for findings why."""

    kind: str
    detail: str = ""


def random_for(target: str, seed: int, number: int) -> random.Random:
    """Return the randomness of one case.

    >>> random_for("x", 0, 1).random() == random_for("x", 0, 1).random() != random_for("x", 0, 2).random()
    True
    """
    return random.Random(f"{target} {seed} {number}")


def outcome_of(target: Target, data: bytes, folder: Path) -> Outcome:
    """Run a case and judge it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.run(data, folder)
    except TreefoldError as problem:
        lines = str(problem).strip()
        return Outcome(REFUSED, type(problem).__name__) if lines else Outcome(EXCEPTION, "an error without a message")
    except WrongAnswerError as problem:
        return Outcome(WRONG, str(problem))
    except Exception as problem:
        place = traceback.extract_tb(problem.__traceback__)[-3:]
        where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(place))
        return Outcome(EXCEPTION, f"{type(problem).__name__}: {str(problem)[:200]} ({where})")
    return Outcome(ANSWER)


def require(holds: bool, problem: str) -> None:
    """Raise the finding of a wrong answer unless something holds."""
    if not holds:
        raise WrongAnswerError(problem)


def packed(facts: dict[str, Any], content: bytes) -> bytes:
    """Join facts about an input and its content."""
    return json.dumps(facts).encode() + b"\n" + content


def unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Undo `packed`."""
    facts, _, content = data.partition(b"\n")
    return json.loads(facts), content


# Pieces that parsers, number readers and terminals have trouble with.
PIECES: Final = (
    *(b"\x00", b"\xff", b"\xfe\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xc3", b"\r", b"\n", b"\n\n", b"\t", b" ", b"\x1b[2J"),
    *("\u202e".encode(), "\u2028".encode(), "\U0001f600".encode(), "é".encode(), b"\x85", b"\x0b", b"\x0c", b"\x1a"),
    *(b"\\ud800", b'"\\udfff"', b"\\u0000", b"\\x00", b"\\", b'"', b"'", b"'''", b"`", b"#", b"//", b"/*", b"%", b"$", b"~"),
    *(b"(", b")", b"[", b"]", b"{", b"}", b"<", b">", b"</a>", b"<a ", b"<!--", b"-->", b"<![CDATA[", b"<!DOCTYPE a [", b"&", b"&#xD800;"),
    *(b"&#0;", b"&a;", b"<?x?>", b"_", b":", b";", b",", b".", b"=", b"==", b"+", b"-", b"*", b"|", b"@", b"!", b"?"),
    *(b"0", b"-1", b"1e999", b"NaN", b"Infinity", b"-0", b"1_0", b"0x", b"null", b"true", b"none", b"9" * 5000, b"1." + b"0" * 400),
    *(b"2147483647", b"2147483648", b"18446744073709551616", b"label", b"tree", b"x" * 3000),
)  # fmt: skip
DEEP: Final = (
    b"(",
    b"[",
    b"{",
    b'{"a":',
    b"<a>",
    b"(a ",
    b"[1,",
    b"f(",
    b"-",
    b"not ",
    b"((a ",
    b"a.b",
    b"if x:\n ",
    b"a=",
)


def mutated(random: random.Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """Change some bytes: flip, delete, insert, repeat, swap, splice with another sample, cut off, nest deeply."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        start = random.randrange(len(found) + 1)
        end = min(len(found), start + random.choice((1, 1, 2, 4, 16, 64)))
        way = random.randrange(10)
        if way == 0 and found:
            found[min(start, len(found) - 1)] ^= 1 << random.randrange(8)
        elif way == 1:
            del found[start:end]
        elif way in (2, 3):
            found[start:start] = random.choice(PIECES)
        elif way == 4:
            found[start:end] = random.choice(PIECES)
        elif way == 5:
            found[start:start] = bytes(found[start:end]) * random.choice((1, 2, 10, 200))
        elif way == 6 and others:
            other = random.choice(others)
            place = random.randrange(len(other) + 1)
            found[start:] = other[place:]
        elif way == 7 and random.random() < 0.3:
            del found[start:]
        elif way == 8 and random.random() < 0.1:
            found[start:start] = random.choice(DEEP) * random.choice((30, 300, 3000, 100_000))
        else:
            found[start:end] = random.randbytes(end - start)
    return bytes(found)


# Values that a JSON or TOML file of ours may hold instead of the right ones.
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), 2**31 - 1, 2**31, 2**40, 2**63, 2**64),
    *(10**30, -(2**63), "", "a", "none", "\x00", "\x1b[2J", "\ud800", "[/]", "x" * 5000, "nan", "1", "<i4", ">f8", "O", "V8", "M8[ns]"),
    *([], [0], [-1], [[]], [None], ["a", "a"], [2**63], {}, {"a": 1}, {"": None}, [1] * 1000, ["\ud800"], "../..", "/", "auto", "float64"),
)  # fmt: skip


def mutated_json(random: random.Random, facts: Any) -> Any:
    """Replace, remove, repeat or add an entry anywhere in a JSON value."""
    facts = copy.deepcopy(facts)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        holder: Any = None
        key: Any = None
        value = facts
        while isinstance(value, (dict, list)) and value and (holder is None or random.random() < 0.75):
            holder = value
            key = random.choice(list(value)) if isinstance(value, dict) else random.randrange(len(value))
            value = holder[key]
        if holder is None:
            return random.choice(VALUES)
        way = random.randrange(8)
        if way == 0:
            del holder[key]
        elif way == 1 and isinstance(holder, list):
            holder.insert(random.randrange(len(holder) + 1), copy.deepcopy(random.choice(holder)))
        elif way == 1:
            holder[random.choice(("", "a", f"{key}x", "\ud800"))] = copy.deepcopy(value)
        elif way == 2 and isinstance(value, (int, float)):
            holder[key] = value + random.choice((-1, 1, 0.5, -(2**40), 2**31))
        elif way == 3:
            holder[key] = random.choice(([value], {"a": value}, str(value), [value, value]))
        else:
            holder[key] = copy.deepcopy(random.choice(VALUES))
    return facts


def changed_once(facts: Any) -> Iterator[Any]:
    """Yield a JSON value with one entry removed, repeated, or replaced by each of `VALUES`; of long lists, three entries.

    >>> sum(1 for _ in changed_once({"a": 1})) == 2 * len(VALUES) + 2
    True
    """
    yield from VALUES
    if not isinstance(facts, (dict, list)):
        return
    keys = list(facts) if isinstance(facts, dict) else sorted({0, 1, len(facts) - 1} & set(range(len(facts))))
    for key in keys:
        rest = facts.copy()
        value = rest.pop(key)
        yield rest
        yield {**facts, f"{key}x": value} if isinstance(facts, dict) else [*facts, value]
        for other in changed_once(value):
            changed = facts.copy()
            changed[key] = other
            yield changed


def json_file(random: random.Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """Return a JSON file that was changed as a value or as bytes, or nests too deeply."""
    way = random.random()
    if way < 0.05:
        return random.choice((b"[", b'{"a":')) * 100_000
    if way < 0.3:
        return mutated(random, data, others)
    return json.dumps(mutated_json(random, json.loads(data)), indent=random.choice((None, 1))).encode()


_TOML: Final = (
    *("0", "-1", "1", "3.5", "nan", "inf", "1e400", "9" * 30, "9" * 5000, '"none"', '""', '"\\u0000"', '"\x1b"', "true", "[]", "[[]]", "[1, 2]"),
    *('["a"]', "{}", '{a = 1}', "[" * 3000, "2026-01-01", '"sum"', '"sum+"', '"full"', '"' + "x" * 3000 + '"', "2147483648", "1099511627776"),
)  # fmt: skip


def toml_file(random: random.Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """Return a TOML file with lines that were changed, removed, repeated or moved, or with changed bytes."""
    if random.random() < 0.25:
        return mutated(random, data, others)
    lines = data.decode().split("\n")
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(len(lines))
        way = random.randrange(8)
        if way == 0:
            del lines[place]
        elif way == 1:
            lines.insert(random.randrange(len(lines)), lines[place])
        elif way == 2:
            lines[place] = f"{random.choice(('a', 'model', 'training', '[a]', 'x.y'))} = {random.choice(_TOML)}"
        elif "=" in lines[place]:
            lines[place] = f"{lines[place].partition('=')[0]}= {random.choice(_TOML)}"
        if not lines:
            break
    return "\n".join(lines).encode()


def toml_changed_once(data: bytes) -> Iterator[bytes]:
    """Yield a TOML file with one line removed or repeated, or with another value."""
    lines = data.decode().split("\n")
    for place, line in enumerate(lines):
        others = [f"{line.partition('=')[0]}= {value}" for value in _TOML] if "=" in line else []
        for new in ([], [line, line], *([other] for other in others)):
            yield "\n".join([*lines[:place], *new, *lines[place + 1 :]]).encode()


def versions() -> dict[str, str]:
    """Return the versions of what was attacked."""
    names = ("treefold", "numpy", "torch", "numba", "safetensors", "pydantic", "lxml", "pyarrow", "tree-sitter")
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    return {
        "commit": subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown",
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: version(name) for name in names},
    }
