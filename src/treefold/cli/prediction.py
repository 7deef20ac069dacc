"""Trees that come in, and what a model makes of them: the work of `treefold predict` and `treefold embed`."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from treefold.analysis.explaining import probabilities
from treefold.data.readers import READERS, format_of
from treefold.data.readers.stream import OnBad, Record, placed
from treefold.data.readers.tabular import Columns
from treefold.errors import ConfigurationError, ParseError, ReadError, TreefoldError, nearest, require_choice
from treefold.training.saving import SavedModel
from treefold.trees.forest import Forest
from treefold.trees.tree import Label, Tree
from treefold.trees.vocabulary import Vocabulary

Unknown = Literal["error", "absent"]
Trees = tuple[Tree, ...]
Answer = TypeVar("Answer")
STANDARD_INPUT: Final = "standard input"
_WINDOW: Final = 256  # records that are answered together
_WINDOW_NODES: Final = 50_000
_CHUNK: Final = 1 << 16
_COLUMNS: Final = Columns("tree", "left", "right", "label")


def windows(source: Path | None, form: str | None, on_bad: OnBad | None) -> Iterator[list[Record]]:
    """Read records and deal them out in windows: of a file, large ones; of a stream, what has come in so far."""
    if source is None or str(source) == "-":
        items = _arriving(form, on_bad)
    else:
        form = form or format_of(source)
        require_choice("--format", "the format", form, READERS)
        items = _of_file(source, form, on_bad)
    return gathered(items)


def gathered(items: Iterable[Record | None]) -> Iterator[list[Record]]:
    """Gather records into windows; None among them closes the window that is open.

    What comes before an error is dealt out before the error is raised.
    """
    window: list[Record] = []
    nodes = 0
    try:
        for item in items:
            if item is not None:
                window.append(item)
                nodes += sum(tree.size for tree in item.trees)
            if window and (item is None or len(window) >= _WINDOW or nodes >= _WINDOW_NODES):
                yield window
                window, nodes = [], 0
    except TreefoldError:
        if window:
            yield window
        raise
    if window:
        yield window


def answered(
    saved: SavedModel,
    records: Iterable[Record],
    compute: Callable[[list[Trees]], Sequence[Answer]],
    unknown: Unknown,
    on_bad: OnBad | None,
) -> Iterator[tuple[Record, Answer]]:
    """Compute something for all records of a window together; what is wrong with one is said with its place.

    The records before the first bad one are answered before its error is raised.
    """
    ready: list[tuple[Record, Trees]] = []
    stop: ReadError | None = None
    for record in records:
        try:
            ready.append((record, tuple(_known(saved, tree, unknown) for tree in record.trees)))
        except TreefoldError as problem:
            stop = ReadError(str(problem), source=record.source, line=record.line)
            if on_bad is None:
                break
            on_bad(stop)
            stop = None
    yield from _computed(ready, compute, on_bad)
    if stop is not None:
        raise stop


def answers(saved: SavedModel, examples: list[Trees]) -> list[dict[str, Any]]:
    """Return what `treefold predict` says of each example: the prediction, and probabilities where there are classes."""
    check_count(saved, examples)
    forest = Forest(tree for trees in examples for tree in trees)
    rows = probabilities(saved, forest)
    task, classes = saved.settings.task, saved.classes
    if task == "regression":
        return [{"prediction": row if len(row) > 1 else row[0]} for row in rows.tolist()]
    best, places = rows.max(1)
    names = [classes[place] for place in places.tolist()]
    if task != "node":
        rounded = [[round(number, 6) for number in row] for row in rows.tolist()]
        return [
            {"prediction": name, "probabilities": dict(zip(classes, row, strict=True))}
            for name, row in zip(names, rounded, strict=True)
        ]
    bounds = zip(forest.offsets[:-1].tolist(), forest.offsets[1:].tolist(), strict=True)
    chances = [round(number, 6) for number in best.tolist()]
    return [{"prediction": names[start:end], "probability": chances[start:end]} for start, end in bounds]


def root_states(saved: SavedModel, examples: list[Trees]) -> list[npt.NDArray[np.float32]]:
    """Return the states of the roots of each example's trees, (1 or 2, C) each."""
    with torch.no_grad():
        states = saved.model.encoder(Forest(tree for trees in examples for tree in trees).batch()).roots.numpy()
    return np.split(states, np.cumsum([len(trees) for trees in examples])[:-1])


def check_count(saved: SavedModel, examples: list[Trees]) -> None:
    """Raise where a record has not as many trees as the model judges together."""
    pairs = saved.settings.task == "pair"
    for trees in examples:
        if pairs and len(trees) != 2:
            raise ConfigurationError(
                'expected a pair, as the model judges pairs, got one tree; write {"left": "…", "right": "…"}, an object a line'
            )
        if not pairs and len(trees) != 1:
            raise ConfigurationError(
                'expected one tree, as the model judges single trees, got a pair; write {"tree": "…"}, an object a line'
            )


def _computed(
    ready: list[tuple[Record, Trees]], compute: Callable[[list[Trees]], Sequence[Answer]], on_bad: OnBad | None
) -> Iterator[tuple[Record, Answer]]:
    if not ready:
        return
    try:
        results = compute([trees for _, trees in ready])
    except TreefoldError as problem:
        if len(ready) > 1:  # find out whose fault it is
            for one in ready:
                yield from _computed([one], compute, on_bad)
            return
        record = ready[0][0]
        text = re.sub(r"^tree \d+ of the batch: ", "", str(problem))
        error = ReadError(text, source=record.source, line=record.line)
        if on_bad is None:
            raise error from None
        on_bad(error)
        return
    yield from zip((record for record, _ in ready), results, strict=True)


def _known(saved: SavedModel, tree: Tree, unknown: Unknown) -> Tree:
    """Return the tree as the model can take it: without the subtrees of labels that it does not know, if they may be absent."""
    vocabulary = saved.model.encoder.vocabulary
    strange = next((node.label for node in tree.preorder() if _is_strange(node.label, vocabulary)), None)
    if strange is None:
        return tree
    expected = f"one of the {len(vocabulary)} labels that the model knows" if len(vocabulary) else "a vector as label"
    name, hint = f"expected {expected}, got {strange!r}", nearest(str(strange), vocabulary)
    if unknown == "error":
        raise ConfigurationError(f"{name}{hint}; correct it, or leave such subtrees out with --unknown absent")
    done: list[Tree | None] = []
    for node in tree.postorder():  # as in Tree.map: the children of a node are the last that were done
        present = len(node.children) - node.children.count(None)
        mapped = iter(done[len(done) - present :])
        children = [None if child is None else next(mapped) for child in node.children]
        del done[len(done) - present :]
        done.append(None if _is_strange(node.label, vocabulary) else Tree(node.label, children))
    if done[0] is None:
        raise ConfigurationError(f"{name}{hint} at the root, which cannot be absent; correct it")
    return done[0]


def _is_strange(label: Label, vocabulary: Vocabulary) -> bool:
    return isinstance(label, str) and label not in vocabulary


def _of_file(source: Path, form: str, on_bad: OnBad | None) -> Iterator[Record | None]:
    waits = source.exists() and not source.is_file()  # a pipe: what comes next may take long
    for record in READERS[form](source, on_bad=on_bad):
        yield record
        if waits:
            yield None


def _arriving(form: str | None, on_bad: OnBad | None) -> Iterator[Record | None]:
    """Read standard input, a record a line; None says that nothing more has come in yet."""
    if form is not None and form not in ("sexpr", "jsonl"):
        raise ConfigurationError(
            f"--format expects 'sexpr' or 'jsonl' for standard input, got {form!r}; give the name of a file."
        )
    number = 0
    for lines in _line_groups():
        for data in lines:
            number += 1
            try:
                text = _decoded(data, number).strip()
                if text and form is None:
                    form = "jsonl" if text.startswith("{") else "sexpr"
                if not text or (form == "sexpr" and text.startswith(("#", ";"))):
                    continue
                record = _parsed(text, form or "sexpr", number)
            except ReadError as error:
                if on_bad is None:
                    raise
                on_bad(error)
            else:
                yield record
        yield None


def _line_groups() -> Iterator[list[bytes]]:
    """Yield the whole lines that have come in on standard input, each time that some have."""
    pieces: list[bytes] = []
    while chunk := sys.stdin.buffer.read1(_CHUNK):  # type: ignore[union-attr]
        if b"\n" not in chunk:
            pieces.append(chunk)
            continue
        first, *lines = chunk.split(b"\n")
        yield [b"".join([*pieces, first]), *lines[:-1]]
        pieces = [lines[-1]]
    if any(pieces):
        yield [b"".join(pieces)]


def _decoded(data: bytes, number: int) -> str:
    try:
        return data.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as problem:
        raise ReadError(
            f"expected UTF-8, got the byte 0x{data[problem.start]:02x}; convert the text",
            source=STANDARD_INPUT,
            line=number,
        ) from None


def _parsed(text: str, form: str, number: int) -> Record:
    if form == "sexpr":
        try:
            return Record((Tree.parse(text),), None, STANDARD_INPUT, number)
        except ParseError as problem:
            raise placed(problem, STANDARD_INPUT, number) from None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as problem:
        got = "one nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise ReadError(
            f"expected a JSON object, got {got}; write one object a line", source=STANDARD_INPUT, line=number
        ) from None
    if not isinstance(row, dict):
        raise ReadError(
            f"expected a JSON object, got {type(row).__name__}; write one object a line",
            source=STANDARD_INPUT,
            line=number,
        )
    return _COLUMNS.record(row, source=STANDARD_INPUT, line=number)
