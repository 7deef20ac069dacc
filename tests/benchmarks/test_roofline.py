import sys

import numpy as np
import pytest
from benchmarks.cases import CASES, Case, examples_of, model_of
from benchmarks.measuring import MissingPackageError
from benchmarks.roofline import draw, node_multiply_adds, require_matplotlib, step_multiply_adds

from treefold import LeafLSTM, TreeLSTM


@pytest.mark.parametrize("shared", [False, True])
def test_a_node_counts_its_gates_and_for_each_child_a_forget_gate(shared: bool) -> None:
    cell = TreeLSTM("canonical", state_size=5, arity=3, rank=4, label_size=2, shared=shared)
    gates = 3 * cell.input_gate.multiply_adds()
    assert node_multiply_adds(cell) == gates + 3 * 5 * 5 + 2 * 5
    assert node_multiply_adds(LeafLSTM(label_size=7, state_size=5)) == 3 * 7 * 5


@pytest.mark.parametrize("data", ["listops", "lrt", "vectors"])
def test_a_step_counts_every_node_three_times_over(data: str) -> None:
    examples = examples_of(data, 20)
    model = model_of(Case(data, "sum", 3))
    chosen = np.array([2, 7, 11])
    label_size = {"listops": 10, "lrt": 6, "vectors": 10}[data]
    expected = 0
    for number in examples.trees_of(chosen).tolist():
        for node in examples.forest[number].postorder():
            slots = {"lrt": 1 if node.label == "not" else 2}.get(data, 5)
            expected += (3 + 1) * slots * 9 if node.children else 3 * label_size * 3
    assert step_multiply_adds(model.encoder, examples, chosen) == 3 * expected


def test_the_figure_is_a_png_and_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    rows = {name: {"multiply_adds_per_second": 1e9 + place} for place, name in enumerate(CASES)}
    assert draw({**rows, "matrix product 64 × 64": {"multiply_adds_per_second": 3e10}}).startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(
        MissingPackageError, match=r"expects the package matplotlib, got none; pip install 'treefold\[bench\]'"
    ):
        require_matplotlib()
