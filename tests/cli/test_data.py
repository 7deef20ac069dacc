"""The command line, run as a user runs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from treefold.data.dataset import Dataset

LONG = 600  # seconds: a process that takes longer hangs, however busy the machine is
SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def treefold(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "treefold", *map(str, arguments)]
    env = {**os.environ, "COLUMNS": "80", **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_help_names_the_commands_and_the_formats() -> None:
    assert all(word in treefold("data", "--help").stdout for word in ("listops", "lrt", "convert", "inspect"))
    assert "--max-arity" in treefold("data", "convert", "--help").stdout
    assert treefold("--version").stdout.startswith("treefold ")


def test_listops_is_made_inspected_and_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "lo"
    made = treefold("data", "listops", "--out", out, "--size", 300, "--seed", 2)
    assert made.returncode == 0 and "300 trees" in made.stdout and "246 train, 24 validation, 30 test" in made.stdout
    again = treefold("data", "listops", "--out", out, "--size", 10)
    assert again.returncode == 2 and "got one that exists; choose another, or use --force" in again.stderr
    assert "Traceback" not in again.stderr and len(Dataset.open(out)) == 300
    assert treefold("data", "listops", "--out", out, "--size", 10, "--force").returncode == 0
    assert len(Dataset.open(out)) == 10


def test_inspect_fits_in_eighty_columns_and_speaks_json(tmp_path: Path) -> None:
    out = tmp_path / "lo"
    treefold("data", "listops", "--out", out, "--size", 500)
    shown = treefold("data", "inspect", out)
    assert shown.returncode == 0
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80 or str(out) in max(
        shown.stdout.splitlines(), key=len
    )
    assert all(
        part in shown.stdout for part in ("depth of a tree", "children of a node", "class", "equal examples", "├── ")
    )
    found = json.loads(treefold("data", "inspect", out, "--json").stdout)
    assert found["examples"] == 500 and found["duplicates"] == {
        "within all": 0,
        "train and validation": 0,
        "train and test": 0,
        "validation and test": 0,
    }
    assert sum(found["classes"]["train"].values()) == found["splits"]["train"]
    assert sum(found["depths"].values()) == sum(found["sizes"].values()) == 500 and len(found["drawn"]) == 3


def test_the_original_files_are_read_from_the_command_line(tmp_path: Path) -> None:
    if not SHARED.exists():
        pytest.skip(f"NOT TESTED: the original files are not at {SHARED}")
    out = tmp_path / "lo"
    made = treefold("data", "listops", "--out", out, "--from", SHARED / "listops" / "sample_d20s.tsv")
    assert made.returncode == 0 and "(300 test)" in made.stdout
    files = [part for number in range(2) for part in ("--from", SHARED / "lrt" / f"train{number}")]
    made = treefold("data", "lrt", "--out", tmp_path / "lrt", *files)
    assert made.returncode == 0 and "2,349 pairs" in made.stdout


def test_convert_says_what_it_assumed_about_labels_and_splits(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("x,y\n" + "".join(f"(f {number}),{number % 3}\n" for number in range(40)))
    named = ("data", "convert", table, "--tree-column", "x", "--label-column", "y")
    done = treefold(*named, "--out", tmp_path / "a", "--split", "0.9,0.1,0")
    assert done.returncode == 0 and "3 classes" in done.stdout
    assert "labels are whole numbers: taken as classes; use --task regression if they are numbers" in done.stderr
    assert "no examples for test: add examples" in done.stderr and Dataset.open(tmp_path / "a").task == "tree"
    done = treefold(*named, "--out", tmp_path / "b", "--task", "regression")
    assert done.returncode == 0 and "numbers from 0 to 2" in done.stdout and done.stderr == ""
    shown = treefold("data", "inspect", tmp_path / "b").stdout
    assert "task     regression" in shown and "0 … 0.2 " in shown
    found = json.loads(treefold("data", "inspect", tmp_path / "b", "--json").stdout)
    assert list(found["classes"]["all"].values()) == [14, 0, 0, 0, 0, 13, 0, 0, 0, 13]
    table.write_text("x,y\na,0.5\n")
    assert "taken as numbers; use --task tree" in treefold(*named, "--out", tmp_path / "c").stderr


def test_convert_takes_a_file_for_each_split_and_keeps_literals_if_asked(tmp_path: Path) -> None:
    for name, line in {"a": "(1 (0 no) (1 yes))\n(0 no)\n", "b": "(1 yes)\n"}.items():
        (tmp_path / f"{name}.txt").write_text(line)
    files = ("--train", tmp_path / "a.txt", "--validation", tmp_path / "b.txt", "--test", tmp_path / "b.txt")
    done = treefold("data", "convert", *files, "--format", "sst", "--out", tmp_path / "d")
    assert done.returncode == 0 and "(2 train, 1 validation, 1 test)" in done.stdout
    data = Dataset.open(tmp_path / "d")
    assert data.node_targets is not None and data.node_targets.tolist() == [0, 1, 1, 0, 1, 1]
    done = treefold("data", "convert", *files[:2], "--format", "sst", "--out", tmp_path / "e", "--split", "0.5,0.5,0")
    assert "no --validation: a share of the training examples is for validation" in done.stderr
    (tmp_path / "a.json").write_text("[1.5]")
    for literals, tree in {"type": "(array number)", "keep": "(array 1.5)"}.items():
        done = treefold("data", "convert", tmp_path / "a.json", "--literals", literals, "--out", tmp_path / literals)
        assert done.returncode == 0 and str(Dataset.open(tmp_path / literals).forest[0]) == tree
    both = treefold("data", "convert", tmp_path / "a.json", *files, "--out", tmp_path / "f")
    assert both.returncode == 2 and "--train, --validation and --test, got both" in " ".join(both.stderr.split())


def test_bad_lines_are_reported_with_their_place_or_left_out_and_listed(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text("2\t( ( ( [MIN 2 ) 7 ) ] )\n3\t( ( ( [MIN 2 ) 7 ) ] )\nx\n")
    stopped = treefold("data", "listops", "--out", tmp_path / "d", "--from", path)
    assert (
        stopped.returncode == 2
        and "bad.tsv, line 2, column 1: expected 2, the value of the expression, got 3" in stopped.stderr
    )
    assert "Traceback" not in stopped.stderr and not (tmp_path / "d").exists()
    skipped = treefold("data", "listops", "--out", tmp_path / "d", "--from", path, "--skip-bad")
    assert skipped.returncode == 0 and "left out 2 that could not be read" in skipped.stderr
    assert (
        len((tmp_path / "d" / "skipped.txt").read_text().splitlines()) == 2 and len(Dataset.open(tmp_path / "d")) == 1
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "absent.jsonl"], "absent.jsonl: expected a file that can be read"),
        (["convert", "absent.xyz"], "expected a suffix that suggests the format, got '.xyz'"),
        (["convert", "absent.csv", "--format", "cvs"], "got 'cvs' (nearest known: 'csv')"),
        (["convert", "absent.csv", "--split", "1,2"], "--split expects three shares such as 0.8,0.1,0.1, got '1,2'"),
        (["convert", "absent.csv", "--option", "text"], "--option expects key=value, got 'text'"),
        (
            ["convert", "absent.csv", "--max-arity", "2", "--wide", "fold"],
            "expects wide to be one of 'binarise', 'group', 'error', got 'fold'",
        ),
        (["convert"], "convert expects files, or files for --train, --validation and --test, got none"),
        (["convert", "absent.csv", "--task", "regresion"], "got 'regresion' (nearest known: 'regression')"),
        (["convert", "absent.csv", "--literals", "cut"], "expects literals to be one of 'type', 'keep', got 'cut'"),
        (["listops", "--operators", "MIN,MXA"], "got 'MXA' (nearest known: 'MAX')"),
        (["listops", "--placement", "middle"], "expects placement to be one of 'left', 'random', got 'middle'"),
        (["listops", "--max-depth", "1", "--size", "50"], "ask for fewer trees"),
        (["lrt", "--from", "absent"], "absent: expected a file that can be read"),
        (["glycans", "--path", "absent"], "run `python examples/glycans.py [FILE] --out DIR`"),
        (["metamath", "--limit", "5"], "run `python examples/metamath.py [FILE] --out DIR`"),
    ],
)
def test_bad_settings_end_in_one_clear_error(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = treefold("data", *arguments, "--out", tmp_path / "d")
    assert done.returncode == 2, done.stderr
    assert message in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_inspecting_what_is_no_data_set_says_what_to_do(tmp_path: Path) -> None:
    done = treefold("data", "inspect", tmp_path)
    assert done.returncode == 2 and "make one with `treefold data convert`" in done.stderr


def test_a_full_disk_is_said_in_words_and_leaves_nothing(tmp_path: Path) -> None:
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
    code = f"{limit}import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from treefold.cli import main; main()"
    arguments = ["data", "listops", "--out", str(tmp_path / "d"), "--size", "2000"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "File too large; nothing was changed" in done.stderr
    assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    code = "from treefold.cli import console, main; console._SECONDS_BETWEEN_LINES = 0; main()"
    command = [sys.executable, "-c", code, "data", "listops", "--out", str(tmp_path / "d"), "--size", "3000000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None and process.stderr.readline().startswith("ListOps trees: ")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 130 and "interrupted" in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_being_asked_to_end_leaves_nothing_either(tmp_path: Path) -> None:
    run = """
import sys, time, treefold.cli as cli
from treefold.files import atomic_folder
@cli.app.command()
def slow(place: str) -> None:
    with atomic_folder(place):
        print("at work", flush=True)
        time.sleep(3600)
cli.main()
"""
    command = [sys.executable, "-c", run, "slow", str(tmp_path / "d")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "at work\n"
    assert [path.name[:3] for path in tmp_path.iterdir()] == [".d."]
    process.terminate()
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 130 and "interrupted" in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_python_ends_leaves_no_traceback(number: signal.Signals) -> None:
    run = """
import atexit, time, treefold.cli as cli
atexit.register(lambda: (print("ending", flush=True), time.sleep(3600)))
cli.main()
"""
    command = [sys.executable, "-c", run, "--version"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and "ending\n" in iter(process.stdout.readline, "")
    process.send_signal(number)
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == -number and said == ""


def test_force_replaces_a_data_set_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text('{"tree": "(f a b)", "label": "y"}\n')
    own = treefold("data", "convert", source, "--out", source, "--force")
    assert own.returncode == 2 and "expected a data set to replace, got a folder with 'a.jsonl'" in own.stderr
    made = tmp_path / "made"
    assert treefold("data", "convert", source, "--out", made).returncode == 0
    (source / "a.jsonl").rename(made / "skipped.txt")
    inside = treefold("data", "convert", made / "skipped.txt", "--format", "jsonl", "--out", made, "--force")
    assert inside.returncode == 2 and "expected a directory apart from the inputs, got one that holds" in inside.stderr
    assert (made / "skipped.txt").exists()


def test_an_unexpected_error_is_printed_in_a_line() -> None:
    run = """
import signal, sys, typer, treefold.cli as cli

def swallowed(number):
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        return "numpy"

@cli.app.command()
def broken() -> None:
    raise {0}
sys.argv = ["treefold", "broken"]
cli.main()
"""

    def broken(error: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", run.format(error)]
        env = {**os.environ, "COLUMNS": "300", **environment}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)

    done = broken("KeyError('labels')")
    expected = "error: internal error (KeyError: 'labels'); please report it with the output of TREEFOLD_TRACEBACK=1.\n"
    assert (done.returncode, done.stderr) == (1, expected)
    assert "Traceback" in broken("KeyError('labels')", TREEFOLD_TRACEBACK="1").stderr
    assert "error: not enough memory for these sizes; choose smaller" in broken("MemoryError()").stderr
    stopped = broken("KeyboardInterrupt")
    assert stopped.returncode == 130 and "interrupted" in stopped.stderr and "Traceback" not in stopped.stderr
    for name in ("SIGTERM", "SIGINT"):  # swallowed, as torch does while it imports numpy, which is then half imported
        swallowed = broken(f"AttributeError(swallowed(signal.{name}))")
        assert (swallowed.returncode, swallowed.stderr) == (130, "interrupted; no incomplete file was left.\n")


def test_a_terminal_without_a_width_is_eighty_columns_wide(tmp_path: Path) -> None:
    for arguments in (("data", "inspect", tmp_path), ("--help",), ("data", "convert", "--help")):
        narrow, usual = treefold(*arguments, COLUMNS="0"), treefold(*arguments, COLUMNS="80")
        assert (narrow.stdout, narrow.stderr) == (usual.stdout, usual.stderr) != ("", "")


def test_a_working_directory_that_was_removed_is_an_error(tmp_path: Path) -> None:
    command = f"cd {tmp_path} && mkdir gone && cd gone && rmdir ../gone && {sys.executable} -m treefold recipes"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: expected a working directory, got one that was removed; change to another one.\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_falls_into_a_destructor_ends_the_command_all_the_same(number: signal.Signals) -> None:
    """Python prints the KeyboardInterrupt of a destructor and goes on; a training was not stopped by its SIGTERM."""
    run = f"""
import signal, sys, time, treefold.cli as cli

class Thing:
    def __del__(self):
        signal.raise_signal({number.value})

@cli.app.command()
def slow() -> None:
    Thing()
    print("went on", flush=True)
    time.sleep(3600)
sys.argv = ["treefold", "slow"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False, timeout=LONG)
    assert (done.returncode, done.stdout, done.stderr) == (
        130,
        "went on\n",
        "interrupted; no incomplete file was left.\n",
    )


def test_a_terminal_that_knows_few_characters_gets_the_table_all_the_same(tmp_path: Path) -> None:
    treefold("data", "listops", "--out", tmp_path / "lo", "--size", 20)
    shown = treefold("data", "inspect", tmp_path / "lo", PYTHONIOENCODING="ascii")
    assert shown.returncode == 0 and "trees    20" in shown.stdout and "?" in shown.stdout
