"""What can be given to estimators, and what is said of other things."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.estimators.tasks import FAST, trees
from treefold import (
    Embedding,
    Forest,
    NodeClassifier,
    OneHot,
    Tree,
    TreeClassifier,
    TreePairClassifier,
    TreePairRegressor,
    TreeRegressor,
)
from treefold.errors import ConfigurationError, ShapeError, TrainingError, TreeError, TreefoldError, VocabularyError

TREES = trees(20)
Y = ["even" if tree.size % 2 == 0 else "odd" for tree in TREES]
FITTED = TreeClassifier(**FAST).fit(TREES, Y)


def test_lists_texts_arrays_tuples_and_forests_are_all_trees() -> None:
    expected = FITTED.predict_proba(TREES)
    array = np.empty(20, dtype=object)
    array[:] = TREES
    texts = [str(tree) for tree in TREES]
    for given in (tuple(TREES), array, texts, np.array(texts), Forest(TREES)):
        assert np.allclose(FITTED.predict_proba(given), expected, atol=1e-6)


def test_pairs_are_tuples_lists_arrays_or_two_forests() -> None:
    left, right = TREES[:10], TREES[10:]
    pairs = list(zip(left, right, strict=True))
    model = TreePairClassifier(**FAST).fit(pairs, Y[:10])
    expected = model.predict_proba(pairs)
    texts = [[str(a), str(b)] for a, b in pairs]
    for given in (texts, np.array(pairs, dtype=object), np.array(texts), (Forest(left), Forest(right))):
        assert np.allclose(model.predict_proba(given), expected, atol=1e-6)
    objects = np.empty(10, dtype=object)
    objects[:] = pairs
    assert np.allclose(model.predict_proba(objects), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (TREES[0], r"TreeClassifier expects a sequence of trees, got a single tree; write \[tree\]"),
        ("(f a)", r"TreeClassifier expects a sequence of trees, got a single text; write \[text\]"),
        (np.zeros((3, 4)), r"got an array of float64 with shape \(3, 4\); give a list of Tree or of s-expressions"),
        (7, "TreeClassifier expects a sequence of trees, got int"),
        ([], "TreeClassifier expects at least one tree, got none"),
        ([TREES[0], 7], "tree 1: expected a Tree, an s-expression, a nested list .* got int 7"),
        (["(f a", "b"], "tree 0: line 1, column 5: expected '\\)'"),
    ],
)
def test_what_is_no_sequence_of_trees_is_refused(given: object, message: str) -> None:
    with pytest.raises(TreefoldError, match=message):
        FITTED.predict(given)
    with pytest.raises(TreefoldError, match=message):
        TreeClassifier(**FAST).fit(given, Y)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (TREES, r"pair 0: expected two trees, got Tree.* write each pair as \(left, right\)"),
        ([("a", "b"), ("a",)], r"pair 1: expected two trees, got \('a',\)"),
        (["ab"], "pair 0: expected two trees, got 'ab'"),
        ([{"a", "b"}, ("a", "b")], "pair 0: expected two trees, got {"),  # in no order
        ([("a", "b"), frozenset(("a", "b"))], "pair 1: expected two trees, got frozenset"),
        ((Forest(["a"]), Forest(["a", "b"])), "expects two forests of the same length, got 1 and 2 trees"),
    ],
)
def test_what_is_no_sequence_of_pairs_is_refused(given: object, message: str) -> None:
    with pytest.raises(TreeError, match=message):
        TreePairClassifier(**FAST).fit(given, [0, 1])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y[:19], "TreeClassifier expects y to have one class for each of 20 trees, got 19"),
        (["same"] * 20, "expects at least two classes in y, got one class, 'same'; there is nothing to learn"),
        (None, "TreeClassifier requires y to be passed, but the target y is None; give a class for each tree"),
        ([0.5] * 20, r"Unknown label type: got the number 0.5 .* use TreeRegressor for numbers"),
        ([1.0] * 19 + [np.nan], "got the number nan"),
        (["a", 1] * 10, "expects classes of one type, got 'a' and 1; convert them to text"),
        (["a", None] * 10, "expects classes that are text or numbers, got None"),
        (np.zeros((20, 2)), r"expects y to be a flat sequence of classes, got the shape \(20, 2\)"),
        ("even", "expects y to have a class for each tree, got str"),
        (["\ud800", "a"] * 10, r"expects classes of whole characters .* got '\\ud800'; remove it"),
        (["a\0", "a"] * 10, r"without a NUL at the end, got 'a\\x00'; remove it"),
        (("a\0", "a") * 10, "without a NUL at the end"),
        ((True, 0) * 10, "expects classes of one type, got True and 0; convert them to text"),
        (np.ma.array([0, 1] * 10, mask=[True] + [False] * 19), "expects y without masked entries, got some"),
        ([torch.tensor(1.0, requires_grad=True)] * 20, "TreeClassifier expects"),
    ],
)
def test_classes_that_cannot_be_learned_are_refused(y: object, message: str) -> None:
    with pytest.raises(TreefoldError, match=message):
        TreeClassifier(**FAST).fit(TREES, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1.0] * 19, r"TreeRegressor expects y to have one row for each of 20 trees, got the shape \(19,\)"),
        ([1.0] * 7 + [np.nan] * 13, "TreeRegressor expects finite numbers in y, got nan for tree 7"),
        (["x"] * 20, "TreeRegressor expects numbers in y, got could not convert .* use TreeClassifier"),
        (None, "TreeRegressor requires y to be passed, but the target y is None"),
        (np.array([0, 1] * 10, dtype="M8[D]"), "TreeRegressor expects numbers in y, got times or complex numbers"),
        (np.array([0, 1] * 10, dtype="m8[s]"), "TreeRegressor expects numbers in y, got times or complex numbers"),
        (np.array([1, 1j] * 10), "TreeRegressor expects numbers in y, got times or complex numbers"),
        (np.ma.array([0.0, 1.0] * 10, mask=[True] + [False] * 19), "expects y without masked entries, got some"),
    ],
)
def test_numbers_that_cannot_be_learned_are_refused(y: object, message: str) -> None:
    with pytest.raises(TreefoldError, match=message):
        TreeRegressor(**FAST).fit(TREES, y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([["x", "y"]], "NodeClassifier expects y to have a list of labels for each of 2 trees, got 1"),
        ([["x", "y"], ["x", "y"]], "tree 1: expected a label for each of its 1 nodes, in post-order, got 2"),
        (["xy", ["x"]], "tree 0: expected a label for each of its 2 nodes, in post-order, got 'xy'"),
        ([[None, None], [None]], "NodeClassifier expects at least two classes in y, got none; label some"),
        ([["x", "\ud800"], ["x"]], "expects classes of whole characters"),
        ([["x", "x\0"], ["x"]], "without a NUL at the end"),
    ],
)
def test_node_labels_that_cannot_be_learned_are_refused(y: object, message: str) -> None:
    with pytest.raises(TreefoldError, match=message):
        NodeClassifier(**FAST).fit(["(f a)", "b"], y)


def test_tensors_with_a_gradient_are_classes_numbers_and_weights() -> None:
    y = torch.tensor([0.0, 1.0] * 10, requires_grad=True)
    assert TreeClassifier(**FAST).fit(TREES, y, y + 1).classes_.tolist() == [0, 1]
    assert TreeRegressor(**FAST).fit(TREES, y).mean_ == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("y", "weights", "message"),
    [
        (None, None, "TreeClassifier requires y to be passed, but the target y is None"),
        (Y[:19], None, "TreeClassifier expects y to have one class for each of 20 trees, got 19"),
        (list(range(20)), None, "expects classes like those that it learnt, such as 'even', got 0; convert them"),
        (Y, "x", "expects sample_weight to have one number for each of 20 examples, got 'x'"),
        (Y, [0] * 20, "expects a sample_weight above zero, got zero for all"),
    ],
)
def test_what_cannot_be_scored_is_refused(y: object, weights: object, message: str) -> None:
    with pytest.raises(TreefoldError, match=message):
        FITTED.score(TREES, y, weights)


def test_a_class_that_the_model_does_not_know_is_a_wrong_answer_and_weights_may_be_huge() -> None:
    right = FITTED.predict(TREES) == np.array(Y)
    assert FITTED.score(TREES, [*Y[:19], "unseen"]) == pytest.approx(right[:19].sum() / 20)
    weights = np.where(np.arange(20) < 5, 1e308, 0)  # their sum is infinite
    assert FITTED.score(TREES, Y, weights) == pytest.approx(right[:5].mean())


def test_nodes_without_labels_cannot_be_scored() -> None:
    model = NodeClassifier(**FAST).fit(["(f a)", "b"], [["x", "y"], ["x"]])
    with pytest.raises(TrainingError, match="NodeClassifier expects a label for some node in y, got None for all"):
        model.score(["(f a)", "b"], [[None, None], [None]])
    with pytest.raises(TrainingError, match="expects a sample_weight above zero for some labelled node"):
        model.score(["(f a)", "b"], [["x", "y"], [None]], [0, 1])
    with pytest.raises(ShapeError, match="expects y to be a flat sequence of classes, got a nested one"):
        model.score(["(f a)", "b"], [["x", np.zeros(2)], [None]])


def test_numbers_are_scored_if_they_have_the_shape_of_the_predictions() -> None:
    model = TreeRegressor(**FAST).fit(TREES, [float(tree.size) for tree in TREES])
    with pytest.raises(ShapeError, match=r"expects y to have the shape of its predictions, \(20,\), got \(20, 2\)"):
        model.score(TREES, np.zeros((20, 2)))
    with pytest.raises(
        TrainingError, match=r"expects numbers of at most 1e\+100 in y, got 1e\+308; divide all of them"
    ):
        model.score(TREES, [1.0] * 19 + [-1e308])  # the square is infinite


@pytest.mark.parametrize("classes", [object(), "ab", np.array("a"), 5])
def test_what_is_no_list_of_classes_is_refused(classes: object) -> None:
    with pytest.raises(TrainingError, match=r"TreeClassifier.partial_fit expects a list of all classes, got"):
        TreeClassifier(**FAST).partial_fit(TREES, Y, classes=classes)


def test_an_explanation_expects_true_or_false_and_a_pair_is_no_array_without_axes() -> None:
    with pytest.raises(ConfigurationError, match="explain expects occlude to be True or False, got 'yes'"):
        FITTED.explain(TREES[0], occlude="yes")  # type: ignore[arg-type]
    pairs = TreePairClassifier(**FAST).fit([("a", "b"), ("b", "a")], [0, 1])
    with pytest.raises(TreeError, match="pair 0: expected two trees, got array"):
        pairs.explain(np.array("a"))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 19, r"sample_weight to have one number for each of 20 examples, got the shape \(19,\)"),
        ([-1.0] * 20, "expects sample_weight to be finite and not negative"),
        ([0.0] * 20, "expects a sample_weight above zero, got zero for all"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights: object, message: str) -> None:
    with pytest.raises(TreefoldError, match=message):
        TreeClassifier(**FAST).fit(TREES, Y, sample_weight=weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state_size": 0}, "TreeClassifier: state_size: input should be greater than 0, got 0"),
        (
            {"cell": "grv"},
            r"TreeClassifier: cell: unknown cell 'grv' \(nearest known: 'gru'\), expected 'lstm', 'gru', 'rnn'",
        ),
        ({"epochs": "many"}, "TreeClassifier: epochs: input should be a number"),
        ({"unknown": "unkn"}, r"expects unknown to be one of 'unk', 'error', got 'unkn' \(nearest known: 'unk'\)"),
        (
            {"unknown": "zero"},
            r"one of 'unk', 'error', got 'zero', a word of older versions; with 'unk', unknown labels",
        ),
        ({"validation_fraction": 1.0}, "expects validation_fraction to be at least 0 and below 1, got 1.0"),
        ({"class_weight": "even"}, "expects class_weight to be None, 'balanced' or a dict of classes, got 'even'"),
        ({"class_weight": {"odd": "2"}}, "class_weight of 'odd' to be a number, finite and not negative, got '2'"),
        ({"class_weight": {"odd": -1}}, "class_weight of 'odd' to be a number, finite and not negative, got -1"),
        ({"class_weight": {"odd": 10**400}}, "class_weight of 'odd' to be a number, .* got 1000"),
        ({"class_weight": {"odd": float("nan")}}, "class_weight of 'odd' to be a number, .* got nan"),
        ({"class_weight": {"odds": 2}}, r"class_weight to name classes of y, got 'odds' \(nearest known: 'odd'\)"),
        ({"n_threads": 0}, "TreeClassifier expects n_threads to be an integer >= 1, got 0"),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_fit(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TreeClassifier(**{**FAST, **arguments}).fit(TREES, Y)


def test_numbers_have_no_class_weight() -> None:
    with pytest.raises(ConfigurationError, match="TreeRegressor expects class_weight=None"):
        TreeRegressor(**FAST, class_weight="balanced").fit(TREES, [1.0] * 20)


def test_an_unknown_label_is_an_error_that_names_the_nearest_and_the_remedy() -> None:
    model = TreeClassifier(**FAST, unknown="error").fit(["(first a)", "(second b)"], [0, 1])
    with pytest.raises(VocabularyError) as caught:
        model.predict(["(first a)", "(frist b)"])
    assert str(caught.value) == (
        "tree 1: expected one of the 4 labels of the training trees, got 'frist' (nearest known: 'first'); "
        "correct it, train with trees that have it, or let it count as <unk> with TreeClassifier(unknown='unk')."
    )
    pairs = TreePairClassifier(**FAST, unknown="error").fit([("a", "b"), ("b", "a")], [0, 1])
    with pytest.raises(VocabularyError, match="pair 1: expected one of the 2 labels of the training trees, got 'c'"):
        pairs.predict([("a", "b"), ("a", "c")])


def test_labels_of_other_trees_of_a_forest_are_not_unknown() -> None:
    assert len(FITTED.predict(Forest([*TREES, Tree("new")])[:20])) == 20 and not FITTED.unknown_labels_


def test_unknown_labels_of_the_last_prediction_are_counted_with_their_nodes() -> None:
    FITTED.predict(["(f new a)", "(f new (other b))"])
    assert FITTED.unknown_labels_ == {"new": 2, "other": 1}
    FITTED.predict(TREES)
    assert FITTED.unknown_labels_ == {}


@pytest.mark.parametrize("per_label", [True, False])
@pytest.mark.parametrize("labels", ["onehot", "embedding"])
def test_an_unknown_leaf_has_the_zero_vector(per_label: bool, labels: str) -> None:
    model = TreeClassifier(**FAST, per_label=per_label, labels=labels).fit(TREES, Y)
    encoder = model.saved_.model.encoder
    found = model.predict_proba(["(f new other)"])
    assert np.array_equal(found, model.predict_proba(["(f x y)"]))
    assert isinstance(encoder.labels, OneHot | Embedding)
    encoder.labels.table.data[encoder.labels.names.code("a")] = 0.0  # now a known label is nothing, too
    assert np.allclose(model.predict_proba(["(f a a)"]), found, atol=1e-6)


def test_an_unknown_operator_counts_as_a_leaf_where_operators_have_cells_of_their_own() -> None:
    model = TreeClassifier(**FAST).fit(TREES, Y)
    assert model.saved_.settings.model.per_label
    found = model.predict_proba(["(f (new a b) a)", "(f (new b) a)", "(f new a)", "(f b a)"])
    assert np.allclose(found[0], found[2]) and np.allclose(found[1], found[2])
    assert not np.allclose(found[3], found[2])
    alone = NodeClassifier(**FAST).fit(TREES, [[str(n.is_leaf) for n in t.postorder()] for t in TREES])
    assert len(alone.predict(["(new a b)"])[0]) == 3


def test_an_unknown_operator_still_has_its_children_where_one_cell_serves_all() -> None:
    model = TreeClassifier(**FAST, per_label=False).fit(TREES, Y)
    one, other = model.predict_proba(["(new a b)", "(new b b)"])
    assert not np.allclose(one, other)


def test_the_policy_for_unknown_labels_changes_nothing_else() -> None:
    model = TreeClassifier(**FAST, unknown="error").fit(TREES, Y)
    assert np.allclose(model.predict_proba(TREES), FITTED.predict_proba(TREES), atol=1e-6)


def test_a_tree_wider_than_the_model_is_an_error_with_a_remedy() -> None:
    strict = TreeClassifier(**FAST, unknown="error").fit(TREES, Y)
    with pytest.raises(TreeError, match="node 'f' has 3 children, but arity=2; raise `arity`, or choose a shared"):
        strict.predict(["(f a b a)"])
    assert len(TreeClassifier(**FAST, arity=3).fit(TREES, Y).predict(["(f a b a)"])) == 1


def test_wide_trees_get_an_aggregator_that_takes_any_number() -> None:
    model = TreeClassifier(**FAST).fit(["(f a a a a a a b)", "(f a)", "b"], [1, 0, 0])
    assert model.saved_.settings.model.siblings and model.saved_.settings.model.aggregator == "sum"
    assert len(model.predict(["(f a a a a a a a a a a a a)"])) == 1


def test_a_warm_start_that_cannot_go_on_is_refused() -> None:
    model = TreeClassifier(**FAST, warm_start=True).fit(TREES, Y)
    with pytest.raises(TrainingError, match="expects labels that the model knows, got 'new'; set warm_start=False"):
        model.fit([*TREES[:19], Tree("new")], Y)
    with pytest.raises(
        TrainingError, match="expects a y with the classes or columns of the last fit, got different ones"
    ):
        model.fit(TREES, ["new", *Y[1:]])
    with pytest.raises(ConfigurationError, match="expects the model of the last fit, state_size=6, got 7"):
        model.set_params(state_size=7).fit(TREES, Y)


def test_asking_before_fitting_is_an_error() -> None:
    from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]

    for method in ("predict", "predict_proba"):
        with pytest.raises(NotFittedError, match="This TreeClassifier instance is not fitted yet"):
            getattr(TreeClassifier(), method)(TREES)


def test_y_of_another_length_is_a_shape_error() -> None:
    with pytest.raises(ShapeError):
        TreePairClassifier(**FAST).fit([("a", "b"), ("b", "a")], [0, 1, 0])


@pytest.mark.parametrize(
    ("y", "arguments", "message"),
    [
        ([3.0] * 10, {}, "task 'pair-regression' expects at least two different numbers, got 3 for all pairs"),
        ([1.0] * 9, {}, r"TreePairRegressor expects y to have one row for each of 10 pairs, got the shape \(9,\)"),
        (
            [[1.0, 2.0]] * 10,
            {},
            r"TreePairRegressor expects y to have one number for each pair, got the shape \(10, 2\)",
        ),
        (
            [1.0] * 9 + [np.inf],
            {},
            "TreePairRegressor expects finite numbers in y, got inf for pair 9 .* remove the pair",
        ),
        (None, {}, "TreePairRegressor requires y to be passed, .* give a number for each pair"),
        (range(10), {"levels": 1}, "TreePairRegressor: levels: input should be greater than or equal to 2, got 1"),
        (range(10), {"levels": 2.5}, "TreePairRegressor: levels: input should be a valid integer.* got 2.5"),
        (
            range(10),
            {"comparison": "cosine"},
            "TreePairRegressor: comparison: input should be 'tensor', 'distance' or 'blockwise'",
        ),
        (range(10), {"class_weight": "balanced"}, "TreePairRegressor expects class_weight=None"),
    ],
)
def test_numbers_that_pairs_cannot_have_are_clear_errors(y: Any, arguments: dict[str, Any], message: str) -> None:
    pairs = list(zip(TREES[:10], TREES[10:], strict=True))
    with pytest.raises(TreefoldError, match=message):
        TreePairRegressor(**FAST, **arguments).fit(pairs, y)


def test_a_warm_start_keeps_units_and_levels() -> None:
    pairs = list(zip(TREES[:10], TREES[10:], strict=True))
    model = TreePairRegressor(**FAST, warm_start=True).fit(pairs, range(10))
    levels = model.levels_.tolist()
    assert model.fit(pairs, range(100, 110)).levels_.tolist() == levels == np.linspace(0, 9, 5).tolist()
    with pytest.raises(ConfigurationError, match="expects the model of the last fit, levels=5, got 3"):
        model.set_params(levels=3).fit(pairs, range(10))
    several = TreeRegressor(**FAST, warm_start=True).fit(TREES, np.eye(20)[:, :2])
    with pytest.raises(TrainingError, match="expects a y with the classes or columns of the last fit"):
        several.fit(TREES, np.eye(20)[:, :3])


def test_a_node_with_a_million_children_trains_with_the_default_form() -> None:
    forest = Forest([Tree("r", [Tree(label)] * 1_000_000) for label in "ab"])
    model = TreeClassifier(state_size=2, hidden=(2,), epochs=1, wide=False, random_state=0).fit(forest, ["x", "y"])
    assert model.saved_.settings.model.siblings and model.saved_.settings.training.clip == 1
    found = model.predict_proba(forest)
    assert np.isfinite(found).all() and np.allclose(found.sum(1), 1)
