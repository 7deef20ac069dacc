"""Write the drawings of docs/concepts.md into docs/figures: `python docs/drawings.py`."""

from pathlib import Path

from treefold import Tree
from treefold.trees.drawing import draw_svg

BLUE, ORANGE, GREEN = "#56B4E9", "#E69F00", "#009E73"
FOLDER = Path(__file__).with_name("figures")


def drawings() -> dict[str, str]:
    """Return the drawings by the names of their files; nodes are numbered in post-order."""
    fold = Tree.parse("(MAX 2 (MIN 4 3) 1)")
    absent = Tree.parse("(MAX 2 _ (MIN 4 3))")
    page = Tree.parse("(page (head title) (body h1 p p))")  # title head h1 p p body page
    up = [None, None, ORANGE, ORANGE, ORANGE, BLUE, None]
    down = [None, None, None, None, None, BLUE, ORANGE]
    siblings = [None, ORANGE, None, None, ORANGE, BLUE, None]
    seen = (("the node", BLUE), ("what it sees", ORANGE))
    return {
        "fold.svg": draw_svg(fold, notes=["2", "4", "3", "3", "1", "3"], name="The value of each subtree of a formula"),
        "absent.svg": draw_svg(absent, name="The second of three child slots is empty"),
        "directions.svg": draw_svg(
            [page, page, page], colours=up + down + siblings, legend=seen, name="What the node body sees, in three ways"
        ),
        "map.svg": map_drawing(),
    }


def map_drawing() -> str:
    """Return a drawing of the map at one node: label and children, each with a one, go into the tensor."""
    boxes = [(70, "[x; 1]", "label"), (210, "[h₁; 1]", "first child"), (350, "[h₂; 1]", "second child")]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" width="420" height="260" viewBox="0 0 420 260" '
        'aria-label="The state of a node from its label and its children" '
        'font-family="sans-serif" font-size="14" text-anchor="middle">',
        '<g stroke="#888888" stroke-width="1.5">',
        *(f'<line x1="{x}" y1="196" x2="{210 + (x - 210) // 3}" y2="134"/>' for x, _, _ in boxes),
        '<line x1="210" y1="102" x2="210" y2="50"/></g>',
        *(_box(x, 180, text, GREEN if note == "label" else BLUE, note) for x, text, note in boxes),
        _box(210, 102, "T", ORANGE, "", width=150),
        _box(210, 18, "h = σ(T([x; 1], [h₁; 1], [h₂; 1]))", BLUE, "", width=270),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(x: int, y: int, text: str, colour: str, note: str, width: int = 90) -> str:
    box = f'<rect x="{x - width // 2}" y="{y}" width="{width}" height="32" rx="6" fill="{colour}"/>'
    words = f'<text x="{x}" y="{y + 21}" fill="#000000">{text}</text>'
    return box + words + (f'<text x="{x}" y="{y + 52}" fill="#888888" font-size="13">{note}</text>' if note else "")


if __name__ == "__main__":
    for name, svg in drawings().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
