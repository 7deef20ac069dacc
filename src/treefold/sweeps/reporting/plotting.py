"""How figures look and how they become bytes: the same input gives the same bytes, and no outside reference."""

import html
import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from treefold.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.4, 3.2  # inches; on a phone a point of text is then about a pixel
INK = "#1f2933"
_LONGEST, _HALF = 46, 20  # characters of a name in a legend of one column, and of two

# Okabe and Ito's colours, which the colour-blind tell apart, the pale yellow replaced; markers tell them apart without colour.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B3A9B", "#333333")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
_LINES: Final = ("-", "--", "-.", ":")
_STYLE: Final[dict[str, Any]] = {
    "svg.hashsalt": "treefold",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.titlesize": 11,
    "legend.fontsize": 9,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.edgecolor": "#8a94a0",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "legend.frameon": False,
}


class Look(NamedTuple):
    """How a kind is drawn."""

    color: str
    marker: str
    linestyle: str


class Images(NamedTuple):
    """A figure as it is written to files."""

    png: bytes
    svg: str


def look(place: int) -> Look:
    """Return the look of the kind at a place; no two of the first hundred are the same.

    >>> len({look(place) for place in range(88)})
    88
    """
    line = _LINES[place // len(_COLOURS) % len(_LINES)]
    return Look(_COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)], line)


def require_matplotlib() -> None:
    """Raise unless figures can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "a report expects the package matplotlib for its figures, got none; pip install 'treefold[plot]'."
        ) from None


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own file says
        settings: Any = matplotlib.rcParams
        settings.update(_STYLE)
        yield


def label(text: str) -> str:
    r"""Return a name as matplotlib shows it word for word, and not too long for a legend.

    >>> label("_a $x$")
    ' _a \\$x\\$'
    """
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def draw(paint: Callable[["Axes"], None]) -> Images:
    """Draw one pair of axes, the legend below them, and return it as PNG and SVG."""
    require_matplotlib()
    from matplotlib.figure import Figure

    with _style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a kind's name in another script
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        paint(axes)
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            columns = 2 if max(map(len, labels)) <= _HALF else 1
            rows = -(-len(labels) // columns)
            figure.set_size_inches(WIDTH, HEIGHT + 0.2 * rows)
            figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.6)
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(png, format="png", dpi=180, metadata={"Software": None})
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(svg, format="svg", metadata=nothing)
    return Images(png.getvalue(), svg.getvalue())


def inline(svg: str, name: str, description: str) -> str:
    """Return an SVG file as an element of an HTML page: its names are its own, and nothing points outside.

    >>> print(inline('<?xml version="1.0"?><svg xmlns="http://x" width="9pt" viewBox="0 0 9 9"><g id="a"/></svg>', "f", "A & b"))
    <svg role="img" aria-label="A &amp; b" viewBox="0 0 9 9"><g id="f-a"/></svg>
    """
    text = svg[svg.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)  # labels once more; one of a user's may hold anything
    head, tail = text.split(">", 1)
    head = re.sub(r'\s(xmlns(:\w+)?|width|height|version)="[^"]*"', "", head)
    head = head.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)
    text = f"{head}>{tail}".replace("xlink:href=", "href=")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
