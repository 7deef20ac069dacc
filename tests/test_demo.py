from pathlib import Path

import pytest
from experiments.paper.counts import counted_parameters

from treefold.demo import MODELS, PARAMETERS, main


def test_the_three_models_have_the_same_number_of_parameters_in_an_aggregation() -> None:
    counts = {
        name: counted_parameters(str(model.aggregator), state_size=model.state_size, arity=5, rank=model.rank)
        for name, model in MODELS.items()
    }
    assert PARAMETERS == counts == {"Sum-LSTM": 3125, "Full-LSTM": 3072, "Hosvd-LSTM": 3222}


def test_the_demo_shows_progress_and_writes_a_page_that_needs_nothing_from_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--trees", "150", "--epochs", "2", "--out", str(tmp_path / "demo")])
    shown = capsys.readouterr().out
    assert all(shown.count(f"{name:<10}  epoch") == 2 for name in MODELS)
    assert "3,222" in shown and "├── " in shown
    page = (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    assert "Hosvd-LSTM" in page and "<pre>" in page
    assert not any(outside in page for outside in ('src="http', 'href="http', "@import", "<script src"))
    main(["--trees", "150", "--epochs", "2", "--out", str(tmp_path / "demo")])
    again = capsys.readouterr().out
    accuracies = [[word for word in text.split() if word.endswith("%")] for text in (shown, again)]
    assert accuracies[0] == accuracies[1]


def test_settings_that_cannot_be_end_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--trees", "0"])
    assert caught.value.code == 2
    assert "the demo expects trees to be an integer >= 1, got 0" in capsys.readouterr().err
