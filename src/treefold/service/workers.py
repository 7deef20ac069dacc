"""The processes of a service: they share one socket, and the memory of the models.

The first process loads the models, listens, and then forks workers: memory is shared until somebody writes to it, and nobody
writes to weights. It computes nothing itself, because threads do not survive a fork. It replaces workers that die; workers end
when it dies.
"""

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any, Final, cast, final

import torch
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, TreefoldError
from treefold.service.app import Limits, Meter, create_app
from treefold.service.models import Served

_KEEP_ALIVE: Final = 15  # seconds that an idle connection stays open
_GRACE: Final = 5  # seconds for the last answers of a worker that ends
_LARGEST_HEAD: Final = 65_536  # bytes
_YOUNG: Final = 5  # a worker that lives for fewer seconds is replaced a second later
_FAILED: Final = 3
_log: Final = logging.getLogger("treefold")


class WorkerError(TreefoldError):
    """A worker cannot start."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 means any port that is free.

    >>> with listen("127.0.0.1", 0) as first:
    ...     listen("127.0.0.1", first.getsockname()[1])
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: expected a free port, got 127.0.0.1:..., which is in use; end the other program, or choose
    another port with --port.
    """
    place = f"{host}:{port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, ValueError) as problem:  # ValueError: empty or long labels, which no name can have
        reason = getattr(problem, "strerror", None) or problem
        raise ConfigurationError(
            f"expected the name or address of this machine, got {host!r} ({reason}); correct --host."
        ) from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(1024)
    except OSError as problem:
        found.close()
        if problem.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"expected a free port, got {place}, which is in use; end the other program, or choose another port with --port."
            ) from None
        raise ConfigurationError(
            f"expected an address to listen on, got {place} ({problem.strerror}); choose another with --host and --port."
        ) from None
    return found


def serve(
    models: Mapping[str, Served],
    place: socket.socket,
    limits: Limits | None = None,
    *,
    api_key: str | None = None,
    data: Mapping[str, Dataset] | None = None,
    workers: int = 1,
) -> None:
    """Answer requests until SIGTERM or SIGINT; with one worker in this process, otherwise in processes of their own."""
    meter = Meter(workers)
    arguments: dict[str, Any] = {"limits": limits or Limits(), "api_key": api_key, "data": data, "meter": meter}
    if workers == 1:
        _work(models, place, arguments)
        return
    if not hasattr(os, "fork"):
        raise ConfigurationError(f"--workers expects 1 on this system, which cannot fork, got {workers}; leave it out.")
    _supervise(models, place, arguments, workers)


def make_server(
    models: Mapping[str, Served], arguments: Mapping[str, Any] | None = None, parent: int | None = None
) -> uvicorn.Server:
    """Return the server of a process; ``arguments`` are those of `create_app`, ``parent`` is a pipe that ends with the parent."""
    given = {"limits": Limits(), **(arguments or {})}
    config = uvicorn.Config(
        create_app(models, **given),
        http=_Connection,
        ws="none",
        lifespan="on",
        log_level="error",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_GRACE,
    )
    return _Server(config, parent, 2 * given["limits"].seconds + _KEEP_ALIVE)


def _work(
    models: Mapping[str, Served], place: socket.socket, arguments: Mapping[str, Any], parent: int | None = None
) -> None:
    """Answer requests in this process, until a signal, or until the parent ends."""
    torch.set_num_threads(1)  # batches are small; more workers use more cores
    try:
        make_server(models, arguments, parent).run(sockets=[place])
    except KeyboardInterrupt:  # uvicorn has ended, and raises the signal again
        return
    except SystemExit:
        raise WorkerError("expected the service to start, got an error; see above.") from None


class _Server(uvicorn.Server):
    """A server that ends with its parent, and cuts connections on which no request begins for some ``seconds``.

    No answer takes that time: the clients of such connections read or write too slowly, or not at all.
    """

    def __init__(self, config: uvicorn.Config, parent: int | None, seconds: float) -> None:
        super().__init__(config)
        self._parent, self._seconds = parent, seconds

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        if self._parent is not None:
            asyncio.get_running_loop().add_reader(self._parent, self._end, self._parent)
        guard = asyncio.create_task(self._cut_stale())
        try:
            await super().serve(sockets)
        finally:
            guard.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        gc.collect()
        gc.freeze()  # what is loaded stays: looking through it for garbage takes a tenth of a second, again and again

    def _end(self, parent: int) -> None:
        asyncio.get_running_loop().remove_reader(parent)
        self.should_exit = True

    async def _cut_stale(self) -> None:
        seen: dict[Any, tuple[Any, float]] = {}  # the current request of each connection, and since when
        while True:
            await asyncio.sleep(self._seconds / 4)
            now, old, seen = time.monotonic(), seen, {}
            for connection in list(self.server_state.connections):
                request = connection.cycle  # type: ignore[union-attr]
                before, since = old.get(connection, (request, now))
                seen[connection] = (request, since if before is request else now)
                if now - seen[connection][1] > self._seconds:
                    connection.transport.abort()


@final
class _Transport:
    """A transport that writes nothing to a client that has left; that of uvloop raises an error."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


class _Connection(HttpToolsProtocol):
    """A connection whose heads, the lines before the body, are bounded."""

    _head = -1  # bytes of the head that is being read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, _Transport(transport)))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head >= 0:
            self._head += len(data)
            if self._head > _LARGEST_HEAD:
                self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head = 0

    def on_headers_complete(self) -> None:
        self._head = -1
        super().on_headers_complete()


def _fork() -> int | None:
    """Fork; return None if the system has no room for another process just now."""
    try:
        return os.fork()
    except OSError as problem:
        _log.warning("a worker cannot start (%s); trying again", problem.strerror or problem)
        return None


def _supervise(models: Mapping[str, Served], place: socket.socket, arguments: Mapping[str, Any], count: int) -> None:
    reading, writing = os.pipe()  # workers see its end when this process ends, however it ends
    alive: dict[int, tuple[int, float]] = {}  # by process: the worker's number, and when it began
    is_stopping = has_failed = False
    gc.freeze()  # so that looking for garbage does not write to shared memory

    def stop(*_: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        for process in alive:
            os.kill(process, signal.SIGTERM)
        signal.alarm(2 * _GRACE)

    def kill(*_: object) -> None:
        for process in alive:
            os.kill(process, signal.SIGKILL)

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGALRM: kill}

    def start(number: int) -> None:
        while not is_stopping and not try_to_start(number):
            time.sleep(1)

    def try_to_start(number: int) -> bool:
        signal.pthread_sigmask(signal.SIG_BLOCK, handlers)  # until the process is in the list
        process = -1 if is_stopping else _fork()
        if process == 0:
            code = _FAILED
            try:
                for name in handlers:
                    signal.signal(name, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
                os.close(writing)
                arguments["meter"].worker = number
                _work(models, place, arguments, reading)
                code = 0
            except WorkerError:
                pass
            finally:
                os._exit(code)
        if process is not None and process > 0:
            alive[process] = (number, time.monotonic())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)
        return process is not None

    before = {name: signal.signal(name, handler) for name, handler in handlers.items()}
    try:
        for number in range(count):
            start(number)
        while alive:
            process, status = os.waitpid(-1, 0)
            if process not in alive:
                continue
            number, began = alive.pop(process)
            if os.waitstatus_to_exitcode(status) == _FAILED and not is_stopping:
                has_failed = True
                stop()
            if not is_stopping:
                _log.warning("worker %d (process %d) has ended; another one takes its place", number, process)
            if not is_stopping and time.monotonic() - began < _YOUNG:
                time.sleep(1)
            start(number)
    finally:
        signal.alarm(0)
        for name, handler in before.items():
            signal.signal(name, handler)
        os.close(reading)
        os.close(writing)
    if has_failed:
        raise WorkerError("expected the workers to start, got an error in one; see above.")
