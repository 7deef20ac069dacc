import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from tests import runs
from tests.strategies import text_tree
from treefold import Forest, Tree, TreeClassifier
from treefold.analysis.explaining import Subject, beliefs, in_preorder, occlusion, probabilities, shares, without
from treefold.errors import ConfigurationError
from treefold.nn.heads import Classifier
from treefold.training.saving import SavedModel

TREE = Tree.parse("(MAX 4 (MIN 7 (MAX 1 2) _ 9) 3)")
PAIR = (Tree.parse("(and a (not b))"), Tree.parse("(or (and a b) c)"))


def plainly_without(tree: Tree, node: int) -> Tree:
    """The oracle: rebuild everything, by recursion."""
    count = -1

    def rebuild(part: Tree) -> Tree | None:
        nonlocal count
        children = [None if child is None else rebuild(child) for child in part.children]
        count += 1
        return None if count == node else Tree(part.label, children)

    result = rebuild(tree)
    assert result is not None
    return result


@given(text_tree)
def test_leaving_a_subtree_out_equals_the_plainest_recursion(tree: Tree) -> None:
    for node in range(tree.size - 1):
        assert without(tree, node) == plainly_without(tree, node)


@given(text_tree)
def test_notes_go_from_post_order_to_pre_order(tree: Tree) -> None:
    notes = [str(node.label) for node in tree.postorder()]
    assert in_preorder(tree, notes) == [str(node.label) for node in tree.preorder()]


def test_a_long_chain_is_no_problem() -> None:
    tree = Tree("7")
    for _ in range(30_000):
        tree = Tree("MAX", [tree])
    assert without(tree, 0).size == 30_000 and without(tree, 29_999).size == 1
    assert in_preorder(tree, ["leaf", *[""] * 30_000])[-1] == "leaf"


def test_the_root_cannot_be_left_out() -> None:
    with pytest.raises(ConfigurationError, match="expected a node below the root, from 0 to 7 in post-order, got 8"):
        without(TREE, TREE.size - 1)


@pytest.mark.parametrize("run", [runs.listops, runs.nodes], ids=["tree", "node"])
def test_the_belief_at_a_node_is_the_answer_about_its_subtree_alone(run: Callable[[], runs.Run]) -> None:
    saved = run().saved
    believed = beliefs(saved, TREE)
    assert [belief.label for belief in believed] == [node.label for node in TREE.postorder()]
    for belief, part in zip(believed, TREE.postorder(), strict=True):
        row = probabilities(saved, Forest([part]))[-1]
        assert belief.answer == saved.classes[int(row.argmax())] and belief.probability == pytest.approx(
            float(row.max())
        )
    assert str(believed[0]) == f"{believed[0].answer} {believed[0].probability:.2f}"


def test_of_a_pair_every_subtree_is_compared_with_the_whole_other_tree() -> None:
    saved = runs.lrt().saved
    left, right = PAIR
    pairs = [(part, right) for part in left.postorder()] + [(left, part) for part in right.postorder()]
    believed = beliefs(saved, PAIR)
    assert [belief.node for belief in believed] == list(range(left.size + right.size))
    for belief, pair in zip(believed, pairs, strict=True):
        row = probabilities(saved, Forest(pair))[0]
        assert belief.answer == saved.classes[int(row.argmax())] and belief.probability == pytest.approx(
            float(row.max())
        )


def test_the_belief_of_a_model_of_numbers_is_a_number() -> None:
    run = runs.numbers()
    saved = run.saved
    truth = np.array([float(name) for name in run.data.classes])[run.data.targets[run.data.splits["train"]]]
    for belief, part in zip(beliefs(saved, TREE), TREE.postorder(), strict=True):
        expected = float(saved.model(Forest([part]).batch()).detach()) * truth.std() + truth.mean()
        assert belief.answer == pytest.approx(expected, rel=1e-5) and belief.probability is None
        assert float(str(belief)) == pytest.approx(belief.answer, rel=1e-3)


def test_numbers_of_pairs_are_explained_too() -> None:
    saved = runs.similarities().saved
    left, right = PAIR
    pairs = [(part, right) for part in left.postorder()] + [(left, part) for part in right.postorder()]
    for belief, pair in zip(beliefs(saved, PAIR), pairs, strict=True):
        assert belief.answer == pytest.approx(float(probabilities(saved, Forest(pair))[0, 0]), rel=1e-5)
        assert isinstance(belief.answer, float) and 100 <= belief.answer <= 140 and belief.probability is None
    found = occlusion(saved, PAIR, top=1)
    whole = float(probabilities(saved, Forest(PAIR))[0, 0])
    node = found.effects[0].node
    other = (without(left, node), right) if node < left.size else (left, without(right, node - left.size))
    assert found.answer == pytest.approx(whole)
    assert found.effects[0].fall == pytest.approx(whole - float(probabilities(saved, Forest(other))[0, 0]), abs=1e-4)


@pytest.mark.parametrize(("run", "subject"), [(runs.listops, TREE), (runs.nodes, TREE), (runs.lrt, PAIR)])
def test_occlusion_is_how_much_the_probability_falls_without_a_subtree(
    run: Callable[[], runs.Run], subject: Subject
) -> None:
    saved = run().saved
    parts = subject if isinstance(subject, tuple) else (subject,)
    found = occlusion(saved, subject, top=100)
    nodes = [(which, node) for which, tree in enumerate(parts) for node in range(tree.size)]
    assert len(found.effects) == found.tried == found.possible == len(nodes) - len(parts)
    before = probabilities(saved, Forest(parts))[-1]
    assert (
        found.probability == pytest.approx(float(before.max())) and found.answer == saved.classes[int(before.argmax())]
    )
    for effect in found.effects:
        which, node = nodes[effect.node]
        variant = [plainly_without(tree, node) if place == which else tree for place, tree in enumerate(parts)]
        after = probabilities(saved, Forest(variant))[-1]
        assert effect.fall == pytest.approx(float((before - after)[before.argmax()]), abs=1e-6)
        assert effect.subtree == list(parts[which].postorder())[node]
    falls = [effect.fall for effect in found.effects]
    assert falls == sorted(falls, reverse=True) and occlusion(saved, subject, top=2).effects == found.effects[:2]


def test_of_large_trees_the_subtrees_nearest_to_the_root_are_tried_and_it_is_said() -> None:
    found = occlusion(runs.listops().saved, TREE, top=100, max_nodes=3)
    assert (found.tried, found.possible) == (3, TREE.size - 1)
    assert {str(effect.subtree) for effect in found.effects} == {str(child) for child in TREE.children}


def test_of_very_large_and_of_deep_trees_fewer_variants_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treefold.analysis.explaining._MOST_NODES", 300)
    assert (TREE.size, TREE.depth) == (9, 3) and occlusion(runs.listops().saved, TREE).tried == 300 // (9 + 30 * 3)
    monkeypatch.setattr("treefold.analysis.explaining._MOST_NODES", 1)
    assert occlusion(runs.listops().saved, TREE).tried == 1


def test_numbers_fall_or_rise_and_the_greatest_change_comes_first() -> None:
    saved = runs.numbers().saved
    found = occlusion(saved, TREE, top=3)
    changes = [abs(effect.fall) for effect in found.effects]
    assert changes == sorted(changes, reverse=True) and found.probability is None and isinstance(found.answer, float)
    node = found.effects[0].node
    difference = probabilities(saved, Forest([TREE]))[0, 0] - probabilities(saved, Forest([without(TREE, node)]))[0, 0]
    assert found.effects[0].fall == pytest.approx(float(difference), abs=1e-5)


def test_a_single_node_has_nothing_to_leave_out() -> None:
    assert occlusion(runs.listops().saved, Tree("7")).effects == ()


def test_explaining_leaves_the_model_as_it_was_and_speaks_json() -> None:
    saved = runs.listops().saved
    saved.model.train()
    try:
        facts = occlusion(saved, TREE, top=2).to_json()
        beliefs(saved, TREE)
        assert saved.model.training and all(module.training for module in saved.model.modules())
    finally:
        saved.model.eval()
    assert json.loads(json.dumps(facts)) == facts and list(facts["effects"][0]) == ["node", "subtree", "fall"]


def test_a_tree_for_a_model_of_pairs_is_an_error_and_the_other_way_round() -> None:
    with pytest.raises(ConfigurationError, match=r"the model expects a pair of trees, got 1; give \(left, right\)"):
        beliefs(runs.lrt().saved, PAIR[0])
    with pytest.raises(ConfigurationError, match="the model expects one tree, got 2; give a Tree"):
        occlusion(runs.listops().saved, (TREE, TREE))
    with pytest.raises(ConfigurationError, match="occlusion expects top to be an integer >= 1, got 0"):
        occlusion(runs.listops().saved, TREE, top=0)


PAGES = Forest([f"(page (h a) {'(p b) ' * (number % 5)}(p c))" for number in range(100)])
PAGE = Tree.parse("(page (h a) (p b) (p c b))")


def page_model(readout: str, **arguments: Any) -> SavedModel:
    model = TreeClassifier(state_size=4, epochs=2, hidden=(), readout=readout, random_state=0, **arguments)
    return model.fit(PAGES, ["few" if number % 5 < 2 else "many" for number in range(100)]).saved_


@pytest.mark.parametrize("readout", ["mean", "max", "sum", "root+mean+max"])
def test_the_shares_of_nodes_add_up_to_the_score_of_a_linear_head(readout: str) -> None:
    saved = page_model(readout, wide=False)
    assert isinstance(saved.model.head, Classifier)
    head, found = saved.model.head.layers[-1], shares(saved, PAGE)
    assert isinstance(head, torch.nn.Linear)
    with torch.no_grad():
        encoding = saved.model.encoder(Forest([PAGE]))
        nodes = torch.cat([encoding.nodes, encoding.labels], dim=1) if encoding.labels is not None else encoding.nodes
        scores = saved.model(Forest([PAGE]))[0]
        best = int(scores.argmax())
        if readout == "mean":
            expected = nodes @ head.weight[best] / PAGE.size
            assert found == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-6)
        assert sum(found) + float(head.bias[best]) == pytest.approx(float(scores[best]), rel=1e-4)


def test_a_root_readout_gives_everything_to_the_root() -> None:
    root = shares(page_model("root", wide=False), PAGE)
    assert root[-1] != 0 and not any(root[:-1])


@pytest.mark.parametrize("readout", ["root", "root+mean+max", "attention"])
def test_beliefs_of_models_that_read_all_nodes_are_answers_about_subtrees_as_trees(readout: str) -> None:
    saved = page_model(readout)
    found = beliefs(saved, PAGE)
    rows = probabilities(saved, Forest(PAGE.postorder()))
    assert [belief.answer for belief in found] == [saved.classes[column] for column in rows.argmax(1).tolist()]
    assert [belief.probability for belief in found] == pytest.approx(rows.max(1).values.tolist())
    assert [belief.share for belief in found] == pytest.approx(shares(saved, PAGE))


def test_occlusion_names_the_labels_and_pairs_that_speak_for_the_answer() -> None:
    saved = page_model("root+mean+max")
    wide = saved.model.wide
    assert wide is not None
    wide.mix.copy_(torch.tensor([0.5, 2.0]))
    found = occlusion(saved, PAGE, top=3)
    column = saved.classes.index(str(found.answer))
    expected = [(text, 2.0 * share) for text, share in wide.contributions(PAGE, column)][:3]
    assert list(found.features) == expected and found.to_json()["features"][0] == list(expected[0])
