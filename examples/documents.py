"""Documents: which package is a page of HTML about? python -m examples.documents

The pages are those that `pydoc` writes about the classes of Python's standard library. Their tags and words are read; links,
which name the package, are not.
"""

import importlib
import inspect
import pkgutil
import pydoc
import warnings
from collections import Counter
from types import ModuleType

from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]

from treefold import Tree, TreeClassifier
from treefold.data.readers.markup import element_tree
from treefold.data.readers.stream import optional_package

PACKAGES = (
    "asyncio",
    "concurrent",
    "ctypes",
    "email",
    "http",
    "importlib",
    "logging",
    "multiprocessing",
    "unittest",
    "xml",
)


def pages() -> tuple[list[Tree], list[str]]:
    """Return the pages about all classes of the packages, as trees, and the packages."""
    trees: list[Tree] = []
    about: list[str] = []
    for package in PACKAGES:
        found: dict[str, type] = {}
        for module in _modules(package):
            for name, value in vars(module).items():
                if inspect.isclass(value) and value.__module__ == module.__name__:
                    found[f"{module.__name__}.{name}"] = value
        for name in sorted(found):
            trees.append(page_tree(found[name]))
            about.append(package)
    return trees, about


def page_tree(about: type) -> Tree:
    """Return the page about a class as a tree of tags and words, without links."""
    writer = pydoc.HTMLDoc()
    html = optional_package("lxml.html", extra="xml")
    return element_tree(html.fromstring(writer.page("", writer.document(about, about.__name__))), text=True)


def _modules(package: str) -> list[ModuleType]:
    names = [
        package,
        *(each.name for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")),
    ]
    modules = []
    for name in names:
        if name.endswith("__main__"):  # importing it runs a program
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                modules.append(importlib.import_module(name))
        except ImportError:  # a module for another system
            continue
    return modules


def main() -> None:
    """Train on three quarters of the pages, test on the rest."""
    trees, about = pages()
    print(f"{len(trees):,} pages of {sum(tree.size for tree in trees):,} elements and texts")
    train, test, train_about, test_about = train_test_split(
        trees, about, test_size=0.25, random_state=0, stratify=about
    )
    model = TreeClassifier(random_state=0).fit(train, train_about)
    most = Counter(test_about).most_common(1)[0][1]
    print(f"{len(test):,} new pages: {100 * model.score(test, test_about):.1f} % are right")
    print(f"(the most frequent package alone: {100 * most / len(test):.1f} %)")


if __name__ == "__main__":
    main()
