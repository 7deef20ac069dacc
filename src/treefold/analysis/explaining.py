"""Why a model answers as it does: what it believes of every subtree, and which subtrees matter most for the answer."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from treefold.errors import ConfigurationError, require_positive
from treefold.nn.model import TreeModel
from treefold.training.examples import Examples, evaluating, outputs_of
from treefold.training.saving import SavedModel
from treefold.trees.forest import Forest
from treefold.trees.tree import Label, Tree

# Axes:  n examples · N nodes · K classes or outputs
Subject = Tree | tuple[Tree, Tree]
"""A tree, or the two trees of a pair. Nodes are numbered in post-order, in a pair those of the left tree first."""

_MOST_NODES: Final = 1_000_000  # of all variants together: some seconds
_LEVEL: Final = 30  # a level of a narrow tree takes as long as this many nodes of a bushy one


@final
@dataclass(frozen=True)
class Belief:
    """The model's answer about one subtree; in a pair, compared with the whole other tree. Numbers have no probability.

    ``share`` is what the node itself adds to the score of the whole tree's answer, if the model reads all nodes (`shares`).
    """

    node: int
    label: Label
    answer: str | float
    probability: float | None
    share: float | None = None

    def __str__(self) -> str:
        answer = f"{self.answer:.4g}" if self.probability is None else f"{self.answer} {self.probability:.2f}"
        return answer if self.share is None else f"{answer} ({self.share:+.2f})"


@final
@dataclass(frozen=True)
class Effect:
    """How much the probability of the answer (or the predicted number) falls if a subtree is replaced by ⊥."""

    node: int
    subtree: Tree
    fall: float


@final
@dataclass(frozen=True)
class Occlusion:
    """The subtrees that matter most for an answer, greatest effect first; ``tried`` of ``possible`` subtrees were tried.

    ``features`` are the labels and pairs of labels that speak most for the answer in the linear part, if the model has one, with
    what each adds to the score.
    """

    answer: str | float
    probability: float | None
    effects: tuple[Effect, ...]
    tried: int
    possible: int
    features: tuple[tuple[str, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a dict for JSON."""
        return {
            **{name: value for name, value in asdict(self).items() if name not in ("effects", "features")},
            "features": [list(feature) for feature in self.features],
            "effects": [{"node": e.node, "subtree": str(e.subtree), "fall": e.fall} for e in self.effects],
        }


def probabilities(saved: SavedModel, forest: Forest) -> Tensor:
    """Return class probabilities, or predicted numbers, for each tree or pair, (n, K), or each node, (N, K).

    Numbers have the units of the data. Pair e has the trees 2e and 2e + 1, as in a `Dataset`.
    """
    examples = Examples(forest, np.zeros(0), saved.task)
    return _probabilities(saved, outputs_of(saved.model, examples, np.arange(len(examples))))


def beliefs(saved: SavedModel, subject: Subject) -> list[Belief]:
    """Return the model's belief at every node, in post-order: its head applied to the state of every subtree.

    If the model folds upwards, this is its answer about the subtree alone. In a pair, each subtree is compared with the
    whole other tree.
    """
    trees, model = _trees(saved, subject), saved.model
    own: list[float] | list[None] = [None] * sum(tree.size for tree in trees)
    if len(trees) == 1 and not saved.task.per_node and not _is_subtree_state(model):
        rows, own = _of_subtrees(saved, trees[0]), shares(saved, trees[0])
    else:
        with evaluating(model):
            states = model.encoder(Forest(trees).batch()).nodes  # (N, C)
            outputs = model.head(saved.task.subtree_states(states, [tree.size for tree in trees]))
            rows = _probabilities(saved, outputs)
    labels = [node.label for tree in trees for node in tree.postorder()]
    return [
        Belief(node, label, *_answer(saved, row), share)
        for node, (label, row, share) in enumerate(zip(labels, rows, own, strict=True))
    ]


def shares(saved: SavedModel, tree: Tree) -> list[float]:
    r"""Return what each node adds to the score of the answer about a tree, in post-order: gradient times vector.

    .. math:: \mathrm{share}(v) = z_v \cdot \partial s_y / \partial z_v, \qquad y = \arg\max_k s_k

    z_v is the vector of the node that the readout pools. A root readout gives everything to the root.
    """
    model, (whole,) = saved.model, _trees(saved, tree)
    with evaluating(model):
        encoding = model.encoder(Forest([whole]).batch())
        with torch.enable_grad():
            nodes = model.readout.node_vectors(encoding).detach().requires_grad_()
            scores = model.head(model.readout.pool(nodes, encoding.batch))[0]
            (slopes,) = torch.autograd.grad(scores[int(scores.argmax())], nodes)
    return [float(share) for share in (nodes.detach() * slopes).sum(1)]


def _is_subtree_state(model: TreeModel) -> bool:
    """Say whether the state of a node is that of its subtree's root, which the head reads."""
    return model.readout.is_root and not model.encoder.siblings and model.wide is None


def _of_subtrees(saved: SavedModel, tree: Tree) -> Tensor:
    """Return the answers about all subtrees as trees of their own, (N, K)."""
    parts = list(tree.postorder())
    nodes = sum(part.size for part in parts)
    if nodes > _MOST_NODES:
        raise ConfigurationError(
            f"beliefs at all nodes expect subtrees of at most {_MOST_NODES:,} nodes together, got {nodes:,}; "
            f"explain a smaller tree, or use occlusion."
        )
    return probabilities(saved, Forest(parts))


def occlusion(saved: SavedModel, subject: Subject, top: int = 5, *, max_nodes: int = 200) -> Occlusion:
    r"""Replace every subtree below the root by ⊥, one at a time, and measure how much the probability of the answer falls.

    .. math:: \mathrm{fall}(v) = p(y \mid t) - p(y \mid t \text{ without } v), \qquad y = \arg\max_k p(k \mid t)

    The ``top`` greatest falls are returned. At most ``max_nodes`` subtrees are tried, and fewer if the tree is very large:
    those nearest to the root, which contain the others. If the model judges nodes, the answer is the root's.
    """
    require_positive("occlusion", top=top, max_nodes=max_nodes)
    trees = _trees(saved, subject)
    cost = sum(tree.size + _LEVEL * tree.depth for tree in trees)
    forest = Forest(trees)
    roots = forest.offsets[1:] - 1
    order = np.argsort(forest.depths, kind="stable")  # (N,): nearest to a root first
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
    features = _features(saved, forest, column)[:top]
    return Occlusion(answer, probability, tuple(effects[:top]), len(chosen), len(order), tuple(features))


def _features(saved: SavedModel, forest: Forest, output: int) -> list[tuple[str, float]]:
    """Return what the features of the linear part add to an output of the whole model, greatest first."""
    wide = saved.model.wide
    if wide is None:
        return []
    weight = float(wide.mix[1])
    return [(text, weight * share) for text, share in wide.contributions(forest, output) if weight * share > 0]


def without(tree: Tree, node: int) -> Tree:
    """Return the tree with one subtree, given by its number in post-order, replaced by ⊥; other subtrees are reused.

    >>> tree = Tree.parse("(f (g a b) c)")
    >>> [str(without(tree, node)) for node in (1, 2, 3)]
    ['(f (g a _) c)', '(f _ c)', '(f (g a b) _)']
    """
    if not 0 <= node < tree.size - 1:
        raise ConfigurationError(
            f"expected a node below the root, from 0 to {tree.size - 2} in post-order, got {node}; the root cannot be left out."
        )
    path: list[tuple[Tree, int]] = []
    current: Tree | None = tree
    start = 0  # the number of the current subtree's first node
    while current is not None and node != start + current.size - 1:
        for slot, child in enumerate(current.children):
            if child is None:
                continue
            if node < start + child.size:
                path.append((current, slot))
                current = child
                break
            start += child.size
    current = None
    for parent, slot in reversed(path):
        current = Tree(parent.label, [*parent.children[:slot], current, *parent.children[slot + 1 :]])
    assert current is not None
    return current


def in_preorder(tree: Tree, notes: Sequence[str]) -> list[str]:
    """Reorder notes from post-order to pre-order, which `Tree.draw` takes.

    >>> in_preorder(Tree.parse("(f (g a) b)"), ["a", "g", "b", "f"])
    ['f', 'g', 'a', 'b']
    """
    sizes = np.fromiter((node.size for node in tree.postorder()), np.int64, tree.size)
    # In pre-order, a node comes after its ancestors and the nodes to its left; in post-order, after its descendants instead.
    places = np.arange(tree.size) - (sizes - 1) + Forest([tree]).depths
    result = [""] * tree.size
    for place, note in zip(places.tolist(), notes, strict=True):
        result[place] = note
    return result


def _probabilities(saved: SavedModel, outputs: Tensor) -> Tensor:
    return torch.from_numpy(saved.units.restore(saved.task.probabilities(outputs.double()).numpy()))


def _of_examples(saved: SavedModel, examples: Sequence[tuple[Tree, ...]]) -> Tensor:
    """Return the answers about whole examples, (n, K)."""
    forest = Forest(tree for trees in examples for tree in trees)
    rows = probabilities(saved, forest)
    return rows[torch.from_numpy(forest.offsets[1:] - 1)] if saved.task.per_node else rows


def _answer(saved: SavedModel, row: Tensor) -> tuple[str | float, float | None]:
    if not saved.task.has_classes:
        return float(row[0]), None
    column = int(row.argmax())
    return saved.classes[column], float(row[column])


def _without(trees: tuple[Tree, ...], node: int) -> tuple[Tree, ...]:
    if node < trees[0].size:
        return (without(trees[0], node), *trees[1:])
    return (trees[0], without(trees[1], node - trees[0].size))


def _trees(saved: SavedModel, subject: Subject) -> tuple[Tree, ...]:
    trees = (subject,) if isinstance(subject, Tree) else subject
    expected = saved.task.trees
    if len(trees) != expected:
        raise ConfigurationError(
            f"the model expects {'a pair of trees' if expected == 2 else 'one tree'}, got {len(trees)}; "
            f"give {'(left, right)' if expected == 2 else 'a Tree'}."
        )
    return trees
