from pathlib import Path
from typing import Any, NamedTuple, final

import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D

from tests.sweeps.report.made_up import LISTOPS_SIZES, ODD, beyond, result, sweep, write
from treefold.sweeps.report import Document, write_report


@final
class Drawn:
    """The axes of the figures that a test draws."""

    def __init__(self) -> None:
        self.axes: list[Axes] = []

    def points(self, figure: int) -> dict[str, Any]:
        """The points of each line in a figure, by its name in the legend."""
        axes = self.axes[figure]
        named = dict(
            zip(
                reversed(axes.get_legend_handles_labels()[1]),
                reversed(axes.get_legend_handles_labels()[0]),
                strict=True,
            )
        )
        lines = {name: each[0] if isinstance(each, ErrorbarContainer) else each for name, each in named.items()}
        return {name: [(float(x), float(y)) for x, y in line.get_xydata()] for name, line in lines.items()}

    def labelled(self, name: str) -> list[Line2D]:
        """The lines with this name, in all figures."""
        return [line for axes in self.axes for line in axes.lines if line.get_label() == name]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    from treefold.sweeps.report import figures

    found, draw = Drawn(), figures.draw

    def noted(paint: Any, **options: Any) -> tuple[bytes, str]:
        def watched(axes: Axes) -> None:
            paint(axes)
            found.axes.append(axes)

        return draw(watched, **options)

    monkeypatch.setattr(figures, "draw", noted)
    return found


class Written(NamedTuple):
    document: Document
    folder: Path


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A report on two sweeps, written once for all tests, with a kind whose name each format must escape."""
    place = tmp_path_factory.mktemp("sweeps")
    sweeps = [
        write(place / "listops", [*sweep("listops", LISTOPS_SIZES, seeds=2), result("listops", ODD, 7, 2)]),
        write(place / "beyond", beyond(seeds=1)),
    ]
    document, _ = write_report(sweeps, place / "out")
    return Written(document, place / "out")
