"""Why a model answers as it does: what it believes of every subtree, and which subtrees the answer hangs on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, require_positive
from treefold.nn.encoder import Encoding, Memories
from treefold.nn.models import TreeModel
from treefold.training.examples import Examples, outputs_of
from treefold.training.saving import SavedModel
from treefold.trees.forest import Forest
from treefold.trees.tree import Label, Tree

# Axes:  n examples · N nodes · K classes or outputs
Subject = Tree | tuple[Tree, Tree]
"""What is explained: a tree, or the two trees of a pair. Nodes are numbered in post-order, of a pair the left tree's first."""

_MOST_NODES: Final = 1_000_000  # of all variants together, some seconds
_LEVEL: Final = 30  # a level of a deep and narrow tree takes as long as so many nodes of a bushy one


@final
@dataclass(frozen=True)
class Belief:
    """What the model would answer about one subtree; of a pair, with the whole other tree. Numbers have no probability."""

    node: int
    label: Label
    answer: str | float
    probability: float | None

    def __str__(self) -> str:
        if self.probability is None:
            return f"{self.answer:.4g}"
        return f"{self.answer} {self.probability:.2f}"


@final
@dataclass(frozen=True)
class Effect:
    """How much the probability of the answer falls when a subtree is replaced by ⊥; for numbers, how much the number falls."""

    node: int
    subtree: Tree
    fall: float


@final
@dataclass(frozen=True)
class Occlusion:
    """The subtrees on which an answer hangs, those that matter most first; ``tried`` of ``possible`` subtrees were left out."""

    answer: str | float
    probability: float | None
    effects: tuple[Effect, ...]
    tried: int
    possible: int

    def to_json(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return {
            **{name: value for name, value in asdict(self).items() if name != "effects"},
            "effects": [{"node": e.node, "subtree": str(e.subtree), "fall": e.fall} for e in self.effects],
        }


def probabilities(saved: SavedModel, forest: Forest) -> Tensor:
    """Return class probabilities for each tree or pair, (n, K), or each node, (N, K); for numbers, the numbers.

    Pairs are the trees 2e and 2e + 1, as in a `Dataset`.
    """
    examples = Examples(forest, np.zeros(0), saved.settings.task)
    return _normalised(saved, outputs_of(saved.model, examples, np.arange(len(examples))))


def beliefs(saved: SavedModel, subject: Subject) -> list[Belief]:
    """Return the model's belief at every node, in post-order: its head applied to the state of every subtree.

    Of a model that folds upwards that is its answer about the subtree alone. Of a pair, each subtree is compared with the
    whole other tree.
    """
    trees = _trees(saved, subject)
    with _answering(saved.model) as model:
        states = model.encoder(Forest(trees).batch()).nodes  # (N, C)
        if len(trees) == 2:
            left, right = torch.split(states, [tree.size for tree in trees])
            wholes = [left[-1:].expand_as(right), right[-1:].expand_as(left)]
            states = torch.cat(
                [left, wholes[0], wholes[1], right]
            )  # (2N, C): the left ones of the pairs, then the right
        rows = _normalised(saved, model.head(_as_roots(states)))
    labels = [node.label for tree in trees for node in tree.postorder()]
    return [
        Belief(node, label, *_answer(saved, row)) for node, (label, row) in enumerate(zip(labels, rows, strict=True))
    ]


def occlusion(saved: SavedModel, subject: Subject, top: int = 5, *, max_nodes: int = 200) -> Occlusion:
    r"""Replace every subtree but the root's by ⊥, one at a time, and see how much the probability of the answer falls.

    .. math:: \mathrm{fall}(v) = p(y \mid t) - p(y \mid t \text{ without } v), \qquad y = \arg\max_k p(k \mid t)

    The ``top`` greatest falls are returned. At most ``max_nodes`` subtrees are tried, fewer of very large trees: those nearest
    to the root, which hold the others. For ``task="node"``, the answer is the root's.
    """
    require_positive("occlusion", top=top, max_nodes=max_nodes)
    trees = _trees(saved, subject)
    cost = sum(tree.size + _LEVEL * tree.depth for tree in trees)
    forest = Forest(trees)
    roots = forest.offsets[1:] - 1
    order = np.argsort(forest.depths, kind="stable")  # (N,): the nearest to a root first
    order = order[~np.isin(order, roots)]
    chosen = np.sort(order[: min(max_nodes, max(_MOST_NODES // cost, 1))]).tolist()
    parts = [part for tree in trees for part in tree.postorder()]
    variants = [_without(trees, node) for node in chosen]
    rows = _of_examples(saved, [trees, *variants])
    answer, probability = _answer(saved, rows[0])
    column = int(rows[0].argmax())
    falls = (rows[0, column] - rows[1:, column]).tolist()
    effects = [Effect(node, parts[node], fall) for node, fall in zip(chosen, falls, strict=True)]
    effects.sort(key=lambda effect: -abs(effect.fall) if probability is None else -effect.fall)
    return Occlusion(answer, probability, tuple(effects[:top]), len(chosen), len(order))


def without(tree: Tree, node: int) -> Tree:
    """Return the tree with the subtree at a place of the post-order replaced by ⊥; only the way to the root is made anew.

    >>> tree = Tree.parse("(f (g a b) c)")
    >>> [str(without(tree, node)) for node in (1, 2, 3)]
    ['(f (g a _) c)', '(f _ c)', '(f (g a b) _)']
    """
    if not 0 <= node < tree.size - 1:
        raise ConfigurationError(
            f"expected a node below the root, from 0 to {tree.size - 2} in post-order, got {node}; the root has to stay."
        )
    way: list[tuple[Tree, int]] = []
    current: Tree | None = tree
    start = 0  # the place of the current subtree's first node
    while current is not None and node != start + current.size - 1:
        for slot, child in enumerate(current.children):
            if child is None:
                continue
            if node < start + child.size:
                way.append((current, slot))
                current = child
                break
            start += child.size
    current = None
    for parent, slot in reversed(way):
        current = Tree(parent.label, [*parent.children[:slot], current, *parent.children[slot + 1 :]])
    assert current is not None
    return current


def in_preorder(tree: Tree, notes: Sequence[str]) -> list[str]:
    """Turn notes in post-order into pre-order, in which `Tree.draw` takes them.

    >>> in_preorder(Tree.parse("(f (g a) b)"), ["a", "g", "b", "f"])
    ['f', 'g', 'a', 'b']
    """
    sizes = np.fromiter((node.size for node in tree.postorder()), np.int64, tree.size)
    # Before a node in pre-order: its ancestors, and what is left of it; in post-order: its descendants instead.
    places = np.arange(tree.size) - (sizes - 1) + Forest([tree]).depths
    result = [""] * tree.size
    for place, note in zip(places.tolist(), notes, strict=True):
        result[place] = note
    return result


@contextmanager
def _answering(model: TreeModel) -> Iterator[TreeModel]:
    """Keep a model from learning for a while."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        model.train(was_training)


def _as_roots(states: Tensor) -> Encoding:
    """Present states (N, C) to a head as those of N trees of one node, so that it answers about each."""
    batch = Forest(["node"]).batch(np.zeros(len(states), np.int64))
    return Encoding([Memories([states], np.arange(len(states)))], states.shape[1], batch)


def _normalised(saved: SavedModel, outputs: Tensor) -> Tensor:
    outputs = outputs.double()
    return outputs if saved.settings.task == "regression" else nn.functional.softmax(outputs, dim=1)


def _of_examples(saved: SavedModel, examples: Sequence[tuple[Tree, ...]]) -> Tensor:
    """Return the answers about whole examples, (n, K)."""
    forest = Forest(tree for trees in examples for tree in trees)
    rows = probabilities(saved, forest)
    return rows[torch.from_numpy(forest.offsets[1:] - 1)] if saved.settings.task == "node" else rows


def _answer(saved: SavedModel, row: Tensor) -> tuple[str | float, float | None]:
    if saved.settings.task == "regression":
        return float(row[0]), None
    column = int(row.argmax())
    return saved.classes[column], float(row[column])


def _without(trees: tuple[Tree, ...], node: int) -> tuple[Tree, ...]:
    if node < trees[0].size:
        return (without(trees[0], node), *trees[1:])
    return (trees[0], without(trees[1], node - trees[0].size))


def _trees(saved: SavedModel, subject: Subject) -> tuple[Tree, ...]:
    trees = (subject,) if isinstance(subject, Tree) else subject
    expected = 2 if saved.settings.task == "pair" else 1
    if len(trees) != expected:
        raise ConfigurationError(
            f"the model expects {'a pair of trees' if expected == 2 else 'one tree'}, got {len(trees)}; "
            f"give {'(left, right)' if expected == 2 else 'a Tree'}."
        )
    return trees
