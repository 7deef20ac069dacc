"""Markdown, LaTeX and HTML of one report, whose kinds have names that each format must escape."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.sweeps.reporting.conftest import Written
from tests.sweeps.reporting.made_up import LISTOPS_SIZES, LRT_SIZES, ODD, result, write
from treefold.sweeps.reporting import Report, compose
from treefold.sweeps.reporting.latex import escape as latex_escape
from treefold.sweeps.reporting.latex import to_latex
from treefold.sweeps.reporting.markdown import to_markdown
from treefold.sweeps.reporting.page import to_html
from treefold.sweeps.reporting.records import gather
from treefold.sweeps.reporting.studies import studies_of
from treefold.sweeps.reporting.summary import configurations_of

VOID = {"meta", "br"}


@pytest.fixture(scope="module")
def report(written: Written) -> Report:
    return written.report


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
def tags(report: Report) -> Tags:
    parser = Tags()
    parser.feed(to_html(report))
    parser.close()
    return parser


def test_the_page_is_well_formed_and_shows_odd_names_word_for_word(tags: Tags) -> None:
    assert not tags.open
    assert ODD in tags.text
    assert not any(tag == "b" for tag, _, _ in tags.attributes)


def test_the_page_points_nowhere_outside(report: Report, tags: Tags) -> None:
    text = to_html(report)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)|<script|<link|<iframe|<img", text)
    links = [value for _, name, value in tags.attributes if name in ("href", "src", "xlink:href")]
    assert links and all(link.startswith("#") for link in links)
    ids = [value for _, name, value in tags.attributes if name == "id"]
    assert len(ids) == len(set(ids)) and {link[1:] for link in links} <= set(ids)


def test_the_page_has_a_row_for_each_configuration(tags: Tags) -> None:
    assert tags.rows == {
        "table-lrt": 2 + 6 + 1,
        "table-listops": 2 + 3 + 1,
        "table-beyond": 1 + 6 + 1,
        "all-lrt": 1 + len(LRT_SIZES),
        "all-listops": 1 + len(LISTOPS_SIZES),
    }


def test_figures_of_the_page_have_words_for_those_who_cannot_see_them(report: Report, tags: Tags) -> None:
    labels = [value for tag, name, value in tags.attributes if (tag, name) == ("svg", "aria-label")]
    assert labels == [figure.description for figure in report.figures]
    assert all("%" in label or "minutes" in label for label in labels)


def test_markdown_tables_have_as_many_cells_in_every_row(report: Report) -> None:
    blocks = [block for block in to_markdown(report).split("\n\n") if block.startswith("| ")]
    widths = [{len(re.findall(r"(?<!\\)\|", line)) - 1 for line in block.splitlines()} for block in blocks]
    assert widths == [{len(table.head[-1])} for table in report.tables]
    assert [len(block.splitlines()) - 2 for block in blocks] == [len(table.rows) for table in report.tables]


def test_markdown_names_a_file_for_every_figure(report: Report) -> None:
    named = re.findall(r"\]\(([^)]+)\)", to_markdown(report))
    assert named == [f"{figure.name}.png" for figure in report.figures]


def test_latex_environments_and_braces_are_balanced(report: Report) -> None:
    text = to_latex(report)
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


def test_latex_rows_have_as_many_cells_as_the_table_has_columns(report: Report) -> None:
    bodies = re.findall(r"\\begin\{tabular\}\{@\{\}(\w+)@\{\}\}\n(.*?)\\end\{tabular\}", to_latex(report), re.DOTALL)
    assert len(bodies) == len(report.tables)
    for columns, body in bodies:
        for line in body.splitlines():
            if line.endswith(r"\\"):
                spans = [int(span) for span in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                assert len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans) - len(spans) == len(columns)


def test_latex_specials_are_escaped() -> None:
    assert latex_escape("a_b & 5% #1 $x$ {y} ~ ^ \\") == (
        r"a\_b \& 5\% \#1 \$x\$ \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )
    assert latex_escape("✓ +0.24 ✗ −0.33 –") == r"\checkmark{} +0.24 $\times$ $-$0.33 --"


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


def test_the_verdict_counts_places_of_the_paper(tmp_path: Path) -> None:
    lines = [
        result("listops", "Sum", 25, validation=0.9, test=0.1),
        result("listops", "Full", 3, validation=0.1, test=None),
    ]
    verdict = compose(gather([write(tmp_path, lines)]), figures=False).verdict
    assert verdict == "At least as good as the paper in 1 of 3 values compared; its two tables hold 31."


def test_configurations_that_lose_their_place_are_listed_and_remarked_on(tmp_path: Path) -> None:
    lines = [result("listops", "Sum", 25), result("listops", "Sum", 25, training={"schedule": "cosine"})]
    made = compose(gather([write(tmp_path, lines)]), figures=False)
    (table,) = [table for table in made.tables if table.name == "table-beyond"]
    assert [row[0].text for row in table.rows] == ["Sum"] and "the others (1) stand under" in made.remarks[0]


def test_figures_of_grids_with_like_names_have_names_of_their_own(tmp_path: Path) -> None:
    data = [{"examples": 9, "nodes": 9, "crc32": number} for number in range(5)]
    names = ["A b", "a-b", "a-b-2", "木", "林"]
    lines = [result(name, "X", 4, 2, data=each) for name, each in zip(names, data, strict=True)]
    studies = studies_of(configurations_of(gather([write(tmp_path, lines)]).results))
    assert len({study.slug for study in studies}) == len(names) and studies[0].slug == "a-b"


def test_another_grid_joins_the_paper_s_where_the_data_are_the_same(tmp_path: Path) -> None:
    elsewhere = {"examples": 9, "nodes": 9, "crc32": 9}
    lines = [result("listops", "Sum", 25), result("beyond", "X", 4, 2), result("mine", "X", 4, 2, data=elsewhere)]
    studies = studies_of(configurations_of(gather([write(tmp_path, lines)]).results))
    assert [(study.title, study.kinds) for study in studies] == [("ListOps", ["Sum", "X"]), ("mine", ["X"])]
