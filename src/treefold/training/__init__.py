"""Training: from settings and a data set to a model, with checkpoints from which an interrupted run resumes bit for bit.

- settings: all choices, read from TOML; plugins: the user's own parts, called by name in settings
- task: what is learnt (trees, pairs, nodes, numbers); examples: trees with targets
- build: the model that settings and data ask for
- wide: the fit of the linear part, and its share in the answer
- trainer: the training loop; distributed: several processes that share it
- run: training in a run directory; saving: models in directories
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treefold.training.examples import Examples
    from treefold.training.plugins import load_plugin
    from treefold.training.run import resume, train
    from treefold.training.task import TASKS, Task
    from treefold.training.trainer import Progress, Reporter, Result, fit

__all__ = ["TASKS", "Examples", "Progress", "Reporter", "Result", "Task", "fit", "load_plugin", "resume", "train"]

# Imported when first used, so that settings can be read without torch.
_MODULES = {
    "examples": ["Examples"],
    "plugins": ["load_plugin"],
    "run": ["resume", "train"],
    "task": ["TASKS", "Task"],
    "trainer": ["Progress", "Reporter", "Result", "fit"],
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
