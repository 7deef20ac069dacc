"""From settings and data to a model."""

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from treefold.data.vectors import read_vectors
from treefold.errors import ConfigurationError, TreeError, TreefoldError, nearest
from treefold.nn.aggregators import AGGREGATORS, Aggregator, Combination
from treefold.nn.cells import Cell, PerLabel
from treefold.nn.encoder import TreeEncoder
from treefold.nn.labels import (
    UNKNOWN_EDGE,
    Embedding,
    Features,
    LabelEncoder,
    Numeric,
    OneHot,
    Thermometer,
    frequent_labels,
)
from treefold.nn.model import TreeModel, readout_of
from treefold.training.plugins import registered
from treefold.training.settings import FormSettings, ModelSettings
from treefold.training.task import Task, task_of
from treefold.trees.forest import Forest
from treefold.trees.vocabulary import UNKNOWN

_MOST_OPERATORS: Final = 32  # with more, each cell would have too few examples to learn from
_MOST_ONE_HOT: Final = 64
_WHOLE_NUMBER: Final = re.compile("-?[0-9]{1,18}")  # Python refuses to read thousands of digits as a number
_SMALL: Final = 0.05  # first entries of vectors that are learnt beside given ones
_OPTIONS: Final = ("bound", "block_size", "start")  # settings that only some forms have
_WIDEST_TUCKER: Final = 5  # children; the core grows with (rank + 1) to this power


class Labels(NamedTuple):
    """The labels that a model knows: operators, which have their own cells, and names, which have label vectors.

    The vectors of the last ``frozen`` names are not learnt. In a new model, the last names start with the ``vectors``.
    """

    operators: tuple[str, ...]
    names: tuple[str, ...]
    frozen: int = 0
    vectors: npt.NDArray[np.float32] | None = None


class Facts(NamedTuple):
    """What a model must know about its trees: labels of inner nodes and of leaves, size of vector labels, arity; the trees."""

    inner: tuple[str, ...]
    leaves: tuple[str, ...]
    vector_size: int
    inner_vectors: bool
    arity: int
    forest: Forest


def facts_of(forest: Forest) -> Facts:
    """Find the labels of inner nodes and of leaves, the length of vector labels, and the greatest slot in use.

    >>> facts_of(Forest(["(f a (g b _))"]))
    Facts(inner=('f', 'g'), leaves=('a', 'b'), vector_size=0, inner_vectors=False, arity=2, forest=<Forest of 1 trees, ...
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
        forest=forest,
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
    ('tucker', 3, 'thermometer', Labels(operators=('MAX', 'MIN'), names=('1', '2', '3'), ...
    """
    per_label = _has_operators(facts) and not (settings.siblings or settings.edge_labels)
    per_label = per_label if settings.per_label is None else settings.per_label
    if per_label and (facts.inner_vectors or not facts.inner):
        raise ConfigurationError(
            "per_label=true expects inner nodes with text labels, got none or vectors; leave it out."
        )
    operators = facts.inner if per_label else ()
    names = _label_names(settings, facts, operators)
    kind = settings.labels or _label_kind(names, facts, per_label, settings)
    _require_text(settings, kind)
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
    form: type[Aggregator] | Combination = registered("aggregator", aggregator)
    shared = form.always_shared or (wide and form.any_arity if settings.shared is None else settings.shared)
    _require_operators(settings, operators)
    rank = settings.rank
    if rank is None and form.has_rank:
        rank = _usual_rank(settings, aggregator)
    _require_cell_options(settings)
    _require_options(settings, aggregator, form)
    labels = _open_labels(settings, kind, operators, names if kind != "numeric" else ())
    count = len(labels.names)
    size = {"onehot": count, "thermometer": count, "numeric": facts.vector_size}.get(kind, settings.label_size or 32)
    if labels.vectors is not None:
        size = labels.vectors.shape[1]
    changes = {
        "aggregator": aggregator,
        "rank": rank,
        "shared": shared,
        "arity": arity,
        "per_label": per_label,
        "labels": kind,
        "label_size": size,
    }
    return settings.model_copy(update=changes), labels


def _label_names(settings: ModelSettings, facts: Facts, operators: Sequence[str]) -> tuple[str, ...]:
    """Return the labels with label vectors, sorted: without operators, and without those that too few trees have."""
    if settings.edge_labels and operators:
        raise ConfigurationError(
            "edge_labels=true expects one cell for all nodes, got per_label=true; leave per_label out."
        )
    if settings.min_count is None and settings.max_labels is None and not settings.edge_labels:
        names: Iterable[str] = sorted({*facts.inner, *facts.leaves})
    else:
        names = frequent_labels(facts.forest, settings.min_count, settings.max_labels, edges=settings.edge_labels)
    own = set(operators)
    return tuple(name for name in names if name not in own)


def _require_text(settings: ModelSettings, kind: str) -> None:
    """Raise if the settings ask for something that labels of this kind cannot have."""
    asked = {
        "edge_labels": (settings.edge_labels, ("embedding", "ngrams")),
        "embeddings": (settings.embeddings is not None, ("embedding", "ngrams")),
        "label_dropout": (settings.label_dropout > 0, ("onehot", "thermometer", "embedding", "ngrams")),
    }
    for name, (is_asked, kinds) in asked.items():
        if is_asked and kind not in kinds:
            raise ConfigurationError(
                f"{name} expects labels to be one of {', '.join(map(repr, kinds))}, got {kind!r}; leave one of them out."
            )
    if settings.embeddings_frozen and settings.embeddings is None:
        raise ConfigurationError("embeddings_frozen=true expects embeddings, a file of word vectors, got none.")


def _require_operators(settings: ModelSettings, operators: Sequence[str]) -> None:
    """Raise unless all operators with forms of their own are operators, and their forms have the options that are given."""
    for name, own in settings.aggregators.items():
        if name not in operators:
            known = f"one of the operators {', '.join(map(repr, operators))}" if operators else "per_label=true"
            raise ConfigurationError(
                f"aggregators expects {known}, got {name!r}{nearest(name, operators)}; leave it out."
            )
        _require_options(own, own.aggregator, registered("aggregator", own.aggregator))


def _usual_rank(settings: ModelSettings, aggregator: str) -> int:
    """Return the rank of a form if none is given; the core of Tucker grows fast with it."""
    return min(3, settings.state_size) if "tucker" in aggregator.split("+") else settings.state_size


def _require_cell_options(settings: ModelSettings) -> None:
    """Raise if the settings have an option that the cell does not have."""
    known = inspect.signature(registered("cell", settings.cell)[0]).parameters
    given = {
        "activation": (settings.activation != "tanh", "activation"),
        "cell_hidden": (settings.cell_hidden, "hidden"),
    }
    for name, (is_given, argument) in given.items():
        if is_given and argument not in known:
            raise ConfigurationError(
                f"{name} expects a cell that has this option, such as rnn, got {name}={getattr(settings, name)!r} for "
                f"cell={settings.cell!r}; leave it out, or choose another cell."
            )


def _require_options(
    settings: ModelSettings | FormSettings, aggregator: str, form: type[Aggregator] | Combination
) -> None:
    """Raise if the settings have an option that the form does not have."""
    for name in _OPTIONS:
        if getattr(settings, name) is not None and name not in form.options:
            has = [known for known, each in AGGREGATORS.items() if name in each.options]
            raise ConfigurationError(
                f"{name} expects a form that has this option, such as {' or '.join(has)}, got "
                f"{name}={getattr(settings, name)!r} for aggregator={aggregator!r}; leave it out, or choose another aggregator."
            )


def form_options(settings: ModelSettings) -> dict[str, Any]:
    """Return the options of the settings' form that are given.

    >>> form_options(ModelSettings(aggregator="blockwise", block_size=4))
    {'block_size': 4}
    """
    form: type[Aggregator] | Combination = registered("aggregator", str(settings.aggregator))
    given = {name: getattr(settings, name, None) for name in form.options}
    return {name: value for name, value in given.items() if value is not None}


def _open_labels(settings: ModelSettings, kind: str, operators: tuple[str, ...], names: tuple[str, ...]) -> Labels:
    """Add the rows for unknown labels, and the vectors of the file of word vectors.

    ``<unk>`` has a row if training can teach it something: labels that too few trees have, dropped labels, parts of labels.
    """
    rare = settings.min_count or settings.max_labels
    asked = rare or settings.label_dropout or settings.edge_labels or settings.embeddings
    extra = [UNKNOWN] if kind == "ngrams" or (asked and kind in ("onehot", "embedding")) else []
    extra = [name for name in extra + [UNKNOWN_EDGE] * settings.edge_labels if name not in operators]
    names = (*extra, *(name for name in names if name not in extra))
    if settings.embeddings is None:
        return Labels(operators, names)
    is_edge = settings.edge_labels
    words, vectors = read_vectors(
        settings.embeddings,
        [name for name in names if name not in extra and not (is_edge and name.endswith(":") and name != ":")],
    )
    if settings.label_size not in (None, vectors.shape[1]):
        raise ConfigurationError(
            f"label_size expects the length of the vectors in {settings.embeddings}, {vectors.shape[1]}, got "
            f"{settings.label_size}; leave it out."
        )
    found = set(words)
    others = (name for name in names if name not in found)
    return Labels(operators, (*others, *words), len(words) if settings.embeddings_frozen else 0, vectors)


def _label_kind(names: Sequence[str], facts: Facts, per_label: bool, settings: ModelSettings) -> str:
    if facts.vector_size:
        return "numeric"
    if settings.edge_labels or settings.embeddings is not None:
        return "embedding"
    if per_label and len(names) > 1 and all(_is_number(name) for name in names) and len(names) <= _MOST_ONE_HOT:
        return "thermometer"
    return "onehot" if len(names) <= _MOST_ONE_HOT else "embedding"


def _is_number(name: str) -> bool:
    return _WHOLE_NUMBER.fullmatch(name) is not None


def _number(name: str) -> tuple[int, str]:
    return (int(name) if _is_number(name) else 0, name)


def build_model(settings: ModelSettings, labels: Labels, task: Task | str, outputs: int) -> TreeModel:
    """Make the model of resolved settings, with fresh weights.

    ``outputs`` is the number of classes, or of numbers to predict.

    >>> settings, labels = resolve(ModelSettings(), facts_of(Forest(["(MAX 3 (MIN 1 2))"])))
    >>> type(build_model(settings, labels, "tree", 10).head).__name__
    'Classifier'
    """
    try:
        encoder = TreeEncoder(
            _cell(settings, labels),
            _label_encoder(settings, labels),
            direction=settings.direction,
            siblings=settings.siblings,
            label_dropout=settings.label_dropout,
            cut=True,
        )
        in_size = readout_of(encoder, settings.readout).out_size
        return TreeModel(encoder, task_of(task).head(settings, in_size, outputs), settings.readout)
    except (
        Exception
    ) as problem:  # torch has several errors for too large a tensor; a user's own parts may raise anything
        if isinstance(problem, TreefoldError):
            raise
        if not _is_too_large(problem):
            own = _own_parts(settings, task_of(task))
            if not own:
                raise
            raise ConfigurationError(
                f"expected a model with your {' and '.join(own)}, got {type(problem).__name__}: {problem}; correct their code."
            ) from problem
        raise ConfigurationError(
            f"a model expects weights that fit into memory, got more with state_size={settings.state_size}, "
            f"arity={settings.arity}, rank={settings.rank} and {len(labels.names):,} labels; make one of them smaller, or set "
            f"shared=True."
        ) from None


def _own_parts(settings: ModelSettings, task: Task) -> list[str]:
    """Return the names of the classes of a model's parts that are not ours."""
    forms = [settings.aggregator, *(own.aggregator for own in settings.aggregators.values())]
    names = [name for form in forms if form for name in form.split("+")]
    parts = [*(registered("aggregator", name) for name in names), *registered("cell", settings.cell), type(task)]
    return [part.__name__ for part in dict.fromkeys(parts) if not part.__module__.startswith("treefold.")]


def _is_too_large(problem: Exception) -> bool:
    signs = ("alloc", "memory", "overflow", "too large", "too big", "storage size")
    return isinstance(problem, (MemoryError, OverflowError)) or any(sign in str(problem).lower() for sign in signs)


def _cell(settings: ModelSettings, labels: Labels) -> Cell:
    inner_class, leaf_class = registered("cell", settings.cell)
    common = {"state_size": settings.state_size, "initialisation": settings.initialisation}

    more = {"update": settings.update, "activation": settings.activation, "hidden": settings.cell_hidden}

    def make(cls: type[Cell], *arguments: Any, **sizes: Any) -> Cell:
        known = inspect.signature(cls).parameters
        return cls(*arguments, **common, **sizes, **{name: value for name, value in more.items() if name in known})

    def inner(label_size: int | None, operator: str = "") -> Cell:
        own = settings.aggregators.get(operator)
        chosen = settings
        if own is not None:  # nothing of another form's rank and options
            given = dict(own) | {"arity": own.arity or settings.arity}
            chosen = settings.model_copy(update={"rank": None, **dict.fromkeys(_OPTIONS), **given})
            form = registered("aggregator", own.aggregator)
            if chosen.rank is None and form.has_rank:
                rank = settings.rank or _usual_rank(settings, own.aggregator)
                chosen = chosen.model_copy(update={"rank": rank})
        sizes = {
            "arity": chosen.arity,
            "rank": chosen.rank,
            "label_size": label_size,
            "shared": bool(chosen.shared),
            **form_options(chosen),
        }
        return make(inner_class, chosen.aggregator, **sizes)

    if not labels.operators:
        return inner(settings.label_size)
    # Downwards, a leaf has a parent to see; along siblings, its elder sibling.
    sees_label_alone = settings.direction == "up" and not settings.siblings
    leaf = make(leaf_class, label_size=settings.label_size) if sees_label_alone else inner(settings.label_size)
    return PerLabel({name: inner(None, name) for name in labels.operators}, leaf=leaf)


def _label_encoder(settings: ModelSettings, labels: Labels) -> LabelEncoder:
    if settings.labels == "numeric":
        return Numeric(settings.label_size or 0)
    if settings.labels in ("embedding", "ngrams"):
        given: dict[str, Any] = {"frozen": labels.frozen}
        if labels.vectors is None:
            given["size"] = settings.label_size
        else:
            start = _SMALL * torch.randn(len(labels.names) - len(labels.vectors), labels.vectors.shape[1])
            start[[place for place, name in enumerate(labels.names[:2]) if name in (UNKNOWN, UNKNOWN_EDGE)]] = 0.0
            given["vectors"] = torch.cat([start, torch.from_numpy(labels.vectors)])
        if settings.labels == "embedding" and not settings.edge_labels:
            return Embedding(labels.names, **given)
        return Features(labels.names, edges=settings.edge_labels, ngrams=settings.labels == "ngrams", **given)
    return Thermometer(labels.names) if settings.labels == "thermometer" else OneHot(labels.names)
