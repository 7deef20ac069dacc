"""What the page of the explorer asks for: drawings, edits, examples, random trees."""

import re
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import runs
from tests.service import pages
from tests.strategies import any_tree
from treefold import Tree
from treefold.analysis.explaining import occlusion
from treefold.errors import TreeError, TreefoldError
from treefold.service.app import create_app
from treefold.service.explorer import Edit, edited, random_tree
from treefold.service.models import open_models

FORMULA = "(or (and t f) (and (or f t) t))"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with pages.explorer() as found:
        yield found


def draw(address: str, *texts: str, models: tuple[str, ...] = ("good",), **more: Any) -> Any:
    return pages.ask(address, "page/draw", {"trees": texts, "models": models, **more})


def fills(svg: str) -> dict[int, str]:
    """Return the colours of the nodes that are drawn."""
    groups = [
        group for group in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}g") if "node" in group.attrib["class"]
    ]
    return {int(group.attrib["data-node"]): group[1].attrib["fill"] for group in groups}


# The page itself


def test_the_page_needs_nothing_from_outside_and_is_small(address: str) -> None:
    total = 0
    for path, kind in (("", "text/html"), ("page/app.js", "text/javascript"), ("page/style.css", "text/css")):
        with urllib.request.urlopen(address + path) as response:
            content = response.read()
            assert response.headers["Content-Type"] == f"{kind}; charset=utf-8"
            policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';") and "unsafe" not in policy
        links = set(re.findall(rb"https?://[^\s\"'%]+", content))
        assert links <= {b"http://www.w3.org/2000/svg"}
        total += len(content)
    assert total < 100_000


def test_the_script_never_makes_html_of_text() -> None:
    script = (pages.PAGE / "app.js").read_text(encoding="utf-8")
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert name not in script


def test_the_page_learns_what_the_models_are(address: str) -> None:
    facts = pages.ask(address, "page/facts")
    good, hasty, lrt = facts["models"]
    assert (good["name"], good["trees"], good["classes"], good["note"]) == ("good", 1, ["no", "yes"], "")
    assert sorted(good["labels"]) == ["and", "f", "or", "t"] and hasty["note"] == pages.TRAINING
    assert good["splits"] == {"train": 161, "test": 41, "all": 202} and good["targets"] == ["no", "yes"]
    assert (lrt["trees"], lrt["splits"]) == (2, None)
    assert {"sexpr", "xml", "python"} <= set(facts["formats"]) and "parquet" not in facts["formats"]


# Drawings


def test_nodes_have_the_colours_of_the_answers_about_their_subtrees(address: str) -> None:
    tree = Tree.parse(FORMULA)
    answer = draw(address, FORMULA)
    (drawing,) = answer["drawings"]
    assert fills(drawing["svg"]) == dict(enumerate(pages.colours("good", tree)))
    assert [node["prediction"] for node in drawing["nodes"]] == pages.predicted("good", tree)
    for node, row in zip(drawing["nodes"], pages.chances("good", tree), strict=True):
        assert list(node["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-6)
    assert drawing["prediction"] == pages.predicted("good", tree)[-1] and drawing["size"] == tree.size
    assert (answer["trees"], answer["unknown"], answer["differs"]) == ([FORMULA], [], [])
    assert "<style" not in drawing["svg"]  # which the policy of the page forbids


def test_the_second_layer_shows_what_the_answer_needs(address: str) -> None:
    (drawing,) = draw(address, FORMULA, layer="effects")["drawings"]
    expected = occlusion(pages.models()["good"].saved, Tree.parse(FORMULA), 99)
    assert {node["node"]: node["effect"] for node in drawing["nodes"] if "effect" in node} == pytest.approx(
        {effect.node: effect.fall for effect in expected.effects}, abs=1e-6
    )
    assert fills(drawing["svg"]) != fills(draw(address, FORMULA)["drawings"][0]["svg"])


def test_folded_nodes_hide_what_is_below_them(address: str) -> None:
    (drawing,) = draw(address, FORMULA, folded=[2])["drawings"]
    assert sorted(fills(drawing["svg"])) == [2, 3, 4, 5, 6, 7, 8]
    assert 'class="rest" data-node="2" data-hidden="2"' in drawing["svg"]
    assert len(drawing["nodes"]) == 9  # the list has all


def test_two_models_are_compared_where_they_begin_to_disagree(address: str) -> None:
    tree = Tree.parse(f"(or {FORMULA} {pages.disputed()})")
    answer = draw(address, str(tree), models=("good", "hasty"))
    assert [drawing["model"] for drawing in answer["drawings"]] == ["good", "hasty"]
    expected = pages.first_differences(tree)
    assert answer["differs"] == expected and expected
    assert fills(answer["drawings"][1]["svg"]) == dict(enumerate(pages.colours("hasty", tree)))


def test_pairs_are_drawn_side_by_side(address: str) -> None:
    answer = draw(address, "(not a)", "(or a b)", models=("lrt",))
    assert [node["tree"] for node in answer["drawings"][0]["nodes"]] == [0, 0, 1, 1, 1]
    assert answer["trees"] == ["(not a)", "(or a b)"]
    edit = {"node": 3, "do": "label", "label": "c"}
    assert draw(address, "(not a)", "(or a b)", models=("lrt",), edit=edit)["trees"] == ["(not a)", "(or a c)"]


def test_large_trees_are_folded_and_a_node_that_is_asked_for_is_drawn(address: str) -> None:
    text = "t"
    for _ in range(1500):
        text = f"(and {text} f)"
    (drawing,) = draw(address, text)["drawings"]
    drawn = set(fills(drawing["svg"]))
    assert drawing["size"] == 3001 and len(drawn) < 202 and 0 not in drawn
    assert {node["node"] for node in drawing["nodes"]} == drawn  # a list of all would be long
    lowest = min(drawn)
    more = draw(address, text, unfold=lowest)["drawings"][0]
    assert set(fills(more["svg"])) == drawn | set(range(lowest - 60, lowest))
    answer = draw(address, text, focus=0)
    assert 0 in fills(answer["drawings"][0]["svg"]) and answer["focus"] == 0


def test_unknown_labels_are_named(address: str) -> None:
    answer = draw(address, '(and t "<b>")')
    assert answer["unknown"] == ["<b>"]
    assert [node["unknown"] for node in answer["drawings"][0]["nodes"]] == [False, True, False]


def test_other_formats_become_trees_and_edits_turn_them_into_expressions(address: str) -> None:
    answer = draw(address, "<and><t/><f/></and>", format="xml")
    assert answer["trees"] == ["(and t f)"]
    edit = {"node": 1, "do": "label", "label": "two words"}
    assert draw(address, "<and><t/><f/></and>", format="xml", edit=edit)["trees"] == ['(and t "two words")']


BOMB = '<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]><a>&c;</a>'


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"trees": ["(and t"]}, "expected ')'"),
        ({"trees": [BOMB], "format": "xml"}, "expected"),
        ({"trees": ["t"], "format": "xmll"}, "nearest known: 'xml'"),
        ({"trees": ["t"], "models": ["godo"]}, "nearest known: 'good'"),
        ({"trees": ["t", "f"]}, "one tree"),
        ({"trees": ["t"], "edit": {"node": 7, "do": "delete"}}, "number of a node"),
        ({"trees": ["t"], "edit": {"node": 0, "do": "delete"}}, "below the root"),
        ({"trees": ["(and t f)"], "edit": {"node": 1, "do": "swap"}}, "sibling to its right"),
        ({"trees": ["(and " + "t " * 10_000 + ")"]}, "at most 10,000 nodes, got 10,001"),
        ({"trees": ["t"], "layers": "x"}, "layers"),
    ],
)
def test_bad_requests_say_what_was_expected(address: str, more: dict[str, Any], message: str) -> None:
    answer = pages.ask(address, "page/draw", {"models": ["good"], **more})
    assert answer["status"] in (404, 422) and message in answer["error"]["message"]


# Edits


def plainly_edited(tree: Tree, edit: Edit) -> tuple[Tree | None, list[int]]:
    """Edit a small tree recursively; return it with the old numbers of its nodes in post-order."""
    count = 0

    def visit(node: Tree) -> tuple[int, Any, list[Any]]:
        nonlocal count
        below = [None if child is None else visit(child) for child in node.children]
        count += 1
        return count - 1, node.label, below

    def change(node: Any) -> None:
        places = [place for place, child in enumerate(node[2]) if child is not None]
        for index, place in enumerate(places):
            if node[2][place][0] != edit.node:
                change(node[2][place])
            elif edit.do == "delete":
                del node[2][place]
                return
            elif edit.do == "swap" and index + 1 < len(places):
                other = places[index + 1]
                node[2][place], node[2][other] = node[2][other], node[2][place]
                return

    def build(node: Any) -> Tree:
        children = [None if child is None else build(child) for child in node[2]]
        order.append(node[0])
        return Tree(edit.label if edit.do == "label" and node[0] == edit.node else node[1], children)

    order: list[int] = []
    whole = visit(tree)
    if edit.do != "label":
        change(whole)
    return build(whole), order


@given(any_tree, st.data())
def test_edits_equal_the_plainest_recursion_and_nodes_keep_track_of_their_numbers(
    tree: Tree, data: st.DataObject
) -> None:
    node = data.draw(st.integers(0, tree.size - 1))
    edit = Edit(node=node, do=data.draw(st.sampled_from(["label", "delete", "swap"])), label="new")
    try:
        (found,), moved, changed = edited((tree,), edit)
    except TreeError as problem:
        assert re.search(r"got the (root|last one)", str(problem))
        return
    expected, order = plainly_edited(tree, edit)
    assert found == expected
    new = {old: place for place, old in enumerate(order)}
    assert [moved(old) for old in range(tree.size)] == [new.get(old) for old in range(tree.size)]
    parents = {child: number for number, below in _children(tree).items() for child in below}
    assert changed == new[parents[node] if edit.do == "delete" else node]


def _children(tree: Tree) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    stack: list[int] = []
    for number, node in enumerate(tree.postorder()):
        below = sum(child is not None for child in node.children)
        found[number] = stack[len(stack) - below :]
        stack[len(stack) - below :] = [number]
    return found


def test_the_answer_after_an_edit_is_that_about_the_new_tree_and_folds_move_along(address: str) -> None:
    answer = draw(address, FORMULA, edit={"node": 2, "do": "swap"}, folded=[2], focus=2)
    swapped = Tree.parse("(or (and (or f t) t) (and t f))")
    assert answer["trees"] == [str(swapped)] and answer["folded"] == [7] and answer["focus"] == 7
    assert [node["prediction"] for node in answer["drawings"][0]["nodes"]] == pages.predicted("good", swapped)


def test_a_vector_is_replaced_by_a_vector() -> None:
    trees = (Tree("f", [Tree((0.5, 1.0))]),)
    assert str(edited(trees, Edit(node=0, do="label", label="[2 3]"))[0][0]) == "(f [2.0 3.0])"
    with pytest.raises(TreefoldError):
        edited(trees, Edit(node=0, do="label", label="[2"))


# Examples


def test_examples_are_those_of_the_split_with_the_answers_of_the_model(address: str) -> None:
    found = pages.ask(address, "page/examples?model=hasty&split=test")
    data = pages.formulas()
    expected = []
    for number in data.splits["test"].tolist():
        tree = data.forest[number]
        expected.append((number, [str(tree)], data.classes[data.targets[number]], pages.predicted("hasty", tree)[-1]))
    assert [(e["number"], e["trees"], e["target"], e["prediction"]) for e in found["examples"]] == expected
    assert (found["of"], found["judged"], found["found"]) == (41, 41, 41)
    assert found["right"] == sum(target == prediction for *_, target, prediction in expected) < 41


@pytest.mark.parametrize(
    ("query", "keeps"),
    [
        ("answer=right", lambda e: e["target"] == e["prediction"]),
        ("answer=wrong", lambda e: e["target"] != e["prediction"]),
        ("target=no", lambda e: e["target"] == "no"),
        ("min_size=4&max_size=6", lambda e: 4 <= e["size"] <= 6),
        ("max_depth=1", lambda e: e["depth"] <= 1),
        ("min_depth=2&answer=wrong&target=no", lambda e: e["depth"] >= 2 and e["target"] == "no" != e["prediction"]),
    ],
)
def test_filters_keep_the_right_examples(address: str, query: str, keeps: Any) -> None:
    everything = pages.ask(address, "page/examples?model=hasty&split=test")["examples"]
    found = pages.ask(address, f"page/examples?model=hasty&split=test&{query}")
    assert found["examples"] == [example for example in everything if keeps(example)]
    assert 0 < found["found"] < 41


def test_of_many_examples_an_even_choice_is_judged_and_fifty_are_sent(address: str) -> None:
    found = pages.ask(address, "page/examples?model=good&split=train")
    assert found["judged"] == found["found"] == 161 and len(found["examples"]) == 50
    assert pages.ask(address, "page/examples?model=good&number=7")["trees"] == [str(pages.formulas().forest[7])]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("model=lrt", "start the service with --data"),
        ("model=good&split=tset", "nearest known: 'test'"),
        ("model=good&number=202", "from 0 to 201"),
        ("model=other", "'good'"),
    ],
)
def test_bad_questions_about_examples_say_what_was_expected(address: str, query: str, message: str) -> None:
    answer = pages.ask(address, f"page/examples?{query}")
    assert answer["status"] in (404, 422) and message in answer["error"]["message"]


def test_examples_of_numbers_come_by_their_errors_and_those_of_nodes_by_their_roots() -> None:
    numbers, nodes, lrt = runs.numbers(), runs.nodes(), runs.lrt()
    models = open_models([numbers.folder, nodes.folder, lrt.folder])
    data = {"numbers": numbers.data, "nodes": nodes.data, "lrt": lrt.data}
    with pages.running(create_app(models, data=data)) as address:
        far = pages.ask(address, "page/examples?model=numbers&answer=wrong")["examples"]
        near = pages.ask(address, "page/examples?model=numbers&answer=right")["examples"]
        roots = pages.ask(address, "page/examples?model=nodes")["examples"]
        pairs = pages.ask(address, "page/examples?model=lrt")["examples"]
        drawn = pages.ask(address, "page/draw", {"trees": far[0]["trees"], "models": ["numbers"]})
        both = pages.ask(address, "page/draw", {"trees": roots[0]["trees"], "models": ["nodes", "numbers"]})
    errors = [example["error"] for example in far]
    assert errors == sorted(errors, reverse=True) and [e["error"] for e in near] == errors[::-1]
    saved = models["numbers"]
    for example in far[:3]:
        (answer,) = saved.answers([(Tree.parse(example["trees"][0]),)])
        assert example["error"] == pytest.approx(abs(answer["prediction"] - float(example["target"])))
    assert (
        drawn["drawings"][0]["headline"].startswith("answer: ")
        and "probability" not in drawn["drawings"][0]["nodes"][0]
    )
    tree = Tree.parse(roots[0]["trees"][0])
    (of_nodes,) = models["nodes"].answers([(tree,)])
    assert [node["prediction"] for node in both["drawings"][0]["nodes"]] == of_nodes["prediction"]
    assert both["differs"] == []  # a class and a number are not compared
    for example in roots[:5]:
        (answer,) = models["nodes"].answers([(Tree.parse(example["trees"][0]),)])
        start = nodes.data.forest.offsets[example["number"]]
        truth = nodes.data.node_targets
        assert truth is not None
        codes = truth[start : start + len(answer["prediction"])]
        wrong = np.mean(
            [nodes.data.classes[code] != own for code, own in zip(codes, answer["prediction"], strict=True)]
        )
        assert example["prediction"] == answer["prediction"][-1] and example["error"] == pytest.approx(wrong)
    assert all(len(example["trees"]) == 2 for example in pairs)


# Random trees


def test_random_trees_come_from_the_generator_the_data_or_the_labels(address: str) -> None:
    one, same, other = (pages.ask(address, f"page/random?model=lrt&seed={seed}") for seed in (1, 1, 2))
    assert one == same != other and len(one["trees"]) == 2 and one["from"] == "the generator of LRT"
    example = pages.ask(address, "page/random?model=good&seed=5")
    assert example["from"] == "the data set" and example["trees"][0] in map(str, pages.formulas().forest)
    with pages.running(_alone("good")) as bare:
        drawn = pages.ask(bare, "page/random?model=good&seed=5")
        labels = {node.label for node in Tree.parse(drawn["trees"][0]).preorder()}
        assert drawn["from"] == "the labels of the model" and labels <= {"and", "or", "t", "f"}
    with pages.running(_listops()) as listops:
        drawn = pages.ask(listops, "page/random?model=listops&seed=5")
        assert drawn["from"] == "the generator of ListOps" and 12 <= Tree.parse(drawn["trees"][0]).size <= 60


def _alone(name: str) -> Any:
    return create_app({name: pages.models()[name]})


def _listops() -> Any:
    return create_app(open_models([runs.listops().folder]))


@given(st.integers(), st.integers(1, 9))
def test_random_trees_keep_to_labels_and_arity(seed: int, arity: int) -> None:
    tree = random_tree(Random(seed), ["and", "or"], ["a"], arity)
    for node in tree.preorder():
        assert node.label in (["a"] if node.is_leaf else ["and", "or"]) and len(node.children) <= arity
    assert 2 <= tree.size < 200
