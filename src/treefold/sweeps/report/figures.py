"""The figures of a report, as PNG and SVG: equal results give equal bytes, and nothing refers outside the file."""

import html
import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from treefold.errors import ConfigurationError
from treefold.sweeps.report.summary import Spread, Summary, best

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_WIDTH, _HEIGHT = 4.4, 3.2  # inches; on a phone a point of text is then about a pixel
_LONGEST, _HALF = 46, 20  # characters of a name in a legend with one column, and with two
_STYLE: Final = Path(__file__).with_name("figures.mplstyle")

# The colours of Okabe and Ito, which colour-blind readers can tell apart, without the pale yellow; markers differ too.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B3A9B", "#333333")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
_LINES: Final = ("-", "--", "-.", ":")

_GROUPS: Final = {  # name in file names, name in titles, label of the axis
    "by_operators": ("operators", "number of operators", "number of operators, of the longer sentence"),
    "by_depth": ("depth", "depth", "depth of the tree"),
    "by_size": ("size", "size", "size of the tree, in nodes"),
}
_MOST_TICKS: Final = 14
_FEW_GROUPS: Final = 8


class Look(NamedTuple):
    """Colour, marker and line style of a kind."""

    color: str
    marker: str
    linestyle: str


def look(place: int) -> Look:
    """Return the look of the kind at this place; the first 88 differ.

    >>> len({look(place) for place in range(88)})
    88
    """
    line = _LINES[place // len(_COLOURS) % len(_LINES)]
    return Look(_COLOURS[place % len(_COLOURS)], _MARKERS[place % len(_MARKERS)], line)


class Reference(NamedTuple):
    """Published values to draw beside ours: for each kind, pairs of parameters and validation score in %."""

    name: str
    points: Mapping[str, Sequence[tuple[int, float]]]
    note: str = ""  # ends the caption


@final
@dataclass(frozen=True)
class Study:
    """Results that are drawn together: those of one grid, or of several grids on the same data."""

    title: str
    slug: str  # for file names and anchors
    summaries: tuple[Summary, ...]
    palette: tuple[str, ...]  # kinds in the order of their looks
    reference: Reference | None = None
    line_of: Callable[[Summary], str] = lambda summary: ""  # summaries of a kind with equal values share a line

    @property
    def score(self) -> str:
        """The name of the score."""
        task = self.summaries[0].first.settings.task
        return "R²" if task in ("regression", "pair-regression") else "accuracy"  # the tasks themselves need torch

    @property
    def kinds(self) -> list[str]:
        """The kinds in the order of the palette."""
        return sorted({each.kind for each in self.summaries}, key=self.palette.index)

    def of(self, kind: str) -> list[Summary]:
        """Return the summaries of a kind."""
        return [each for each in self.summaries if each.kind == kind]

    def best_of_each(self) -> dict[str, Summary]:
        """Return for each kind the summary that is best on validation."""
        return {kind: top for kind in self.kinds if (top := best(self.of(kind))) is not None}

    def look(self, kind: str) -> Look:
        """Return the look of a kind, the same in all studies with this palette."""
        return look(self.palette.index(kind))


def studies_of(summaries: Sequence[Summary]) -> list[Study]:
    """Return a study for each grid."""
    palette = tuple(sorted({each.kind for each in summaries}))
    names = list(dict.fromkeys(each.grid for each in summaries))
    return [
        Study(name, slug, tuple(each for each in summaries if each.grid == name), palette)
        for name, slug in zip(names, slugs(names), strict=True)
    ]


def slugs(names: Iterable[str]) -> list[str]:
    """Return distinct names for files and anchors.

    >>> slugs(["My grid/2", "my-grid-2", "…"])
    ['my-grid-2', 'my-grid-2-2', 'grid']
    """
    found: list[str] = []
    for name in names:
        slug = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-") or "grid"
        numbered = itertools.chain([slug], (f"{slug}-{number}" for number in itertools.count(2)))
        found.append(next(each for each in numbered if each not in found))
    return found


@final
@dataclass(frozen=True)
class Figure:
    """A figure: file name, title, caption, a description in words, and the two images."""

    name: str
    title: str
    caption: str
    description: str
    png: bytes
    svg: str

    def inline(self) -> str:
        """Return the SVG as an element of an HTML page; its ids get the figure's name as a prefix.

        >>> svg = '<?xml version="1.0"?><svg xmlns="http://x" width="9pt" viewBox="0 0 9 9"><g id="a"/></svg>'
        >>> print(Figure("f", "", "", "A & b", b"", svg).inline())
        <svg role="img" aria-label="A &amp; b" viewBox="0 0 9 9"><g id="f-a"/></svg>
        """
        text = self.svg[self.svg.index("<svg") :].strip()
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)  # comments repeat labels, which may contain anything
        head, tail = text.split(">", 1)
        head = re.sub(r'\s(xmlns(:\w+)?|width|height|version)="[^"]*"', "", head)
        head = head.replace("<svg", f'<svg role="img" aria-label="{html.escape(self.description)}"', 1)
        text = f"{head}>{tail}".replace("xlink:href=", "href=")
        text = re.sub(r'\bid="([^"]+)"', rf'id="{self.name}-\1"', text)
        text = re.sub(r'href="#([^"]+)"', rf'href="#{self.name}-\1"', text)
        return re.sub(r"url\(#([^)]+)\)", rf"url(#{self.name}-\1)", text)


def figures_of(study: Study) -> list[Figure]:
    """Draw the figures for which a study has results."""
    groups = [_groups(study, group) for group in _GROUPS]
    drawn = [figure for figure in (_parameters(study), *groups, _curves(study), _times(study)) if figure is not None]
    different = len({each.data for each in study.summaries})
    if different > 1:
        caution = f" Caution: results on {different} different data sets are shown together."
        drawn = [replace(figure, caption=figure.caption + caution) for figure in drawn]
    return drawn


class _Point(NamedTuple):
    x: float
    y: Spread


def _parameters(study: Study) -> Figure | None:
    """Draw validation score against parameters of an aggregator, with the reference values if there are any."""
    lines: dict[tuple[str, str], list[Summary]] = {}
    for each in study.summaries:
        lines.setdefault((each.kind, f"{study.line_of(each)} {each.grid} {each.recipe}"), []).append(each)
    points = {
        line: found for line, members in lines.items() if (found := _points(members, lambda each: each.validation))
    }
    if not points:
        return None
    reference = study.reference

    def paint(axes: "Axes") -> None:
        for kind, values in reference.points.items() if reference else ():
            axes.plot(
                *zip(*sorted(values), strict=True),
                color=study.look(kind).color,
                marker=study.look(kind).marker,
                linestyle=(0, (1, 1.6)),
                linewidth=1,
                markersize=4.5,
                markerfacecolor="white",
                zorder=4,
                label=f"{kind}, {reference.name if reference else ''}",
            )
        named: set[str] = set()
        for kind, line in sorted(points, key=lambda line: study.palette.index(line[0])):
            name = None if kind in named else label(f"{kind}, ours" if reference else kind)
            _plot_spreads(axes, points[kind, line], study.look(kind), name, 100)
            named.add(kind)
        axes.set_xscale("log")
        _plain_log(axes.xaxis)
        axes.set_xlabel("parameters of one aggregation")
        axes.set_ylabel(f"validation {study.score}, %")

    said = [f"{kind}: {_best_words(top)}" for kind, top in study.best_of_each().items()]
    for kind, values in reference.points.items() if reference else ():
        parameters, score = max(values, key=lambda value: value[1])
        said.append(f"{kind} in {reference.name if reference else ''}: best {score:.1f} % with {parameters:,}")
    hollow = f" Hollow and dotted: {reference.name}.{reference.note}" if reference else ""
    return Figure(
        f"{study.slug}-parameters",
        f"{study.title}: validation {study.score} against parameters",
        f"Mean over seeds, bars of one standard deviation.{hollow}",
        f"Validation {study.score} on {study.title} against the number of parameters of one aggregation, on a log scale. "
        f"{'; '.join(said)}.",
        *draw(paint),
    )


def _groups(study: Study, group: str) -> Figure | None:
    """Draw the score by a property of the trees for the best configuration of each kind, answers of all seeds pooled."""
    tops = study.best_of_each()
    shares = {kind: found for kind, top in tops.items() if (found := pooled(top, group))}
    if not shares:
        return None
    bins = sorted({name for found in shares.values() for name in found}, key=_bin_order)
    name, title, axis = _GROUPS[group]
    tested = any(top.test is not None for top in tops.values())

    def paint(axes: "Axes") -> None:
        for kind, found in shares.items():
            known = [place for place, each in enumerate(bins) if each in found]
            values = [100 * found[bins[place]][0] / found[bins[place]][1] for place in known]
            axes.plot(known, values, **study.look(kind)._asdict(), label=label(f"{kind}, {tops[kind].sizes()}"))
        places = range(0, len(bins), -(-len(bins) // _MOST_TICKS))
        long = max(len(bins[place]) for place in places) * len(places) > 44
        names = [bins[place] for place in places]
        axes.set_xticks(places, names, rotation=45 if long else 0, ha="right" if long else "center")
        axes.set_xlabel(axis)
        axes.set_ylabel(f"{'test' if tested else 'validation'} {study.score}, %")

    ends = [
        f"{kind} from {_share(found[known[0]])} at {known[0]} to {_share(found[known[-1]])} at {known[-1]}"
        for kind, found in shares.items()
        if (known := [each for each in bins if each in found])
    ]
    counts = ""
    if len(bins) <= _FEW_GROUPS:
        most = {each: max(found[each][1] for found in shares.values() if each in found) for each in bins}
        runs = max(len(top.runs) for top in tops.values())
        counts = f" Answers for each point, all seeds together (at most {runs}): "
        counts += ", ".join(f"{each}: {count:,}" for each, count in most.items()) + "."
    return Figure(
        f"{study.slug}-{name}",
        f"{study.title}: {study.score} by {title}",
        f"On {'the test set' if tested else 'validation'}, for the configuration of each kind that is best on validation; "
        f"seeds are pooled.{counts}",
        f"{study.score.capitalize()} on {study.title} by {axis}. {'; '.join(ends)}.",
        *draw(paint),
    )


def _curves(study: Study) -> Figure | None:
    """Draw validation score against epochs: the mean over seeds, as far as all of them were trained, and each seed."""
    tops = study.best_of_each()
    curves = {
        kind: found
        for kind, top in tops.items()
        if (found := [curve for run in top.runs if (curve := run.curves.get("validation_score"))])
    }
    if not curves:
        return None

    def paint(axes: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator

        for kind, found in curves.items():
            style = study.look(kind)
            for curve in found:
                values = [100 * score for score in curve]
                axes.plot(range(1, len(curve) + 1), values, color=style.color, alpha=0.3, linewidth=0.8)
            mean = 100 * mean_curve(found)
            axes.plot(
                np.arange(1, len(mean) + 1),
                mean,
                **style._asdict(),
                markevery=max(1, len(mean) // 8),
                label=label(f"{kind}, {tops[kind].sizes()}"),
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"validation {study.score}, %")

    said = [
        f"{kind} reaches {100 * float(np.nanmax(mean)):.1f} % after {int(np.nanargmax(mean)) + 1} epochs"
        for kind, found in curves.items()
        if not np.isnan(mean := mean_curve(found)).all()
    ]
    return Figure(
        f"{study.slug}-curves",
        f"{study.title}: learning curves",
        "The configuration of each kind that is best on validation. Thick: the mean over seeds, as far as all of them "
        "were trained; thin: each seed.",
        f"Validation {study.score} on {study.title} against epochs, mean over seeds. {'; '.join(said)}.",
        *draw(paint),
    )


def _times(study: Study) -> Figure | None:
    """Draw the time of a run against parameters of an aggregator."""
    points = {kind: found for kind in study.kinds if (found := _points(study.of(kind), lambda each: each.seconds))}
    if not points:
        return None

    def paint(axes: "Axes") -> None:
        for kind, found in points.items():
            _plot_spreads(axes, found, study.look(kind)._replace(linestyle="none"), label(kind), 1 / 60)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _plain_log(axes.xaxis)
        _plain_log(axes.yaxis)
        axes.set_xlabel("parameters of one aggregation")
        axes.set_ylabel("minutes a run")

    minutes = {kind: [point.y.mean / 60 for point in found] for kind, found in points.items()}
    said = [f"{kind} {min(found):,.1f} minutes to {max(found):,.1f} minutes" for kind, found in minutes.items()]
    return Figure(
        f"{study.slug}-time",
        f"{study.title}: time of a run",
        "Processor time of training, mean over seeds, bars of one standard deviation; it depends on the machine and on the "
        "number of epochs.",
        f"Minutes of training on {study.title} against the number of parameters of one aggregation. {'; '.join(said)}.",
        *draw(paint),
    )


def pooled(summary: Summary, group: str) -> dict[str, tuple[int, int]]:
    """Add up right answers and answers of all seeds in each bin of a group; empty bins are left out."""
    totals: dict[str, tuple[int, int]] = {}
    for run in summary.runs:
        for name, (right, count) in run.groups.get(group, {}).items():
            before = totals.get(name, (0, 0))
            totals[name] = (before[0] + right, before[1] + count)
    return {name: total for name, total in totals.items() if total[1]}


def mean_curve(curves: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    """Return the mean of curves up to the end of the shortest.

    >>> mean_curve([[0.5, 0.7, 0.9], [0.7, 0.9]]).round(2).tolist()
    [0.6, 0.8]
    """
    shortest = min(map(len, curves))
    mean: npt.NDArray[np.float64] = np.mean([curve[:shortest] for curve in curves], axis=0)  # (epochs,)
    return mean


def label(text: str) -> str:
    r"""Return a legend entry that matplotlib shows literally, shortened if it is too long.

    >>> label("_a $x$")
    ' _a \\$x\\$'
    """
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def short(value: float) -> str:
    """Write a number of an axis in few characters.

    >>> [short(value) for value in (0.3, 20, 3000, 1e6)]
    ['0.3', '20', '3k', '1M']
    """
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"


def require_matplotlib() -> None:
    """Raise an error with a remedy if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "a report needs the package matplotlib for its figures; pip install 'treefold[plot]'."
        ) from None


def draw(paint: Callable[["Axes"], None]) -> tuple[bytes, str]:
    """Return a figure as PNG and SVG, with a legend below the axes.

    >>> png, svg = draw(lambda axes: axes.set_xlabel("number of operators"))
    >>> "number of operators" in svg
    True
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a kind's name in another script
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_STYLE, use_default_template=False))
        figure = Canvas(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.subplots()
        paint(axes)
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            columns = 2 if max(map(len, labels)) <= _HALF else 1
            figure.set_size_inches(_WIDTH, _HEIGHT + 0.2 * -(-len(labels) // columns))
            figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.6)
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(png, format="png", dpi=180, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return png.getvalue(), svg.getvalue()


def _points(summaries: Sequence[Summary], value: Callable[[Summary], Spread | None]) -> list[_Point]:
    found = [(each.first.aggregator_parameters, value(each)) for each in summaries]
    return sorted((_Point(x, y) for x, y in found if x and y is not None), key=lambda point: point.x)


def _plot_spreads(axes: "Axes", points: Sequence[_Point], style: Look, name: str | None, factor: float) -> None:
    axes.errorbar(
        [point.x for point in points],
        [factor * point.y.mean for point in points],
        yerr=[factor * (point.y.deviation or 0) for point in points],
        **style._asdict(),
        capsize=2.5,
        elinewidth=1,
        label=name,
    )


def _plain_log(axis: "Axis") -> None:
    """Label a log axis with plain numbers: 300, 10k, 1M."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0,)))
    low, high = axis.get_view_interval()
    decades = np.log10(high / low) if low > 0 else 9.0
    if decades < 2.5:
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades > 1 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, place: short(value)))
    axis.set_minor_formatter(NullFormatter())


def _bin_order(name: str) -> tuple[float, str]:
    number = re.search(r"\d+", name)
    return (float(number[0]) if number else float("inf"), name)


def _best_words(top: Summary) -> str:
    counted = top.first.aggregator_parameters
    score = f"best {100 * top.validation.mean:.1f} %" if top.validation else ""
    return score + ("" if counted is None else f" with {counted:,} parameters")


def _share(share: tuple[int, int]) -> str:
    return f"{100 * share[0] / share[1]:.1f} %"
