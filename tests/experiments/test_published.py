"""The paper's numbers, held against its formulas and against what its text says of them."""

import pytest
from experiments.paper.counts import counted_parameters
from experiments.paper.published import KINDS, LISTOPS, LRT, PAPER_TABLES, PaperTable


@pytest.mark.parametrize("table", PAPER_TABLES.values(), ids=PAPER_TABLES)
def test_every_number_of_parameters_is_the_formula_s(table: PaperTable) -> None:
    rows = [(kind, row) for kind, column in table.validation.items() for row in column]
    rows += list(table.test.items())
    for kind, row in rows:
        expected = counted_parameters(KINDS[kind], state_size=row.state_size, arity=table.arity, rank=row.rank)
        assert row.parameters == expected, (kind, row)


def test_the_tables_are_as_large_as_printed() -> None:
    assert [[len(column) for column in table.validation.values()] for table in (LRT, LISTOPS)] == [[6, 6, 4], [3, 3, 3]]
    assert all(list(table.validation) == list(table.test) == list(KINDS) for table in (LRT, LISTOPS))


@pytest.mark.parametrize("table", PAPER_TABLES.values(), ids=PAPER_TABLES)
def test_the_test_row_is_of_the_configuration_that_is_best_on_validation(table: PaperTable) -> None:
    for kind, column in table.validation.items():
        best = max(column, key=lambda row: row.mean)
        assert table.test[kind][:3] == best[:3]


def test_the_numbers_are_those_that_the_text_names() -> None:
    named = {kind: LRT.published(kind, 10) for kind in KINDS}
    assert {kind: row.mean for kind, row in named.items() if row} == {"Full": 84.00, "Sum": 64.79, "Hosvd": 76.91}
    assert LRT.test["Hosvd"][:2] == (100, 20) and LISTOPS.test["Hosvd"][:2] == (20, 3)
    assert [LISTOPS.test[kind].state_size for kind in ("Full", "Sum")] == [7, 214]
    others = [row.mean for kind in ("Full", "Sum") for row in LISTOPS.validation[kind]]
    assert min(row.mean for row in LISTOPS.validation["Hosvd"]) > max(others)


@pytest.mark.parametrize("table", PAPER_TABLES.values(), ids=PAPER_TABLES)
def test_the_printed_rank_is_one_of_those_that_were_tried(table: PaperTable) -> None:
    assert list(table.ranks) == [row.state_size for row in table.validation["Hosvd"]]
    assert all(row.rank in table.ranks[row.state_size] for row in table.validation["Hosvd"])
    assert table.published("Hosvd", 3) is None
