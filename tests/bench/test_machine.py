import numpy as np
import pytest
import torch

from treefold.bench.machine import core_count, machine, peak_growth, peak_resident, require_threads, threads
from treefold.errors import ConfigurationError


def test_more_threads_than_cores_are_refused() -> None:
    require_threads(core_count())
    with pytest.raises(
        ConfigurationError, match=rf"at most the number of cores, {core_count()}, got {core_count() + 1}"
    ):
        require_threads(core_count() + 1)


def test_threads_are_put_back_even_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(KeyError), threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise KeyError
    assert torch.get_num_threads() == before


def test_memory_that_is_filled_and_freed_is_seen() -> None:
    size = 60_000_000
    grown = peak_growth(lambda: np.ones(size, np.int8).sum())
    if grown is None:
        pytest.skip("the system does not tell")
    assert size * 0.95 < grown < size * 3
    assert peak_resident() > size


def test_the_machine_is_named_with_its_versions() -> None:
    facts = machine()
    assert facts["versions"]["torch"] == torch.__version__ and facts["cores"] >= 1 and facts["cpu"]
