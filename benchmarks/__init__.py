"""Benchmarks of treefold: speed, memory, and the comparison with another checkout. Run `python -m benchmarks --help`.

`library` finds the names of treefold that are measured · `measuring` times alternatives against each other and describes the
machine · `cases` has the data, the models and the work to be timed · `speed`, `phases`, `growth`, `processes` and `roofline` are
the suites · `suites` runs them and checks our bounds · `compare` measures two checkouts in turn.

`forest.py`, `generate.py`, `large_forest.py` and `readers.py` are scripts about data.
"""
