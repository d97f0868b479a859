"""The compiled kernel. Arrays have a contiguous last axis, are checked by the caller, and walked without the GIL."""

from typing import Any, TypeAlias

from .options import Problem
from .reading import Reading

# An array or a tensor: see bindings/memory.h.
_Array: TypeAlias = Any

def forward(
    problem: Problem,
    out: _Array,
    row_state: _Array | None,
    reading: _Array | type[Reading] | None,
    keys: _Array | None,
    team: int = 0,
) -> Reading | None: ...
def read(
    problem: Problem,
    reading: _Array | type[Reading] | None,
    keys: _Array | None,
    team: int = 0,
) -> Reading | None: ...
def backward(
    problem: Problem,
    out: _Array,
    d_out: _Array,
    row_state: _Array,
    d_query: _Array,
    d_key: _Array,
    d_value: _Array,
    d_bias: _Array | None = None,
    d_alibi: _Array | None = None,
    team: int = 0,
) -> None: ...
def weights(problem: Problem, row_state: _Array, weights: _Array, team: int = 0) -> None: ...
def tangent(
    problem: Problem,
    out: _Array | None,
    d_out: _Array,
    d_query: _Array | None,
    d_key: _Array | None,
    d_value: _Array | None,
    d_bias: _Array | None = None,
    d_sinks: _Array | None = None,
    d_alibi: _Array | None = None,
    d_scale: float = 0.0,
    team: int = 0,
) -> None: ...
def target() -> str: ...
def targets() -> list[str]: ...
def set_target(name: str) -> None: ...
def has_openmp() -> bool: ...

most_threads: int

def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def tile() -> dict[str, int]: ...
def compiler() -> str: ...
def sources() -> str: ...
def reading_fields() -> list[str]: ...
