"""Sentences: positive or negative? python -m examples.sentiment FOLDER

FOLDER has the files train.txt, dev.txt and test.txt of the Stanford Sentiment Treebank (trees in the PTB format), which every
phrase gives a class from 0 to 4. `NodeClassifier` learns the classes of all phrases. Word vectors are not used here;
experiments/real has models that do.
"""

import argparse
from pathlib import Path

from treefold import NodeClassifier, Tree
from treefold.data.readers.brackets import sst_tree

SHOWN = "(2 (2 (2 The) (2 film)) (3 (2 (2 is) (1 (2 not) (1 dull))) (2 .)))"


def sentences(file: Path, most: int | None = None) -> tuple[list[Tree], list[tuple[str, ...]]]:
    """Return the sentences of a file, and the classes of all phrases of each."""
    lines = [sst_tree(line) for line in file.read_text(encoding="utf-8").splitlines()[:most] if line.strip()]
    return [tree for tree, _ in lines], [classes for _, classes in lines]


def main(arguments: list[str] | None = None) -> None:
    """Train on phrases, and measure those of the development set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder with train.txt and dev.txt")
    folder = parser.parse_args(arguments).folder
    for name in ("train.txt", "dev.txt"):
        if not (folder / name).is_file():
            parser.error(f"{folder}: expected a folder with {name}, got one without; name that of the treebank.")
    trees, classes = sentences(folder / "train.txt")
    new, right = sentences(folder / "dev.txt")
    print(f"{len(trees):,} sentences of {sum(tree.size for tree in trees):,} phrases")
    model = NodeClassifier(random_state=0).fit(trees, classes)
    found = model.predict(new)
    pairs = [(a, b) for each, said in zip(right, found, strict=True) for a, b in zip(each, said, strict=True)]
    print(
        f"all phrases of {len(new):,} new sentences: {100 * sum(a == b for a, b in pairs) / len(pairs):.1f} % are right"
    )
    roots = [(each[-1], said[-1]) for each, said in zip(right, found, strict=True)]
    print(f"whole sentences, five classes: {100 * sum(a == b for a, b in roots) / len(roots):.1f} %")
    clear = [(int(a) > 2, int(b) > 2) for a, b in roots if a != "2"]
    print(f"positive or negative: {100 * sum(a == b for a, b in clear) / len(clear):.1f} %\n")
    print(model.explain(sst_tree(SHOWN)[0]).draw())


if __name__ == "__main__":
    main()
