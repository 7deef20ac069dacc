"""The service answers as the models do, refuses what is beyond its limits, and stays up."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import runs
from tests.service.running import Service, running
from treefold.analysis.explaining import probabilities
from treefold.analysis.prediction import root_states
from treefold.service.app import Limits, Meter, error_of
from treefold.service.models import open_models
from treefold.trees.forest import Forest

SMALL = Limits(body=5_000, nodes=50, explained_nodes=20, trees=4, queue=3, seconds=20)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running(
        open_models([runs.listops().folder, runs.lrt().folder, runs.nodes().folder, runs.numbers().folder])
    ) as it:
        yield it


@pytest.fixture(scope="module")
def small() -> Iterator[Service]:
    with running(open_models([runs.listops().folder]), limits=SMALL) as it:
        yield it


def texts(count: int) -> list[str]:
    return [str(tree) for tree in runs.listops().data.forest[:count]]


def reading(before: Callable[[str], object]) -> Any:
    """Return a model that calls a function before it reads a text."""
    (served,) = open_models([runs.listops().folder]).values()

    class Reading:
        def __getattr__(self, name: str) -> Any:
            return getattr(served, name)

        def read(self, text: str, form: str | None = None, name: str = "tree") -> Any:
            before(text)
            return served.read(text, form, name)

    return Reading()


def test_predictions_are_those_of_the_model(service: Service) -> None:
    run = runs.listops()
    forest = run.data.forest[:40]
    expected = probabilities(run.saved, forest).numpy()
    many = service.post("/predict", {"trees": [str(tree) for tree in forest]}).json
    assert many["model"] == "listops"
    found = np.array([[answer["probabilities"][name] for name in run.data.classes] for answer in many["predictions"]])
    assert np.abs(found - expected).max() <= 1e-6
    assert [answer["prediction"] for answer in many["predictions"]] == [
        run.data.classes[code] for code in expected.argmax(1)
    ]
    one = service.post("/predict", {"tree": str(forest[3])}).json
    assert one == {"model": "listops", **many["predictions"][3]}


def test_requests_that_come_together_get_their_own_answers(service: Service) -> None:
    run = runs.listops()
    forest = run.data.forest[:60]
    expected = probabilities(run.saved, forest).numpy()

    def ask(number: int) -> Any:
        return service.post("/predict", {"tree": str(forest[number]) if number % 7 else "(MAX"})

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(60)))
    for number, answer in enumerate(answers):
        assert answer.status == (200 if number % 7 else 422)
        if number % 7:
            assert np.abs(np.array(list(answer.json["probabilities"].values())) - expected[number]).max() <= 1e-6


def test_pairs_nodes_and_numbers_have_answers_of_their_kind(service: Service) -> None:
    left, right = map(str, runs.lrt().data.forest[:2])
    pair = service.post("/predict", {"left": left, "right": right, "model": "lrt"}).json
    row = probabilities(runs.lrt().saved, runs.lrt().data.forest[:2])[0].tolist()
    assert list(pair["probabilities"].values()) == pytest.approx(row, abs=1e-6)
    pairs = service.post("/predict", {"pairs": [[left, right]] * 2, "model": "lrt"}).json
    assert [{"model": "lrt", **answer} for answer in pairs["predictions"]] == [pair, pair]
    nodes = service.post("/predict", {"tree": "(MAX 1 2)", "model": "nodes"}).json
    assert len(nodes["prediction"]) == len(nodes["probability"]) == 3
    number = service.post("/predict", {"tree": "(MAX 1 2)", "model": "numbers"}).json
    assert number["prediction"] == pytest.approx(probabilities(runs.numbers().saved, Forest(["(MAX 1 2)"])).item())


def test_states_are_those_of_the_roots(service: Service) -> None:
    trees = list(runs.listops().data.forest[:3])
    expected = np.concatenate(root_states(runs.listops().saved, [(tree,) for tree in trees]))
    found = service.post("/embed", {"trees": list(map(str, trees))}).json["states"]
    assert np.array_equal(np.array(found, np.float32), expected)
    left, right = map(str, runs.lrt().data.forest[:2])
    assert len(service.post("/embed", {"left": left, "right": right, "model": "lrt"}).json["states"]) == 2


def test_an_explanation_has_every_node_and_what_matters(service: Service) -> None:
    answer = service.post("/explain", {"tree": "(MAX 1 (MIN 2 zebra))", "top": 2}).json
    assert [row["label"] for row in answer["nodes"]] == ["1", "2", "zebra", "MIN", "MAX"]
    assert [row["unknown"] for row in answer["nodes"]] == [False, False, True, False, False]
    assert answer["prediction"] == answer["nodes"][-1]["prediction"]
    assert answer["probability"] == answer["nodes"][-1]["probability"]
    falls = sorted((-row["effect"], row["node"]) for row in answer["nodes"] if "effect" in row)
    assert [(-effect["effect"], effect["node"]) for effect in answer["effects"]] == falls[:2]
    plain = service.post("/explain", {"tree": "(MAX 1 2)", "occlude": False}).json
    assert "effects" not in plain and all("effect" not in row for row in plain["nodes"])


def test_models_health_metrics_and_documents_are_there(service: Service) -> None:
    models = service.get("/models").json["models"]
    assert [(each["name"], each["task"], each["pairs"]) for each in models] == [
        ("listops", "tree", False),
        ("lrt", "pair", True),
        ("nodes", "node", False),
        ("numbers", "regression", False),
    ]
    assert service.get("/health").json["status"] == "ok"
    service.post("/predict", {"tree": "(MAX 1 2)"})
    metrics = service.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in metrics.body.decode().splitlines() if not line.startswith("#"))
    assert float(values['treefold_requests_total{worker="0",path="/predict",status="200"}']) >= 1
    assert float(values['treefold_batch_size_sum{worker="0"}']) >= float(
        values['treefold_batch_size_count{worker="0"}']
    )
    assert float(values['treefold_resident_memory_bytes{worker="0"}']) > 1e6
    schema = service.get("/openapi.json").json
    assert {"/predict", "/explain", "/embed", "/models", "/health", "/metrics"} <= set(schema["paths"])
    asked = schema["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"tree", "trees", "left", "right", "pairs", "model", "format", "unknown"} == set(asked["properties"])
    page = service.get("/docs").body.decode()
    assert "POST /predict" in page and "http" not in page.replace("httpx", "")  # nothing from outside


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (
            "/predict",
            {"tree": "(MAX 1"},
            422,
            "tree, line 1, column 7: expected ')' to close '(MAX' of column 1, got the end",
        ),
        ("/predict", {"tree": "(MAX 1 zebra)", "unknown": "error"}, 422, "labels that the model knows, got 'zebra'"),
        ("/predict", {"tree": "a", "model": "listop"}, 404, "got 'listop' (nearest known: 'listops')"),
        ("/predict", {"tree": "a", "trees": ["a"]}, 422, "got tree and trees; send one of these."),
        ("/predict", {}, 422, "or 'pairs', got none of them; send one of these."),
        ("/predict", {"left": "a"}, 422, "got left; send one of these."),
        ("/predict", {"trees": []}, 422, "the request expects 1 to 1,000 trees or pairs, got 0;"),
        ("/predict", {"tree": 5}, 422, "the request expects tree to be a valid string, got 5;"),
        ("/predict", {"trees": ["a", 5]}, 422, "the request expects trees.1 to be a valid string, got 5;"),
        ("/predict", {"tre": "a"}, 422, "the request expects known keys, got 'tre' (nearest known: 'tree');"),
        (
            "/predict",
            {"tree": "a", "unknown": "skip"},
            422,
            "the request expects unknown to be 'unk' or 'error', got 'skip'",
        ),
        (
            "/predict",
            {"left": "a", "right": "b"},
            422,
            "expected one tree, as the model judges single trees, got a pair;",
        ),
        ("/predict", {"tree": "a", "model": "lrt"}, 422, "expected a pair, as the model judges pairs, got one tree;"),
        ("/predict", {"tree": "<a", "format": "xml"}, 422, "tree, line 1"),
        ("/predict", {"tree": "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>", "format": "xml"}, 422, "expected"),
        ("/predict", {"tree": "a", "format": "yaml"}, 422, "got 'yaml'"),
        ("/predict", b"{", 422, "the request expects JSON, got 'EOF while parsing an object"),
        ("/predict", b"\xff\xfe", 422, "the request expects JSON, got"),
        ("/predict", b"[" * 5000, 422, "the request expects JSON, got"),
        ("/explain", {"trees": ["a"]}, 422, "an explanation expects one tree or pair, got a list;"),
        ("/explain", {"tree": "a", "top": 0}, 422, "explain expects top to be an integer >= 1, got 0;"),
        ("/nothing", {}, 404, "expected a path of the service, got POST /nothing;"),
        ("/models", {}, 405, "expected GET, got POST /models;"),
    ],
)
def test_bad_requests_are_told_what_was_expected(
    service: Service, path: str, body: Any, status: int, message: str
) -> None:
    answer = service.post(path, body)
    assert answer.status == status and message in answer.error["message"]
    assert answer.error["expected"] and answer.error["got"]


@given(st.one_of(st.binary(max_size=40), st.recursive(st.none() | st.text(max_size=5), st.lists).map(json.dumps)))
def test_any_body_gets_an_answer_of_the_right_shape(service: Service, body: bytes | str) -> None:
    answer = service.post("/predict", body if isinstance(body, bytes) else body.encode())
    assert answer.status == 422 and answer.error["message"]


@given(st.text(max_size=30))
def test_any_text_is_a_tree_or_refused(service: Service, text: str) -> None:
    answer = service.post("/predict", {"tree": text})
    assert answer.status == 200 or (answer.status == 422 and answer.error["expected"])


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/predict", {"tree": "x" * 6_000}, 413, "at most 5,000 bytes, got 6,012; send less."),
        ("/predict", {"tree": f"(MAX {'1 ' * 60})"}, 422, "trees of at most 50 nodes, got 61;"),
        ("/explain", {"tree": f"(MAX {'1 ' * 30})"}, 422, "trees of at most 20 nodes, got 31;"),
        ("/predict", {"trees": ["a"] * 5}, 422, "expects 1 to 4 trees or pairs, got 5;"),
    ],
)
def test_limits_are_kept(small: Service, path: str, body: Any, status: int, message: str) -> None:
    answer = small.post(path, body)
    assert answer.status == status and message in answer.error["message"]


def test_a_body_without_a_length_is_bounded_too(small: Service) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", small.port, timeout=20)
    connection.request(
        "POST", "/predict", (b"x" * 1000 for _ in range(9)), {"Content-Type": "application/json"}, encode_chunked=True
    )
    assert connection.getresponse().status == 413
    connection.close()


def test_a_body_may_come_in_pieces(small: Service) -> None:
    with socket.create_connection(("127.0.0.1", small.port), 20) as client:
        head = (
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n"
        )
        for piece in (head, b'{"tree": ', b'"(MAX 1 2)"', b" }"[1:]):
            client.sendall(piece)
            time.sleep(0.05)
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_full_queue_is_refused_with_429_and_a_time_to_come_again() -> None:
    blocked, entered = threading.Event(), threading.Event()

    def wait(text: str) -> None:
        entered.set()
        assert blocked.wait(20)

    with running({"listops": reading(wait)}, limits=SMALL) as service, ThreadPoolExecutor(8) as pool:
        first = pool.submit(service.post, "/explain", {"tree": "(MAX 1 2)"})
        assert entered.wait(20)
        waiting = [pool.submit(service.post, "/explain", {"tree": "(MAX 1 2)"}) for _ in range(3)]
        while service.get("/health").json["waiting"] < 3:
            time.sleep(0.01)
        refused = service.post("/predict", {"tree": "(MAX 1 2)"})
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.error["expected"] == "at most 3 waiting requests"
        blocked.set()
        assert [each.result().status for each in (first, *waiting)] == [200] * 4


def test_a_request_that_takes_too_long_is_refused_with_503() -> None:
    blocked = threading.Event()
    with running({"listops": reading(lambda text: blocked.wait(20))}, limits=Limits(seconds=0.3)) as service:
        answer = service.post("/explain", {"tree": "(MAX 1 2)"})
        assert answer.status == 503 and "within 0.3 s" in answer.error["message"]
        with socket.create_connection(("127.0.0.1", service.port), 20) as client:  # never sends its body
            client.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
            )
            assert client.recv(4096).startswith(b"HTTP/1.1 503")
        blocked.set()


def test_only_those_who_know_the_key_get_answers() -> None:
    models = open_models([runs.listops().folder])
    with running(models, api_key="open sesame") as service:
        body = {"tree": "(MAX 1 2)"}
        missing, wrong = service.post("/predict", body), service.post("/predict", body, Authorization="Bearer x")
        assert (missing.status, missing.error["got"], missing.headers["www-authenticate"]) == (401, "none", "Bearer")
        assert (wrong.status, wrong.error["got"]) == (401, "another one")
        assert service.get("/models").status == service.get("/metrics").status == 401
        assert service.get("/health").status == service.get("/").status == service.get("/docs").status == 200
        assert service.post("/predict", body, Authorization="Bearer open sesame").status == 200
        assert service.post("/predict", body, Authorization="bearer open sesame").status == 200
        assert service.ask("POST", "/predict", body, {"X-API-Key": "open sesame"}).status == 200
        assert service.post("/predict", body, Authorization="Bearer open sesame", Host="models.example").status == 200


def test_other_names_that_lead_here_are_refused(service: Service) -> None:
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        assert service.get("/models", Host=host).status == 403
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000"):
        assert service.get("/models", Host=host).status == 200


def test_pages_of_others_can_send_nothing(service: Service) -> None:
    plain = service.ask("POST", "/predict", b'{"tree": "a"}', {"Content-Type": "text/plain"})
    assert plain.status == 415 and plain.error["expected"] == "Content-Type: application/json"
    asked = service.ask("OPTIONS", "/predict", headers={"Origin": "http://evil.example"})
    assert asked.status == 405 and not any(name.startswith("access-control") for name in asked.headers)
    answer = service.post("/predict", {"tree": "a"}, Origin="http://evil.example")
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_endless_heads_are_cut(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.port), 20) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        with pytest.raises(OSError):
            for _ in range(200):
                client.sendall(b"x" * 10_000)
                time.sleep(0.001)
    assert service.get("/health").status == 200


def test_clients_that_leave_disturb_nobody(service: Service) -> None:
    body = json.dumps({"trees": texts(300)}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    for cut in (0, 100, len(body)):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", service.port), 20) as client:
                client.sendall(head % len(body) + body[:cut])
    assert service.post("/predict", {"tree": "(MAX 1 2)"}).status == 200
    assert service.get("/health").json["waiting"] == 0


def test_an_error_of_our_own_is_a_500_and_spoils_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> None:
        if text == "bad":
            raise ZeroDivisionError

    with running({"listops": reading(fail)}) as service:
        answer = service.post("/predict", {"tree": "bad"})
        assert answer.status == 500 and "ZeroDivisionError" not in answer.body.decode()
        assert "ZeroDivisionError" in caplog.text
        assert service.post("/predict", {"tree": "(MAX 1 2)"}).status == 200


def test_messages_are_split_into_their_parts() -> None:
    assert error_of("Tucker expects rank to be an integer >= 1, got 0; choose a positive rank.")["error"] == {
        "expected": "rank to be an integer >= 1",
        "got": "0",
        "remedy": "choose a positive rank",
        "message": "Tucker expects rank to be an integer >= 1, got 0; choose a positive rank.",
    }
    whole = error_of("something else happened")["error"]
    assert whole == {"expected": "", "got": "", "remedy": "", "message": "something else happened"}


def test_counters_are_kept_for_each_worker() -> None:
    meter = Meter(2)
    meter.count("/predict", 200, 0.5)
    meter.begin(1)
    meter.count("/predict", 418, 0.25)
    meter.count("/page/draw", 200, 1)
    meter.batch(7, 3)
    text = meter.text()
    for line in (
        'treefold_requests_total{worker="0",path="/predict",status="200"} 1',
        'treefold_requests_total{worker="1",path="/predict",status="500"} 1',
        'treefold_requests_total{worker="1",path="page",status="200"} 1',
        'treefold_request_seconds_sum{worker="0",path="/predict"} 0.5',
        'treefold_batch_size_sum{worker="1"} 7',
        'treefold_batch_size_count{worker="0"} 0',
        'treefold_waiting_requests{worker="1"} 3',
    ):
        assert line in text.splitlines()


def test_what_the_model_does_not_know_is_noted(service: Service) -> None:
    found = service.post("/predict", {"trees": ["(MAX 1 2)", "(MAX 1 zebra)", "(MAX 1 2 3 4 5 6 7 8)"]}).json
    plain, unknown, wide = found["predictions"]
    assert "notes" not in plain
    assert unknown["notes"] == ["the model does not know 1 label (1 of 3 nodes); it counts as <unk>"]
    most = runs.listops().data.forest.arity
    assert wide["notes"] == [
        f"{8 - most} children are ignored: no node of the training trees with such a label had so many"
    ]


def test_a_json_document_may_be_sent_as_it_is(service: Service) -> None:
    document = {"MAX": [1, 2]}
    asked = [
        service.post("/predict", {"tree": tree, "format": "json"}).json for tree in (document, json.dumps(document))
    ]
    assert asked[0] == asked[1] and "prediction" in asked[0]
    problem = service.post("/predict", {"tree": document}).error
    assert problem["got"] == "a JSON object" and '"format": "json"' in problem["remedy"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"trees": ["1", "(MAX 1"]}, "trees[1], line 1, column 7: expected"),
        ({"trees": ["1", "(MAX 1 zebra)"], "unknown": "error"}, "trees[1]: expected one of the "),
        ({"tree": "zebra", "unknown": "error"}, "tree: expected one of the "),
        ({"pairs": [["a", "b"], ["a", "zebra"]], "unknown": "error", "model": "lrt"}, "pairs[1]: expected one of the "),
        ({"trees": []}, "trees or pairs, got 0; send at least one."),
    ],
)
def test_errors_name_the_place_in_the_request(service: Service, body: Any, message: str) -> None:
    problem = service.post("/predict", body).error["message"]
    assert message in problem and "--unknown" not in problem


def test_paths_and_methods_are_named(service: Service) -> None:
    assert service.get("/nope").error["got"] == "GET /nope"
    assert service.get("/predict").error["message"] == "expected POST, got GET /predict; see /docs."
