"""`model.explain`: the answers are those of `predict`, and text, drawing, page and table show them."""

import functools
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError  # type: ignore[import-untyped]
from typer.testing import CliRunner

from tests import runs
from tests.analysis.test_explaining import plainly_without
from tests.estimators.tasks import FAST, first_leaf, kinds, leaves, trees
from tests.trees.test_drawing import NS, boxes, nodes, overlapping
from treefold import (
    Explanation,
    Forest,
    NodeClassifier,
    Tree,
    TreeClassifier,
    TreeEmbedder,
    TreePairClassifier,
    TreePairRegressor,
    TreeRegressor,
    load,
)
from treefold.analysis.explaining import Belief, Effect, Occlusion
from treefold.cli import app
from treefold.errors import ConfigurationError, FileError, TreeError, VocabularyError
from treefold.trees.drawing import shade

TREES = trees(60)
CLASSES = [10 if first_leaf(tree) == "a" else 20 for tree in TREES]  # numbers: the answers are numbers, too
PAIRS = list(zip(TREES, TREES[::-1], strict=True))
TREE = Tree.parse("(f (g a (f b)) (g b))")
PAIR = (TREE, Tree.parse("(g (f a b))"))


@functools.cache
def classifier(**arguments: Any) -> TreeClassifier:
    return TreeClassifier(**FAST, **arguments).fit(TREES, CLASSES)


def parts(tree: Tree) -> list[Tree]:
    return list(tree.postorder())


@pytest.mark.parametrize(
    "arguments", [{}, {"readout": "root+mean"}, {"wide": True}, {"direction": "both"}, {"siblings": True}], ids=str
)
def test_answers_are_those_of_predict_about_each_subtree(arguments: dict[str, Any]) -> None:
    model = classifier(**arguments)
    found = model.explain(str(TREE))
    rows = found.nodes
    assert [row["answer"] for row in rows] == model.predict(parts(TREE)).tolist()
    chances = model.predict_proba(parts(TREE))
    assert [row["confidence"] for row in rows] == pytest.approx(chances.max(1).tolist(), abs=1e-5)
    assert found.probabilities == pytest.approx(chances, abs=1e-5)
    assert [row["node"] for row in rows] == list(range(TREE.size))
    assert [row["label"] for row in rows] == [part.label for part in parts(TREE)]
    assert [row["depth"] for row in rows] == [2, 3, 2, 1, 2, 1, 0] and all(row["known"] for row in rows)
    assert found.answer == model.predict([TREE])[0] and found.confidence == rows[-1]["confidence"]
    column = model.classes_.tolist().index(found.answer)
    whole = model.predict_proba([TREE])[0, column]
    for row in rows[:-1]:
        rest = model.predict_proba([plainly_without(TREE, row["node"])])[0, column]
        assert row["fall"] == pytest.approx(whole - rest, abs=1e-5)
    assert rows[-1]["fall"] is None
    assert all((row["share"] is None) == (not arguments) for row in rows)


@pytest.mark.parametrize("arguments", [{}, {"wide": True}, {"siblings": True}], ids=str)
def test_of_pairs_each_subtree_is_compared_with_the_other_tree(arguments: dict[str, Any]) -> None:
    model = TreePairClassifier(**{**FAST, "hidden": None}, **arguments).fit(PAIRS, CLASSES)
    left, right = PAIR
    pairs = [(part, right) for part in parts(left)] + [(left, part) for part in parts(right)]
    rows = model.explain(PAIR).nodes
    assert [row["answer"] for row in rows] == model.predict(pairs).tolist()
    assert [row["confidence"] for row in rows] == pytest.approx(model.predict_proba(pairs).max(1).tolist(), abs=1e-5)
    assert [row["tree"] for row in rows] == ["left"] * left.size + ["right"] * right.size
    svg = model.explain(PAIR).to_svg()
    assert sorted(nodes(svg)) == list(range(left.size + right.size)) and not overlapping(boxes(svg))


def test_numbers_are_explained() -> None:
    model = TreeRegressor(**FAST).fit(TREES, [float(leaves(tree)) for tree in TREES])
    found = model.explain(TREE)
    assert [row["answer"] for row in found.nodes] == pytest.approx(model.predict(parts(TREE)).tolist(), rel=1e-4)
    assert found.confidence is None and found.draw().startswith("answer: ") and "the number falls by" in str(found)
    svg, numbers = found.to_svg(), [row["answer"] for row in found.nodes]
    fills = {group.get("data-node"): group[1].get("fill") for group in ET.fromstring(svg).iter(f"{NS}g")}
    assert fills[str(int(np.argmin(numbers)))] == shade(0) and fills[str(int(np.argmax(numbers)))] == shade(1)
    similar = TreePairRegressor(**{**FAST, "hidden": None}).fit(PAIRS, np.linspace(1, 5, len(PAIRS)))
    assert similar.explain(PAIR).answer == pytest.approx(similar.predict([PAIR])[0], rel=1e-4)


def test_nodes_are_explained_by_their_own_classes() -> None:
    model = NodeClassifier(**FAST, direction="both").fit(TREES, [kinds(tree) for tree in TREES])
    assert [row["answer"] for row in model.explain(TREE).nodes] == model.predict([TREE])[0]


def test_text_and_drawing_are_those_of_the_command_line_and_of_a_loaded_run() -> None:
    model = load(runs.listops().folder)
    found = model.explain("(MAX 4 (MIN 7 2))", top=2)
    lines = found.draw().splitlines()
    assert lines[0] == f"answer: {found.answer} with probability {found.confidence:.4f}"
    assert [line.rsplit("  ", 1)[0] for line in lines[1:6]] == ["MAX", "├── 4", "└── MIN", "    ├── 7", "    └── 2"]
    assert lines[6] == "without this subtree, the probability of the answer falls by" and len(lines) == 9
    arguments = ["predict", str(runs.listops().folder), "--explain", "--top", "2"]
    assert CliRunner().invoke(app, arguments, input="(MAX 4 (MIN 7 2))").stdout == found.draw() + "\n\n"
    assert repr(found) == f"<Explanation of 5 nodes, {lines[0]}>"
    assert model.explain("(MAX 4 7)", occlude=False).draw().count("\n") == 3


def test_colours_are_those_of_the_answers_and_pale_if_the_model_is_unsure() -> None:
    beliefs = classifier().explain(TREE).beliefs
    found = Explanation((TREE,), beliefs, classes=(10, 20))
    root = ET.fromstring(found.to_svg())
    fills = {int(group.attrib["data-node"]): group[1].get("fill") for group in root.iter(f"{NS}g")}
    for belief in beliefs:
        assert belief.probability is not None
        assert fills[belief.node] == shade([10, 20].index(int(belief.answer)), 2 * belief.probability - 1)
    legend = [text.text for text in root.iter(f"{NS}text") if text.get("class") == "legend"]
    assert legend == [*sorted({str(belief.answer) for belief in beliefs}), "the paler, the less sure"]


def test_hover_texts_have_label_probabilities_and_effect() -> None:
    found = classifier().explain(TREE)
    row, box = found.nodes[0], nodes(found.to_svg())[0]
    assert found.probabilities is not None
    lines = [f"{value} {found.probabilities[0, place]:.4f}" for place, value in enumerate((10, 20))]
    lines.sort(key=lambda line: -float(line.split()[1]))
    assert box.title.split("\n") == [
        "a",
        *lines,
        f"without it, the probability of the answer falls by {row['fall']:+.4f}",
    ]


def test_the_layer_of_effects_is_strongest_where_the_answer_needs_the_subtree_most() -> None:
    found = classifier().explain(TREE)
    falls = {row["node"]: row["fall"] for row in found.nodes if row["fall"] is not None}
    root = ET.fromstring(found.to_svg(layer="effects"))
    fills = {int(group.attrib["data-node"]): group[1].get("fill") for group in root.iter(f"{NS}g")}
    most = max(falls, key=lambda node: abs(falls[node]))
    assert fills[most] == shade(int(falls[most] > 0)) and fills[TREE.size - 1] == "#f3f4f6"
    with pytest.raises(ConfigurationError, match="the layer 'effects' expects an explanation with occlusion, got none"):
        classifier().explain(TREE, occlude=False).to_svg(layer="effects")
    with pytest.raises(ConfigurationError, match="layer to be one of 'answers', 'effects', got 'effect'"):
        found.to_svg(layer="effect")


def test_effects_that_are_small_beside_the_greatest_have_no_colour() -> None:
    tree = Tree.parse("(f a b c)")
    beliefs = tuple(Belief(node, label, "yes", 0.9) for node, label in enumerate("abcf"))
    effects = tuple(
        Effect(node, Tree(label), fall) for node, label, fall in [(0, "a", 0.5), (1, "b", 0.004), (2, "c", -0.1)]
    )
    found = Explanation((tree,), beliefs, Occlusion("yes", 0.9, effects, 3, 3))
    root = ET.fromstring(found.to_svg(layer="effects"))
    fills = {int(group.attrib["data-node"]): group[1].get("fill") for group in root.iter(f"{NS}g")}
    assert fills == {0: shade(1), 1: "#f3f4f6", 2: shade(0, 0.2), 3: "#f3f4f6"}
    assert "without it, probability falls" in [text.text for text in root.iter(f"{NS}text")]


def test_unknown_labels_are_shown_as_such() -> None:
    model = classifier(label_dropout=0.05)
    hostile = Tree("f", [Tree("<script>"), Tree("a")])
    found = model.explain(hostile)
    assert [row["known"] for row in found.nodes] == [False, True, True]
    assert found.draw().endswith("\nlabels that the model does not know, they count as <unk>: <script>")
    svg, page = found.to_svg(), found.to_html()
    dashed = [group.get("data-node") for group in ET.fromstring(svg).iter(f"{NS}g") if group[1].get("stroke-dasharray")]
    assert dashed == ["0"] and "unknown label, counts as <unk>" in nodes(svg)[0].title
    assert "<script" not in svg + page and "&lt;script&gt;" in page
    strict = TreeClassifier(**FAST, unknown="error").fit(TREES, CLASSES)
    with pytest.raises(
        VocabularyError, match="tree 0: expected one of the 4 labels of the training trees, got '<script>'"
    ):
        strict.explain(hostile)


def test_pages_are_well_formed_and_files_written_whole(tmp_path: Path) -> None:
    found = classifier(readout="root+mean", wide=True).explain(TREE, top=3)
    page = found.to_html(tmp_path / "a.html")
    body = ET.fromstring(page.split("\n", 1)[1])
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == page and body.find("head/title") is not None
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    rows = [[cell.text for cell in row] for row in body.iter("tr")]
    falls = sorted((row["fall"] for row in found.nodes[:-1]), reverse=True)[:3]
    assert [row[0] for row in rows[1:4]] == [f"{fall:+.4f}" for fall in falls]
    svg = found.to_svg(tmp_path / "a.svg", max_nodes=3)
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == svg and len(nodes(svg)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.svg"]
    with pytest.raises(FileError):
        found.to_html(tmp_path / "none" / "a.html")


def test_a_table_of_pandas_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = classifier().explain(TREE)
    frame = found.to_frame()
    assert frame["answer"].tolist() == [row["answer"] for row in found.nodes] and frame.index.name == "node"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ConfigurationError, match=r"to_frame needs the package pandas; pip install 'treefold\[objects\]'"
    ):
        found.to_frame()


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (3, "tree 0: expected a Tree"),
        (None, "tree 0: expected a tree, got the missing value None"),
        ([TREE, TREE], "TreeClassifier.explain expects one tree, got a list of 2 trees; explain one at a time"),
        (Forest([TREE]), "TreeClassifier.explain expects one tree, got a Forest of 1 trees"),
        ("(f", "expected '\\)' to close"),
    ],
)
def test_a_wrong_object_is_said_in_words(subject: Any, message: str) -> None:
    with pytest.raises(TreeError, match=message):
        classifier().explain(subject)


def test_what_cannot_be_explained_says_so() -> None:
    with pytest.raises(NotFittedError):
        TreeClassifier().explain(TREE)
    with pytest.raises(
        ConfigurationError, match=r"TreeEmbedder.explain expects a model with answers, got one that returns"
    ):
        TreeEmbedder(**FAST).fit(TREES).explain(TREE)
    two = TreeRegressor(**FAST).fit(TREES, [[float(tree.size), 1.0 + tree.depth] for tree in TREES])
    with pytest.raises(ConfigurationError, match="expects a model of classes or of one number, got one of 2 numbers"):
        two.explain(TREE)
    with pytest.raises(ConfigurationError, match="explain expects top to be an integer >= 1, got 0"):
        classifier().explain(TREE, top=0)
