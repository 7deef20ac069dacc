import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treefold import Forest
from treefold.data.dataset import Dataset, tree_keys
from treefold.errors import ConfigurationError, FileError, ForestFileError, ShapeError, TreefoldError
from treefold.trees.forest import write_columns


def small(pairs: bool = False) -> Dataset:
    forest = Forest(["(f a)", "b", "(f [1 2])", "(f _ a)"])
    targets = np.array([1, -1] if pairs else [1, 0, -1, 1])
    nodes = np.arange(forest.node_count) % 2
    splits = {"train": np.array([1]), "test": np.array([0])}
    return Dataset(forest, targets, ("no", "yes"), splits, pairs=pairs, node_targets=nodes, made={"seed": 3})


@pytest.mark.parametrize("pairs", [False, True])
def test_a_saved_data_set_opens_equal(tmp_path: Path, pairs: bool) -> None:
    data = small(pairs)
    data.save(tmp_path / "d", texts={"skipped.txt": "one\n"})
    again = Dataset.open(tmp_path / "d", verify=True)
    assert list(again.forest) == list(data.forest) and again.classes == data.classes and again.pairs == pairs
    assert again.targets.tolist() == data.targets.tolist() and again.made == {"seed": 3}
    assert again.node_targets is not None and again.node_targets.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert {name: part.tolist() for name, part in again.splits.items()} == {"train": [1], "test": [0]}
    names = sorted(path.name for path in (tmp_path / "d").iterdir())
    assert names == ["dataset.json", "examples.columns", "skipped.txt", "trees.forest", "vocabulary.json"]
    assert json.loads((tmp_path / "d" / "dataset.json").read_text())["splits"] == {"train": 1, "test": 1}


def test_the_task_is_saved_and_data_sets_without_one_open_and_keep_their_fingerprint(tmp_path: Path) -> None:
    data = small()
    assert data.task is None and "task" not in data.summary()
    data.save(tmp_path / "old")
    assert Dataset.open(tmp_path / "old").task is None
    told = dataclasses.replace(data, task="node")
    told.save(tmp_path / "new")
    assert Dataset.open(tmp_path / "new").task == "node"
    assert Dataset.open(tmp_path / "new").fingerprint() == told.fingerprint()


def test_labels_of_pairs_may_be_numbers(tmp_path: Path) -> None:
    data = Dataset.from_labels(
        ["a", "b", "c", "d"], [4.1, 5], {"train": np.array([0, 1])}, pairs=True, task="regression"
    )
    data.save(tmp_path / "d")
    again = Dataset.open(tmp_path / "d")
    assert again.pairs and again.numbers().tolist() == [4.1, 5.0] and again.task == "regression"
    with pytest.raises(
        ConfigurationError, match="expected labels that are numbers, got 'no'; choose a task of classes"
    ):
        small().numbers()


def test_the_trees_of_pairs_are_all_left_ones_then_all_right_ones() -> None:
    assert small(pairs=True).trees_of([1, 0]).tolist() == [2, 0, 3, 1]
    assert small().trees_of([3, 0]).tolist() == [3, 0]


@pytest.mark.parametrize("pairs", [False, True])
def test_examples_are_chosen_as_trees_of_a_forest_are(pairs: bool) -> None:
    data = small(pairs)
    last = len(data) - 1
    mask = [number == last for number in range(len(data))]
    expected = [2 * last, 2 * last + 1] if pairs else [last]
    for chosen in ([last], [-1], mask, slice(last, None)):
        assert data.trees_of(chosen).tolist() == expected  # type: ignore[arg-type]
    for wrong in ("a", None, 10**30, 1.5, [0.5], [last + 1], [True], slice("a")):
        with pytest.raises(TreefoldError, match="examples"):
            data.trees_of(wrong)  # type: ignore[arg-type]


def test_the_fingerprint_is_the_same_on_disk_and_changes_with_everything_that_counts(tmp_path: Path) -> None:
    data = small()
    data.save(tmp_path / "d")
    assert Dataset.open(tmp_path / "d").fingerprint() == data.fingerprint()
    nodes = np.arange(data.forest.node_count) % 2
    changed = [
        dataclasses.replace(data, targets=np.array([0, 0, -1, 1])),
        dataclasses.replace(data, node_targets=1 - nodes),
        dataclasses.replace(data, node_targets=None),
        dataclasses.replace(data, splits={"train": np.array([2]), "test": np.array([0])}),
        dataclasses.replace(data, splits={"train": np.array([0]), "test": np.array([1])}),
        dataclasses.replace(data, classes=("no", "maybe")),
        dataclasses.replace(data, forest=Forest(["(f a)", "c", "(f [1 2])", "(f _ a)"])),
        dataclasses.replace(data, forest=Forest(["(f a)", "b", "(f [1 3])", "(f _ a)"])),
        dataclasses.replace(data, forest=Forest(["(f a)", "b", "(f [1 2])", "(f a _)"])),
    ]
    found = [tuple(each.fingerprint().values()) for each in (data, *changed)]
    assert len(set(found)) == len(found)


def test_an_existing_directory_is_not_touched_without_force(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(FileError, match="got one that exists"):
        small().save(tmp_path / "d")
    small().save(tmp_path / "d", force=True)
    assert len(Dataset.open(tmp_path / "d")) == 4


def test_what_does_not_fit_together_is_refused() -> None:
    forest = Forest(["a", "b", "c"])
    with pytest.raises(ShapeError, match="a data set of 3 trees expects 3 labels, one for each tree, got 2"):
        Dataset(forest, np.array([0, 0]), ("x",), {})
    with pytest.raises(
        ShapeError, match="expected labels from 0 to 0, the numbers of the classes, or -1 for no class; got labels from"
    ):
        Dataset(forest, np.array([0, 1, 0]), ("x",), {})
    with pytest.raises(ShapeError, match="node labels are one for each of 3 nodes, got 1"):
        Dataset(forest, np.array([0, 0, 0]), ("x",), {}, node_targets=np.array([0]))
    with pytest.raises(ShapeError, match="the split 'train' has numbers outside the 3 examples"):
        Dataset(forest, np.array([0, 0, 0]), ("x",), {"train": np.array([3])})


@pytest.mark.parametrize(
    "facts", [{"classes": ("\ud800",)}, {"splits": {"\udcff": np.array([0])}}, {"made": {"from": ["n\udcff"]}}]
)
def test_half_characters_are_refused_before_they_are_written(facts: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match="of whole characters, got text with half of a surrogate pair; remove it"
    ):
        Dataset(**{"forest": Forest(["a"]), "targets": np.array([0]), "classes": ("x",), "splits": {}, **facts})


def test_a_class_with_a_nul_at_its_end_is_refused_because_numpy_would_make_it_another_one() -> None:
    assert np.array(["a\0", "a"]).tolist() == ["a", "a"]
    with pytest.raises(ConfigurationError, match="expected classes without a NUL at the end, got one; remove it"):
        Dataset.from_labels(["a", "b"], ["a\0", "a"], {})


@pytest.mark.parametrize("splits", [None, {"train": None}, {"train": "x"}, {"train": np.array([0.5])}])
def test_splits_are_arrays_of_numbers(splits: Any) -> None:
    with pytest.raises(
        TreefoldError, match=r"expected splits with names and|the split 'train' expects an array of whole"
    ):
        Dataset.from_labels(["a"], ["x"], splits)


def test_directories_that_are_no_data_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ForestFileError, match=r"expected a data set, a directory with dataset.json, got no such directory"
    ):
        Dataset.open(tmp_path / "absent")
    with pytest.raises(ForestFileError, match="got a directory without it; make one with `treefold data convert`"):
        Dataset.open(tmp_path)
    folder = tmp_path / "d"
    small().save(folder)
    facts = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**facts, "version": 99}))
    with pytest.raises(
        ForestFileError, match="expected a treefold dataset of version 1, got 'treefold dataset' of version 99"
    ):
        Dataset.open(folder)
    (folder / "dataset.json").write_text(json.dumps({key: value for key, value in facts.items() if key != "pairs"}))
    with pytest.raises(ForestFileError, match="expected files that fit together, got 'pairs'; make it again"):
        Dataset.open(folder)
    for broken in ("{", "[1]"):
        (folder / "dataset.json").write_text(broken)
        with pytest.raises(ForestFileError, match=r"expected a JSON (file|object), got"):
            Dataset.open(folder)


def test_keys_are_equal_for_equal_trees_and_no_others() -> None:
    texts = ["(f a b)", "(f b a)", "(f a)", "(f a _)", "(f _ a)", "(f (f a))", "[1 2]", "[1 3]", "a"]
    keys = tree_keys(Forest([*texts, *texts]))
    assert len(set(keys)) == len(texts) and keys[: len(texts)] == keys[len(texts) :]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("dataset.json", "[" * 100_000),
        ("vocabulary.json", '{"classes": ["\\ud800", "b"]}'),
        ("vocabulary.json", '{"classes": [["no"], ["yes"]]}'),
        ("vocabulary.json", '{"classes": ["no", "no"]}'),
        ("vocabulary.json", '{"classes": "no"}'),
    ],
)
def test_files_with_values_of_other_types_are_damaged(tmp_path: Path, file: str, text: str) -> None:
    small().save(tmp_path / "d")
    (tmp_path / "d" / file).write_text(text)
    with pytest.raises(ForestFileError, match=r"expected (a JSON file|files that fit together), got .*; make"):
        Dataset.open(tmp_path / "d")


def test_a_damaged_class_of_a_large_data_set_is_an_error_though_it_is_one_of_the_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treefold.trees.forest.SMALL", 0)
    small().save(tmp_path / "data")
    path = tmp_path / "data" / "examples.columns"
    targets = small().targets.astype(np.int32)
    path.write_bytes(path.read_bytes().replace(targets.tobytes(), targets[::-1].tobytes()))
    with pytest.raises(ForestFileError, match=r"examples\.columns: .* the checksum of column 'targets' is wrong"):
        Dataset.open(tmp_path / "data")


@pytest.mark.parametrize("column", [np.zeros(4), np.zeros((4, 1), np.int32), np.zeros(4, np.uint8)])
def test_columns_of_another_type_or_shape_are_damaged(tmp_path: Path, column: "np.ndarray[Any, Any]") -> None:
    small().save(tmp_path / "d")
    write_columns(tmp_path / "d" / "examples.columns", {"kind": "examples"}, {"targets": column})
    with pytest.raises(
        ForestFileError, match=r"expected files that fit together, got a column 'targets' of .*make it again"
    ):
        Dataset.open(tmp_path / "d")
