import contextlib
import itertools
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import any_tree, text_tree
from treefold import Forest, Tree, Vocabulary
from treefold.errors import FileError, ForestFileError, ParseError, TreeError, VocabularyError

same_length = text_tree | st.builds(lambda x, y: Tree("v", [Tree([x, y]), None]), st.integers(), st.integers())


@given(st.lists(same_length, max_size=8))
def test_a_forest_gives_back_equal_trees(trees: list[Tree]) -> None:
    forest = Forest(trees)
    assert list(forest) == trees and len(forest) == len(trees)
    assert forest.sizes.tolist() == [tree.size for tree in trees]
    assert forest.node_count == sum(tree.size for tree in trees)
    assert forest.arity == max((tree.arity for tree in trees), default=0)
    assert forest.depth == max((tree.depth for tree in trees), default=0)
    assert [forest[index] for index in range(-len(trees), len(trees))] == trees + trees


@given(st.lists(same_length, min_size=1, max_size=8), st.data())
def test_slices_choices_and_concatenations_are_those_of_lists(trees: list[Tree], data: st.DataObject) -> None:
    forest = Forest(trees)
    part = data.draw(st.slices(len(trees)))
    assert list(forest[part]) == trees[part]
    chosen = data.draw(st.lists(st.integers(-len(trees), len(trees) - 1), max_size=6))
    assert list(forest[chosen]) == [trees[index] for index in chosen]
    assert list(forest[part] + forest[chosen]) == trees[part] + [trees[index] for index in chosen]
    assert list(Forest(trees[:2]) + Forest(trees[2:])) == trees
    assert list(Forest.concatenate([forest[chosen], forest, forest[part]])) == [
        *[trees[index] for index in chosen],
        *trees,
        *trees[part],
    ]


without_absent = st.recursive(
    st.builds(Tree, st.sampled_from("xyz")),
    lambda smaller: st.builds(Tree, st.sampled_from("fxb"), st.lists(smaller, max_size=4)),
    max_leaves=12,
)


@given(st.lists(without_absent, max_size=4))
def test_a_forest_from_preorder_has_the_same_trees_and_columns(trees: list[Tree]) -> None:
    nodes, names = [node for tree in trees for node in tree.preorder()], sorted("bfxyz")
    codes, counts = [names.index(str(node.label)) for node in nodes], [len(node.children) for node in nodes]
    forest, expected = Forest.from_preorder(codes, counts, [tree.size for tree in trees], names), Forest(trees, names)
    assert list(forest) == trees
    for column in ("labels", "parents", "slots", "widths", "depths", "offsets", "vectors"):
        found, wanted = getattr(forest, column), getattr(expected, column)
        assert (found.tolist(), found.dtype) == (wanted.tolist(), wanted.dtype), column


def test_a_long_chain_and_a_wide_node_come_from_preorder() -> None:
    counts = [1] * 19_999 + [0] + [19_999] + [0] * 19_999
    forest = Forest.from_preorder(np.zeros(40_000, np.uint8), counts, [20_000, 20_000], "x")
    assert (forest.depth, forest.arity) == (19_999, 19_999)
    assert forest.slots[20_000:].tolist() == [*range(19_999), 0]


@pytest.mark.parametrize(
    ("labels", "counts", "sizes", "message"),
    [
        ([0, 0], [1, 0], [3], "got 2 labels, 2 child counts and sizes [3], in all 3"),
        ([0, 0], [1], [2], "got 2 labels, 1 child counts"),
        ([0], [0], [1, 0], "trees of at least one node"),
        ([0, 1], [1, 0], [2], "expects label codes from 0 to 0, got 0 to 1"),
        ([0, 0], [-1, 0], [2], "expects child counts from 0 to 1, got -1 to 0"),
        ([0, 0, 0], [1, 1, 0], [1, 2], "tree 0: expected 1 nodes in pre-order, got child counts of more or fewer"),
        ([0, 0, 0], [0, 0, 0], [1, 2], "tree 1: expected 2 nodes"),
        ([0.5], [0], [1], "expects labels to be a flat list of whole numbers, got [0.5]"),
        ([0], [[0]], [1], "expects child_counts to be a flat list"),
    ],
)
def test_columns_in_preorder_that_are_no_trees_are_refused(
    labels: list[Any], counts: list[Any], sizes: list[int], message: str
) -> None:
    with pytest.raises(TreeError, match=re.escape(message)):
        Forest.from_preorder(labels, counts, sizes, "x")


@given(trees=st.lists(same_length, max_size=8))
def test_a_saved_forest_opens_equal(trees: list[Tree], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("forest") / "trees.forest"
    Forest(trees).save(path)
    for verify in (False, True):
        opened = Forest.open(path, verify=verify)
        assert list(opened) == trees
        assert list(opened[::-1]) == trees[::-1]
        assert not opened.labels.flags.writeable


def test_the_columns_are_post_order_with_parents_and_slots() -> None:
    forest = Forest([Tree.parse("(f a _ (g b))"), Tree.parse("a")])
    assert [forest.vocabulary[code] for code in forest.labels] == ["a", "b", "g", "f", "a"]
    assert forest.parents.tolist() == [3, 2, 3, -1, -1]
    assert forest.slots.tolist() == [0, 0, 2, 0, 0]
    assert forest.widths.tolist() == [0, 0, 1, 3, 0]
    assert forest.depths.tolist() == [1, 2, 1, 0, 0]
    assert forest.offsets.tolist() == [0, 4, 5]


def test_the_vocabulary_does_not_depend_on_the_order_of_the_trees() -> None:
    assert Forest(["(f b)", "(a c)"]).vocabulary == Forest(["(a c)", "(f b)"]).vocabulary == Vocabulary("abcf")


def test_a_concatenation_with_new_labels_keeps_the_first_ones_codes() -> None:
    joined = Forest(["(f z)"]) + Forest(["(a f)"])
    assert list(joined.vocabulary) == ["f", "z", "a"]
    assert list(joined) == [Tree.parse("(f z)"), Tree.parse("(a f)")]
    assert list(Forest([]) + Forest(["a"])) == [Tree("a")] and len(Forest.concatenate([])) == 0


def test_a_chain_of_a_hundred_thousand_nodes_goes_in_and_out() -> None:
    chain = Tree("a")
    for _ in range(99_999):
        chain = Tree("f", [chain])
    assert list(Forest([chain])) == [chain]


def test_a_given_vocabulary_is_kept_and_a_label_outside_it_named() -> None:
    vocabulary = Vocabulary(["MIN", "MAX", "1", "unused"])
    assert Forest(["(MAX 1)"], vocabulary).vocabulary is vocabulary
    with pytest.raises(
        VocabularyError, match=r"tree 1: expected one of 4 known labels, got 'MAXX' \(nearest known: 'MAX'\)"
    ):
        Forest(["(MAX 1)", "(MAXX 1)"], vocabulary)


def test_what_is_no_tree_is_refused_with_its_number() -> None:
    with pytest.raises(TreeError, match="tree 1: expected a Tree or an s-expression, got int 7"):
        Forest([Tree("a"), 7])  # type: ignore[list-item]
    with pytest.raises(
        TreeError, match=r"Forest expects an iterable of trees, got a single Tree; write Forest\(\[tree\]\)"
    ):
        Forest(Tree("a"))  # type: ignore[arg-type]
    with pytest.raises(ParseError, match=r"tree 1: line 1, column 3: expected '\)'"):
        Forest(["a", "(b"])
    with pytest.raises(TreeError, match="tree 1: expected a vector label of 2 numbers as before, got 3; pad it"):
        Forest(["[1 2]", "[1 2 3]"])
    with pytest.raises(TreeError, match=r"vector labels of one forest have one length, got \[1, 2\]"):
        Forest(["[1 2]"]) + Forest(["[1]"])


@pytest.mark.parametrize("forests", [None, 5, [Forest(["a"]), None]])
def test_what_is_no_list_of_forests_is_not_joined(forests: Any) -> None:
    with pytest.raises(TreeError, match=r"Forest.concatenate expects a list of forests, got (None|5); write \[forest"):
        Forest.concatenate(forests)


def test_indices_outside_the_forest_or_of_the_wrong_kind_are_refused() -> None:
    forest = Forest(["a", "b"])
    for index in (2, -3, [0, 5], np.array([2**64 - 1], np.uint64)):
        with pytest.raises(IndexError, match="of 2 trees, got"):
            forest[index]
    assert list(forest[np.array([False, True])]) == [Tree("b")]
    with pytest.raises(TreeError, match="a mask of 2 booleans, got an array of bool"):
        forest[np.array([True, False, True])]
    with pytest.raises(TreeError, match="a flat list of whole numbers, got"):
        forest[[[0], [1, 0]]]  # type: ignore[list-item]
    for part in (slice(None, None, 0), slice("a"), slice(0.5)):
        for choose in (forest.__getitem__, forest.batch, forest.node_rows):
            with pytest.raises(TreeError, match=r"trees are chosen by a slice of whole numbers, got slice\("):
                choose(part)
    with pytest.raises(TreeError, match="Forest expects an iterable of trees, got a single NoneType"):
        Forest(None)  # type: ignore[arg-type]
    with pytest.raises(TreeError, match="a batch expects at least one tree, got none"):
        forest.batch([])


def saved(path: Path) -> bytes:
    Forest(["(MIN 2 _ (MAX 1 3))", "7"]).save(path)
    return path.read_bytes()


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.forest"
    whole = saved(path)
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(ForestFileError, match=r"truncated, copy or write it again|which begins with TREEFOLD, got"):
            Forest.open(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(ForestFileError, match="longer than written"):
        Forest.open(path)


@pytest.mark.parametrize(
    "change",
    [
        {"columns": None},
        {"columns": {}},
        {"columns": {}, "bytes": [[]]},
        {"columns": {"labels": 5}},
        {"vocabulary": "abc"},
        {"vocabulary": ["a", "a"]},
        {"vocabulary": [1]},
        {"bytes": "many"},
        {"labels": {"dtype": "O"}},
        {"labels": {"dtype": "nonsense"}},
        {"labels": {"shape": [-1]}},
        {"labels": {"shape": [2**62]}},
        {"labels": {"shape": 3}},
        {"labels": {"shape": {}}},
        {"labels": {"shape": [0, 2**64]}},
        {"labels": {"shape": ""}},
        {"labels": {"shape": []}},
        {"labels": {"shape": [6, 1]}},
        {"labels": {"offset": -64}},
        {"labels": {"offset": 2**40}},
        {"labels": {"offset": None}},
    ],
    ids=str,
)
def test_a_crafted_header_is_refused_as_a_forest_file(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "x.forest"
    whole = saved(path)
    size = int.from_bytes(whole[16:24], "little")
    header = json.loads(whole[24 : 24 + size])
    if "labels" in change:
        header["columns"]["labels"].update(change["labels"])
    else:
        header.update(change)
    text = json.dumps(header).encode()
    text += b" " * (-(24 + len(text)) % 64)
    preamble = whole[:12] + zlib.crc32(text).to_bytes(4, "little") + len(text).to_bytes(8, "little")
    path.write_bytes(preamble + text + whole[24 + size :])
    with pytest.raises(ForestFileError):
        Forest.open(path)


def test_an_existing_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    path, link = tmp_path / "x.forest", tmp_path / "link"
    saved(path)
    path.chmod(0o600)
    link.symlink_to(path)
    Forest(["other"]).save(link)
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o600 and list(Forest.open(path)) == [Tree("other")]
    with pytest.raises(FileError, match="expected a file to write, got a folder or device of that name"):
        Forest(["other"]).save(tmp_path)


def test_foreign_files_and_other_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.forest"
    path.write_bytes(b"PK\x03\x04 a zip archive, and long enough to have a preamble")
    with pytest.raises(ForestFileError, match=r"expected a treefold forest file, which begins with TREEFOLD, got b'PK"):
        Forest.open(path)
    whole = bytearray(saved(path))
    whole[8] = 9
    path.write_bytes(whole)
    with pytest.raises(
        ForestFileError, match="expected format version 1, got 9; open it with the version of treefold that wrote it"
    ):
        Forest.open(path)
    with pytest.raises(ForestFileError, match="expected a forest file, got no such file"):
        Forest.open(tmp_path / "absent")
    with pytest.raises(ForestFileError, match="got a directory"):
        Forest.open(tmp_path)


@given(st.data())
def test_no_damaged_byte_goes_unnoticed_when_verified(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("forest") / "x.forest"
    whole = bytearray(saved(path))
    trees = list(Forest.open(path))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        opened = list(Forest.open(path, verify=True))
    except ForestFileError:
        return
    assert opened == trees  # the byte was padding


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("parents", [0, 2, 3, 1, -1, -1], "parents that do not follow their children"),
        ("parents", [9, 3, 3, 9, -1, -1], "parents outside their tree"),
        ("slots", [9, 0, 1, 2, 0, 0], "children outside the slots of their parent"),
        ("slots", [0, 0, 0, 2, 0, 0], "two children in one slot"),
        ("depths", [1, 2, 5, 1, 0, 0], "depths that are not those of the parents plus one"),
        ("labels", [99, 0, 0, 0, 0, 0], "labels outside the vocabulary"),
        ("offsets", [0, 5, 5], "tree offsets that do not span the nodes"),
        ("offsets", [0, 0, 6], "tree 0 has no nodes"),
        ("offsets", [0, 2**63 - 1, -(2**63), 6], "tree 1 has no nodes"),
        ("widths", [0, 0], "columns of different length"),
    ],
)
def test_arrays_that_are_no_trees_are_refused(tmp_path: Path, column: str, value: list[int], problem: str) -> None:
    forest = Forest(["(MIN 2 _ (MAX 1 3))", "7"])
    forest.save(tmp_path / "good")
    assert forest.parents.tolist() == [4, 3, 3, 4, -1, -1]
    setattr(forest, column, np.array(value, dtype=getattr(forest, column).dtype))
    forest.save(tmp_path / "bad")
    with pytest.raises(ForestFileError, match=problem):
        Forest.open(tmp_path / "bad", verify=True)


NODE_COLUMNS = ("labels", "parents", "slots", "widths", "depths")
WILD = (-(2**31), -100, -3, -2, -1, 0, 1, 2, 3, 5, 100, 2**31 - 1)


def test_a_damaged_value_of_an_unverified_file_is_an_error_that_names_file_and_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treefold.trees.forest.SMALL", 0)
    trees = [Tree.parse("(f (g a _ b) c)"), Tree.parse("(f a [1 2])"), Tree.parse("[3 4]"), Tree.parse("(g b)")]
    good, bad = tmp_path / "good", tmp_path / "bad"
    Forest(trees).save(good)
    errors = 0
    for column, place, value in damages(Forest.open(good)):
        damage(good, bad, column, place, value)
        forest = Forest.open(bad)
        owner = int(np.searchsorted(forest.offsets, place, side="right")) - 1
        for number in range(len(trees)):
            expected = plain_tree(forest, number)
            for read in (one_tree, a_choice, a_batch):
                try:
                    found = read(forest, number)
                except ForestFileError as problem:
                    named = f"{bad}: the file is damaged: tree {number} has"
                    assert number == owner and (named in str(problem) or (column, value) == ("widths", 2**31 - 1))
                    errors += 1
                else:
                    assert expected is not None and found == expected
        for use in (list, Forest.batch, Forest.verify, whole_choice, lambda each: each.save(tmp_path / "copy")):
            with pytest.raises(ForestFileError, match=rf"{bad}: .* damaged"):
                use(forest)
    assert errors > 1000 and not (tmp_path / "copy").exists()


def test_damaged_offsets_and_vectors_of_an_unverified_file_are_noticed(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    Forest(["(f a b)", "[1 2]", "(f [3 4])"]).save(good)
    for place, value in itertools.product(range(4), (-5, 0, 1, 2, 3, 4, 5, 6, 7, 2**40)):
        damage(good, bad, "offsets", place, value)
        with contextlib.suppress(ForestFileError):
            forest = Forest.open(bad, verify=False)
            assert all(one_tree(forest, number) == one_tree(Forest.open(good), number) for number in range(3))
    damage(good, bad, "vectors", 2, float("nan"))
    forest = Forest.open(bad, verify=False)
    assert forest[1] == Tree((1, 2))
    with pytest.raises(ForestFileError, match="tree 2 has vector labels that are not finite"):
        forest.batch([2])


def test_a_node_of_very_many_slots_is_not_believed_before_the_file_is_verified(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    wide = Tree("f", [*[None] * 100_000, Tree("a")])
    Forest([wide, Tree("b")]).save(good)
    assert Forest.open(good, verify=False)[0] == wide
    damage(good, bad, "widths", 1, 2**31 - 1)
    with pytest.raises(ForestFileError, match="checksum of column 'widths' is wrong"):
        Forest.open(bad, verify=False)[0]


def damages(forest: Forest) -> Iterator[tuple[str, int, int]]:
    """Walk single values that differ from those of a forest."""
    for column, place, value in itertools.product(NODE_COLUMNS, range(forest.node_count), WILD):
        if getattr(forest, column)[place] != value:
            yield column, place, value


def damage(good: Path, bad: Path, column: str, place: int, value: float) -> None:
    """Copy a forest file with one other value, without correcting the checksum."""
    whole = bytearray(good.read_bytes())
    size = int.from_bytes(whole[16:24], "little")
    entry = json.loads(whole[24 : 24 + size])["columns"][column]
    raw = np.array(value, entry["dtype"]).tobytes()
    start = 24 + size + entry["offset"] + place * len(raw)
    whole[start : start + len(raw)] = raw
    bad.write_bytes(whole)


def plain_tree(forest: Forest, number: int) -> Tree | None:
    """Build a tree from the columns, node after node; None if they describe none."""
    nodes = range(int(forest.offsets[number]), int(forest.offsets[number + 1]))
    children: list[list[Tree | None]] = []
    for row in nodes:
        if not 0 <= forest.widths[row] < 10**6:
            return None
        children.append([None] * int(forest.widths[row]))
    for place, row in enumerate(nodes):
        label, parent, slot = int(forest.labels[row]), int(forest.parents[row]), int(forest.slots[row])
        if not -len(forest.vectors) <= label < len(forest.vocabulary):
            return None
        tree = Tree(forest.vocabulary[label] if label >= 0 else forest.vectors[-1 - label].tolist(), children[place])
        if place + 1 == len(nodes):
            return tree if parent == -1 else None
        if not (place < parent < len(nodes) and 0 <= slot < len(children[parent])) or children[parent][slot]:
            return None
        children[parent][slot] = tree
    return None


def one_tree(forest: Forest, number: int) -> Tree:
    return forest[number]


def a_choice(forest: Forest, number: int) -> Tree:
    return forest[[number]][0]


def a_batch(forest: Forest, number: int) -> Tree:
    batch = forest.batch([number])
    labels = [
        forest.vocabulary[code] if code >= 0 else tuple(batch.vectors[-1 - code].tolist())
        for code in batch.labels.tolist()
    ]
    widths = forest.widths[forest.node_rows([number])].tolist()  # a batch has no widths
    children: list[list[Tree | None]] = [[None] * width for width in widths]
    for node, (parent, slot) in enumerate(zip(batch.parents.tolist(), batch.slots.tolist(), strict=True)):
        tree = Tree(labels[node], children[node])
        if parent >= 0:
            children[parent][slot] = tree
    return tree


def whole_choice(forest: Forest) -> None:
    Forest.concatenate([forest, forest])


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.forest"
    whole = saved(path)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(
        FileError, match="expected to write the whole file, got No space left on device; nothing was changed"
    ):
        Forest(["other"]).save(path)
    assert path.read_bytes() == whole and list(tmp_path.iterdir()) == [path]


@given(any_tree)
def test_any_single_tree_survives_the_file(tree: Tree) -> None:
    lengths = {len(node.label) for node in tree.preorder() if isinstance(node.label, tuple)}
    if len(lengths) <= 1:
        assert list(Forest([tree])) == [tree]


def test_absent_children_that_no_memory_could_hold_are_refused(tmp_path: Path) -> None:
    forest = Forest(["(f a)"])
    forest.widths[1] = 2**31 - 1
    forest.save(tmp_path / "wide.forest")
    with pytest.raises(ForestFileError, match="tree 0 has more than 134,217,728 child slots"):
        Forest.open(tmp_path / "wide.forest")
