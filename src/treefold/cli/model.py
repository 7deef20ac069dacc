"""What is done with a trained model: evaluate, predict, embed, describe, compress."""

import io
import json
import os
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import torch
import typer

from treefold.analysis.baselines import MOST_EXAMPLES
from treefold.analysis.baselines import baselines as measure_baselines
from treefold.analysis.evaluation import evaluate as measure
from treefold.analysis.evaluation import split_of
from treefold.analysis.explaining import beliefs, occlusion
from treefold.cli import prediction
from treefold.cli.console import Plugins, err, progress
from treefold.cli.showing import (
    cells_of,
    description,
    say,
    show_description,
    show_evaluation,
    show_explanation,
)
from treefold.data.dataset import Dataset
from treefold.data.readers import READERS, Record
from treefold.errors import ConfigurationError, FileError, ReadError, require_choice
from treefold.files import atomic_file, atomic_folder, require_replaceable
from treefold.nn.aggregators import AGGREGATORS, Aggregator
from treefold.nn.models import compress as compress_model
from treefold.training.saving import CONFIG, SavedModel, load_model
from treefold.trees.tree import Tree

Run = Annotated[Path, typer.Argument(help="The directory of a run or of a saved model.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what exists under the name.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out what cannot be answered, and say so.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help=f"One of {', '.join(READERS)}; else by the suffix, or by the first character."),
]
Unknown = Annotated[
    str, typer.Option(help="Labels that the model does not know: an `error`, or their subtrees are `absent` (⊥).")
]
_MOST_ENTRIES: Final = 100_000_000  # of a dense tensor: 400 MB
_SHOWN_ERRORS: Final = 16


def evaluate(
    run: Run,
    data: Annotated[Path, typer.Argument(help="A data set, as `treefold data` makes it.", show_default=False)],
    split: Annotated[
        str | None, typer.Option(help="`train`, `validation`, `test` or `all`; else test where there is one, or all.")
    ] = None,
    as_json: Json = False,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also measure what simple models reach.")] = False,
    plugins: Plugins = None,
) -> None:
    """Measure a model on a data set: accuracy, macro-F1, confusion, and accuracy by depth, size and arity of the trees.

    Of models of numbers, R², MAE and RMSE. Classes and labels are matched by name, so that another data set will do.

    Example: `treefold evaluate runs/hosvd data/listops --split validation`
    """
    saved, examples = load_model(run), Dataset.open(data)
    if baselines and (saved.task.per_node or not saved.task.has_classes):
        raise ConfigurationError(
            f"--baselines expects a model that classifies trees or pairs, got one of task {saved.settings.task!r}; leave it out."
        )
    name, numbers = split_of(examples, split)
    with progress("evaluated", len(numbers)) as told:
        found = measure(saved, examples, name, progress=told)
    reached, trained_on = None, 0
    if baselines:
        with progress("baselines"):
            reached = measure_baselines(examples, test_split=name)
        trained_on = min(int((examples.targets[examples.splits["train"]] >= 0).sum()), MOST_EXAMPLES)
    if as_json:
        extra = {} if reached is None else {"baselines": reached, "baselines_trained_on": trained_on}
        typer.echo(json.dumps({**found.to_json(), **extra}))
    else:
        show_evaluation(found, reached, trained_on)


def predict(
    run: Run,
    file: Annotated[
        Path | None, typer.Argument(help="A file of trees; `-` or nothing: standard input.", show_default=False)
    ] = None,
    form: Format = None,
    unknown: Unknown = "error",
    skip_bad: SkipBad = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the belief at every node, and the subtrees that matter most.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="How many subtrees to explain by.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print explanations as JSON lines too.")] = False,
    plugins: Plugins = None,
) -> None:
    """Predict for trees: an s-expression a line, or JSON lines with `tree`, or `left` and `right`, or any other format.

    Writes a JSON object a line with `prediction` and `probabilities`; of models of nodes, lists in post-order. Answers appear
    as lines come in. A line that cannot be answered ends the work, with its number, unless `--skip-bad`.

    Example: `echo "(MAX 2 (MIN 3 4))" | treefold predict runs/hosvd --explain`
    """
    saved = load_model(run)
    policy = _policy(unknown)
    on_bad = _LeftOut() if skip_bad else None

    def explained(examples: list[prediction.Trees]) -> list[tuple[prediction.Trees, Any, Any]]:
        prediction.check_count(saved, examples)
        subjects: list[Any] = [trees if len(trees) > 1 else trees[0] for trees in examples]
        return [
            (trees, beliefs(saved, subject), occlusion(saved, subject, top))
            for trees, subject in zip(examples, subjects, strict=True)
        ]

    count = 0
    for window in prediction.windows(file, form, on_bad):
        if explain:
            # One by one: explanations are slow, and each is shown as soon as it is there.
            for record in window:
                for _, found in prediction.answered(saved, [record], explained, policy, on_bad):
                    _write_explanation(record.trees, *found, as_json=as_json)
                    count += 1
            continue
        for record, answer in prediction.answered(
            saved, window, lambda examples: prediction.answers(saved, examples), policy, on_bad
        ):
            typer.echo(json.dumps({**_as_text(record.trees), **answer}))
            count += 1
    if not count:
        err.print("no trees came in; nothing was predicted.")
    if on_bad is not None and on_bad.count:
        err.print(f"left out {on_bad.count:,}, answered {count:,}", style="yellow")


def embed(
    run: Run,
    file: Annotated[Path, typer.Argument(help="A file of trees, or a data set.", show_default=False)],
    out_file: Annotated[Path, typer.Option("--out", help="A .npy or .csv file to write.", show_default=False)],
    form: Format = None,
    unknown: Unknown = "error",
    skip_bad: SkipBad = False,
    force: Force = False,
    plugins: Plugins = None,
) -> None:
    """Write the states of the roots of trees, a row for each tree; of pairs, the left one's and then the right one's.

    Example: `treefold embed runs/hosvd formulas.txt --out states.npy`
    """
    if out_file.suffix not in (".npy", ".csv"):
        raise ConfigurationError(f"--out expects a name that ends in .npy or .csv, got {out_file.name!r}.")
    if not force and os.path.lexists(out_file):
        raise FileError(
            f"{out_file}: expected a name that is free, got one that exists; choose another, or use --force to replace it."
        )
    saved = load_model(run)
    policy = _policy(unknown)
    on_bad = _LeftOut() if skip_bad else None
    if (file / "dataset.json").is_file():
        records = (Record((tree,), None, f"{file}, tree {n}", None) for n, tree in enumerate(Dataset.open(file).forest))
        windows = prediction.gathered(records)
    else:
        windows = prediction.windows(file, form, on_bad)
    states: list[npt.NDArray[np.float32]] = []
    with progress("trees") as told:
        for window in windows:
            found = prediction.answered(
                saved, window, lambda examples: prediction.root_states(saved, examples), policy, on_bad
            )
            states += [rows for _, rows in found]
            told(len(states))
    table = np.concatenate([np.zeros((0, saved.model.encoder.out_size), np.float32), *states])
    buffer = io.BytesIO()
    if out_file.suffix == ".npy":
        np.save(buffer, table)
    else:
        np.savetxt(buffer, table, fmt="%.9g", delimiter=",")
    with atomic_file(out_file) as target:
        target.write(buffer.getvalue())
    left_out = f" ({on_bad.count:,} left out)" if on_bad is not None and on_bad.count else ""
    say(f"{out_file}: {len(table):,} states of size {table.shape[1]}{left_out}")


def describe(run: Run, as_json: Json = False, plugins: Plugins = None) -> None:
    """Show a model: its parts with parameters and multiply-adds a node, labels, classes, and how training went.

    Example: `treefold describe runs/hosvd`
    """
    facts = description(load_model(run), run)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        show_description(facts, str(run))


def compress(
    run: Run,
    out_folder: Annotated[Path, typer.Option("--out", help="The directory to make.", show_default=False)],
    aggregator: Annotated[str, typer.Option(help=f"The new form: {', '.join(AGGREGATORS)}.")] = "tucker",
    rank: Annotated[int | None, typer.Option(min=1, help="The rank of the new form.")] = None,
    data: Annotated[Path | None, typer.Option(help="A data set on which to compare the two.")] = None,
    force: Force = False,
    plugins: Plugins = None,
) -> None:
    """Decompose the tensors of a trained model into another form, with fewer parameters at a small rank.

    Example: `treefold compress runs/full --aggregator tucker --rank 3 --out runs/full-tucker --data data/listops`
    """
    require_replaceable(out_folder, force=force, sign=CONFIG)
    require_choice("compress", "aggregator", aggregator, AGGREGATORS)
    if rank is not None and not AGGREGATORS[aggregator].has_rank:
        raise ConfigurationError(f"{aggregator!r} expects no rank, got --rank {rank}; leave it out.")
    saved = load_model(run)
    examples = None if data is None else Dataset.open(data)
    _check_entries(saved)
    with progress("decomposing"):
        model = compress_model(saved.model, aggregator, rank=rank)
    changed = saved.settings.model.model_copy(update={"aggregator": aggregator, "rank": rank})
    settings = saved.settings.model_copy(update={"model": changed})
    small = SavedModel(model, settings, saved.labels, saved.classes, saved.outputs)
    errors = _relative_errors(saved, small)
    counts = [sum(parameter.numel() for parameter in each.model.parameters()) for each in (saved, small)]
    facts = {"from": run.name, "aggregator": aggregator, "rank": rank, "parameters": counts, "relative_errors": errors}
    with atomic_folder(out_folder, force=force, sign=CONFIG) as folder:
        small.save(folder)
        (folder / "compression.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        load_model(folder)  # what cannot be opened again is not kept
    say(f"{out_folder}: {counts[0]:,} parameters before, {counts[1]:,} after")
    say("relative error of each tensor")
    for name, error in sorted(errors.items(), key=lambda item: -item[1])[:_SHOWN_ERRORS]:
        say(f"  {error:.2e}  {name}")
    if len(errors) > _SHOWN_ERRORS:
        say(f"  … and {len(errors) - _SHOWN_ERRORS:,} smaller ones")
    if examples is not None:
        before, after = (measure(each, examples) for each in (saved, small))
        say(f"{saved.task.score_name} on {before.split}: {before.score:.4f} before, {after.score:.4f} after")


class _LeftOut:
    """Says at once what is left out, and counts it."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, problem: ReadError) -> None:
        self.count += 1
        err.print(f"left out: {problem}", markup=False, emoji=False, style="yellow")


def _policy(unknown: str) -> prediction.Unknown:
    require_choice("--unknown", "the policy", unknown, ["error", "absent"])
    return "absent" if unknown == "absent" else "error"


def _as_text(trees: tuple[Tree, ...]) -> dict[str, str]:
    names = ("tree",) if len(trees) == 1 else ("left", "right")
    return {name: str(tree) for name, tree in zip(names, trees, strict=True)}


def _write_explanation(
    given: tuple[Tree, ...], trees: tuple[Tree, ...], believed: Any, occluded: Any, *, as_json: bool
) -> None:
    if not as_json:
        show_explanation(trees, believed, occluded)
        return
    facts = occluded.to_json()
    answer = {"prediction": facts.pop("answer"), "probability": facts.pop("probability")}
    nodes = [{"label": b.label, "prediction": b.answer, "probability": b.probability} for b in believed]
    typer.echo(json.dumps({**_as_text(given), **answer, "beliefs": nodes, "occlusion": facts}))


def _check_entries(saved: SavedModel) -> None:
    for nodes, cell in cells_of(saved.model.encoder):
        for name, module in cell.named_children():
            if isinstance(module, Aggregator):
                entries = (module.state_size + 1) ** module.arity * ((module.label_size or 0) + 1) * module.out_size
                if entries > _MOST_ENTRIES:
                    raise ConfigurationError(
                        f"compress expects tensors of at most {_MOST_ENTRIES:,} entries, got {entries:,} in {name} of {nodes} "
                        f"(arity={module.arity}, state_size={module.state_size}); train the small form instead."
                    )


def _relative_errors(saved: SavedModel, small: SavedModel) -> dict[str, float]:
    """Return the distance of each new tensor from the old one, over the old one's norm."""
    errors: dict[str, float] = {}
    for (nodes, cell), (_, other) in zip(cells_of(saved.model.encoder), cells_of(small.model.encoder), strict=True):
        for name, module in cell.named_children():
            made = other.get_submodule(name)
            if isinstance(module, Aggregator) and isinstance(made, Aggregator):
                with torch.no_grad():
                    tensor = module.to_dense()
                    distance = (made.to_dense() - tensor).norm() / tensor.norm().clamp_min(1e-30)
                errors[f"{nodes}, {name}"] = float(distance)
    return errors
