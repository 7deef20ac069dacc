"""Settings of models and of training: checked, immutable, read from TOML and written to it."""

import itertools
import json
import math
import re
import tomllib
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from reprlib import repr as shortened
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from treefold._moved import RENAMED_FORMS
from treefold.errors import ConfigurationError, nearest
from treefold.files import as_path, has_half_character
from treefold.training.plugins import registered

_UNREGISTERED: Final = "unregistered"
_TOLERANCE: Final = 1e-6
_WITHOUT_FILE: Final = ("auto", "paper")
_RECIPES: Final = Path(__file__).with_name("recipes")


def _number(value: Any) -> Any:
    """Refuse values that pydantic would convert to a number: True, digits in quotes."""
    if isinstance(value, (bool, str)):
        raise PydanticCustomError("number", "Input should be a number")
    return value


def _part(kind: str, default: str | None = None) -> AfterValidator:
    """Check that a part has this name; the default is not looked up, so that settings can be imported without torch."""

    def check(name: str) -> str:
        if name != default:
            try:
                registered(kind, name)
            except ConfigurationError as problem:
                raise PydanticCustomError(_UNREGISTERED, "{problem}", {"problem": str(problem)}) from None
        return name

    return AfterValidator(check)


def _current(name: Any) -> Any:
    """Translate the old name of an aggregator, or of parts of a sum."""
    return "+".join(RENAMED_FORMS.get(each, each) for each in name.split("+")) if isinstance(name, str) else name


def _readout(name: str) -> str:
    """Check a readout; the default is not looked up, so that settings can be imported without torch."""
    if name != "root":
        from treefold.nn.readout import readout_kinds

        try:
            readout_kinds(name)
        except ConfigurationError as problem:
            raise PydanticCustomError(_UNREGISTERED, "{problem}", {"problem": str(problem)}) from None
    return name


def _recipe(name: str) -> str:
    """Check the name of a recipe; files are read when they are used."""
    if name not in _WITHOUT_FILE and name not in recipe_names() and not _is_file(name):
        known = [*_WITHOUT_FILE, *recipe_names()]
        words = ", ".join(map(repr, known))
        problem = f"expected one of {words} or a TOML file, got {name!r}{nearest(name, known)}."
        raise PydanticCustomError(_UNREGISTERED, "{problem}", {"problem": problem})
    return name


def _is_file(recipe: str) -> bool:
    return recipe.endswith(".toml") or Path(recipe).name != recipe


def _curriculum(value: Any) -> Any:
    """Check the stages of a curriculum: (largest number of inner nodes or None, share of the steps)."""

    def wrong(expected: str, got: Any) -> PydanticCustomError:
        problem = f'expected {expected}, got {got!r}; for example [[3, 0.4], [8, 0.35], ["none", 0.25]].'
        return PydanticCustomError(_UNREGISTERED, "{problem}", {"problem": problem})

    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not value:
        raise wrong("stages of a largest number of inner nodes and a share of the steps", value)
    stages = []
    for stage in value:
        if not isinstance(stage, (list, tuple)) or len(stage) != 2:
            raise wrong("each stage to have a largest number of inner nodes and a share of the steps", stage)
        limit, share = None if stage[0] == "none" else stage[0], stage[1]
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Integral) or limit < 0):
            raise wrong("the largest number of inner nodes to be a whole number, or none", limit)
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) <= 1:
            raise wrong("the share of the steps to be above 0 and at most 1", share)
        stages.append((None if limit is None else int(limit), float(share)))
    limits = [math.inf if limit is None else limit for limit, _ in stages]
    if any(one >= other for one, other in itertools.pairwise(limits)):
        raise wrong("limits that increase from stage to stage", [each[0] for each in value])
    if abs(sum(share for _, share in stages) - 1) > _TOLERANCE:
        raise wrong("shares that add up to 1", [share for _, share in stages])
    return tuple(stages)


TaskName = Annotated[str, _part("task", "tree")]


def _whole_characters(name: str) -> str:
    """Refuse the name of a file that is not UTF-8, because settings are written to a file."""
    if has_half_character(name):
        problem = f"expected a name of a file that is UTF-8, got {shortened(name)}; rename the file."
        raise PydanticCustomError(_UNREGISTERED, "{problem}", {"problem": problem})
    return name


RecipeName = Annotated[str, AfterValidator(_recipe)]
Count = Annotated[int, BeforeValidator(_number), Field(gt=0)]
Seed = Annotated[int, BeforeValidator(_number), Field(ge=0, lt=2**63)]
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0)]
NotNegative = Annotated[float, BeforeValidator(_number), Field(ge=0)]
Levels = Annotated[int, BeforeValidator(_number), Field(ge=2)]
Share = Annotated[float, BeforeValidator(_number), Field(ge=0, lt=1)]
Group = TypeVar("Group", bound="Settings")


class Settings(BaseModel):
    """A group of settings; the error about an unknown name suggests the nearest one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _none(cls, values: Any) -> Any:
        """Read the word none as None, because TOML has no null."""
        if not isinstance(values, dict):
            return values
        free = {name for name, field in cls.model_fields.items() if NoneType in get_args(field.annotation)}
        return {name: None if name in free and value == "none" else value for name, value in values.items()}

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "settings") -> Self:
        """Check values and make the settings.

        >>> TrainingSettings.of({"epoch": 3})
        Traceback (most recent call last):
        ...
        treefold.errors.ConfigurationError: settings: expected a known setting, got 'epoch' (nearest known: 'epochs').
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as problem:
            raise ConfigurationError(f"{where}: {_first_problem(problem, cls)}") from None


def _setting(default: Any, meaning: str, when: str, *, chosen: bool = False) -> Any:
    """Return a field with its meaning, and when to change it; ``chosen`` fields follow from the data unless they are given."""
    return Field(default, description=meaning, json_schema_extra={"when": when, "chosen": chosen})


class FormSettings(Settings):
    """The form of one operator: its name, and what differs from the settings of the model."""

    aggregator: Annotated[str, BeforeValidator(_current), _part("aggregator")]
    arity: Count | None = None
    rank: Count | None = None
    bound: Literal["unit", "disc"] | None = None
    block_size: Count | None = None
    start: Literal["balanced", "product"] | None = None


class _FixedForms(dict[str, FormSettings]):
    """The forms of operators, as a dict with a hash, because settings need one."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items(), key=lambda item: item[0])))


def _form(value: Any) -> Any:
    """Read the name of a form as its settings."""
    return {"aggregator": value} if isinstance(value, str) else value


class ModelSettings(Settings):
    """Settings of a model; those that are None are chosen from the data. `describe_settings` explains each."""

    cell: Annotated[str, _part("cell", "lstm")] = _setting(
        "lstm",
        "How the state of a node follows from its label and its children: `lstm`, `gru`, `rnn`, or a cell of your own.",
        "`gru` has fewer parameters; `rnn` suits exact rules, with a form that multiplies (recipes `listops`, `lrt`).",
    )
    aggregator: Annotated[str, BeforeValidator(_current), _part("aggregator")] | None = _setting(
        None,
        "The form that combines the children: `sum`, `full`, `tucker`, `canonical`, `complex`, `tensor-train`, `blockwise`, "
        "`hadamard-product`, `mean`, `positional`, `max`, `squashed`, one of your own, or a sum such as `complex+sum`.",
        "`tucker` or `canonical` if children act on each other; `positional` or `mean` for dozens of children.",
        chosen=True,
    )
    state_size: Count = _setting(
        20,
        "The number of entries of a node's state.",
        "Raise it if the training score stays low; lower it if training is slow or examples are few.",
        chosen=True,
    )
    aggregators: Annotated[dict[str, Annotated[FormSettings, BeforeValidator(_form)]], AfterValidator(_FixedForms)] = (
        _setting(
            {},
            'Forms of single operators: `{SM = "complex", MED = {aggregator = "canonical", rank = 8}}`.',
            "If you know that operators differ in kind, such as a sum modulo ten and a median; needs `per_label`.",
        )
    )
    rank: Count | None = _setting(
        None,
        "The size of the small space of a factored form. Without it: 3 for `tucker`, else `state_size`.",
        "Raise it if the training score stays low; the cost of `tucker` grows with its power of the arity.",
        chosen=True,
    )
    bound: Literal["unit", "disc"] | None = _setting(
        None,
        "Keeps the factors of `canonical` between 0 and 1 (`unit`), or those of `complex` within the unit disc (`disc`).",
        "If the model must hold for deeper trees, or for more children, than it was trained on.",
    )
    block_size: Count | None = _setting(
        None,
        "The number of entries in a block of `blockwise`; without it 1, entry by entry.",
        "Raise it if entries must act on each other; it must divide `state_size`.",
    )
    start: Literal["balanced", "product"] | None = _setting(
        None,
        "How the coefficients of `blockwise` start: `balanced`, or near the `product` of all children.",
        "`product` for logical formulas.",
    )
    shared: bool | None = _setting(
        None,
        "Whether all child slots have the same weights.",
        "`true` if slots have no meaning of their own, or if nodes will have more children than in training.",
        chosen=True,
    )
    arity: Count | None = _setting(
        None,
        "The number of child slots. Without it, that of the widest node in training.",
        "Raise it if later trees have wider nodes.",
        chosen=True,
    )
    per_label: bool | None = _setting(
        None,
        "Whether each label of an inner node has a cell of its own.",
        "`true` for few operators with many examples each; `false` if labels are many.",
        chosen=True,
    )
    labels: Literal["onehot", "thermometer", "embedding", "ngrams", "numeric"] | None = _setting(
        None,
        "How labels become vectors: one entry for each label, one for each step of an ordered scale, a learnt vector, learnt "
        "vectors of the label and its parts, or the numbers that the trees have.",
        "`ngrams` if many labels are new names, such as identifiers; `thermometer` if labels are numbers.",
        chosen=True,
    )
    label_size: Count | None = _setting(
        None,
        "The number of entries of a learnt label vector; without it 32, or as in the file of `embeddings`.",
        "Raise it with thousands of labels and many examples.",
        chosen=True,
    )
    update: Literal["tanh", "sigmoid"] = _setting(
        "tanh",
        "The activation of the update of `lstm`.",
        "`sigmoid` only to repeat the paper as it is written.",
    )
    activation: Literal["tanh", "sigmoid", "sharp-sigmoid", "clamp"] = _setting(
        "tanh",
        "The activation of `rnn`.",
        "`clamp` or `sharp-sigmoid` if states should be truth values between 0 and 1.",
    )
    cell_hidden: Count | None = _setting(
        None,
        "The size of a hidden layer of `rnn` after the aggregation; without it there is none.",
        "If an `rnn` cannot learn the training examples.",
    )
    initialisation: Literal["balanced", "kaiming"] = _setting(
        "balanced",
        "How weights start: with outputs of variance one for every form and arity, or as in the paper.",
        "`kaiming` only to repeat the paper.",
    )
    direction: Literal["up", "down", "both"] = _setting(
        "up",
        "Whether a node sees its children (`up`), its parent (`down`), or both.",
        "`both` if the class of a node depends on what is around it.",
    )
    siblings: bool = _setting(
        False,
        "Whether a node sees its last child and its previous sibling, so that the order of any number of children counts.",
        "`false`, with an aggregator, if the order of children means nothing.",
        chosen=True,
    )
    readout: Annotated[str, AfterValidator(_readout)] = _setting(
        "root",
        "What the head reads: `root`, or `mean`, `max`, `sum`, `attention` over all nodes; several are joined by `+`.",
        "`root` if the answer is computed step by step up to the root; `root+attention` to see which nodes counted.",
        chosen=True,
    )
    hidden: tuple[Count, ...] = _setting(
        (20, 20),
        "The sizes of the hidden layers of the head.",
        "`[]` for a linear head, if examples are few.",
        chosen=True,
    )
    comparison_size: Count = _setting(
        75,
        "The number of features by which the head of a pair compares two trees.",
        "Lower it if pairs are few.",
    )
    dropout: Share = _setting(
        0.0,
        "The share of the head's inputs that are dropped in training.",
        "Raise it if the training score is much better than that on validation.",
        chosen=True,
    )
    comparison: Literal["tensor", "distance", "blockwise"] = _setting(
        "tensor",
        "How a classifier of pairs compares two trees: by all products, by product and distance, or entry by entry.",
        "`distance` if left and right may be swapped; `blockwise` for few parameters.",
    )
    levels: Levels = _setting(
        5,
        "The number of steps of the scale on which the task `pair-regression` predicts.",
        "If your scale has another number of steps.",
    )
    min_count: Count | None = _setting(
        None,
        "Labels that fewer training trees have count as `<unk>`, whose vector is learnt.",
        "Raise it if most labels are rare; it also makes training faster.",
        chosen=True,
    )
    max_labels: Count | None = _setting(
        None,
        "The largest number of labels with a vector. Those found in the most trees are kept; others count as `<unk>`.",
        "Lower it if a step is slow because of the labels; raise it if rare labels matter.",
        chosen=True,
    )
    label_dropout: Share = _setting(
        0.0,
        "The probability with which a label counts as `<unk>` in training.",
        "Raise it if later trees will have many labels that are not in the training trees.",
        chosen=True,
    )
    edge_labels: bool = _setting(
        False,
        "Whether `nsubj:dog` is the label `dog` at an edge `nsubj` to its parent; both have vectors, which are added.",
        "`true` for trees whose edges have names, such as dependency trees.",
    )
    embeddings: Annotated[str, AfterValidator(_whole_characters)] | None = _setting(
        None,
        "A file of word vectors, with which labels start: text, or `.npz`.",
        "If labels are words, and examples too few to learn their meaning.",
    )
    embeddings_frozen: bool = _setting(
        False,
        "Whether the vectors of the file stay as they are.",
        "`true` with few examples.",
    )
    wide: bool = _setting(
        False,
        "Whether a linear part counts labels and pairs of labels beside the network.",
        "`false` if the network should do all the work.",
        chosen=True,
    )


class TrainingSettings(Settings):
    """How a model is trained; defaults are the paper's if it names them. `describe_settings` explains each."""

    optimiser: Literal["adadelta", "adamw"] = _setting(
        "adadelta",
        "The method that changes the weights.",
        "`adadelta` only to repeat the paper.",
        chosen=True,
    )
    learning_rate: Positive | None = _setting(
        None,
        "How far a step goes. Without it: 1 for `adadelta`, 0.003 for `adamw`.",
        "Lower it if the loss jumps; raise it if the loss falls slowly from the start.",
        chosen=True,
    )
    schedule: Literal["constant", "cosine"] = _setting(
        "constant",
        "Whether the rate stays, or falls to zero along a cosine.",
        "`constant` if you stop by hand, or train on later.",
        chosen=True,
    )
    warmup: Share = _setting(
        0.0,
        "The share of all steps in which the rate rises from zero.",
        "Raise it if the loss jumps in the first epochs.",
        chosen=True,
    )
    reduction: Literal["mean", "sum"] = _setting(
        "mean",
        "Whether the loss of a batch is the mean or the sum of its examples' losses. Against the sum, `weight_decay` and `l2` "
        "count less by the size of the batch.",
        "`sum` to read the paper's L2 weight in that way.",
    )
    weight_decay: NotNegative = _setting(
        0.0,
        "How much a step shrinks weights: with `adamw` matrices only; with `adadelta` it is a penalty on all parameters.",
        "Raise it to 0.01 or 0.1 if the training score is much better than that on validation.",
        chosen=True,
    )
    decay_all: bool = _setting(
        False,
        "Whether the `weight_decay` of `adamw` also shrinks biases, vectors and coefficients of element-wise forms.",
        "Seldom: biases and scales do not overfit.",
    )
    beta2: Share = _setting(
        0.999,
        "The share of its mean square of gradients that a step of `adamw` keeps.",
        "0.99 or 0.95 if training has few steps, or the loss has sudden peaks.",
    )
    l2: NotNegative = _setting(
        0.0,
        "The weight of a penalty on the squares of all parameters.",
        "Prefer `weight_decay`, unless you compare with a model that has such a penalty.",
    )
    clip: Positive | None = _setting(
        None,
        "The greatest norm of a gradient; longer ones are shortened.",
        "Lower it if the loss becomes NaN or jumps.",
        chosen=True,
    )
    batch_size: Count = _setting(
        25,
        "The number of examples in a step.",
        "Raise it to train faster on many examples; lower it if there are few.",
        chosen=True,
    )
    batch_nodes: Count | None = _setting(
        None,
        "The greatest number of nodes in a step, instead of `batch_size`.",
        "If trees differ so much in size that batches run out of memory.",
    )
    bucketed: bool = _setting(
        False,
        "Whether trees of similar size go into the same batch.",
        "`true` with plain torch, for instance on a GPU, where it saves padding.",
    )
    curriculum: Annotated[tuple[tuple[int | None, float], ...] | None, BeforeValidator(_curriculum)] = _setting(
        None,
        'Stages, small trees first: `[[3, 0.4], ["none", 0.6]]` takes trees of at most 3 inner nodes for 40 % of the steps, '
        "then all. Of a pair, the larger tree counts. An epoch keeps its number of steps.",
        "If the rule of small trees is also that of large ones, as in formulas; early steps are then much cheaper.",
    )
    stage_schedule: Literal["whole", "each"] = _setting(
        "whole",
        "Whether the rate has one schedule over all stages of a curriculum, or one for each.",
        "`each` if the last stage learns too little because its rate is low.",
    )
    state_noise: NotNegative = _setting(
        0.0,
        "The standard deviation of noise on states in training.",
        "Try 0.1 if answers about trees deeper than those of training are wrong; on ListOps it made no difference.",
    )
    state_noise_end: NotNegative | None = _setting(
        None,
        "The noise at the last step, if it should change in a line from `state_noise`.",
        "If noise helps at first, but keeps the last epochs from converging.",
    )
    selection: NotNegative = _setting(
        0.0,
        "Lets the parts of a sum of forms compete: from a tenth of the steps on, each step shrinks the norm of every part by "
        "`selection` times the rate, and from 40 % on only the strongest part of each sum is left.",
        "1.0 with `complex+squashed+max`, if each operator should find the form that suits it.",
    )
    epochs: Count = _setting(
        100,
        "How often training passes through all examples, at the most.",
        "Lower it for a first look; raise it if the loss still falls at the end.",
        chosen=True,
    )
    patience: Count | None = _setting(
        10,
        "Training stops after so many epochs in a row without a better validation score; epochs of the last stage only.",
        "`none` to train all epochs, which a cosine schedule is made for.",
        chosen=True,
    )
    keep: Literal["best", "last"] = _setting(
        "best",
        "Whether the weights of the best epoch on validation are kept, or those of the last.",
        "`last` if validation has few examples, whose score is mostly chance.",
        chosen=True,
    )
    seed: Seed = _setting(
        0,
        "The start of all random numbers; the same seed gives the same weights.",
        "Train with several to see how much of a difference is chance.",
    )
    threads: Count | None = _setting(
        None,
        "The number of torch's threads; without it, as torch is set.",
        "1 if several runs share a machine; more for large batches or states.",
    )
    checkpoint_minutes: Positive = _setting(
        5.0,
        "The time between checkpoints within an epoch, in minutes.",
        "Lower it if your machine may be taken away at any time.",
    )
    tensorboard: bool = _setting(
        False,
        "Whether the metrics are also written for TensorBoard, into the run directory.",
        "`true` if you follow trainings there; needs the package tensorboard.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.curriculum is not None and (self.batch_nodes is not None or self.bucketed):
            name = "bucketed" if self.bucketed else "batch_nodes"
            problem = f"a curriculum expects batches of batch_size examples, got {name}; leave one of them out."
            raise PydanticCustomError(_UNREGISTERED, "{problem}", {"problem": problem})
        return self


class RunSettings(Settings):
    """Everything that a run depends on besides its data. `describe_settings` explains each."""

    task: TaskName = _setting(
        "tree",
        "What is learnt: classes of a `tree`, a `pair` or each `node`, or numbers: `regression`, `pair-regression`; or a task of "
        "your own. `treefold train` takes it from the data.",
        "If the data set fits several, such as trees that also have a class at each node.",
    )
    recipe: RecipeName = _setting(
        "auto",
        "Where settings come from that are not given: `auto` chooses them from the data, `paper` has those of the paper, and "
        "`treefold recipes` lists others; a TOML file is one of your own. What a recipe leaves open is chosen from the data.",
        "If your trees are like those for which a recipe was made.",
    )
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()


class NamedRecipe(Settings):
    """The content of a recipe file: settings, their purpose, and their results.

    ``task`` is given if the settings fit this task only.
    """

    description: str = Field(min_length=1)
    reached: str = ""
    task: TaskName | None = None
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()


class SettingRow(NamedTuple):
    """A setting in the words of its users."""

    group: str  # "model", "training", or "" for those of the run
    name: str
    values: str
    default: str
    meaning: str
    when: str


def describe_settings() -> list[SettingRow]:
    """Return a row for each setting: its values, its default, its meaning, and when to change it.

    `treefold train --settings` and the page about settings show these rows.

    >>> row = next(row for row in describe_settings() if row.name == "batch_size")
    >>> row.group, row.values, row.default, row.meaning
    ('training', 'whole number', 'from the data; paper: 25', 'The number of examples in a step.')
    """
    groups: dict[str, type[Settings]] = {"": RunSettings, "model": ModelSettings, "training": TrainingSettings}
    return [
        _row(group, name, field)
        for group, settings in groups.items()
        for name, field in settings.model_fields.items()
        if name not in groups
    ]


def _row(group: str, name: str, field: FieldInfo) -> SettingRow:
    notes = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    default = str(field.default) if isinstance(field.default, str) else _toml(field.default).strip('"')
    if notes.get("chosen"):
        default = "from the data" + ("" if field.default is None else f"; paper: {default}")
    return SettingRow(
        group, name, _values(field.annotation), default, field.description or "", str(notes.get("when", ""))
    )


def _values(annotation: Any) -> str:
    """Say which values an annotation allows."""
    kind = get_origin(annotation)
    if kind is Literal:
        return ", ".join(map(str, get_args(annotation)))
    if kind is Annotated:
        return _values(get_args(annotation)[0])
    if kind in (Union, UnionType):
        return ", ".join(map(_values, get_args(annotation)))
    words = {bool: "true, false", int: "whole number", float: "number", str: "text", NoneType: "none"}
    return words.get(annotation, "list" if kind is tuple else "table")


def recipe_names() -> list[str]:
    """Return the names of the recipes that ship with the library.

    >>> recipe_names()
    ['formulas', 'listops', 'lrt', 'operands']
    """
    return sorted(path.stem for path in _RECIPES.glob("*.toml"))


def recipe_path(name: str) -> Path:
    """Return the file of a recipe: one that ships with the library, or a file of one's own."""
    return Path(name) if _is_file(name) else _RECIPES / f"{name}.toml"


def read_recipe(name: str) -> NamedRecipe:
    """Read a recipe, by its name or from a file of one's own.

    >>> read_recipe("lrt").task
    'pair'
    """
    path = recipe_path(name)
    return NamedRecipe.of(read_toml(path), str(path))


def with_recipe(settings: RunSettings) -> RunSettings:
    """Return settings with those of their recipe, if it has a file; settings that were given win.

    >>> settings = with_recipe(RunSettings(recipe="formulas", model=ModelSettings(rank=5)))
    >>> settings.model.aggregator, settings.model.rank
    ('tucker', 5)
    """
    if settings.recipe in _WITHOUT_FILE:
        return settings
    recipe = read_recipe(settings.recipe)
    own, given = (each.model_dump(exclude_unset=True) for each in (recipe, settings))
    if recipe.task is not None and given.get("task", recipe.task) != recipe.task:
        raise ConfigurationError(
            f"recipe {settings.recipe!r} expects the task {recipe.task!r}, got {settings.task!r}; choose another recipe "
            f"(`treefold recipes` lists them), or other data."
        )
    if given.get("training", {}).get("optimiser", recipe.training.optimiser) != recipe.training.optimiser:
        own["training"].pop("learning_rate", None)  # each optimiser has its own scale
    values = {**given, **({} if recipe.task is None else {"task": recipe.task})}
    values |= {group: {**own.get(group, {}), **given.get(group, {})} for group in ("model", "training")}
    return RunSettings.of(values, f"recipe {settings.recipe!r} with the settings that were given")


_DEEPEST_KEY: Final = 100


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        text = as_path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark
        if any(part.count(".") > _DEEPEST_KEY for part in re.split(r"[=,\[\]{}\n]", text)):
            raise ValueError("keys nested too deeply")  # tomllib would take memory without bounds
        return tomllib.loads(text)
    except OSError as problem:
        raise ConfigurationError(
            f"{path}: expected a file that can be read, got {problem.strerror or problem}."
        ) from None
    except (ValueError, RecursionError) as problem:  # also for huge numbers and deep nesting
        raise ConfigurationError(f"{path}: expected TOML, got {problem}; see toml.io for the format.") from None


def to_toml(settings: Settings, *, complete: bool = False) -> str:
    """Write settings as TOML, groups as tables. None is the word none; it is left out if it is the default, unless ``complete``.

    Complete settings leave nothing to choose from the data.

    >>> print(to_toml(ModelSettings(rank=3)).splitlines()[1])
    state_size = 20
    >>> 'patience = "none"' in to_toml(TrainingSettings(patience=None)).splitlines()
    True
    """
    groups = {name: value for name, value in settings if isinstance(value, Settings)}
    lines = _entries(settings, complete)
    for name, group in groups.items():
        lines += ["", f"[{name}]", *_entries(group, complete)]
    return "\n".join(lines) + "\n"


def _entries(settings: Settings, complete: bool) -> list[str]:
    fields = type(settings).model_fields
    return [
        f"{name} = {_toml(value)}"
        for name, value in settings
        if not isinstance(value, Settings) and (complete or value is not None or fields[name].default is not None)
    ]


def with_changes(settings: Group, changes: Mapping[str, str]) -> Group:
    """Return settings with some replaced, given as text: ``{"model.rank": "5", "epochs": "3"}``.

    A name without its group is looked for in all groups.

    >>> with_changes(RunSettings(), {"rank": "5", "training.epochs": "3"}).model.rank
    5
    """
    groups = {name: value for name, value in settings if isinstance(value, Settings)}
    known = {name: ("", name) for name in type(settings).model_fields if name not in groups}
    for group, part in groups.items():
        known |= {f"{group}.{name}": (group, name) for name in type(part).model_fields}
    short = {place[1]: place for place in reversed(known.values())}
    values = settings.model_dump(exclude_unset=True)
    for name, text in changes.items():
        if name not in known and name not in short:
            raise ConfigurationError(f"expected a known setting, got {name!r}{nearest(name, [*known, *short])}.")
        group, key = known.get(name) or short[name]
        (values.setdefault(group, {}) if group else values)[key] = _parsed(text)
    return type(settings).of(values)


def _parsed(text: str) -> Any:
    if text in ("none", "None"):
        return None
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace(
            "\x7f", "\\u007f"
        )  # TOML escapes as JSON does, and this one too
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(entry) for entry in value)}]"
    if isinstance(value, Settings):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_toml(str(name))} = {_toml(entry)}' for name, entry in value.items())}}}"
    return repr(value)


def _first_problem(problem: ValidationError, cls: type[BaseModel]) -> str:
    errors = problem.errors()
    # Name a misspelt setting before the required one that is missing because of it.
    error = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    path = [str(part) for part in error["loc"]]
    if error["type"] == "extra_forbidden":
        fields = cls.model_fields
        for part in path[:-1]:
            annotation = fields[part].annotation if part in fields else FormSettings  # below the name of an operator
            fields = (
                annotation.model_fields if isinstance(annotation, type) and issubclass(annotation, BaseModel) else {}
            )
        return f"expected a known setting, got {'.'.join(path)!r}{nearest(path[-1], fields)}."
    if error["type"] == _UNREGISTERED:
        return ": ".join([*filter(None, [".".join(path)]), error["msg"]])
    return f"{'.'.join(path)}: {error['msg'].lower()}, got {error['input']!r}."
