"""Heads, which turn states into outputs, and the model: an encoder with a head."""

import abc
import copy
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, TreeError, require_choice, require_positive
from treefold.kernels import (
    FusedGradients,
    Measured,
    PairScores,
    Scores,
    TreeScores,
    comparison_arrangement,
    gathered,
    is_heard,
    perceptron_arrangement,
)
from treefold.nn.aggregators import AGGREGATORS, Aggregator, Full
from treefold.nn.cells import Cell
from treefold.nn.encoder import Encoding, TreeEncoder
from treefold.nn.flat import Arrangement
from treefold.nn.math.functional import homogenise
from treefold.trees.batch import Batch, Ints
from treefold.trees.forest import Forest

Model = TypeVar("Model", bound=nn.Module)

# Axes:  N nodes · B trees · P pairs · C state size · K classes or outputs
_PAIRS: Final = 1024  # that are compared together


class Head(nn.Module, abc.ABC):
    """Turns states of ``in_size`` entries into outputs, one row for each tree, pair or node.

    ``reads`` says which states of a batch the head is given: those of the roots, (B, C), or those of all nodes, (N, C).
    """

    in_size: int
    reads: Literal["roots", "nodes"] = "roots"

    @abc.abstractmethod
    def forward(self, states: Tensor) -> Tensor:
        """Return the outputs of some states."""


class _Perceptron(Head):
    """A head of linear layers with ReLU between them, after a dropout of the states if one is asked for."""

    layers: nn.Sequential

    def forward(self, states: Tensor) -> Tensor:
        """Return one row of outputs for each state, (n, C) -> (n, K)."""
        outputs: Tensor = self.layers(states)
        return outputs


@final
class Classifier(_Perceptron):
    """Class scores of trees from the states of their roots, (B, C) -> (B, K); the paper has two hidden layers of 20.

    >>> Classifier(in_size=4, classes=10)(torch.zeros(3, 4)).shape
    torch.Size([3, 10])
    """

    def __init__(self, *, in_size: int, classes: int, hidden: Sequence[int] = (20, 20), dropout: float = 0.0) -> None:
        super().__init__()
        self.in_size = in_size
        self.layers = _layers("Classifier", in_size, hidden, dropout, classes=classes)


@final
class NodeHead(_Perceptron):
    """Class scores of all nodes, in the forest's order, (N, C) -> (N, K).

    >>> NodeHead(in_size=4, classes=10, hidden=())(torch.zeros(3, 4)).shape
    torch.Size([3, 10])
    """

    reads = "nodes"

    def __init__(self, *, in_size: int, classes: int, hidden: Sequence[int] = (20, 20), dropout: float = 0.0) -> None:
        super().__init__()
        self.in_size = in_size
        self.layers = _layers("NodeHead", in_size, hidden, dropout, classes=classes)


@final
class Regressor(_Perceptron):
    """Numbers for trees from the states of their roots, (B, C) -> (B, K).

    >>> Regressor(in_size=4)(torch.zeros(3, 4)).shape
    torch.Size([3, 1])
    """

    def __init__(
        self, *, in_size: int, outputs: int = 1, hidden: Sequence[int] = (20, 20), dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.in_size = in_size
        self.layers = _layers("Regressor", in_size, hidden, dropout, outputs=outputs)


@final
class PairClassifier(Head):
    r"""Class scores of pairs of trees, (2P, C) -> (P, K): a tensor combines the two roots, then leaky ReLU, a linear layer.

    .. math:: y = V \phi(T(\bar l, \bar r)) + b, \qquad \phi(z) = \max(z, 0) + 0.01 \min(z, 0)

    The states of the left trees come first, then those of the right trees in the same order, as from the batch
    ``forest.batch([*left, *right])``. The comparison layer has 75 entries, as in Bowman et al. (2015), whom the paper follows.

    >>> PairClassifier(in_size=4, classes=7)(torch.zeros(6, 4)).shape
    torch.Size([3, 7])
    """

    def __init__(self, *, in_size: int, classes: int, hidden_size: int = 75, dropout: float = 0.0) -> None:
        super().__init__()
        require_positive("PairClassifier", in_size=in_size, classes=classes, hidden_size=hidden_size)
        self.in_size = in_size
        self.comparison = Full(state_size=in_size, out_size=hidden_size, arity=2)
        self.dropout = nn.Dropout(dropout)
        self.scores = nn.Linear(hidden_size, classes)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits (P, K)."""
        if len(states) % 2:
            raise TreeError(f"pairs expect an even number of trees, left ones then right ones, got {len(states)}.")
        states, tensor = homogenise(self.dropout(states)), self.comparison.tensor  # (2P, C+1), (C+1, C+1, H)
        if tensor.shape[1] < tensor.shape[2]:  # choose the smaller intermediate result
            left, right = states.t().contiguous().chunk(2, dim=1)  # (C+1, P) each: pairs side by side fill vector units
            matrix = tensor.flatten(0, 1).t()
            # By so many pairs that the products stay near the processor.
            parts = zip(torch.split(left, _PAIRS, dim=1), torch.split(right, _PAIRS, dim=1), strict=True)
            compared = [(matrix @ (one.unsqueeze(1) * other).flatten(0, 1)).t() for one, other in parts]  # (n, H) each
        else:
            left, right = states.chunk(2)  # (P, C+1) each
            carry = (left @ tensor.flatten(1)).view(*right.shape, -1)  # (P, C+1, H)
            compared = [torch.bmm(right.unsqueeze(1), carry).squeeze(1)]
        activated = (nn.functional.leaky_relu_(each, negative_slope=0.01) for each in compared)
        return torch.cat([self.scores(each.contiguous()) for each in activated])


@final
class TreeModel(nn.Module):
    """An encoder with a head: from a batch of trees to outputs.

    ``readout`` says which states represent a tree: those of its "root".

    >>> from treefold import Forest, OneHot, TreeLSTM
    >>> forest = Forest(["(and (not a) b)", "c"])
    >>> cell = TreeLSTM("tucker", state_size=4, arity=2, rank=2, label_size=len(forest.vocabulary))
    >>> model = TreeModel(TreeEncoder(cell, OneHot(forest.vocabulary)), Classifier(in_size=4, classes=2))
    >>> model(forest.batch()).shape
    torch.Size([2, 2])
    """

    def __init__(self, encoder: TreeEncoder, head: Head, readout: Literal["root"] = "root") -> None:
        super().__init__()
        require_choice("TreeModel", "readout", readout, ["root"])
        if not isinstance(encoder, TreeEncoder) or not isinstance(head, Head):
            raise ConfigurationError(
                f"TreeModel expects an encoder and a head, got {type(encoder).__name__} and {type(head).__name__}."
            )
        if head.in_size != encoder.out_size:
            raise ConfigurationError(
                f"TreeModel expects a head with in_size={encoder.out_size}, the encoder's out_size, got {head.in_size}."
            )
        self.encoder = encoder
        self.head = head
        self.readout = readout

    def forward(self, batch: Batch | Forest) -> Tensor:
        """Return the head's outputs for a batch, or for all trees of a forest."""
        encoding: Encoding = self.encoder(batch)
        head, reads_nodes = self.head, self.head.reads == "nodes"
        if isinstance(head, _Perceptron) and not is_heard(head):
            nodes = np.arange(encoding.batch.node_count) if reads_nodes else encoding.batch.roots
            return encoding.through(head.layers, nodes)
        outputs: Tensor = head(encoding.nodes if reads_nodes else encoding.roots)
        return outputs

    def answers(self, forest: Forest, trees: Ints) -> Tensor:
        """Return the head's outputs for some trees of a forest, without gradients, the fastest way.

        >>> from treefold import OneHot, TreeLSTM
        >>> forest = Forest(["(f a)", "b", "(f b)"])
        >>> cell = TreeLSTM("sum", state_size=4, arity=1, label_size=3)
        >>> model = TreeModel(TreeEncoder(cell, OneHot("fab")), Classifier(in_size=4, classes=2))
        >>> model.answers(forest, np.array([2, 0])).shape
        torch.Size([2, 2])
        """
        return self.predictor()(forest, trees)

    def predictor(self) -> Callable[[Forest, Ints], Tensor]:
        """Return `answers` as a function to call many times while the model and its weights do not change."""
        scores = self._plain_scores()
        kernels = None if scores is None else self.encoder.answers_through(scores)

        def predict(forest: Forest, trees: Ints) -> Tensor:
            quick = None if kernels is None else kernels(forest, trees)
            if quick is not None:
                return quick
            batch = gathered(forest, trees)
            with torch.no_grad():
                outputs: Tensor = self(forest.batch(trees) if batch is None else batch)
            return outputs

        return predict

    def answering(self) -> Callable[[Forest, Ints], Tensor]:
        """Return `predictor()`; deprecated."""
        warnings.warn("TreeModel.answering is now TreeModel.predictor.", DeprecationWarning, stacklevel=2)
        return self.predictor()

    def add_gradients(self, forest: Forest, trees: Ints, classes: Ints) -> Measured | None:
        """Add the gradients of the mean cross-entropy of trees, where `FlatParameters` are in charge and kernels do it all."""
        kernels = self.gradient_kernels()
        return None if kernels is None else kernels.add(forest, trees, classes)

    def gradient_kernels(self) -> FusedGradients | None:
        """Return what does the same for many batches, for as long as no part is replaced or listened to."""
        scores = self._plain_scores()
        return None if scores is None else self.encoder.gradients_through(scores)

    def _plain_scores(self) -> Scores | None:
        """Return the head of a classifier as kernels, where nobody listens to what goes on in between."""
        if any(map(is_heard, (self, self.encoder, self.head))):
            return None
        if isinstance(self.head, Classifier):
            return TreeScores(self.head.layers)
        if not isinstance(self.head, PairClassifier):
            return None
        dropout = self.head.dropout
        is_plain = type(dropout) is nn.Dropout and not dropout.p and not is_heard(dropout)
        return PairScores(self.head) if is_plain else None

    def arrangements(self) -> list[Arrangement]:
        """Say how parameters should stand in one tensor, for `FlatParameters`."""
        layers = getattr(self.head, "layers", None)
        found = [self.encoder.arrangement()]
        if found[0] is not None and isinstance(layers, nn.Sequential):
            found.append(perceptron_arrangement(layers))
        if found[0] is not None and isinstance(self.head, PairClassifier):
            found.append(comparison_arrangement(self.head))
        arranged: set[int] = set()
        kept: list[Arrangement] = []
        for each in found:
            own = set() if each is None else {id(parameter) for parameter, *_ in each.views}
            if each is not None and not own & arranged:  # a parameter stands in one place
                kept.append(each)
                arranged |= own
        return kept


def compress(model: Model, aggregator: str = "tucker", *, rank: int | None = None) -> Model:
    """Return a copy of a model with the tensors of its cells' aggregators decomposed into another form; the model stays.

    >>> from treefold import TreeRNN
    >>> compress(TreeRNN("full", state_size=6, arity=2), "tucker", rank=3).transition
    Tucker(
      state_size=6, out_size=6, arity=2, rank=3
      ...
    """
    require_choice("compress", "aggregator", aggregator, AGGREGATORS)
    form = AGGREGATORS[aggregator]
    if rank is not None and not form.has_rank:
        raise ConfigurationError(f"compress expects no rank for {aggregator!r}, got {rank}; leave it out.")
    if form.has_rank and rank is None:
        raise ConfigurationError(
            f"compress expects a rank for {aggregator!r}, got none; a small one has fewer parameters."
        )
    result = copy.deepcopy(model)
    cells = [module for module in result.modules() if isinstance(module, Cell)]
    for cell in cells:
        for name, module in list(cell.named_children()):
            if isinstance(module, Aggregator):
                with torch.no_grad():
                    tensor = module.to_dense()
                made = form.from_dense(tensor, rank, label_size=module.label_size, shared=module.shared)
                made.initialisation = module.initialisation
                made.train(module.training)
                made.requires_grad_(all(parameter.requires_grad for parameter in module.parameters()))
                setattr(cell, name, made)
                cell.takes_any_number = made.takes_any_number
    return result


def __getattr__(name: str) -> Any:
    if name == "NodeClassifier":
        warnings.warn("the head NodeClassifier is now called NodeHead.", DeprecationWarning, stacklevel=2)
        return NodeHead
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _layers(owner: str, in_size: int, hidden: Sequence[int], dropout: float, **out: int) -> nn.Sequential:
    """Stack linear layers with ReLU between them, after a dropout of the states if one is asked for."""
    if isinstance(hidden, (int, str)) or not isinstance(hidden, Sequence):
        raise ConfigurationError(f"{owner} expects hidden to be a list of sizes such as (20, 20), got {hidden!r}.")
    require_positive(owner, in_size=in_size, **out, **{f"hidden[{index}]": size for index, size in enumerate(hidden)})
    sizes = [in_size, *hidden, *out.values()]
    layers: list[nn.Module] = [nn.Dropout(dropout)] if dropout else []
    for size, following in itertools.pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
