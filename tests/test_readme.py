"""README, docs and the files about releases agree with the library."""

import re

import treefold
from tests.pages import PAGES, ROOT


def test_every_file_that_the_documents_name_is_there() -> None:
    for document in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)[^)]*\)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name} names {link}"


def test_the_figures_of_the_readme_are_those_of_the_pages() -> None:
    readme, results, speed = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/results.md", "docs/speed.md")
    )
    table = readme.partition("## Results")[2].partition("## Speed")[0]
    figures = re.findall(r"[\d.]+(?: \([\d.]+\))?(?= %)", table)
    assert len(figures) == 13 and [each for each in figures if each not in results] == []
    cells = re.findall(r"(?<=\| )\w+ c=[^|]+ \| [\d,]+ \| [\d.]+(?= \|)", readme)
    assert len(cells) == 6 and [each for each in cells if each not in speed] == []


def test_the_rooms_of_the_architecture_are_those_of_the_library() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", text, flags=re.MULTILINE)
    source = ROOT / "src" / "treefold"
    there = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert {name for row in rooms for name in row if name} == {name for name in there if not name.startswith("_")}


def test_the_version_is_the_same_in_all_places() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (released, date), *_ = re.findall(r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", changes, flags=re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (\S+)", citation, flags=re.MULTILINE) == [released]
    assert re.findall(r"^date-released: (\S+)", citation, flags=re.MULTILINE) == [date]
    version, is_under_way, _ = treefold.__version__.partition(".dev")
    assert f"## [Unreleased]\n\nVersion {version}, under way." in changes if is_under_way else version == released
