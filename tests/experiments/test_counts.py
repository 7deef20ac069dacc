import pytest
from experiments.paper.counts import counted_parameters

from treefold import Full, Sum, Tucker
from treefold.errors import ConfigurationError

# "N par." of the paper's Tables I and II, as printed there: aggregator, arity, state size, rank, count.
TABLES = [
    *[("full", 2, c, None, n) for c, n in [(3, 48), (5, 180), (10, 1210), (20, 8820), (50, 130050), (100, 1020100)]],
    *[("sum", 2, c, None, n) for c, n in [(3, 18), (5, 50), (10, 200), (20, 800), (50, 5000), (100, 20000)]],
    *[("tucker", 2, c, r, n) for c, r, n in [(10, 7, 588), (20, 15, 4440), (50, 30, 31830), (100, 20, 12820)]],
    *[("full", 5, c, None, n) for c, n in [(3, 3072), (5, 38880), (7, 229376)]],
    *[("sum", 5, c, None, n) for c, n in [(25, 3125), (88, 38720), (214, 228980)]],
    *[("tucker", 5, c, 3, n) for c, n in [(10, 3222), (20, 3372), (50, 3822)]],
]


def test_the_tables_have_twenty_five_counts() -> None:
    assert len(TABLES) == 25


@pytest.mark.parametrize(("aggregator", "arity", "state_size", "rank", "count"), TABLES)
def test_counted_parameters_are_those_of_the_paper_s_tables(
    aggregator: str, arity: int, state_size: int, rank: int | None, count: int
) -> None:
    assert counted_parameters(aggregator, state_size=state_size, arity=arity, rank=rank) == count


@pytest.mark.parametrize(
    ("aggregator", "arity", "state_size", "rank", "count"), [row for row in TABLES if row[4] < 50_000]
)
def test_the_modules_have_the_counted_parameters_and_what_the_paper_leaves_out(
    aggregator: str, arity: int, state_size: int, rank: int | None, count: int
) -> None:
    if aggregator == "full":
        assert Full(state_size=state_size, arity=arity).parameter_count == count
    elif aggregator == "sum":
        assert Sum(state_size=state_size, arity=arity).parameter_count == count + state_size  # the bias
    else:
        assert rank is not None
        assert Tucker(state_size=state_size, arity=arity, rank=rank).parameter_count == count + state_size * rank  # Q


@pytest.mark.parametrize(("m", "c", "L", "r"), [(6, 5, 2, 3), (10, 4, 3, 2), (3, 7, 1, 5)])
def test_parameter_counts_with_a_label_mode_equal_the_paper_s_general_formulas(m: int, c: int, L: int, r: int) -> None:
    assert Full(state_size=c, arity=L, label_size=m).parameter_count == (m + 1) * (c + 1) ** L * c
    assert Sum(state_size=c, arity=L, label_size=m).parameter_count == c * m + L * c**2 + c
    tucker = Tucker(state_size=c, arity=L, label_size=m, rank=r)
    assert tucker.parameter_count == m * r + (L + 1) * c * r + r * (r + 1) ** (L + 1)


def test_what_the_paper_does_not_count_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"one of 'full', 'sum', 'tucker', got 'tuker' \(nearest known: 'tucker'\)"
    ):
        counted_parameters("tuker", state_size=3, arity=2, rank=2)
    with pytest.raises(ConfigurationError, match="expects a rank for 'tucker', got none"):
        counted_parameters("tucker", state_size=3, arity=2)
