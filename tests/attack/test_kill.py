"""A killed training ends as an undisturbed one; `make kill` kills as many as wanted, and sweeps, too."""

from tests.attack.kill import attack


def test_a_killed_training_ends_as_an_undisturbed_one() -> None:
    (found,) = attack(1, 24, ("run",), others=False)
    assert found["counts"] == {"run": 1} and found["findings"] == []
