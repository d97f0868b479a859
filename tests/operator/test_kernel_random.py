"""Random problems: any shape, any strides, any type, any options, judged by the reference.

Hypothesis chooses what matters (sizes, layouts, types, options) and shrinks it when something breaks; the numbers come
from a seed that it chooses too. Derandomized: every run of one version of the code sees the same problems.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from judge import DTYPES, TARGETS, Judge, target

from rootdk import scaling

COMMON = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}

# Below and across the tiles of every target; long ones are rarer because the reference is slow.
LENGTHS = st.one_of(st.integers(0, 20), st.integers(0, 40), st.integers(120, 140))
WIDTHS = st.one_of(st.integers(1, 9), st.integers(10, 40), st.just(64))
SCALES: list[Any] = [
    None, 0.0, 0.3, -0.5, 2, "none", "dk", "entropy_invariant", scaling.ssmax(0.4, causal=True), scaling.llama4(3, 0.5),
    scaling.qwen_log_n(4),
]  # fmt: skip


@st.composite
def laid_out(draw: st.DrawFn, array: Any) -> Any:
    """The numbers of `array` in other strides, NaN between them. An expanded axis repeats its first entry."""
    kind = draw(
        st.sampled_from(["plain", "plain", "moved axis", "backwards", "steps", "cut from wider", "expanded", "shifted"])
    )
    if array.ndim == 0 or array.size == 0:
        return array
    axis = draw(st.integers(0, array.ndim - 1))
    index = [slice(None)] * array.ndim
    if kind == "moved axis":  # (batch, n, heads, d) seen as (batch, heads, n, d), and every other order
        order = draw(st.permutations(range(array.ndim)))
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    if kind == "backwards":
        index[axis] = slice(None, None, -1)
        return np.ascontiguousarray(array[tuple(index)])[tuple(index)]
    if kind == "steps":
        step = draw(st.integers(2, 3))
        index[axis] = slice(None, None, step)
        wide = np.repeat(array, step, axis=axis)
        wide[...] = np.nan if array.dtype != np.bool_ else True
        wide[tuple(index)] = array
        return wide[tuple(index)]
    if kind == "cut from wider":
        extra = draw(st.integers(1, 3))
        wide = np.full([size + 2 * extra for size in array.shape], np.nan).astype(array.dtype)
        view = wide[(slice(extra, -extra),) * array.ndim]
        view[...] = array
        return view
    if kind == "expanded":
        index[axis] = slice(0, 1)
        return np.broadcast_to(array[tuple(index)], array.shape)
    if kind == "shifted":
        start = draw(st.integers(1, 3))
        memory = np.empty(array.size + start, array.dtype)
        memory[start:] = array.reshape(-1)
        return memory[start:].reshape(array.shape)
    return array


@st.composite
def pairs(draw: st.DrawFn, scores: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `scores`."""
    shape = tuple(size if draw(st.booleans()) else 1 for size in scores)
    return shape[draw(st.integers(0, len(shape))) :]


@st.composite
def options_for(draw: st.DrawFn, rng: np.random.Generator, scores: tuple[int, ...]) -> dict[str, Any]:
    leading, (heads, n_query, n_key) = scores[:-3], scores[-3:]
    options: dict[str, Any] = {}
    chosen = draw(
        st.sets(
            st.sampled_from(
                [
                    "scale",
                    "causal",
                    "mask",
                    "bias",
                    "window",
                    "offset",
                    "lengths",
                    "softcap",
                    "sinks",
                    "alibi",
                    "segments",
                    "dropout",
                ]
            )
        )
    )
    if "scale" in chosen:
        options["scale"] = draw(st.sampled_from(SCALES))
    if "causal" in chosen:
        options["causal"] = True
    if "mask" in chosen:
        share = draw(st.sampled_from([0.0, 0.2, 0.8, 1.0]))
        options["mask"] = draw(laid_out(np.asarray(rng.random(draw(pairs(scores))) < share)))
    if "bias" in chosen:
        bias = rng.standard_normal(draw(pairs(scores)))
        bias = np.where(rng.random(bias.shape) < draw(st.sampled_from([0.0, 0.3])), -np.inf, bias)
        options["bias"] = draw(laid_out(bias.astype(DTYPES[draw(st.sampled_from(list(DTYPES)))])))
    if "window" in chosen:
        side = st.one_of(st.none(), st.integers(0, 5), st.integers(0, 200))
        options["window"] = draw(st.one_of(st.integers(0, 30), st.tuples(side, side)))
    if "offset" in chosen:
        offset = st.integers(-n_key - 3, n_key + 3)
        if draw(st.booleans()):
            options["query_offset"] = draw(offset)
        else:
            options["query_offset"] = rng.integers(-3, n_key + 3, leading)
    if "lengths" in chosen:
        options["key_lengths"] = rng.integers(0, n_key + 1, leading)
    if "softcap" in chosen:
        options["softcap"] = draw(st.sampled_from([0.5, 2.0, 30.0]))
    if "sinks" in chosen:
        options["sinks"] = rng.standard_normal(heads) * draw(st.sampled_from([1.0, 10.0]))
    if "alibi" in chosen:
        options["alibi"] = rng.standard_normal(draw(st.sampled_from([(heads,), (*leading, heads)])))
    if "segments" in chosen:
        most = draw(st.sampled_from([1, 2, 5, 40]))
        ids = [rng.integers(0, most, draw(st.sampled_from([(n,), (*leading, n)]))) for n in (n_query, n_key)]
        in_order = draw(st.sampled_from([True, True, False]))
        options["segments"] = tuple(np.sort(a) if in_order else a for a in ids)
    if "dropout" in chosen:
        options["dropout"] = draw(st.sampled_from([0.1, 0.5, 0.9]))
        options["seed"] = draw(st.integers(0, 2**64 - 1))
    return options


class Drawn(NamedTuple):
    """Shown by what was chosen, not by its numbers."""

    arrays: Any
    d_out: Any
    options: dict[str, Any]

    def __repr__(self) -> str:
        def brief(x: Any) -> str:
            return f"{x.dtype}{x.shape} strides {x.strides}" if isinstance(x, np.ndarray) and x.size > 9 else repr(x)

        lines = [brief(a) for a in (*self.arrays, self.d_out)]
        lines += [f"{name} = {brief(option)}" for name, option in self.options.items()]
        return "\n  ".join(["", *lines])


@st.composite
def problems(draw: st.DrawFn) -> Drawn:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    leading = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 4))
    n_query, n_key, d_k, d_v = draw(LENGTHS), draw(LENGTHS), draw(WIDTHS), draw(WIDTHS)
    if np.prod(leading, dtype=int) * heads * n_query * n_key > 200_000:
        leading, heads = leading[:1], kv_heads
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    level = draw(st.sampled_from([1.0, 1.0, 1e-3, 20.0]))
    shapes = (
        (*leading, heads, n_query, d_k),
        (*leading, kv_heads, n_key, d_k),
        (*leading, kv_heads, n_key, d_v),
        (*leading, heads, n_query, d_v),
    )
    sizes = (level, 1.0, 1.0, 1.0)
    arrays = [
        draw(laid_out((rng.standard_normal(shape) * size).astype(dtype)))
        for shape, size in zip(shapes, sizes, strict=True)
    ]
    return Drawn(arrays[:3], arrays[3], draw(options_for(rng, (*leading, heads, n_query, n_key))))


def check(problem: Drawn) -> None:
    for option in problem.options:
        event(option)
    judge = Judge(*problem)  # the slow part, and the same for every target
    for name in TARGETS:
        with target(name):
            try:
                judge.check()
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


@settings(max_examples=150, **COMMON)
@given(problem=problems())
def test_random_problems(problem: Drawn) -> None:
    check(problem)


@pytest.mark.slow
@settings(max_examples=1500, **COMMON)
@given(problem=problems())
def test_many_random_problems(problem: Drawn) -> None:
    check(problem)


def test_a_wrong_answer_is_found() -> None:
    """The judge sees a scale that is wrong in its sixth digit."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 5, 4)).astype(np.float32) for _ in range(4)]
    judge = Judge(arrays[:3], arrays[3], {})
    judge.options = {"scale": 0.5 * (1 + 1e-5)}
    with pytest.raises(AssertionError, match="above the budget"):
        judge.check()
