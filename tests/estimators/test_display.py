"""What notebooks show of estimators and evaluations."""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sklearn  # type: ignore[import-untyped]
from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]

from tests import runs
from tests.estimators.tasks import FAST, first_leaf, leaves, trees
from treefold import TreeClassifier, TreeEmbedder, TreeRegressor
from treefold.analysis.evaluation import evaluate
from treefold.errors import ConfigurationError
from treefold.estimators.display import summary

TREES = trees(120)
Y = [first_leaf(tree) for tree in TREES]


@pytest.fixture
def pyplot() -> Iterator[Any]:
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def table(text: str) -> dict[str | None, str | None]:
    return {row[0].text: row[1].text for row in ET.fromstring(text).iter("tr")}


def test_an_estimator_shows_what_was_chosen_and_why_below_what_scikit_learn_shows() -> None:
    model = TreeClassifier(**FAST)
    plain = model._repr_html_()
    assert "sk-container" in plain and "why these settings" not in plain
    model.fit(TREES, Y)
    shown = summary(model.saved_, model.history_)
    assert model._repr_html_().endswith(shown) and model._repr_mimebundle_()["text/html"].endswith(shown)
    facts = table(shown)
    best = max(model.history_, key=lambda epoch: (epoch["validation_score"], -epoch["validation_loss"]))
    assert facts["on validation"] == (
        f"accuracy {best['validation_score']:.4f}, loss {best['validation_loss']:.4f}, after epoch {best['epoch']}"
    )
    assert facts["state_size"] == "6" and facts["epochs"] == "4 of 4"
    assert facts["parameters"] == f"{sum(each.numel() for each in model.saved_.model.parameters()):,}"
    assert [item.text for item in ET.fromstring(shown).iter("li")] == list(model.reasons_)
    assert "TreeClassifier" in make_pipeline(model)._repr_html_()
    with sklearn.config_context(display="text"):
        assert not hasattr(model, "_repr_html_") and list(model._repr_mimebundle_()) == ["text/plain"]


def test_an_estimator_without_epochs_or_validation_shows_the_rest() -> None:
    for model in (
        TreeEmbedder(**FAST).fit(TREES),
        TreeRegressor(**FAST, validation_fraction=0).fit(TREES[:20], range(20)),
    ):
        assert "on validation" not in table(summary(model.saved_, model.history_))


def test_loss_and_score_are_plotted_against_epochs(pyplot: Any) -> None:
    model = TreeClassifier(**FAST).fit(TREES, Y)
    loss, score = model.plot_history()
    assert (loss.get_ylabel(), score.get_ylabel(), loss.get_xlabel()) == ("loss", "accuracy", "epoch")
    for axes, keys in ((loss, ("loss", "validation_loss")), (score, ("accuracy", "validation_score"))):
        assert [line.get_label() for line in axes.get_lines()] == ["training", "validation"]
        for line, key in zip(axes.get_lines(), keys, strict=True):
            assert list(np.asarray(line.get_xdata())) == [1, 2, 3, 4]
            assert list(np.asarray(line.get_ydata())) == [epoch[key] for epoch in model.history_]
    numbers = TreeRegressor(**FAST, validation_fraction=0).fit(TREES, list(map(leaves, TREES)))
    assert [axes.get_ylabel() for axes in numbers.plot_history()] == ["loss"]
    measured = TreeRegressor(**FAST).fit(TREES, list(map(leaves, TREES)))
    assert [axes.get_ylabel() for axes in measured.plot_history()] == ["loss", "R²"]


def test_stages_of_a_curriculum_are_marked(pyplot: Any) -> None:
    model = TreeClassifier(**FAST).fit(TREES, Y)
    for epoch, stage in zip(model.history_, (1, 1, 2, 3), strict=True):
        epoch["stage"] = stage
    for axes in model.plot_history():
        marks = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
        assert [np.asarray(line.get_xdata())[0] for line in marks] == [2.5, 3.5]
        assert [text.get_text() for text in axes.texts] == [" stage 2", " stage 3"]


def test_what_cannot_be_plotted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"TreeEmbedder.plot_history expects epochs in history_, got none"):
        TreeEmbedder(**FAST).fit(TREES).plot_history()
    model = TreeClassifier(**FAST).fit(TREES, Y)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        ConfigurationError, match=r"plot_history needs the package matplotlib; pip install 'treefold\[plot\]'"
    ):
        model.plot_history()


def test_an_evaluation_shows_scores_confusion_and_groups() -> None:
    found = evaluate(runs.listops().saved, runs.listops().data)
    root = ET.fromstring(found._repr_html_())
    first, confusion, *groups = root.iter("table")
    assert table(ET.tostring(first, encoding="unicode"))["accuracy"] == f"{found.score:.4f}"
    counts = [[cell.text for cell in row] for row in confusion.iter("tr")][1:]
    assert counts == [[name, *map(str, row)] for name, row in zip(found.classes, found.confusion, strict=True)]
    assert len(groups) == len(found.groups) == 3
    assert (
        len(list(ET.fromstring(evaluate(runs.numbers().saved, runs.numbers().data)._repr_html_()).iter("table"))) == 4
    )
