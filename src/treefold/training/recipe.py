"""The recipe: every setting that the user leaves open is chosen here, from the data, with a reason.

Estimators, `treefold train` and sweeps all call `choose`; there is no other place with defaults that depend on data.
"""

import math
from typing import Any, Final, NamedTuple

from treefold.errors import ConfigurationError
from treefold.training.build import Facts, Labels, is_formula, resolve
from treefold.training.settings import (
    ModelSettings,
    RunSettings,
    TrainingSettings,
    read_recipe,
    recipe_names,
    with_recipe,
)
from treefold.training.task import task_of

_FEWEST_STEPS: Final = 800  # with few trees, more epochs
_FORMULA_EPOCHS: Final = (40, 200)
_EPOCHS: Final = (15, 60)
_NODES, _STEPS = 6_000_000, 10_000  # that all epochs together have at the most, unless the fewest epochs have more
_MANY: Final = 4_000  # examples, from which on batches are twice as large
_MANY_LABELS: Final = 64
_RARE: Final = 2  # a label of fewer trees than this is <unk>
_MOST_LABELS: Final = 20_000  # a step with so many takes about twice the time of one with few


class Recipe(NamedTuple):
    """Resolved settings, the labels of the model, and for each choice its reason."""

    settings: RunSettings
    labels: Labels
    reasons: tuple[str, ...]


def choose(settings: RunSettings, facts: Facts, examples: int) -> Recipe:
    """Choose all settings that were not given, for a number of training examples.

    Trees like formulas (few operators, few other labels, few children) get a cell for each operator, the Tucker form, and the
    root's state. All other trees get states that follow the order of siblings, and a readout of all nodes. With
    ``recipe="paper"``, settings that were not given are the paper's; those of a recipe with a file count as given.

    >>> from treefold.training.build import facts_of
    >>> from treefold.trees.forest import Forest
    >>> recipe = choose(RunSettings(), facts_of(Forest(["(p (b a) (i a) a (b i) a a)"] * 9)), 9)
    >>> recipe.settings.model.siblings, recipe.settings.model.readout
    (True, 'root+mean+max')
    >>> print(recipe.reasons[0])
    the widest node has 6 children: states follow the order of siblings, for any number of them
    """
    if settings.model.wide and task_of(settings.task).per_node:
        raise ConfigurationError(
            f"wide=true expects one answer for each tree or pair, got the task {settings.task!r}; leave wide out."
        )
    if settings.recipe == "paper":
        model, labels = resolve(settings.model, facts)
        return Recipe(settings.model_copy(update={"model": model}), labels, ("the paper's settings",))
    name, reason = settings.recipe, []
    if name != "auto":
        settings, reason = with_recipe(settings), [f"recipe {name}: {read_recipe(name).description}"]
        # The settings are complete now: a run must not depend on a file elsewhere.
        settings = settings.model_copy(update={"recipe": name if name in recipe_names() else "auto"})
    formula = is_formula(facts)
    made, reasons = _model(settings.model, facts, formula=formula, task=settings.task)
    model, labels = resolve(made, facts)
    training, more = _training(settings.training, facts, examples, formula=formula)
    chosen = settings.model_copy(update={"model": model, "training": training})
    return Recipe(chosen, labels, (*reason, *reasons, *more))


def _model(given: ModelSettings, facts: Facts, *, formula: bool, task: str) -> tuple[ModelSettings, list[str]]:
    """Return the settings of the model with those that were not given and do not follow from the others."""
    if formula:
        return given, [
            f"{len(facts.inner)} operators, {len(facts.leaves) or 'vectors as'} other labels, at most {facts.arity} "
            f"children: trees like formulas, so each operator has a cell and the root's state is read"
        ]
    reasons: list[str] = []
    chosen: dict[str, Any] = {"state_size": 64, "hidden": (64,), "dropout": 0.3}
    named = {"aggregator", "shared", "arity", "per_label"} & given.model_fields_set
    if given.siblings or not (named or "siblings" in given.model_fields_set or given.direction == "down"):
        chosen |= {"siblings": True, "aggregator": "sum" if given.rank is None else "tucker"}
        reasons.append(
            f"the widest node has {facts.arity} children: states follow the order of siblings, for any number of them"
        )
    elif given.rank is None and given.shared is not False and given.aggregator is None:
        chosen["aggregator"] = "positional"
        reasons.append(
            f"the widest node has {facts.arity} children: they are averaged by position, which stays bounded for any number"
        )
    if task_of(task).trees == 1 and not task_of(task).per_node:
        chosen |= {"readout": "root+mean+max", "wide": True}
        reasons.append(
            f"{_size(facts):.0f} nodes a tree: all of them are read, not the root alone; a linear part counts labels and pairs"
        )
    if not facts.vector_size:
        count = len({*facts.inner, *facts.leaves})
        chosen |= {"labels": "embedding", "label_dropout": 0.05, "min_count": _RARE if count > _MANY_LABELS else None}
        chosen |= {"max_labels": _MOST_LABELS if count > _MOST_LABELS and given.embeddings is None else None}
        made = _with(given, chosen)
        which = f"those of at least {made.min_count} trees" if made.min_count else "all"
        which += f", at most the {made.max_labels:,} most frequent," if made.max_labels else ""
        others = "; others count as <unk>" if made.min_count or made.max_labels else ""
        reasons.append(f"{count:,} labels: {which} have a learnt vector{others}")
    return _with(given, chosen), reasons


def _training(
    given: TrainingSettings, facts: Facts, examples: int, *, formula: bool
) -> tuple[TrainingSettings, list[str]]:
    """Return the settings of training: the number of epochs follows that of examples and nodes."""
    chosen: dict[str, Any] = {"optimiser": "adamw", "learning_rate": 0.005 if formula else 0.003, "schedule": "cosine"}
    chosen["clip"] = 1.0
    if "optimiser" in given.model_fields_set and given.optimiser != "adamw":
        chosen["learning_rate"] = None
    chosen |= {"batch_size": 50 if formula else 16 if examples < _MANY else 32, "weight_decay": 1e-4}
    chosen |= {"patience": 20} if formula else {"patience": None, "keep": "last", "warmup": 0.1}
    size = _with(given, chosen).batch_size
    least, most = _FORMULA_EPOCHS if formula else _EPOCHS
    steps = math.ceil(examples / size)
    wanted = (
        math.ceil(_FEWEST_STEPS / steps) if formula else int(min(_NODES / (examples * _size(facts)), _STEPS / steps))
    )
    chosen["epochs"] = max(least, min(most, wanted))
    made = _with(given, chosen)
    return made, [f"{examples:,} examples of {_size(facts):.0f} nodes: {made.epochs} epochs in batches of {size}"]


def _size(facts: Facts) -> float:
    """Return the mean number of nodes of a tree."""
    return facts.forest.node_count / len(facts.forest)


def _with(given: Any, chosen: dict[str, Any]) -> Any:
    """Return settings in which those that were not given have the chosen values."""
    return given.model_copy(
        update={name: value for name, value in chosen.items() if name not in given.model_fields_set}
    )
