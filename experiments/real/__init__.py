"""Experiments on real trees: programs, sentences, glycans, documents; and small sets in which the order of siblings matters.

- `data`: makes the data sets; `order`: generates those in which order matters.
- `baselines`: simple models that count labels and pairs.
- `run`: trains the experiments, and prints the table with baselines and published results: `python -m experiments.real --help`.
"""
