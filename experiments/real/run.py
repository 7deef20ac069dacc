"""Train on real trees: `python -m experiments.real NAME … [--seeds 0 1 2]`; `--table` prints results, baselines and publications.

NAME is one of `EXPERIMENTS`, or a data set of `data`, which is then learnt without any setting. Results are added to
``OUT/NAME.jsonl``, one line for each seed. What is there already is not trained again, and an interrupted training goes on
where it was.
"""

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from experiments.real.baselines import Line, read_lines, rounded, score_text, write_line
from experiments.real.data import DATA, SOURCE, dataset
from treefold import __version__
from treefold.analysis.evaluation import evaluate
from treefold.data.dataset import Dataset
from treefold.errors import TreefoldError, require_choice
from treefold.training import resume, train
from treefold.training.run import CHECKPOINT
from treefold.training.saving import SavedModel, load_model
from treefold.training.settings import RunSettings

RESULTS: Final = Path(__file__).parent / "results"
BASELINES: Final = "baselines.jsonl"
WORDS: Final = {
    "embeddings": "{source}/vectors/glove6B100d_wink_subset.npz",
    "aggregator": "sum",
    "state_size": 150,
    "label_dropout": 0.0,
}
"""Settings of models of sentences: the Tree-LSTMs of Tai et al., with word vectors from the folder of downloaded files."""
SENTIMENT: Final = {
    "task": "node",
    "model": {**WORDS, "hidden": [], "dropout": 0.5},
    "training": {"epochs": 6, "learning_rate": 0.002, "batch_size": 25, "weight_decay": 0.01},
}
SENTENCES: Final = {
    "model": {
        **WORDS,
        "embeddings_frozen": True,
        "shared": True,
        "readout": "root+mean+max",
        "comparison": "distance",
        "comparison_size": 100,
        "dropout": 0.0,
    },
    "training": {"epochs": 15, "learning_rate": 0.002, "batch_size": 25, "weight_decay": 0.0, "l2": 0.0003},
}


class Experiment(NamedTuple):
    """A data set, the settings that differ from the defaults, by group, and published scores with their sources.

    A path among the settings may begin with ``{source}``, the folder of downloaded files.
    """

    data: str
    settings: Mapping[str, Any] = {}
    published: Mapping[str, str] = {}


EXPERIMENTS: Final[dict[str, Experiment]] = {
    "sst5": Experiment(
        "sst5",
        SENTIMENT,
        {"RNTN, Socher et al. 2013": "45.7", "constituency Tree-LSTM, 300-d vectors, Tai et al. 2015": "51.0"},
    ),
    "sst2": Experiment(
        "sst2",
        SENTIMENT,
        {"RNTN, Socher et al. 2013": "85.4", "constituency Tree-LSTM, 300-d vectors, Tai et al. 2015": "88.0"},
    ),
    "sick_relatedness": Experiment(
        "sick_relatedness",
        {"task": "pair-regression", **SENTENCES},
        {"dependency Tree-LSTM, 300-d vectors, Tai et al. 2015": "0.868 (MSE 0.253)"},
    ),
    "sick_entailment": Experiment("sick_entailment", {"task": "pair", **SENTENCES}),
    "poj104": Experiment("poj104", {}, {"TBCNN, Mou et al. 2016": "94.0"}),
    "kingdom": Experiment("kingdom"),
}


def run(name: str, seed: int, *, folder: Path, out: Path, source: Path = SOURCE) -> Line:
    """Train an experiment with a seed unless its result is in ``out``; return the result.

    Data sets and unfinished runs are in ``folder``.
    """
    experiment = EXPERIMENTS.get(name, Experiment(name))
    given = with_seed(experiment.settings, seed)
    asked = RunSettings.of(given).model_dump(mode="json", exclude_unset=True)
    settings = RunSettings.of(located(given, source))
    data = dataset(experiment.data, folder, source)
    key: Line = {"experiment": name, "seed": seed, "asked": asked, "data": data.fingerprint()}
    for line in read_lines(out / f"{name}.jsonl"):
        if {part: line[part] for part in key} == key:
            return line
    place = folder / "runs" / f"{name}-{seed}"
    if (place / CHECKPOINT).is_file() and not _same(place, settings):
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    goes_on = (place / CHECKPOINT).is_file()
    saved, result = resume(data, place) if goes_on else train(data, place, settings)
    found = saved.settings.model_dump(mode="json")
    found["model"]["embeddings"] = given.get("model", {}).get("embeddings")  # without the folder of this machine
    validation = score(saved, data, "validation")
    if (
        saved.model.wide is not None
    ):  # in the end it is fitted to the validation examples, too; the score before that counts
        validation = rounded({"accuracy": result.best_score}, len(data.splits["validation"]))
    line = {
        **key,
        "settings": found,
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "validation": validation,
        "test": score(saved, data, "test"),
        "seconds": round(sum(epoch["seconds"] for epoch in result.history), 1),
        "versions": {"treefold": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    write_line(out / f"{name}.jsonl", line, ("experiment", "seed"))
    shutil.rmtree(place)
    return line


def with_seed(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return settings with the seed, and with one thread unless they say otherwise.

    >>> with_seed({"task": "pair", "training": {"epochs": 3}}, 7)
    {'task': 'pair', 'training': {'threads': 1, 'epochs': 3, 'seed': 7}}
    """
    return {**settings, "training": {"threads": 1, **settings.get("training", {}), "seed": seed}}


def located(settings: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """Return settings in which ``{source}`` is replaced by a folder.

    >>> located({"task": "node", "model": {"embeddings": "{source}/vectors.txt"}}, Path("downloads"))
    {'task': 'node', 'model': {'embeddings': 'downloads/vectors.txt'}}
    """
    model = dict(settings.get("model", {}))
    if "embeddings" in model:
        model["embeddings"] = model["embeddings"].replace("{source}", str(source))
    return {**settings, "model": model}


def score(saved: SavedModel, data: Dataset, part: str) -> dict[str, float]:
    """Measure a model on a split: classes of trees, of roots where nodes have classes, or numbers, in the units of the data."""
    if saved.task.per_node:
        roots = np.full(data.forest.node_count, -1)
        roots[data.forest.offsets[1:] - 1] = data.targets
        data = replace(data, node_targets=roots)
    found = evaluate(saved, data, part)
    return rounded(found.scores, found.count)


def table(out: Path) -> str:
    """Return the results as a Markdown table: mean (standard deviation) over seeds, baselines, publications."""
    heads = ["data", "validation", "test", "seeds", "seconds", "labels", "labels and pairs", "boosting", "published"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    simple = {(line["data"], line["model"]): score_text(line["test"]) for line in read_lines(out / BASELINES)}
    for name in [*EXPERIMENTS, *(name for name in DATA if name not in EXPERIMENTS)]:
        experiment, lines = EXPERIMENTS.get(name, Experiment(name)), read_lines(out / f"{name}.jsonl")
        if not lines:
            continue
        scores = [spread([line[part] for line in lines]) for part in ("validation", "test")]
        seconds = f"{np.mean([line['seconds'] for line in lines]):,.0f}"
        bags = [simple.get((experiment.data, model), "") for model in heads[5:8]]
        published = "; ".join(f"{value} ({source})" for source, value in experiment.published.items())
        rows.append(f"| {' | '.join([name, *scores, str(len(lines)), seconds, *bags, published])} |")
    return "\n".join(rows) + "\n"


def spread(scores: Sequence[Mapping[str, float]]) -> str:
    """Write the mean of scores, with their standard deviation if there are several.

    >>> spread([{"accuracy": 0.91, "error": 0.01}, {"accuracy": 0.93, "error": 0.01}])
    '92.00 (1.41)'
    >>> spread([{"pearson": 0.86, "mse": 0.26}, {"pearson": 0.87, "mse": 0.25}])
    '0.865 (0.007)'
    """
    values = [next(iter(each.values())) for each in scores]
    factor, digits = (100, 2) if "accuracy" in scores[0] else (1, 3)
    mean = f"{factor * np.mean(values):.{digits}f}"
    return f"{mean} ({factor * np.std(values, ddof=1):.{digits}f})" if len(values) > 1 else mean


def _same(place: Path, asked: RunSettings) -> bool:
    """Say whether an unfinished run has the settings that are asked for; those that the data decided are not compared."""
    found = load_model(place).settings
    groups = [(found.model, asked.model), (found.training, asked.training)]
    return found.task == asked.task and all(
        getattr(one, name) == getattr(other, name) for one, other in groups for name in other.model_fields_set
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join({**EXPERIMENTS, **DATA})}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are")
    parser.add_argument("--data", type=Path, default=Path("data/real"), help="where data sets and unfinished runs are")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the folder of downloaded files")
    parser.add_argument("--table", action="store_true", help="print the table of all results")
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            require_choice("experiments.real", "NAME", name, {**EXPERIMENTS, **DATA})
        for name in options.names:
            for seed in options.seeds:
                line = run(name, seed, folder=options.data, out=options.out, source=options.source)
                scores = {part: line[part] for part in ("validation", "test", "seconds")}
                sys.stdout.write(json.dumps({"experiment": name, "seed": seed, **scores}) + "\n")
                sys.stdout.flush()
    except TreefoldError as problem:
        sys.stderr.write(f"error: {problem}\n")
        return 2
    if options.table:
        sys.stdout.write(table(options.out))
    return 0
