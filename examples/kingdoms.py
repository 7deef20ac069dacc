"""Glycans: which kingdom of life is a sugar chain from? python -m examples.kingdoms [FILE]

FILE is the table of glycans, or the folder of the package glycowork that has it, if it is not installed (`pip install --no-deps
glycowork`). `examples/glycans.py` reads it; glycans of one publication are all in training or all in the test.
"""

import argparse

from examples.glycans import make_glycans
from treefold import TreeClassifier, TreefoldError


def main(arguments: list[str] | None = None) -> None:
    """Train, test, and show which residues speak for an answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="the csv table, or the folder of glycowork")
    try:
        data = make_glycans(parser.parse_args(arguments).file, on_bad=lambda problem: None)
    except TreefoldError as problem:
        parser.error(str(problem))
    trees, kingdoms = list(data.forest), [data.classes[code] for code in data.targets]
    train, test = [*data.splits["train"], *data.splits["validation"]], data.splits["test"]
    print(f"{len(trees):,} glycans of {len(data.classes)} kingdoms; {data.made['split']}")
    model = TreeClassifier(random_state=0)
    model.fit([trees[place] for place in train], [kingdoms[place] for place in train])
    new, right = [trees[place] for place in test], [kingdoms[place] for place in test]
    print(f"{len(new):,} glycans of other publications: {100 * model.score(new, right):.1f} % are right\n")
    longest = max((tree for tree in new if tree.size <= 12), key=lambda tree: tree.size)
    print(model.explain(longest).draw())


if __name__ == "__main__":
    main()
