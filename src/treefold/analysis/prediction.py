"""The answers of a saved model for records of trees; an error in one record is reported with its place."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from treefold.analysis.explaining import probabilities
from treefold.data.readers.stream import OnBad, Record
from treefold.errors import ConfigurationError, ReadError, TreefoldError, nearest
from treefold.training.saving import SavedModel
from treefold.trees.forest import Forest
from treefold.trees.tree import Label, Tree
from treefold.trees.vocabulary import Vocabulary

Unknown = Literal["error", "absent"]
Trees = tuple[Tree, ...]
Answer = TypeVar("Answer")


def answered(
    saved: SavedModel,
    records: Iterable[Record],
    compute: Callable[[list[Trees]], Sequence[Answer]],
    unknown: Unknown,
    on_bad: OnBad | None,
) -> Iterator[tuple[Record, Answer]]:
    """Compute the answers for several records together, and yield each record with its answer.

    A bad record is passed to ``on_bad``. Without ``on_bad`` its error is raised, after the records before it were yielded.
    """
    ready: list[tuple[Record, Trees]] = []
    stop: ReadError | None = None
    for record in records:
        try:
            ready.append((record, tuple(_known(saved, tree, unknown) for tree in record.trees)))
        except TreefoldError as problem:
            error = ReadError(str(problem), source=record.source, line=record.line)
            if on_bad is None:
                stop = error
                break
            on_bad(error)
    yield from _computed(ready, compute, on_bad)
    if stop is not None:
        raise stop


def answers(saved: SavedModel, examples: list[Trees]) -> list[dict[str, Any]]:
    """Return for each example the prediction and, for classes, the probabilities; lists in post-order for nodes."""
    require_task_fits(saved, examples)
    forest = Forest(tree for trees in examples for tree in trees)
    rows = probabilities(saved, forest)
    task, classes = saved.task, saved.classes
    if not task.has_classes:
        return [{"prediction": row if len(row) > 1 else row[0]} for row in rows.tolist()]
    best, codes = rows.max(1)
    names = [classes[code] for code in codes.tolist()]
    if not task.per_node:
        rounded = [[round(number, 6) for number in row] for row in rows.tolist()]
        return [
            {"prediction": name, "probabilities": dict(zip(classes, row, strict=True))}
            for name, row in zip(names, rounded, strict=True)
        ]
    bounds = zip(forest.offsets[:-1].tolist(), forest.offsets[1:].tolist(), strict=True)
    chances = [round(number, 6) for number in best.tolist()]
    return [{"prediction": names[start:end], "probability": chances[start:end]} for start, end in bounds]


def root_states(saved: SavedModel, examples: list[Trees]) -> list[npt.NDArray[np.float32]]:
    """Return the root states of each example's trees, (1 or 2, C) each."""
    with torch.no_grad():
        states = saved.model.encoder(Forest(tree for trees in examples for tree in trees).batch()).roots.numpy()
    return np.split(states, np.cumsum([len(trees) for trees in examples])[:-1])


def require_task_fits(saved: SavedModel, examples: list[Trees]) -> None:
    """Raise unless the examples are pairs for a model of pairs, and single trees for other models."""
    pairs = saved.task.trees == 2
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
        if len(ready) > 1:  # one by one, to find the bad record
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
    """Return the tree; with ``unknown="absent"``, without the subtrees whose root label the model does not know."""
    vocabulary = saved.model.encoder.vocabulary
    label = next((node.label for node in tree.preorder() if _is_unknown(node.label, vocabulary)), None)
    if label is None:
        return tree
    expected = f"one of the {len(vocabulary)} labels that the model knows" if len(vocabulary) else "a vector as label"
    problem = f"expected {expected}, got {label!r}{nearest(str(label), vocabulary)}"
    if unknown == "error":
        raise ConfigurationError(f"{problem}; correct it, or leave such subtrees out with --unknown absent")
    done: list[Tree | None] = []
    for node in tree.postorder():  # as in Tree.map: the children of a node are the last that were done
        present = len(node.children) - node.children.count(None)
        mapped = iter(done[len(done) - present :])
        children = [None if child is None else next(mapped) for child in node.children]
        del done[len(done) - present :]
        done.append(None if _is_unknown(node.label, vocabulary) else Tree(node.label, children))
    if done[0] is None:
        raise ConfigurationError(f"{problem} at the root, which cannot be absent; correct it")
    return done[0]


def _is_unknown(label: Label, vocabulary: Vocabulary) -> bool:
    return isinstance(label, str) and label not in vocabulary
