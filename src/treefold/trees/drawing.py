"""Trees as pictures: layered SVG without anything from outside. Notebooks, explanations and pages use this one drawing.

Equal trees give equal text, which is always well-formed XML, whatever the labels are. All coordinates are whole numbers.
"""

import colorsys
import html
import re
import unicodedata
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Final, NamedTuple, final

from treefold.errors import TreeError
from treefold.trees.tree import Label, Tree, _written, entries_of_nodes, printable, require_limits

_LONGEST: Final = 24  # characters of a label or note in a box; the hover text has all
_LONGEST_ENTRY: Final = 40  # of the legend
_LONGEST_NAME: Final = 200  # of the text for screen readers
_DEEPEST: Final = 20  # of a tree with too many nodes, nothing below this level is drawn
_LETTER, _SMALL_LETTER = 8, 7  # the width of a character of 13 and of 11 pixels
_PADDING, _GAP, _TREE_GAP, _MARGIN = 16, 12, 48, 8
_HEIGHT, _NOTE_HEIGHT, _BETWEEN = 24, 14, 30
_ENTRY_HEIGHT, _LEGEND_WIDTH = 22, 480
_COLOUR: Final = re.compile(r"#[0-9a-fA-F]{6}")

# The colours of Okabe and Ito, which colour-blind readers can tell apart.
_PALETTE: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B3A9B")

# Edges and marks are grey, which can be seen on black and on white. Boxes have a colour of their own, and so has their text.
_STYLE: Final = (
    "<style>@media (prefers-color-scheme: dark) {"
    ".treefold-tree .plain rect { fill: #24292f } .treefold-tree .plain text { fill: #f0f3f6 } "
    ".treefold-tree .legend { fill: #f0f3f6 } }</style>"
)


@final
@dataclass(slots=True)
class _Box:
    """A node, a mark for absent children, or one for hidden nodes; ``x`` is its centre, ``row`` its level."""

    kind: str
    text: str
    title: str
    row: int
    parent: int  # among the boxes, -1 for a root
    number: int = -1  # of the node
    hidden: int = 0  # nodes below it that are not drawn
    note: str = ""
    colour: str | None = None
    children: list[int] = field(default_factory=list)
    x: int = 0

    @property
    def width(self) -> int:
        widest = max(_LETTER * _columns(self.text), _SMALL_LETTER * _columns(self.note))
        return _PADDING + widest + widest % 2

    @property
    def height(self) -> int:
        return _HEIGHT + (_NOTE_HEIGHT if self.note else 0)


class _Outline(NamedTuple):
    """The ends of a subtree in each row, the lowest row first; ``shifts`` are still to be added to all."""

    left: list[int]
    right: list[int]
    left_shift: int
    right_shift: int


def draw_svg(
    trees: Tree | Sequence[Tree],
    *,
    notes: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    colours: Sequence[str | None] | None = None,
    dashed: Collection[int] = (),
    folded: Collection[int] = (),
    unfolded: Collection[int] = (),
    max_nodes: int = 200,
    max_depth: int | None = None,
    legend: Sequence[tuple[str, str | None]] = (),
    name: str | None = None,
    dark: bool = True,
) -> str:
    """Draw a tree, or several side by side, as SVG. `Tree.to_svg` explains the options.

    Nodes are numbered in post-order, those of the first tree first. Each is a ``<g class="node" data-node="number">``; a mark for
    hidden nodes is a ``<g class="rest" data-node="number of the parent">``. ``legend`` has texts and their colours, or None.
    Without ``dark``, there is no style for dark windows, which pages with a strict policy for their content forbid.

    >>> svg = draw_svg(Tree.parse("(f a b)"), notes=["1", "2", "3"], name="Three nodes")
    >>> svg.startswith('<svg xmlns="http://www.w3.org/2000/svg" class="treefold-tree" role="img" aria-label="Three nodes"')
    True
    """
    trees = (trees,) if isinstance(trees, Tree) else tuple(trees)
    require_limits("to_svg", max_nodes, 0 if max_depth is None else max_depth)
    total = sum(tree.size for tree in trees)
    notes = entries_of_nodes("to_svg", "notes", notes, total, "post-order")
    titles = entries_of_nodes("to_svg", "titles", titles, total, "post-order")
    colours = entries_of_nodes("to_svg", "colours", colours, total, "post-order")
    for colour in [*(colours or ()), *(colour for _, colour in legend)]:
        if colour is not None and not (isinstance(colour, str) and _COLOUR.fullmatch(colour)):
            raise TreeError(f"to_svg expects a colour like '#0072B2', or None, got {colour!r}.")
    if max_depth is None and total > max_nodes:
        max_depth = _DEEPEST
    boxes = _boxes(trees, set(folded), set(unfolded), max_nodes, max_depth)
    for box in boxes:
        if box.kind == "node":
            box.note = fitted(printable(notes[box.number])) if notes is not None else ""
            box.colour = colours[box.number] if colours is not None else None
            extra = titles[box.number] if titles is not None else notes[box.number] if notes is not None else ""
            box.title = "\n".join([box.title, *map(printable, extra.splitlines())])
    _lay_out(boxes)
    return _written_svg(boxes, trees, set(dashed), legend, name, _STYLE if dark else "")


def shade(place: int, strength: float = 1.0) -> str:
    """Return the colour of the class at this place, pale for a small strength and full for 1.

    >>> shade(0), shade(0, 0.0), len({shade(place) for place in range(100)})
    ('#0072b2', '#cce3f0', 100)
    """
    if place < len(_PALETTE):
        base = [int(_PALETTE[place][start : start + 2], 16) for start in (1, 3, 5)]
    else:  # the golden angle keeps neighbours apart
        base = [round(255 * part) for part in colorsys.hls_to_rgb(place * 0.381966 % 1, 0.45 + 0.02 * (place % 7), 0.6)]
    part = 0.2 + 0.8 * min(max(strength, 0.0), 1.0)
    return "#" + "".join(f"{round(255 + part * (value - 255)):02x}" for value in base)


def html_table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return an HTML table; texts are escaped. Without a head, the first cell of each row is its heading.

    >>> html_table([("trees", 2)])
    '<table><tbody><tr><th scope="row">trees</th><td>2</td></tr></tbody></table>'
    """
    top = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in head)
    lines = []
    for row in rows:
        cells = [f"<td>{escaped(cell)}</td>" for cell in row]
        if not head:
            cells[0] = f'<th scope="row">{escaped(row[0])}</th>'
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{f'<thead><tr>{top}</tr></thead>' if top else ''}<tbody>{''.join(lines)}</tbody></table>"


def html_box(*parts: str) -> str:
    """Put parts below each other; what is too wide for the page can be scrolled.

    >>> html_box("<p>a</p>")
    '<div style="overflow-x: auto"><p>a</p></div>'
    """
    return f'<div style="overflow-x: auto">{"".join(parts)}</div>'


def html_page(title: str, body: str) -> str:
    """Return a page that needs nothing from outside.

    >>> html_page("A & b", "<p>c</p>").splitlines()[0]
    '<!DOCTYPE html>'
    """
    style = (
        ":root { color-scheme: light dark; font-family: sans-serif } th, td { text-align: left; padding-right: 1em }"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>{escaped(title)}</title>'
        f'<meta name="viewport" content="width=device-width"/><style>{style}</style></head>\n<body>{body}</body></html>\n'
    )


def escaped(value: object) -> str:
    r"""Escape a text for XML and HTML, with control characters in the notation of Python.

    >>> escaped("<b>\x00")
    '&lt;b&gt;\\x00'
    """
    return html.escape(printable(str(value)))


def label_text(label: Label) -> str:
    r"""Return a label as it is drawn: as in s-expressions, without control characters.

    >>> label_text("two words"), label_text("a\x00b"), label_text((0.5, 1.0))
    ('"two words"', 'a\\x00b', '[0.5 1.0]')
    """
    return printable(_written(label))


def _columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    widths = (0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
    return max(sum(widths), 1)


def fitted(text: str, width: int = _LONGEST) -> str:
    """Return the text, shortened to a number of characters.

    >>> fitted("a long label", 7)
    'a long…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def _boxes(
    trees: tuple[Tree, ...], folded: set[int], unfolded: set[int], max_nodes: int, max_depth: int | None
) -> list[_Box]:
    """Choose what is drawn, level by level, until ``max_nodes`` are: every box comes after its parent."""
    boxes: list[_Box] = []
    waiting: deque[tuple[int, Tree, int]] = deque()  # a box, its tree, and the number of the tree's first node

    def add(tree: Tree, first: int, parent: int) -> None:
        text = label_text(tree.label)
        row = boxes[parent].row + 1 if parent >= 0 else 0
        boxes.append(_Box("node", fitted(text), text, row, parent, first + tree.size - 1))
        waiting.append((len(boxes) - 1, tree, first))

    start = 0
    for tree in trees:
        add(tree, start, -1)
        start += tree.size
    left = max_nodes - len(trees)
    while waiting:
        parent, tree, first = waiting.popleft()
        box = boxes[parent]
        room = left if max_depth is None or box.row < max_depth else 0
        room = 0 if box.number in folded else tree.size if box.number in unfolded else max(room, 0)
        hidden = tree.size - 1
        if not room and hidden:
            slots: Iterable[Tree | None] = ()
        else:
            slots = tree.children
        for absent, group in groupby(slots, key=lambda child: child is None):
            if absent:
                count = sum(1 for _ in group)
                text = "⊥" if count == 1 else f"⊥ ×{count:,}"
                title = "an absent child" if count == 1 else f"{count:,} absent children"
                boxes.append(_Box("absent", text, title, box.row + 1, parent))
                continue
            for child in islice(group, room):
                assert child is not None
                add(child, first, parent)
                first += child.size
                hidden -= child.size
                room -= 1
                left -= 1
            if hidden and not room:
                break
        if hidden:
            box.hidden = hidden
            what = "1 node is hidden" if hidden == 1 else f"{hidden:,} nodes are hidden"
            boxes.append(_Box("rest", f"+{hidden:,}", what, box.row + 1, parent, box.number, hidden))
    for index, box in enumerate(boxes):
        if box.parent >= 0:
            boxes[box.parent].children.append(index)
    return boxes


def _lay_out(boxes: list[_Box]) -> None:
    """Set the centres of all boxes: parents over the middle of their children, subtrees as near as they go. Linear time."""
    outlines: dict[int, _Outline] = {}
    for index in range(len(boxes) - 1, -1, -1):
        box = boxes[index]
        half = box.width // 2
        left: list[int] = []
        right: list[int] = []
        left_shift = right_shift = 0
        if box.children:
            merged, places = _side_by_side([outlines.pop(child) for child in box.children], _GAP)
            middle = (places[0] + places[-1]) // 2
            for child, place in zip(box.children, places, strict=True):
                boxes[child].x = place - middle
            left, right = merged.left, merged.right
            left_shift, right_shift = merged.left_shift - middle, merged.right_shift - middle
        left.append(-half - left_shift)
        right.append(half - right_shift)
        outlines[index] = _Outline(left, right, left_shift, right_shift)
    roots = sorted(outlines)
    _, places = _side_by_side([outlines[root] for root in roots], _TREE_GAP)
    for root, place in zip(roots, places, strict=True):
        boxes[root].x = place
    for box in boxes:  # parents come first
        if box.parent >= 0:
            box.x += boxes[box.parent].x
    margin = _MARGIN - min(box.x - box.width // 2 for box in boxes)
    for box in boxes:
        box.x += margin


def _side_by_side(outlines: list[_Outline], gap: int) -> tuple[_Outline, list[int]]:
    """Join subtrees; return the outline of all, and the places of their roots. The outlines are used up.

    Each takes as long as the lower of the two that are joined is high, so that all together take linear time.
    """
    merged, places = outlines[0], [0]
    for other in outlines[1:]:
        common = min(len(merged.right), len(other.left))
        ends = zip(merged.right[-common:], other.left[-common:], strict=True)
        place = max(right - left for right, left in ends) + merged.right_shift - other.left_shift + gap
        places.append(place)
        left, left_shift = merged.left, merged.left_shift
        right, right_shift = other.right, other.right_shift + place
        if len(other.left) > common:
            left, left_shift = other.left, other.left_shift + place
            left[-common:] = [end + merged.left_shift - left_shift for end in merged.left]
        if len(merged.right) > common:
            right, right_shift = merged.right, merged.right_shift
            right[-common:] = [end + other.right_shift + place - right_shift for end in other.right]
        merged = _Outline(left, right, left_shift, right_shift)
    return merged, places


def _written_svg(
    boxes: list[_Box],
    trees: tuple[Tree, ...],
    dashed: set[int],
    legend: Sequence[tuple[str, str | None]],
    name: str | None,
    style: str,
) -> str:
    step = _HEIGHT + _BETWEEN + (_NOTE_HEIGHT if any(box.note for box in boxes) else 0)
    edges: dict[bool, list[str]] = {False: [], True: []}
    groups: list[str] = []
    for box in boxes:
        top = _MARGIN + box.row * step
        if box.parent >= 0:
            parent = boxes[box.parent]
            start, middle = _MARGIN + parent.row * step + parent.height, top - _BETWEEN // 2
            edges[box.kind != "node"].append(f"M{parent.x} {start}C{parent.x} {middle} {box.x} {middle} {box.x} {top}")
        groups.append(_group(box, top, box.number in dashed))
    width = _MARGIN + max(box.x + box.width // 2 for box in boxes)
    height = 2 * _MARGIN + max(box.row * step + box.height for box in boxes)
    hidden = sum(box.hidden for box in boxes if box.kind == "rest")
    entries = list(legend)
    if hidden:
        entries.append((f"{hidden:,} of {sum(tree.size for tree in trees):,} nodes are hidden", None))
    foot, foot_width, foot_height = _foot(entries, height, max(width, _LEGEND_WIDTH))
    width, height = max(width, foot_width), height + foot_height
    text = escaped(_named(trees) if name is None else name)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="treefold-tree" role="img" aria-label="{text}" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="ui-monospace, monospace" font-size="13" '
        f'text-anchor="middle"><title>{text}</title>{style}'
    ]
    for is_mark, paths in edges.items():
        if paths:
            dashes = ' stroke-dasharray="3 3"' if is_mark else ""
            lines.append(f'<path class="edges" fill="none" stroke="#808080"{dashes} d="{"".join(paths)}"/>')
    return "\n".join([*lines, *groups, *foot, "</svg>\n"])


def _group(box: _Box, top: int, is_dashed: bool) -> str:
    kind = box.kind if box.kind != "node" or box.colour is not None else "node plain"
    number = f' data-node="{box.number}"' if box.number >= 0 else ""
    hidden = f' data-hidden="{box.hidden}"' if box.hidden else ""
    fill, ink, stroke = "#f3f4f6", "#1b1f24", "#808080"
    if box.colour is not None:
        fill, ink = box.colour, _ink(box.colour)
    elif box.kind != "node":
        fill, ink, stroke = "none", "#808080", "#808080" if box.kind == "rest" else "none"
    dashes = ' stroke-dasharray="4 2" stroke-width="2"' if is_dashed else ""
    text = _text(box.text, box.x, top + 16, ink, _LETTER)
    note = _text(box.note, box.x, top + 31, ink, _SMALL_LETTER, ' font-size="11"') if box.note else ""
    title = "\n".join(map(escaped, box.title.split("\n")))
    return (
        f'<g class="{kind}"{number}{hidden}><title>{title}</title><rect x="{box.x - box.width // 2}" y="{top}" '
        f'width="{box.width}" height="{box.height}" rx="8" fill="{fill}" stroke="{stroke}"{dashes}/>{text}{note}</g>'
    )


def _text(text: str, x: int, y: int, ink: str, letter: int, more: str = "") -> str:
    """Write a text around a place; one with letters of unknown width is made to fit into its box."""
    fit = "" if text.isascii() else f' textLength="{letter * _columns(text)}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{x}" y="{y}" fill="{ink}"{more}{fit}>{escaped(text)}</text>'


def _ink(colour: str) -> str:
    """Return black or white, whichever can be read better on a colour.

    >>> _ink("#cce3f0"), _ink("#0072b2")
    ('#000000', '#ffffff')
    """
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (light + 0.05) ** 2 > 1.05 * 0.05 else "#ffffff"


def _foot(entries: Sequence[tuple[str, str | None]], top: int, most: int) -> tuple[list[str], int, int]:
    """Return the entries of the legend, as many in a line as fit, with the width and the height that they take."""
    lines, x, y, width = [], _MARGIN, top, 0
    for text, colour in entries:
        text = fitted(printable(text), _LONGEST_ENTRY) if colour is not None else text
        mark = 20 if colour is not None else 0
        wide = mark + _LETTER * _columns(text) + _PADDING
        if x > _MARGIN and x + wide > most:
            x, y = _MARGIN, y + _ENTRY_HEIGHT
        if colour is not None:
            lines.append(f'<rect x="{x}" y="{y}" width="14" height="14" rx="3" fill="{colour}" stroke="#808080"/>')
        lines.append(
            f'<text class="legend" x="{x + mark}" y="{y + 12}" text-anchor="start" fill="#1b1f24">{escaped(text)}</text>'
        )
        x += wide
        width = max(width, x)
    return lines, width, y + _ENTRY_HEIGHT - top if entries else 0


def _named(trees: tuple[Tree, ...]) -> str:
    """Return a text for screen readers."""
    parts = []
    for tree in trees:
        pieces, length = [], 0
        for piece in tree._pieces():
            pieces.append(piece[:_LONGEST_NAME])
            length += len(piece)
            if length > _LONGEST_NAME:
                break
        written = "".join(pieces)
        written = written if length <= _LONGEST_NAME else written[:_LONGEST_NAME] + "…"
        nodes = "1 node" if tree.size == 1 else f"{tree.size:,} nodes, depth {tree.depth:,}"
        parts.append(f"Tree of {nodes}: {written}")
    return "; ".join(parts)
