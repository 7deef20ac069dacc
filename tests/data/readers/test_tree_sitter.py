from pathlib import Path
from typing import Any

import pytest

from treefold.data.readers import read_code, records_code
from treefold.data.readers.code import LANGUAGES
from treefold.errors import ConfigurationError, ReadError

REASON = "NOT TESTED: format 'code' needs treefold[code]"
tree_sitter = pytest.importorskip("tree_sitter", reason=REASON)
for grammar in LANGUAGES.values():
    pytest.importorskip(grammar.module, reason=REASON)


def read(folder: Path, name: str, code: str, **options: Any) -> str:
    path = folder / name
    path.write_text(code)
    (tree,) = read_code(path, **{"literals": "keep", **options})
    return str(tree)


@pytest.mark.parametrize(
    ("name", "code", "tree"),
    [
        (
            "a.py",
            "x = 1  # one",
            "(module (expression_statement (assignment (identifier x) (integer 1))) comment)",
        ),
        (
            "a.js",
            "let s = 'a b';",
            '(program (lexical_declaration (variable_declarator (identifier s) (string (string_fragment "a b")))))',
        ),
        (
            "A.java",
            "class A { int x; }",
            "(program (class_declaration (identifier A) (class_body "
            "(field_declaration integral_type (variable_declarator (identifier x))))))",
        ),
        (
            "a.c",
            "int x = 2;",
            "(translation_unit (declaration (primitive_type int) (init_declarator (identifier x) (number_literal 2))))",
        ),
    ],
)
def test_programs_of_every_language_become_trees(name: str, code: str, tree: str, tmp_path: Path) -> None:
    assert read(tmp_path, name, code) == tree


@pytest.mark.parametrize(
    ("name", "code", "tree"),
    [
        (
            "a.py",
            "x = 1, 2.5, 'a\\n', f'{x:.2f}', True",
            "(module (expression_statement (assignment (identifier x) (expression_list integer float "
            "(string (string_start ') (string_content escape_sequence) (string_end ')) "
            "(string (string_start f') (interpolation (identifier x) format_specifier) (string_end ')) (true True)))))",
        ),
        (
            "a.js",
            "s = ['a b', 1, /x+/g, null];",
            "(program (expression_statement (assignment_expression (identifier s) "
            "(array (string string_fragment) number (regex regex_pattern (regex_flags g)) (null null)))))",
        ),
        (
            "A.java",
            "class A { int x = f(0x1F, 'c', \"s\", 1.5); }",
            "(program (class_declaration (identifier A) (class_body (field_declaration integral_type (variable_declarator "
            "(identifier x) (method_invocation (identifier f) (argument_list hex_integer_literal character_literal "
            "(string_literal string_fragment) decimal_floating_point_literal)))))))",
        ),
        (
            "a.c",
            "#include <stdio.h>\n#define N 5\nchar c = 'c';",
            "(translation_unit (preproc_include (system_lib_string <stdio.h>)) (preproc_def (identifier N) preproc_arg) "
            "(declaration (primitive_type char) (init_declarator (identifier c) (char_literal character))))",
        ),
    ],
)
def test_literals_are_cut_to_the_type_of_their_node(name: str, code: str, tree: str, tmp_path: Path) -> None:
    assert read(tmp_path, name, code, literals="type") == tree
    (tmp_path / name).write_text(code)
    (by_default,) = read_code(tmp_path / name)
    assert str(by_default) == tree


def test_names_may_be_left_out_and_keywords_and_punctuation_taken_in(tmp_path: Path) -> None:
    assert read(tmp_path, "a.py", "pass; f(x)", names=False) == (
        "(module pass_statement (expression_statement (call identifier (argument_list identifier))))"
    )
    assert read(tmp_path, "a.py", "f(x)", anonymous=True) == (
        '(module (expression_statement (call (identifier f) (argument_list "(" (identifier x) ")"))))'
    )


@pytest.mark.parametrize("anonymous", [False, True])
def test_every_node_of_the_parser_is_a_node_of_the_tree(anonymous: bool, tmp_path: Path) -> None:
    path = Path(__file__)
    (tree,) = read_code(path, names=False, anonymous=anonymous)
    module = pytest.importorskip("tree_sitter_python", reason=REASON)
    parser = tree_sitter.Parser(tree_sitter.Language(module.language()))
    cursor, met = parser.parse(path.read_bytes()).walk(), []
    while True:
        if anonymous or cursor.node.is_named:
            met.append(cursor.node.type)
        if cursor.goto_first_child() or cursor.goto_next_sibling():
            continue
        while cursor.goto_parent() and not cursor.goto_next_sibling():
            pass
        if cursor.node.parent is None:
            break
    assert [node.label for node in tree.preorder()] == met


def test_errors_stay_in_the_tree_unless_it_has_to_be_strict(tmp_path: Path) -> None:
    code = "é = 1\nx = = 2\ny = 3\n"
    assert "ERROR" in read(tmp_path, "a.py", code)
    with pytest.raises(ReadError) as caught:
        read(tmp_path, "a.py", code, strict=True)
    assert str(caught.value) == (
        f"{tmp_path / 'a.py'}, line 2, column 5: expected python, got '='; correct the code, or read it with strict=False"
    )
    assert read(tmp_path, "a.py", "x = 2", strict=True).startswith("(module")


def test_a_token_that_the_parser_made_up_has_no_text_and_is_an_error_when_strict(tmp_path: Path) -> None:
    assert read(tmp_path, "a.c", "int x = ;", names=True).count('""') == 0
    with pytest.raises(ReadError, match="line 1, column 10: expected c, got no ';'"):
        read(tmp_path, "a.c", "int x = 1\n", strict=True)


def test_the_language_is_told_or_seen_in_the_suffix(tmp_path: Path) -> None:
    assert read(tmp_path, "a.txt", "x", language="python").startswith("(module")
    with pytest.raises(
        ConfigurationError, match=r"records_code expects language to be one of .*'javascript', 'python', got"
    ):
        records_code("a.py", language="javascripd")
    with pytest.raises(ConfigurationError, match=r"expected a suffix of .*, got '.txt'; say which language it is"):
        records_code(tmp_path / "a.txt")


@pytest.mark.parametrize("code", ["(" * 100_000 + "x" + ")" * 100_000, "f(" * 100_000, "-" * 100_000 + "x"])
def test_a_hundred_thousand_levels_do_not_break_it(code: str, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(code)
    (tree,) = read_code(path)
    assert tree.size > 100_000


def test_an_error_that_the_parser_does_not_show_is_an_error_when_strict(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="line 1, column 1: expected c, got '#in b"):
        read(tmp_path, "a.c", "#in b) (not c))", strict=True)


def test_code_is_parsed_in_pieces_as_it_is_in_one(tmp_path: Path) -> None:
    text = "int é漢😀[] = {1, 2};\n" * 2_000  # characters of several bytes lie across all pieces
    (tmp_path / "a.c").write_text(text, encoding="utf-8")
    (tree,) = read_code(tmp_path / "a.c")
    (once,) = read_code(_file(tmp_path / "b.c", text[: len(text) // 2_000]))
    assert [str(child) for child in tree.children] == [str(once.children[0])] * 2_000


def _file(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_code_whose_errors_take_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The time that tree-sitter takes grows with the square of these errors: minutes for a file of 300 kB.
    path = _file(tmp_path / "a.c", "struct a { union { char" + "<a>" * 100_000)
    monkeypatch.setattr("treefold.data.readers.code.PARSE_SECONDS", -1.0)
    with pytest.raises(ReadError, match=r"a\.c: expected code that tree-sitter can parse, got so many errors"):
        list(read_code(path))
    skipped: list[ReadError] = []
    assert not list(records_code(path, on_bad=skipped.append))
    assert len(skipped) == 1


def test_an_interruption_of_the_parser_is_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path / "a.c", "int a;\n" * 5_000)
    times = iter([0.0, 0.0])

    def interrupted() -> float:
        if (now := next(times, None)) is None:
            raise KeyboardInterrupt
        return now

    monkeypatch.setattr("treefold.data.readers.code.time.monotonic", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(read_code(path))
