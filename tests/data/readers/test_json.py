import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treefold.data.readers import read_json, records_json
from treefold.data.readers.json import json_tree
from treefold.errors import ConfigurationError, ParseError, ReadError
from treefold.trees.tree import Tree

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


def plainest(value: Any, *, cut: bool = False) -> Tree:
    """Turn what json.loads gives into a tree, by recursion."""
    if isinstance(value, dict):
        return Tree("object", [Tree(key, [plainest(child, cut=cut)]) for key, child in value.items()])
    if isinstance(value, list):
        return Tree("array", [plainest(child, cut=cut) for child in value])
    if cut and isinstance(value, str):
        return Tree(value if value in ("", *value.split()) and len(value) < 21 else "string")
    if cut and isinstance(value, (int, float)) and not isinstance(value, bool):
        return Tree("number")
    return Tree(value if isinstance(value, str) else json.dumps(value))


@given(value=VALUES, indent=st.none() | st.just(1), ascii_only=st.booleans())
def test_a_document_is_what_the_standard_decoder_reads(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert json_tree(text, literals="keep") == plainest(json.loads(text))
    assert json_tree(text) == plainest(json.loads(text), cut=True)


def test_numbers_and_long_strings_are_cut_to_their_type_unless_they_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps({"a": [1, -2.5e3, True, None, "en", "x" * 20, "x" * 21, "New York"], "long key here": 1})
    )
    (tree,) = read_json(path)
    assert str(tree) == (
        f'(object (a (array number number true null en {"x" * 20} string string)) ("long key here" number))'
    )
    (tree,) = read_json(path, literals="keep")
    assert str(tree) == (
        f'(object (a (array 1 -2500.0 true null en {"x" * 20} {"x" * 21} "New York")) ("long key here" 1))'
    )
    with pytest.raises(
        ConfigurationError, match="records_json expects literals to be one of 'type', 'keep', got 'kep'"
    ):
        read_json(path, literals="kep")  # type: ignore[arg-type]


@given(st.text(st.sampled_from('[]{},:"1-.e \\ntrualsf'), max_size=12))
def test_text_is_refused_exactly_where_the_standard_decoder_refuses_it(text: str) -> None:
    try:
        expected = plainest(json.loads(text, parse_float=str, parse_int=str))
    except json.JSONDecodeError:
        with pytest.raises(ParseError, match=r"expected .*, got .*; "):
            json_tree(text)
    else:
        assert json_tree(text, literals="keep") == expected


def test_keys_keep_their_order_and_may_come_twice_and_numbers_stay_as_written() -> None:
    assert (
        str(json_tree('{"b": 1E5, "a": -0.0, "b": [], "": ""}', literals="keep"))
        == '(object (b 1E5) (a -0.0) (b array) ("" ""))'
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a": 1,}', "line 1, column 9: expected a key in quotes, \"…\", got '}'; correct the document"),
        ('{"a" 1}', "line 1, column 6: expected ':' after the key 'a', got '1'; correct the document"),
        ("{a: 1}", "line 1, column 2: expected a key in quotes or '}', got 'a'; correct the document"),
        ("[1,\n 2 3]", "line 2, column 4: expected ',' or ']', got '3'; correct the document"),
        ("[1}", "line 1, column 3: expected ',' or ']', got '}'; correct the document"),
        ("[1,]", "line 1, column 4: expected a value, got ']'; correct the document"),
        ("[01]", "line 1, column 2: expected a value or ']', got '0'; correct the document"),
        ("[tru]", "line 1, column 2: expected a value or ']', got 't'; correct the document"),
        ("[1] 2", "line 1, column 5: expected the end of the document, got '2'; correct the document"),
        ("[[1]", "line 1, column 5: expected ',' or ']', got the end of the document; correct the document"),
        ('["a\nb"]', "line 1, column 4: expected a string, got invalid control character at; correct the document"),
        ('["a', "line 1, column 2: expected a string, got unterminated string starting at; correct the document"),
        ('["\\ud83d"]', "line 1, column 3: expected whole characters, got half of a \\ud8… pair; correct the escapes"),
    ],
)
def test_a_malformed_document_is_an_error_with_its_place(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ReadError) as caught:
        list(read_json(path))
    assert str(caught.value) == f"{path}, {error}"
    told: list[ReadError] = []
    assert list(records_json(path, on_bad=told.append)) == []
    assert [str(problem) for problem in told] == [str(caught.value)]


def test_a_hundred_thousand_levels_are_read(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"a":[' * 50_000 + "1" + "]}" * 50_000)
    (tree,) = read_json(path)
    assert (tree.size, tree.depth) == (150_001, 150_000)
    path.write_text("[" * 100_000)
    with pytest.raises(ReadError, match=re.escape("line 1, column 100001: expected a value or ']', got the end")):
        list(read_json(path))


def test_numbers_of_any_length_are_read() -> None:
    assert json_tree("9" * 10_000, literals="keep").label == "9" * 10_000
