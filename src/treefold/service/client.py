"""Uses a running service from Python; needs neither torch nor the packages of the service."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from http.client import HTTPException
from reprlib import repr as shortened
from typing import Any, Final, final
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from treefold.errors import ConfigurationError, ServiceError, TreefoldError
from treefold.files import parse_json
from treefold.trees.tree import Tree

Subject = Tree | str | Sequence[Tree | str]
"""A tree, or a tuple or list of two trees, a pair; texts are s-expressions, or in the ``format`` of the call."""

_TREES: Final = 256  # of a request
_CHARACTERS: Final = 200_000
_LARGEST: Final = 2**30  # bytes of an answer; another program may never stop to send
_LONGEST: Final = 1_000_000  # seconds; the system has a limit, too
_LONGEST_MESSAGE: Final = 2000  # characters


@final
class Client:
    """The models of a service that `treefold serve` runs, at an address.

    Trees are sent in requests of a few hundred. Wrong input raises `TreefoldError`, as if the model were here; a service that
    cannot be reached or is too busy raises `ServiceError`.

    >>> client = Client("http://localhost:8000", api_key="secret")
    >>> client
    Client('http://localhost:8000')
    >>> Client("localhost")
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: Client expects an address such as http://localhost:8000, got 'localhost'; give it whole.
    """

    def __init__(self, url: str, api_key: str | None = None, *, timeout: float = 60.0) -> None:
        if not _is_address(url):
            raise ConfigurationError(
                f"Client expects an address such as http://localhost:8000, got {shortened(url)}; give it whole."
            )
        if api_key is not None and not (isinstance(api_key, str) and api_key.isascii() and api_key.isprintable()):
            raise ConfigurationError("api_key expects printable ASCII characters only; check the key.")
        if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout <= _LONGEST):
            raise ConfigurationError(
                f"Client expects a timeout in seconds, above 0 and at most {_LONGEST}, got {shortened(timeout)}; correct it."
            )
        self.url, self._key, self._timeout = url.rstrip("/"), api_key, timeout

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def models(self) -> list[dict[str, Any]]:
        """Return the facts about each model: its name, task, classes, formats; the first answers if none is named."""
        found: list[dict[str, Any]] = self._ask("/models", "models")
        return found

    def answers(
        self,
        subjects: Iterable[Subject],
        *,
        model: str | None = None,
        format: str | None = None,  # noqa: A002
        unknown: str = "unk",
    ) -> list[dict[str, Any]]:
        """Return for each tree or pair what `treefold predict` prints: ``prediction``, and ``probabilities`` if there are any."""
        options = {"model": model, "format": format, "unknown": unknown}
        return [
            answer for body in _bodies(subjects) for answer in self._ask("/predict", "predictions", {**body, **options})
        ]

    def predict(self, subjects: Iterable[Subject], **options: Any) -> list[Any]:
        """Return the class or number of each tree or pair; lists in post-order if the model judges nodes."""
        return [answer["prediction"] for answer in self.answers(subjects, **options)]

    def predict_proba(self, subjects: Iterable[Subject], **options: Any) -> npt.NDArray[np.float64]:
        """Return the probabilities of the classes, in the order in which `models` lists them, (n, K)."""
        found = self.answers(subjects, **options)
        if found and "probabilities" not in found[0]:
            raise ConfigurationError(
                "predict_proba expects a model of classes of trees or pairs, got another one; use predict or answers."
            )
        return np.array([list(answer["probabilities"].values()) for answer in found])

    def explain(self, subject: Subject, *, occlude: bool = True, top: int = 5, **options: Any) -> dict[str, Any]:
        """Return the answers about all subtrees of one tree or pair, and the subtrees that matter most."""
        one = _texts(subject)
        body = {"tree": one[0]} if len(one) == 1 else {"left": one[0], "right": one[1]}
        found: dict[str, Any] = self._ask("/explain", None, {**body, "occlude": occlude, "top": top, **options})
        return found

    def embed(self, subjects: Iterable[Subject], **options: Any) -> npt.NDArray[np.float32]:
        """Return the root states, a row for each tree; of a pair, the left one first."""
        rows = [row for body in _bodies(subjects) for row in self._ask("/embed", "states", {**body, **options})]
        return np.array(rows, np.float32)

    def _ask(self, path: str, entry: str | None, body: dict[str, Any] | None = None) -> Any:
        """Send a request; return an entry of the answer, or all of it."""
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self._key}"} if self._key else {}),
        }
        try:
            data = None if body is None else json.dumps(body).encode()
        except (TypeError, ValueError, RecursionError) as problem:
            raise ConfigurationError(
                f"Client expects options that are text, numbers, True or False, got a different value ({problem}); correct it."
            ) from None
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                found = parse_json(_read(answer))
            if entry is None:
                if not isinstance(found, dict):
                    raise TypeError
                return found
            answers = found[entry]
            if not (isinstance(answers, list) and answers and all(_is_answer(entry, each) for each in answers)):
                raise TypeError
            return answers
        except urllib.error.HTTPError as problem:
            raise _error(self.url, problem) from None
        except (ValueError, LookupError, TypeError, HTTPException):
            raise ServiceError(
                f"{self.url}: expected an answer of `treefold serve`, got something else; check the address."
            ) from None
        except OSError as problem:
            reason = getattr(problem, "reason", None) or problem
            raise ServiceError(
                f"expected a service at {self.url}, got {str(reason) or type(problem).__name__}; start it with `treefold serve`."
            ) from None


def _error(url: str, problem: urllib.error.HTTPError) -> TreefoldError:
    """Turn an answer that is an error into one of ours; only those about the request itself are no fault of the service."""
    with problem:
        try:
            message = parse_json(_read(problem))["error"]["message"]
            if not isinstance(message, str) or not message.strip():
                raise TypeError
        except (OSError, ValueError, LookupError, TypeError, HTTPException):
            return ServiceError(
                f"{url}: expected an answer of `treefold serve`, got {problem.code} {problem.reason}; check the address."
            )
    if problem.code == 422:  # about the input: lines may show where it is wrong
        return ConfigurationError(message[:_LONGEST_MESSAGE])
    message = " ".join(message.split())[:_LONGEST_MESSAGE]
    return ConfigurationError(message) if problem.code in (404, 413) else ServiceError(f"{url}: {message}")


def _read(answer: Any) -> str:
    """Return the text of an answer; raise ValueError if it is cut off or too large."""
    content: bytes = answer.read(_LARGEST + 1)
    if answer.length or len(content) > _LARGEST:  # length: bytes that were announced and have not come
        raise ValueError
    return content.decode()


def _is_answer(entry: str, answer: Any) -> bool:
    """Say whether one of a list of answers has what we read from it; any program may run at the address."""
    if entry == "states":
        return isinstance(answer, list)
    if entry == "predictions":
        return isinstance(answer, dict) and "prediction" in answer
    return isinstance(answer, dict) and isinstance(answer.get("name"), str) and isinstance(answer.get("made"), dict)


def _is_address(url: Any) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and parts.port != 0
    except (ValueError, AttributeError):  # a wrong port, or no text
        return False


def _texts(subject: Subject) -> tuple[str, ...]:
    trees = tuple(subject) if isinstance(subject, (tuple, list)) else (subject,)
    if not 1 <= len(trees) <= 2 or not all(isinstance(tree, (Tree, str)) for tree in trees):
        raise ConfigurationError(f"Client expects a tree, or a pair of trees, got {subject!r:.80}; give Tree or text.")
    return tuple(map(str, trees))


def _bodies(subjects: Iterable[Subject]) -> Iterator[dict[str, Any]]:
    """Yield the bodies of requests, each of a bounded number of trees or pairs."""
    if isinstance(subjects, (Tree, str)):
        raise ConfigurationError("Client expects a list of trees, got a single one; write [tree].")
    if not isinstance(subjects, Iterable):
        raise ConfigurationError(f"Client expects a list of trees, got {shortened(subjects)}; write [tree].")
    part: list[tuple[str, ...]] = []
    size = 0
    for texts in map(_texts, subjects):
        length = sum(map(len, texts))
        if part and (len(part) == _TREES or size + length > _CHARACTERS or len(texts) != len(part[0])):
            yield _body(part)
            part, size = [], 0
        part.append(texts)
        size += length
    if part:
        yield _body(part)


def _body(part: list[tuple[str, ...]]) -> dict[str, Any]:
    return {"trees": [text for (text,) in part]} if len(part[0]) == 1 else {"pairs": part}
