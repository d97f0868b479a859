"""float32 queries over a cache of half types: as exact as float32 on the widened cache, and without a copy of it."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from budgets import assert_within, forward_budget, measure_budget
from judge import TARGETS, target
from problems import option_sets, random_arrays
from tensors import array, tensor, tensor_options

import rootdk
from rootdk.backends import problem_of
from rootdk.backends import torch as adapter
from rootdk.backends.torch import kernel as torch_kernel

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NAMES = list(option_sets(np.random.default_rng(0)))


def mixed(rng: np.random.Generator, kind: Any, **sizes: Any) -> tuple[Any, Any, Any]:
    query, key, value = random_arrays(rng, dtype=np.float32, **sizes)
    return query, key.astype(kind), value.astype(kind)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", HALVES)
def test_every_option(rng: np.random.Generator, kind: str, name: str) -> None:
    options = option_sets(rng)[name]
    arrays = mixed(rng, HALVES[kind])
    problem = problem_of(*arrays, **options)
    expected, fields = forward_budget(problem), measure_budget(problem)
    for where in TARGETS:
        with target(where):
            out, reading = rootdk.measure(*arrays, **options)
            assert out.dtype == np.float32
            assert_within(out, *expected)
            np.testing.assert_array_equal(rootdk.attention(*arrays, **options), out)
            for field, budget in fields.items():
                assert_within(getattr(reading, field), *budget, field)
    on_tensors = rootdk.attention(*(tensor(a) for a in arrays), **tensor_options(options))
    assert on_tensors.dtype == torch.float32
    assert_within(array(on_tensors), *expected)


@pytest.mark.parametrize("sizes", [(1, 1500), (3, 40), (33, 130), (140, 300), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("d", [(8, 8), (64, 80), (3, 1)], ids=str)
@pytest.mark.parametrize("kind", HALVES)
def test_every_length(rng: np.random.Generator, kind: str, d: tuple[int, int], sizes: tuple[int, int]) -> None:
    arrays = mixed(rng, HALVES[kind], n_query=sizes[0], n_key=sizes[1], d_k=d[0], d_v=d[1])
    expected = forward_budget(problem_of(*arrays, causal=True))
    for where in TARGETS:
        with target(where):
            assert_within(rootdk.attention(*arrays, causal=True), *expected)


def test_the_cache_is_read_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gets the very memory: a strided view of a larger cache."""
    cache = torch.randn(2, 2, 4, 4096, 64).bfloat16()
    key, value = (part[:, :, :1000] for part in cache)
    seen = []
    forward = torch_kernel.kernel().forward

    class Spy:
        def __getattr__(self, name: str) -> Any:
            return getattr(adapter.compiled(), name)

        def forward(self, problem: Any, *others: Any) -> Any:
            seen.append((problem.key.data_ptr(), problem.value.data_ptr()))
            return forward(problem, *others)

    monkeypatch.setattr(torch_kernel, "kernel", Spy)
    out = rootdk.attention(torch.randn(2, 8, 1, 64), key, value)
    assert out.dtype == torch.float32
    assert seen == [(key.data_ptr(), value.data_ptr())]


def test_what_needs_one_type_says_so(rng: np.random.Generator) -> None:
    arrays = mixed(rng, np.float16)
    q, k, v = (tensor(a) for a in arrays)
    line = r"^key: must be float32 like query for {}, got float16$"
    for purpose, call in {
        "a gradient": lambda: rootdk.attention_vjp(*arrays),
        "its weights": lambda: rootdk.weights(*arrays[:2]),
        "per_key=True": lambda: rootdk.measure(*arrays, per_key=True),
        "torch.compile and torch.func": lambda: torch.func.vmap(lambda q: rootdk.attention(q, k[0], v[0]))(q),
    }.items():
        with pytest.raises(rootdk.ArgumentTypeError, match=line.format(purpose)):
            call()
    with pytest.raises(rootdk.ArgumentTypeError, match=line.format("a gradient")):
        rootdk.attention(q.requires_grad_(), k, v)
    # NumPy's False is no request.
    assert rootdk.measure(*arrays, per_key=np.False_)[1].received is None


@pytest.mark.parametrize(
    ("kinds", "line"),
    [
        ((np.float32, np.float16, np.float32), "value: must be float16 to match key, got float32"),
        ((np.float32, np.float32, np.float16), "value: must be float32 to match query, got float16"),
        ((np.float64, np.float16, np.float16), "key: must be float64 to match query, got float16"),
        ((np.float16, np.float32, np.float32), "key: must be float16 to match query, got float32"),
        ((np.float32, np.float64, np.float64), "key: must be float32 to match query, got float64"),
    ],
)
def test_other_mixes_are_refused(kinds: Any, line: str) -> None:
    arrays = [np.zeros((2, 3, 4), kind) for kind in kinds]
    for given in (arrays, [torch.from_numpy(a) for a in arrays]):
        with pytest.raises(rootdk.ArgumentTypeError) as caught:
            rootdk.attention(*given)
        assert str(caught.value) == line
