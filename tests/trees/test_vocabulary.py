import pytest

from treefold import Tree, Vocabulary
from treefold.errors import VocabularyError


def test_codes_are_places_and_unknown_labels_name_the_nearest() -> None:
    vocabulary = Vocabulary(["and", "or", "not"])
    assert (
        [vocabulary.code(name) for name in vocabulary] == [0, 1, 2] and "or" in vocabulary and "xor" not in vocabulary
    )
    with pytest.raises(
        VocabularyError, match=r"expected one of 3 known labels, got 'nott' \(nearest known: 'not'\); correct"
    ):
        vocabulary.code("nott")


def test_labels_are_distinct_and_text() -> None:
    with pytest.raises(VocabularyError, match="expects distinct labels, got 'a' twice; remove one of them"):
        Vocabulary(["a", "b", "a"])
    with pytest.raises(VocabularyError, match="expects text labels, got int 3; convert it with str"):
        Vocabulary(["a", 3])  # type: ignore[list-item]
    with pytest.raises(VocabularyError, match="expects text labels, got list"):
        Vocabulary([["a"]])  # type: ignore[list-item]
    with pytest.raises(VocabularyError, match="expects a list of labels, got 5"):
        Tree("f").to_pyg(vocabulary=5)  # type: ignore[arg-type]
    with pytest.raises(
        VocabularyError, match=r"labels of whole characters, got '\\ud800' with half of a surrogate pair"
    ):
        Vocabulary(["a", "\ud800"])


def test_equal_lists_are_equal_vocabularies() -> None:
    assert Vocabulary("ab") == Vocabulary(["a", "b"]) != Vocabulary("ba")
    assert hash(Vocabulary("ab")) == hash(Vocabulary(["a", "b"]))
    assert Vocabulary("ab") != ["a", "b"]
    assert repr(Vocabulary("abcdefghij")) == "Vocabulary(['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', …]) of 10"
