import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
from experiments.real import data as real
from experiments.real.data import (
    DATA,
    FILES,
    SOURCE,
    FileSet,
    dataset,
    dependency_tree,
    forest_in_preorder,
    main,
    sentence,
)
from experiments.real.order import ORDER, make_order
from hypothesis import given
from hypothesis import strategies as st

from treefold import Forest, Tree
from treefold.data.dataset import Dataset
from treefold.errors import ConfigurationError, ReadError

needs_source = pytest.mark.skipif(not SOURCE.is_dir(), reason=f"no downloaded files in {SOURCE}: REAL DATA NOT TESTED")


def preorder(tree: Tree) -> list[Tree]:
    found, stack = [], [tree]
    while stack:
        node = stack.pop()
        found.append(node)
        stack += [child for child in reversed(node.children) if child is not None]
    return found


closed_trees = st.recursive(
    st.builds(Tree, st.sampled_from("xyz")),
    lambda smaller: st.builds(Tree, st.sampled_from("fxb"), st.lists(smaller, max_size=4)),
    max_leaves=12,
)


@given(st.lists(closed_trees, min_size=1, max_size=4))
def test_a_forest_from_preorder_has_the_same_trees(both: list[Tree]) -> None:
    nodes = [node for tree in both for node in preorder(tree)]
    names = list(dict.fromkeys(str(node.label) for node in nodes))
    labels = np.array([names.index(str(node.label)) for node in nodes])
    widths, sizes = np.array([len(node.children) for node in nodes]), np.array([tree.size for tree in both])
    forest = forest_in_preorder(labels, widths, sizes, names)
    expected = Forest(both)
    assert list(forest) == both
    assert list(forest.vocabulary) == list(expected.vocabulary)
    for column in ("labels", "parents", "slots", "widths", "depths", "offsets"):
        assert getattr(forest, column).tolist() == getattr(expected, column).tolist(), column


def test_a_word_with_an_odd_space_is_one_word() -> None:
    tree, targets = sentence("(3 (2 1\xa01\\/2) (4 Hours))")
    assert tree == Tree("•", [Tree("1\xa01/2"), Tree("hours")])
    assert targets == [2, 4, 3]


@pytest.mark.parametrize("heads", [[2, 1], [0, 0], [2, 3, 2]])
def test_heads_with_a_cycle_or_two_roots_are_refused(heads: list[int]) -> None:
    with pytest.raises(ReadError, match="expected one root and no cycle"):
        dependency_tree(["w"] * len(heads), heads)


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


def test_files_of_a_folder_become_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, number in itertools.product(("list", "table"), range(12)):
        (tmp_path / kind / "deep").mkdir(parents=True, exist_ok=True)
        text = f"<{kind}>{'<row/>' * (number // 2 + 40)}</{kind}>"  # each tree is there twice
        (tmp_path / kind / "deep" / f"{number}.xml").write_text(text)
    (tmp_path / "list" / "broken.xml").write_text("<list>" * 100)
    patterns = {kind: f"{tmp_path}/{kind}/**/*.xml" for kind in ("list", "table")}
    monkeypatch.setitem(FILES, "mine", FileSet("xml", {}, patterns, most=5))
    monkeypatch.setitem(DATA, "mine", lambda source: real.files(source, "mine"))
    data = dataset("mine", tmp_path / "made")
    assert (data.classes, np.bincount(data.targets).tolist(), data.forest.arity) == (("list", "table"), [5, 5], 45)
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 6, "validation": 2, "test": 2}
    monkeypatch.setitem(FILES, "mine", FileSet("xml", {}, {"x": f"{tmp_path}/none/*.xml"}))
    with pytest.raises(ConfigurationError, match=r"expected files .*none/\*.xml, got none on this machine"):
        real.files(tmp_path, "mine")


def test_glycans_keep_their_split_and_their_one_kingdom(tmp_path: Path) -> None:
    rows = ["IUPAC\tFungi\tPlantae\tsplit", "Gal(b1-4)Glc\t1\t0\ttrain", "Glc\t1\t1\ttrain", "Man\t0\t1\tval"]
    (tmp_path / "glycans").mkdir()
    with gzip.open(tmp_path / "glycans" / "taxonomy_Kingdom.tsv.gz", "wt") as file:
        file.write("\n".join(rows))
    data = DATA["kingdom"](tmp_path)
    assert [str(tree) for tree in data.forest] == ['(Glc "Gal(b1-4)")', "Man"]
    assert (data.classes, data.targets.tolist()) == (("Fungi", "Plantae"), [0, 1])
    assert {name: part.tolist() for name, part in data.splits.items()} == {"train": [0], "validation": [1], "test": []}


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
    ],
)
def test_real_sets_have_the_sizes_of_their_publications(name: str, sizes: tuple[int, ...]) -> None:
    data: Dataset = DATA[name](SOURCE)
    assert tuple(len(data.splits[part]) for part in ("train", "validation", "test")) == sizes
