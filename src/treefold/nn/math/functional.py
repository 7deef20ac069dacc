r"""Multi-affine maps: contraction of tensors with homogeneous vectors.

.. math:: f(v_1, \dots, v_n)(k) = \sum_{j_1} \dots \sum_{j_n} T(j_1, \dots, j_n, k)\, \bar v_1(j_1) \cdots \bar v_n(j_n),
          \qquad \bar v = [v; 1]
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Axes:  N nodes · D size of one input · I, J entries of the left and the right half · K output size


def homogenise(vectors: Tensor) -> Tensor:
    """Append the homogeneous coordinate: (…, D) -> (…, D+1), the last entry one.

    >>> homogenise(torch.tensor([[2.0, 3.0]]))
    tensor([[2., 3., 1.]])
    """
    return torch.cat([vectors, vectors.new_ones(*vectors.shape[:-1], 1)], dim=-1)


def contract(tensor: Tensor, vectors: Sequence[Tensor]) -> Tensor:
    """Contract a dense tensor (D_1+1, …, D_n+1, K) with vectors (N, D_j), one mode after the other: the definition.

    Plain and slow: the measure that everything else is held against. `multi_affine` computes the same faster.

    >>> contract(torch.ones(3, 2, 4), [torch.ones(5, 2), torch.ones(5, 1)])[0]
    tensor([6., 6., 6., 6.])
    """
    result = tensor.unsqueeze(0)  # (1 or N, D_1+1, …, K)
    for vector in vectors:
        weights = homogenise(vector)
        result = (result * weights.reshape(*weights.shape, *[1] * (result.dim() - 2))).sum(1)
    return result


def multi_affine(tensor: Tensor, vectors: Sequence[Tensor]) -> Tensor:
    r"""Contract a dense tensor (D_1+1, …, D_n+1, K) with vectors (N, D_j), arranged for the machine: -> (N, K).

    The modes are split into a left and a right half. The outer products of each half's vectors have I and J entries; one
    matrix product contracts the left half with the tensor, one batched product the right half with what remains. Nothing
    of size N·I·J is formed, and since the last entry of each half is one, the products take
    :math:`(I-1) J K + (J-1) K < I J K` multiply-adds a node.

    >>> multi_affine(torch.ones(3, 2, 4), [torch.ones(5, 2), torch.ones(5, 1)])[0]
    tensor([6., 6., 6., 6.])
    """
    cut = split_point([vector.shape[1] for vector in vectors])
    right = outer_product(vectors[cut:]) if cut < len(vectors) else None
    return contract_halves(tensor, outer_product(vectors[:cut]), right)


def split_point(sizes: Sequence[int]) -> int:
    """Return how many modes the left half takes: the least whose product reaches that of the right half."""
    entries = [math.prod(size + 1 for size in sizes[:cut]) for cut in range(len(sizes) + 1)]
    return next(cut for cut, left in enumerate(entries) if left * left >= entries[-1])


def multi_affine_cost(sizes: Sequence[int], out_size: int) -> int:
    """Count the multiplications of `multi_affine` for one node, the outer products included."""
    cut = split_point(sizes)
    left, right = (math.prod(size + 1 for size in half) for half in (sizes[:cut], sizes[cut:]))
    outer = (left - 1 - sum(sizes[:cut])) + (right - 1 - sum(sizes[cut:]))
    return outer + halves_cost(left, right, out_size)


def outer_product(vectors: Sequence[Tensor]) -> Tensor:
    """Return all products of one homogeneous entry of each vector, (N, ∏(D_j+1)), the last of them one."""
    product = homogenise(vectors[0])
    for vector in vectors[1:]:
        product = (product.unsqueeze(2) * homogenise(vector).unsqueeze(1)).flatten(1)
    return product


def contract_halves(tensor: Tensor, left: Tensor, right: Tensor | None) -> Tensor:
    """Contract a tensor with I·J·K entries with left (N, I) and right (N, J), whose last entries are one: -> (N, K)."""
    out_size = tensor.shape[-1]
    matrix = tensor.reshape(left.shape[1], -1)  # (I, J·K)
    carry = torch.addmm(matrix[-1], left[:, :-1], matrix[:-1])  # (N, J·K)
    if right is None:
        return carry
    carry = carry.view(len(left), right.shape[1], out_size)  # (N, J, K)
    return torch.baddbmm(carry[:, -1:], right[:, None, :-1], carry[:, :-1]).squeeze(1)


def halves_cost(left: int, right: int, out_size: int) -> int:
    """Count the multiply-adds of `contract_halves` for one node."""
    return (left - 1) * right * out_size + (right - 1) * out_size
