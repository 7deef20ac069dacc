import copy
import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest
import torch

from tests.nn.small import LISTOPS, SENTENCES, classes_for, listops_model, pair_model, pairs
from treefold import (
    Classifier,
    Forest,
    OneHot,
    Tree,
    TreeEncoder,
    TreeLSTM,
    TreeModel,
)
from treefold.errors import ConfigurationError
from treefold.nn.flat import FlatParameters
from treefold.training import Examples, fit
from treefold.training.settings import TrainingSettings

LABELS = ["a", "b", "f"]
FOREST = Forest(["(f a b)", "b", "(f (f a) _)", "a"])


def encoder(aggregator: str = "full", **sizes: int) -> TreeEncoder:
    torch.manual_seed(0)
    return TreeEncoder(TreeLSTM(aggregator, state_size=4, arity=2, label_size=3, **sizes), OneHot(LABELS))  # type: ignore[arg-type]


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


def test_a_head_that_does_not_fit_the_encoder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a head with in_size=4, the encoder's out_size, got 5"):
        TreeModel(encoder(), Classifier(in_size=5, classes=2))
    with pytest.raises(ConfigurationError, match="expects an encoder and a head, got Classifier and TreeEncoder"):
        TreeModel(Classifier(in_size=4, classes=2), encoder())  # type: ignore[arg-type]


def test_a_single_node_is_a_tree_like_any_other() -> None:
    model = TreeModel(encoder(), Classifier(in_size=4, classes=3))
    assert model(Forest([Tree("a")]).batch()).shape == (1, 3)


def plain_outputs(
    model: TreeModel, forest: Forest, trees: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> torch.Tensor:
    """Return the outputs of torch alone."""
    plain = copy.deepcopy(model)
    plain.encoder.backend = "torch"
    with torch.no_grad():
        outputs: torch.Tensor = plain(forest.batch(trees))
    return outputs


@pytest.mark.parametrize("backend", ["auto", "fused", "torch"])
@pytest.mark.parametrize("training", [False, True])
def test_an_evaluation_never_moves_a_parameter(backend: str, training: bool) -> None:
    trees = np.arange(100)
    for model, forest in ((listops_model("tucker"), LISTOPS), (pair_model(), SENTENCES)):
        model.encoder.backend = backend  # type: ignore[assignment]
        model.train(training)
        before = {name: (each.data_ptr(), each.stride()) for name, each in model.named_parameters()}
        predict = model.predictor()
        for outputs in (predict(forest, trees), predict(forest, trees), model.answers(forest, trees)):
            torch.testing.assert_close(outputs, plain_outputs(model, forest, trees), rtol=1e-10, atol=1e-10)
        with torch.no_grad():
            model(forest.batch(trees))
        with torch.inference_mode():
            model(forest.batch(trees))
        model(forest.batch(trees))  # with gradients
        assert before == {name: (each.data_ptr(), each.stride()) for name, each in model.named_parameters()}


def test_a_change_of_weights_is_seen_by_the_next_answer() -> None:
    model = listops_model("tucker").eval()
    trees = np.arange(100)
    first = model.answers(LISTOPS, trees)
    for parameter in model.parameters():
        parameter.data.mul_(0.5)  # past the version counter
    second = model.answers(LISTOPS, trees)
    assert not torch.allclose(first, second, atol=1e-3)
    torch.testing.assert_close(second, plain_outputs(model, LISTOPS, trees), rtol=1e-10, atol=1e-10)
    other = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert not bool(model.answers(LISTOPS, trees).any())
    torch.testing.assert_close(other.answers(LISTOPS, trees), second, rtol=0, atol=0)


def test_a_predictor_has_the_weights_of_when_it_was_made() -> None:
    model = listops_model().eval()
    predict, trees = model.predictor(), np.arange(5)
    before = predict(LISTOPS, trees)
    for parameter in model.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(predict(LISTOPS, trees), before, rtol=0, atol=0)
    assert not bool(model.predictor()(LISTOPS, trees).any())


def test_a_model_that_answered_keeps_its_answers_through_a_pickle() -> None:
    trees = np.arange(20)
    for model, forest in ((listops_model("tucker").eval(), LISTOPS), (pair_model().eval(), SENTENCES)):
        small = len(pickle.dumps(model))
        before = model.answers(forest, trees)
        again = pickle.loads(pickle.dumps(model))
        torch.testing.assert_close(again.answers(forest, trees), before, rtol=0, atol=0)
        assert len(pickle.dumps(model)) <= 1.1 * small
        for parameter in again.parameters():
            parameter.data.zero_()
        torch.testing.assert_close(model.answers(forest, trees), before, rtol=0, atol=0)
        assert not bool(again.answers(forest, trees).any())


def test_a_model_is_forgotten_with_everything_that_was_made_for_it() -> None:
    model = listops_model("tucker")
    model.encoder.flat = FlatParameters(model, model.layouts())
    model.engine().gradients(LISTOPS, np.arange(9), torch.sum, classes_for(9, 10))
    model.answers(LISTOPS, np.arange(9))
    gone = weakref.ref(model), weakref.ref(model.encoder.flat.values)
    del model
    gc.collect()
    assert [each() for each in gone] == [None, None]


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("task", ["tree", "pair"])
def test_after_a_training_each_parameter_has_its_own_storage_again(task: str, backend: str) -> None:
    if task == "tree":
        model, examples = listops_model("tucker"), Examples(LISTOPS, classes_for(150, 10), "tree")
    else:
        model, examples = pair_model(), Examples(SENTENCES, classes_for(300, 7), "pair")
    model.encoder.backend = backend  # type: ignore[assignment]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    fit(model, examples, TrainingSettings(epochs=1, batch_size=50))
    assert model.encoder.flat is None
    parameters = list(model.parameters())
    assert not any(torch.equal(one, other) for one, other in zip(parameters, before, strict=True) if one.dim() > 1)
    assert all(each.is_contiguous() and each.grad is None for each in parameters)
    storages = [each.untyped_storage() for each in parameters]
    assert all(len(each) == parameter.nbytes for each, parameter in zip(storages, parameters, strict=True))
    assert all(one.data_ptr() != other.data_ptr() for one, other in itertools.combinations(storages, 2))
    trees = np.arange(100) if task == "tree" else pairs(100)
    predict = model.predictor()
    torch.testing.assert_close(
        predict(examples.forest, trees), plain_outputs(model, examples.forest, trees), rtol=1e-10, atol=1e-10
    )


def test_a_released_model_answers_with_its_last_weights() -> None:
    model = listops_model("tucker")
    flat = FlatParameters(model, model.layouts())
    model.encoder.flat = flat
    trees = np.arange(100)
    flat.values.data.mul_(0.5)
    flat.restore_constants()
    before = model.predictor()(LISTOPS, trees)
    model.encoder.flat = None
    torch.testing.assert_close(model.predictor()(LISTOPS, trees), before, rtol=1e-12, atol=1e-12)  # views of one tensor
    flat.release()
    flat.values.data.zero_()
    torch.testing.assert_close(model.predictor()(LISTOPS, trees), before, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(plain_outputs(model, LISTOPS, trees), before, rtol=1e-10, atol=1e-10)


def test_layouts_are_those_of_the_cell_and_of_the_head_if_kernels_compute_them() -> None:
    model = listops_model("tucker")
    cell, head = model.layouts()
    assert model.layouts()[0] is cell and model.layouts()[1] is head
    own = {id(parameter) for layout in (cell, head) for parameter in layout.parameters}
    assert own == {id(parameter) for parameter in model.parameters()}
    assert len(listops_model(dropout=0.5).layouts()) == 1
    model.encoder.backend = "torch"
    assert model.layouts() == []
