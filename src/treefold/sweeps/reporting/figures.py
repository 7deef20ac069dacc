"""The figures of a report: which there are, what they show, and the words for those who cannot see them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from treefold.sweeps.reporting.paper_tables import Published
from treefold.sweeps.reporting.plotting import Images, Look, draw, inline, label
from treefold.sweeps.reporting.studies import Study, mean_curve, pooled
from treefold.sweeps.reporting.summary import Configuration, Spread, best

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GROUPS: Final = {
    "by_operators": ("operators", "number of operators, of the longer sentence"),
    "by_depth": ("depth", "depth of the tree"),
    "by_size": ("size", "size of the tree, in nodes"),
}
_MOST_TICKS: Final = 14
_FEW_GROUPS: Final = 8


@final
@dataclass(frozen=True)
class Figure:
    """A figure with its file name, its title, a caption, and a description in words."""

    name: str
    title: str
    caption: str
    description: str
    images: Images

    def inline(self) -> str:
        """Return it as an element of an HTML page."""
        return inline(self.images.svg, self.name, self.description)


class _Point(NamedTuple):
    x: float
    y: Spread


def figures_of(study: Study) -> list[Figure]:
    """Draw what the results of a study allow."""
    makers: list[Callable[[Study], Figure | None]] = [_parameters]
    present = {name for each in study.configurations for run in each.runs for name in run.groups}
    pairs = study.configurations[0].first.settings.task == "pair"
    wanted = ("by_operators",) if pairs and "by_operators" in present else ("by_depth", "by_size")
    makers += [lambda each, name=name: _groups(each, name) for name in wanted]  # type: ignore[misc]
    makers += [_curves, _times]
    drawn = [figure for make in makers if (figure := make(study)) is not None]
    different = len({each.data for each in study.configurations})
    if different > 1:
        caution = f" Caution: results on {different} different data sets are shown together."
        drawn = [replace(figure, caption=figure.caption + caution) for figure in drawn]
    return drawn


def _parameters(study: Study) -> Figure | None:
    """Draw validation against parameters of an aggregation: the paper's figures, with its points and ours."""
    lines = {
        (kind, part): points
        for kind in study.kinds
        for part, points in _lines(study, kind, lambda each: each.validation).items()
    }
    if not lines:
        return None
    published = study.paper.validation if study.paper else {}

    def paint(axes: "Axes") -> None:
        for kind, rows in published.items():
            style = study.look(kind)
            values = sorted(rows, key=lambda row: row.parameters)
            axes.plot(
                [row.parameters for row in values],
                [row.mean for row in values],
                color=style.color,
                marker=style.marker,
                linestyle=(0, (1, 1.6)),
                linewidth=1,
                markersize=4.5,
                markerfacecolor="white",
                zorder=4,
                label=f"{kind}, the paper",
            )
        named: set[str] = set()
        for (kind, _), points in lines.items():
            _plot_spreads(axes, points, study.look(kind), None if kind in named else label(f"{kind}, ours"), 100)
            named.add(kind)
        axes.set_xscale("log")
        _plain_log(axes.xaxis)
        axes.set_xlabel("parameters of one aggregation")
        axes.set_ylabel(f"validation {study.score}, %")

    join = ""
    if "Hosvd" in study.kinds and study.paper:
        joined = "state size" if not study.paper.one_size_column else "smallest, middle and largest rank"
        join = f" The lines of the Hosvd-LSTM join configurations of one {joined}, as in the paper."
        join = join.replace("one smallest, middle and largest rank", "small, of medium and of large rank")
    said = [f"{kind}: {_best_words(study, kind)}" for kind in study.kinds if best(study.of(kind))]
    paper = [f"{kind} in the paper: {_best_published(rows)}" for kind, rows in published.items()]
    return Figure(
        f"{study.slug}-parameters",
        f"{study.title}: validation {study.score} against parameters",
        f"Mean over seeds, bars of one standard deviation.{' Hollow and dotted: the paper.' if published else ''}{join}",
        f"Validation {study.score} on {study.title} against the number of parameters of one aggregation, on a log scale. "
        f"{'; '.join([*said, *paper])}.",
        draw(paint),
    )


def _groups(study: Study, group: str) -> Figure | None:
    """Draw the accuracy by a property of the trees, for the best configuration of each kind, seeds pooled."""
    tops = {kind: shares for kind, each in study.best_of_each().items() if (shares := pooled(each, group))}
    if not tops:
        return None
    bins = sorted({name for shares in tops.values() for name in shares}, key=_bin_order)
    name, words = _GROUPS[group]
    tested = any(each.test is not None for each in study.best_of_each().values())

    def paint(axes: "Axes") -> None:
        for kind, shares in tops.items():
            known = [place for place, each in enumerate(bins) if each in shares]
            style = study.look(kind)
            axes.plot(
                known,
                [100 * shares[bins[place]][0] / shares[bins[place]][1] for place in known],
                color=style.color,
                marker=style.marker,
                linestyle=style.linestyle,
                label=label(f"{kind}, {study.best_of_each()[kind].sizes()}"),
            )
        step = -(-len(bins) // _MOST_TICKS)
        places = range(0, len(bins), step)
        long = max(len(bins[place]) for place in places) * len(places) > 44
        axes.set_xticks(
            places, [bins[place] for place in places], rotation=45 if long else 0, ha="right" if long else "center"
        )
        axes.set_xlabel(words)
        axes.set_ylabel(f"{'test' if tested else 'validation'} {study.score}, %")

    ends = [
        f"{kind} from {_share(shares[known[0]])} at {known[0]} to {_share(shares[known[-1]])} at {known[-1]}"
        for kind, shares in tops.items()
        if (known := [each for each in bins if each in shares])
    ]
    counts = ""
    if len(bins) <= _FEW_GROUPS:
        most = {each: max(shares[each][1] for shares in tops.values() if each in shares) for each in bins}
        runs = max(len(each.runs) for each in study.best_of_each().values())
        counts = f" Answers behind a point, all seeds together (at most {runs}): "
        counts += ", ".join(f"{each}: {count:,}" for each, count in most.items()) + "."
    split = "the test set" if tested else "validation"
    return Figure(
        f"{study.slug}-{name}",
        f"{study.title}: {study.score} by {name if name != 'operators' else 'number of operators'}",
        f"On {split}, for the configuration of each kind that is best on validation; seeds are pooled.{counts}",
        f"{study.score.capitalize()} on {study.title} by {words}. {'; '.join(ends)}.",
        draw(paint),
    )


def _curves(study: Study) -> Figure | None:
    """Draw validation against epochs: the mean over seeds as far as all of them went, and each seed faintly."""
    curves = {
        kind: [run.curves.get("validation_score", []) for run in each.runs]
        for kind, each in study.best_of_each().items()
    }
    curves = {kind: [curve for curve in found if curve] for kind, found in curves.items()}
    curves = {kind: found for kind, found in curves.items() if found}
    if not curves:
        return None

    def paint(axes: "Axes") -> None:
        for kind, found in curves.items():
            style = study.look(kind)
            for curve in found:
                axes.plot(
                    range(1, len(curve) + 1),
                    [100 * score for score in curve],
                    color=style.color,
                    alpha=0.3,
                    linewidth=0.8,
                )
            mean = 100 * mean_curve(found)
            every = max(1, len(mean) // 8)
            axes.plot(
                np.arange(1, len(mean) + 1),
                mean,
                color=style.color,
                marker=style.marker,
                markevery=every,
                linestyle=style.linestyle,
                label=label(f"{kind}, {study.best_of_each()[kind].sizes()}"),
            )
        from matplotlib.ticker import MaxNLocator

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
        draw(paint),
    )


def _times(study: Study) -> Figure | None:
    """Draw the time of a run against parameters."""
    lines = {kind: _points(study.of(kind), lambda each: each.seconds) for kind in study.kinds}
    lines = {kind: points for kind, points in lines.items() if points}
    if not lines:
        return None

    def paint(axes: "Axes") -> None:
        for kind, points in lines.items():
            _plot_spreads(axes, points, study.look(kind)._replace(linestyle="none"), label(kind), 1 / 60)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _plain_log(axes.xaxis)
        _plain_log(axes.yaxis)
        axes.set_xlabel("parameters of one aggregation")
        axes.set_ylabel("minutes a run")

    said = [
        f"{kind} {_minutes(min(point.y.mean for point in points))} to {_minutes(max(point.y.mean for point in points))}"
        for kind, points in lines.items()
    ]
    return Figure(
        f"{study.slug}-time",
        f"{study.title}: time of a run",
        "Time that the processor spent on training, mean over seeds, bars of one standard deviation; it depends on the machine, "
        "and on how many epochs a run went on.",
        f"Minutes of training on {study.title} against the number of parameters of one aggregation. {'; '.join(said)}.",
        draw(paint),
    )


def _points(configurations: Sequence[Configuration], value: Callable[[Configuration], Spread | None]) -> list[_Point]:
    found = [(each.first.aggregation_parameters, value(each)) for each in configurations]
    return sorted((_Point(x, y) for x, y in found if x and y is not None), key=lambda point: point.x)


def _lines(study: Study, kind: str, value: Callable[[Configuration], Spread | None]) -> dict[str, list[_Point]]:
    """Return what is joined by a line: a kind of a grid with the same other settings, of the Hosvd-LSTM what the paper joins."""
    parts: dict[str, list[Configuration]] = {}
    for each in study.of(kind):
        part = ""
        if kind == "Hosvd" and study.paper is not None:
            ranks = study.paper.ranks.get(each.state_size, ())
            by_rank = study.paper.one_size_column and each.rank in ranks
            part = f"rank {ranks.index(each.rank)}" if by_rank and each.rank else f"size {each.state_size}"
        parts.setdefault(f"{part} {each.grid} {each.recipe}", []).append(each)
    return {part: points for part, found in parts.items() if (points := _points(found, value))}


def _plot_spreads(axes: "Axes", points: Sequence[_Point], style: Look, name: str | None, factor: float) -> None:
    axes.errorbar(
        [point.x for point in points],
        [factor * point.y.mean for point in points],
        yerr=[factor * (point.y.deviation or 0) for point in points],
        color=style.color,
        marker=style.marker,
        linestyle=style.linestyle,
        capsize=2.5,
        elinewidth=1,
        label=name,
    )


def _plain_log(axis: object) -> None:
    """Label a log axis with plain numbers: 300, 10k, 1M."""
    from matplotlib.axis import Axis
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    assert isinstance(axis, Axis)
    axis.set_major_locator(LogLocator(subs=(1.0,)))
    low, high = axis.get_view_interval()
    decades = np.log10(high / low) if low > 0 else 9.0
    if decades < 2.5:
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0) if decades > 1 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, place: short(value)))
    axis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """Write a number of an axis in few characters.

    >>> [short(value) for value in (0.3, 20, 3000, 1e6)]
    ['0.3', '20', '3k', '1M']
    """
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"


def _bin_order(name: str) -> tuple[float, str]:
    number = re.search(r"\d+", name)
    return (float(number[0]) if number else float("inf"), name)


def _best_words(study: Study, kind: str) -> str:
    top = best(study.of(kind))
    assert top is not None and top.validation is not None
    counted = top.first.aggregation_parameters
    return f"best {100 * top.validation.mean:.1f} %" + ("" if counted is None else f" with {counted:,} parameters")


def _best_published(rows: Sequence[Published]) -> str:
    top = max(rows, key=lambda row: row.mean)
    return f"best {top.mean:.1f} % with {top.parameters:,}"


def _share(share: tuple[int, int]) -> str:
    return f"{100 * share[0] / share[1]:.1f} %"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.1f} minutes"
