import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from treefold import Embedding, Forest, LeafLSTM, PerLabel, Thermometer, TreeLSTM, TreeRNN
from treefold.analysis.description import describe
from treefold.errors import ConfigurationError, ReadError, TreeError
from treefold.nn.aggregators import Blockwise, Canonical, Complex, Tucker
from treefold.nn.labels import Features
from treefold.training.build import Labels, build_model, facts_of, resolve
from treefold.training.examples import Examples
from treefold.training.saving import SavedModel, load_model
from treefold.training.settings import ModelSettings, RunSettings, TrainingSettings, to_toml
from treefold.training.trainer import fit


def test_the_paper_s_listops_model_is_built_from_the_trees_alone() -> None:
    facts = facts_of(Forest(["(MAX 3 (MIN 10 2) _ 1 7)"]))
    settings, labels = resolve(ModelSettings(aggregator="tucker", state_size=20, rank=3), facts)
    assert labels == Labels(("MAX", "MIN"), ("1", "2", "3", "7", "10")) and settings.arity == 5
    model = build_model(settings, labels, "tree", 10)
    cell = model.encoder.cells["up"]
    assert (
        isinstance(cell, PerLabel)
        and isinstance(cell.cell_of(2), LeafLSTM)
        and isinstance(model.encoder.labels, Thermometer)
    )
    operator = cell.cell_of(0)
    assert isinstance(operator, TreeLSTM) and isinstance(operator.input_gate, Tucker) and operator.input_gate.rank == 3


def test_labels_that_stand_at_leaves_and_inner_nodes_share_one_cell() -> None:
    settings, labels = resolve(ModelSettings(), facts_of(Forest(["(a b (c a))"])))
    assert not settings.per_label and labels == Labels((), ("a", "b", "c")) and settings.labels == "onehot"


def test_wide_trees_get_a_form_that_takes_any_number() -> None:
    settings, _ = resolve(ModelSettings(), facts_of(Forest(["(f a a a a a a a)"])))
    assert settings.shared and settings.aggregator == "canonical" and settings.arity == 7


def test_many_labels_are_embedded_and_vectors_taken_as_they_are() -> None:
    many = Forest([f"(f{number} g{number} f{number + 1})" for number in range(80)])
    settings, _ = resolve(ModelSettings(), facts_of(many))
    assert settings.labels == "embedding" and settings.label_size == 32
    settings, labels = resolve(ModelSettings(), facts_of(Forest(["(f [1 2] [3 4])"])))
    assert settings.labels == "numeric" and settings.label_size == 2 and labels == Labels(("f",), ())


def test_settings_that_do_not_fit_the_trees_are_refused() -> None:
    with pytest.raises(TreeError, match="at least one tree to learn from, got none"):
        facts_of(Forest([]))
    vectors = facts_of(Forest(["(f [1 2])"]))
    with pytest.raises(
        ConfigurationError, match="labels='onehot' expects text labels, got vectors of 2; use 'numeric'"
    ):
        resolve(ModelSettings(labels="onehot"), vectors)
    with pytest.raises(ConfigurationError, match=r"labels='numeric' expects vectors as labels .* got 'a'"):
        resolve(ModelSettings(labels="numeric"), facts_of(Forest(["(f a)"])))
    with pytest.raises(ConfigurationError, match="per_label=true expects inner nodes with text labels"):
        resolve(ModelSettings(per_label=True), facts_of(Forest(["a"])))


@pytest.mark.parametrize("shared", [None, False, True])
@pytest.mark.parametrize("aggregator", ["mean", "positional", "max"])
def test_settings_say_that_normalised_forms_are_shared(aggregator: str, shared: bool | None) -> None:
    settings, labels = resolve(ModelSettings(aggregator=aggregator, shared=shared), facts_of(Forest(["(f a b)"])))
    assert settings.shared and settings.rank is None
    assert build_model(settings, labels, "tree", 2).encoder.cell("up").arity_of(0) is None


def test_options_of_a_form_reach_it_and_are_saved(tmp_path: Path) -> None:
    given = ModelSettings(aggregator="blockwise", state_size=6, block_size=3, start="product", shared=True, cell="rnn")
    settings, labels = resolve(given, facts_of(Forest(["(f a b)"])))
    model = build_model(settings, labels, "tree", 2)
    form = model.encoder.cell("up").get_submodule("cells.0.transition")
    assert isinstance(form, Blockwise) and (form.block_size, form.start) == (3, "product")
    saved = SavedModel(model, RunSettings(model=settings), labels, ("no", "yes"), 2)
    saved.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.settings.model == settings
    assert torch.equal(again.model(Forest(["(f (f b a) a)"])), model(Forest(["(f (f b a) a)"])))


def test_an_option_is_refused_for_a_form_that_has_none() -> None:
    facts = facts_of(Forest(["(f a b)"]))
    message = (
        "block_size expects a form that has this option, such as blockwise, got block_size=2 for aggregator='{}'; "
        "leave it out, or choose another aggregator"
    )
    for given in ({}, {"aggregator": "full"}):
        with pytest.raises(ConfigurationError, match=message.format(given.get("aggregator", "tucker"))):
            resolve(ModelSettings(block_size=2, **given), facts)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="start expects a form that has this option, such as blockwise, got"):
        resolve(ModelSettings(start="product", aggregator="sum"), facts)
    settings, labels = resolve(ModelSettings(aggregator="blockwise", block_size=7), facts)
    with pytest.raises(
        ConfigurationError, match="expects a block_size that divides state_size=20, got 7; choose one of 1,"
    ):
        build_model(settings, labels, "tree", 2)


def test_sums_bounds_hidden_layers_and_forms_of_operators_are_built_and_saved(tmp_path: Path) -> None:
    given = ModelSettings.of(
        {
            "cell": "rnn",
            "aggregator": "complex+sum",
            "bound": "disc",
            "rank": 5,
            "state_size": 6,
            "shared": True,
            "cell_hidden": 7,
            "activation": "sharp-sigmoid",
            "aggregators": {
                "MAX": {"aggregator": "canonical", "bound": "unit", "rank": 2},
                "MED": "sum",
                "SM": {"aggregator": "tucker", "arity": 3},
                "MIN": "complex",
            },
        }
    )
    forest = Forest(["(MAX 1 (MIN 2 3) (MED (SM 1 2) (ADD 1 2) 3))"])
    settings, labels = resolve(given, facts_of(forest))
    torch.manual_seed(0)
    model = build_model(settings, labels, "tree", 2)
    cell = model.encoder.cell("up")
    assert isinstance(cell, PerLabel)
    cells = {name: cell.cell_of(number) for number, name in enumerate(cell.operators)}
    forms = {name: each.transition for name, each in cells.items() if isinstance(each, TreeRNN)}
    assert {name: type(form).__name__ for name, form in forms.items()} == {
        "ADD": "Combined",
        "MAX": "Canonical",
        "MED": "Sum",
        "MIN": "Complex",
        "SM": "Tucker",
    }
    complex_part = forms["ADD"].summands[0]
    assert isinstance(complex_part, Complex) and (complex_part.bound, complex_part.rank) == ("disc", 5)
    own = forms["MAX"], forms["MIN"]
    assert [(form.bound, form.rank) for form in own if isinstance(form, Canonical)] == [("unit", 2), (None, 5)]
    assert forms["SM"].arity == 3 and forms["SM"].rank == 5 and forms["MAX"].arity == 3
    assert all(each.hidden is not None and each.activation == "sharp-sigmoid" for each in cells.values())
    saved = SavedModel(model, RunSettings(model=settings), labels, ("no", "yes"), 2)
    saved.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.settings.model == settings and torch.equal(again.model(forest), model(forest))
    facts = json.dumps(describe(again, tmp_path / "model"))
    assert "Combined" in facts and "Complex" in facts and "disc" in facts


def test_the_rank_of_a_sum_with_a_tucker_part_stays_small() -> None:
    facts = facts_of(Forest(["(f a b)"]))
    assert resolve(ModelSettings(aggregator="tucker+sum"), facts)[0].rank == 3
    assert resolve(ModelSettings(aggregator="complex+sum"), facts)[0].rank == 20
    settings, labels = resolve(ModelSettings.of({"aggregator": "sum", "aggregators": {"f": "tucker"}}), facts)
    assert build_model(settings, labels, "tree", 2).encoder.cell("up").get_submodule("cells.0.input_gate").rank == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"aggregators": {"g": "sum"}}, "aggregators expects one of the operators 'f', got 'g'; leave it out"),
        ({"aggregators": {"f": "sum"}, "per_label": False}, "aggregators expects per_label=true, got 'f'; leave it"),
        (
            {"aggregators": {"f": {"aggregator": "sum", "bound": "unit"}}},
            "bound expects a form that has this option, such as canonical or complex, got bound='unit' for aggregator='sum'",
        ),
        ({"aggregator": "tucker+sum", "bound": "disc"}, "bound expects a form that has this option"),
        (
            {"cell": "lstm", "cell_hidden": 5},
            "cell_hidden expects a cell that has this option, such as rnn, got cell_h",
        ),
        ({"cell": "gru", "activation": "clamp"}, "got activation='clamp' for cell='gru'; leave it out, or choose anot"),
    ],
)
def test_forms_and_options_that_do_not_fit_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resolve(ModelSettings.of(given), facts_of(Forest(["(f a b)"])))


def test_bounds_and_ranks_that_the_form_refuses_are_told_when_it_is_built() -> None:
    facts = facts_of(Forest(["(f a b)"]))
    for given, message in (
        ({"aggregator": "complex+sum", "bound": "unit"}, "expects bound to be 'disc' or None over the complex numbers"),
        ({"aggregator": "sum+mean", "rank": 3}, "expects no rank, got rank=3"),
    ):
        settings, labels = resolve(ModelSettings.of(given), facts)
        with pytest.raises(ConfigurationError, match=message):
            build_model(settings, labels, "tree", 2)


def test_the_old_name_of_a_form_is_translated() -> None:
    settings = ModelSettings.of({"aggregator": "hadamard"})
    assert settings == ModelSettings(aggregator="blockwise") and 'aggregator = "blockwise"' in to_toml(settings)
    assert ModelSettings.of({"aggregator": "none"}).aggregator is None


def test_a_model_that_was_saved_under_the_old_name_loads(tmp_path: Path) -> None:
    settings, labels = resolve(ModelSettings(aggregator="blockwise", state_size=4), facts_of(Forest(["(f a b)"])))
    model = build_model(settings, labels, "tree", 2)
    SavedModel(model, RunSettings(model=settings), labels, ("no", "yes"), 2).save(tmp_path / "model")
    config = tmp_path / "model" / "config.toml"
    text = config.read_text(encoding="utf-8")
    assert text.count("blockwise") == 1 and "block_size" not in text
    config.write_text(text.replace("blockwise", "hadamard"), encoding="utf-8")
    again, forest = load_model(tmp_path / "model"), Forest(["(f (f b a) a)"])
    assert again.settings.model == settings and torch.equal(again.model(forest), model(forest))


# Open vocabularies ------------------------------------------------------------------------------------------------------

SENTENCES = Forest(["(saw nsubj:Dog obj:cat)", "(saw nsubj:cat punct::)", "(ran nsubj:dog)"] * 3)


def chosen(forest: Forest = SENTENCES, **settings: Any) -> tuple[ModelSettings, Labels]:
    return resolve(ModelSettings(state_size=4, **settings), facts_of(forest))


def test_labels_of_too_few_trees_have_no_row_of_their_own() -> None:
    forest = Forest(["(f a a)", "(f b)", "(f (g b))"])
    settings, labels = chosen(forest, min_count=2, per_label=False)
    assert labels == Labels((), ("<unk>", "b", "f")) and (settings.labels, settings.label_size) == ("onehot", 3)
    settings, labels = chosen(forest, min_count=2)  # operators are kept
    assert labels == Labels(("f", "g"), ("<unk>", "b"))
    assert chosen(forest, max_labels=1, per_label=False)[1].names == ("<unk>", "f")
    assert chosen(forest, min_count=9, per_label=False, labels="embedding")[1].names == ("<unk>",)
    assert chosen(Forest(["(f 10)", "(f 9)", "(f 9)"]), min_count=2, labels="thermometer")[1].names == ("9",)
    assert chosen(Forest([f"(f 1 {'9' * 5000})"]))[0].labels == "onehot"  # more digits than Python reads as a number
    assert chosen(Forest(["(f 1 20)"]))[0].labels == "thermometer"
    assert chosen(Forest(["(<unk> a)"]), label_dropout=0.1)[1] == Labels(("<unk>",), ("a",))  # an operator of this name
    model = build_model(*chosen(forest, min_count=2, label_dropout=0.25), "tree", 2)
    assert model.encoder.label_dropout == 0.25


def test_edge_labels_are_features_of_their_own() -> None:
    settings, labels = chosen(edge_labels=True)
    assert settings.labels == "embedding" and not settings.per_label
    assert labels.names == ("<unk>", "<unk>:", ":", "Dog", "cat", "dog", "nsubj:", "obj:", "punct:", "ran", "saw")
    encoder = build_model(settings, labels, "tree", 2).encoder
    assert isinstance(encoder.labels, Features) and encoder.labels.edges and not encoder.unknown_labels(SENTENCES)
    assert encoder.unknown_labels(Forest(["(saw obj:dog iobj:dog)"])) == {"iobj:dog": 1}
    rare = chosen(Forest(["(saw nsubj:a)", "(saw nsubj:b)", "(saw obj:b)"]), edge_labels=True, min_count=2)[1]
    assert rare.names == ("<unk>", "<unk>:", "b", "nsubj:", "saw")
    for kind in ("onehot", "thermometer"):
        with pytest.raises(
            ConfigurationError, match=f"edge_labels expects labels to be one of 'embedding', 'ngrams', got '{kind}'"
        ):
            chosen(edge_labels=True, labels=kind)
    with pytest.raises(ConfigurationError, match=r"edge_labels expects labels to be one of .*, got 'numeric'"):
        chosen(Forest(["[1 2]"]), edge_labels=True)
    with pytest.raises(ConfigurationError, match="edge_labels=true expects one cell for all nodes, got per_label=true"):
        chosen(edge_labels=True, per_label=True)
    with pytest.raises(ConfigurationError, match="label_dropout expects labels to be one of"):
        chosen(Forest(["[1 2]"]), label_dropout=0.5)


def written(folder: Path) -> str:
    (folder / "words.txt").write_text("dog 1 2 3\nnsubj: 9 9 9\n: 4 5 6\nsaw 7 8 9\n", encoding="utf-8")
    return str(folder / "words.txt")


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", ["embedding", "ngrams"])
@pytest.mark.parametrize("edges", [False, True])
def test_a_model_starts_with_word_vectors_and_loads_without_their_file(
    tmp_path: Path, kind: str, edges: bool, frozen: bool
) -> None:
    path = written(tmp_path)
    forest = SENTENCES if edges else Forest(["(saw Dog cat)", "(saw cat :)", "(ran dog)"] * 3)
    settings, labels = chosen(
        forest, embeddings=path, embeddings_frozen=frozen, labels=kind, edge_labels=edges, per_label=False
    )
    assert settings.label_size == 3 and labels.names[-4:] == (":", "Dog", "dog", "saw")
    torch.manual_seed(0)
    model = build_model(settings, labels, "tree", 2)
    table = model.encoder.labels
    assert isinstance(table, (Embedding, Features)) and table.learnt == len(labels.names) - 4 * frozen

    def rows() -> dict[str, list[float]]:
        whole = torch.cat([table.table[: table.learnt], table.frozen[:-1]])
        return dict(zip(labels.names, whole.tolist(), strict=True))

    start = rows()
    assert start[":"] == [4, 5, 6] and start["Dog"] == start["dog"] == [1, 2, 3] and start["saw"] == [7, 8, 9]
    assert start["<unk>"] == [0, 0, 0] and 0 < max(map(abs, start["cat"])) < 0.5
    assert not edges or start["nsubj:"] != [9, 9, 9]
    examples = Examples(forest, np.array([0, 1, 1] * 3), "tree")
    training = TrainingSettings(epochs=2, optimiser="adamw", weight_decay=0.1, l2=0.1, batch_size=3)
    fit(model, examples, training)
    after = rows()
    assert after["cat"] != start["cat"] and (after["dog"] == start["dog"]) == (after["saw"] == start["saw"]) == frozen
    SavedModel(model, RunSettings(model=settings, training=training), labels, ("a", "b"), 2).save(tmp_path / "model")
    (tmp_path / "words.txt").unlink()
    saved = load_model(tmp_path / "model")
    new = Forest(["(saw nsubj:wolf obj:Dog)", "(flew x:dog)"])
    with torch.no_grad():
        torch.testing.assert_close(saved.model(new), model(new))


def test_word_vectors_that_do_not_fit_are_told(tmp_path: Path) -> None:
    path, forest = written(tmp_path), Forest(["(saw dog cat)"])
    with pytest.raises(
        ConfigurationError, match=r"label_size expects the length of the vectors in .*, 3, got 5; leave it out"
    ):
        chosen(forest, embeddings=path, label_size=5)
    with pytest.raises(
        ConfigurationError, match="embeddings expects labels to be one of 'embedding', 'ngrams', got 'onehot'"
    ):
        chosen(forest, embeddings=path, labels="onehot")
    with pytest.raises(
        ConfigurationError, match="embeddings_frozen=true expects embeddings, a file of word vectors, got none"
    ):
        chosen(forest, embeddings_frozen=True)
    with pytest.raises(
        ReadError, match=r"words.txt: expected vectors of some of the 1 labels \('x', …\), got 4 other words"
    ):
        chosen(Forest(["x"]), embeddings=path)
    with pytest.raises(ReadError, match=r"none.txt: expected a file that can be read, got No such file"):
        chosen(forest, embeddings=str(tmp_path / "none.txt"))


def test_new_identifiers_are_no_blanks_with_ngrams() -> None:
    settings, labels = chosen(Forest(["(f get_size)", "(f get_name)"]), labels="ngrams")
    assert labels == Labels(("f",), ("<unk>", "get_name", "get_size"))
    encoder = build_model(settings, labels, "tree", 2).encoder
    roots = encoder(Forest(["(f get_item)", "(f get_page)", "(f zzz)"])).roots
    assert not torch.equal(roots[0], roots[1]) and not torch.equal(roots[1], roots[2])
    assert encoder.unknown_labels(Forest(["(f get_item)"])) == {"get_item": 1}
