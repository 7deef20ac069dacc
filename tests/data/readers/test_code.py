import ast
import sysconfig
import warnings
from pathlib import Path

import pytest

from treefold.data.readers import read_python, records_python
from treefold.data.readers.code import ast_tree
from treefold.errors import ReadError

LIBRARY = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[::12]


def read(folder: Path, text: str | bytes, *, names: bool = True) -> str:
    path = folder / "a.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    (tree,) = read_python(path, names=names, literals="keep")
    return str(tree).removeprefix("(Module ").removesuffix(")")


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.name)
def test_the_standard_library_gives_the_classes_that_ast_walk_meets(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = ast.parse(path.read_bytes())
    (tree,) = read_python(path, names=False)
    met = sorted(type(node).__name__ for node in ast.walk(module))
    assert sorted(str(node.label) for node in tree.preorder()) == met


@pytest.mark.parametrize(
    ("code", "tree", "without_names"),
    [
        ("x = 1", "(Assign (Name x Store) (Constant 1))", "(Assign (Name Store) Constant)"),
        (
            "None, ..., b'a', 'a b', 1.50, 2j",
            None,
            "(Expr (Tuple Constant Constant Constant Constant Constant Constant Load))",
        ),
        ("a[:b]", "(Expr (Subscript (Name a Load) (Slice _ (Name b Load)) Load))", None),
        ("a[b:]", "(Expr (Subscript (Name a Load) (Slice (Name b Load)) Load))", None),
        ("{**a, 'k': b}", "(Expr (Dict _ (Constant 'k') (Name a Load) (Name b Load)))", None),
        ("global a, b", "(Global a b)", "Global"),
        ("from .m import f as g", "(ImportFrom m (alias f g) 1)", "(ImportFrom alias)"),
        ("def f(x, *, y=2): pass", "(FunctionDef f (arguments (arg x) _ (arg y) (Constant 2)) Pass)", None),
        ("try: pass\nexcept: pass", "(Try Pass (ExceptHandler _ _ Pass))", "(Try Pass (ExceptHandler _ Pass))"),
        ("try: pass\nexcept E as e: pass", None, "(Try Pass (ExceptHandler (Name Load) Pass))"),
        ("return_ = a < b <= c", None, "(Assign (Name Store) (Compare (Name Load) Lt LtE (Name Load) (Name Load)))"),
        ("match x:\n case None: pass", "(Match (Name x Load) (match_case (MatchSingleton None) _ Pass))", None),
    ],
)
def test_code_becomes_its_syntax_tree(code: str, tree: str | None, without_names: str | None, tmp_path: Path) -> None:
    assert tree is None or read(tmp_path, code) == tree
    assert without_names is None or read(tmp_path, code, names=False) == without_names


def test_constants_are_written_as_python_writes_them(tmp_path: Path) -> None:
    (tree,) = read_python(
        _write(tmp_path, "None, ..., True, b'a', 'a b', 1.50, 2j, '\\ud800', 0x" + "f" * 5000), literals="keep"
    )
    constants = [
        str(node.children[0].label) for node in tree.preorder() if node.label == "Constant" and node.children[0]
    ]
    assert constants == ["None", "...", "True", "b'a'", "'a b'", "1.5", "2j", "'\\ud800'", "0x" + "f" * 5000]


def test_literals_are_cut_to_their_type_but_names_and_the_few_constants_are_not(tmp_path: Path) -> None:
    code = "x = None, ..., True, b'a', 'a b', 1.50, 2j, 7\ny: 'z' = f'{x} in'\nfrom ..m import *"
    (tree,) = read_python(_write(tmp_path, code))
    constants = "(Constant None) (Constant ...) (Constant True) (Constant bytes) (Constant str) (Constant float)"
    assert str(tree) == (
        f"(Module (Assign (Name x Store) (Tuple {constants} (Constant complex) (Constant int) Load)) "
        "(AnnAssign (Name y Store) (Constant str) (JoinedStr (FormattedValue (Name x Load) -1) (Constant str)) 1) "
        "(ImportFrom m (alias *) 2))"
    )


@pytest.mark.parametrize("path", LIBRARY[::4], ids=lambda path: path.name)
def test_cutting_literals_changes_the_children_of_constants_alone(path: Path) -> None:
    (cut,), (kept,) = read_python(path), read_python(path, literals="keep")
    types = {"str", "bytes", "int", "float", "complex"}
    for mine, theirs in zip(cut.preorder(), kept.preorder(), strict=True):
        if mine.label != theirs.label:
            assert mine.label in types and type(ast.literal_eval(str(theirs.label))).__name__ == mine.label
        if mine.label == "Constant":
            (child,) = mine.children
            assert child is not None and child.label in types | {"None", "True", "False", "..."}


def test_the_text_of_an_expression_in_a_template_is_a_literal() -> None:
    class Interpolation(ast.expr):  # as Python 3.14 has it
        _fields = ("value", "str")

    node = Interpolation()
    vars(node).update(value=ast.Name("x", ast.Load()), str="x  ")
    assert str(ast_tree(node)) == "(Interpolation (Name x Load) str)"
    assert str(ast_tree(node, literals="keep")) == '(Interpolation (Name x Load) "x  ")'


def _write(folder: Path, data: str | bytes) -> Path:
    path = folder / "a.py"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("x = 1\nif x\n  pass", "line 2, column 5: expected Python, got \"expected ':'\"; correct the code"),
        ("(" * 100_000, "line 1, column 201: expected Python, got 'too many nested parentheses'; correct the code"),
        ("x\0", "expected Python, got 'source code string cannot contain null bytes'; correct the code"),
        (
            b"# -*- coding: none-such -*-\n",
            "line 1: expected the encoding that the file declares, got 'unknown encoding: none-such'; "
            "convert the file to UTF-8",
        ),
        (
            b"# coding: undefined\n",
            "line 1: expected the encoding that the file declares, got \"decoding with 'undefined' codec failed "
            '(UnicodeError: undefined encoding)"; convert the file to UTF-8',
        ),
    ],
)
def test_what_is_not_python_is_an_error_with_its_place(code: str | bytes, error: str, tmp_path: Path) -> None:
    path = _write(tmp_path, code)
    with pytest.raises(ReadError) as caught:
        list(read_python(path))
    assert str(caught.value).removeprefix(f"{path}, ").removeprefix(f"{path}: ") == error


@pytest.mark.parametrize(
    "code",
    ["-" * 100_000 + "1", "f" + "()" * 100_000, "a" + ".b" * 100_000, "1" + "+1" * 100_000, "not " * 100_000 + "x"],
    ids=["minus", "call", "attribute", "plus", "not"],
)
def test_code_beyond_what_the_parser_can_hold_is_an_error(code: str, tmp_path: Path) -> None:
    told: list[ReadError] = []
    assert list(records_python(_write(tmp_path, code), on_bad=told.append)) == []
    assert [error.problem for error in told] == [
        "expected code that Python's own parser can hold, got expressions nested too deeply; "
        "break them up, or read the file as format 'code'"
    ]


def test_a_syntax_tree_of_any_depth_becomes_a_tree() -> None:
    node: ast.expr = ast.Name("x", ast.Load())
    for _ in range(100_000):
        node = ast.UnaryOp(ast.Not(), node)
    tree = ast_tree(node)
    assert (tree.depth, tree.size) == (100_001, 200_003)


def test_a_declared_encoding_is_followed_and_warnings_of_the_code_stay_silent(tmp_path: Path) -> None:
    assert read(tmp_path, b"# coding: latin-1\n'\xe9'") == "(Expr (Constant 'é'))"
    assert read(tmp_path, "'\\d' is 1", names=False) == "(Expr (Compare Constant Is Constant))"
