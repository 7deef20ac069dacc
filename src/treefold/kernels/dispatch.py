"""Which way an upward pass goes, and the fused way: a function of parameters and label vectors that autograd knows."""

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from treefold.aggregators import Aggregator
from treefold.batch import Batch
from treefold.cells import Cell, LeafLSTM, LeafRNN, PerLabel, TreeLSTM, TreeRNN
from treefold.kernels.compiled import is_on_disk
from treefold.kernels.layout import FORMS, Layout, gates_of, layout_of
from treefold.kernels.passes import fold_backward, fold_forward
from treefold.kernels.plan import make_plan, parts_of_trees
from treefold.kernels.scratch import Scratch, make_scratch
from treefold.kernels.tables import Floats, Gradients, Ints, Plan, States, Weights

# Axes:  N nodes · U units, the distinct subtrees · S memory size · X label vectors · M label size
Result = TypeVar("Result")
logger = logging.getLogger("treefold")


def fold_up_fused(cell: Cell, batch: Batch, operators: Ints, rows: Ints, vectors: Tensor | None) -> Tensor:
    """Return the memories of all nodes in schedule order, (N, S).

    ``operators`` (N,) choose the cells of `PerLabel`; ``rows`` (N,) the label vectors out of ``vectors`` (X, M), -1 where a
    node sees none.
    """
    layout = _known(cell).layout
    assert layout is not None
    parameters = layout.parameters
    if vectors is None:
        vectors = parameters[0].new_zeros(0, 0)
    fold = _Fold(layout, batch, operators if len(layout.operators) > 1 else np.zeros_like(operators), rows)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (vectors, *parameters)):
        memories: Tensor = _Function.apply(fold, vectors, *parameters)  # type: ignore[no-untyped-call]
        return memories
    return fold.forward(vectors, parameters)[0]


# Measured with `benchmarks/kernels.py --batch 25` and `--batch 400`, one thread: how many times faster a training step is in the
# fused way, against the entries of the largest matrix times the nodes. Trees whose leaves all differ, Sum: c=25 6.7 at 2e6, 1.7
# at 3e7; c=214 3.2 at 1e8, 1.2 at 2e9; c=400 2.1 at 4e8, 1.0 at 7e9. LRT, Full c=100: 1.5 at 5e8, 1.1 at 8e9. No case lost below
# the bound; beyond it the matrix products of large batches win.
_BREAK_EVEN: Final = 5e9
_LARGEST: Final = 2_000_000  # entries of one matrix, beyond which nothing was measured


def is_worth_it(cell: Cell, batch: Batch) -> bool:
    """Say whether the fused way is the faster one: unless large matrices meet many nodes, or many threads."""
    layout = _known(cell).layout
    if layout is None or layout.largest > _LARGEST:
        return False
    alone = torch.get_num_threads() if _parts(len(batch)) == 1 else 1
    return layout.largest * batch.node_count * alone < _BREAK_EVEN


def why_not(cell: Cell, reference: Tensor) -> str | None:
    """Say what the fused way expects and this cell is not, "… expects parameters on the CPU, got …"; None where nothing is."""
    if reference.device.type != "cpu":
        return f"parameters on the CPU, got {reference.device}"
    if reference.dtype not in (torch.float32, torch.float64):
        return f"parameters of float32 or float64, got {reference.dtype}"
    known = _known(cell)
    if known.has_hooks or cell._forward_hooks or cell._forward_pre_hooks:
        return "a cell without hooks, got one with"
    return known.problem


@final
@dataclass
class _Fold:
    """One upward pass: the cell's layout and the batch, planned when it runs."""

    layout: Layout
    batch: Batch
    operators: Ints
    rows: Ints

    def forward(self, vectors: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Weights, list[Any]]:
        """Return the memories of the nodes, and what the backward pass needs."""
        batch, layout = self.batch, self.layout
        weights = layout.pack(list(parameters))
        parts = _parts(len(batch))
        part_of = parts_of_trees(batch.level_sizes, batch.parents, batch.roots, parts)
        memories = torch.empty(batch.node_count, self._memory_size, dtype=parameters[0].dtype)
        labels = vectors.detach().contiguous().numpy()

        def run(part: int) -> tuple[Plan, States]:
            plan = make_plan(
                batch.flat_children,
                batch.level_sizes,
                batch.level_widths,
                part_of,
                part,
                self.operators,
                self.rows,
                layout.tables,
            )
            states = self._states(plan, weights.values.dtype)
            fold_forward(weights, plan, states, labels, self._scratch(plan, weights), memories.numpy())
            return plan, states

        return memories, weights, _announced("the forward pass", fold_forward, weights, lambda: _each_part(run, parts))

    def backward(
        self, weights: Weights, work: list[Any], vectors: Tensor, parameters: Sequence[Tensor], d_memories: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the gradients of the label vectors and of the parameters."""
        labels, d_out = vectors.detach().contiguous().numpy(), d_memories.contiguous().numpy()
        flats = [torch.zeros(self.layout.size, dtype=d_memories.dtype) for _ in work]
        d_vectors = [torch.zeros_like(vectors) for _ in work]

        def run(part: int) -> None:
            plan, states = work[part]
            gradients = Gradients(
                memory=np.zeros_like(states.memory),
                delta=np.empty((len(states.gates), weights.gates * weights.state_size), states.gates.dtype),
                projected=np.zeros_like(states.projected),
                label=np.zeros_like(states.label),
                inner=np.zeros_like(states.inner),
                restricted=np.zeros_like(states.restricted),
                values=flats[part].numpy(),
                vectors=d_vectors[part].numpy(),
            )
            fold_backward(weights, plan, states, labels, self._scratch(plan, weights), d_out, gradients)

        _announced("the backward pass", fold_backward, weights, lambda: _each_part(run, len(work)))
        # In the order of the parts, so that the sum is the same every time.
        for other in range(1, len(work)):
            flats[0] += flats[other]
            d_vectors[0] += d_vectors[other]
        return d_vectors[0], self.layout.gradients(flats[0])

    @property
    def _memory_size(self) -> int:
        return self.layout.state_size * (1 if self.layout.gates == 1 else 2)

    def _scratch(self, plan: Plan, weights: Weights) -> Scratch:
        return make_scratch(weights.gates, len(plan.row_of), plan.scratch_sizes, weights.values.dtype)

    def _states(self, plan: Plan, dtype: "np.dtype[Any]") -> States:
        layout, size, units = self.layout, self.layout.state_size, len(plan.row_of)
        lstm = layout.gates > 1

        def room(*shape: int) -> Floats:
            return np.empty(shape, dtype)

        return States(
            memory=room(units, self._memory_size),
            gates=room(units, (layout.gates + lstm) * size),
            forget=room(len(plan.child_unit) if lstm else 0, size),
            projected=room(len(plan.edge_unit), layout.width),
            label=room(len(plan.label_row), layout.label_width),
            inner=room(units, layout.gates * layout.rank),
            carry=room(int(plan.carry_of[-1])),
            restricted=room(plan.restricted_size),
        )


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fold: _Fold, vectors: Tensor, *parameters: Tensor) -> Tensor:
        memories, ctx.weights, ctx.work = fold.forward(vectors, parameters)
        ctx.fold = fold
        ctx.save_for_backward(vectors, *parameters)
        return memories

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_memories: Tensor) -> tuple[Tensor | None, ...]:
        vectors, *parameters = ctx.saved_tensors
        d_vectors, gradients = ctx.fold.backward(ctx.weights, ctx.work, vectors, parameters, d_memories)
        return None, d_vectors if ctx.needs_input_grad[1] else None, *gradients


@final
@dataclass(frozen=True)
class _Known:
    """What was found out about a cell, as long as its modules are the same: ``links`` are (a parent's table, name, child)."""

    links: list[tuple[dict[str, nn.Module | None], str, nn.Module]]
    problem: str | None
    layout: Layout | None

    @property
    def holds(self) -> bool:
        return all(table.get(name) is child for table, name, child in self.links)

    @property
    def has_hooks(self) -> bool:
        return any(child._forward_hooks or child._forward_pre_hooks for _, _, child in self.links)


_cache: "weakref.WeakKeyDictionary[Cell, _Known]" = weakref.WeakKeyDictionary()


def _known(cell: Cell) -> _Known:
    """Look a cell up, or examine it; anew when a part of it was replaced, as `compress` does."""
    known = _cache.get(cell)
    if known is None or not known.holds:
        problem = _problem(cell)
        tables = [module._modules for module in cell.modules()]
        links = [(table, name, child) for table in tables for name, child in table.items() if child is not None]
        known = _Known(links, problem, None if problem else layout_of(cell))
        _cache[cell] = known
    return known


def _problem(cell: Cell) -> str | None:
    for one in _cells(cell):
        if isinstance(one, (LeafRNN, LeafLSTM)):
            continue
        if not isinstance(one, (TreeRNN, TreeLSTM)):
            return f"TreeRNN, TreeLSTM, or PerLabel of these, got {type(one).__name__}"
        aggregators = gates_of(one)
        if type(aggregators[0]) not in FORMS:
            return f"one of the library's aggregators, got {type(aggregators[0]).__name__}"
        if len({_sizes(aggregator) for aggregator in aggregators}) > 1:
            return "gates with aggregators of one form and size, got different ones"
    return None


def _cells(cell: Cell) -> list[Cell]:
    return [cell.cell_of(index) for index in range(len(cell.operators) + 1)] if isinstance(cell, PerLabel) else [cell]


def _sizes(aggregator: Aggregator) -> tuple[object, ...]:
    return (
        type(aggregator),
        aggregator.arity,
        aggregator.rank,
        aggregator.label_size,
        aggregator.shared,
        aggregator.state_size,
        aggregator.out_size,
    )


def _parts(trees: int) -> int:
    """Return in how many parts a batch is computed at the same time: few trees are not worth a thread."""
    return min(torch.get_num_threads(), trees // 32) if trees >= 64 else 1


def _each_part(run: Callable[[int], Result], parts: int) -> list[Result]:
    if parts == 1:
        return [run(0)]
    with ThreadPoolExecutor(parts) as pool:
        return list(pool.map(run, range(parts)))


_ready: set[tuple[str, str]] = set()


def _announced(name: str, kernel: Callable[..., object], weights: Weights, run: Callable[[], Result]) -> Result:
    """Run, and say so where that loads or compiles a kernel first."""
    key = (name, str(weights.values.dtype))
    if key in _ready:
        return run()
    start = time.perf_counter()
    level = logging.INFO if is_on_disk(kernel) else logging.WARNING
    logger.log(level, "compiling fused kernels for %s in %s (once, about 20 s; then loaded from disk)", *key)
    result = run()
    logger.info("fused kernels for %s in %s ready after %.1f s", *key, time.perf_counter() - start)
    _ready.add(key)
    return result
