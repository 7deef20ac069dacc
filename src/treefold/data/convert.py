"""Conversion of files of any known format to a data set."""

import inspect
import os
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final, Literal, final

import numpy as np

from treefold.data.dataset import SPLITS, Dataset, number_of
from treefold.data.generators.common import Progress, check_fractions, shuffled
from treefold.data.readers import READERS, SUFFIXES, OnBad, Record, Source, format_of
from treefold.data.readers.stream import Literals, lines_of
from treefold.errors import (
    ConfigurationError,
    ReadError,
    TreeError,
    TreefoldError,
    nearest,
    require_choice,
    require_positive,
)
from treefold.files import as_path, has_half_character, with_whole_characters
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest
from treefold.trees.shaping import POLICIES, limit_arity
from treefold.trees.tree import Tree

LabelSource = Literal["record", "folder", "none"]
Paths = Sequence[str | os.PathLike[str]]

COLUMNS: Final = ("tree", "left", "right", "label")
"""What a column of a table may hold."""


@final
@dataclass(frozen=True)
class Conversion:
    """How files become a data set.

    - ``format``: a name of `treefold.data.readers.READERS`; None means that the suffix of each file decides;
    - ``options``: further arguments of the reader, ``{"text": "true"}``;
    - ``labels``: the source of the classes: the ``record`` itself (a column, a key), the ``folder`` of its file, or ``none``;
    - ``label_file``: instead, a file with one label per line, in the order of the trees; then no record may be malformed;
    - ``literals``: ``type`` cuts strings and numbers of documents and programs to their type, ``keep`` keeps them as labels;
    - ``columns``: the names of the columns (of JSON lines, the keys) ``tree``, ``left``, ``right`` and ``label`` of tables;
    - ``task``: what the data set is for: classes of a ``tree``, a ``pair`` or each ``node``, or numbers, ``regression``. None
      means that classes are assumed, but numbers if all labels are numbers and some of them not whole;
    - ``max_arity`` and ``wide``: the policy for nodes with more children, see `treefold.trees.shaping.limit_arity`;
    - ``fractions``: the shares of train, validation and test, unless each has its own files. Equal examples always go to the
      same split.
    """

    format: str | None = None
    options: Mapping[str, str] | None = None
    labels: LabelSource = "record"
    label_file: str | os.PathLike[str] | None = None
    literals: Literals = "type"
    columns: Mapping[str, str] | None = None
    task: str | None = None
    max_arity: int | None = None
    wide: Literal["error", "binarise", "group"] = "error"
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("convert", "labels", self.labels, ["record", "folder", "none"])
        require_choice("convert", "literals", self.literals, ["type", "keep"])
        require_choice("convert", "wide", self.wide, POLICIES)
        for name, texts in {"options": self.options, "columns": self.columns}.items():
            if texts is not None and not (
                isinstance(texts, Mapping) and all(isinstance(text, str) for text in texts.values())
            ):
                raise ConfigurationError(f"convert expects {name} to be a mapping of texts, got {shortened(texts)}.")
        for column in self.columns or {}:
            require_choice("convert", "a column", column, COLUMNS)
        if self.max_arity is not None:
            require_positive("convert", max_arity=self.max_arity)
        if self.task is not None:
            require_choice("convert", "task", self.task, ["tree", "pair", "node", "regression"])
        if self.format is not None:
            require_choice("convert", "format", self.format, READERS)
        check_fractions("convert", self.fractions)


@final
@dataclass(frozen=True)
class Reading:
    """How files of a format become trees: the arguments of the reader, and the policy for wide nodes."""

    format: str
    options: Mapping[str, Any] = field(default_factory=dict)
    max_arity: int | None = None
    wide: Literal["error", "binarise", "group"] = "error"

    def records(self, source: Source, on_bad: OnBad | None = None) -> Iterator[Record]:
        """Yield the records of a file; those that are malformed or too wide raise, or are passed to ``on_bad``."""
        for record in self._read(source, on_bad):
            try:
                shaped = self.shaped(record)
            except ReadError as error:
                if on_bad is None:
                    raise
                on_bad(error)
            else:
                yield shaped

    def _read(self, source: Source, on_bad: OnBad | None) -> Iterator[Record]:
        """Yield what the reader yields; a user's own reader may raise or yield anything."""
        reader = READERS[self.format]
        try:
            for record in reader(source, on_bad=on_bad, **self.options):
                if not isinstance(record, Record):
                    raise TypeError(f"{shortened(record)} is no Record")
                yield record
        except (TreefoldError, OSError):
            raise
        except Exception as problem:
            if str(getattr(reader, "__module__", "")).startswith("treefold."):
                raise
            raise ConfigurationError(
                f"{source}: expected records of READERS[{self.format!r}], got {type(problem).__name__}: {problem}; "
                f"correct the plugin that has this reader."
            ) from problem

    def shaped(self, record: Record) -> Record:
        """Rewrite the wide nodes of a record.

        >>> print(Reading("sexpr", max_arity=2, wide="group").shaped(Record((Tree.parse("(a b c d)"),), None, "", 1)).trees[0])
        (a (… b c) d)
        """
        if self.max_arity is None:
            return record
        try:
            limited = tuple(limit_arity(tree, self.max_arity, self.wide) for tree in record.trees)
            if record.node_labels and limited != record.trees:
                raise TreeError(
                    "expected nodes that stay as they are, since each has a label, got a tree to be rewritten; "
                    "leave out `max_arity`"
                )
        except TreeError as problem:
            raise ReadError(str(problem), source=record.source, line=record.line) from None
        return replace(record, trees=limited)

    def for_prediction(self) -> "Reading":
        """Leave out what only training needs: the name of the column of labels, and the refusal of wide nodes.

        >>> Reading("csv", {"tree_column": "x", "label_column": "y"}, max_arity=2).for_prediction()
        Reading(format='csv', options={'tree_column': 'x'}, max_arity=None, wide='error')
        """
        options = {name: value for name, value in self.options.items() if name not in ("label_column", "label_key")}
        return replace(self, options=options, max_arity=None if self.wide == "error" else self.max_arity)

    def changes(self) -> list[str]:
        """Return what differs from the defaults, in words.

        >>> Reading("python", {"literals": "type", "names": False}, max_arity=8, wide="group").changes()
        ['names false', 'max_arity 8', 'wide group']
        """
        defaults = _arguments_of(self.format)
        changed = {name: value for name, value in self.options.items() if value != defaults[name]}
        if self.max_arity is not None:
            changed |= {"max_arity": self.max_arity, "wide": self.wide}
        return [f"{name} {str(value).lower() if isinstance(value, bool) else value}" for name, value in changed.items()]


def formats_of(made: Mapping[str, Any]) -> dict[str, str]:
    """Return the formats in which `convert` read the files of a data set, by their suffixes; ``made`` is `Dataset.made`.

    >>> formats_of({"task": "convert", "from": ["train.txt", "test.txt"], "format": "sst"})
    {'.txt': 'sst'}
    >>> formats_of({"task": "listops"})
    {}
    """
    if made.get("task") != "convert":
        return {}
    names, form = made.get("from"), made.get("format")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(f"convert expects 'from' to be a list of file names, got {shortened(names)}.")
    if not isinstance(form, str | None):
        raise ConfigurationError(f"convert expects 'format' to be a text, got {shortened(form)}.")
    suffixes = dict.fromkeys(Path(name).suffix.lower() for name in names)
    found = {suffix: form or SUFFIXES.get(suffix) for suffix in suffixes}
    return {suffix: name for suffix, name in found.items() if name is not None}


def reading_of(made: Mapping[str, Any], form: str) -> Reading:
    """Return how `convert` read the files of this format, for a data set with this `Dataset.made`.

    If the data set has no files of this format, the defaults are returned.

    >>> made = {"task": "convert", "from": ["a.py"], "literals": "keep", "options": {"names": "false"}}
    >>> reading_of(made, "python").options, reading_of(made, "json").options
    ({'literals': 'keep', 'names': False}, {})
    """
    if form not in formats_of(made).values():
        return Reading(form)
    settings = ("format", "options", "literals", "columns", "max_arity", "wide")
    conversion = Conversion(**{name: made[name] for name in settings if name in made})
    return Reading(form, _options(form, conversion), conversion.max_arity, conversion.wide)


def convert(
    inputs: Paths | Mapping[str, Paths],
    conversion: Conversion | None = None,
    *,
    on_bad: OnBad | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Read files, and all files below folders, into a data set.

    ``inputs`` are paths, or the paths of ``train``, ``validation`` and ``test``; if the latter have no ``validation``, a share of
    the training examples is taken, in the proportion of ``fractions``. A record that is malformed or too wide raises `ReadError`;
    if ``on_bad`` is given, it is called with the error and the record is skipped. ``progress`` is called with the number of
    records so far.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "trees.jsonl"
    ...     _ = path.write_text('{"tree": "(f a b)", "label": "yes"}\\n{"tree": "c", "label": "no"}\\n')
    ...     data = convert([path])
    >>> [str(tree) for tree in data.forest], data.classes, data.targets.tolist(), data.task
    (['(f a b)', 'c'], ('no', 'yes'), [1, 0], 'tree')
    """
    conversion = conversion or Conversion()
    if conversion.label_file is not None:
        on_bad = None  # if records were skipped, the lines of the label file would no longer match
    groups = _groups(inputs, conversion.format)
    made = _made(groups, conversion)
    names = _Names(numbers_only=conversion.task == "regression")
    targets, node_targets = array("i"), array("i")
    has_node_labels = conversion.labels == "record" and conversion.label_file is None
    kinds: set[tuple[int, bool]] = set()  # the number of trees of a record, and whether their nodes have labels
    ends: dict[str, int] = {}

    def trees() -> Iterator[Tree]:
        for split, files in groups.items():
            for record in _records(files, made, on_bad):
                kinds.add((len(record.trees), has_node_labels and bool(record.node_labels)))
                try:
                    if len(kinds) > 1:
                        raise _mixed(record, len({width for width, _ in kinds}))
                    label = _label(record, conversion.labels) if conversion.label_file is None else None
                    targets.append(names.code(label, record.source, record.line))
                except ReadError as error:
                    if on_bad is None or len(kinds) > 1:
                        raise
                    on_bad(error)
                    continue
                if has_node_labels:
                    node_targets.extend(names.code(name, record.source, record.line) for name in record.node_labels)
                if progress is not None and len(targets) % 1000 == 0:
                    progress(len(targets))
                yield from record.trees
            ends[split] = len(targets)

    forest = Forest(trees())
    if not len(forest):
        raise ReadError(
            "expected at least one tree, got none that can be read; see the skipped records",
            source=next(iter(groups.values()))[0],
        )
    if conversion.label_file is not None:
        targets = _labels_from(conversion.label_file, len(targets), names)
    classes, codes = names.in_order()
    pairs = any(width == 2 for width, _ in kinds)
    data = Dataset(
        forest=forest,
        targets=codes[np.array(targets, dtype=np.int64)],
        classes=classes,
        splits={},
        pairs=pairs,
        node_targets=codes[np.array(node_targets, dtype=np.int64)] if node_targets else None,
        made=made,
        task=conversion.task or _assumed_task(classes, pairs),
    )
    _check_task(data)
    return replace(data, splits=_splits(data.keys(), ends, conversion))


class _Names:
    """The names of classes, each with a code in the order in which they came."""

    def __init__(self, *, numbers_only: bool) -> None:
        self._numbers_only = numbers_only
        self._codes: dict[str, int] = {}

    def code(self, name: str | None, source: object, line: int | None) -> int:
        """Return the code of a name, -1 for None; raise if it must be a number, but is not."""
        if name is None:
            return -1
        code = self._codes.get(name)
        if code is None:
            if self._numbers_only and number_of(name) is None:
                raise ReadError(
                    f"expected a label that is a number, for task 'regression', got {name!r}; "
                    f"correct it, leave it empty, or choose another task",
                    source=source,
                    line=line,
                )
            code = self._codes[name] = len(self._codes)
        return code

    def in_order(self) -> tuple[tuple[str, ...], Ints]:
        """Return the names in order, and for each code its place in that order; the last place, for code -1, is -1."""
        names = sorted(self._codes)
        places = np.full(len(names) + 1, -1, dtype=np.int64)
        places[[self._codes[name] for name in names]] = np.arange(len(names))
        return tuple(names), places


def _assumed_task(classes: Sequence[str], pairs: bool) -> str:
    numbers = [number_of(name) for name in classes]
    if all(number is not None for number in numbers) and any(number % 1 for number in numbers if number is not None):
        return "regression"
    return "pair" if pairs else "tree"


def _check_task(data: Dataset) -> None:
    """Raise unless the data set has what its task needs."""
    if data.task in ("tree", "node") and data.pairs:
        raise ConfigurationError(
            f"task {data.task!r} expects records of one tree, got pairs; choose the task 'pair', or 'regression'."
        )
    if data.task == "pair" and not data.pairs:
        raise ConfigurationError(
            "task 'pair' expects records of two trees, got single trees; choose the task 'tree', 'node' or 'regression'."
        )
    if data.task == "node" and data.node_targets is None:
        raise ConfigurationError(
            "task 'node' expects a label for every node, which the format 'sst' has, got none; choose the task 'tree'."
        )


def _mixed(record: Record, widths: int) -> ReadError:
    expected = (
        "labels for the nodes of all records, or of none"
        if widths == 1
        else "all records to have one tree, or all to be pairs"
    )
    return ReadError(f"expected {expected}, got both; convert them apart", source=record.source, line=record.line)


def _splits(keys: Sequence[bytes], ends: Mapping[str, int], conversion: Conversion) -> dict[str, Ints]:
    """Return the splits: those of the inputs, or by shares."""
    if "" in ends:
        return split_distinct(keys, conversion.fractions, conversion.seed)
    starts = dict(zip(ends, [0, *ends.values()], strict=False))
    parts = {name: np.arange(starts.get(name, 0), ends.get(name, 0)) for name in SPLITS}
    train, validation, _ = conversion.fractions
    if "train" in ends and "validation" not in ends and train + validation > 0:
        share = validation / (train + validation)
        own = split_distinct(
            [keys[number] for number in parts["train"].tolist()], (1 - share, share, 0.0), conversion.seed
        )
        parts |= {name: parts["train"][own[name]] for name in ("train", "validation")}
    return parts


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


def _groups(inputs: Paths | Mapping[str, Paths], form: str | None) -> dict[str, list[Path]]:
    """Return the files of each split; of the split ``""`` if the inputs name none."""
    given = inputs if isinstance(inputs, Mapping) else {"": inputs}
    for name in inputs if isinstance(inputs, Mapping) else ():
        require_choice("convert", "a split", name, SPLITS)
    groups = {name: list(_files(given[name], form)) for name in ("", *SPLITS) if given.get(name)}
    if not groups:
        raise ConfigurationError("convert expects at least one file or folder, got none; name the files to read.")
    return groups


def _files(inputs: Paths, form: str | None) -> Iterator[Path]:
    """Yield the input files, and the files in input folders with a suffix of the format, sorted by name."""
    for given in map(as_path, inputs):
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


def _records(files: Sequence[Path], made: Mapping[str, Any], on_bad: OnBad | None) -> Iterator[Record]:
    formats = [made.get("format") or format_of(path) for path in files]
    readings = {name: reading_of(made, name) for name in formats}
    for path, name in zip(files, formats, strict=True):
        yield from readings[name].records(path, on_bad)


def _options(name: str, conversion: Conversion) -> dict[str, Any]:
    """Return the arguments of a reader: the named options, and those that have settings of their own."""
    known = _arguments_of(name)
    options: dict[str, Any] = {"literals": conversion.literals} if "literals" in known else {}
    for role, column in (conversion.columns or {}).items():
        argument = next((f"{role}_{word}" for word in ("column", "key") if f"{role}_{word}" in known), None)
        if argument is None:
            raise ConfigurationError(
                f"names of columns are for csv, tsv, jsonl and parquet, got {column!r} for the {role} of the format {name!r}; "
                f"leave it out."
            )
        options[argument] = column
    return {**options, **reader_options(name, conversion.options or {})}


def _arguments_of(name: str) -> dict[str, Any]:
    """Return the options of a reader with their defaults."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(READERS[name]).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "on_bad"
    }


def reader_options(name: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Convert options from text to the types of a reader's arguments.

    >>> reader_options("xml", {"text": "true"})
    {'text': True}
    >>> reader_options("xml", {"txt": "true"})
    Traceback (most recent call last):
    ...
    treefold.errors.ConfigurationError: the format 'xml' has the options attributes, text, literals, got 'txt' (nearest
    known: 'text').
    """
    known = _arguments_of(name)
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
        folder = Path(record.source).resolve().parent.name
        if has_half_character(folder):
            raise ReadError(
                f"expected a folder whose name is UTF-8, because it is the label, got {folder!r}; rename the folder",
                source=record.source,
                line=record.line,
            )
        return folder
    return record.label if source == "record" else None


def _labels_from(path: str | os.PathLike[str], count: int, names: _Names) -> "array[int]":
    targets = array("i")
    for line in lines_of(path):
        if line.problem:
            raise line.problem
        targets.append(names.code(line.text.rstrip("\n") or None, path, line.number))
    if len(targets) != count:
        raise ReadError(
            f"expected a label for each of {count} records, got {len(targets)} lines; "
            f"write one label per line, in the order of the trees",
            source=path,
        )
    return targets


def _made(groups: Mapping[str, Sequence[Path]], conversion: Conversion) -> dict[str, Any]:
    settings = {name: value for name, value in vars(conversion).items() if value is not None and name != "task"}
    if conversion.label_file is not None:
        settings["label_file"] = with_whole_characters(Path(conversion.label_file).name)
    files = [path for paths in groups.values() for path in paths]
    firsts = {path.suffix.lower(): path for path in reversed(files)}  # `formats_of` needs a file of each suffix
    shown = dict.fromkeys([*files[:100], *firsts.values()])
    return {
        "task": "convert",
        "from": [with_whole_characters(path.name) for path in shown],
        "files": len(files),
        **settings,
    }
