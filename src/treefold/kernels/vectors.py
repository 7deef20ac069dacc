"""Eight numbers at once: the few operations that the inner loops of matrix products are written in.

LLVM turns plain loops into vector code by itself, but keeps no block of sums in registers. With values of a vector type it does:
eight numbers are one value, which a variable of a kernel may hold.
"""

from typing import Any, Final

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import models, register_model

from treefold.kernels.compile import operation

Lanes = Any
"""What holds eight numbers."""
LANES: Final = 8
"""One register of AVX for single precision. Where registers are shorter, LLVM takes several."""


class VectorType(types.Type):
    """The type of eight floating-point numbers."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"vector of {LANES} {dtype}")


@register_model(VectorType)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: VectorType) -> None:
        element = ir.FloatType() if kind.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, kind, ir.VectorType(element, LANES))  # type: ignore[no-untyped-call]


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Return a pointer to an entry of an array without gaps, counted from its first."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _places(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Return a pointer to eight entries."""
    eight = ir.VectorType(context.get_data_type(array_type.dtype), LANES)
    return builder.bitcast(_place(context, builder, array_type, array, index), eight.as_pointer())


def _bytes(array_type: Any) -> int:
    return int(array_type.dtype.bitwidth // 8)


@operation
def entry(context: Any, array: Any, index: Any) -> Any:
    """Return ``array.flat[index]``, which is not negative: a plain index is first looked at whether it counts from the end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_place(context, builder, signature.args[0], *arguments))

    return array.dtype(array, types.intp), generate


@operation
def load(context: Any, array: Any, index: Any) -> Any:
    """Return ``array.flat[index : index + 8]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _places(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load(place, align=_bytes(signature.args[0]))

    return VectorType(array.dtype)(array, types.intp), generate


@operation
def store(context: Any, array: Any, index: Any, vector: Any) -> Any:
    """Set ``array.flat[index : index + 8]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _places(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store(arguments[2], place, align=_bytes(signature.args[0]))
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@operation
def nothing(context: Any, array: Any) -> Any:
    """Return eight zeros of the type that an array has."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return VectorType(array.dtype)(array), generate


def _multiply_add(builder: Any, one: Any, other: Any, more: Any) -> Any:
    kind = one.type
    name = f"llvm.fmuladd.v{LANES}{'f32' if kind.element == ir.FloatType() else 'f64'}"
    signature = ir.FunctionType(kind, [kind] * 3)
    function = cgutils.get_or_insert_function(builder.module, signature, name)  # type: ignore[no-untyped-call]
    return builder.call(function, [one, other, more])


@operation
def add_scaled(context: Any, total: Any, factor: Any, vector: Any) -> Any:
    """Return ``total + factor * vector`` for a number and two vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total, factor, vector = arguments
        empty = ir.Constant(vector.type, ir.Undefined)
        first = builder.insert_element(empty, factor, ir.Constant(ir.IntType(32), 0))
        all_of_it = builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))
        return _multiply_add(builder, all_of_it, vector, total)

    return total(total, vector.dtype, vector), generate


@operation
def add_product(context: Any, total: Any, one: Any, other: Any) -> Any:
    """Return ``total + one * other`` for three vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _multiply_add(builder, arguments[1], arguments[2], arguments[0])

    return total(total, one, other), generate


@operation
def sum_of(context: Any, vector: Any) -> Any:
    """Return the sum of the eight numbers: of halves, of their halves, and so on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, lanes = arguments[0], LANES
        while lanes > 1:
            lanes //= 2
            halves = []
            for start in (0, lanes):
                chosen = ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(start, start + lanes)))
                halves.append(builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), chosen))
            value = builder.fadd(*halves)
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return vector.dtype(vector), generate


@operation
def last_of(context: Any, vector: Any, count: Any) -> Any:
    """Return the last numbers of a vector, and zeros before them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, count = arguments
        lanes = ir.VectorType(count.type, LANES)
        empty = ir.Constant(lanes, ir.Undefined)
        first = builder.insert_element(empty, builder.sub(count.type(LANES), count), ir.Constant(ir.IntType(32), 0))
        least = builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))
        kept = builder.icmp_signed(">=", ir.Constant(lanes, list(range(LANES))), least)
        return builder.select(kept, vector, ir.Constant(vector.type, None))

    return vector(vector, types.intp), generate
