import pytest
import torch

from treefold import (
    AGGREGATORS,
    Classifier,
    Forest,
    LeafLSTM,
    OneHot,
    PairClassifier,
    PerLabel,
    Regressor,
    Tree,
    TreeEncoder,
    TreeLSTM,
    TreeModel,
    TreeRNN,
    Tucker,
    compress,
)
from treefold.errors import ConfigurationError, TreeError
from treefold.nn.heads import NodeHead

LABELS = ["a", "b", "f"]
FOREST = Forest(["(f a b)", "b", "(f (f a) _)", "a"])


def encoder(aggregator: str = "full", **sizes: int) -> TreeEncoder:
    torch.manual_seed(0)
    return TreeEncoder(TreeLSTM(aggregator, state_size=4, arity=2, label_size=3, **sizes), OneHot(LABELS))  # type: ignore[arg-type]


def test_the_classifier_has_the_paper_s_two_layers_of_twenty() -> None:
    head = Classifier(in_size=4, classes=10)
    assert [tuple(p.shape) for p in head.parameters()] == [(20, 4), (20,), (20, 20), (20,), (10, 20), (10,)]
    model = TreeModel(encoder(), head)
    assert model(FOREST.batch()).shape == (4, 10)


@pytest.mark.parametrize("hidden_size", [3, 9])  # on both sides of the state size: there are two ways to compute it
def test_the_pair_classifier_is_the_bilinear_form_of_the_two_roots(hidden_size: int) -> None:
    torch.manual_seed(0)
    model = TreeModel(encoder(), PairClassifier(in_size=4, classes=7, hidden_size=hidden_size)).double()
    head = model.head
    assert isinstance(head, PairClassifier)
    logits = model(FOREST.batch([0, 1, 2, 3]))
    roots = model.encoder(FOREST.batch()).roots
    tensor = head.comparison.to_dense()
    for pair, (left, right) in enumerate([(0, 2), (1, 3)]):
        one = torch.ones(1, dtype=torch.float64)
        z = torch.einsum("a,b,abk->k", torch.cat([roots[left], one]), torch.cat([roots[right], one]), tensor)
        z = torch.maximum(z, torch.zeros_like(z)) + 0.01 * torch.minimum(z, torch.zeros_like(z))
        torch.testing.assert_close(logits[pair], head.scores.weight @ z + head.scores.bias)
    with pytest.raises(TreeError, match="pairs expect an even number of trees, left ones then right ones, got 3"):
        model(FOREST.batch([0, 1, 2]))


def test_thousands_of_pairs_get_the_answers_that_each_gets_alone() -> None:
    torch.manual_seed(0)
    model = TreeModel(encoder(), PairClassifier(in_size=4, classes=7)).double()
    left, right = torch.randint(len(FOREST), (2, 2500)).tolist()
    alone = torch.cat([model(FOREST.batch([one, other])) for one in range(4) for other in range(4)])
    chosen = [4 * one + other for one, other in zip(left, right, strict=True)]
    torch.testing.assert_close(model(FOREST.batch([*left, *right])), alone[chosen])


def test_nodes_and_numbers_are_read_off_too() -> None:
    assert TreeModel(encoder(), NodeClassifier(in_size=4, classes=3))(FOREST.batch()).shape == (FOREST.node_count, 3)
    assert TreeModel(encoder(), Regressor(in_size=4, outputs=2, hidden=()))(FOREST.batch()).shape == (4, 2)
    with pytest.raises(ConfigurationError, match="Classifier expects classes to be an integer >= 1, got 0"):
        Classifier(in_size=4, classes=0)


def test_a_model_learns_to_tell_trees_apart() -> None:
    torch.manual_seed(0)
    model = TreeModel(encoder("tucker", rank=2), Classifier(in_size=4, classes=2))
    forest = Forest(["(f a b)", "(f b a)", "(f a _)", "(f _ a)", "(f (f a b) b)", "(f b (f a b))"])
    target = torch.tensor([0, 1, 0, 1, 0, 1])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        loss: torch.Tensor = torch.nn.functional.cross_entropy(model(forest.batch()), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert model(forest.batch()).argmax(1).tolist() == target.tolist()


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


def test_compression_needs_a_form_and_a_rank() -> None:
    with pytest.raises(ConfigurationError, match="compress expects a rank for 'tucker', got none"):
        compress(encoder())
    with pytest.raises(ConfigurationError, match=r"compress expects aggregator to be one of .* got 'cp'"):
        compress(encoder(), "cp", rank=2)


def test_a_head_that_does_not_fit_the_encoder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a head with in_size=4, the encoder's out_size, got 5"):
        TreeModel(encoder(), Classifier(in_size=5, classes=2))
    with pytest.raises(ConfigurationError, match="expects an encoder and a head, got Classifier and TreeEncoder"):
        TreeModel(Classifier(in_size=4, classes=2), encoder())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expects hidden to be a list of sizes such as"):
        Classifier(in_size=4, classes=2, hidden=20)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="compress expects no rank for 'sum', got 3"):
        compress(encoder(), "sum", rank=3)


def test_compression_keeps_a_frozen_model_frozen() -> None:
    frozen = encoder().eval().requires_grad_(False)
    small = compress(frozen, "tucker", rank=2)
    assert not small.training and not any(p.requires_grad for p in small.parameters())
    assert not any(module.training for module in small.modules())


def test_a_single_node_is_a_tree_like_any_other() -> None:
    model = TreeModel(encoder(), Classifier(in_size=4, classes=3))
    assert model(Forest([Tree("a")]).batch()).shape == (1, 3)
