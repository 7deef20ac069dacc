"""The examples of docs/extending.md run: a form, a cell, a head, a task, an estimator and a reader of a user's own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.pages import ROOT, blocks_of, commands_of, run_command
from treefold import AGGREGATORS, Forest, OneHot, PerLabel, TreeClassifier, TreeEncoder, load
from treefold.data.convert import convert
from treefold.data.readers import READERS, SUFFIXES
from treefold.errors import ConfigurationError, ReadError
from treefold.estimators import ESTIMATORS
from treefold.kernels import compile as compiling
from treefold.nn.aggregators import Aggregator
from treefold.nn.cells import CELLS, Cell
from treefold.nn.engine import engine_for
from treefold.nn.math.functional import contract
from treefold.training import TASKS, load_plugin

BLOCKS = blocks_of(ROOT / "docs" / "extending.md")
PLUGIN = "\n".join(block.text for block in BLOCKS if block.file == "mine.py")
USES = [block.text for block in BLOCKS if block.language == "python" and not block.file]
COMMANDS = [command for block in BLOCKS if block.language == "sh" for command in commands_of(block.text)]
REGISTRIES: tuple[dict[str, Any], ...] = (AGGREGATORS, CELLS, TASKS, ESTIMATORS, READERS, SUFFIXES)
TREES = Forest(["(and (or a b) _)", "(or b (and a (and b a)))", "a", "(and _ (or b b))", "(and (or a b) (or a b))"])


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The page's blocks as a file, loaded; afterwards the registries are as they were."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "mine.py").write_text(PLUGIN, encoding="utf-8")
    (folder / "formulas.terms").write_text("".join(f"{line}\n" for line in formulas()), encoding="utf-8")
    before = [dict(registry) for registry in REGISTRIES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREEFOLD_PLUGINS", "")
        patch.setattr(compiling, "cache_folder", lambda: None)  # kernels of a temporary file are not kept
        load_plugin(str(folder / "mine.py"))
        patch.undo()
        patch.setenv("TREEFOLD_PLUGINS", "")
        yield folder
    for registry, known in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(known)


def formulas() -> list[str]:
    truth = {"a": True, "b": False}
    for _ in range(2):
        known = list(truth.items())
        truth |= {f"and({x}, {y})": p and q for x, p in known for y, q in known}
        truth |= {f"or({x}, {y})": p or q for x, p in known for y, q in known}
    return [f"{'yes' if value else 'no'}: {term}" for term, value in truth.items()]


def made(**sizes: Any) -> Aggregator:
    torch.manual_seed(0)
    return AGGREGATORS["diagonal"](state_size=4, **sizes).double()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("label_size", [None, 3])
def test_the_form_is_its_dense_tensor_and_is_recovered_from_it(
    plugin: Path, shared: bool, label_size: int | None
) -> None:
    form = made(arity=3, label_size=label_size, shared=shared)
    children = torch.randn(5, 3, 4, dtype=torch.float64)
    label = None if label_size is None else torch.randn(5, label_size, dtype=torch.float64)
    inputs = [*([] if label is None else [label]), *children.unbind(1)]
    assert torch.allclose(form(children, label), contract(form.to_dense(), inputs))
    again = type(form).from_dense(form.to_dense(), label_size=label_size, shared=shared)
    assert torch.allclose(again(children, label), form(children, label))


def test_the_balanced_start_has_a_standard_deviation_of_one(plugin: Path) -> None:
    form, moments = made(arity=2, label_size=5), []
    for _ in range(400):
        form.reset_parameters()
        inputs = torch.randn(100, 2, 4, dtype=torch.float64), torch.randn(100, 5, dtype=torch.float64)
        moments.append(float(form(*inputs).detach().square().mean()))
    assert np.mean(moments) == pytest.approx(1, abs=0.1)


def test_the_form_refuses_sizes_that_it_cannot_have(plugin: Path) -> None:
    with pytest.raises(ConfigurationError, match="Diagonal expects out_size=4, got 5"):
        made(arity=2, out_size=5)


def cells(kind: str, aggregator: str) -> dict[str, Cell]:
    """A cell that sees labels, the same with shared slots, and one for each operator."""
    inner, leaf = CELLS[kind]
    sizes: dict[str, Any] = {"state_size": 3, "arity": 2, "rank": None, "initialisation": "balanced"}
    torch.manual_seed(1)
    operators = {name: inner(aggregator, label_size=None, shared=False, **sizes) for name in ("and", "or")}
    return {
        "labels": inner(aggregator, label_size=4, shared=False, **sizes),
        "shared": inner(aggregator, label_size=4, shared=True, **sizes),
        "per label": PerLabel(operators, leaf=leaf(label_size=4, state_size=3, initialisation="balanced")),
    }


def encoder_of(cell: Cell, **options: Any) -> TreeEncoder:
    return TreeEncoder(cell, OneHot(["a", "b", *(["c", "d"] if cell.operators else ["and", "or"])]), **options)


def encoded(cell: Cell, backend: Any) -> tuple[Tensor, list[Tensor]]:
    encoder = encoder_of(cell, backend=backend).double()
    cell.zero_grad()
    nodes = encoder(TREES.batch()).nodes
    generator = torch.Generator().manual_seed(2)
    (nodes * torch.randn(nodes.shape, generator=generator, dtype=nodes.dtype)).sum().backward()
    return nodes.detach(), [each.grad.clone() for each in cell.parameters() if each.grad is not None]


@pytest.mark.parametrize("way", ["labels", "shared", "per label"])
@pytest.mark.parametrize(("kind", "aggregator"), [("lstm", "diagonal"), ("residual", "diagonal"), ("residual", "sum")])
def test_the_kernels_compute_what_torch_computes(plugin: Path, kind: str, aggregator: str, way: str) -> None:
    cell = cells(kind, aggregator)[way]
    by_torch, torch_gradients = encoded(cell, "torch")
    by_kernels, gradients = encoded(cell, "fused")
    assert torch.allclose(by_kernels, by_torch, atol=1e-12)
    assert len(gradients) == len(torch_gradients) == len(list(cell.parameters()))
    for own, expected in zip(gradients, torch_gradients, strict=True):
        assert torch.allclose(own, expected, atol=1e-12)


@pytest.mark.parametrize("way", ["labels", "shared", "per label"])
def test_the_kernels_of_the_user_are_chosen(plugin: Path, way: str) -> None:
    assert type(engine_for(encoder_of(cells("residual", "diagonal")[way]))).__name__ == "FusedEngine"


def test_the_estimator_learns_with_the_user_s_form(plugin: Path) -> None:
    trees, y = ["(f a b)", "(f b a)", "(g a a)", "(g b b)"] * 4, ["f", "f", "g", "g"] * 4
    model = TreeClassifier(aggregator="diagonal", state_size=6, epochs=60, random_state=0).fit(trees, y)
    assert model.score(trees, y) == 1.0
    assert type(model.saved_.model.encoder.cells["up"].get_submodule("cells.0.input_gate")).__name__ == "Diagonal"


def test_the_reader_reads_skips_and_says_which_line_is_bad(plugin: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.terms"
    path.write_text("yes: and(a, or(b, a))\nno: and(a,\nno: b\n", encoding="utf-8")
    with pytest.raises(ReadError, match=r"some\.terms, line 2: expected"):
        convert([path])
    told: list[ReadError] = []
    data = convert([path], on_bad=told.append)
    assert [str(tree) for tree in data.forest] == ["(and a (or b a))", "b"] and data.classes == ("no", "yes")
    assert [error.line for error in told] == [2]


def test_the_page_s_uses_run_in_a_fresh_process(plugin: Path) -> None:
    assert len(USES) == 2
    printed = []
    for block in USES:
        done = subprocess.run([sys.executable, "-c", block], cwd=plugin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed += done.stdout.split()
    assert len(printed) == 2 and min(map(float, printed)) > 0.9
    assert type(load(plugin / "models" / "residual")) is TreeClassifier


def test_the_page_s_commands_run(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plugin)
    assert [command.split()[1] for command in COMMANDS] == ["data", "train", "evaluate", "predict"]
    outputs = [run_command(command, "extending.md") for command in COMMANDS]
    assert "accuracy" in outputs[2]
    answers = [json.loads(line) for line in outputs[3].splitlines()]
    assert len(answers) == 202 and set(answers[0]) == {"tree", "prediction", "probabilities"}
    expected = [line.partition(":")[0] for line in formulas()]
    right = np.mean([answer["prediction"] == truth for answer, truth in zip(answers, expected, strict=True)])
    assert right > 0.9
