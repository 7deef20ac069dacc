from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sweeps.reporting.made_up import LISTOPS_SIZES, LRT_SIZES, ODD, beyond, result, sweep, write
from treefold.sweeps.reporting import Report, write_report


class Written(NamedTuple):
    report: Report
    folder: Path


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A report on three sweeps, written once for all tests, with a kind whose name each format must escape."""
    place = tmp_path_factory.mktemp("sweeps")
    sweeps = [
        write(place / "lrt", sweep("lrt", LRT_SIZES, seeds=1)),
        write(place / "listops", [*sweep("listops", LISTOPS_SIZES, seeds=2), result("listops", ODD, 7, 2)]),
        write(place / "beyond", beyond(seeds=1)),
    ]
    report, _ = write_report(sweeps, place / "out")
    return Written(report, place / "out")
