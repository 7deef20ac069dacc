"""Train forms beyond the paper on ListOps and LRT: `python -m experiments.beyond NAME … [--seeds 0 1 2]`.

NAME is one of `EXPERIMENTS`, or a group of them. Results are added to ``OUT/GROUP.jsonl``, one line for each seed; what is there
already is not trained again. ``--table`` prints the tables of all results, ``--figures`` draws them.
"""

import argparse
import functools
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn

from experiments.real.baselines import Line, read_lines, write_line
from experiments.real.run import spread, with_seed
from treefold import __version__
from treefold.analysis.evaluation import Group, evaluate
from treefold.data.dataset import Dataset
from treefold.data.generators.listops import ListOpsSettings, generate, make_listops, value
from treefold.data.generators.lrt import LARGEST_BIN, load_lrt
from treefold.errors import ConfigurationError, TreefoldError, require_choice
from treefold.nn.cells.base import InnerCell
from treefold.sweeps.report.figures import draw, look
from treefold.training import train
from treefold.training.saving import SavedModel
from treefold.training.settings import RunSettings, with_recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE: Final = Path(__file__).parent
RESULTS: Final = HERE / "results"
SOURCE: Final = Path("../shared/data/lrt")
Shares = dict[str, list[int]]
"""Right answers and all answers, by a property of the trees."""


class Wider(NamedTuple):
    """Trees that are wider or larger than those of training: their distribution, sizes in nodes, and number."""

    settings: ListOpsSettings
    least: int
    most: int
    trees: int = 1000


WIDER: Final = {
    "6–10 operands": Wider(
        ListOpsSettings(min_operands=6, max_operands=10, value_probability=0.88, max_nodes=300), 7, 300
    ),
    "11–15 operands": Wider(
        ListOpsSettings(min_operands=11, max_operands=15, value_probability=0.93, max_nodes=400), 12, 400
    ),
    "300–1,000 nodes": Wider(ListOpsSettings(value_probability=0.68, max_nodes=1000), 300, 1000, 500),
}
WIDER_SEED: Final = 200  # that of the trees on which settings were chosen is 100


def wider(name: str, seed: int = WIDER_SEED) -> Dataset:
    """Draw the trees of `WIDER`, all in the test set.

    >>> wider("6–10 operands").forest.arity
    10
    """
    settings, least, most, count = WIDER[name]
    drawn = (tree for tree in generate(10**6, seed, settings) if least <= tree.size <= most)
    trees = list(islice(drawn, count))
    values = [str(value(tree)) for tree in trees]
    return Dataset.from_labels(trees, values, {"test": np.arange(len(trees))}, {"from": name, "seed": seed})


DATA: Final[dict[str, Callable[[Path], Dataset]]] = {
    "listops": lambda source: make_listops(100_000, seed=0),
    "lrt4": lambda source: load_lrt(_files(source), test_share=0.05, train_operators=4),
    "lrt6": lambda source: load_lrt(_files(source), test_share=0.05, train_operators=6),
    **{name: functools.partial(lambda name, source: wider(name), name) for name in WIDER},
}
"""How each data set is made, from the folder of the original files of LRT if it needs them."""


def _files(source: Path) -> list[Path]:
    files = [source / f"train{number}" for number in range(LARGEST_BIN + 1)]
    if not all(file.is_file() for file in files):
        raise ConfigurationError(
            f"{source}: expected the files train0 … train{LARGEST_BIN} of LRT; name their folder by --source."
        )
    return files


@functools.cache
def dataset(name: str, folder: Path, source: Path) -> Dataset:
    """Open a data set of `DATA`; if it is not in the folder, make it."""
    place = folder / name
    if not place.exists():
        DATA[name](source).save(place)
    return Dataset.open(place)


class Experiment(NamedTuple):
    """Its group, a title, a data set, and the settings of model and training that differ from the recipe of the task."""

    group: str
    title: str
    data: str
    model: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}

    def settings(self) -> dict[str, Any]:
        """Return all settings that are given."""
        task = "listops" if self.data == "listops" else "lrt"
        return {"recipe": task, "model": dict(self.model), "training": dict(self.training)}


GROUPS: Final = {
    "parts": "ListOps: the recipe, and what it loses without each of its parts",
    "lrt4": "LRT, trained on at most 4 operators",
    "lrt6": "LRT, trained on at most 6 operators",
    "paper": "ListOps: the paper's forms under the same training",
    "forms": "ListOps: all forms that take any number of children",
}
_LONG: Final = {"epochs": 40}
_QUIET: Final = {"state_noise": 0.0, "state_noise_end": 0.0}
_LSTM: Final = {"cell": "lstm", "cell_hidden": "none", "bound": "none"}
_PAPER: Final = {**_LSTM, "shared": False, "labels": "thermometer", "hidden": [20, 20]}


def _part(title: str, *, training: Mapping[str, Any] = {}, **model: Any) -> Experiment:
    return Experiment("parts", title, "listops", model, {**_LONG, **training})


def _blocks(data: str, title: str, size: int = 1, **model: Any) -> Experiment:
    """Blocks of one size, also for the operator of one operand."""
    one = {"aggregator": "blockwise", "arity": 1, "start": model.get("start", "product"), "block_size": size}
    training = {"epochs": 6} if data == "lrt4" else {"batch_size": 200, "epochs": 8}
    return Experiment(data, title, data, {"block_size": size, "aggregators": {"not": one}, **model}, training)


def _form(cell: str, title: str, **model: Any) -> Experiment:
    options = {**(_LSTM if cell.startswith("LSTM") else {"bound": "none"}), **model}
    return Experiment("forms", f"{title}, {cell}", "listops", options, {"epochs": 20})


EXPERIMENTS: Final[dict[str, Experiment]] = {
    "recipe": _part("complex canonical + sum: the recipe"),
    "no-bound": _part("without the bound", bound="none"),
    "no-noise": _part("without noise on states", training=_QUIET),
    "no-curriculum": _part("without the curriculum", training={"curriculum": "none"}),
    "no-hidden": _part("without the hidden layer", cell_hidden="none"),
    "real": _part("real factors, no bound", aggregator="canonical+sum", rank=32, bound="none"),
    "real-unit": _part("real factors in [0, 1]", aggregator="canonical+sum", rank=32, bound="unit"),
    "complex-alone": _part("complex canonical without the sum", aggregator="complex", rank=22),
    "sum-alone": _part("sum without the complex form", aggregator="sum", rank="none", bound="none", cell_hidden=72),
    **{f"{data}-recipe": Experiment(data, "the recipe: blocks of 1, 20 epochs", data) for data in ("lrt4", "lrt6")},
    **{
        f"{data}-{name}": _blocks(data, title, **model)
        for data in ("lrt4", "lrt6")
        for name, title, model in (
            ("block1", "blocks of 1", {}),
            ("block2", "blocks of 2", {"size": 2}),
            ("block4", "blocks of 4", {"size": 4}),
            ("block8", "blocks of 8", {"size": 8}),
            ("block16", "blocks of 16", {"size": 16}),
            ("wide", "blocks of 1, c = 256", {"state_size": 256}),
            ("narrow", "blocks of 1, c = 16", {"state_size": 16}),
            ("full", "full tensor, c = 16 (a block of 16)", {"state_size": 16, "size": 16}),
            ("full-balanced", "the same, balanced start", {"state_size": 16, "size": 16, "start": "balanced"}),
            ("balanced", "blocks of 1, balanced start", {"start": "balanced"}),
            ("lstm", "blocks of 1, LSTM", {"cell": "lstm"}),
        )
    },
    **{
        f"{name}{'-quiet' if quiet else ''}": Experiment(
            "paper",
            f"{title}, {'no noise' if quiet else 'noise'}",
            "listops",
            {**_PAPER, **model},
            {**_LONG, **(_QUIET if quiet else {})},
        )
        for name, title, model in (
            ("hosvd", "Hosvd-LSTM, c = 20, r = 3", {"aggregator": "tucker", "rank": 3}),
            ("full", "Full-LSTM, c = 5", {"aggregator": "full", "rank": "none", "state_size": 5}),
            ("sum", "Sum-LSTM, c = 25", {"aggregator": "sum", "rank": "none", "state_size": 25}),
        )
        for quiet in (True, False)
    },
    "operands": Experiment(
        "forms",
        "the recipe `operands`: complex, squashed or max by selection, RNN",
        "listops",
        {"aggregator": "complex+squashed+max"},
        {**_LONG, "selection": 1.0},
    ),
    "chosen": Experiment(
        "forms",
        "forms chosen by hand: max for MIN and MAX, squashed for MED, complex for SM, RNN",
        "listops",
        {
            "aggregators": {
                "MIN": "max",
                "MAX": "max",
                "MED": {"aggregator": "squashed", "rank": 32},
                "SM": {"aggregator": "complex", "bound": "disc", "rank": 4},
            }
        },
        _LONG,
    ),
    "rnn-complex-sum": _form("RNN", "complex canonical + sum, in the disc", bound="disc"),
    "rnn-complex-mean": _form("RNN", "complex canonical + mean, in the disc", aggregator="complex+mean", bound="disc"),
    "rnn-complex": _form("RNN", "complex canonical, in the disc", aggregator="complex", rank=22, bound="disc"),
    "rnn-canonical-sum": _form("RNN", "canonical + sum, in [0, 1]", aggregator="canonical+sum", rank=32, bound="unit"),
    "rnn-canonical": _form("RNN", "canonical", aggregator="canonical", rank=45),
    "rnn-tensor-train": _form("RNN", "tensor train", aggregator="tensor-train", rank=10),
    **{
        f"rnn-{name}": _form("RNN", name, aggregator=name, rank="none", cell_hidden=72)
        for name in ("sum", "mean", "max")
    },
    "rnn-squashed": _form("RNN", "squashed", aggregator="squashed", rank=42),
    "rnn-positional": _form("RNN", "positional", aggregator="positional", rank="none", cell_hidden=48),
    "rnn-hadamard-product": _form(
        "RNN, c = 100",
        "Hadamard product",
        aggregator="hadamard-product",
        rank="none",
        cell_hidden="none",
        state_size=100,
    ),
    "lstm-complex-sum": _form("LSTM", "complex canonical + sum, in the disc", bound="disc"),
    "lstm-complex": _form("LSTM", "complex canonical, in the disc", aggregator="complex", rank=21, bound="disc"),
    "lstm-canonical": _form("LSTM", "canonical", aggregator="canonical", rank=42),
    "lstm-tensor-train": _form("LSTM", "tensor train", aggregator="tensor-train", rank=9),
    **{
        f"lstm-{name}": _form("LSTM, c = 40", name, aggregator=name, rank="none", state_size=40)
        for name in ("sum", "mean", "max")
    },
    "lstm-squashed": _form("LSTM", "squashed", aggregator="squashed", rank=39),
    "lstm-positional": _form("LSTM, c = 30", "positional", aggregator="positional", rank="none", state_size=30),
    "lstm-hadamard-product": _form("LSTM", "Hadamard product", aggregator="hadamard-product", rank="none"),
}


def given(name: str, seed: int) -> dict[str, Any]:
    """Return the settings of an experiment, with those of its recipe; a result belongs to these."""
    settings = RunSettings.of(with_seed(EXPERIMENTS[name].settings(), seed))
    return with_recipe(settings).model_dump(mode="json", exclude_unset=True)


def run(name: str, seed: int, *, folder: Path, out: Path, source: Path = SOURCE) -> Line:
    """Train an experiment with a seed unless its result is in ``out``; return the result. Data sets are in ``folder``."""
    experiment = EXPERIMENTS[name]
    settings = RunSettings.of(with_seed(experiment.settings(), seed))
    data = dataset(experiment.data, folder, source)
    key: Line = {"experiment": name, "seed": seed, "settings": given(name, seed), "data": data.fingerprint()}
    results = out / f"{experiment.group}.jsonl"
    for line in read_lines(results):
        if {part: line[part] for part in key} == key:
            return line
    with tempfile.TemporaryDirectory() as place:
        start = time.process_time()
        saved, _ = train(data, Path(place) / name, settings)
        seconds = time.process_time() - start
    line = {
        **key,
        "parameters": parameters_of(saved),
        "validation": round(evaluate(saved, data, "validation").score, 6),
        **scores(saved, data, folder),
        "seconds": round(seconds, 1),
        "versions": {"treefold": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    write_line(results, line, ("experiment", "seed"))
    return line


def parameters_of(saved: SavedModel) -> int:
    """Count the parameters of one aggregation, with the hidden layer after it; the largest counts."""
    found = []
    for cell in saved.model.encoder.modules():
        if isinstance(cell, InnerCell):
            layer = getattr(cell, "hidden", None)
            after = sum(each.numel() for each in layer.parameters()) if isinstance(layer, nn.Module) else 0
            found.append(cell.gates()[0].parameter_count + after)
    return max(found)


def scores(saved: SavedModel, data: Dataset, folder: Path) -> Line:
    """Measure a model on the test set, and on wider trees if it is one of trees; right answers by operators or operands."""
    test = evaluate(saved, data, "test")
    if data.pairs:
        return {"test": round(test.score, 6), "operators": shares(test.groups["inner_nodes"], LARGEST_BIN)}
    takes_any = saved.model.encoder.cell("up").takes_any_number
    sets = [name for name, each in WIDER.items() if takes_any or each.settings.max_operands <= data.forest.arity]
    found = {name: evaluate(saved, dataset(name, folder, SOURCE), "test") for name in sets}
    operands = shares(test.groups["arity"])
    for name in sets:
        if WIDER[name].settings.min_operands > data.forest.arity:
            operands |= shares(found[name].groups["arity"])
    return {
        "test": round(test.score, 6),
        "wider": {name: round(each.score, 6) for name, each in found.items()},
        "operands": operands,
    }


def shares(groups: Mapping[str, Group], most: int | None = None) -> Shares:
    """Return right answers and answers of each group; those above ``most`` count to it.

    >>> shares({"2": Group(10, 0.9), "3": Group(4, 1.0), "5": Group(6, 0.5)}, 3)
    {'2': [9, 10], '3': [7, 10]}
    """
    found: Shares = {}
    for name, group in groups.items():
        key = name if most is None else str(min(int(name), most))
        right, count = found.get(key, [0, 0])
        found[key] = [right + round(group.count * group.score), count + group.count]
    return found


def pooled(lines: Sequence[Line], key: str) -> Shares:
    """Add up the answers of several runs."""
    names = sorted({name for line in lines for name in line[key]}, key=int)
    return {name: [sum(line[key][name][place] for line in lines) for place in (0, 1)] for name in names}


def tables(out: Path) -> str:
    """Return the tables of all groups; the README ends with them."""
    return "\n".join(f"### {title}\n\n{table(group, out)}" for group, title in GROUPS.items())


_OPERATORS: Final = {"0–4": range(5), "5–8": range(5, 9), "9–11": range(9, 12), "12 and more": range(12, 13)}


def table(group: str, out: Path) -> str:
    """Return the results of a group as a Markdown table: mean (standard deviation) over seeds, in %."""
    results, pairs = read_lines(out / f"{group}.jsonl"), group.startswith("lrt")
    columns = [f"{name} operators" for name in _OPERATORS] if pairs else list(WIDER)
    heads = ["", "parameters", "validation", "test", *columns, "seeds", "seconds"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, experiment in EXPERIMENTS.items():
        lines = [line for line in results if line["experiment"] == name]
        if not lines:
            continue
        found = [spread([{"accuracy": line[part]} for line in lines]) for part in ("validation", "test")]
        for column in columns:
            values = [_column(line, column.removesuffix(" operators")) for line in lines]
            found.append(
                spread([{"accuracy": each} for each in values if each is not None]) if None not in values else ""
            )
        seconds = f"{np.mean([line['seconds'] for line in lines]):,.0f}"
        facts = [experiment.title, f"{lines[0]['parameters']:,}", *found, str(len(lines)), seconds]
        rows.append(f"| {' | '.join(facts)} |")
    return "\n".join(rows) + "\n"


def _column(line: Line, name: str) -> float | None:
    """Return the accuracy of a run on wider trees, or for some numbers of operators; None if it was not measured."""
    if name in WIDER:
        wide: dict[str, float] = line["wider"]
        return wide.get(name)
    counts: Shares = line["operators"]
    found = np.array([counts.get(str(number), [0, 0]) for number in _OPERATORS[name]]).sum(0)
    return float(found[0] / found[1])


FIGURES: Final[dict[str, tuple[str, str, dict[str, str]]]] = {
    "lrt-blocks": (
        "operators",
        "number of operators, of the longer sentence",
        {
            "lrt4-block1": "blocks of 1",
            "lrt4-block2": "blocks of 2",
            "lrt4-block4": "blocks of 4",
            "lrt4-block8": "blocks of 8",
            "lrt4-block16": "blocks of 16",
            "lrt4-lstm": "blocks of 1, LSTM",
            "lrt6-block1": "1, trained to 6",
            "lrt6-block16": "16, trained to 6",
        },
    ),
    "listops-forms": (
        "operands",
        "most operands of an operator in the tree",
        {
            "operands": "recipe operands",
            "rnn-complex-sum": "complex + sum",
            "rnn-complex": "complex",
            "rnn-canonical": "canonical",
            "rnn-tensor-train": "tensor train",
            "rnn-sum": "sum",
            "rnn-mean": "mean",
            "rnn-max": "max",
        },
    ),
}
"""For each figure: by what answers are counted, the label of its axis, and the legend of each experiment."""


def figure(name: str, out: Path) -> str:
    """Draw the accuracy on the test sets, answers of all seeds together, as SVG."""
    key, axis, names = FIGURES[name]
    results = [line for group in GROUPS for line in read_lines(out / f"{group}.jsonl")]
    drawn = {title: [line for line in results if line["experiment"] == each] for each, title in names.items()}

    def paint(axes: "Axes") -> None:
        for place, (title, lines) in enumerate(drawn.items()):
            found = pooled(lines, key)
            values = [100 * right / count for right, count in found.values()]
            axes.plot([int(each) for each in found], values, **look(place)._asdict(), label=title)
        axes.set_xlabel(axis)
        axes.set_ylabel("test accuracy, %")

    return draw(paint)[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print tables, draw figures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join([*GROUPS, *EXPERIMENTS])}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are")
    parser.add_argument("--data", type=Path, default=Path("data/beyond"), help="where data sets are")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the folder of the original files of LRT")
    parser.add_argument("--table", action="store_true", help="print the tables of all results")
    parser.add_argument("--figures", type=Path, nargs="?", const=HERE, help="draw the figures into this folder")
    options = parser.parse_args(arguments)
    try:
        names: list[str] = []
        for name in options.names:
            require_choice("experiments.beyond", "NAME", name, [*GROUPS, *EXPERIMENTS])
            names += [each for each, experiment in EXPERIMENTS.items() if name in (each, experiment.group)]
        for seed in options.seeds:
            for name in names:
                line = run(name, seed, folder=options.data, out=options.out, source=options.source)
                parts = ("experiment", "seed", "parameters", "validation", "test", "wider", "seconds")
                sys.stdout.write(json.dumps({part: line[part] for part in parts if part in line}) + "\n")
                sys.stdout.flush()
    except TreefoldError as problem:
        sys.stderr.write(f"error: {problem}\n")
        return 2
    if options.table:
        sys.stdout.write(tables(options.out))
    for name in FIGURES if options.figures else ():
        (options.figures / f"{name}.svg").write_text(figure(name, options.out), encoding="utf-8")
    return 0
