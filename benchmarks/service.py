"""The suite `service`: requests of one tree a second, of `treefold serve` and of a plain handler of FastAPI.

Servers and clients are processes of their own: `python benchmarks/service.py plain RUN PORT` serves with the plain handler,
`python benchmarks/service.py load PORT CLIENTS REQUESTS` sends requests and prints the result as JSON.
"""

import asyncio
import functools
import importlib.util
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import treefold
from benchmarks.cases import HEADLINE
from benchmarks.library import RunSettings, listops, make_listops, train
from benchmarks.measuring import Job, MissingPackageError, Options, Values, child_command, child_environment
from treefold.errors import TrainingError

CLIENTS: Final = 32
CASE: Final = f"{HEADLINE}, {CLIENTS} clients"
_LONGEST: Final = 120  # seconds of a round
_TREES: Final = 500


def service(options: Options) -> dict[str, Job]:
    """Return the job of the suite: one worker, clients on the same machine that keep their connections."""
    return {options.title(CASE): functools.partial(_measure, options)}


def _measure(options: Options) -> Values:
    for package in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f"this case expects the package {package}, got none; pip install 'treefold[serve]'."
            )
    rounds: dict[str, list[Values]] = {"service": [], "plain": []}
    counts = {"service": options.size(full=6000, quick=200), "plain": options.size(full=1500, quick=60)}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        small_run(run)
        with serving(run) as (_, port, _), _serving_plainly(run) as plain:
            ports = {"service": port, "plain": plain}
            for name, each in ports.items():
                _load(each, counts[name] // 4)  # everything is compiled and loaded then
            for _ in range(options.round_count(full=3)):
                for name, each in ports.items():
                    rounds[name].append(_load(each, counts[name]))
    best = {name: max(found, key=lambda each: each["requests_per_second"]) for name, found in rounds.items()}
    ours, plain_handler = best["service"], best["plain"]
    return {
        **ours,
        **{f"plain_{name}": value for name, value in plain_handler.items()},
        "ratio": ours["requests_per_second"] / plain_handler["requests_per_second"],
        "clients": CLIENTS,
        "threads": options.threads,
    }


def small_run(folder: Path) -> None:
    """Train the model of the headline on a few trees: its speed does not depend on its weights."""
    model = {"aggregator": "tucker", "state_size": 20, "rank": 3}
    settings = {"recipe": "paper", "model": model, "training": {"epochs": 1, "threads": 1}}
    train(make_listops(200), folder, RunSettings.of(settings))


def trees() -> list[str]:
    """Return the trees that are sent."""
    return [str(tree) for tree in listops.generate(_TREES, seed=1)]


@contextmanager
def serving(run: Path, *options: str) -> "Iterator[tuple[subprocess.Popen[bytes], int, Path]]":
    """Run `treefold serve` within the block; yield its process, its port, and the file of what it says."""
    command = [sys.executable, "-m", "treefold", "serve", str(run), "--port", "0", *options]
    # stderr goes to a file: an unread pipe fills up and blocks the service.
    with tempfile.NamedTemporaryFile() as log, _process(command, log) as process:
        while (found := re.search(r"http://127\.0\.0\.1:(\d+)", Path(log.name).read_text())) is None:
            if process.poll() is not None:
                raise TrainingError("the service of the benchmark has ended; run `treefold serve` to see why.")
            time.sleep(0.05)
        yield process, int(found[1]), Path(log.name)


@contextmanager
def _serving_plainly(run: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port: int = place.getsockname()[1]
    with _process(child_command(Path(__file__), "plain", run, port), subprocess.DEVNULL) as process:
        end = time.monotonic() + _LONGEST
        while True:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > end:
                raise TrainingError("the plain handler of the benchmark does not start.")
            time.sleep(0.1)
        yield port


@contextmanager
def _process(command: list[str], errors: IO[bytes] | int) -> Iterator["subprocess.Popen[bytes]"]:
    source = Path(treefold.__file__).parents[1]
    with subprocess.Popen(command, env=child_environment(source), stderr=errors) as process:
        try:
            yield process
        finally:
            process.terminate()


def _load(port: int, requests: int) -> Values:
    source = Path(treefold.__file__).parents[1]
    done = subprocess.run(
        child_command(Path(__file__), "load", port, CLIENTS, requests),
        env=child_environment(source),
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST,
    )
    if done.returncode:
        raise TrainingError(f"the clients of the benchmark failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    found: Values = json.loads(done.stdout)
    return found


def plain(run: str, port: str) -> None:
    """Serve a model with the handler that one would write first."""
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    model = treefold.load(run)
    app = FastAPI()

    class Ask(BaseModel):
        tree: str

    @app.post("/predict")
    def predict(ask: Ask) -> dict[str, str]:
        return {"prediction": str(model.predict([ask.tree])[0])}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error")


class _Client(asyncio.Protocol):
    """Sends requests, each after the answer to the one before."""

    def __init__(self, requests: Iterator[bytes], seconds: list[float], ended: "asyncio.Future[None]") -> None:
        self._requests, self._seconds, self._ended = requests, seconds, ended
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._transport.close()
            return
        self._start = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", self._received[:head], re.IGNORECASE) if head >= 0 else None
        if found is None or len(self._received) < head + 4 + int(found[1]):
            return
        if not self._received.startswith(b"HTTP/1.1 200"):
            self._ended.set_exception(RuntimeError(self._received.split(b"\r\n")[0].decode()))
            self._transport.close()
            return
        self._received = b""
        self._seconds.append(time.perf_counter() - self._start)
        self._send()

    def connection_lost(self, problem: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def load(port: str, clients: str, requests: str) -> None:
    """Send requests by several clients at the same time; print how many were answered a second, and how long they took."""
    head = "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    bodies = [json.dumps({"tree": tree}) for tree in trees()]
    texts = [(head.format(len(body)) + body).encode() for body in bodies]
    source = (texts[number % len(texts)] for number in range(int(requests)))
    seconds: list[float] = []

    async def run() -> float:
        loop = asyncio.get_running_loop()
        ends = [loop.create_future() for _ in range(int(clients))]
        start = time.perf_counter()
        for end in ends:
            await loop.create_connection(functools.partial(_Client, source, seconds, end), "127.0.0.1", int(port))
        await asyncio.gather(*ends)
        return time.perf_counter() - start

    taken = asyncio.run(run())
    if len(seconds) != int(requests):
        raise RuntimeError(f"{int(requests) - len(seconds)} requests got no answer")
    seconds.sort()
    found = {
        "requests_per_second": len(seconds) / taken,
        "median_ms": 1e3 * seconds[len(seconds) // 2],
        "slowest_percent_ms": 1e3 * seconds[int(0.99 * len(seconds))],
    }
    sys.stdout.write(json.dumps(found))


JOBS: Final[dict[str, Callable[..., None]]] = {"plain": plain, "load": load}

if __name__ == "__main__":
    JOBS[sys.argv[1]](*sys.argv[2:])
