"""Estimators saved, loaded, pickled, and made of runs."""

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import pytest

import treefold
from tests.estimators.tasks import FAST, kinds, leaves, trees
from treefold import (
    Forest,
    NodeClassifier,
    TreeClassifier,
    TreeEmbedder,
    TreePairClassifier,
    TreePairRegressor,
    TreeRegressor,
)
from treefold.analysis.prediction import answers
from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, FileError, ModelFileError
from treefold.nn.aggregators import Combined
from treefold.nn.heads import Entrywise, PairClassifier
from treefold.training import train
from treefold.training.saving import load_model
from treefold.training.settings import ModelSettings, RunSettings, TrainingSettings

TREES = trees(24)
PAIRS = list(zip(TREES, TREES[::-1], strict=True))
CLASSES = ["even" if tree.size % 2 == 0 else "odd" for tree in TREES]
TASKS: dict[str, tuple[Any, Any, Any, str]] = {
    "classes": (TreeClassifier, TREES, CLASSES, "predict_proba"),
    "pairs": (TreePairClassifier, PAIRS, CLASSES, "predict_proba"),
    "nodes": (NodeClassifier, TREES, [kinds(tree) for tree in TREES], "predict_proba"),
    "numbers": (TreeRegressor, TREES, [1000.0 + leaves(tree) for tree in TREES], "predict"),
    "several numbers": (TreeRegressor, TREES, [[tree.size, tree.depth] for tree in TREES], "predict"),
    "numbers of pairs": (TreePairRegressor, PAIRS, [left.size - right.depth for left, right in PAIRS], "predict"),
    "states": (TreeEmbedder, TREES, CLASSES, "transform"),
    "random states": (TreeEmbedder, TREES, None, "transform"),
}
SAVED = TreeClassifier(**FAST).fit(TREES, CLASSES)


def test_blocks_and_their_comparison_are_trained_and_come_back(tmp_path: Path) -> None:
    form = {"cell": "rnn", "aggregator": "blockwise", "block_size": 2, "start": "product", "state_size": 4}
    model = TreePairClassifier(**{**FAST, **form}, comparison="blockwise", shared=True).fit(PAIRS, CLASSES)
    head = model.saved_.model.head
    assert isinstance(head, PairClassifier) and isinstance(head.comparison, Entrywise)
    model.save(tmp_path / "model")
    loaded = treefold.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    np.testing.assert_allclose(loaded.predict_proba(PAIRS), model.predict_proba(PAIRS), rtol=0, atol=1e-6)


@pytest.mark.parametrize("readout", ["root", "root+mean+max"])
def test_sums_of_forms_bounds_and_hidden_layers_are_trained_and_come_back(tmp_path: Path, readout: str) -> None:
    form = {"cell": "rnn", "aggregator": "complex+sum", "rank": 3, "bound": "disc", "cell_hidden": 5}
    more = {"activation": "sharp-sigmoid", "shared": True, "readout": readout, "state_size": 4}
    model = TreeClassifier(**{**FAST, **form, **more}).fit(TREES, CLASSES)
    forms = [each for each in model.saved_.model.modules() if isinstance(each, Combined)]
    assert forms and all(each.summands[0].bound == "disc" and each.out_size == 5 for each in forms)
    model.save(tmp_path / "model")
    loaded = treefold.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    np.testing.assert_allclose(loaded.predict_proba(TREES), model.predict_proba(TREES), rtol=0, atol=1e-6)
    with pytest.raises(ConfigurationError, match="cell_hidden expects a cell that has this option, such as rnn"):
        TreeClassifier(**{**FAST, "cell": "lstm", "cell_hidden": 5}).fit(TREES, CLASSES)


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_estimator_comes_back_with_its_class_arguments_and_predictions(task: str, tmp_path: Path) -> None:
    cls, X, y, method = TASKS[task]
    model = cls(**FAST, direction="both", labels="embedding").fit(X, y)
    model.save(tmp_path / "model")
    loaded = treefold.load(tmp_path / "model")
    assert type(loaded) is cls and loaded.get_params() == model.get_params()
    assert isinstance(loaded.hidden, tuple) and loaded.n_iter_ == model.n_iter_ and loaded.history_ == model.history_
    before, after = (getattr(each, method)(X) for each in (model, loaded))
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-6)
    if hasattr(cls, "predict"):
        assert [*map(list, map(np.atleast_1d, loaded.predict(X)))] == [*map(list, map(np.atleast_1d, model.predict(X)))]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.toml",
        "estimator.json",
        "model.safetensors",
        "vocabulary.json",
    ]


@pytest.mark.parametrize("classes", [("no", "yes"), (3, 7), (False, True), (0.0, 2.0)])
def test_classes_keep_their_type_through_a_file(classes: tuple[object, object], tmp_path: Path) -> None:
    model = TreeClassifier(**FAST, class_weight={classes[0]: 2.0})
    model.fit(TREES, [classes[tree.size % 2] for tree in TREES]).save(tmp_path)
    loaded = treefold.load(tmp_path)
    assert loaded.classes_.dtype == model.classes_.dtype and loaded.classes_.tolist() == list(classes)
    assert loaded.class_weight == {classes[0]: 2.0} and type(next(iter(loaded.class_weight))) is type(classes[0])


def test_classes_of_an_object_array_stay_objects(tmp_path: Path) -> None:
    model = TreeClassifier(**FAST).fit(TREES, np.array(CLASSES, dtype=object))
    model.save(tmp_path)
    assert treefold.load(tmp_path).predict(TREES).tolist() == model.predict(TREES).tolist()


def test_an_argument_that_cannot_be_saved_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    model: Any = TreeClassifier(**FAST).fit(TREES, CLASSES)
    model.unknown = object()
    with pytest.raises(
        ConfigurationError, match=r"expects arguments that can be saved, numbers, .* got Object of type"
    ):
        model.save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_random_state_object_is_saved_as_none_and_numpy_numbers_as_plain_ones(tmp_path: Path) -> None:
    arguments = {**FAST, "random_state": np.random.RandomState(0), "state_size": np.int64(5)}
    TreeClassifier(**arguments).fit(TREES, CLASSES).save(tmp_path)
    loaded = treefold.load(tmp_path)
    assert loaded.random_state is None and loaded.state_size == 5


def test_a_loaded_estimator_can_be_fitted_on(tmp_path: Path) -> None:
    TreeRegressor(**FAST, warm_start=True).fit(TREES, [float(tree.size) for tree in TREES]).save(tmp_path)
    loaded = treefold.load(tmp_path)
    mean = loaded.mean_
    loaded.fit(TREES, [float(tree.size + 100) for tree in TREES])
    assert loaded.mean_ == mean


def test_a_model_saved_by_an_older_version_has_its_units_in_the_estimator_s_file(tmp_path: Path) -> None:
    model = TreeRegressor(**FAST).fit(TREES, [1000.0 + leaves(tree) for tree in TREES])
    model.save(tmp_path)
    new = json.loads((tmp_path / "vocabulary.json").read_text(encoding="utf-8"))
    units = new.pop("units")
    old = json.loads((tmp_path / "estimator.json").read_text(encoding="utf-8"))
    old |= {"mean": units["offset"][0], "scale": units["scale"][0]}
    (tmp_path / "vocabulary.json").write_text(json.dumps(new), encoding="utf-8")
    (tmp_path / "estimator.json").write_text(json.dumps(old), encoding="utf-8")
    loaded = treefold.load(tmp_path)
    assert loaded.mean_ == model.mean_ and loaded.scale_ == model.scale_
    np.testing.assert_array_equal(loaded.predict(TREES), model.predict(TREES))


@pytest.mark.parametrize("name", ["numbers", "several numbers", "numbers of pairs"])
def test_a_saved_estimator_s_model_predicts_in_the_units_of_y(name: str, tmp_path: Path) -> None:
    cls, X, y, _ = TASKS[name]
    model = cls(**FAST).fit(X, y)
    model.save(tmp_path)
    examples = [each if isinstance(each, tuple) else (each,) for each in X]
    found = [answer["prediction"] for answer in answers(load_model(tmp_path), examples)]
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-6)


def run_of(task: str, folder: Path) -> tuple[Dataset, Any]:
    pairs, has_numbers = task.startswith("pair"), task.endswith("regression")
    forest = Forest([tree for pair in PAIRS for tree in pair] if pairs else TREES)
    names = tuple(map(str, range(1, 40))) if has_numbers else ("odd", "even")
    numbers = [tree.size - 1 if has_numbers else int(tree.size % 2 == 0) for tree in TREES]
    nodes = np.arange(forest.node_count) % 2 if task == "node" else None
    splits = {"train": np.arange(24)}
    data = Dataset(forest, np.array(numbers), names, splits, pairs=pairs, node_targets=nodes)
    settings = RunSettings(
        task=task,
        model=ModelSettings(state_size=5, update="sigmoid", comparison_size=7),
        training=TrainingSettings(epochs=2, seed=3),
    )
    return data, train(data, folder, settings)[0]


@pytest.mark.parametrize(
    ("task", "cls"),
    [
        ("tree", TreeClassifier),
        ("pair", TreePairClassifier),
        ("node", NodeClassifier),
        ("regression", TreeRegressor),
        ("pair-regression", TreePairRegressor),
    ],
)
def test_a_run_is_an_estimator(task: str, cls: type[Any], tmp_path: Path) -> None:
    data, saved = run_of(task, tmp_path / "run")
    loaded: Any = treefold.load(tmp_path / "run")
    assert (
        type(loaded).__name__ == cls.__name__
        and loaded.state_size == 5
        and loaded.epochs == 2
        and loaded.random_state == 3
    )
    outputs = saved.model(data.forest.batch(data.trees_of(range(24)))).detach().double().numpy()
    X = PAIRS if data.pairs else TREES
    sizes = np.array([tree.size for tree in TREES])
    if task == "regression":
        np.testing.assert_allclose(loaded.predict(X), outputs[:, 0] * sizes.std() + sizes.mean(), rtol=1e-5)
        return
    if task == "pair-regression":
        levels = np.linspace(sizes.min(), sizes.max(), 5)
        chances = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
        np.testing.assert_allclose(loaded.predict(X), chances @ levels, rtol=1e-5)
        np.testing.assert_allclose(loaded.predict_levels(X), chances, rtol=1e-5)
        return
    names = [("odd", "even")[code] for code in outputs.argmax(1)]
    found = loaded.predict(X)
    assert (list(found) if task != "node" else [name for row in found for name in row]) == names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: "no json", "estimator.json: expected a JSON file"),
        (lambda facts: [1], "expected a JSON file, got a list instead of an object"),
        (
            lambda facts: {**facts, "classes": {"dtype": "<i8", "values": [[1, 2], [3]]}},
            "expected a whole file, got setting an array element with a sequence",
        ),
        (
            lambda facts: {**facts, "classes": {"dtype": "<i8", "values": [[1], [2]]}},
            "expected a whole file, got classes of the shape",
        ),
        (
            lambda facts: {**facts, "classes": {"dtype": "<i4", "values": [1, 2**70]}},
            "expected a whole file, got .*; the estimator is damaged",
        ),
        (lambda facts: {**facts, "version": 2}, "expected a treefold estimator of version 1, got version 2"),
        (
            lambda facts: {**facts, "class": "os.system"},
            "expected one of the estimators TreeClassifier, .* got 'os.system'",
        ),
        (
            lambda facts: {**facts, "class": "TreeRegressor"},
            "expected the estimator of the model in this directory, got TreeRegressor",
        ),
        (lambda facts: {**facts, "parameters": {"depth": 3}}, "expected arguments of TreeClassifier, got 'depth'"),
        (
            lambda facts: {k: v for k, v in facts.items() if k != "parameters"},
            "expected a whole file, got 'parameters'",
        ),
        (
            lambda facts: {**facts, "classes": {"dtype": "<i8", "values": [1, 2, 3]}},
            "the files are not of one estimator",
        ),
        (lambda facts: {**facts, "classes": {"dtype": "V8", "values": []}}, "expected a whole file, got"),
        (lambda facts: {k: v for k, v in facts.items() if k != "classes"}, "the files are not of one estimator"),
        (lambda facts: {k: v for k, v in facts.items() if k != "history"}, "expected a whole file, got 'history'"),
    ],
)
def test_a_damaged_file_is_a_clear_error(change: Any, message: str, tmp_path: Path) -> None:
    SAVED.save(tmp_path)
    path = tmp_path / "estimator.json"
    made = change(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(made if isinstance(made, str) else json.dumps(made), encoding="utf-8")
    with pytest.raises(ModelFileError, match=message):
        treefold.load(tmp_path)


def test_a_directory_without_a_model_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="expected the directory of a model or run, got no such directory"):
        treefold.load(tmp_path / "nothing")


@pytest.mark.parametrize("written", range(4))
def test_a_model_that_cannot_be_written_as_a_whole_leaves_the_old_one(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after some of the four files."""
    other = TreeClassifier(**FAST).fit(TREES, [f"not {name}" for name in CLASSES])
    SAVED.save(tmp_path)
    synced, sync = [0], os.fsync

    def full(handle: int) -> None:
        synced[0] += 1
        if synced[0] > written:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device; nothing was changed"):
        other.save(tmp_path)
    monkeypatch.undo()
    np.testing.assert_array_equal(treefold.load(tmp_path).predict_proba(TREES), SAVED.predict_proba(TREES))
    assert list(treefold.load(tmp_path).classes_) == list(SAVED.classes_)
    assert not list(tmp_path.glob(".*"))


def test_files_that_are_no_model_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("name = 'of another program'")
    with pytest.raises(
        FileError, match=r"a saved model to replace, got one with config\.toml, which treefold did not write"
    ):
        SAVED.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]
    (tmp_path / "config.toml").rename(tmp_path / "settings.toml")
    for _ in range(2):
        SAVED.save(tmp_path)
    assert (tmp_path / "settings.toml").exists()


@pytest.mark.parametrize("task", TASKS)
def test_a_pickled_estimator_answers_as_before_and_is_small(task: str) -> None:
    cls, X, y, method = TASKS[task]
    model = cls(**FAST).fit(X, y)
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    for a, b in zip(getattr(model, method)(X), getattr(joblib.load(file), method)(X), strict=True):
        np.testing.assert_array_equal(a, b)
    parameters = list(model.saved_.model.parameters())
    size = 4 * sum(p.numel() for p in parameters)
    assert file.tell() < 2 * size + 2_000 * len(parameters) + 20_000


def test_an_estimator_of_an_older_version_has_the_policy_of_today(tmp_path: Path) -> None:
    SAVED.save(tmp_path)
    path = tmp_path / "estimator.json"
    text = path.read_text(encoding="utf-8")
    assert '"unknown": "unk"' in text
    path.write_text(text.replace('"unknown": "unk"', '"unknown": "zero"'), encoding="utf-8")
    model = treefold.load(tmp_path)
    assert (
        model.unknown == "unk"
        and len(model.predict(["(new other)"])) == 1
        and set(model.unknown_labels_) == {"new", "other"}
    )
