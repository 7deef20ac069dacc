"""What notebooks show of a fitted estimator: a summary, and the plot of its training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from treefold.errors import ConfigurationError
from treefold.training.saving import SavedModel
from treefold.trees.drawing import escaped, html_box, html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN: Final = ("cell", "aggregator", "state_size", "rank", "labels", "direction", "readout", "wide", "hidden")


def summary(saved: SavedModel, history: Sequence[dict[str, Any]]) -> str:
    """Return HTML: the chosen model and its size, the epochs and their best score on validation, and why it was chosen."""
    model, training = saved.settings.model, saved.settings.training
    rows = [(name, value) for name in _SHOWN if (value := getattr(model, name)) is not None]
    rows.append(("parameters", f"{sum(each.numel() for each in saved.model.parameters()):,}"))
    if history:
        rows.append(("epochs", f"{len(history):,} of {training.epochs:,}"))
    measured = [epoch for epoch in history if "validation_score" in epoch]
    if measured:
        best = max(measured, key=lambda epoch: (epoch["validation_score"], -epoch["validation_loss"]))
        best = measured[-1] if training.keep == "last" else best
        score = f"{saved.task.score_name} {best['validation_score']:.4f}, loss {best['validation_loss']:.4f}"
        rows.append(("on validation", f"{score}, after epoch {best['epoch']}"))
    reasons = "".join(f"<li>{escaped(reason)}</li>" for reason in saved.reasons)
    why = f"<details><summary>why these settings</summary><ul>{reasons}</ul></details>" if reasons else ""
    return html_box(html_table(rows), why)


def plot(history: Sequence[dict[str, Any]], score_name: str) -> "list[Axes]":
    """Plot losses and scores against epochs; return the axes of the losses and, if there are scores, those of the scores."""
    try:
        from matplotlib import pyplot
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise ConfigurationError(
            "plot_history needs the package matplotlib; pip install 'treefold[plot]', or use history_, a list of dicts."
        ) from None
    names = {"loss": ("loss", "validation_loss"), score_name: ("accuracy", "validation_score")}
    panels = {label: [key for key in keys if key in history[-1]] for label, keys in names.items()}
    panels = {label: keys for label, keys in panels.items() if keys}
    size = (4.5 * len(panels), 3.2)
    row = pyplot.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")[1][0]
    stages = [epoch.get("stage", 1) for epoch in history]
    starts = [place for place in range(1, len(stages)) if stages[place] != stages[place - 1]]
    for axes, (label, keys) in zip(row, panels.items(), strict=True):
        for key in keys:
            epochs = [epoch["epoch"] for epoch in history if key in epoch]
            name, marker = "validation" if "validation" in key else "training", "o" if len(epochs) == 1 else None
            axes.plot(epochs, [epoch[key] for epoch in history if key in epoch], label=name, marker=marker)
        for place in starts:
            start = history[place]["epoch"] - 0.5
            axes.axvline(start, color="grey", linestyle=":", linewidth=1)
            axes.text(start, 1, f" stage {stages[place]}", transform=axes.get_xaxis_transform(), va="top", color="grey")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="epoch", ylabel=label)
        axes.legend()
    return list(row)
