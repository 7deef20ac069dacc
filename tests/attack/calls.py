"""Attack on calls: arguments of estimators, data given to them, and trees. An input is a Python expression."""

import copy
import functools
import inspect
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import numpy as np

from tests.attack.case import Target, require
from treefold import Tree, as_tree, estimators
from treefold.errors import TreefoldError
from treefold.trees.forest import Forest

_ESTIMATORS: Final = (
    "TreeClassifier", "TreePairClassifier", "NodeClassifier", "TreeRegressor", "TreePairRegressor", "TreeEmbedder",
)  # fmt: skip
_TREES: Final = ["(f a b)", "(g b)", "(f (g a) b)", "(g (f b b))", "a", "(f b (g (g a)))"] * 2
_X: Final[dict[str, Any]] = {
    "TreePairClassifier": list(zip(_TREES, _TREES[::-1], strict=True)),
    "TreePairRegressor": list(zip(_TREES, _TREES[::-1], strict=True)),
}
_Y: Final[dict[str, Any]] = {
    "NodeClassifier": [[("a", "b")[n % 2] for n, _ in enumerate(Tree.parse(text).preorder())] for text in _TREES],
    "TreeRegressor": list(range(12)),
    "TreePairRegressor": list(range(12)),
}
_USUAL: Final = {"state_size": "3", "hidden": "(4,)", "epochs": "1", "random_state": "0"}
_VALUES: Final = (
    *("None", "True", "False", "0", "-1", "1", "2", "3", "0.5", "1.5", "nan", "inf", "-inf", "1e308", "2**31 - 1", "2**31", "2**40", "2**63"),
    *("2**64", "10**30", "-10**30", "'zero'", "''", "'none'", "'auto'", "'\\ud800'", "'\\x1b[2J'", "'a+b'", "'sum'", "'full'", "'x' * 5000", "b'x'"),
    *("[]", "[1]", "['a']", "[[1]]", "()", "(1, 2)", "('a',)", "(2**31,)", "{}", "{'a': 1}", "{1: 2}", "{'a': 'b'}", "{1, 2}", "object()"),
    *("int", "len", "lambda *a: True", "np.array([1, 2])", "np.float32(0.5)", "np.int64(3)", "np.nan", "np.array('a')", "1j", "range(3)"),
    *("iter([1])", "Tree('a')", "Path('/nowhere')", "'/etc/passwd'", "'/'", "'sum+max'", "'complex'", "'tucker'", "'gru'", "'rnn'", "'both'"),
    *("'root+mean'", "'attention'", "'onehot'", "'ngrams'", "'thermometer'", "'numeric'", "'balanced'", "'last'", "'error'", "'adadelta'", "'paper'"),
)  # fmt: skip
_LIKELY: Final = {  # by the type of the argument
    "int": [value for value in _VALUES if value[0] in "-0123456789"],
    "float": [value for value in _VALUES if value[0] in "-0123456789ni"],
    "bool": ["True", "False"],
    "str": [value for value in _VALUES if value[0] == "'"],
}
_LONG: Final = {
    "epochs": ("None", "2**31 - 1", "2**31", "2**40", "2**63", "2**64", "10**30", "np.int64(3)"),
    "patience": (),
}  # they would only take long
_DATA: Final = (
    *("None", "[]", "['']", "['(']", "['a']", "['a', 'b']", "'(f a)'", "[None] * 12", "[nan] * 12", "[1] * 12", "[[1, 2]] * 12", "['a', 1] * 6"),
    *("list(range(12))", "[0.5] * 12", "[inf] * 12", "[2**70, 1] * 6", "[b'a', b'b'] * 6", "['\\ud800', 'a'] * 6", "[object()] * 12", "object()"),
    *("[()] * 12", "[{}] * 12", "[True, False] * 6", "['x' * 10000, 'y'] * 6", "np.zeros((12, 0))", "np.zeros((12, 2))", "np.zeros((0,))"),
    *("np.zeros((12, 2, 2))", "np.array(['a', 'b'] * 6)", "np.array(['a', 'b'] * 6, object)", "np.zeros(12, complex)", "np.arange(12).astype('M8[s]')"),
    *("Forest(['a'])", "Forest([])", "[Tree('a')] * 12", "[Tree('')] * 12", "(Forest(['a'] * 12), Forest(['b'] * 12))", "[('a', 'b')] * 12", "5", "'x'"),
    *("[chain(5000)] * 12", "[wide(5000)] * 12", "[('a', None)] * 12", "[['a'], ['b']] * 6", "[['a', 'a', 'b']] * 12", "iter(['a'] * 12)"),
    *("[Tree((0.5, 1.0)), Tree((1.0, 2.0))] * 6", "[Tree((1e308,)), Tree((-1e308,))] * 6", "[{'label': 'a', 'children': [1]}] * 12", "[-1] * 12"),
    *("{'a': 1}", "set('ab')", "[1e-320, 1] * 6", "[1e308, -1e308] * 6", "[0] * 12", "[1] + [0] * 11", "[np.nan] + [0] * 11", "range(12)"),
)  # fmt: skip


def chain(length: int) -> Tree:
    """Return a tree in which every node has one child."""
    tree = Tree("a")
    for _ in range(length):
        tree = Tree("f", [tree])
    return tree


def wide(width: int) -> Tree:
    """Return a node with many children."""
    return Tree("f", [Tree("ab"[number % 2]) for number in range(width)])


_NAMES: Final[dict[str, Any]] = {
    **{name: getattr(estimators, name) for name in _ESTIMATORS},
    "nan": float("nan"), "inf": float("inf"), "np": np, "Tree": Tree, "Forest": Forest, "Path": Path, "as_tree": as_tree,
    "chain": chain, "wide": wide, "TREES": _TREES, "X": _X, "Y": _Y,
}  # fmt: skip


def _make_arguments(random: random.Random) -> bytes:
    name = random.choice(_ESTIMATORS)
    parameters = inspect.signature(getattr(estimators, name)).parameters
    known = list(parameters)
    given = dict(_USUAL)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        argument = random.choice(known)
        likely = _LIKELY.get(str(parameters[argument].annotation).partition(" ")[0], _VALUES)
        values = _VALUES if random.random() < 0.5 else likely
        given[argument] = random.choice([value for value in values if value not in _LONG.get(argument, ())])
    return _call(name, given)


def _call(name: str, given: dict[str, str]) -> bytes:
    return f"{name}({', '.join(f'{key}={value}' for key, value in given.items())})".encode()


def _every_argument() -> Iterator[bytes]:
    for name in _ESTIMATORS:
        for argument in inspect.signature(getattr(estimators, name)).parameters:
            values = (value for value in _VALUES if value not in _LONG.get(argument, ()))
            yield from (_call(name, {**_USUAL, argument: value}) for value in values)


def _run_arguments(data: bytes, folder: Path) -> None:
    text = data.decode()
    name = text.partition("(")[0]
    X, y = _data_of(name)
    model = eval(text, dict(_NAMES)).fit(X, y)
    _require_answers(model, X)
    repr(model)


def _require_answers(model: Any, X: Any) -> Any:
    answers = model.transform(X) if hasattr(model, "transform") else model.predict(X)
    require(len(answers) == len(X), "another number of answers than of trees")
    if isinstance(answers, np.ndarray) and answers.dtype.kind == "f":
        require(bool(np.isfinite(answers).all()), "answers that are NaN or infinite")
    return answers


# Methods of a fitted estimator; X and Y are the data of its fit, {} is the hostile value.
_METHODS: Final = {
    "fit_predict": (
        "predict({})",
        "predict_proba({})",
        "score({}, Y)",
        "score(X, {})",
        "score(X, Y, sample_weight={})",
    ),
    "explain": ("explain({})", "explain(X[0], top={})", "explain(X[0], occlude={})"),
    "partial_fit": ("partial_fit({}, Y)", "partial_fit(X, {})", "partial_fit(X, Y, sample_weight={})"),
    "classes": ("partial_fit(X, Y, classes={})",),
    "transform": ("transform({})",),
}
_LACKS: Final = {
    "NodeClassifier": ("partial_fit", "classes", "transform"),
    "TreeEmbedder": ("fit_predict", "explain", "partial_fit", "classes"),
    **dict.fromkeys(("TreeRegressor", "TreePairRegressor"), ("classes", "transform")),
}


def _methods(name: str) -> list[str]:
    found = [each for group, each in _METHODS.items() if group not in _LACKS.get(name, ("transform",))]
    is_number = name.endswith("Regressor")
    return [text for texts in found for text in texts if not (is_number and text.startswith("predict_proba"))]


def _every_method() -> Iterator[bytes]:
    for name in _ESTIMATORS:
        for method, value in product(_methods(name), dict.fromkeys((*_DATA, *_VALUES))):
            yield f"{name}.{method.format(value)}".encode()


def _make_method(random: random.Random) -> bytes:
    name = random.choice(_ESTIMATORS)
    calls = (
        random.choice(_methods(name)).format(random.choice((*_DATA, *_VALUES))) for _ in range(random.choice((1, 2, 3)))
    )
    return "\n".join(f"{name}.{call}" for call in calls).encode()


@functools.cache
def _fitted(name: str) -> Any:
    model = getattr(estimators, name)(**{key: eval(value) for key, value in _USUAL.items()})
    return model.fit(*_data_of(name))


def _data_of(name: str) -> tuple[Any, Any]:
    return _X.get(name, _TREES), _Y.get(name, ["a", "b"] * 6)


def _run_methods(data: bytes, folder: Path) -> None:
    """Call methods of one estimator; a call that is refused must not change what later ones answer."""
    lines = data.decode().splitlines()
    name = lines[0].partition(".")[0]
    X, y = _data_of(name)
    model = copy.deepcopy(_fitted(name))
    refused: list[TreefoldError] = []
    for line in lines:
        before = _require_answers(model, X)
        try:
            answer = eval(line, {**_NAMES, name: model, "X": X, "Y": y})
        except TreefoldError as problem:
            refused.append(problem)
            require(str(before) == str(_require_answers(model, X)), "a refused call changed the model")
        else:
            require(not isinstance(answer, float) or answer == answer, "a score that is NaN")
            repr(answer)
    if len(refused) == len(lines):
        raise refused[0]


def _make_data(random: random.Random) -> bytes:
    name = random.choice(_ESTIMATORS)
    usual = _usual_data(name)
    for _ in range(random.choice((1, 1, 2))):
        place, value = random.randrange(4), random.choice(_DATA)
        if place == 3:
            value = random.choice((value, f"({value}, {random.choice(_DATA)})", f"(TREES, {value})"))
        usual[place] = usual[place].partition("=")[0] + f"={value}" if place > 1 else value
    return _fit(name, usual, usual[0] if random.random() < 0.5 else random.choice(_DATA))


def _usual_data(name: str) -> list[str]:
    labels = f"Y.get('{name}', ['a', 'b'] * 6)"
    return [f"X.get('{name}', TREES)", labels, "sample_weight=None", "validation_data=None"]


def _fit(name: str, data: list[str], asked: str) -> bytes:
    answer = "transform" if name == "TreeEmbedder" else "predict"
    return _call(name, _USUAL) + f".fit({', '.join(data)}).{answer}({asked})".encode()


def _every_data() -> Iterator[bytes]:
    for name, value in product(_ESTIMATORS, _DATA):
        X, y, weight, validation = _usual_data(name)
        yield _fit(name, [X, y, weight, validation], value)
        yield _fit(name, [value, y, weight, validation], value)
        yield _fit(name, [X, value, weight, validation], X)
        yield _fit(name, [X, y, f"sample_weight={value}", validation], X)
        for pair in (value, f"({X}, {value})", f"({value}, {y})"):
            yield _fit(name, [X, y, weight, f"validation_data={pair}"], X)


def _run_data(data: bytes, folder: Path) -> None:
    eval(data.decode(), dict(_NAMES))


_LABELS: Final = (
    *("'a'", "'f'", "''", "' '", "'('", "')'", "'_'", "'\"'", "'\\\\'", "'\\n'", "'\\x00'", "'\\x1b[2J'", "'<b>&'", "'\\ud800'", "'é'", "'\\u202e'"),
    *("'x' * 5000", "'nan'", "'1e999'", "5", "None", "(1.0, 2.0)", "(nan,)", "(inf,)", "(1e308,)", "()", "[1]", "(1,)", "('a',)", "b'a'", "True"),
    *("np.float64(1)", "np.zeros(2)", "object()", "(1, 2, 3)", "'[red]'", "']]>'", "'a:b'", "':'", "'<unk>'"),
)  # fmt: skip


def _make_tree(random: random.Random) -> bytes:
    def tree(depth: int) -> str:
        way = random.random()
        if way < 0.03:
            return random.choice(
                ("None", "chain(3000)", "wide(3000)", "'a'", "5", "Tree('a', [None] * 3000)", "object()")
            )
        label = random.choice(("'a'", "'b'", "'f'")) if random.random() < 0.8 else random.choice(_LABELS)
        if depth > 3 or way < 0.4:
            return f"Tree({label})"
        return f"Tree({label}, [{', '.join(tree(depth + 1) for _ in range(random.choice((0, 1, 1, 2, 2, 3, 5))))}])"

    if random.random() < 0.2:
        return f"[as_tree({random.choice((random.choice(_DATA), random.choice(_VALUES)))})]".encode()
    return f"[{', '.join(tree(0) for _ in range(random.choice((2, 2, 4))))}]".encode()


def _run_tree(data: bytes, folder: Path) -> None:
    trees = eval(data.decode(), dict(_NAMES))
    forest = Forest(trees)
    trees = [Tree.parse(tree) if isinstance(tree, str) else tree for tree in trees]
    require(list(forest) == trees, "the forest has other trees")
    forest.save(folder / "forest")
    require(list(Forest.open(folder / "forest")) == trees, "the saved forest has other trees")
    for tree in trees:
        require(Tree.parse(str(tree)) == tree, "the tree as text is another tree")
        ElementTree.fromstring(tree.to_svg())
        tree.draw()
    if len(trees) > 1:
        model = estimators.TreeClassifier(**{name: eval(value) for name, value in _USUAL.items()})
        model.fit(trees, [number % 2 for number in range(len(trees))])
        _require_answers(model, trees)
        model.save(folder / "model")
        again = estimators.load(folder / "model").predict_proba(trees)
        require(bool(np.array_equal(model.predict_proba(trees), again)), "the saved model has other answers")


TARGETS: Final = [
    Target("call arguments", _make_arguments, _run_arguments, _every_argument),
    Target("call data", _make_data, _run_data, _every_data),
    Target("call methods", _make_method, _run_methods, _every_method),
    Target("call trees", _make_tree, _run_tree),
]
