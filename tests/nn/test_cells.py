from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from treefold import LeafLSTM, LeafRNN, PerLabel, Sum, TreeLSTM, TreeRNN, Tucker
from treefold.errors import ConfigurationError
from treefold.nn.cells import TreeGRU


def test_a_forget_gate_sees_its_own_child_and_no_other() -> None:
    torch.manual_seed(0)
    cell = TreeLSTM("full", state_size=3, arity=2)
    children = torch.randn(1, 2, 3)
    other = children.clone()
    other[:, 1] = torch.randn(3)
    before, after = cell.forget_gates(children, None), cell.forget_gates(other, None)
    torch.testing.assert_close(before[:, 0], after[:, 0])
    assert not torch.allclose(before[:, 1], after[:, 1])


def test_an_absent_child_s_forget_gate_lets_nothing_through() -> None:
    torch.manual_seed(0)
    cell = TreeLSTM("sum", state_size=3, arity=3)
    children = torch.randn(4, 1, 6)
    padded = torch.cat([children, torch.zeros(4, 2, 6)], dim=1)
    torch.testing.assert_close(cell(None, children), cell(None, padded))


def test_the_three_gates_start_with_weights_of_their_own() -> None:
    cell = TreeLSTM("tucker", state_size=6, arity=2, rank=2)
    gates = [cell.input_gate, cell.output_gate, cell.update_value]
    factors = [gate.get_parameter("slot_factors") for gate in gates]
    assert not torch.equal(factors[0], factors[1]) and not torch.equal(factors[1], factors[2])


def test_a_cell_takes_an_aggregator_by_name_or_as_an_object() -> None:
    aggregator = Tucker(state_size=6, arity=2, rank=2, label_size=4)
    cell = TreeLSTM(aggregator)
    assert cell.input_gate is aggregator and cell.label_size == 4 and cell.state_size == 6 and cell.memory_size == 12
    named = TreeLSTM("tucker", state_size=6, arity=2, rank=2, label_size=4)
    assert [tuple(p.shape) for p in named.parameters()] == [tuple(p.shape) for p in cell.parameters()]
    with pytest.raises(ConfigurationError, match="an aggregator object or its sizes, got both"):
        TreeRNN(aggregator, state_size=6)
    with pytest.raises(ConfigurationError, match="out_size = state_size, got 5 and 6"):
        TreeRNN(Sum(state_size=6, arity=2, out_size=5))
    with pytest.raises(ConfigurationError, match=r"got 'tuckr' \(nearest known: 'tucker'\)"):
        TreeRNN("tuckr", state_size=6, arity=2)
    with pytest.raises(ConfigurationError, match="expects state_size and arity for aggregator='sum', got 6 and None"):
        TreeRNN("sum", state_size=6)
    with pytest.raises(ConfigurationError, match=r"expects update to be one of 'tanh', 'sigmoid', .*, got 'relu'"):
        TreeLSTM("sum", state_size=6, arity=2, update="relu")  # type: ignore[arg-type]


def test_balanced_gates_of_a_tree_lstm_start_near_one_half_and_forget_gates_open() -> None:
    torch.manual_seed(0)
    cell = TreeLSTM("tucker", state_size=20, arity=5, rank=3)
    children = torch.randn(2000, 5, 20)
    with torch.no_grad():
        before = cell.input_gate(children)
        gates = cell.forget_gates(children, None)
    assert 0.8 < float(before.std()) < 1.2
    assert 0.6 < float(gates.mean()) < 0.8


def test_per_label_sends_each_node_to_its_operator_s_cell_in_any_order() -> None:
    torch.manual_seed(0)
    cells = {"not": TreeRNN("sum", state_size=3, arity=1), "and": TreeRNN("full", state_size=3, arity=2)}
    leaf = LeafRNN(label_size=4, state_size=3)
    cell = PerLabel(cells, leaf=leaf)
    label, children = torch.randn(5, 4), torch.randn(5, 2, 3)
    result = cell(label, children, torch.tensor([1, 0, 2, 1, 1]))
    expected = [
        cells["and"](None, children[:1]),
        cells["not"](None, children[1:2, :1]),
        leaf(label[2:3], children[2:3, :0]),
        cells["and"](None, children[3:4]),
        cells["and"](None, children[4:5]),
    ]
    torch.testing.assert_close(result, torch.cat(expected))
    assert cell.operators == ("not", "and") and [cell.arity_of(kind) for kind in range(3)] == [1, 2, 0]


SQUASHES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sharp-sigmoid": lambda z: 1 / (1 + (2 - 4 * z).exp()),
    "clamp": lambda z: torch.minimum(torch.maximum(z, torch.zeros_like(z)), torch.ones_like(z)),
}


@pytest.mark.parametrize("activation", SQUASHES)
def test_the_chosen_activation_squashes(activation: str) -> None:
    squash = SQUASHES[activation]
    cell = TreeRNN("sum", state_size=3, arity=2, activation=activation)  # type: ignore[arg-type]
    children = torch.randn(4, 2, 3)
    torch.testing.assert_close(cell(None, children), squash(cell.transition(children)))
    leaf = LeafRNN(label_size=2, state_size=3, activation=activation)  # type: ignore[arg-type]
    label = torch.randn(4, 2)
    torch.testing.assert_close(leaf(label, children[:, :0]), squash(label @ leaf.affine.weights + leaf.affine.bias))
    lstm = LeafLSTM(label_size=2, state_size=3, update=activation)  # type: ignore[arg-type]
    i, o, u = (label @ lstm.affine.weights + lstm.affine.bias).chunk(3, dim=1)
    c = torch.sigmoid(i) * squash(u)
    torch.testing.assert_close(lstm(label, children[:, :0]), torch.cat([torch.sigmoid(o) * torch.tanh(c), c], dim=1))


@pytest.mark.parametrize("activation", SQUASHES)
def test_a_hidden_layer_is_that_of_torch(activation: str) -> None:
    torch.manual_seed(0)
    cell = TreeRNN("sum", state_size=3, arity=2, label_size=4, hidden=7, activation=activation)  # type: ignore[arg-type]
    assert isinstance(cell.transition, Sum) and cell.hidden is not None and cell.transition.out_size == 7
    assert cell.transition.label_weights is not None
    first, second = nn.Linear(4 + 2 * 3, 7), nn.Linear(7, 3)
    with torch.no_grad():
        nn.init.normal_(cell.hidden.bias)
        weights = [cell.transition.label_weights, *cell.transition.slot_weights]
        first.weight.copy_(torch.cat(weights).T)
        first.bias.copy_(cell.transition.bias)
        second.weight.copy_(cell.hidden.weights.T)
        second.bias.copy_(cell.hidden.bias)
    label, children = torch.randn(5, 4), torch.randn(5, 2, 3)
    expected = second(first(torch.cat([label, children.flatten(1)], 1)).tanh())
    torch.testing.assert_close(cell(label, children), SQUASHES[activation](expected))
    counts = [sum(each.numel() for each in module.parameters()) for module in (cell, first, second)]
    assert counts[0] == counts[1] + counts[2]


def test_a_hidden_layer_starts_balanced_and_is_drawn_again_with_the_cell() -> None:
    torch.manual_seed(0)
    cell = TreeRNN("complex", state_size=50, arity=3, rank=8, shared=True, hidden=400)
    assert cell.hidden is not None and not bool(cell.hidden.bias.any())
    assert float(cell.hidden.weights.detach().std()) == pytest.approx(400**-0.5, rel=0.05)
    before = cell.hidden.weights.detach().clone()
    cell.reset_parameters()
    assert not torch.equal(before, cell.hidden.weights)


def test_hidden_layers_and_activations_that_cannot_be_are_refused() -> None:
    for value in (0, -1, 2.5):
        with pytest.raises(ConfigurationError, match=f"TreeRNN expects hidden to be an integer >= 1, got {value}"):
            TreeRNN("sum", state_size=3, arity=2, hidden=value)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expects an aggregator with out_size = hidden, got 3 and 7"):
        TreeRNN(Sum(state_size=3, arity=2), hidden=7)
    assert TreeRNN(Sum(state_size=3, arity=2, out_size=7), hidden=7).state_size == 3
    with pytest.raises(ConfigurationError, match=r"'sharp-sigmoid', 'clamp', got 'clmp' \(nearest known: 'clamp'"):
        TreeRNN("sum", state_size=3, arity=2, activation="clmp")  # type: ignore[arg-type]


def test_per_label_has_the_arity_of_its_widest_cell() -> None:
    cells = {"f": TreeRNN("sum", state_size=3, arity=1), "g": TreeRNN("sum", state_size=3, arity=4)}
    assert PerLabel(cells, leaf=LeafRNN(label_size=2, state_size=3)).arity == 4


def test_per_label_refuses_cells_that_do_not_fit_together() -> None:
    leaf = LeafLSTM(label_size=4, state_size=3)
    with pytest.raises(ConfigurationError, match="expects a cell for at least one operator, got none"):
        PerLabel({}, leaf=leaf)
    with pytest.raises(ConfigurationError, match="got state and memory sizes 3, 3 for 'f' and 3, 6 for the leaves"):
        PerLabel({"f": TreeRNN("sum", state_size=3, arity=1)}, leaf=leaf)
    with pytest.raises(ConfigurationError, match="operator cells without a label mode, got label_size=2 for 'f'"):
        PerLabel({"f": TreeLSTM("sum", state_size=3, arity=1, label_size=2)}, leaf=leaf)
    with pytest.raises(ConfigurationError, match="a leaf cell that sees a label vector"):
        PerLabel({"f": TreeRNN("sum", state_size=3, arity=1)}, leaf=TreeRNN("sum", state_size=3, arity=1))
    with pytest.raises(ConfigurationError, match="LeafLSTM expects label_size to be an integer >= 1, got 0"):
        LeafLSTM(label_size=0, state_size=3)


def test_a_tree_gru_with_a_closed_update_gate_is_the_sum_of_its_gated_children() -> None:
    torch.manual_seed(0)
    cell = TreeGRU("sum", state_size=3, arity=2)
    assert isinstance(cell.update_gate, Sum)
    with torch.no_grad():
        cell.update_gate.slot_weights.zero_()
        cell.update_gate.bias.fill_(-100)
        cell.child_gates.slot_biases.fill_(100)  # open
    children = torch.randn(4, 2, 3)
    torch.testing.assert_close(cell(None, children), children.sum(1), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        cell.child_gates.slot_biases.fill_(-100)
    torch.testing.assert_close(cell(None, children), torch.zeros(4, 3), atol=1e-5, rtol=0)
