import random

import pytest

from treefold import Tree
from treefold.demo import DIGITS, distinct_formulas, evaluate, formula, main


def plain_value(tree: Tree) -> int:
    operands = [plain_value(child) for child in tree.children if child is not None]
    if tree.label == "ADD":
        return sum(operands) % 10
    if tree.label == "MIN":
        return min(operands)
    return max(operands) if tree.label == "MAX" else int(str(tree.label))


def test_formulas_have_the_values_of_plain_recursion() -> None:
    rng = random.Random(0)
    for tree in (formula(rng) for _ in range(200)):
        assert evaluate(tree) == [plain_value(node) for node in tree.postorder()]
        assert tree.depth <= 3 and {str(node.label) for node in tree.preorder() if node.is_leaf} <= set(DIGITS)


def test_formulas_are_distinct_and_the_same_for_a_seed() -> None:
    trees = distinct_formulas(500, seed=3)
    assert len(set(trees)) == 500 and trees == distinct_formulas(500, seed=3) != distinct_formulas(500, seed=4)


def test_the_demo_shows_progress_and_what_was_learned(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--trees", "200", "--epochs", "2"])
    shown = capsys.readouterr().out
    assert shown.count("epoch ") == 2 and "Always guessing" in shown and "├── " in shown
    main(["--trees", "200", "--epochs", "2"])
    assert [line[:36] for line in capsys.readouterr().out.split("\n")] == [line[:36] for line in shown.split("\n")]


def test_settings_that_cannot_be_end_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--trees", "0"])
    assert caught.value.code == 2
    assert "the demo expects trees to be an integer >= 1, got 0" in capsys.readouterr().err
