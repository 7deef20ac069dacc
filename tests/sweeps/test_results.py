import json
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps import tiny
from treefold.errors import FileError, ForestFileError
from treefold.sweeps.results import DAMAGED, RESULTS, Results, RunResult, key_of, read_results

COMMITTED = sorted((Path(__file__).parents[2] / "experiments" / "paper" / "results").glob("*.jsonl"))


def line(key: str, **changes: Any) -> dict[str, Any]:
    return {**tiny.expected(0), "seconds": 1.5, "key": key, **changes}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    results = Results.read(tmp_path / RESULTS)
    results.add(line("a"))
    results.add(line("b", validation=None, test=None))
    return tmp_path / RESULTS


def test_results_are_lines_of_json_that_are_read_back(path: Path) -> None:
    assert [json.loads(text) for text in path.read_text().splitlines()] == [
        line("a"),
        line("b", validation=None, test=None),
    ]
    first, second = read_results(path)
    assert (first.key, first.kind, first.settings, first.stopped) == ("a", "Sum", tiny.runs()[0].settings, None)
    assert second.test is None and [entry.name for entry in path.parent.iterdir()] == [RESULTS]


def test_a_later_line_of_a_key_counts_and_replaces_the_earlier(path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line("a", epochs=77)) + "\n")
    assert {result.key: result.epochs for result in read_results(path)} == {"a": 77, "b": 3}
    Results.read(path).add(line("b", epochs=78))
    assert sorted((entry["key"], entry["epochs"]) for entry in tiny.lines(path)) == [("a", 77), ("b", 78)]


@pytest.mark.parametrize("cut", [1, 50, 400])
def test_an_incomplete_last_line_is_moved_to_another_file(path: Path, cut: int) -> None:
    whole = path.read_text().splitlines()
    path.write_text(whole[0] + "\n" + whole[1][:-cut])
    results = Results.read(path)
    assert list(results.results) == ["a"] and not path.with_name(DAMAGED).exists()
    assert [result.key for result in read_results(path)] == ["a"]
    results.move_damaged_line()
    assert path.read_text() == whole[0] + "\n" and path.with_name(DAMAGED).read_text() == whole[1][:-cut] + "\n"
    assert not Results.read(path).damaged


def test_a_last_line_without_its_newline_is_whole(path: Path) -> None:
    path.write_text(path.read_text().removesuffix("\n"))
    assert len(read_results(path)) == 2 and not Results.read(path).damaged


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            '{"version": 1, "key"',
            'line 1: expected a result, one JSON object, got \'{"version": 1, "key"\' (Expecting',
        ),
        (
            json.dumps({"version": 1, "key": "\ud800"}),
            "(half of a surrogate pair, which is no character); remove the line to repeat its run",
        ),
        ("[" * 100_000, "(values nested too deeply); remove the line to repeat its run"),
        ("[1]", "line 1: expected a result of version 1, got version None"),
        (json.dumps({"version": 2, "key": "a"}), "line 1: expected a result of version 1, got version 2; read it with"),
        (
            json.dumps({"version": 1, "key": "a"}),
            "line 1: expected a result, but grid is wrong (field required)",
        ),
    ],
)
def test_a_wrong_line_elsewhere_is_an_error_and_nothing_is_touched(path: Path, first: str, message: str) -> None:
    path.write_text(first + "\n" + path.read_text())
    before = path.read_bytes()
    with pytest.raises(ForestFileError) as problem:
        Results.read(path)
    assert message in str(problem.value) and str(problem.value).endswith("Nothing was changed.")
    assert path.read_bytes() == before and [entry.name for entry in path.parent.iterdir()] == [RESULTS]


def test_a_full_disk_keeps_the_results_that_are_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FileError, match="No space left"):
        Results.read(path).add(line("c"))
    assert path.read_bytes() == before and [entry.name for entry in path.parent.iterdir()] == [RESULTS]


def test_a_mark_of_an_editor_is_no_part_of_the_first_line(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    found = Results.read(path)
    assert list(found.results) == ["a", "b"] and not found.damaged


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForestFileError, match="expected a file of results; make one with `treefold sweep`"):
        read_results(tmp_path / RESULTS)


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_results_from_before_a_setting_existed_keep_their_keys(path: Path) -> None:
    """So that a sweep continues from them."""
    results = read_results(path)
    assert results and [key_of(result.settings, result.data) for result in results] == [
        result.key for result in results
    ]


def test_a_younger_setting_changes_the_key_as_soon_as_it_does_something() -> None:
    settings = tiny.runs()[0].settings
    summed = settings.model_copy(update={"training": settings.training.model_copy(update={"reduction": "sum"})})
    assert key_of(settings, {"crc32": 1}) != key_of(summed, {"crc32": 1})


@pytest.mark.parametrize(
    ("number", "left_out"),
    [(0, 3), (1, 3 * 2)],  # the bias of the sum, and the output matrix of the Tucker form
)
def test_parameters_of_an_older_file_are_completed(number: int, left_out: int) -> None:
    new = RunResult.model_validate({**tiny.expected(number), "seconds": 1.5})
    assert new.aggregation_parameters is not None and new.aggregator_parameters == new.aggregation_parameters
    old = new.model_copy(update={"counted": "paper", "aggregation_parameters": new.aggregation_parameters - left_out})
    assert old.aggregator_parameters == new.aggregator_parameters
