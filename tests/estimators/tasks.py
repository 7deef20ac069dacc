"""Small tasks whose answers are known without any model."""

import random
from typing import Any

from treefold import Tree

FAST: dict[str, Any] = {"state_size": 6, "hidden": (8,), "epochs": 4, "random_state": 0}


def draw(rng: random.Random, depth: int = 0) -> Tree:
    """Draw a tree of f and g with one or two children above leaves a and b."""
    if depth == 3 or (depth and rng.random() < 0.5):
        return Tree(rng.choice("ab"))
    return Tree(rng.choice("fg"), [draw(rng, depth + 1) for _ in range(rng.choice([1, 2]))])


def trees(count: int, seed: int = 0) -> list[Tree]:
    """Draw different trees."""
    rng = random.Random(seed)
    found: dict[Tree, None] = {}
    while len(found) < count:
        found[draw(rng)] = None
    return list(found)


def first_leaf(tree: Tree) -> str:
    """Return the label of the leftmost leaf."""
    return str(next(node.label for node in tree.postorder()))


def leaves(tree: Tree) -> int:
    """Count the leaves."""
    return sum(node.is_leaf for node in tree.postorder())


def kinds(tree: Tree) -> list[str]:
    """Say of each node, in post-order, whether it is a leaf, unary or binary."""
    return [["leaf", "one", "two"][len(node.children)] for node in tree.postorder()]
