import pytest

from treefold import Forest, LeafLSTM, PerLabel, Thermometer, TreeLSTM
from treefold.errors import ConfigurationError, TreeError
from treefold.nn.aggregators import Tucker
from treefold.training.build import Labels, build_model, facts_of, resolve
from treefold.training.settings import ModelSettings


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
