import re
import statistics
import sys
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from tests.sweeps.report.conftest import Drawn
from tests.sweeps.report.made_up import beyond, result
from treefold.errors import ConfigurationError
from treefold.sweeps.report.figures import Figure, figures_of, pooled, require_matplotlib, studies_of
from treefold.sweeps.report.summary import summarise
from treefold.sweeps.results import RunResult


def figures(*lines: dict[str, Any]) -> dict[str, Figure]:
    found = summarise([RunResult.model_validate(line) for line in lines])
    return {figure.name: figure for study in studies_of(found) for figure in figures_of(study)}


def texts(figure: Figure) -> list[str]:
    root = ElementTree.fromstring(figure.svg[figure.svg.index("<svg") :])
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_figure_is_drawn_only_where_there_is_something_to_draw() -> None:
    bare = result("g", "X", 4, 2, groups={}, curves={})
    assert list(figures(bare)) == ["g-parameters", "g-time"]
    assert list(figures({**bare, "validation": None, "test": None, "aggregation_parameters": None})) == []


def test_the_same_results_give_the_same_bytes() -> None:
    lines = [result("g", "X", 4, 2, seed=seed, validation=0.5 + 0.1 * seed, groups={}, curves={}) for seed in range(2)]
    once, again = figures(*lines), figures(*lines)
    assert once == again
    assert not re.search(r"20\d\d-\d\d-\d\d", once["g-parameters"].svg)


def test_names_are_shown_word_for_word() -> None:
    shown = texts(figures(result("g", "_a $\\x$ <b> & 木", 4, 2, groups={}, curves={}))["g-time"])
    assert "_a $\\x$ <b> & 木" in shown


def test_many_kinds_are_told_apart() -> None:
    lines = [{**line, "groups": {}, "curves": {}} for line in beyond(seeds=1)]
    figure = figures(*lines)["beyond-parameters"]
    colours = re.findall(r"fill: (#[0-9a-f]{6}); stroke", figure.svg)
    assert len(set(colours)) >= 6


def test_right_answers_are_added_up_over_seeds() -> None:
    lines = [
        result("g", "X", 4, 2, seed=0, curves={}, groups={"by_depth": {"1": [3, 4], "2": [0, 0]}}),
        result("g", "X", 4, 2, seed=1, curves={}, groups={"by_depth": {"1": [1, 4], "10": [2, 2]}}),
    ]
    (found,) = summarise([RunResult.model_validate(line) for line in lines])
    assert pooled(found, "by_depth") == {"1": (4, 8), "10": (2, 2)}
    assert "X from 50.0 % at 1 to 100.0 % at 10" in figures(*lines)["g-depth"].description


def test_bins_are_in_the_order_of_their_numbers() -> None:
    lines = [
        result("g", "X", 4, 2, curves={}, groups={"by_size": {"4-7": [1, 2], "64-127": [1, 2]}}),
        result("g", "Y", 4, 2, curves={}, groups={"by_size": {"8-15": [1, 2], "16-31": [1, 2]}}),
    ]
    shown = texts(figures(*lines)["g-size"])
    assert [text for text in shown if re.fullmatch(r"\d+-\d+", text)] == ["4-7", "8-15", "16-31", "64-127"]


def test_the_learning_curve_is_the_mean_as_far_as_all_seeds_went() -> None:
    lines = [
        result("g", "X", 4, 2, seed=0, groups={}, curves={"validation_score": [0.2, 0.4, 0.9]}),
        result("g", "X", 4, 2, seed=1, groups={}, curves={"validation_score": [0.4, 0.8]}),
    ]
    assert "X reaches 60.0 % in epoch 2" in figures(*lines)["g-curves"].description


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"needs the package matplotlib.*pip install 'treefold\[plot\]'"):
        require_matplotlib()


def test_a_figure_says_when_it_mixes_data() -> None:
    line = result("g", "X", 4, 2, groups={}, curves={})
    other = result("g", "X", 5, 2, groups={}, curves={}, data={"examples": 9, "nodes": 9, "crc32": 9})
    assert "Caution: results on 2 different data sets" in figures(line, other)["g-time"].caption
    assert "Caution" not in figures(line)["g-time"].caption


def test_a_figure_is_drawn_for_each_group_of_a_result() -> None:
    names = ("parameters", "time", "curves", "operators", "depth", "size")
    trees = [f"g-{name}" for name in names if name != "operators"]
    assert list(figures(result("g", "X", 4, 2))) == trees
    assert list(figures(result("lrt", "X", 4, 2))) == [f"lrt-{name}" for name in names if name not in ("depth", "size")]


def test_grids_have_figures_with_distinct_names() -> None:
    data = [{"examples": 9, "nodes": 9, "crc32": number} for number in range(5)]
    names = ["A b", "a-b", "a-b-2", "木", "林"]
    lines = [result(name, "X", 4, 2, data=each) for name, each in zip(names, data, strict=True)]
    studies = studies_of(summarise([RunResult.model_validate(line) for line in lines]))
    assert len({study.slug for study in studies}) == len(names) and studies[0].slug == "a-b"


def test_a_kind_looks_the_same_in_all_grids() -> None:
    lines = [result("a", "X", 4, 2), result("b", "W", 4, 2), result("b", "X", 4, 2)]
    first, second = studies_of(summarise([RunResult.model_validate(line) for line in lines]))
    assert first.look("X") == second.look("X") != second.look("W")


def of(kind: str, c: int, seed: int = 0, **facts: Any) -> dict[str, Any]:
    return result("g", kind, c, seed=seed, **{"groups": {}, "curves": {}, **facts})


def test_points_are_means_over_seeds_against_the_parameters_of_the_model(drawn: Drawn) -> None:
    lines = [of("Sum", c, seed, validation=0.5 + 0.01 * c + 0.02 * seed) for c in (3, 5, 9) for seed in range(3)]
    figures(*lines)
    expected = [
        (
            lines[place]["parameters"],
            pytest.approx(100 * statistics.fmean(line["validation"] for line in lines[place : place + 3])),
        )
        for place in (0, 3, 6)
    ]
    assert drawn.points(0) == {"Sum": expected}
    assert drawn.points(1) == {"Sum": [(c, y) for c, (_, y) in zip((3, 5, 9), expected, strict=True)]}  # by state_size


def test_the_time_of_a_run_is_processor_time_and_starts_at_zero_or_is_on_a_log_scale(drawn: Drawn) -> None:
    figures(of("Sum", 3, seconds=90.0), of("Full", 2, seconds=1e6, processor_seconds=60.0))
    axes = drawn.axes[1]
    assert drawn.points(1) == {"Sum": [(90.0, pytest.approx(80))], "Full": [(60.0, pytest.approx(80))]}
    assert axes.get_xlabel() == "seconds of training a run" and axes.get_xlim()[0] == 0
    figures(of("Sum", 3, seconds=600.0), of("Full", 2, seconds=7000.0))
    assert drawn.points(3)["Sum"][0][0] == 10 and drawn.axes[3].get_xscale() == "log"


@pytest.mark.parametrize(("task", "scale", "lowest"), [("tree", 100, 0.0), ("pair", 100, 0.0), ("regression", 1, -1.0)])
def test_axes_and_bars_end_where_scores_end(task: str, scale: int, lowest: float, drawn: Drawn) -> None:
    scores = (
        {3: (1.0, 0.9), 5: (0.01, 0.2), 9: (-40.0, 0.5)} if task == "regression" else {3: (1.0, 0.9), 5: (0.01, 0.2)}
    )
    lines = [
        of("Sum", c, seed, validation=score, curves={"validation_score": [score, score]})
        for c, pair in scores.items()
        for seed, score in enumerate(pair)
    ]
    for line in lines:
        line["settings"]["task"] = task
    found = figures(*lines)
    assert ("Scores below −1 are not shown." in found["g-parameters"].caption) == (task == "regression")
    for axes in drawn.axes:
        low, high = axes.get_ylim()
        assert lowest * scale <= low < high <= scale
        ends = [
            y
            for part in axes.collections
            for path in part.get_paths()
            for y in np.asarray(path.vertices)[:, 1].tolist()
        ]
        assert all(low <= y <= scale for y in ends)
    word = "R²" if task == "regression" else "accuracy, %"
    assert {axes.get_ylabel() for axes in drawn.axes} == {f"validation {word}"}


def test_lines_join_configurations_that_differ_in_one_number_and_say_what_they_share(drawn: Drawn) -> None:
    lines = [
        of("Sum", c, model={"dropout": dropout, "readout": readout}, validation=0.5 + 0.01 * c - 0.1 * dropout)
        for c in (3, 5)
        for dropout in (0.0, 0.2)
        for readout in ("root", "mean")
    ]
    figures(*lines)
    assert {name: len(points) for name, points in drawn.points(0).items()} == {
        f"Sum, readout = {readout}, dropout = {dropout}": 2
        for readout in ("root", "mean")
        for dropout in ("0.0", "0.2")
    }
    joined = [axes.get_xlabel() for axes in drawn.axes]
    assert joined == ["parameters of the model", "state_size", "dropout", "minutes of training a run"]
    assert drawn.points(2) == {
        "Sum, state_size = 5, readout = root": [(0.0, pytest.approx(55)), (0.2, pytest.approx(53))]
    }


def test_configurations_that_differ_in_names_are_points_and_not_a_line(drawn: Drawn) -> None:
    figures(of("Sum", 3, model={"readout": "mean"}), of("Sum", 3, model={"readout": "max"}, parameters=9999))
    assert len(drawn.points(0)["Sum"]) == 2 and drawn.axes[0].lines[0].get_linestyle() == "None"
    same_size = figures(of("Sum", 3, model={"readout": "mean"}), of("Sum", 3, model={"readout": "max"}))
    assert list(same_size) == ["g-time"]  # all have the same number of parameters


def test_very_many_lines_are_points(drawn: Drawn) -> None:
    figures(*(of("Sum", c, training={"batch_size": size}) for c in (3, 5) for size in range(10, 30)))
    assert list(drawn.points(0)) == ["Sum"] and len(drawn.points(0)["Sum"]) == 40


def test_the_best_configurations_of_one_kind_have_learning_curves(drawn: Drawn) -> None:
    lines = [
        of("Sum", c, validation=0.1 * c, curves={"validation_score": [0.01 * c, 0.1 * c], "accuracy": [0.1, 0.2]})
        for c in range(1, 9)
    ]
    figures(*lines)
    curves = drawn.points(3)
    assert next(iter(curves)) == "the best one, on its training examples"
    assert {name: [y for _, y in points] for name, points in curves.items() if name.startswith("Sum")} == {
        f"Sum, state_size = {c}": [pytest.approx(c), pytest.approx(10 * c)] for c in (4, 5, 6, 7, 8)
    }


def test_the_confusion_matrix_is_that_of_the_best_added_up_over_seeds() -> None:
    matrices = [[[5, 1], [0, 4]], [[3, 3], [1, 3]]]
    lines = [of("Sum", 3, seed, classes=["<no>", "y\x00es"], confusion=each) for seed, each in enumerate(matrices)]
    worse = of("Sum", 5, validation=0.1, classes=["<no>", "y\x00es"], confusion=[[0, 9], [9, 0]])
    found = figures(*lines, worse)["g-confusion"]
    total = np.sum(matrices, axis=0)
    assert [int(text) for text in texts(found) if text.isdigit()] == total.flatten().tolist()
    assert f"{np.trace(total)} of {total.sum()} right. <no> taken for y\x00es: 4" in found.description
    assert {"<no>", r"y\x00es"} <= set(texts(found)) and "\x00" not in found.inline()
    assert "g-confusion" not in figures(of("Sum", 3))
    assert "g-confusion" not in figures(of("Sum", 3, classes=["a", "b"], confusion=[[1, 2]]))  # damaged


def test_scores_that_are_all_too_low_have_no_figure() -> None:
    line = of("Sum", 3, validation=-7.0)
    line["settings"]["task"] = "regression"
    assert list(figures(line)) == []


def test_long_names_have_several_lines_in_the_legend() -> None:
    name = "a kind whose name says very much about its form and the way in which it was trained"
    shown = texts(figures(of("Sum", 3) | {"kind": name})["g-time"])
    assert name not in shown and name in " ".join(shown)
