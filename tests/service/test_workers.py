"""Workers share a socket and memory; those that die are replaced, and all end with their parent."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from tests import runs
from tests.service.running import Service
from treefold.errors import ConfigurationError
from treefold.service.workers import _Transport, listen

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for workers in /proc")


def children(process: int) -> set[int]:
    return set(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def has_others(process: int, victim: int) -> bool:
    return len(children(process) - {victim}) == 2


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def started(
    *options: str, python: tuple[str, ...] = ("-m", "treefold")
) -> Iterator[tuple["subprocess.Popen[str]", Service]]:
    command = [sys.executable, *python, "serve", str(runs.listops().folder), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while (found := re.search(r"http://127.0.0.1:(\d+)", line := process.stderr.readline())) is None:
                assert line, "the service has ended"
            yield process, Service(int(found[1]))
        finally:
            process.kill()


def test_a_killed_worker_is_replaced_and_the_service_stays_up() -> None:
    with started("--workers", "2") as (process, service):
        until(lambda: len(children(process.pid)) == 2)
        expected = service.post("/predict", {"tree": "(MAX 1 2)"}).json
        assert expected["model"] == "listops"
        for _ in range(2):
            victim = min(children(process.pid))
            os.kill(victim, signal.SIGKILL)
            until(partial(has_others, process.pid, victim))
            for _ in range(20):
                assert service.post("/predict", {"tree": "(MAX 1 2)"}).json == expected
        metrics = service.get("/metrics").body.decode()
        assert 'treefold_resident_memory_bytes{worker="0"}' in metrics
        assert 'treefold_resident_memory_bytes{worker="1"}' in metrics
        workers = children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not any(map(is_alive, workers))


FORK_THAT_FAILS_ONCE = """
import os, runpy
fork, count = os.fork, 0
def other():
    global count
    count += 1
    if count == 3:
        raise OSError(12, "Cannot allocate memory")
    return fork()
os.fork = other
runpy.run_module("treefold", run_name="__main__")
"""


def test_a_worker_is_replaced_as_soon_as_there_is_room_for_it() -> None:
    with started("--workers", "2", python=("-c", FORK_THAT_FAILS_ONCE)) as (process, service):
        until(lambda: len(children(process.pid)) == 2)
        victim = min(children(process.pid))
        os.kill(victim, signal.SIGKILL)
        until(partial(has_others, process.pid, victim))
        assert service.post("/predict", {"tree": "(MAX 1 2)"}).status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0 and process.stderr is not None
        assert "a worker cannot start (Cannot allocate memory); trying again" in process.stderr.read()


def test_workers_end_when_their_parent_is_killed() -> None:
    with started("--workers", "2") as (process, service):
        until(lambda: len(children(process.pid)) == 2)
        assert service.get("/health").status == 200
        workers = children(process.pid)
        process.kill()
        until(lambda: not any(map(is_alive, workers)))


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_one_worker_ends_cleanly_by_a_signal(name: signal.Signals) -> None:
    with started() as (process, service):
        assert service.get("/health").status == 200
        process.send_signal(name)
        assert process.wait(30) == 0
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_nothing_is_written_to_a_client_that_has_left() -> None:
    uvloop = pytest.importorskip("uvloop", reason="CLIENTS THAT LEAVE ARE NOT TESTED: they need uvloop")
    made: list[asyncio.Transport] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(cast(asyncio.Transport, transport))

    async def leave() -> None:
        server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while not made:
            await asyncio.sleep(0.01)
        _Transport(made[0]).write(b"one")
        assert await reader.readexactly(3) == b"one"
        made[0].abort()
        await reader.read()
        with pytest.raises(RuntimeError, match="closed"):
            made[0].write(b"two")
        _Transport(made[0]).write(b"two")
        writer.close()
        server.close()

    uvloop.run(leave())


def test_addresses_that_cannot_be_used_are_told() -> None:
    with (
        listen("127.0.0.1", 0) as place,
        pytest.raises(ConfigurationError, match="which is in use; end the other program"),
    ):
        listen("127.0.0.1", place.getsockname()[1])
    with pytest.raises(ConfigurationError, match="correct --host"):
        listen("no.such.host.invalid", 0)
    for host in ("a..b", ".a", 70 * "a", "a\0b"):
        with pytest.raises(
            ConfigurationError, match=r"expected the name or address of this machine, got .* \(.+\); correct"
        ):
            listen(host, 0)
    with pytest.raises(ConfigurationError, match="choose another with --host and --port"):
        listen("192.0.2.1", 0)
