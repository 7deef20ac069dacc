import pytest
from benchmarks.endurance import holds, measure


@pytest.mark.slow
def test_a_short_run_counts_what_it_did() -> None:
    found = measure(3, 8, 4)
    assert (found["fits"], found["predictions"], found["threads_right"], found["fork_right"]) == (3, 8, "4 of 4", True)


@pytest.mark.parametrize(
    "change", [{"growth_by_fits": 10**7}, {"threads_right": "15 of 16"}, {"fork_right": False}, {}]
)
def test_growth_and_other_answers_fail(change: dict[str, object]) -> None:
    found = {"growth_by_fits": 0, "growth_by_predictions": 10**6, "threads_right": "16 of 16", "fork_right": True}
    assert holds(found | change) == (not change)
