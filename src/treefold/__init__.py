"""treefold: a fold turns a tree into a value, from the leaves up; treefold learns that fold."""

from treefold.batch import Batch
from treefold.forest import Forest
from treefold.tree import Tree
from treefold.vocabulary import Vocabulary

__version__ = "0.1.0"
__all__ = ["Batch", "Forest", "Tree", "Vocabulary"]
