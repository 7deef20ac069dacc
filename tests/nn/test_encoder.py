import copy
import dataclasses
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.plain import states_down, states_up
from tests.strategies import trees
from treefold import (
    Classifier,
    Embedding,
    Forest,
    LeafRNN,
    Numeric,
    OneHot,
    PerLabel,
    Thermometer,
    Tree,
    TreeEncoder,
    TreeLSTM,
    TreeModel,
    TreeRNN,
)
from treefold.errors import ConfigurationError, ShapeError, TreeError, VocabularyError
from treefold.nn.aggregators import AGGREGATORS
from treefold.nn.cells import CELLS as CELL_KINDS
from treefold.nn.cells import Cell
from treefold.nn.encoder import Backend, Direction
from treefold.nn.flat import FlatParameters
from treefold.nn.labels import Features, LabelEncoder
from treefold.trees.vocabulary import Vocabulary

STATE, ARITY, RANK = 3, 4, 2
LEAVES, OPERATORS = ["a", "b", "c", "d", "e"], ["f", "g"]
forests = st.lists(trees(leaves=LEAVES, operators=OPERATORS, arity=ARITY), min_size=1, max_size=5)
SHARED = [
    (name, shared) for name, form in AGGREGATORS.items() for shared in (False, True) if shared or not form.always_shared
]
CELLS = [(*cell, *form) for cell in itertools.product(CELL_KINDS, [False, True]) for form in SHARED]


def rank_of(aggregator: str) -> int | None:
    return RANK if AGGREGATORS[aggregator].has_rank else None


def make_encoder(kind: str, per_label: bool, aggregator: str, shared: bool, direction: Direction) -> TreeEncoder:
    torch.manual_seed(0)
    make: Any = CELL_KINDS[kind][0]
    make_leaf: Any = CELL_KINDS[kind][1]

    def cell(label_size: int | None) -> Any:
        return make(
            aggregator,
            state_size=STATE,
            arity=ARITY,
            rank=rank_of(aggregator),
            label_size=label_size,
            shared=shared,
        )

    if not per_label:
        return TreeEncoder(cell(7), OneHot([*LEAVES, *OPERATORS]), direction=direction).double()
    leaf = make_leaf(label_size=5, state_size=STATE)
    whole = PerLabel({name: cell(None) for name in OPERATORS}, leaf=leaf if direction == "up" else cell(5))
    return TreeEncoder(whole, OneHot(LEAVES), direction=direction).double()


def plain_states(encoder: TreeEncoder, trees: list[Tree], direction: str) -> Tensor:
    cell = encoder.cells[direction]
    assert isinstance(cell, Cell) and encoder.labels is not None
    walk = states_up if direction == "up" else states_down
    states = [state for tree in trees for state in walk(tree, cell, list(encoder.labels.names))]
    return torch.stack(states)[:, :STATE]


def gradients(encoder: TreeEncoder, states: Tensor) -> dict[str, Tensor]:
    encoder.zero_grad()
    weights = torch.linspace(-1, 1, states.numel(), dtype=torch.float64).reshape(states.shape)
    (states * weights).sum().backward()  # type: ignore[no-untyped-call]
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in encoder.named_parameters()
    }


@pytest.mark.parametrize(("kind", "per_label", "aggregator", "shared"), CELLS)
@pytest.mark.parametrize(("direction", "backend"), [("up", "torch"), ("up", "fused"), ("down", "torch")])
def test_batched_encoding_equals_the_plainest_recursion(
    kind: str, per_label: bool, aggregator: str, shared: bool, direction: Direction, backend: Backend
) -> None:
    encoder = make_encoder(kind, per_label, aggregator, shared, direction)
    encoder.backend = backend

    @settings(max_examples=4, deadline=None, derandomize=True)
    @given(forests)
    def check(trees: list[Tree]) -> None:
        forest = Forest(trees)
        encoding = encoder(forest.batch())
        expected = plain_states(encoder, trees, direction)
        torch.testing.assert_close(encoding.nodes, expected, rtol=1e-10, atol=1e-10)
        roots = torch.from_numpy(forest.offsets[1:] - 1)
        torch.testing.assert_close(encoding.roots, expected[roots], rtol=1e-10, atol=1e-10)
        batched, plain = gradients(encoder, encoding.nodes), gradients(encoder, expected)
        for name in plain:
            torch.testing.assert_close(batched[name], plain[name], rtol=1e-8, atol=1e-10, msg=name)

    # An example that has everything: absent first, middle and last children, an operator without any, and repeated subtrees.
    everything = [Tree.parse("(f _ (g a _ (f b)) (g) _)"), Tree.parse("c"), Tree.parse("(g (g (g a b c d) a) (f b))")]
    check.hypothesis.inner_test(everything)  # type: ignore[attr-defined]
    check()


def test_both_directions_are_joined_and_have_weights_of_their_own() -> None:
    encoder = make_encoder("lstm", False, "sum", False, "both")
    trees = [Tree.parse("(f a (g b _ c))"), Tree.parse("d")]
    encoding = encoder(Forest(trees).batch())
    expected = torch.cat([plain_states(encoder, trees, "up"), plain_states(encoder, trees, "down")], dim=1)
    torch.testing.assert_close(encoding.nodes, expected)
    torch.testing.assert_close(encoding.roots, expected[[4, 5]])
    assert encoder.out_size == 2 * STATE
    up, down = (list(encoder.cells[name].parameters()) for name in ("up", "down"))
    assert not any(torch.equal(a, b) for a, b in zip(up, down, strict=True) if a.dim() > 2)


def test_a_given_down_cell_is_the_one_that_runs() -> None:
    up, down = (TreeRNN("sum", state_size=STATE, arity=2, label_size=7) for _ in range(2))
    encoder = TreeEncoder(up, OneHot([*LEAVES, *OPERATORS]), direction="both", down_cell=down)
    assert encoder.cells["down"] is down and encoder.cells["up"] is up


def test_a_batch_is_the_same_trees_in_the_order_asked_for() -> None:
    encoder = make_encoder("lstm", True, "tucker", False, "up")
    forest = Forest(["(f a b)", "c", "(g (f a) b _ e)"])
    whole = encoder(forest.batch()).roots
    torch.testing.assert_close(encoder(forest.batch([2, 0, 2])).roots, whole[[2, 0, 2]])


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_a_memory_mapped_forest_encodes_as_one_in_memory(tmp_path: Path, backend: Backend) -> None:
    encoder = make_encoder("lstm", True, "sum", False, "up")
    encoder.backend = backend
    forest = Forest(["(f a b)", "(g (f c) d)"])
    forest.save(tmp_path / "x")
    torch.testing.assert_close(encoder(Forest.open(tmp_path / "x")).nodes, encoder(forest).nodes)


def test_forests_with_other_vocabularies_encode_alike() -> None:
    encoder = make_encoder("lstm", True, "full", False, "up")
    alone, together = Forest(["(g b a)"]), Forest(["(g b a)", "(f c d e a)"])
    torch.testing.assert_close(encoder(alone.batch()).roots, encoder(together.batch([0])).roots)
    torch.testing.assert_close(encoder(together.batch()).roots[:1], encoder(alone.batch()).roots)


@pytest.mark.parametrize("update", ["tanh", "sigmoid"])
def test_the_update_value_is_squashed_as_chosen(update: str) -> None:
    torch.manual_seed(0)
    cell = TreeLSTM("tucker", state_size=STATE, arity=2, rank=2, label_size=7, update=update)  # type: ignore[arg-type]
    encoder = TreeEncoder(cell, OneHot([*LEAVES, *OPERATORS])).double()
    trees = [Tree.parse("(f a (g b c))")]
    torch.testing.assert_close(encoder(Forest(trees).batch()).nodes, plain_states(encoder, trees, "up"))


def test_vector_labels_reach_the_leaves() -> None:
    torch.manual_seed(0)
    cell = PerLabel({"f": TreeRNN("sum", state_size=STATE, arity=2)}, leaf=LeafRNN(label_size=2, state_size=STATE))
    encoder = TreeEncoder(cell, Numeric(size=2)).double()
    trees = [Tree.parse("(f [0.5 2] (f [1 -1] [3 4]))"), Tree.parse("[7 8]")]
    torch.testing.assert_close(encoder(Forest(trees).batch()).nodes, plain_states(encoder, trees, "up"))
    torch.testing.assert_close(encoder(Forest(trees)[1:].batch()).nodes, plain_states(encoder, trees[1:], "up"))


def test_unlabelled_trees_are_told_apart_by_their_shape() -> None:
    torch.manual_seed(0)
    # Balanced biases start at zero, where all unlabelled leaves have the zero state.
    encoder = TreeEncoder(TreeRNN("full", state_size=STATE, arity=2, initialisation="kaiming"))
    roots = encoder(Forest(["(x y)", "(p q)", "(p _ q)"]).batch()).roots
    assert torch.equal(roots[0], roots[1]) and not torch.allclose(roots[1], roots[2])


@pytest.mark.parametrize(
    "labels", [Embedding(["a", "f"], 4), Thermometer(["a", "f", "g"])], ids=["embedding", "thermometer"]
)
def test_learned_and_ordered_labels_train(labels: LabelEncoder) -> None:
    encoder = TreeEncoder(TreeLSTM("canonical", state_size=STATE, arity=2, rank=3, label_size=labels.size), labels)
    encoder(Forest(["(f a (f a a))"]).batch()).roots.sum().backward()
    grads = [parameter.grad for parameter in encoder.labels.parameters()] if encoder.labels is not None else []
    assert all(grad is not None and bool((grad != 0).all()) for grad in grads)


@pytest.mark.parametrize("nodes", [100_000])
def test_a_chain_of_a_hundred_thousand_nodes_encodes_and_back_propagates(nodes: int) -> None:
    torch.manual_seed(0)
    cell = TreeRNN("sum", state_size=2, arity=1, label_size=2)
    encoder = TreeEncoder(cell, Embedding(["f", "a"], 2), backend="torch")
    chain = Tree("a")
    for _ in range(nodes - 1):
        chain = Tree("f", [chain])
    encoding = encoder(Forest([chain]).batch())
    assert encoding.nodes.shape == (nodes, 2)
    encoding.nodes.mean().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in encoder.parameters() if p.grad is not None)
    weights = cell.transition.get_parameter("slot_weights").grad
    assert weights is not None and bool((weights != 0).all())


def test_a_shared_cell_takes_nodes_of_any_width() -> None:
    torch.manual_seed(0)
    for aggregator in ("sum", "canonical", "tensor-train", "mean", "positional", "max"):
        encoder = make_encoder("lstm", False, aggregator, True, "up")
        wide = Tree("f", [Tree("a")] * 9)
        torch.testing.assert_close(encoder(Forest([wide]).batch()).nodes, plain_states(encoder, [wide], "up"))


def test_a_node_wider_than_the_cell_is_named() -> None:
    encoder = make_encoder("lstm", False, "tucker", False, "up")
    wide = Tree("f", [Tree("a")] * 5)
    with pytest.raises(
        TreeError, match="tree 1 of the batch: node 'f' has 5 children, but arity=4; raise `arity`, or choose a sha"
    ):
        encoder(Forest([Tree("a"), wide]).batch())
    down = make_encoder("lstm", False, "tucker", False, "down")
    with pytest.raises(TreeError, match="tree 1 of the batch: node 'a' is child 5 of its parent, but arity=4"):
        down(Forest([Tree("a"), wide]).batch())


def test_empty_slots_behind_the_last_child_do_not_count_as_width() -> None:
    encoder = make_encoder("rnn", False, "full", False, "up")
    a, b = encoder(Forest(["(f a _ _ _ _ _ _)", "(f a)"]).batch()).roots
    torch.testing.assert_close(a, b)


def test_an_inner_node_that_is_no_operator_is_named() -> None:
    encoder = make_encoder("rnn", True, "full", False, "up")
    with pytest.raises(
        TreeError, match="tree 0 of the batch: node 'a' has 1 children, but is no operator of PerLabel, which knows 'f'"
    ):
        encoder(Forest(["(a b)"]).batch())


def test_an_unknown_label_is_named_with_the_nearest_known_one() -> None:
    encoder = TreeEncoder(TreeRNN("sum", state_size=2, arity=2, label_size=2), OneHot(["MIN", "MAX"]), unknown="error")
    with pytest.raises(
        VocabularyError, match=r"tree 1 of the batch: expected one of 2 known labels, got 'MAXX' \(nearest known: 'MAX'"
    ):
        encoder(Forest(["(MIN MAX)", "(MIN MAXX)"]).batch())


def test_text_and_vector_labels_are_not_mixed_up() -> None:
    numeric = TreeEncoder(TreeRNN("sum", state_size=2, arity=2, label_size=2), Numeric(size=2), unknown="error")
    with pytest.raises(TreeError, match="expected a vector label, or one of the operators"):
        numeric(Forest(["(f [1 2])"]).batch())
    with pytest.raises(
        ShapeError, match=r"Numeric expects vector labels of 2 numbers, got 3; make it with Numeric\(size=3\)"
    ):
        numeric(Forest(["[1 2 3]"]).batch())
    text = TreeEncoder(TreeRNN("sum", state_size=2, arity=2, label_size=1), OneHot(["f"]))
    with pytest.raises(ShapeError, match="OneHot expects text labels, got a vector of 2 numbers; use Numeric"):
        text(Forest(["(f [1 2])"]).batch())


def test_downwards_each_cell_of_an_operator_sees_the_parent_in_the_right_slot() -> None:
    """Cells with one slot for all, and positional ones, side by side."""
    torch.manual_seed(0)
    mixed = {"f": TreeRNN("sum", state_size=3, arity=2), "g": TreeRNN("sum", state_size=3, arity=2, shared=True)}
    for leaf in (
        TreeRNN("sum", state_size=3, arity=5, label_size=2),
        TreeRNN("sum", state_size=3, arity=2, label_size=2, shared=True),
    ):
        encoder = TreeEncoder(PerLabel(mixed, leaf=leaf), OneHot(["a", "b"]), direction="down").double()
        trees = [Tree.parse("(g a a b a b)"), Tree.parse("(f a (g b b))")]
        torch.testing.assert_close(encoder(Forest(trees)).nodes, plain_states(encoder, trees, "down"))


def test_a_forest_is_taken_as_a_batch_and_other_things_are_refused() -> None:
    encoder = make_encoder("rnn", True, "sum", False, "up")
    forest = Forest(["(f a b)", "c"])
    assert torch.equal(encoder(forest).roots, encoder(forest.batch()).roots)
    with pytest.raises(TreeError, match="TreeEncoder expects a batch, got list"):
        encoder([Tree("a")])
    with pytest.raises(ConfigurationError, match="expects a cell and a label encoder such as OneHot"):
        TreeEncoder(encoder.cells["up"], forest.vocabulary)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="labels for the leaves alone, got 'f', which has a cell of its own"):
        TreeEncoder(
            PerLabel({"f": TreeRNN("sum", state_size=2, arity=2)}, leaf=LeafRNN(label_size=2, state_size=2)),
            OneHot("fa"),
        )


def test_settings_that_cannot_be_are_refused() -> None:
    cell = TreeRNN("sum", state_size=2, arity=2, label_size=3)
    with pytest.raises(ConfigurationError, match=r"expects labels of the cell's label_size=3, got 2"):
        TreeEncoder(cell, OneHot(["a", "b"]))
    with pytest.raises(ConfigurationError, match="expects direction to be one of 'up', 'down', 'both', got 'sideways'"):
        TreeEncoder(cell, OneHot(["a", "b", "c"]), direction="sideways")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expects a down_cell with direction='both' only"):
        TreeEncoder(cell, OneHot(["a", "b", "c"]), down_cell=cell)
    per_label = PerLabel({"f": TreeRNN("sum", state_size=2, arity=2)}, leaf=LeafRNN(label_size=3, state_size=2))
    with pytest.raises(ConfigurationError, match="expects leaves that see their parent, got a cell of leaves alone"):
        TreeEncoder(per_label, OneHot(["a", "b", "c"]), direction="down")


def test_a_copy_of_an_encoder_has_no_part_of_a_training() -> None:
    encoder = make_encoder("lstm", True, "tucker", False, "up")
    encoder(Forest(["(f a b)"]))
    encoder.flat = FlatParameters(encoder, [])
    for other in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        assert other.flat is None and other.knowledge is None
        for one, parameter in zip(encoder.parameters(), other.parameters(), strict=True):
            assert torch.equal(one, parameter) and one.data_ptr() != parameter.data_ptr()
        torch.testing.assert_close(other(Forest(["(f a b)"])).roots, encoder(Forest(["(f a b)"])).roots)


def test_the_meaning_of_labels_is_a_table_that_is_short_or_no_longer_than_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = make_encoder("lstm", True, "sum", False, "up")
    assert encoder.alphabet(Forest(["a"]).vocabulary, 1) is not None
    monkeypatch.setattr("treefold.nn.encoder._SHORT", 0)
    forest = Forest(["(f a (g b))", "unknown"])
    assert encoder.alphabet(forest.vocabulary, 4) is None  # five leaves have a vector
    alphabet = encoder.alphabet(forest.vocabulary, 5)
    assert alphabet is not None and alphabet.operators == 2 and alphabet.allowed.tolist() == [ARITY, ARITY, 0]
    codes = dict(zip(forest.vocabulary, alphabet.codes.tolist(), strict=False))
    assert codes == {"f": 0, "g": 1, "a": 2, "b": 3, "unknown": 7} and alphabet.codes[-1] == -1
    assert not alphabet.vectors[7 - 2].any()  # the row after those of the five leaves
    encoder.unknown = "error"
    alphabet = encoder.alphabet(forest.vocabulary, 5)
    assert alphabet is not None and alphabet.codes[forest.vocabulary.code("unknown")] == -1
    numeric = TreeEncoder(TreeRNN("sum", state_size=2, arity=2, label_size=2), Numeric(size=2))
    assert numeric.alphabet(forest.vocabulary, 100) is None


@pytest.mark.parametrize("nodes", [2, 40])  # fewer than the table has rows, and more
def test_label_rows_are_the_label_vectors_of_the_nodes_that_see_one(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treefold.nn.encoder._SHORT", 0)
    encoder = make_encoder("lstm", True, "sum", False, "up")
    assert encoder.labels is not None
    batch = Forest(["(f a)", *["(g b c)"] * ((nodes - 2) // 3)]).batch()
    like = next(encoder.parameters())
    operators, rows, vectors, share = encoder.label_rows(batch, like)
    names = [batch.vocabulary[code] for code in batch.labels]
    assert share and vectors is not None
    assert operators.tolist() == [{"f": 0, "g": 1}.get(name, 2) for name in names]
    for name, row in zip(names, rows.tolist(), strict=True):
        assert (row < 0) == (name in "fg")
        if row >= 0:
            label = encoder.labels(torch.tensor([encoder.labels.names.code(name)]), torch.zeros(0, 0))[0]
            assert torch.equal(vectors[row], label)
    encoder.share_subtrees = False
    assert not encoder.label_rows(batch, like)[3]


# Labels that the encoder does not know -----------------------------------------------------------------------------------

ENCODERS: dict[str, Callable[[list[str]], LabelEncoder]] = {
    "onehot": OneHot,
    "onehot with <unk>": lambda names: OneHot(["<unk>", *names]),
    "thermometer": Thermometer,
    "embedding": lambda names: Embedding(names, 5),
    "embedding with <unk>": lambda names: Embedding(["<unk>", *names], 5),
    "frozen": lambda names: Embedding(["<unk>", *names], 5, frozen=2),
    "features": lambda names: Features(["<unk>", "<unk>:", "x:", *names], 5, edges=True),
    "ngrams": lambda names: Features(names, 5, ngrams=True),
}
NEW = Forest(["(f a new)", "(g (new b (f c)) x:d other)", "new", "(f (f y:e x:d) (g b))"])


def open_encoder(kind: str, per_label: bool, **options: Any) -> TreeEncoder:
    torch.manual_seed(1)
    labels = ENCODERS[kind](LEAVES if per_label else [*LEAVES, *OPERATORS])
    for parameter in labels.parameters():
        parameter.data.normal_()  # also the rows of unknown labels
    if per_label:
        leaf: Any = CELL_KINDS["lstm"][1]
        cells: dict[str, Cell] = {name: TreeLSTM("sum", state_size=STATE, arity=ARITY) for name in OPERATORS}
        cell: Cell = PerLabel(cells, leaf=leaf(label_size=labels.size, state_size=STATE))
    else:
        cell = TreeLSTM("sum", state_size=STATE, arity=ARITY, label_size=labels.size)
    return TreeEncoder(cell, labels, **options).double()


def vector_of(labels: LabelEncoder, name: str) -> Tensor:
    """The vector of a label, known or not."""
    if isinstance(labels, Features):
        vectors: Tensor = labels(torch.tensor([0]), torch.zeros(0, 0), labels.bags([name]))
    else:
        code = labels.names.code(name) if name in labels.names else labels.unknown_code
        vectors = labels(torch.tensor([code]), torch.zeros(0, 0))
    return vectors[0]


def expected_states(encoder: TreeEncoder, forest: Forest) -> Tensor:
    """Node by node; a node that is no operator of `PerLabel` has no children."""
    cell, memories = encoder.cell("up"), []
    assert encoder.labels is not None
    for tree in forest:
        done: list[Tensor] = []
        for node in tree.postorder():
            present = len(node.children) - node.children.count(None)
            mapped = iter(done[len(done) - present :])
            slots = [torch.zeros(1, cell.memory_size).double() if c is None else next(mapped) for c in node.children]
            del done[len(done) - present :]
            own = cell if not isinstance(cell, PerLabel) else None
            if isinstance(cell, PerLabel):
                place = cell.operators.index(node.label) if node.label in cell.operators else len(cell.operators)
                own = cell.cell_of(place)
            assert own is not None
            slots = slots[: own.arity] + [torch.zeros(1, cell.memory_size).double()] * (own.arity - len(slots))
            children = torch.stack(slots, 1) if slots else torch.zeros(1, 0, cell.memory_size).double()
            label = None if own.label_size is None else vector_of(encoder.labels, str(node.label)).unsqueeze(0)
            done.append(own(label, children))
            memories.append(done[-1])
    return torch.cat(memories)[:, :STATE]


@pytest.mark.parametrize("short", [0, 256])  # with and without a table of all labels
@pytest.mark.parametrize("per_label", [False, True])
@pytest.mark.parametrize("kind", ENCODERS)
def test_unknown_labels_are_the_same_in_both_engines_and_by_hand(
    kind: str, per_label: bool, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treefold.nn.encoder._SHORT", short)
    encoder = open_encoder(kind, per_label)
    expected = expected_states(encoder, NEW)
    weights = torch.randn_like(expected)

    def gradients(states: Tensor) -> dict[str, Tensor]:
        encoder.zero_grad()
        torch.autograd.backward((states * weights).sum())
        named = encoder.named_parameters()
        return {name: torch.zeros_like(each) if each.grad is None else each.grad.clone() for name, each in named}

    right = gradients(expected)
    backends: list[Backend] = ["torch", "fused"]
    for backend in backends:
        encoder.backend = backend
        found = encoder(NEW).nodes
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(found), right)
    model = TreeModel(encoder, Classifier(in_size=STATE, classes=3)).double().eval()
    with torch.no_grad():
        scores = model.head(expected[NEW.batch().roots])
        for backend in backends:
            encoder.backend = backend
            torch.testing.assert_close(model(NEW), scores)
            torch.testing.assert_close(model.answers(NEW, np.arange(len(NEW))), scores)


def test_unknown_labels_are_counted() -> None:
    encoder = open_encoder("onehot", True)
    assert encoder.unknown_labels(NEW) == {"new": 3, "other": 1, "x:d": 2, "y:e": 1}
    assert encoder.unknown_labels(NEW[:1]) == {"new": 1}
    assert open_encoder("features", False).unknown_labels(NEW) == {"new": 3, "other": 1, "y:e": 1}
    assert encoder.known(Vocabulary(["f", "a", "h"])).tolist() == [True, True, False]


@pytest.mark.parametrize("per_label", [False, True])
@pytest.mark.parametrize("kind", ENCODERS)
def test_dropped_labels_are_unknown_labels_in_training_alone(kind: str, per_label: bool) -> None:
    encoder = open_encoder(kind, per_label, label_dropout=0.5)
    forest = Forest(["(f (g a b) (f c x:d) e)", "(g a (f b))"] * 3)
    assert isinstance(encoder.labels, LabelEncoder)
    torch.manual_seed(5)
    drawn = (torch.rand(forest.node_count).numpy() < 0.5).tolist()
    labels = encoder.labels
    vectors = {}  # dropped labels by a name that is unknown, which has the vector of the dropped label
    for name in forest.vocabulary:
        if isinstance(labels, Features):
            bags = labels.bags([name], dropped=True)
            vectors[name] = labels(torch.tensor([0]), torch.zeros(0, 0), bags)[0].detach()
        else:
            vectors[name] = vector_of(labels, "never seen").detach()
    batch = forest.batch()
    names = [batch.vocabulary[code] for code in batch.labels]
    with torch.no_grad():
        given = torch.stack(
            [
                vectors[name] if is_drawn else vector_of(labels, name)
                for name, is_drawn in zip(names, drawn, strict=True)
            ]
        )
        numeric = TreeEncoder(encoder.cell("up"), Numeric(labels.size)).double()
        rows = -1 - np.arange(len(names))
        is_operator = np.array([name in encoder.operators for name in names])
        codes = np.where(is_operator, batch.labels, rows)
        expected = numeric(dataclasses.replace(batch, labels=codes, vectors=given.numpy())).nodes
        backends: list[Backend] = ["torch", "fused"]
        for backend in backends:
            encoder.backend = backend
            torch.manual_seed(5)
            torch.testing.assert_close(encoder(forest).nodes, expected)
            assert encoder.alphabet(forest.vocabulary, 100) is None
            model = TreeModel(encoder, Classifier(in_size=STATE, classes=3)).double()
            torch.manual_seed(5)
            torch.testing.assert_close(model(forest), model.head(expected[batch.roots]))
            encoder.eval()
            torch.testing.assert_close(encoder(forest).nodes, expected_states(encoder, forest))
            encoder.train()


def test_label_dropout_is_for_text_labels_and_below_one() -> None:
    cell = TreeRNN("sum", state_size=2, arity=2, label_size=2)
    for labels, share in ((Numeric(2), 0.5), (OneHot("ab"), 1.0), (OneHot("ab"), -0.1)):
        with pytest.raises(ConfigurationError, match="TreeEncoder expects a label_dropout of at least 0 and below 1"):
            TreeEncoder(cell, labels, label_dropout=share)
    with pytest.raises(ConfigurationError, match="TreeEncoder expects unknown to be one of 'unk', 'error', got 'skip'"):
        TreeEncoder(cell, OneHot("ab"), unknown="skip")  # type: ignore[arg-type]
