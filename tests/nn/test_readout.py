"""Readouts against plain loops over the nodes of each tree, in both engines, and states along siblings against recursion."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.plain import label_vector, states_by_siblings, states_up
from tests.strategies import text_tree
from treefold import Classifier, Forest, OneHot, PerLabel, Tree, TreeEncoder, TreeLSTM, TreeModel, TreeRNN
from treefold.errors import ConfigurationError
from treefold.nn.cells import Cell, LeafLSTM, TreeGRU
from treefold.nn.flat import FlatParameters
from treefold.nn.heads import NodeHead
from treefold.nn.model import readout_of
from treefold.nn.readout import READOUTS, Readout, readout_kinds

TREES = [Tree.parse(text) for text in ("(f (g a b) c (g a _ b))", "a", "(f c)", "(g (g (g b a)) (f a a a))")]
NAMES = sorted({str(node.label) for tree in TREES for node in tree.postorder()})
CELLS: dict[str, type[TreeLSTM] | type[TreeRNN] | type[TreeGRU]] = {"lstm": TreeLSTM, "rnn": TreeRNN, "gru": TreeGRU}


def encoder_of(kind: str = "lstm", *, siblings: bool, backend: Literal["torch", "fused"] = "torch") -> TreeEncoder:
    torch.manual_seed(0)
    cell = CELLS[kind]("sum", state_size=3, arity=2 if siblings else 3, label_size=len(NAMES))
    return TreeEncoder(cell, OneHot(NAMES), siblings=siblings, backend=backend).double()


def model_of(readout: str, *, siblings: bool = False, backend: Literal["torch", "fused"] = "torch") -> TreeModel:
    encoder = encoder_of(siblings=siblings, backend=backend)
    head = Classifier(in_size=readout_of(encoder, readout).out_size, classes=2, hidden=(4,))
    return TreeModel(encoder, head, readout).double()


def expected(kind: str, readout: Readout, states: list[Tensor], labels: list[Tensor]) -> Tensor:
    """Pool the nodes of one tree, one after the other."""
    nodes = [torch.cat([state, label]) for state, label in zip(states, labels, strict=True)]
    if kind == "root":
        return states[-1]
    if kind == "max":
        highest = [max(float(node[entry]) for node in nodes) for entry in range(len(nodes[0]))]
        return torch.tensor(highest, dtype=torch.float64)
    weights = [1.0 if kind == "sum" else 1 / len(nodes)] * len(nodes)
    if kind == "attention":
        assert readout.attention is not None
        powers = [math.exp(float(readout.attention(node))) for node in nodes]
        weights = [power / sum(powers) for power in powers]
    return sum((weight * node for weight, node in zip(weights, nodes, strict=True)), torch.zeros_like(nodes[0]))


@pytest.mark.parametrize("backend", ["torch", "fused"])
@pytest.mark.parametrize("siblings", [False, True])
@pytest.mark.parametrize("kind", READOUTS)
def test_a_readout_pools_the_nodes_of_each_tree(kind: str, siblings: bool, backend: Literal["torch", "fused"]) -> None:
    model = model_of(kind, siblings=siblings, backend=backend)
    cell, walk = model.encoder.cell("up"), states_by_siblings if siblings else states_up
    with torch.no_grad():
        found = model.readout(model.encoder(Forest(TREES).batch()))
        for row, tree in zip(found, TREES, strict=True):
            states = [memory[:3] for memory in walk(tree, cell, NAMES)]
            labels = [label_vector(node, NAMES, len(NAMES)) for node in tree.postorder()]
            torch.testing.assert_close(row, expected(kind, model.readout, states, labels), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("siblings", [False, True])
def test_both_engines_have_the_same_gradients_through_all_readouts(siblings: bool) -> None:
    forest, classes = Forest(TREES), np.array([0, 1, 1, 0])
    results = []
    for backend in ("torch", "fused"):
        model = model_of("+".join(READOUTS), siblings=siblings, backend=backend)
        model.encoder.flat = FlatParameters(model, model.layouts())
        step = model.engine().gradients(
            forest,
            np.arange(4),
            lambda outputs: torch.nn.functional.cross_entropy(outputs, torch.from_numpy(classes)),
            classes,
        )
        results.append((step.loss, {name: value.grad.clone() for name, value in model.named_parameters()}))  # type: ignore[union-attr]
    (loss, gradients), (other_loss, others) = results
    assert loss == pytest.approx(other_loss, rel=1e-12)
    for name, gradient in gradients.items():
        assert bool(gradient.any()), name
        torch.testing.assert_close(gradient, others[name], rtol=1e-9, atol=1e-12, msg=name)


def test_gradients_agree_with_finite_differences() -> None:
    readout = Readout("+".join(READOUTS), state_size=2, label_size=1).double()
    batch = Forest(["(f a b)", "c"]).batch()
    nodes = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda values: readout.pool(values, batch), [nodes])


def test_equally_great_entries_share_the_gradient_whatever_its_sign() -> None:
    readout, batch = Readout("max", state_size=2), Forest(["(f a a b)"]).batch()
    nodes = torch.tensor([[1.0, 3.0], [1.0, 3.0], [0.0, 3.0], [-1.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad((readout.pool(nodes, batch) * torch.tensor([[6.0, -6.0]])).sum(), nodes)
    assert gradient.tolist() == [[3.0, -2.0], [3.0, -2.0], [0.0, -2.0], [0.0, 0.0]]


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("backend", ["torch", "fused"])
@given(tree=text_tree)
def test_states_along_siblings_are_those_of_the_plainest_recursion(
    kind: str, backend: Literal["torch", "fused"], tree: Tree
) -> None:
    names = sorted({str(node.label) for node in tree.postorder()})
    torch.manual_seed(1)
    cell = CELLS[kind]("sum", state_size=3, arity=2, label_size=len(names))
    encoder = TreeEncoder(cell, OneHot(names), siblings=True, backend=backend).double()
    with torch.no_grad():
        found = encoder(Forest([tree])).nodes
        wanted = torch.stack([memory[:3] for memory in states_by_siblings(tree, cell, names)])
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def test_the_order_of_siblings_changes_the_root_and_any_number_is_taken() -> None:
    encoder = encoder_of(siblings=True)
    one, other, wide = (encoder(Forest([text])).roots for text in ("(f a b c)", "(f a c b)", f"(f {'a ' * 5000})"))
    assert not torch.allclose(one, other)
    assert bool(wide.isfinite().all())


def test_siblings_need_two_slots_and_leaves_that_take_children() -> None:
    with pytest.raises(ConfigurationError, match=r"siblings=True expects cells with two slots.*got 1"):
        TreeEncoder(TreeLSTM("sum", state_size=3, arity=1, label_size=2), OneHot("ab"), siblings=True)
    inner: Cell = TreeLSTM("sum", state_size=3, arity=2)
    with pytest.raises(ConfigurationError, match=r"got 0; make the cell with arity=2"):
        TreeEncoder(PerLabel({"f": inner}, leaf=LeafLSTM(label_size=2, state_size=3)), OneHot("ab"), siblings=True)


@pytest.mark.parametrize("name", ["", "mean+", "rot", "mean+mean", None, 3])
def test_a_readout_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="readout expects"):
        readout_kinds(name)


def test_a_head_has_the_size_of_the_readout_and_a_head_of_nodes_has_none() -> None:
    encoder = encoder_of(siblings=False)
    with pytest.raises(ConfigurationError, match=rf"in_size={6 + 2 * len(NAMES)}, the size of the readout 'mean\+max'"):
        TreeModel(encoder, Classifier(in_size=3, classes=2), "mean+max")
    with pytest.raises(ConfigurationError, match="no readout for a head that reads nodes, got 'mean'"):
        TreeModel(encoder, NodeHead(in_size=3, classes=2), "mean")
