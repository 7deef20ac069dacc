"""Training: one loop on plain torch, with checkpoints from which a killed run goes on bit for bit."""

from treefold.training.examples import Examples
from treefold.training.loop import Progress, Reporter, Result, fit
from treefold.training.run import resume, train

__all__ = ["Examples", "Progress", "Reporter", "Result", "fit", "resume", "train"]
