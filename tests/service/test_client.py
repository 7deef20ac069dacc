"""The client of a service gives what the model gives, and errors of ours."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from tests import runs
from tests.service.running import Service, running
from treefold import Client, Tree
from treefold.analysis.explaining import probabilities
from treefold.analysis.prediction import root_states
from treefold.errors import ConfigurationError, ServiceError, TreefoldError
from treefold.service.app import Limits
from treefold.service.models import open_models


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running(open_models([runs.listops().folder, runs.lrt().folder, runs.numbers().folder])) as it:
        yield it


@pytest.fixture
def client(service: Service) -> Client:
    return Client(service.url + "/")


def test_predictions_are_those_of_the_model_also_for_many_trees(client: Client) -> None:
    run = runs.listops()
    expected = probabilities(run.saved, run.data.forest).numpy()
    assert np.abs(client.predict_proba(run.data.forest) - expected).max() <= 1e-6
    trees = list(run.data.forest)
    assert client.predict([*map(str, trees[:5]), *trees[5:]]) == [run.data.classes[code] for code in expected.argmax(1)]


def test_pairs_states_explanations_and_models(client: Client) -> None:
    forest = runs.lrt().data.forest[:6]
    pairs: list[tuple[Tree, ...]] = list(zip(forest[::2], forest[1::2], strict=True))
    expected = probabilities(runs.lrt().saved, forest).numpy()
    assert np.abs(client.predict_proba(pairs, model="lrt") - expected).max() <= 1e-6
    states = np.concatenate(root_states(runs.lrt().saved, pairs))
    assert np.array_equal(client.embed(pairs, model="lrt"), states)
    assert len(client.explain(pairs[0], model="lrt", occlude=False)["nodes"]) == forest[0].size + forest[1].size
    assert [facts["name"] for facts in client.models()] == ["listops", "lrt", "numbers"]
    assert client.predict(['{"tree": "(MAX 1 2)"}'], format="jsonl") == client.predict(["(MAX 1 2)"])


def test_wrong_input_is_an_error_as_if_the_model_were_here(client: Client) -> None:
    with pytest.raises(TreefoldError, match="got 'zebra'"):
        client.predict(["(MAX 1 zebra)"], unknown="error")
    with pytest.raises(ConfigurationError, match="expected a pair"):
        client.predict(["a"], model="lrt")
    with pytest.raises(ConfigurationError, match="got 'lrtt'"):
        client.predict(["a"], model="lrtt")
    with pytest.raises(ConfigurationError, match=r"write \[tree\]"):
        client.predict("a")
    with pytest.raises(ConfigurationError, match="or a pair of trees, got 5"):
        client.predict([5])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="use predict or answers"):
        client.predict_proba(["1"], model="numbers")


def test_a_service_that_cannot_be_reached_is_a_service_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    with pytest.raises(ServiceError, match=r"expected a service at http://127.0.0.1:.*refused; start it"):
        Client(f"http://127.0.0.1:{port}").models()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "got something else; check the address"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"[" * 1000, "got something else; check the address"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\xfd\xfc", "got something else; check the address"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            "got something else; check the address",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            "got something else; check the address",
        ),
        (b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\n{", "expected an answer of `treefold serve`, got 500 No"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}", "got something else; check the address"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + b'{"models": []}', "got something else; check the address"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b'{"models": 5}', "got something else; check the address"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b'{"models": []}', "got something else; check the address"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b'{"models": [{"name": "a"}]}', "got something else; check the address"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b'{"models": [5]}', "got something else; check the address"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 99999999999999999999\r\n\r\n{}", "serve`, got 500 No; check the address"),
        (b"HTTP/1.1 500 No\r\n\r\n" + b'{"error": {"message": null}}', "serve`, got 500 No; check the address"),
        (b"HTTP/1.1 500 No\r\n\r\n" + b'{"error": {"message": " two\\n lines "}}', r"http://[0-9.:]+: two lines$"),
        (b"good morning\r\n\r\n", "got something else; check the address"),
        (b"", "got something else; check the address"),
    ],
)
def test_whatever_another_program_answers_is_a_service_error(answer: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:

        def reply() -> None:
            connection, _ = place.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(ServiceError, match=said):
            Client(f"http://127.0.0.1:{place.getsockname()[1]}").models()
        thread.join()


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treefold.service.client._LARGEST", 1000)
    with socket.create_server(("127.0.0.1", 0)) as place:

        def reply() -> None:
            connection, _ = place.accept()
            with connection, suppress(OSError):  # the client leaves
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(1000 * b" ")

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(ServiceError, match="got something else; check the address"):
            Client(f"http://127.0.0.1:{place.getsockname()[1]}").models()
        thread.join()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "1"])
def test_what_is_no_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(
        ConfigurationError, match="Client expects a timeout in seconds, above 0 and at most 1000000, got"
    ):
        Client("http://localhost:8000", timeout=timeout)


def test_objects_that_cannot_be_sent_are_refused() -> None:
    client = Client("http://localhost:8000")
    with pytest.raises(ConfigurationError, match="Client expects a list of trees, got None; write"):
        client.predict(None)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"Client expects options that are text, numbers, .* \(.*set is not JSON"
    ):
        client.predict(["a"], model={1})


@pytest.mark.parametrize(
    "url", ["localhost", "ftp://a", "http://", "http://[::1", "http://a:b", "http://a\n", "", None]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Client expects an address such as http://localhost:8000, got"):
        Client(url)


def test_a_key_that_cannot_be_sent_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="api_key expects printable ASCII characters only") as problem:
        Client("http://localhost:8000", "open\nsesame")
    assert "sesame" not in str(problem.value)
    with pytest.raises(ConfigurationError, match="api_key expects printable ASCII characters only"):
        Client("http://localhost:8000", 5)  # type: ignore[arg-type]


def test_the_key_is_sent_and_a_refusal_is_a_service_error() -> None:
    with running(open_models([runs.listops().folder]), api_key="open sesame", limits=Limits(nodes=5)) as service:
        assert len(Client(service.url, "open sesame").models()) == 1
        with pytest.raises(ServiceError, match="expected the key of the service, got none"):
            Client(service.url).models()
        with pytest.raises(ConfigurationError, match="at most 5 nodes"):
            Client(service.url, "open sesame").predict(["(MAX 1 2 3 4 5 6)"])
