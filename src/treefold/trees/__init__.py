"""Trees, and many of them in flat arrays. Nothing here imports torch.

- `tree`: a `Tree` is a label and ordered children; s-expressions are read and written here.
- `objects`: trees from nested lists, parent arrays, Newick, NLTK, networkx and PyTorch Geometric, and back.
- `forest`: a `Forest` is many trees in a few arrays, with a file format that is opened as a memory map.
- `batch`: a `Batch` is some trees of a forest, with the order in which their nodes can be computed.
- `vocabulary`: a `Vocabulary` numbers text labels.
- `drawing`: trees as SVG, for notebooks and pages.
- `shaping`: `limit_arity`, `binarise`, `unbinarise` and `group` rewrite trees with wide nodes.
"""
