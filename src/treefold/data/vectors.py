"""Files of word vectors: text, as GloVe and word2vec write it, and npz."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from treefold.errors import ReadError
from treefold.files import as_path

# Axes:  n words that were found · M numbers of a vector
Vectors = npt.NDArray[np.float32]
_HEADER: Final = re.compile(rb"[0-9]{1,18} [0-9]{1,18}")


def read_vectors(path: str | os.PathLike[str], words: Iterable[str]) -> tuple[list[str], Vectors]:
    """Read the vectors of some words: those that were found, and their vectors (n, M).

    A text file has a word and its numbers a line, separated by spaces; a first line with two numbers, as word2vec writes it, is
    skipped. A file that ends in ``.npz`` has the arrays ``words`` and ``vectors``, of any type of numbers. A word that is not in
    the file has the vector of its lower case.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "small.txt").write_text("the 0.5 1\\ndog 2 3\\n")
    ...     read_vectors(Path(folder, "small.txt"), ["Dog", "cat", "the"])
    (['Dog', 'the'], array([[2. , 3. ],
           [0.5, 1. ]], dtype=float32))
    """
    path, words = as_path(path), list(words)
    wanted = {form for word in words for form in (word, word.lower())}
    try:
        found, count = _of_npz(path, wanted) if path.suffix == ".npz" else _of_text(path, wanted)
    except OSError as problem:
        raise ReadError(f"expected a file that can be read, got {problem.strerror or problem}", source=path) from None
    known = [word for word in words if word in found or word.lower() in found]
    if not known:
        shown = ", ".join(map(repr, words[:3]))
        raise ReadError(
            f"expected vectors of some of the {len(words):,} labels ({shown}, …), got {count:,} other words; choose a file for "
            f"these labels, or leave `embeddings` out",
            source=path,
        )
    return known, np.stack([found[word] if word in found else found[word.lower()] for word in known])


def _of_text(path: Path, wanted: set[str]) -> tuple[dict[str, Vectors], int]:
    """Return the vectors of wanted words, and the number of all words; only the lines of wanted words are parsed."""
    forms = {word.encode("utf-8", "surrogatepass"): word for word in wanted}
    found: dict[str, Vectors] = {}
    size = count = 0
    with path.open("rb") as file:
        for number, line in _lines(file):
            spaces = line.count(b" ")
            if not size and _HEADER.fullmatch(line):  # the header: number of words, length
                size = int(line.split()[1])
                continue
            size = size or spaces
            word, _, rest = line.partition(b" ")
            if spaces > size and not _is_number(rest.partition(b" ")[0]):  # a word with spaces
                parts = line.rsplit(b" ", size)
                word, rest, spaces = parts[0], b" ".join(parts[1:]), size
            if spaces != size or not size:
                raise ReadError(f"expected a word and {size or 'its'} numbers, got {spaces}", source=path, line=number)
            count += 1
            name = forms.get(word)
            if name is not None and name not in found:
                found[name] = _numbers(rest, path, number)
    return found, count


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(file, start=1):
        if stripped := line.strip(b" \t\r\n"):
            yield number, stripped.replace(b"\t", b" ")


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(text: bytes, path: Path, number: int) -> Vectors:
    try:
        vector = np.array(text.split(b" "), np.float32)
    except ValueError as problem:
        raise ReadError(f"expected numbers after the word, got {problem}", source=path, line=number) from None
    if not np.isfinite(vector).all():
        raise ReadError("expected finite numbers, got NaN or infinity", source=path, line=number)
    return vector


def _of_npz(path: Path, wanted: set[str]) -> tuple[dict[str, Vectors], int]:
    try:
        with path.open("rb") as file:  # numpy does not close a file that it cannot read
            words, vectors = _arrays(np.load(file, allow_pickle=False), path)
    except (ReadError, OSError):
        raise
    except Exception as problem:  # numpy and zipfile raise a dozen kinds about damaged archives
        raise ReadError(f"expected an npz file with text and numbers, got {problem}", source=path) from None
    names = [word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word) for word in words.tolist()]
    places = {word: place for place, word in reversed(list(enumerate(names))) if word in wanted}  # the first counts
    chosen = np.asarray(vectors[list(places.values())], np.float32)
    if not np.isfinite(chosen).all():
        bad = list(places)[int((~np.isfinite(chosen)).any(1).argmax())]
        raise ReadError(f"expected finite numbers, got NaN or infinity in the vector of {bad!r}", source=path)
    return dict(zip(places, chosen, strict=True)), len(names)


def _arrays(file: NpzFile | npt.NDArray[Any], path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    if not isinstance(file, NpzFile):
        raise ReadError("expected an npz file with the arrays 'words' and 'vectors', got one array", source=path)
    if not {"words", "vectors"} <= set(file):
        raise ReadError(f"expected the arrays 'words' and 'vectors', got {', '.join(map(repr, file))}", source=path)
    words, vectors = file["words"], file["vectors"]
    if words.ndim != 1 or words.dtype.kind not in "US":
        raise ReadError(
            f"expected 'words' to be a list of texts, got {words.dtype} of shape {words.shape}", source=path
        )
    if vectors.ndim != 2 or len(vectors) != len(words) or vectors.dtype.kind not in "fiu" or not vectors.shape[1]:
        raise ReadError(
            f"expected a vector for each of {len(words)} words, got {vectors.dtype} of shape {vectors.shape}",
            source=path,
        )
    return words, vectors
