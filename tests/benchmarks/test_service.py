"""The load of the suite `service`, on a service in this process."""

import socket

import pytest
from benchmarks import service
from benchmarks.measuring import MissingPackageError, Options
from benchmarks.soak import Soak

from tests import runs
from tests.service.running import running
from treefold.errors import TrainingError
from treefold.service.models import open_models


def test_clients_count_what_is_answered() -> None:
    with running(open_models([runs.listops().folder])) as it:
        found = service._load(it.port, 60)
    assert set(found) == {"requests_per_second", "median_ms", "slowest_percent_ms"}
    assert 0 < found["median_ms"] <= found["slowest_percent_ms"]
    assert found["requests_per_second"] <= service.CLIENTS / (1e-3 * found["median_ms"]) * 2  # Little's law, with room


def test_refused_requests_are_no_measurement() -> None:
    models = open_models([runs.listops().folder])
    refused = pytest.raises(TrainingError, match=r"the clients of the benchmark failed: RuntimeError: HTTP/1\.1 401")
    with running(models, api_key="open sesame") as it, refused:
        service._load(it.port, 10)
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    with pytest.raises(TrainingError, match="failed: "):
        service._load(port, 10)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (job,) = service.service(Options(quick=True)).values()
    with pytest.raises(MissingPackageError, match=r"treefold\[serve\]"):
        job()


def test_a_wrong_answer_is_noticed() -> None:
    (served,) = open_models([runs.listops().folder]).values()
    soak = Soak(served, 0, 0, 0.0)
    right = soak.expected[3]
    soak.compare([right], [3])
    assert not soak.problems
    wrong = {**right, "probabilities": {name: value + 3e-6 for name, value in right["probabilities"].items()}}
    soak.compare([wrong], [3])
    soak.expect("one", 500, {"error": {}})
    assert [problem.split(":")[0] for problem in soak.problems] == ["tree 3", "one"]
