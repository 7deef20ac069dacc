from pathlib import Path

import numpy as np
import pytest

from treefold.data.dataset import Dataset
from treefold.data.generators import listops, load_listops, load_lrt, lrt, make_listops, make_lrt
from treefold.errors import ReadError

SHARED = Path(__file__).parents[3].parent / "shared" / "data"


def disjoint(data: Dataset) -> bool:
    keys = data.keys()
    sets = [{keys[index] for index in part} for part in data.splits.values()]
    return sum(map(len, sets)) == len(set().union(*sets)) == sum(map(len, data.splits.values()))


def test_generated_listops_has_the_value_of_every_subtree_and_the_paper_s_split() -> None:
    data = make_listops(500, seed=1)
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 409, "validation": 41, "test": 50}
    assert data.node_targets is not None
    for index, tree in enumerate(data.forest):
        nodes = data.node_targets[data.forest.offsets[index] : data.forest.offsets[index + 1]].tolist()
        assert nodes == [listops.value(node) for node in tree.postorder()]
        assert data.targets[index] == nodes[-1]
    assert disjoint(data)


def test_the_same_seed_gives_the_same_data_set_and_another_seed_another() -> None:
    first, again, other = (make_listops(200, seed=seed) for seed in (5, 5, 6))
    assert list(first.forest) == list(again.forest) != list(other.forest)
    assert all(np.array_equal(first.splits[name], again.splits[name]) for name in first.splits)


def test_generated_lrt_has_pairs_whose_relation_is_recomputed_and_no_pair_twice() -> None:
    data = make_lrt(3000, seed=0)
    trees = list(data.forest)
    for example in range(0, len(data), 7):
        left, right = trees[2 * example], trees[2 * example + 1]
        assert data.classes[data.targets[example]] == lrt.relation(left, right)
    assert data.pairs and disjoint(data) and len(set(data.keys())) == len(data)
    operators = [
        max(sum(node.label in ("and", "or", "not") for node in trees[2 * index + side].preorder()) for side in (0, 1))
        for index in data.splits["train"]
    ]
    assert max(operators) <= 4


def test_the_original_listops_sample_is_read_as_a_test_set() -> None:
    path = SHARED / "listops" / "sample_d20s.tsv"
    if not path.exists():
        pytest.skip(f"NOT TESTED: the original ListOps sample is not at {path}")
    data = load_listops([path])
    values = [int(line.split("\t")[0]) for line in path.read_text().splitlines()]
    assert data.targets.tolist() == values and list(data.splits) == ["test"] and len(data.splits["test"]) == 300


def test_the_original_lrt_files_are_read_and_split() -> None:
    if not (SHARED / "lrt").exists():
        pytest.skip(f"NOT TESTED: the original LRT files are not at {SHARED / 'lrt'}")
    data = load_lrt([SHARED / "lrt" / f"train{number}" for number in range(3)])
    assert len(data) == 30 + 2319 + 12451 and disjoint(data)
    lines = [line.split("\t")[0] for n in range(3) for line in (SHARED / "lrt" / f"train{n}").read_text().splitlines()]
    assert [data.classes[target] for target in data.targets] == lines


def test_a_file_without_a_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    for read in (load_listops, load_lrt):
        with pytest.raises(ReadError, match="expected at least one line that can be read, got none"):
            read([tmp_path / "empty"])
