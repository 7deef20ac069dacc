import re
import sys
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

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
    assert "X reaches 60.0 % after 2 epochs" in figures(*lines)["g-curves"].description


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
    names = ("parameters", "operators", "depth", "size", "curves", "time")
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
