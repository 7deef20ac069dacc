"""Old module names keep working."""

import importlib
import subprocess
import sys
import warnings

import pytest

from treefold._moved import MOVED, new_name

OLD = [
    *MOVED,
    "treefold.datasets.listops",
    "treefold.datasets.lrt",
    "treefold.aggregators.tucker",
    "treefold.experiments.grid",
]


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_gives_the_module_at_its_new_place_with_a_warning(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = new_name(old)
    assert new is not None
    expected = importlib.import_module(new)
    spec = expected.__spec__
    monkeypatch.delitem(sys.modules, old, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(old.rpartition(".")[0])  # a package that moved warns for itself
    with pytest.warns(DeprecationWarning, match=f"{old} has moved; import {new} instead") as told:
        assert importlib.import_module(old) is expected
    assert {str(each.message).split()[0] for each in told} == {old}
    assert expected.__name__ == new and expected.__spec__ is spec is not None and spec.name == new


def test_names_of_old_modules_are_the_new_ones_and_the_warning_points_at_the_import() -> None:
    code = """
import warnings
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as told:
    from treefold.tree import Tree
    from treefold.datasets import listops
    from treefold.datasets.convert import Conversion
    import treefold.readers
import treefold.data.convert, treefold.data.generators.listops
assert Tree is treefold.Tree and Conversion is treefold.data.convert.Conversion
assert listops is treefold.data.generators.listops and treefold.readers is treefold.data.readers
assert [each.filename for each in told] == ["<string>"] * 4, told
assert "torch" not in __import__("sys").modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore:treefold.models has moved:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("Classifier", "treefold.nn.heads"),
        ("PairClassifier", "treefold.nn.heads"),
        ("Regressor", "treefold.nn.heads"),
        ("TreeModel", "treefold.nn.model"),
        ("compress", "treefold.nn.model"),
    ],
)
def test_the_names_of_the_old_models_are_found_in_the_room_that_replaced_them(name: str, new: str) -> None:
    models = importlib.import_module("treefold.models")
    assert getattr(models, name) is getattr(importlib.import_module(new), name)


@pytest.mark.filterwarnings("ignore:treefold.models has moved:DeprecationWarning")
def test_the_head_of_nodes_has_its_old_name_with_a_warning() -> None:
    models = importlib.import_module("treefold.models")
    with pytest.warns(DeprecationWarning, match="the head NodeClassifier is now called NodeHead"):
        assert models.NodeClassifier is importlib.import_module("treefold.nn.heads").NodeHead


def test_a_module_that_never_was_is_missing_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'treefold\.tres'"):
        importlib.import_module("treefold.tres")
    with pytest.warns(DeprecationWarning), pytest.raises(ModuleNotFoundError, match=r"treefold\.data\.readers\.tres"):
        importlib.import_module("treefold.readers.tres")
