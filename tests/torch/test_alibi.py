"""ALiBi slopes: the same as a bias of -slope * |p - j|, in every derivative, on every target, under transforms."""

from typing import Any

import numpy as np
import pytest
import torch
from budgets import assert_within, compute_type, judge_type, unit_roundoff
from judge import TARGETS, Judge, target
from problems import random_arrays
from tensors import DTYPES, array, tensor

import rootdk
from rootdk.backends import problem_of, reference

Q, K, V = (torch.randn(2, heads, n, 4, dtype=torch.float64) for heads, n in ((4, 5), (2, 7), (2, 7)))
SLOPES = torch.tensor([0.5, 0.25, -0.1, 2.0], dtype=torch.float64)


def as_bias(slopes: Any, n_query: int = 5, n_key: int = 7) -> Any:
    away = (torch.arange(n_query)[:, None] + n_key - n_query - torch.arange(n_key)).abs()
    return -slopes[..., None, None] * away


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 2.0, "window": 3}], ids=str)
@pytest.mark.parametrize("slopes", [SLOPES, torch.stack([SLOPES, -SLOPES])], ids=["heads", "batch and heads"])
def test_equals_a_bias_with_all_derivatives(slopes: Any, options: dict[str, Any]) -> None:
    leaves = [t.clone().requires_grad_() for t in (Q, K, V, slopes)]
    q, k, v, learned = leaves
    ours = rootdk.attention(q, k, v, alibi=learned, **options)
    theirs = rootdk.attention(q, k, v, bias=as_bias(learned), **options)
    torch.testing.assert_close(ours, theirs)
    pairs = [torch.autograd.grad(out.sin().sum(), leaves, create_graph=True) for out in (ours, theirs)]
    for once, again in zip(*pairs, strict=True):
        torch.testing.assert_close(once, again)
    seconds = [torch.autograd.grad(sum(g.sin().sum() for g in firsts), leaves) for firsts in pairs]
    for once, again in zip(*seconds, strict=True):
        torch.testing.assert_close(once, again)


def test_torch_says_the_same() -> None:
    theirs = torch.nn.functional.scaled_dot_product_attention(Q, K, V, attn_mask=as_bias(SLOPES), enable_gqa=True)
    torch.testing.assert_close(rootdk.attention(Q, K, V, alibi=SLOPES), theirs)


@pytest.mark.parametrize("lengths", [(1, 300), (3, 17), (33, 40), (130, 129), (70, 400)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_length_and_target(rng: np.random.Generator, dtype: str, lengths: tuple[int, int]) -> None:
    n_query, n_key = lengths
    arrays = random_arrays(rng, n_query=n_query, n_key=n_key, dtype=DTYPES[dtype][1])
    d_out = rng.standard_normal((2, 4, n_query, 5)).astype(arrays[0].dtype)
    options: dict[str, Any] = {"alibi": rng.standard_normal((2, 4)) / 10, "causal": bool(n_key % 2)}
    judge = Judge(arrays, d_out, options)
    problem = problem_of(*arrays, **options)
    # A sum over all pairs: what each term brings, and what adding so many up brings, as for a bias that all share.
    kind = arrays[0].dtype
    expected, plain = (reference.backward(problem, d_out, of(kind)).alibi for of in (judge_type, compute_type))
    away = max(float(reference.distances(problem, b).max()) for b in range(2))
    unit = unit_roundoff(compute_type(kind)) * (4 * away * float(np.abs(options["alibi"]).max()) + n_key + 8)
    largest = [float(np.abs(a.astype(np.float64)).max()) for a in (d_out, arrays[2])]
    size = away * n_query * 2 * 5 * largest[0] * largest[1]  # per row: weights of 1, times |dP| + |delta|, d_v = 5
    bound = 2 * (float(np.abs(plain - expected).max()) + (unit + unit_roundoff(kind)) * size)
    for name in TARGETS:
        with target(name):
            judge.check()
            slopes = tensor(options["alibi"]).requires_grad_()
            out = rootdk.attention(*(tensor(a) for a in arrays), alibi=slopes, causal=options["causal"])
            out.backward(tensor(d_out))
            assert_within(array(slopes.grad), expected, bound, f"d_alibi on {name}")


def test_compiled_and_transformed() -> None:
    def call(q: Any, slopes: Any) -> Any:
        return rootdk.attention(q, K, V, alibi=slopes, causal=True).sin().sum()

    leaves = (Q.clone().requires_grad_(), SLOPES.clone().requires_grad_())
    expected = torch.autograd.grad(call(*leaves), leaves)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for gradients in (torch.autograd.grad(compiled(*leaves), leaves), torch.func.grad(call, argnums=(0, 1))(Q, SLOPES)):
        for ours, theirs in zip(gradients, expected, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_vmap_over_slopes_and_around_them() -> None:
    many = torch.stack([SLOPES, 2 * SLOPES, -SLOPES])
    queries = torch.randn(3, *Q.shape, dtype=torch.float64)

    def call(q: Any, slopes: Any) -> Any:
        return rootdk.attention(q, K, V, alibi=slopes, causal=True)

    def pulled(q: Any, slopes: Any) -> Any:
        return torch.func.grad(lambda q, slopes: call(q, slopes).sin().sum(), argnums=(0, 1))(q, slopes)

    for function in (call, pulled):
        for dims in ((0, 0), (0, None), (None, 0)):
            given = (queries if dims[0] == 0 else Q, many if dims[1] == 0 else SLOPES)
            mapped = torch.func.vmap(function, in_dims=dims)(*given)
            alone = [function(queries[i] if dims[0] == 0 else Q, many[i] if dims[1] == 0 else SLOPES) for i in range(3)]
            together = torch.stack(alone) if function is call else tuple(map(torch.stack, zip(*alone, strict=True)))
            torch.testing.assert_close(mapped, together)


def test_one_head_and_numbers() -> None:
    q = torch.randn(6, 4, dtype=torch.float64)
    expected = rootdk.attention(q[None], q[None], q[None], alibi=[0.3])[0]
    for slope in (0.3, [0.3], torch.tensor(0.3, dtype=torch.float64)):
        torch.testing.assert_close(rootdk.attention(q, q, q, alibi=slope), expected)
    scaled = torch.func.vmap(lambda q: rootdk.attention(q, q, q, alibi=0.3))(q[None])
    torch.testing.assert_close(scaled[0], expected)
