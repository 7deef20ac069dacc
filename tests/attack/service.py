"""Attack on the service: requests of every kind, to a service in a thread of this process. An input is what is sent."""

import functools
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.attack.case import (
    PIECES,
    VALUES,
    Target,
    changed_once,
    json_file,
    mutated,
    packed,
    require,
    unpacked,
)
from tests.attack.files import originals
from treefold.data.dataset import Dataset
from treefold.errors import TreefoldError
from treefold.service.app import Limits
from treefold.service.models import open_models
from treefold.service.workers import listen, make_server

_SECONDS: Final = 60
_TREE: Final = "(f a (g b))"
_DRAW: Final = {
    "trees": [_TREE],
    "models": ["finished"],
    "layer": "effects",
    "folded": [1],
    "unfolded": [2],
    "focus": 1,
}
_EDIT: Final = {"node": 1, "do": "label", "label": "g", "model": "finished"}
_BODIES: Final[list[tuple[str, Any]]] = [
    ("/predict", {"tree": _TREE, "model": "finished", "unknown": "error"}),
    ("/predict", {"trees": [_TREE, "a"], "model": "classifier", "format": "sexpr"}),
    ("/predict", {"tree": {"f": ["a", 1]}, "model": "regressor", "format": "json"}),
    ("/predict", {"left": _TREE, "right": "a"}),
    ("/predict", {"pairs": [[_TREE, "a"]]}),
    ("/embed", {"trees": [_TREE]}),
    ("/explain", {"tree": _TREE, "occlude": True, "top": 3}),
    ("/page/draw", _DRAW),
    ("/page/draw", {**_DRAW, "edit": _EDIT, "unfold": 0}),
]  # fmt: skip
_PATHS: Final = (
    *("/", "/models", "/health", "/metrics", "/docs", "/openapi.json", "/page/app.js", "/page/facts", "/page/random?model=finished&seed=1"),
    *("/page/examples?model=finished", "/page/examples?model=finished&split=train&answer=wrong&target=odd&min_size=1&max_size=9&min_depth=1&max_depth=9"),
    *("/page/examples?model=finished&number=1", "/page/random", "/predict", "/../etc/passwd", "/page/../../x", "/%00", "//", "*"),
)  # fmt: skip
_HEADERS: Final = (
    *("Content-Type: text/plain", "Content-Type: application/json; charset=utf-16", "Content-Encoding: gzip", "Expect: 100-continue", "Host: evil.example"),
    *("Host: ", "Origin: http://evil.example", "Transfer-Encoding: chunked", "Content-Length: -1", "Content-Length: 5", "Content-Length: 99999999999"),
    *("Upgrade: websocket", "Connection: upgrade", "X-Api-Key: é", "Authorization: Bearer x", "Accept: image/png", "Range: bytes=5-1", "Cookie: " + "a" * 5000),
)  # fmt: skip


class _Noted(logging.Handler):
    """Keeps what the service logs as an error: no request may cause one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(self.format(record))


@functools.cache
def _service() -> tuple[int, _Noted]:
    place = originals()
    models = open_models([place / name for name in ("finished", "classifier", "regressor")])
    arguments = {"data": {"finished": Dataset.open(place / "dataset")}, "limits": Limits(body=300_000, nodes=20_000)}
    listening, server = listen("127.0.0.1", 0), make_server(models, arguments)
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    noted = _Noted()
    logging.getLogger().addHandler(noted)
    return listening.getsockname()[1], noted


def _request(method: str, path: str, body: bytes = b"", headers: tuple[str, ...] = ()) -> bytes:
    names = {header.partition(":")[0].lower() for header in headers}
    usual = {
        "Host": "localhost",
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": len(body),
    }
    lines = [f"{name}: {value}" for name, value in usual.items() if name.lower() not in names]
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, *headers])
    is_whole = not names & {"content-length", "transfer-encoding", "expect", "connection"}
    return packed({"whole": is_whole}, head.encode(errors="surrogatepass") + b"\r\n\r\n" + body)


def _make(random: random.Random) -> bytes:
    way = random.random()
    if way < 0.6:
        path, body = random.choice(_BODIES)
        return _request("POST", path, json_file(random, json.dumps(body).encode()))
    if way < 0.8:
        path = random.choice((*_PATHS, *(path for path, _ in _BODIES)))
        if "=" in path:
            parts = path.split("&")
            chosen = random.randrange(len(parts))
            parts[chosen] = f"{parts[chosen].partition('=')[0]}={_quoted(random.choice(VALUES))}"
            path = "&".join(parts)
        elif random.random() < 0.5:
            path += random.choice(("?", "/", "%", "%ff", "?a=" + "x" * 5000, "?model=%ed%a0%80", "#a", ";"))
        method = random.choice(("GET", "GET", "GET", "POST", "HEAD", "PUT", "OPTIONS", "TRACE", "CONNECT", "BREW"))
        return _request(method, path, headers=tuple(random.sample(_HEADERS, random.choice((0, 0, 1, 2)))))
    path, body = random.choice(_BODIES)
    headers = tuple(random.sample(_HEADERS, random.choice((0, 1, 2))))
    _, data = unpacked(_request("POST", path, json.dumps(body).encode(), headers))
    changed = mutated(random, data) if way < 0.95 else random.choice(PIECES) * random.choice((1, 100)) + data
    return packed({"whole": False}, changed)


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(f"%{byte:02x}" for byte in text.encode(errors="surrogatepass"))


def _every() -> Iterator[bytes]:
    for path, body in _BODIES:
        for changed in changed_once(body):
            yield _request("POST", path, json.dumps(changed).encode())
    for path in _PATHS:
        yield from (_request(method, path) for method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE"))
        yield from (_request("GET", path, headers=(header,)) for header in _HEADERS)


def _run(data: bytes, folder: Path) -> None:
    port, noted = _service()
    noted.errors.clear()
    facts, data = unpacked(data)
    with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as connection:
        answer = b""
        try:
            connection.sendall(data)
            if not facts["whole"]:  # who leaves gets no answer
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(2**16):
                answer += part
        except TimeoutError:
            require(False, f"no answer within {_SECONDS} s")
        except OSError:  # it reads no further than it has to
            pass
    require(not noted.errors, f"an error in the log: {noted.errors[:1]}")
    if not answer:
        raise TreefoldError("no request")
    status = int(answer.split(b" ", 2)[1])
    require(status < 500, f"status {status}: {answer[-300:]!r}")
    if status >= 400:
        raise TreefoldError(f"status {status}")
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"content-type: application/json" in head.lower() and b"chunked" not in head and body:
        json.loads(body, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    require(False, f"the number {name}, which JSON does not have")


TARGETS: Final = [Target("service", _make, _run, _every)]
