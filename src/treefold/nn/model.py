"""The model: an encoder with a head; and its compression."""

import copy
from collections.abc import Callable
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError
from treefold.kernels.layout import FlatLayout
from treefold.nn.aggregators import Aggregator, form_named
from treefold.nn.cells import Cell
from treefold.nn.cells.base import ChildGates
from treefold.nn.encoder import TreeEncoder
from treefold.nn.engine import FusedEngine, TorchEngine, engine_for
from treefold.nn.heads import Head, HeadKernel, has_hooks
from treefold.nn.readout import Readout
from treefold.nn.wide import Wide
from treefold.trees.batch import Batch, Ints
from treefold.trees.forest import Forest

Model = TypeVar("Model", bound=nn.Module)

# Axes:  B trees · P pairs · K classes or outputs


@final
class TreeModel(nn.Module):
    """An encoder, a readout and a head: from a batch of trees to answers.

    ``readout`` says which states the head sees: "root", "mean", "max", "sum", "attention" of all nodes, or several joined, such
    as "root+mean+max" (`Readout`). A head that reads nodes has none.

    ``wide`` is a linear part beside the network (`Wide`), which training adds. `answers` and `predictor` join both;
    ``model(batch)`` is the network alone.

    >>> from treefold import Classifier, OneHot, TreeLSTM
    >>> forest = Forest(["(and (not a) b)", "c"])
    >>> cell = TreeLSTM("tucker", state_size=4, arity=2, rank=2, label_size=len(forest.vocabulary))
    >>> model = TreeModel(TreeEncoder(cell, OneHot(forest.vocabulary)), Classifier(in_size=4, classes=2))
    >>> model(forest.batch()).shape
    torch.Size([2, 2])
    """

    def __init__(self, encoder: TreeEncoder, head: Head, readout: str = "root") -> None:
        super().__init__()
        if not isinstance(encoder, TreeEncoder) or not isinstance(head, Head):
            raise ConfigurationError(
                f"TreeModel expects an encoder and a head, got {type(encoder).__name__} and {type(head).__name__}."
            )
        made = readout_of(encoder, readout)
        if head.reads == "nodes" and not made.is_root:
            raise ConfigurationError(
                f"TreeModel expects no readout for a head that reads nodes, got {readout!r}; leave it out."
            )
        if head.in_size != made.out_size:
            owner = "the encoder's out_size" if made.is_root else f"the size of the readout {readout!r}"
            raise ConfigurationError(
                f"TreeModel expects a head with in_size={made.out_size}, {owner}, got {head.in_size}."
            )
        self.encoder = encoder
        self.readout = made
        self.head = head
        self.wide: Wide | None = None
        self._head_kernel: tuple[list[nn.Module], HeadKernel | None] | None = None

    def forward(self, batch: Batch | Forest) -> Tensor:
        """Return the head's outputs for a batch, or for all trees of a forest."""
        return self.engine().answer(self.encoder.prepare(batch))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the kernel, which is made again."""
        return {**self.__dict__, "_head_kernel": None}

    def predictor(self) -> Callable[[Forest, Ints], Tensor]:
        """Return a function from a forest and the numbers of some trees to the head's outputs, without gradients.

        It prepares the weights once: use it for many batches, as long as the weights do not change.

        >>> import numpy as np
        >>> from treefold import Classifier, OneHot, TreeLSTM
        >>> forest = Forest(["(f a)", "b", "(f b)"])
        >>> cell = TreeLSTM("sum", state_size=4, arity=1, label_size=3)
        >>> model = TreeModel(TreeEncoder(cell, OneHot("fab")), Classifier(in_size=4, classes=2))
        >>> model.predictor()(forest, np.array([2, 0])).shape
        torch.Size([2, 2])
        """
        engine, wide = self.engine(), self.wide
        network = (engine.prepare() if isinstance(engine, FusedEngine) else engine).outputs
        if wide is None:
            return network
        return lambda forest, trees: wide(network(forest, trees), forest, trees)

    def answers(self, forest: Forest, trees: Ints) -> Tensor:
        """Return the head's outputs for some trees of a forest, without gradients."""
        return self.predictor()(forest, trees)

    def engine(self) -> TorchEngine:
        """Return the engine that computes the model, as long as no part of it is replaced or gets a hook."""
        return engine_for(self.encoder, self)

    def head_kernel(self) -> HeadKernel | None:
        """Return the kernel of the head, the same one as long as its layers are the same."""
        known, parts = self._head_kernel, list(self.head.modules())
        if any(map(has_hooks, parts)) or any(isinstance(part, nn.Dropout) and part.p for part in parts):
            return None
        if known is None or known[0] != parts or (known[1] is not None and not known[1].layout.fits):
            known = self._head_kernel = parts, self.head.kernel()
        return known[1]

    def layouts(self) -> list[FlatLayout]:
        """Return how parameters should be placed in one tensor for the kernels, for `FlatParameters`."""
        engine = self.engine()
        if not isinstance(engine, FusedEngine):
            return []
        head = self.head_kernel()
        return [engine.layout, *([] if head is None else [head.layout])]


def readout_of(encoder: TreeEncoder, name: str) -> Readout:
    """Make a readout of an encoder's states and labels; its ``out_size`` is the head's ``in_size``."""
    label_size = None if encoder.labels is None else encoder.labels.size
    return Readout(name, state_size=encoder.out_size, label_size=label_size)


def compress(model: Model, aggregator: str = "tucker", *, rank: int | None = None, **options: Any) -> Model:
    """Return a copy of a model with the tensors of its cells' aggregators decomposed into another form; the model stays.

    ``options`` are those of the form, such as the ``block_size`` of `Blockwise`. A bound on factors is no part of a tensor: pass
    ``bound`` if the result should have one.

    Forms that are always shared, such as mean, also share the gates of the children, and take the mean of their memories.

    >>> from treefold import TreeRNN
    >>> compress(TreeRNN("full", state_size=6, arity=2), "tucker", rank=3).transition
    Tucker(
      state_size=6, out_size=6, arity=2, rank=3
      ...
    """
    form = form_named(aggregator, "compress")
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
            if isinstance(module, ChildGates) and form.always_shared:
                module.share()
            if isinstance(module, Aggregator):
                if any(part.normalises for part in module.summands):
                    raise ConfigurationError(
                        f"compress expects a form with one tensor for any number of children, got {type(module).__name__}, "
                        f"which divides by it; it is small, leave it as it is."
                    )
                with torch.no_grad():
                    tensor = module.to_dense()
                made = form.from_dense(tensor, rank, label_size=module.label_size, shared=module.shared, **options)
                made.initialisation = module.initialisation
                made.train(module.training)
                made.requires_grad_(all(parameter.requires_grad for parameter in module.parameters()))
                setattr(cell, name, made)
                cell.takes_any_number = made.takes_any_number
    for module in result.modules():
        if isinstance(module, TreeEncoder):
            module.read_arities()
    return result
