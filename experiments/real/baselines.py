"""Simple models beside which a network must stand: `python -m experiments.real.baselines NAME … --data DIR --out FILE`.

Bags count labels, or labels with parent–child pairs and pairs of neighbouring siblings. All choices (scaling, strength of the
regularisation, rounds of boosting) are made on the validation split; the model is trained on the train split alone.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, hstack  # type: ignore[import-untyped]
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.feature_extraction.text import TfidfTransformer  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression, Ridge  # type: ignore[import-untyped]
from sklearn.preprocessing import MaxAbsScaler  # type: ignore[import-untyped]

from experiments.real.data import SOURCE, dataset
from treefold.data.dataset import Dataset
from treefold.files import atomic_file
from treefold.training.task import pearson
from treefold.trees.batch import Ints
from treefold.trees.forest import Forest

# Axes:  n examples · N nodes · F features
Line = dict[str, Any]
MODELS: Final = ("majority", "labels", "labels and pairs", "boosting")
STRENGTHS: Final = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
_FREQUENT: Final = 300
_FEWEST: Final = (1, 20)  # trees of a class that boosting learns: it can diverge if classes are smaller than a leaf, 20
_SCALERS: Final[dict[str, Callable[[], Any]]] = {
    "counts": MaxAbsScaler,
    "tf-idf": lambda: TfidfTransformer(sublinear_tf=True),
}


def label_codes(forest: Forest) -> list[Ints]:
    """Return a code for the label of each node, (N,)."""
    return [forest.labels.astype(np.int64)]


def pair_codes(forest: Forest) -> list[Ints]:
    """Return codes for each node's label, its pair with the parent's, and its pair with the previous sibling's, each (N,).

    A root has no parent, and a first child no sibling: their pairs have a code of their own.
    """
    labels, base = forest.labels.astype(np.int64), len(forest.vocabulary) + 1
    rows = forest.parent_rows
    parents = np.where(rows < 0, base - 1, labels[rows])
    previous = np.full(len(labels), base - 1)
    order = np.lexsort((forest.slots, rows))  # siblings one after the other
    follows = (rows[order][1:] == rows[order][:-1]) & (rows[order][1:] >= 0)
    previous[order[1:][follows]] = labels[order[:-1][follows]]
    return [labels, base + parents * base + labels, base + base**2 + previous * base + labels]


def bags(data: Dataset, codes: Callable[[Forest], list[Ints]]) -> Any:
    """Count the codes of each tree that occur in at least two trees to train on: a sparse matrix (n, F).

    Of pairs, the columns are the left tree's, the right one's, their absolute difference and their product.
    """
    forest, kinds = data.forest, codes(data.forest)
    trees = np.tile(np.repeat(np.arange(len(forest)), forest.sizes), len(kinds))
    found, columns = np.unique(np.concatenate(kinds), return_inverse=True)
    counts = csr_matrix((np.ones(len(trees)), (trees, columns.reshape(-1))), shape=(len(forest), len(found)))
    seen = np.asarray((counts[data.trees_of(data.splits["train"])] > 0).sum(0)).ravel()
    counts = counts[:, seen >= 2]
    if not data.pairs:
        return counts
    left, right = counts[::2], counts[1::2]
    return hstack([left, right, abs(left - right), left.multiply(right)], format="csr")


def measure(
    name: str, data: Dataset, models: Sequence[str] = MODELS, strengths: Sequence[float] = STRENGTHS
) -> Iterator[Line]:
    """Train baselines; yield a line with the scores of each."""
    numbers = data.task == "regression"
    targets = data.numbers() if numbers else data.targets
    parts = {part: np.asarray(rows)[data.targets[rows] >= 0] for part, rows in data.splits.items()}
    for model in models:
        start = time.perf_counter()
        choice, predictions = _fitted(model, data, targets, parts, numbers, strengths)
        scores: Line = {}
        for part in ("validation", "test"):
            scores[part] = scores_of(targets[parts[part]], predictions[part])
        yield {
            "data": name,
            "model": model,
            **scores,
            "choice": choice,
            "seconds": round(time.perf_counter() - start, 1),
        }


def scores_of(truth: npt.NDArray[Any], predictions: npt.NDArray[Any]) -> dict[str, float]:
    """Return the scores of predictions, as `rounded` does.

    >>> scores_of(np.array([0, 1, 1, 1]), np.array([0, 1, 1, 0]))
    {'accuracy': 0.75, 'error': 0.2165}
    """
    if truth.dtype.kind == "f":
        mse = float(np.square(truth - predictions).mean())
        return rounded({"pearson": pearson(truth, predictions), "mse": mse}, len(truth))
    return rounded({"accuracy": float((truth == predictions).mean())}, len(truth))


def rounded(scores: Mapping[str, float], count: int) -> dict[str, float]:
    """Return, of the scores of so many predictions, accuracy and its standard error; of numbers, Pearson's r and MSE.

    >>> rounded({"r2": 0.71, "pearson": 0.85321, "mse": 0.26}, 100)
    {'pearson': 0.8532, 'mse': 0.26}
    """
    if "pearson" in scores:
        return {name: round(scores[name], 4) for name in ("pearson", "mse")}
    share = scores["accuracy"]
    return {"accuracy": round(share, 4), "error": round((share * (1 - share) / count) ** 0.5, 4)}


def _fitted(
    model: str,
    data: Dataset,
    targets: npt.NDArray[Any],
    parts: dict[str, Ints],
    numbers: bool,
    strengths: Sequence[float],
) -> tuple[str, dict[str, npt.NDArray[Any]]]:
    """Train one model; return what was chosen and the predictions for each split."""
    seen = targets[parts["train"]]
    if model == "majority":
        usual = seen.mean() if numbers else np.bincount(seen).argmax()
        return "", {part: np.full(len(rows), usual) for part, rows in parts.items()}
    features = bags(data, label_codes if model == "labels" else pair_codes)
    inputs = {part: features[rows] for part, rows in parts.items()}
    if model == "boosting":
        often = np.argsort(-np.asarray((inputs["train"] > 0).sum(0)).ravel(), kind="stable")[:_FREQUENT]
        dense = {part: each[:, often].toarray() for part, each in inputs.items()}
        return _boosted(dense, parts, targets, numbers)
    best: tuple[float, str, dict[str, npt.NDArray[Any]]] = (-np.inf, "", {})
    for name, make in _SCALERS.items():
        scaler = make().fit(inputs["train"])
        scaled = {part: scaler.transform(each) for part, each in inputs.items()}
        linear = Ridge() if numbers else LogisticRegression(max_iter=300, warm_start=True)
        for strength in strengths:  # from strong to weak regularisation, each from the weights of the one before
            linear.set_params(**({"alpha": 1 / strength} if numbers else {"C": strength}))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # weakly regularised: stopping early does no harm
                linear.fit(scaled["train"], seen)
            predictions = {part: linear.predict(each) for part, each in scaled.items()}
            score = _goodness(targets[parts["validation"]], predictions["validation"])
            if score > best[0]:
                best = (score, f"{name}, C={strength:g}", predictions)
    return best[1], best[2]


def _boosted(
    inputs: dict[str, npt.NDArray[Any]], parts: dict[str, Ints], targets: npt.NDArray[Any], numbers: bool
) -> tuple[str, dict[str, npt.NDArray[Any]]]:
    """Train boosting; return the number of rounds, chosen on validation, and the predictions after these."""
    seen, truth = targets[parts["train"]], targets[parts["validation"]]
    kind = HistGradientBoostingRegressor if numbers else HistGradientBoostingClassifier
    sizes = np.full(len(seen), len(seen)) if numbers else np.bincount(seen)[seen]
    best: tuple[float, str, dict[str, npt.NDArray[Any]]] = (-np.inf, "", {})
    for fewest in _FEWEST:
        kept = sizes >= fewest
        if best[1] and (kept.all() or not kept.any()):  # nothing would change, or nothing is left
            break
        trees = kind(early_stopping=False, random_state=0).fit(inputs["train"][kept], seen[kept])
        scores = [_goodness(truth, found) for found in trees.staged_predict(inputs["validation"])]
        rounds = int(np.argmax(scores))
        if scores[rounds] > best[0]:
            found = {part: next(islice(trees.staged_predict(each), rounds, None)) for part, each in inputs.items()}
            best = (scores[rounds], f"{rounds + 1} rounds, classes of {fewest} or more", found)
    return best[1], best[2]


def _goodness(truth: npt.NDArray[Any], predictions: npt.NDArray[Any]) -> float:
    scores = scores_of(truth, predictions)
    return scores.get("accuracy", -scores.get("mse", 0.0))


def write_line(path: Path, line: Line, key: Sequence[str]) -> None:
    """Add a line to a file of JSON lines, in place of one with the same values of ``key``; atomic."""
    kept = [old for old in read_lines(path) if [old.get(k) for k in key] != [line[k] for k in key]]
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write("".join(json.dumps(each) + "\n" for each in [*kept, line]).encode())


def read_lines(path: Path) -> list[Line]:
    """Read a file of JSON lines; none if it does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def table(lines: Sequence[Line]) -> str:
    """Return test scores as a Markdown table, a row for each data set: accuracy in % ± its standard error, or Pearson's r."""
    rows = [f"| data | {' | '.join(MODELS)} |", "|---" * (len(MODELS) + 1) + "|"]
    found = {(line["data"], line["model"]): score_text(line["test"]) for line in lines}
    for name in dict.fromkeys(line["data"] for line in lines):
        rows.append(f"| {name} | {' | '.join(found.get((name, model), '') for model in MODELS)} |")
    return "\n".join(rows) + "\n"


def score_text(scores: dict[str, float]) -> str:
    """Write scores briefly.

    >>> score_text({"accuracy": 0.9312, "error": 0.0061})
    '93.1 ± 0.6'
    """
    if "pearson" in scores:
        return f"{scores['pearson']:.3f} (MSE {scores['mse']:.3f})"
    return f"{100 * scores['accuracy']:.1f} ± {100 * scores['error']:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure baselines that are not in the file yet; print the table of all that are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets")
    parser.add_argument("--data", type=Path, default=Path("data/real"), help="where the data sets are")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the folder of downloaded files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "baselines.jsonl")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--strengths", type=float, nargs="+", default=STRENGTHS, help="values of C to choose from")
    options = parser.parse_args(arguments)
    for name in options.names:
        done = {line["model"] for line in read_lines(options.out) if line["data"] == name}
        models = [model for model in options.models if model not in done]
        if models:
            for line in measure(name, dataset(name, options.data, options.source), models, options.strengths):
                write_line(options.out, line, ("data", "model"))
                sys.stderr.write(json.dumps(line) + "\n")
    sys.stdout.write(table(read_lines(options.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
