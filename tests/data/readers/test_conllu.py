from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treefold.data.readers import read_conllu, read_dependencies, records_conllu
from treefold.data.readers.conllu import tree_of_heads
from treefold.errors import ConfigurationError, ReadError
from treefold.trees.tree import Tree

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
        ({}, '(VERB PRON AUX PART VERB (NOUN ADJ NOUN) "_")'),
        ({"head": False}, '(VERB PRON AUX PART (NOUN ADJ) "_")'),
        ({"label": "form"}, "(see She does n't see (trees old trees) .)"),
        ({"label": "form", "head": False}, "(see She does n't (trees old) .)"),
        ({"label": "lemma", "head": False}, '(see she do not (tree old) "_")'),
        ({"label": "deprel", "head": False}, "(root nsubj aux advmod (obj amod) punct)"),
        (
            {"relations": True},
            "(root:VERB nsubj:PRON aux:AUX advmod:PART head:VERB (obj:NOUN amod:ADJ head:NOUN) punct:_)",
        ),
        (
            {"relations": True, "head": False},
            "(root:VERB nsubj:PRON aux:AUX advmod:PART (obj:NOUN amod:ADJ) punct:_)",
        ),
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
        ("(C B C)", 6),
    ]


def test_a_comment_gives_the_class_of_its_sentence_alone(tmp_path: Path) -> None:
    comments = ["# label = very good \n", "# labels = x\n# text = label = y\n", "#label=1\n", "# label =\n"]
    text = "\n".join(comment + word(1, 0) for comment in comments)
    assert [record.label for record in records_conllu(write(tmp_path, text))] == ["very good", None, "1", None]


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
    assert (tree.size, tree.depth) == (39_999, 19_999)
    aligned = _aligned(tmp_path, ["w " * 20_000], [" ".join(map(str, range(20_000)))])
    (tree,) = read_dependencies(*aligned)
    assert (tree.size, tree.depth) == (20_000, 19_999)


def _aligned(folder: Path, *columns: list[str]) -> list[Path]:
    paths = [folder / f"a.{suffix}" for suffix in ("toks", "parents", "rels")][: len(columns)]
    for path, lines in zip(paths, columns, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


@st.composite
def sentences(draw: st.DrawFn) -> list[int]:
    """Draw the heads of a sentence: each word but the root hangs on one that came before it in some order."""
    size = draw(st.integers(1, 12))
    order = draw(st.permutations(range(1, size + 1)))
    heads = [0] * size
    for place, number in enumerate(order[1:], 1):
        heads[number - 1] = order[draw(st.integers(0, place - 1))]
    return heads


def plainest(heads: list[int], number: int, head: bool) -> Tree:
    """Build the tree below a word by recursion."""
    below = [word for word in range(1, len(heads) + 1) if heads[word - 1] == number]
    children = {word: plainest(heads, word, head) for word in below}
    if head and below:
        children[number] = Tree(f"w{number}")
    return Tree(f"w{number}", [children[word] for word in sorted(children)])


def _some_cross(heads: list[int]) -> bool:
    arcs = [(min(arc), max(arc)) for arc in enumerate(heads, 1)]  # the root's own begins before the sentence
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


@given(heads=sentences(), head=st.booleans())
def test_heads_become_the_tree_that_plain_recursion_builds_and_leaves_are_the_sentence_unless_arcs_cross(
    heads: list[int], head: bool
) -> None:
    words = [f"w{number}" for number in range(1, len(heads) + 1)]
    tree = tree_of_heads(words, heads, head=head)
    assert tree == plainest(heads, heads.index(0) + 1, head)
    leaves = [node.label for node in tree.preorder() if not node.children]
    assert sorted(map(str, leaves)) == sorted(words) if head else tree.size == len(words)
    if head and not _some_cross(heads):
        assert leaves == words
    marked = tree_of_heads(words, heads, [f"r:{word}" for word in words], head=head)
    for node in marked.preorder():
        edge, _, label = str(node.label).partition(":")
        assert edge == f"r_{label}" or (head and edge == "head" and not node.children)
    assert marked.map(lambda label: str(label).partition(":")[2]) == tree


def test_aligned_files_become_trees_with_relations_as_edge_labels(tmp_path: Path) -> None:
    files = _aligned(
        tmp_path, ["her  cat sees 8\xa01/2", "a:b"], ["2 3 0 3", "0"], ["nmod:poss nsubj root obj", "root"]
    )
    assert [str(tree) for tree in read_dependencies(*files[:2])] == ['(sees (cat her) "8\xa01/2")', "a:b"]
    assert [str(tree) for tree in read_dependencies(*files)] == [
        '(root:sees (nsubj:cat nmod_poss:her) "obj:8\xa01/2")',
        "root:a:b",
    ]
    assert [str(tree) for tree in read_dependencies(*files[:2], head=True)] == [
        '(sees (cat her cat) sees "8\xa01/2")',
        "a:b",
    ]


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ((["a b"], ["0 0"]), "a.parents, line 2: expected one word with head 0, the root, got words 1, 2; attach"),
        ((["a b"], ["2 1"]), "a.parents, line 2: expected one word with head 0, the root, got none; attach"),
        (
            (["a b c"], ["2 1 0"]),
            "a.parents, line 2: expected heads that lead to the root, got a cycle at word 1; correct",
        ),
        ((["a b"], ["0 3"]), "a.parents, line 2: expected the head of word 2 to be 0 … 2, got '3'; correct it"),
        ((["a b"], ["0 -1"]), "a.parents, line 2: expected the head of word 2 to be 0 … 2, got '-1'; correct it"),
        (
            (["a b"], [f"0 {'9' * 5000}"]),
            "a.parents, line 2: expected the head of word 2 to be 0 … 2, got '99999",
        ),
        ((["a b"], ["0 x"]), "a.parents, line 2: expected the head of word 2 to be 0 … 2, got 'x'; correct it"),
        ((["a b"], ["0"]), "a.parents, line 2: expected 2 entries, one for each word, got 1; align the files"),
        ((["a"], ["0"], ["root x"]), "a.rels, line 2: expected 1 entries, one for each word, got 2; align the files"),
        (([""], [""]), "a.toks, line 2: expected the words of a sentence, got an empty line; remove it"),
        ((["a"], []), "a.parents: expected as many lines as the files beside it, got 1; align them"),
        (([], ["0"]), "a.toks: expected as many lines as the files beside it, got 1; align them"),
    ],
)
def test_files_that_are_no_trees_or_not_aligned_are_errors_with_their_place(
    columns: tuple[list[str], ...], error: str, tmp_path: Path
) -> None:
    first = (["w"], ["0"], ["root"])
    files = _aligned(tmp_path, *(start + rest for start, rest in zip(first, columns, strict=False)))
    with pytest.raises(ReadError) as caught:
        list(read_dependencies(*files))
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(error)


def test_an_unknown_label_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match=r"records_conllu expects label to be one of .*, got 'upo'"):
        records_conllu("a.conllu", label="upo")
