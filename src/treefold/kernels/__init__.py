"""The fused engine's kernels: a whole batch of trees in a few compiled calls, forward and backward.

`compile` knows numba · `records` are the kernels' arguments · `layout` puts a cell's parameters into one flat array · `gather`
makes batches · `plan` finds equal subtrees and orders the work · `fold` are the two passes · `affine` and `vectors` the matrix
products · `children` reads a unit's children, for forms · `threads` splits batches · `optimisers` step over a flat tensor.
Aggregators, cells and heads have their own kernels, in their own files. `treefold.nn.engine` is the only user.
"""
