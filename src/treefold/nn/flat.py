"""All parameters of a model in one tensor, so that the optimiser takes one step for all of them."""

import warnings
import zlib
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from treefold.kernels.layout import NUMPY_TYPES, FlatLayout

# The views of flat parameters have gaps on purpose, where kernels keep constants.
warnings.filterwarnings("ignore", "grad and param do not obey the gradient layout contract")


@final
class FlatParameters:
    """All trainable parameters of a model as views of one tensor, and their gradients likewise.

    Those of layouts come first, in the places that the kernels read; ``order`` is a checksum of all places. ``decays`` says which
    entries weight decay shrinks: those of parameters with two axes or more, without those that a module names in ``undecayed``.

    >>> model = nn.Linear(2, 3)
    >>> flat = FlatParameters(model)
    >>> flat.values.data.zero_().shape, float(model.weight.detach().abs().sum())
    (torch.Size([9]), 0.0)
    """

    def __init__(self, model: nn.Module, layouts: Sequence[FlatLayout] = ()) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        like = self._parameters[0].detach()
        trainable = {id(parameter) for parameter in self._parameters}
        self._places: list[tuple[FlatLayout, slice]] = []
        backgrounds, views, size = [like.new_zeros(0)], [], 0
        placed: set[int] = set()
        for layout in layouts:
            own = {id(parameter) for parameter in layout.parameters}
            if layout.is_split or len(own) < len(layout.entries) or not own <= trainable or own & placed:
                continue  # the kernels copy the parameters of such a layout together
            placed |= own
            self._places.append((layout, slice(size, size + layout.size)))
            for parameter, entry in zip(layout.parameters, layout.entries, strict=True):
                views.append((parameter, entry.sizes, entry.strides, size + entry.offset))
            backgrounds.append(torch.from_numpy(layout.empty(NUMPY_TYPES[like.dtype])).to(like))
            size += layout.size
        for parameter in self._parameters:
            if id(parameter) not in placed:
                strides = torch.empty(parameter.shape, device="meta").stride()
                views.append((parameter, tuple(parameter.shape), strides, size))
                backgrounds.append(like.new_zeros(parameter.numel()))
                size += parameter.numel()
        self.values = nn.Parameter(torch.cat(backgrounds))
        self.gradient = torch.zeros_like(self.values.data)
        self.values.grad = self.gradient
        places = {id(parameter): list(place) for parameter, *place in views}
        self.order = zlib.crc32(repr([places[id(parameter)] for parameter in self._parameters]).encode())
        constant = torch.ones(size, dtype=torch.bool)
        self.decays = torch.zeros(size, dtype=torch.bool)
        undecayed = {
            id(getattr(part, name)) for part in model.modules() for name in getattr(type(part), "undecayed", ())
        }
        for parameter, sizes, strides, offset in views:
            view = self.values.data.as_strided(sizes, strides, offset)
            view.copy_(parameter.data)
            parameter.data, parameter.grad = view, self.gradient.as_strided(sizes, strides, offset)
            constant.as_strided(sizes, strides, offset).fill_(False)
            if parameter.dim() > 1 and id(parameter) not in undecayed:
                self.decays.as_strided(sizes, strides, offset).fill_(True)
        fixed = constant.nonzero().squeeze(1).to(like.device)
        self._constant_values = _Entries(self.values.data, fixed)
        self._constant_gradient = _Entries(self.gradient, fixed)

    def place_of(self, layout: FlatLayout) -> slice | None:
        """Return the place of a layout's parameters; None if they are not in one place."""
        return next((place for known, place in self._places if known is layout), None)

    def clear_constant_gradients(self) -> None:
        """Set the gradients of constants between the parameters to zero."""
        self._constant_gradient.restore()

    def restore_constants(self) -> None:
        """Set the constants between the parameters again, if a step may have moved them."""
        self._constant_values.restore()

    def release(self) -> None:
        """Give each parameter a storage of its own again, and no gradient."""
        for parameter in self._parameters:
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
            parameter.grad = None


@final
class _Entries:
    """Entries of a tensor as they are now, to restore them later."""

    def __init__(self, tensor: Tensor, places: Tensor) -> None:
        # Through numpy if possible: its calls cost less than torch's, and this is done at every step.
        is_plain = tensor.device.type == "cpu" and tensor.dtype in NUMPY_TYPES
        self._tensor: Any = tensor.numpy() if is_plain else tensor
        self._places: Any = places.numpy() if is_plain else places
        self._kept: Any = self._tensor[self._places]

    def restore(self) -> None:
        """Set the entries to their old values."""
        if len(self._kept):
            self._tensor[self._places] = self._kept
