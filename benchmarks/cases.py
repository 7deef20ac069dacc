"""The data and models that are measured, and the work on them that is timed: training steps, predictions, evaluation."""

import copy
import functools
import itertools
import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks.library import (
    Examples,
    TrainingSettings,
    epoch_batches,
    fit,
    listops,
    lrt,
    outputs_of,
    predictor_of,
    reserve_threads_for_kernels,
)
from benchmarks.measuring import Clock, Way, in_pieces
from treefold import (
    Classifier,
    Embedding,
    Forest,
    LeafLSTM,
    Numeric,
    OneHot,
    PairClassifier,
    PerLabel,
    Thermometer,
    Tree,
    TreeEncoder,
    TreeLSTM,
    TreeModel,
)
from treefold.errors import ConfigurationError

Ints = npt.NDArray[np.int64]
Outputs = Callable[[Ints], Tensor]
VECTOR_SIZE: Final = 10
HEADLINE: Final = "listops tucker 20 3"
_ARITY: Final = 5  # of ListOps
_PROGRAM_LABELS: Final = 100
_PROGRAM_CLASSES: Final = 40
FUSED: Final = {"backend": "fused"}
TORCH: Final = {"backend": "torch"}
SHARED: Final = {**FUSED, "share_subtrees": True}
APART: Final = {**FUSED, "share_subtrees": False}


class Case(NamedTuple):
    """A Tree-LSTM on one kind of data, with a cell for each operator, as in the paper."""

    data: str
    aggregator: str
    state_size: int
    rank: int | None = None
    shared: bool = False


CASES: Final[dict[str, Case]] = {
    HEADLINE: Case("listops", "tucker", 20, 3),
    "listops tucker 50 7": Case("listops", "tucker", 50, 7),
    "listops shared tucker 50 5": Case("listops", "tucker", 50, 5, shared=True),
    "listops sum 25": Case("listops", "sum", 25),
    "listops sum 214": Case("listops", "sum", 214),
    "listops full 3": Case("listops", "full", 3),
    "listops full 5": Case("listops", "full", 5),
    "listops canonical 100 50": Case("listops", "canonical", 100, 50),
    "listops tensor-train 50 12": Case("listops", "tensor-train", 50, 12),
    "vectors sum 25": Case("vectors", "sum", 25),
    "vectors sum 214": Case("vectors", "sum", 214),
    "vectors sum 400": Case("vectors", "sum", 400),
    "lrt sum 10": Case("lrt", "sum", 10),
    "lrt full 10": Case("lrt", "full", 10),
    "lrt tucker 10 7": Case("lrt", "tucker", 10, 7),
    "lrt tucker 100 20": Case("lrt", "tucker", 100, 20),
    "lrt full 100": Case("lrt", "full", 100),
}


class ProgramCase(NamedTuple):
    """A Tree-LSTM on trees like programs, as `treefold train` makes it: one cell for all nodes, with an embedding of labels."""

    aggregator: str
    readout: str
    siblings: bool = False
    state_size: int = 64
    label_size: int = 32


PROGRAM_CASES: Final[dict[str, ProgramCase]] = {
    "siblings sum, root+mean+max": ProgramCase("sum", "root+mean+max", siblings=True),
    "positional, root+mean+max": ProgramCase("positional", "root+mean+max"),
    "mean, attention": ProgramCase("mean", "attention"),
    "max, sum": ProgramCase("max", "sum"),
}


def listops_examples(count: int) -> Examples:
    """Generate ListOps trees with their values."""
    trees = list(listops.generate(count))
    return Examples(Forest(trees), np.array([listops.value(tree) for tree in trees]), "tree")


def vector_examples(count: int) -> Examples:
    """Generate ListOps trees with random vectors instead of digits, so that no two subtrees are equal.

    >>> vector_examples(3).forest.vectors.shape[1]
    10
    """
    rng = random.Random(0)

    def with_vectors(tree: Tree) -> Tree:
        made: list[Tree] = []
        for node in tree.postorder():
            below = [made.pop() for _ in node.children][::-1]
            made.append(Tree(node.label, below) if below else Tree([rng.random() for _ in range(VECTOR_SIZE)]))
        return made[0]

    trees = list(listops.generate(count))
    return Examples(Forest(map(with_vectors, trees)), np.array([listops.value(tree) for tree in trees]), "tree")


def lrt_examples(count: int) -> Examples:
    """Generate LRT pairs with their relations.

    >>> len(lrt_examples(7)), len(lrt_examples(7).forest)
    (7, 14)
    """
    pairs = list(itertools.islice(lrt.generate(100 * count), count))
    codes = {name: code for code, name in enumerate(lrt.RELATIONS)}
    forest = Forest(tree for pair in pairs for tree in (pair.left, pair.right))
    return Examples(forest, np.array([codes[pair.relation] for pair in pairs]), "pair")


def program_examples(count: int) -> Examples:
    """Generate trees like programs: about 200 nodes, depth 10 to 30, most nodes with one or two children, few with dozens.

    The child counts of a tree are drawn independently, and put into an order that is a pre-order.

    >>> len(program_examples(3)), program_examples(3).forest.arity > 10
    (3, True)
    """
    rng = np.random.default_rng(0)
    trees = [_program_counts(rng, int(rng.integers(100, 300))) for _ in range(2 * count)]
    counts, sizes = np.concatenate(trees), [len(tree) for tree in trees]
    often = 1 / np.arange(
        1, _PROGRAM_LABELS // 2 + 1
    )  # a few labels are on most nodes; inner nodes have the second half
    labels = rng.choice(len(often), len(counts), p=often / often.sum()) + len(often) * (counts > 0)
    forest = Forest.from_preorder(labels, counts, sizes, [f"label {code}" for code in range(_PROGRAM_LABELS)])
    depths = np.maximum.reduceat(forest.depths, forest.offsets[:-1])
    chosen = np.flatnonzero((depths >= 10) & (depths <= 30))[:count]  # about three of four
    return Examples(forest[chosen], rng.integers(0, _PROGRAM_CLASSES, count), "tree")


def _program_counts(rng: np.random.Generator, size: int) -> Ints:
    """Draw the child counts of a tree in pre-order; it has ``size`` nodes or a few more."""
    drawn = rng.choice([1, 2, 3, 4, 0], size, p=[0.42, 0.49, 0.04, 0.04, 0.01])
    inner = np.where(drawn > 0, drawn, rng.integers(5, 50, size))  # 0 stands for a wide node, such as a block
    inner = inner[: np.searchsorted(np.cumsum(inner), size - 1) + 1]
    counts = rng.permutation(np.append(inner, np.zeros(inner.sum() + 1 - len(inner), np.int64)))
    # In pre-order, nodes are still due until the end; of all rotations only the one after the lowest point is so.
    return np.roll(counts, -1 - int(np.argmin(np.cumsum(counts - 1))))


MAKERS: Final[dict[str, Callable[[int], Examples]]] = {
    "listops": listops_examples,
    "vectors": vector_examples,
    "lrt": lrt_examples,
    "programs": program_examples,
}


@functools.lru_cache(maxsize=4)
def examples_of(data: str, count: int) -> Examples:
    """Return data of a kind, the same each time."""
    return MAKERS[data](count)


def model_of(case: Case) -> TreeModel:
    """Make the model of a case; its weights are the same each time.

    >>> model_of(CASES["lrt sum 10"]).encoder.out_size
    10
    """
    torch.manual_seed(0)
    pairs = case.data == "lrt"
    arities = {"not": 1, "and": 2, "or": 2} if pairs else dict.fromkeys(listops.OPERATORS, _ARITY)
    cells = {
        name: TreeLSTM(case.aggregator, state_size=case.state_size, arity=arity, rank=case.rank, shared=case.shared)
        for name, arity in arities.items()
    }
    makers: dict[str, Callable[[], OneHot | Thermometer | Numeric]] = {
        "listops": lambda: Thermometer(map(str, range(10))),
        "vectors": lambda: Numeric(VECTOR_SIZE),
        "lrt": lambda: OneHot(lrt.VARIABLES),
    }
    labels = makers[case.data]()
    leaf = LeafLSTM(label_size=labels.size, state_size=case.state_size)
    encoder = TreeEncoder(PerLabel(cells, leaf=leaf), labels)
    if pairs:
        return TreeModel(encoder, PairClassifier(in_size=case.state_size, classes=len(lrt.RELATIONS)))
    return TreeModel(encoder, Classifier(in_size=case.state_size, classes=10))


def program_model(case: ProgramCase, forest: Forest) -> TreeModel:
    """Make the model of a case for these trees; its weights are the same each time.

    >>> program_model(PROGRAM_CASES["mean, attention"], program_examples(2).forest).encoder.out_size
    64
    """
    from treefold.nn.model import readout_of  # here, because earlier versions, which `compare` measures, have none

    torch.manual_seed(0)
    cell = TreeLSTM(
        case.aggregator,
        state_size=case.state_size,
        arity=2 if case.siblings else forest.arity,  # along siblings: the last child and the elder sibling
        label_size=case.label_size,
        shared=not case.siblings,
    )
    encoder = TreeEncoder(cell, Embedding(forest.vocabulary, case.label_size), siblings=case.siblings)
    in_size = readout_of(encoder, case.readout).out_size
    return TreeModel(encoder, Classifier(in_size=in_size, classes=_PROGRAM_CLASSES, hidden=(64,)), case.readout)


def recipe_model(name: str, forest: Forest) -> TreeModel:
    """Make the model of a recipe, `listops` or `lrt`, for these trees; its weights are the same each time.

    >>> recipe_model("lrt", lrt_examples(9).forest).encoder.out_size
    128
    """
    from treefold.training.build import build_model, facts_of, resolve  # here: earlier versions have no recipes by name
    from treefold.training.settings import RunSettings, with_recipe

    torch.manual_seed(0)
    task, classes = ("pair", len(lrt.RELATIONS)) if name == "lrt" else ("tree", 10)
    settings, labels = resolve(with_recipe(RunSettings(task=task, recipe=name)).model, facts_of(forest))
    return build_model(settings, labels, task, classes)


def with_settings(model: TreeModel, settings: dict[str, Any]) -> TreeModel:
    """Return a copy of a model with these attributes of its encoder.

    >>> with_settings(model_of(CASES["lrt sum 10"]), TORCH).encoder.backend
    'torch'
    """
    model = copy.deepcopy(model)
    for name, value in settings.items():
        if not hasattr(model.encoder, name):
            raise ConfigurationError(
                f"the benchmark expects an encoder with {name!r}, got one without; update treefold."
            )
        setattr(model.encoder, name, value)
    return model


@final
class _StepTimes:
    """A reporter that notes the time of each batch but the first."""

    def __init__(self, clock: Clock) -> None:
        self.times: list[float] = []
        self._clock = clock
        self._last: float | None = None

    def batch(self, progress: object) -> None:
        now = self._clock()
        if self._last is not None:
            self.times.append(now - self._last)
        self._last = self._clock()

    def epoch(self, metrics: dict[str, Any]) -> None:
        pass


def training(model: TreeModel, examples: Examples, batch: int, steps: int) -> Way:
    """Return training steps exactly as `fit` takes them, after a first one that is not timed."""
    numbers, settings = _numbers(examples, batch, steps), _settings(batch)

    def way(clock: Clock) -> list[float]:
        reporter = _StepTimes(clock)
        fit(model, examples, settings, train=numbers, reporter=reporter)
        return reporter.times

    return way


def torch_training(model: nn.Module, outputs: Outputs, examples: Examples, batch: int, steps: int) -> Way:
    """Return the same steps as one writes them in torch: outputs, loss, gradients, AdaDelta on all parameters."""
    batches = batches_of(examples, batch, steps)
    optimiser = torch.optim.Adadelta(model.parameters())

    def step(piece: int) -> float:
        loss = examples.loss(outputs(batches[piece]), batches[piece])
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        return float(loss.detach())

    return in_pieces(step, len(batches))


def inference(model: TreeModel, examples: Examples, batches: list[Ints]) -> Way:
    """Return the predicted classes of batches, from the arrays of the forest to class numbers, without gradients."""
    predict = predictor_of(model.eval())

    def answer(piece: int) -> Ints:
        with reserve_threads_for_kernels() if model.encoder.backend == "fused" else nullcontext():
            classes: Ints = predict(examples.forest, examples.trees_of(batches[piece])).argmax(1).numpy()
        return classes

    return in_pieces(answer, len(batches))


def one_by_one(model: TreeModel, examples: Examples, numbers: Ints) -> Way:
    """Return the predicted classes of single trees, each in a forest with one tree."""
    model = model.eval()
    singles = [examples.forest[[number]] for number in numbers.tolist()]

    def answer(piece: int) -> int:
        with torch.no_grad():
            return int(model(singles[piece].batch()).argmax(1))

    return in_pieces(answer, len(singles))


def evaluation(model: TreeModel, examples: Examples) -> Way:
    """Return the outputs for all examples, as evaluation computes them."""
    everything = np.arange(len(examples))

    def way(clock: Clock) -> list[float]:
        start = clock()
        outputs_of(model, examples, everything)
        return [clock() - start]

    return way


def forward_backward(encoder: TreeEncoder, forest: Forest) -> None:
    """Encode all trees at once and compute the gradients of all parameters."""
    encoder.zero_grad()
    torch.autograd.backward(encoder(forest.batch()).roots.sum())


def batches_of(examples: Examples, batch: int, steps: int) -> list[Ints]:
    """Return the batches whose steps `training` times."""
    return epoch_batches(examples, _numbers(examples, batch, steps), _settings(batch), epoch=0)[1:]


def work_of(examples: Examples, batches: list[Ints]) -> tuple[float, float]:
    """Return the mean number of trees and of nodes in a batch.

    >>> examples = Examples(Forest(["(f a)", "b", "(f a b)"]), np.zeros(3), "tree")
    >>> work_of(examples, [np.array([0, 1]), np.array([2, 1])])
    (2.0, 3.5)
    """
    trees = [len(examples.trees_of(chosen)) for chosen in batches]
    return float(np.mean(trees)), float(np.mean([examples.sizes(chosen).sum() for chosen in batches]))


def _numbers(examples: Examples, batch: int, steps: int) -> Ints:
    """Choose examples for one step that is not timed and ``steps`` that are, all full; few examples are repeated."""
    return np.arange((steps + 1) * batch) % len(examples)


def _settings(batch: int) -> TrainingSettings:
    return TrainingSettings(batch_size=batch, epochs=1)
