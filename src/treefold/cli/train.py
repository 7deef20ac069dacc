"""`treefold train`: train a model on a data set, and write a run directory."""

import logging
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from treefold.cli.console import WIDTH, Plugins, err, say
from treefold.errors import ConfigurationError, require_choice

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from treefold.data.dataset import Dataset
    from treefold.training import Progress
    from treefold.training.distributed import Workers
    from treefold.training.settings import RunSettings

_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_MOVES = 20, 0.1


def _list_settings(is_asked: bool) -> None:
    """Print each setting with its default, its meaning, and when to change it; then exit."""
    if not is_asked:
        return
    from treefold.training.settings import describe_settings

    for row in describe_settings():
        say(f"{row.group and row.group + '.'}{row.name} = {row.default}   ({row.values})")
        for text in (row.meaning, f"When to change it: {row.when}"):
            say(textwrap.indent(textwrap.fill(text, WIDTH - 4, break_on_hyphens=False), "    "))
    raise typer.Exit


def train(
    data: Annotated[Path, typer.Argument(help="A data set, made by `treefold data`.", show_default=False)],
    out_folder: Annotated[Path, typer.Option("--out", help="The run directory to write.", show_default=False)],
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Settings by name, or `paper`: `treefold recipes` lists them; default: chosen from the data."
        ),
    ] = None,
    recipe_file: Annotated[Path | None, typer.Option(help="A recipe of one's own, a TOML file.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with [model] and [training].")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="A setting: `rank=5` or `training.epochs=20`; may be repeated.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="`tree`, `pair`, `node`, `regression` or `pair-regression`; by default, the data decides."),
    ] = None,
    init_from: Annotated[
        Path | None, typer.Option(help="A run to start from: its weights, for the same model settings and labels.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in --out.")] = False,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also evaluate simple models.")] = False,
    plugins: Plugins = None,
    settings: Annotated[
        bool,
        typer.Option(
            "--settings",
            help="List all settings: default, meaning, and when to change them.",
            callback=_list_settings,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Train a model and write it to a run directory.

    Settings of `--set` and `--config` come first, then those of the recipe; the others are chosen from the data;
    `treefold describe RUN` shows them, and `treefold train --settings` explains all of them. Training stops when the
    validation score (of equal scores, the loss) has not improved for `patience` epochs, and keeps the best weights. An
    interrupted run continues with `--resume`, and ends with the same weights as without the interruption. Several processes
    train one model together with `torchrun --nproc-per-node 2 -m treefold train …`: each takes a part of every batch.

    Example: `treefold train data/listops --out runs/hosvd --set aggregator=tucker --set state_size=20 --set rank=3`
    """
    from treefold.training.distributed import joined

    with joined() as workers:
        if not workers.is_first:
            logging.getLogger("treefold").setLevel(logging.ERROR)  # the first process says it for all
        given = _Given(recipe, recipe_file, config, changes or [], task, init_from)
        _train(data, out_folder, given, workers, resume=resume, baselines=baselines)


class _Given(NamedTuple):
    """The options of a new run, which cannot be given with --resume."""

    recipe: str | None
    recipe_file: Path | None
    config: Path | None
    changes: list[str]
    task: str | None
    init_from: Path | None


def _train(
    data: Path,
    out_folder: Path,
    given: _Given,
    workers: "Workers",
    *,
    resume: bool,
    baselines: bool,
) -> None:
    from treefold import training
    from treefold.data.dataset import Dataset
    from treefold.training.examples import Examples, Score

    dataset = Dataset.open(data)
    has_test = len(dataset.splits.get("test", [])) > 0
    if baselines and not has_test:
        raise ConfigurationError("--baselines expects a data set with a test split, got none; leave it out.")
    if resume and any(given):
        raise ConfigurationError(
            "--resume continues a run with its own settings, but got new ones (--set, --config, --recipe, --task or "
            "--init-from); leave them out."
        )
    with _Display() as display:
        if resume:
            saved, result = training.resume(dataset, out_folder, reporter=display, workers=workers)
        else:
            settings = _settings(given, dataset)
            saved, result = training.train(
                dataset, out_folder, settings, reporter=display, workers=workers, init_from=given.init_from
            )
    if not workers.is_first:
        return
    chosen, name = saved.task, saved.task.score_name
    if result.history and "validation_score" in result.history[-1]:
        kept = f"after epoch {result.best_epoch} of {result.epochs}"
        parts = ", ".join(f"{part} {score:.4f}" for part, score in result.parts.items())
        say(f"{name} on validation: {result.best_score:.4f}, {kept}" + (f" ({parts})" if parts else ""))
    if has_test:
        examples = Examples.of(dataset, chosen, saved.units)
        test = Score.of(saved.model, examples, examples.known(dataset.splits["test"]))
        say(f"{name} on the test set: {test.score:.4f}")
    if baselines and chosen.has_classes and not chosen.per_node:
        from treefold.analysis.baselines import baselines as evaluate_baselines

        for baseline, score in evaluate_baselines(dataset).items():
            say(f"  {baseline}: {score:.4f}")
    has_validation = len(dataset.splits.get("validation", [])) > 0
    measure = f"; treefold evaluate {out_folder} {data}" + ("" if has_test else " --split validation")
    say(f"look at it: treefold describe {out_folder}" + (measure if has_test or has_validation else ""))


def _settings(given: _Given, data: "Dataset") -> "RunSettings":
    from treefold.training.settings import RunSettings, read_toml, with_changes
    from treefold.training.task import default_task

    values: dict[str, Any] = read_toml(given.config) if given.config else {}
    if given.recipe and given.recipe_file:
        raise ConfigurationError("expected --recipe or --recipe-file, got both; leave one of them out.")
    if given.recipe or given.recipe_file:
        values["recipe"] = given.recipe or str(given.recipe_file and given.recipe_file.absolute())
    if given.task or "task" not in values:
        values["task"] = given.task or default_task(data)
    settings = RunSettings.of(values, str(given.config) if given.config else "settings")
    changed = {}
    for change in given.changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ConfigurationError(f"--set expects key=value, got {change!r}; for example --set rank=5.")
        changed[key.strip()] = value.strip()
    return with_changes(settings, changed)


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print the settings of this recipe.", show_default=False)] = None,
) -> None:
    """List the recipes that ship with the library, or print one of them.

    To change a recipe, write it into a file, and train with `--recipe-file`.

    Example: `treefold recipes listops > own.toml`
    """
    from treefold.training.settings import read_recipe, recipe_names, recipe_path

    if name is not None:
        require_choice("treefold recipes", "NAME", name, recipe_names())
        say(recipe_path(name).read_text(encoding="utf-8").rstrip("\n"))
        return
    for each in recipe_names():
        recipe = read_recipe(each)
        say(f"{each}: {recipe.description}")
        say(f"  task: {recipe.task or 'any'}")
        say(f"  reached: {recipe.reached or 'not said'}")
    say("auto (the default) chooses all settings from the data; paper has the settings of the paper.")


class _Display:
    """Shows the progress of a training: a line for each epoch, and within it a bar, or lines if there is no terminal."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._last = self._epoch_start = time.monotonic()
        self._epoch = self._first = 0

    def __enter__(self) -> "_Display":
        if err.is_terminal:
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=err, transient=True)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def batch(self, progress: "Progress") -> None:
        """Move the bar, or print a line if the last one is old enough."""
        now = time.monotonic()
        if progress.epoch != self._epoch:
            self._epoch, self._epoch_start, self._first = progress.epoch, now, progress.seen
        if now - self._last < (_SECONDS_BETWEEN_MOVES if self._bar is not None else _SECONDS_BETWEEN_LINES):
            return
        self._last = now
        speed = (progress.seen - self._first) / max(now - self._epoch_start, 1e-9)
        accuracy = "" if progress.accuracy is None else f", train {progress.accuracy:.1%}"
        note = f"loss {progress.loss:.3f}{accuracy}, {speed:,.0f}/s"
        title = f"epoch {progress.epoch}" + ("" if progress.stage is None else f", stage {progress.stage}")
        if self._bar is None:
            say(f"{title}: batch {progress.batch:,} of {progress.batches:,}, {note}", to=err)
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=progress.batches, note=note)
        self._bar.update(
            self._task,
            description=title,
            completed=progress.batch,
            total=progress.batches,
            note=note,
        )

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Print a line for a finished epoch."""
        self._last = time.monotonic()
        parts = [f"epoch {metrics['epoch']:3}"] + ([f"stage {metrics['stage']}"] if "stage" in metrics else [])
        parts += [f"loss {metrics['loss']:.4f}"]
        parts += [f"train {metrics['accuracy']:.4f}"] if "accuracy" in metrics else []
        parts += [f"validation {metrics['validation_score']:.4f}"] if "validation_score" in metrics else []
        parts += [f"{metrics['examples_per_second']:,.0f}/s", f"{metrics['seconds']:.1f} s"]
        say("  ".join(parts), to=err)
