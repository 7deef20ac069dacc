"""What is done with a trained model, from the command line."""

import io
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests import runs
from tests.cli.test_data import LONG
from treefold import Forest, cli
from treefold.analysis.evaluation import evaluate
from treefold.analysis.explaining import probabilities
from treefold.data.dataset import Dataset
from treefold.data.generators.lrt import RELATIONS
from treefold.training import train
from treefold.training.saving import load_model
from treefold.training.settings import RunSettings


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        return " ".join(self.stderr.split())

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


Treefold = Callable[..., Done]


@pytest.fixture
def treefold(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Treefold:
    """Run the command line in this process, which spares the import of torch."""

    def run(*arguments: object, stdin: bytes | str = b"") -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "argv", ["treefold", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(int(stop.value.code or 0), said.out, said.err)

    return run


@pytest.mark.parametrize("command", ["evaluate", "predict", "embed", "describe", "compress"])
def test_help_teaches_with_an_example(treefold: Treefold, command: str) -> None:
    done = treefold(command, "--help")
    assert done.code == 0 and "Example:" in done.stdout and f"treefold {command}" in done.stdout


def test_evaluate_says_which_split_and_fits_in_eighty_columns(treefold: Treefold) -> None:
    run = runs.listops()
    done = treefold("evaluate", run.folder, run.data_folder, "--baselines")
    assert done.code == 0 and done.stdout.startswith("on the test split: 30 trees\n")
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    parts = ("accuracy ", "macro-F1", "mean loss", "confusion: the class in rows", "by depth", "by size", "by arity")
    assert all(part in done.stdout for part in (*parts, "bag of nodes", "trained on 246 examples", "majority class"))
    assert treefold("evaluate", run.folder, run.data_folder, "--split", "all").stdout.startswith(
        "on all examples: 300 trees"
    )


def test_evaluate_prints_one_json_object(treefold: Treefold) -> None:
    run = runs.lrt()
    done = treefold("evaluate", run.folder, run.data_folder, "--json", "--baselines", "--split", "validation")
    facts = json.loads(done.stdout)
    assert facts["split"] == "validation" and facts["classes"] == list(RELATIONS) and "inner_nodes" in facts["groups"]
    assert facts["accuracy"] == evaluate(run.saved, run.data, "validation").score
    assert list(facts["baselines"]) == ["majority class", "bag of nodes", "bag of parent-child pairs"]
    assert facts["baselines_trained_on"] == len(run.data.splits["train"])


def test_evaluate_shows_mistakes_where_a_matrix_would_be_too_wide(treefold: Treefold, tmp_path: Path) -> None:
    run = runs.listops()
    names = tuple(f"a long name of class {digit}" for digit in range(10))
    model = tmp_path / "run"
    shutil.copytree(run.folder, model)
    facts = json.loads((model / "vocabulary.json").read_text())
    (model / "vocabulary.json").write_text(json.dumps({**facts, "classes": names}))
    data = Dataset(run.data.forest, run.data.targets, names, run.data.splits)
    data.save(tmp_path / "data")
    done = treefold("evaluate", model, tmp_path / "data", "--split", "train")
    assert "mistakes (the whole matrix: --json)" in done.stdout and "taken for a long name of class" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_evaluate_measures_nodes_and_numbers(treefold: Treefold) -> None:
    nodes, numbers = runs.nodes(), runs.numbers()
    assert "nodes" in treefold("evaluate", nodes.folder, nodes.data_folder).stdout.splitlines()[0]
    shown = treefold("evaluate", numbers.folder, numbers.data_folder).stdout
    assert all(part in shown for part in ("R²", "MAE", "RMSE", "mean absolute error by depth"))
    pairs = runs.similarities()
    shown = treefold("evaluate", pairs.folder, pairs.data_folder).stdout
    assert "20 pairs" in shown and all(
        part in shown for part in ("R²", "Pearson", "MSE", "mean absolute error by number")
    )
    done = treefold("evaluate", numbers.folder, numbers.data_folder, "--baselines")
    assert done.code == 2 and "--baselines expects a model that classifies trees or pairs" in done.said


def test_predictions_are_json_lines_with_the_model_s_probabilities(treefold: Treefold, tmp_path: Path) -> None:
    run = runs.listops()
    texts = [str(tree) for tree in run.data.forest[:300]]
    path = tmp_path / "trees.txt"
    path.write_text("# a comment\n" + "\n".join(texts) + "\n")
    found = treefold("predict", run.folder, path).lines
    assert [line["tree"] for line in found] == texts
    rows = probabilities(run.saved, run.data.forest).numpy()
    assert np.allclose([list(line["probabilities"].values()) for line in found], rows, atol=2e-6)
    assert [line["prediction"] for line in found] == [run.saved.classes[place] for place in rows.argmax(1)]
    assert list(found[0]) == ["tree", "prediction", "probabilities"]
    assert treefold("predict", run.folder, "-", stdin="\n".join(texts)).lines == found


def test_standard_input_is_json_lines_where_it_begins_with_a_brace(treefold: Treefold, tmp_path: Path) -> None:
    run, pair = runs.listops(), {"left": "(and a b)", "right": "(or a (not b))"}
    [found] = treefold("predict", run.folder, stdin='\n  {"tree": "(MAX 1 2)", "label": 2}\n').lines
    assert found["tree"] == "(MAX 1 2)"
    line = json.dumps({**pair, "label": "="})
    [found] = treefold("predict", runs.lrt().folder, stdin=line).lines
    assert {name: found[name] for name in pair} == pair and set(found["probabilities"]) == set(RELATIONS)
    (tmp_path / "pairs.jsonl").write_text(line)
    assert treefold("predict", runs.lrt().folder, tmp_path / "pairs.jsonl").lines == [found]


def test_other_formats_are_read_by_suffix_or_name(treefold: Treefold, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('tree\n"(MAX 1 2)"\n')
    (tmp_path / "t.data").write_text('tree\n"(MAX 1 2)"\n')
    run = runs.listops()
    expected = treefold("predict", run.folder, stdin="(MAX 1 2)").lines
    assert treefold("predict", run.folder, tmp_path / "t.csv").lines == expected
    assert treefold("predict", run.folder, tmp_path / "t.data", "--format", "csv").lines == expected
    assert "expected a suffix that suggests the format" in treefold("predict", run.folder, tmp_path / "t.data").said
    assert (
        "got 'cvs' (nearest known: 'csv')"
        in treefold("predict", run.folder, tmp_path / "t.csv", "--format", "cvs").said
    )
    assert "'sexpr' or 'jsonl' for standard input, got 'csv'" in treefold("predict", run.folder, "--format", "csv").said


def test_models_of_nodes_and_numbers_predict_lists_and_numbers(treefold: Treefold) -> None:
    [found] = treefold("predict", runs.nodes().folder, stdin="(MAX 1 (MIN 2 3))").lines
    assert len(found["prediction"]) == len(found["probability"]) == 5 and set(found["prediction"]) <= set("0123456789")
    [found] = treefold("predict", runs.numbers().folder, stdin="(MAX 1 2)").lines
    assert isinstance(found["prediction"], float) and list(found) == ["tree", "prediction"]
    assert found["prediction"] == pytest.approx(float(probabilities(runs.numbers().saved, Forest(["(MAX 1 2)"]))))
    pair = json.dumps({"left": "(and a b)", "right": "(or a b)"})
    [found] = treefold("predict", runs.similarities().folder, stdin=pair).lines
    assert 100 <= found["prediction"] <= 140 and list(found) == ["left", "right", "prediction"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("(MAX 1", "standard input, line 3, column 7: expected ')' to close"),
        (
            "(MAXX 1 2)",
            "line 3: expected one of the 14 labels that the model knows, got 'MAXX' (nearest known: 'MAX'); correct",
        ),
        ("(MAX 1 2 3 4 5 6 7)", "line 3: node 'MAX' has 7 children, but arity=5"),
        ("(3 1 2)", "line 3: node '3' has 2 children, but is no operator"),
        ("[1.5 2]", "line 3: "),
        (b"(MAX \xe9 2)", "line 3: expected UTF-8, got the byte 0xe9"),
    ],
)
def test_a_bad_line_ends_the_work_with_its_number_or_is_left_out(
    treefold: Treefold, bad: str | bytes, message: str
) -> None:
    line = bad if isinstance(bad, bytes) else bad.encode()
    text = b"(MAX 1 2)\n\n" + line + b"\n7\n"
    folder = runs.listops().folder
    stopped = treefold("predict", folder, "--unknown", "error", stdin=text)
    assert stopped.code == 2 and message in stopped.said
    assert [found["tree"] for found in stopped.lines] == ["(MAX 1 2)"]  # what came before is answered
    skipped = treefold("predict", folder, "--unknown", "error", "--skip-bad", stdin=text)
    assert skipped.code == 0 and [found["tree"] for found in skipped.lines] == ["(MAX 1 2)", "7"]
    assert f"left out: standard input, {message.removeprefix('standard input, ')}" in skipped.said
    assert "left out 1, answered 2" in skipped.said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: expected a JSON object, got"),
        ('{"Tree": "a"}', "line 1: expected 'tree', or 'left' and 'right', got 'Tree'"),
        ('{"tree": 5}', "line 1: 'tree': expected an s-expression as text, got a number"),
        ('{"left": "7", "right": "8"}', "line 1: expected one tree, as the model judges single trees, got a pair"),
    ],
)
def test_bad_json_lines_are_told(treefold: Treefold, line: str, message: str) -> None:
    done = treefold("predict", runs.listops().folder, stdin=line)
    assert done.code == 2 and message in done.said and done.stdout == ""


def test_one_tree_for_a_model_of_pairs_is_told(treefold: Treefold) -> None:
    for options in ([], ["--explain"]):
        done = treefold("predict", runs.lrt().folder, *options, stdin="(and a b)")
        assert done.code == 2 and "line 1: expected a pair, as the model judges pairs, got one tree" in done.said


def test_unknown_labels_count_as_unk_and_are_noted_or_are_errors(treefold: Treefold) -> None:
    folder = runs.listops().folder
    done = treefold("predict", folder, stdin="(MAX 1 (NEW (MIN 3)) 2)\n(MAX eleven NEW)\n(MAX 1 2)")
    assert done.code == 0 and len(done.lines) == 3
    said = " ".join(done.said.split())
    assert "note: the model does not know 2 labels (3 of 12 nodes); they count as <unk>" in said
    leaf = treefold("predict", folder, stdin="(MAX 1 NEW 2)").lines[0]["probabilities"]
    assert done.lines[0]["probabilities"] == leaf  # a node that is no operator has no children
    assert "note:" not in treefold("predict", folder, stdin="(MAX 1 2)").said
    done = treefold("predict", folder, "--unknown", "error", stdin="(MAX 1 2)\n(MAXX 1 2)")
    said = " ".join(done.said.split())
    assert done.code == 2 and len(done.lines) == 1
    assert "line 2: expected one of the 14 labels that the model knows, got 'MAXX' (nearest known: 'MAX')" in said
    assert "let it count as <unk> with --unknown unk" in said
    done = treefold("predict", folder, "--unknown", "absent", stdin="7")
    assert done.code == 2 and "one of 'unk', 'error', got 'absent', a word of older versions" in " ".join(
        done.said.split()
    )


def test_empty_input_has_no_answers(treefold: Treefold, tmp_path: Path) -> None:
    folder = runs.listops().folder
    done = treefold("predict", folder, stdin="\n\n")
    assert (done.code, done.stdout) == (0, "") and "no trees came in" in done.said
    (tmp_path / "empty.txt").touch()
    done = treefold("predict", folder, tmp_path / "empty.txt")
    assert done.code == 2 and "expected at least one tree, got an empty file" in done.said
    done = treefold("predict", folder, tmp_path / "absent.txt")
    assert done.code == 2 and "absent.txt: expected a file that can be read" in done.said


def test_answers_appear_as_lines_come_in() -> None:
    command = [sys.executable, "-m", "treefold", "predict", str(runs.listops().folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        for text in ("(MAX 1 2)", "(MIN 3 (MAX 4 5))"):
            process.stdin.write(text.encode() + b"\n")
            process.stdin.flush()
            assert select.select([process.stdout], [], [], LONG)[0], "no answer while standard input is open"
            assert json.loads(process.stdout.readline())["tree"] == text
        process.stdin.write(b"7")  # without an end of line
        process.stdin.close()
        assert json.loads(process.stdout.readline())["tree"] == "7"
        assert process.wait(LONG) == 0


@pytest.mark.parametrize(
    ("closed", "message"),
    [
        ("<&-", "standard input: expected trees, got closed input; name a file, or pipe trees into it"),
        (">&-", "expected a standard output for the answers, got a closed one; write to a file, or to /dev/null"),
    ],
)
def test_closed_input_and_output_are_errors(closed: str, message: str) -> None:
    command = shlex.join([sys.executable, "-m", "treefold", "predict", str(runs.listops().folder)])
    done = subprocess.run(
        f"{command} {closed}", shell=True, input="(MAX 1 2)", capture_output=True, text=True, timeout=LONG
    )
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.rstrip(".\n") == f"error: {message}"


def test_explanations_draw_beliefs_and_name_what_mattered(treefold: Treefold) -> None:
    text = "(MAX 4 (MIN 7 2))"
    shown = treefold("predict", runs.listops().folder, "--explain", "--top", 2, stdin=text).stdout
    assert shown.startswith("answer: ") and "└── MIN  " in shown and "without this subtree, the probability" in shown
    assert sum(line.startswith("  ") and line.strip()[0] in "+-" for line in shown.splitlines()) == 2
    [found] = treefold("predict", runs.listops().folder, "--explain", "--json", stdin=text).lines
    assert list(found) == ["tree", "prediction", "probability", "beliefs", "occlusion"]
    assert [belief["label"] for belief in found["beliefs"]] == ["4", "7", "2", "MIN", "MAX"]
    assert found["beliefs"][-1]["prediction"] == found["prediction"] and found["occlusion"]["tried"] == 4
    pair = json.dumps({"left": "(and a b)", "right": "(or a b)"})
    shown = treefold("predict", runs.lrt().folder, "--explain", stdin=pair).stdout
    assert "\nand  " in shown and "\nor  " in shown
    assert "the number falls by" in treefold("predict", runs.numbers().folder, "--explain", stdin=text).stdout
    shown = treefold("predict", runs.similarities().folder, "--explain", stdin=pair).stdout
    assert shown.startswith("answer: 1") and "\nand  1" in shown and "the number falls by" in shown


def test_embeddings_are_the_states_of_the_roots(treefold: Treefold, tmp_path: Path) -> None:
    run = runs.listops()
    path = tmp_path / "trees.txt"
    path.write_text("\n".join(str(tree) for tree in run.data.forest[:7]))
    done = treefold("embed", run.folder, path, "--out", tmp_path / "x.npy")
    assert done.code == 0 and "x.npy: 7 states of size 4" in done.stdout
    states = run.saved.model.encoder(run.data.forest.batch(slice(7))).roots.detach().numpy()
    assert np.allclose(np.load(tmp_path / "x.npy"), states, atol=1e-6)
    treefold("embed", run.folder, path, "--out", tmp_path / "x.csv")
    assert np.allclose(np.loadtxt(tmp_path / "x.csv", delimiter=","), states, atol=1e-6)
    assert "300 states" in treefold("embed", run.folder, run.data_folder, "--out", tmp_path / "all.npy").stdout
    assert "got one that exists" in treefold("embed", run.folder, path, "--out", tmp_path / "x.npy").said
    assert "ends in .npy or .csv, got 'x.txt'" in treefold("embed", run.folder, path, "--out", tmp_path / "x.txt").said
    path.write_text("(MAX 1 2)\n(MAXX 1)\n")
    done = treefold("embed", run.folder, path, "--unknown", "error", "--out", tmp_path / "y.npy")
    assert done.code == 2 and "trees.txt, line 2: expected one of the 14 labels" in done.said
    assert not (tmp_path / "y.npy").exists()
    done = treefold("embed", run.folder, path, "--out", tmp_path / "y.npy")
    assert len(np.load(tmp_path / "y.npy")) == 2 and "the model does not know 1 label (1 of 5 nodes)" in done.said


def test_numbers_of_pairs_are_learnt_from_a_file_and_predicted_in_its_units(treefold: Treefold, tmp_path: Path) -> None:
    rows = [
        {"left": f"(f {x} {y})", "right": f"(f {y} {z})", "label": str(10 * (x == y) + 20 * (y == z) + 100)}
        for x in "abcdefgh"
        for y in "abcdefgh"
        for z in "abcdefgh"
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, run = tmp_path / "data", tmp_path / "run"
    assert treefold("data", "convert", tmp_path / "pairs.jsonl", "--out", data).code == 0
    small = ["--task", "pair-regression", "--set", "state_size=3", "--set", "epochs=2"]
    done = treefold("train", data, "--out", run, *small, "--set", "levels=4")
    assert done.code == 0, done.stderr
    [measured] = treefold("evaluate", run, data, "--json").lines
    assert f"R² on the test set: {measured['r2']:.4f}" in done.stdout and measured["task"] == "pair-regression"
    assert -1 <= measured["pearson"] <= 1 and measured["mse"] == pytest.approx(measured["rmse"] ** 2)
    assert all(100 <= line["prediction"] <= 130 for line in treefold("predict", run, tmp_path / "pairs.jsonl").lines)
    assert json.loads((run / "vocabulary.json").read_text())["units"] == {"offset": [100.0], "scale": [10.0]}
    done = treefold("train", data, "--out", tmp_path / "other", *small, "--set", "levels=1")
    assert done.code == 2 and "model.levels: input should be greater than or equal to 2, got 1" in done.said


@pytest.mark.parametrize("run", [runs.listops, runs.lrt, runs.nodes, runs.numbers, runs.similarities, runs.full])
def test_describe_accounts_for_every_parameter(treefold: Treefold, run: Callable[[], runs.Run]) -> None:
    made = run()
    facts = treefold("describe", made.folder, "--json").lines[0]
    count = sum(parameter.numel() for parameter in made.saved.model.parameters())
    assert sum(part["parameters"] for part in facts["parts"]) == facts["parameters"] == count
    assert facts["training"]["epochs"] == 2 and facts["classes"] == list(made.saved.classes)
    shown = treefold("describe", made.folder).stdout
    assert f"{count:,}" in shown and "multiply-adds" in shown and "trained for 2 epochs" in shown
    assert max(len(line) for line in shown.splitlines()[1:]) <= 80


def test_compress_writes_a_whole_model_and_reports_its_errors(treefold: Treefold, tmp_path: Path) -> None:
    run = runs.full()
    small = tmp_path / "small"
    done = treefold("compress", run.folder, "--rank", 2, "--out", small, "--data", run.data_folder)
    assert done.code == 0, done.stderr
    assert "1,278 parameters before, 930 after" in done.stdout and "accuracy on test:" in done.stdout
    assert "and, input_gate" in done.stdout
    saved = load_model(small)
    assert (saved.settings.model.aggregator, saved.settings.model.rank) == ("tucker", 2)
    assert treefold("evaluate", small, run.data_folder).code == treefold("describe", small).code == 0
    facts = json.loads((small / "compression.json").read_text())
    assert facts["parameters"] == [1278, 930] and all(0 < error < 1 for error in facts["relative_errors"].values())
    assert "got one that exists" in treefold("compress", run.folder, "--rank", 2, "--out", small).said


def test_a_compressed_model_of_numbers_keeps_their_units(treefold: Treefold, tmp_path: Path) -> None:
    run = runs.similarities()
    assert treefold("compress", run.folder, "--aggregator", "full", "--out", tmp_path / "dense").code == 0
    found, expected = (probabilities(each, run.data.forest) for each in (load_model(tmp_path / "dense"), run.saved))
    assert np.allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("aggregator", "rank"), [("tucker", 4), ("canonical", 20), ("tensor-train", 30), ("full", None)]
)
def test_compression_at_full_rank_answers_alike(
    treefold: Treefold, tmp_path: Path, aggregator: str, rank: int | None
) -> None:
    run = runs.full()
    options = ["--rank", rank] if rank else []
    done = treefold("compress", run.folder, "--aggregator", aggregator, *options, "--out", tmp_path / "same")
    assert done.code == 0, done.stderr
    errors = json.loads((tmp_path / "same" / "compression.json").read_text())["relative_errors"]
    assert max(errors.values()) < 1e-2
    forest = run.data.forest
    assert np.allclose(
        probabilities(load_model(tmp_path / "same"), forest), probabilities(run.saved, forest), atol=1e-2
    )


def test_compression_into_blocks_loads_again_and_one_block_answers_alike(treefold: Treefold, tmp_path: Path) -> None:
    run = runs.full()
    for size in (4, 2):
        options = ("--aggregator", "blockwise", "--block-size", size, "--out", tmp_path / f"blocks-{size}")
        done = treefold("compress", run.folder, *options)
        assert done.code == 0, done.stderr
        assert load_model(tmp_path / f"blocks-{size}").settings.model.block_size == size
    found = probabilities(load_model(tmp_path / "blocks-4"), run.data.forest)
    assert np.allclose(found, probabilities(run.saved, run.data.forest), atol=1e-5)
    said = treefold("compress", run.folder, "--aggregator", "full", "--block-size", 2, "--out", tmp_path / "no").said
    assert "Full expects no options, got block_size=2" in said


def test_compression_of_bounded_forms_and_forms_of_operators_loads_again(treefold: Treefold, tmp_path: Path) -> None:
    own = {"and": {"aggregator": "canonical", "bound": "unit", "rank": 2}, "or": {"aggregator": "full", "arity": 2}}
    model = {"cell": "rnn", "aggregator": "complex", "bound": "disc", "rank": 2, "state_size": 3, "arity": 3}
    given = {"recipe": "paper", "model": {**model, "aggregators": own}, "training": {"epochs": 1, "threads": 1}}
    train(runs.full().data, tmp_path / "run", RunSettings.of(given))
    for form, rank in (("canonical", 2), ("sum+blockwise", None)):
        options = ["--rank", rank] if rank else []
        done = treefold("compress", tmp_path / "run", "--aggregator", form, *options, "--out", tmp_path / form)
        assert done.code == 0, done.stderr
        settings = load_model(tmp_path / form).settings.model
        assert settings.bound is None and {each.aggregator for each in settings.aggregators.values()} == {form}
        assert settings.aggregators["or"].arity == 2


def test_compression_into_means_is_a_model_that_loads_and_takes_any_number(treefold: Treefold, tmp_path: Path) -> None:
    done = treefold("compress", runs.full().folder, "--aggregator", "mean", "--out", tmp_path / "mean")
    assert done.code == 0, done.stderr
    saved = load_model(tmp_path / "mean")
    assert saved.settings.model.shared and not runs.full().saved.settings.model.shared
    wide = Forest(["(and a b a b a b a b)"])
    assert np.isfinite(np.asarray(probabilities(saved, wide))).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--aggregator", "tuker", "--rank", 2], "got 'tuker' (nearest known: 'tucker')"),
        (["--aggregator", "sum", "--rank", 2], "'sum' expects no rank, got --rank 2"),
        (["--aggregator", "max"], "Max has no dense tensor, because it is not multi-affine"),
        ([], "compress expects a rank for 'tucker', got none"),
        (["--rank", 2, "--data", "absent"], "absent: expected a data set"),
    ],
)
def test_bad_compressions_leave_nothing(
    treefold: Treefold, tmp_path: Path, options: list[object], message: str
) -> None:
    done = treefold("compress", runs.full().folder, "--out", tmp_path / "small", *options)
    assert done.code == 2 and message in done.said and list(tmp_path.iterdir()) == []


def test_tensors_too_large_to_write_out_are_refused(
    treefold: Treefold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treefold.analysis.description._MOST_ENTRIES", 99)
    done = treefold("compress", runs.full().folder, "--rank", 2, "--out", tmp_path / "small")
    assert (
        done.code == 2
        and "tensors of at most 99 entries, got 100 in input_gate of and (arity=2, state_size=4)" in done.said
    )


@pytest.mark.parametrize("command", ["evaluate", "predict", "embed", "describe", "compress"])
def test_damaged_and_missing_models_are_said_in_words(treefold: Treefold, tmp_path: Path, command: str) -> None:
    run = runs.full()
    model = tmp_path / "model"
    options: dict[str, list[object]] = {
        "evaluate": [run.data_folder],
        "embed": [run.data_folder, "--out", tmp_path / "x.npy"],
        "compress": ["--rank", 2, "--out", tmp_path / "small"],
    }
    more = options.get(command, [])
    done = treefold(command, model, *more, stdin="(and a b)")
    assert done.code == 2 and "expected the directory of a model or run, got no such directory" in done.said
    shutil.copytree(run.folder, model)
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    done = treefold(command, model, *more, stdin="(and a b)")
    assert done.code == 2 and "expected a whole safetensors file" in done.said
    (model / "model.safetensors").write_bytes(weights)
    (model / "vocabulary.json").write_text("{")
    done = treefold(command, model, *more, stdin="(and a b)")
    assert done.code == 2 and "vocabulary.json: expected a JSON file" in done.said


def test_labels_are_printed_as_they_are(treefold: Treefold, tmp_path: Path) -> None:
    forest = Forest(["(:smile: b)", "(:smile: c)"] * 4)
    run = runs.trained(tmp_path, forest, np.array([0, 1] * 4), (":heart:", "[red]"))
    shown = treefold("predict", run, "--explain", stdin="(:smile: c)").stdout
    assert ":smile:  " in shown and (":heart:" in shown or "[red]" in shown)


def test_damaged_metrics_are_said_in_words(treefold: Treefold, tmp_path: Path) -> None:
    shutil.copytree(runs.full().folder, tmp_path / "model")
    (tmp_path / "model" / "metrics.jsonl").write_text("{}\nx\n")
    done = treefold("describe", tmp_path / "model")
    assert done.code == 2 and "metrics.jsonl: expected a JSON object a line" in done.said


def test_classes_that_the_model_lacks_are_said_in_words(treefold: Treefold, tmp_path: Path) -> None:
    Dataset(Forest(["7"]), np.array([0]), ("seven",), {}).save(tmp_path / "data")
    done = treefold("evaluate", runs.listops().folder, tmp_path / "data")
    assert done.code == 2 and "expected the model's 10 classes, got 'seven'" in done.said
    run = runs.listops()
    done = treefold("evaluate", run.folder, run.data_folder, "--split", "tset")
    assert done.code == 2 and "got 'tset' (nearest known: 'test')" in done.said


QUICK = ["--set", "state_size=3", "--set", "epochs=1", "--set", "threads=1"]


def _programs(folder: Path) -> Path:
    for number in range(12):
        path = folder / ("odd" if number % 2 else "even") / f"{number:02}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {number}\ny = f('{'odd one' if number % 2 else 'even one'}', x)\n")
    return folder


def test_programs_are_read_as_in_training(treefold: Treefold, tmp_path: Path) -> None:
    code, data, run = _programs(tmp_path / "code"), tmp_path / "data", tmp_path / "run"
    options = ["--labels", "folder", "--literals", "keep", "--max-arity", 2, "--wide", "group"]
    assert treefold("data", "convert", code, "--format", "python", *options, "--out", data).code == 0
    assert treefold("train", data, "--out", run, *QUICK).code == 0
    forest = Dataset.open(data).forest
    files = sorted(code.rglob("*.py"))
    note = "reading as the training data: literals keep, max_arity 2, wide group"
    for tree, file in zip(forest, files, strict=True):
        done = treefold("predict", run, file)
        assert [line["tree"] for line in done.lines] == [str(tree)] and note in done.said
    assert "odd one" in str(forest[11]) and "(Constant 11)" in str(forest[11])  # not cut to their types
    assert treefold("embed", run, files[3], "--out", tmp_path / "x.npy").code == 0
    states = load_model(run).model.encoder(forest.batch(slice(3, 4))).roots.detach().numpy()
    assert np.allclose(np.load(tmp_path / "x.npy"), states, atol=1e-6)
    shutil.copy(files[3], tmp_path / "t.data")  # the name of the format leads to the same options
    done = treefold("predict", run, tmp_path / "t.data", "--format", "python")
    assert done.lines[0]["tree"] == str(forest[3]) and note in done.said
    done = treefold("predict", run, stdin="(Module a b c)")  # another format
    assert done.lines[0]["tree"] == "(Module a b c)" and "reading as" not in done.said
    environment = run / "environment.json"
    whole = environment.read_text()
    environment.unlink()  # as if saved by an estimator
    done = treefold("predict", run, files[3])
    assert "(Constant int)" in done.lines[0]["tree"] and "reading as" not in done.said
    changed = {**json.loads(whole), "made": {"task": "convert", "from": ["a.py"], "literals": "kep"}}
    for text in (whole[:40], "[]", "{}", '{"data": {}, "made": []}', json.dumps(changed)):
        environment.write_text(text)
        for command in (["predict", run, files[3]], ["embed", run, files[3], "--out", tmp_path / "y.npy"]):
            done = treefold(*command)
            assert done.code == 2 and "environment.json: expected" in done.said and "restore a copy" in done.said


def test_columns_and_formats_that_suffixes_do_not_tell_are_those_of_training(
    treefold: Treefold, tmp_path: Path
) -> None:
    rows = [{"x": f"(f a{n} b c)", "y": "no" if n % 2 else "yes"} for n in range(12)]
    table = tmp_path / "t.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, run = tmp_path / "data", tmp_path / "run"
    options = ["--tree-column", "x", "--label-column", "y", "--max-arity", 2, "--wide", "binarise"]
    assert treefold("data", "convert", table, *options, "--out", data).code == 0
    assert treefold("train", data, "--out", run, *QUICK).code == 0
    expected = [str(tree) for tree in Dataset.open(data).forest]
    new = "".join(json.dumps({"x": row["x"]}) + "\n" for row in rows)  # without labels
    (tmp_path / "new.jsonl").write_text(new)
    for done in (treefold("predict", run, tmp_path / "new.jsonl"), treefold("predict", run, stdin=new)):
        assert [line["tree"] for line in done.lines] == expected
        assert done.said.count("reading as the training data: tree_key x, max_arity 2, wide binarise") == 1

    sentences = tmp_path / "sst.txt"
    sentences.write_text("".join(f"({n % 2} (2 It) ({n % 2} w{n}))\n" for n in range(12)))
    data, run = tmp_path / "sst", tmp_path / "sst-run"
    assert treefold("data", "convert", sentences, "--format", "sst", "--out", data).code == 0
    assert treefold("train", data, "--out", run, *QUICK, "--set", "aggregator=full").code == 0
    assert treefold("compress", run, "--rank", 2, "--out", tmp_path / "small").code == 0
    for model in (run, tmp_path / "small"):
        done = treefold("predict", model, sentences)
        assert [line["tree"] for line in done.lines] == [str(tree) for tree in Dataset.open(data).forest]
        assert "reading as the training data: format sst" in done.said
    done = treefold("predict", run, sentences, "--format", "sexpr")
    assert done.lines[0]["tree"] == "(0 (2 It) (0 w0))" and "reading as" not in done.said


@pytest.mark.parametrize(
    ("split", "suggestion"), [("0.6,0.2,0.2", ""), ("0.7,0.3,0", " --split validation"), ("1,0,0", None)]
)
def test_train_suggests_to_evaluate_a_split_that_was_not_trained_on(
    treefold: Treefold, tmp_path: Path, split: str, suggestion: str | None
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    (tmp_path / "t.csv").write_text("tree,label\n" + "".join(f"(f a{n}),{'xy'[n % 2]}\n" for n in range(20)))
    assert treefold("data", "convert", tmp_path / "t.csv", "--split", split, "--out", data).code == 0
    last = treefold("train", data, "--out", run, *QUICK).stdout.splitlines()[-1]
    expected = "" if suggestion is None else f"; treefold evaluate {run} {data}{suggestion}"
    assert last == f"look at it: treefold describe {run}{expected}"
