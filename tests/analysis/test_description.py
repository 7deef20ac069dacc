import json
from pathlib import Path

from treefold.analysis.description import _training


def test_the_best_epoch_is_that_of_training_the_lower_loss_among_equal_scores(tmp_path: Path) -> None:
    epochs = [(0.5, 1.0), (1.0, 0.4), (1.0, 0.2), (0.9, 0.1)]
    lines = [{"seconds": 1.0, "validation_score": score, "validation_loss": loss} for score, loss in epochs]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = _training(tmp_path)
    assert found is not None and (found["best_epoch"], found["best_validation_score"]) == (3, 1.0)
