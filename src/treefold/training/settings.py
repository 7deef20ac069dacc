"""Settings of models and of training: checked, immutable, read from TOML and written to it."""

import itertools
import json
import math
import tomllib
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from treefold._moved import RENAMED_FORMS
from treefold.errors import ConfigurationError, nearest
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
    """Settings of a model; those that are None are chosen from the data.

    ``cell`` is a name of `CELLS`, ``aggregator`` one of `AGGREGATORS`; a user's own count as well. Labels that fewer than
    ``min_count`` training trees have count as ``<unk>``, and in training each label with the probability ``label_dropout``.
    With ``edge_labels``, ``nsubj:dog`` is the label ``dog`` at an edge ``nsubj``. ``embeddings`` is a file of word vectors, with
    which labels start; ``embeddings_frozen`` keeps them as they are. ``comparison`` says how a classifier of pairs compares two
    trees, ``levels`` is the K of a `PairRegressor`. ``wide`` adds a linear part that counts labels and pairs of labels.
    ``block_size`` and ``start`` are options of `Blockwise`, ``bound`` of `Canonical`. ``aggregator`` may be a sum of forms,
    ``"complex+sum"``, and ``aggregators`` gives operators forms of their own: ``{SM = "complex", MED = {aggregator = "sum"}}``.
    ``cell_hidden`` is the hidden layer of `TreeRNN`, and ``activation`` its activation.
    """

    cell: Annotated[str, _part("cell", "lstm")] = "lstm"
    aggregator: Annotated[str, BeforeValidator(_current), _part("aggregator")] | None = None
    state_size: Count = 20
    aggregators: Annotated[dict[str, Annotated[FormSettings, BeforeValidator(_form)]], AfterValidator(_FixedForms)] = {}
    rank: Count | None = None
    bound: Literal["unit", "disc"] | None = None
    block_size: Count | None = None
    start: Literal["balanced", "product"] | None = None
    shared: bool | None = None
    arity: Count | None = None
    per_label: bool | None = None
    labels: Literal["onehot", "thermometer", "embedding", "ngrams", "numeric"] | None = None
    label_size: Count | None = None
    update: Literal["tanh", "sigmoid"] = "tanh"
    activation: Literal["tanh", "sigmoid", "sharp-sigmoid", "clamp"] = "tanh"
    cell_hidden: Count | None = None
    initialisation: Literal["balanced", "kaiming"] = "balanced"
    direction: Literal["up", "down", "both"] = "up"
    siblings: bool = False
    readout: Annotated[str, AfterValidator(_readout)] = "root"
    hidden: tuple[Count, ...] = (20, 20)
    comparison_size: Count = 75
    dropout: Share = 0.0
    comparison: Literal["tensor", "distance", "blockwise"] = "tensor"
    levels: Levels = 5
    min_count: Count | None = None
    label_dropout: Share = 0.0
    edge_labels: bool = False
    embeddings: str | None = None
    embeddings_frozen: bool = False
    wide: bool = False


class TrainingSettings(Settings):
    """How a model is trained; defaults are the paper's if it names them.

    ``reduction`` says whether the loss of a batch is the mean or the sum of its examples' losses; against the sum,
    ``weight_decay`` and ``l2`` count less by the size of the batch. The ``weight_decay`` of AdamW shrinks matrices, not biases
    and other vectors, nor the coefficients of element-wise forms, unless ``decay_all`` asks for it; that of AdaDelta is a
    penalty on all parameters, as in the paper. ``beta2`` is AdamW's, the share of its mean square that a step keeps.

    With ``selection`` above zero, the parts of a sum of forms such as ``complex+squashed+max`` compete: from a tenth of the steps
    on, each step shrinks the norm of every part by ``selection`` times the rate, and from 40 % on only the strongest part of each
    sum is left. So each operator gets the form that suits it best, which is often the one that holds for more children, too.

    ``curriculum`` has stages of a largest number of inner nodes (None: any) and a share of all steps: ``[(3, 0.4), (None, 0.6)]``
    takes trees of at most three inner nodes for the first 40 % of the steps. Of a pair, the larger tree counts. An epoch keeps
    its number of steps, and ``patience`` counts epochs of the last stage only. The rate has one schedule over the ``whole``
    training, or with ``stage_schedule="each"`` one for each stage.

    ``state_noise`` is the standard deviation of the noise on states in training; it changes in a line to ``state_noise_end``.
    """

    optimiser: Literal["adadelta", "adamw"] = "adadelta"
    learning_rate: Positive | None = None
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: Share = 0.0
    reduction: Literal["mean", "sum"] = "mean"
    weight_decay: NotNegative = 0.0
    decay_all: bool = False
    beta2: Share = 0.999
    l2: NotNegative = 0.0
    clip: Positive | None = None
    batch_size: Count = 25
    batch_nodes: Count | None = None
    bucketed: bool = False
    curriculum: Annotated[tuple[tuple[int | None, float], ...] | None, BeforeValidator(_curriculum)] = None
    stage_schedule: Literal["whole", "each"] = "whole"
    state_noise: NotNegative = 0.0
    state_noise_end: NotNegative | None = None
    selection: NotNegative = 0.0
    epochs: Count = 100
    patience: Count | None = 10
    keep: Literal["best", "last"] = "best"
    seed: Seed = 0
    threads: Count | None = None
    checkpoint_minutes: Positive = 5.0
    tensorboard: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.curriculum is not None and (self.batch_nodes is not None or self.bucketed):
            name = "bucketed" if self.bucketed else "batch_nodes"
            problem = f"a curriculum expects batches of batch_size examples, got {name}; leave one of them out."
            raise PydanticCustomError(_UNREGISTERED, "{problem}", {"problem": problem})
        return self


class RunSettings(Settings):
    """Everything that a run depends on besides its data; ``task`` is a name of `TASKS`.

    Settings that are not given are chosen from the data (``recipe="auto"``), are the paper's (``recipe="paper"``), or come from
    a recipe of this name, or of this TOML file; what it leaves open is chosen from the data.
    """

    task: TaskName = "tree"
    recipe: RecipeName = "auto"
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


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
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
