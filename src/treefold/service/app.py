"""The paths of the service, its limits, its errors and its counters."""

import asyncio
import hmac
import html
import json
import logging
import mmap
import os
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, final

from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException

from treefold import __version__
from treefold.analysis.prediction import Trees
from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, TreefoldError, nearest, require_positive
from treefold.service import explorer
from treefold.service.batching import Batcher, RefusedError, stopping
from treefold.service.models import Served, UnknownModelError, chosen, nodes_of
from treefold.trees.tree import Tree

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Direct = Callable[[bytes, Receive], Awaitable[bytes]]
"""Turns the body of a request into the body of its answer."""

_log: Final = logging.getLogger("treefold")


@final
@dataclass(frozen=True)
class Limits:
    """What the service accepts: bytes of a body, nodes of a tree, trees of a request, waiting requests, seconds of a request.

    An explanation has a row for each node, so that it takes smaller trees.

    >>> Limits(nodes=0)
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: Limits expects nodes to be an integer >= 1, got 0; choose a positive nodes.
    """

    body: int = 1_000_000
    nodes: int = 100_000
    explained_nodes: int = 10_000
    trees: int = 1_000
    queue: int = 256
    seconds: float = 30.0

    def __post_init__(self) -> None:
        require_positive("Limits", **{each.name: getattr(self, each.name) for each in fields(self)[:-1]})
        if not self.seconds > 0:
            raise ConfigurationError(f"Limits expects seconds to be positive, got {self.seconds:g}; choose more.")


# What is sent, and what is answered.


Document = str | dict[str, Any] | list[Any]


class Ask(BaseModel):
    """One tree or many, or one pair of trees or many, as texts; with the format "json", documents as they are, too."""

    model_config = ConfigDict(extra="forbid")
    tree: Document | None = None
    trees: list[Document] | None = None
    left: Document | None = None
    right: Document | None = None
    pairs: list[tuple[Document, Document]] | None = None
    model: str | None = None
    format: str | None = None
    unknown: Literal["unk", "error"] = "unk"

    @property
    def is_one(self) -> bool:
        """Whether the answer is about one tree or pair, and no list."""
        return self.trees is None and self.pairs is None

    def texts(self) -> list[tuple[str, ...]]:
        """Return the texts of each example."""
        given = [name for name in ("tree", "trees", "left", "right", "pairs") if getattr(self, name) is not None]
        if self.tree is not None and len(given) == 1:
            return [(self._text(self.tree),)]
        if self.trees is not None and len(given) == 1:
            return [(self._text(each),) for each in self.trees]
        if self.pairs is not None and len(given) == 1:
            return [(self._text(left), self._text(right)) for left, right in self.pairs]
        if self.left is not None and self.right is not None and len(given) == 2:
            return [(self._text(self.left), self._text(self.right))]
        raise ConfigurationError(
            f"the request expects 'tree', 'trees', 'left' and 'right', or 'pairs', got {' and '.join(given) or 'none of them'}; "
            f"send one of these."
        )

    def _text(self, document: Document) -> str:
        if isinstance(document, str):
            return document
        if self.format != "json":
            raise ConfigurationError(
                f'a tree expects text such as "(f a b)", got a JSON {"list" if isinstance(document, list) else "object"}; '
                f'put it into quotes, or send "format": "json" if it is a document.'
            )
        return json.dumps(document)


class AskWhy(Ask):
    """One tree, or one pair of trees; ``occlude`` also tries what the answer is without each subtree."""

    occlude: bool = True
    top: int = 5


class Prediction(BaseModel):
    """The answer about one tree or pair; lists in post-order if the model judges nodes."""

    model: str
    prediction: str | float | list[str] | list[float]
    probabilities: dict[str, float] | None = None
    probability: list[float] | None = None
    notes: list[str] | None = None


class Predictions(BaseModel):
    """The answers about many trees or pairs, each without the name of the model."""

    model: str
    predictions: list[dict[str, Any]]


class Node(BaseModel):
    """The answer about a subtree, and how much the answer about the whole tree falls without it."""

    tree: int
    node: int
    parent: int | None
    depth: int
    label: str | list[float]
    size: int
    prediction: str | float
    unknown: bool
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    effect: float | None = None


class Why(BaseModel):
    """The nodes in post-order, and those that matter most."""

    model: str
    prediction: str | float
    probability: float | None = None
    nodes: list[Node]
    effects: list[dict[str, float]] | None = None


class States(BaseModel):
    """The states of the roots, one for each tree; of a pair, the left one first."""

    model: str
    states: list[list[float]]


class Problem(BaseModel):
    """What was expected, what came, and the remedy; ``message`` is the whole sentence."""

    expected: str
    got: str
    remedy: str
    message: str


class Problems(BaseModel):
    """The answer to a request that is refused."""

    error: Problem


_SENTENCE: Final = re.compile(r".*?\bexpect(?:s|ed)? (.*?),? (?:but )?got (.*?)(?:; (.*))?", re.DOTALL)


def error_of(message: str) -> dict[str, dict[str, str]]:
    """Split a message of treefold for JSON.

    >>> error_of("tree, line 1, column 3: expected ')', got the end; close it.")["error"]["remedy"]
    'close it'
    """
    found = _SENTENCE.fullmatch(message.strip())
    expected, got, remedy = (part or "" for part in found.groups()) if found else ("", "", "")
    parts = {"expected": expected, "got": got, "remedy": remedy}
    return {"error": {**{name: text.rstrip(".") for name, text in parts.items()}, "message": message.strip()}}


def _refused(status: int, message: str) -> Response:
    headers = {"retry-after": "1"} if status in (429, 503) else {}
    headers |= {"www-authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse(error_of(message), status, headers)


def _answer_to(problem: Exception, request: str = "") -> Response:
    """Turn an error about a request, such as "GET /path", into the answer that says it."""
    if isinstance(problem, RefusedError):
        return _refused(problem.status, str(problem))
    if isinstance(problem, UnknownModelError):
        return _refused(404, str(problem))
    if isinstance(problem, TreefoldError):
        return _refused(422, str(problem))
    if isinstance(problem, (ValidationError, RequestValidationError)):
        return _refused(422, _of_pydantic(problem.errors()[0]))
    if isinstance(problem, HTTPException):
        allowed = (problem.headers or {}).get("Allow", "another method")
        expected = {404: "a path of the service", 405: allowed}.get(problem.status_code, "another request")
        answer = _refused(problem.status_code, f"expected {expected}, got {request or problem.detail}; see /docs.")
        answer.headers.update(problem.headers or {})
        return answer
    _log.error("a request failed: %s", "".join(traceback.format_exception(problem)))
    return _refused(500, "expected no error of the service itself, got one; its log has the details.")


def _of_pydantic(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"] if part not in ("body", "str")) or "the body"
    if error["type"] == "extra_forbidden":
        return f"the request expects known keys, got {place!r}{nearest(place, AskWhy.model_fields)}; see /docs."
    if error["type"] == "json_invalid":
        what = error.get("ctx", {}).get("error", error["msg"])
        return f"the request expects JSON, got {str(what)!r}; correct it."
    got = repr(error["input"])
    got = got if len(got) <= 60 else f"{got[:59]}…"
    expected = str(error["msg"]).removeprefix("Input should be ")
    return f"the request expects {place} to be {expected}, got {got}; see /docs."


# Computing.

_OF_BATCH: Final = re.compile(r"tree (\d+) of the batch: ")


@final
@dataclass(frozen=True, slots=True)
class _Question:
    """The examples of one request as texts, and which function of `Served` answers them."""

    served: Served
    answer: Callable[..., Sequence[Any]]
    ask: Ask
    texts: list[tuple[str, ...]]

    def name_of(self, number: int) -> str:
        """Return where an example is in the request."""
        names = [name for name in ("trees", "pairs") if getattr(self.ask, name) is not None]
        return f"{names[0]}[{number}]" if names else "tree"

    def placed(self, problem: Exception) -> Exception:
        """Say an error about a tree of the batch in the words of the request."""
        found = _OF_BATCH.match(str(problem))
        if found is None or not isinstance(problem, TreefoldError):
            return problem
        name = self.name_of(int(found[1]) // self.served.saved.task.trees)
        text = str(problem)[found.end() :].replace("with --unknown unk", 'with "unknown": "unk"')
        return ConfigurationError(f"{name}: {text}")

    def write(self, found: Sequence[Any]) -> bytes:
        """Write the answers as JSON."""
        whole: dict[str, Any] = {"model": self.served.name}
        if self.answer is Served.states:
            whole["states"] = [row for rows in found for row in rows.tolist()]
        elif self.ask.is_one:
            whole |= found[0]
        else:
            whole["predictions"] = found
        return json.dumps(whole).encode()


def read_trees(served: Served, texts: tuple[str, ...], form: str | None, most: int, name: str = "tree") -> Trees:
    """Read the trees of one example, which errors call ``name``; raise if one has too many nodes."""
    trees = tuple(tree for text in texts for tree in served.read(text, form, name))
    for tree in trees:
        if tree.size > most:
            raise RefusedError(
                422, f"{name}: the service expects trees of at most {most:,} nodes, got {tree.size:,}; cut the tree."
            )
    return trees


def _compute(limits: Limits, questions: list[_Question]) -> list[bytes | Exception]:
    """Answer questions together; one that fails gets its error, and spoils no other."""
    answers: list[bytes | Exception] = [b""] * len(questions)
    groups: dict[tuple[Any, ...], list[tuple[int, list[Trees]]]] = {}
    for place, question in enumerate(questions):
        try:
            form, most = question.ask.format, limits.nodes
            examples = [
                read_trees(question.served, texts, form, most, question.name_of(number))
                for number, texts in enumerate(question.texts)
            ]
        except Exception as problem:
            answers[place] = problem
        else:
            key = (question.served.name, question.answer, question.ask.unknown)
            groups.setdefault(key, []).append((place, examples))
    for group in groups.values():
        _answer_group(questions, answers, group)
    return answers


def _answer_group(
    questions: list[_Question], answers: list[bytes | Exception], group: list[tuple[int, list[Trees]]]
) -> None:
    first = questions[group[0][0]]
    try:
        found = first.answer(first.served, [trees for _, examples in group for trees in examples], first.ask.unknown)
    except Exception as problem:
        if len(group) > 1:  # one by one, to find the bad one
            for one in group:
                _answer_group(questions, answers, [one])
        else:
            answers[group[0][0]] = first.placed(problem)
        return
    end = 0
    for place, examples in group:
        start, end = end, end + len(examples)
        answers[place] = questions[place].write(found[start:end])


def _explained(served: Served, ask: AskWhy, texts: tuple[str, ...], most: int) -> bytes:
    trees = read_trees(served, texts, ask.format, most)
    found = served.explain(trees, occlude=ask.occlude, top=ask.top, unknown=ask.unknown)
    answer: dict[str, Any] = {"model": served.name, "prediction": found.answer}
    if found.confidence is not None:
        answer["probability"] = round(found.confidence, 6)
    answer["nodes"] = nodes_of(found)
    if found.occlusion is not None:
        effects = found.occlusion.effects[: ask.top]
        answer["effects"] = [{"node": effect.node, "effect": round(effect.fall, 6)} for effect in effects]
    return json.dumps(answer).encode()


def _has_left(receive: Receive) -> bool:
    """Say whether the client of a request that was read has left; ask for the next message, but do not wait for it."""
    waiting: Any = receive()
    try:
        waiting.send(None)
    except StopIteration as done:
        return bool(done.value["type"] == "http.disconnect")
    waiting.close()
    return False


def _warm_up(models: Mapping[str, Served]) -> None:
    """Compute one small tree, so that kernels are compiled before the first request."""
    for served in models.values():
        labels = served.saved.labels
        leaf = Tree((*labels.names, *labels.operators, "x")[0])
        tree = Tree(labels.operators[0], [leaf]) if labels.operators else Tree(leaf.label, [leaf])
        try:
            served.answers([(tree,) * served.saved.task.trees])
        except TreefoldError:  # labels may be vectors
            continue


# Counting.

_PATHS: Final = ("/predict", "/explain", "/embed", "/models", "/health", "/metrics", "page", "other")
_STATUSES: Final = (200, 304, 400, 401, 403, 404, 405, 413, 415, 422, 429, 499, 500, 503)
_GAUGES: Final = ("pid", "batches", "batched", "waiting")


@final
class Meter:
    """Counters of all workers, in memory that they share; each worker writes to its own row, and reads all.

    >>> meter = Meter(2)
    >>> meter.count("/predict", 200, 0.25)
    >>> print(meter.text())  # doctest: +ELLIPSIS
    # TYPE treefold_requests_total counter
    treefold_requests_total{worker="0",path="/predict",status="200"} 1
    ...
    """

    def __init__(self, workers: int = 1, worker: int = 0) -> None:
        self._width = len(_PATHS) * (len(_STATUSES) + 1) + len(_GAUGES)
        self._memory = mmap.mmap(-1, 8 * workers * self._width)
        self._numbers = memoryview(self._memory).cast("d")
        self._workers = workers
        self.worker = worker

    def begin(self, worker: int) -> None:
        """Count for this worker from now on."""
        self.worker = worker
        self.set("pid", os.getpid())
        self.set("waiting", 0)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        known = path if path in _PATHS else "page" if path == "/" or path.startswith("/page/") else "other"
        start = self.worker * self._width + _PATHS.index(known) * (len(_STATUSES) + 1)
        self._numbers[start + _STATUSES.index(status if status in _STATUSES else 500)] += 1
        self._numbers[start + len(_STATUSES)] += seconds

    def set(self, name: str, value: float, *, add: bool = False) -> None:
        """Set a gauge of this worker, or add to it."""
        place = (self.worker + 1) * self._width - len(_GAUGES) + _GAUGES.index(name)
        self._numbers[place] = value + (self._numbers[place] if add else 0)

    def batch(self, size: int, waiting: int) -> None:
        """Count a batch, and note how many requests still wait."""
        self.set("batches", 1, add=True)
        self.set("batched", size, add=True)
        self.set("waiting", waiting)

    def text(self) -> str:
        """Return the counters in the format of Prometheus."""
        lines: dict[str, list[str]] = {}

        def add(name: str, kind: str, labels: str, value: float) -> None:
            family = name.removesuffix("_sum").removesuffix("_count") if kind == "summary" else name
            lines.setdefault(family, [f"# TYPE {family} {kind}"]).append(f"{name}{{{labels}}} {value:.10g}")

        for worker in range(self._workers):
            row = self._numbers[worker * self._width : (worker + 1) * self._width].tolist()
            for place, path in enumerate(_PATHS):
                own, start = f'worker="{worker}",path="{path}"', place * (len(_STATUSES) + 1)
                counts = row[start : start + len(_STATUSES)]
                for status, value in zip(_STATUSES, counts, strict=True):
                    if value:
                        add("treefold_requests_total", "counter", f'{own},status="{status}"', value)
                if any(counts):
                    add("treefold_request_seconds_sum", "summary", own, row[start + len(_STATUSES)])
                    add("treefold_request_seconds_count", "summary", own, sum(counts))
            pid, batches, batched, waiting = row[-len(_GAUGES) :]
            own = f'worker="{worker}"'
            add("treefold_batch_size_sum", "summary", own, batched)
            add("treefold_batch_size_count", "summary", own, batches)
            add("treefold_waiting_requests", "gauge", own, waiting)
            memory = Path(f"/proc/{int(pid)}/statm")
            if pid and memory.exists():
                resident = int(memory.read_text().split()[1]) * mmap.PAGESIZE
                add("treefold_resident_memory_bytes", "gauge", own, resident)
        return "".join(f"{line}\n" for family in lines.values() for line in family)


# The way to the paths.

_OPEN: Final = frozenset(
    {"/", "/health", "/docs", "/openapi.json", "/page/app.js", "/page/style.css"}
)  # they tell nothing about models and data
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@final
class _Gate:
    """Refuses requests that come from elsewhere, without the key, or with a body that is too large; counts all.

    It answers the paths of ``direct`` itself: the way through FastAPI takes as long as the answer.
    """

    def __init__(
        self, app: Any, limits: Limits, api_key: str | None, meter: Meter, direct: Mapping[str, Direct]
    ) -> None:
        self._app, self._limits, self._meter, self._direct = app, limits, meter, direct
        self._key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, has_begun = time.perf_counter(), 500, False

        async def counted(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                message["headers"].append((b"x-content-type-options", b"nosniff"))
            await send(message)

        try:
            headers = dict(scope["headers"])
            self._admit(scope, headers)
            if scope["method"] != "POST":
                await self._app(scope, receive, counted)
                return
            body = await self._body(headers, receive)
            direct = self._direct.get(scope["path"])
            if direct is None:
                await self._app(scope, _again(body, receive), counted)
                return
            answer = await direct(body, receive)
            length = str(len(answer)).encode()
            fields = [(b"content-type", b"application/json"), (b"content-length", length)]
            await counted({"type": "http.response.start", "status": 200, "headers": fields})
            await counted({"type": "http.response.body", "body": answer})
        except asyncio.CancelledError:  # the service stops, and this client has not sent its whole request
            if has_begun:
                raise
            await _answer_to(stopping())(scope, receive, counted)
        except Exception as problem:
            if has_begun:
                raise
            await _answer_to(problem)(scope, receive, counted)
        finally:
            self._meter.count(scope["path"], status, time.perf_counter() - start)

    def _admit(self, scope: Message, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless the request comes from where it may, and in the form that it must have."""
        if self._key is None:
            host = headers.get(b"host", b"").decode("latin-1").lower()
            if (
                re.sub(r":\d*$", "", host) not in _LOCAL
            ):  # a name of others that leads here: its pages would see answers
                raise RefusedError(
                    403, f"expected a Host of this machine, as the service has no key, got {host!r}; use localhost."
                )
        elif scope["path"] not in _OPEN:
            given = headers.get(b"x-api-key") or re.sub(rb"^(?i:bearer) +", b"", headers.get(b"authorization", b""))
            if not hmac.compare_digest(given, self._key):
                got = "another one" if given else "none"
                raise RefusedError(
                    401, f"expected the key of the service, got {got}; send it as Authorization: Bearer KEY."
                )
        if scope["method"] == "POST":
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                raise RefusedError(
                    415, f"expected Content-Type: application/json, got {kind.decode('latin-1')!r}; send JSON."
                )

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        length = headers.get(b"content-length", b"0")
        declared = int(length[:18]) if length.isdigit() else 0  # more digits than these are too many in any case
        if declared > self._limits.body:
            raise self._too_large(f"{declared:,}")
        pieces: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self._limits.seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(499, "expected a client that waits, got one that has left.")
                    pieces.append(message.get("body", b""))
                    size, more = size + len(pieces[-1]), message.get("more_body", False)
                    if size > self._limits.body:
                        raise self._too_large("more")
        except TimeoutError:
            raise RefusedError(
                503, f"expected the whole body within {self._limits.seconds:g} s, got a part; send it faster."
            ) from None
        return b"".join(pieces)

    def _too_large(self, size: str) -> RefusedError:
        return RefusedError(
            413, f"the service expects a body of at most {self._limits.body:,} bytes, got {size}; send less."
        )


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives a body that was read, and then what comes after it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": Problems, "description": text}
    for status, text in {
        401: "The key is missing or wrong.",
        404: "There is no such model.",
        413: "The body is too large.",
        422: "The request, its trees or their number are not as expected.",
        429: "Too many requests wait; `Retry-After` says when to come again.",
        503: "The answer took too long, or the service stops.",
    }.items()
}


def _documented(summary: str, ask: type[BaseModel], answer: Any) -> dict[str, Any]:
    """Return the arguments of a path that the gate answers, and that FastAPI only describes."""
    schema = ask.model_json_schema()
    return {
        "summary": summary,
        "openapi_extra": {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
        "responses": {200: {"model": answer, "description": "The answer."}, **_REFUSALS},
    }


def create_app(
    models: Mapping[str, Served],
    limits: Limits | None = None,
    *,
    api_key: str | None = None,
    data: Mapping[str, Dataset] | None = None,
    meter: Meter | None = None,
) -> FastAPI:
    """Return the service of these models; with an ``api_key``, only those who know it get answers.

    ``data`` are the data sets that the page shows, by the names of models. Without a key, only requests to this machine's own
    names are answered.
    """
    bounds, counters = limits or Limits(), meter or Meter()
    counters.begin(counters.worker)
    batcher = Batcher(
        partial(_compute, bounds), queue=bounds.queue, seconds=bounds.seconds, most=200_000, watch=counters.batch
    )

    @asynccontextmanager
    async def life(app: FastAPI) -> Any:
        batcher.start()
        await batcher.run(_warm_up, models)
        yield
        batcher.stop()

    app = FastAPI(
        title="treefold",
        version=__version__,
        description="Answers of models about trees.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )
    for kind in (TreefoldError, ValidationError, RequestValidationError, HTTPException):
        app.add_exception_handler(
            kind, lambda request, problem: _answer_to(problem, f"{request.method} {request.url.path}")
        )

    async def answered(answer: Callable[..., Sequence[Any]], body: bytes, receive: Receive) -> bytes:
        ask = Ask.model_validate_json(body)
        served, texts = chosen(models, ask.model), ask.texts()
        if not 1 <= len(texts) <= bounds.trees:
            remedy = "send several requests" if texts else "send at least one"
            raise RefusedError(
                422, f"the request expects 1 to {bounds.trees:,} trees or pairs, got {len(texts):,}; {remedy}."
            )
        question = _Question(served, answer, ask, texts)
        found: bytes = await batcher.answer(question, len(body), partial(_has_left, receive))
        return found

    async def explained(body: bytes, receive: Receive) -> bytes:
        ask = AskWhy.model_validate_json(body)
        served, texts = chosen(models, ask.model), ask.texts()
        if not ask.is_one:
            raise RefusedError(422, "an explanation expects one tree or pair, got a list; send one at a time.")
        work = partial(_explained, served, ask, texts[0], bounds.explained_nodes)
        found: bytes = await batcher.run(work, has_left=partial(_has_left, receive))
        return found

    direct: dict[str, Direct] = {
        "/predict": partial(answered, Served.answers),
        "/embed": partial(answered, Served.states),
        "/explain": explained,
    }
    app.add_middleware(_Gate, limits=bounds, api_key=api_key, meter=counters, direct=direct)

    @app.post("/predict", **_documented("Predict classes and probabilities, or numbers", Ask, Prediction | Predictions))
    def predict() -> None:
        """Send `tree` or `trees`, or `left` and `right`, or `pairs`; answers are those of `treefold predict`."""

    @app.post("/embed", **_documented("The states of roots", Ask, States))
    def embed() -> None:
        """Send trees or pairs as to /predict."""

    @app.post("/explain", **_documented("The answers about all subtrees, and what matters most", AskWhy, Why))
    def explain() -> None:
        """Send one tree or pair."""

    @app.get("/models", summary="The models, their classes and formats")
    async def list_models() -> dict[str, Any]:
        """The first one answers requests that name no model."""
        return {"models": [_facts(served) for served in models.values()]}

    @app.get("/health", summary="Whether the service answers")
    async def health() -> dict[str, Any]:
        """The number of requests that wait, too."""
        return {"status": "ok", "version": __version__, "waiting": batcher.waiting}

    @app.get("/metrics", summary="Counters of all workers for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        """Requests, seconds, batches, waiting requests, memory."""
        return PlainTextResponse(counters.text(), media_type="text/plain; version=0.0.4")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_docs_page(app.openapi()))

    app.include_router(explorer.router(models, data or {}, batcher.run, most_nodes=bounds.explained_nodes))
    return app


_READING: Final = ("task", "from", "format", "options", "literals", "columns", "max_arity", "wide")


def _facts(served: Served) -> dict[str, Any]:
    """Return what clients should know about a model; ``made`` is how they should read their files."""
    made = {name: served.made[name] for name in _READING if name in served.made}
    if "from" in made:
        made["from"] = sorted({f"*{Path(name).suffix}" for name in made["from"]})  # the suffixes say enough
    return {
        "name": served.name,
        "note": served.note,
        "task": served.saved.settings.task,
        "pairs": served.saved.task.trees == 2,
        "classes": list(served.classes),
        "formats": list(served.formats),
        "parameters": sum(parameter.numel() for parameter in served.saved.model.parameters()),
        "state_size": served.saved.model.encoder.out_size,
        "made": made if made.get("task") == "convert" else {},
    }


def _docs_page(schema: Mapping[str, Any]) -> str:
    """Write OpenAPI's description as a page that needs nothing from outside."""
    parts = [f"<h1>{html.escape(schema['info']['title'])} {html.escape(schema['info']['version'])}</h1>"]
    parts.append("<p>The same as JSON: <a href='/openapi.json'>/openapi.json</a></p>")
    for path, methods in schema["paths"].items():
        for method, facts in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(facts.get('summary', ''))}. {html.escape(facts.get('description', ''))}</p>")
            details = {key: facts[key] for key in ("requestBody", "responses") if key in facts}
            shown = html.escape(json.dumps(details, indent=1))
            parts.append(f"<details><summary>request and answers</summary><pre>{shown}</pre></details>")
    shown = html.escape(json.dumps(schema.get("components", {}), indent=1))
    parts.append(f"<details><summary>parts</summary><pre>{shown}</pre></details>")
    style = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    return f"<!doctype html><html lang=en><meta charset=utf-8><title>treefold</title><style>{style}</style>{''.join(parts)}"
