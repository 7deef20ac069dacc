from typing import Any

import pytest
import torch

from treefold import (
    AGGREGATORS,
    Classifier,
    Forest,
    LeafLSTM,
    OneHot,
    PerLabel,
    TreeEncoder,
    TreeLSTM,
    TreeModel,
    TreeRNN,
    Tucker,
    compress,
)
from treefold.errors import ConfigurationError
from treefold.nn.cells import CELLS

FOREST = Forest(["(f a b)", "b", "(f (f a) _)", "a"])


def encoder() -> TreeEncoder:
    torch.manual_seed(0)
    return TreeEncoder(TreeLSTM("full", state_size=4, arity=2, label_size=3), OneHot(["a", "b", "f"]))


@pytest.mark.parametrize(
    ("aggregator", "rank"), [("tucker", 4), ("tensor-train", 30), ("canonical", 20), ("full", None)]
)
def test_a_full_model_compressed_at_full_rank_computes_the_same(aggregator: str, rank: int | None) -> None:
    torch.manual_seed(0)
    cell = PerLabel({"f": TreeLSTM("full", state_size=4, arity=2)}, leaf=LeafLSTM(label_size=2, state_size=4))
    model = TreeModel(TreeEncoder(cell, OneHot(["a", "b"])), Classifier(in_size=4, classes=3)).double()
    small = compress(model, aggregator, rank=rank)
    torch.testing.assert_close(small(FOREST.batch()), model(FOREST.batch()), rtol=1e-4, atol=1e-4)
    kinds = {type(module) for module in small.modules()} & set(AGGREGATORS.values())
    assert AGGREGATORS[aggregator] in kinds


def test_compression_at_low_rank_has_fewer_parameters_and_leaves_the_model_alone() -> None:
    model = TreeModel(encoder(), Classifier(in_size=4, classes=3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small = compress(model, "tucker", rank=1)
    assert isinstance(small.encoder.cells["up"].input_gate, Tucker)
    count = [sum(p.numel() for p in m.parameters()) for m in (small, model)]
    assert count[0] < count[1]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    small(FOREST.batch()).sum().backward()
    assert all(p.grad is not None for p in small.encoder.cells["up"].input_gate.parameters())


def test_compression_of_a_shared_full_cell_stays_shared() -> None:
    torch.manual_seed(0)
    cell = TreeRNN("full", state_size=3, arity=3, shared=True).double()
    small = compress(cell, "tucker", rank=3)
    assert small.transition.shared
    children = torch.randn(5, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(small(None, children), cell(None, children))


@pytest.mark.parametrize("aggregator", ["mean", "positional"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", CELLS)
def test_compression_into_a_normalised_form_shares_all_slots_and_takes_any_number(
    kind: str, aggregator: str, shared: bool
) -> None:
    torch.manual_seed(0)
    make: Any = CELLS[kind][0]
    encoder = TreeEncoder(make("sum", state_size=3, arity=2, label_size=3, shared=shared), OneHot("abf"))
    small = compress(encoder.double(), aggregator)
    forest = Forest(["(f a b)", "(f (f a) b a b (f b))"])
    results = []
    for backend in ("torch", "fused"):
        small.backend = backend
        results.append(small(forest).nodes)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    if kind == "rnn" and (shared or aggregator == "positional"):  # a sum of two children is twice their mean
        torch.testing.assert_close(results[0][:3], encoder(forest[:1]).nodes, rtol=1e-10, atol=1e-10)


def test_normalised_forms_cannot_be_compressed_and_nothing_becomes_a_maximum() -> None:
    cell = TreeRNN("mean", state_size=3, arity=2)
    with pytest.raises(ConfigurationError, match="compress expects a form with one tensor for any number of children"):
        compress(cell, "sum")
    with pytest.raises(ConfigurationError, match="Max has no dense tensor"):
        compress(TreeRNN("sum", state_size=3, arity=2), "max")


def test_compression_needs_a_form_and_a_rank() -> None:
    with pytest.raises(ConfigurationError, match="compress expects a rank for 'tucker', got none"):
        compress(encoder())
    with pytest.raises(ConfigurationError, match=r"compress expects aggregator to be one of .* got 'cp'"):
        compress(encoder(), "cp", rank=2)
    with pytest.raises(ConfigurationError, match="compress expects no rank for 'sum', got 3"):
        compress(encoder(), "sum", rank=3)


def test_compression_keeps_a_frozen_model_frozen() -> None:
    frozen = encoder().eval().requires_grad_(False)
    small = compress(frozen, "tucker", rank=2)
    assert not small.training and not any(p.requires_grad for p in small.parameters())
    assert not any(module.training for module in small.modules())
