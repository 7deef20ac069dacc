"""What an encoder expects of its cells, and of the trees it is given."""

import numpy as np

from treefold.errors import ConfigurationError, TreeError
from treefold.nn.cells import Cell, LeafLSTM, LeafRNN, PerLabel
from treefold.nn.labels import LabelEncoder
from treefold.trees.batch import Batch, Ints

_ANY_NUMBER = np.iinfo(np.int64).max


def one_slot(cell: Cell) -> bool:
    """Say whether a parent stands in the same slot for all its children."""
    return cell.takes_any_number or cell.arity == 1


def arities(cell: Cell) -> Ints:
    """Return how many child slots each operator's nodes may have, and those without; the greatest number for any."""
    limits = [cell.arity_of(operator) for operator in range(len(cell.operators) + 1)]
    return np.array([_ANY_NUMBER if limit is None else limit for limit in limits])


def check_arity(cell: Cell, batch: Batch, operators: Ints, direction: str, allowed: Ints) -> None:
    """Raise where a node needs more slots than its cell has: up, for its children; down, for its place among its siblings."""
    if direction == "down" and one_slot(cell):
        return
    holders = batch.parents if direction == "up" else np.arange(batch.node_count)  # whose cell must have the slot
    wide = np.flatnonzero((batch.slots >= allowed[operators[holders]]) & (batch.parents >= 0))
    if not len(wide):
        return
    place = int(holders[wide].min())
    needed = int(batch.slots[wide[holders[wide] == place]].max()) + 1
    code = int(batch.labels[place])
    name = repr(batch.vocabulary[code]) if code >= 0 else "with a vector label"
    has = "has {} children" if direction == "up" else "is child {} of its parent"
    node = f"tree {batch.tree_of(place)} of the batch: node {name} {has.format(needed)}"
    limit = int(allowed[operators[place]])
    if limit == 0 and cell.operators:
        raise TreeError(
            f"{node}, but is no operator of PerLabel, which knows {', '.join(map(repr, cell.operators))}; "
            f"give it a cell of its own, or a leaf cell that takes children."
        )
    raise TreeError(
        f"{node}, but arity={limit}; raise `arity`, "
        f"or choose a shared sum, canonical or tensor-train aggregator, which takes any number."
    )


def check_cell(cell: Cell, labels: LabelEncoder | None, first: Cell) -> None:
    """Raise where a cell does not see labels of this kind, or is not like the first."""
    size = None if labels is None else labels.size
    if cell.label_size != size:
        raise ConfigurationError(
            f"TreeEncoder expects labels of the cell's label_size={cell.label_size}, got {size}; "
            f"make the cell with label_size=labels.size, or leave both out."
        )
    if (cell.state_size, cell.operators) != (first.state_size, first.operators):
        raise ConfigurationError("TreeEncoder expects both cells to have the same state_size and operators.")


def check_down(cell: Cell) -> None:
    """Raise where leaves would not see their parents."""
    if isinstance(cell, PerLabel) and isinstance(cell.cell_of(len(cell.operators)), (LeafRNN, LeafLSTM)):
        raise ConfigurationError(
            "TreeEncoder with direction='down' expects leaves that see their parent, got a LeafRNN or LeafLSTM; "
            "make PerLabel with leaf=TreeRNN(…, label_size=…) or leaf=TreeLSTM(…, label_size=…)."
        )
