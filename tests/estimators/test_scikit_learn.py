"""scikit-learn's tools, and its own checks of estimators."""

import functools
import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from sklearn.model_selection import GridSearchCV, cross_val_score  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
from sklearn.utils import estimator_checks  # type: ignore[import-untyped]
from sklearn.utils.validation import validate_data  # type: ignore[import-untyped]

from tests.estimators.tasks import FAST, first_leaf, kinds, trees
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
from treefold.errors import ArgumentError, ConfigurationError
from treefold.estimators import ESTIMATORS
from treefold.training.build import build_model, facts_of, resolve
from treefold.training.settings import ModelSettings

TREES = trees(60)
LEFT = [first_leaf(tree) for tree in TREES]
PAIRS = list(zip(TREES, TREES[::-1], strict=True))


class Rows:
    """Takes each row of a table as a tree of one node with a vector label: scikit-learn's checks have nothing but tables."""

    def _forest(self, X: Any, *, fitting: bool) -> Forest:
        return Forest([Tree(row) for row in validate_data(self, X, reset=fitting).tolist()])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        return tags


class RowClassifier(Rows, TreeClassifier): ...


class RowRegressor(Rows, TreeRegressor): ...


class RowPairRegressor(Rows, TreePairRegressor):  # type: ignore[misc]  # final for users
    """Compares each row with a row of ones."""

    def _forest(self, X: Any, *, fitting: bool) -> Forest:
        rows = super()._forest(X, fitting=fitting)
        return Forest([tree for row in rows for tree in (row, Tree([1.0] * len(row.label)))])


class RowEmbedder(Rows, TreeEmbedder): ...


# Checks that are not run, and why.
EXCLUDED = {
    "check_sample_weight_equivalence_on_dense_data": "trees are dealt into batches at random: one of weight two is in one "
    "batch, one that stands there twice may be in two",
    "check_methods_sample_order_invariance": "asks for 1e-7 of numbers with single precision; we test 1e-5, below",
    "check_methods_subset_invariance": "asks for 1e-7 of numbers with single precision; we test 1e-5, below",
    "check_sample_weights_pandas_series": "needs pandas, which is not among our dependencies",
    "check_array_api_input": "trees are no arrays; skipped by scikit-learn itself unless SCIPY_ARRAY_API is set",
}
SMALL: dict[str, Any] = {"state_size": 6, "hidden": (8,), "epochs": 30, "batch_size": 300, "learning_rate": 0.05}
ROWS = [cls(**SMALL, random_state=0) for cls in (RowClassifier, RowRegressor, RowEmbedder)]
ROWS += [RowPairRegressor(**{**SMALL, "batch_size": 50}, random_state=0)]  # a distribution needs more than thirty steps


def named_checks() -> Iterator[Any]:
    for made in ROWS:
        for number, (_, check) in enumerate(estimator_checks.estimator_checks_generator(made, legacy=True)):
            name = check.func.func.__name__ if isinstance(check.func, functools.partial) else check.func.__name__
            if name not in EXCLUDED:
                yield pytest.param(made, check, id=f"{type(made).__name__}-{number}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(named_checks()))
def test_a_check_of_scikit_learn_holds(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_predictions_depend_on_neither_the_order_nor_the_company() -> None:
    model = TreeClassifier(**FAST).fit(TREES, LEFT)
    together = model.predict_proba(TREES)
    np.testing.assert_allclose(model.predict_proba(TREES[::-1])[::-1], together, rtol=0, atol=1e-5)
    alone = np.concatenate([model.predict_proba([tree]) for tree in TREES])
    np.testing.assert_allclose(alone, together, rtol=0, atol=1e-5)


# These need no data, so they hold for the estimators as they are.
WITHOUT_DATA = [
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]


@pytest.mark.parametrize("check", WITHOUT_DATA)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_check_without_data_holds_for_each_estimator(name: str, check: str) -> None:
    getattr(estimator_checks, check)(name, ESTIMATORS[name]())


def test_fitting_changes_no_argument() -> None:
    for cls, X, y in [
        (TreeClassifier, TREES, LEFT),
        (TreePairClassifier, PAIRS, LEFT),
        (NodeClassifier, TREES, [kinds(tree) for tree in TREES]),
        (TreePairRegressor, PAIRS, list(range(60))),
    ]:
        model = cls(**FAST)
        before = model.get_params()
        assert model.fit(X, y).get_params() == before
        assert not hasattr(clone(model), "saved_") and clone(model).get_params() == before


def test_the_inputs_that_are_trees_are_not_tables() -> None:
    tags = TreeClassifier().__sklearn_tags__()
    assert not tags.input_tags.two_d_array and tags.estimator_type == "classifier" and tags.target_tags.required
    assert TreeRegressor().__sklearn_tags__().estimator_type == "regressor"
    tags = TreePairRegressor().__sklearn_tags__()
    assert tags.estimator_type == "regressor" and not tags.target_tags.multi_output
    assert TreeEmbedder().__sklearn_tags__().transformer_tags is not None


@pytest.mark.parametrize("jobs", [None, 2])
def test_a_grid_search_finds_arguments_in_one_process_or_two(jobs: int | None) -> None:
    grid = {"state_size": np.array([2, 6])}
    search = GridSearchCV(TreeClassifier(**FAST), grid, cv=2, n_jobs=jobs, error_score="raise").fit(TREES, LEFT)
    assert len(search.cv_results_["params"]) == 2
    assert search.best_estimator_.predict(TREES[:3]).shape == (3,)


def test_a_grid_combines_ranks_with_forms_that_have_none() -> None:
    grid = {"aggregator": ["sum", "tucker", "mean"], "rank": [None, 2]}
    search = GridSearchCV(TreeClassifier(**FAST), grid, cv=2, error_score="raise").fit(TREES, LEFT)
    params, scored = search.cv_results_["params"], search.cv_results_["mean_test_score"]
    scores = {(each["aggregator"], each["rank"]): score for each, score in zip(params, scored, strict=True)}
    assert len(scores) == 6 and all(scores[form, None] == scores[form, 2] for form in ("sum", "mean"))


def test_a_rank_alone_chooses_a_form_that_has_one() -> None:
    wide = [Tree("f", [Tree(label)] * 9) for label in "ab"] + ["f"]
    model = TreeClassifier(**FAST, rank=3).fit(wide, [0, 1, 0]).saved_.settings.model
    assert (model.aggregator, model.rank, model.siblings) == ("tucker", 3, True)


def test_a_rank_that_the_form_does_not_have_is_not_used_and_the_reasons_say_so() -> None:
    form, wide = "sum", [Tree("f", [Tree(label)] * 9) for label in "ab"] + ["f"]
    model = TreeClassifier(**FAST, aggregator=form, rank=3, warm_start=True).fit(wide, [0, 1, 0])
    assert model.saved_.settings.model.rank is None and model.get_params()["rank"] == 3
    assert model.reasons_[-1] == "the form 'sum' has no rank: rank=3 is not used"
    plain = TreeClassifier(**FAST, aggregator=form).fit(wide, [0, 1, 0])
    np.testing.assert_array_equal(model.predict_proba(wide), plain.predict_proba(wide))
    assert not any("rank" in reason for reason in plain.reasons_)
    assert model.fit(wide, [0, 1, 0]).n_iter_ == 4  # a warm start takes it as well


def test_a_model_of_settings_still_refuses_a_rank_that_its_form_does_not_have() -> None:
    forest = Forest(TREES)
    settings, labels = resolve(ModelSettings(aggregator="sum", rank=3), facts_of(forest))
    with pytest.raises(ConfigurationError, match="Sum expects no rank, got rank=3"):
        build_model(settings, labels, "tree", 2)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_misspelt_argument_is_an_error_with_the_nearest_name(name: str) -> None:
    message = f"{name} expects arguments that it has, got 'state_sise' (nearest known: 'state_size')."
    cls: Any = ESTIMATORS[name]
    for take in (cls, cls().set_params):
        for kind in (TypeError, ValueError, ArgumentError):  # Python's own kind, and scikit-learn's
            with pytest.raises(kind) as caught:
                take(state_sise=3)
            assert str(caught.value) == message
        with pytest.raises(ArgumentError, match=r"got 'zebra'\.$"):
            take(zebra=3)


def test_the_signature_names_all_arguments() -> None:
    names = list(inspect.signature(TreeClassifier).parameters)
    assert sorted(names) == sorted(TreeClassifier().get_params()) and {"cell", "callbacks"} <= set(names)
    assert not any("kwargs" in name for name in names)
    with pytest.raises(TypeError, match="positional"):
        TreeClassifier("lstm")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", ["trees", "texts", "array", "forest"])
def test_cross_validation_takes_trees_in_any_form(kind: str) -> None:
    array = np.empty(60, dtype=object)
    array[:] = TREES
    X = {"trees": TREES, "texts": [str(tree) for tree in TREES], "array": array, "forest": Forest(TREES)}[kind]
    scores = cross_val_score(TreeClassifier(**FAST), X, LEFT, cv=2, error_score="raise")
    expected = cross_val_score(TreeClassifier(**FAST), TREES, LEFT, cv=2, error_score="raise")
    np.testing.assert_allclose(scores, expected)


def test_cross_validation_takes_pairs_numbers_and_nodes() -> None:
    for model, X, y in [
        (TreePairClassifier(**FAST), PAIRS, LEFT),
        (TreeRegressor(**FAST), TREES, [float(tree.size) for tree in TREES]),
        (TreePairRegressor(**FAST), PAIRS, [float(tree.size) for tree in TREES]),
        (NodeClassifier(**FAST), TREES, [kinds(tree) for tree in TREES]),
    ]:
        assert np.isfinite(cross_val_score(model, X, y, cv=2, error_score="raise")).all()


def test_an_embedder_stands_in_a_pipeline() -> None:
    pipeline = make_pipeline(TreeEmbedder(**FAST), LogisticRegression())
    search = GridSearchCV(pipeline, {"treeembedder__state_size": [3, 9]}, cv=2, error_score="raise").fit(TREES, LEFT)
    assert search.predict(TREES[:4]).shape == (4,)
    assert pipeline.fit(TREES, LEFT)[0].get_feature_names_out().tolist() == [f"treeembedder{i}" for i in range(6)]


def test_score_is_accuracy_or_the_share_of_variance_explained() -> None:
    model = TreeClassifier(**FAST).fit(TREES, LEFT)
    assert model.score(TREES, LEFT) == np.mean(model.predict(TREES) == np.array(LEFT))
    rng = random.Random(0)
    y = np.array([tree.size + rng.random() for tree in TREES])
    numbers = TreeRegressor(**FAST).fit(TREES, y)
    error = ((numbers.predict(TREES) - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert numbers.score(TREES, y) == pytest.approx(1 - error)
