"""Engines: how a model is computed. `engine_for` decides once, and says why.

`TorchEngine` computes everything, level by level, on any device. `FusedEngine` computes the upward pass of a whole batch with
compiled kernels on the CPU, and hands everything else to torch. Both have the same verbs and the same meaning.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from treefold.errors import ConfigurationError
from treefold.kernels.fold import fold_backward, fold_forward
from treefold.kernels.gather import Alphabet, columns_of, gather_batch, gather_translated, node_ends
from treefold.kernels.layout import NUMPY_TYPES, FlatLayout
from treefold.kernels.plan import make_plan
from treefold.kernels.records import Ints, Matrix, Plan, States, Vector, Weights
from treefold.kernels.threads import grow_workspace, part_count, part_ends, run_parts, workspace
from treefold.nn.cells.base import Cell, layout_of
from treefold.nn.flat import FlatParameters
from treefold.nn.heads import HeadKernel, has_hooks
from treefold.nn.randomness import own_generator
from treefold.trees.batch import Batch, Schedule, link_siblings
from treefold.trees.forest import Forest

if TYPE_CHECKING:
    from treefold.nn.encoder import TreeEncoder
    from treefold.nn.model import TreeModel

# Axes:  N nodes of the batch · B trees · n nodes of one level · U units, the distinct subtrees · C state size · S memory size


@final
@dataclass(frozen=True)
class Memories:
    """The result of one pass: memories (R, S) in blocks, one after the other, and ``rows`` (N,), the row of each node."""

    blocks: list[Tensor]
    rows: Ints

    def of(self, nodes: Ints) -> Tensor:
        """Return the memories of some nodes, (n, S)."""
        rows, last = self.rows[nodes], self.blocks[-1]
        if len(self.blocks) == 1:
            return last.index_select(0, torch.from_numpy(rows).to(last.device))
        before = sum(map(len, self.blocks)) - len(last)
        if rows.min(initial=0) >= before:  # no need to join the blocks
            return last.index_select(0, torch.from_numpy(rows - before).to(last.device))
        return torch.cat(self.blocks).index_select(0, torch.from_numpy(rows).to(last.device))


@final
@dataclass(frozen=True)
class Encoding:
    """The states of a batch; with both directions, the upward state of a node followed by its downward state.

    ``label_rows`` (N,) are the rows of the nodes' labels in ``label_vectors`` (X, M), -1 for a node whose cell sees no label.
    """

    passes: list[Memories]
    state_size: int
    batch: Batch
    label_rows: Ints
    label_vectors: Tensor | None

    @property
    def nodes(self) -> Tensor:
        """The states of all nodes, (N, C), in the forest's order: tree after tree, post-order."""
        return self._states(np.arange(self.batch.node_count))

    @property
    def roots(self) -> Tensor:
        """The states of the roots, (B, C)."""
        return self._states(self.batch.roots)

    @property
    def labels(self) -> Tensor | None:
        """The label vectors of all nodes, (N, M), zero where a cell sees no label; None if there are none."""
        if self.label_vectors is None:
            return None
        table = nn.functional.pad(self.label_vectors, (0, 0, 1, 0))
        return table.index_select(0, torch.from_numpy(self.label_rows + 1).to(table.device))

    def _states(self, nodes: Ints) -> Tensor:
        states = [memories.of(nodes)[:, : self.state_size] for memories in self.passes]
        return states[0] if len(states) == 1 else torch.cat(states, dim=1)


class StepResult(NamedTuple):
    """The mean loss of a batch; the number of right answers if it was counted, or else the outputs."""

    loss: float
    right: int | None
    outputs: Tensor | None


class TorchEngine:
    """Computes a model with torch alone: any form, any cell, any device."""

    def __init__(self, encoder: "TreeEncoder", reason: str, model: "TreeModel | None" = None) -> None:
        self.encoder, self.reason, self.model = encoder, reason, model

    def encode(self, batch: Batch) -> Encoding:
        """Compute the states of a batch, differentiable."""
        return self._encode(self.encoder.linked(batch))

    def _encode(self, batch: Batch) -> Encoding:
        """Compute the states of a batch that has the links of the encoder."""
        operators, rows, vectors, _ = self.encoder.label_rows(batch, first_parameter(self.encoder.cells))
        return self._finish(Encoding([], self.encoder.state_size, batch, rows, vectors), operators)

    def _finish(self, encoding: Encoding, operators: Ints) -> Encoding:
        """Compute the passes that are missing, level by level."""
        encoder, passes = self.encoder, encoding.passes
        if len(passes) < len(encoder.cells):
            schedule, reference = encoding.batch.schedule, first_parameter(encoder.cells)
            operator = torch.from_numpy(operators[schedule.order]).to(reference.device)
            label = encoding.labels
            if label is not None:
                label = label.index_select(0, torch.from_numpy(schedule.order).to(reference.device))
            for name in list(encoder.cells)[len(passes) :]:
                cell = encoder.cell(name)
                if name == "up":
                    noise = self._noise(encoding.batch, reference)
                    blocks = _fold_up(cell, schedule, label, operator, reference, noise)
                else:
                    blocks = _fold_down(cell, schedule, label, operator, reference)
                passes = [*passes, Memories(blocks, schedule.places)]
        return replace(encoding, passes=passes)

    def _noise(self, batch: Batch, like: Tensor) -> Tensor | None:
        """Return the noise of all nodes in the order of the schedule, (N, C); None if there is none."""
        encoder = self.encoder
        if not encoder.adds_noise:
            return None
        is_noisy = torch.from_numpy(noisy_nodes(batch)[batch.schedule.order]).to(like.device)
        drawn = torch.randn(batch.node_count, encoder.state_size, generator=own_generator()).to(like)
        return drawn * encoder.state_noise * is_noisy.unsqueeze(1)

    def answer(self, batch: Batch) -> Tensor:
        """Return the model's outputs for a batch, differentiable."""
        assert self.model is not None
        encoding, head = self.encoder(batch), self.model.head
        outputs: Tensor = head(encoding.nodes if head.reads == "nodes" else self.model.readout(encoding))
        return outputs

    def outputs(self, forest: Forest, trees: Ints) -> Tensor:
        """Return the model's outputs for some trees of a forest, without gradients."""
        assert self.model is not None
        with torch.no_grad():
            outputs: Tensor = self.model(gather_batch(forest, trees))
        return outputs

    def gradients(
        self, forest: Forest, trees: Ints, loss: Callable[[Tensor], Tensor], classes: Ints | None = None
    ) -> StepResult:
        """Add the gradients of the loss of some trees' outputs to those of the parameters.

        ``classes`` says that the loss is the mean cross-entropy with these classes, which kernels can compute too.
        """
        assert self.model is not None
        outputs = self.model(gather_batch(forest, trees))
        value = loss(outputs)
        torch.autograd.backward(value)
        return StepResult(float(value.detach()), None, outputs.detach())


def noisy_nodes(batch: Batch) -> npt.NDArray[np.bool_]:
    """Say which nodes of a batch have noise in training: those that have a child and a parent."""
    has_parent, is_noisy = batch.parents >= 0, np.zeros(batch.node_count, bool)
    is_noisy[batch.parents[has_parent]] = True
    return is_noisy & has_parent


def _fold_up(
    cell: Cell, schedule: Schedule, label: Tensor | None, operator: Tensor, like: Tensor, noise: Tensor | None
) -> list[Tensor]:
    """Compute memories from the deepest level to the roots."""
    memory = like.new_zeros(0, cell.memory_size)
    memories = []
    columns = [_by_level(each, schedule) for each in (label, operator, noise)]
    for level, x, kind, more in zip(schedule.levels(), *columns, strict=True):
        rows = torch.from_numpy(level.children).to(like.device)  # (n, W); row 0 is the absent child
        below = nn.functional.pad(memory, (0, 0, 1, 0))
        children = below.index_select(0, rows.flatten()).view(*rows.shape, cell.memory_size)
        memory = cell(x, children, kind)
        if more is not None:
            memory = torch.cat([memory[:, : cell.state_size] + more, memory[:, cell.state_size :]], 1)
        memories.append(memory)
    return memories


def _fold_down(cell: Cell, schedule: Schedule, label: Tensor | None, operator: Tensor, like: Tensor) -> list[Tensor]:
    """Compute memories from the roots to the deepest level."""
    memory = like.new_zeros(0, cell.memory_size)
    memories = []
    steps = list(zip(schedule.levels(), _by_level(label, schedule), _by_level(operator, schedule), strict=True))
    for level, x, kind in reversed(steps):
        above = nn.functional.pad(memory, (0, 0, 1, 0))
        parent = above.index_select(0, torch.from_numpy(level.parents).to(like.device)).unsqueeze(1)  # (n, 1, S)
        slots = torch.from_numpy(level.slots).to(like.device)
        width = max(cell.arity, int(level.slots.max()) + 1)  # beyond the arity only if a cell takes any number
        place = None if has_one_slot(cell) else nn.functional.one_hot(slots, width).to(parent).unsqueeze(2)  # (n, L, 1)
        memory = cell(x, parent if place is None else place * parent, kind)
        memories.append(memory)
    return memories[::-1]


def has_one_slot(cell: Cell) -> bool:
    """Say whether, downwards, a parent is in the same slot for all its children."""
    return cell.takes_any_number or cell.arity == 1


def _by_level(values: Tensor | None, schedule: Schedule) -> list[Tensor] | list[None]:
    # Split once instead of slicing at each level: the gradient of a slice is as long as the whole.
    sizes = schedule.level_sizes.tolist()
    return [None] * len(sizes) if values is None else list(torch.split(values, sizes))


# The fused engine ------------------------------------------------------------------------------------------------------

# Measured with `python -m benchmarks step --batch 25`, `400` and `4000`, one thread: how many times faster a training step is
# with kernels, against `CellLayout.largest` times the nodes. Trees whose leaves all differ, Sum: c=25 13 at 2e6, 3 at 3e7, 1.1 at
# 3e8; c=214 5 at 1e8, 1.4 at 2e9, 0.95 at 2e10; c=400 4 at 4e8, 1.0 at 7e9. ListOps, Hosvd: c=20 r=3 12 at 7e6, 3.9 at 8e7; c=50
# r=7 4.5 at 5e8, 2.1 at 6e9. LRT, Full c=100: 2.2 at 3e8, 1.1 at 4e9. Beyond the bound, torch's matrix products win.
_BREAK_EVEN: Final = 1e10
_LEVEL: Final = 32  # nodes of a level: torch takes as long to begin it as to compute it
_LARGEST: Final = 1_000_000  # entries of one matrix, beyond which nothing was measured


@final
class FusedEngine(TorchEngine):
    """Computes the upward pass of a batch with compiled kernels, and with it the head, the loss and all gradients if it can."""

    def __init__(self, encoder: "TreeEncoder", knowledge: "_Knowledge", model: "TreeModel | None" = None) -> None:
        super().__init__(encoder, "the cell has kernels, and its parameters are on the CPU", model)
        self._knowledge, self.layout = knowledge, knowledge.layout
        self._head: HeadKernel | None = None
        if (
            model is not None
            and list(encoder.cells) == ["up"]
            and model.head.reads == "roots"
            and model.readout.is_root
            and not any(map(has_hooks, (model, encoder, model.head)))
        ):
            head = model.head_kernel()
            dtype = first_parameter(encoder.cells).dtype
            if head is not None and head.in_size == encoder.state_size:
                self._head = head if all(each.dtype == dtype for each in head.layout.parameters) else None
        self._packed: tuple[Weights, Vector] | None = None

    def encode(self, batch: Batch) -> Encoding:
        """Compute the states of a batch, differentiable: the upward ones with kernels, unless torch is faster."""
        encoder, batch = self.encoder, self.encoder.linked(batch)
        if not self._is_worth_it(len(batch), batch.node_count) and not self._is_narrow(batch):
            return self._encode(batch)
        operators, rows, vectors, share = encoder.label_rows(batch, first_parameter(encoder.cells))
        memories, units = _fold(self, batch, operators, rows, vectors, share=share)
        encoding = Encoding([Memories([memories], units)], encoder.state_size, batch, rows, vectors)
        return self._finish(encoding, operators)

    def answer(self, batch: Batch) -> Tensor:
        """Return the model's outputs for a batch, differentiable; the head's kernel computes them if no gradient is asked for."""
        head = self._head
        if head is None or torch.is_grad_enabled() or self.encoder.drops_labels or self.encoder.adds_noise:
            return super().answer(batch)
        if not self._is_worth_it(len(batch), batch.node_count):
            return super().answer(batch)
        if len(batch) % head.trees or not head.is_worth_it(len(batch)):
            return super().answer(batch)
        like, batch = first_parameter(self.encoder.cells), self.encoder.linked(batch)
        operators, rows, vectors, share = self.encoder.label_rows(batch, like)
        head_values = self._values(head.layout)
        if part_count(len(batch)) > 1 or vectors is None or vectors.dtype != like.dtype:
            memories, units = _fold(self, batch, operators, rows, vectors, share=share)
            return torch.from_numpy(head.scores(head_values, memories.numpy(), units[batch.roots]))
        values = self._values(self.layout)  # of few trees, at once: here every call counts
        weights = Weights(values, self._tables(values.dtype, training=False))
        plan = make_plan(weights.tables, batch.parents, batch.slots, 0, operators, rows, share)
        states = _forward(weights, plan, vectors.detach().contiguous().numpy(), is_kept=False)
        return torch.from_numpy(head.scores(head_values, states.memory, plan.unit_of[batch.roots]))

    def prepare(self) -> "FusedEngine":
        """Copy the weights together once, for many calls of `outputs`, as long as the weights do not change."""
        if self._head is not None:
            dtype = NUMPY_TYPES[first_parameter(self.encoder.cells).dtype]
            values, head = self._values(self.layout), self._values(self._head.layout)
            self._packed = Weights(values, self._tables(dtype, training=False)), head
        return self

    def outputs(self, forest: Forest, trees: Ints) -> Tensor:
        """Return the model's outputs for some trees of a forest, without gradients."""
        nodes = None if self.encoder.adds_noise else self._nodes(forest, trees)
        if nodes is None or self._head is None or len(trees) % self._head.trees:
            return super().outputs(forest, trees)
        weights, head_values = self._packed or self.prepare()._packed or (None, None)
        assert weights is not None and head_values is not None
        head = self._head

        def run(part: int) -> Matrix | None:
            folded = nodes.fold(part, weights, share=self.encoder.share_subtrees, is_kept=False)
            return None if folded is None else head.scores(head_values, folded.states.memory, folded.roots)

        parts = run_parts(run, len(nodes.parts))
        done = [each for each in parts if each is not None]
        if len(done) < len(parts):
            return super().outputs(forest, trees)  # which says what is wrong with the trees
        return torch.from_numpy(np.concatenate(done))

    def gradients(
        self, forest: Forest, trees: Ints, loss: Callable[[Tensor], Tensor], classes: Ints | None = None
    ) -> StepResult:
        """Add the gradients of the loss: without autograd if it is the cross-entropy of a classifier on flat parameters."""
        flat, head = self.encoder.flat, self._head
        place = None if flat is None else flat.place_of(self.layout)
        head_place = None if flat is None or head is None else flat.place_of(head.layout)
        nodes = self._nodes(forest, trees) if classes is not None and place and head_place else None
        if nodes is None or flat is None or head is None or classes is None or nodes.vectors_learn:
            return super().gradients(forest, trees, loss, classes)
        if len(trees) != head.trees * len(classes) or classes.min() < 0 or classes.max() >= head.classes:
            return super().gradients(forest, trees, loss, classes)  # torch says what is wrong
        values, gradient, parts = flat.values.detach().numpy(), flat.gradient.numpy(), len(nodes.parts)
        weights = Weights(values[place], self._tables(values.dtype, training=True))
        noise = _Noise.of(self.encoder, parts)

        def run(part: int) -> tuple[Vector, float, int] | None:
            folded = nodes.fold(part, weights, share=self.encoder.share_subtrees, is_kept=True, noise=noise)
            if folded is None:
                return None
            d_values = gradient if parts == 1 else np.zeros_like(gradient)
            own, memory = classes[nodes.parts[part]], folded.states.memory
            lost, right, d_memory = head.gradients(
                values[head_place], memory, folded.roots, own, len(classes), d_values[head_place]
            )
            d_vectors = np.zeros_like(nodes.vectors)
            fold_backward(
                weights, folded.plan, folded.states, nodes.vectors, folded.noise, d_memory, d_values[place], d_vectors
            )
            return d_values, lost, right

        results = run_parts(run, parts)
        done = [each for each in results if each is not None]
        if len(done) < parts:
            return super().gradients(forest, trees, loss, classes)  # which says what is wrong with the trees
        for d_values, *_ in done if parts > 1 else []:  # in their order, so that the sum is the same every time
            gradient += d_values
        return StepResult(sum(lost for _, lost, _ in done) / len(classes), sum(right for *_, right in done), None)

    def _nodes(self, forest: Forest, trees: Ints) -> "_Nodes | None":
        """Return the trees for the kernels, if the whole model can be computed with them."""
        head = self._head
        if head is None or len(forest.vectors) or not len(trees) or trees.dtype != np.int64:
            return None
        ends, parts = node_ends(forest, trees), part_count(len(trees))
        alphabet = self.encoder.alphabet(forest.vocabulary, int(ends[-1]))
        if alphabet is None or alphabet.vectors.dtype != head.layout.parameters[0].dtype:
            return None
        if not self._is_worth_it(len(trees), int(ends[-1])) or not head.is_worth_it(len(trees)):
            return None
        if parts > 1 and not head.can_split(len(trees)):
            return None
        firsts = [0, *part_ends(ends, parts)]
        return _Nodes(forest, trees, alphabet, list(map(slice, firsts, firsts[1:])), siblings=self.encoder.siblings)

    def _is_worth_it(self, trees: int, nodes: int) -> bool:
        """Say whether kernels are faster: unless large matrices meet many nodes, or many threads."""
        if self.encoder.backend == "fused":
            return True
        if self.layout.largest > _LARGEST:
            return False
        idle = torch.get_num_threads() if part_count(trees) == 1 else 1
        return bool(self.layout.largest * nodes * idle < _BREAK_EVEN)

    def _is_narrow(self, linked: Batch) -> bool:
        """Say whether levels have so few nodes that torch, which computes level by level, is slower for any number of nodes."""
        return self.layout.largest <= _LARGEST and linked.node_count < _LEVEL * len(linked.schedule.level_sizes)

    def _values(self, layout: FlatLayout) -> Vector:
        """Return the parameters of a layout as one array: in place if they are flat, else copied."""
        flat = self.encoder.flat
        place = None if flat is None else flat.place_of(layout)
        if flat is not None and place is not None:
            return flat.values.detach().numpy()[place]
        return layout.values()

    def _tables(self, dtype: Any, *, training: bool) -> Any:
        more = [] if self._head is None else [*self._head.functions[0], *(self._head.functions[1] if training else [])]
        return self.layout.tables(dtype, training=training, more=[gather_translated, *more])


class _Noise(NamedTuple):
    """The noise of a batch: its standard deviation, and a seed for each part."""

    deviation: float
    seeds: list[int]

    @classmethod
    def of(cls, encoder: "TreeEncoder", parts: int) -> "_Noise | None":
        """Draw the seeds; None if there is no noise."""
        if not encoder.adds_noise:
            return None
        return cls(encoder.state_noise, torch.randint(2**62, (parts,), generator=own_generator()).tolist())

    def rows(self, part: int, plan: Plan, roots: Ints, size: int, dtype: Any) -> Matrix:
        """Return the noise of all units of a part, (U, C): zero for leaves, and for units of roots."""
        generator = np.random.default_rng(self.seeds[part])
        noise = generator.standard_normal((len(plan.row_of), size), np.float32).astype(dtype, copy=False)
        noise *= dtype.type(self.deviation)
        noise[np.diff(plan.children) == 0] = 0
        noise[roots] = 0
        return noise


class _Folded(NamedTuple):
    """The plan, the states and the noise of a part of a batch, and the units of its roots."""

    plan: Plan
    states: States
    noise: Matrix
    roots: Ints


@final
class _Nodes:
    """Trees of a forest, gathered in parts, each by the thread that computes it."""

    def __init__(self, forest: Forest, trees: Ints, alphabet: Alphabet, parts: list[slice], *, siblings: bool) -> None:
        self.parts, self.vectors_learn, self._siblings = parts, alphabet.vectors.requires_grad, siblings
        self.vectors: Matrix = alphabet.vectors.detach().contiguous().numpy()
        self._trees, self._columns, self._alphabet = trees, columns_of(forest), alphabet[:3]

    def fold(
        self, part: int, weights: Weights, *, share: bool, is_kept: bool, noise: _Noise | None = None
    ) -> _Folded | None:
        """Compute the states of a part; None if something is wrong with its trees."""
        is_sound, *sides, roots = gather_translated(self._trees[self.parts[part]], *self._columns, *self._alphabet)
        if not is_sound:
            return None
        parents, slots, operators, rows = sides
        if self._siblings:
            parents, slots = link_siblings(parents)
        plan = make_plan(weights.tables, parents, slots, 0, operators, rows, share)
        units, dtype, size = plan.unit_of[roots], weights.values.dtype, weights.tables.state_size
        rows = np.empty((0, size), dtype) if noise is None else noise.rows(part, plan, units, size, dtype)
        return _Folded(plan, _forward(weights, plan, self.vectors, rows, is_kept=is_kept), rows, units)


def _forward(weights: Weights, plan: Plan, vectors: Matrix, noise: Matrix | None = None, *, is_kept: bool) -> States:
    """Run the forward pass in the thread's workspace: only the memories outlive the thread's next call."""
    dtype = weights.values.dtype
    room = workspace(dtype)
    rows = np.empty((0, weights.tables.state_size), dtype) if noise is None else noise
    states = fold_forward(weights, plan, vectors, rows, is_kept, room)
    needed = 16 * len(states) + sum(each.size for each in states[1:])
    if needed > len(room):
        grow_workspace(dtype, needed)
    return states


def _fold(
    engine: FusedEngine, batch: Batch, operators: Ints, rows: Ints, vectors: Tensor | None, *, share: bool
) -> tuple[Tensor, Ints]:
    """Return the memories of all distinct subtrees, (U, S), and the row of each node in them, (N,).

    ``operators`` (N,) choose the cells of `PerLabel`; ``rows`` (N,) the label vectors out of ``vectors`` (X, M), -1 if a node
    sees none. With ``share`` equal subtrees are computed once.
    """
    layout, flat = engine.layout, engine.encoder.flat
    parameters = layout.parameters
    if vectors is None:
        vectors = parameters[0].new_zeros(0, 0)
    if vectors.dtype != parameters[0].dtype:
        raise ConfigurationError(
            f"kernels expect label vectors of the cell's {parameters[0].dtype}, got {vectors.dtype}; "
            f"convert the whole model, with .double() or .float()."
        )
    place = None if flat is None else flat.place_of(layout)
    inputs = [flat.values] if flat is not None and place is not None else parameters
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (vectors, *inputs))
    work = _Work(engine, batch, operators, rows, share, flat if place is not None else None, place)
    if not learns:
        values = engine._values(layout)
        return torch.from_numpy(work.forward(vectors, values, is_kept=False)), work.unit_of
    memories: Tensor = _FoldFunction.apply(work, vectors, *inputs)  # type: ignore[no-untyped-call]
    return memories, work.unit_of


@final
@dataclass
class _Work:
    """One upward pass that autograd knows: the parts of a batch with their plans and states."""

    engine: FusedEngine
    batch: Batch
    operators: Ints
    rows: Ints
    share: bool
    flat: FlatParameters | None
    place: slice | None

    def forward(self, vectors: Tensor, values: Vector, *, is_kept: bool) -> Matrix:
        """Return the memories; keep plans and states for the backward pass."""
        layout, batch = self.engine.layout, self.batch
        self.weights = Weights(values, self.engine._tables(values.dtype, training=is_kept))
        labels = vectors.detach().contiguous().numpy()
        operators = self.operators if len(layout.operators) > 1 else np.zeros_like(self.operators)
        trees = part_ends(batch.roots + 1, part_count(len(batch)))
        ends = [0, *(int(batch.roots[end - 1]) + 1 for end in trees)]
        noise, size = _Noise.of(self.engine.encoder, len(trees)), layout.state_size

        def run(part: int) -> tuple[Plan, States, Matrix]:
            own = slice(ends[part], ends[part + 1])
            columns = batch.parents[own], batch.slots[own], own.start, operators[own], self.rows[own]
            plan = make_plan(self.weights.tables, *columns, self.share)
            rows = np.empty((0, size), values.dtype)
            if noise is not None:
                first, last = trees[part - 1] if part else 0, trees[part]
                roots = plan.unit_of[batch.roots[first:last] - own.start]
                rows = noise.rows(part, plan, roots, size, values.dtype)
            if not is_kept:
                return plan, _forward(self.weights, plan, labels, rows, is_kept=False), rows
            return plan, fold_forward(self.weights, plan, labels, rows, True, np.empty(0, values.dtype)), rows

        self.parts = run_parts(run, len(trees))
        firsts = [0, *itertools.accumulate(len(states.memory) for _, states, _ in self.parts)]
        numbered = [plan.unit_of + first for (plan, *_), first in zip(self.parts, firsts, strict=False)]
        self.unit_of = numbered[0] if len(numbered) == 1 else np.concatenate(numbered)
        memories = [states.memory for _, states, _ in self.parts]
        return memories[0] if len(memories) == 1 else np.concatenate(memories)

    def backward(self, vectors: Tensor, d_memories: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """Return the gradients of the label vectors and of the parameters; None for those that were added to flat ones."""
        labels, d_units = vectors.detach().contiguous().numpy(), d_memories.numpy()
        # If all parameters are in one tensor, the first part adds to its gradient directly.
        flat = [] if self.flat is None else [self.flat.gradient.numpy()[self.place]]
        d_values = [*flat, *(np.zeros_like(self.weights.values) for _ in self.parts[len(flat) :])]
        d_vectors = [np.zeros_like(labels) for _ in self.parts]
        ends = list(itertools.accumulate(len(states.memory) for _, states, _ in self.parts))

        def run(part: int) -> None:
            (plan, states, noise), start = self.parts[part], ends[part - 1] if part else 0
            d_memory = np.array(d_units[start : ends[part]], order="C")  # a copy, which is used up
            fold_backward(self.weights, plan, states, labels, noise, d_memory, d_values[part], d_vectors[part])

        run_parts(run, len(self.parts))
        for other in range(1, len(self.parts)):  # in their order, so that the sum is the same every time
            d_values[0] += d_values[other]
            d_vectors[0] += d_vectors[other]
        if self.flat is not None:
            return torch.from_numpy(d_vectors[0]), [None]
        return torch.from_numpy(d_vectors[0]), list(self.engine.layout.gradients(torch.from_numpy(d_values[0])))


class _FoldFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _Work, vectors: Tensor, *parameters: Tensor) -> Tensor:
        ctx.work = work
        ctx.save_for_backward(vectors)
        layout, is_flat = work.engine.layout, work.flat is not None
        values = parameters[0].detach().numpy()[work.place] if is_flat else layout.pack(parameters)
        return torch.from_numpy(work.forward(vectors, values, is_kept=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_memories: Tensor) -> tuple[Tensor | None, ...]:
        d_vectors, gradients = ctx.work.backward(*ctx.saved_tensors, d_memories)
        return None, d_vectors if ctx.needs_input_grad[1] else None, *gradients


# The decision ----------------------------------------------------------------------------------------------------------


def engine_for(encoder: "TreeEncoder", model: "TreeModel | None" = None) -> TorchEngine:
    """Return the engine of an encoder, or of a model with it; its ``reason`` says why it was chosen.

    Kernels compute the upward pass of a cell that has them, on the CPU, without hooks, unless ``backend="torch"``.
    """
    if encoder.backend == "torch":
        return TorchEngine(encoder, "backend='torch'", model)
    if encoder.backend == "fused" and encoder.direction != "up":
        reason: str | None = f"direction='up', got {encoder.direction!r}"
    elif "up" not in encoder.cells:
        reason = "an upward pass, got direction='down'"
    else:
        reason = _unsupported_reason(encoder)
    if reason is None:
        return FusedEngine(encoder, _knowledge(encoder), model)
    if encoder.backend == "fused":
        raise ConfigurationError(
            f"TreeEncoder with backend='fused' expects {reason}; choose backend='auto' or 'torch'."
        )
    return TorchEngine(encoder, f"kernels expect {reason}", model)


def _unsupported_reason(encoder: "TreeEncoder") -> str | None:
    reference = first_parameter(encoder.cells)
    if reference.device.type != "cpu":
        return f"parameters on the CPU, got {reference.device}"
    if reference.dtype not in NUMPY_TYPES:
        return f"parameters of float32 or float64, got {reference.dtype}"
    knowledge = _knowledge(encoder)
    return "a cell without hooks, got one with hooks" if knowledge.has_hooks else knowledge.problem


@final
class _Knowledge:
    """The layout of a cell, or why it has none, valid as long as its modules are the same."""

    def __init__(self, cell: Cell) -> None:
        self.problem = cell.unsupported_reason()
        self._layout = None if self.problem else layout_of(cell)
        modules = list(cell.modules())
        self._links = [(each._modules, name) for each in modules for name in each._modules]
        self._children = [table[name] for table, name in self._links]
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        self._hooks = [getattr(each, kind) for each in modules for kind in kinds]

    @property
    def layout(self) -> Any:
        """The layout."""
        assert self._layout is not None
        return self._layout

    @property
    def is_valid(self) -> bool:
        """Whether no module was replaced, as `compress` does."""
        return [table.get(name) for table, name in self._links] == self._children

    @property
    def has_hooks(self) -> bool:
        """Whether a hook wants to see a module's results or gradients."""
        return any(self._hooks)


def _knowledge(encoder: "TreeEncoder") -> _Knowledge:
    cell = encoder.cell("up")
    if encoder.knowledge is None or encoder.knowledge[0] is not cell or not encoder.knowledge[1].is_valid:
        encoder.knowledge = cell, _Knowledge(cell)
    found: _Knowledge = encoder.knowledge[1]
    return found


def first_parameter(module: nn.Module) -> Tensor:
    """Return `next(module.parameters())`, without asking every module first, which takes longer than a small batch's labels."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        if child is not None:
            return first_parameter(child)
    raise ConfigurationError("TreeEncoder expects a cell with parameters, got one without.")
