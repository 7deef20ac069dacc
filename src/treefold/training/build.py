"""From settings and data to a model."""

import inspect
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from treefold.errors import ConfigurationError, TreeError
from treefold.nn.aggregators import Aggregator
from treefold.nn.cells import Cell, PerLabel
from treefold.nn.encoder import TreeEncoder
from treefold.nn.labels import Embedding, LabelEncoder, Numeric, OneHot, Thermometer
from treefold.nn.model import TreeModel, readout_of
from treefold.training.plugins import registered
from treefold.training.settings import ModelSettings
from treefold.training.task import Task, task_of
from treefold.trees.forest import Forest

_MOST_OPERATORS: Final = 32  # with more, each cell would have too few examples to learn from
_MOST_ONE_HOT: Final = 64
_WIDEST_TUCKER: Final = 5  # children; the core grows with (rank + 1) to this power


class Labels(NamedTuple):
    """The labels that a model knows: operators, which have their own cells, and names, which have label vectors."""

    operators: tuple[str, ...]
    names: tuple[str, ...]


class Facts(NamedTuple):
    """What a model must know about its trees: labels of inner nodes and of leaves, size of vector labels, arity, how many."""

    inner: tuple[str, ...]
    leaves: tuple[str, ...]
    vector_size: int
    inner_vectors: bool
    arity: int
    trees: int
    nodes: int


def facts_of(forest: Forest) -> Facts:
    """Find the labels of inner nodes and of leaves, the length of vector labels, and the greatest slot in use.

    >>> facts_of(Forest(["(f a (g b _))"]))
    Facts(inner=('f', 'g'), leaves=('a', 'b'), vector_size=0, inner_vectors=False, arity=2, trees=1, nodes=4)
    """
    if not len(forest):
        raise TreeError("a model expects at least one tree to learn from, got none.")
    has_parent = forest.parents >= 0
    is_inner = np.zeros(forest.node_count, bool)
    is_inner[forest.parent_rows[has_parent]] = True
    names = forest.vocabulary

    def labels(chosen: Any) -> tuple[str, ...]:
        codes = np.unique(forest.labels[chosen])
        return tuple(names[code] for code in codes.tolist() if code >= 0)

    return Facts(
        inner=labels(is_inner),
        leaves=labels(~is_inner),
        vector_size=forest.vectors.shape[1],
        inner_vectors=bool((forest.labels[is_inner] < 0).any()),
        arity=int(forest.slots[has_parent].max(initial=0)) + 1,
        trees=len(forest),
        nodes=forest.node_count,
    )


def _has_operators(facts: Facts) -> bool:
    """Say whether inner nodes are few operators, which no leaf has as its label."""
    apart = not set(facts.inner) & set(facts.leaves) and not facts.inner_vectors
    return apart and 0 < len(facts.inner) <= _MOST_OPERATORS


def is_formula(facts: Facts) -> bool:
    """Say whether trees are like formulas: few operators with few children above leaves with few labels, or with vectors.

    >>> is_formula(facts_of(Forest(["(and a (or b a))"]))), is_formula(facts_of(Forest(["(p (b a) a)", "p"])))
    (True, False)
    """
    return _has_operators(facts) and len(facts.leaves) <= _MOST_ONE_HOT and facts.arity <= _WIDEST_TUCKER


def resolve(settings: ModelSettings, facts: Facts) -> tuple[ModelSettings, Labels]:
    """Choose the settings that are None, and the order of the labels.

    Each operator gets its own cell, as in the paper, if inner nodes and leaves have different labels and operators are few.
    Narrow trees get the Tucker form, wide ones the shared canonical form, which takes any number of children.

    >>> settings, labels = resolve(ModelSettings(), facts_of(Forest(["(MAX 3 (MIN 1 2))"])))
    >>> settings.aggregator, settings.rank, settings.labels, labels
    ('tucker', 3, 'thermometer', Labels(operators=('MAX', 'MIN'), names=('1', '2', '3')))
    """
    per_label = _has_operators(facts) and not settings.siblings if settings.per_label is None else settings.per_label
    if per_label and (facts.inner_vectors or not facts.inner):
        raise ConfigurationError(
            "per_label=true expects inner nodes with text labels, got none or vectors; leave it out."
        )
    operators = facts.inner if per_label else ()
    names = tuple(name for name in sorted({*facts.inner, *facts.leaves}) if name not in operators)
    kind = settings.labels or _label_kind(names, facts, per_label)
    if kind == "thermometer":
        names = tuple(sorted(names, key=_number))
    if kind != "numeric" and facts.vector_size:
        raise ConfigurationError(
            f"labels={kind!r} expects text labels, got vectors of {facts.vector_size}; use 'numeric'."
        )
    if kind == "numeric" and names:
        raise ConfigurationError(
            f"labels='numeric' expects vectors as labels of all nodes except operators, got {names[0]!r}."
        )
    arity = settings.arity or (2 if settings.siblings else facts.arity)
    wide = arity > _WIDEST_TUCKER
    aggregator = settings.aggregator or ("canonical" if wide else "tucker")
    form: type[Aggregator] = registered("aggregator", aggregator)
    shared = form.always_shared or (wide and form.any_arity if settings.shared is None else settings.shared)
    rank = settings.rank
    if rank is None and form.has_rank:
        rank = min(3, settings.state_size) if aggregator == "tucker" else settings.state_size
    size = {"onehot": len(names), "thermometer": len(names), "numeric": facts.vector_size}.get(
        kind, settings.label_size or 32
    )
    changes = {
        "aggregator": aggregator,
        "rank": rank,
        "shared": shared,
        "arity": arity,
        "per_label": per_label,
        "labels": kind,
        "label_size": size,
    }
    return settings.model_copy(update=changes), Labels(operators, names if kind != "numeric" else ())


def _label_kind(names: Sequence[str], facts: Facts, per_label: bool) -> str:
    if facts.vector_size:
        return "numeric"
    if per_label and len(names) > 1 and all(_is_number(name) for name in names) and len(names) <= _MOST_ONE_HOT:
        return "thermometer"
    return "onehot" if len(names) <= _MOST_ONE_HOT else "embedding"


def _is_number(name: str) -> bool:
    return name.removeprefix("-").isdecimal() and name.isascii()


def _number(name: str) -> tuple[int, str]:
    return (int(name) if _is_number(name) else 0, name)


def build_model(settings: ModelSettings, labels: Labels, task: Task | str, outputs: int) -> TreeModel:
    """Make the model of resolved settings, with fresh weights.

    ``outputs`` is the number of classes, or of numbers to predict.

    >>> settings, labels = resolve(ModelSettings(), facts_of(Forest(["(MAX 3 (MIN 1 2))"])))
    >>> type(build_model(settings, labels, "tree", 10).head).__name__
    'Classifier'
    """
    cell, label_encoder = _cell(settings, labels), _label_encoder(settings, labels)
    encoder = TreeEncoder(cell, label_encoder, direction=settings.direction, siblings=settings.siblings)
    in_size = readout_of(encoder, settings.readout).out_size
    return TreeModel(encoder, task_of(task).head(settings, in_size, outputs), settings.readout)


def _cell(settings: ModelSettings, labels: Labels) -> Cell:
    inner_class, leaf_class = registered("cell", settings.cell)
    common = {"state_size": settings.state_size, "initialisation": settings.initialisation}

    def make(cls: type[Cell], *arguments: Any, **sizes: Any) -> Cell:
        has_update = "update" in inspect.signature(cls).parameters
        return cls(*arguments, **common, **sizes, **({"update": settings.update} if has_update else {}))

    def inner(label_size: int | None) -> Cell:
        sizes = {
            "arity": settings.arity,
            "rank": settings.rank,
            "label_size": label_size,
            "shared": bool(settings.shared),
        }
        return make(inner_class, settings.aggregator, **sizes)

    if not labels.operators:
        return inner(settings.label_size)
    # Downwards, a leaf has a parent to see; along siblings, its elder sibling.
    sees_label_alone = settings.direction == "up" and not settings.siblings
    leaf = make(leaf_class, label_size=settings.label_size) if sees_label_alone else inner(settings.label_size)
    return PerLabel({name: inner(None) for name in labels.operators}, leaf=leaf)


def _label_encoder(settings: ModelSettings, labels: Labels) -> LabelEncoder:
    if settings.labels == "numeric":
        return Numeric(settings.label_size or 0)
    if settings.labels == "embedding":
        return Embedding(labels.names, settings.label_size)
    return Thermometer(labels.names) if settings.labels == "thermometer" else OneHot(labels.names)
