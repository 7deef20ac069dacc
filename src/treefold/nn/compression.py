"""Compression of trained models: the tensors of a model's aggregators decomposed into another form."""

import copy
from typing import TypeVar

import torch
from torch import nn

from treefold.errors import ConfigurationError, require_choice
from treefold.nn.aggregators import AGGREGATORS, Aggregator
from treefold.nn.cells import Cell

Model = TypeVar("Model", bound=nn.Module)


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
