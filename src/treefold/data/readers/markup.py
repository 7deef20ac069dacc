"""XML and HTML documents as trees of their elements.

Nothing outside the file is loaded, and no entities are expanded.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any
from xml.parsers import expat

from treefold.data.readers.stream import (
    Literals,
    OnBad,
    Record,
    Source,
    cuts_literals,
    is_short_word,
    one_record,
    optional_package,
    text_of,
    tree_from,
)
from treefold.errors import ReadError, TreeError
from treefold.trees.tree import Label, Tree

_MANY_ATTRIBUTES = 100
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def records_xml(
    source: Source,
    *,
    attributes: bool = False,
    text: bool = False,
    literals: Literals = "type",
    on_bad: OnBad | None = None,
) -> Iterator[Record]:
    """Turn an XML document into one tree, as `element_tree` makes it; at most 2048 levels deep, which is libxml2's limit.

    A document with declarations inside its ``<!DOCTYPE … [ ]>`` is refused, because its entities could grow without bounds.
    """
    cuts_literals("records_xml", literals)
    etree = optional_package("lxml.etree", extra="xml")

    def read(data: bytes) -> Tree:
        _refuse_declarations(source, data)
        # huge_tree raises the depth limit from 256 to 2048. It also removes the protection against growing entities, which is
        # why documents with declarations were refused above.
        parser = etree.XMLParser(
            resolve_entities=False,
            no_network=True,
            load_dtd=False,
            huge_tree=True,
            remove_comments=True,
            remove_pis=True,
        )
        root = _root(etree, parser, source, data, "XML")
        return element_tree(root, attributes=attributes, text=text, literals=literals)

    return one_record(source, on_bad, read)


def records_html(
    source: Source,
    *,
    attributes: bool = False,
    text: bool = False,
    literals: Literals = "type",
    on_bad: OnBad | None = None,
) -> Iterator[Record]:
    """Turn an HTML document, well-formed or not, into one tree, as `element_tree` makes it; at most 2048 levels deep."""
    cuts_literals("records_html", literals)
    etree = optional_package("lxml.etree", extra="xml")

    def read(data: bytes) -> Tree:
        text_of(source, data)  # the parser would guess other encodings, often wrongly
        parser = etree.HTMLParser(
            encoding="utf-8", no_network=True, huge_tree=True, remove_comments=True, remove_pis=True
        )
        root = _root(etree, parser, source, data, "HTML")
        return element_tree(root, attributes=attributes, text=text, literals=literals)

    return one_record(source, on_bad, read)


def element_tree(root: Any, *, attributes: bool = False, text: bool = False, literals: Literals = "type") -> Tree:
    """Turn an element into a tree labelled by tags; attributes become ``(@name value)``, text becomes leaves.

    A text or value that is one word of at most 20 characters is its own label; a number is labelled ``#number``, other text
    ``#text``. With ``literals="keep"`` all are their own labels.

    >>> from xml.etree.ElementTree import fromstring
    >>> element = fromstring("<p id='1' lang='en'>one <b>two</b> three or four</p>")
    >>> print(element_tree(element, attributes=True, text=True))
    (p (@id #number) (@lang en) one (b two) #text)
    >>> print(element_tree(element, attributes=True, text=True, literals="keep"))
    (p (@id 1) (@lang en) one (b two) "three or four")
    """
    cut = cuts_literals("element_tree", literals)
    labels: list[Label] = []
    widths: list[int] = []
    stack: list[Any] = [_root_element(root)]  # elements, (name, value) of attributes, and text
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            labels.append(_literal_label(item) if cut else item)
            widths.append(0)
        elif isinstance(item, tuple):
            name, value = item
            labels += (name, _literal_label(value) if cut else value)
            widths += (1, 0)
        else:
            before = len(stack)
            if attributes:
                stack += [("@" + name, value) for name, value in _attributes_of(item)]
            if text and item.text and not item.text.isspace():
                stack.append(item.text.strip())
            # The elements of lxml.objectify iterate over their siblings.
            for child in item.iterchildren() if hasattr(item, "iterchildren") else item:
                if isinstance(child.tag, str):  # not a comment or an instruction
                    stack.append(child)
                if text and child.tail and not child.tail.isspace():
                    stack.append(child.tail.strip())
            labels.append(item.tag)
            widths.append(len(stack) - before)
    return tree_from(labels, widths)


def _attributes_of(element: Any) -> Iterable[tuple[str, str]]:
    # The items of lxml look up the value of each name in a list, so that many attributes would take quadratic time.
    if len(element.attrib) > _MANY_ATTRIBUTES and hasattr(element, "xpath"):
        return [(value.attrname, str(value)) for value in element.xpath("@*")]
    items: Iterable[tuple[str, str]] = element.attrib.items()
    return items


def _literal_label(text: str) -> str:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return "#number"
    return text if is_short_word(text) else "#text"


def _root(etree: Any, parser: Any, source: Source, data: bytes, kind: str) -> Any:
    try:
        root = etree.fromstring(data, parser)
    except (etree.ParserError, etree.XMLSyntaxError) as problem:
        if parser.error_log:
            raise _broken(source, kind, parser.error_log[0]) from None
        raise ReadError(f"expected {kind}, got {str(problem)!r}; check the file", source=source) from None
    # libxml2 ignores two faults: it cuts off an HTML page that is too deep, and it drops an entity of a DTD that was not
    # loaded from its attribute.
    for entry in parser.error_log:
        if entry.level_name == "FATAL" or entry.type_name == "WAR_UNDECLARED_ENTITY":
            raise _broken(source, kind, entry)
    if root is None:
        raise ReadError(f"expected {kind}, got no element; check the file", source=source)
    return root


def _root_element(root: Any) -> Any:
    """Return an element of ElementTree or lxml, or the root of a whole document."""
    root = root.getroot() if hasattr(root, "getroot") else root
    if not hasattr(root, "attrib") or not isinstance(root.tag, str):
        raise TreeError(f"expected an element with a tag, got {type(root).__name__}; give the root of the document.")
    return root


def _broken(source: Source, kind: str, entry: Any) -> ReadError:
    problem = f"expected well-formed {kind}, got {entry.message.strip()!r}; correct the document"
    if entry.message.startswith("Excessive depth"):
        problem = "expected at most 2048 levels, got more; flatten the document, or write the tree as an s-expression"
    elif entry.type_name.endswith("UNDECLARED_ENTITY"):
        problem = (
            f"expected entities like &amp; only, got {entry.message.strip()!r}; write the text of the entity in full"
        )
    elif "ENCODING" in entry.type_name:
        problem = "expected UTF-8, or the encoding that the document declares, got other bytes; convert the file"
    return ReadError(problem, source=source, line=entry.line or None, column=entry.column or None)


class _RootReached(Exception):  # noqa: N818  # not an error: it ends the reading of a document's head
    pass


def _refuse_declarations(source: Source, data: bytes) -> None:
    """Raise if a DOCTYPE has declarations inside.

    A second parser checks this before libxml2 reads the file, because libxml2 expands entities in attributes with any options.
    """
    parser = expat.ParserCreate()

    def doctype(name: str, system: str | None, public: str | None, has_declarations: int) -> None:
        if has_declarations:
            raise ReadError(
                f"expected a document without declarations, got <!DOCTYPE {name} [ … ]>, where entities may be declared; "
                f"remove the part in [ ], and write the text of entities in full",
                source=source,
                line=parser.CurrentLineNumber,
            )

    def element(name: str, attributes: dict[str, str]) -> None:
        raise _RootReached

    parser.StartDoctypeDeclHandler = doctype
    parser.StartElementHandler = element
    try:
        parser.Parse(data, True)
    except _RootReached:
        pass
    except ReadError:
        raise
    except expat.ExpatError as problem:
        raise ReadError(
            f"expected well-formed XML, got {expat.ErrorString(problem.code)!r}; correct the document",
            source=source,
            line=problem.lineno,
            column=problem.offset + 1,
        ) from None
    except (LookupError, ValueError) as problem:
        raise ReadError(
            f'expected UTF-8, or another encoding that is known, got {problem}; convert the file, and its encoding="…"',
            source=source,
            line=1,
        ) from None
