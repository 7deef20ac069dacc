"""The models that a service answers with: how they read trees, what they answer, how they explain it."""

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from treefold.analysis.explaining import Explanation, explain
from treefold.analysis.prediction import LabelCheck, Trees, answers, require_task_fits, root_states
from treefold.data.convert import Reading, formats_of, reading_of
from treefold.data.readers import READERS, SUFFIXES
from treefold.data.readers.stream import Record, placed
from treefold.errors import ConfigurationError, ModelFileError, ParseError, ReadError, nearest, require_choice
from treefold.training.run import CHECKPOINT, METRICS, is_being_trained, made_of
from treefold.training.saving import SavedModel, load_model
from treefold.trees.forest import Forest
from treefold.trees.tree import Tree

SEXPR: Final = "sexpr"
FORMATS: Final = tuple(name for name in READERS if name != "parquet")
"""The formats in which trees can be sent: those of text."""


@final
@dataclass(frozen=True)
class Served:
    """A model under the name by which requests choose it.

    ``note`` says what users should know, for example that the run is still being trained. ``made`` is how the data of the run
    were made: trees of the same format are read with the same options.
    """

    name: str
    folder: Path
    saved: SavedModel
    note: str = ""
    made: Mapping[str, Any] = field(default_factory=dict)
    _readings: dict[str, Reading] = field(default_factory=dict, repr=False, compare=False)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty for numbers."""
        return self.saved.classes

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of texts, those of the training data first."""
        return tuple(dict.fromkeys([*(form for form in formats_of(self.made).values() if form in FORMATS), *FORMATS]))

    def read(self, text: str, format: str | None = None, name: str = "tree") -> Trees:  # noqa: A002
        """Read the tree of a text, or its pair of trees; by default an s-expression. Errors call it ``name``.

        Trees in the format of the training data are read with the same options; wide nodes are rewritten in the same way.
        """
        form = format or SEXPR
        reading = self._readings.get(form)
        if reading is None:
            require_choice("the service", "format", form, FORMATS)
            reading = self._readings[form] = reading_of(self.made, form).for_prediction()
        if form == SEXPR:
            try:
                return reading.shaped(Record((Tree.parse(text),), None, name, None)).trees
            except ParseError as problem:
                raise placed(problem, name) from None
        own = (suffix for suffix, name in formats_of(self.made).items() if name == form)
        suffix = next(own, next((suffix for suffix, name in SUFFIXES.items() if name == form), ""))
        with tempfile.TemporaryDirectory() as folder:  # readers read files
            path = Path(folder, f"tree{suffix}")
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            try:
                found = [record.trees for record in reading.records(path)]
            except ReadError as problem:
                raise ReadError(problem.problem, source=name, line=problem.line, column=problem.column) from None
        if len(found) != 1:
            raise ReadError(f"expected one tree or pair, got {len(found)}; send each as a text of its own", source=name)
        return found[0]

    def answers(self, examples: Sequence[Trees], unknown: str = "unk") -> list[dict[str, Any]]:
        """Return for each example what `treefold predict` prints: ``prediction``, and ``probabilities`` or ``probability``.

        With ``unknown="error"``, a label that the model does not know is an error, and so is a child without a slot.
        Otherwise ``notes`` say so, for the examples that have them.
        """
        examples = list(examples)
        forest = self.check(examples, unknown)
        found = answers(self.saved, examples, forest)
        encoder = self.saved.model.encoder
        if not encoder.known(forest.vocabulary).all() or encoder.ignored_children(forest):
            for answer, trees in zip(found, examples, strict=True):
                notes = self._notes(Forest(trees))
                if notes:
                    answer["notes"] = notes
        return found

    def _notes(self, forest: Forest) -> list[str]:
        check = LabelCheck(self.saved)
        check.add(forest)
        note, ignored = check.note(), self.saved.model.encoder.ignored_children(forest)
        notes = [] if note is None else [note.removeprefix("note: ")]
        if ignored:
            children = "1 child is" if ignored == 1 else f"{ignored:,} children are"
            notes.append(f"{children} ignored: no node of the training trees with such a label had so many")
        return notes

    def states(self, examples: Sequence[Trees], unknown: str = "unk") -> list[npt.NDArray[np.float32]]:
        """Return the root states of each example's trees, (1 or 2, C) each."""
        examples = list(examples)
        self.check(examples, unknown)
        return root_states(self.saved, examples)

    def explain(self, trees: Trees, *, occlude: bool = True, top: int = 5, unknown: str = "unk") -> Explanation:
        """Explain the answer about a tree, or a pair of trees."""
        self.check([trees], unknown)
        found = self.saved.model.encoder.unknown_labels(Forest(trees))
        subject = trees if len(trees) > 1 else trees[0]
        return explain(self.saved, subject, top=top, occlude=occlude, unknown=tuple(found))

    def check(self, examples: Sequence[Trees], unknown: str = "unk") -> Forest:
        """Return the trees of all examples; raise unless they are of the kind that the model judges.

        With ``unknown="error"``, a label that is not known is an error.
        """
        require_task_fits(self.saved, list(examples))
        check = LabelCheck(self.saved, unknown)
        forest = Forest(tree for trees in examples for tree in trees)
        if unknown == "error":
            check.add(forest)
        return forest


def nodes_of(explanation: Explanation) -> list[dict[str, Any]]:
    """Return the rows of an explanation for JSON, in post-order, of a pair those of the left tree first.

    ``node`` is the number of a node, as ``data-node`` in drawings; ``parent`` that of its parent, or None.

    >>> from treefold.analysis.explaining import Belief
    >>> beliefs = (Belief(0, "a", "yes", 0.75), Belief(1, "f", "no", 0.5))
    >>> [(row["node"], row["parent"], row["size"]) for row in nodes_of(Explanation((Tree.parse("(f a)"),), beliefs))]
    [(0, 1, 1), (1, None, 2)]
    """
    parents = [None if parent < 0 else parent for parent in Forest(explanation.trees).parent_rows.tolist()]
    sizes = [part.size for tree in explanation.trees for part in tree.postorder()]
    places = [place for place, tree in enumerate(explanation.trees) for _ in range(tree.size)]
    table, classes = explanation.probabilities, explanation.classes
    rows = []
    for node, parent, size, place in zip(explanation.nodes, parents, sizes, places, strict=True):
        label = node["label"]
        row = {
            "tree": place,
            "node": node["node"],
            "parent": parent,
            "depth": node["depth"],
            "label": label if isinstance(label, str) else list(label),
            "size": size,
            "prediction": node["answer"],
            "unknown": not node["known"],
        }
        if node["confidence"] is not None:
            row["probability"] = round(node["confidence"], 6)
        if table is not None and classes:
            row["probabilities"] = {
                name: round(number, 6) for name, number in zip(classes, table[node["node"]].tolist(), strict=True)
            }
        if node["fall"] is not None:
            row["effect"] = round(node["fall"], 6)
        rows.append(row)
    return rows


def open_models(folders: Iterable[str | os.PathLike[str]]) -> dict[str, Served]:
    """Open runs or saved models; each has the name of its folder, with the folders above it as far as names are equal."""
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise ConfigurationError("expected at least one run to serve, got none; name the directory of a run.")
    models = {}
    for name, path in zip(_names(paths), paths, strict=True):
        saved, note = load_model(path), _note(path)
        models[name] = Served(name, path, saved, note, made_of(path))
    return models


def chosen(models: Mapping[str, Served], name: str | None) -> Served:
    """Return the model of this name; the first one without a name."""
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        known = ", ".join(repr(each) for each in models)
        raise UnknownModelError(
            f"expected model to be one of {known}, got {name!r}{nearest(name, models)}; see /models."
        )
    return models[name]


class UnknownModelError(ConfigurationError):
    """There is no model of this name."""


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that differ."""
    whole = [path.resolve() for path in paths]
    for path in whole:
        if whole.count(path) > 1:
            raise ConfigurationError(f"expected each run once, got {path} twice; leave it out once.")
    names = []
    for path in whole:
        count = 1
        while sum(other.parts[-count:] == path.parts[-count:] for other in whole) > 1:
            count += 1
        names.append("/".join(path.parts[-count:]))
    return names


def _note(folder: Path) -> str:
    """Say whether a run is still being trained; raise if it has no model yet."""
    metrics = folder / METRICS
    epochs = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
    training = is_being_trained(folder)
    if not epochs and (training or (folder / CHECKPOINT).is_file()):
        remedy = "wait until it has ended one" if training else "go on with `treefold train --resume`"
        raise ModelFileError(f"{folder}: expected a run of at least one epoch, got one before its first; {remedy}.")
    return f"still being trained; this is its model as of epoch {epochs}" if training else ""
