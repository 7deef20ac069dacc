import numpy as np
import pytest
import torch

from treefold import Embedding, Numeric, OneHot, Thermometer
from treefold.errors import ConfigurationError, ShapeError

NO_VECTORS = torch.zeros(0, 0)


def test_the_digit_two_of_ten_is_the_paper_s_thermometer_vector() -> None:
    labels = Thermometer([str(digit) for digit in range(10)])
    assert labels(torch.tensor([2]), NO_VECTORS).tolist() == [[1, 1, 1, 0, 0, 0, 0, 0, 0, 0]]
    assert labels.size == 10


def test_one_hot_has_its_one_at_the_label_s_place() -> None:
    assert OneHot("abcdef")(torch.tensor([5, 0]), NO_VECTORS).tolist() == [[0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]]


def test_an_embedding_learns_or_starts_from_given_vectors() -> None:
    given = np.arange(6.0).reshape(2, 3)
    labels = Embedding(["a", "b"], vectors=given)
    assert labels(torch.tensor([1]), NO_VECTORS).tolist() == [[3, 4, 5]] and labels.size == 3
    labels(torch.tensor([1]), NO_VECTORS).sum().backward()
    assert labels.table.grad is not None and labels.table.grad.tolist() == [[0, 0, 0], [1, 1, 1]]
    with pytest.raises(ShapeError, match=r"a vector for each of 3 labels, got the shape \(2, 3\)"):
        Embedding("abc", vectors=given)
    with pytest.raises(
        ShapeError, match="expects finite numbers, got NaN or infinity in the vector of 'b'; replace it"
    ):
        Embedding("ab", vectors=[[1.0, 2.0], [float("nan"), 0.0]])
    with pytest.raises(ConfigurationError, match="either a size or given vectors, got both or none"):
        Embedding("ab")
    with pytest.raises(ConfigurationError, match="Embedding expects size to be an integer >= 1, got 0"):
        Embedding("ab", 0)


def test_numeric_takes_the_rows_that_the_codes_name() -> None:
    assert Numeric(2)(torch.tensor([-1, -3]), torch.arange(6.0).view(3, 2)).tolist() == [[0, 1], [4, 5]]


def test_no_labels_at_all_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"OneHot expects at least one label, got none; take them from forest.vocabulary"
    ):
        OneHot([])
