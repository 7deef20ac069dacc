"""How evaluations, models and explanations look in a terminal of 80 columns."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from torch import nn

from treefold.analysis.baselines import MOST_EXAMPLES
from treefold.analysis.evaluation import Evaluation, Group
from treefold.analysis.explaining import Belief, Occlusion, in_preorder
from treefold.cli.console import out
from treefold.errors import ModelFileError
from treefold.nn.aggregators import Aggregator
from treefold.nn.cells import Cell, PerLabel
from treefold.nn.encoder import TreeEncoder
from treefold.training.run import METRICS
from treefold.training.saving import SavedModel
from treefold.training.task import task_of
from treefold.trees.tree import Tree

_WIDTH: Final = 80
_BAR: Final = 30
_DRAWN: Final = 60  # nodes
_NAMES: Final = {"accuracy": "accuracy", "macro_f1": "macro-F1", "r2": "R²", "mae": "MAE", "rmse": "RMSE"}


def show_evaluation(found: Evaluation, baselines: dict[str, float] | None, trained_on: int) -> None:
    """Print the scores, the confusion matrix and the groups."""
    task = task_of(found.task)
    where = "all examples" if found.split == "all" else f"the {found.split} split"
    unlabelled = f", {found.unlabelled:,} without a label left out" if found.unlabelled else ""
    say(f"on {where}: {found.count:,} {task.judged}s{unlabelled}")
    for name, score in found.scores.items():
        say(f"  {_NAMES[name]:<9} {score:.4f}")
    say(f"  {'mean loss':<9} {found.loss:.4f}")
    if baselines is not None:
        note = f"trained on {trained_on:,} examples" + (" of more" if trained_on == MOST_EXAMPLES else "")
        say(f"\naccuracy of baselines, {note}")
        for name, score in baselines.items():
            say(f"  {name:<26} {score:.4f}")
    if found.confusion:
        _show_confusion(found)
    for shape, groups in found.groups.items():
        owner = "larger tree" if task.trees == 2 else "tree"
        title = "number of inner nodes" if shape == "inner_nodes" else shape
        say(f"\n{task.group_score_name} by {title} of the {owner}")
        _show_groups(groups)


def _show_groups(groups: dict[str, Group] | Any) -> None:
    width = max(len(name) for name in groups)
    most = max(group.score for group in groups.values())
    for name, group in groups.items():
        share = group.score / max(most, 1.0)
        say(f"  {name:>{width}} {group.count:>9,} {group.score:>8.4f} {'█' * round(_BAR * share)}".rstrip())


def _show_confusion(found: Evaluation) -> None:
    """Print the matrix where it fits, else the most frequent mistakes."""
    widest = max(len(f"{count:,}") for row in found.confusion for count in row)
    column = max(widest, min(8, max(len(name) for name in found.classes))) + 1
    lead = min(16, max(len("class"), *(len(name) for name in found.classes)))
    if lead + 2 + column * len(found.classes) <= _WIDTH:
        say("\nconfusion: the class in rows, the answer in columns")
        say(f"  {'class':<{lead}}" + "".join(f"{_fitted(name, column - 1):>{column}}" for name in found.classes))
        for name, row in zip(found.classes, found.confusion, strict=True):
            say(f"  {_fitted(name, lead):<{lead}}" + "".join(f"{count or '·':>{column}}" for count in row))
        return
    mistakes = [
        (count, name, found.classes[place])
        for name, row in zip(found.classes, found.confusion, strict=True)
        for place, count in enumerate(row)
        if count and found.classes[place] != name
    ]
    say(f"\nmost frequent of {sum(count for count, _, _ in mistakes):,} mistakes (the whole matrix: --json)")
    for count, name, answer in sorted(mistakes, key=lambda mistake: -mistake[0])[:10]:
        say(f"  {count:>9,}  {_fitted(name, 24)} taken for {_fitted(answer, 24)}")


def cells_of(encoder: TreeEncoder) -> Iterator[tuple[str, Cell]]:
    """Yield the cells of an encoder, each with the nodes that it is for."""
    for direction, cell in encoder.cells.items():
        prefix = f"{direction} " if len(encoder.cells) > 1 else ""
        if isinstance(cell, PerLabel):
            for place, operator in enumerate(cell.operators):
                yield f"{prefix}{operator}", cell.cell_of(place)
            yield f"{prefix}leaves", cell.cell_of(len(cell.operators))
        else:
            assert isinstance(cell, Cell)
            yield f"{prefix}all nodes", cell


def description(saved: SavedModel, folder: Path) -> dict[str, Any]:
    """Return the architecture part by part, and how training went, ready for JSON."""
    encoder, head = saved.model.encoder, saved.model.head
    parts = [
        _part(nodes, name, module, cell.arity)
        for nodes, cell in cells_of(encoder)
        for name, module in cell.named_children()
    ]
    if encoder.labels is not None and any(True for _ in encoder.labels.parameters()):
        parts.append({**_part("labels", "table", encoder.labels, 1), "multiply_adds": 0})  # looked up
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
        "parts": parts,
        "parameters": sum(parameter.numel() for parameter in saved.model.parameters()),
        "training": _training(folder),
    }


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
    weights = [(each, weight) for each, weight in module.named_parameters() if weight.dim() > 1]
    return {
        "nodes": nodes,
        "name": name,
        "kind": type(module).__name__.removeprefix("_"),
        "sizes": ", ".join(f"{each} {tuple(weight.shape)}" for each, weight in module.named_parameters()),
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
        "multiply_adds": sum(
            weight.numel() * (arity if shared and each.startswith("slot") else 1) for each, weight in weights
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
        scores = [line["validation_score"] for line in lines if "validation_score" in line]
    except (ValueError, KeyError, TypeError) as problem:
        raise ModelFileError(f"{path}: expected a JSON object a line, got {problem!r}; remove the file.") from None
    if scores:
        summary |= {"best_epoch": scores.index(max(scores)) + 1, "best_validation_score": max(scores)}
    return summary


def show_description(facts: dict[str, Any], name: str) -> None:
    """Print a model: equal parts of many cells are one line."""
    say(name)
    settings = facts["model"]
    shown = ("cell", "aggregator", "state_size", "rank", "arity", "shared", "direction")
    rows = [
        (
            "task",
            facts["task"]
            + (f", {len(facts['classes'])} classes: {', '.join(facts['classes'])}" if facts["classes"] else ""),
        ),
        (
            "operators",
            f"{len(facts['operators'])}: {', '.join(facts['operators'])}"
            if facts["operators"]
            else "no cells of their own",
        ),
        (
            "labels",
            f"{len(facts['labels'])} as {settings['labels']}"
            + (f": {', '.join(facts['labels'])}" if facts["labels"] else ""),
        ),
        ("settings", ", ".join(f"{key} {settings[key]}" for key in shown if settings.get(key))),
    ]
    for row, value in rows:
        _say_wrapped(f"  {row:<10} ", value)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for part in facts["parts"]:
        groups.setdefault((part["kind"], part["sizes"], part["multiply_adds"]), []).append(part)
    say(f"\n  {'parameters':>11} {'multiply-adds':>14}  part")
    for parts in groups.values():
        _show_parts(parts)
    say(f"  {facts['parameters']:>11,} {'':>14}  in all")
    _show_training(facts["training"])


def _show_parts(parts: list[dict[str, Any]]) -> None:
    first = parts[0]
    times = f"{len(parts)} × " if len(parts) > 1 else ""
    cost = f"{first['multiply_adds']:,}"
    say(f"  {times + format(first['parameters'], ','):>11} {cost:>14}  {first['kind']}")
    names, nodes = (list(dict.fromkeys(part[key] for part in parts)) for key in ("name", "nodes"))
    for text in (", ".join(names) + " of " + ", ".join(nodes), first.get("equation", first["sizes"])):
        _say_wrapped(" " * 30, text)


def _show_training(training: dict[str, Any] | None) -> None:
    if training is None:
        return
    line = f"\ntrained for {training['epochs']} epochs in {training['seconds']:,.1f} s"
    if "best_epoch" in training:
        line += f"; best on validation {training['best_validation_score']:.4f}, after epoch {training['best_epoch']}"
    say(line)


def show_explanation(trees: tuple[Tree, ...], believed: list[Belief], occluded: Occlusion) -> None:
    """Print each tree with the beliefs at its nodes, and the subtrees that matter most."""
    chance = "" if occluded.probability is None else f" with probability {occluded.probability:.4f}"
    answer = occluded.answer if isinstance(occluded.answer, str) else f"{occluded.answer:.6g}"
    say(f"answer: {answer}{chance}")
    start = 0
    for tree in trees:
        notes = [str(belief) for belief in believed[start : start + tree.size]]
        start += tree.size
        say(tree.draw(max_nodes=_DRAWN, notes=in_preorder(tree, notes)))
    numbers = occluded.probability is None
    say("without this subtree, " + ("the number falls by" if numbers else "the probability of the answer falls by"))
    for effect in occluded.effects:
        say(f"  {effect.fall:>+8.4f}  {_fitted(str(effect.subtree), 66)}")
    if not occluded.effects:
        say("  there is none below the root")
    if occluded.tried < occluded.possible:
        say(f"  tried: the {occluded.tried:,} subtrees nearest to the root, of {occluded.possible:,}")
    say("")


def say(text: str) -> None:
    """Print a result as it is, without markup."""
    out.print(text, markup=False, emoji=False)


def _say_wrapped(lead: str, text: str) -> None:
    """Print text of three lines at most, those behind the first under it."""
    width = _WIDTH - len(lead)
    for line in textwrap.wrap(_fitted(text, 3 * width - 20), width) or [""]:
        say(lead + line)
        lead = " " * len(lead)


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
