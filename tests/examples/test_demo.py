from pathlib import Path

import pytest
from examples.demo import BEYOND, DATA, DEMO, FIGURE, MODELS, PAGE, PARAMETERS, TITLE, main, settings_of
from experiments.paper.counts import counted_parameters

from treefold.analysis.evaluation import evaluate
from treefold.data.dataset import Dataset
from treefold.errors import FileError
from treefold.files import require_replaceable
from treefold.nn.cells import PerLabel
from treefold.training.build import build_model, facts_of, resolve
from treefold.training.saving import load_model
from treefold.trees.forest import Forest


def test_the_three_models_have_the_same_number_of_parameters_in_an_aggregation() -> None:
    counts = {
        name: counted_parameters(str(model.aggregator), state_size=model.state_size, arity=5, rank=model.rank)
        for name, model in MODELS.items()
    }
    assert counts == {"Sum-LSTM": 3125, "Full-LSTM": 3072, "Hosvd-LSTM": 3222}
    assert {**counts, BEYOND: 2996} == PARAMETERS
    settings, labels = resolve(settings_of(BEYOND, 1, 0).model, facts_of(Forest(["(SM 1 (MIN 2 3 4 5 6))"])))
    cell = build_model(settings, labels, "tree", 10).encoder.cell("up")
    assert isinstance(cell, PerLabel)
    assert sum(parameter.numel() for parameter in cell.cell_of(0).parameters()) == PARAMETERS[BEYOND]


def test_the_demo_shows_progress_and_writes_a_page_that_needs_nothing_from_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--trees", "150", "--epochs", "2", "--out", str(tmp_path / "demo")])
    shown = capsys.readouterr().out
    assert all(shown.count(f"{name:<11}  epoch") == 2 for name in MODELS)
    assert shown.count(f"{BEYOND:<11}  epoch") == 4
    assert "3,222" in shown and "├── " in shown
    page = (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    assert "Hosvd-LSTM" in page and "<pre>" in page
    assert not any(outside in page for outside in ('src="http', 'href="http', "@import", "<script src"))
    assert {str(path.relative_to(tmp_path / "demo")) for path in (tmp_path / "demo").rglob("*.*")} == DEMO.own
    data = Dataset.open(tmp_path / "demo" / DATA)
    assert f"treefold serve {tmp_path / 'demo' / BEYOND} " in shown
    tested = {line.split()[0]: line.split()[3] for line in shown.splitlines() if line.rstrip().endswith(" s")}
    for name in PARAMETERS:  # the explorer shows the models that were trained
        found = evaluate(load_model(tmp_path / "demo" / name), data).score
        assert f"{found:.1%}" == tested[name]
    main(["--trees", "150", "--epochs", "2", "--out", str(tmp_path / "demo")])
    again = capsys.readouterr().out
    accuracies = [[word for word in text.split() if word.endswith("%")] for text in (shown, again)]
    assert accuracies[0] == accuracies[1]


def test_settings_that_cannot_be_end_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--trees", "0"])
    assert caught.value.code == 2
    assert "the demo expects trees to be an integer >= 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("foreign", ["thesis.txt", PAGE, FIGURE])
def test_a_folder_with_other_files_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str], foreign: str) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / foreign).write_text("three years of work", encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        main(["--trees", "150", "--epochs", "1", "--out", str(out)])
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert str(out) in message and "choose another" in message and "Traceback" not in message
    assert [path.name for path in out.iterdir()] == [foreign]
    assert (out / foreign).read_text(encoding="utf-8") == "three years of work"


def test_a_file_that_was_added_to_the_demos_folder_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / PAGE).write_text(f"<title>{TITLE}</title>", encoding="utf-8")
    require_replaceable(tmp_path, DEMO)
    (tmp_path / BEYOND).mkdir()
    (tmp_path / BEYOND / "config.toml").touch()
    require_replaceable(tmp_path, DEMO)
    for name in ("notes.txt", f"{BEYOND}/notes.txt"):
        (tmp_path / name).touch()
        with pytest.raises(FileError, match=rf"got a folder with '{name}', which treefold did not write"):
            require_replaceable(tmp_path, DEMO)
        (tmp_path / name).unlink()


def test_a_new_or_empty_folder_is_accepted_and_a_file_is_not(tmp_path: Path) -> None:
    require_replaceable(tmp_path / "new", DEMO)
    require_replaceable(tmp_path, DEMO)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="expected a directory to replace, got a file"):
        require_replaceable(tmp_path / "file", DEMO)
