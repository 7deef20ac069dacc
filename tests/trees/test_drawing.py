"""Drawings: well-formed, no two boxes overlap, every visible node once, children from left to right, any label safe."""

import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import any_tree
from treefold import Forest, Tree
from treefold.errors import ConfigurationError, FileError, TreeError
from treefold.trees.drawing import draw_svg, html_page, html_table, label_text, shade

NS = "{http://www.w3.org/2000/svg}"
any_text = st.text(st.characters(exclude_categories=()), max_size=40)  # control characters and lone surrogates, too
TREE = Tree.parse("(MIN 2 _ (MAX 1 (f a b c) 3) (g (h i)))")


class Box(NamedTuple):
    kind: str
    number: int
    text: str
    title: str
    x: float
    y: float
    width: float
    height: float


def boxes(svg: str) -> list[Box]:
    found = []
    for group in ET.fromstring(svg).iter(f"{NS}g"):
        rect, title, text = group.find(f"{NS}rect"), group.find(f"{NS}title"), group.find(f"{NS}text")
        assert rect is not None and title is not None and text is not None
        place = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        kind = group.attrib["class"].split()[0]
        found.append(Box(kind, int(group.get("data-node", -1)), text.text or "", title.text or "", *place))
    return found


def nodes(svg: str) -> dict[int, Box]:
    found = [box for box in boxes(svg) if box.kind == "node"]
    assert len({box.number for box in found}) == len(found)
    return {box.number: box for box in found}


def overlapping(found: list[Box]) -> bool:
    rows: dict[float, list[Box]] = {}
    for box in found:
        rows.setdefault(box.y, []).append(box)
    tops = sorted(rows)
    for top, below in itertools.pairwise(tops):
        if max(box.y + box.height for box in rows[top]) > below:
            return True
    for row in rows.values():
        row.sort(key=lambda box: box.x)
        if any(one.x + one.width > other.x for one, other in itertools.pairwise(row)):
            return True
    return False


def numbered(tree: Tree) -> Iterator[tuple[int, Tree, list[int]]]:
    """The oracle: each node with its number in post-order and those of its children, by recursion."""

    def walk(part: Tree, start: int) -> Iterator[tuple[int, Tree, list[int]]]:
        below = []
        for child in part.children:
            if child is not None:
                yield from walk(child, start)
                start += child.size
                below.append(start - 1)
        yield start, part, below

    return walk(tree, 0)


@given(any_tree)
def test_every_node_is_drawn_once_over_its_children_which_stand_in_order(tree: Tree) -> None:
    svg = tree.to_svg()
    found = nodes(svg)
    assert not overlapping(boxes(svg)) and sorted(found) == list(range(tree.size))
    width, height = (float(ET.fromstring(svg).attrib[name]) for name in ("width", "height"))
    for box in boxes(svg):
        assert box.x >= 0 and box.x + box.width <= width and box.y >= 0 and box.y + box.height <= height
    for number, part, below in numbered(tree):
        assert found[number].title.split("\n")[0] == label_text(part.label)
        centres = [found[child].x + found[child].width / 2 for child in below]
        assert centres == sorted(set(centres))
        assert all(found[child].y > found[number].y for child in below)
        if below and None not in part.children:
            middle = found[number].x + found[number].width / 2
            assert abs(middle - (centres[0] + centres[-1]) / 2) <= 1
    assert svg == tree.to_svg() == tree._repr_svg_()


@given(any_text, any_text, any_text)
def test_any_text_is_drawn_as_text(label: str, note: str, title: str) -> None:
    svg = Tree(label, [Tree(note)]).to_svg(notes=["", note], titles=[title, ""], name=title)
    found = nodes(svg.encode("utf-8").decode())
    assert found[1].title.split("\n")[0] == label_text(label) and len(found) == 2
    assert len(found[1].text) <= 24


def test_hostile_labels_are_shown_and_the_hover_text_has_all_of_them() -> None:
    labels = [
        "<script>alert(1)</script>",
        '"]]>&amp;',
        "x" * 10_000,
        "שלום",
        "a\u202eb",
        "\x00\x1b",
        "日本語",
    ]
    tree = Tree("root", [Tree(label) for label in labels])
    svg = tree.to_svg()
    found = nodes(svg)
    assert [found[place].title for place in range(len(labels))] == [label_text(label) for label in labels]
    assert found[2].title == labels[2] and found[2].text == "x" * 23 + "…" and found[3].text == "שלום"
    assert found[4].title == r"a\u202eb" and found[5].title == r"\x00\x1b"
    assert "<script" not in svg and not overlapping(boxes(svg))
    assert {element.tag for element in ET.fromstring(svg).iter()} == {
        NS + tag for tag in ("svg", "title", "style", "path", "g", "rect", "text")
    }


def test_a_drawing_can_be_read_by_screen_readers_and_in_the_dark() -> None:
    root = ET.fromstring(TREE.to_svg())
    title = root.find(f"{NS}title")
    assert root.get("role") == "img" and title is not None and title.text == root.get("aria-label")
    assert root.get("aria-label") == f"Tree of {TREE.size} nodes, depth 3: {TREE}"
    style = root.find(f"{NS}style")
    assert style is not None and "prefers-color-scheme: dark" in (style.text or "")
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", (style.text or "").split("{", 1)[1])
    assert rules and all(rule.strip().startswith(".treefold-tree ") for rule in rules)


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted([light(one), light(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_on_every_shade_can_be_read() -> None:
    shades = [shade(place, strength / 4) for place in range(40) for strength in range(5)]
    root = ET.fromstring(Tree("r", [Tree("a")] * len(shades)).to_svg(colours=[*shades, None], max_nodes=300))
    found = {group.attrib["data-node"]: group for group in root.iter(f"{NS}g")}
    for number, colour in enumerate(shades):
        rect, text = found[str(number)].find(f"{NS}rect"), found[str(number)].find(f"{NS}text")
        assert rect is not None and text is not None and rect.get("fill") == colour
        assert contrast(colour, text.attrib["fill"]) >= 4.5


def visible(tree: Tree, most: int, deepest: int) -> set[int]:
    """The oracle: the numbers of the first nodes, level by level."""
    children = {number: below for number, _, below in numbered(tree)}
    order, level = [], [tree.size - 1]
    for _ in range(deepest + 1):
        order += level
        level = [child for number in level for child in children[number]]
    return set(order[:most])


@given(any_tree, st.integers(1, 20), st.integers(0, 4))
def test_beyond_the_limits_nodes_are_counted(tree: Tree, most: int, deepest: int) -> None:
    svg = tree.to_svg(max_nodes=most, max_depth=deepest)
    shown = visible(tree, most, deepest)
    assert set(nodes(svg)) == shown and not overlapping(boxes(svg))
    marks = [int(box.text[1:]) for box in boxes(svg) if box.kind == "rest"]
    hidden = tree.size - len(shown)
    assert sum(marks) == hidden and (f"{hidden} of {tree.size} nodes are hidden" in svg) == (hidden > 0)


def test_nodes_are_folded_and_unfolded_by_number() -> None:
    everything = {number: str(part.label) for number, part, _ in numbered(TREE)}
    fold = next(number for number, label in everything.items() if label == "MAX")
    svg = TREE.to_svg(folded=[fold])
    assert [box.text for box in boxes(svg) if box.kind == "rest"] == ["+6"]
    assert sorted(box.text for box in nodes(svg).values()) == sorted(["MIN", "2", "MAX", "g", "h", "i"])
    svg = TREE.to_svg(max_nodes=4, unfolded=[fold])
    assert {box.text for box in nodes(svg).values()} == {"MIN", "2", "MAX", "g", "1", "f", "3"}


def test_absent_children_are_marked_and_many_together_counted() -> None:
    tree = Tree("f", [None, Tree("a"), *[None] * 1000])
    assert [box.text for box in boxes(tree.to_svg())] == ["f", "⊥", "a", "⊥ ×1,000"]


def test_a_chain_of_a_hundred_thousand_nodes_is_drawn_folded_or_whole() -> None:
    tree = Tree("x")
    for _ in range(99_999):
        tree = Tree("x", [tree])
    assert len(nodes(tree.to_svg())) == 21 and "99,979 of 100,000 nodes are hidden" in tree.to_svg()
    assert tree.to_svg(max_nodes=100_000).count('class="node') == 100_000


def test_a_tree_with_more_nodes_than_memory_holds_is_drawn_folded() -> None:
    tree = Tree("x")
    for _ in range(80):
        tree = Tree("x", [tree, tree])
    assert len(nodes(tree.to_svg())) == 200 and max(nodes(tree.to_svg())) == tree.size - 1


def test_a_wide_node_shows_its_first_children() -> None:
    found = boxes(Tree("f", [Tree(str(number)) for number in range(5_000)]).to_svg())
    assert [box.text for box in found] == ["f", *map(str, range(199)), "+4,801"]


def test_several_trees_stand_side_by_side_with_a_legend() -> None:
    svg = draw_svg([TREE, Tree.parse("(a b)")], legend=[("yes <b>", "#0072b2"), ("no", "#d55e00")] * 20)
    found = nodes(svg)
    assert sorted(found) == list(range(TREE.size + 2)) and not overlapping(boxes(svg))
    assert max(found[n].x + found[n].width for n in range(TREE.size)) < found[TREE.size].x
    texts = [text.text for text in ET.fromstring(svg).iter(f"{NS}text") if text.get("class") == "legend"]
    assert texts == ["yes <b>", "no"] * 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"notes": ["a"]}, "to_svg expects notes for each of the 12 nodes, in post-order, got 1; pad with ''"),
        ({"colours": ["#000000"]}, "colours for each of the 12 nodes, in post-order, got 1; pad with None"),
        ({"notes": 5}, "to_svg expects notes to be a list of texts, got 5"),
        ({"titles": [5] * 12}, "to_svg expects titles to be a list of texts, got [5, 5"),
        ({"colours": 5}, "to_svg expects colours to be a list of texts, got 5"),
        ({"max_depth": []}, "to_svg expects max_depth to be an integer >= 1, got []"),
        ({"colours": ["red"] * 12}, "to_svg expects a colour like '#0072B2', or None, got 'red'"),
        ({"colours": ['#000000"/><script>'] * 12}, "to_svg expects a colour"),
        ({"max_nodes": 0}, "to_svg expects max_nodes to be an integer >= 1, got 0"),
        ({"max_depth": -1}, "to_svg expects max_depth to be an integer >= 1, got -1"),
    ],
)
def test_bad_options_are_said_in_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TreeError, ConfigurationError), match=re.escape(message)):
        TREE.to_svg(**options)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    svg = TREE.to_svg(tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == svg and [p.name for p in tmp_path.iterdir()] == ["a.svg"]
    with pytest.raises(TreeError):
        TREE.to_svg(tmp_path / "a.svg", notes=["too few"])
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == svg
    with pytest.raises(FileError, match="expected a folder that can be written to"):
        TREE.to_svg(tmp_path / "none" / "a.svg")


def test_a_forest_shows_its_numbers_and_its_first_trees(tmp_path: Path) -> None:
    forest = Forest([TREE, *["(f <b> c)"] * 4])
    root = ET.fromstring(forest._repr_html_())
    facts = {row[0].text: row[1].text for row in root.iter("tr")}
    assert facts["trees"] == "5" and facts["nodes"] == "24, 12 in the largest tree" and facts["depth"] == "3"
    assert facts["most children"] == "4" and (facts["text labels"] or "").startswith("13: '1', '2', '3', '<b>', ")
    drawn = [ET.tostring(svg, encoding="unicode") for svg in root.iter(f"{NS}svg")]
    assert [len(nodes(svg)) for svg in drawn] == [12, 3, 3]
    forest.save(tmp_path / "a.forest")
    assert "depth" not in Forest.open(tmp_path / "a.forest", verify=False)._repr_html_().split("<figure>")[0]
    assert (
        "vector labels" in Forest([Tree([1.0, 2.0])])._repr_html_()
        and ET.fromstring(Forest([])._repr_html_()) is not None
    )


@given(any_text)
def test_tables_and_pages_escape_what_they_show(text: str) -> None:
    page = html_page(text, html_table([(text, text)], head=(text, text)))
    assert ET.fromstring(page.split("\n", 1)[1]).find("body") is not None


def test_pages_that_forbid_styles_get_the_same_drawing_without_one() -> None:
    svg = draw_svg(TREE, colours=["#0072B2"] * TREE.size)
    plain = draw_svg(TREE, colours=["#0072B2"] * TREE.size, dark=False)
    assert "<style" not in plain
    assert re.sub(r"<style>.*</style>", "", svg) == plain != svg
