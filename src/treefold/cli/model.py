"""Commands that use a trained model: evaluate, predict, embed, describe, compress."""

import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treefold.cli.console import WIDTH, Plugins, err, progress, say
from treefold.data.readers import READERS, SUFFIXES, format_of
from treefold.data.readers.stream import OnBad, Record, placed
from treefold.data.readers.tabular import Columns
from treefold.errors import (
    ConfigurationError,
    FileError,
    ParseError,
    ReadError,
    ServiceError,
    TreefoldError,
    require_choice,
)
from treefold.trees.drawing import fitted
from treefold.trees.tree import Tree

if TYPE_CHECKING:
    from treefold.analysis.evaluation import Evaluation
    from treefold.analysis.explaining import Belief, Occlusion
    from treefold.analysis.prediction import LabelCheck, Trees
    from treefold.data.convert import Reading
    from treefold.training import Task

Run = Annotated[Path, typer.Argument(help="The directory of a run or saved model.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace a file of this name, or a model with no other files in its directory.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out records that the model cannot answer, and print them.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help=f"One of {', '.join(READERS)}; by default, the suffix or the first character decides."
    ),
]
UnknownLabels = Annotated[
    str,
    typer.Option("--unknown", help="Labels that the model does not know: they count as `<unk>`, or are an `error`."),
]
_BAR: Final = 30
_SHOWN_ERRORS: Final = 16
_SCORES: Final = {
    "accuracy": "accuracy",
    "macro_f1": "macro-F1",
    "r2": "R²",
    "mae": "MAE",
    "rmse": "RMSE",
    "pearson": "Pearson",
    "mse": "MSE",
}


def evaluate(
    run: Run,
    data: Annotated[Path, typer.Argument(help="A data set, made by `treefold data`.", show_default=False)],
    split: Annotated[
        str | None,
        typer.Option(help="`train`, `validation`, `test` or `all`; by default `test` if it exists, otherwise `all`."),
    ] = None,
    unknown: UnknownLabels = "unk",
    as_json: Json = False,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also evaluate simple models.")] = False,
    plugins: Plugins = None,
) -> None:
    """Evaluate a model on a data set: accuracy, macro-F1, confusion matrix, groups by tree shape.

    For regression: R², MAE, RMSE, Pearson's correlation and MSE. Classes and labels are matched by name, so the data set may
    differ from that of the training.

    Example: `treefold evaluate runs/hosvd data/listops --split validation`
    """
    from treefold.analysis.baselines import MOST_EXAMPLES
    from treefold.analysis.baselines import baselines as evaluate_baselines
    from treefold.analysis.evaluation import evaluate as evaluate_model
    from treefold.analysis.evaluation import split_of
    from treefold.analysis.prediction import LabelCheck
    from treefold.data.dataset import Dataset
    from treefold.training.saving import load_model

    saved, examples = load_model(run), Dataset.open(data)
    if baselines and (saved.task.per_node or not saved.task.has_classes):
        raise ConfigurationError(
            f"--baselines expects a model that classifies trees or pairs, got one of task {saved.settings.task!r}; leave it out."
        )
    name, numbers = split_of(examples, split)
    check = LabelCheck(saved, unknown)
    with progress("evaluated", len(numbers)) as report:
        found = evaluate_model(saved, examples, name, progress=report, check=check)
    _say_unknown(check)
    extra: dict[str, Any] = {}
    if baselines:
        with progress("baselines"):
            extra["baselines"] = evaluate_baselines(examples, test_split=name)
        labelled = int((examples.targets[examples.splits["train"]] >= 0).sum())
        extra["baselines_trained_on"] = min(labelled, MOST_EXAMPLES)
    if as_json:
        typer.echo(json.dumps({**found.to_json(), **extra}))
        return
    _show_scores(found, saved.task)
    if baselines:
        count = extra["baselines_trained_on"]
        say(f"\naccuracy of baselines, trained on {count:,} examples" + (" of more" if labelled > count else ""))
        for name, score in extra["baselines"].items():
            say(f"  {name:<26} {score:.4f}")
    if found.confusion:
        _show_confusion(found)
    _show_groups(found, saved.task)


def predict(
    run: Annotated[
        Path | None,
        typer.Argument(help="The directory of a run or saved model; with --url, the file.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Argument(help="A file of trees; standard input if it is `-` or missing.", show_default=False),
    ] = None,
    form: Format = None,
    unknown: UnknownLabels = "unk",
    skip_bad: SkipBad = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the prediction at each node, and the subtrees that matter most.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="With --explain: how many subtrees to show.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print explanations as JSON lines too.")] = False,
    url: Annotated[
        str | None,
        typer.Option(help="Ask the service at this address, which `treefold serve` runs.", show_default=False),
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --url: the model to ask.", show_default=False)] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="TREEFOLD_API_KEY", help="With --url: the key of the service.", show_default=False),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Predict the classes or numbers of trees from a file or from standard input.

    Input: one s-expression a line, JSON lines with `tree` or with `left` and `right`, or another format. Output: one JSON
    object a line with `prediction` and `probabilities`; for models of nodes, lists in post-order. Answers appear as lines
    arrive. The first bad line ends the command with its line number, unless `--skip-bad`. Files of the format of the training
    data are read with the same options, and their wide nodes are rewritten in the same way.

    With `--url`, a running service answers instead of a run, and the only argument is the file.

    Example: `echo "(MAX 2 (MIN 3 4))" | treefold predict runs/hosvd --explain`
    """
    if sys.stdout is None:
        raise FileError(
            "expected a standard output for the answers, got a closed one; write to a file, or to /dev/null."
        )
    if url is not None:
        if explain or file is not None:
            got = "--explain" if explain else f"{run} and {file}"
            raise ConfigurationError(
                f"--url expects a file of trees at most, got {got}; leave it out (treefold.Client has explain, too)."
            )
        _predict_remotely(url, api_key, model, run, form, unknown, skip_bad)
        return
    if run is None:
        raise ConfigurationError("predict expects the directory of a run, got none; name it, or a service with --url.")
    from treefold.analysis.explaining import beliefs, occlusion
    from treefold.analysis.prediction import LabelCheck, answered, answers, require_task_fits
    from treefold.training.run import made_of
    from treefold.training.saving import load_model

    saved = load_model(run)
    check = LabelCheck(saved, unknown)
    on_bad = _PrintBad() if skip_bad else None

    def explained(examples: "list[Trees]") -> list[tuple[Any, ...]]:
        require_task_fits(saved, examples)
        subjects: list[Any] = [trees if len(trees) > 1 else trees[0] for trees in examples]
        return [
            (trees, beliefs(saved, subject), occlusion(saved, subject, top))
            for trees, subject in zip(examples, subjects, strict=True)
        ]

    count = 0
    for window in _windows(made_of(run), file, form, on_bad):
        if explain:
            for record in window:  # one at a time: explanations are slow, and each is shown when it is ready
                for _, (trees, believed, occluded) in answered([record], explained, check, on_bad):
                    if as_json:
                        typer.echo(json.dumps({**_as_text(record.trees), **_explanation(believed, occluded)}))
                    else:
                        _show_explanation(trees, believed, occluded)
                    count += 1
            continue
        for record, answer in answered(window, lambda examples: answers(saved, examples), check, on_bad):
            typer.echo(json.dumps({**_as_text(record.trees), **answer}))
            count += 1
    _say_unknown(check)
    _say_counts(count, on_bad)


def embed(
    run: Run,
    file: Annotated[Path, typer.Argument(help="A file of trees, or a data set.", show_default=False)],
    out_file: Annotated[Path, typer.Option("--out", help="The .npy or .csv file to write.", show_default=False)],
    form: Format = None,
    unknown: UnknownLabels = "unk",
    skip_bad: SkipBad = False,
    force: Force = False,
    plugins: Plugins = None,
) -> None:
    """Write the root states of trees to a .npy or .csv file.

    One row for each tree; for pairs, the left tree and then the right tree. Files are read as `predict` reads them.

    Example: `treefold embed runs/hosvd formulas.txt --out states.npy`
    """
    if out_file.suffix not in (".npy", ".csv"):
        raise ConfigurationError(f"--out expects a name that ends in .npy or .csv, got {out_file.name!r}.")
    if not force and os.path.lexists(out_file):
        raise FileError(
            f"{out_file}: expected a name that is free, got one that exists; choose another, or use --force to replace it."
        )
    import numpy as np

    from treefold.analysis.prediction import LabelCheck, answered, root_states
    from treefold.data.dataset import FACTS, Dataset
    from treefold.files import atomic_file
    from treefold.training.run import made_of
    from treefold.training.saving import load_model

    saved = load_model(run)
    check = LabelCheck(saved, unknown)
    on_bad = _PrintBad() if skip_bad else None
    if (file / FACTS).is_file():
        records = (Record((tree,), None, f"{file}, tree {n}", None) for n, tree in enumerate(Dataset.open(file).forest))
        windows = _gathered(records)
    else:
        windows = _windows(made_of(run), file, form, on_bad)
    states = [np.zeros((0, saved.model.encoder.out_size), np.float32)]
    with progress("trees") as report:
        for window in windows:
            found = answered(window, lambda examples: root_states(saved, examples), check, on_bad)
            states += [rows for _, rows in found]
            report(len(states) - 1)
    table = np.concatenate(states)
    buffer = io.BytesIO()
    if out_file.suffix == ".npy":
        np.save(buffer, table)
    else:
        np.savetxt(buffer, table, fmt="%.9g", delimiter=",")
    with atomic_file(out_file) as target:
        target.write(buffer.getvalue())
    _say_unknown(check)
    left_out = f" ({on_bad.count:,} left out)" if on_bad is not None and on_bad.count else ""
    say(f"{out_file}: {len(table):,} states of size {table.shape[1]}{left_out}")


def describe(run: Run, as_json: Json = False, plugins: Plugins = None) -> None:
    """Show the parts of a model, their parameters and costs, and how training went.

    Costs are multiply-adds for each node.

    Example: `treefold describe runs/hosvd`
    """
    from treefold.analysis.description import describe as describe_model
    from treefold.training.saving import load_model

    facts = describe_model(load_model(run), run)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _show_description(facts, str(run))


def compress(
    run: Run,
    out_folder: Annotated[Path, typer.Option("--out", help="The directory to write.", show_default=False)],
    aggregator: Annotated[
        str, typer.Option(help="The new form, such as `tucker` or `canonical`; an unknown name lists all forms.")
    ] = "tucker",
    rank: Annotated[int | None, typer.Option(min=1, help="The rank of the new form.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="The size of the blocks of `blockwise`.")] = None,
    data: Annotated[Path | None, typer.Option(help="A data set on which to compare both models.")] = None,
    force: Force = False,
    plugins: Plugins = None,
) -> None:
    """Decompose the tensors of a trained model into a form with fewer parameters.

    The smaller the rank, the fewer the parameters, and the larger the error.

    Example: `treefold compress runs/full --aggregator tucker --rank 3 --out runs/full-tucker --data data/listops`
    """
    from treefold.analysis.description import relative_errors, require_dense_fits
    from treefold.analysis.evaluation import evaluate as evaluate_model
    from treefold.data.dataset import Dataset
    from treefold.files import atomic_folder, require_replaceable
    from treefold.nn.aggregators import form_named
    from treefold.nn.model import compress as compress_model
    from treefold.training.run import ENVIRONMENT
    from treefold.training.saving import MODEL, load_model

    require_replaceable(out_folder, MODEL if force else None)
    form = form_named(aggregator, "compress")
    if rank is not None and not form.has_rank:
        raise ConfigurationError(f"{aggregator!r} expects no rank, got --rank {rank}; leave it out.")
    saved = load_model(run)
    examples = None if data is None else Dataset.open(data)
    require_dense_fits(saved)
    with progress("decomposing"):
        options = {} if block_size is None else {"block_size": block_size}
        model = compress_model(saved.model, aggregator, rank=rank, **options)
    shared = saved.settings.model.shared or form.always_shared
    form_changes = {"aggregator": aggregator, "rank": rank, "block_size": block_size, "start": None, "bound": None}
    old = saved.settings.model
    own = {name: each.model_copy(update=form_changes) for name, each in old.aggregators.items()}
    changed = old.model_copy(update={**form_changes, "shared": shared, "aggregators": own})
    settings = saved.settings.model_copy(update={"model": changed})
    small = replace(saved, model=model, settings=settings)
    errors = relative_errors(saved, small)
    counts = [sum(parameter.numel() for parameter in each.model.parameters()) for each in (saved, small)]
    facts = {"from": run.name, "aggregator": aggregator, "rank": rank, "parameters": counts, "relative_errors": errors}
    with atomic_folder(out_folder, MODEL if force else None) as folder:
        small.save(folder)
        if (run / ENVIRONMENT).is_file():  # how to read trees
            shutil.copyfile(run / ENVIRONMENT, folder / ENVIRONMENT)
        (folder / "compression.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        load_model(folder)  # keep only a model that can be loaded again
    say(f"{out_folder}: {counts[0]:,} parameters before, {counts[1]:,} after")
    say("relative error of each tensor")
    for name, error in sorted(errors.items(), key=lambda item: -item[1])[:_SHOWN_ERRORS]:
        say(f"  {error:.2e}  {name}")
    if len(errors) > _SHOWN_ERRORS:
        say(f"  … and {len(errors) - _SHOWN_ERRORS:,} smaller ones")
    if examples is not None:
        before, after = (evaluate_model(each, examples) for each in (saved, small))
        say(f"{saved.task.score_name} on {before.split}: {before.score:.4f} before, {after.score:.4f} after")


class _PrintBad:
    """Prints each record that is left out, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, problem: ReadError) -> None:
        self.count += 1
        say(f"left out: {problem}", to=err, style="yellow")


def _say_unknown(check: "LabelCheck") -> None:
    note = check.note()
    if note is not None:
        say(note, to=err)


def _say_counts(count: int, on_bad: _PrintBad | None) -> None:
    if not count:
        say("no trees came in; nothing was predicted.", to=err)
    if on_bad is not None and on_bad.count:
        say(f"left out {on_bad.count:,}, answered {count:,}", to=err, style="yellow")


def _predict_remotely(
    url: str, api_key: str | None, name: str | None, file: Path | None, form: str | None, unknown: str, skip_bad: bool
) -> None:
    """Read trees here, as the training data were read, and let a service answer."""
    from treefold.service.client import Client

    require_choice("--unknown", "the policy", unknown, ["unk", "error"])
    client = Client(url, api_key)
    models = {facts["name"]: facts for facts in client.models()}
    if name is not None:
        require_choice(url, "model", name, models)
    made = models[name or next(iter(models))]["made"]
    on_bad = _PrintBad() if skip_bad else None
    count, noted, note = 0, 0, ""

    def answered(records: list[Record]) -> Iterator[tuple[Record, dict[str, Any]]]:
        try:
            found = client.answers([record.trees for record in records], model=name, unknown=unknown)
        except ServiceError:
            raise
        except TreefoldError as problem:
            if len(records) > 1:  # one by one, to find the bad record
                for record in records:
                    yield from answered([record])
                return
            error = ReadError(str(problem), source=records[0].source, line=records[0].line)
            if on_bad is None:
                raise error from None
            on_bad(error)
            return
        yield from zip(records, found, strict=True)

    for window in _windows(made, file, form, on_bad):
        for record, answer in answered(window):
            found = answer.pop("notes", ())
            noted, note = noted + bool(found), note or next(iter(found), "")
            typer.echo(json.dumps({**_as_text(record.trees), **answer}))
            count += 1
    if noted:
        say(f"note: {noted:,} of {count:,} answers have notes; the first: {note}", to=err)
    _say_counts(count, on_bad)


def _as_text(trees: tuple[Tree, ...]) -> dict[str, str]:
    names = ("tree",) if len(trees) == 1 else ("left", "right")
    return {name: str(tree) for name, tree in zip(names, trees, strict=True)}


def _explanation(believed: "list[Belief]", occluded: "Occlusion") -> dict[str, Any]:
    facts = occluded.to_json()
    answer = {"prediction": facts.pop("answer"), "probability": facts.pop("probability")}
    nodes = [{"label": b.label, "prediction": b.answer, "probability": b.probability} for b in believed]
    return {**answer, "beliefs": nodes, "occlusion": facts}


# Reading: records come in windows, whose trees the model answers together.

_STANDARD_INPUT: Final = "standard input"
_WINDOW: Final = 256  # records
_WINDOW_NODES: Final = 50_000
_CHUNK: Final = 1 << 16


def _windows(
    made: Mapping[str, Any], source: Path | None, form: str | None, on_bad: OnBad | None
) -> Iterator[list[Record]]:
    """Read records: large windows from a file; from standard input or a pipe, the records that have arrived.

    ``made`` is how the training data were made.
    """
    from treefold.data.convert import formats_of

    if source is None or str(source) == "-":
        return _gathered(_arriving(form, made, on_bad))
    suffix = source.suffix.lower()
    form = form or formats_of(made).get(suffix) or format_of(source)
    require_choice("--format", "the format", form, READERS)
    return _gathered(_of_file(source, _reading(made, form, suffix), on_bad))


def _reading(made: Mapping[str, Any], form: str, suffix: str | None = None) -> "Reading":
    """Return how the training data of this format was read; say what the user may not expect."""
    from treefold.data.convert import formats_of, reading_of

    reading = reading_of(made, form).for_prediction()
    is_surprise = suffix is not None and form == formats_of(made).get(suffix) != SUFFIXES.get(suffix)
    changes = [f"format {form}"] * is_surprise + reading.changes()
    if changes:
        say(f"reading as the training data: {', '.join(changes)}", to=err)
    return reading


def _gathered(items: Iterable[Record | None]) -> Iterator[list[Record]]:
    """Gather records into windows; None closes the current window, and so does an error, before it is raised."""
    window: list[Record] = []
    nodes = 0
    try:
        for item in items:
            if item is not None:
                window.append(item)
                nodes += sum(tree.size for tree in item.trees)
            if window and (item is None or len(window) >= _WINDOW or nodes >= _WINDOW_NODES):
                yield window
                window, nodes = [], 0
    except TreefoldError:
        if window:
            yield window
        raise
    if window:
        yield window


def _of_file(source: Path, reading: "Reading", on_bad: OnBad | None) -> Iterator[Record | None]:
    is_pipe = source.exists() and not source.is_file()  # the next record may take long to arrive
    for record in reading.records(source, on_bad):
        yield record
        if is_pipe:
            yield None


def _arriving(form: str | None, made: Mapping[str, Any], on_bad: OnBad | None) -> Iterator[Record | None]:
    """Read standard input, one record a line; yield None after the lines that have arrived."""
    if form is not None and form not in ("sexpr", "jsonl"):
        raise ConfigurationError(
            f"--format expects 'sexpr' or 'jsonl' for standard input, got {form!r}; give the name of a file."
        )
    number, reading = 0, None
    for lines in _arriving_lines():
        for data in lines:
            number += 1
            try:
                text = _decoded(data, number).strip()
                if not text:
                    continue
                if reading is None:
                    reading = _reading(made, form or ("jsonl" if text.startswith("{") else "sexpr"))
                if reading.format == "sexpr" and text.startswith(("#", ";")):
                    continue
                record = reading.shaped(_parsed(text, reading, number))
            except ReadError as error:
                if on_bad is None:
                    raise
                on_bad(error)
            else:
                yield record
        yield None


def _arriving_lines() -> Iterator[list[bytes]]:
    """Yield the complete lines on standard input, as soon as some have arrived."""
    if sys.stdin is None:
        raise ReadError("expected trees, got closed input; name a file, or pipe trees into it", source=_STANDARD_INPUT)
    pieces: list[bytes] = []
    while chunk := sys.stdin.buffer.read1(_CHUNK):  # type: ignore[union-attr]
        if b"\n" not in chunk:
            pieces.append(chunk)
            continue
        first, *lines = chunk.split(b"\n")
        yield [b"".join([*pieces, first]), *lines[:-1]]
        pieces = [lines[-1]]
    if any(pieces):
        yield [b"".join(pieces)]


def _decoded(data: bytes, number: int) -> str:
    try:
        return data.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as problem:
        raise ReadError(
            f"expected UTF-8, got the byte 0x{data[problem.start]:02x}; convert the text",
            source=_STANDARD_INPUT,
            line=number,
        ) from None


def _parsed(text: str, reading: "Reading", number: int) -> Record:
    if reading.format == "sexpr":
        try:
            return Record((Tree.parse(text),), None, _STANDARD_INPUT, number)
        except ParseError as problem:
            raise placed(problem, _STANDARD_INPUT, number) from None
    try:
        row = json.loads(text)
        got = type(row).__name__
    except RecursionError:
        row, got = None, "one nested too deeply"
    except ValueError as problem:
        row, got = None, str(problem)
    if not isinstance(row, dict):
        raise ReadError(
            f"expected a JSON object, got {got}; write one object a line", source=_STANDARD_INPUT, line=number
        )
    columns = Columns(*(reading.options.get(f"{role}_key", role) for role in ("tree", "left", "right", "label")))
    return columns.record(row, source=_STANDARD_INPUT, line=number)


# Printing, in 80 columns.


def _show_scores(found: "Evaluation", task: "Task") -> None:
    part = "all examples" if found.split == "all" else f"the {found.split} split"
    unlabelled = f", {found.unlabelled:,} without a label left out" if found.unlabelled else ""
    say(f"on {part}: {found.count:,} {task.judged}s{unlabelled}")
    for name, score in found.scores.items():
        say(f"  {_SCORES[name]:<9} {score:.4f}")
    say(f"  {'mean loss':<9} {found.loss:.4f}")


def _show_groups(found: "Evaluation", task: "Task") -> None:
    owner = "larger tree" if task.trees == 2 else "tree"
    for shape, groups in found.groups.items():
        say(
            f"\n{task.group_score_name} by {'number of inner nodes' if shape == 'inner_nodes' else shape} of the {owner}"
        )
        width = max(len(name) for name in groups)
        most = max(1.0, *(group.score for group in groups.values()))
        for name, group in groups.items():
            bar = "█" * round(_BAR * group.score / most)
            say(f"  {name:>{width}} {group.count:>9,} {group.score:>8.4f} {bar}".rstrip())


def _show_confusion(found: "Evaluation") -> None:
    """Print the matrix if it fits, otherwise the most frequent mistakes."""
    widest = max(len(f"{count:,}") for row in found.confusion for count in row)
    column = max(widest, min(8, max(len(name) for name in found.classes))) + 1
    lead = min(16, max(len("class"), *(len(name) for name in found.classes)))
    if lead + 2 + column * len(found.classes) <= WIDTH:
        say("\nconfusion: the class in rows, the answer in columns")
        say(f"  {'class':<{lead}}" + "".join(f"{fitted(name, column - 1):>{column}}" for name in found.classes))
        for name, row in zip(found.classes, found.confusion, strict=True):
            say(f"  {fitted(name, lead):<{lead}}" + "".join(f"{count or '·':>{column}}" for count in row))
        return
    mistakes = [
        (count, name, answer)
        for name, row in zip(found.classes, found.confusion, strict=True)
        for answer, count in zip(found.classes, row, strict=True)
        if count and answer != name
    ]
    say(f"\nmost frequent of {sum(count for count, *_ in mistakes):,} mistakes (the whole matrix: --json)")
    for count, name, answer in sorted(mistakes, key=lambda mistake: -mistake[0])[:10]:
        say(f"  {count:>9,}  {fitted(name, 24)} taken for {fitted(answer, 24)}")


def _show_description(facts: dict[str, Any], name: str) -> None:
    """Print a model; equal parts of many cells share a line."""
    say(name)
    settings, classes, labels = facts["model"], facts["classes"], facts["labels"]
    shown = ("cell", "aggregator", "state_size", "rank", "arity", "shared", "siblings", "readout", "direction")
    rows = {
        "task": facts["task"] + (f", {len(classes)} classes: {', '.join(classes)}" if classes else ""),
        "operators": f"{len(facts['operators'])}: {', '.join(facts['operators'])}"
        if facts["operators"]
        else "none; all labels share the cells",
        "labels": f"{len(labels)} as {settings['labels']}" + (f": {', '.join(labels)}" if labels else ""),
        "settings": ", ".join(f"{key} {settings[key]}" for key in shown if settings.get(key)),
    }
    for row, value in rows.items():
        _say_wrapped(f"  {row:<10} ", value)
    for reason in facts["reasons"]:
        _say_wrapped(f"  {'why':<10} ", reason)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for part in facts["parts"]:
        groups.setdefault((part["kind"], part["sizes"], part["multiply_adds"]), []).append(part)
    say(f"\n  {'parameters':>11} {'multiply-adds':>14}  part")
    for parts in groups.values():
        first = parts[0]
        times = f"{len(parts)} × " if len(parts) > 1 else ""
        say(f"  {times + format(first['parameters'], ','):>11} {first['multiply_adds']:>14,}  {first['kind']}")
        names, nodes = (list(dict.fromkeys(part[key] for part in parts)) for key in ("name", "nodes"))
        for text in (", ".join(names) + " of " + ", ".join(nodes), first.get("equation", first["sizes"])):
            _say_wrapped(" " * 30, text)
    say(f"  {facts['parameters']:>11,} {'':>14}  in all")
    if (training := facts["training"]) is not None:
        best = (
            f"; best on validation {training['best_validation_score']:.4f}, after epoch {training['best_epoch']}"
            if "best_epoch" in training
            else ""
        )
        say(f"\ntrained for {training['epochs']} epochs in {training['seconds']:,.1f} s{best}")


def _show_explanation(trees: tuple[Tree, ...], believed: "list[Belief]", occluded: "Occlusion") -> None:
    """Print each tree with the predictions at its nodes, and the subtrees that matter most."""
    from treefold.analysis.explaining import Explanation

    most = max(len(occluded.effects), len(occluded.features))
    say(Explanation(trees, tuple(believed), occluded, top=most).draw())
    say()


def _say_wrapped(lead: str, text: str) -> None:
    """Print at most three lines of text after a lead."""
    width = WIDTH - len(lead)
    for line in textwrap.wrap(fitted(text, 3 * width - 20), width) or [""]:
        say(lead + line)
        lead = " " * len(lead)
