"""The names of treefold that the benchmarks use beyond the public ones, in one table.

`compare` runs the benchmarks with another checkout of treefold, whose modules may have other names. A name is taken from the
first place that has it: the newest first, then those of earlier versions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__all__ = [
    "Dataset",
    "Examples",
    "RunSettings",
    "TrainingSettings",
    "core_count",
    "epoch_batches",
    "find",
    "fit",
    "listops",
    "lrt",
    "make_listops",
    "outputs_of",
    "predictor_of",
    "reserve_threads_for_kernels",
    "threads",
    "train",
]

PLACES: Final[dict[str, tuple[str, ...]]] = {
    "listops": ("treefold.data.generators.listops", "treefold.datasets.listops"),
    "lrt": ("treefold.data.generators.lrt", "treefold.datasets.lrt"),
    "make_listops": ("treefold.data.generators:make_listops", "treefold.datasets.build:make_listops"),
    "Dataset": ("treefold.data.dataset:Dataset", "treefold.dataset:Dataset"),
    "Examples": ("treefold.training:Examples",),
    "fit": ("treefold.training:fit",),
    "train": ("treefold.training:train",),
    "RunSettings": ("treefold.training.settings:RunSettings", "treefold.settings:RunSettings"),
    "TrainingSettings": ("treefold.training.settings:TrainingSettings", "treefold.settings:TrainingSettings"),
    "epoch_batches": ("treefold.training.examples:epoch_batches", "treefold.training.examples:deal"),
    "outputs_of": ("treefold.training.examples:outputs_of",),
    "reserve_threads_for_kernels": (
        "treefold.kernels.threads:reserve_threads_for_kernels",
        "treefold.kernels:kernels_first",
    ),
    "threads": ("treefold.kernels.threads:threads", "treefold.threads:threads"),
    "core_count": ("treefold.kernels.threads:core_count", "treefold.threads:core_count"),
}
PREDICTORS: Final = (
    "predictor",
    "answering",
)  # the method of `TreeModel` that returns a function (forest, trees) -> outputs


def find(*places: str) -> Any:
    """Return the first of several modules, or names in modules, that exists.

    >>> find("treefold.no_such_module:Forest", "treefold:Forest").__name__
    'Forest'
    """
    for place in places:
        module, _, name = place.partition(":")
        try:
            found = import_module(module)
            return getattr(found, name) if name else found
        except (ModuleNotFoundError, AttributeError):
            continue
    raise ImportError(f"treefold has none of {', '.join(places)}; add the new name to benchmarks/library.py")


if TYPE_CHECKING:
    from treefold.data.dataset import Dataset
    from treefold.data.generators import listops, lrt, make_listops
    from treefold.kernels.threads import core_count, reserve_threads_for_kernels, threads
    from treefold.training import Examples, fit, train
    from treefold.training.examples import epoch_batches, outputs_of
    from treefold.training.settings import RunSettings, TrainingSettings
else:
    for _name, _places in PLACES.items():
        globals()[_name] = find(*_places)


def predictor_of(model: Any) -> Any:
    """Return the function (forest, trees) -> outputs that the model offers for many batches."""
    for name in PREDICTORS:
        if hasattr(model, name):
            return getattr(model, name)()
    raise ImportError(f"TreeModel has none of {', '.join(PREDICTORS)}; add the new name to benchmarks/library.py")
