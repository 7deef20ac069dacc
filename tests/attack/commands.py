"""Attack on the command line: every command with wrong values, names and files."""

import contextlib
import io
import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.attack.case import Target, require
from tests.attack.files import originals
from treefold import cli
from treefold.errors import TreefoldError

_NAMES: Final = (
    *("", ".", "..", "/", "-", "--", "none", "x[/]y", "[red]x", "\x1b[2J", "a\nb", "\ud800", "x" * 300, "no/such/place", "*", "~", "é", "C:\\x", " "),
    *("/dev/null", "/proc/self/mem", "link", "file.txt", "data", "run", "finished", "classifier", "trees.jsonl", "trees.sexpr", "grid.toml", "bad.json", "mine"),
)  # fmt: skip
_MINE: Final = (
    "thesis.txt",
    "dataset.json",
    "config.toml",
    "vocabulary.json",
    "report.html",
    "index.html",
    "results.jsonl",
)
_NUMBERS: Final = (
    "0",
    "-1",
    "1",
    "2",
    "3",
    "0.5",
    "1e400",
    "nan",
    "inf",
    "x",
    "",
    "9" * 30,
    "2147483648",
    "0x10",
    "1_0",
    "٣",
)
_WORDS: Final = (
    *("", "x", "none", "train", "test", "all", "tree", "pair", "node", "regression", "sexpr", "jsonl", "csv", "record", "folder", "left", "random"),
    *("[/]", "\x1b", "\ud800", "MIN,MAX", "MIN,,", ",", "0.8,0.1,0.1", "1,1,1", "nan,0,1", "0.5,0.5", "tucker", "sum", "full", "formulas", "error", "binarise", "group"),
)  # fmt: skip
_SETTINGS: Final = (
    *("rank=", "rank=2", "rank=x", "state_size=0", "state_size=1e9", "state_size=9999999999999", "arity=1", "hidden=[]", "hidden=[2,3]", "=", "x", "model=1"),
    *("optimiser=adamw", "optimiser=[]", "learning_rate=nan", "learning_rate=1e30", "labels=numeric", "aggregator=full", "aggregator=[/]", "curriculum=[[1,0.5]]"),
    *("clip=-1", "seed=-1", "seed=99999999999999999999", "threads=0", "threads=99999", "batch_size=0", "cell=gru", "training.l2=inf", "wide=true", "readout=x"),
    *("embeddings=/nowhere", "embeddings=trees.sexpr", "embeddings=/", "dropout=1", "levels=1", "aggregators={f=1}", "tensorboard=maybe", "patience=none"),
)  # fmt: skip
_USUAL: Final = ("--set", "epochs=1", "--set", "state_size=2")
# Each command: its arguments, which are names, and its options with the values that are tried.
_COMMANDS: Final[dict[str, tuple[list[str], dict[str, tuple[str, ...] | None]]]] = {
    "data listops": (
        ["--size", "5", "--out", "new", "--max-nodes", "30"],
        {"--size": ("0", "-1", "3", "x", "nan", ""), "--out": _NAMES, "--seed": _NUMBERS, "--max-depth": ("0", "1", "2", "-1", "x"), "--value-probability": _NUMBERS,
         "--min-operands": ("0", "1", "3", "6", "x"), "--max-operands": ("1", "2", "x", "-1"), "--operators": _WORDS, "--max-nodes": _NUMBERS, "--force": None, "--from": _NAMES},
    ),
    "data lrt": (
        ["--size", "30", "--out", "new"],
        {"--size": ("0", "-1", "3", "x"), "--out": _NAMES, "--seed": _NUMBERS, "--test-share": _NUMBERS, "--max-train-operators": _NUMBERS, "--from": _NAMES},
    ),
    "data convert": (
        ["trees.jsonl", "--out", "new"],
        {"trees.jsonl": _NAMES, "--out": _NAMES, "--train": _NAMES, "--validation": _NAMES, "--test": _NAMES, "--format": _WORDS, "--labels": _WORDS, "--label-file": _NAMES,
         "--task": _WORDS, "--tree-column": _WORDS, "--left-column": _WORDS, "--right-column": _WORDS, "--label-column": _WORDS, "--option": ("x", "=", "text=1", "x=y", "names=true"),
         "--max-arity": _NUMBERS, "--wide": _WORDS, "--split": _WORDS, "--skip-bad": None, "--force": None, "--seed": _NUMBERS},
    ),
    "data inspect": (["data"], {"data": _NAMES, "--json": None, "--verify": None}),
    "train": (
        ["data", "--out", "new", *_USUAL],
        {"data": _NAMES, "--out": _NAMES, "--recipe": (*_WORDS, "paper", "auto"), "--recipe-file": _NAMES, "--config": _NAMES, "--set": _SETTINGS, "--task": _WORDS,
         "--init-from": _NAMES, "--resume": None, "--baselines": None, "--plugin": ("", "x", "/nowhere.py", "grid.toml", "no.such")},
    ),
    "evaluate": (["finished", "data"], {"finished": _NAMES, "data": _NAMES, "--split": _WORDS, "--json": None, "--baselines": None, "--unknown": _WORDS}),
    "predict": (
        ["finished", "trees.jsonl"],
        {"finished": _NAMES, "trees.jsonl": _NAMES, "--format": _WORDS, "--explain": None, "--top": _NUMBERS, "--json": None, "--skip-bad": None, "--unknown": _WORDS},
    ),
    "embed": (["finished", "trees.jsonl", "--out", "x.npy"], {"finished": _NAMES, "trees.jsonl": _NAMES, "--out": (*_NAMES, "x.csv", "x.npy", "[/].csv"), "--force": None}),
    "describe": (["finished"], {"finished": _NAMES, "--json": None}),
    "compress": (
        ["finished", "--out", "new", "--aggregator", "tucker", "--rank", "1"],
        {"finished": _NAMES, "--out": _NAMES, "--aggregator": _WORDS, "--rank": _NUMBERS, "--block-size": _NUMBERS, "--data": _NAMES, "--force": None},
    ),
    "recipes": ([], {"": _WORDS}),
    "sweep": (["grid.toml", "--out", "new", "--plan"], {"grid.toml": _NAMES, "--out": _NAMES, "--workers": _NUMBERS, "--data": _NAMES, "--plan": None}),
    "report": (["sweep", "--out", "new"], {"sweep": _NAMES, "--out": _NAMES, "--force": None}),
    "bench": ([], {"--x": None}),
    "": ([], {"--version": None, "": _WORDS, "--help": None}),
}  # fmt: skip


def _make(random: random.Random) -> bytes:
    command = random.choice(list(_COMMANDS))
    usual, options = _COMMANDS[command]
    words = list(usual)
    for _ in range(random.choice((1, 1, 2, 3))):
        name = random.choice(list(options))
        words = _with(words, name, random.choice(options[name] or ("",)), takes_value=options[name] is not None)
    if "--force" in options and random.random() < 0.3:
        words.append("--force")
    if random.random() < 0.05:
        random.shuffle(words)
    return json.dumps([*command.split(), *words]).encode()


def _with(words: list[str], name: str, value: str, *, takes_value: bool) -> list[str]:
    """Give an option or an argument another value."""
    if not takes_value:
        return [*words, name]
    if not name.startswith("-"):
        return [value if word == name else word for word in words] + ([] if name else [value])
    if name in words and name != "--set":
        place = words.index(name) + 1
        return [*words[:place], value, *words[place + 1 :]]
    return [*words, name, value]


def _every() -> Iterator[bytes]:
    for command, (usual, options) in _COMMANDS.items():
        for name, values in options.items():
            for value in values or ("",):
                words = _with(usual, name, value, takes_value=values is not None)
                for more in ([], ["--force"]) if name == "--out" and "--force" in options else ([],):
                    yield json.dumps([*command.split(), *words, *more]).encode()


def _run(data: bytes, folder: Path) -> None:
    place = originals()
    for name, source in {
        "data": "dataset",
        "run": "run",
        "finished": "finished",
        "classifier": "classifier",
        "sweep": "sweep",
    }.items():
        shutil.copytree(place / source, folder / name)
    shutil.copy(place / "grid" / "grid.toml", folder)
    (folder / "trees.jsonl").write_text(
        '{"tree": "(f a b)", "label": "x"}\n{"tree": "(g \\u001b[2J)", "label": "[/]"}\n'
    )
    (folder / "trees.sexpr").write_text("(f a b)\n(g (f a))\n")
    (folder / "bad.json").write_text("[" * 100_000)
    (folder / "file.txt").write_text("(a b)\n")
    (folder / "link").symlink_to("nowhere")
    mine = {folder / "mine" / name: f"{name} of the user" for name in _MINE}
    (folder / "mine").mkdir()
    for path, text in mine.items():
        path.write_text(text)
    words, stdout, stderr = json.loads(data), io.StringIO(), io.StringIO()
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["treefold", *words], io.TextIOWrapper(io.BytesIO(b"(f a b)\n"))
    code: object = 0
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv, sys.stdin = before
    shown = stdout.getvalue() + stderr.getvalue()
    require(code in (0, 1, 2), f"exit code {code!r}")
    require("internal error" not in shown and "Traceback" not in shown, shown[-300:])
    require(code == 0 or bool(stderr.getvalue().strip()), "an exit code without a word")
    require("\x1b" not in shown, "an escape reached the terminal")
    require(
        all(path.is_file() and path.read_text() == text for path, text in mine.items()), "a file of the user is gone"
    )
    require(
        not [path for path in folder.rglob("*") if path.name.startswith((".writing.", ".new."))],
        "an incomplete file was left",
    )
    if code:
        raise TreefoldError(stderr.getvalue())


TARGETS: Final = [Target("command", _make, _run, _every)]
