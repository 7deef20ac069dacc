"""Heads turn the states of trees, pairs of trees or nodes into answers. A head is one class, with its kernel if it has one."""

import abc
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, TreeError, require_choice, require_positive
from treefold.kernels.affine import affine, affine_inputs_backward, affine_weights_backward, copy
from treefold.kernels.compile import entry_point, inlined, matrix
from treefold.kernels.layout import FlatLayout, Kernel, records
from treefold.kernels.records import LAYER, Ints, Layers, Matrix, Vector
from treefold.nn.aggregators import Full
from treefold.nn.math.functional import homogenise
from treefold.nn.randomness import Dropout

# Axes:  N nodes · B trees · P pairs · C state size · H entries of a comparison · K classes, outputs or levels
_PAIRS: Final = 1024  # that torch compares together
_LEAK: Final = 0.01


class Head(nn.Module, abc.ABC):
    """Turns states of ``in_size`` entries into answers. ``reads`` says which states: those of the roots, or of all nodes."""

    in_size: int
    reads: ClassVar[Literal["roots", "nodes"]] = "roots"

    @abc.abstractmethod
    def forward(self, states: Tensor) -> Tensor:
        """Return one row of outputs for each tree, pair or node."""

    def kernel(self) -> "HeadKernel | None":
        """Return the compiled kernel of the head as it is now; None if torch has to compute it."""
        return None


class _Perceptron(Head):
    """Linear layers with ReLU between them."""

    def __init__(self, in_size: int, hidden: Sequence[int], dropout: float, **out: int) -> None:
        super().__init__()
        name = type(self).__name__
        if isinstance(hidden, (int, str)) or not isinstance(hidden, Sequence):
            raise ConfigurationError(f"{name} expects hidden to be a list of sizes such as (20, 20), got {hidden!r}.")
        sizes = {f"hidden[{index}]": size for index, size in enumerate(hidden)}
        require_positive(name, in_size=in_size, **out, **sizes)
        self.in_size = in_size
        layers: list[nn.Module] = [Dropout(dropout)] if dropout else []
        for size, following in itertools.pairwise([in_size, *hidden, *out.values()]):
            layers += [nn.Linear(size, following), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, states: Tensor) -> Tensor:
        """Run the layers."""
        outputs: Tensor = self.layers(states)
        return outputs

    def kernel(self) -> "HeadKernel | None":
        """Return the layers as a kernel, if they are linear ones with ReLU between them and without hooks."""
        modules = list(self.layers._modules.values())
        kinds = ([nn.Linear, nn.ReLU] * len(modules))[: len(modules)]
        if len(modules) % 2 == 0 or [type(module) for module in modules] != kinds:
            return None
        if any(map(has_hooks, (self.layers, *modules))):
            return None
        linear = [module for module in modules if isinstance(module, nn.Linear)]
        return _PerceptronKernel(linear) if all(layer.bias is not None for layer in linear) else None


@final
class Classifier(_Perceptron):
    """Class scores (B, K) for each tree, from its root (B, C) through hidden layers; the paper has two of 20.

    >>> Classifier(in_size=4, classes=10)(torch.zeros(3, 4)).shape
    torch.Size([3, 10])
    """

    def __init__(self, *, in_size: int, classes: int, hidden: Sequence[int] = (20, 20), dropout: float = 0.0) -> None:
        super().__init__(in_size, hidden, dropout, classes=classes)


@final
class NodeHead(_Perceptron):
    """Class scores (N, K) for each node (N, C).

    >>> NodeHead(in_size=4, classes=10, hidden=())(torch.zeros(3, 4)).shape
    torch.Size([3, 10])
    """

    reads = "nodes"

    def __init__(self, *, in_size: int, classes: int, hidden: Sequence[int] = (20, 20), dropout: float = 0.0) -> None:
        super().__init__(in_size, hidden, dropout, classes=classes)


@final
class Regressor(_Perceptron):
    """Numbers (B, K) for each tree (B, C).

    >>> Regressor(in_size=4)(torch.zeros(3, 4)).shape
    torch.Size([3, 1])
    """

    def __init__(
        self, *, in_size: int, outputs: int = 1, hidden: Sequence[int] = (20, 20), dropout: float = 0.0
    ) -> None:
        super().__init__(in_size, hidden, dropout, outputs=outputs)


@final
class Distance(nn.Module):
    r"""Compares states (P, C) and (P, C) by their product and their distance, entry by entry, as Tai et al. (2015) do.

    .. math:: f(l, r) = \sigma(W^\times (l \circ r) + W^+ |l - r| + b)

    The result (P, H) is the same if left and right change places.

    >>> Distance(in_size=4, out_size=50)(torch.zeros(3, 4), torch.ones(3, 4)).shape
    torch.Size([3, 50])
    """

    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.product = nn.Linear(in_size, out_size, bias=False)
        self.distance = nn.Linear(in_size, out_size)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the comparison (P, H)."""
        return torch.sigmoid(self.product(left * right) + self.distance((left - right).abs()))


@final
class Entrywise(nn.Module):
    r"""Compares states (P, C) and (P, C) entry by entry, by their product and themselves.

    .. math:: f(l, r) = \phi(A (l \circ r) + B l + C r + d), \qquad \phi(z) = \max(z, 0) + 0.01 \min(z, 0)

    ``linear`` has A, B and C side by side, (H, 3C), and d.

    >>> Entrywise(in_size=4, out_size=75)(torch.zeros(3, 4), torch.ones(3, 4)).shape
    torch.Size([3, 75])
    """

    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * in_size, out_size)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the comparison (P, H)."""
        return nn.functional.leaky_relu(self.linear(torch.cat([left * right, left, right], 1)), negative_slope=_LEAK)


@final
class PairClassifier(Head):
    r"""Class scores (P, K) for each pair of trees: a tensor combines the two roots, then leaky ReLU and a linear layer.

    .. math:: y = V \phi(T(\bar l, \bar r)) + b, \qquad \phi(z) = \max(z, 0) + 0.01 \min(z, 0)

    The states (2P, C) are those of the left trees, then those of the right ones in the same order:
    ``forest.batch([*left, *right])``. The comparison layer has 75 entries, as in Bowman et al. (2015), whom the paper follows.
    With ``comparison="distance"``, `Distance` takes the place of tensor and leaky ReLU; with ``comparison="blockwise"``,
    `Entrywise` does, which mixes no coordinates before the linear layer and suits states of the form `Blockwise`.

    >>> PairClassifier(in_size=4, classes=7)(torch.zeros(6, 4)).shape
    torch.Size([3, 7])
    """

    comparison: Any  # Full, Distance or Entrywise

    def __init__(
        self, *, in_size: int, classes: int, hidden_size: int = 75, dropout: float = 0.0, comparison: str = "tensor"
    ) -> None:
        super().__init__()
        require_positive("PairClassifier", in_size=in_size, classes=classes, hidden_size=hidden_size)
        require_choice("PairClassifier", "comparison", comparison, ["tensor", "distance", "blockwise"])
        self.in_size = in_size
        if comparison == "tensor":
            self.comparison = Full(state_size=in_size, out_size=hidden_size, arity=2)
        else:
            self.comparison = (Distance if comparison == "distance" else Entrywise)(in_size, hidden_size)
        self.dropout = Dropout(dropout)
        self.scores = nn.Linear(hidden_size, classes)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits (P, K)."""
        _require_pairs(states)
        states = self.dropout(states)
        if isinstance(self.comparison, (Distance, Entrywise)):
            scores: Tensor = self.scores(self.comparison(*states.chunk(2)))
            return scores
        states, tensor = homogenise(states), self.comparison.tensor  # (2P, C+1), (C+1, C+1, H)
        if tensor.shape[1] < tensor.shape[2]:  # the smaller of the two possible intermediate results
            left, right = states.t().contiguous().chunk(2, dim=1)  # (C+1, P) each: pairs side by side fill vector units
            rows = tensor.flatten(0, 1).t()
            # So many pairs at a time that the products stay in the cache.
            parts = zip(torch.split(left, _PAIRS, dim=1), torch.split(right, _PAIRS, dim=1), strict=True)
            compared = [(rows @ (one.unsqueeze(1) * other).flatten(0, 1)).t() for one, other in parts]  # (n, H) each
        else:
            left, right = states.chunk(2)  # (P, C+1) each
            carry = (left @ tensor.flatten(1)).view(*right.shape, -1)  # (P, C+1, H)
            compared = [torch.bmm(right.unsqueeze(1), carry).squeeze(1)]
        activated = (nn.functional.leaky_relu_(each, negative_slope=_LEAK) for each in compared)
        return torch.cat([self.scores(each.contiguous()) for each in activated])

    def kernel(self) -> "HeadKernel | None":
        """Return the comparison as a kernel, if it has one, without dropout and hooks."""
        comparison, scores, dropout = self.comparison, self.scores, self.dropout
        is_plain = (type(scores), type(dropout)) == (nn.Linear, Dropout) and scores.bias is not None
        if not is_plain or dropout.p or any(map(has_hooks, (*comparison.modules(), scores, dropout))):
            return None
        if type(comparison) is Entrywise:
            linear = comparison.linear
            return _EntrywiseKernel(self) if type(linear) is nn.Linear and linear.bias is not None else None
        tensor = comparison._parameters.get("tensor") if type(comparison) is Full else None
        return None if tensor is None or tensor.dim() != 3 else _ComparisonKernel(self)


@final
class PairRegressor(Head):
    r"""A number for each pair of trees, as scores (P, K) of K levels 0 … K-1, from the `Distance` of the two roots.

    .. math:: s = V f(l, r) + c, \qquad p = \mathrm{softmax}(s), \qquad \hat y = \sum_k k\, p_k

    The states (2P, C) are those of the left trees, then those of the right ones, as for `PairClassifier`. Sizes are those of
    Tai et al. (2015): 5 levels, a comparison of 50 entries.

    >>> PairRegressor(in_size=4)(torch.zeros(6, 4)).shape
    torch.Size([3, 5])
    """

    def __init__(self, *, in_size: int, levels: int = 5, hidden_size: int = 50, dropout: float = 0.0) -> None:
        super().__init__()
        require_positive("PairRegressor", in_size=in_size, levels=levels, hidden_size=hidden_size)
        if levels < 2:
            raise ConfigurationError(
                "PairRegressor expects at least two levels, the least and the greatest number, got 1."
            )
        self.in_size = in_size
        self.comparison = Distance(in_size, hidden_size)
        self.dropout = Dropout(dropout)
        self.scores = nn.Linear(hidden_size, levels)

    def forward(self, states: Tensor) -> Tensor:
        """Return the scores of the levels (P, K)."""
        _require_pairs(states)
        scores: Tensor = self.scores(self.comparison(*self.dropout(states).chunk(2)))
        return scores


def _require_pairs(states: Tensor) -> None:
    if len(states) % 2:
        raise TreeError(f"pairs expect an even number of trees, left ones then right ones, got {len(states)}.")


def has_hooks(module: nn.Module) -> bool:
    """Say whether a module has hooks."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


# Kernels ---------------------------------------------------------------------------------------------------------------


class HeadKernel(abc.ABC):
    """A classifier as compiled functions, on parameters in the places of its layout.

    ``trees`` is the number of trees for a row of scores, ``classes`` their number, ``functions`` what has to be compiled.
    """

    trees: ClassVar[int]
    functions: ClassVar[tuple[list[Kernel], list[Kernel]]]
    """Those for scores, and those for gradients."""

    def __init__(self, in_size: int, classes: int) -> None:
        self.in_size, self.classes, self.layout = in_size, classes, FlatLayout()
        self._rows: list[dict[str, int]] = []

    @property
    def layers(self) -> Layers:
        """The places of the layers."""
        return records(self._rows, LAYER)

    def add_linear(self, linear: nn.Linear) -> None:
        """Lay out a linear layer: a line for each input, and the biases last."""
        width, size = linear.weight.shape
        start = self.layout.take((size + 1) * width)
        self._rows.append({"start": start, "width": width, "size": size})
        self.layout.add(linear, "weight", start, (1, width))
        self.layout.add(linear, "bias", start + size * width)

    def can_split(self, trees: int) -> bool:
        """Say whether the trees of a batch may be computed by several threads, each with its own scores."""
        return True

    def is_worth_it(self, trees: int) -> bool:
        """Say whether the kernel is faster than torch for so many trees."""
        return True

    @abc.abstractmethod
    def scores(self, values: Vector, memory: Matrix, roots: Ints) -> Matrix:
        """Return the scores (B or P, K) for memories (U, S) and the units of roots."""

    @abc.abstractmethod
    def gradients(
        self, values: Vector, memory: Matrix, roots: Ints, classes: Ints, total: int, d_values: Vector
    ) -> tuple[float, int, Matrix]:
        """Return the sum of the cross-entropies, the number of right answers, and the gradient of the memories (U, S).

        That of the weights is added to ``d_values``; both are gradients of the sum divided by ``total``.
        """


@inlined
def layer_matrix(values: Vector, layers: Layers, layer: int) -> Matrix:
    """Return the matrix of a layer, its biases last, or the gradient of it."""
    found: Matrix = matrix(values, layers[layer].start, layers[layer].size + 1, layers[layer].width)
    return found


@entry_point
def perceptron_forward(values: Vector, layers: Layers, memory: Matrix, rows: Ints) -> tuple[Matrix, Matrix]:
    """Return the hidden layers (n, H), side by side, and the outputs (n, K) for some rows of the memory."""
    last, count, zero, hidden_width = len(layers) - 1, len(rows), int(np.int64(0)), 0
    for layer in range(last):
        hidden_width += layers[layer].width
    hidden = np.empty((count, hidden_width), memory.dtype)
    out = np.empty((count, layers[last].width), memory.dtype)
    own, before, column = np.arange(count), zero, zero
    for layer in range(last + 1):
        width, inputs, chosen = layers[layer].width, hidden if layer else memory, own if layer else rows
        target, place = (hidden, column) if layer < last else (out, zero)
        affine(target, place, zero, count, inputs, before, chosen, layer_matrix(values, layers, layer))
        if layer < last:
            for e in range(count):
                line = hidden[e, column : column + width]
                for p in range(width):
                    line[p] = line[p] if line[p] > 0 or line[p] != line[p] else 0  # NaN stays
            before, column = column, column + width
    return hidden, out


@entry_point
def perceptron_gradients(
    values: Vector, layers: Layers, memory: Matrix, rows: Ints, classes: Ints, total: int, d_values: Vector
) -> tuple[float, int, Matrix]:
    """Compute `HeadKernel.gradients` of a perceptron."""
    hidden, out = perceptron_forward(values, layers, memory, rows)
    loss, right = cross_entropy(out, classes, total)
    last, count, zero, d_memory = len(layers) - 1, len(rows), int(np.int64(0)), np.zeros_like(memory)
    d_hidden, own, column = np.zeros_like(hidden), np.arange(count), hidden.shape[1]
    for layer in range(last, -1, -1):
        width, size = layers[layer].width, layers[layer].size
        if layer < last:
            for e in range(count):
                line, delta = hidden[e, column : column + width], d_hidden[e, column : column + width]
                for p in range(width):
                    delta[p] = delta[p] if line[p] > 0 else 0
        source, place = (d_hidden, column) if layer < last else (out, zero)
        inputs, d_inputs, chosen = (hidden, d_hidden, own) if layer else (memory, d_memory, rows)
        before = column - size if layer else zero
        affine_weights_backward(source, place, own, inputs, before, chosen, layer_matrix(d_values, layers, layer))
        affine_inputs_backward(
            source, place, zero, count, d_inputs, before, chosen, layer_matrix(values, layers, layer)
        )
        column = before
    return loss, right, d_memory


@entry_point
def cross_entropy(scores: Matrix, classes: Ints, total: int) -> tuple[float, int]:
    """Return the sum of the losses and the number of right answers; replace scores by the gradient of the sum over total."""
    loss, right = 0.0, 0
    for e in range(len(scores)):
        line = scores[e]
        best = 0
        for k in range(len(line)):
            best = k if line[k] > line[best] else best
        highest = line[best]
        of_class = line[classes[e]] - highest
        mass = line[0] - line[0]
        for k in range(len(line)):
            line[k] = np.exp(line[k] - highest)
            mass += line[k]
        loss += np.log(mass) - of_class
        right += best == classes[e]
        for k in range(len(line)):
            line[k] /= mass * total
        line[classes[e]] -= scores.dtype.type(1) / total
    return loss, right


@final
class _PerceptronKernel(HeadKernel):
    trees = 1
    functions = ([perceptron_forward], [perceptron_gradients])

    def __init__(self, linear: Sequence[nn.Linear]) -> None:
        super().__init__(linear[0].in_features, linear[-1].out_features)
        for layer in linear:
            self.add_linear(layer)
        self._layers = self.layers

    def scores(self, values: Vector, memory: Matrix, roots: Ints) -> Matrix:
        return perceptron_forward(values, self._layers, memory, roots)[1]

    def gradients(
        self, values: Vector, memory: Matrix, roots: Ints, classes: Ints, total: int, d_values: Vector
    ) -> tuple[float, int, Matrix]:
        return perceptron_gradients(values, self._layers, memory, roots, classes, total, d_values)


@inlined
def tensor_matrix(values: Vector, layers: Layers, size: int) -> Matrix:
    """Return the tensor, or its gradient, as the matrix (C+1, (C+1)·H) that multiplies the left roots."""
    found: Matrix = matrix(values, layers[0].start, size + 1, (size + 1) * layers[0].width)
    return found


@entry_point
def comparison_forward(
    values: Vector, layers: Layers, size: int, memory: Matrix, roots: Ints
) -> tuple[Matrix, Matrix, Matrix]:
    """Return the tensor contracted with the left roots (P, (C+1)·H), the compared entries (P, H) and the scores (P, K).

    ``roots`` (2P,) are units, the left ones first.
    """
    zero, dtype = int(np.int64(0)), memory.dtype
    pairs, entries = len(roots) // 2, layers[0].width
    carried = np.empty((pairs, (size + 1) * entries), dtype)
    compared, out = np.empty((pairs, entries), dtype), np.empty((pairs, layers[1].width), dtype)
    affine(carried, zero, zero, pairs, memory, zero, roots, tensor_matrix(values, layers, size))
    for pair in range(pairs):
        right, line = memory[roots[pairs + pair]], compared[pair]
        copy(carried[pair, size * entries :], line)  # the last entry of a homogeneous vector is one
        for j in range(size):
            block = carried[pair, j * entries : (j + 1) * entries]
            for h in range(entries):
                line[h] += right[j] * block[h]
        for h in range(entries):
            line[h] = line[h] if line[h] > 0 else dtype.type(_LEAK) * line[h]
    affine(out, zero, zero, pairs, compared, zero, np.arange(pairs), layer_matrix(values, layers, 1))
    return carried, compared, out


@entry_point
def comparison_gradients(
    values: Vector, layers: Layers, size: int, memory: Matrix, roots: Ints, classes: Ints, total: int, d_values: Vector
) -> tuple[float, int, Matrix]:
    """Compute `HeadKernel.gradients` of a comparison."""
    carried, compared, out = comparison_forward(values, layers, size, memory, roots)
    loss, right_answers = cross_entropy(out, classes, total)
    zero, dtype, d_memory = int(np.int64(0)), memory.dtype, np.zeros_like(memory)
    pairs, entries = compared.shape
    d_compared, own = np.zeros_like(compared), np.arange(pairs)
    affine_weights_backward(out, zero, own, compared, zero, own, layer_matrix(d_values, layers, 1))
    affine_inputs_backward(out, zero, zero, pairs, d_compared, zero, own, layer_matrix(values, layers, 1))
    for pair in range(pairs):
        right, line, delta = memory[roots[pairs + pair]], compared[pair], d_compared[pair]
        for h in range(entries):
            delta[h] = delta[h] if line[h] > 0 else dtype.type(_LEAK) * delta[h]
        for j in range(size):
            block, sum_of_products = carried[pair, j * entries : (j + 1) * entries], dtype.type(0)
            for h in range(entries):
                sum_of_products += block[h] * delta[h]
                block[h] = right[j] * delta[h]
            d_memory[roots[pairs + pair], j] += sum_of_products
        copy(delta, carried[pair, size * entries :])
    affine_weights_backward(carried, zero, own, memory, zero, roots, tensor_matrix(d_values, layers, size))
    affine_inputs_backward(carried, zero, zero, pairs, d_memory, zero, roots, tensor_matrix(values, layers, size))
    return loss, right_answers, d_memory


@final
class _ComparisonKernel(HeadKernel):
    trees = 2
    functions = ([comparison_forward], [comparison_gradients])
    _MOST: ClassVar[int] = 25_000_000
    """Multiply-adds of all pairs above which the matrix products of torch outweigh the cost of its calls."""

    def __init__(self, head: PairClassifier) -> None:
        side, _, entries = head.comparison.tensor.shape
        super().__init__(side - 1, head.scores.out_features)
        self._rows.append({"start": self.layout.take(side * side * entries), "width": entries, "size": side * side - 1})
        self.layout.add(head.comparison, "tensor", 0)
        self.add_linear(head.scores)
        self._layers = self.layers

    def can_split(self, trees: int) -> bool:
        """Say no: left and right trees would be on different threads."""
        return False

    def is_worth_it(self, trees: int) -> bool:
        """Say no if many pairs meet a large tensor."""
        return trees // 2 * self.layout.size <= self._MOST

    def scores(self, values: Vector, memory: Matrix, roots: Ints) -> Matrix:
        return comparison_forward(values, self._layers, self.in_size, memory, roots)[2]

    def gradients(
        self, values: Vector, memory: Matrix, roots: Ints, classes: Ints, total: int, d_values: Vector
    ) -> tuple[float, int, Matrix]:
        return comparison_gradients(values, self._layers, self.in_size, memory, roots, classes, total, d_values)


@entry_point
def entrywise_forward(values: Vector, layers: Layers, memory: Matrix, roots: Ints) -> tuple[Matrix, Matrix, Matrix]:
    """Return [l∘r, l, r] (P, 3C), the compared entries (P, H) and the scores (P, K); ``roots`` as in `comparison_forward`."""
    zero, dtype = int(np.int64(0)), memory.dtype
    pairs, size, own = len(roots) // 2, layers[0].size // 3, np.arange(len(roots) // 2)
    inputs = np.empty((pairs, 3 * size), dtype)
    compared, out = np.empty((pairs, layers[0].width), dtype), np.empty((pairs, layers[1].width), dtype)
    for pair in range(pairs):
        left, right, line = memory[roots[pair]], memory[roots[pairs + pair]], inputs[pair]
        for k in range(size):
            line[k] = left[k] * right[k]
        copy(left[:size], line[size:])
        copy(right[:size], line[2 * size :])
    affine(compared, zero, zero, pairs, inputs, zero, own, layer_matrix(values, layers, 0))
    for pair in range(pairs):
        line = compared[pair]
        for h in range(len(line)):
            line[h] = line[h] if line[h] > 0 else dtype.type(_LEAK) * line[h]
    affine(out, zero, zero, pairs, compared, zero, own, layer_matrix(values, layers, 1))
    return inputs, compared, out


@entry_point
def entrywise_gradients(
    values: Vector, layers: Layers, memory: Matrix, roots: Ints, classes: Ints, total: int, d_values: Vector
) -> tuple[float, int, Matrix]:
    """Compute `HeadKernel.gradients` of an entry-wise comparison."""
    inputs, compared, out = entrywise_forward(values, layers, memory, roots)
    loss, right_answers = cross_entropy(out, classes, total)
    zero, dtype, d_memory = int(np.int64(0)), memory.dtype, np.zeros_like(memory)
    pairs, size = len(compared), layers[0].size // 3
    d_inputs, d_compared, own = np.zeros_like(inputs), np.zeros_like(compared), np.arange(pairs)
    affine_weights_backward(out, zero, own, compared, zero, own, layer_matrix(d_values, layers, 1))
    affine_inputs_backward(out, zero, zero, pairs, d_compared, zero, own, layer_matrix(values, layers, 1))
    for pair in range(pairs):
        line, delta = compared[pair], d_compared[pair]
        for h in range(len(line)):
            delta[h] = delta[h] if line[h] > 0 else dtype.type(_LEAK) * delta[h]
    affine_weights_backward(d_compared, zero, own, inputs, zero, own, layer_matrix(d_values, layers, 0))
    affine_inputs_backward(d_compared, zero, zero, pairs, d_inputs, zero, own, layer_matrix(values, layers, 0))
    for pair in range(pairs):
        line, delta = inputs[pair], d_inputs[pair]
        d_left, d_right = d_memory[roots[pair]], d_memory[roots[pairs + pair]]
        for k in range(size):
            d_left[k] += delta[size + k] + delta[k] * line[2 * size + k]
            d_right[k] += delta[2 * size + k] + delta[k] * line[size + k]
    return loss, right_answers, d_memory


@final
class _EntrywiseKernel(HeadKernel):
    trees = 2
    functions = ([entrywise_forward], [entrywise_gradients])

    def __init__(self, head: PairClassifier) -> None:
        super().__init__(head.comparison.linear.in_features // 3, head.scores.out_features)
        self.add_linear(head.comparison.linear)
        self.add_linear(head.scores)
        self._layers = self.layers

    def can_split(self, trees: int) -> bool:
        """Say no: left and right trees would be on different threads."""
        return False

    def scores(self, values: Vector, memory: Matrix, roots: Ints) -> Matrix:
        return entrywise_forward(values, self._layers, memory, roots)[2]

    def gradients(
        self, values: Vector, memory: Matrix, roots: Ints, classes: Ints, total: int, d_values: Vector
    ) -> tuple[float, int, Matrix]:
        return entrywise_gradients(values, self._layers, memory, roots, classes, total, d_values)
