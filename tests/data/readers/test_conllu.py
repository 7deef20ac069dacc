from pathlib import Path
from typing import Any

import pytest

from treefold.data.readers import read_conllu, records_conllu
from treefold.errors import ConfigurationError, ReadError

pytest.importorskip("conllu", reason="NOT TESTED: format 'conllu' needs treefold[conllu]")

SENTENCE = """# text = She doesn't see old trees.
1	She	she	PRON	_	_	4	nsubj	_	_
2-3	doesn't	_	_	_	_	_	_	_	_
2	does	do	AUX	_	_	4	aux	_	_
3	n't	not	PART	_	_	4	advmod	_	_
4	see	see	VERB	_	_	0	root	_	_
4.1	_	_	_	_	_	_	_	_	_
5	old	old	ADJ	_	_	6	amod	_	_
6	trees	tree	NOUN	_	Number=Plur	4	obj	_	SpaceAfter=No
7	.	_	_	_	_	4	punct	_	_
"""


def word(number: int, head: object, upos: str = "X") -> str:
    return f"{number}\tw\tw\t{upos}\t_\t_\t{head}\tdep\t_\t_\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "a.conllu"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("options", "tree"),
    [
        ({}, '(VERB PRON AUX PART (NOUN ADJ) "_")'),
        ({"label": "form"}, "(see She does n't (trees old) .)"),
        ({"label": "lemma"}, '(see she do not (tree old) "_")'),
        ({"label": "deprel"}, "(root nsubj aux advmod (obj amod) punct)"),
        ({"relations": True}, "(root:VERB nsubj:PRON aux:AUX advmod:PART (obj:NOUN amod:ADJ) punct:_)"),
    ],
)
def test_a_sentence_becomes_the_tree_of_its_heads_in_surface_order(
    options: dict[str, Any], tree: str, tmp_path: Path
) -> None:
    assert [str(read) for read in read_conllu(write(tmp_path, SENTENCE), **options)] == [tree]


def test_sentences_keep_their_lines_and_comments_alone_are_none(tmp_path: Path) -> None:
    text = "# newdoc\n\n" + word(1, 0, "A") + "\n\n# two\n" + word(1, 2, "B") + word(2, 0, "C")
    assert [(str(record.trees[0]), record.line) for record in records_conllu(write(tmp_path, text))] == [
        ("A", 3),
        ("(C B)", 6),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            word(1, 2) + word(2, 1) + word(3, 0),
            "expected heads that lead to the root, got a cycle at word 1; correct its head",
        ),
        (
            word(1, 2) + word(2, 1),
            "expected one word with head 0, the root, got none; attach the others to it",
        ),
        (
            word(1, 0) + word(2, 0),
            "expected one word with head 0, the root, got words 1, 2; attach the others to it",
        ),
        (
            word(1, 0) + word(2, 7),
            "expected the head of word 2 to be 0 … 2, got 7; write all ten columns",
        ),
        (
            word(1, "_"),
            "expected the head of word 1 to be 0 … 1, got None; write all ten columns",
        ),
        (
            "1\ta\n",
            "expected the head of word 1 to be 0 … 1, got None; write all ten columns",
        ),
        (
            word(1, 0) + word(3, 1),
            "expected word 2, got word 3; number the words 1, 2, …",
        ),
        (
            word(1, "x"),
            "expected a sentence in CoNLL-U, got \"Failed parsing field 'head': 'x' is not a valid value for parse_int_value\"; "
            "write ten columns with tabs between them",
        ),
        (
            "just words\n",
            "expected a sentence in CoNLL-U, got 'Invalid line format, line must contain either tabs or two spaces'; "
            "write ten columns with tabs between them",
        ),
    ],
)
def test_what_is_no_tree_is_an_error_with_the_line_of_the_sentence(text: str, error: str, tmp_path: Path) -> None:
    path = write(tmp_path, word(1, 0, "A") + "\n" + text + "\n" + word(1, 0, "B"))
    told: list[ReadError] = []
    assert [str(tree) for tree in read_conllu(path, on_bad=told.append)] == ["A", "B"]
    assert [str(problem) for problem in told] == [f"{path}, line 3: {error}"]


def test_a_chain_of_twenty_thousand_words_is_read(tmp_path: Path) -> None:
    (tree,) = read_conllu(write(tmp_path, "".join(word(number, number - 1) for number in range(1, 20_001))))
    assert (tree.size, tree.depth) == (20_000, 19_999)


def test_an_unknown_label_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"records_conllu expects label to be one of .*, got 'upo'"):
        records_conllu("a.conllu", label="upo")
