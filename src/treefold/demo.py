"""The demonstration: a small Hosvd-LSTM learns to calculate, from the results of whole formulas alone."""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from treefold.cells import LeafLSTM, PerLabel, TreeLSTM
from treefold.encoder import TreeEncoder
from treefold.errors import TreefoldError, require_positive
from treefold.forest import Forest
from treefold.labels import Thermometer
from treefold.models import Classifier, TreeModel
from treefold.tree import Tree

DIGITS = [str(digit) for digit in range(10)]
OPERATIONS: dict[str, Callable[[list[int]], int]] = {"MIN": min, "MAX": max, "ADD": lambda operands: sum(operands) % 10}


def evaluate(tree: Tree) -> list[int]:
    """Return the value of every subtree, in post-order.

    >>> evaluate(Tree.parse("(ADD 7 (MAX 1 5))"))
    [7, 1, 5, 5, 2]
    """
    values: dict[int, int] = {}
    result = []
    for node in tree.postorder():
        operands = [values[id(child)] for child in node.children if child is not None]
        values[id(node)] = OPERATIONS[str(node.label)](operands) if operands else int(str(node.label))
        result.append(values[id(node)])
    return result


def formula(rng: random.Random, depth: int = 0) -> Tree:
    """Draw a formula of at most three nested operations with two or three operands."""
    if depth == 3 or (depth > 0 and rng.random() < 0.6):
        return Tree(rng.choice(DIGITS))
    operands = [formula(rng, depth + 1) for _ in range(rng.choice([2, 3]))]
    return Tree(rng.choice(list(OPERATIONS)), operands)


def distinct_formulas(count: int, seed: int) -> list[Tree]:
    """Draw formulas that are all different, so that no test formula stands in the training set."""
    rng = random.Random(seed)
    found: dict[Tree, None] = {}
    while len(found) < count:
        found[formula(rng)] = None
    return list(found)


def hosvd_lstm(state_size: int, rank: int) -> TreeModel:
    """Build the paper's model: a Tucker Tree-LSTM cell for every operation, thermometer digits, an MLP of two layers of 20."""
    cells = {name: TreeLSTM("tucker", state_size=state_size, arity=3, rank=rank) for name in OPERATIONS}
    cell = PerLabel(cells, leaf=LeafLSTM(label_size=10, state_size=state_size))
    return TreeModel(TreeEncoder(cell, Thermometer(DIGITS)), Classifier(in_size=state_size, classes=10))


def batches(count: int, size: int, rng: random.Random) -> Iterator[Sequence[int]]:
    """Deal numbers into shuffled batches."""
    order = list(range(count))
    rng.shuffle(order)
    return (order[start : start + size] for start in range(0, count, size))


def predictions(model: TreeModel, forest: Forest) -> torch.Tensor:
    """Return the predicted value of each tree."""
    with torch.no_grad():
        chunks = [model(forest.batch(slice(start, start + 500))).argmax(1) for start in range(0, len(forest), 500)]
    return torch.cat(chunks)


def beliefs(model: TreeModel, tree: Tree) -> list[int]:
    """Return the value that the model reads off every subtree, in post-order."""
    with torch.no_grad():
        nodes = model.encoder(Forest([tree]).batch()).nodes
        assert isinstance(model.head, Classifier)
        values: list[int] = model.head.layers(nodes).argmax(1).tolist()
    return values


def drawing(model: TreeModel, tree: Tree) -> str:
    """Draw a formula with the value and the model's belief at every operation."""
    truth = dict(zip(map(id, tree.postorder()), zip(evaluate(tree), beliefs(model, tree), strict=True), strict=True))
    notes = []
    for node in tree.preorder():
        value, belief = truth[id(node)]
        verdict = "✓" if value == belief else f"✗ model says {belief}"
        notes.append(f"= {value} {verdict}" if node.children else "")
    return tree.draw(notes=notes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, show the progress and what was learned."""
    parser = argparse.ArgumentParser(prog="python -m treefold.demo", description=__doc__)
    parser.add_argument("--trees", type=int, default=12_000, help="number of training formulas (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="times that each is seen (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="the same seed gives the same result (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        require_positive("the demo", trees=options.trees, epochs=options.epochs)
    except TreefoldError as problem:
        parser.error(str(problem))
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the tensors of a small batch are too small to share

    trees = distinct_formulas(options.trees + 2_000, options.seed)
    values = torch.tensor([evaluate(tree)[-1] for tree in trees])
    forest = Forest(trees)
    train, test = forest[: options.trees], forest[options.trees :]
    train_values, test_values = values[: options.trees], values[options.trees :]
    model = hosvd_lstm(state_size=16, rank=3)
    print(
        f"{len(train)} formulas to learn from, {len(test)} others to test on, for example:\n  {trees[0]} = {values[0]}"
    )
    print(
        f"A Hosvd-LSTM with {sum(p.numel() for p in model.parameters())} parameters sees the results of whole formulas only.\n"
    )

    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1e-4)
    steps = options.epochs * -(-len(train) // 100)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=0.01, total_steps=steps)
    rng = random.Random(options.seed)
    start = time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        total = 0.0
        for chosen in batches(len(train), 100, rng):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(train.batch(chosen)), train_values[chosen])
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total += float(loss.detach()) * len(chosen)
        accuracy = float((predictions(model, test) == test_values).double().mean())
        elapsed = time.perf_counter() - start
        bar = "█" * round(30 * accuracy)
        print(
            f"epoch {epoch:2}  loss {total / len(train):5.3f}  test {accuracy:6.1%}  {bar:<30}  {elapsed:4.0f} s",
            flush=True,
        )

    guess = Counter(train_values.tolist()).most_common(1)[0][1] / len(train)
    print(f"\nAlways guessing the most frequent result would be right in {guess:.1%}.")
    example = max(test[:200], key=lambda tree: (tree.depth, tree.size <= 16, tree.size))
    print("What the model reads off every part of a formula that it has not seen:\n")
    print(drawing(model, example))
    print("\nNext: README.md has ten lines of Python for your own trees; docs/ has the mathematics.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; nothing was written")
