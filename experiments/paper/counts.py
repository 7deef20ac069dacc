r"""The paper's count of parameters: "the number of parameters used to represent a single aggregation function in each model".

Its tables count per operator, without a label mode, without the bias of the sum and without the output matrix Q.
"""

from collections.abc import Callable

from treefold.errors import ConfigurationError, require_choice, require_positive

_COUNTS: dict[str, Callable[[int, int, int], int]] = {
    "full": lambda c, arity, r: (c + 1) ** arity * c,
    "sum": lambda c, arity, r: arity * c**2,
    "tucker": lambda c, arity, r: arity * c * r + r * (r + 1) ** arity,
}


def counted_parameters(aggregator: str, *, state_size: int, arity: int, rank: int | None = None) -> int:
    r"""Return "N par." of the paper's tables for one aggregation.

    .. math:: (c+1)^L c \;\text{(full)}, \qquad L c^2 \;\text{(sum)}, \qquad L c r + r (r+1)^L \;\text{(Tucker)}

    >>> counted_parameters("tucker", state_size=20, arity=5, rank=3)
    3372
    """
    require_choice("counted_parameters", "aggregator", aggregator, _COUNTS)
    require_positive("counted_parameters", state_size=state_size, arity=arity)
    if aggregator == "tucker" and rank is None:
        raise ConfigurationError("counted_parameters expects a rank for 'tucker', got none.")
    return _COUNTS[aggregator](state_size, arity, rank or 0)
