"""All parameters of a model in one tensor, so that what is done to each is done once."""

import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn


@final
@dataclass(frozen=True)
class Arrangement:
    """How some parameters want to stand in one tensor: each as a view, between constants.

    ``views`` are (parameter, sizes, strides, offset); ``background`` (n,) has the constants, anything where parameters are;
    ``owner`` is whoever reads the tensor as a whole.
    """

    owner: object
    background: Tensor
    views: list[tuple[nn.Parameter, tuple[int, ...], tuple[int, ...], int]]


@final
class FlatParameters:
    """All parameters of a model as views of one tensor, and their gradients likewise: one optimiser step for all.

    Those of arrangements come first, as these want them; ``order`` is a number that tells one order from another.

    >>> model = nn.Linear(2, 3)
    >>> flat = FlatParameters(model)
    >>> flat.values.data.zero_().shape, float(model.weight.detach().abs().sum())
    (torch.Size([9]), 0.0)
    """

    def __init__(self, model: nn.Module, arrangements: Sequence[Arrangement] = ()) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        like = self._parameters[0].detach()
        self._places: list[tuple[object, slice]] = []
        views, size = [], 0
        for arrangement in arrangements:
            self._places.append((arrangement.owner, slice(size, size + len(arrangement.background))))
            views += [(each, sizes, strides, size + offset) for each, sizes, strides, offset in arrangement.views]
            size += len(arrangement.background)
        background = torch.cat([like.new_zeros(0), *(each.background.to(like) for each in arrangements)])
        arranged = {id(parameter) for parameter, *_ in views}
        for parameter in self._parameters:
            if id(parameter) not in arranged:
                views.append((parameter, tuple(parameter.shape), _strides(parameter), size))
                size += parameter.numel()
        self.values = nn.Parameter(torch.cat([background, like.new_zeros(size - len(background))]))
        self.gradient = torch.zeros_like(self.values.data)
        self.values.grad = self.gradient
        places = {id(parameter): place for parameter, *place in views}
        self.order = zlib.crc32(repr([places[id(parameter)] for parameter in self._parameters]).encode())
        constant = torch.ones(size, dtype=torch.bool)
        for parameter, sizes, strides, offset in views:
            view = self.values.data.as_strided(sizes, strides, offset)
            view.copy_(parameter.data)
            parameter.data, parameter.grad = view, self.gradient.as_strided(sizes, strides, offset)
            constant.as_strided(sizes, strides, offset).fill_(False)
        fixed = constant.nonzero().squeeze(1).to(like.device)
        self._constant_values, self._constant_gradient = (
            _Entries(self.values.data, fixed),
            _Entries(self.gradient, fixed),
        )
        self.is_in_charge = False
        _living[_storage(self.values)] = self

    def place_of(self, owner: object) -> slice | None:
        """Return where the arrangement of an owner stands; None for others."""
        return next((place for known, place in self._places if known is owner), None)

    def settle_gradient(self) -> None:
        """Forget what constants were given as gradients."""
        self._constant_gradient.restore()

    def settle_values(self) -> None:
        """Set the constants again, where a step may have moved them."""
        self._constant_values.restore()

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """While this lasts, the owners of arrangements may read the values and add to the gradient as a whole.

        It ends in the same numbers, but `torch.autograd.grad` does not see the parameters one by one meanwhile.
        """
        self.is_in_charge = True
        try:
            yield
        finally:
            self.is_in_charge = False

    def release(self) -> None:
        """Give each parameter storage of its own again, and no gradient."""
        _living.pop(_storage(self.values), None)
        for parameter in self._parameters:
            parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
            parameter.grad = None


@final
class _Entries:
    """Entries of a tensor as they are now, to have them so again."""

    def __init__(self, tensor: Tensor, places: Tensor) -> None:
        # Through numpy where it can see them: its calls cost less than torch's, and this is done at every step.
        plain = tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
        self._tensor: Any = tensor.numpy() if plain else tensor
        self._places: Any = places.numpy() if plain else places
        self._kept: Any = self._tensor[self._places]

    def restore(self) -> None:
        """Set the entries to what they were."""
        if len(self._kept):
            self._tensor[self._places] = self._kept


_living: "weakref.WeakValueDictionary[int, FlatParameters]" = weakref.WeakValueDictionary()


def any_held(parameters: Iterable[Tensor]) -> bool:
    """Say whether flat parameters hold one of these, in charge or not: whoever moved it would hide it from their steps.

    >>> model = nn.Linear(2, 3)
    >>> flat = FlatParameters(model)
    >>> any_held(model.parameters())
    True
    >>> flat.release()
    >>> any_held(model.parameters())
    False
    """
    return bool(_living) and any(_storage(parameter) in _living for parameter in parameters)


def in_charge_of(parameter: Tensor) -> FlatParameters | None:
    """Return the flat parameters that are in charge and hold this one.

    >>> model = nn.Linear(2, 3)
    >>> flat = FlatParameters(model)
    >>> in_charge_of(model.weight) is None
    True
    >>> with flat.in_charge():
    ...     in_charge_of(model.weight) is flat
    True
    """
    flat = _living.get(_storage(parameter)) if _living else None
    return flat if flat is not None and flat.is_in_charge else None


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _strides(parameter: Tensor) -> tuple[int, ...]:
    return torch.empty(parameter.shape, device="meta").stride()
