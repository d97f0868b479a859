"""Packed documents: each as if it were a call of its own, in every derivative, on every target, under transforms."""

from typing import Any

import numpy as np
import pytest
import torch
from judge import TARGETS, Judge, assert_same_bits, everything, target, threads
from problems import random_arrays
from tensors import DTYPES

import rootdk

LENGTHS = [(5, 7), (1, 4), (0, 3), (130, 200), (3, 0), (40, 33)]  # queries and keys of each document
OPTIONS: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "query_offset": 0},
    {"window": (9, 2), "softcap": 3.0},
    {"causal": True, "alibi": [0.5, -0.1, 0.2, 1.0]},
    {"scale": rootdk.scaling.ssmax(0.4, causal=True), "sinks": [0.1, 0.2, -1.0, 0.0]},
    {"scale": "entropy_invariant"},
]


def ids(lengths: Any = LENGTHS) -> tuple[Any, Any]:
    return tuple(np.repeat(np.arange(len(lengths)), [pair[i] for pair in lengths]) for i in (0, 1))  # type: ignore[return-value]


def document(arrays: Any, i: int) -> tuple[slice, slice]:
    q, k = (slice(sum(n[:i]), sum(n[: i + 1])) for n in zip(*LENGTHS, strict=True))
    return q, k


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "nothing")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_every_document_is_a_call_of_its_own(rng: np.random.Generator, dtype: Any, options: dict[str, Any]) -> None:
    n_query, n_key = (sum(n) for n in zip(*LENGTHS, strict=True))
    query, key, value = random_arrays(rng, n_query=n_query, n_key=n_key, dtype=dtype)
    d_out = rng.standard_normal((2, 4, n_query, 5)).astype(dtype)
    tight = {"rtol": 1e-10, "atol": 1e-12} if dtype == np.float64 else {"rtol": 1e-4, "atol": 2e-5}
    out, pull_back = rootdk.attention_vjp(query, key, value, segments=ids(), **options)
    _, reading = rootdk.measure(query, key, value, segments=ids(), **options)
    d_query, d_key, d_value = pull_back(d_out)
    for i, (queries, keys) in enumerate(LENGTHS):
        if queries == 0:
            continue
        q, k = document(LENGTHS, i)
        alone = query[..., q, :], key[..., k, :], value[..., k, :]
        if keys == 0 and isinstance(options.get("scale"), (str, rootdk.ScaleRule)):
            assert not out[..., q, :].any()  # the rule has no factor for a call without keys
            continue
        expected, pull_alone = rootdk.attention_vjp(*alone, **options)
        np.testing.assert_allclose(out[..., q, :], expected, **tight)
        read = rootdk.measure(*alone, **options)[1]
        for field in ("keys", "entropy", "variance", "log_sum_exp", "max"):
            np.testing.assert_allclose(getattr(reading, field)[..., q], getattr(read, field), **tight, err_msg=field)
        for ours, theirs in zip((d_query[..., q, :], d_key[..., k, :], d_value[..., k, :]),
                                pull_alone(np.ascontiguousarray(d_out[..., q, :])), strict=True):  # fmt: skip
            np.testing.assert_allclose(ours, theirs, **tight)


@pytest.mark.parametrize("order", ["runs", "mixed", "two runs of one"])
@pytest.mark.parametrize("sizes", [(1, 260), (9, 40), (140, 300)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_length_and_target(rng: np.random.Generator, dtype: str, sizes: tuple[int, int], order: str) -> None:
    arrays = random_arrays(rng, n_query=sizes[0], n_key=sizes[1], dtype=DTYPES[dtype][1])
    segments = tuple(rng.integers(0, 4, (2, n)) for n in sizes)
    if order != "mixed":
        segments = tuple(np.sort(a) for a in segments)
    if order == "two runs of one":
        segments = tuple(a % 3 for a in segments)
    d_out = rng.standard_normal((2, 4, sizes[0], 5)).astype(arrays[0].dtype)
    judge = Judge(arrays, d_out, {"segments": segments, "causal": sizes[0] > 1, "alibi": [0.1, 0.2, 0.0, -0.1]})
    for name in TARGETS:
        with target(name):
            judge.check()


def test_what_another_document_holds_has_no_effect(rng: np.random.Generator) -> None:
    arrays = random_arrays(rng, n_query=60, n_key=60, dtype=np.float32)
    segments = np.arange(60) // 13
    clean = rootdk.attention(*arrays, segments=segments, causal=True)
    broken = [a.copy() for a in arrays]
    for a in broken[1:]:
        a[..., 20:30, :] = np.nan
    out = rootdk.attention(*broken, segments=segments, causal=True)
    np.testing.assert_array_equal(np.delete(out, np.s_[13:39], axis=-2), np.delete(clean, np.s_[13:39], axis=-2))


def test_the_same_bits_on_any_number_of_threads_and_as_limits(rng: np.random.Generator) -> None:
    """Runs are limits: the bits of the same limits given by a mask; and threads change nothing."""
    arrays = random_arrays(rng, n_query=150, n_key=150, dtype=np.float32)
    d_out = rng.standard_normal((2, 4, 150, 5)).astype(np.float32)
    segments = np.repeat([7, 3, 9], [40, 90, 20])
    said = everything(arrays, d_out, segments=segments)
    assert_same_bits(everything(arrays, d_out, mask=segments[:, None] == segments), said)
    with threads(1):
        assert_same_bits(everything(arrays, d_out, segments=segments), said)


def test_autograd_compile_and_transforms() -> None:
    q, k, v = (torch.randn(2, 4, 12, 4, dtype=torch.float64) for _ in range(3))
    segments = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
    slopes = torch.rand(4, dtype=torch.float64)
    blocks = (segments[:, None] == segments) & torch.ones(12, 12, dtype=torch.bool).tril()

    def ours(q: Any, k: Any, v: Any) -> Any:
        return rootdk.attention(q, k, v, segments=segments, causal=True, alibi=slopes)

    def theirs(q: Any, k: Any, v: Any) -> Any:
        return rootdk.attention(q, k, v, mask=blocks, alibi=slopes)

    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    firsts = [torch.autograd.grad(f(*leaves).sin().sum(), leaves, create_graph=True) for f in (ours, theirs)]
    seconds = [torch.autograd.grad(sum(g.sin().sum() for g in first), leaves) for first in firsts]
    for a, b in zip((*firsts[0], *seconds[0]), (*firsts[1], *seconds[1]), strict=True):
        torch.testing.assert_close(a, b)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*leaves), theirs(*leaves))
    pulled = torch.func.grad(lambda *t: ours(*t).sin().sum(), argnums=(0, 1, 2))(q, k, v)
    for a, b in zip(pulled, firsts[1], strict=True):
        torch.testing.assert_close(a, b.detach())
    per_entry = torch.stack([segments, segments.flip(0)])
    mapped = torch.func.vmap(lambda q, s: rootdk.attention(q, q, q, segments=s, causal=True))(q, per_entry)
    for i in range(2):
        torch.testing.assert_close(mapped[i], rootdk.attention(q[i], q[i], q[i], segments=per_entry[i], causal=True))


@pytest.mark.parametrize(
    ("segments", "line"),
    [
        (np.zeros(5), "segments: must be integers of at most 64 bits, got array([0., 0., 0., 0., 0.])"),
        (np.zeros(4, int), "segments: must broadcast to (..., n) = (2, 5), got shape (4,)"),
        ((np.zeros(5, int),), "segments: must be one array or a tuple of two (queries, keys), got 1"),
        (np.ma.masked_array([0] * 5), "segments: must be numbers without a mask, got numpy.ma.MaskedArray"),
    ],
)
def test_errors(segments: Any, line: str) -> None:
    q = np.zeros((2, 3, 5, 4))
    for given in (q, torch.from_numpy(q)):
        with pytest.raises((rootdk.ArgumentError, rootdk.ArgumentTypeError)) as caught:
            rootdk.attention(given, given, given, segments=segments)
        assert str(caught.value) == line


def test_one_array_for_other_lengths_is_refused() -> None:
    q, k = torch.zeros(3, 5, 4), torch.zeros(3, 6, 4)
    said = r"segments: must be a tuple of two \(queries, keys\) for 5 queries and 6 keys, got one array"
    for call in (rootdk.attention, torch.compile(rootdk.attention, backend="eager")):
        with pytest.raises(rootdk.ArgumentError, match=said):
            call(q, k, k, segments=torch.zeros(6, dtype=torch.int64))
