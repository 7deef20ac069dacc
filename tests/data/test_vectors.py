import zipfile
from pathlib import Path

import numpy as np
import pytest

from treefold.data.vectors import read_vectors
from treefold.errors import ReadError


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "vectors.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "the 0.5 -1\ndog 2 3\n",
        "2 2\nthe 0.5 -1\ndog 2 3\n",  # as word2vec writes it
        "the 0.5 -1 \r\n\ndog\t2\t3",
        "2 2\n. . . 7 7\nthe 0.5 -1\ndog 2 3\ndog 9 9\n",  # a word with spaces; a word twice: the first counts
    ],
)
def test_words_have_their_vectors_or_those_of_their_lower_case(tmp_path: Path, content: str) -> None:
    words, vectors = read_vectors(written(tmp_path, content), ["Dog", "cat", "the", "dog"])
    assert words == ["Dog", "the", "dog"] and vectors.tolist() == [[2, 3], [0.5, -1], [2, 3]]
    assert vectors.dtype == np.float32


def test_words_with_spaces_are_found(tmp_path: Path) -> None:
    path = written(tmp_path, "a 1 2\n. . . 7 8\n")
    assert read_vectors(path, [". . ."])[1].tolist() == [[7, 8]]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_an_npz_file_has_words_and_vectors(tmp_path: Path, kind: type) -> None:
    np.savez(
        tmp_path / "v.npz", words=np.array(["a", "été", "b", "a"]), vectors=np.arange(8).reshape(4, 2).astype(kind)
    )
    words, vectors = read_vectors(tmp_path / "v.npz", ["B", "été", "c", "a"])
    assert words == ["B", "été", "a"] and vectors.tolist() == [[4, 5], [2, 3], [0, 1]] and vectors.dtype == np.float32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2\nb 1\n", "vectors.txt, line 2: expected a word and 2 numbers, got 1"),
        ("a 1 2\nb 1 2 3\n", "vectors.txt, line 2: expected a word and 2 numbers, got 3"),
        ("a\n", "vectors.txt, line 1: expected a word and its numbers, got 0"),
        ("b 1 2\na 1 x\n", "vectors.txt, line 2: expected numbers after the word, got could not convert"),
        ("a nan 1\n", "vectors.txt, line 1: expected finite numbers, got NaN or infinity"),
        (
            "c 1 2\nd 1 2\n",
            r"expected vectors of some of the 2 labels \('a', 'b', …\), got 2 other words; choose a file",
        ),
        ("", "got 0 other words"),
    ],
)
def test_bad_text_is_told_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ReadError, match=message):
        read_vectors(written(tmp_path, content), ["a", "b"])


def test_bad_npz_files_are_told(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"

    def fails(message: str) -> None:
        with pytest.raises(ReadError, match=message):
            read_vectors(path, ["a", "b"])

    fails("v.npz: expected a file that can be read, got No such file or directory")
    path.write_bytes(b"not a zip")
    fails("v.npz: expected an npz file with text and numbers, got")
    np.savez(path, words=["a"], data=[1.0])
    fails("v.npz: expected the arrays 'words' and 'vectors', got 'words', 'data'")
    np.savez(path, words=["a", "b"], vectors=np.ones((1, 3)))
    fails(r"v.npz: expected a vector for each of 2 words, got float64 of shape \(1, 3\)")
    np.savez(path, words=[1, 2], vectors=np.ones((2, 3)))
    fails("v.npz: expected 'words' to be a list of texts, got int64")
    np.savez(path, words=np.array(["a", "b"], object), vectors=np.ones((2, 3)))
    fails("v.npz: expected an npz file with text and numbers, got Object arrays")
    np.savez(path, words=["a", "b"], vectors=[[1.0, 2.0], [np.nan, 0.0]])
    fails("v.npz: expected finite numbers, got NaN or infinity in the vector of 'b'")


def test_damaged_npz_files_are_told(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    np.savez_compressed(path, words=["a", "b"], vectors=np.arange(6.0).reshape(2, 3))
    right = path.read_bytes()
    encrypted, unknown = bytearray(right), bytearray(right)
    first = right.index(b"PK\1\2")  # the directory of the archive
    encrypted[first + 8] |= 1
    unknown[first + 10] = 77
    damaged = right[:60] + bytes(20) + right[80:]
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    one_array = path.read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("words.npy", "vectors.npy"):
            archive.writestr(name, b"\x93NUMPY\1\0\x10\0" + b"{'descr': (2L(  ")  # which numpy gives to a tokenizer
    header = path.read_bytes()
    for content in (encrypted, unknown, damaged, one_array, header, right[:-30], b"PK\3\4"):
        path.write_bytes(content)
        with pytest.raises(ReadError, match=r"v\.npz: expected an npz file with"):
            read_vectors(path, ["a"])


def test_a_header_with_too_many_digits_is_no_header(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="line 2: expected a word and 1 numbers, got 2"):
        read_vectors(written(tmp_path, f"{'9' * 5000} {'9' * 5000}\na 1 2\n"), ["a"])
