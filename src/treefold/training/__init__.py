"""Training: one loop on plain torch, with checkpoints from which a killed run goes on bit for bit."""

from treefold.training.examples import Examples
from treefold.training.run import resume, train
from treefold.training.trainer import Progress, Reporter, Result, fit

__all__ = ["Examples", "Progress", "Reporter", "Result", "fit", "resume", "train"]
