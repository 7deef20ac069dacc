"""Conversion of files of any known format to a data set."""

import inspect
import os
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from treefold.data.dataset import SPLITS, Dataset
from treefold.data.generators.common import Progress, check_fractions, shuffled
from treefold.data.readers import READERS, SUFFIXES, OnBad, Record, format_of
from treefold.data.readers.stream import lines_of
from treefold.errors import ConfigurationError, ReadError, TreeError, nearest, require_choice
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest
from treefold.trees.shaping import limit_arity
from treefold.trees.tree import Tree

LabelSource = Literal["record", "folder", "none"]


@final
@dataclass(frozen=True)
class Conversion:
    """How files become a data set.

    - ``format``: a name of `treefold.data.readers.READERS`; None means that the suffix of each file decides;
    - ``options``: further arguments of the reader, ``{"text": "true"}``;
    - ``labels``: the source of the classes: the ``record`` itself (a column, a key), the ``folder`` of its file, or ``none``;
    - ``label_file``: instead, a file with one label per line, in the order of the trees; then no record may be malformed;
    - ``max_arity`` and ``wide``: the policy for nodes with more children, see `treefold.trees.shaping.limit_arity`;
    - ``fractions``: the shares of train, validation and test. Equal examples always go to the same split.
    """

    format: str | None = None
    options: Mapping[str, str] | None = None
    labels: LabelSource = "record"
    label_file: str | os.PathLike[str] | None = None
    max_arity: int | None = None
    wide: Literal["error", "binarise", "group"] = "error"
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("convert", "labels", self.labels, ["record", "folder", "none"])
        if self.format is not None:
            require_choice("convert", "format", self.format, READERS)
        check_fractions("convert", self.fractions)


def convert(
    inputs: Sequence[str | os.PathLike[str]],
    conversion: Conversion | None = None,
    *,
    on_bad: OnBad | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Read files, and all files below folders, into a data set.

    A record that is malformed or too wide raises `ReadError`; if ``on_bad`` is given, it is called with the error and the
    record is skipped. ``progress`` is called with the number of records so far.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "trees.jsonl"
    ...     _ = path.write_text('{"tree": "(f a b)", "label": "yes"}\\n{"tree": "c", "label": "no"}\\n')
    ...     data = convert([path])
    >>> [str(tree) for tree in data.forest], data.classes, data.targets.tolist()
    (['(f a b)', 'c'], ('no', 'yes'), [1, 0])
    """
    conversion = conversion or Conversion()
    if conversion.label_file is not None:
        on_bad = None  # if records were skipped, the lines of the label file would no longer match
    files = list(_files(inputs, conversion.format))
    classes: dict[str, int] = {}
    targets = array("i")
    widths: set[int] = set()

    def trees() -> Iterator[Tree]:
        for count, record in enumerate(_records(files, conversion, on_bad), start=1):
            label = _label(record, conversion.labels)
            targets.append(-1 if label is None else classes.setdefault(label, len(classes)))
            widths.add(len(record.trees))
            if len(widths) > 1:
                raise ReadError(
                    "expected all records to have one tree, or all to be pairs, got both; convert them apart",
                    source=record.source,
                    line=record.line,
                )
            if progress is not None and count % 1000 == 0:
                progress(count)
            yield from record.trees

    forest = Forest(trees())
    if not len(forest):
        raise ReadError(
            "expected at least one tree, got none that can be read; see the skipped records", source=files[0]
        )
    names = list(classes)
    if conversion.label_file is not None:
        targets, names = _labels_from(conversion.label_file, len(targets))
    order = sorted(names)
    codes = np.array(
        [*(order.index(name) for name in names), -1], dtype=np.int64
    )  # the last is for examples without a class
    data = Dataset(
        forest=forest,
        targets=codes[np.array(targets, dtype=np.int64)],
        classes=tuple(order),
        splits={},
        pairs=widths == {2},
        made=_made(files, conversion),
    )
    return Dataset(**{**vars(data), "splits": split_distinct(data.keys(), conversion.fractions, conversion.seed)})


def split_distinct(keys: Sequence[bytes], fractions: tuple[float, float, float], seed: int) -> dict[str, Ints]:
    """Split examples into train, validation and test; examples with equal keys stay together.

    >>> parts = split_distinct([b"a", b"b", b"a", b"c", b"d"], (0.6, 0.2, 0.2), seed=0)
    >>> {name: len(part) for name, part in parts.items()}
    {'train': 3, 'validation': 1, 'test': 1}
    >>> sum({0, 2} <= set(part.tolist()) for part in parts.values())  # the two equal ones are together
    1
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        groups[key].append(number)
    members = list(groups.values())
    parts: dict[str, list[int]] = {name: [] for name in SPLITS}
    # Each group goes to the split that lacks most, so that the shares are met as well as the groups allow.
    wanted = {name: fraction * len(keys) for name, fraction in zip(SPLITS, fractions, strict=True)}
    for group in (members[index] for index in shuffled(len(members), seed)):
        name = max(SPLITS, key=lambda split: wanted[split] - len(parts[split]))
        parts[name] += group
    return {name: np.array(sorted(part), dtype=np.int64) for name, part in parts.items()}


def _files(inputs: Sequence[str | os.PathLike[str]], form: str | None) -> Iterator[Path]:
    """Yield the input files, and the files in input folders with a suffix of the format, sorted by name."""
    for given in map(Path, inputs):
        if not given.is_dir():
            yield given
            continue
        suffixes = {suffix for suffix, name in SUFFIXES.items() if form in (None, name)}
        found = sorted(
            path
            for path in given.rglob("*")
            if path.is_file()
            and path.suffix.lower() in suffixes
            and not any(part.startswith(".") for part in path.relative_to(given).parts)
        )
        if not found:
            raise ReadError(
                f"expected files that end in {', '.join(sorted(suffixes))}, got none; name the files themselves",
                source=given,
            )
        yield from found


def _records(files: Sequence[Path], conversion: Conversion, on_bad: OnBad | None) -> Iterator[Record]:
    for path in files:
        name = conversion.format or format_of(path)
        options = reader_options(name, conversion.options or {})
        for record in READERS[name](path, on_bad=on_bad, **options):
            if conversion.max_arity is None:
                yield record
                continue
            try:
                limited = tuple(limit_arity(tree, conversion.max_arity, conversion.wide) for tree in record.trees)
            except TreeError as problem:
                error = ReadError(str(problem), source=record.source, line=record.line)
                if on_bad is None:
                    raise error from None
                on_bad(error)
            else:
                yield Record(limited, record.label, record.source, record.line)


def reader_options(name: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Convert options from text to the types of a reader's arguments.

    >>> reader_options("xml", {"text": "true"})
    {'text': True}
    >>> reader_options("xml", {"txt": "true"})
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: the format 'xml' has the options attributes, text, got 'txt' (nearest known: 'text').
    """
    known = {
        parameter.name: parameter.default
        for parameter in inspect.signature(READERS[name]).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "on_bad"
    }
    options: dict[str, Any] = {}
    for key, text in given.items():
        if key not in known:
            has = f"has the options {', '.join(known)}" if known else "has no options"
            raise ConfigurationError(f"the format {name!r} {has}, got {key!r}{nearest(key, known)}.")
        if isinstance(known[key], bool):
            require_choice(f"the format {name!r}", key, text, ["true", "false"])
            options[key] = text == "true"
        else:
            options[key] = text
    return options


def _label(record: Record, source: LabelSource) -> str | None:
    if source == "folder":
        return Path(record.source).resolve().parent.name
    return record.label if source == "record" else None


def _labels_from(path: str | os.PathLike[str], count: int) -> tuple["array[int]", list[str]]:
    classes: dict[str, int] = {}
    targets = array("i")
    for line in lines_of(path):
        if line.problem:
            raise line.problem
        targets.append(classes.setdefault(line.text.rstrip("\n"), len(classes)))
    if len(targets) != count:
        raise ReadError(
            f"expected a label for each of {count} records, got {len(targets)} lines; "
            f"write one label per line, in the order of the trees",
            source=path,
        )
    return targets, list(classes)


def _made(files: Sequence[Path], conversion: Conversion) -> dict[str, Any]:
    settings = {name: value for name, value in vars(conversion).items() if value is not None}
    if conversion.label_file is not None:
        settings["label_file"] = Path(conversion.label_file).name
    return {"task": "convert", "from": [path.name for path in files[:100]], "files": len(files), **settings}
