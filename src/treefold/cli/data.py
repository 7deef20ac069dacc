"""`treefold data`: generate, convert and inspect data sets."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treefold.cli.console import Plugins, Skipped, err, out, progress, say
from treefold.data.readers import READERS
from treefold.errors import ConfigurationError, FileError
from treefold.trees.drawing import fitted

if TYPE_CHECKING:
    from treefold.data.dataset import Dataset

_BAR: Final = 30

app = typer.Typer(
    help="Make, convert and inspect data sets.\n\nA data set is a directory of trees, labels and splits.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Out = Annotated[Path, typer.Option("--out", help="The directory to write; it must not exist yet.", show_default=False)]
Force = Annotated[
    bool, typer.Option("--force", help="Replace the directory, if it is a data set with no other files in it.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same data, on every machine.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out records that cannot be read, and list them.")]
From = Annotated[
    list[Path] | None,
    typer.Option("--from", help="Read this file of the original format instead of generating; may be repeated."),
]


@app.command()
def listops(
    out_folder: Out,
    size: Annotated[int, typer.Option(min=1, help="How many distinct trees to generate.")] = 100_000,
    seed: Seed = 0,
    source: From = None,
    max_depth: Annotated[int, typer.Option(min=1, help="Nodes at this depth are digits.")] = 20,
    value_probability: Annotated[float, typer.Option(min=0, max=1, help="Probability that a node is a digit.")] = 0.75,
    min_operands: Annotated[int, typer.Option(min=1, help="Fewest operands.")] = 2,
    max_operands: Annotated[
        int, typer.Option(min=1, help="Most operands, which is also the number of child slots.")
    ] = 5,
    operators: Annotated[str, typer.Option(help="Operators, separated by commas.")] = "MIN,MAX,MED,SM",
    max_nodes: Annotated[int | None, typer.Option(min=1, help="Draw again if a tree has more nodes.")] = None,
    placement: Annotated[
        str, typer.Option(help="`left` fills the child slots from the left, `random` spreads the empty ones.")
    ] = "left",
    skip_bad: SkipBad = False,
    force: Force = False,
) -> None:
    """Make ListOps (Nangia & Bowman 2018): nested MIN, MAX, MED and SM of digits; the class is the value.

    Splits of generated data: 82 % train, 8 % validation, 10 % test. Files read with `--from` are all test data. The value
    of every subtree is written as a node label.

    Example: `treefold data listops --out data/listops --size 20000`
    """
    from treefold.data.generators import load_listops, make_listops
    from treefold.data.generators.listops import ListOpsSettings

    _check_out(out_folder, force, source or [])
    skipped = Skipped()
    if source:
        with progress("reading"):
            data = load_listops(
                source,
                placement=placement,  # type: ignore[arg-type]
                seed=seed,
                on_bad=skipped if skip_bad else None,
            )
    else:
        settings = ListOpsSettings(
            max_depth=max_depth,
            value_probability=value_probability,
            min_operands=min_operands,
            max_operands=max_operands,
            operators=tuple(name.strip() for name in operators.split(",")),
            max_nodes=max_nodes,
            placement=placement,  # type: ignore[arg-type]
        )
        with progress("ListOps trees", size) as report:
            data = make_listops(size, seed, settings, report)
    _save(data, out_folder, force, skipped)


@app.command()
def lrt(
    out_folder: Out,
    draws: Annotated[
        int,
        typer.Option(
            "--draws", "--size", min=1, help="Number of accepted draws; about half of the pairs are distinct."
        ),
    ] = 500_000,
    seed: Seed = 0,
    source: From = None,
    test_share: Annotated[
        float, typer.Option(min=0, max=0.9, help="With --from: the share of each bin that is test data.")
    ] = 0.15,
    train_operators: Annotated[
        int, typer.Option(min=0, max=12, help="The most operators of a pair of the training data.")
    ] = 4,
    skip_bad: SkipBad = False,
    force: Force = False,
) -> None:
    """Make LRT (Bowman et al. 2015): the logical relation between two propositional formulas.

    Pairs are binned by the larger number of operators, 0 to 12. In each bin, 15 % are test data and 10 % of the rest
    validation data; of the remaining pairs, those with at most 4 operators are training data. `--from` reads the original
    files `train0` … `train12` and splits them in the same way.

    Example: `treefold data lrt --out data/lrt --from train0 --from train1`
    """
    from treefold.data.generators import load_lrt, make_lrt

    _check_out(out_folder, force, source or [])
    skipped = Skipped()
    if source:
        with progress("reading"):
            data = load_lrt(
                source,
                seed=seed,
                test_share=test_share,
                train_operators=train_operators,
                on_bad=skipped if skip_bad else None,
            )
    else:
        with progress("LRT draws", draws) as report:
            data = make_lrt(draws, seed, report, train_operators=train_operators)
    _save(data, out_folder, force, skipped)


_ANY_OPTIONS: Final = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command(hidden=True, context_settings=_ANY_OPTIONS)
def glycans() -> None:
    """Moved to examples/glycans.py."""
    raise _moved("glycans")


@app.command(hidden=True, context_settings=_ANY_OPTIONS)
def metamath() -> None:
    """Moved to examples/metamath.py."""
    raise _moved("metamath")


def _moved(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"`treefold data {name}` is now an example program of the repository; "
        f"run `python examples/{name}.py [FILE] --out DIR`, which has the same options (FILE for --path)."
    )


@app.command(name="convert")
def convert_command(
    out_folder: Out,
    inputs: Annotated[
        list[Path] | None, typer.Argument(help="Files, or folders with files.", show_default=False)
    ] = None,
    train: Annotated[
        list[Path] | None,
        typer.Option(help="Training files, instead of a share of all files; may be repeated, as the next two."),
    ] = None,
    validation: Annotated[
        list[Path] | None, typer.Option(help="Validation files; without them, a share of the training examples.")
    ] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Test files.")] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help=f"One of {', '.join(READERS)}; by default, the suffix of each file decides."),
    ] = None,
    labels: Annotated[
        str, typer.Option(help="Take classes from the `record` (a column or key) or the `folder`; or `none`.")
    ] = "record",
    label_file: Annotated[Path | None, typer.Option(help="Take classes from this file instead, one a line.")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="What the labels are: classes of a `tree`, a `pair` or each `node`, or numbers, `regression`. By default "
            "classes, but numbers if all are numbers and some are not whole."
        ),
    ] = None,
    tree_column: Annotated[str | None, typer.Option(help="The column (or key) with the trees of a table.")] = None,
    left_column: Annotated[str | None, typer.Option(help="The column with the left trees of pairs.")] = None,
    right_column: Annotated[str | None, typer.Option(help="The column with the right trees of pairs.")] = None,
    label_column: Annotated[str | None, typer.Option(help="The column with the labels of a table.")] = None,
    literals: Annotated[
        str,
        typer.Option(
            help="Strings and numbers of programs and documents: `type` cuts them to their type (`int`, `string`), but for "
            "documents' strings of one short word; `keep` makes each a label."
        ),
    ] = "type",
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the format, `text=true` or `names=false`; may be repeated."),
    ] = None,
    max_arity: Annotated[int | None, typer.Option(min=1, help="The largest number of children of a node.")] = None,
    wide: Annotated[
        str, typer.Option(help="Nodes with more children: `error`, `binarise` (left child, right sibling) or `group`.")
    ] = "error",
    split: Annotated[str, typer.Option(help="Shares of train, validation and test data.")] = "0.8,0.1,0.1",
    seed: Seed = 0,
    skip_bad: SkipBad = False,
    force: Force = False,
    plugins: Plugins = None,
) -> None:
    """Convert your own files to a data set.

    Formats: s-expressions and Penn brackets; brackets with a class at each node (SST); JSON documents; JSONL, CSV, TSV and
    Parquet with the columns `tree` (or `left` and `right`) and `label`; XML and HTML; Python and other source code; CoNLL-U.
    Equal trees go to the same split.

    Example: `treefold data convert reviews/ --format html --labels folder --max-arity 8 --wide group --out data/reviews`,
    `treefold data convert --train train.txt --validation dev.txt --test test.txt --format sst --out data/sst`
    """
    from treefold.data.convert import Conversion, convert

    splits = {"train": train or [], "validation": validation or [], "test": test or []}
    given = [path for paths in splits.values() for path in paths]
    if bool(inputs) == bool(given):
        raise ConfigurationError(
            f"convert expects files, or files for --train, --validation and --test, got {'both' if given else 'none'}; "
            f"name the files in one of these ways."
        )
    _check_out(out_folder, force, [*(inputs or given), *([label_file] if label_file else [])])
    skipped = Skipped()
    columns = {"tree": tree_column, "left": left_column, "right": right_column, "label": label_column}
    conversion = Conversion(
        format=form,
        options=dict(_key_value(item) for item in option or []),
        labels=labels,  # type: ignore[arg-type]
        label_file=label_file,
        literals=literals,  # type: ignore[arg-type]
        columns={role: name for role, name in columns.items() if name is not None},
        task=task,
        max_arity=max_arity,
        wide=wide,  # type: ignore[arg-type]
        fractions=_fractions(split),
        seed=seed,
    )
    with progress("records") as report:
        data = convert(inputs or splits, conversion, on_bad=skipped if skip_bad else None, progress=report)
    _save(data, out_folder, force, skipped)
    _say_assumptions(data, task, validation_is_share=bool(train) and not validation)


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A data set.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="First read and check all data.")] = False,
) -> None:
    """Show sizes, depths, arities, class balance, duplicates between splits, and three trees of a data set.

    Example: `treefold data inspect data/listops`
    """
    from treefold.data.dataset import Dataset
    from treefold.data.inspection import inspect as facts_of

    facts = facts_of(Dataset.open(folder, verify=verify or None))
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
    else:
        _show(facts, str(folder))


def _check_out(folder: Path, force: bool, inputs: Sequence[Path] = ()) -> None:
    """Refuse before minutes of work a folder that exists, or that holds the inputs."""
    from treefold.data.dataset import DATASET
    from treefold.files import require_replaceable

    require_replaceable(folder, DATASET if force else None)
    for each in inputs:
        if each.resolve().is_relative_to(folder.resolve()):
            raise FileError(
                f"{folder}: expected a directory apart from the inputs, got one that holds {each}; choose another."
            )


def _save(data: "Dataset", folder: Path, force: bool, skipped: Skipped) -> None:
    data.save(folder, force=force, texts=skipped.files())
    skipped.report()
    parts = ", ".join(f"{len(part):,} {name}" for name, part in data.splits.items())
    unused = len(data) - sum(len(set(part.tolist())) for part in data.splits.values())
    parts += f", {unused:,} in no split" if unused else ""
    kind = "pairs" if data.pairs else "trees"
    targets = f"{len(data.classes):,} classes"
    if data.task == "regression" and data.classes:
        numbers = [float(name) for name in data.classes]
        targets = f"numbers from {min(numbers):g} to {max(numbers):g}"
    say(f"{folder}: {len(data):,} {kind}, {data.forest.node_count:,} nodes, {targets} ({parts})")
    say(f"look at it: treefold data inspect {folder}")


def _say_assumptions(data: "Dataset", task: str | None, *, validation_is_share: bool) -> None:
    """Print what a conversion assumed about labels and splits."""
    from treefold.data.dataset import number_of

    if task is None and data.task == "regression":
        other = "pair" if data.pairs else "tree"
        say(f"labels are numbers, not all whole: taken as numbers; use --task {other} if they are classes", to=err)
    elif task is None and data.classes and all(number_of(name) is not None for name in data.classes):
        say("labels are whole numbers: taken as classes; use --task regression if they are numbers", to=err)
    if validation_is_share and len(data.splits["validation"]):
        say("no --validation: a share of the training examples is for validation", to=err)
    empty = [name for name, part in data.splits.items() if not len(part)]
    if empty:
        say(
            f"no examples for {' and '.join(empty)}: add examples, change --split, or name files for each split", to=err
        )


def _key_value(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals:
        raise ConfigurationError(f"--option expects key=value, got {item!r}; write --option {item}=true.")
    return key.strip().replace("-", "_"), value.strip()


def _fractions(text: str) -> tuple[float, float, float]:
    try:
        train, validation, test = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(f"--split expects three shares such as 0.8,0.1,0.1, got {text!r}.") from None
    return train, validation, test


def _show(facts: dict[str, Any], name: str) -> None:
    """Print the statistics of a data set in 80 columns."""
    from treefold.data.inspection import DRAWN_NODES
    from treefold.trees.tree import Tree

    say(name, style="bold")
    made = ", ".join(f"{key} {value}" for key, value in facts["made"].items() if key != "settings")
    rows = {
        "pairs" if facts["pairs"] else "trees": f"{facts['examples']:,}",
        "nodes": f"{facts['nodes']:,}, {facts['mean_size']:.1f} a tree",
        "depth": f"{facts['mean_depth']:.2f} on average, greatest {facts['depth']}",
        "arity": f"greatest {facts['arity']}",
        "labels": f"{facts['labels']:,}: {', '.join(facts['most_frequent_labels'])}",
        "splits": ", ".join(f"{split} {count:,}" for split, count in facts["splits"].items()) or "none",
        "task": facts.get("task", ""),
        "made by": made,
    }
    for row, value in rows.items():
        if value:
            say(f"  {row:<8} {fitted(value, 68)}")
    _bars("nodes of a tree", facts["sizes"])
    _bars("depth of a tree", facts["depths"])
    _bars("children of a node", facts["arities"])
    _bars("number" if facts.get("task") == "regression" else "class", facts["classes"]["all"])
    say("\nequal examples", style="bold")
    for place, count in facts["duplicates"].items():
        out.print(f"  {place:<24} {count:,}", end="")
        say("  ← the test is not independent" if count and place != "within all" else "", style="yellow")
    for text in facts["drawn"]:
        say()
        for line in Tree.parse(text).draw(max_nodes=DRAWN_NODES, max_depth=8).split("\n"):
            say("  " + fitted(line, 76))


def _bars(title: str, counts: dict[str, int]) -> None:
    if not counts:
        return
    say(f"\n{title}", style="bold")
    shown = dict(Counter(counts).most_common(20)) if len(counts) > 20 else counts
    most, total = max(counts.values()), sum(counts.values())
    width = min(24, max(len(name) for name in shown))
    for name, count in shown.items():
        bar = "█" * max(round(_BAR * count / most), 1 if count else 0)
        say(f"  {fitted(name, width):<{width}} {count:>10,} {count / total:>6.1%} {bar}")
    if len(shown) < len(counts):
        say(f"  … and {len(counts) - len(shown):,} more")
