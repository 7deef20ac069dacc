"""`treefold data`: make the data sets of the paper, convert own files, look at what there is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from treefold.cli.console import Skipped, out, progress
from treefold.cli.inspection import findings, show
from treefold.data.convert import Conversion, convert
from treefold.data.dataset import FACTS, Dataset
from treefold.data.generators import load_listops, load_lrt, make_listops, make_lrt
from treefold.data.generators.listops import OPERATORS, ListOpsSettings
from treefold.data.readers import READERS
from treefold.errors import ConfigurationError, FileError
from treefold.files import require_replaceable

app = typer.Typer(
    help="Make, convert and inspect data sets. A data set is a directory with trees, labels, splits and how it was made.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Out = Annotated[Path, typer.Option("--out", help="The directory to make; it must not exist yet.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace the directory if it exists.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same data, on every machine.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out what cannot be read, count it and list it.")]
From = Annotated[
    list[Path] | None, typer.Option("--from", help="Read this file of the original format instead; may be repeated.")
]


@app.command()
def listops(
    out_folder: Out,
    size: Annotated[int, typer.Option(min=1, help="How many distinct trees to generate.")] = 100_000,
    seed: Seed = 0,
    source: From = None,
    max_depth: Annotated[int, typer.Option(min=1, help="A node at this depth is a digit.")] = 20,
    value_probability: Annotated[float, typer.Option(min=0, max=1, help="How often a node is a digit.")] = 0.75,
    min_operands: Annotated[int, typer.Option(min=1, help="Fewest operands.")] = 2,
    max_operands: Annotated[int, typer.Option(min=1, help="Most operands, and the number of child slots.")] = 5,
    operators: Annotated[str, typer.Option(help="Operators to use, with commas.")] = ",".join(OPERATORS),
    max_nodes: Annotated[int | None, typer.Option(min=1, help="Draw larger trees anew.")] = None,
    placement: Annotated[str, typer.Option(help="`left` fills the slots from the left, `random` spreads ⊥.")] = "left",
    skip_bad: SkipBad = False,
    force: Force = False,
) -> None:
    """Make ListOps (Nangia & Bowman 2018): nested MIN, MAX, MED and SM of digits, and their value.

    Generated: 90 % for training, of which 9 % for validation, and 10 % for the test, as in the paper. Read with `--from`: all
    of it is the test set. The value of every subtree is kept as a node label.

    Example: `treefold data listops --out data/listops --size 20000`
    """
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
        with progress("ListOps trees", size) as told:
            data = make_listops(size, seed, settings, told)
    _save(data, out_folder, force, skipped)


@app.command()
def lrt(
    out_folder: Out,
    draws: Annotated[
        int, typer.Option("--draws", "--size", min=1, help="Accepted draws; half are distinct.")
    ] = 500_000,
    seed: Seed = 0,
    source: From = None,
    test_share: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of each bin for the test, with --from.")
    ] = 0.15,
    skip_bad: SkipBad = False,
    force: Force = False,
) -> None:
    """Make LRT (Bowman et al. 2015): how are two sentences of propositional logic related?

    Pairs are binned by the larger number of operators, 0 to 12. Of each bin, 15 % are the test set and 10 % of the rest
    validation; what remains trains, up to 4 operators. With `--from`, the original files `train0` … `train12` are read and
    split in the same way.

    Example: `treefold data lrt --out data/lrt --from train0 --from train1`
    """
    _check_out(out_folder, force, source or [])
    skipped = Skipped()
    if source:
        with progress("reading"):
            data = load_lrt(source, seed=seed, test_share=test_share, on_bad=skipped if skip_bad else None)
    else:
        with progress("LRT draws", draws) as told:
            data = make_lrt(draws, seed, told)
    _save(data, out_folder, force, skipped)


_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


@app.command(hidden=True, context_settings=_ANYTHING)
def glycans() -> None:
    """Say where the glycans went."""
    raise _moved("glycans")


@app.command(hidden=True, context_settings=_ANYTHING)
def metamath() -> None:
    """Say where the Metamath statements went."""
    raise _moved("metamath")


def _moved(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"`treefold data {name}` is now an example program of the repository; "
        f"run `python examples/{name}.py [FILE] --out DIR`, which has the same options (FILE for --path)."
    )


@app.command(name="convert")
def convert_command(
    inputs: Annotated[list[Path], typer.Argument(help="Files, or folders with files.", show_default=False)],
    out_folder: Out,
    form: Annotated[
        str | None, typer.Option("--format", help=f"One of {', '.join(READERS)}; else by the suffix of each file.")
    ] = None,
    labels: Annotated[
        str, typer.Option(help="Classes from the `record` (column, key), the `folder`, or `none`.")
    ] = "record",
    label_file: Annotated[Path | None, typer.Option(help="Instead: a file with one label a line.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the format, `text=true` or `label_column=y`; may be repeated."),
    ] = None,
    max_arity: Annotated[
        int | None, typer.Option(min=1, help="The greatest number of children that a node may have.")
    ] = None,
    wide: Annotated[
        str, typer.Option(help="Beyond it: `error`, `binarise` (left child, right sibling) or `group`.")
    ] = "error",
    split: Annotated[str, typer.Option(help="Shares of train, validation and test.")] = "0.8,0.1,0.1",
    seed: Seed = 0,
    skip_bad: SkipBad = False,
    force: Force = False,
) -> None:
    """Convert your own files to a data set.

    Formats: s-expressions and Penn brackets, JSON documents, JSONL and CSV, TSV or Parquet with a tree column (`tree`, or
    `left` and `right`, and `label`), XML and HTML, Python and other source code, CoNLL-U. Equal trees go to the same split.

    Example: `treefold data convert reviews/ --format html --labels folder --max-arity 8 --wide group --out data/reviews`
    """
    _check_out(out_folder, force, [*inputs, *([label_file] if label_file else [])])
    skipped = Skipped()
    conversion = Conversion(
        format=form,
        options=dict(_key_value(item) for item in option or []),
        labels=labels,  # type: ignore[arg-type]
        label_file=label_file,
        max_arity=max_arity,
        wide=wide,  # type: ignore[arg-type]
        fractions=_fractions(split),
        seed=seed,
    )
    with progress("records") as told:
        data = convert(inputs, conversion, on_bad=skipped if skip_bad else None, progress=told)
    _save(data, out_folder, force, skipped)


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A data set.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read all data and check them first.")] = False,
) -> None:
    """Show sizes, depths, arities, label balance, duplicates between splits, and three trees of a data set."""
    data = Dataset.open(folder, verify=verify or None)
    found = findings(data)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        show(found, str(folder))


def _check_out(folder: Path, force: bool, inputs: Sequence[Path] = ()) -> None:
    # Minutes of work must not end with "exists already", nor with the loss of what they began with.
    require_replaceable(folder, force=force, sign=FACTS)
    for each in inputs:
        if each.resolve().is_relative_to(folder.resolve()):
            raise FileError(
                f"{folder}: expected a directory apart from the inputs, got one that holds {each}; choose another."
            )


def _save(data: Dataset, folder: Path, force: bool, skipped: Skipped) -> None:
    data.save(folder, force=force, texts=skipped.files())
    skipped.report()
    parts = ", ".join(f"{len(part):,} {name}" for name, part in data.splits.items())
    unused = len(data) - sum(len(np.unique(part)) for part in data.splits.values())
    parts += f", {unused:,} in no split" if unused else ""
    kind = "pairs" if data.pairs else "trees"
    out.print(
        f"{folder}: {len(data):,} {kind}, {data.forest.node_count:,} nodes, {len(data.classes)} classes ({parts})"
    )
    out.print(f"look at it: treefold data inspect {folder}")


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
