"""Compiled code: a whole batch of trees in a few calls, forward and backward.

- compile: numba, signatures, addresses, the cache of compiled kernels
- records: the kernels' arguments
- layout: a cell's parameters in one flat array, and their tables
- gather: batches from a forest
- plan: equal subtrees, and the order of the work
- fold: the two passes; a unit's children, for the kernels of forms
- affine, vectors: matrix products and activations
- threads: batches in parts
- optimisers: steps over a flat tensor

Aggregators, cells and heads have their own kernels, in their own files. `treefold.nn.engine` uses this room.
"""
