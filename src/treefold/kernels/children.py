"""What the kernel of a form reads of a unit's children: their images, or their states, or the gradients of either."""

from typing import Any

from treefold.kernels.compile import inlined
from treefold.kernels.records import Gradients, Matrix, Plan, States, Vector, Weights


@inlined
def child_input(weights: Weights, plan: Plan, states: States | Gradients, child: int) -> Vector:
    """Return the state of a child as its parent sees it: scaled by the child's gate, if the cell has gates that come first."""
    if weights.tables.cells[0].edge_cache:
        scaled: Vector = states.edges[plan.child_edge[child]]
        return scaled
    state: Vector = states.memory[plan.child_unit[child]]
    return state


@inlined
def place_count(plan: Plan, unit: int, operator: Any) -> int:
    """Return how many places the children of a unit have: all slots of an operator, or one for each child if they are shared."""
    return int(plan.children[unit + 1] - plan.children[unit] if operator.shared else operator.arity)


@inlined
def is_at(plan: Plan, unit: int, operator: Any, place: int, child: int) -> bool:
    """Say whether a child, one of the list ``plan.child_unit``, is the child of a unit in this place."""
    own = plan.children[unit] <= child < plan.children[unit + 1]
    return bool(own and (operator.shared or plan.child_slot[child] == place))


@inlined
def image_of(
    weights: Weights, plan: Plan, operator: Any, place: int, child: int, projected: Matrix, values: Vector
) -> Vector:
    """Return the image of a child, or the bias of its slot if it is absent, child -1; or the gradient of either."""
    if child >= 0:
        image: Vector = projected[plan.child_edge[child]]
        return image
    slot = weights.tables.slots[operator.first_slot + place]
    start = slot.start + weights.tables.state_size * slot.width
    return values[start : start + slot.width]
