"""The documentation: code of pages runs, drawings are those of the script, and the site builds without warnings."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import treefold
from tests.pages import PAGES, ROOT, blocks_of, run_page, run_python

WITH_CODE = [
    page
    for page in PAGES
    if page.name != "extending.md"  # which has tests of its own
    and any(block.language in ("python", "sh", "hidden") and not block.not_run for block in blocks_of(page))
]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def test_few_blocks_are_not_run() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language in ("python", "sh")]
    left_out = [block for block in blocks if block.not_run]
    assert len(left_out) <= 20 and len(blocks) > 4 * len(left_out)
    assert all(len(block.not_run) > 3 for block in left_out)
    assert not [block for page in PAGES for block in blocks_of(page) if block.language in ("bash", "shell", "py")]


def test_a_comment_that_is_not_what_is_printed_is_found() -> None:
    run_python("x = 2\nprint(x, 'é')  # 2 é: two\nprint('one two')  # one…", {}, "page")
    with pytest.raises(AssertionError, match=r"page: '3', got '2'"):
        run_python("print(2)  # 3", {}, "page")


def test_blocks_notes_and_hidden_code_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n<!-- hidden\nx = 1\n-->\n\n```python\nassert x == 1\n```\n\n    treefold --version\n\ntext\n\n"
        "```{toctree}\none\n```\n\n<!-- not run: why -->\n\n    treefold no\n\n<!-- file: a/b.toml -->\n```toml\nc = 1\n```\n"
    )
    found = [(block.language, block.text.strip(), block.not_run or block.file) for block in blocks_of(page)]
    assert found == [
        ("hidden", "x = 1", ""),
        ("python", "assert x == 1", ""),
        ("sh", "treefold --version", ""),
        ("{toctree}", "one", ""),
        ("sh", "treefold no", "why"),
        ("toml", "c = 1", "a/b.toml"),
    ]
    assert run_page(page, tmp_path)["x"] == 1
    assert (tmp_path / "a" / "b.toml").read_text() == "c = 1\n"


def test_the_drawings_are_those_of_the_script() -> None:
    spec = importlib.util.spec_from_file_location("drawings", ROOT / "docs" / "drawings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, svg in module.drawings().items():
        assert (ROOT / "docs" / "figures" / name).read_text(encoding="utf-8") == svg, "run python docs/drawings.py"


def test_the_site_builds_without_warnings_and_has_every_public_name(tmp_path: Path) -> None:
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason=f"the site is not built, because {package} is missing: make docs")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "html",
        str(ROOT / "docs"),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = (tmp_path / "api" / "index.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'href="\w+\.html#treefold\.[\w.]+" [^>]*><code[^>]*><span class="pre">(\w+)<', names))
    assert linked >= set(treefold.__all__) - {"AGGREGATORS"}
    settings = (tmp_path / "settings.html").read_text(encoding="utf-8")
    assert re.search(r"state_size.*The number of entries of a node.s state", settings, re.DOTALL)
