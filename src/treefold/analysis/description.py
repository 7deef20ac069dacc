"""A saved model part by part: parameters, costs and training; and how far a compressed model is from the original."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from treefold.errors import ConfigurationError, ModelFileError
from treefold.nn.aggregators import Aggregator
from treefold.nn.cells import Cell, PerLabel
from treefold.nn.encoder import TreeEncoder
from treefold.training.run import METRICS
from treefold.training.saving import SavedModel

_MOST_ENTRIES: Final = 100_000_000  # of a dense tensor: 400 MB


def describe(saved: SavedModel, folder: Path) -> dict[str, Any]:
    """Return the parts of a model and a summary of its training, ready for JSON."""
    encoder, head = saved.model.encoder, saved.model.head
    parts = [
        _part(nodes, name, module, cell.arity)
        for nodes, cell in _cells(encoder)
        for name, module in cell.named_children()
    ]
    if encoder.labels is not None and any(True for _ in encoder.labels.parameters()):
        parts.append({**_part("labels", "table", encoder.labels, 1), "multiply_adds": 0})  # rows are looked up
    parts += [
        _part(f"each {saved.task.judged}", f"{type(head).__name__}.{name}", module, 1)
        for name, module in head.named_children()
        if any(True for _ in module.parameters())
    ]
    return {
        "task": saved.settings.task,
        "model": saved.settings.model.model_dump(exclude_none=True),
        "operators": list(saved.labels.operators),
        "labels": list(saved.labels.names),
        "classes": list(saved.classes),
        "reasons": list(saved.reasons),
        "parts": parts,
        "parameters": sum(parameter.numel() for parameter in saved.model.parameters()),
        "training": _training(folder),
    }


def require_dense_fits(saved: SavedModel) -> None:
    """Raise unless the dense tensor of each aggregator has at most 10⁸ entries, so that it can be decomposed."""
    for nodes, name, module in _aggregators(saved):
        entries = (module.state_size + 1) ** module.arity * ((module.label_size or 0) + 1) * module.out_size
        if entries > _MOST_ENTRIES:
            raise ConfigurationError(
                f"compress expects tensors of at most {_MOST_ENTRIES:,} entries, got {entries:,} in {name} of {nodes} "
                f"(arity={module.arity}, state_size={module.state_size}); train the small form instead."
            )


def relative_errors(saved: SavedModel, compressed: SavedModel) -> dict[str, float]:
    r"""Return for each aggregator the relative distance of its compressed tensor, :math:`\|T' - T\| / \|T\|`."""
    errors: dict[str, float] = {}
    for (nodes, name, module), (*_, other) in zip(_aggregators(saved), _aggregators(compressed), strict=True):
        with torch.no_grad():
            tensor = module.to_dense()
            errors[f"{nodes}, {name}"] = float((other.to_dense() - tensor).norm() / tensor.norm().clamp_min(1e-30))
    return errors


def _cells(encoder: TreeEncoder) -> Iterator[tuple[str, Cell]]:
    """Yield each cell of an encoder with the nodes that it computes."""
    for direction, cell in encoder.cells.items():
        prefix = f"{direction} " if len(encoder.cells) > 1 else ""
        if isinstance(cell, PerLabel):
            for index, operator in enumerate(cell.operators):
                yield f"{prefix}{operator}", cell.cell_of(index)
            yield f"{prefix}leaves", cell.cell_of(len(cell.operators))
        else:
            assert isinstance(cell, Cell)
            yield f"{prefix}all nodes", cell


def _aggregators(saved: SavedModel) -> Iterator[tuple[str, str, Aggregator]]:
    for nodes, cell in _cells(saved.model.encoder):
        for name, module in cell.named_children():
            if isinstance(module, Aggregator):
                yield nodes, name, module


def _part(nodes: str, name: str, module: nn.Module, arity: int) -> dict[str, Any]:
    if isinstance(module, Aggregator):
        facts = module.describe()
        return {
            "nodes": nodes,
            "name": name,
            "kind": facts.name,
            "sizes": facts.sizes,
            "equation": facts.equation,
            "parameters": facts.parameter_count,
            "multiply_adds": facts.multiply_adds,
        }
    shared = bool(getattr(module, "shared", False))  # forget gates: the same weights for every child
    matrices = [(key, weight) for key, weight in module.named_parameters() if weight.dim() > 1]
    return {
        "nodes": nodes,
        "name": name,
        "kind": type(module).__name__.removeprefix("_"),
        "sizes": ", ".join(f"{key} {tuple(weight.shape)}" for key, weight in module.named_parameters()),
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "multiply_adds": sum(
            weight.numel() * (arity if shared and key.startswith("slot") else 1) for key, weight in matrices
        ),
    }


def _training(folder: Path) -> dict[str, Any] | None:
    path = folder / METRICS
    if not path.is_file():
        return None
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        summary: dict[str, Any] = {
            "epochs": len(lines),
            "seconds": round(sum(line["seconds"] for line in lines), 3),
            "last": lines[-1] if lines else None,
        }
        # As in training: of equal scores, the one with the lower loss.
        found = [line for line in lines if "validation_score" in line]
        scores = [(line["validation_score"], -line.get("validation_loss", 0.0)) for line in found]
        if scores:
            summary |= {"best_epoch": scores.index(max(scores)) + 1, "best_validation_score": max(scores)[0]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ModelFileError(f"{path}: expected a JSON object a line, got {problem!r}; remove the file.") from None
    return summary
