"""Files: names that can be opened; writing that leaves the old content or all of the new one, never a part; reading of JSON."""

import ctypes
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, BinaryIO, Final, NamedTuple

from treefold.errors import FileError, TreefoldError

_UNFINISHED = ".writing."
_TERMINALS: Final = ("/dev/stdin", "/dev/tty")
_HERE: Final = -100  # AT_FDCWD of Linux
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def as_path(name: str | os.PathLike[str]) -> Path:
    r"""Return a name as a path; raise if no file can have this name, or if it is a device such as ``/dev/zero``.

    A file of this name need not exist.

    >>> as_path("data/x").name
    'x'
    >>> as_path("a\0b")
    Traceback (most recent call last):
    ...
    treefold.errors.FileError: expected the name of a file or folder, got 'a\x00b' (embedded null byte); choose another name.
    """
    try:
        path = Path(name)
        mode = path.stat().st_mode
        if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and str(path) not in _TERMINALS:
            raise ValueError("a device, which may have no end")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return path
    except (OSError, ValueError, TypeError) as problem:
        reason = getattr(problem, "strerror", None) or getattr(problem, "reason", None) or problem
        raise FileError(
            f"expected the name of a file or folder, got {shortened(name)} ({reason}); choose another name."
        ) from None
    return path


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; it gets its name when the block ends without an error.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_file(Path(folder) / "x") as file:
    ...         _ = file.write(b"whole")
    ...     (Path(folder) / "x").read_bytes()
    b'whole'
    """
    path = as_path(path)
    path = path.resolve() if path.is_symlink() else path  # replace the target of a link, not the link
    if path.exists() and not path.is_file():
        raise FileError(f"{path}: expected a file to write, got a folder or device of that name; choose another name.")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    try:
        handle, temporary = tempfile.mkstemp(prefix=_UNFINISHED, dir=path.parent)
    except OSError as problem:
        raise FileError(
            f"{path}: expected a folder that can be written to, got {problem.strerror or problem}; create it, or choose another."
        ) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except OSError as problem:
        raise FileError(
            f"{path}: expected to write the whole file, got {problem.strerror or problem}; "
            f"nothing was changed, free some space."
        ) from problem
    finally:
        Path(temporary).unlink(missing_ok=True)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files that belong together: all are on the disk before any gets its name, the last of ``contents`` first."""
    with ExitStack() as stack:
        for name, content in contents.items():
            file = stack.enter_context(atomic_file(folder / name))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def read_json(path: Path, error: type[TreefoldError], remedy: str) -> dict[str, Any]:
    """Read a file of ours that holds one JSON object; raise the given error if it does not, or cannot be read.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "x.json"
    ...     _ = path.write_text("[" * 100_000)
    ...     read_json(path, FileError, "restore a copy")
    Traceback (most recent call last):
    ...
    treefold.errors.FileError: ...x.json: expected a JSON file, got values nested too deeply; restore a copy.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("a folder or device")
        facts = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError(f"a {type(facts).__name__} instead of an object")
    except (OSError, ValueError) as problem:
        raise error(f"{path}: expected a JSON file, got {problem}; {remedy}.") from None
    return facts


def parse_json(text: str) -> Any:
    """Parse JSON as `json.loads` does, with a ValueError also for values nested too deeply and for half characters.

    >>> parse_json('{"a": [1]}')
    {'a': [1]}
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("values nested too deeply") from None
    if "\\u" in text and has_half_character(json.dumps(value, ensure_ascii=False)):
        raise ValueError("half of a surrogate pair, which is no character")
    return value


def has_half_character(text: str) -> bool:
    r"""Say whether escapes left half of a surrogate pair: text that can be held, but never written to a file or terminal.

    >>> has_half_character("\ud83d"), has_half_character("\U0001f600")
    (True, False)
    """
    return not text.isascii() and _SURROGATE.search(text) is not None


def with_whole_characters(text: str) -> str:
    r"""Return a text that can be written: halves of characters, as in names of files that are not UTF-8, become escapes.

    >>> with_whole_characters("n\udcff.jsonl")
    'n\\udcff.jsonl'
    """
    return text.encode(errors="backslashreplace").decode()


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise _not_writable(path, problem) from None


def _not_writable(path: Path, problem: OSError) -> FileError:
    return FileError(
        f"{path}: expected a place that can be written to, got {problem.strerror or problem}; choose another."
    )


def clear_unfinished(folder: Path) -> None:
    """Remove the temporary files that a killed process left in a folder."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        path.unlink(missing_ok=True)


def require_place(path: Path) -> None:
    """Raise if a path is a link to nothing, which is neither a name that is free nor a folder."""
    if path.is_symlink() and not path.exists():
        raise FileError(
            f"{path}: expected a folder, or a name that is free, got a link to nothing; remove it, or choose another."
        )


class FolderKind(NamedTuple):
    """How to recognise a folder that treefold wrote: it has the file ``sign`` with the text ``mark``, and no file but ``own``.

    ``own`` are the names of all files that treefold writes there, or patterns of them.
    """

    name: str
    sign: str
    mark: str
    own: Collection[str]

    def foreign(self, folder: Path) -> str | None:
        """Return the first file in a folder that treefold did not write there, as a relative path; None if there is none."""
        for place, folders, files in os.walk(folder):
            links = (name for name in folders if Path(place, name).is_symlink())
            for name in sorted([*files, *links]):
                found = Path(place, name).relative_to(folder).as_posix()
                if not any(fnmatchcase(found, pattern) for pattern in self.own):
                    return found
        return self.sign if (folder / self.sign).exists() and not self.is_signed(folder) else None

    def is_signed(self, folder: Path) -> bool:
        """Say whether a folder has the file ``sign`` with the text ``mark``."""
        sign = folder / self.sign
        return sign.is_file() and self.mark.encode() in sign.read_bytes()


def require_replaceable(path: Path, kind: FolderKind | None) -> None:
    """Raise unless a folder can be created at a path, or replaced.

    An existing folder is replaced only with a ``kind`` (the user said ``--force``), and only if it is empty or of this kind.
    """
    require_place(path)
    if not os.path.lexists(path):
        return
    if kind is None:
        raise FileError(
            f"{path}: expected a name that is free, got one that exists; choose another, or use --force to replace it."
        )
    if not path.is_dir():
        raise FileError(f"{path}: expected a directory to replace, got a file; remove it, or choose another name.")
    foreign = kind.foreign(path)
    if foreign is None and not (path / kind.sign).is_file() and any(path.iterdir()):
        raise FileError(
            f"{path}: expected {kind.name} to replace, got a folder without {kind.sign}; choose another name, or remove it."
        )
    if foreign is not None:
        raise FileError(
            f"{path}: expected {kind.name} to replace, got a folder with {shortened(foreign)}, which treefold did not write; "
            f"choose another name, or move this file."
        )


def remove_folder(path: Path, kind: FolderKind) -> None:
    """Remove a folder, if there is one, whose writing was interrupted; raise if it has a file that treefold did not write."""
    clear_unfinished(path)
    foreign = kind.foreign(path)
    if foreign is not None:
        raise FileError(
            f"{path}: expected only files of {kind.name}, got {shortened(foreign)}, which treefold did not write; move this file."
        )
    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def atomic_folder(path: str | os.PathLike[str], kind: FolderKind | None = None) -> Iterator[Path]:
    """Create a temporary folder to fill; it gets its name when the block ends without an error.

    With a ``kind``, it may replace a folder of this kind (`require_replaceable`).

    >>> with tempfile.TemporaryDirectory() as place:
    ...     with atomic_folder(Path(place) / "data") as folder:
    ...         _ = (folder / "x").write_text("whole")
    ...     sorted(path.name for path in (Path(place) / "data").iterdir())
    ['x']
    """
    path = as_path(path)
    require_replaceable(path, kind)
    make_folder(path.parent)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as problem:
        raise _not_writable(path, problem) from None
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        require_replaceable(path, kind)  # once more: somebody else may have written there
        if not os.path.lexists(path):
            temporary.rename(path)
        elif not _swap(temporary, path):
            _replace(path, temporary)
    finally:
        if temporary.is_symlink():  # to the folder that was replaced; that folder stays
            temporary.unlink()
        else:
            shutil.rmtree(temporary, ignore_errors=True)


def _swap(first: Path, second: Path) -> bool:
    """Exchange two folders in one step, so that a kill cannot come between two; return whether the system can do this."""
    try:
        done: int = ctypes.CDLL(None).renameat2(_HERE, bytes(first), _HERE, bytes(second), _EXCHANGE)
    except (AttributeError, OSError, TypeError):
        return False
    return done == 0


def _replace(path: Path, new: Path) -> None:
    """Replace a folder in two steps; if the second one fails, undo the first."""
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent)) / path.name
    try:
        path.rename(old)
        new.rename(path)
    finally:
        if os.path.lexists(old) and not os.path.lexists(path):
            old.rename(path)
        shutil.rmtree(old.parent, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
