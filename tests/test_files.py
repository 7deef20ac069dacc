from collections.abc import Callable
from pathlib import Path

import pytest

import treefold
from tests import runs
from treefold import files
from treefold.data.convert import convert
from treefold.data.dataset import Dataset
from treefold.data.vectors import read_vectors
from treefold.errors import FileError
from treefold.files import FolderKind, as_path, atomic_file, atomic_folder, require_replaceable, write_files
from treefold.training import train
from treefold.training.settings import RunSettings

KIND = FolderKind("a folder of a test", "x", "", ("x",))


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with atomic_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with pytest.raises(KeyboardInterrupt), atomic_folder(path) as folder:
        (folder / "x").write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(path) as folder:
        (folder / "x").write_text("whole")
    assert (path / "x").read_text() == "whole" and list(tmp_path.iterdir()) == [path]


def test_an_existing_folder_is_replaced_only_by_force_and_only_by_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    (path / "x").write_text("old")
    with pytest.raises(
        FileError, match="expected a name that is free, got one that exists; choose another, or use --force"
    ):
        atomic_folder(path).__enter__()
    with pytest.raises(RuntimeError), atomic_folder(path, KIND) as folder:
        (folder / "x").write_text("half")
        raise RuntimeError
    assert (path / "x").read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with atomic_folder(path, KIND) as folder:
        (folder / "x").write_text("new")
    assert (path / "x").read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("can_swap", [True, False])
def test_a_folder_that_was_replaced_is_there_at_every_moment(
    tmp_path: Path, can_swap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an exchange in one step the old folder comes back, even if an interruption falls between the two steps."""
    path = tmp_path / "data"
    path.mkdir()
    (path / "x").write_text("old")
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if target == path and (self / "x").read_text() == "new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    if not can_swap:
        monkeypatch.setattr(files, "_swap", lambda first, second: False)
    try:
        with atomic_folder(path, KIND) as folder:
            (folder / "x").write_text("new")
    except KeyboardInterrupt:
        assert (path / "x").read_text() == "old"
    else:
        assert (path / "x").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", [None, KIND])
def test_what_appears_while_a_folder_is_written_stays(tmp_path: Path, kind: FolderKind | None) -> None:
    path = tmp_path / "data"
    message = "got one that exists" if kind is None else "got a folder with 'thesis.txt'"
    with pytest.raises(FileError, match=message), atomic_folder(path, kind):
        path.mkdir()
        (path / "thesis.txt").write_text("mine")
    assert (path / "thesis.txt").read_text() == "mine" and list(tmp_path.iterdir()) == [path]


def test_a_link_to_a_folder_is_replaced_and_the_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").write_text("old")
    (tmp_path / "link").symlink_to("there")
    with atomic_folder(tmp_path / "link", KIND) as folder:
        (folder / "x").write_text("new")
    assert (tmp_path / "link" / "x").read_text() == "new" and (tmp_path / "there" / "x").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "there"]


def test_a_place_that_cannot_be_written_to_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="expected a folder that can be written to, got"):
        atomic_file(tmp_path / "absent" / "x").__enter__()
    with pytest.raises(FileError, match="expected a place that can be written to, got"):
        atomic_folder(tmp_path / "file" / "x").__enter__()
    with pytest.raises(FileError, match="expected a directory to replace, got a file"):
        atomic_folder(tmp_path / "file", KIND).__enter__()


def test_only_a_folder_of_the_same_kind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    kind = FolderKind("a data set", "dataset.json", '"treefold dataset"', ("dataset.json", "logs/*"))
    require_replaceable(path, kind)  # it is empty
    (path / "logs").mkdir()
    (path / "logs" / "1").touch()
    with pytest.raises(FileError, match=r"expected a data set to replace, got a folder without dataset\.json"):
        atomic_folder(path, kind).__enter__()
    (path / "dataset.json").write_text('{"name": "what a museum knows"}')
    with pytest.raises(FileError, match=r"got a folder with 'dataset\.json', which treefold did not write"):
        atomic_folder(path, kind).__enter__()
    (path / "dataset.json").write_text('{"format": "treefold dataset"}')
    require_replaceable(path, kind)
    for foreign in ("thesis.txt", "logs.txt", "photos/1.jpg", "link"):
        (path / foreign).parent.mkdir(exist_ok=True)
        (path / foreign).symlink_to("..") if foreign == "link" else (path / foreign).write_text("old")
        with pytest.raises(
            FileError, match=f"expected a data set to replace, got a folder with '{foreign}', which treefold"
        ):
            atomic_folder(path, kind).__enter__()
        (path / foreign).unlink()
    with atomic_folder(path, kind) as folder:
        (folder / "x").write_text("new")
    assert [file.name for file in path.iterdir()] == ["x"]


def test_files_that_belong_together_are_all_replaced_or_none(tmp_path: Path) -> None:
    write_files(tmp_path, {"a": b"old", "b": b"old"})
    (tmp_path / "c").mkdir()
    with pytest.raises(FileError, match="c: expected a file to write, got a folder"):
        write_files(tmp_path, {"a": b"new", "b": b"new", "c": b"new"})
    assert [(tmp_path / name).read_bytes() for name in "ab"] == [b"old", b"old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_link_to_nothing_is_one_error_everywhere(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    run = runs.full()
    settings = RunSettings.of({"training": {"epochs": 1}})
    for write in (
        lambda: run.data.save(link),
        lambda: run.data.save(link, force=True),
        lambda: train(run.data, link, settings),
        lambda: run.saved.save(link),
    ):
        with pytest.raises(FileError, match="link: expected a folder, or a name that is free, got a link to nothing"):
            write()
    assert link.is_symlink() and not link.exists()


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 5000, "/dev/zero"])
@pytest.mark.parametrize(
    "use",
    [
        as_path,
        treefold.load,
        treefold.Forest.open,
        Dataset.open,
        treefold.Forest(["a"]).save,
        treefold.Tree("a").to_svg,
        runs.listops().saved.save,
        lambda name: convert([name]),
        lambda name: read_vectors(name, ["a"]),
        lambda name: train(runs.listops().data, name, RunSettings()),
    ],
)
def test_a_name_that_no_file_can_have_is_refused(use: Callable[[str], object], name: str) -> None:
    with pytest.raises(FileError, match="expected the name of a file or folder, got"):
        use(name)
