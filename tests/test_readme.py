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
    first, second, third = capsys.readouterr().out.splitlines()
    false, true = map(float, re.findall(r"\d+\.\d*", second))
    assert first == "[1 0]" and false < 0.1 and true > 0.9 and third == "[0]"


def test_every_file_that_the_documents_name_is_there() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / link).exists(), f"{document.name} names {link}"
