"""The oracle: one node at a time, by plain recursion, from the dense tensors and the paper's equations alone."""

import functools

import torch
from torch import Tensor

from treefold import LeafLSTM, LeafRNN, PerLabel, Tree, TreeLSTM, TreeRNN
from treefold.nn.aggregators import Aggregator, Max, Squashed
from treefold.nn.cells import Cell, LeafGRU, TreeGRU
from treefold.nn.cells.base import ChildGates
from treefold.nn.math.functional import contract


def aggregate(aggregator: Aggregator, children: list[Tensor], label: Tensor | None) -> Tensor:
    if aggregator.normalises:  # by definition, a zero state is an absent child
        children = [child for child in children if bool(child.any())]
    if isinstance(aggregator, Max):
        result: Tensor = aggregator.bias
        if label is not None:
            assert aggregator.label_weights is not None
            result = result + label @ aggregator.label_weights
        images = [child @ aggregator.slot_weights for child in children]
        return result + functools.reduce(torch.maximum, images) if images else result
    if isinstance(aggregator, Squashed):
        total = aggregator.bias.clone()
        for child in children:
            if bool(child.any()):
                vote = child @ aggregator.votes[:-1] + aggregator.votes[-1]
                total = total + aggregator.gain * torch.maximum(torch.minimum(vote, vote * 0 + 1), vote * 0 - 1)
        if label is not None:
            assert aggregator.label_weights is not None
            total = total + label @ aggregator.label_weights
        return torch.tanh(total) @ aggregator.output
    slots = max(len(children), 1) if aggregator.takes_any_number else aggregator.arity
    absent = torch.zeros(aggregator.state_size, dtype=torch.float64)
    vectors = [*([] if label is None else [label]), *children, *[absent] * (slots - len(children))]
    return contract(aggregator.to_dense(slots), [vector.unsqueeze(0) for vector in vectors])[0]


def divisor(aggregator: Aggregator, states: list[Tensor]) -> int:
    """Return by how much the sum over the children is divided: their number, if the form normalises."""
    return max(1, sum(bool(state.any()) for state in states)) if aggregator.normalises else 1


def transition(cell: Cell, name: str, label: Tensor | None, children: list[Tensor]) -> Tensor:
    """Return the memory of one node."""
    if isinstance(cell, PerLabel):
        if name in cell.operators:
            return transition(cell.cell_of(cell.operators.index(name)), name, None, children)
        return transition(cell.cell_of(len(cell.operators)), name, label, children)
    size = cell.state_size
    if isinstance(cell, TreeRNN):
        return torch.tanh(aggregate(cell.transition, [child[:size] for child in children], label))
    if isinstance(cell, LeafRNN):
        assert label is not None
        return torch.tanh(label @ cell.affine.weights + cell.affine.bias)
    if isinstance(cell, LeafGRU):
        assert label is not None
        z, u = (label @ cell.affine.weights + cell.affine.bias).reshape(2, size)
        return torch.sigmoid(z) * torch.tanh(u)
    if isinstance(cell, TreeGRU):
        gated = [gate(cell.child_gates, slot, child, label) * child for slot, child in enumerate(children)]
        z = torch.sigmoid(aggregate(cell.update_gate, gated, label))
        u = torch.tanh(aggregate(cell.candidate, gated, label))
        total = sum(gated, torch.zeros(size, dtype=torch.float64))
        return z * u + (1 - z) * total / divisor(cell.update_gate, gated)
    assert isinstance(cell, (LeafLSTM, TreeLSTM))
    squash = torch.tanh if cell.update == "tanh" else torch.sigmoid
    if isinstance(cell, LeafLSTM):
        assert label is not None
        i, o, u = (label @ cell.affine.weights + cell.affine.bias).reshape(3, size)
        c = torch.sigmoid(i) * squash(u)
        return torch.cat([torch.sigmoid(o) * torch.tanh(c), c])
    assert isinstance(cell, TreeLSTM)
    states = [child[:size] for child in children]
    i = torch.sigmoid(aggregate(cell.input_gate, states, label))
    o = torch.sigmoid(aggregate(cell.output_gate, states, label))
    u = squash(aggregate(cell.update_value, states, label))
    c = i * u
    for slot, child in enumerate(children):
        kept = gate(cell.forget_gates, slot, child[:size], label) * child[size:]
        c = c + kept / divisor(cell.input_gate, states)
    return torch.cat([o * torch.tanh(c), c])


def gate(gates: ChildGates, slot: int, state: Tensor, label: Tensor | None) -> Tensor:
    """Return the gate of one child."""
    weights = gates.slot_weights if gates.shared else gates.slot_weights[slot]
    bias = gates.slot_biases if gates.shared else gates.slot_biases[slot]
    before = state @ weights + bias
    if label is not None:
        assert gates.label_weights is not None
        before = before + label @ gates.label_weights
    return torch.sigmoid(before)


def label_vector(node: Tree, names: list[str], size: int) -> Tensor:
    """One-hot by name; a vector label is itself; zero for operators."""
    if isinstance(node.label, tuple):
        return torch.tensor(node.label, dtype=torch.float64)
    vector = torch.zeros(size, dtype=torch.float64)
    if node.label in names:
        vector[names.index(node.label)] = 1
    return vector


def states_up(tree: Tree, cell: Cell, names: list[str]) -> list[Tensor]:
    """Return the memories of all nodes in post-order."""
    absent = torch.zeros(cell.memory_size, dtype=torch.float64)
    below: list[Tensor] = []
    children = []
    for child in tree.children:
        if child is None:
            children.append(absent)
        else:
            below += states_up(child, cell, names)
            children.append(below[-1])
    label = None if cell.label_size is None else label_vector(tree, names, cell.label_size)
    while children and children[-1] is absent:  # a node may have more empty slots than the cell has
        children.pop()
    return [*below, transition(cell, str(tree.label), label, children)]


def states_down(tree: Tree, cell: Cell, names: list[str], parent: Tensor | None = None, slot: int = 0) -> list[Tensor]:
    """Return the memories of all nodes in post-order; each sees its parent in its own slot."""
    absent = torch.zeros(cell.memory_size, dtype=torch.float64)
    one_slot = cell.takes_any_number or cell.arity == 1
    context = [] if parent is None else [*[absent] * (0 if one_slot else slot), parent]
    label = None if cell.label_size is None else label_vector(tree, names, cell.label_size)
    memory = transition(cell, str(tree.label), label, context)
    below: list[Tensor] = []
    for place, child in enumerate(tree.children):
        if child is not None:
            below += states_down(child, cell, names, memory, place)
    return [*below, memory]


def states_by_siblings(tree: Tree, cell: Cell, names: list[str], elder: Tensor | None = None) -> list[Tensor]:
    """Return the memories of all nodes in post-order; each sees its last child and its previous sibling."""
    absent = torch.zeros(cell.memory_size, dtype=torch.float64)
    below: list[Tensor] = []
    last: Tensor | None = None
    for child in tree.children:
        if child is not None:
            below += states_by_siblings(child, cell, names, last)
            last = below[-1]
    label = None if cell.label_size is None else label_vector(tree, names, cell.label_size)
    context = [absent if last is None else last, *([] if elder is None else [elder])]
    if last is None and elder is None:
        context = []
    return [*below, transition(cell, str(tree.label), label, context)]
