from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treefold.data.readers import read_html, read_xml
from treefold.data.readers.markup import element_tree
from treefold.errors import ConfigurationError, ReadError
from treefold.trees.tree import Tree

pytest.importorskip("lxml", reason="NOT TESTED: formats 'xml' and 'html' need treefold[xml]")

BOMB = "".join(f'<!ENTITY e{level} "{f"&e{level - 1};" * 10}">' for level in range(1, 10))


def write(folder: Path, text: str | bytes, name: str = "a.xml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused(path: Path) -> str:
    with pytest.raises(ReadError) as caught:
        list(read_xml(path, attributes=True, text=True))
    return str(caught.value).removeprefix(f"{path}, ")


@pytest.mark.parametrize(
    ("options", "tree"),
    [
        ({}, "(p (b i) b)"),
        ({"attributes": True}, '(p (@id 1) (@class "x y") (b i) b)'),
        ({"text": True}, "(p one (b two i) three (b four&) five)"),
        ({"attributes": True, "text": True}, '(p (@id 1) (@class "x y") one (b two i) three (b four&) five)'),
    ],
)
def test_elements_become_nodes_and_attributes_and_text_on_request(
    options: dict[str, Any], tree: str, tmp_path: Path
) -> None:
    text = """<?xml version="1.0"?>
    <!-- a comment --><?target instruction?>
    <p id="1" class="x y">one <b> two<i/>
    </b> th<!-- in -->ree <b><![CDATA[four&]]></b> five</p>"""
    assert [str(read) for read in read_xml(write(tmp_path, text), literals="keep", **options)] == [tree]


@pytest.mark.parametrize("read", [read_xml, read_html])
def test_long_text_and_numbers_are_cut_to_their_type(read: Any, tmp_path: Path) -> None:
    text = f"""<html><body lang="en" n="-1.5e3" style="a b"><p> one </p><p>two words</p><p>7</p><p>{"x" * 20}</p>
    <p>{"x" * 21}</p>{"x" * 20}</body></html>"""
    (tree,) = read(write(tmp_path, text), attributes=True, text=True)
    word = "x" * 20
    assert str(tree) == (
        f"(html (body (@lang en) (@n #number) (@style #text) (p one) (p #text) (p #number) (p {word}) (p #text) {word}))"
    )
    with pytest.raises(
        ConfigurationError, match=r"records_\w+ expects literals to be one of 'type', 'keep', got 'cut'"
    ):
        read(tmp_path / "a.xml", literals="cut")


def test_namespaces_stay_in_braces(tmp_path: Path) -> None:
    (tree,) = read_xml(write(tmp_path, '<a xmlns="urn:x" xmlns:y="urn:y"><y:b/></a>'))
    assert tree == Tree("{urn:x}a", [Tree("{urn:y}b")])


TREES = st.recursive(
    st.builds(Tree, st.sampled_from("abc")),
    lambda inner: st.builds(Tree, st.sampled_from("abc"), st.lists(inner, max_size=4)),
)


@given(tree=TREES)
def test_elements_of_the_standard_library_give_the_same_tree(
    tree: Tree, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def element(node: Tree) -> ElementTree.Element:
        made = ElementTree.Element(str(node.label))
        made.extend(element(child) for child in node.children if child is not None)
        return made

    text = ElementTree.tostring(element(tree))
    assert element_tree(ElementTree.fromstring(text)) == tree
    assert list(read_xml(write(tmp_path_factory.mktemp("xml"), text))) == [tree]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "<a>\n<b></a>",
            "line 2, column 8: expected well-formed XML, got 'Opening and ending tag mismatch: b line 2 and a'; "
            "correct the document",
        ),
        ("hello", "line 1, column 1: expected well-formed XML, got 'syntax error'; correct the document"),
        ("<!-- only -->", "line 1, column 14: expected well-formed XML, got 'no element found'; correct the document"),
        (
            "<a>&nbsp;</a>",
            "line 1, column 10: expected entities like &amp; only, got \"Entity 'nbsp' not defined\"; "
            "write the text of the entity in full",
        ),
        (
            '<?xml version="1.0" encoding="x-none"?><a/>',
            "line 1: expected UTF-8, or another encoding that is known, got unknown encoding: x-none; "
            'convert the file, and its encoding="…"',
        ),
    ],
)
def test_a_malformed_document_is_an_error_with_its_place(text: str, error: str, tmp_path: Path) -> None:
    assert refused(write(tmp_path, text)) == error


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1"])
def test_a_declared_encoding_is_followed(encoding: str, tmp_path: Path) -> None:
    data = f'<?xml version="1.0" encoding="{encoding}"?><a>é</a>'.encode(encoding)
    assert [str(tree) for tree in read_xml(write(tmp_path, data), text=True)] == ["(a é)"]


@pytest.mark.parametrize("encoding", ["utf-7", "utf-32", "cp037", "shift_jis"])
def test_an_encoding_in_which_declarations_could_hide_is_refused(encoding: str, tmp_path: Path) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE a [<!ENTITY e0 "x">]><a b="&e0;"/>'
    assert "expected" in refused(write(tmp_path, text.encode(encoding)))


@pytest.mark.parametrize(
    "text",
    [
        f'<!DOCTYPE a [<!ENTITY e0 "ha">{BOMB}]><a>&e9;</a>',
        f'<!DOCTYPE a [<!ENTITY e0 "ha">{BOMB}]><a b="&e9;"/>',
        f'<!DOCTYPE a SYSTEM "none.dtd" [%none; <!ENTITY e0 "ha">{BOMB}]><a b="&e9;"/>',
        '<!DOCTYPE a [<!ENTITY e0 SYSTEM "file:///etc/passwd">]><a>&e0;</a>',
        '<!DOCTYPE a [<!ENTITY % p SYSTEM "http://localhost:9/x.dtd">%p;]><a/>',
        '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY e0 "ha">]><a>&e0;</a>',
    ],
)
def test_declared_entities_are_refused_and_never_expanded(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text.encode("utf-16") if "utf-16" in text else text)
    assert refused(path) == (
        "line 1: expected a document without declarations, got <!DOCTYPE a [ … ]>, where entities may be declared; "
        "remove the part in [ ], and write the text of entities in full"
    )


def test_a_dtd_outside_the_file_is_not_loaded_and_its_entities_are_refused(tmp_path: Path) -> None:
    write(tmp_path, '<!ENTITY e "secret"><!ATTLIST a b CDATA "given">', "x.dtd")
    head = f'<!DOCTYPE a SYSTEM "{tmp_path / "x.dtd"}">'
    assert [str(tree) for tree in read_xml(write(tmp_path, f"{head}<a/>"), attributes=True)] == ["a"]
    for body in ("<a>&e;</a>", "<a b='x&e;y'/>"):
        assert refused(write(tmp_path, f"{head}\n{body}")).split(": ", 1)[1] == (
            "expected entities like &amp; only, got \"Entity 'e' not defined\"; write the text of the entity in full"
        )


def test_a_document_is_read_down_to_two_thousand_levels(tmp_path: Path) -> None:
    (tree,) = read_xml(write(tmp_path, "<a>" * 2000 + "</a>" * 2000))
    assert tree.depth == 1999
    (tree,) = read_html(write(tmp_path, "<html><body>" + "<div>" * 2000, "a.html"))
    assert tree.depth == 2001


def test_a_hundred_thousand_levels_are_refused_or_where_libxml2_is_old_read(tmp_path: Path) -> None:
    told: list[ReadError] = []
    deep = write(tmp_path, "<a>" * 100_000 + "</a>" * 100_000)
    page = write(tmp_path, "<html><body>" + "<div>" * 100_000, "a.html")
    trees = [*read_xml(deep, on_bad=told.append), *read_html(page, on_bad=told.append)]
    assert len(trees) + len(told) == 2
    assert all(tree.depth >= 99_999 for tree in trees)
    remedy = "expected at most 2048 levels, got more; flatten the document, or write the tree as an s-expression"
    assert {error.problem for error in told} <= {remedy}


def test_a_hundred_thousand_siblings_are_read(tmp_path: Path) -> None:
    (tree,) = read_xml(write(tmp_path, "<a>" + "<b/>" * 100_000 + "</a>"))
    assert (tree.size, tree.arity) == (100_001, 100_000)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        (
            "<title>t</title><p class=x>one<br>two<p>three &amp; &nbsp;é",
            '(html (head (title t)) (body (p (@class x) one br two) (p "three & \xa0é")))',
        ),
        (
            "<!DOCTYPE html><html><body><!-- c --><input disabled></body></html>",
            "(html (body (input (@disabled disabled))))",
        ),
    ],
)
def test_untidy_html_becomes_a_tree(text: str, tree: str, tmp_path: Path) -> None:
    assert [
        str(read) for read in read_html(write(tmp_path, text, "a.html"), attributes=True, text=True, literals="keep")
    ] == [tree]


def test_html_without_an_element_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"expected .*HTML, got .*; "):
        list(read_html(write(tmp_path, "<!-- only -->", "a.html")))


def test_many_attributes_keep_their_order_and_values() -> None:
    names = [f"a{number}" for number in range(300)]
    text = f'<p xmlns:q="urn:q" q:z="9" {" ".join(f"{name}={name!r}" for name in names)}>x</p>'
    etree = pytest.importorskip("lxml.etree")
    expected = element_tree(ElementTree.fromstring(text), attributes=True, text=True, literals="keep")
    assert element_tree(etree.fromstring(text), attributes=True, text=True, literals="keep") == expected
    assert expected.size == 2 * 301 + 2
