import pytest
from benchmarks.library import find, predictor_of

from treefold import Forest


def test_the_first_name_that_exists_is_taken() -> None:
    assert find("treefold:Absent", "treefold.absent:Forest", "treefold:Forest") is Forest
    with pytest.raises(
        ImportError, match=r"treefold has none of treefold:Absent; add the new name to benchmarks/library\.py"
    ):
        find("treefold:Absent")
    with pytest.raises(ImportError, match="TreeModel has none of predictor, answering"):
        predictor_of(object())
