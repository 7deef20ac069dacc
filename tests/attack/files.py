"""Attack on the files of the library: forests, data sets, models, runs, estimators, grids and results."""

import contextlib
import functools
import json
import random
import re
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np

import treefold.trees.forest as forest_module
from tests.attack.case import (
    Target,
    changed_once,
    json_file,
    mutated,
    mutated_json,
    packed,
    require,
    toml_changed_once,
    toml_file,
    unpacked,
)
from treefold import load
from treefold.analysis.description import describe
from treefold.analysis.evaluation import evaluate
from treefold.data.dataset import Dataset
from treefold.data.inspection import inspect
from treefold.errors import TreefoldError
from treefold.estimators import TreeClassifier, TreeRegressor
from treefold.kernels.gather import gather_batch
from treefold.sweeps.grid import read_grid
from treefold.sweeps.results import RESULTS, SWEEP, SweepFacts, read_results
from treefold.training import resume, train
from treefold.training.run import made_of
from treefold.training.saving import load_model
from treefold.training.settings import RunSettings, read_recipe, recipe_path
from treefold.trees.forest import MAGIC, SMALL, VERSION, Forest
from treefold.trees.tree import Tree

OLD: Final = Path(__file__).parents[1] / "old_files"
_TREES: Final = ["(f a b)", "(g b)", "(f (g a) b)", "(g (f b b))", "a", "(f b (g (g a)))"] * 4
_PREAMBLE: Final = struct.Struct("<8sIIQ")
_UNVERIFIED: Final = "trees of a forest"


class _InterruptedError(KeyboardInterrupt):
    pass


class _Stop:
    """Interrupts a training in its second epoch."""

    def batch(self, progress: Any) -> None:
        if progress.epoch == 2:
            raise _InterruptedError

    def epoch(self, metrics: dict[str, Any]) -> None:
        pass


@functools.cache
def originals() -> Path:
    """Write an undamaged folder of each kind, once in a process."""
    place = Path(tempfile.mkdtemp(prefix="treefold-attack-"))
    labels = [(tree.count("a") % 2 and "odd") or "even" for tree in _TREES]
    splits = {"train": np.arange(16), "validation": np.arange(16, 20), "test": np.arange(20, 24)}
    data = Dataset.from_labels(_TREES, labels, splits)
    data.save(place / "dataset")
    vectors = Forest([Tree((0.5, float(number)), [Tree((1.0, 2.0))]) for number in range(5)])
    (place / "forest").mkdir()
    data.forest[:6].save(place / "forest" / "text.forest")
    vectors.save(place / "forest" / "vectors.forest")
    settings = {"model": {"state_size": 3, "hidden": [4], "wide": True}, "training": {"epochs": 2, "batch_size": 8}}
    train(data, place / "finished", RunSettings.of(settings))
    with contextlib.suppress(_InterruptedError):
        train(data, place / "run", RunSettings.of(settings), reporter=_Stop())
    arguments: dict[str, Any] = {"state_size": 3, "hidden": (4,), "epochs": 1, "random_state": 0}
    TreeClassifier(**arguments, class_weight={"odd": 2.0}).fit(_TREES, labels).save(place / "classifier")
    TreeRegressor(**arguments).fit(_TREES, np.arange(24.0)).save(place / "regressor")
    (place / "sweep").mkdir()
    shutil.copy(OLD / "results.jsonl", place / "sweep" / RESULTS)
    SweepFacts(grid="g", data="d", runs={"a": "b"}).write(place / "sweep")
    (place / "grid").mkdir()
    shutil.copy(OLD / "grid.toml", place / "grid")
    (place / "recipe").mkdir()
    shutil.copy(recipe_path("listops"), place / "recipe")
    return place


# What is done with each kind of folder; the answer is compared with that of the undamaged folder if the damage cannot be meant.
def _use_forest(folder: Path) -> Any:
    found = []
    for path in sorted(folder.glob("*.forest")):
        forest = Forest.open(path)
        forest.batch()
        forest._repr_html_()
        found += [str(tree) for tree in forest[::-1]] + [str(forest[0]), forest.arity, forest.depth]
    return found


def _use_trees(folder: Path) -> Any:
    """Read each tree by itself in several ways, as of a file that is too large to be verified when it is opened."""
    found, problems = [], []
    for path in sorted(folder.glob("*.forest")):
        forest = Forest.open(path, verify=False)
        for number in range(len(forest)):
            for read in (_one_tree, _one_chosen, _one_batch, *([] if len(forest.vectors) else [_one_answer])):
                try:
                    found.append(read(forest, number))
                except TreefoldError as problem:
                    problems.append(problem)
    if problems:
        raise problems[0]
    return found


def _one_tree(forest: Forest, number: int) -> Any:
    return str(forest[number])


def _one_chosen(forest: Forest, number: int) -> Any:
    (tree,) = forest[[number]]
    require(tree == forest[number], "a forest of one tree has another tree")
    return tree.size


def _one_batch(forest: Forest, number: int) -> Any:
    batch, plain = gather_batch(forest, np.array([number])), Forest([forest[number]]).batch()
    columns = [(each.parents.tolist(), each.slots.tolist(), each.roots.tolist()) for each in (batch, plain)]
    require(columns[0] == columns[1], "the batch of a tree differs from that of its copy")
    return columns[0]


def _one_answer(forest: Forest, number: int) -> Any:
    model = _model().model
    answer = model.answers(forest, np.array([number])).tolist()
    require(bool(np.isfinite(answer).all()), "an answer that is NaN or infinite")
    # A wrong depth changes no answer: kernels do not read it, and need not refuse it.
    with contextlib.suppress(TreefoldError):
        copy = Forest([forest[number]])
        require(
            np.allclose(answer, model.answers(copy, np.array([0])).tolist()), "the answer differs from that for a copy"
        )
    return answer


def _use_dataset(folder: Path) -> Any:
    data = Dataset.open(folder)
    facts = inspect(data)
    score = evaluate(_model(), data, "train").to_json()
    return json.dumps([facts, score, data.fingerprint()], default=str)


@functools.cache
def _model() -> Any:
    return load_model(originals() / "finished")


def _use_model(folder: Path) -> Any:
    saved = load_model(folder)
    made_of(folder)
    describe(saved, folder)
    estimator = load(folder)
    return evaluate(saved, _data(), "test").to_json(), estimator.predict(_TREES).tolist()


@functools.cache
def _data() -> Dataset:
    return Dataset.open(originals() / "dataset")


def _use_run(folder: Path) -> Any:
    saved, result = resume(_data(), folder)
    return [tensor.tolist() for tensor in saved.model.state_dict().values()], result.best_epoch


def _use_estimator(folder: Path) -> Any:
    estimator = load(folder)
    repr(estimator)
    return estimator.predict(_TREES).tolist()


def _use_sweep(folder: Path) -> Any:
    SweepFacts.read(folder)
    return [result.model_dump_json() for result in read_results(folder / RESULTS)]


def _use_grid(folder: Path) -> Any:
    return [each.title for each in read_grid(folder / "grid.toml").configurations()]


def _use_recipe(folder: Path) -> Any:
    return read_recipe(str(folder / "listops.toml"))


class _Kind(NamedTuple):
    use: Callable[[Path], Any]
    files: tuple[str, ...]
    folder: str


_KINDS: Final = {
    "forest": _Kind(_use_forest, ("text.forest", "vectors.forest"), "forest"),
    _UNVERIFIED: _Kind(_use_trees, ("text.forest", "vectors.forest"), "forest"),
    "data set": _Kind(_use_dataset, ("trees.forest", "examples.columns", "vocabulary.json", "dataset.json"), "dataset"),
    "model": _Kind(
        _use_model,
        ("model.safetensors", "vocabulary.json", "config.toml", "environment.json", "metrics.jsonl"),
        "finished",
    ),
    "run": _Kind(
        _use_run,
        ("checkpoint.safetensors", "vocabulary.json", "config.toml", "environment.json", "model.safetensors", "metrics.jsonl"),
        "run",
    ),
    "classifier": _Kind(_use_estimator, ("estimator.json", "vocabulary.json", "config.toml"), "classifier"),
    "regressor": _Kind(_use_estimator, ("estimator.json", "vocabulary.json", "model.safetensors"), "regressor"),
    "results": _Kind(_use_sweep, (RESULTS, SWEEP), "sweep"),
    "grid": _Kind(_use_grid, ("grid.toml",), "grid"),
    "recipe": _Kind(_use_recipe, ("listops.toml",), "recipe"),
}  # fmt: skip


@functools.cache
def _answer(kind: str) -> Any:
    with tempfile.TemporaryDirectory() as place:
        return _KINDS[kind].use(Path(shutil.copytree(originals() / _KINDS[kind].folder, Path(place) / "x")))


def _make(kind: str, random: random.Random) -> bytes:
    name = random.choice(_KINDS[kind].files)
    data = (originals() / _KINDS[kind].folder / name).read_bytes()
    facts = {"file": name, "meant": False, "large": False}  # meant: a file that somebody may have written so
    if name.endswith((".forest", ".columns")):
        way = random.random()
        facts |= {"meant": way > 0.4, "large": random.random() < 0.4}
        content = mutated(random, data) if way < 0.4 else _columns(random, data)
    elif name.endswith(".safetensors"):
        facts["meant"] = random.random() < 0.5
        content = _tensors(random, data) if facts["meant"] else mutated(random, data)
    else:
        facts["meant"] = True
        if name.endswith(".jsonl"):
            lines = data.splitlines()
            place = random.randrange(len(lines))
            lines[place] = json_file(random, lines[place], tuple(lines)).replace(b"\n", b" ")
            content = b"\n".join(lines)
        else:
            content = (toml_file if name.endswith(".toml") else json_file)(random, data)
    return packed(facts, content)


def _every(kind: str) -> Iterator[bytes]:
    for name in _KINDS[kind].files:
        data = (originals() / _KINDS[kind].folder / name).read_bytes()
        for content in _changed_once(name, data):
            if re.search(rb"epochs = \d{9}", content):
                continue  # it would only take long
            for large in (False, True) if name.endswith((".forest", ".columns")) else (False,):
                yield packed({"file": name, "meant": True, "large": large}, content)


def _changed_once(name: str, data: bytes) -> Iterator[bytes]:
    """Yield a file with one change of its facts."""
    if name.endswith(".toml"):
        yield from toml_changed_once(data)
    elif name.endswith((".forest", ".columns")):
        facts, body = _columns_of(data)
        yield from (_columns_file(changed, body) for changed in changed_once(facts))
    elif name.endswith(".safetensors"):
        facts, body = _tensors_of(data)
        more = facts["__metadata__"]
        yield from (_tensors_file({**facts, "__metadata__": changed}, body) for changed in changed_once(more))
        for changed in changed_once(json.loads(more["state"])) if "state" in more else ():
            yield _tensors_file({**facts, "__metadata__": {**more, "state": json.dumps(changed)}}, body)
    else:
        lines = data.splitlines() if name.endswith(".jsonl") else [data]
        for place in {0, len(lines) - 1}:
            for changed in changed_once(json.loads(lines[place])):
                yield b"\n".join([*lines[:place], json.dumps(changed).encode(), *lines[place + 1 :]])


def _columns_of(data: bytes) -> tuple[Any, bytearray]:
    _, _, _, size = _PREAMBLE.unpack(data[: _PREAMBLE.size])
    return json.loads(data[_PREAMBLE.size : _PREAMBLE.size + size]), bytearray(data[_PREAMBLE.size + size :])


def _columns_file(facts: Any, body: bytearray) -> bytes:
    header = json.dumps(facts).encode()
    header += b" " * (-(_PREAMBLE.size + len(header)) % 64)
    return _PREAMBLE.pack(MAGIC, VERSION, zlib.crc32(header), len(header)) + header + body


def _tensors_of(data: bytes) -> tuple[Any, bytearray]:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])


def _tensors_file(facts: Any, body: bytearray) -> bytes:
    header = json.dumps(facts).encode()
    return len(header).to_bytes(8, "little") + header + body


def _columns(random: random.Random, data: bytes) -> bytes:
    """Change the header or the values of a file of columns, with right checksums."""
    facts, body = _columns_of(data)
    if random.random() < 0.6:
        column = facts["columns"][random.choice(list(facts["columns"]))]
        kind = np.dtype(column["dtype"])
        start, count = column["offset"], int(np.prod(column["shape"]))
        values = np.frombuffer(bytes(body[start : start + count * kind.itemsize]), kind).copy()
        for _ in range(random.choice((1, 1, 3)) if count else 0):
            limits = np.iinfo(kind) if kind.kind == "i" else None
            hostile = [-1, 0, 1, 2, 3, 100, 2**16, *((limits.max, limits.min) if limits else (np.nan, np.inf, 1e308))]
            values[random.randrange(count)] = random.choice(hostile)
        body[start : start + count * kind.itemsize] = values.tobytes()
        column["crc32"] = zlib.crc32(values.tobytes())
    else:
        facts = mutated_json(random, facts)
    return _columns_file(facts, body)


def _tensors(random: random.Random, data: bytes) -> bytes:
    """Change the header of a safetensors file, or whole numbers of it."""
    facts, body = _tensors_of(data)
    if random.random() < 0.4 and len(body) >= 4:
        place = random.randrange(len(body) // 4) * 4
        body[place : place + 4] = struct.pack("<f", random.choice((float("nan"), float("inf"), 1e38, -1e30, 0.0)))
    elif "__metadata__" in facts and random.random() < 0.5 and "state" in facts["__metadata__"]:
        facts["__metadata__"]["state"] = json_file(random, facts["__metadata__"]["state"].encode()).decode(
            errors="replace"
        )
    elif random.random() < 0.5:
        name = random.choice([name for name in facts if name != "__metadata__"])
        facts[name]["dtype"] = random.choice(
            ("F32", "I32", "U32", "F64", "I64", "F16", "BF16", "BOOL", "U8", "F8_E4M3")
        )
    else:
        facts = mutated_json(random, facts)
    return _tensors_file(facts, body)


def _run(kind: str, data: bytes, folder: Path) -> None:
    facts, content = unpacked(data)
    expected = _answer(kind)
    copy = Path(shutil.copytree(originals() / _KINDS[kind].folder, folder / "x"))
    (copy / facts["file"]).write_bytes(content)
    small = 0 if facts["large"] else SMALL  # as if the file were large: it is checked where it is used
    with mock.patch.object(forest_module, "SMALL", small):
        found = _KINDS[kind].use(copy)
    may_differ = facts["meant"] or kind == _UNVERIFIED  # a value that is wrong, but in its range, is a right one there
    require(may_differ or found == expected, f"a damaged {facts['file']} gave another answer")


TARGETS: Final = [
    Target(
        f"file {kind}",
        functools.partial(_make, kind),
        functools.partial(_run, kind),
        functools.partial(_every, kind),
    )
    for kind in _KINDS
]
