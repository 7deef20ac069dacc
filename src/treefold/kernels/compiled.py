"""Compilation of the kernels: with `vectors`, the only place that knows numba.

Numba compiles a function anew for each constant among its arguments. Where kernels would pass a plain 0, they pass
``int(np.int64(0))``, which is none.
"""

import functools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba
from numba import carray  # type: ignore[attr-defined]
from numba.core.types import CPointer
from numba.extending import intrinsic

from treefold.kernels.tables import Floats, Ints

Function = TypeVar("Function", bound=Callable[..., object])

# NaN and infinity keep their meaning (no `nnan`, `ninf`), so that a broken model shows; sums may be reordered.
_FAST: Final = {"contract", "reassoc", "nsz", "arcp", "afn"}


def planner(function: Function) -> Function:
    """Compile a function that is called from Python and makes arrays."""
    return _compile(function, no_cfunc_wrapper=True)


def kernel(function: Function) -> Function:
    """Compile a function that is called from Python and makes no array, like `inner`."""
    return _compile(function, no_cfunc_wrapper=True, _nrt=False)


def allocating(function: Function) -> Function:
    """Compile a function that only kernels call: without the way in from Python, which takes long to compile."""
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inner(function: Function) -> Function:
    """Compile a function that only kernels call, and that makes no array: no references are counted, which costs time too.

    It may take views of its arguments, but not return them.
    """
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


def inlined(function: Function) -> Function:
    """Copy a function into those that call it, so that it may return a view in functions that count no references."""
    return _compile(function, inline="always")


def _compile(function: Function, **more: Any) -> Function:
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "boundscheck": False,
        "fastmath": _FAST,
        **more,
    }
    try:
        compiled: Function = numba.njit(cache=True, **options)(function)  # kept on disk
    except RuntimeError:  # no directory for the cache can be written
        return cast(Function, numba.njit(**options)(function))
    # Numba compiles a function anew when its own file was changed. Here files call each other: after an update, what one of
    # them left on disk does not fit the others any more.
    file = _cache_file(compiled)
    if hasattr(file, "_source_stamp"):
        file._source_stamp = (file._source_stamp, _fingerprint())
    return compiled


@functools.cache
def _fingerprint() -> int:
    """Return a number that changes with any of the kernels' files."""
    paths = sorted(Path(__file__).parent.glob("*.py"))
    return zlib.crc32(b"".join(path.read_bytes() for path in paths)) if paths else 0


def _cache_file(function: object) -> Any:
    return getattr(getattr(function, "_cache", None), "_cache_file", None)


def is_on_disk(function: Callable[..., object]) -> bool:
    """Say whether numba has kept compiled forms of a kernel, as far as can be told."""
    file = _cache_file(function)
    return hasattr(file, "_load_index") and bool(file._load_index())


def compile_for(function: Callable[..., object], *examples: object) -> None:
    """Compile a kernel for arguments of the types that examples have; kept on disk, as if it had been called."""
    if hasattr(function, "compile"):
        function.compile(tuple(map(numba.typeof, examples)))


@intrinsic
def _pointer(context: Any, address: Any, like: Any) -> Any:
    """Turn an address into a pointer to numbers of the type that an array has."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return CPointer(like.dtype)(address, like), generate  # type: ignore[no-untyped-call]


@planner
def collect(addresses: Ints, copies: Ints, result: Floats) -> None:
    """Copy numbers from several places of memory into one array.

    ``copies`` (n, 6): from which, where in it, where to, how many in a row, how many rows, how far apart they are here.
    """
    for index in range(len(copies)):
        start, target, count = copies[index, 1], copies[index, 2], copies[index, 3]
        rows, apart = copies[index, 4], copies[index, 5]
        source = carray(_pointer(addresses[copies[index, 0]], result), start + rows * count)  # type: ignore[call-arg]
        if count >= rows:
            for row in range(rows):
                for k in range(count):
                    result[target + row * apart + k] = source[start + row * count + k]
        else:
            for k in range(count):
                for row in range(rows):
                    result[target + row * apart + k] = source[start + row * count + k]
