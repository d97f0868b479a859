"""The compiled kernel. Arrays are passed by position, checked by the caller, and walked without the GIL."""

from typing import Any, TypeAlias

FLOAT32: int
FLOAT64: int
FLOAT16: int
BFLOAT16: int

# An array, a tensor, or (address, item bytes, shape, strides in items, owner): see bindings/memory.h.
_Array: TypeAlias = Any

def forward(
    element: int,
    query: _Array,
    key: _Array,
    value: _Array,
    out: _Array,
    scale: float,
    row_scale: _Array | None,
    softcap: float,
    left: int,
    right: int,
    query_offset: _Array,
    key_lengths: _Array | None,
    mask: _Array | None,
    bias: _Array | None,
    bias_element: int,
    sinks: _Array | None,
    dropout: float,
    seed: int,
    row_state: _Array | None,
    reading: _Array | None,
    keys: _Array | None,
    team: int = 0,
) -> None: ...
def backward(
    element: int,
    query: _Array,
    key: _Array,
    value: _Array,
    out: _Array,
    d_out: _Array,
    row_state: _Array,
    d_query: _Array,
    d_key: _Array,
    d_value: _Array,
    scale: float,
    row_scale: _Array | None,
    softcap: float,
    left: int,
    right: int,
    query_offset: _Array,
    key_lengths: _Array | None,
    mask: _Array | None,
    bias: _Array | None,
    bias_element: int,
    sinks: _Array | None,
    dropout: float,
    seed: int,
    d_bias: _Array | None = None,
    team: int = 0,
) -> None: ...
def target() -> str: ...
def targets() -> list[str]: ...
def set_target(name: str) -> None: ...
def has_openmp() -> bool: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def tile() -> dict[str, int]: ...
def compiler() -> str: ...
