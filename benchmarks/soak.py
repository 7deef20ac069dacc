"""`python -m benchmarks.soak MINUTES`: does a service stay right, quick and small under requests of all kinds?

Two workers get valid, oversized, malformed and slow requests, clients leave, and one worker is killed again and again. The counts
are printed as JSON; the exit code is 1 if an answer was wrong, a request hung, memory grew or a worker was not replaced.
"""

import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.service import serving, small_run, trees
from treefold.service.models import Served, open_models

_BODY, _NODES, _EXPLAINED, _TREES, _SECONDS = 200_000, 5_000, 1_500, 200, 8.0
_OPTIONS: Final = (
    *("--workers", "2", "--max-body", str(_BODY), "--max-nodes", str(_NODES), "--max-explained", str(_EXPLAINED)),
    *("--max-trees", str(_TREES), "--max-queue", "64", "--max-seconds", str(_SECONDS)),
)
_HUNG: Final = 60.0  # no answer may take so many seconds
_KILLED_EVERY: Final = 20.0
_SAMPLED_EVERY: Final = 2.0
_GROWTH: Final = 30e6  # bytes that the memory of a worker may change
_BUSY: Final = (429, 503)
_BOMB: Final = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]><a>&b;&b;&b;&b;</a>'

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Soak:
    """The clients of a service, and what they saw."""

    def __init__(self, served: Served, port: int, process: int, seconds: float) -> None:
        self.port, self.process, self.end = port, process, time.monotonic() + seconds
        self.random = random.Random(0)
        self.texts = trees()
        self.expected = served.answers([served.read(text) for text in self.texts])
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.seconds: list[float] = []
        self.memory: list[tuple[float, int]] = []
        self.last_kill = 0.0

    async def run(self) -> None:
        """Run all clients until the time is over."""
        kinds = [self.one, self.many, self.explain, self.oversized, self.malformed, self.slow_writer, self.slow_reader]
        clients = [*kinds, self.leaver, self.stuck, *[self.one] * 7, self.many]
        await asyncio.gather(*(self.again(client) for client in clients), self.kill(), self.sample())

    async def again(self, client: Callable[[], Awaitable[None]]) -> None:
        """Repeat one client; what it does must end in time."""
        name = client.__name__
        while time.monotonic() < self.end:
            try:
                async with asyncio.timeout(_HUNG):
                    await client()
            except TimeoutError:
                self.fault(f"{name} hung")
            except (OSError, asyncio.IncompleteReadError) as problem:
                self.counts[f"{name}: connection lost"] += 1
                if time.monotonic() - self.last_kill > 10 and name in ("one", "many", "explain", "oversized"):
                    self.fault(f"{name} lost its connection without a kill: {problem!r}")
            await asyncio.sleep(0.001)

    def fault(self, problem: str) -> None:
        """Keep a problem."""
        self.counts["problems"] += 1
        if len(self.problems) < 20:
            self.problems.append(problem)

    # Sending.

    async def open(self) -> Streams:
        """Connect."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, name: str, path: str, body: Any) -> tuple[int, Any]:
        """Send a request on a connection of its own; return status and answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        start = time.monotonic()
        reader, writer = await self.open()
        try:
            writer.write(_head(path, len(data)) + data)
            status, answer = await _answer(reader)
        finally:
            writer.close()
        self.seconds.append(time.monotonic() - start)
        self.counts[f"{name}: {status}"] += 1
        return status, json.loads(answer)

    def expect(self, name: str, status: int, answer: Any, *statuses: int) -> bool:
        """Note a status that is not as expected; say whether the answer is one to look at."""
        if status not in (*statuses, *_BUSY):
            self.fault(f"{name}: {status} {str(answer)[:200]}")
        elif status != 200 and set(answer["error"]) != {"expected", "got", "remedy", "message"}:
            self.fault(f"{name}: an error of another shape: {str(answer)[:200]}")
        return status == 200

    # Clients.

    async def one(self) -> None:
        """Ask about one tree, on a connection that is kept for some requests."""
        reader, writer = await self.open()
        try:
            for _ in range(50):
                number = self.random.randrange(len(self.texts))
                data = json.dumps({"tree": self.texts[number]}).encode()
                start = time.monotonic()
                writer.write(_head("/predict", len(data)) + data)
                status, body = await _answer(reader)
                self.seconds.append(time.monotonic() - start)
                self.counts[f"one: {status}"] += 1
                answer = json.loads(body)
                if self.expect("one", status, answer, 200):
                    self.compare([answer], [number])
        finally:
            writer.close()

    async def many(self) -> None:
        """Ask about many trees."""
        numbers = self.random.sample(range(len(self.texts)), self.random.randint(1, _TREES))
        status, answer = await self.ask("many", "/predict", {"trees": [self.texts[number] for number in numbers]})
        if self.expect("many", status, answer, 200):
            self.compare(answer["predictions"], numbers)

    def compare(self, answers: list[dict[str, Any]], numbers: list[int]) -> None:
        """Compare answers with those of the model."""
        for answer, number in zip(answers, numbers, strict=True):
            expected = self.expected[number]
            off = max(abs(answer["probabilities"][name] - value) for name, value in expected["probabilities"].items())
            if off > 1.01e-6:
                self.fault(f"tree {number}: a wrong answer, by {off}")

    async def explain(self) -> None:
        """Ask for an explanation, or for states."""
        number = self.random.randrange(len(self.texts))
        status, answer = await self.ask("explain", "/explain", {"tree": self.texts[number]})
        if self.expect("explain", status, answer, 200) and (
            abs(answer["probability"] - max(self.expected[number]["probabilities"].values())) > 1e-5
        ):
            self.fault(f"tree {number}: a wrong explanation")
        status, answer = await self.ask("embed", "/embed", {"trees": self.texts[:3]})
        if self.expect("embed", status, answer, 200) and [len(row) for row in answer["states"]] != [20] * 3:
            self.fault("wrong states")

    async def oversized(self) -> None:
        """Send more than the limits allow."""
        wide = f"(MAX {'1 ' * _NODES})"
        for body, expected in (
            ({"tree": "x" * _BODY}, 413),
            ({"tree": wide}, 422),
            ({"trees": ["1"] * (_TREES + 1)}, 422),
            ({"tree": "(MAX 1 " * 4_000 + "2" + ")" * 4_000}, 422),  # nested deeply, with too many nodes
        ):
            status, answer = await self.ask("oversized", "/predict", body)
            self.expect("oversized", status, answer, expected)
        status, answer = await self.ask("oversized", "/explain", {"tree": f"(MAX {'1 ' * _EXPLAINED})"})
        self.expect("oversized", status, answer, 422)
        await asyncio.sleep(0.2)

    async def malformed(self) -> None:
        """Send what is no request, no JSON, or no tree."""
        noise = self.random.randbytes(self.random.randint(0, 300))
        for body in (
            noise,
            b"[" * 10_000,
            {"tree": "(MAX"},
            {"tree": 5},
            {"tre": "a"},
            {"tree": _BOMB, "format": "xml"},
        ):
            status, answer = await self.ask("malformed", "/predict", body)
            self.expect("malformed", status, answer, 422)
        reader, writer = await self.open()
        writer.write(noise + b"\r\n\r\n")
        await writer.drain()
        with suppress(TimeoutError):  # the noise may be the beginning of a request
            await asyncio.wait_for(reader.read(100), 1)
        writer.close()
        self.counts["malformed: no HTTP"] += 1
        await asyncio.sleep(0.1)

    async def slow_writer(self) -> None:
        """Send a valid request in small pieces; it must be answered."""
        data = json.dumps({"tree": self.texts[0]}).encode()
        message = _head("/predict", len(data)) + data
        reader, writer = await self.open()
        for start in range(0, len(message), 20):
            writer.write(message[start : start + 20])
            await writer.drain()
            await asyncio.sleep(0.1)
        status, answer = await _answer(reader)
        self.counts[f"slow writer: {status}"] += 1
        if self.expect("slow writer", status, json.loads(answer), 200):
            self.compare([json.loads(answer)], [0])
        writer.close()

    async def slow_reader(self) -> None:
        """Ask for much, and read a little of it."""
        reader, writer = await self.open()
        data = json.dumps({"tree": f"(MAX {'1 ' * (_EXPLAINED - 2)})", "occlude": False}).encode()
        for _ in range(4):
            writer.write(_head("/explain", len(data)) + data)
        for _ in range(self.random.randint(1, 10)):
            await reader.read(1000)
            await asyncio.sleep(0.3)
        writer.transport.abort()
        self.counts["slow reader"] += 1

    async def leaver(self) -> None:
        """Leave at any moment of a request."""
        data = json.dumps({"trees": self.texts[:_TREES]}).encode()
        message = _head("/predict", len(data)) + data
        _, writer = await self.open()
        writer.write(message[: self.random.choice([0, 10, 100, 1000, len(message)])])
        await asyncio.sleep(self.random.choice([0, 0.001, 0.01]))
        writer.transport.abort()
        self.counts["leaver"] += 1
        await asyncio.sleep(0.05)

    async def stuck(self) -> None:
        """Send the beginning of a request, and nothing more; the service must end the connection."""
        reader, writer = await self.open()
        begin = _head("/predict", 100)
        writer.write(self.random.choice([b"", begin[:20], begin, begin + b"{"]))
        try:
            while await reader.read(1000):
                pass
        finally:
            writer.close()
        self.counts["stuck"] += 1

    # Watching.

    def workers(self) -> list[int]:
        """Return the processes of the workers, the oldest first."""
        found: dict[int, int] = {}  # when each one began
        for each in Path(f"/proc/{self.process}/task/{self.process}/children").read_text().split():
            with suppress(OSError):  # it has just ended
                found[int(each)] = int(Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()[19])
        return sorted(found, key=found.__getitem__)

    async def kill(self) -> None:
        """Kill the younger worker again and again; the older one shows whether memory grows."""
        while time.monotonic() + 2 * _KILLED_EVERY < self.end:
            await asyncio.sleep(_KILLED_EVERY)
            if not (workers := self.workers()):
                self.fault("the service has no workers")
                return
            victim = workers[-1]
            os.kill(victim, signal.SIGKILL)
            self.last_kill = time.monotonic()
            self.counts["killed workers"] += 1
            while victim in (now := self.workers()) or len(now) < 2:
                if time.monotonic() - self.last_kill > 30:
                    self.fault("a worker was not replaced")
                    return
                await asyncio.sleep(0.05)

    async def sample(self) -> None:
        """Note the memory of the older worker."""
        while time.monotonic() < self.end:
            await asyncio.sleep(_SAMPLED_EVERY)
            with suppress(OSError, IndexError):  # the worker has just ended, or there is none
                self.memory.append((time.monotonic(), _resident(self.workers()[0])))

    def files_left(self) -> int:
        """Return how many more files the older worker has open than the younger one, when no requests come any more."""
        workers = self.workers()
        return _open_files(workers[0]) - _open_files(workers[-1])

    def facts(self) -> dict[str, Any]:
        """Return what was seen, ready for JSON; add a problem if memory grew."""
        values = [value for _, value in self.memory]
        quarter = max(len(values) // 4, 1)
        early, late = (statistics.median(part) for part in (values[quarter : 2 * quarter] or values, values[-quarter:]))
        if late - early > _GROWTH:
            self.fault(f"memory grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB")
        seconds = sorted(self.seconds)
        return {
            "requests": len(seconds),
            "median_ms": round(1e3 * seconds[len(seconds) // 2], 2),
            "slowest_ms": round(1e3 * seconds[-1], 2),
            "counts": dict(sorted(self.counts.items())),
            "memory_megabytes": [round(value / 1e6, 1) for value in values[:: max(len(values) // 20, 1)]],
            "memory_growth_megabytes": round((late - early) / 1e6, 1),
            "problems": self.problems,
        }


def _head(path: str, length: int) -> bytes:
    kind = "Content-Type: application/json"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\nContent-Length: {length}\r\n\r\n".encode()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


def _resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _open_files(process: int) -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


def soak(minutes: Annotated[float, typer.Argument(help="How long to send requests.")] = 2.0) -> None:
    """Send requests of all kinds to a service of two workers; print counts as JSON.

    Example: `python -m benchmarks.soak 60`
    """
    with tempfile.TemporaryDirectory() as folder:
        small_run(Path(folder) / "run")
        (served,) = open_models([Path(folder) / "run"]).values()
        with serving(Path(folder) / "run", *_OPTIONS) as (process, port, log):
            found = Soak(served, port, process.pid, 60 * minutes)
            while len(found.workers()) < 2:
                time.sleep(0.1)
            asyncio.run(found.run())
            end = time.monotonic() + 4 * _SECONDS + 30  # until all connections are cut
            while (left := found.files_left()) and time.monotonic() < end:
                time.sleep(1)
            if left:
                found.fault(f"{left} files stayed open")
            process.terminate()
            try:
                if process.wait(30) != 0:
                    found.fault(f"the service ended with {process.returncode}")
            except subprocess.TimeoutExpired:
                found.fault("the service did not end within 30 s")
                process.kill()
            said = Counter(re.sub(r"\d+", "N", line) for line in log.read_text().splitlines()[2:])
            if any("Traceback" in line for line in said):
                found.fault(f"a traceback: {[line for line in said if line[:1].strip()][:20]}")
    facts = {"minutes": minutes, **found.facts(), "said": dict(said.most_common(20))}
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    sys.exit(1 if facts["problems"] else 0)


if __name__ == "__main__":
    typer.run(soak)
