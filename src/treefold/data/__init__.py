"""Data: files become trees, and trees with classes and splits become data sets. Nothing here imports torch.

- `dataset`: a `Dataset` is a forest with classes and splits, saved as a directory.
- `convert`: files of any known format become a data set.
- `objects`: `as_tree` turns objects that are trees already, also those of other packages, into a `Tree`.
- `readers`: one function for each format, and `READERS`, the registry of all of them.
- `sick`: the pairs of sentences of SICK.
- `generators`: ListOps and LRT, generated or read from the original files.
"""
