"""Compilation of the kernels with numba, and the cache of compiled kernels.

Numba optimises a function again in every function that calls it. So the functions of forms and cells are compiled by themselves,
and the passes call them by their addresses (`call`): a model compiles the functions that it uses, each once, and nothing else.

Numba also compiles a function again for each constant among its arguments. Kernels pass ``int(np.int64(0))`` instead of 0.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeVar, cast, get_args, get_origin, get_type_hints

import numba
import numpy as np
from numba.core import caching, cgutils, types
from numba.core.imputils import impl_ret_borrowed
from numba.core.serialize import dumps
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model
from numba.np.arrayobj import make_array, populate_array

from treefold.errors import FileError
from treefold.files import atomic_file
from treefold.kernels.threads import lock_for_forks

Function = TypeVar("Function", bound=Callable[..., object])
logger = logging.getLogger("treefold")

# NaN and infinity keep their meaning (no `nnan`, `ninf`), so that a broken model shows; sums may be reordered.
_FAST: Final = {"contract", "reassoc", "nsz", "arcp", "afn"}
_KEPT_VERSIONS: Final = 6
_CHECKSUM: Final = 4  # bytes
_VERSION: Final = re.compile(r"python\d+\.\d+-numba.+-[0-9a-f]{8}")


def entry_point(function: Function) -> Function:
    """Compile a function that Python calls."""
    return _compile(function, no_cfunc_wrapper=True)


def kernel(function: Function) -> Function:
    """Compile a function that only kernels call and that allocates nothing, so that numba need not count references.

    It may make views of its arguments, but not return them.
    """
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


def allocating(function: Function) -> Function:
    """Compile a function that only kernels call and that makes arrays."""
    return _compile(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined(function: Function) -> Function:
    """Copy a function into its callers, so that it may return a view."""
    return _compile(function, inline="always")


def _compile(function: Function, **options: Any) -> Function:
    compiled = numba.njit(nogil=True, error_model="numpy", boundscheck=False, fastmath=_FAST, **options)(function)
    if cache_folder() is not None and "inline" not in options:
        with contextlib.suppress(RuntimeError):  # numba has no place for a function that was typed at a prompt
            compiled._cache = _Cache(function)
    return cast(Function, compiled)


# The cache -------------------------------------------------------------------------------------------------------------


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder of compiled kernels for these versions of Python, numba and the kernels; None if none can be written.

    It is in the user's cache (``TREEFOLD_CACHE_DIR``, ``XDG_CACHE_HOME``, …), so that environments with equal versions share it.
    """
    home = os.environ.get("TREEFOLD_CACHE_DIR")
    if not home:
        default = {"darwin": "~/Library/Caches", "win32": os.environ.get("LOCALAPPDATA", "~/AppData/Local")}
        user = os.environ.get("XDG_CACHE_HOME") or default.get(sys.platform, "~/.cache")
        home = f"{user}/treefold"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}-numba{numba.__version__}-{_fingerprint():08x}"
    try:
        # Absolute, since the helper process has another working directory.
        folder = Path(home).expanduser().absolute() / "kernels" / version
        is_new = not folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        os.utime(folder)  # it is in use
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        logger.info("%s cannot be written: compiled kernels are not kept", home)
        return None
    if is_new:
        _forget_versions(folder.parent)
    return folder


def _forget_versions(folder: Path) -> None:
    """Remove kernels of versions that were not used for long; other folders of the user stay."""
    with contextlib.suppress(OSError):  # another process may have removed them
        versions = [each for each in folder.iterdir() if _VERSION.fullmatch(each.name)]
        versions.sort(key=lambda each: each.stat().st_mtime, reverse=True)
        for old in versions[_KEPT_VERSIONS:]:
            shutil.rmtree(old, ignore_errors=True)


def _fingerprint() -> int:
    """Return a checksum of the files of this folder: forms and cells call them, so a change in one outdates all kernels."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))


class _Locator(caching._CacheLocator):
    def __init__(self, function: Any, path: str) -> None:
        # Numba looks at the function's own file alone; kernels that it imports from other files count too.
        called = {each.__code__.co_filename for each in function.__globals__.values() if hasattr(each, "py_func")}
        files = sorted(each for each in {path, *called} if Path(each).is_file())
        self._module, self._stamp = function.__module__, zlib.crc32(b"".join(Path(each).read_bytes() for each in files))

    def get_cache_path(self) -> str:
        return str(cache_folder())

    def get_source_stamp(self) -> int:
        return self._stamp

    def get_disambiguator(self) -> str:
        return str(self._module)

    @classmethod
    def from_function(cls, py_func: Callable[..., object], py_file: str) -> "_Locator | None":
        return cls(py_func, py_file) if Path(py_file).is_file() else None  # a notebook's functions have no file


class _Implementation(caching.CompileResultCacheImpl):
    _locator_classes: ClassVar[list[Any]] = [_Locator, *caching.CacheImpl._locator_classes]  # type: ignore[misc]


class _Cache(caching.FunctionCache):
    _impl_class = _Implementation

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self.files = _Files(Path(self._cache_path), self._impl.filename_base, self._impl.locator.get_source_stamp())
        self._cache_file = cast(Any, self.files)


class _Files:
    """The files of a kernel, one for the types of its arguments, with a checksum: a damaged one counts as missing.

    Numba's own files have no checksum: damaged ones end in exceptions that it does not catch, or in a crash.
    """

    def __init__(self, folder: Path, name: str, stamp: int) -> None:
        self._folder, self._name, self._stamp = folder, name, stamp

    def path(self, key: object) -> Path:
        """Return the place of a kernel's file; ``key`` has the types, the processor and the byte code."""
        return self._folder / f"{self._name}.{hashlib.sha256(repr((self._stamp, key)).encode()).hexdigest()[:32]}.nbc"

    def read(self, key: object) -> bytes | None:
        """Return the content of a file, or None if it is missing or damaged."""
        try:
            data = self.path(key).read_bytes()
        except OSError:
            return None
        checksum, content = data[:_CHECKSUM], data[_CHECKSUM:]
        return content if content and checksum == _checksum(content) else None

    def load(self, key: object) -> Any:
        content = self.read(key)
        return None if content is None else pickle.loads(content)

    def save(self, key: object, data: object) -> None:
        content = dumps(data)  # type: ignore[no-untyped-call]
        try:
            with atomic_file(self.path(key)) as file:
                file.write(_checksum(content) + content)
        except FileError as problem:
            _say_not_kept(str(problem.__cause__ or problem))

    def flush(self) -> None:
        for path in self._folder.glob(f"{self._name}.*.nbc"):
            path.unlink(missing_ok=True)


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM, "little")


@functools.cache  # once
def _say_not_kept(reason: str) -> None:
    logger.warning("compiled kernels cannot be kept in %s (%s); each start compiles them again", cache_folder(), reason)


# Signatures and addresses ----------------------------------------------------------------------------------------------


def signature(function: Any, dtype: "np.dtype[Any]") -> tuple[Any, ...]:
    """Return the types of a kernel's arguments, read off its annotations, for numbers of a type.

    Kernels that only kernels call take tuples by reference.
    """
    hints = get_type_hints(function.py_func, include_extras=True)
    hints.pop("return", None)
    found = [_numba_type(hint, dtype) for hint in hints.values()]
    by_reference = function.targetoptions.get("no_cpython_wrapper", False)
    return tuple(Reference(kind) if by_reference and isinstance(kind, types.BaseNamedTuple) else kind for kind in found)


def _numba_type(hint: Any, dtype: "np.dtype[Any]") -> Any:
    if get_origin(hint) is Annotated:
        _, kind, axes, *read_only = get_args(hint)
        return types.Array(numba.from_dtype(np.dtype(dtype if kind is None else kind)), axes, "C", bool(read_only))
    if hasattr(hint, "_fields"):
        fields = get_type_hints(hint, include_extras=True)
        return types.NamedTuple([_numba_type(fields[name], dtype) for name in hint._fields], hint)  # type: ignore[no-untyped-call]
    return {int: types.int64, bool: types.boolean, float: types.float64}[hint]


def address_of(function: Any, dtype: "np.dtype[Any]") -> int:
    """Return the address of a kernel, compiled or loaded for numbers of a type."""
    arguments = signature(function, dtype)
    function.compile(arguments)
    compiled = function.overloads[arguments]
    return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name))


operation = cast(Callable[[Callable[..., Any]], Callable[..., Any]], intrinsic)
"""Define an operation by the code that it generates. Kernels call it without the context."""


class Reference(types.Type):
    """The type of a reference to a named tuple: its arrays are hundreds of words, too many to pass by value."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(name=f"reference to {target}")


@register_model(Reference)
class _ReferenceModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Reference) -> None:
        super().__init__(manager, kind, manager[kind.target].get_value_type().as_pointer())  # type: ignore[no-untyped-call]


@infer_getattr
class _ReferenceFields(AttributeTemplate):
    key = Reference

    def generic_resolve(self, value: Any, attr: str) -> Any:  # type: ignore[override]
        if attr not in value.target.fields:
            return None
        kind = value.target[value.target.fields.index(attr)]
        return Reference(kind) if isinstance(kind, types.BaseNamedTuple) else kind


@lower_getattr_generic(Reference)  # type: ignore[no-untyped-call, untyped-decorator]
def _load_field(context: Any, builder: Any, reference: Reference, pointer: Any, field: str) -> Any:
    index = reference.target.fields.index(field)
    place, kind = cgutils.gep_inbounds(builder, pointer, 0, index), reference.target[index]  # type: ignore[no-untyped-call]
    if isinstance(kind, types.BaseNamedTuple):
        return place
    value = builder.load(place)
    value.set_metadata("invariant.load", builder.module.add_metadata([]))  # fields never change, so loads may be moved
    return impl_ret_borrowed(context, builder, kind, value)  # type: ignore[no-untyped-call]


@operation
def refer(context: Any, value: Any) -> Any:
    """Return a reference to a named tuple, valid until the calling function ends."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return cgutils.alloca_once_value(builder, values[0])  # type: ignore[no-untyped-call]

    return Reference(value)(value), generate


@operation
def call(context: Any, address: Any, arguments: Any) -> Any:
    """Call the kernel at an address with a tuple of arguments; it returns nothing."""
    kinds = arguments.types

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        convention = context.call_conv
        pointer = builder.inttoptr(values[0], convention.get_function_type(types.none, kinds).as_pointer())
        unpacked = cgutils.unpack_tuple(builder, values[1], len(kinds))  # type: ignore[no-untyped-call]
        convention.call_function(builder, pointer, types.none, kinds, unpacked)
        return context.get_dummy_value()

    return types.void(address, arguments), generate


@operation
def matrix(context: Any, array: Any, start: Any, rows: Any, width: Any) -> Any:
    """Return ``array[start : start + rows * width].reshape(rows, width)`` without the checks, which take long to compile."""
    kind = types.Array(array.dtype, 2, "C")

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        flat, start, rows, width = values
        source = make_array(signature.args[0])(context, builder, flat)  # type: ignore[no-untyped-call]
        result = make_array(kind)(context, builder)  # type: ignore[no-untyped-call]
        size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        populate_array(  # type: ignore[no-untyped-call]
            result,
            data=builder.gep(source.data, [start]),
            shape=[rows, width],
            strides=[builder.mul(width, size), size],
            itemsize=size,
            meminfo=source.meminfo,
        )
        value = result._getvalue()
        if context.enable_nrt:
            context.nrt.incref(builder, kind, value)
        return value

    return kind(array, types.intp, types.intp, types.intp), generate


# Compiling ahead -------------------------------------------------------------------------------------------------------

_lock = lock_for_forks(threading.Lock())
_ready: set[tuple[str, str]] = set()


def is_on_disk(function: Any, dtype: "np.dtype[Any]") -> bool:
    """Say whether the cache has a kernel for numbers of a type, as far as can be told."""
    cache = getattr(function, "_cache", None)
    if not isinstance(cache, _Cache):
        return False
    key = cache._index_key(signature(function, dtype), function.targetctx.codegen())  # type: ignore[no-untyped-call]
    return cache.files.read(key) is not None


def precompile(functions: Iterable[Any], dtype: "np.dtype[Any]") -> None:
    """Compile or load kernels before their first use: those that are missing by two processes, with a line that says how far.

    A second process works through the list from its end. Each kernel on disk is skipped, so the two meet in the middle.
    """
    wanted = {_name(function): function for function in functions}
    if all((name, str(dtype)) in _ready for name in wanted):
        return
    with _lock:
        missing = {name: each for name, each in wanted.items() if not is_on_disk(each, dtype)}
        if missing:
            _compile_missing(missing, dtype)
        for name, function in wanted.items():
            function.compile(signature(function, dtype))
            _ready.add((name, str(dtype)))


def _compile_missing(missing: dict[str, Any], dtype: "np.dtype[Any]") -> None:
    start, total = time.perf_counter(), len(missing)
    logger.warning(
        "compiling %d kernels in %s (once; they are kept in %s)", total, dtype, cache_folder() or "memory only"
    )
    shareable = [name for name, each in missing.items() if each.__module__.startswith("treefold.")]
    helper = _start_helper(shareable[::-1], dtype) if len(shareable) > 1 else None
    try:
        for done, (name, function) in enumerate(missing.items()):
            _show(f"treefold: compiling kernel {done + 1} of {total}, {name.rpartition(':')[2]}")
            if helper is None or not is_on_disk(function, dtype):
                function.compile(signature(function, dtype))
    finally:
        _show("")
        if helper is not None:
            helper.terminate()
            helper.wait()
    logger.info("%d kernels are ready after %.1f s", total, time.perf_counter() - start)


def _show(line: str) -> None:
    """Replace the line of progress on a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{line}")
        sys.stderr.flush()


def _name(function: Any) -> str:
    return f"{function.py_func.__module__}:{function.py_func.__qualname__}"


def _start_helper(names: list[str], dtype: "np.dtype[Any]") -> "subprocess.Popen[bytes] | None":
    """Start a process that compiles kernels into the cache. It imports nothing from the working directory."""
    folder, cores = cache_folder(), os.cpu_count() or 1
    if folder is None or cores < 2 or not sys.executable:
        return None
    own = str(Path(__file__).parents[2])
    command = "import sys; from treefold.kernels.compile import main; main(sys.argv[1])"
    try:
        here = Path.cwd()
        paths = [own, *(each for each in sys.path if Path(each).is_absolute() and each != own and Path(each) != here)]
        return subprocess.Popen(
            [sys.executable, "-P", "-c", command, json.dumps([names, str(dtype)])],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None


def main(work: str) -> None:
    """Compile the kernels that a JSON list names into the cache, in the helper process."""
    names, kind = json.loads(work)
    dtype = np.dtype(kind)
    for name in names:
        module, _, function = name.partition(":")
        found = getattr(importlib.import_module(module), function)
        if not is_on_disk(found, dtype):
            found.compile(signature(found, dtype))
