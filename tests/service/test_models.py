"""The models of a service read trees and answer as the command line does."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests import runs
from treefold import Forest, Tree
from treefold.analysis.explaining import beliefs, occlusion, probabilities
from treefold.analysis.prediction import answers
from treefold.data.convert import Conversion, convert
from treefold.errors import ConfigurationError, ModelFileError, ReadError, TreefoldError, VocabularyError
from treefold.service.models import Served, UnknownModelError, chosen, nodes_of, open_models
from treefold.training import train
from treefold.training.settings import RunSettings

SMALL = RunSettings.of({"recipe": "paper", "model": {"state_size": 3}, "training": {"epochs": 1}})


def served(folder: Path) -> Served:
    (found,) = open_models([folder]).values()
    return found


def test_a_model_answers_as_predict_does() -> None:
    run = runs.listops()
    found = served(run.folder)
    trees = [found.read(str(tree)) for tree in run.data.forest[:9]]
    assert found.answers(trees) == answers(run.saved, [(tree,) for tree in run.data.forest[:9]])
    assert found.name == "listops" and found.classes == run.data.classes and found.note == ""


def test_trees_are_read_with_the_options_of_the_training_data(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.xml").write_text(f"<a x='{'one' if number % 2 else 'two'}'><b/><b/><b/></a>")
    labels = tmp_path / "labels"
    labels.write_text("\n".join(str(number % 2) for number in range(12)) + "\n")
    how = Conversion(
        format="xml", options={"attributes": "true"}, label_file=labels, max_arity=2, wide="group", fractions=(1, 0, 0)
    )
    train(convert(sorted(tmp_path.glob("*.xml")), how), tmp_path / "run", SMALL)
    found = served(tmp_path / "run")
    (tree,) = found.read("<a x='one'><b/><b/></a>", "xml")
    assert str(tree) == "(a (… (@x one) b) b)"
    assert [str(tree) for tree in found.read("(a b b b)")] == ["(a b b b)"]  # as `treefold predict` reads s-expressions
    assert found.formats[:2] == ("xml", "sexpr")


def test_other_formats_are_read_from_text() -> None:
    found = served(runs.listops().folder)
    assert [str(tree) for tree in found.read('{"tree": "(MAX 1 2)"}', "jsonl")] == ["(MAX 1 2)"]
    assert [str(tree) for tree in found.read("(S (NP I) (VP go))", "penn")] == ["(S (NP I) (VP go))"]
    assert found.read("pass", "python")[0].label == "Module"


@pytest.mark.parametrize(
    ("text", "form", "said"),
    [
        ("(a (b", None, "tree, line 1, column 6: expected ')' to close '(b' of column 4, got the end of the text"),
        ("(a) (b)", "sexpr", "tree, line 1, column 5: expected the end of the text after a whole tree, got '('"),
        ("(a b) (c d)", "penn", "tree: expected one tree or pair, got 2; send each as a text of its own"),
        ("a", "yaml", "the service expects format to be one of 'sexpr', 'penn',"),
        ("a", "parquet", "the service expects format to be one of"),
        ("def", "python", "tree, line 1, column 4: expected Python, got 'invalid syntax'"),
        ("", "xml", "tree: expected at least one tree, got an empty file"),
    ],
)
def test_bad_text_is_refused_with_its_place(text: str, form: str | None, said: str) -> None:
    with pytest.raises(TreefoldError) as caught:
        served(runs.listops().folder).read(text, form)
    assert str(caught.value).startswith(said)


def test_growing_entities_are_refused() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><a>&b;</a>'
    with pytest.raises(ReadError, match=r"expected .*, got"):
        served(runs.listops().folder).read(bomb, "xml")


def test_unknown_labels_count_as_unknown_or_are_an_error() -> None:
    found = served(runs.listops().folder)
    trees = found.read("(MAX 1 zebra)")
    assert len(found.answers([trees])) == 1
    with pytest.raises(VocabularyError, match="got 'zebra'"):
        found.answers([trees], "error")
    wide = found.read(f"(MAX {'1 ' * 9})")
    with pytest.raises(TreefoldError, match="9 children"):
        found.answers([wide], "error")


def test_a_model_of_pairs_refuses_single_trees() -> None:
    pairs = served(runs.lrt().folder)
    with pytest.raises(ConfigurationError, match="expected a pair"):
        pairs.answers([pairs.read("(and a b)")])
    left, right = runs.lrt().data.forest[:2]
    assert pairs.answers([(left, right)]) == answers(runs.lrt().saved, [(left, right)])


def test_the_nodes_of_an_explanation_are_the_beliefs_with_their_places() -> None:
    run = runs.lrt()
    left, right = run.data.forest[0], run.data.forest[1]
    found = served(run.folder)
    rows = nodes_of(found.explain((left, right)))
    assert [row["prediction"] for row in rows] == [belief.answer for belief in beliefs(run.saved, (left, right))]
    assert [row["tree"] for row in rows] == [0] * left.size + [1] * right.size
    assert [row["parent"] for row in rows if row["depth"] == 0] == [None, None]
    sizes = [part.size for tree in (left, right) for part in tree.postorder()]
    assert [row["size"] for row in rows] == sizes
    for row in rows:  # the descendants of a node stand before it
        children = [other for other in rows if other["parent"] == row["node"]]
        assert 1 + sum(other["size"] for other in children) == row["size"]
    effects = {effect.node: effect.fall for effect in occlusion(run.saved, (left, right), 200).effects}
    assert {row["node"]: row["effect"] for row in rows if "effect" in row} == pytest.approx(effects, abs=1e-6)
    whole = probabilities(run.saved, Forest([left, right]))[0].tolist()
    assert list(rows[left.size - 1]["probabilities"].values()) == pytest.approx(whole, abs=1e-5)
    json.dumps(rows)


def test_unknown_labels_are_marked_in_explanations() -> None:
    found = served(runs.listops().folder)
    rows = nodes_of(found.explain(found.read("(MAX 1 zebra)"), occlude=False))
    assert [row["unknown"] for row in rows] == [False, True, False] and "effect" not in rows[0]


def test_equal_folder_names_are_told_apart(tmp_path: Path) -> None:
    source = runs.listops().folder
    for place in ("a/run", "b/run", "other"):
        shutil.copytree(source, tmp_path / place)
    models = open_models([tmp_path / "a/run", tmp_path / "b/run", tmp_path / "other"])
    assert list(models) == ["a/run", "b/run", "other"]
    with pytest.raises(ConfigurationError, match="twice"):
        open_models([tmp_path / "other", tmp_path / "a/../other"])
    assert chosen(models, None).name == "a/run" and chosen(models, "other").name == "other"
    with pytest.raises(UnknownModelError, match=r"got 'othr' \(nearest known: 'other'\)"):
        chosen(models, "othr")


def test_missing_runs_are_named() -> None:
    with pytest.raises(ModelFileError, match="no/such/run: expected the directory of a model or run, got no such"):
        open_models(["no/such/run"])
    with pytest.raises(ConfigurationError, match="at least one run"):
        open_models([])


def test_a_run_that_is_being_trained_says_so(tmp_path: Path) -> None:
    forest = Forest([Tree("f", [Tree(label)]) for label in "abab"])
    folder = runs.trained(tmp_path, forest, np.array([0, 1, 0, 1]), ("no", "yes"))
    assert served(folder).note == ""
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        assert served(folder).note == "still being trained; this is its model as of epoch 1"
        (folder / "metrics.jsonl").unlink()
        with pytest.raises(
            ModelFileError, match="expected a run of at least one epoch, got one before its first; wait"
        ):
            served(folder)
    finally:
        os.close(handle)
    with pytest.raises(ModelFileError, match="treefold train --resume"):
        served(folder)
