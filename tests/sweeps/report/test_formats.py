"""Markdown, LaTeX and HTML of a report with a kind whose name each format must escape."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.sweeps.report.conftest import Written
from tests.sweeps.report.made_up import LISTOPS_SIZES, ODD, result, write
from treefold.sweeps.report import Document, compose
from treefold.sweeps.report.formats import _tex, to_html, to_latex, to_markdown
from treefold.sweeps.report.summary import gather

VOID = {"meta", "br"}


@pytest.fixture(scope="module")
def document(written: Written) -> Document:
    return written.document


class Tags(HTMLParser):
    """Checks that tags close in order, and collects attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.rows: dict[str, int] = {}
        self.section = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.section = dict(attrs).get("id") or self.section if tag == "section" else self.section
        if tag == "tr":
            self.rows[self.section] = self.rows.get(self.section, 0) + 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def tags(document: Document) -> Tags:
    parser = Tags()
    parser.feed(to_html(document))
    parser.close()
    return parser


def test_the_page_is_well_formed_and_shows_odd_names_word_for_word(tags: Tags) -> None:
    assert not tags.open
    assert ODD in tags.text
    assert not any(tag == "b" for tag, _, _ in tags.attributes)


def test_the_page_points_nowhere_outside(document: Document, tags: Tags) -> None:
    text = to_html(document)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)|<script|<link|<iframe|<img", text)
    links = [value for _, name, value in tags.attributes if name in ("href", "src", "xlink:href")]
    assert links and all(link.startswith("#") for link in links)
    ids = [value for _, name, value in tags.attributes if name == "id"]
    assert len(ids) == len(set(ids)) and {link[1:] for link in links} <= set(ids)


def test_figures_of_the_page_have_words_for_those_who_cannot_see_them(document: Document, tags: Tags) -> None:
    labels = [value for tag, name, value in tags.attributes if (tag, name) == ("svg", "aria-label")]
    assert labels == [figure.description for figure in document.figures]
    assert all("%" in label for label in labels)


def test_markdown_tables_have_as_many_cells_in_every_row(document: Document) -> None:
    blocks = [block for block in to_markdown(document).split("\n\n") if block.startswith("| ")]
    widths = [{len(re.findall(r"(?<!\\)\|", line)) - 1 for line in block.splitlines()} for block in blocks]
    assert widths == [{len(table.head[-1])} for table in document.tables]
    assert [len(block.splitlines()) - 2 for block in blocks] == [len(table.rows) for table in document.tables]


def test_markdown_names_a_file_for_every_figure(document: Document) -> None:
    named = re.findall(r"\]\(([^)]+)\)", to_markdown(document))
    assert named == [f"{figure.name}.png" for figure in document.figures]


def test_latex_environments_and_braces_are_balanced(document: Document) -> None:
    text = to_latex(document)
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    bare = re.sub(r"\\.", "", text.replace(r"\\", ""))  # without what is escaped
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0


def test_latex_rows_have_as_many_cells_as_the_table_has_columns(document: Document) -> None:
    bodies = re.findall(r"\\begin\{tabular\}\{@\{\}(\w+)@\{\}\}\n(.*?)\\end\{tabular\}", to_latex(document), re.DOTALL)
    assert len(bodies) == len(document.tables)
    for columns, body in bodies:
        for line in body.splitlines():
            if line.endswith(r"\\"):
                spans = [int(span) for span in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                assert len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans) - len(spans) == len(columns)


def test_latex_specials_are_escaped() -> None:
    assert _tex("a_b & 5% #1 $x$ {y} ~ ^ \\") == (
        r"a\_b \& 5\% \#1 \$x\$ \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert _tex("✓ +0.24 ✗ −0.33 –") == r"\checkmark{} +0.24 $\times$ $-$0.33 --"


def test_the_facts_count_runs_and_add_up_hours(tmp_path: Path) -> None:
    lines = [result("g", "Sum", size, seed=seed, seconds=900.0) for size in (3, 5) for seed in range(4)]
    lines[0] = {**lines[0], "seconds": 9000.0, "processor_seconds": 900.0}  # it was paused for most of the time
    facts = dict(compose(gather([write(tmp_path, lines)]), figures=False).facts)
    assert facts == {
        "finished runs": "8",
        "configurations": "2",
        "seeds for each": "4",
        "hours of training": "2.0",
    }


def test_the_page_has_a_row_for_each_configuration(tags: Tags) -> None:
    assert tags.rows == {"results": 1 + len(LISTOPS_SIZES) + 1 + 6}


def test_the_conclusion_names_the_best_of_each_grid(tmp_path: Path) -> None:
    lines = [result("g", "Sum", 5, validation=0.9), result("g", "B", 6, 2, validation=0.8), result("h", "A", 4, 2)]
    made = compose(gather([write(tmp_path, lines)]), figures=False)
    assert made.title == "Results of g, h"
    assert made.conclusion == (
        "Best on validation: g, Sum: accuracy 90.00 (–) % on validation, 79.00 (–) % on the test set; "
        "h, A: accuracy 80.00 (–) % on validation, 79.00 (–) % on the test set."
    )
    assert [found.file for found in made.bests] == ["best-g.toml", "best-h.toml"]
