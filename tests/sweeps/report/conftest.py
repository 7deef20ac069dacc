from pathlib import Path
from typing import NamedTuple

import pytest

from tests.sweeps.report.made_up import LISTOPS_SIZES, ODD, beyond, result, sweep, write
from treefold.sweeps.report import Document, write_report


class Written(NamedTuple):
    document: Document
    folder: Path


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A report on two sweeps, written once for all tests, with a kind whose name each format must escape."""
    place = tmp_path_factory.mktemp("sweeps")
    sweeps = [
        write(place / "listops", [*sweep("listops", LISTOPS_SIZES, seeds=2), result("listops", ODD, 7, 2)]),
        write(place / "beyond", beyond(seeds=1)),
    ]
    document, _ = write_report(sweeps, place / "out")
    return Written(document, place / "out")
