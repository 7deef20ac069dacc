"""README, docs and the files about releases agree with the library."""

import re
from pathlib import Path

import pytest

import treefold

ROOT = Path(__file__).parents[1]


def test_the_ten_lines_of_the_readme_run_as_they_stand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})
    first, second, third = capsys.readouterr().out.splitlines()
    false, true = map(float, re.findall(r"\d+\.\d*", second))
    assert first == "[1 0]" and false < 0.1 and true > 0.9 and third == "[0]"


def test_every_file_that_the_documents_name_is_there() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name} names {link}"


def test_the_rooms_of_the_architecture_are_those_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", text, flags=re.MULTILINE)
    source = ROOT / "src" / "treefold"
    there = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert {name for row in rooms for name in row if name} == {name for name in there if not name.startswith("_")}
    [block] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(block, {})
    assert f"# {capsys.readouterr().out.strip()}" in block


def test_the_version_is_the_same_in_all_places() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (released, date), *_ = re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", changes, flags=re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)", citation, flags=re.MULTILINE) == [released]
    assert re.findall(r"^date-released: (\S+)", citation, flags=re.MULTILINE) == [date]
    version, is_under_way, _ = treefold.__version__.partition(".dev")
    assert f"## [Unreleased]\n\nVersion {version}, under way." in changes if is_under_way else version == released
