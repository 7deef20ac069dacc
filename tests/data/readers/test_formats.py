"""What holds for every reader of the registry."""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from treefold.data.readers import READERS, SUFFIXES, format_of
from treefold.errors import ConfigurationError, ReadError


class Sample(NamedTuple):
    suffix: str
    data: bytes  # with \n at the ends of lines, and an é in the last line
    tree: str
    packages: tuple[str, ...] = ()
    extra: str = ""


SAMPLES = {
    "sexpr": Sample(".sexpr", "(a b\n é)\n".encode(), "(a b é)"),
    "penn": Sample(".penn", "( (S (NP a)\n (VP é)) )\n".encode(), "(S (NP a) (VP é))"),
    "sst": Sample(".sst", "(3 (2 a) (4 é))\n".encode(), "(<phrase> a é)"),
    "json": Sample(".json", '{"a":\n "é"}\n'.encode(), "(object (a é))"),
    "jsonl": Sample(".jsonl", '{"tree": "(a é)"}\n'.encode(), "(a é)"),
    "xml": Sample(".xml", "<a>\n<b>é</b></a>\n".encode(), "(a b)", ("lxml",), "xml"),
    "html": Sample(".html", "<html><body>\n<p>é</body></html>\n".encode(), "(html (body p))", ("lxml",), "xml"),
    "python": Sample(".py", "x\né\n".encode(), "(Module (Expr (Name x Load)) (Expr (Name é Load)))"),
    "code": Sample(
        ".py",
        "x\né\n".encode(),
        "(module (expression_statement (identifier x)) (expression_statement (identifier é)))",
        ("tree_sitter", "tree_sitter_python"),
        "code",
    ),
    "conllu": Sample(".conllu", "1\té\té\tNOUN\t_\t_\t0\troot\t_\t_\n".encode(), "NOUN", ("conllu",), "conllu"),
    "csv": Sample(".csv", "tree\n(a é)\n".encode(), "(a é)"),
    "tsv": Sample(".tsv", "tree\tlabel\n(a é)\tx\n".encode(), "(a é)"),
    "parquet": Sample(".parquet", b"", "", ("pyarrow",), "parquet"),
}
TEXT_FORMATS = [name for name in READERS if name != "parquet"]


def skip_unless_installed(name: str) -> None:
    for package in SAMPLES[name].packages:
        pytest.importorskip(package, reason=f"NOT TESTED: format {name!r} needs treefold[{SAMPLES[name].extra}]")


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / f"sample{SAMPLES[name].suffix}"
    path.write_bytes(data)
    return path


def test_every_reader_has_a_sample() -> None:
    assert list(SAMPLES) == list(READERS)


@pytest.mark.parametrize("name", TEXT_FORMATS)
@pytest.mark.parametrize("change", ["as it is", "byte order mark", "CRLF"])
def test_a_sample_gives_its_tree_with_byte_order_mark_or_windows_line_ends_too(
    name: str, change: str, tmp_path: Path
) -> None:
    skip_unless_installed(name)
    data = SAMPLES[name].data
    data = {"as it is": data, "byte order mark": b"\xef\xbb\xbf" + data, "CRLF": data.replace(b"\n", b"\r\n")}[change]
    path = write(tmp_path, name, data)
    (record,) = READERS[name](path)
    assert [str(tree) for tree in record.trees] == [SAMPLES[name].tree]
    assert record.source == str(path)


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_latin1_is_an_error_that_names_the_file_the_line_and_utf8(name: str, tmp_path: Path) -> None:
    skip_unless_installed(name)
    data = SAMPLES[name].data.decode().encode("latin-1")
    path = write(tmp_path, name, data)
    with pytest.raises(ReadError, match="UTF-8") as caught:
        list(READERS[name](path))
    assert caught.value.source == str(path)
    assert caught.value.line == data.count(b"\n", 0, data.index(b"\xe9")) + 1


@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_a_bad_record_goes_to_on_bad_and_is_skipped(name: str, tmp_path: Path) -> None:
    skip_unless_installed(name)
    path = write(tmp_path, name, SAMPLES[name].data.decode().encode("latin-1"))
    told: list[ReadError] = []
    assert list(READERS[name](path, on_bad=told.append)) == []
    assert len(told) == 1


@pytest.mark.parametrize("name", list(READERS))
def test_an_empty_file_is_an_error_but_an_empty_program_is_a_module(name: str, tmp_path: Path) -> None:
    skip_unless_installed(name)
    path = write(tmp_path, name, b"")
    if name in ("python", "code"):
        (record,) = READERS[name](path)
        assert str(record.trees[0]) == {"python": "Module", "code": "module"}[name]
        return
    with pytest.raises(ReadError) as caught:
        list(READERS[name](path))
    assert str(caught.value) == f"{path}: expected at least one tree, got an empty file; check how it was written"


@pytest.mark.parametrize("name", list(READERS))
def test_a_missing_file_is_an_error_even_with_on_bad(name: str, tmp_path: Path) -> None:
    skip_unless_installed(name)
    path = tmp_path / f"none{SAMPLES[name].suffix}"
    told: list[ReadError] = []
    with pytest.raises(ReadError) as caught:
        list(READERS[name](path, on_bad=told.append))
    assert (
        str(caught.value)
        == f"{path}: expected a file that can be read, got 'No such file or directory'; check the path"
    )
    assert told == []


@pytest.mark.parametrize("name", [name for name in READERS if SAMPLES[name].packages])
def test_a_missing_extra_is_said_at_once_with_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra = SAMPLES[name].packages[0], SAMPLES[name].extra
    for module in [module for module in sys.modules if module.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # which makes its import fail
    with pytest.raises(ConfigurationError) as caught:
        READERS[name](f"a{SAMPLES[name].suffix}")
    assert str(caught.value) == (
        f"expected the package {package}, got none; install it with `pip install 'treefold[{extra}]'`."
    )


def test_every_suffix_suggests_a_reader_and_every_reader_but_code_is_suggested() -> None:
    assert set(SUFFIXES.values()) == set(READERS)
    assert [format_of(f"x{sample.suffix}") for sample in SAMPLES.values()] == [
        name if name != "code" else "python" for name in SAMPLES
    ]
    assert format_of("Main.JAVA") == "code"
