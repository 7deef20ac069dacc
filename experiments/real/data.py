"""Make the data sets: `python -m experiments.real.data NAME … --out DIR [--source ../shared/data]`, or `all`.

``source`` is the folder of downloaded files; README.md says which.
"""

import argparse
import csv
import gzip
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
from examples.glycans import parse_glycan
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

from experiments.real.order import ORDER, make_order
from treefold.data.dataset import Dataset
from treefold.data.readers.brackets import records_sst
from treefold.data.readers.code import records_python
from treefold.data.sick import load_sick
from treefold.errors import ConfigurationError, TreefoldError, require_choice
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

# Axes:  n examples
SOURCE: Final = Path(__file__).resolve().parents[3] / "shared" / "data"
PACKAGES: Final = ("networkx", "numba", "numpy", "pydantic", "rich", "scipy", "sklearn", "sympy", "torch")
"""Packages that are installed with treefold, for the sets of Python files."""
_BYTES: Final = range(200, 60_000)


def poj104(source: Path) -> Dataset:
    """Programs in C for 104 problems, as node types."""
    with np.load(_file(source, "poj104/poj104_ast_types.npz")) as arrays:
        labels, codes = np.unique(arrays["vocab"], return_inverse=True)  # sorted, as `Forest` sorts them
        forest = Forest.from_preorder(codes[arrays["types"]], arrays["nchild"], arrays["ntree"], labels.tolist())
        names, targets = np.unique(arrays["label"], return_inverse=True)
    return Dataset(forest, targets, tuple(map(str, names)), split(targets), made={"from": "poj104_ast_types.npz"})


def poj40(source: Path) -> Dataset:
    """The first 40 problems: of each 80 programs to train, 20 for validation, 50 to test; from the same parts of `poj104`."""
    whole = poj104(source)
    sizes = {"train": 80, "validation": 20, "test": 50}
    chosen = {
        name: np.concatenate([part[whole.targets[part] == label][: sizes[name]] for label in range(40)])
        for name, part in whole.splits.items()
    }
    numbers = np.concatenate([*chosen.values()])
    bounds = np.cumsum([0, *map(len, chosen.values())])
    splits = {name: np.arange(bounds[i], bounds[i + 1]) for i, name in enumerate(chosen)}
    return Dataset(whole.forest[numbers], whole.targets[numbers], whole.classes[:40], splits, made=whole.made)


def poj20(source: Path) -> Dataset:
    """Problems 61 to 80: 90 programs of each, from the train split of `poj104`, with a new split."""
    whole = poj104(source)
    train = np.sort(whole.splits["train"])
    numbers = np.concatenate([train[whole.targets[train] == label][:90] for label in range(60, 80)])
    targets = whole.targets[numbers] - 60
    return Dataset(whole.forest[numbers], targets, whole.classes[60:80], split(targets), made=whole.made)


def kingdom(source: Path) -> Dataset:
    """Glycans that come from one kingdom of life."""
    path = _file(source, "glycans/taxonomy_Kingdom.tsv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    names = [name for name in rows[0] if name not in ("IUPAC", "split")]
    found = [(row, [name for name in names if float(row[name])]) for row in rows]
    single = [(row, kingdoms[0]) for row, kingdoms in found if len(kingdoms) == 1]
    words = {"train": "train", "validation": "val", "test": "test"}
    splits = {part: np.flatnonzero([row["split"] == word for row, _ in single]) for part, word in words.items()}
    trees = [parse_glycan(row["IUPAC"]) for row, _ in single]
    return Dataset.from_labels(trees, [name for _, name in single], splits, {"from": path.name})


def glycan_order(source: Path) -> Dataset:
    """Glycans found in one order of species alone, for the twelve orders with most of them, at most 400 of each."""
    path = _file(source, "glycans/sweetnet_species_V3.csv.gz")
    orders: dict[str, set[str]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            orders.setdefault(row["target"], set()).add(row["order"])
    single = [(glycan, min(found)) for glycan, found in sorted(orders.items()) if len(found) == 1]
    by_order: dict[str, list[Tree]] = {}
    for number in np.random.default_rng(0).permutation(len(single)):
        with suppress(TreefoldError):  # a few names in the file have unbalanced brackets
            by_order.setdefault(single[number][1], []).append(parse_glycan(single[number][0]))
    chosen = sorted(by_order, key=lambda order: (-len(by_order[order]), order))[:12]
    trees = [tree for order in chosen for tree in by_order[order][:400]]
    labels = [order for order in chosen for _ in by_order[order][:400]]
    targets = np.unique(labels, return_inverse=True)[1]
    return Dataset.from_labels(trees, labels, split(targets), {"from": path.name})


def sst(source: Path, classes: int) -> Dataset:
    """Sentences with a sentiment at every node: of 5 classes, or of 2 without the neutral sentences."""
    table = np.arange(5) if classes == 5 else np.array([0, 0, -1, 1, 1])
    trees: list[Tree] = []
    nodes: list[Ints] = []
    splits = {}
    for part, word in {"train": "train", "validation": "dev", "test": "test"}.items():
        before = len(trees)
        for record in records_sst(_file(source, f"sst/{word}.txt")):
            targets = table[np.array(record.node_labels, np.int64)]
            if targets[-1] >= 0:
                trees.append(in_lower_case(record.trees[0]))
                nodes.append(targets)
        splits[part] = np.arange(before, len(trees))
    roots, names = np.array([each[-1] for each in nodes]), tuple("01234") if classes == 5 else ("negative", "positive")
    made = {"from": "sst"}
    return Dataset(Forest(trees), roots, names, splits, node_targets=np.concatenate(nodes), made=made, task="node")


def sick(source: Path, target: Literal["relatedness", "entailment"]) -> Dataset:
    """Pairs of sentences as dependency trees, with a number or one of three classes."""
    data = load_sick(source / "sick", target)
    return replace(data, forest=Forest(map(in_lower_case, data.forest)))


def in_lower_case(tree: Tree) -> Tree:
    r"""Write words as files of word vectors have them: in lower case, and without the treebank's ``\`` before ``/``.

    >>> print(in_lower_case(Tree.parse("(<phrase> A 1\\/2 Hour)")))
    (<phrase> a 1/2 hour)
    """
    return tree.map(lambda label: str(label).replace("\\/", "/").lower())


def python_files(names: bool, site: Path | None = None, packages: Sequence[str] = PACKAGES, most: int = 60) -> Dataset:
    """Python files by package, with or without the names in them; tiny, huge and equal ones and those in error are left out."""
    site = site or Path(sysconfig.get_path("purelib"))
    trees: list[Tree] = []
    labels: list[str] = []
    for package in packages:
        paths = sorted(path for path in site.glob(f"{package}/**/*.py") if path.stat().st_size in _BYTES)
        if not paths:
            raise ConfigurationError(f"expected Python files in {site / package}, got none; install {package}.")
        read: dict[Tree, None] = {}
        for number in np.random.default_rng(0).permutation(len(paths)):
            if len(read) < most:
                found = records_python(paths[number], names=names, on_bad=lambda problem: None)
                read |= dict.fromkeys(record.trees[0] for record in found)
        trees += read
        labels += [package] * len(read)
    targets = np.unique(labels, return_inverse=True)[1]
    return Dataset.from_labels(trees, labels, split(targets), {"from": list(packages), "names": names})


def split(targets: Ints) -> dict[str, Ints]:
    """Split examples into 60 % for training, 20 % for validation, 20 % to test, with the same share of each class.

    >>> {name: np.bincount(np.arange(20)[part] % 2).tolist() for name, part in split(np.arange(20) % 2).items()}
    {'train': [6, 6], 'validation': [2, 2], 'test': [2, 2]}
    """
    rest, test = train_test_split(np.arange(len(targets)), test_size=0.2, stratify=targets, random_state=0)
    train, validation = train_test_split(rest, test_size=0.25, stratify=targets[rest], random_state=0)
    return {"train": train, "validation": validation, "test": test}


DATA: Final[dict[str, Callable[[Path], Dataset]]] = {
    **{name: lambda source, name=name: make_order(name) for name in ORDER},  # type: ignore[misc]
    "kingdom": kingdom,
    "sst2": partial(sst, classes=2),
    "sst5": partial(sst, classes=5),
    "sick_relatedness": partial(sick, target="relatedness"),
    "sick_entailment": partial(sick, target="entailment"),
    "python_packages": lambda source: python_files(names=True),
    "python_types": lambda source: python_files(names=False),
    "glycan_order": glycan_order,
    "poj20": poj20,
    "poj40": poj40,
    "poj104": poj104,
}


def dataset(name: str, folder: Path, source: Path = SOURCE) -> Dataset:
    """Open a data set in ``folder``; make and save it there if there is none."""
    require_choice("experiments.real", "data", name, DATA)
    if not (folder / name).is_dir():
        DATA[name](source).save(folder / name)
    return Dataset.open(folder / name)


def _file(source: Path, name: str) -> Path:
    if not (source / name).is_file():
        raise ConfigurationError(
            f"{source / name}: expected a downloaded file, got none; experiments/real/README.md says where it comes from, "
            f"and --source names the folder."
        )
    return source / name


def main(arguments: Sequence[str] | None = None) -> int:
    """Make data sets; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"all, or some of {', '.join(DATA)}")
    parser.add_argument("--out", type=Path, default=Path("data/real"), help="where the data sets are")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the folder of downloaded files")
    options = parser.parse_args(arguments)
    code = 0
    for name in DATA if options.names == ["all"] else options.names:
        try:
            data = dataset(name, options.out, options.source)
        except TreefoldError as problem:
            sys.stderr.write(f"error: {problem}\n")
            code = 2
        else:
            sys.stdout.write(f"{description(name, data)}\n")
    return code


def description(name: str, data: Dataset) -> str:
    """Return a row of a Markdown table: name, examples of each split, nodes, labels, widest node, depth, classes."""
    parts = " / ".join(f"{len(part):,}" for part in data.splits.values())
    forest = data.forest
    numbers = (forest.node_count, len(forest.vocabulary), forest.arity, forest.depth, len(data.classes))
    return f"| {name} | {parts} | {' | '.join(f'{number:,}' for number in numbers)} |"


if __name__ == "__main__":
    sys.exit(main())
