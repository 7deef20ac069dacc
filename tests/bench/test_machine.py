import numpy as np
import pytest
import torch

from treefold.bench.machine import machine, peak_growth, peak_resident, require_threads, scaling
from treefold.errors import ConfigurationError
from treefold.kernels.threads import core_count, threads


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


def test_scaling_is_what_so_many_threads_do_in_the_time_of_one() -> None:
    """One round of a fake clock: alone 3 ticks, two together 4."""
    ticks = iter([0.0, 3.0, 10.0, 14.0])
    assert scaling(2, rounds=1, clock=lambda: next(ticks)) == 2 * 3 / 4
