"""The documentation as a site: `make docs` writes it to docs/_build/html."""

import importlib
import re
from pathlib import Path
from typing import Any

import treefold
from treefold.training.settings import describe_settings

HERE = Path(__file__).parent
REPOSITORY = "https://github.com/treefold/treefold/blob/main"

project = "treefold"
author = "the authors of treefold"
version = release = treefold.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "treefold"
html_show_sphinx = html_show_copyright = False
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]
highlight_language = "none"
default_role = "py:obj"  # a name in backticks is a link if it is known
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True
toc_object_entries = False  # which would be hundreds
autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
python_use_unqualified_type_names = True


def setup(app: Any) -> None:
    """Let Sphinx call the functions below."""
    app.connect("source-read", expand)
    app.connect("autodoc-process-docstring", link_names)
    app.connect(
        "autodoc-skip-member", lambda app, what, name, *_: True if name.endswith("_request") else None
    )  # sklearn's


def expand(app: Any, page: str, source: list[str]) -> None:
    """Fill in what the library itself knows, and link files outside of this folder to the repository."""
    text = source[0].replace("<!-- names -->", names()).replace("<!-- settings -->", settings())
    text = re.sub(r"<!-- modules: (\S+) -->", lambda match: modules(match[1]), text)

    def to_repository(match: re.Match[str]) -> str:
        target = ((HERE / page).parent / match[1]).resolve()
        inside = target.is_relative_to(HERE)
        return match[0] if inside else f"]({REPOSITORY}/{target.relative_to(HERE.parent).as_posix()})"

    source[0] = re.sub(r"\]\((\.\./[^)#\s]*)\)", to_repository, text)


def skip(app: Any, what: str, name: str, thing: Any, is_skipped: bool, options: Any) -> bool | None:
    """Leave out the methods that scikit-learn adds, and compiled functions."""
    return True if name.endswith("_request") or hasattr(thing, "py_func") else None


def modules(package: str) -> str:
    """Return a section for each module of a package, from its docstrings."""
    folder = Path(str(importlib.import_module(package).__file__)).parent
    names = [package, *(f"{package}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem[0] != "_")]
    return "\n".join(f"## {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n```\n" for name in names)


def names() -> str:
    """Return a table of the names of the package itself."""
    rows = []
    for name in treefold.__all__:
        thing = getattr(treefold, name)
        says = next(iter((thing.__doc__ or "").splitlines()), "") if callable(thing) else "The forms by name."
        says = says.replace(":math:", "").replace("``", "`")
        rows.append(f"| {{py:obj}}`{name} <{home(name)}>` | {says} |")
    return "\n".join(["| name | |", "|---|---|", *rows])


def home(name: str) -> str:
    """Return the whole name of something that the package itself exports."""
    thing = getattr(treefold, name)
    return f"{thing.__module__}.{thing.__qualname__}" if callable(thing) else f"treefold.nn.aggregators.{name}"


def settings() -> str:
    """Return a table of all settings for each group."""
    titles = {"": "Of a run", "model": "Of the model", "training": "Of training"}
    parts = []
    for group, title in titles.items():
        rows = [row for row in describe_settings() if row.group == group]
        parts += [f"## {title}", "", "| setting | default | meaning | when to change it |", "|---|---|---|---|"]
        parts += [f"| `{row.name}`: {row.values} | {row.default} | {row.meaning} | {row.when} |" for row in rows]
        parts.append("")
    return "\n".join(parts)


HOMES = {name: home(name) for name in treefold.__all__}


def link_names(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn names of the package in single backticks into links."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[number] = re.sub(
                r"(?<!`)`(\w+)`(?!`)",
                lambda match: f":py:obj:`{match[1]} <{HOMES[match[1]]}>`" if match[1] in HOMES else match[0],
                line,
            )
