import re
from pathlib import Path
from typing import Any

import pytest
from experiments.beyond import run as runner
from experiments.beyond.run import (
    DATA,
    EXPERIMENTS,
    FIGURES,
    GROUPS,
    HERE,
    RESULTS,
    WIDER,
    Experiment,
    dataset,
    figure,
    given,
    main,
    run,
    table,
    tables,
    wider,
)
from experiments.real.baselines import read_lines, write_line

from treefold.data.generators import make_listops, make_lrt
from treefold.data.generators.listops import value
from treefold.training.settings import RunSettings, with_recipe

SMALL: dict[str, Any] = {"epochs": 1, "curriculum": "none"}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATA, "listops", lambda source: make_listops(300, seed=0))
    monkeypatch.setitem(DATA, "lrt4", lambda source: make_lrt(300, seed=0))
    for name, each in WIDER.items():
        monkeypatch.setitem(WIDER, name, each._replace(trees=3))
    monkeypatch.setitem(EXPERIMENTS, "mine", Experiment("parts", "mine", "listops", {}, SMALL))


@pytest.mark.slow
def test_a_result_has_scores_settings_and_versions_and_is_not_computed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = run("mine", 1, folder=tmp_path / "data", out=tmp_path / "out")
    assert read_lines(tmp_path / "out" / "parts.jsonl") == [line]
    assert line["parameters"] == 2 * 20 * 16 + 2 * 16 * 32 + (20 * 32 + 32) + (32 * 20 + 20)
    assert line["settings"]["training"].items() >= {"threads": 1, "epochs": 1, "batch_size": 128, "seed": 1}.items()
    assert {*line["wider"]} == {*WIDER} and {*line["versions"]} == {"treefold", "torch", "python"}
    counts = {int(operands): count for operands, (_, count) in line["operands"].items()}
    assert (
        sum(count for operands, count in counts.items() if operands <= 5) == 30
    )  # a tenth of the trees is the test set
    assert sum(count for operands, count in counts.items() if operands > 5) == 6
    monkeypatch.setattr(runner, "train", None)
    assert run("mine", 1, folder=tmp_path / "data", out=tmp_path / "out") == line
    with pytest.raises(TypeError):  # another seed is trained
        run("mine", 2, folder=tmp_path / "data", out=tmp_path / "out")


@pytest.mark.slow
def test_forms_with_five_slots_are_not_asked_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosvd = EXPERIMENTS["hosvd"]._replace(training=SMALL)
    monkeypatch.setitem(EXPERIMENTS, "hosvd", hosvd)
    line = run("hosvd", 0, folder=tmp_path / "data", out=tmp_path)
    assert {*line["wider"]} == {"300–1,000 nodes"}
    assert line["parameters"] == 5 * 20 * 3 + 3 * 4**5 + 3 * 20  # the paper's count, and the output matrix


@pytest.mark.slow
def test_pairs_are_counted_by_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = EXPERIMENTS["lrt4-block1"]._replace(training={"epochs": 1})
    monkeypatch.setitem(EXPERIMENTS, "lrt4-block1", small)
    line = run("lrt4-block1", 0, folder=tmp_path / "data", out=tmp_path)
    test = dataset("lrt4", tmp_path / "data", Path()).splits["test"]
    assert sum(count for _, count in line["operators"].values()) == len(test)
    assert sum(right for right, _ in line["operators"].values()) == round(line["test"] * len(test))
    assert line["parameters"] == 3 * 128 and max(map(int, line["operators"])) <= 12


@pytest.mark.parametrize("name", WIDER)
def test_wider_trees_have_the_sizes_that_they_are_named_after(name: str) -> None:
    data, (settings, least, most, _) = wider(name), WIDER[name]
    assert len(data) == 3 and data.forest.sizes.min() >= least and data.forest.sizes.max() <= most
    assert [data.classes[code] for code in data.targets] == [str(value(tree)) for tree in data.forest]
    widths = {len(node.children) for tree in data.forest for node in tree.postorder() if node.children}
    assert min(widths) >= settings.min_operands and max(widths) <= settings.max_operands


def test_the_table_has_means_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"validation": 1.0, "wider": {"300–1,000 nodes": 0.5}, "parameters": 1234, "seconds": 10}
    for seed, share in enumerate([0.5, 0.7]):
        line = {"experiment": "mine", "seed": seed, "test": share, **scores}
        write_line(tmp_path / "parts.jsonl", line, ["experiment", "seed"])
    assert table("parts", tmp_path).splitlines()[-1] == (
        "| mine | 1,234 | 100.00 (0.00) | 60.00 (14.14) |  |  | 50.00 (0.00) | 2 | 10 |"
    )
    operators = {str(number): [9, 10] for number in range(12)} | {"12": [1, 4]}
    line = {"experiment": "lrt4-lstm", "seed": 0, "test": 0.9, "operators": operators, **scores}
    write_line(tmp_path / "lrt4.jsonl", line, ["experiment", "seed"])
    assert table("lrt4", tmp_path).splitlines()[-1] == (
        "| blocks of 1, LSTM | 1,234 | 100.00 | 90.00 | 90.00 | 90.00 | 90.00 | 25.00 | 1 | 10 |"
    )
    assert main(["--table", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == tables(tmp_path)
    assert f"### {GROUPS['lrt4']}\n\n{table('lrt4', tmp_path)}" in tables(tmp_path)


def test_an_unknown_experiment_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recepie"]) == 2
    assert "got 'recepie' (nearest known: 'recipe')" in capsys.readouterr().err


def test_the_files_of_lrt_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--data", str(tmp_path), "--source", str(tmp_path / "nowhere"), "--out", str(tmp_path)]
    assert main(["lrt6-block1", *places]) == 2
    assert (
        "nowhere: expected the files train0 … train12 of LRT; name their folder by --source." in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_settings_of_experiments_are_known(name: str) -> None:
    with_recipe(RunSettings.of(EXPERIMENTS[name].settings()))


def test_results_are_those_of_the_experiments_as_they_are_now() -> None:
    for group in GROUPS:
        for line in read_lines(RESULTS / f"{group}.jsonl"):
            name = line["experiment"]
            assert (EXPERIMENTS[name].group, given(name, line["seed"])) == (group, line["settings"])


def test_the_readme_ends_with_the_tables_of_the_committed_results() -> None:
    assert (HERE / "README.md").read_text(encoding="utf-8").endswith(tables(RESULTS))


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_have_a_line_for_each_experiment(name: str) -> None:
    legends = [*FIGURES[name][2].values()]
    for drawn in (figure(name, RESULTS), (HERE / f"{name}.svg").read_text(encoding="utf-8")):
        assert [text for text in re.findall(r">([^<>]+)</text>", drawn) if text in legends] == legends


@pytest.mark.parametrize(
    ("group", "experiment", "columns"),
    [
        ("parts", "recipe", ["300–1,000 nodes"]),
        ("forms", "operands", ["6–10 operands", "11–15 operands"]),
        ("lrt4", "lrt4-recipe", ["12 and more operators"]),
        ("lrt6", "lrt6-recipe", ["12 and more operators"]),
    ],
)
def test_the_page_of_results_has_the_figures_of_the_results(group: str, experiment: str, columns: list[str]) -> None:
    heads, _, *rows = [line.split(" | ") for line in table(group, RESULTS).splitlines()]
    row = next(each for each in rows if EXPERIMENTS[experiment].title in each[0])
    page = (HERE.parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if f"| {row[heads.index('test')]} % |" in line]
    assert any(all(f": {row[heads.index(column)]} %" in line for column in columns) for line in lines)
