"""Which way an upward pass goes, and the fused way: a function of parameters and label vectors that autograd knows."""

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, final

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from treefold.kernels.ahead import compile_passes
from treefold.kernels.calls import backward, forward
from treefold.kernels.compiled import is_on_disk
from treefold.kernels.layout import FORMS, Layout, gates_of, layout_of
from treefold.kernels.parts import each_part, ends_of_parts, parts_of
from treefold.kernels.tables import Floats, Ints, Plan, States, Weights
from treefold.nn.aggregators import Aggregator
from treefold.nn.cells import Cell, LeafLSTM, LeafRNN, PerLabel, TreeLSTM, TreeRNN
from treefold.nn.flat import Arrangement, FlatParameters, any_held, in_charge_of
from treefold.trees.batch import Batch

# Axes:  N nodes · U units, the distinct subtrees · S memory size · X label vectors · M label size
Result = TypeVar("Result")
logger = logging.getLogger("treefold")


@final
@dataclass(frozen=True)
class Folded:
    """The memories of all distinct subtrees, (U, S), and for each node which of them is its own, (N,)."""

    memories: Tensor
    unit_of: Ints


def fold_up_fused(
    cell: Cell, batch: Batch, operators: Ints, rows: Ints, vectors: Tensor | None, *, share: bool = True
) -> Folded:
    """Compute the memories of all nodes.

    ``operators`` (N,) choose the cells of `PerLabel`; ``rows`` (N,) the label vectors out of ``vectors`` (X, M), -1 where a
    node sees none. With ``share`` equal subtrees are computed once.
    """
    layout = known_layout(cell)
    parameters = layout.parameters
    if vectors is None:
        vectors = parameters[0].new_zeros(0, 0)
    fold = _Fold(layout, batch, operators, rows, share)
    home = in_charge_of(parameters[0])
    place = None if home is None else home.place_of(layout)
    if home is not None and place is not None:
        fold.home, fold.place, parameters = home, place, [home.values]
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in (vectors, *parameters)):
        return fold.forward(vectors, weights_now(layout, settled=not cell.training))
    memories: Tensor = _Function.apply(fold, vectors, *parameters)  # type: ignore[no-untyped-call]
    return Folded(memories, fold.unit_of)


def weights_now(layout: Layout, *, settled: bool) -> Weights:
    """Return the weights for a pass without gradients; ``settled`` where training is over, as far as is known."""
    parameters = layout.parameters
    home = in_charge_of(parameters[0])
    place = None if home is None else home.place_of(layout)
    if home is not None and place is not None:
        return Weights(home.values.detach().numpy()[place], *layout.tables)
    standing = layout.standing(parameters) if settled and not any_held(parameters) else None
    return layout.pack(parameters) if standing is None else standing


# Measured with `treefold bench step --batch 25`, `400` and `4000`, one thread: how many times faster a training step is in the
# fused way, against `Layout.largest` times the nodes. Trees whose leaves all differ, Sum: c=25 13 at 2e6, 3 at 3e7, 1.1 at 3e8;
# c=214 5 at 1e8, 1.4 at 2e9, 0.95 at 2e10; c=400 4 at 4e8, 1.0 at 7e9. ListOps, Hosvd: c=20 r=3 12 at 7e6, 3.9 at 8e7; c=50 r=7
# 4.5 at 5e8, 2.1 at 6e9. LRT, Full c=100: 2.2 at 3e8, 1.1 at 4e9. Beyond the bound the matrix products of large batches win.
_BREAK_EVEN: Final = 1e10
_LARGEST: Final = 1_000_000  # entries of one matrix, beyond which nothing was measured


def is_worth_it(cell: Cell, trees: int, nodes: int) -> bool:
    """Say whether the fused way, which is open, is the faster one: unless large matrices meet many nodes, or many threads."""
    layout = known_layout(cell)
    if layout.largest > _LARGEST:
        return False
    alone = torch.get_num_threads() if parts_of(trees) == 1 else 1
    return layout.largest * nodes * alone < _BREAK_EVEN


def arrangement_of(cell: Cell) -> Arrangement | None:
    """Say how the parameters of a cell should stand in one tensor, so that the fused way need not copy them."""
    layout = _known(cell).layout
    if layout is None or not all(parameter.requires_grad for parameter in layout.parameters):
        return None
    return layout.arrangement()


def why_not(cell: Cell, reference: Tensor) -> str | None:
    """Say what the fused way expects and this cell is not, "… expects parameters on the CPU, got …"; None where nothing is."""
    if reference.device.type != "cpu":
        return f"parameters on the CPU, got {reference.device}"
    if reference.dtype not in (torch.float32, torch.float64):
        return f"parameters of float32 or float64, got {reference.dtype}"
    known = _known(cell)
    if known.has_hooks:
        return "a cell without hooks, got one with"
    return known.problem


@final
@dataclass
class _Fold:
    """One upward pass: the cell's layout and the batch; then the plan and the states of each part."""

    layout: Layout
    batch: Batch
    operators: Ints
    rows: Ints
    share: bool
    home: FlatParameters | None = None  # who has all parameters in one tensor, and is given instead of them
    place: slice | None = None  # where in it they are

    def __post_init__(self) -> None:
        self.work: list[tuple[Plan, States]] = []
        self.unit_of = np.zeros(0, np.int64)

    def pack(self, parameters: Sequence[Tensor]) -> Weights:
        """Return the weights as the kernels read them."""
        if self.home is None:
            return self.layout.pack(list(parameters))
        return Weights(self.home.values.detach().numpy()[self.place], *self.layout.tables)

    def forward(self, vectors: Tensor, weights: Weights, *, training: bool = False) -> Folded:
        """Return the memories, and keep what the backward pass needs."""
        calls = part_calls(self.layout, self.batch, self.operators, self.rows, vectors, weights, share=self.share)
        needed = (forward, backward) if training else (forward,)

        def run(part: int) -> tuple[Plan, States]:
            return forward(*calls[part]) if training else forward_for_once(calls[part], kept=False)

        self.work = announced("the forward pass", needed, weights, lambda: each_part(run, len(calls)))
        return _joined([plan.unit_of for plan, _ in self.work], [states.memory for _, states in self.work])

    def backward(self, weights: Weights, vectors: Tensor, d_memories: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Return the gradients of the label vectors and of the parameters; None where it was added already."""
        labels, d_units = vectors.detach().contiguous().numpy(), d_memories.contiguous().numpy()
        # Where all parameters stand in one tensor, the first part adds to its gradient itself.
        home = [] if self.home is None else [self.home.gradient.numpy()[self.place]]
        flats = [*home, *(np.zeros_like(weights.values) for _ in self.work[len(home) :])]
        d_vectors = [np.zeros_like(labels) for _ in self.work]
        ends = list(itertools.accumulate(len(states.memory) for _, states in self.work))

        def run(part: int) -> None:
            (plan, states), start = self.work[part], ends[part - 1] if part else 0
            backward(weights, plan, states, labels, d_units[start : ends[part]], flats[part], d_vectors[part])

        announced("the backward pass", (backward,), weights, lambda: each_part(run, len(self.work)))
        # In the order of the parts, so that the sum is the same every time.
        for other in range(1, len(self.work)):
            flats[0] += flats[other]
            d_vectors[0] += d_vectors[other]
        if self.home is None:
            return torch.from_numpy(d_vectors[0]), list(self.layout.gradients(torch.from_numpy(flats[0])))
        return torch.from_numpy(d_vectors[0]), [None]


class Call(NamedTuple):
    """The arguments of `forward` for a part of a batch."""

    weights: Weights
    widths: Ints
    parents: Ints
    slots: Ints
    first: int
    operator: Ints
    row: Ints
    labels: Floats
    share: bool
    kept: bool
    room: Floats


def part_calls(
    layout: Layout, batch: Batch, operators: Ints, rows: Ints, vectors: Tensor, weights: Weights, *, share: bool
) -> list[Call]:
    """Return the calls for the parts of a batch, one for each thread that is worth it."""
    operators = operators if len(layout.operators) > 1 else np.zeros_like(operators)
    labels, room = vectors.detach().contiguous().numpy(), NO_ROOM[weights.values.dtype.itemsize]
    trees = ends_of_parts(batch.roots + 1, parts_of(len(batch)))
    ends = [0, *(int(batch.roots[end - 1]) + 1 for end in trees)]
    return [
        Call(
            weights,
            layout.widths,
            batch.parents[own],
            batch.slots[own],
            own.start,
            operators[own],
            rows[own],
            labels,
            share,
            True,
            room,
        )
        for own in map(slice, ends, ends[1:])
    ]


NO_ROOM: Final[dict[int, Floats]] = {4: np.zeros(0, np.float32), 8: np.zeros(0, np.float64)}
_MOST_ROOM: Final = 32_000_000  # numbers that a thread keeps
_rooms = threading.local()


def forward_for_once(call: Call, *, kept: bool) -> tuple[Plan, States]:
    """Run `forward`, for states that nobody looks at after the thread's next call, but at the memories.

    A thread's calls share their memory: fresh memory takes the system as long as the arithmetic of small states.
    """
    room = getattr(_rooms, name := f"of_{call.weights.values.dtype.itemsize}", call.room)
    plan, states = forward(*call._replace(kept=kept, room=room))
    needed = 16 * len(states) + sum(each.size for each in states[1:])
    if len(room) < needed <= _MOST_ROOM:
        setattr(_rooms, name, np.empty(min(needed + needed // 4, _MOST_ROOM), room.dtype))
    return plan, states


def _joined(units: list[Ints], memories: list[Floats]) -> Folded:
    """Put the parts together: units are numbered on."""
    if len(units) == 1:
        return Folded(torch.from_numpy(memories[0]), units[0])
    firsts = itertools.accumulate([0, *map(len, memories)])
    numbered = [own + first for own, first in zip(units, firsts, strict=False)]
    return Folded(torch.from_numpy(np.concatenate(memories)), np.concatenate(numbered))


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fold: _Fold, vectors: Tensor, *parameters: Tensor) -> Tensor:
        ctx.fold, ctx.weights = fold, fold.pack(parameters)
        ctx.save_for_backward(vectors)
        folded = fold.forward(vectors, ctx.weights, training=True)
        fold.unit_of = folded.unit_of
        return folded.memories

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_memories: Tensor) -> tuple[Tensor | None, ...]:
        d_vectors, gradients = ctx.fold.backward(ctx.weights, *ctx.saved_tensors, d_memories)
        return None, d_vectors if ctx.needs_input_grad[1] else None, *gradients


@final
class _Known:
    """What was found out about a cell, as long as its modules are the same."""

    def __init__(self, cell: Cell) -> None:
        self.problem = _problem(cell)
        self.layout = None if self.problem else layout_of(cell)
        modules = list(cell.modules())
        self._links = [(each._modules, name) for each in modules for name in each._modules]
        self._children = [table[name] for table, name in self._links]
        self._hooks = [hooks for each in modules for hooks in (each._forward_hooks, each._forward_pre_hooks)]

    @property
    def holds(self) -> bool:
        return [table.get(name) for table, name in self._links] == self._children

    @property
    def has_hooks(self) -> bool:
        return any(self._hooks)


_cache: "weakref.WeakKeyDictionary[Cell, _Known]" = weakref.WeakKeyDictionary()


def _known(cell: Cell) -> _Known:
    """Look a cell up, or examine it; anew when a part of it was replaced, as `compress` does."""
    known = _cache.get(cell)
    if known is None or not known.holds:
        known = _cache[cell] = _Known(cell)
    return known


def known_layout(cell: Cell) -> Layout:
    """Return the layout of a cell that `why_not` has just been asked about, and has nothing against."""
    layout = (_cache.get(cell) or _known(cell)).layout
    assert layout is not None
    return layout


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


_ready: set[tuple[str, str]] = set()


def announced(
    name: str, kernels: tuple[Callable[..., object], ...], weights: Weights, run: Callable[[], Result]
) -> Result:
    """Run what needs some of the two passes, and say so where they have to be loaded or compiled first."""
    key = (name, str(weights.values.dtype))
    if key in _ready:
        return run()
    start = time.perf_counter()
    missing = [kernel for kernel in kernels if not is_on_disk(kernel)]
    level = logging.WARNING if missing else logging.INFO
    logger.log(level, "compiling fused kernels for %s in %s (once, about half a minute; then loaded from disk)", *key)
    if len(missing) == 2:
        compile_passes(weights.values.dtype)
    result = run()
    logger.info("fused kernels for %s in %s ready after %.1f s", *key, time.perf_counter() - start)
    _ready.add(key)
    return result
