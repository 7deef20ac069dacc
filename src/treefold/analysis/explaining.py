"""Why a model answers as it does: what it believes of every subtree, and which subtrees matter most for the answer."""

import functools
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor

from treefold.errors import ConfigurationError, require_choice, require_positive
from treefold.nn.model import TreeModel
from treefold.training.examples import Examples, answers_of, evaluating
from treefold.training.saving import SavedModel, write_text
from treefold.training.task import Floats
from treefold.trees.drawing import draw_svg, escaped, fitted, html_box, html_page, html_table, label_text, shade
from treefold.trees.forest import Forest
from treefold.trees.tree import Label, Tree
from treefold.trees.vocabulary import UNKNOWN

# Axes:  n examples · N nodes · K classes or outputs
Subject = Tree | tuple[Tree, ...]
"""A tree, or the two trees of a pair. Nodes are numbered in post-order, in a pair those of the left tree first."""

_MOST_NODES: Final = 1_000_000  # of all variants together: some seconds
_LEVEL: Final = 30  # a level of a narrow tree takes as long as this many nodes of a bushy one
_TRIED: Final = 200  # subtrees that are left out to see what matters
_DRAWN_NODES: Final = 60  # in a terminal
_LEGEND_CLASSES: Final = 20
_TITLE_CLASSES: Final = 5
_SMALL: Final = 0.01  # effects below this share of the greatest have no colour


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
    return _probabilities(saved, answers_of(saved.model, examples, np.arange(len(examples))))


def beliefs(saved: SavedModel, subject: Subject) -> list[Belief]:
    """Return the model's belief at every node, in post-order: its head applied to the state of every subtree.

    If the model folds upwards, this is its answer about the subtree alone. In a pair, each subtree is compared with the
    whole other tree.
    """
    trees = _trees(saved, subject)
    return _beliefs(saved, trees, *_at_nodes(saved, trees))


def _beliefs(saved: SavedModel, trees: tuple[Tree, ...], rows: Tensor, own: Sequence[float | None]) -> list[Belief]:
    labels = [node.label for tree in trees for node in tree.postorder()]
    return [
        Belief(node, label, *_answer(saved, row), share)
        for node, (label, row, share) in enumerate(zip(labels, rows, own, strict=True))
    ]


def _at_nodes(saved: SavedModel, trees: tuple[Tree, ...]) -> tuple[Tensor, Sequence[float | None]]:
    """Return the answers at all nodes, (N, K), and the shares of the nodes, if the model reads all nodes."""
    model = saved.model
    if not saved.task.per_node and not _is_subtree_state(model):
        return _of_subtrees(saved, trees), shares(saved, trees[0]) if len(trees) == 1 else [None] * _size(trees)
    with evaluating(model):
        states = model.encoder(Forest(trees).batch()).nodes  # (N, C)
        outputs = model.head(saved.task.subtree_states(states, [tree.size for tree in trees]))
        return _probabilities(saved, outputs), [None] * _size(trees)


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
    encoder = model.encoder
    return model.readout.is_root and encoder.direction == "up" and not encoder.siblings and model.wide is None


def _of_subtrees(saved: SavedModel, trees: tuple[Tree, ...]) -> Tensor:
    """Return the answers about all subtrees as trees of their own, of a pair together with the whole other tree, (N, K)."""
    nodes = sum(part.size for tree in trees for part in tree.postorder())
    nodes += sum(tree.size * (_size(trees) - tree.size) for tree in trees)  # the other trees of pairs
    if nodes > _MOST_NODES:
        raise ConfigurationError(
            f"beliefs at all nodes expect subtrees of at most {_MOST_NODES:,} nodes together, got {nodes:,}; "
            f"explain a smaller tree, or use occlusion."
        )
    places = [(place, part) for place, tree in enumerate(trees) for part in tree.postorder()]
    return _of_examples(saved, [(*trees[:place], part, *trees[place + 1 :]) for place, part in places])


def _size(trees: tuple[Tree, ...]) -> int:
    return sum(tree.size for tree in trees)


def occlusion(saved: SavedModel, subject: Subject, top: int = 5, *, max_nodes: int = _TRIED) -> Occlusion:
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
    return rebuilt(path_to(tree, node)[0], None)


def path_to(tree: Tree, node: int) -> tuple[list[tuple[Tree, int]], Tree]:
    """Return the way from the root to a node, as parents and slots, and the node's subtree.

    >>> path, part = path_to(Tree.parse("(f (g a b) c)"), 1)
    >>> [(parent.label, slot) for parent, slot in path], part.label
    ([('f', 0), ('g', 1)], 'b')
    """
    if not 0 <= node < tree.size:
        raise ConfigurationError(
            f"expected a node from 0 to {tree.size - 1} in post-order, got {node}; choose one of the tree."
        )
    path: list[tuple[Tree, int]] = []
    current = tree
    start = 0  # the number of the current subtree's first node
    while node != start + current.size - 1:
        for slot, child in enumerate(current.children):
            if child is None:
                continue
            if node < start + child.size:
                path.append((current, slot))
                current = child
                break
            start += child.size
    return path, current


def rebuilt(path: Sequence[tuple[Tree, int]], part: Tree | None) -> Tree:
    """Return the tree with another subtree, or ⊥, at the end of a path; other subtrees are reused.

    >>> print(rebuilt(path_to(Tree.parse("(f (g a b) c)"), 1)[0], Tree.parse("(h d)")))
    (f (g a (h d)) c)
    """
    for parent, slot in reversed(path):
        part = Tree(parent.label, [*parent.children[:slot], part, *parent.children[slot + 1 :]])
    assert part is not None
    return part


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


@final
@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What a model answers about a tree, or a pair of trees, and about all its subtrees, and which subtrees matter most.

    ``probabilities`` (N, K) are those of the ``classes``, or the predicted numbers, at each node. ``unknown`` are labels that the
    model does not know. ``occlusion`` is None if it was not asked for. In a notebook, an explanation is a drawing and tables.

    >>> from treefold import TreeClassifier
    >>> model = TreeClassifier(state_size=8, epochs=60, random_state=0).fit(["(f a)", "(f b)"], ["yes", "no"])
    >>> explanation = model.explain("(f (f a))")
    >>> explanation.answer, [(node["label"], node["depth"], node["answer"]) for node in explanation.nodes]
    ('yes', [('a', 2, 'yes'), ('f', 1, 'yes'), ('f', 0, 'yes')])
    """

    trees: tuple[Tree, ...]
    beliefs: tuple[Belief, ...]
    occlusion: Occlusion | None = None
    probabilities: Floats | None = None
    classes: tuple[Any, ...] = ()
    unknown: Collection[str] = ()
    top: int = 5

    @property
    def answer(self) -> Any:
        """The model's answer about the whole tree or pair: a class, or a number."""
        return self._value(self._whole)

    @property
    def confidence(self) -> float | None:
        """The probability of the answer; None for numbers."""
        return self._whole.probability

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """A dict for each node, in post-order, of a pair those of the left tree first.

        ``answer`` and ``confidence`` are those about the subtree. ``share`` is what the node adds to the score of the answer, if
        the model reads all nodes. ``fall`` is how much the probability of the answer, or the number, falls without the subtree;
        None if that was not tried. ``known`` is False for a label that the model does not know.
        """
        falls = {} if self.occlusion is None else {effect.node: effect.fall for effect in self.occlusion.effects}
        depths = Forest(self.trees).depths.tolist()
        places = [place for place, tree in enumerate(self.trees) for _ in range(tree.size)]
        return [
            {
                "node": belief.node,
                **({"tree": ("left", "right")[place]} if len(self.trees) > 1 else {}),
                "label": belief.label,
                "depth": depth,
                "answer": self._value(belief),
                "confidence": belief.probability,
                "share": belief.share,
                "fall": falls.get(belief.node),
                "known": belief.label not in self.unknown,
            }
            for belief, depth, place in zip(self.beliefs, depths, places, strict=True)
        ]

    def to_frame(self) -> Any:
        """Return the nodes as a frame of pandas."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError:
            raise ConfigurationError(
                "to_frame needs the package pandas; pip install 'treefold[objects]', or use nodes, a list of dicts."
            ) from None
        return pandas.DataFrame(self.nodes).set_index("node")

    def draw(self, *, max_nodes: int = _DRAWN_NODES) -> str:
        """Return the explanation as text, as `treefold predict --explain` prints it."""
        lines, start = [self.headline], 0
        for tree in self.trees:
            notes = [str(belief) for belief in self.beliefs[start : start + tree.size]]
            start += tree.size
            lines.append(tree.draw(max_nodes=max_nodes, notes=in_preorder(tree, notes)))
        if self.occlusion is not None:
            lines.append(f"without this subtree, {self._what_falls} falls by")
            lines += [f"  {e.fall:>+8.4f}  {fitted(str(e.subtree), 66)}" for e in self.occlusion.effects[: self.top]]
            if not self.occlusion.effects:
                lines.append("  the root has no subtrees")
            if self.occlusion.features:
                lines.append("labels and pairs that speak for the answer")
            lines += [f"  {share:>+8.4f}  {fitted(text, 66)}" for text, share in self.occlusion.features[: self.top]]
            lines += [f"  {self.limit}"] if self.limit else []
        return "\n".join([*lines, *([self._unknown_labels] if self.unknown else [])])

    def to_svg(self, path: str | os.PathLike[str] | None = None, *, layer: str = "answers", **options: Any) -> str:
        """Draw the tree as SVG; return the text, and write it to a file if a ``path`` is given.

        With ``layer="answers"``, the colour of a node is the model's answer about its subtree; the paler, the less sure. With
        "effects", it is strong where the answer needs the subtree. Labels that the model does not know have a dashed border.
        ``options`` are those of `Tree.to_svg` about what is folded.
        """
        require_choice("Explanation.to_svg", "layer", layer, ["answers", "effects"])
        colours, legend = self._answer_colours() if layer == "answers" else self._effect_colours()
        svg = draw_svg(
            self.trees,
            notes=[self._written(belief) for belief in self.beliefs],
            titles=self._titles(),
            colours=colours,
            dashed=[belief.node for belief in self.beliefs if belief.label in self.unknown],
            legend=legend,
            name=f"{self.headline}; {', '.join(f'tree of {tree.size:,} nodes' for tree in self.trees)}",
            **options,
        )
        if path is not None:
            write_text(Path(path), svg)
        return svg

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return a page that needs nothing from outside, and write it to a file if a ``path`` is given."""
        page = html_page(self.headline, self._repr_html_())
        if path is not None:
            write_text(Path(path), page)
        return page

    def _repr_html_(self) -> str:
        parts = [f"<p><strong>{escaped(self.headline)}</strong></p>", self.to_svg()]
        found = self.occlusion
        if found is not None and found.effects:
            rows = [(f"{effect.fall:+.4f}", fitted(str(effect.subtree), 66)) for effect in found.effects[: self.top]]
            parts.append(html_table(rows, (f"{self._what_falls} falls by", "without this subtree")))
        if found is not None and found.features:
            rows = [(f"{share:+.4f}", fitted(text, 66)) for text, share in found.features[: self.top]]
            parts.append(html_table(rows, ("adds to the score", "label or pair of labels that speaks for the answer")))
        notes = [note for note in (self.limit, self._unknown_labels if self.unknown else "") if note]
        return html_box(*parts, *(f"<p>{escaped(note)}</p>" for note in notes))

    def __str__(self) -> str:
        return self.draw()

    def __repr__(self) -> str:
        return f"<Explanation of {len(self.beliefs):,} nodes, {self.headline}>"

    @property
    def _whole(self) -> Belief:
        return self.beliefs[self.trees[0].size - 1]  # of a pair, its left root is compared with the whole right tree

    @property
    def headline(self) -> str:
        """The answer about the whole in words."""
        whole = self._whole
        if whole.probability is None:
            return f"answer: {whole.answer:.6g}"
        return f"answer: {whole.answer} with probability {whole.probability:.4f}"

    @property
    def _what_falls(self) -> str:
        return "the number" if self._whole.probability is None else "the probability of the answer"

    @property
    def limit(self) -> str:
        """A line about the subtrees that were not tried, empty if all were."""
        found = self.occlusion
        if found is None or found.tried == found.possible:
            return ""
        return f"tried: the {found.tried:,} subtrees nearest to the root, of {found.possible:,}"

    @property
    def _unknown_labels(self) -> str:
        labels = fitted(", ".join(map(label_text, self.unknown)), 200)
        return f"labels that the model does not know, they count as {UNKNOWN}: {labels}"

    def _value(self, belief: Belief) -> Any:
        """Return an answer as `predict` gives it: classes may be numbers."""
        return self.classes[self._places[str(belief.answer)]] if self.classes else belief.answer

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        """The places of the answers among the classes, by which they have their colours."""
        names = [*map(str, self.classes), *(str(belief.answer) for belief in self.beliefs)]
        return {name: place for place, name in enumerate(dict.fromkeys(names))}

    def _written(self, belief: Belief) -> str:
        return f"{belief.answer:.4g}" if belief.probability is None else f"{belief.answer} {belief.probability:.2f}"

    def _titles(self) -> list[str]:
        """Return the hover texts of the nodes."""
        falls = {} if self.occlusion is None else {effect.node: effect.fall for effect in self.occlusion.effects}
        titles = []
        for belief in self.beliefs:
            lines = [f"unknown label, counts as {UNKNOWN}"] if belief.label in self.unknown else []
            if self.probabilities is not None and self.classes:
                row = self.probabilities[belief.node]
                best = np.argsort(-row, kind="stable")[:_TITLE_CLASSES].tolist()
                lines += [f"{self.classes[place]} {row[place]:.4f}" for place in best]
            else:
                lines.append(self._written(belief))
            if belief.share is not None:
                lines.append(f"adds {belief.share:+.4f} to the score of the answer")
            if belief.node in falls:
                lines.append(f"without it, {self._what_falls} falls by {falls[belief.node]:+.4f}")
            titles.append("\n".join(lines))
        return titles

    def _answer_colours(self) -> tuple[list[str], list[tuple[str, str | None]]]:
        """Return the colours of the nodes by their answers, and the legend."""
        if self._whole.probability is None:
            numbers = [float(belief.answer) for belief in self.beliefs]
            low, high = min(numbers), max(numbers)
            sides = [2 * (number - low) / (high - low) - 1 if high > low else 0.0 for number in numbers]
            scale: list[tuple[str, str | None]] = [(f"{low:.4g}", shade(0)), (f"{high:.4g}", shade(1))]
            return [shade(int(side > 0), abs(side)) for side in sides], scale
        places = self._places
        least = 1 / max(len(places), 2)
        strengths = [((belief.probability or 0.0) - least) / (1 - least) for belief in self.beliefs]
        colours = [shade(places[str(b.answer)], strength) for b, strength in zip(self.beliefs, strengths, strict=True)]
        found = Counter(str(belief.answer) for belief in self.beliefs)
        shown = sorted([name for name, _ in found.most_common(_LEGEND_CLASSES)], key=places.__getitem__)
        more = [f"and {len(found) - len(shown)} more classes"] if len(found) > len(shown) else []
        entries: list[tuple[str, str | None]] = [(name, shade(places[name])) for name in shown]
        return colours, [*entries, *((text, None) for text in [*more, "the paler, the less sure"])]

    def _effect_colours(self) -> tuple[list[str | None], list[tuple[str, str | None]]]:
        """Return the colours of the nodes by what falls without them, and the legend."""
        if self.occlusion is None:
            raise ConfigurationError(
                "the layer 'effects' expects an explanation with occlusion, got none; explain with occlude=True."
            )
        falls = {effect.node: effect.fall for effect in self.occlusion.effects}
        most = max(map(abs, falls.values()), default=0.0) or 1.0
        shares = [falls.get(belief.node, 0.0) / most for belief in self.beliefs]
        colours = [shade(int(share > 0), abs(share)) if abs(share) >= _SMALL else None for share in shares]
        what = self._what_falls.removeprefix("the ").removesuffix(" of the answer")
        return colours, [(f"without it, {what} falls", shade(1)), (f"{what} rises", shade(0))]


def explain(
    saved: SavedModel,
    subject: Subject,
    *,
    top: int = 5,
    occlude: bool = True,
    classes: Sequence[Any] | None = None,
    unknown: Collection[str] = (),
) -> Explanation:
    """Explain the answer about a tree or a pair: the beliefs at all nodes and, unless ``occlude`` is False, the occlusion.

    ``classes`` are the values of the model's classes, if these are not text; ``unknown`` are the labels that it does not know.
    """
    require_positive("explain", top=top)
    if not isinstance(occlude, (bool, np.bool_)):
        raise ConfigurationError(f"explain expects occlude to be True or False, got {occlude!r}.")
    if not saved.task.has_classes and saved.outputs > 1:
        raise ConfigurationError(
            f"an explanation expects a model of classes or of one number, got one of {saved.outputs} numbers; "
            f"train a model for each of them."
        )
    trees = _trees(saved, subject)
    rows, own = _at_nodes(saved, trees)
    return Explanation(
        trees,
        tuple(_beliefs(saved, trees, rows, own)),
        occlusion(saved, subject, _TRIED) if occlude else None,
        rows.numpy(),
        tuple(saved.classes if classes is None else classes),
        unknown,
        top,
    )
