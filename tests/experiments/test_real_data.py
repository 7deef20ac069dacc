import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
from experiments.real.data import DATA, SOURCE, dataset, main, python_files
from experiments.real.order import ORDER, make_order

from treefold import Forest, Tree
from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError

needs_source = pytest.mark.skipif(not SOURCE.is_dir(), reason=f"no downloaded files in {SOURCE}: REAL DATA NOT TESTED")


def test_sentences_are_in_lower_case_with_a_sentiment_at_every_node(tmp_path: Path) -> None:
    lines = {"train": ["(3 (2 1\xa01\\/2) (4 Hours))", "(2 (2 So) (3 so))"], "dev": ["(0 Bad)"], "test": ["(2 Film)"]}
    (tmp_path / "sst").mkdir()
    for word, texts in lines.items():
        (tmp_path / "sst" / f"{word}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    five, two = DATA["sst5"](tmp_path), DATA["sst2"](tmp_path)
    hours = Tree("<phrase>", [Tree("1\xa01/2"), Tree("hours")])
    assert list(five.forest) == [hours, Tree.parse("(<phrase> so so)"), Tree("bad"), Tree("film")]
    assert (five.targets.tolist(), five.classes) == ([3, 2, 0, 2], tuple("01234"))
    assert np.asarray(five.node_targets).tolist() == [2, 4, 3, 2, 3, 2, 0, 2]
    assert {name: part.tolist() for name, part in five.splits.items()} == {
        "train": [0, 1],
        "validation": [2],
        "test": [3],
    }
    assert list(two.forest) == [hours, Tree("bad")]
    assert (two.targets.tolist(), two.classes) == ([1, 0], ("negative", "positive"))
    assert np.asarray(two.node_targets).tolist() == [-1, 1, 1, 0]
    assert {name: part.tolist() for name, part in two.splits.items()} == {"train": [0], "validation": [1], "test": []}


def test_pairs_of_sentences_have_numbers_or_classes_and_are_in_lower_case(tmp_path: Path) -> None:
    tables = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
    for number, (word, table) in enumerate(tables.items()):
        place = tmp_path / "sick" / f"dep_{word}"
        place.mkdir(parents=True)
        files = {"a.toks": "A Dog barks", "a.parents": "2 3 0", "b.toks": "Dogs bark", "b.parents": "2 0"}
        for name, text in {**files, "sim.txt": f"{number + 1}.5", "id.txt": "7"}.items():
            (place / name).write_text(f"{text}\n")
        (tmp_path / "sick" / table).write_text("pair_ID\tentailment_judgment\n7\tNEUTRAL\n")
    numbers, classes = DATA["sick_relatedness"](tmp_path), DATA["sick_entailment"](tmp_path)
    assert list(map(str, numbers.forest)) == ["(barks (dog a))", "(bark dogs)"] * 3 == list(map(str, classes.forest))
    assert (numbers.task, numbers.numbers().tolist()) == ("regression", [1.5, 2.5, 3.5])
    assert (classes.task, classes.classes) == ("pair", ("NEUTRAL",))


def test_programs_come_from_columns_in_preorder(tmp_path: Path) -> None:
    (tmp_path / "poj104").mkdir()
    columns = {"types": [1, 0, 2] * 10, "nchild": [2, 0, 0] * 10, "ntree": [3] * 10, "label": [7, 1] * 5}
    np.savez(tmp_path / "poj104" / "poj104_ast_types.npz", vocab=["x", "unit", "call"], **columns)  # type: ignore[arg-type]
    data = DATA["poj104"](tmp_path)
    assert list(map(str, data.forest)) == ["(unit x call)"] * 10
    assert list(data.forest.vocabulary) == list(Forest(data.forest).vocabulary)
    assert (data.classes, data.targets.tolist()) == (("1", "7"), [1, 0] * 5)


@pytest.mark.parametrize("name", ORDER)
def test_classes_of_ordered_sets_are_balanced_and_no_tree_is_there_twice(name: str) -> None:
    sizes = {"train": 900}
    data = make_order(name, 3, sizes)
    shares = np.bincount(data.targets) / len(data)
    assert abs(shares - 1 / len(data.classes)).max() < 0.06
    assert len({*data.forest}) == len(data) == 900
    assert make_order(name, 3, sizes).fingerprint() == data.fingerprint() != make_order(name, 4, sizes).fingerprint()


def test_classes_of_ordered_sets_are_what_they_say() -> None:
    def examples(name: str) -> list[tuple[Tree, str]]:
        data = make_order(name, sizes={"train": 300})
        return [(tree, data.classes[target]) for tree, target in zip(data.forest, data.targets, strict=True)]

    for tree, label in examples("first_is_last"):
        assert (tree.children[0].label == tree.children[-1].label) == (label == "same")  # type: ignore[union-attr]
    for tree, label in examples("third"):
        place = [child.label for child in tree.children if child].index("star")
        assert ("first", "middle", "last")[3 * place // len(tree.children)] == label
    for tree, label in examples("before"):
        labels = [child.label for child in tree.children if child]
        assert (labels.index("red") < labels.index("blue")) == (label == "before")
        assert abs(labels.index("red") - labels.index("blue")) > 1
    for tree, label in examples("brackets"):
        text, before = (
            "".join(str(child.label) for child in tree.children if child and str(child.label) in "()[]{}"),
            "",
        )
        while text != before:
            text, before = text.replace("()", "").replace("[]", "").replace("{}", ""), text
        assert (text == "") == (label == "nested")
    for tree, label in examples("inside"):
        stack, outside = [(tree, False)], 0
        while stack:
            node, covered = stack.pop()
            outside += node.label == "link" and not covered
            stack += [(child, covered or node.label == "menu") for child in node.children if child]
        assert (outside == 0) == (label == "inside")
    for tree, label in examples("agreement"):
        subject, verb = tree.children
        while subject and subject.label == "NP":  # the head of a phrase is its first phrase, or its noun
            subject = next(child for child in subject.children if child and child.label in ("NP", "N"))
        assert subject
        assert verb
        noun, word = str(subject.children[0]), str(verb.children[-1].children[0])  # type: ignore[union-attr]
        assert (noun.endswith("s") != word.endswith("s")) == (label == "right")


def test_python_files_are_classes_by_package(tmp_path: Path) -> None:
    for kind, number in itertools.product(("one", "two"), range(12)):
        (tmp_path / kind / "deep").mkdir(parents=True, exist_ok=True)
        text = f"{kind}(x)\n" * (number // 2 + 40)  # each tree is there twice
        (tmp_path / kind / "deep" / f"{number}.py").write_text(text)
    (tmp_path / "one" / "broken.py").write_text("(" * 300)
    (tmp_path / "one" / "tiny.py").write_text("x\n")
    data = python_files(names=True, site=tmp_path, packages=["one", "two"], most=5)
    assert (data.classes, np.bincount(data.targets).tolist(), data.forest.arity) == (("one", "two"), [5, 5], 45)
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 6, "validation": 2, "test": 2}
    assert "one" in data.forest.vocabulary
    assert "one" not in python_files(names=False, site=tmp_path, packages=["one", "two"], most=5).forest.vocabulary
    with pytest.raises(ConfigurationError, match=r"expected Python files in .*none, got none; install none"):
        python_files(names=True, site=tmp_path, packages=["none"])


def test_glycans_keep_their_split_and_their_one_kingdom(tmp_path: Path) -> None:
    rows = ["IUPAC\tFungi\tPlantae\tsplit", "Gal(b1-4)Glc\t1\t0\ttrain", "Glc\t1\t1\ttrain", "Man\t0\t1\tval"]
    (tmp_path / "glycans").mkdir()
    with gzip.open(tmp_path / "glycans" / "taxonomy_Kingdom.tsv.gz", "wt") as file:
        file.write("\n".join(rows))
    data = DATA["kingdom"](tmp_path)
    assert [str(tree) for tree in data.forest] == ['(Glc "Gal(b1-4)")', "Man"]
    assert (data.classes, data.targets.tolist()) == (("Fungi", "Plantae"), [0, 1])
    assert {name: part.tolist() for name, part in data.splits.items()} == {"train": [0], "validation": [1], "test": []}


def test_glycans_of_one_order_are_read_and_broken_names_are_left_out(tmp_path: Path) -> None:
    rows = [f"{name}{number},{order}" for order, name in (("A", "Gal"), ("B", "Glc")) for number in range(10)]
    rows += ["Man,A", "Man,B", "Fuc[,A"]
    (tmp_path / "glycans").mkdir()
    with gzip.open(tmp_path / "glycans" / "sweetnet_species_V3.csv.gz", "wt") as file:
        file.write("\n".join(["target,order", *rows]))
    data = DATA["glycan_order"](tmp_path)
    assert (data.classes, np.bincount(data.targets).tolist()) == (("A", "B"), [10, 10])
    assert sorted(str(tree) for tree in data.forest) == sorted(
        f"{name}{n}" for name in ("Gal", "Glc") for n in range(10)
    )
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 12, "validation": 4, "test": 4}


def test_without_the_downloaded_files_the_error_says_where_they_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sst2", "third", "--source", str(tmp_path / "no"), "--out", str(tmp_path / "made")]) == 2
    out, err = capsys.readouterr()
    assert "sst/train.txt: expected a downloaded file, got none; experiments/real/README.md says where" in err
    assert out == "| third | 2,000 / 500 / 1,000 | 49,127 | 10 | 20 | 1 | 3 |\n"
    with pytest.raises(ConfigurationError, match="nearest known: 'third'"):
        dataset("thrid", tmp_path)


@needs_source
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("sst2", (6920, 872, 1821)),
        ("sst5", (8544, 1101, 2210)),
        ("sick_entailment", (4500, 500, 4927)),
        ("kingdom", (11046, 3092, 1545)),
        ("poj20", (1080, 360, 360)),
    ],
)
def test_real_sets_have_the_sizes_of_their_publications(name: str, sizes: tuple[int, ...]) -> None:
    data: Dataset = DATA[name](SOURCE)
    assert tuple(len(data.splits[part]) for part in ("train", "validation", "test")) == sizes
