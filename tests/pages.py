"""Pages of documentation: which code they have, and how it is run, all by the same rules.

- ``python`` blocks of a page share one namespace and one empty folder. If a line is ``print(…)  # text``, the comment must begin
  with what is printed; after ``…`` anything may follow.
- Of ``sh`` and indented blocks, the lines ``treefold …`` are run, also ``echo "…" | treefold …`` and ``treefold … > file``.
  Lines with ``pip``, ``make`` and ``apt-get`` set up a machine and are left out.
- ``<!-- not run: reason -->`` before a block leaves it out. ``<!-- file: NAME -->`` adds it to a file before the page is run.
- ``<!-- hidden`` and ``-->`` enclose Python that readers do not see: tiny data, and checks of the outcome.
"""

import ast
import contextlib
import io
import os
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from treefold.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)]
_SETS_UP = ("pip", "make", "apt-get")
_PARTS = re.compile(
    r"^<!-- hidden\n(?P<hidden>.*?)^-->"
    r"|(?:^<!-- (?P<note>not run|file): (?P<detail>.*?) -->\n+)?"
    r"(?:^```(?P<language>[^\n]*)\n(?P<fenced>.*?)^```|(?<=\n\n)(?P<indented>(?:(?: {4}[^\n]*)?\n)+))",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A block of code: its language (``hidden`` if readers do not see it), its text, and what is said about it."""

    language: str
    text: str
    line: int
    not_run: str = ""
    file: str = ""


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page that have code."""
    text, found = page.read_text(encoding="utf-8"), []
    for part in _PARTS.finditer(text):
        line = text[: part.start()].count("\n") + 1
        if part["hidden"] is not None:
            found.append(Block("hidden", part["hidden"], line))
            continue
        code = part["fenced"] if part["fenced"] is not None else re.sub(r"^ {4}", "", part["indented"], flags=re.M)
        if code.strip():
            language = part["language"] or ("sh" if re.search(r"^(echo .*\| )?treefold ", code, re.M) else "")
            notes = {"not_run" if part["note"] == "not run" else "file": part["detail"]} if part["note"] else {}
            found.append(Block(language, code, line, **notes))
    return found


def run_page(page: Path, folder: Path) -> dict[str, Any]:
    """Run the code of a page in a folder, and return the page's names."""
    names: dict[str, Any] = {"__name__": "__page__"}
    blocks = blocks_of(page)
    for block in blocks:
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            with (folder / block.file).open("a", encoding="utf-8") as file:
                file.write(block.text)
    with contextlib.chdir(folder):
        for block in blocks:
            if block.not_run or block.file:
                continue
            where = f"{page.name}, line {block.line}"
            if block.language in ("python", "hidden"):
                run_python(block.text, names, where)
            elif block.language == "sh":
                for command in commands_of(block.text):
                    run_command(command, where)
    return names


def run_python(text: str, names: dict[str, Any], where: str) -> None:
    """Run Python statement by statement, and compare what is printed with the comments that say it."""
    lines = text.splitlines()
    for statement in ast.parse(text).body:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(ast.Module([statement], []), where, "exec"), names)
        except Exception as problem:
            problem.add_note(f"{where}: {ast.unparse(statement)}")
            raise
        comment = lines[(statement.end_lineno or 0) - 1].encode()[statement.end_col_offset :].decode()
        if ast.unparse(statement).startswith("print(") and (said := comment.strip().removeprefix("# ")):
            got = " ".join(printed.getvalue().split())
            start, is_open, _ = said.partition("…")
            assert got.startswith(start.strip()) if is_open else said.startswith(got), f"{where}: {said!r}, got {got!r}"


def commands_of(text: str) -> list[str]:
    """Return the commands of a block, without comments, lines joined that end in a backslash."""
    commands = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    return [each for each in commands if each and not each.startswith(("#", *(f"{name} " for name in _SETS_UP)))]


def run_command(command: str, where: str) -> str:
    """Run a command line of treefold, and return what it printed."""
    words = shlex.split(command, comments=True)
    said, target = None, None
    if words[0] == "echo":
        said, words = f"{words[1]}\n", words[words.index("|") + 1 :]
    if ">" in words:
        target, words = words[-1], words[: words.index(">")]
    assert words[0] == "treefold", f"{where}: run by no test, so it needs `<!-- not run: reason -->`: {command}"
    before = dict(os.environ)
    done = CliRunner().invoke(app, words[1:], input=said)
    os.environ.clear()
    os.environ.update(before)  # --plugin adds to it
    assert done.exit_code == 0, f"{where}: {command}\n{done.output}\n{done.exception!r}"
    if target:
        Path(target).write_text(done.stdout, encoding="utf-8")
    return done.stdout
