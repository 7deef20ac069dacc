"""What the estimators learn, and how fitting depends on its arguments."""

from typing import Any

import numpy as np
import pytest
import torch

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
from treefold.training.build import facts_of
from treefold.training.recipe import choose
from treefold.training.settings import RunSettings
from treefold.training.task import r_squared

TREES = trees(400)
TRAIN, TEST = TREES[:300], TREES[300:]
LEFT = [first_leaf(tree) for tree in TREES]


def test_the_classifier_learns_with_its_defaults() -> None:
    model = TreeClassifier(random_state=0).fit(TRAIN, LEFT[:300])
    assert model.score(TEST, LEFT[300:]) > 0.95
    proba = model.predict_proba(TEST)
    assert proba.shape == (100, 2) and np.allclose(proba.sum(1), 1)
    assert (model.classes_[proba.argmax(1)] == model.predict(TEST)).all()
    assert model.saved_.settings.model.aggregator == "tucker" and model.saved_.settings.model.arity == 2


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_the_positional_mean_learns_the_order_of_many_children_and_takes_more(cell: str) -> None:
    rng = np.random.default_rng(0)

    def wide(count: int, first: str) -> Tree:
        middle = [Tree(name) for name in rng.choice(["c", "d"], count)]
        return Tree("f", [Tree(first), *middle, Tree("b" if first == "a" else "a")])

    y = rng.choice(["a", "b"], 120)
    forest = [wide(int(rng.integers(0, 10)), first) for first in y]
    settings = {**FAST, "epochs": 30, "batch_size": 10, "learning_rate": 0.02, "cell": cell}
    model = TreeClassifier(**settings, aggregator="positional").fit(forest, y)
    assert model.score([wide(count % 20, first) for count, first in enumerate(y)], y) > 0.9
    assert np.isfinite(model.predict_proba([wide(5_000, "a")])).all()


def test_the_regressor_learns_with_its_defaults_and_answers_in_the_units_of_y() -> None:
    y = np.array([1e6 + 1e4 * leaves(tree) for tree in TREES])
    model = TreeRegressor(random_state=0).fit(TRAIN, y[:300])
    assert model.score(TEST, y[300:]) > 0.9
    assert abs(model.predict(TEST) - y[300:]).max() < 5e4
    assert model.mean_ == pytest.approx(y[:300].mean()) and model.scale_ == pytest.approx(y[:300].std())


def test_several_numbers_of_a_tree_are_learned_together() -> None:
    y = np.array([[leaves(tree), 100.0 * tree.depth] for tree in TREES[:60]])
    model = TreeRegressor(**{**FAST, "epochs": 50, "batch_size": 10, "learning_rate": 0.02}).fit(TREES[:60], y)
    assert model.predict(TREES[:7]).shape == (7, 2)
    assert model.score(TREES[:60], y) > 0.8


def test_the_node_classifier_learns_and_answers_in_post_order() -> None:
    y = [kinds(tree) for tree in TREES]
    model = NodeClassifier(**{**FAST, "epochs": 40, "batch_size": 10, "learning_rate": 0.02}).fit(TREES[:60], y[:60])
    assert model.score(TEST, y[300:]) > 0.95
    assert model.predict([Tree.parse("(f a (g b b))")]) == [["leaf", "leaf", "leaf", "two", "two"]]
    assert [proba.shape for proba in model.predict_proba(["(f a)", "b"])] == [(2, 3), (1, 3)]


def test_nodes_without_a_label_take_no_part() -> None:
    y = [[None] * (tree.size - 1) + [tree.children != ()] for tree in TREES[:40]]
    y[0][0] = False
    model = NodeClassifier(**FAST).fit(TREES[:40], y)
    assert model.classes_.tolist() == [False, True]
    right = [a[-1] for a in model.predict(TREES[:40])]
    first = model.predict(TREES[:1])[0][0]
    assert model.score(TREES[:40], y) == pytest.approx((sum(right) + (first is False)) / 41)


def test_the_pair_classifier_knows_left_from_right() -> None:
    pairs = [(TREES[i], TREES[i + 1]) for i in range(0, 200, 2)]
    y = [int(first_leaf(left) == "a") for left, _ in pairs]
    model = TreePairClassifier(**{**FAST, "epochs": 60, "learning_rate": 0.02}).fit(pairs, y)
    assert model.score(pairs, y) > 0.9
    swapped = [int(first_leaf(right) == "a") for _, right in pairs]
    assert model.score([(right, left) for left, right in pairs], swapped) > 0.9


def test_the_pair_regressor_learns_how_similar_trees_are_in_the_units_of_y() -> None:
    pairs = [(TREES[i], TREES[(7 * i + 3) % 400]) for i in range(400)]
    same = [(left.label == right.label, first_leaf(left) == first_leaf(right)) for left, right in pairs]
    y = np.array([1000.0 + 100 * label + 200 * leaf for label, leaf in same])
    model = TreePairRegressor(random_state=0, epochs=60).fit(pairs[:300], y[:300])
    assert model.score(pairs[300:], y[300:]) > 0.95
    assert model.levels_.tolist() == [1000, 1075, 1150, 1225, 1300]
    chances = model.predict_levels(pairs)
    assert chances.shape == (400, 5) and np.allclose(chances.sum(1), 1)
    np.testing.assert_allclose(chances @ model.levels_, model.predict(pairs))
    swapped = [(right, left) for left, right in pairs]
    np.testing.assert_allclose(model.predict(swapped), model.predict(pairs), rtol=1e-4)
    forests = tuple(Forest([pair[side] for pair in pairs]) for side in (0, 1))
    np.testing.assert_allclose(model.predict(forests), model.predict(pairs), rtol=1e-4)


def test_levels_are_those_of_relatedness_and_may_be_others() -> None:
    pairs = list(zip(TREES[:20], TREES[20:40], strict=True))
    y = [1 + 0.2 * (i % 21) for i in range(19)] + [5.0]
    assert TreePairRegressor(**FAST).fit(pairs, y).levels_.tolist() == [1, 2, 3, 4, 5]
    other = TreePairRegressor(**FAST, levels=3).fit(pairs, y)
    assert other.levels_.tolist() == [1, 3, 5] and other.predict_levels(pairs).shape == (20, 3)
    assert 1 <= other.predict(pairs).min() <= other.predict(pairs).max() <= 5


def test_the_pair_classifier_can_compare_by_distance() -> None:
    pairs = [(TREES[i], TREES[i + 1]) for i in range(0, 200, 2)]
    y = [int(first_leaf(left) == first_leaf(right)) for left, right in pairs]
    settings = {**FAST, "epochs": 80, "learning_rate": 0.02, "comparison": "distance"}
    model = TreePairClassifier(**settings).fit(pairs, y)
    assert model.score(pairs, y) > 0.9 and model.saved_.settings.model.comparison == "distance"
    swapped = [(right, left) for left, right in pairs]
    np.testing.assert_allclose(model.predict_proba(swapped), model.predict_proba(pairs), atol=1e-5)


def test_the_embedder_learns_states_that_a_linear_model_can_use() -> None:
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

    def accuracy(embedder: TreeEmbedder) -> float:
        linear = LogisticRegression().fit(embedder.transform(TRAIN), LEFT[:300])
        return float(linear.score(embedder.transform(TEST), LEFT[300:]))

    learned = TreeEmbedder(random_state=0, epochs=30).fit(TRAIN, LEFT[:300])
    random = TreeEmbedder(random_state=0).fit(TRAIN)
    assert learned.transform(TEST).shape == (100, 20)
    assert accuracy(learned) > 0.95
    assert random.n_iter_ == 0 and accuracy(random) > 0.6  # guessing is right in half
    assert np.array_equal(random.transform(TEST), TreeEmbedder(random_state=0).fit(TRAIN).transform(TEST))
    assert TreeEmbedder(**FAST, direction="both").fit(TRAIN[:20]).transform(TEST[:2]).shape == (2, 12)


def test_the_embedder_tells_numbers_from_classes() -> None:
    numbers = TreeEmbedder(**FAST).fit(TREES[:20], [leaves(tree) + 0.5 for tree in TREES[:20]])
    assert numbers.saved_.settings.task == "regression"
    assert TreeEmbedder(**FAST).fit(TREES[:20], LEFT[:20]).saved_.settings.task == "tree"


@pytest.mark.parametrize("classes", [("no", "yes"), (3, 7), (False, True), (0.0, 2.0)])
def test_classes_keep_their_type(classes: tuple[object, object]) -> None:
    y = [classes[label == "a"] for label in LEFT[:20]]
    found = TreeClassifier(**FAST).fit(TREES[:20], y).predict(TREES[:20]).tolist()
    assert {type(value) for value in found} == {type(classes[0])} and set(found) <= set(classes)


def test_the_same_seed_gives_the_same_model_and_leaves_the_generators_alone() -> None:
    torch_state = torch.random.get_rng_state()
    numpy_state = np.random.get_state()

    def proba(state: object) -> Any:
        return (
            TreeClassifier(**{**FAST, "random_state": state, "dropout": 0.2})
            .fit(TREES[:40], LEFT[:40])
            .predict_proba(TEST)
        )

    same = proba(3)
    assert np.array_equal(same, proba(3)) and not np.array_equal(same, proba(4))
    assert np.array_equal(proba(np.random.RandomState(5)), proba(np.random.RandomState(5)))
    assert torch.equal(torch_state, torch.random.get_rng_state())
    assert repr(numpy_state) == repr(np.random.get_state())


def test_no_random_state_means_a_different_model_each_time() -> None:
    first, second = (TreeClassifier(**{**FAST, "random_state": None}).fit(TREES[:20], LEFT[:20]) for _ in range(2))
    assert not np.array_equal(first.predict_proba(TEST), second.predict_proba(TEST))


def test_threads_are_set_while_it_works_and_put_back() -> None:
    before = torch.get_num_threads()
    TreeClassifier(**FAST, n_threads=2).fit(TREES[:10], LEFT[:10]).predict(TREES[:3])
    assert torch.get_num_threads() == before


def test_a_weight_of_zero_takes_an_example_out_and_a_great_one_decides() -> None:
    chosen = ["(f a)"] * 30 + ["(f b)"]
    y = ["yes"] * 15 + ["no"] * 15 + ["other"]
    weights = [1.0] * 15 + [0.0] * 15 + [1.0]
    model = TreeClassifier(**{**FAST, "epochs": 60}).fit(chosen, y, sample_weight=weights)
    assert model.predict(["(f a)"]) == ["yes"]
    scaled = TreeClassifier(**{**FAST, "epochs": 60}).fit(chosen, y, sample_weight=np.multiply(weights, 50))
    assert np.allclose(model.predict_proba(chosen), scaled.predict_proba(chosen))


@pytest.mark.parametrize("class_weight", ["balanced", {"rare": 9.0}])
def test_class_weights_shift_what_cannot_be_told_apart(class_weight: object) -> None:
    y = ["often"] * 36 + ["rare"] * 4
    chosen = ["(f a)"] * 40
    settings = {**FAST, "epochs": 100, "learning_rate": 0.02, "validation_fraction": 0}
    plain = TreeClassifier(**settings).fit(chosen, y).predict_proba(["(f a)"])[0]
    weighted = TreeClassifier(**settings, class_weight=class_weight).fit(chosen, y).predict_proba(["(f a)"])[0]
    assert plain[1] == pytest.approx(0.1, abs=0.02)  # the frequency
    assert weighted[1] == pytest.approx(0.5, abs=0.02)  # 36 · 1 against 4 · 9


def test_ten_trees_or_more_are_held_out_and_fewer_are_not() -> None:
    held = TreeClassifier(**FAST).fit(TREES[:100], LEFT[:100])
    assert "validation_score" in held.history_[0] and held.n_iter_ == 4
    few = TreeClassifier(**FAST).fit(TREES[:90], LEFT[:90])
    none = TreeClassifier(**FAST, validation_fraction=0).fit(TREES[:100], LEFT[:100])
    assert "validation_score" not in few.history_[0] and "validation_score" not in none.history_[0]


def test_training_stops_when_patience_is_at_its_end() -> None:
    settings = {**FAST, "epochs": 200, "patience": 1, "learning_rate": 0.5}
    assert TreeClassifier(**settings).fit(TREES[:100], LEFT[:100]).n_iter_ < 200


def test_a_warm_start_goes_on_from_the_weights() -> None:
    cold = TreeClassifier(**FAST, validation_fraction=0).fit(TREES[:60], LEFT[:60])
    before = cold.history_[-1]["loss"]
    warm = cold.set_params(warm_start=True).fit(TREES[:60], LEFT[:60])
    assert warm.history_[0]["loss"] < before * 1.05 < warm.history_[0]["loss"] * 2
    assert warm.history_[-1]["loss"] < before
    fresh = cold.set_params(warm_start=False).fit(TREES[:60], LEFT[:60])
    assert fresh.history_[-1]["loss"] == before


def test_a_warm_start_on_some_of_the_classes_keeps_all() -> None:
    model = TreeClassifier(**FAST, warm_start=True).fit(TREES[:20], [str(i % 3) for i in range(20)])
    assert model.fit(TREES[:20], [str(2 * (i % 2)) for i in range(20)]).classes_.tolist() == ["0", "1", "2"]


def test_a_verbose_estimator_tells_of_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    TreeClassifier(**FAST, verbose=True).fit(TREES[:100], LEFT[:100])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and lines[0].startswith("TreeClassifier: epoch 1  loss ")
    assert "validation score" in lines[0]
    TreeClassifier(**FAST).fit(TREES[:100], LEFT[:100])
    assert capsys.readouterr().err == ""


def test_few_trees_get_more_epochs_and_many_get_fewer() -> None:
    model = TreeClassifier(state_size=3, hidden=(), random_state=0).fit(TREES[:4], LEFT[:4])
    assert model.n_iter_ == 200
    settings, facts = RunSettings(), facts_of(Forest(TREES))
    assert [choose(settings, facts, count).settings.training.epochs for count in (500, 1_000)] == [80, 40]


def test_the_forest_is_taken_as_it_is() -> None:
    forest = Forest(TREES[:40])
    a = TreeClassifier(**FAST).fit(forest, LEFT[:40]).predict_proba(Forest(TEST))
    b = TreeClassifier(**FAST).fit(TREES[:40], LEFT[:40]).predict_proba([str(tree) for tree in TEST])
    assert np.allclose(a, b, atol=1e-6)


def test_r_squared_of_equal_numbers_is_one_answer_everywhere() -> None:
    model = TreeRegressor(**FAST).fit(["(f a)", "b", "(g a)", "(f b)"], [0.3, 0.1, 0.2, 0.4])
    forest, equal = ["(f a)", "b", "(g a)"], [0.1, 0.1, 0.1]  # their mean is not 0.1, because of rounding
    assert model.score(forest, equal) == r_squared(np.array(equal), model.predict(forest)) == 0.0
    one = model.predict(["b"])
    assert model.score(["b"] * 3, np.repeat(one, 3)) == 1.0
