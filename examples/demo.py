"""Demo: models with about the same number of parameters per aggregation learn to evaluate ListOps expressions.

The paper's claim on a small scale, with its three Tree-LSTMs; then a form beyond the paper, which solves the task. The models see
only the value of the whole tree. `python examples/demo.py` or `make demo` prints a table and writes a page with learning curves.
"""

import argparse
import html
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch

from treefold.data.dataset import FACTS, Dataset
from treefold.data.generators import listops, make_listops
from treefold.errors import TreefoldError, require_positive
from treefold.files import FolderKind, atomic_file, atomic_folder, require_replaceable
from treefold.nn.heads import Classifier
from treefold.nn.model import TreeModel
from treefold.nn.randomness import seeded
from treefold.training import Examples, Progress, Result, fit
from treefold.training.build import build_model, facts_of, resolve
from treefold.training.examples import Score
from treefold.training.saving import CONFIG, VOCABULARY, WEIGHTS, SavedModel
from treefold.training.settings import ModelSettings, RunSettings, TrainingSettings, with_recipe
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

MODELS: dict[str, ModelSettings] = {
    "Sum-LSTM": ModelSettings(aggregator="sum", state_size=25),
    "Full-LSTM": ModelSettings(aggregator="full", state_size=3),
    "Hosvd-LSTM": ModelSettings(aggregator="tucker", state_size=10, rank=3),
}
BEYOND: Final = "Complex-RNN"
"""Complex factors and a sum, the recipe `listops`: `treefold train DATA --recipe listops`."""
# Parameters of one aggregation as the paper counts them, without the bias of the sum and the output matrix of Tucker; all of them
# for the new form, with its hidden layer: complex factors (20 x 32), Q (32 x 32), a sum (20 x 32 + 32), Q₂ (32 x 20 + 20).
PARAMETERS: dict[str, int] = {
    "Sum-LSTM": 5 * 25**2,
    "Full-LSTM": 3 * 4**5,
    "Hosvd-LSTM": 5 * 10 * 3 + 3 * 4**5,
    BEYOND: 20 * 32 + 32 * 32 + (20 + 1) * 32 + (32 + 1) * 20,
}


PAGE: Final = "index.html"
FIGURE: Final = "accuracy.png"
DATA: Final = "trees"
"""The folder of the test trees, which the explorer shows."""
_IN_EXPLORER: Final = 2000
TITLE: Final = "treefold: four ways to combine the children of a node"
DEMO: Final = FolderKind(
    "the folder of an earlier demo",
    PAGE,
    TITLE,
    {
        PAGE,
        FIGURE,
        *(f"{name}/{file}" for name in PARAMETERS for file in (CONFIG, VOCABULARY, WEIGHTS)),
        *(f"{DATA}/{file}" for file in (FACTS, "trees.forest", "examples.columns", "vocabulary.json")),
    },
)


class Trained(NamedTuple):
    """A trained model with its results."""

    name: str
    saved: SavedModel
    parameters: int
    result: Result
    test: float
    seconds: float


@final
class _Lines:
    """Prints a line for each epoch."""

    def __init__(self, name: str) -> None:
        self.name = name

    def batch(self, progress: Progress) -> None:
        """Show the current batch in a terminal."""
        if sys.stdout.isatty():
            start = f"\r{self.name:<11}  epoch {progress.epoch:2}  batch {progress.batch} of {progress.batches}"
            print(f"{start}  loss {progress.loss:.3f}  train {progress.accuracy:.1%} ", end="", flush=True)

    def epoch(self, metrics: dict[str, Any]) -> None:
        """Show loss, validation accuracy and speed of the epoch."""
        bar = "#" * round(30 * metrics["validation_score"])
        start = "\r" if sys.stdout.isatty() else ""
        print(
            f"{start}{self.name:<11}  epoch {metrics['epoch']:2}  loss {metrics['loss']:.3f}  "
            f"validation {metrics['validation_score']:6.1%}  {bar:<30}  {metrics['examples_per_second']:6,.0f} trees/s",
            flush=True,
        )


def settings_of(name: str, epochs: int, seed: int) -> RunSettings:
    """Return the settings of a model. The three Tree-LSTMs differ only in the aggregation; the other has a recipe of its own."""
    if name in MODELS:
        training = TrainingSettings(epochs=epochs, patience=None, schedule="cosine", seed=seed)
        return RunSettings(model=MODELS[name], training=training)
    return with_recipe(RunSettings(recipe="listops", training=TrainingSettings(epochs=2 * epochs, seed=seed)))


def train_one(name: str, data: Dataset, epochs: int, seed: int) -> Trained:
    """Train one of the models."""
    examples, chosen = Examples.of(data, "tree"), settings_of(name, epochs, seed)
    settings, labels = resolve(chosen.model, facts_of(data.forest))
    with seeded(seed):
        model = build_model(settings, labels, "tree", 10)
    training = chosen.training
    start = time.perf_counter()
    splits = data.splits
    result = fit(
        model, examples, training, train=splits["train"], validation=splits["validation"], reporter=_Lines(name)
    )
    test = Score.of(model, examples, np.asarray(splits["test"])).score
    run = RunSettings(model=settings, training=training)
    saved = SavedModel(model, run, labels, data.classes, 10)
    return Trained(name, saved, PARAMETERS[name], result, test, time.perf_counter() - start)


def drawing(model: TreeModel, tree: Tree) -> str:
    """Draw a tree with the value of every subtree and the model's prediction for it."""
    with torch.no_grad():
        encoding = model.encoder(Forest([tree]))
        assert isinstance(model.head, Classifier)
        chances, beliefs = model.head.layers(encoding.nodes).softmax(1).max(1)
    found = zip(listops.node_values(tree), beliefs.tolist(), chances.tolist(), strict=True)
    notes_of = dict(zip(map(id, tree.postorder()), found, strict=True))
    notes = []
    for node in tree.preorder():
        value, belief, chance = notes_of[id(node)]
        verdict = f"ok, {chance:.0%} sure" if value == belief else f"model says {belief}, {chance:.0%} sure"
        notes.append(f"= {value}  ({verdict})" if node.children else "")
    return tree.draw(notes=notes)


def example_tree(data: Dataset) -> Tree:
    """Choose a test tree that is deep enough to be interesting and small enough to be drawn."""
    trees = [data.forest[int(index)] for index in data.splits["test"][:300]]
    # Copied, so that equal subtrees are distinct objects: `drawing` finds its notes by `id`.
    distinct = [Tree(tree.label, tree.children).map(lambda label: label) for tree in trees]
    return max(distinct, key=lambda tree: (tree.size <= 22, tree.depth, tree.size))


def table(trained: Sequence[Trained]) -> list[tuple[str, ...]]:
    """Return the table of results; the first row is the heading."""
    head = ("model", "parameters of an aggregation", "best validation", "test", "time")
    rows = [
        (
            each.name,
            f"{each.parameters:,}",
            f"{each.result.best_score:.1%}",
            f"{each.test:.1%}",
            f"{each.seconds:.0f} s",
        )
        for each in trained
    ]
    return [head, *rows]


def figure(trained: Sequence[Trained], path: Path) -> str | None:
    """Write accuracy against epochs as a PNG; return it as SVG, or None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    import io

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes_figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for each in trained:
        scores = [100 * line["validation_score"] for line in each.result.history]
        axes.plot(
            range(1, len(scores) + 1), scores, marker="o", markersize=3, label=f"{each.name}, {each.parameters:,}"
        )
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation accuracy, %")
    axes.legend(title="model, parameters of an aggregation")
    axes.grid(alpha=0.3)
    axes_figure.savefig(path, dpi=150)
    text = io.StringIO()
    axes_figure.savefig(text, format="svg")
    pyplot.close(axes_figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def page(trained: Sequence[Trained], svg: str | None, drawn: str, size: int) -> str:
    """Return the HTML page; it loads nothing from the network."""
    head, *rows = table(trained)
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    heads = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd}}
pre{{background:#f6f6f4;padding:1rem;overflow-x:auto;line-height:1.25}}svg{{width:100%;height:auto}}</style></head><body>
<h1>Four ways to combine the children of a node</h1>
<p>ListOps: nested operations on lists of digits. {size:,} trees to learn from, of which the models see the value of the whole and
nothing else. The three Tree-LSTMs have about the same number of parameters in an aggregation. The Complex-RNN multiplies complex
numbers, which turn as a sum modulo ten does, and learns from small trees first: the recipe <code>listops</code>.</p>
<table><tr>{heads}</tr>{cells}</table>
{svg or "<p>(Install matplotlib to see the learning curves here.)</p>"}
<h2>What the {BEYOND} reads off every part of a tree it has not seen</h2>
<pre>{html.escape(drawn)}</pre>
<h2>Where to go next</h2>
<p><code>treefold data convert</code> makes a data set of your own files, <code>treefold train</code> a model,
<code>treefold predict --explain</code> shows what it thinks. The README has ten lines of Python.</p>
</body></html>
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo with command-line arguments."""
    parser = argparse.ArgumentParser(prog="python examples/demo.py", description=__doc__)
    parser.add_argument("--trees", type=int, default=40_000, help="ListOps trees to generate (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=14, help="passes over the training set (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="the same seed gives the same result (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the page (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        require_positive("the demo", trees=options.trees, epochs=options.epochs)
        run(options.trees, options.epochs, options.seed, options.out)
    except TreefoldError as problem:
        parser.error(str(problem))


def run(trees: int, epochs: int, seed: int, out: Path) -> None:
    """Generate the data, train the models, print the results and write the page."""
    require_replaceable(out, DEMO)  # before minutes of training
    torch.set_num_threads(1)  # the tensors of a small batch are too small to share
    print(f"Generating {trees:,} ListOps trees …", flush=True)
    data = make_listops(trees, seed)
    example = example_tree(data)
    print(f"for example {example} = {listops.value(example)}\n")
    trained = [train_one(name, data, epochs, seed) for name in PARAMETERS]
    print()
    rows = table(trained)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
    print(f"\nWhat the {BEYOND} reads off every part of a tree that it has not seen:\n")
    drawn = drawing(trained[-1].saved.model, example)
    print(drawn)
    with atomic_folder(out, DEMO) as folder:
        svg = figure(trained, folder / FIGURE)
        with atomic_file(folder / PAGE) as file:
            file.write(page(trained, svg, drawn, len(data.splits["train"])).encode())
        for each in trained:
            each.saved.save(folder / each.name)
        shown = np.asarray(data.splits["test"])[:_IN_EXPLORER]
        values = [data.classes[code] for code in data.targets[shown]]
        Dataset.from_labels(list(data.forest[shown]), values, {"test": np.arange(len(shown))}, {}).save(folder / DATA)
    print(f"\nThe same with learning curves: {out / PAGE}")
    models = " ".join(str(out / name) for name in reversed(PARAMETERS))
    explore = "make explore" if out == Path("demo") else f"treefold serve {models} --data {out / DATA}"
    print(f"Explore these models in a browser: `{explore}`")
    print("Next: `.venv/bin/treefold --help`; README.md has ten lines of Python for your own trees.")


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; nothing was left half-written")
