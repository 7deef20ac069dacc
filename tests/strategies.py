"""Hypothesis strategies for trees."""

from collections.abc import Sequence

from hypothesis import strategies as st

from treefold import Tree


def trees(
    *, leaves: Sequence[str], operators: Sequence[str], arity: int, max_leaves: int = 8
) -> st.SearchStrategy[Tree]:
    """Trees with labels of two kinds, absent children anywhere, and inner nodes that may have no child at all."""

    def grow(smaller: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        children = st.lists(st.none() | smaller, min_size=0, max_size=arity)
        return st.builds(Tree, st.sampled_from(operators), children)

    return st.recursive(st.builds(Tree, st.sampled_from(leaves)), grow, max_leaves=max_leaves)


any_label = st.text(max_size=6) | st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=3)
any_tree = st.recursive(
    st.builds(Tree, any_label),
    lambda smaller: st.builds(Tree, any_label, st.lists(st.none() | smaller, max_size=4)),
    max_leaves=12,
)
text_tree = trees(leaves=["1", "two", "3 4", "_", ""], operators=["f", "g", "(h"], arity=4, max_leaves=12)
