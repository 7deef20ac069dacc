"""The explorer: one page, and what only the page asks for: drawings, examples of the data set, random trees.

The page is the three files of the folder `page`; they need nothing from outside. Drawings are those of `Explanation.to_svg`.
"""

import asyncio
import functools
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from itertools import islice
from random import Random
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from treefold.analysis.evaluation import split_of
from treefold.analysis.explaining import Explanation, path_to, rebuilt
from treefold.analysis.prediction import Trees
from treefold.data.dataset import Dataset
from treefold.data.generators import listops, lrt
from treefold.errors import ConfigurationError, TreeError
from treefold.service.models import FORMATS, SEXPR, Served, chosen, nodes_of
from treefold.trees.drawing import label_text, shade
from treefold.trees.forest import Forest
from treefold.trees.tree import Label, Tree

Run = Callable[..., Awaitable[Any]]
"""``await run(function, *arguments)`` calls a function in the thread that computes."""

_DRAWN: Final = 200  # nodes, unless the user unfolds more
_UNFOLDED: Final = 60  # more nodes, when one is unfolded
_LISTED: Final = 3_000  # of larger trees, only the nodes that are drawn are described
_SHOWN_CLASSES: Final = 10  # in the distribution at a node
_KNOWN_LABELS: Final = 1_000  # that the page suggests
_TRIED: Final = 200  # subtrees whose effect is shown
_KEPT: Final = 16  # explanations, so that folding is fast
_JUDGED: Final = 2_000  # examples of a split
_JUDGED_NODES: Final = 500_000
_TOGETHER: Final = 128  # examples, so that other requests do not wait long
_FOUND: Final = 50  # examples in an answer
_LONG: Final = 400  # nodes; the texts of larger examples are sent one at a time
_LOOKED_AT: Final = 60  # nodes of a random tree, at most
_TYPES: Final = {"index.html": "text/html", "app.js": "text/javascript", "style.css": "text/css"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_NODE: Final = re.compile(r'<g class="node[ a-z]*" data-node="(\d+)"')


class Edit(BaseModel):
    """A change of one node: another label, its removal, or its exchange with the next sibling."""

    model_config = ConfigDict(extra="forbid")
    node: int
    do: Literal["label", "delete", "swap"]
    label: str = ""
    model: str | None = Field(default=None, description="The model in whose drawing the node has this number.")


class Picture(BaseModel):
    """What the page wants to see."""

    model_config = ConfigDict(extra="forbid")
    trees: list[str] = Field(min_length=1, max_length=2)
    format: str = "sexpr"
    models: list[str] = Field(min_length=1, max_length=16)
    layer: Literal["answers", "effects"] = "answers"
    folded: list[int] = []
    unfolded: list[int] = []
    unfold: int | None = Field(default=None, description="A node of which some more levels are drawn.")
    edit: Edit | None = None
    focus: int | None = Field(default=None, description="A node that is drawn, also if it is far from the root.")


def router(
    models: Mapping[str, Served], data: Mapping[str, Dataset], run: Run, *, most_nodes: int = 10_000
) -> APIRouter:
    """Return the routes of the explorer.

    ``data`` has the data sets of some of the models, by the names of the models. Trees of more than ``most_nodes`` are refused.
    """
    explorer = _Explorer(models, data, most_nodes)
    routes = APIRouter(include_in_schema=False)

    def add_file(path: str, name: str) -> None:
        content = (files("treefold.service") / "page" / name).read_bytes()
        headers = {**_HEADERS, "Content-Type": f"{_TYPES[name]}; charset=utf-8"}
        routes.add_api_route(path, lambda: Response(content, headers=headers), methods=["GET", "HEAD"])

    add_file("/", "index.html")
    add_file("/page/app.js", "app.js")
    add_file("/page/style.css", "style.css")

    @routes.get("/page/facts")
    async def facts() -> Response:
        return _json(explorer.facts)

    @routes.post("/page/draw")
    async def draw(picture: Picture) -> Response:
        return _json(await run(explorer.draw, picture))

    @routes.get("/page/random")
    async def random(model: str, seed: int = 0) -> Response:
        return _json(await run(explorer.random, model, seed))

    @routes.get("/page/examples")
    async def examples(
        model: str,
        split: str | None = None,
        answer: Literal["any", "right", "wrong"] = "any",
        target: str | None = None,
        min_size: int = 0,
        max_size: int | None = None,
        min_depth: int = 0,
        max_depth: int | None = None,
        number: int | None = None,
    ) -> Response:
        if number is not None:
            return _json(explorer.example(model, number))
        judged = await explorer.judged(model, split, run)
        sizes, depths = (min_size, max_size), (min_depth, max_depth)
        return _json(explorer.found(model, judged, answer, target, sizes, depths))

    return routes


class _Example(NamedTuple):
    """An example of a data set and the model's answer. ``error`` is 0 for right answers, and larger for wrong ones."""

    number: int
    size: int
    depth: int
    target: str | None
    prediction: str
    probability: float | None
    error: float | None


class _Judged(NamedTuple):
    """The judged examples of a split that has ``of`` examples."""

    split: str
    of: int
    examples: list[_Example]


@final
class _Explorer:
    """Answers what the page asks; keeps the last explanations and the answers for examples."""

    def __init__(self, models: Mapping[str, Served], data: Mapping[str, Dataset], most_nodes: int) -> None:
        self.models, self.data, self.most_nodes = models, data, most_nodes
        self._judged: dict[tuple[str, str], _Judged] = {}
        self._judging = asyncio.Lock()
        self._explained = functools.lru_cache(_KEPT)(self._explain)

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What the page must know of the models."""
        return {
            "models": [self._facts(name, served) for name, served in self.models.items()],
            "formats": FORMATS,
        }

    def _facts(self, name: str, served: Served) -> dict[str, Any]:
        saved, data = served.saved, self.data.get(name)
        classes = list(map(str, served.classes))[:_KNOWN_LABELS]
        return {
            "name": name,
            "note": served.note,
            "task": saved.settings.task,
            "trees": saved.task.trees,
            "classes": classes,
            "colours": [shade(place) for place in range(len(classes))],
            "labels": list(islice(saved.model.encoder.vocabulary, _KNOWN_LABELS)),
            "splits": None if data is None else {**{k: len(v) for k, v in data.splits.items()}, "all": len(data)},
            "targets": None if data is None or not saved.task.has_classes else list(data.classes)[:_KNOWN_LABELS],
        }

    # Drawings

    def draw(self, picture: Picture) -> dict[str, Any]:
        """Edit the trees, if that is asked for, and draw the answers of all models about them."""
        served = {name: chosen(self.models, name) for name in picture.models}
        texts, form, focus = picture.trees, picture.format, picture.focus
        folded, unfolded = set(picture.folded), set(picture.unfolded)
        if picture.edit is not None:
            editor = chosen(self.models, picture.edit.model or picture.models[0])
            trees, moved, focus = edited(self._read(editor, texts, form), picture.edit)
            texts, form = [str(tree) for tree in trees], SEXPR
            folded, unfolded = (
                {new for node in nodes if (new := moved(node)) is not None} for nodes in (folded, unfolded)
            )
        read = {name: self._read(each, texts, form) for name, each in served.items()}
        first = next(iter(read.values()))
        same = all(trees == first for trees in read.values())
        if picture.unfold is not None:
            folded -= {picture.unfold}
            unfolded |= _next_levels(first, picture.unfold, folded)
        if focus is not None and 0 <= focus < sum(tree.size for tree in first):
            above = set(_ancestors(first, focus))
            folded, unfolded = folded - above, unfolded | above
        else:
            focus = None
        found = {name: self._explained(name, trees, picture.layer == "effects") for name, trees in read.items()}
        drawings = []
        for name, explanation in found.items():
            svg = explanation.to_svg(
                layer=picture.layer, folded=folded, unfolded=unfolded, max_nodes=_DRAWN, dark=False
            )
            drawings.append(
                {
                    "model": name,
                    "svg": svg,
                    "headline": explanation.headline,
                    "prediction": explanation.answer,
                    "note": explanation.limit,
                    "size": len(explanation.beliefs),
                    "nodes": _nodes(explanation, svg),
                }
            )
        has_classes = all(each.saved.task.has_classes for each in served.values())
        return {
            "trees": [str(tree) for tree in first],
            "drawings": drawings,
            "differs": differing(list(found.values())) if same and has_classes else [],
            "unknown": sorted({label_text(label) for explanation in found.values() for label in explanation.unknown}),
            "note": "" if same else "The models read this text as different trees, so that nodes are not compared.",
            "folded": sorted(folded),
            "unfolded": sorted(unfolded),
            "focus": focus,
        }

    def _read(self, served: Served, texts: Sequence[str], form: str) -> Trees:
        trees = tuple(tree for text in texts for tree in served.read(text, form))
        if (size := sum(tree.size for tree in trees)) > self.most_nodes:
            raise TreeError(
                f"a drawing expects at most {self.most_nodes:,} nodes, got {size:,}; draw a part of the tree."
            )
        return trees

    def _explain(self, name: str, trees: Trees, occlude: bool) -> Explanation:
        return self.models[name].explain(trees, occlude=occlude, top=_TRIED)

    # Examples

    async def judged(self, name: str, split: str | None, run: Run) -> _Judged:
        """Compute the answers for the examples of a split, or for an even choice of them; once for each split."""
        data = self._data(name)
        split, numbers = split_of(data, split)
        async with self._judging:
            if (name, split) not in self._judged:
                even = numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), _JUDGED)).astype(np.int64)]
                sizes = np.array([data.forest.sizes[data.trees_of([n])].sum() for n in even.tolist()], np.int64)
                even = even[: max(int(np.searchsorted(np.cumsum(sizes), _JUDGED_NODES, "right")), 1)]
                found: list[_Example] = []
                for start in range(0, len(even), _TOGETHER):
                    found += await run(self._judge, name, even[start : start + _TOGETHER].tolist())
                self._judged[name, split] = _Judged(split, len(numbers), found)
            return self._judged[name, split]

    def _judge(self, name: str, numbers: list[int]) -> list[_Example]:
        served, data = chosen(self.models, name), self._data(name)
        examples = [_trees_of(data, number) for number in numbers]
        found = []
        for number, trees, answer in zip(numbers, examples, served.answers(examples), strict=True):
            target = data.classes[data.targets[number]] if data.targets[number] >= 0 else None
            prediction, probability, error = answer["prediction"], None, None
            if "probabilities" in answer:
                probability = answer["probabilities"][prediction]
            elif "probability" in answer:  # of all nodes; the last is the root
                prediction, probability = answer["prediction"][-1], answer["probability"][-1]
            if "probability" in answer and data.node_targets is not None:
                start = int(data.forest.offsets[number])
                codes = data.node_targets[start : start + len(answer["prediction"])].tolist()
                known = [
                    (data.classes[code], own)
                    for code, own in zip(codes, answer["prediction"], strict=True)
                    if code >= 0
                ]
                error = sum(truth != own for truth, own in known) / len(known) if known else None
            elif target is not None and served.saved.task.has_classes:
                error = float(str(prediction) != target)
            elif target is not None and isinstance(prediction, float):
                error = abs(prediction - float(target))
            written = f"{prediction:.4g}" if isinstance(prediction, float) else str(prediction)
            size, depth = sum(tree.size for tree in trees), max(tree.depth for tree in trees)
            found.append(_Example(number, size, depth, target, written, probability, error))
        return found

    def found(
        self,
        name: str,
        judged: _Judged,
        answer: str,
        target: str | None,
        sizes: tuple[int, int | None],
        depths: tuple[int, int | None],
    ) -> dict[str, Any]:
        """Return the examples that pass the filters; of numbers, the least or the greatest errors first."""
        has_classes = chosen(self.models, name).saved.task.has_classes
        found = [
            example
            for example in judged.examples
            if (not target or example.target == target)
            and sizes[0] <= example.size <= (sizes[1] if sizes[1] is not None else example.size)
            and depths[0] <= example.depth <= (depths[1] if depths[1] is not None else example.depth)
            and (
                answer == "any"
                or (example.error is not None and not has_classes)
                or _is_right(example) == (answer == "right")
            )
        ]
        if not has_classes and answer != "any":
            found = [example for example in found if example.error is not None]
            found.sort(key=lambda example: example.error or 0.0, reverse=answer == "wrong")
        return {
            "split": judged.split,
            "of": judged.of,
            "judged": len(judged.examples),
            "right": sum(bool(_is_right(example)) for example in judged.examples) if has_classes else None,
            "found": len(found),
            "examples": [self._described(name, example, has_classes) for example in found[:_FOUND]],
        }

    def _described(self, name: str, example: _Example, has_classes: bool) -> dict[str, Any]:
        texts = self.example(name, example.number)["trees"] if example.size <= _LONG else None
        right = _is_right(example) if has_classes else None
        return {**example._asdict(), "right": right, "trees": texts}

    def example(self, name: str, number: int) -> dict[str, Any]:
        """Return the trees of an example as texts."""
        data = self._data(name)
        if not 0 <= number < len(data):
            raise ConfigurationError(
                f"expected the number of an example from 0 to {len(data) - 1}, got {number}; choose one of these."
            )
        return {"number": number, "trees": [str(tree) for tree in _trees_of(data, number)]}

    def _data(self, name: str) -> Dataset:
        chosen(self.models, name)
        if name not in self.data:
            raise ConfigurationError(
                f"examples expect a data set for the model {name!r}, got none; start the service with --data DATA."
            )
        return self.data[name]

    # Random trees

    def random(self, name: str, seed: int) -> dict[str, Any]:
        """Return a random tree or pair: from the generator of the run's data, from its data set, or from its labels."""
        served, random = chosen(self.models, name), Random(seed)
        made, count = served.made, served.saved.task.trees
        labels = served.saved.labels
        trees: Trees
        if made.get("task") == "listops" and count == 1:
            trees, source = (_listops_tree(made, seed),), "the generator of ListOps"
        elif made.get("task") == "lrt" and count == 2:
            pair = max(lrt.generate(8, seed), key=lambda pair: pair.left.size + pair.right.size)
            trees, source = (pair.left, pair.right), "the generator of LRT"
        elif name in self.data:
            trees, source = _trees_of(self.data[name], random.randrange(len(self.data[name]))), "the data set"
        elif labels.names or labels.operators:
            arity = max(served.saved.settings.model.arity or 2, 1)
            trees = tuple(random_tree(random, labels.operators, labels.names, arity) for _ in range(count))
            source = "the labels of the model"
        else:
            raise ConfigurationError(
                f"random trees expect a model with labels or a data set, got {name!r} without; "
                f"start the service with --data DATA, or type a tree."
            )
        return {"trees": [str(tree) for tree in trees], "from": source, "seed": seed}


def edited(trees: Trees, edit: Edit) -> tuple[Trees, Callable[[int], int | None], int]:
    """Change one node; return the trees, the new number of each node (None if it is gone), and that of the changed node.

    After a node is deleted, its parent counts as the changed node.

    >>> trees, moved, node = edited((Tree.parse("(f (g a b) c)"),), Edit(node=2, do="delete"))
    >>> str(trees[0]), [moved(old) for old in range(5)], node
    ('(f c)', [None, None, None, 0, 1], 1)
    """
    if not 0 <= edit.node < sum(tree.size for tree in trees):
        raise TreeError(f"an edit expects the number of a node of the tree, got {edit.node}; draw the tree again.")
    place, first = 0, 0  # of the tree that has the node, and of its first node
    while edit.node >= first + trees[place].size:
        first += trees[place].size
        place += 1
    path, part = path_to(trees[place], edit.node - first)
    start, end = edit.node - part.size + 1, edit.node  # the first and the last node of the subtree
    if edit.do == "label":
        changed = rebuilt(path, Tree(_as_label(edit.label, part.label), part.children))
        return _with(trees, place, changed), lambda node: node, edit.node
    if not path:
        raise TreeError(f"{edit.do!r} expects a node below the root, got the root; type another tree.")
    parent, slot = path[-1]
    children = list(parent.children)
    if edit.do == "delete":
        changed = rebuilt(path[:-1], Tree(parent.label, [*children[:slot], *children[slot + 1 :]]))
        above = end + sum(child.size for child in children[slot + 1 :] if child is not None) + 1  # the parent's number
        return (
            _with(trees, place, changed),
            lambda node: node if node < start else None if node <= end else node - part.size,
            above - part.size,
        )
    other = next((each for each in range(slot + 1, len(children)) if children[each] is not None), None)
    if other is None:
        raise TreeError("'swap' expects a node with a sibling to its right, got the last one; swap its left sibling.")
    sibling = children[other]
    assert sibling is not None
    size = sibling.size
    children[slot], children[other] = sibling, part
    changed = rebuilt(path[:-1], Tree(parent.label, children))

    def moved(node: int) -> int:
        return node + size if start <= node <= end else node - part.size if end < node <= end + size else node

    return _with(trees, place, changed), moved, moved(edit.node)


def differing(explanations: Sequence[Explanation]) -> list[int]:
    """Return the nodes at which models disagree although they agree about all children: there, they begin to disagree."""
    answers = [[str(belief.answer) for belief in explanation.beliefs] for explanation in explanations]
    disagree = [len(set(row)) > 1 for row in zip(*answers, strict=True)]
    begins = list(disagree)
    for node, parent in enumerate(Forest(explanations[0].trees).parent_rows.tolist()):
        if parent >= 0 and disagree[node]:
            begins[parent] = False
    return [node for node, begin in enumerate(begins) if begin]


def random_tree(random: Random, operators: Sequence[str], names: Sequence[str], arity: int) -> Tree:
    """Draw a tree of at most some dozen nodes: operators, or names if there are none, above names.

    >>> print(random_tree(Random(0), ["and", "or"], ["a", "b"], 2))
    (or (or (and b (and (or b a) (and b a))) b) (or (and b a) b))
    """
    inner, leaves = operators or names, names or operators
    parents, labels, waiting = [-1], [random.choice(inner)], [(0, 0)]
    while waiting:
        node, depth = waiting.pop()
        for _ in range(random.randint(min(2, arity), min(arity, 4))):
            parents.append(node)
            is_inner = depth < 4 and len(labels) < 24 and random.random() < 0.45
            labels.append(random.choice(inner if is_inner else leaves))
            if is_inner:
                waiting.append((len(labels) - 1, depth + 1))
    return Tree.from_parents(labels, parents)


def _json(content: Any) -> Response:
    return Response(json.dumps(content), media_type="application/json", headers={"Cache-Control": "no-store"})


def _next_levels(trees: Trees, node: int, folded: set[int]) -> set[int]:
    """Return a node and the nodes below it, level by level, that must be unfolded to see some dozens more."""
    parents = Forest(trees).parent_rows
    found, seen, waiting = set(), 0, deque([node])
    while waiting and seen < _UNFOLDED:
        found.add(top := waiting.popleft())
        children = np.flatnonzero(parents == top).tolist()
        seen += len(children)
        waiting.extend(child for child in children if child not in folded)
    return found


def _ancestors(trees: Trees, node: int) -> Iterator[int]:
    parents = Forest(trees).parent_rows.tolist()
    while (node := parents[node]) >= 0:
        yield node


def _nodes(explanation: Explanation, svg: str) -> list[dict[str, Any]]:
    """Describe the nodes, as `/explain` does, with their most probable classes; of a large tree those that are drawn."""
    rows = nodes_of(explanation)
    if len(rows) > _LISTED:
        rows = [rows[number] for number in sorted(map(int, _NODE.findall(svg)))]
    for row in rows:
        if "probabilities" in row:
            least = sorted(row["probabilities"].values(), reverse=True)[:_SHOWN_CLASSES][-1]
            best = ((name, chance) for name, chance in row["probabilities"].items() if chance >= least)
            row["probabilities"] = dict(islice(best, _SHOWN_CLASSES))
    return rows


def _is_right(example: _Example) -> bool | None:
    return None if example.error is None else example.error == 0


def _trees_of(data: Dataset, number: int) -> Trees:
    return tuple(data.forest[int(tree)] for tree in data.trees_of([number]))


def _listops_tree(made: Mapping[str, Any], seed: int) -> Tree:
    """Return the first generated tree of a good size for looking at; most are single digits."""
    given = made.get("settings", {})
    settings = listops.ListOpsSettings(**{**given, "max_nodes": min(given.get("max_nodes") or _LOOKED_AT, _LOOKED_AT)})
    largest = Tree("0")
    with suppress(ConfigurationError):  # there are no more trees
        for tree in listops.generate(200, seed, settings):
            largest = max(largest, tree, key=lambda each: each.size)
            if tree.size >= _LOOKED_AT // 5:
                return tree
    return largest


def _with(trees: Trees, place: int, tree: Tree) -> Trees:
    return (*trees[:place], tree, *trees[place + 1 :])


def _as_label(text: str, before: Label) -> Label:
    """Return a label as it was typed; a vector if the one before was a vector."""
    return text if isinstance(before, str) else Tree.parse(text).label
