"""Readouts: from the states of all nodes of a tree to the one vector that a head sees."""

from typing import Final, final

import torch
from torch import Tensor, nn

from treefold.errors import ConfigurationError, nearest
from treefold.nn.engine import Encoding
from treefold.trees.batch import Batch

# Axes:  N nodes · B trees · C state size · M label size · Z = C + M
READOUTS: Final = ("root", "mean", "max", "sum", "attention")
_HIDDEN: Final = 32  # entries of the layer that scores nodes for attention


@final
class Readout(nn.Module):
    r"""One vector for each tree, (B, out_size), from its root or from all its nodes; several are joined by ``+``.

    The vector of a node is its state and, beside it, its label's own vector, :math:`z_v = [h_v; x_v]`; so the mean of all nodes
    contains the bag of labels.

    .. math::
        \mathrm{root} = h_r,\quad \mathrm{mean} = \tfrac{1}{n} \sum_v z_v,\quad \mathrm{sum} = \sum_v z_v,\quad
        \mathrm{max} = \max_v z_v,\quad \mathrm{attention} = \sum_v a_v z_v,\;
        a = \mathrm{softmax}_v(w \cdot \tanh(V z_v + b))

    >>> Readout("root+mean", state_size=4, label_size=3).out_size
    11
    """

    def __init__(self, name: str = "root", *, state_size: int, label_size: int | None = None) -> None:
        super().__init__()
        self.name, self.kinds = name, readout_kinds(name)
        self.state_size, self.node_size = state_size, state_size + (label_size or 0)
        self.out_size = sum(state_size if kind == "root" else self.node_size for kind in self.kinds)
        self.attention: nn.Module | None = None
        if "attention" in self.kinds:
            self.attention = nn.Sequential(
                nn.Linear(self.node_size, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, 1, bias=False)
            )

    @property
    def is_root(self) -> bool:
        """Whether only the root's state is read."""
        return self.kinds == ("root",)

    def forward(self, encoding: Encoding) -> Tensor:
        """Return the vectors of all trees of a batch, (B, out_size)."""
        return encoding.roots if self.is_root else self.pool(self.node_vectors(encoding), encoding.batch)

    def node_vectors(self, encoding: Encoding) -> Tensor:
        """Return the vectors of all nodes, state and label, (N, Z)."""
        labels = encoding.labels
        return encoding.nodes if labels is None else torch.cat([encoding.nodes, labels], dim=1)

    def pool(self, nodes: Tensor, batch: Batch) -> Tensor:
        """Pool the vectors of all nodes of a batch, (N, Z), tree by tree, to (B, out_size)."""
        roots = torch.from_numpy(batch.roots).to(nodes.device)
        sizes = torch.diff(roots, prepend=roots.new_full((1,), -1))  # (B,)
        tree = torch.repeat_interleave(torch.arange(len(sizes), device=nodes.device), sizes)  # (N,)
        parts = [
            nodes.index_select(0, roots)[:, : self.state_size]
            if kind == "root"
            else self._pool(kind, nodes, tree, sizes)
            for kind in self.kinds
        ]
        return torch.cat(parts, dim=1)

    def _pool(self, kind: str, nodes: Tensor, tree: Tensor, sizes: Tensor) -> Tensor:
        if kind == "max":
            return _highest(nodes, tree, len(sizes))
        if kind == "mean":
            nodes = nodes / sizes[tree].unsqueeze(1)
        if kind == "attention":
            nodes = nodes * self._weights(nodes, tree, sizes).unsqueeze(1)
        return nodes.new_zeros(len(sizes), nodes.shape[1]).index_add(0, tree, nodes)

    def _weights(self, nodes: Tensor, tree: Tensor, sizes: Tensor) -> Tensor:
        """Return the attention of each node, (N,); that of a tree adds up to one."""
        assert self.attention is not None
        scores = self.attention(nodes).squeeze(1)
        highest = _highest(scores.detach().unsqueeze(1), tree, len(sizes)).squeeze(1)
        powers = (scores - highest[tree]).exp()
        weights: Tensor = powers / powers.new_zeros(len(sizes)).index_add(0, tree, powers)[tree]
        return weights

    def extra_repr(self) -> str:
        """Return the kinds, for printing."""
        return self.name


def _highest(nodes: Tensor, tree: Tensor, count: int) -> Tensor:
    """Return the greatest entries of each tree's nodes, (B, Z)."""
    # Not `torch.segment_reduce`: if two entries are equally great, it gives each of them a negative gradient in full.
    places = tree.unsqueeze(1).expand_as(nodes)
    return nodes.new_zeros(count, nodes.shape[1]).scatter_reduce(0, places, nodes, "amax", include_self=False)


def readout_kinds(name: str) -> tuple[str, ...]:
    """Return the parts of a readout's name, or raise.

    >>> readout_kinds("root+max")
    ('root', 'max')
    """
    kinds = tuple(name.split("+")) if isinstance(name, str) else ()
    for kind in kinds:
        if kind not in READOUTS:
            raise ConfigurationError(
                f"readout expects some of {', '.join(READOUTS)}, joined by +, got {name!r}{nearest(kind, READOUTS)}."
            )
    if not kinds or len(set(kinds)) < len(kinds):
        raise ConfigurationError(f"readout expects each of its parts once, such as 'root+mean+max', got {name!r}.")
    return kinds
