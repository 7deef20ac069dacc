"""Imports point one way: each module may import those before it, and no others of ours."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "treefold"
LAYERS = [
    ["_moved", "errors"],
    ["files"],
    ["trees"],
    ["data"],
    ["kernels", "nn"],
    ["training"],
    ["analysis"],
    ["estimators"],
    ["sweeps"],
    ["service"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_from_those_before_it(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert own in RANK, f"{own} has no place in the order of imports"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("treefold."):
            other = (node.module or "").split(".")[1]
            if path.name != "__main__.py":  # a program stands above what it starts
                assert other == own or RANK[other] < RANK[own] or {own, other} == {"nn", "kernels"}, (
                    f"{own} imports {other}"
                )


def test_trees_and_data_sets_need_no_torch() -> None:
    code = "import sys, treefold.cli, treefold.data.generators; treefold.Forest(['(f a)'])"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there() -> None:
    import treefold

    assert all(getattr(treefold, name) is not None for name in treefold.__all__)
    assert sorted(treefold.__all__) == sorted(treefold._HOMES)


def test_importing_prints_nothing_and_leaves_the_random_state_alone() -> None:
    code = "import torch; s = torch.random.get_rng_state(); import treefold; assert torch.equal(s, torch.random.get_rng_state())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
