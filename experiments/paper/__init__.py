"""The paper's experiments: its grids, its published tables, our results, and the report that compares them.

- ``*.toml``: grids for `treefold sweep`; ``results/``: the results of our runs; ``runs/``: some trained models.
- `published`: the paper's tables; `counts`: its count of parameters.
- `report`: writes the paper's tables and figures with our results beside them.
- `tables`: updates the tables of docs/reproduction.md.
- `small_effects`: effects of points that the paper leaves open, on small data.
"""
