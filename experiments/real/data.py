"""Make the data sets: `python -m experiments.real.data NAME … --out DIR [--source ../shared/data]`, or `all`.

``source`` is the folder of downloaded files (its README says where they come from). The sets of `FILES` are made of files that
happen to be on a machine, to see what default settings do on data that nobody tuned for.
"""

import argparse
import csv
import gzip
import json
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from examples.glycans import parse_glycan
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

from experiments.real.order import ORDER, make_order
from treefold.data.dataset import Dataset
from treefold.data.readers import READERS
from treefold.errors import ConfigurationError, ReadError, TreefoldError, require_choice
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree
from treefold.trees.vocabulary import Vocabulary

# Axes:  n examples · N nodes · T trees
SOURCE: Final = Path(__file__).resolve().parents[3] / "shared" / "data"
INNER: Final = "•"
"""The label of the inner nodes of sentences."""
PARTS: Final = {"train": "train", "validation": "dev", "test": "test"}


def poj104(source: Path) -> Dataset:
    """Programs in C for 104 problems, as node types."""
    with np.load(_file(source, "poj104/poj104_ast_types.npz")) as arrays:
        forest = forest_in_preorder(arrays["types"], arrays["nchild"], arrays["ntree"], arrays["vocab"].tolist())
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


def sst(source: Path, classes: int) -> Dataset:
    """Sentences with a sentiment at every node: of 5 classes, or of 2 without the neutral sentences."""
    trees: list[Tree] = []
    sentiments: list[int] = []
    roots: list[int] = []
    splits = {}
    for part, word in PARTS.items():
        before = len(trees)
        for line in _lines(source, f"sst/{word}.txt"):
            tree, targets = sentence(line)
            if classes == 2 and targets[-1] == 2:
                continue
            trees.append(tree)
            sentiments += targets
            roots.append(targets[-1])
        splits[part] = np.arange(before, len(trees))
    table = np.arange(5) if classes == 5 else np.array([0, 0, -1, 1, 1])
    names = tuple("01234") if classes == 5 else ("negative", "positive")
    nodes = table[np.array(sentiments)]
    return Dataset(Forest(trees), table[np.array(roots)], names, splits, node_targets=nodes, made={"from": "sst"})


def sentence(text: str) -> tuple[Tree, list[int]]:
    """Read a tree with a sentiment at every node; return it with the sentiments in post-order. Words are in lower case.

    >>> print(*sentence("(3 (2 Not) (1 (2 so) (0 Bad)))"))
    (• not (• so bad)) [2, 2, 0, 1, 3]
    """
    open_nodes: list[tuple[int, list[Tree]]] = [(-1, [])]
    targets: list[int] = []
    for number, word in re.findall(r"\((\d) |([^ ()]+|\))", text):
        if number:
            open_nodes.append((int(number), []))
        elif word == ")":
            target, children = open_nodes.pop()
            targets.append(target)
            is_word = len(children) == 1 and not children[0].children and children[0].label != INNER
            open_nodes[-1][1].append(children[0] if is_word else Tree(INNER, children))
        else:
            open_nodes[-1][1].append(Tree(word.replace("\\/", "/").lower()))
    return open_nodes[0][1][0], targets


def sick(source: Path, column: str) -> Dataset:
    """Pairs of sentences as dependency trees; the column is ``relatedness_score`` or ``entailment_judgment``."""
    annotations = {"train": "SICK_train.txt", "validation": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
    trees: list[Tree] = []
    labels: list[str] = []
    splits = {}
    for part, word in PARTS.items():
        with _file(source, f"sick/{annotations[part]}").open(encoding="utf-8", newline="") as file:
            answers = {row["pair_ID"]: row[column] for row in csv.DictReader(file, delimiter="\t")}
        sides = [list(_dependencies(source, f"sick/dep_{word}/{side}")) for side in "ab"]
        trees += [tree for pair in zip(*sides, strict=True) for tree in pair]
        before = len(labels)
        labels += [answers[number] for number in _lines(source, f"sick/dep_{word}/id.txt")]
        splits[part] = np.arange(before, len(labels))
    names = sorted(set(labels))
    targets = np.array([names.index(label) for label in labels])
    return Dataset(Forest(trees), targets, tuple(names), splits, pairs=True, made={"from": "sick", "column": column})


def dependency_tree(words: Sequence[str], heads: Sequence[int]) -> Tree:
    """Return the tree of a sentence whose words have heads, counted from 1; that of the root is 0.

    >>> print(dependency_tree(["a", "dog", "barks", "loudly"], [2, 3, 0, 3]))
    (barks (dog a) loudly)
    """
    below: list[list[int]] = [[] for _ in range(len(words) + 1)]
    for place, head in enumerate(heads, start=1):
        below[head].append(place)
    order = list(below[0])
    for place in order:  # it grows: parents stand before children
        order += below[place]
    done: dict[int, Tree] = {}
    for place in reversed(order):
        done[place] = Tree(words[place - 1], [done[child] for child in below[place]])
    if len(below[0]) != 1 or len(done) != len(words):
        raise ReadError(
            f"expected one root and no cycle, got heads {list(heads)}; correct the line", source="dependencies"
        )
    return done[below[0][0]]


def _dependencies(source: Path, stem: str) -> Iterator[Tree]:
    for words, heads in zip(_lines(source, f"{stem}.toks"), _lines(source, f"{stem}.parents"), strict=True):
        yield dependency_tree(words.lower().split(), [int(head) for head in heads.split()])


class FileSet(NamedTuple):
    """Files by class: how to read them, and a pattern, or several, for each class."""

    format: str
    options: Mapping[str, Any]
    patterns: Mapping[str, str]
    most: int = 100


_SITE: Final = sysconfig.get_paths()["purelib"]
_RUST: Final = "/root/.rustup/toolchains/stable-x86_64-unknown-linux-gnu/share/doc/rust/html"
_NPM: Final = "/usr/lib/node_modules/npm"
_ICONS: Final = "/usr/share/icons/Adwaita/scalable"
_PACKAGES: Final = ("fontTools", "networkx", "numba", "pip", "scipy", "sklearn", "sympy", "torch")
_JAVASCRIPT: Final = ("@npmcli", "@sigstore", "diff", "semver", "tar", "undici")

FILES: Final[dict[str, FileSet]] = {
    "python_packages": FileSet("python", {}, {name: f"{_SITE}/{name}/**/*.py" for name in _PACKAGES}, 60),
    "python_types": FileSet("python", {"names": False}, {name: f"{_SITE}/{name}/**/*.py" for name in _PACKAGES}, 60),
    "headers": FileSet(
        "code",
        {"language": "c", "names": False},
        {
            name: f"/usr/include/{name}/**/*.h"
            for name in ["linux", "llvm-14", "nss", "openssl", "python3.11", "unicode", "X11"]
        },
    ),
    "javascript": FileSet(
        "code", {}, {n: f"{_NPM}/node_modules/{n}/**/*.js" for n in _JAVASCRIPT} | {"npm": f"{_NPM}/lib/**/*.js"}
    ),
    "rust_pages": FileSet(
        "html",
        {},
        {n: f"{_RUST}/std/**/{n}.*.html" for n in ["constant", "enum", "fn", "macro", "struct", "trait", "type"]},
        300,
    ),
    "rust_books": FileSet(
        "html",
        {"attributes": True},
        {
            n: f"{_RUST}/{n}/**/*.html"
            for n in ["book", "cargo", "error_codes", "reference", "rust-by-example", "rustc", "unstable-book"]
        },
    ),
    "mime_types": FileSet(
        "xml",
        {"attributes": True},
        {n: f"/usr/share/mime/{n}/*.xml" for n in ["application", "audio", "image", "text", "video"]},
        200,
    ),
    "icons": FileSet(
        "xml",
        {"attributes": True},
        {n: f"{_ICONS}/{n}/*.svg" for n in ["actions", "devices", "legacy", "status"]},
        250,
    ),
    "schemas": FileSet(
        "json",
        {},
        {"*": "/root/.pyenv/versions/3.11.7/lib/python3.11/site-packages/cfnlint/data/schemas/resources/*.json"},
    ),
}
_BYTES: Final = range(200, 60_000)


def files(source: Path, name: str) -> Dataset:
    """Make a data set of files on this machine; files that are tiny or huge, equal, or cannot be read are left out."""
    chosen = FILES[name]
    trees: list[Tree] = []
    labels: list[str] = []
    for label, paths in _by_class(chosen).items():
        read: dict[Tree, None] = {}
        for number in np.random.default_rng(0).permutation(len(paths)):
            if len(read) < chosen.most:
                found = READERS[chosen.format](paths[number], on_bad=lambda problem: None, **chosen.options)
                read |= dict.fromkeys(record.trees[0] for record in found)
        trees += read
        labels += [label] * len(read)
    classes, targets = np.unique(labels, return_inverse=True)
    made = {"from": dict(chosen.patterns), "format": chosen.format, "options": dict(chosen.options)}
    return Dataset(Forest(trees), targets, tuple(map(str, classes)), split(targets), made=made)


def _by_class(chosen: FileSet) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for label, pattern in chosen.patterns.items():
        folder, _, rest = pattern.partition("/*")
        paths = sorted(
            path for path in Path(folder).glob("*" + rest) if path.is_file() and path.stat().st_size in _BYTES
        )
        if not paths:
            raise ConfigurationError(
                f"expected files {pattern}, got none on this machine; change the pattern in FILES."
            )
        found[label] = paths
    return _by_service(found["*"]) if "*" in found else found


def _by_service(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Sort schemas of cloud resources by their service, ``AWS::EC2::VPC``; return the ten with the most."""
    found = defaultdict(list)
    for path in paths:
        found[str(json.loads(path.read_text(encoding="utf-8")).get("typeName", "")).split("::")[1]].append(path)
    return {name: found[name] for name, _ in Counter({name: len(each) for name, each in found.items()}).most_common(10)}


def split(targets: Ints) -> dict[str, Ints]:
    """Split examples into 60 % for training, 20 % for validation, 20 % to test, with the same share of each class.

    >>> {name: np.bincount(np.arange(20)[part] % 2).tolist() for name, part in split(np.arange(20) % 2).items()}
    {'train': [6, 6], 'validation': [2, 2], 'test': [2, 2]}
    """
    rest, test = train_test_split(np.arange(len(targets)), test_size=0.2, stratify=targets, random_state=0)
    train, validation = train_test_split(rest, test_size=0.25, stratify=targets[rest], random_state=0)
    return {"train": train, "validation": validation, "test": test}


def forest_in_preorder(
    labels: npt.NDArray[Any], widths: npt.NDArray[Any], sizes: npt.NDArray[Any], names: Sequence[str]
) -> Forest:
    """Make a forest from the label codes and numbers of children of all nodes in pre-order (N,), and the trees' sizes (T,).

    >>> forest = forest_in_preorder(np.array([0, 1, 2, 2, 1]), np.array([2, 1, 0, 0, 0]), np.array([4, 1]), ["f", "g", "x"])
    >>> list(map(str, forest))
    ['(f (g x) x)', 'g']
    """
    count, rows = len(labels), np.arange(len(labels))
    # The height is the number of nodes still due. A subtree ends at the first node after which one fewer is due than before it.
    height = np.cumsum(widths.astype(np.int64) - 1) + len(sizes)
    keys = height * count + rows
    order = np.argsort(keys)
    before = np.concatenate([[len(sizes)], height[:-1]])
    last = order[np.searchsorted(keys[order], (before - 1) * count + rows)]
    ended = np.cumsum(np.bincount(last, minlength=count))
    depths = rows - np.concatenate([[0], ended[:-1]])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    places = last - depths  # in post-order, among all nodes
    # A node's parent is the last node before it that is less deep by one.
    keys = depths * count + rows
    order = np.argsort(keys)
    found = np.searchsorted(keys[order], (depths - 1) * count + rows) - 1
    parents = np.where(depths > 0, order[found], -1)
    siblings = np.argsort(parents, kind="stable")
    first = np.searchsorted(parents[siblings], parents[siblings])
    slots = np.zeros(count, np.int64)
    slots[siblings] = rows - first
    slots[parents < 0] = 0
    starts = np.repeat(offsets[:-1], sizes)
    ordered = sorted(names)
    codes = np.array([ordered.index(name) for name in names])[labels]
    above = np.where(parents < 0, -1, places[parents] - starts)
    columns: dict[str, npt.NDArray[Any]] = {"offsets": offsets, "vectors": np.zeros((0, 0))}
    for name, values in [
        ("labels", codes),
        ("parents", above),
        ("slots", slots),
        ("widths", widths),
        ("depths", depths),
    ]:
        columns[name] = np.empty(count, np.int32)
        columns[name][places] = values
    return Forest._of(columns, Vocabulary(ordered))


DATA: Final[dict[str, Callable[[Path], Dataset]]] = {
    **{name: lambda source, name=name: make_order(name) for name in ORDER},  # type: ignore[misc]
    "kingdom": kingdom,
    "sst2": partial(sst, classes=2),
    "sst5": partial(sst, classes=5),
    "sick_relatedness": partial(sick, column="relatedness_score"),
    "sick_entailment": partial(sick, column="entailment_judgment"),
    **{name: partial(files, name=name) for name in FILES},
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


def _lines(source: Path, name: str) -> list[str]:
    return (
        _file(source, name).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    )  # a word may have other line ends


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
