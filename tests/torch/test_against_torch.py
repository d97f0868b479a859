"""The same call in torch, float32 beside float32: both must lie within the budget around the float64 truth.

torch is an outside authority for what the arguments mean; the budget is the same for it and for the kernel.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from budgets import assert_within, forward_budget, gradient_budget
from judge import TARGETS, target
from problems import random_arrays

import rootdk
from rootdk.backends import problem_of

GRADIENTS = ("d_query", "d_key", "d_value")
SIZES: dict[str, Any] = {"leading": (1,), "heads": 4, "kv_heads": 4, "n_query": 130, "n_key": 170, "d_k": 32, "d_v": 32}


def in_torch(arrays: Any, d_out: Any, options: dict[str, Any]) -> tuple[Any, list[Any]]:
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    out = torch.nn.functional.scaled_dot_product_attention(*tensors, **options)
    out.backward(torch.from_numpy(d_out))
    return out.detach().numpy(), [t.grad.numpy() for t in tensors]


def cases(rng: np.random.Generator) -> dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """name -> sizes that differ, rootdk's arguments, torch's arguments."""
    mask = rng.random((1, 1, 130, 170)) < 0.7
    mask[..., 0] = True
    bias = rng.standard_normal((4, 130, 170)).astype(np.float32)
    some_hidden = np.where(mask, bias[:1], -np.inf).astype(np.float32)
    return {
        "full": ({}, {}, {}),
        "causal": ({"n_query": 170}, {"causal": True}, {"is_causal": True}),
        "causal, fewer queries": ({}, {"causal": True, "query_offset": 0}, {"is_causal": True}),
        "bool mask": ({}, {"mask": mask}, {"attn_mask": torch.from_numpy(mask)}),
        "float mask": ({}, {"bias": bias}, {"attn_mask": torch.from_numpy(bias)}),
        "float mask with -inf": ({}, {"bias": some_hidden}, {"attn_mask": torch.from_numpy(some_hidden)}),
        "grouped": ({"kv_heads": 2}, {}, {"enable_gqa": True}),
        "grouped causal": ({"kv_heads": 1, "n_query": 170}, {"causal": True}, {"enable_gqa": True, "is_causal": True}),
        "scale": ({}, {"scale": 0.5}, {"scale": 0.5}),
        "d_v is not d_k": ({"d_v": 20}, {"causal": True, "query_offset": 0}, {"is_causal": True}),
        "no batch": ({"leading": ()}, {}, {}),
    }


NAMES = list(cases(np.random.default_rng(0)))


@pytest.mark.parametrize("name", NAMES)
def test_equals_torch(rng: np.random.Generator, name: str) -> None:
    sizes, options, torch_options = cases(rng)[name]
    arrays = random_arrays(rng, **(SIZES | sizes), dtype=np.float32)
    d_out = rng.standard_normal(arrays[0].shape[:-1] + arrays[2].shape[-1:]).astype(np.float32)
    problem = problem_of(*arrays, **options)
    forward, backward = forward_budget(problem), gradient_budget(problem, d_out)

    out, gradients = in_torch(arrays, d_out, torch_options)
    assert_within(out, *forward, "torch's output")
    for what, gradient, budget in zip(GRADIENTS, gradients, backward, strict=True):
        assert_within(gradient, *budget, f"torch's {what}")

    for on in TARGETS:
        with target(on):
            out, pull_back = rootdk.attention_vjp(*arrays, **options)
            assert_within(out, *forward, f"output on {on}")
            for what, gradient, budget in zip(GRADIENTS, pull_back(d_out), backward, strict=True):
                assert_within(gradient, *budget, f"{what} on {on}")


def test_causal_means_top_left_in_torch(rng: np.random.Generator) -> None:
    """With fewer queries than keys torch aligns at the top left, rootdk at the end: the two differ, as documented."""
    arrays = random_arrays(rng, **SIZES, dtype=np.float32)
    d_out = np.ones((1, 4, 130, 32), np.float32)
    theirs = in_torch(arrays, d_out, {"is_causal": True})[0]
    assert np.abs(rootdk.attention(*arrays, causal=True) - theirs).max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_lie_between_the_same_bounds(rng: np.random.Generator, dtype: Any) -> None:
    """torch's bfloat16 and float16 bits are the ones that the kernel reads."""
    kind = ml_dtypes.bfloat16 if dtype is torch.bfloat16 else np.float16
    arrays = [a.astype(kind) for a in random_arrays(rng, **SIZES, dtype=np.float32)]
    tensors = [torch.from_numpy(a.view(np.uint16).copy()).view(dtype) for a in arrays]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        theirs = torch.nn.functional.scaled_dot_product_attention(*(t.float() for t in tensors)).to(dtype)
    expected, bound = forward_budget(problem_of(*arrays))
    assert_within(theirs.view(torch.uint16).numpy().view(kind), expected, bound, "torch's output")
    assert_within(rootdk.attention(*arrays), expected, bound, "output")
