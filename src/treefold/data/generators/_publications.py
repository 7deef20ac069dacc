"""Split records so that no publication, and no equal record, stands on two sides."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from treefold.data.generators._common import generator
from treefold.data.generators._fractions import check_fractions
from treefold.trees.tree import Label, Tree


@final
@dataclass(frozen=True, slots=True, eq=False)
class PublicationSplit:
    """The indices of the parts, ascending, and what the split cost; prints as a sentence.

    ``dropped`` are records whose publications went to different parts. ``components`` counts the groups of records that shared
    publications join, directly or through others, ``largest`` the records of the greatest. ``unpublished`` records name no
    publication; they are all in ``train``.

    >>> print(split_records([("p",), ("p",), ("q",), ()], [0, 1, 2, 3], seed=2, fractions=(0.5, 0.25, 0.25), cut=True))
    4 records: 3 train (1 of them unpublished), 0 validation, 1 test, 0 dropped; the largest of 2 components holds 2.
    """

    train: npt.NDArray[np.int64]
    validation: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]
    dropped: npt.NDArray[np.int64]
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
    """Join the names that stand together (union-find); return the function from a name to its representative."""
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
    """Choose a part with a chance in proportion to its room; the first where nothing has room."""
    weights = [max(0.0, free) for free in room]
    point = number * sum(weights)
    for part, weight in enumerate(weights):
        if point < weight:
            return part
        point -= weight
    return 0
