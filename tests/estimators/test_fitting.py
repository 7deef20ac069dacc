"""Validation data, callbacks, and training that goes on with `partial_fit`."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone  # type: ignore[import-untyped]
from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]
from sklearn.metrics import log_loss  # type: ignore[import-untyped]

import treefold
from tests.estimators.tasks import FAST, first_leaf, kinds, leaves, trees
from treefold import (
    Forest,
    NodeClassifier,
    Tree,
    TreeClassifier,
    TreeEmbedder,
    TreePairClassifier,
    TreePairRegressor,
    TreeRegressor,
)
from treefold.errors import ConfigurationError, ShapeError, TrainingError, TreeError, TreefoldError, VocabularyError
from treefold.nn.aggregators import Combined

TREES = trees(60)
TRAIN, OTHER = TREES[:40], TREES[40:]
LEFT = [first_leaf(tree) for tree in TREES]
PAIRS = list(zip(TREES, TREES[::-1], strict=True))
LAST: dict[str, Any] = {**FAST, "keep": "last"}
NUMBERS = [10.0 * leaves(tree) for tree in TREES]
TASKS: dict[str, tuple[Any, Any, Any]] = {
    "classes": (TreeClassifier, TREES, LEFT),
    "pairs": (TreePairClassifier, PAIRS, LEFT),
    "nodes": (NodeClassifier, TREES, [kinds(tree) for tree in TREES]),
    "numbers": (TreeRegressor, TREES, NUMBERS),
    "several numbers": (TreeRegressor, TREES, [[tree.size, tree.depth] for tree in TREES]),
    "numbers of pairs": (TreePairRegressor, PAIRS, NUMBERS),
}


@pytest.mark.parametrize("task", TASKS)
def test_validation_is_on_the_data_that_are_given(task: str) -> None:
    cls, X, y = TASKS[task]
    model = cls(**LAST).fit(X[:40], y[:40], validation_data=(X[40:], y[40:]))
    score = model.history_[-1]["validation_score"]
    if task == "several numbers":  # the share of the variance of both columns together, each in its units
        wanted, found = (np.asarray(each) / model.scale_ for each in (y[40:], model.predict(X[40:])))
        assert score == pytest.approx(
            1 - ((wanted - found) ** 2).sum() / ((wanted - wanted.mean(0)) ** 2).sum(), abs=1e-4
        )
    else:
        assert score == pytest.approx(model.score(X[40:], y[40:]), abs=1e-4)
    # All forty were learnt from, none was held out: the weights are those of a training without validation.
    plain = cls(**LAST, validation_fraction=0).fit(X[:40], y[:40])
    assert [each["loss"] for each in model.history_] == [each["loss"] for each in plain.history_]


def test_the_validation_loss_is_the_log_loss_of_the_given_data() -> None:
    model = TreeClassifier(**LAST).fit(Forest(TRAIN), LEFT[:40], validation_data=(Forest(OTHER), LEFT[40:]))
    expected = log_loss(LEFT[40:], model.predict_proba(OTHER))
    assert model.history_[-1]["validation_loss"] == pytest.approx(expected, abs=1e-5)
    weighted = TreeClassifier(**LAST).fit(TRAIN, LEFT[:40], [2.0] * 20 + [0.0] * 20, validation_data=(OTHER, LEFT[40:]))
    expected = log_loss(LEFT[40:], weighted.predict_proba(OTHER))
    assert weighted.history_[-1]["validation_loss"] == pytest.approx(expected, abs=1e-5)


def test_the_best_epoch_is_chosen_by_the_given_data() -> None:
    wrong = ["ab"[label == "a"] for label in LEFT]
    settings = {**FAST, "epochs": 12, "learning_rate": 0.05, "keep": "best", "patience": "none"}
    model = TreeClassifier(**settings).fit(TRAIN, LEFT[:40], validation_data=(TRAIN, wrong[:40]))
    best = max(model.history_, key=lambda each: (each["validation_score"], -each["validation_loss"]))
    assert best["epoch"] < 12 and model.score(TRAIN, wrong[:40]) == best["validation_score"]


def test_the_linear_part_is_judged_by_the_given_data() -> None:
    model = TreeClassifier(**FAST, siblings=True, wide=True).fit(TRAIN, LEFT[:40], validation_data=(OTHER, LEFT[40:]))
    assert model.saved_.model.wide is not None and model.n_iter_ == 4


def test_an_embedder_takes_validation_data_with_classes_and_numbers() -> None:
    for y in (LEFT, [number + 0.5 for number in NUMBERS]):
        model = TreeEmbedder(**FAST).fit(TRAIN, y[:40], validation_data=(OTHER, y[40:]))
        assert "validation_score" in model.history_[0]
    with pytest.raises(TrainingError, match="TreeEmbedder expects validation_data together with y, got y=None"):
        TreeEmbedder(**FAST).fit(TRAIN, validation_data=(OTHER, LEFT[40:]))


def test_labels_that_only_validation_has_are_unknown() -> None:
    other = ["(f new)", "(f a)"]
    model = TreeClassifier(**FAST).fit(TRAIN, LEFT[:40], validation_data=(other, ["a", "b"]))
    assert model.unknown_labels_ == {"new": 1} and "new" not in model.saved_.labels.names
    with pytest.raises(VocabularyError, match="tree 0: expected one of the 4 labels of the training trees, got 'new'"):
        TreeClassifier(**FAST, unknown="error").fit(TRAIN, LEFT[:40], validation_data=(other, ["a", "b"]))


@pytest.mark.parametrize(
    ("cls", "data", "kind", "message"),
    [
        (TreeClassifier, 3, ShapeError, "TreeClassifier expects validation_data to be a tuple (X, y), got int."),
        (
            TreeClassifier,
            (OTHER,),
            ShapeError,
            "TreeClassifier expects validation_data to be a tuple (X, y), got 1 entries.",
        ),
        (
            TreeClassifier,
            (OTHER[:2], ["a", "bb"]),
            TrainingError,
            "validation_data: TreeClassifier expects one of the 2 classes that it learns, got 'bb' (nearest known: 'b'); "
            "correct it, or remove the example.",
        ),
        (
            TreeClassifier,
            (OTHER[:2], ["a"]),
            ShapeError,
            "validation_data: TreeClassifier expects y to have one class for each of 2 trees, got 1.",
        ),
        (TreeClassifier, ([], []), TreeError, "validation_data: TreeClassifier expects at least one tree, got none."),
        (
            TreeRegressor,
            (OTHER[:2], [[1.0, 2.0]] * 2),
            ShapeError,
            "validation_data: expected a y with as many columns as that of the training, got 1 and 2.",
        ),
    ],
)
def test_bad_validation_data_are_named(cls: Any, data: Any, kind: type[TreefoldError], message: str) -> None:
    y = LEFT[:40] if cls is TreeClassifier else NUMBERS[:40]
    with pytest.raises(kind) as caught:
        cls(**FAST).fit(TRAIN, y, validation_data=data)
    assert str(caught.value) == message


@pytest.mark.parametrize(("label", "got"), [("leef", "'leef'"), (np.zeros(2), "array"), ((1, []), r"\(1, \[\]\)")])
def test_nodes_of_validation_data_have_known_classes(label: Any, got: str) -> None:
    y = [kinds(tree) for tree in TREES]
    with pytest.raises(TrainingError, match=f"NodeClassifier expects one of the 3 classes that it learns, got {got}"):
        NodeClassifier(**FAST).fit(TRAIN, y[:40], validation_data=(["(f a)"], [[label, None]]))


def test_callbacks_are_called_after_each_epoch_with_the_metrics_of_history() -> None:
    seen: list[Any] = []

    class Counter:
        count = 0

        def __call__(self, model: Any, metrics: dict[str, Any]) -> object:
            self.count += 1
            metrics.clear()  # a copy
            return "not True"

    counter = Counter()
    model = TreeClassifier(**FAST, callbacks=[lambda *given: seen.append((given[0], dict(given[1]))), counter])
    model.fit(TRAIN, LEFT[:40])
    assert counter.count == 4 and [metrics for _, metrics in seen] == model.history_
    assert all(given is model for given, _ in seen) and len(model.history_[0]) > 3


def test_a_callback_sees_a_model_that_predicts_and_does_not_change_the_training() -> None:
    for cls, X, y in TASKS.values():
        scores: list[float] = []
        model = cls(**LAST, callbacks=[lambda model, _: scores.append(model.score(X, y))]).fit(X, y)  # noqa: B023
        assert len(scores) == 4 and scores[-1] == pytest.approx(model.score(X, y), abs=1e-6)
        losses = [each["loss"] for each in cls(**LAST).fit(X, y).history_]
        assert [each["loss"] for each in model.history_] == losses


@pytest.mark.parametrize("true", [True, np.bool_(True)])
def test_training_ends_when_a_callback_returns_true(true: Any) -> None:
    late: list[int] = []
    callbacks = [lambda model, metrics: true if metrics["epoch"] == 2 else None, lambda model, _: late.append(1)]
    stopped = TreeClassifier(**FAST, schedule="constant", callbacks=callbacks).fit(TRAIN, LEFT[:40])
    whole = TreeClassifier(**{**FAST, "epochs": 2}, schedule="constant").fit(TRAIN, LEFT[:40])
    assert stopped.n_iter_ == 2 and len(stopped.history_) == len(late) == 2
    np.testing.assert_array_equal(stopped.predict_proba(OTHER), whole.predict_proba(OTHER))


def test_a_callback_that_fails_leaves_the_estimator_as_it_was() -> None:
    def fail(model: TreeClassifier, metrics: dict[str, Any]) -> None:
        raise RuntimeError("full disk")

    fresh = TreeClassifier(**FAST, callbacks=[fail])
    with pytest.raises(RuntimeError, match="full disk"):
        fresh.fit(TRAIN, LEFT[:40])
    with pytest.raises(NotFittedError):
        fresh.predict(TRAIN)
    fitted = TreeClassifier(**FAST).fit(TRAIN, LEFT[:40])
    before = fitted.predict_proba(OTHER)
    with pytest.raises(RuntimeError, match="full disk"):
        fitted.set_params(callbacks=[fail]).fit(TRAIN, [f"{label}!" for label in LEFT[:40]])
    assert fitted.classes_.tolist() == ["a", "b"] and np.array_equal(fitted.predict_proba(OTHER), before)


def test_callbacks_are_not_saved(tmp_path: Path) -> None:
    model = TreeClassifier(**FAST, callbacks=[lambda model, metrics: model.save(tmp_path / str(metrics["epoch"]))])
    model.fit(TRAIN, LEFT[:40]).save(tmp_path / "end")
    assert treefold.load(tmp_path / "end").callbacks is None and len(clone(model).callbacks) == 1
    last = treefold.load(tmp_path / "4")  # a checkpoint
    np.testing.assert_allclose(last.predict_proba(OTHER), model.predict_proba(OTHER), atol=1e-6)
    assert last.classes_.tolist() == ["a", "b"] and last.n_iter_ == 4


@pytest.mark.parametrize("callbacks", [3, [3], lambda model, metrics: None])
def test_callbacks_are_a_list_of_functions(callbacks: Any) -> None:
    with pytest.raises(ConfigurationError, match="TreeClassifier expects callbacks to be a list of functions of the"):
        TreeClassifier(**FAST, callbacks=callbacks).fit(TRAIN, LEFT[:40])


@pytest.mark.parametrize("task", [name for name in TASKS if name != "nodes"])
@pytest.mark.parametrize("optimiser", ["adamw", "adadelta"])
def test_calls_of_partial_fit_are_the_epochs_of_a_fit_at_a_constant_rate(task: str, optimiser: str) -> None:
    cls, X, y = TASKS[task]
    settings = {**FAST, "optimiser": optimiser, "batch_size": 16, "validation_fraction": 0}
    whole = cls(**settings, schedule="constant").fit(X, y)
    model, classes = cls(**settings), [["a", "b"]] if isinstance(whole, TreeClassifier) else []
    for epochs in (1, 2, 1):
        assert model.partial_fit(X, y, *classes, epochs=epochs) is model
    assert [each["loss"] for each in model.history_] == pytest.approx([each["loss"] for each in whole.history_])
    assert model.n_iter_ == 4 and [each["epoch"] for each in model.history_] == [1, 2, 3, 4]
    method = "predict_proba" if classes else "predict"
    np.testing.assert_allclose(getattr(model, method)(X), getattr(whole, method)(X), rtol=1e-4)


def test_partial_fit_learns_from_a_stream() -> None:
    model = TreeClassifier(state_size=8, learning_rate=0.02, random_state=0)
    for step in range(60):
        chosen = [(7 * step + place) % 60 for place in range(10)]
        model.partial_fit([TREES[i] for i in chosen], [LEFT[i] for i in chosen], classes=["b", "a"])
    assert model.score(TREES, LEFT) > 0.95 and model.classes_.tolist() == ["a", "b"] and model.n_iter_ == 60


def test_partial_fit_goes_on_from_a_fit_with_some_of_the_classes_and_from_a_file(tmp_path: Path) -> None:
    model = TreeClassifier(**FAST, learning_rate=0.001).fit(TREES, LEFT)
    before = model.predict_proba(OTHER)
    model.save(tmp_path)
    for each in (model, treefold.load(tmp_path)):
        each.partial_fit(["(f a)"] * 3, ["a"] * 3)
        assert each.n_iter_ == 5 and each.classes_.tolist() == ["a", "b"]
        change = np.abs(each.predict_proba(OTHER) - before).max()
        assert 0 < change < 0.05  # one step at a small rate
    assert model.fit(TREES, LEFT).n_iter_ == 4
    np.testing.assert_array_equal(model.predict_proba(OTHER), before)  # a fit starts again


def test_numbers_keep_the_units_of_the_first_call() -> None:
    model = TreeRegressor(**FAST).partial_fit(TRAIN, NUMBERS[:40])
    assert model.mean_ == pytest.approx(np.mean(NUMBERS[:40])) and model.scale_ == pytest.approx(np.std(NUMBERS[:40]))
    model.partial_fit(OTHER, [1000.0] * 20)
    assert model.mean_ == pytest.approx(np.mean(NUMBERS[:40]))
    pairs = TreePairRegressor(**FAST).partial_fit(PAIRS, NUMBERS).partial_fit(PAIRS, [1e6] * 60)
    assert pairs.levels_[[0, -1]] == pytest.approx([min(NUMBERS), max(NUMBERS)])


def test_a_new_label_counts_as_unknown_if_the_model_has_a_vector_for_it() -> None:
    known = TreeClassifier(**FAST, labels="embedding", label_dropout=0.1).partial_fit(TRAIN, LEFT[:40], ["a", "b"])
    after = {
        label: copy.deepcopy(known).partial_fit([f"(f {label})", "(f b)"], ["a", "b"]).predict_proba(OTHER)
        for label in ("new", "<unk>", "a")
    }
    assert "new" not in known.saved_.labels.names
    np.testing.assert_array_equal(after["new"], after["<unk>"])
    assert not np.array_equal(after["new"], after["a"])
    closed = TreeClassifier(**FAST).partial_fit(TRAIN, LEFT[:40], ["a", "b"])
    with pytest.raises(TrainingError) as caught:
        closed.partial_fit(["(f new)"], ["a"])
    assert str(caught.value) == (
        "TreeClassifier with partial_fit expects labels that the model knows, got 'new'; call fit to start again, with "
        "label_dropout=0.05 if the model is to have a vector for unknown labels."
    )
    assert closed.n_iter_ == 1


def test_partial_fit_keeps_the_linear_part() -> None:
    wide = [Tree("f", [Tree(label), *([Tree("f")] * 8)]) for label in "ab"] * 10
    model = TreeClassifier(**FAST).fit(wide, [0, 1] * 10)
    part = model.saved_.model.wide
    assert part is not None and model.partial_fit(wide[:2], [0, 1]).saved_.model.wide is part
    first = TreeClassifier(**FAST).partial_fit(wide, [0, 1] * 10, [0, 1])
    assert first.saved_.model.wide is None
    assert first.reasons_[-1] == "partial_fit trains the network alone: fit adds the linear part"


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({}, {}, "TreeClassifier.partial_fit expects classes in its first call, got None; give all that y can have."),
        ({}, {"classes": ["a", "c"]}, "TreeClassifier expects one of the 2 classes that it learns, got 'b'"),
        ({}, {"classes": ["a"]}, "expects at least two classes in y, got one class, 'a'"),
        ({}, {"classes": ["a", "b"], "epochs": 0}, "TreeClassifier expects epochs to be an integer >= 1, got 0"),
        ({"class_weight": "balanced"}, {"classes": ["a", "b"]}, "class_weight to be None or a dict, got 'balanced'"),
    ],
)
def test_a_first_call_that_cannot_work_is_refused(settings: Any, arguments: Any, message: str) -> None:
    model = TreeClassifier(**FAST, **settings)
    with pytest.raises(TreefoldError) as caught:
        model.partial_fit(TRAIN, LEFT[:40], **arguments)
    assert message in str(caught.value) and not hasattr(model, "saved_")


def test_later_calls_have_the_classes_columns_and_model_of_the_first() -> None:
    model = TreeClassifier(**FAST).partial_fit(TRAIN, LEFT[:40], ["a", "b"])
    with pytest.raises(TrainingError, match=r"expects the classes of its first call, \['a', 'b'\], got \['a', 'c'\]"):
        model.partial_fit(TRAIN, LEFT[:40], ["a", "c"])
    with pytest.raises(
        ConfigurationError, match="with partial_fit expects the model of the last fit, state_size=6, got 7"
    ):
        model.set_params(state_size=7).partial_fit(TRAIN, LEFT[:40])
    numbers = TreeRegressor(**FAST).partial_fit(TRAIN, NUMBERS[:40])
    with pytest.raises(TrainingError, match="expects a y with the classes or columns of the last fit"):
        numbers.partial_fit(TRAIN, [[1.0, 2.0]] * 40)


@pytest.mark.parametrize("way", ["diverges", "interrupted", "warm start"])
def test_a_further_training_that_fails_leaves_weights_and_answers_as_they_were(way: str) -> None:
    def stop(estimator: Any, metrics: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    model = TreeRegressor(**FAST).fit(TRAIN, NUMBERS[:40])
    before = model.predict(OTHER)
    weights = {name: tensor.clone() for name, tensor in model.saved_.model.state_dict().items()}
    linear = model.saved_.model.wide
    y, problem = (
        (np.array([2.0**70, 1.0] * 20), TrainingError) if way == "diverges" else (NUMBERS[:40], KeyboardInterrupt)
    )
    if way != "diverges":
        model.set_params(callbacks=[stop], warm_start=way == "warm start")
    with pytest.raises(problem):
        (model.fit if way == "warm start" else model.partial_fit)(TRAIN, y)
    after = model.saved_.model.state_dict()
    assert (
        all(torch.equal(after[name], tensor) for name, tensor in weights.items()) and linear is model.saved_.model.wide
    )
    np.testing.assert_array_equal(model.predict(OTHER), before)


def test_weights_and_callbacks_count_in_partial_fit() -> None:
    chosen, y = ["(f a)"] * 4, ["yes", "yes", "no", "no"]
    seen: list[int] = []
    model = TreeClassifier(**FAST, learning_rate=0.05, callbacks=[lambda _, metrics: seen.append(metrics["epoch"])])
    for _ in range(2):
        model.partial_fit(chosen, y, ["no", "yes"], [0.0, 0.0, 1.0, 1.0], epochs=20)
    assert model.predict(["(f a)"]) == ["no"] and seen == list(range(1, 41))


def test_partial_fit_selects_no_parts_because_the_end_is_not_known() -> None:
    trees = ["(MIN 1 2)", "(MAX 1 2)", "(SM 3 (MIN 4 5))", "(MED 1 2 3)"] * 5
    model = TreeClassifier(recipe="operands", batch_size=2, random_state=0, validation_fraction=0.0)
    model.partial_fit(trees, [1, 2, 7, 2] * 5, classes=[1, 2, 7])
    sums = [part for part in model.saved_.model.modules() if isinstance(part, Combined)]
    assert len(sums) == 4 and all(norm > 0 for each in sums for norm in each.part_norms())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_whose_weights_became_nan_or_infinite_does_not_answer(value: float) -> None:
    model = TreeClassifier(epochs=1, random_state=0).fit(["(f a b)", "(f b a)"] * 10, [0, 1] * 10)
    with torch.no_grad():
        next(iter(model.saved_.model.head.parameters())).fill_(value)
    for ask in (model.predict, model.predict_proba, lambda trees: model.explain(trees[0])):
        with pytest.raises(TrainingError, match=r"the weights 'head\.layers.* are NaN or infinite"):
            ask(["(f a b)"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unknown": np.array([1, 2])}, "unknown to be one of 'unk', 'error', got array"),
        ({"validation_fraction": "zero"}, "validation_fraction to be at least 0 and below 1, got 'zero'"),
        ({"validation_fraction": None}, "validation_fraction to be at least 0 and below 1, got None"),
        ({"n_threads": 2**40}, "at most 4,096 threads, got 1,099,511,627,776"),
        ({"arity": 2**40, "shared": False}, "weights that fit into memory"),
        ({"state_size": 2**40}, "weights that fit into memory"),
        ({"optimiser": ["a"]}, "optimiser"),
    ],
)
def test_arguments_of_a_wrong_type_or_size_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TreeClassifier(epochs=1, **arguments).fit(["(f a b)", "(f b a)"] * 10, [0, 1] * 10)


@pytest.mark.parametrize("weights", ["x", [object()] * 4, [[1], [1, 2], 1, 1]])
def test_weights_that_are_no_numbers_are_an_error(weights: Any) -> None:
    with pytest.raises(TrainingError, match="sample_weight to have one number for each of 4 examples"):
        TreeClassifier(epochs=1).fit(["(f a b)", "(f b a)"] * 2, [0, 1] * 2, sample_weight=weights)


@pytest.mark.parametrize("name", ["warm_start", "verbose"])
def test_what_is_neither_true_nor_false_is_refused(name: str) -> None:
    wrong: dict[str, Any] = {name: np.array([1, 2])}
    with pytest.raises(ConfigurationError, match=f"expects {name} to be True or False, got array"):
        TreeRegressor(**FAST, **wrong).fit(["a", "b"], [1, 2])
