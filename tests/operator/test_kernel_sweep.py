"""Lengths around the tiles, widths around the vectors, misaligned starts, every type, every kernel target.

Whole tiles take one path through the kernel and what is left over another; a mistake shows only at the right length.
Every pair of lengths is tried. Widths, starts, groups and options walk along in cycles, so that each of their values
meets every length; test_what_the_cycles_cover counts it.
"""

from collections import Counter
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from judge import DTYPES, TARGETS, Judge, target

from rootdk import _kernel


def _tiles() -> set[int]:
    sizes = set()
    for name in TARGETS:
        with target(name):
            sizes |= {_kernel.tile()["lanes"], _kernel.tile()["keys"]}
    return sizes


# Those of x86 always: with less than ten lengths the cycles below would not meet every width.
LENGTHS = sorted({1, 3, 7} | {tile + step for tile in {8, 16, 32, 128, *_tiles()} for step in (-1, 0, 1)})
WIDTHS = (1, 3, 8, 15, 16, 17, 32, 33, 64, 80)
OPTIONS = ("nothing", "causal", "mask", "window", "lengths")


class Case(NamedTuple):
    n_query: int
    n_key: int
    d_k: int
    d_v: int
    starts: tuple[int, int, int, int]  # of query, key, value, d_out: elements after an aligned address
    group: int
    option: str


def _case(i: int, j: int) -> Case:
    return Case(
        LENGTHS[i],
        LENGTHS[j],
        WIDTHS[(i + j) % 10],
        WIDTHS[(3 * i + 7 * j) % 10],
        ((i + j // 2) % 4, (i // 2 + j) % 4, (i + j // 3) % 4, (i // 3 + 3 * j) % 4),
        (2, 1, 3)[(i + j) % 3],
        OPTIONS[(i + 2 * j) % 5],
    )


CASES = [_case(i, j) for i, j in product(range(len(LENGTHS)), repeat=2)]


def started(array: Any, start: int) -> Any:
    """The same numbers, `start` elements after an address that is a multiple of 64 bytes."""
    memory = np.zeros(array.size + 3 + 64 // array.itemsize, array.dtype)
    first = (-memory.ctypes.data % 64) // array.itemsize + start
    shifted = memory[first : first + array.size].reshape(array.shape)
    shifted[...] = array
    assert shifted.ctypes.data % 64 == start * array.itemsize
    return shifted


def _options(rng: np.random.Generator, case: Case) -> dict[str, Any]:
    return {
        "nothing": {},
        "causal": {"causal": True},
        "mask": {"mask": rng.random((case.n_query, case.n_key)) < 0.7},
        "window": {"window": (case.n_key // 2, case.n_key // 3)},
        "lengths": {"key_lengths": case.n_key - case.n_key // 4},
    }[case.option]


def judge_of(case: Case, dtype: str) -> Judge:
    rng = np.random.default_rng([CASES.index(case), list(DTYPES).index(dtype)])
    shapes = (
        (case.group, case.n_query, case.d_k),
        (1, case.n_key, case.d_k),
        (1, case.n_key, case.d_v),
        (case.group, case.n_query, case.d_v),
    )
    arrays = [
        started(rng.standard_normal(shape).astype(DTYPES[dtype]), start)
        for shape, start in zip(shapes, case.starts, strict=True)
    ]
    return Judge(arrays[:3], arrays[3], _options(rng, case))


@pytest.mark.parametrize("n_query", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sweep(dtype: str, n_query: int) -> None:
    for case in CASES:
        if case.n_query != n_query:
            continue
        judge = judge_of(case, dtype)  # the slow part, and the same for every target
        for name in TARGETS:
            with target(name):
                try:
                    judge.check()
                except AssertionError as error:
                    raise AssertionError(f"{name}, {dtype}, {case}: {error}") from error


def test_what_the_cycles_cover() -> None:
    def count(*fields: str) -> Counter[Any]:
        return Counter(tuple(getattr(case, field) for field in fields) for case in CASES)

    for length, other in product(("n_query", "n_key"), ("d_k", "d_v")):
        assert count(length, other).keys() == set(product(LENGTHS, WIDTHS)), (length, other)
    for length, (other, values) in product(("n_query", "n_key"), (("group", (1, 2, 3)), ("option", OPTIONS))):
        assert count(length, other).keys() == set(product(LENGTHS, values)), (length, other)
    for place, name in enumerate(("query", "key", "value", "d_out")):
        for width in ("d_k", "d_v"):
            pairs = {(getattr(case, width), case.starts[place]) for case in CASES}
            assert pairs == set(product(WIDTHS, range(4))), (width, name)


def test_the_tiles_are_among_the_lengths() -> None:
    for name in TARGETS:
        with target(name):
            assert _kernel.target() == name
            for size in _kernel.tile().values():
                assert {size - 1, size, size + 1} <= set(LENGTHS)


def test_an_unknown_target_is_refused() -> None:
    before = _kernel.target()
    assert before in TARGETS
    with pytest.raises(ValueError, match=f"target: must be one of {', '.join(TARGETS)} on this CPU, got 'abacus'"):
        _kernel.set_target("abacus")
    assert _kernel.target() == before
