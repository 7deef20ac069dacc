"""Perceptrons on states, as the heads of models have them: linear layers with ReLU between, all of them in one call."""

import weakref
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from treefold.kernels.compiled import inlined, planner
from treefold.kernels.dispatch import weights_now
from treefold.kernels.layout import Entry, Layout
from treefold.kernels.linear import affine, affine_inputs_backward, affine_weights_backward
from treefold.kernels.tables import PART, START, WIDTH, Floats, Ints, Weights
from treefold.nn.flat import Arrangement, FlatParameters, in_charge_of

# Axes:  U units · S memory size · n chosen rows · H widths of the hidden layers, side by side · K outputs
_MANY: Final = 512  # rows from which the matrix products of torch are faster than its calls are slow


def perceptron(layers: nn.Sequential, memories: Tensor, rows: Ints) -> Tensor | None:
    """Return what the layers make of the chosen states, the beginnings of rows of ``memories`` (U, S): -> (n, K).

    None where this way cannot be taken, or is not faster.
    """
    layout = layers_layout(layers) if len(rows) < _MANY and memories.device.type == "cpu" else None
    if layout is None:
        return None
    parameters = layout.parameters
    if any(each.dtype != memories.dtype for each in parameters):
        return None
    home = in_charge_of(parameters[0])
    if home is not None and home.place_of(layout) is None:
        home = None
    if home is not None:
        parameters = [home.values]
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in (memories, *parameters)):
        weights = weights_now(layout, settled=not layers.training)
        return torch.from_numpy(perceptron_forward(weights.values, weights.sets, memories.detach().numpy(), rows)[1])
    result: Tensor = _Function.apply(layout, home, rows, memories, *parameters)  # type: ignore[no-untyped-call]
    return result


def perceptron_arrangement(layers: nn.Sequential) -> Arrangement | None:
    """Say how the parameters of the layers should stand in one tensor, so that `perceptron` need not copy them."""
    layout = layers_layout(layers)
    if layout is None or not all(parameter.requires_grad for parameter in layout.parameters):
        return None
    return layout.arrangement()


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layout: Layout, home: FlatParameters | None, rows: Ints, memories: Tensor, *parameters: Tensor
    ) -> Tensor:
        weights, memory = _weights(layout, home, list(parameters)), memories.detach().numpy()
        hidden, out = perceptron_forward(weights.values, weights.sets, memory, rows)
        ctx.work = layout, home, rows, weights, hidden
        ctx.save_for_backward(memories)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        layout, home, rows, weights, hidden = ctx.work
        memory = ctx.saved_tensors[0].detach().numpy()
        d_memory = np.zeros_like(memory)
        # Where all parameters stand in one tensor, the kernel adds to its gradient itself.
        d_values = np.zeros_like(weights.values) if home is None else home.gradient.numpy()[home.place_of(layout)]
        perceptron_backward(
            weights.values, weights.sets, memory, rows, hidden, d_out.contiguous().numpy(), d_memory, d_values
        )
        gradients = [None] if home is not None else layout.gradients(torch.from_numpy(d_values))
        return None, None, None, torch.from_numpy(d_memory), *gradients


def _weights(layout: Layout, home: FlatParameters | None, parameters: list[Tensor]) -> Weights:
    if home is None:
        return layout.pack(parameters)
    return Weights(home.values.detach().numpy()[home.place_of(layout)], *layout.tables)


@inlined
def matrix_at(values: Floats, layers: Ints, layer: int) -> Floats:
    """Return the matrix of a layer, its biases last, or the gradient of it."""
    start, width, size = layers[layer, START], layers[layer, WIDTH], layers[layer, PART]
    return values[start : start + (size + 1) * width].reshape(size + 1, width)


@planner
def perceptron_forward(values: Floats, layers: Ints, memory: Floats, rows: Ints) -> tuple[Floats, Floats]:
    """Return the hidden layers (n, H) and the outputs (n, K)."""
    last, count, zero = len(layers) - 1, len(rows), int(np.int64(0))
    hidden = np.empty((count, layers[:last, WIDTH].sum()), memory.dtype)
    out = np.empty((count, layers[last, WIDTH]), memory.dtype)
    own, before, column = np.arange(count), zero, zero
    for layer in range(last + 1):
        width, matrix = layers[layer, WIDTH], matrix_at(values, layers, layer)
        inputs, chosen = (hidden, own) if layer else (memory, rows)
        target, place = (hidden, column) if layer < last else (out, zero)
        affine(target, place, zero, count, inputs, before, chosen, matrix)
        if layer < last:
            for e in range(count):
                line = hidden[e, column : column + width]
                for p in range(width):
                    line[p] = line[p] if line[p] > 0 or line[p] != line[p] else 0  # NaN stays
            before, column = column, column + width
    return hidden, out


@planner
def perceptron_backward(
    values: Floats,
    layers: Ints,
    memory: Floats,
    rows: Ints,
    hidden: Floats,
    d_out: Floats,
    d_memory: Floats,
    d_values: Floats,
) -> None:
    """Add the gradients of the memories and of the weights for those of the outputs."""
    last, count, zero = len(layers) - 1, len(rows), int(np.int64(0))
    d_hidden, own, column = np.zeros_like(hidden), np.arange(count), hidden.shape[1]
    for layer in range(last, -1, -1):
        width, size = layers[layer, WIDTH], layers[layer, PART]
        matrix, d_matrix = matrix_at(values, layers, layer), matrix_at(d_values, layers, layer)
        if layer < last:
            for e in range(count):
                line, delta = hidden[e, column : column + width], d_hidden[e, column : column + width]
                for p in range(width):
                    delta[p] = delta[p] if line[p] > 0 else 0
        source, place = (d_hidden, column) if layer < last else (d_out, zero)
        inputs, d_inputs, chosen = (hidden, d_hidden, own) if layer else (memory, d_memory, rows)
        before = column - size if layer else zero
        affine_weights_backward(source, place, own, inputs, before, chosen, d_matrix)
        affine_inputs_backward(source, place, zero, count, d_inputs, before, chosen, matrix)
        column = before


_layouts: "weakref.WeakKeyDictionary[nn.Sequential, tuple[list[nn.Module], Layout | None]]" = (
    weakref.WeakKeyDictionary()
)


def layers_layout(layers: nn.Sequential) -> Layout | None:
    """Lay out the layers, once for as long as they are the same; None where they are others than linear ones and ReLU."""
    modules = list(layers._modules.values())
    if any(map(is_heard, modules)):
        return None
    known = _layouts.get(layers)
    if known is None or known[0] != modules or (known[1] is not None and not still_fits(known[1])):
        known = _layouts[layers] = modules, _laid_out(modules)
    return known[1]


def _laid_out(modules: list[nn.Module]) -> Layout | None:
    kinds = [nn.Linear, nn.ReLU] * len(modules)
    if len(modules) % 2 == 0 or [type(module) for module in modules] != kinds[: len(modules)]:
        return None
    layout = Layout(gates=0, state_size=0)
    for linear in modules[::2]:
        assert isinstance(linear, nn.Linear)
        if linear.bias is None:
            return None
        add_linear(layout, linear)
    layout.finish()
    return layout


def is_heard(module: nn.Module) -> bool:
    """Say whether something wants to know what goes through a module."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def still_fits(layout: Layout) -> bool:
    """Say whether the parameters have the shapes that they had when they were laid out."""
    return all(each.shape == entry.sizes for each, entry in zip(layout.parameters, layout.entries, strict=True))


def add_linear(layout: Layout, linear: nn.Linear) -> None:
    """Add a linear layer to a layout: a line for each input, and the biases behind."""
    width, size = linear.weight.shape
    start = layout.take((size + 1) * width)
    layout.sets.append([start, width, size])
    layout.entries.append(Entry(linear, "weight", start, (width, size), (1, width)))
    layout.entries.append(Entry(linear, "bias", start + size * width, (width,), (1,)))
