"""Fused CPU execution of the upward pass: a whole batch in one compiled call, forward and backward.

`compiled` and `vectors` know numba · `tables` names what the kernels are handed · `layout` puts a cell's parameters into one flat
array · `gathering` makes batches · `units` finds equal subtrees, `turns` and `plan` the order of the work · `blocks`, `linear`,
`chains`, `cores` and `symmetric` are the mathematics · `passes` is the loop over a batch · `parts` shares a batch out among
threads · `dispatch` decides, and is what autograd sees · `perceptrons` and `comparisons` are heads, `scores` what they have in
common · `gradients` is a training step without autograd · `ahead` compiles on two cores · `optimisers` step over a flat tensor.
"""

from treefold.kernels.comparisons import comparison_arrangement
from treefold.kernels.dispatch import arrangement_of, fold_up_fused, is_worth_it, why_not
from treefold.kernels.gathering import Alphabet, gathered, translate
from treefold.kernels.gradients import FusedAnswers, FusedGradients, Measured
from treefold.kernels.parts import kernels_first, parts_of
from treefold.kernels.perceptrons import is_heard, perceptron, perceptron_arrangement
from treefold.kernels.scores import PairScores, Scores, TreeScores

__all__ = [
    "Alphabet",
    "FusedAnswers",
    "FusedGradients",
    "Measured",
    "PairScores",
    "Scores",
    "TreeScores",
    "arrangement_of",
    "comparison_arrangement",
    "fold_up_fused",
    "gathered",
    "is_heard",
    "is_worth_it",
    "kernels_first",
    "parts_of",
    "perceptron",
    "perceptron_arrangement",
    "translate",
    "why_not",
]
