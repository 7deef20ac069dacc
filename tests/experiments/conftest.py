import pytest
from experiments.paper.report import write_paper_report

from tests.sweeps.report.conftest import Written
from tests.sweeps.report.made_up import LISTOPS_SIZES, LRT_SIZES, ODD, beyond, result, sweep, write


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The paper's report on three sweeps, written once for all tests, with a kind whose name each format must escape."""
    place = tmp_path_factory.mktemp("sweeps")
    sweeps = [
        write(place / "lrt", sweep("lrt", LRT_SIZES, seeds=1)),
        write(place / "listops", [*sweep("listops", LISTOPS_SIZES, seeds=2), result("listops", ODD, 7, 2)]),
        write(place / "beyond", beyond(seeds=1)),
    ]
    document, _ = write_paper_report(sweeps, place / "out")
    return Written(document, place / "out")
