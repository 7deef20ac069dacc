"""The short programs: their data are as they say, and the README has the figures of their output."""

import ast
import asyncio
import random
import re
from pathlib import Path

import pytest
from examples import documents, formulas, kingdoms, programs, sentiment

EXAMPLES = Path(formulas.__file__).parent


def test_formulas_have_the_value_that_python_gives_them() -> None:
    rng = random.Random(3)
    for _ in range(200):
        tree = formulas.formula(rng, rng.randint(0, 12))
        texts: list[str] = []
        for node in tree.postorder():
            below = [texts.pop() for _ in node.children][::-1]
            joined = {"and": " and ", "or": " or ", "xor": " != "}
            if node.label == "xor":  # a chain of comparisons means another thing in Python
                text = below[0]
                for each in below[1:]:
                    text = f"({text} != {each})"
            elif node.label == "not":
                text = f"(not {below[0]})"
            else:
                text = f"({joined[str(node.label)].join(below)})" if below else str(node.label == "1")
            texts.append(text)
        assert formulas.truth(tree) == ("true" if eval(texts[0]) else "false")


def test_formulas_have_as_many_operators_as_asked_for() -> None:
    tree = formulas.formula(random.Random(0), 30)
    assert sum(bool(node.children) for node in tree.postorder()) == 30


@pytest.mark.slow
def test_functions_lose_their_names() -> None:
    trees, verbs, files = programs.functions()
    assert len(trees) == len(verbs) == len(files) > 1000
    assert set(verbs) == set(programs.VERBS)
    assert all(tree.children and tree.children[0] is not None for tree in trees)
    place = next(place for place, tree in enumerate(trees) if tree.size < 60)
    source = Path(files[place]).read_text(encoding="utf-8")
    names = {
        node.name for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert any(name.strip("_").startswith(verbs[place]) for name in names)
    assert "name" in {str(node.label) for node in trees[place].postorder()}


def test_pages_have_words_but_not_links() -> None:
    labels = {str(node.label) for node in documents.page_tree(asyncio.Queue).postorder()}
    assert {"a", "get_nowait"} <= labels
    assert not any(".html" in label or label == "@href" for label in labels)


def test_sentences_have_a_class_for_each_phrase(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("(3 (2 It) (4 works))\n\n(1 (2 It) (0 fails))\n", encoding="utf-8")
    trees, classes = sentiment.sentences(tmp_path / "train.txt")
    assert list(map(str, trees)) == ["(<phrase> It works)", "(<phrase> It fails)"]
    assert classes == [("2", "4", "3"), ("2", "0", "1")]


@pytest.mark.parametrize("program", [sentiment, kingdoms])
def test_a_folder_without_the_data_is_an_error_of_one_line(
    program: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        program.main([str(tmp_path)])  # type: ignore[attr-defined]
    assert stop.value.code == 2
    assert "expect" in capsys.readouterr().err.splitlines()[-1]


def test_the_readme_has_the_figures_of_the_output() -> None:
    rows = re.findall(r"\[([\d.–]+) %\]\(output/(\w+)\.txt\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert {name for _, name in rows} == {"formulas", "sentiment", "programs", "documents", "kingdoms"}
    for figures, name in rows:
        output = (EXAMPLES / "output" / f"{name}.txt").read_text(encoding="utf-8")
        for figure in figures.split("–"):
            assert re.search(rf"\b{re.escape(figure)} %", output), (name, figure)
