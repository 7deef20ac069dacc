"""`treefold train`: from a data set to a run directory."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from treefold.analysis.baselines import baselines as measure_baselines
from treefold.cli.console import Plugins, err, out
from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError
from treefold.training import resume as resume_run
from treefold.training import train as train_run
from treefold.training.distributed import Workers, joined
from treefold.training.examples import Examples, Score
from treefold.training.settings import RunSettings, read_toml, with_changes
from treefold.training.trainer import Progress

_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_MOVES = 20, 0.1


def train(
    data: Annotated[Path, typer.Argument(help="A data set, as `treefold data` makes it.", show_default=False)],
    out_folder: Annotated[Path, typer.Option("--out", help="The run directory to make.", show_default=False)],
    config: Annotated[Path | None, typer.Option(help="A TOML file with [model] and [training].")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, `rank=5` or `training.epochs=20`; may be repeated.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="`tree`, `pair`, `node` or `regression`; else by the data.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, which was interrupted.")
    ] = False,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also measure what simple models reach.")] = False,
    plugins: Plugins = None,
) -> None:
    """Train a model, and keep every step of it in a run directory.

    What the settings leave open is chosen from the data: `treefold describe RUN` shows it. Stops when validation has not
    improved for `patience` epochs; the best weights are kept. An interrupted run goes on with `--resume`, and ends with the
    same weights as if it had not been interrupted. Several processes train one model together with
    `torchrun --nproc-per-node 2 -m treefold train …`: each takes its share of every batch.

    Example: `treefold train data/listops --out runs/hosvd --set aggregator=tucker --set state_size=20 --set rank=3`
    """
    with joined() as workers:
        _train(data, out_folder, config, changes or [], task, workers, resume=resume, baselines=baselines)


def _train(
    data: Path,
    out_folder: Path,
    config: Path | None,
    changes: list[str],
    task: str | None,
    workers: Workers,
    *,
    resume: bool,
    baselines: bool,
) -> None:
    examples = Dataset.open(data)
    if baselines and not len(examples.splits.get("test", [])):
        raise ConfigurationError("--baselines expects a data set with a test split, got none; leave it out.")
    with _Display() as display:
        if resume:
            if config or changes or task:
                raise ConfigurationError(
                    "--resume expects the settings of the run as they are, got others; leave them out."
                )
            saved, result = resume_run(examples, out_folder, reporter=display, workers=workers)
        else:
            settings = _settings(config, changes, task, pairs=examples.pairs)
            saved, result = train_run(examples, out_folder, settings, reporter=display, workers=workers)
    if not workers.is_first:
        return
    chosen = saved.task
    name = chosen.score_name
    if result.history and "validation_score" in result.history[-1]:
        out.print(
            f"best {name} on validation: {result.best_score:.4f}, after epoch {result.best_epoch} of {result.epochs}"
        )
    if len(examples.splits.get("test", [])):
        known = Examples.of(examples, chosen)
        measured = Score.of(saved.model, known, known.known(examples.splits["test"]))
        out.print(f"{name} on the test set: {measured.score:.4f}")
    if baselines and chosen.has_classes and not chosen.per_node and len(examples.splits.get("test", [])):
        for baseline, score in measure_baselines(examples).items():
            out.print(f"  {baseline}: {score:.4f}")
    out.print(f"look at it: treefold describe {out_folder}; treefold evaluate {out_folder} {data}")


def _settings(config: Path | None, changes: list[str], task: str | None, *, pairs: bool) -> RunSettings:
    values: dict[str, Any] = read_toml(config) if config else {}
    if task or "task" not in values:
        values["task"] = task or ("pair" if pairs else "tree")
    settings = RunSettings.of(values, str(config) if config else "settings")
    pairs_of_text = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ConfigurationError(f"--set expects key=value, got {change!r}; for example --set rank=5.")
        pairs_of_text[key.strip()] = value.strip()
    return with_changes(settings, pairs_of_text)


class _Display:
    """Shows training: a bar with loss, accuracy, speed and time left, or lines without a terminal; a line for each epoch."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._last = self._epoch_start = time.monotonic()
        self._epoch = self._first = 0

    def __enter__(self) -> "_Display":
        if err.is_terminal:
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

    def batch(self, progress: Progress) -> None:
        """Move the bar, or print a line when the last was long ago."""
        now = time.monotonic()
        if progress.epoch != self._epoch:
            self._epoch, self._epoch_start, self._first = progress.epoch, now, progress.seen
        if now - self._last < (_SECONDS_BETWEEN_MOVES if self._bar is not None else _SECONDS_BETWEEN_LINES):
            return
        self._last = now
        speed = (progress.seen - self._first) / max(now - self._epoch_start, 1e-9)
        accuracy = "" if progress.accuracy is None else f", train {progress.accuracy:.1%}"
        note = f"loss {progress.loss:.3f}{accuracy}, {speed:,.0f}/s"
        if self._bar is None:
            err.print(f"epoch {progress.epoch}: batch {progress.batch:,} of {progress.batches:,}, {note}")
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=progress.batches, note=note)
        self._bar.update(
            self._task,
            description=f"epoch {progress.epoch}",
            completed=progress.batch,
            total=progress.batches,
            note=note,
        )

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Print the line of an epoch."""
        self._last = time.monotonic()
        parts = [f"epoch {metrics['epoch']:3}", f"loss {metrics['loss']:.4f}"]
        parts += [f"train {metrics['accuracy']:.4f}"] if "accuracy" in metrics else []
        parts += [f"validation {metrics['validation_score']:.4f}"] if "validation_score" in metrics else []
        parts += [f"{metrics['examples_per_second']:,.0f}/s", f"{metrics['seconds']:.1f} s"]
        err.print("  ".join(parts))
