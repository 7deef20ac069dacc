"""Programs: with which verb does the name of a function begin, say `get`, `is` or `close`? python -m examples.programs

The functions are read from the standard library of the Python that runs this, so figures depend a little on its version.
"""

import ast
import sysconfig
from collections import Counter
from pathlib import Path

from sklearn.model_selection import GroupShuffleSplit  # type: ignore[import-untyped]

from treefold import Tree, TreeClassifier
from treefold.data.readers.code import ast_tree

VERBS = (
    "add",
    "close",
    "check",
    "copy",
    "find",
    "format",
    "get",
    "is",
    "make",
    "parse",
    "read",
    "set",
    "visit",
    "write",
)
LEFT_OUT = {"test", "tests", "idle_test", "site-packages"}


def functions() -> tuple[list[Tree], list[str], list[str]]:
    """Return the functions that have one of the verbs, as trees without their name, with their verb and their file."""
    library = Path(sysconfig.get_paths()["stdlib"])
    trees: list[Tree] = []
    verbs: list[str] = []
    files: list[str] = []
    for file in sorted(library.rglob("*.py")):
        if LEFT_OUT & set(file.relative_to(library).parts):
            continue
        try:
            module = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):  # templates, and files of lib2to3's own tests
            continue
        for node in ast.walk(module):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                verb = node.name.strip("_").split("_")[0]
                if verb in VERBS:
                    node.name = "name"
                    trees.append(ast_tree(node))
                    verbs.append(verb)
                    files.append(str(file))
    return trees, verbs, files


def main() -> None:
    """Train on the functions of some files, test on those of others."""
    trees, verbs, files = functions()
    print(f"{len(trees):,} functions of {len(set(files))} files, {max(tree.size for tree in trees):,} nodes at most")
    # Functions of one file resemble each other: no file is in both parts.
    [(train, test)] = GroupShuffleSplit(1, test_size=0.25, random_state=0).split(trees, verbs, files)
    model = TreeClassifier(random_state=0)
    model.fit([trees[place] for place in train], [verbs[place] for place in train])
    new, right = [trees[place] for place in test], [verbs[place] for place in test]
    most = Counter(right).most_common(1)[0][1]
    print(f"{len(new):,} functions of files that it has not seen: {100 * model.score(new, right):.1f} % are right")
    print(f"(the most frequent of {len(VERBS)} verbs alone: {100 * most / len(right):.1f} %)")
    print("\nwhat was chosen for these trees:")
    for reason in model.reasons_:
        print(f"- {reason}")
    function = ast.parse("def name(self, path):\n    with open(path) as file:\n        return file.read()").body[0]
    print("\ndef name(self, path):\n    with open(path) as file:\n        return file.read()\n")
    chances = model.predict_proba([ast_tree(function)])[0]
    for place in chances.argsort()[::-1][:3]:
        print(f"{model.classes_[place]:<8} {chances[place]:.2f}")


if __name__ == "__main__":
    main()
