"""Evaluation, explanations and baselines."""
