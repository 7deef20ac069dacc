"""Experiments with treefold; `paper` repeats those of the paper, `real` has real trees."""
