from pathlib import Path

import numpy as np
import pytest

from treefold.data.dataset import Dataset
from treefold.data.sick import load_sick
from treefold.errors import ConfigurationError, ReadError

SICK = Path(__file__).parents[2].parent / "shared" / "data" / "sick"
TABLES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
FILES = {
    "a.toks": "cats sleep\nno\n",
    "a.parents": "2 0\n0\n",
    "a.rels": "nsubj root\nroot\n",
    "b.toks": "dogs\ndogs run fast\n",
    "b.parents": "0\n2 0 2\n",
    "b.rels": "root\nnsubj root advmod\n",
    "sim.txt": "1.5\n4\n",
    "id.txt": "7\n3\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, table in TABLES.items():
        place = tmp_path / f"dep_{name}"
        place.mkdir()
        for file, text in FILES.items():
            (place / file).write_text(text)
        rows = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        (tmp_path / table).write_text(f"{rows}3\tx\ty\t4\tNEUTRAL\n7\tx\ty\t1.5\tENTAILMENT\n")
    return tmp_path


def test_pairs_have_numbers_or_classes_in_their_splits(folder: Path, tmp_path: Path) -> None:
    load_sick(folder).save(tmp_path / "d")
    data = Dataset.open(tmp_path / "d")
    assert data.pairs and data.task == "regression" and data.numbers().tolist() == [1.5, 4.0] * 3
    assert {name: part.tolist() for name, part in data.splits.items()} == {
        "train": [0, 1],
        "validation": [2, 3],
        "test": [4, 5],
    }
    assert [str(tree) for tree in data.forest[:4]] == ["(sleep cats)", "dogs", "no", "(run dogs fast)"]
    data = load_sick(folder, "entailment", relations=True, head=True)
    assert data.task == "pair" and [data.classes[target] for target in data.targets] == ["ENTAILMENT", "NEUTRAL"] * 3
    assert [str(tree) for tree in data.forest[2:4]] == ["root:no", "(root:run nsubj:dogs head:run advmod:fast)"]


@pytest.mark.parametrize(
    ("file", "text", "target", "error"),
    [
        ("dep_dev/sim.txt", "1.5\n", "relatedness", "dep_dev: expected a label for each of 2 pairs, got 1; align"),
        (
            "dep_dev/sim.txt",
            "1.5\nx\n",
            "relatedness",
            "dep_dev/sim.txt, line 2: expected a number, the relatedness, got",
        ),
        ("dep_dev/a.parents", "0 0\n0\n", "relatedness", "dep_dev/a.parents, line 1: expected one word with head 0"),
        (
            "dep_dev/id.txt",
            "7\n8\n",
            "entailment",
            "dep_dev/id.txt, line 2: expected the number of a pair of SICK_trial",
        ),
        (
            "SICK_trial.txt",
            "pair_ID\n",
            "entailment",
            "SICK_trial.txt, line 1: expected a column 'entailment_judgment'",
        ),
        ("SICK_trial.txt", "", "entailment", "SICK_trial.txt, line 1: expected a column 'pair_ID', got ''"),
    ],
)
def test_files_that_do_not_fit_are_errors_with_their_place(
    file: str, text: str, target: str, error: str, folder: Path
) -> None:
    (folder / file).write_text(text)
    with pytest.raises(ReadError) as caught:
        load_sick(folder, target)  # type: ignore[arg-type]
    assert str(caught.value).removeprefix(f"{folder}/").startswith(error)


def test_sides_of_different_length_and_unknown_targets_are_refused(folder: Path) -> None:
    for name in ("toks", "parents"):
        path = folder / "dep_test" / f"b.{name}"
        path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(ReadError, match=r"b.toks: expected as many lines as the other side, got 1; align the files"):
        load_sick(folder)
    with pytest.raises(ConfigurationError, match=r"load_sick expects target to be one of .* got 'similarity'"):
        load_sick(folder, "similarity")  # type: ignore[arg-type]


def test_the_original_has_its_published_sizes_and_the_scores_of_the_tables() -> None:
    if not SICK.exists():
        pytest.skip(f"NOT TESTED: the original files are not at {SICK}")
    data = load_sick(SICK)
    assert [len(data.splits[name]) for name in ("train", "validation", "test")] == [4500, 500, 4927]
    numbers, judged = data.numbers(), load_sick(SICK, "entailment")
    for split, (name, table) in zip(data.splits.values(), TABLES.items(), strict=True):
        ids = (SICK / f"dep_{name}" / "id.txt").read_text().split()
        rows = {row.split("\t")[0]: row.split("\t") for row in (SICK / table).read_text().splitlines()[1:]}
        assert np.allclose(numbers[split], [float(rows[key][3]) for key in ids], atol=0.051)
        assert [judged.classes[target] for target in judged.targets[split]] == [rows[key][4] for key in ids]
        words = (SICK / f"dep_{name}" / "b.toks").read_text().splitlines()
        for number in range(0, len(split), 97):
            tree = data.forest[int(2 * split[number] + 1)]
            assert sorted(str(node.label) for node in tree.preorder()) == sorted(words[number].split())
