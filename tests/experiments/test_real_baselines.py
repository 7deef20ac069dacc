import json
from pathlib import Path

import numpy as np
import pytest
from experiments.real.baselines import bags, label_codes, main, measure, pair_codes, read_lines, table, write_line
from experiments.real.data import DATA

from treefold import Forest
from treefold.data.dataset import Dataset

# The class is the label a or b somewhere; or the order of the two, which only sibling pairs show.
LABELS = ["(f a (g c))", "(f (g b) c)", "(g (f a))", "(g b)"] * 10
ORDERS = ["(f a b)", "(f b a)", "(g c a b)", "(g c b a)"] * 10


def made_up(texts: list[str], *, pairs: bool = False, numbers: bool = False) -> Dataset:
    count = len(texts) // (2 if pairs else 1)
    parts = {"train": np.arange(count // 2), "validation": np.arange(count // 2, 3 * count // 4)}
    parts["test"] = np.arange(3 * count // 4, count)
    classes, task = (("1.5", "4"), "regression") if numbers else (("no", "yes"), None)
    return Dataset(Forest(texts), np.arange(count) % 2, classes, parts, pairs=pairs, task=task)


def test_bags_count_labels_pairs_with_the_parent_and_pairs_with_the_previous_sibling() -> None:
    forest = Forest(["(f a (a b b))"])
    names, base = list(forest.vocabulary), len(forest.vocabulary) + 1
    labels, parents, siblings = pair_codes(forest)
    shown = [*names, "·"]
    assert [names[code] for code in labels] == ["a", "b", "b", "a", "f"]
    assert [shown[(code - base) // base] + shown[(code - base) % base] for code in parents] == [
        "fa",
        "ab",
        "ab",
        "fa",
        "·f",
    ]
    siblings = siblings - base - base**2
    assert [shown[code // base] + shown[code % base] for code in siblings] == ["·a", "·b", "bb", "aa", "·f"]
    assert bags(made_up(LABELS), label_codes).toarray()[0].tolist() == [1, 0, 1, 1, 1]  # a b c f g


def test_bags_of_pairs_of_trees_have_both_sides_their_difference_and_product() -> None:
    data = made_up(["(f a a)", "(f a)"] * 8, pairs=True)
    assert bags(data, label_codes).toarray()[0].tolist() == [2, 1, 1, 1, 1, 0, 2, 1]


def test_labels_and_pairs_solve_what_they_see() -> None:
    scores = {line["model"]: line["test"]["accuracy"] for line in measure("x", made_up(LABELS))}
    assert scores["majority"] == 0.5
    assert scores["labels"] == scores["labels and pairs"] == 1.0
    scores = {line["model"]: line["test"]["accuracy"] for line in measure("x", made_up(ORDERS))}
    assert (scores["labels"], scores["labels and pairs"]) == (0.5, 1.0)


def test_numbers_are_measured_by_correlation_and_error() -> None:
    data = made_up(["(f a a)", "(f a)", "(f b)", "(f c)"] * 12, pairs=True, numbers=True)
    scores = {line["model"]: line["test"] for line in measure("x", data)}
    assert scores["majority"] == {"pearson": 0.0, "mse": 1.5625}
    assert scores["labels"]["pearson"] == 1.0
    assert scores["labels"]["mse"] < 0.05


def test_a_line_replaces_the_one_with_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lines.jsonl"
    for line in ({"a": 1, "b": 2}, {"a": 2, "b": 3}, {"a": 1, "b": 4}):
        write_line(path, line, ["a"])
    assert read_lines(path) == [{"a": 2, "b": 3}, {"a": 1, "b": 4}]


def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(DATA, "mine", lambda source: made_up(LABELS))
    arguments = ["mine", "--data", str(tmp_path), "--out", str(tmp_path / "b.jsonl"), "--models", "majority", "labels"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["model"] for line in err.splitlines()] == ["majority", "labels"]
    assert "| mine | 50.0 ± 15.8 | 100.0 ± 0.0 |  |  |" in out
    assert main(arguments) == 0
    assert capsys.readouterr() == (out, "")
    assert out == table(read_lines(tmp_path / "b.jsonl"))


def test_boosting_is_not_spoilt_by_classes_with_a_single_tree() -> None:
    rng = np.random.default_rng(0)
    texts = [f"(f {' '.join(['ab'[i % 2]] * 2 + list(rng.choice(list('cdefg'), 5)))})" for i in range(480)]
    targets = np.arange(480) % 2
    targets[:6] = np.arange(2, 8)
    parts = {"train": np.arange(240), "validation": np.arange(240, 360), "test": np.arange(360, 480)}
    data = Dataset(Forest(texts), targets, tuple("abcdefgh"), parts)
    [line] = measure("x", data, ["boosting"])
    assert line["test"]["accuracy"] == 1.0
    assert "rounds" in line["choice"]
