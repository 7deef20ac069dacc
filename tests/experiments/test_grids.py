"""The paper's grids have its configurations, sizes and settings."""

from pathlib import Path
from typing import Any

import pytest

from tests.sweeps import tiny
from treefold.data.generators import make_listops, make_lrt
from treefold.sweeps.grid import read_grid
from treefold.sweeps.plan import Run, plan

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PAPER = EXPERIMENTS / "paper"
LISTOPS = {
    *(("Full", "full", c, None) for c in (3, 5, 7)),
    *(("Sum", "sum", c, None) for c in (25, 88, 214)),
    *(("Hosvd", "tucker", c, r) for c in (10, 20, 50) for r in (3, 5, 7)),
}
LRT = {
    *((kind, form, c, None) for kind, form in (("Full", "full"), ("Sum", "sum")) for c in (3, 5, 10, 20, 50, 100)),
    *(("Hosvd", "tucker", 10, r) for r in (3, 5, 7)),
    *(("Hosvd", "tucker", 20, r) for r in (5, 10, 15)),
    *(("Hosvd", "tucker", 50, r) for r in (10, 20, 30)),
    *(("Hosvd", "tucker", 100, r) for r in (20, 50, 70)),
}


@pytest.mark.parametrize(("name", "expected", "count"), [("listops", LISTOPS, 15), ("lrt", LRT, 24)])
def test_the_paper_s_grids_have_its_configurations_and_settings(
    name: str, expected: set[tuple[str, str, int, int | None]], count: int
) -> None:
    grid = read_grid(PAPER / f"{name}.toml")
    found = grid.configurations()
    assert len(found) == len(expected) == count and grid.seeds == (0, 1, 2) and grid.data.make == name
    assert {(each.kind, each.model.aggregator, each.model.state_size, each.model.rank) for each in found} == expected
    for each in found:
        training = each.training
        assert (training.optimiser, training.batch_size, training.epochs) == ("adadelta", 25, 100)
        assert (training.patience, training.threads) == (10, 1)
        assert (each.model.cell, each.model.initialisation) == ("lstm", "kaiming")


@pytest.mark.parametrize(
    "path", sorted([*EXPERIMENTS.glob("*.toml"), *PAPER.glob("*.toml")]), ids=lambda path: path.stem
)
def test_every_committed_grid_can_be_read(path: Path) -> None:
    assert read_grid(path).name == path.stem


# "N par." of the paper's Tables I and II, as printed there, by state size.
LRT_PARAMETERS = {
    "Full": {3: 48, 5: 180, 10: 1210, 20: 8820, 50: 130050, 100: 1020100},
    "Sum": {3: 18, 5: 50, 10: 200, 20: 800, 50: 5000, 100: 20000},
    "Hosvd": {(10, 7): 588, (20, 15): 4440, (50, 30): 31830, (100, 20): 12820},
}
LISTOPS_PARAMETERS = {
    "Full": {3: 3072, 5: 38880, 7: 229376},
    "Sum": {25: 3125, 88: 38720, 214: 228980},
    "Hosvd": {(10, 3): 3222, (20, 3): 3372, (50, 3): 3822},
}


def paper_count(run: Run) -> int:
    """The parameters of an aggregator in the model, without those that the paper leaves out: biases and Q."""
    model = run.settings.model
    left_out = {"full": 0, "sum": model.state_size, "tucker": model.state_size * (model.rank or 0)}
    return run.aggregation_parameters - left_out[str(model.aggregator)]


@pytest.mark.parametrize(("name", "table", "count"), [("lrt", LRT_PARAMETERS, 24), ("listops", LISTOPS_PARAMETERS, 15)])
def test_the_paper_s_grids_have_the_parameters_of_its_tables(name: str, table: dict[str, Any], count: int) -> None:
    data = make_lrt(300) if name == "lrt" else make_listops(200)
    runs = plan(read_grid(PAPER / f"{name}.toml"), data, name)
    assert len(runs) == 3 * count == len({run.key for run in runs})
    found: dict[Any, int] = {}
    for run in runs:
        model = run.settings.model
        assert model.per_label and model.arity == (2 if name == "lrt" else 5)
        found[run.kind, model.state_size if model.rank is None else (model.state_size, model.rank)] = paper_count(run)
    assert {key: found[key] for key in found if key[1] in table[key[0]]} == {
        (kind, sizes): parameters for kind, rows in table.items() for sizes, parameters in rows.items()
    }
    assert [run.seed for run in runs] == [0] * count + [1] * count + [2] * count
    costs = [run.seconds_an_epoch for run in runs[:count]]
    assert costs == sorted(costs) and {run.kind for run in runs[-3:]} <= set(table)


def test_forms_beyond_the_paper_have_the_sizes_that_their_grid_says() -> None:
    c, length = 20, 5
    expected = {
        "Hosvd": length * c * 3 + 3 * 4**length,
        "shared Tucker": 2 * 50 * 5 + 5 * 252,  # 252 multisets of five out of six
        "canonical": length * (c + 1) * 27 + 27 * c,
        "tensor-train": (c + 1) * 6 + (length - 1) * (c + 1) * 36 + 6 * c,
        "shared sum": 58 * 58 + 58,
        "shared canonical": 2 * c * 84,
        "shared tensor-train": 22 * 12**2 + 23 * 12,
        "Hosvd-RNN": length * c * 3 + 3 * 4**length,
    }
    runs = plan(read_grid(PAPER / "beyond.toml"), tiny.data(), "beyond")
    counts = {run.kind: paper_count(run) if "Hosvd" in run.kind else run.aggregation_parameters for run in runs}
    assert counts == expected
    text = (PAPER / "beyond.toml").read_text()
    assert all(f"{count:,}" in text for count in expected.values())
