"""The figures of a report, as PNG and SVG: equal results give equal bytes, and nothing refers outside the file."""

import io
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from treefold.errors import ConfigurationError
from treefold.sweeps.report.summary import (
    Data,
    DataNames,
    Measure,
    Spread,
    Summary,
    best,
    numbers_of,
    same_kind,
    title_of,
    varied,
)
from treefold.trees.drawing import escaped
from treefold.trees.tree import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 4.4, 3.2  # inches; on a phone a point of text is then about a pixel
_LONGEST, _HALF = 46, 20  # characters of a line in a legend with one column, and with two
_STYLE: Final = Path(__file__).with_name("figures.mplstyle")

# The colours of Okabe and Ito, which colour-blind readers can tell apart, without the pale yellow; markers differ too.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A63D2", "#7A7A7A")
_MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
_LINES: Final = ("-", "--", "-.", ":")

_PAGE_COLOURS: Final = {
    "#1f2933": "ink",
    "#ffffff": "sheet",
    "#e4e7eb": "line",
    "#0072b2": "blue",
}  # for light and dark pages

_GROUPS: Final = {  # name in file names, name in titles, label of the axis
    "by_operators": ("operators", "number of operators", "number of operators, of the longer sentence"),
    "by_depth": ("depth", "depth", "depth of the tree"),
    "by_size": ("size", "size", "size of the tree, in nodes"),
}
_MOST_TICKS: Final = 14
_FEW_GROUPS: Final = 8
_MOST_LINES: Final = 12  # in a figure of all configurations; more of them are points without lines
_MOST_SETTINGS: Final = 4  # with a figure of their own
_SHOWN: Final = 5  # configurations with a learning curve if there is only one kind
_WRITTEN_CLASSES: Final = 12  # of a confusion matrix with numbers
_LONGEST_CLASS: Final = 14  # characters
_LOWEST_SHOWN: Final = -1.0  # of R², which has no lower bound
_NOT_SHOWN: Final = " Scores below −1 are not shown."


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
    """Published values to draw beside ours: for each kind, pairs of parameters and validation score in %.

    Those of a kind are joined, unless they are ``apart`` because they differ in more than one setting.
    """

    name: str
    points: Mapping[str, Sequence[tuple[int, float]]]
    apart: Collection[str] = ()


class Shown(NamedTuple):
    """A configuration of a figure, with its name and its look."""

    name: str
    look: Look
    summary: Summary


@final
@dataclass(frozen=True)
class Study:
    """Results that are drawn together: those of one grid, or of several grids on the same data."""

    title: str
    slug: str  # for file names and anchors
    summaries: tuple[Summary, ...]
    palette: tuple[str, ...]  # kinds in the order of their looks
    reference: Reference | None = None
    of_aggregators: bool = False  # whether parameters are those of one aggregator, and not of the model

    @property
    def measure(self) -> Measure:
        """The score."""
        return self.summaries[0].measure

    @property
    def kinds(self) -> list[str]:
        """The kinds in the order of the palette."""
        return sorted({each.kind for each in self.summaries}, key=self.palette.index)

    def of(self, kind: str) -> list[Summary]:
        """Return the summaries of a kind."""
        return [each for each in self.summaries if each.kind == kind]

    def leaders(self) -> list[Shown]:
        """Return the configuration of each kind that is best on validation; of one kind, the best few."""
        tops = [top for kind in self.kinds if (top := best(self.of(kind))) is not None]
        if len(self.kinds) > 1:
            return [Shown(title_of(top, self.summaries), self.look(top.kind), top) for top in tops]
        order = sorted((each for each in self.summaries if each.validation), key=_mean, reverse=True)[:_SHOWN]
        return [Shown(title_of(each, self.summaries), look(place), each) for place, each in enumerate(order)]

    def look(self, kind: str) -> Look:
        """Return the look of a kind, the same in all studies with this palette."""
        return look(self.palette.index(kind))

    def parameters(self, summary: Summary) -> int | None:
        """Return the number of parameters of a model, or of one aggregator."""
        return summary.first.aggregator_parameters if self.of_aggregators else summary.first.parameters


def _mean(summary: Summary) -> float:
    return summary.validation.mean if summary.validation else -math.inf


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
        head = head.replace("<svg", f'<svg role="img" aria-label="{escaped(self.description)}"', 1)
        text = f"{head}>{tail}".replace("xlink:href=", "href=")
        for colour, variable in _PAGE_COLOURS.items():
            text = re.sub(rf"(?<=: ){colour}\b", f"var(--{variable})", text)
        text = re.sub(r'\bid="([^"]+)"', rf'id="{self.name}-\1"', text)
        text = re.sub(r'href="#([^"]+)"', rf'href="#{self.name}-\1"', text)
        return re.sub(r"url\(#([^)]+)\)", rf"url(#{self.name}-\1)", text)


def figures_of(study: Study) -> list[Figure]:
    """Draw the figures for which a study has results."""
    found = [_parameters(study), *_settings(study), _times(study), _curves(study)]
    found += [*(_groups(study, group) for group in _GROUPS), _confusion(study)]
    drawn = [figure for figure in found if figure is not None]
    different = len({each.data for each in study.summaries})
    if different > 1:
        caution = f" Caution: results on {different} different data sets are shown together."
        drawn = [replace(figure, caption=figure.caption + caution) for figure in drawn]
    return drawn


class Line(NamedTuple):
    """Scores that are drawn together, with their places on the axis; they are joined if they differ in one number only."""

    name: str
    look: Look
    points: tuple[tuple[float, Spread], ...]


def _line(name: str, look: Look, members: Iterable[Summary], x: Callable[[Summary], float | None]) -> Line:
    points = [(place, each.validation) for each in members if (place := x(each)) is not None and each.validation]
    return Line(name, look, tuple(sorted(points, key=lambda point: point[0])))


def _parameters(study: Study) -> Figure | None:
    """Draw validation score against parameters, with the reference values if there are any."""
    if len(study.summaries) > 1 and len({study.parameters(each) for each in study.summaries}) == 1:
        return None
    what = "parameters of one aggregation" if study.of_aggregators else "parameters of the model"
    reference, ours = study.reference, ", ours" if study.reference else ""
    lines: list[Line] = []
    for place, kind in enumerate(study.kinds):
        joined = _joined(study, kind)
        for number, (name, members, is_line) in enumerate(joined):
            colour, marker, stroke = study.look(kind) if len(study.kinds) > 1 else look(number)
            marker = _MARKERS[(place + len(_GROUPS) * number) % len(_MARKERS)] if number else marker
            stroke = _LINES[number % len(_LINES)] if is_line else "none"
            lines.append(_line(f"{name}{ours}", Look(colour, marker, stroke), members, study.parameters))
    if sum(line.look.linestyle != "none" for line in lines) > _MOST_LINES:
        lines = [
            _line(f"{kind}{ours}", study.look(kind)._replace(linestyle="none"), study.of(kind), study.parameters)
            for kind in study.kinds
        ]

    def paint(axes: "Axes") -> None:
        if reference is not None:
            _plot_reference(axes, reference, study)
        _logarithmic(axes)

    said = []
    for kind, values in reference.points.items() if reference else ():
        parameters, score = max(values, key=lambda value: value[1])
        said.append(f"{kind} in {reference.name if reference else ''}: best {score:.1f} % with {parameters:,}")
    hollow = f" Hollow: {reference.name}." if reference else ""
    return _scores(study, "parameters", "parameters", what, lines, paint, said, hollow)


def _plot_reference(axes: "Axes", reference: Reference, study: Study) -> None:
    for kind, values in reference.points.items():
        axes.plot(
            *zip(*sorted(values), strict=True),
            color=study.look(kind).color,
            marker=study.look(kind).marker,
            linestyle="none" if kind in reference.apart else (0, (1, 1.6)),
            linewidth=1,
            markersize=4.5,
            markerfacecolor="white",
            zorder=4,
            label=f"{kind}, {reference.name}",
        )


def _joined(study: Study, kind: str) -> list[tuple[str, list[Summary], bool]]:
    """Split the configurations of a kind into lines, each along the number that changes parameters most, and points.

    Returns their names, and whether they are a line.
    """
    found: list[tuple[str, list[Summary], bool]] = []
    data, groups = DataNames(study.summaries), dict[tuple[str, Data], list[Summary]]()
    for each in study.of(kind):
        groups.setdefault((each.grid, each.data), []).append(each)
    grids = {grid for grid, _ in groups}
    for (grid, _), members in groups.items():
        where = ", ".join(filter(None, (grid if len(grids) > 1 else "", data.name(members[0]))))
        where = f" ({where})" if where else ""
        ways = [(name, _split(members, name)) for name in varied(members) if numbers_of(name, members)]
        name, lines = max(ways, key=lambda way: _reach(study, way[1]), default=("", []))
        if not _reach(study, lines):
            found.append((f"{kind}{where}", members, False))
            continue
        alone = [each for line in lines if len(line) == 1 for each in line]
        found += [(f"{title_of(line[0], members, [name])}{where}", line, True) for line in lines if len(line) > 1]
        found += [(f"{kind}, others{where}", alone, False)] if alone else []
    return found


def _split(members: Sequence[Summary], name: str) -> list[list[Summary]]:
    """Split summaries into those that differ in one setting only."""
    lines: dict[str, list[Summary]] = {}
    for each in members:
        lines.setdefault(each.without(name), []).append(each)
    return list(lines.values())


def _reach(study: Study, lines: Sequence[Sequence[Summary]]) -> float:
    """Return how far parameters change along lines, on a log scale."""
    counts = [[count for each in line if (count := study.parameters(each))] for line in lines]
    return sum(math.log(max(line) / min(line)) for line in counts if line)


def _settings(study: Study) -> list[Figure]:
    """Draw the score against each number that was varied; other settings are those of the best configuration of each kind."""
    if study.reference is not None:
        return []
    tops = [top for kind in study.kinds if (top := best(study.of(kind))) is not None]
    lines: dict[str, list[Line]] = {}
    for top in tops:
        near = same_kind(top, study.summaries)
        for name in varied(near):
            along = [each for each in near if each.without(name) == top.without(name) and each.data == top.data]
            values = numbers_of(name, along)
            if values and len(values) > 1:
                title, style = title_of(top, study.summaries, [name]), study.look(top.kind)
                line = _line(title, style, along, lambda each, name=name: each.settings[name])  # type: ignore[misc]
                lines.setdefault(name, []).append(line)
    most = sorted(lines, key=lambda name: -max(len(line.points) for line in lines[name]))[:_MOST_SETTINGS]
    note = " Other settings are those of the best configuration."
    found = [_scores(study, name, name, name, lines[name], _number_axis(lines[name]), [], note) for name in most]
    return [figure for figure in found if figure is not None]


def _number_axis(lines: Sequence[Line]) -> Callable[["Axes"], None]:
    values = sorted({x for line in lines for x, _ in line.points})

    def paint(axes: "Axes") -> None:
        if values and values[0] > 0 and values[-1] >= 10 * values[0]:
            _logarithmic(axes)
        if len(values) <= _FEW_GROUPS:
            from matplotlib.ticker import NullLocator

            axes.set_xticks(values, [short(value) for value in values])
            axes.xaxis.set_minor_locator(NullLocator())

    return paint


def _times(study: Study) -> Figure | None:
    """Draw validation score against the time of a run."""
    seconds = [each.seconds.mean for each in study.summaries if each.seconds]
    size, unit = time_unit(max(seconds, default=0.0))
    lines = [
        _line(
            kind,
            study.look(kind)._replace(linestyle="none"),
            study.of(kind),
            lambda each: each.seconds and each.seconds.mean / size,
        )
        for kind in study.kinds
    ]

    def paint(axes: "Axes") -> None:
        if seconds and max(seconds) > 5 * min(seconds) > 0:
            _logarithmic(axes)
        else:
            axes.set_xlim(left=0)

    note = " Processor time of training; it depends on the machine and on the number of epochs."
    axis = f"{unit} of training a run"
    return _scores(study, "time", "time", axis, lines, paint, [], note)


def _scores(
    study: Study,
    name: str,
    against: str,
    axis: str,
    lines: Sequence[Line],
    paint_axis: Callable[["Axes"], None],
    said: Sequence[str],
    note: str,
) -> Figure | None:
    """Draw the validation score against a number."""
    measure, all_lines = study.measure, lines
    lines = [
        line._replace(points=tuple(each for each in line.points if each[1].mean >= _LOWEST_SHOWN)) for line in lines
    ]
    note += _NOT_SHOWN if lines != all_lines else ""
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    bars = "bars of one standard deviation" if any(s.deviation for line in lines for _, s in line.points) else ""

    def paint(axes: "Axes") -> None:
        for line in lines:
            means = np.array([spread.mean for _, spread in line.points])
            deviations = np.array([spread.deviation or 0.0 for _, spread in line.points])
            # No bar ends where no score can be.
            below = np.minimum(deviations, means) if measure.is_share else deviations
            above = np.minimum(deviations, np.maximum(1 - means, 0))
            axes.errorbar(
                [x for x, _ in line.points],
                measure.factor * means,
                yerr=measure.factor * np.stack([below, above]),
                **line.look._asdict(),
                capsize=2.5,
                elinewidth=1,
                clip_on=False,
                label=label(line.name),
            )
        axes.set_xlabel(axis)
        axes.set_ylabel(f"validation {measure.title}")
        paint_axis(axes)
        _end_at_bounds(axes, measure)

    tops = [(line.name, max(line.points, key=lambda point: point[1].mean)) for line in lines]
    words = [f"{name}: best {measure.short(spread.mean)} at {x:,.4g}" for name, (x, spread) in tops]
    return Figure(
        f"{study.slug}-{name.replace('_', '-')}",
        f"{study.title}: validation {measure.name} against {against}",
        f"{'; '.join(filter(None, ('Mean over seeds', bars)))}.{note}",
        f"Validation {measure.name} on {study.title} against {axis}. {'; '.join([*words, *said])}.",
        *draw(paint),
    )


def _end_at_bounds(axes: "Axes", measure: Measure) -> None:
    """End the axis of scores where scores end."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0) if measure.is_share else low, min(high, float(measure.factor)))


def _groups(study: Study, group: str) -> Figure | None:
    """Draw the score by a property of the trees for the best configuration of each kind, answers of all seeds pooled."""
    shares = [(shown, found) for shown in study.leaders() if (found := pooled(shown.summary, group))]
    if not shares:
        return None
    bins = sorted({name for _, found in shares for name in found}, key=_bin_order)
    name, title, axis = _GROUPS[group]
    measure, tested = study.measure, any(shown.summary.is_tested for shown, _ in shares)

    def paint(axes: "Axes") -> None:
        for shown, found in shares:
            known = [place for place, each in enumerate(bins) if each in found]
            values = [100 * found[bins[place]][0] / found[bins[place]][1] for place in known]
            axes.plot(known, values, **shown.look._asdict(), clip_on=False, label=label(shown.name))
        places = range(0, len(bins), -(-len(bins) // _MOST_TICKS))
        long = max(len(bins[place]) for place in places) * len(places) > 44
        names = [bins[place] for place in places]
        axes.set_xticks(places, names, rotation=45 if long else 0, ha="right" if long else "center")
        axes.set_xlabel(axis)
        axes.set_ylabel(f"{'test' if tested else 'validation'} {measure.title}")
        _end_at_bounds(axes, measure)

    ends = [
        f"{shown.name} from {_share(found[known[0]])} at {known[0]} to {_share(found[known[-1]])} at {known[-1]}"
        for shown, found in shares
        if (known := [each for each in bins if each in found])
    ]
    counts = ""
    if len(bins) <= _FEW_GROUPS:
        most = {each: max(found[each][1] for _, found in shares if each in found) for each in bins}
        runs = max(len(shown.summary.runs) for shown, _ in shares)
        counts = f" Answers for each point, all seeds together (at most {runs}): "
        counts += ", ".join(f"{each}: {count:,}" for each, count in most.items()) + "."
    return Figure(
        f"{study.slug}-{name}",
        f"{study.title}: {measure.name} by {title}",
        f"On {'the test set' if tested else 'validation'}, for {_chosen(study)}; seeds are pooled.{counts}",
        f"{measure.name.capitalize()} on {study.title} by {axis}. {'; '.join(ends)}.",
        *draw(paint),
    )


def _chosen(study: Study) -> str:
    several = "the configuration of each kind that is best on validation"
    return several if len(study.kinds) > 1 else "the best configurations on validation"


def _curves(study: Study) -> Figure | None:
    """Draw validation score against epochs: the mean over seeds, as far as all of them were trained, and each seed."""
    leaders, measure = study.leaders(), study.measure
    curves = [(shown, found) for shown in leaders if (found := _curves_of(shown.summary, "validation_score"))]
    if not curves:
        return None
    leader = max((shown for shown, _ in curves), key=lambda shown: _mean(shown.summary))
    training = _curves_of(leader.summary, "accuracy") if measure.is_share else []

    def paint(axes: "Axes") -> None:
        from matplotlib.ticker import MaxNLocator

        for shown, found in curves:
            for curve in found:
                values = [measure.factor * score for score in curve]
                axes.plot(range(1, len(curve) + 1), values, color=shown.look.color, alpha=0.3, linewidth=0.8)
            mean = measure.factor * mean_curve(found)
            mean[mean < _LOWEST_SHOWN] = np.nan
            style = {**shown.look._asdict(), "markevery": max(1, len(mean) // 8), "clip_on": False}
            axes.plot(np.arange(1, len(mean) + 1), mean, **style, label=label(shown.name))
        if training:
            mean = measure.factor * mean_curve(training)
            name = "the best one, on its training examples"
            axes.plot(np.arange(1, len(mean) + 1), mean, color=leader.look.color, ls=":", linewidth=1.4, label=name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"validation {measure.title}")
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, _LOWEST_SHOWN), high)
        _end_at_bounds(axes, measure)

    said = [
        f"{shown.name} reaches {measure.short(float(np.nanmax(mean)))} in epoch {int(np.nanargmax(mean)) + 1}"
        for shown, found in curves
        if not np.isnan(mean := mean_curve(found)).all()
    ]
    is_cut = any(score < _LOWEST_SHOWN for _, found in curves for curve in found for score in curve)
    return Figure(
        f"{study.slug}-curves",
        f"{study.title}: learning curves",
        f"For {_chosen(study)}. Thick: the mean over seeds, as far as all of them were trained; thin: each seed."
        + (" Dotted: on the training examples, as the weights were during the epoch." if training else "")
        + (_NOT_SHOWN if is_cut else ""),
        f"Validation {measure.name} on {study.title} against epochs, mean over seeds. {'; '.join(said)}.",
        *draw(paint),
    )


def _curves_of(summary: Summary, name: str) -> list[list[float]]:
    return [curve for run in summary.runs if (curve := run.curves.get(name))]


def confusion_of(summary: Summary) -> npt.NDArray[np.int64] | None:
    """Return the confusion matrix of a configuration, added up over its seeds; None if results have none."""
    size = len(summary.first.classes)
    known = [run.confusion for run in summary.runs if size and run.classes == summary.first.classes]
    whole = [np.array(each, np.int64) for each in known if [len(row) for row in each] == [size] * size]
    return np.sum(whole, axis=0) if whole else None


def _confusion(study: Study) -> Figure | None:
    """Draw the confusion matrix of the best configuration."""
    top = best(study.summaries)
    counts = confusion_of(top) if top is not None else None
    if top is None or counts is None:
        return None
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    classes = [each if len(each) <= _LONGEST_CLASS else f"{each[: _LONGEST_CLASS - 1]}…" for each in top.first.classes]
    title = title_of(top, study.summaries)

    def paint(axes: "Axes") -> None:
        axes.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100, aspect="auto")
        axes.grid(visible=False)
        places = range(len(classes))
        axes.set_xticks(places, map(label, classes), rotation=90 if max(map(len, classes)) > 3 else 0)
        axes.set_yticks(places, map(label, classes))
        axes.set_xlabel("prediction")
        axes.set_ylabel("class")
        for row, column in np.argwhere(counts) if len(classes) <= _WRITTEN_CLASSES else ():
            colour, size = "#fefefe" if shares[row, column] > 0.55 else "#1f2934", 8 if len(classes) < 9 else 6.5
            axes.text(column, row, f"{counts[row, column]:,}", ha="center", va="center", color=colour, fontsize=size)

    wrong = counts * (1 - np.eye(len(classes), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:3]
    pairs = [divmod(int(place), len(classes)) for place in order if wrong.flat[place]]
    said = [
        f"{top.first.classes[row]} taken for {top.first.classes[column]}: {wrong[row, column]:,}"
        for row, column in pairs
    ]
    return Figure(
        f"{study.slug}-confusion",
        f"{study.title}: confusion of the best configuration",
        f"{title}, on {'the test set' if top.is_tested else 'validation'}, all seeds together. Rows: the class; colours: the "
        "share of the class with this prediction.",
        f"Confusion matrix of {title}: {np.trace(counts):,} of {counts.sum():,} right. {'; '.join(said)}",
        *draw(paint, tall=True),
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
    r"""Return a legend entry that matplotlib shows literally, in several lines if it is long.

    >>> label("_a $x$")
    ' _a \\$x\\$'
    """
    short = textwrap.fill(printable(text), _LONGEST, max_lines=3, placeholder="…")
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


def time_unit(seconds: float) -> tuple[int, str]:
    """Return a unit for times up to this one, with its seconds.

    >>> time_unit(90), time_unit(7200)
    ((1, 'seconds'), (3600, 'hours'))
    """
    return next(
        ((size, name) for size, name in ((3600, "hours"), (60, "minutes")) if seconds >= 2 * size), (1, "seconds")
    )


def require_matplotlib() -> None:
    """Raise an error with a remedy if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "a report needs the package matplotlib for its figures; pip install 'treefold[plot]'."
        ) from None


def draw(paint: Callable[["Axes"], None], *, tall: bool = False) -> tuple[bytes, str]:
    """Return a figure as PNG and SVG, with a legend below the axes.

    >>> png, svg = draw(lambda axes: axes.set_xlabel("number of operators"))
    >>> "number of operators" in svg
    True
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from|Matplotlib currently does not support"
        )  # other scripts
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_STYLE, use_default_template=False))
        height = _WIDTH if tall else _HEIGHT
        figure = Canvas(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots()
        paint(axes)
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            columns = 2 if max(map(len, labels)) <= _HALF else 1
            rows = -(-len(labels) // columns) + sum(each.count("\n") for each in labels)
            figure.set_size_inches(_WIDTH, height + 0.2 * rows)
            figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=2.6)
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(png, format="png", dpi=180, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return png.getvalue(), svg.getvalue()


def _logarithmic(axes: "Axes") -> None:
    """Make the horizontal axis logarithmic, labelled with plain numbers: 300, 10k, 1M."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axis = axes.xaxis
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


def _share(share: tuple[int, int]) -> str:
    return f"{100 * share[0] / share[1]:.1f} %"
