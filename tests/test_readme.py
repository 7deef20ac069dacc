import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_ten_lines_of_the_readme_run_as_they_stand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[-1] == "['yes']"


def test_every_file_that_the_documents_name_is_there() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name} names {link}"
