"""One adapter per array library, found by the type of the array: a library is used only when its arrays come."""

from functools import cache
from importlib import import_module
from os import environ
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..checks import type_name
from ..errors import ArgumentError, ArgumentTypeError, KernelMissingError
from ..options import Learnable, Options, Problem, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..reading import Reading

_by_type: dict[type, "Backend"] = {}


class Device(Protocol):
    """Readings of arrays that are not on the CPU; it resolves the options itself, without waiting for the device."""

    def read(self, query: Any, key: Any, options: Options, rows: Any) -> "Reading":
        """The Reading of all query rows or of those listed."""

    def measure(self, query: Any, key: Any, value: Any, options: Options) -> "tuple[Any, Reading]":
        """The output and its Reading."""


class Backend(Protocol):
    """What an adapter module offers."""

    def holds(self, array: Any) -> bool:
        """Whether this is an array of the library that can be used as it is."""

    def traced(self, *arguments: Any) -> bool:
        """Whether a compiler or a transform follows this call, so that it must see operators.

        The arguments are arrays, or Options; of those only the options that are LEARNED count.
        """

    def known(self, query: Any, key: Any, value: Any, options: Options) -> Problem | None:
        """The result of resolve(), kept from an earlier call like this one, which nothing follows; None: not known."""

    def plain(self, argument: str, given: Any) -> Any:
        """Numbers of the library as Python or NumPy takes them; anything else as it is."""

    def new_seed(self) -> int:
        """A seed for dropout where the caller gave none, from the library's own random generator."""

    def inputs(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """The three arrays with one supported element type, or an error that names the one that does not fit."""

    def floats(self, argument: str, array: Any, dtype: Any = None, *, like: str = "query", cache: bool = False) -> Any:
        """An array of a supported element type, or of the given one, which is that of the array `like`.

        cache   a half type is allowed with float32 queries
        """

    def refuse_shapeless(self, **arrays: Any) -> None:
        """An error that names an array without a shape; only for a library in which there are such."""

    def broadcast(self, argument: str, array: Any, shape: tuple[int, ...], boolean: bool) -> Any:
        """A view of a mask (boolean) or a bias with that shape."""

    def traced_call(
        self, query: Any, key: Any, value: Any, options: Options, measured: bool, only_reads: bool = False
    ) -> tuple[Any, Any]:
        """The output, and its Reading if measured, of a call that is traced(). only_reads: the Reading alone.

        Only for a library whose calls can be traced().
        """

    def forward(self, problem: Problem, options: Options) -> Any:
        """The output. The options are as the caller gave them, for a library whose arrays have gradients."""

    def measure(self, problem: Problem, options: Options, per_key: bool) -> tuple[Any, "Reading"]:
        """The output and its Reading, with what each key received if asked."""

    def weights(self, problem: Problem, options: Options, rows: Any) -> Any:
        """The weights of some query rows; None is all. The values of the problem have no width."""

    def elsewhere(self, query: Any) -> "Device | None":
        """Reads the library's arrays on a device other than the CPU; None for arrays on the CPU."""

    def read(self, problem: Problem, rows: Any) -> "Reading":
        """The Reading alone; `value` of the problem is not used. rows: None, or int64, which query rows."""

    def vjp(self, problem: Problem) -> tuple[Any, "Callable[[Any], tuple[Any, Any, Any]]"]:
        """The output and the function from d_out to d_query, d_key, d_value."""

    def jvp(self, problem: Problem, tangents: Learnable) -> tuple[Any, Any]:
        """The output and its tangent."""


def backend_of(argument: str, array: Any) -> Backend:
    """The adapter for this array; an error names the argument if there is none."""
    backend = _by_type.get(type(array))
    return backend if backend is not None else _find(argument, array)


def _find(argument: str, array: Any) -> Backend:
    roots = [base.__module__.partition(".")[0] for base in type(array).__mro__]
    for root in roots:
        # As statements: torch.compile follows these, but not import_module.
        if root == "numpy":
            from . import numpy as adapter
        elif root == "torch":
            from . import torch as adapter  # type: ignore[no-redef]
        elif root in {"jax", "jaxlib"}:
            from . import jax as adapter  # type: ignore[no-redef]
        else:
            continue
        if (backend := cast("Backend", adapter)).holds(array):
            if not backend.traced():  # a compiler could not repeat this step
                _by_type[type(array)] = backend
            return backend
    raise ArgumentTypeError(f"{argument}: must be an array of NumPy or jax or a torch tensor, got {type_name(array)}")


def problem_of(query: Any, key: Any, value: Any, **options: Any) -> Problem:
    """The Problem of attention(query, key, value, **options): for the reference, which computes by the definition."""
    return resolve(backend_of("query", query), query, key, value, Options(**options))[0]


@cache
def kernel() -> ModuleType:
    """The compiled module, loaded at its first use, so that theory and rules work where it was not built."""
    try:
        compiled = import_module("rootdk._kernel")
    except ImportError as error:
        raise KernelMissingError(
            f"rootdk._kernel: the compiled kernel must be importable, got {type(error).__name__}: {error}; "
            "build it with `pip install .` in the source folder"
        ) from error
    wanted = environ.get("ROOTDK_NUM_THREADS")
    if wanted is not None:
        threads = int(wanted) if wanted.isdecimal() and len(wanted) < 9 else 0
        if not 1 <= threads <= compiled.most_threads:
            raise ArgumentError(
                f"ROOTDK_NUM_THREADS: must be an int from 1 to {compiled.most_threads}, got {wanted!r:.60}"
            )
        compiled.set_num_threads(threads)
    return compiled
