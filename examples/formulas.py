"""Boolean formulas: is it true? Train on small formulas, test on larger ones: python -m examples.formulas

The labels are operators and constants. What a formula says can only be found by computing it from the leaves up.
"""

import random

from treefold import Tree, TreeClassifier

ARITY = {"and": (2, 4), "or": (2, 4), "xor": (2, 4), "not": (1, 1)}


def formula(rng: random.Random, inner: int) -> Tree:
    """Draw a formula of some operators; each takes the place of a leaf of those before it."""
    kinds = ["leaf"]
    places: list[list[int]] = [[]]
    leaves = [0]
    for _ in range(inner):
        place = leaves.pop(rng.randrange(len(leaves)))
        kinds[place] = rng.choice(list(ARITY))
        new = range(len(kinds), len(kinds) + rng.randint(*ARITY[kinds[place]]))
        places[place] = list(new)
        leaves += new
        kinds += ["leaf"] * len(new)
        places += [[] for _ in new]
    trees = [Tree(rng.choice("01")) for _ in kinds]
    for place in range(len(kinds) - 1, -1, -1):  # children come after their parents
        if places[place]:
            trees[place] = Tree(kinds[place], [trees[child] for child in places[place]])
    return trees[0]


def truth(tree: Tree) -> str:
    """Compute the value of a formula.

    >>> truth(Tree.parse("(xor 1 (not 0) (and 1 1))"))
    'true'
    """
    values: list[int] = []
    for node in tree.postorder():
        count = len(node.children)
        below = [values.pop() for _ in range(count)]
        match node.label:
            case "and":
                values.append(min(below))
            case "or":
                values.append(max(below))
            case "xor":
                values.append(sum(below) % 2)
            case "not":
                values.append(1 - below[0])
            case constant:
                values.append(int(str(constant)))
    return "true" if values[0] else "false"


def main() -> None:
    """Train, and measure formulas of sizes that training did not have."""
    rng = random.Random(0)
    small = [formula(rng, rng.randint(1, 12)) for _ in range(6000)]
    model = TreeClassifier(random_state=0).fit(small, [truth(tree) for tree in small])
    print("trained on 6,000 formulas of 1 to 12 operators")
    for least, most in ((1, 12), (13, 25), (26, 50), (51, 100)):
        new = [formula(rng, rng.randint(least, most)) for _ in range(1000)]
        score = model.score(new, [truth(tree) for tree in new])
        print(f"{least:>3} to {most:>3} operators: {100 * score:5.1f} % of 1,000 new formulas are right")
    print()
    print(model.explain("(xor (and 1 (not 0)) (or 0 0 1) 1)").draw())


if __name__ == "__main__":
    main()
