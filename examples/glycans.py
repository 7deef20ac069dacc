"""Make a data set of glycans and the organisms they come from: python examples/glycans.py [FILE] --out DIR

The table of glycans is part of the package glycowork (``pip install --no-deps glycowork``), which is not imported. Glycans of
several organisms, or of none that is known, are left out; the rest is split by publication.

A glycan is written in IUPAC-condensed form, ``Gal(b1-4)[Fuc(a1-3)]GlcNAc``: the rightmost residue (the reducing end) is the
root. The children of a residue come before it, with a linkage to it; branches are in square brackets. A part in braces,
``{Neu5Ac(a2-3)}``, floats: it is attached somewhere, but the publication does not say where.
"""

import argparse
import csv
import importlib.util
import logging
import re
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final, get_args

import numpy as np

from treefold.data.dataset import DATASET, Dataset
from treefold.data.generators.common import check_fractions, generator
from treefold.data.readers import OnBad
from treefold.errors import ConfigurationError, ParseError, ReadError, TreefoldError, require_choice
from treefold.files import require_replaceable
from treefold.trees.batch import Ints
from treefold.trees.tree import Label, Tree

PACKAGE: Final = "glycowork"
FLOATING: Final = "{}"
"""The label of the node below the root that holds a floating part."""

Linkage = Literal["label", "node", "drop"]
Floating = Literal["attach", "refuse"]
Rank = Literal["Species", "Genus", "Family", "Order", "Class", "Phylum", "Kingdom", "Domain"]

_TOKEN: Final = re.compile(r"[\[\]{}]|(?P<name>[^\s()\[\]{}]+)(?:\((?P<linkage>[^\s()\[\]{}]+)\))?")
_CLOSERS: Final = {"[": "]", "{": "}"}
_UNKNOWN: Final = ("", "undetermined")
# The table has two names for two of the taxa.
_SYNONYMS: Final = {"Eukaryota": "Eukarya", "Metazoa": "Animalia"}
# Other references name a tool or a database entry, such as "gwb": they do not name a publication.
_PUBLICATION: Final = re.compile(r"https?://|doi:|10\.\d{4,}/", re.IGNORECASE)
_SPELLING: Final = re.compile(r"^https?://(?:www\.)?|/+$")  # one page, written in several ways

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class GlycanRecord:
    """A glycan: its tree, its text, the organisms' names at the chosen rank, and the publications; both sorted.

    >>> GlycanRecord(parse_glycan("Gal(b1-4)Glc"), "Gal(b1-4)Glc", ("Animalia",), ()).labels
    ('Animalia',)
    """

    tree: Tree
    text: str
    labels: tuple[str, ...]
    references: tuple[str, ...]


def load_glycans(
    path: str | Path | None = None,
    rank: Rank = "Kingdom",
    *,
    linkage: Linkage = "label",
    floating: Floating = "attach",
    on_bad: OnBad | None = None,
) -> list[GlycanRecord]:
    """Read the distinct glycans of a table of species, in its order, each with all its organisms and publications.

    ``path`` is the csv file (columns ``glycan``, ``ref`` and the rank), or the folder of the package glycowork; without it the
    installed package is used. An undetermined organism gives no label, so that ``labels`` can be empty. A glycan that cannot
    be read is left out: ``on_bad`` is called with each error, and the log has their number. ``linkage`` and ``floating`` are
    those of `parse_glycan`.

    >>> load_glycans("nowhere")
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: load_glycans expects a csv file or the folder of glycowork, got nothing at nowhere; ...
    """
    require_choice("load_glycans", "rank", rank, get_args(Rank))
    file = _table(path)
    trees: dict[str, Tree | None] = {}  # None if the text cannot be read
    labels: dict[str, set[str]] = {}
    references: dict[str, set[str]] = {}
    for line, text, label, reference in _rows(file, rank):
        if text not in trees:
            try:
                trees[text] = parse_glycan(text, linkage=linkage, floating=floating)
            except ParseError as problem:
                trees[text] = None
                if on_bad is not None:
                    on_bad(ReadError(f"glycan {text!r}: {problem.problem}", source=file, line=line))
            labels[text], references[text] = set(), set()
        if label not in _UNKNOWN:
            labels[text].add(_SYNONYMS.get(label, label))
        if _PUBLICATION.match(reference):
            references[text].add(reference)
    bad = [text for text, tree in trees.items() if tree is None]
    if bad:
        _log.warning("%s: left out %d of %d glycans, the first is %s", file, len(bad), len(trees), bad[0])
    return [
        GlycanRecord(tree, text, tuple(sorted(labels[text])), tuple(sorted(references[text])))
        for text, tree in trees.items()
        if tree is not None
    ]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PublicationSplit:
    """The indices of the parts, ascending, and of the dropped records; ``str`` gives a summary.

    ``dropped`` are records whose publications went to different parts. ``components`` counts the groups of records that shared
    publications join, directly or through others, ``largest`` the records of the greatest. ``unpublished`` records name no
    publication; they are all in ``train``.

    >>> print(split_records([("p",), ("p",), ("q",), ()], [0, 1, 2, 3], seed=2, fractions=(0.5, 0.25, 0.25), cut=True))
    4 records: 3 train (1 of them unpublished), 0 validation, 1 test, 0 dropped; the largest of 2 components holds 2.
    """

    train: Ints
    validation: Ints
    test: Ints
    dropped: Ints
    components: int
    largest: int
    unpublished: int

    def __str__(self) -> str:
        train, validation, test, dropped = map(len, (self.train, self.validation, self.test, self.dropped))
        return (
            f"{train + validation + test + dropped} records: {train} train ({self.unpublished} of them unpublished), "
            f"{validation} validation, {test} test, {dropped} dropped; "
            f"the largest of {self.components} components holds {self.largest}."
        )


def split_records(
    publications: Sequence[Sequence[str]],
    identities: Sequence[Hashable],
    *,
    seed: int,
    fractions: tuple[float, float, float],
    cut: bool,
) -> PublicationSplit:
    """Split records, given the publications of each and a value that equal records share; see `split_by_publication`.

    >>> split_records([("p",), ("q",), ("p", "q")], [0, 1, 2], seed=0, fractions=(1, 0, 0), cut=True).train
    array([0, 1, 2])
    """
    check_fractions("split_by_publication", fractions)
    random = generator("split_by_publication", seed).random
    # A unit is the records of one identity: wherever one goes, all go.
    units: dict[Hashable, list[int]] = {}
    for record, identity in enumerate(identities):
        units.setdefault(identity, []).append(record)
    names = [tuple(dict.fromkeys(name for record in unit for name in publications[record])) for unit in units.values()]
    sizes = [len(unit) for unit in units.values()]

    components: dict[str, list[int]] = {}  # units by the component's representative
    find = _joined(names)
    for unit, known in enumerate(names):
        if known:
            components.setdefault(find(known[0]), []).append(unit)
    held = [sum(sizes[unit] for unit in members) for members in components.values()]

    unpublished = sum(size for size, known in zip(sizes, names, strict=True) if not known)
    room = [fraction * len(publications) for fraction in fractions]
    room[0] -= unpublished
    smallest = min(wanted * len(publications) for wanted in fractions if wanted > 0)
    pieces: list[tuple[float, list[str]]] = []  # publications that go to one part together, with the records they bring
    part_of: dict[str, int] = {}
    for members, size in zip(components.values(), held, strict=True):
        together = list(dict.fromkeys(name for unit in members for name in names[unit]))
        if size <= smallest:
            pieces.append((size, together))
        elif cut:
            brings = dict.fromkeys(together, 0.0)
            for unit in members:
                for name in names[unit]:
                    brings[name] += sizes[unit] / len(names[unit])
            pieces.extend((brings[name], [name]) for name in together)
        else:
            part = max(range(3), key=lambda index: room[index])
            part_of.update(dict.fromkeys(together, part))
            room[part] -= size
    pieces.sort(key=lambda _: random())  # a shuffle
    for weight, together in pieces:
        part = _draw(room, random())
        part_of.update(dict.fromkeys(together, part))
        room[part] -= weight

    parts: list[list[int]] = [[], [], [], []]
    for records, known in zip(units.values(), names, strict=True):
        wanted = {part_of[name] for name in known} or {0}
        parts[wanted.pop() if len(wanted) == 1 else 3].extend(records)
    train, validation, test, dropped = (np.array(sorted(part), dtype=np.int64) for part in parts)
    return PublicationSplit(train, validation, test, dropped, len(components), max(held, default=0), unpublished)


def unordered_identities(trees: Sequence[Tree]) -> list[int]:
    """Number the trees so that two have the same number if and only if they are equal up to the order of children.

    >>> unordered_identities([Tree.parse(tree) for tree in ("(a b (c d e))", "(a (c e d) b)", "(a b (c d))")])
    [4, 4, 6]
    """
    table: dict[tuple[Label, tuple[int, ...]], int] = {}
    found = []
    for tree in trees:
        done: list[int] = []
        for node in tree.postorder():
            present = len(node.children) - node.children.count(None)
            children = tuple(sorted(done[len(done) - present :]))
            del done[len(done) - present :]
            done.append(table.setdefault((node.label, children), len(table)))
        found.append(done[0])
    return found


def _joined(names: Sequence[Sequence[str]]) -> Callable[[str], str]:
    """Join names that occur together (union-find); return the function from a name to its representative."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for together in names:
        for name in together:
            parent[find(name)] = find(together[0])
    return find


def _draw(room: Sequence[float], number: float) -> int:
    """Choose a part with a chance in proportion to its room; the first if no part has room."""
    weights = [max(0.0, free) for free in room]
    point = number * sum(weights)
    for part, weight in enumerate(weights):
        if point < weight:
            return part
        point -= weight
    return 0


def split_by_publication(
    records: Sequence[GlycanRecord],
    seed: int,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    *,
    cut: bool = True,
) -> PublicationSplit:
    """Split glycans so that no publication is in two parts, nor a glycan, whatever the order of its branches.

    Publications that share a glycan belong together, and most of the literature is one such component. A component larger
    than the smallest part is cut: its publications are dealt one by one, and a glycan whose publications part is dropped. With
    ``cut=False`` it stays whole, in the part with the most room, and the other parts get the glycans of no such publication.
    Unpublished records go to training. To be sure that no tested publication is in training without its name, leave them
    out: ``[record for record in records if record.references]``.

    >>> records = [GlycanRecord(Tree(name), name, (), (f"10.1000/{name}",)) for name in ("Gal", "Glc", "Man", "Fuc")]
    >>> print(split_by_publication(records, seed=0, fractions=(0.5, 0.25, 0.25)))
    4 records: 2 train (0 of them unpublished), 1 validation, 1 test, 0 dropped; the largest of 4 components holds 1.
    """
    publications = [[_SPELLING.sub("", reference) for reference in record.references] for record in records]
    identities = unordered_identities([record.tree for record in records])
    return split_records(publications, identities, seed=seed, fractions=fractions, cut=cut)


def parse_glycan(text: str, *, linkage: Linkage = "label", floating: Floating = "attach") -> Tree:
    """Read a glycan in IUPAC-condensed form; children keep the order in which they are written.

    The linkage of a residue to its parent is part of its label, or a node between the two (``linkage="node"``), or dropped.
    A floating part hangs below a node ``{}``, after the children of the root, or is refused (``floating="refuse"``).

    >>> print(parse_glycan("Neu5Ac(a2-3)Gal(b1-4)[Fuc(a1-3)]GlcNAc").draw())
    GlcNAc
    ├── "Gal(b1-4)"
    │   └── "Neu5Ac(a2-3)"
    └── "Fuc(a1-3)"
    >>> print(parse_glycan("{Fuc(a1-3)}Gal(b1-4)GlcNAc", linkage="node"))
    (GlcNAc (b1-4 Gal) ({} (a1-3 Fuc)))
    """
    require_choice("parse_glycan", "linkage", linkage, get_args(Linkage))
    require_choice("parse_glycan", "floating", floating, get_args(Floating))
    waiting: list[Tree] = []  # the residues linked to the next one
    outer: list[tuple[str, int, list[Tree]]] = []  # the open bracket, its place, and the residues waiting outside of it
    parts: list[Tree] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(
                f"expected a residue or a bracket, got {text[position]!r}; a linkage follows its residue as in Gal(b1-4)",
                text=text,
                position=position,
            )
        token = match[0]
        if match["name"] is not None:
            if match["linkage"] is None:
                _require_root(text, match.end(), outer)
                return Tree(match["name"], [*waiting, *parts])
            waiting = [_linked(match["name"], match["linkage"], waiting, linkage)]
        elif token in _CLOSERS:
            if token == "{" and (waiting or outer):
                raise ParseError(
                    "expected floating parts first, got '{' later; move it to the front", text=text, position=position
                )
            if token == "{" and floating == "refuse":
                raise ParseError(
                    "expected residues with a known place, got a floating part; take it with floating='attach'",
                    text=text,
                    position=position,
                )
            outer.append((token, position, waiting))
            waiting = []
        else:
            waiting = _close(text, position, outer, waiting, parts)
        position = match.end()
    if outer:
        raise _unclosed(text, position, outer)
    raise ParseError(
        "expected a last residue without linkage, the reducing end, got the end; write for instance Gal(b1-4)Glc",
        text=text,
        position=position,
    )


def _linked(name: str, linkage: str, children: list[Tree], mode: Linkage) -> Tree:
    if mode == "node":
        return Tree(linkage, [Tree(name, children)])
    return Tree(f"{name}({linkage})" if mode == "label" else name, children)


def _close(
    text: str, position: int, outer: list[tuple[str, int, list[Tree]]], branch: list[Tree], parts: list[Tree]
) -> list[Tree]:
    """End a branch or a floating part; return the residues that wait for the next one."""
    if not outer or _CLOSERS[outer[-1][0]] != text[position]:
        wanted = f"{_CLOSERS[outer[-1][0]]!r}" if outer else "a residue"
        raise ParseError(
            f"expected {wanted}, got {text[position]!r}; balance the brackets", text=text, position=position
        )
    opener, _, before = outer.pop()
    # Several waiting residues would be a branch that ends in a branch: there is no residue that they hang on.
    if len(branch) != 1 or text[position - 1] != ")":
        raise ParseError(
            f"expected a residue with its linkage before {text[position]!r}, got {text[position - 1]!r}; "
            f"write for instance [Fuc(a1-3)]",
            text=text,
            position=position,
        )
    if opener == "[":
        return before + branch
    parts.append(Tree(FLOATING, branch))
    return []


def _require_root(text: str, end: int, outer: list[tuple[str, int, list[Tree]]]) -> None:
    if end < len(text):
        raise ParseError(
            f"expected a linkage such as (b1-4) after a residue that is not the last, got {text[end]!r}; "
            f"only the reducing end, at the right, has none",
            text=text,
            position=end,
        )
    if outer:
        raise _unclosed(text, end, outer)


def _unclosed(text: str, position: int, outer: list[tuple[str, int, list[Tree]]]) -> ParseError:
    opener, place, _ = outer[-1]
    return ParseError(
        f"expected {_CLOSERS[opener]!r} to close {opener!r} of column {place + 1}, got the end; balance the brackets",
        text=text,
        position=position,
    )


def _table(path: str | Path | None) -> Path:
    """Return the csv file of species: the given one, or the newest in the package's folder."""
    if path is None:
        spec = importlib.util.find_spec(PACKAGE)  # of a top-level package: found, not imported
        if spec is None or not spec.submodule_search_locations:
            raise ConfigurationError(
                f"load_glycans expects the package {PACKAGE}, got none installed; install it with "
                f"`pip install --no-deps {PACKAGE}` (only its data are read), or give `path`."
            )
        path = spec.submodule_search_locations[0]
    path = Path(path)
    if path.is_file():
        return path
    # Sort by number, because v9 comes before v12, then by path, because folders have no order.
    found = sorted(
        path.rglob("*df_species.csv"), key=lambda file: ([int(n) for n in re.findall(r"\d+", file.name)], str(file))
    )
    if not found:
        raise ConfigurationError(
            f"load_glycans expects a csv file or the folder of {PACKAGE}, got nothing at {path}; "
            f"unpack or install {PACKAGE} (`pip install --no-deps {PACKAGE}`), which carries *df_species.csv."
        )
    return found[-1]


def _rows(file: Path, rank: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield line, and glycan, organism at the rank and reference of every row."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            for column in ("glycan", rank, "ref"):
                if column not in (reader.fieldnames or ()):
                    raise ReadError(
                        f"expected a column {column!r}, got {reader.fieldnames}; give a table of species", source=file
                    )
            for row in reader:
                text, label, reference = row["glycan"], row[rank], row["ref"]
                if text is None or label is None or reference is None:
                    raise ReadError(
                        "expected as many cells as columns, got fewer; correct the row",
                        source=file,
                        line=reader.line_num,
                    )
                yield reader.line_num, text.strip(), label.strip(), reference.strip()
    except (csv.Error, UnicodeDecodeError) as problem:
        raise ReadError(f"expected a csv table in UTF-8, got {problem}; export it again", source=file) from None


def make_glycans(
    path: str | Path | None = None,
    *,
    rank: Rank = "Kingdom",
    seed: int = 0,
    linkage: Linkage = "label",
    on_bad: OnBad | None = None,
) -> Dataset:
    """Make the data set: glycans with exactly one organism class, split by publication."""
    records = load_glycans(path, rank=rank, linkage=linkage, on_bad=on_bad)
    records = [record for record in records if len(record.labels) == 1]
    parts = split_by_publication(records, seed)
    return Dataset.from_labels(
        [record.tree for record in records],
        [record.labels[0] for record in records],
        {"train": parts.train, "validation": parts.validation, "test": parts.test},
        {"task": "glycans", "rank": rank, "linkage": linkage, "seed": seed, "split": str(parts)},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="the csv table, or the folder of glycowork, if it is not installed")
    parser.add_argument("--out", type=Path, required=True, help="the data set's directory; it must not exist yet")
    parser.add_argument("--rank", default="Kingdom", choices=get_args(Rank), help="rank of the classes")
    parser.add_argument("--linkage", default="label", choices=get_args(Linkage), help="how linkages are kept")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split")
    parser.add_argument("--force", action="store_true", help="replace the data set if it exists")
    options = parser.parse_args(arguments)
    problems: list[str] = []
    try:
        require_replaceable(options.out, DATASET if options.force else None)
        data = make_glycans(
            options.file,
            rank=options.rank,
            linkage=options.linkage,
            seed=options.seed,
            on_bad=lambda problem: problems.append(str(problem)),
        )
        data.save(
            options.out, force=options.force, texts={"skipped.txt": "\n".join(problems) + "\n"} if problems else None
        )
    except TreefoldError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    print(f"{options.out}: {len(data):,} glycans in {len(data.classes)} classes; {data.made['split']}")
    if problems:
        print(f"left out {len(problems):,} that could not be read; skipped.txt lists them", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
