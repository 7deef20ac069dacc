"""The linear part of a model: its fit, and its share in the answer. Both are judged by examples that the fit has not seen."""

from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treefold.errors import TrainingError
from treefold.nn.wide import (
    KINDS,
    Entries,
    Wide,
    feature_counts,
    feature_values,
    in_chunks,
    label_hashes,
    occurrences,
    weighted_sums,
)
from treefold.training.examples import Examples
from treefold.training.task import Task, task_of
from treefold.trees.batch import Ints

# Axes:  n examples · F features · G groups of equal features · K classes or outputs
SETS: Final[tuple[tuple[str, ...], ...]] = (("label",), KINDS)
"""The sets of features that are tried."""
STRENGTHS: Final = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
"""The weights of the loss that are tried, C in scikit-learn: the greater, the weaker the regularisation."""
MOST_WEIGHTS: Final = 5_000_000
"""The most weights, F·K. The optimiser needs 200 bytes for each."""
_FEW: Final = 100  # validation examples that are too few to choose by
_FOLDS: Final = 5
_MANY: Final = 5_000  # examples of which one fold is enough to choose by
_VERY_MANY: Final = 100  # features for each example, above which equal ones are joined
_LEAST: Final = 2  # examples in which a pair of labels must occur
_STEPS: Final = 200  # of the optimiser, for each strength
_WINDOW, _PROGRESS = 10, 1e-3  # the optimiser stops if so many steps bring a smaller relative improvement than that
_SHARES, _TOTALS = (0.0, 0.25, 0.5, 0.75, 1.0), (0.5, 0.75, 1.0, 1.5, 2.0)  # of the linear part; of both parts together
_TOLERANCE: Final = 0.5  # standard errors that count as no difference
_BIAS_PENALTY: Final = 0.01  # keeps the bias of a class without examples finite


@final
@dataclass(frozen=True)
class WideFit:
    """A linear part, and how it was chosen.

    ``module`` is fitted to the train and the validation examples. ``outputs`` (n, K) are for the validation examples that have a
    target, by a fit to the train examples alone. ``loss`` and ``score`` of the chosen ``kinds`` and ``strength`` are those of
    examples outside the fit, and ``losses`` has the loss of every choice that was tried.
    """

    module: Wide
    kinds: tuple[str, ...]
    strength: float
    loss: float
    score: float
    outputs: Tensor
    losses: dict[tuple[tuple[str, ...], float], float]


def fit_wide(examples: Examples, train: Ints, validation: Ints, outputs: int, *, seed: int = 0) -> WideFit:
    """Fit the linear part of a model with some ``outputs`` by the task's loss: multinomial logistic regression, or ridge.

    The set of features and the strength are those with the least loss on the validation examples. If there are fewer than 100,
    part of the train examples is held out instead, in five folds if they are few. Unknown targets take no part.

    >>> from treefold import Forest
    >>> examples = Examples(Forest(["(f a b)", "(f b a)"] * 100), np.arange(200) % 2, "tree")
    >>> fitted = fit_wide(examples, np.arange(100), np.arange(100, 200), outputs=2)
    >>> fitted.kinds, fitted.score
    (('label', 'child', 'sibling'), 1.0)
    """
    train, validation = examples.known(train), examples.known(validation)
    if not len(train):
        raise TrainingError("the linear part expects training examples with a target, got none; label some.")
    splits = [(train, validation)] if len(validation) >= _FEW else _folds(train, seed)
    judged = [numbers for _, numbers in splits]
    losses: dict[tuple[tuple[str, ...], float], float] = {}
    chosen: tuple[tuple[str, ...], float, list[Tensor], Wide] | None = None
    for kinds in SETS:
        fits = [_Fit(examples, numbers, kinds, outputs) for numbers, _ in splits]
        matrices = [fit.matrix(numbers) for fit, numbers in zip(fits, judged, strict=True)]
        before = np.inf
        for strength in STRENGTHS:
            for fit in fits:
                fit.improve(strength)
            answers = [fit.outputs(matrix) for fit, matrix in zip(fits, matrices, strict=True)]
            loss = float(examples.loss(torch.cat(answers), np.concatenate(judged)))
            if chosen is None or loss < min(losses.values()):
                chosen = kinds, strength, answers, fits[0].module()
            losses[kinds, strength] = loss
            if not loss < before:
                break
            before = loss
    assert chosen is not None
    kinds, strength, answers, module = chosen
    score = examples.task.score(torch.cat(answers), examples.target(np.concatenate(judged)))
    if len(validation) < _FEW:
        module = _refit(examples, train, module, strength)
        answers = [module.scores(examples.forest, examples.trees_of(validation))]
    if len(validation):
        module = _refit(examples, np.concatenate([train, validation]), module, strength)
    return WideFit(module, kinds, strength, losses[kinds, strength], score, answers[0], losses)


def _folds(numbers: Ints, seed: int) -> list[tuple[Ints, Ints]]:
    """Split examples into those to fit and those to judge by, in several ways if they are few."""
    if len(numbers) == 1:
        return [(numbers, numbers)]
    folds = np.array_split(np.random.default_rng(seed).permutation(numbers), min(_FOLDS, len(numbers)))
    return [(np.setdiff1d(numbers, fold), fold) for fold in folds][: 1 if len(numbers) > _MANY else None]


def _refit(examples: Examples, numbers: Ints, start: Wide, strength: float) -> Wide:
    """Fit again to other examples, from the weights of a previous fit."""
    fit = _Fit(examples, numbers, start.kinds, len(start.bias))
    fit.start_from(start)
    fit.improve(strength)
    return fit.module()


@final
class _Matrix:
    """The values of features as a sparse matrix (n, F), and its products with dense ones."""

    def __init__(self, entries: Entries, rows: int) -> None:
        self._columns, self._values = torch.from_numpy(entries.columns), torch.from_numpy(entries.values)
        self._starts = torch.from_numpy(np.searchsorted(entries.rows, np.arange(rows)))

    def __matmul__(self, dense: Tensor) -> Tensor:
        return weighted_sums(dense, self._columns, self._starts, self._values)


@final
class _Fit:
    """The features of some examples, and weights that are fitted to their targets: ``table`` (G+1, K), the bias last.

    If there are very many features, those with the same values in all examples are one column of the fit, G in all. Of m such
    features each has the weight :math:`v/\\sqrt{m}`, where v is the weight of :math:`\\sqrt{m}` times their values: the outputs
    and the penalty are the same.
    """

    def __init__(self, examples: Examples, numbers: Ints, kinds: tuple[str, ...], outputs: int) -> None:
        self.examples, self.numbers, self.kinds = examples, numbers, kinds
        self.hashes = label_hashes(examples.forest.vocabulary)
        self.keys, counts = self._chosen_features(MOST_WEIGHTS // outputs)
        self.scale = _scale(counts, len(numbers), len(self.keys))
        entries = feature_values(counts, self.scale)
        self._groups = np.arange(len(self.keys))
        if len(self.keys) > _VERY_MANY * len(numbers):
            entries, self._groups = _joined_columns(entries, len(self.keys))
        sizes = np.bincount(self._groups)
        self._roots = np.sqrt(sizes)[self._groups, None]
        turned = _turned(entries)
        self._by_feature = _Matrix(turned, len(sizes))
        self._by_example = _Matrix(entries, len(numbers))
        self.table = np.zeros((len(sizes) + 1, outputs))

    def _chosen_features(self, most: int) -> tuple[Ints, Entries]:
        """Return the keys of the features that count, and how often they occur in each example; the most widespread stay."""
        examples, sides = self.examples, self.examples.task.trees
        trees = examples.trees_of(self.numbers)
        keys, least = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for kind in self.kinds:
            chunks = in_chunks(examples.forest, trees, sides)
            found = [self._keys(chunk, kind) for _, chunk in chunks]
            keys.append(np.unique(np.concatenate(found)))
            least.append(np.full(len(keys[-1]), 1 if kind == "label" else _LEAST))
        every = np.concatenate(keys)
        order = np.argsort(every)
        counts = self._counts(self.numbers, every[order])
        spread = np.bincount(counts.columns, minlength=len(every))
        kept = np.flatnonzero(spread >= np.concatenate(least)[order])
        kept = np.sort(kept[np.argsort(-spread[kept], kind="stable")[:most]])
        places = np.full(len(every), -1)
        places[kept] = np.arange(len(kept))
        stays = places[counts.columns] >= 0
        entries = Entries(counts.rows[stays], places[counts.columns[stays]], counts.values[stays])
        return every[order][kept], entries

    def _keys(self, trees: Ints, kind: str) -> Ints:
        sides = self.examples.task.trees
        return np.unique(occurrences(self.examples.forest, trees, [kind], sides=sides, hashes=self.hashes).keys)

    def _counts(self, numbers: Ints, keys: Ints) -> Entries:
        forest, task = self.examples.forest, self.examples.task
        return feature_counts(forest, task.trees_of(numbers), keys, self.kinds, sides=task.trees, hashes=self.hashes)

    def matrix(self, numbers: Ints) -> _Matrix:
        """Return the features of other examples."""
        return _Matrix(feature_values(self._counts(numbers, self.keys), self.scale), len(numbers))

    def outputs(self, matrix: _Matrix) -> Tensor:
        """Return the outputs for examples with these features, (n, K)."""
        return _outputs(matrix, np.concatenate([self._weights(), self.table[-1:]]))

    def _weights(self) -> npt.NDArray[np.float64]:
        """Return the weight of each feature, (F, K)."""
        return np.asarray(self.table[self._groups] / self._roots)

    def start_from(self, wide: Wide) -> None:
        """Take over the weights of the features that a previous fit has, too."""
        _, own, others = np.intersect1d(self.keys, wide.keys.numpy(), assume_unique=True, return_indices=True)
        np.add.at(self.table, self._groups[own], wide.weights.numpy()[others] / self._roots[own])
        self.table[-1] = wide.bias.numpy()

    def improve(self, strength: float) -> None:
        """Minimise the sum of the losses and the penalty, from the current weights, until it hardly falls any more."""
        from scipy.optimize import minimize  # type: ignore[import-untyped]

        shape = self.table.shape
        penalty = np.full((shape[0], 1), 1 / strength)
        penalty[-1] = _BIAS_PENALTY
        best, value, values = (np.inf, self.table), np.inf, list[float]()

        def objective(flat: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
            nonlocal best, value
            table = flat.reshape(shape)
            outputs = _outputs(self._by_example, table).requires_grad_()
            loss = self.examples.loss(outputs, self.numbers) * len(self.numbers)
            (slope,) = torch.autograd.grad(loss, outputs)
            gradient = torch.cat([self._by_feature @ slope, slope.sum(0, keepdim=True)]).double().numpy()
            value = loss.item() + 0.5 * float((penalty * np.square(table)).sum())
            if value < best[0]:
                best = value, table.copy()
            return value, (gradient + penalty * table).reshape(-1)

        def end_of_step(_: object) -> None:
            values.append(value)
            if len(values) > _WINDOW and values[-1 - _WINDOW] - value < _PROGRESS * value:
                raise StopIteration

        options = {"maxiter": _STEPS, "ftol": 0.0, "gtol": 0.0}
        with torch.enable_grad(), suppress(StopIteration):  # which older versions of SciPy do not catch
            minimize(
                objective, self.table.reshape(-1), jac=True, method="L-BFGS-B", callback=end_of_step, options=options
            )
        self.table = best[1]

    def module(self) -> Wide:
        """Return the linear part with the current weights."""
        wide = Wide(len(self.keys), self.table.shape[1], self.kinds, sides=self.examples.task.trees)
        wide.keys.copy_(torch.from_numpy(self.keys))
        wide.scale.copy_(torch.from_numpy(self.scale))
        wide.weights.copy_(torch.from_numpy(self._weights()))
        wide.bias.copy_(torch.from_numpy(self.table[-1]))
        return wide


def _turned(entries: Entries) -> Entries:
    order = np.argsort(entries.columns, kind="stable")
    return Entries(entries.columns[order], entries.rows[order], entries.values[order])


def _joined_columns(entries: Entries, features: int) -> tuple[Entries, Ints]:
    """Join m equal columns into one, times the root of m; also return the new column of each old one, (F,).

    >>> entries = Entries(np.array([0, 0, 0, 0, 1]), np.arange(5), np.array([3, 3, 3, 3, 3], np.float32))
    >>> joined, groups = _joined_columns(entries, 5)
    >>> joined.rows.tolist(), joined.columns.tolist(), joined.values.tolist(), groups.tolist()
    ([0, 1], [0, 1], [6.0, 3.0], [0, 0, 0, 0, 1])
    """
    turned = _turned(entries)
    content = (turned.columns << 32 | turned.values.view(np.uint32)).astype(np.int64).tobytes()
    bounds = 8 * np.searchsorted(turned.rows, np.arange(features + 1))
    numbers: dict[bytes, int] = {}
    columns = (content[start:stop] for start, stop in pairwise(bounds.tolist()))
    groups = np.fromiter((numbers.setdefault(column, len(numbers)) for column in columns), np.int64, features)
    _, first, sizes = np.unique(groups, return_index=True, return_counts=True)
    stays = np.isin(entries.columns, first)
    new = groups[entries.columns[stays]]
    values = (entries.values[stays] * np.sqrt(sizes)[new]).astype(np.float32)
    return Entries(entries.rows[stays], new, values), groups


def _outputs(matrix: _Matrix, table: npt.NDArray[np.float64]) -> Tensor:
    weights = torch.from_numpy(table.astype(np.float32))
    return matrix @ weights[:-1] + weights[-1]


def _scale(counts: Entries, examples: int, features: int) -> npt.NDArray[np.float32]:
    """Return the inverse document frequencies, (F,): features of few examples tell more.

    >>> _scale(Entries(np.array([0, 1, 1]), np.array([0, 0, 1]), np.ones(3, np.float32)), examples=2, features=2).round(2)
    array([1.  , 1.41], dtype=float32)
    """
    spread = np.bincount(counts.columns, minlength=features)
    return (np.log((1 + examples) / (1 + spread)) + 1).astype(np.float32)


def choose_mix(
    network: Tensor, wide: Tensor, targets: Tensor, task: Task | str
) -> tuple[float, float, dict[tuple[float, float], float]]:
    """Choose the weights a, b of the answer ``a * network + b * wide``: return both, and the loss of each pair that was tried.

    All are outputs or targets of examples that neither part has been fitted to, (n, K). Of the pairs whose loss is within half
    a standard error of the least, the one with the greatest share of the linear part is taken: few examples cannot tell the
    pairs apart, and of few examples the linear part learns more. Without examples, both have equal shares.

    >>> right, targets = torch.eye(2)[[0, 1] * 50] * 6, torch.tensor([0, 1] * 50)
    >>> choose_mix(-3 * right, right, targets, "tree")[:2]  # the linear part is right, and could be surer
    (0.0, 2.0)
    """
    judge, losses = task_of(task), {}
    for total, share in product(_TOTALS, _SHARES):
        parts = [weight * each.detach().double() for weight, each in ((1 - share, network), (share, wide)) if weight]
        # A part of weight zero is left out, so that a network that diverged does no harm.
        each = judge.losses(total * sum(parts, torch.zeros(())), targets).numpy()
        if np.isfinite(each).all():
            losses[total * (1 - share), total * share] = each
    if not losses:
        raise TrainingError("choose_mix expects finite outputs of the network or of the linear part, got neither.")
    if not len(targets):
        return 0.5, 0.5, dict.fromkeys(losses, np.nan)
    means = {pair: float(each.mean()) for pair, each in losses.items()}
    best = losses[min(means, key=means.__getitem__)]

    def is_as_good(pair: tuple[float, float]) -> bool:
        worse = losses[pair] - best
        return bool(worse.mean() <= _TOLERANCE * worse.std() / len(worse) ** 0.5)

    a, b = max(filter(is_as_good, losses), key=lambda ab: (ab[1] / sum(ab), -means[ab]))
    return a, b, means
