r"""The forms that take one child after the other: `Sum`, `Canonical` and `TensorTrain`.

.. math:: b + W x + \sum_j U_j h_j, \qquad W \bar x \circ U_1 \bar h_1 \circ \dots \circ U_L \bar h_L, \qquad
          a(\bar x)^\top A_1(\bar h_1) \cdots A_L(\bar h_L)

The linear images of the children, and of the label, are there already: `States.projected`, `States.label`. An absent child of
a slot with its own weights has the bias for its image; where the slots are shared it changes nothing and is passed over.
"""

from treefold.kernels.compiled import inlined, inner
from treefold.kernels.linear import copy
from treefold.kernels.scratch import Scratch
from treefold.kernels.tables import (
    ARITY,
    CORE,
    CORE_SIZE,
    FIRST_SET,
    LABEL,
    RANK,
    SHARED,
    START,
    WIDTH,
    Floats,
    Gradients,
    Ints,
    Plan,
    States,
    Weights,
)

# Axes:  C state size · R rank · G gates


@inlined
def sum_forward(weights: Weights, plan: Plan, states: States, unit: int, operator: Ints) -> None:
    """Add up the bias and the images: (G·C,)."""
    width = weights.gates * weights.state_size
    out, bias = states.gates[unit], weights.values[operator[CORE] : operator[CORE] + width]
    for k in range(width):
        out[k] = bias[k]
    if operator[LABEL] > 0:
        image = states.label[plan.label_of[unit]]
        for k in range(width):
            out[k] += image[k]
    for t in range(plan.children[unit], plan.children[unit + 1]):
        image = states.projected[plan.child_edge[t]]
        for k in range(width):
            out[k] += image[k]


@inlined
def sum_backward(weights: Weights, plan: Plan, unit: int, operator: Ints, gradients: Gradients) -> None:
    """Hand the gradient to the bias and all images."""
    width = weights.gates * weights.state_size
    delta, bias = gradients.delta[unit], gradients.values[operator[CORE] : operator[CORE] + width]
    for k in range(width):
        bias[k] += delta[k]
    if operator[LABEL] > 0:
        image = gradients.label[plan.label_of[unit]]
        for k in range(width):
            image[k] += delta[k]
    for t in range(plan.children[unit], plan.children[unit + 1]):
        image = gradients.projected[plan.child_edge[t]]
        for k in range(width):
            image[k] += delta[k]


@inlined
def image_of(
    weights: Weights, plan: Plan, operator: Ints, slot: int, t: int, projected: Floats, values: Floats
) -> Floats:
    """Return the image of child t, or the bias of its slot where t is -1; or the gradient of either."""
    if t >= 0:
        image: Floats = projected[plan.child_edge[t]]
        return image
    chosen = weights.sets[operator[FIRST_SET] + slot]
    start = chosen[START] + weights.state_size * chosen[WIDTH]
    return values[start : start + chosen[WIDTH]]


@inlined
def child_at(plan: Plan, unit: int, operator: Ints, place: int, t: int) -> int:
    """Return child t if it is the next one in this place, -1 where the slot is empty; shared slots have no empty places."""
    if t < plan.children[unit + 1] and (operator[SHARED] or plan.child_slot[t] == place):
        return t
    return -1


@inlined
def places(plan: Plan, unit: int, operator: Ints) -> int:
    """Return how many factors the children of a unit give."""
    return int(plan.children[unit + 1] - plan.children[unit] if operator[SHARED] else operator[ARITY])


@inlined
def canonical_products(
    weights: Weights, plan: Plan, states: States, scratch: Scratch, unit: int, operator: Ints
) -> int:
    """Write the products of the first factors into ``scratch.products``, (factors+1, G·R); return the number of factors."""
    width = weights.gates * operator[RANK]
    for r in range(width):
        scratch.products[0, r] = 1
    factors = 0
    if operator[LABEL] > 0:
        copy(states.label[plan.label_of[unit], :width], scratch.products[1])
        factors = 1
    t = plan.children[unit]
    for place in range(places(plan, unit, operator)):
        found = child_at(plan, unit, operator, place, t)
        image = image_of(weights, plan, operator, place, found, states.projected, weights.values)
        before, after = scratch.products[factors], scratch.products[factors + 1]
        for r in range(width):
            after[r] = before[r] * image[r]
        t += found >= 0
        factors += 1
    return factors


@inner
def canonical_forward(
    weights: Weights, plan: Plan, states: States, scratch: Scratch, unit: int, operator: Ints
) -> None:
    """Multiply the images: (G·R,)."""
    factors = canonical_products(weights, plan, states, scratch, unit, operator)
    width = weights.gates * operator[RANK]
    copy(scratch.products[factors, :width], states.inner[unit])


@inner
def canonical_backward(
    weights: Weights, plan: Plan, states: States, scratch: Scratch, unit: int, operator: Ints, gradients: Gradients
) -> None:
    """Give each image the gradient times the product of the others: those before it are stored, those behind gathered."""
    factors = canonical_products(weights, plan, states, scratch, unit, operator)
    width = weights.gates * operator[RANK]
    behind = scratch.line
    copy(gradients.inner[unit, :width], behind)
    t = plan.children[unit + 1] - 1
    for place in range(places(plan, unit, operator) - 1, -1, -1):
        found = -1
        if t >= plan.children[unit] and (operator[SHARED] or plan.child_slot[t] == place):
            found = t
        image = image_of(weights, plan, operator, place, found, states.projected, weights.values)
        d_image = image_of(weights, plan, operator, place, found, gradients.projected, gradients.values)
        factors -= 1
        before = scratch.products[factors]
        for r in range(width):
            d_image[r] += behind[r] * before[r]
            behind[r] *= image[r]
        t -= found >= 0
    if operator[LABEL] > 0:
        d_image = gradients.label[plan.label_of[unit]]
        for r in range(width):
            d_image[r] += behind[r]


@inlined
def train_carries(
    weights: Weights, plan: Plan, states: States, scratch: Scratch, unit: int, operator: Ints, gate: int
) -> int:
    """Write the carried vectors into ``scratch.products``, (steps+1, R); return the number of steps."""
    rank = operator[RANK]
    first, t = 0, plan.children[unit]
    if operator[LABEL] > 0:
        copy(states.label[plan.label_of[unit], gate * rank : (gate + 1) * rank], scratch.products[0])
    elif operator[SHARED]:
        start = operator[CORE] + gate * operator[CORE_SIZE]
        copy(weights.values[start : start + rank], scratch.products[0])
    else:
        found = child_at(plan, unit, operator, 0, t)
        image = image_of(weights, plan, operator, 0, found, states.projected, weights.values)
        copy(image[gate * rank : (gate + 1) * rank], scratch.products[0])
        first, t = 1, t + (found >= 0)
    steps = places(plan, unit, operator) - first
    for step in range(steps):
        found = child_at(plan, unit, operator, first + step, t)
        image = image_of(weights, plan, operator, first + step, found, states.projected, weights.values)
        before, after = scratch.products[step], scratch.products[step + 1]
        for r in range(rank):
            after[r] = before[r] if operator[SHARED] else 0
        for q in range(rank):
            carried, row = before[q], image[(gate * rank + q) * rank : (gate * rank + q + 1) * rank]
            for r in range(rank):
                after[r] += carried * row[r]
        t += found >= 0
    return int(steps)


@inner
def train_forward(weights: Weights, plan: Plan, states: States, scratch: Scratch, unit: int, operator: Ints) -> None:
    """Carry a vector through the chain, for each gate: (G·R,)."""
    rank = operator[RANK]
    for gate in range(weights.gates):
        steps = train_carries(weights, plan, states, scratch, unit, operator, gate)
        copy(scratch.products[steps, :rank], states.inner[unit, gate * rank : (gate + 1) * rank])


@inner
def train_backward(
    weights: Weights, plan: Plan, states: States, scratch: Scratch, unit: int, operator: Ints, gradients: Gradients
) -> None:
    """Carry the gradient back through the chain."""
    rank = operator[RANK]
    first = 0 if operator[LABEL] > 0 or operator[SHARED] else 1
    for gate in range(weights.gates):
        steps = train_carries(weights, plan, states, scratch, unit, operator, gate)
        delta, t = scratch.line, plan.children[unit + 1] - 1
        copy(gradients.inner[unit, gate * rank : (gate + 1) * rank], delta)
        for step in range(steps - 1, -1, -1):
            place, found = first + step, -1
            if t >= plan.children[unit] and (operator[SHARED] or plan.child_slot[t] == place):
                found = t
            image = image_of(weights, plan, operator, place, found, states.projected, weights.values)
            d_image = image_of(weights, plan, operator, place, found, gradients.projected, gradients.values)
            before, after = scratch.products[step], scratch.products[step + 1]
            for q in range(rank):
                base = (gate * rank + q) * rank
                row, d_row = image[base : base + rank], d_image[base : base + rank]
                carried, total = before[q], delta[q] if operator[SHARED] else delta.dtype.type(0)
                for r in range(rank):
                    total += row[r] * delta[r]
                    d_row[r] += carried * delta[r]
                after[q] = total  # this carried vector is not needed any more
            copy(after[:rank], delta)
            t -= found >= 0
        if operator[LABEL] > 0:
            d_start = gradients.label[plan.label_of[unit], gate * rank : (gate + 1) * rank]
        elif operator[SHARED]:
            start = operator[CORE] + gate * operator[CORE_SIZE]
            d_start = gradients.values[start : start + rank]
        else:
            found = t if t >= plan.children[unit] else -1
            d_image = image_of(weights, plan, operator, 0, found, gradients.projected, gradients.values)
            d_start = d_image[gate * rank : (gate + 1) * rank]
        for r in range(rank):
            d_start[r] += delta[r]
